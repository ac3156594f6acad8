#![allow(clippy::unwrap_used)]

use std::fs;

use super::*;
use crate::transfer::manifest::{newest_verified, verify};
use crate::transfer::test_wire::{LEASE, Town, fence, name};
use crate::transfer::wire::PIECE_BYTES;

fn files() -> Vec<(&'static str, Vec<u8>)> {
    let large: Vec<u8> = (0..PIECE_BYTES * 2 + 77).map(|index| (index * 7 % 251) as u8).collect();
    vec![("large", large), ("small", b"small".to_vec()), ("empty", Vec::new())]
}

#[tokio::test]
async fn a_checkpoint_outlives_the_node_that_made_it() {
    let town = Town::new();
    let (maker, _holder, heir) = (town.node(1), town.node(2), town.node(3));
    let folder = town.checkpoint(40, &files());

    let checkpoint = maker.save(name(40), folder, &[NodeId(2)]).await.unwrap();
    assert_eq!(checkpoint.holders, [NodeId(1), NodeId(2)]);
    assert_eq!(checkpoint.bytes, u64::from(PIECE_BYTES) * 2 + 77 + 5);

    town.kill(1);
    fs::remove_dir_all(town.place.path().join("store-1")).unwrap();
    let into = town.place.path().join("heir");
    heir.restore(LEASE, fence(50), &checkpoint, &into).await.unwrap();
    let (folder, read) = newest_verified(&into).unwrap().unwrap();
    assert_eq!((read.manifest.step, read.digest), (40, checkpoint.manifest));
    assert_eq!(fs::read(folder.join("large")).unwrap(), files()[0].1);

    // The heir holds it now and needs nobody to restore it once more.
    town.kill(2);
    heir.restore(LEASE, fence(50), &checkpoint, &town.place.path().join("again"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_dead_target_is_passed_over_for_the_next() {
    let town = Town::new();
    let (maker, _, third) = (town.node(1), town.node(2), town.node(3));
    town.kill(2);
    let folder = town.checkpoint(1, &[("w", vec![7; 100])]);
    let checkpoint = maker.save(name(1), folder, &[NodeId(2), NodeId(3)]).await.unwrap();
    assert_eq!(checkpoint.holders, [NodeId(1), NodeId(3)]);
    let held = third.store().find(LEASE, checkpoint.manifest).unwrap().unwrap();
    assert!(verify(&held.folder).is_ok());
}

#[tokio::test]
async fn without_a_store_that_takes_it_nothing_is_said_to_be_saved() {
    let town = Town::new();
    let (maker, _) = (town.node(1), town.node(2));
    town.kill(2);
    let folder = town.checkpoint(1, &[("w", vec![7; 100])]);
    let error = maker.save(name(1), folder.clone(), &[NodeId(2)]).await.unwrap_err();
    assert!(matches!(error, CourierError::Nobody(Some(_))), "{error}");
    let alone = maker.save(name(1), folder, &[]).await.unwrap();
    assert_eq!(alone.holders, [NodeId(1)], "a cluster of one has only its own store");
}

#[tokio::test]
async fn lost_answers_delay_a_transfer_and_break_nothing() {
    let town = Town::new();
    let (maker, _, heir) = (town.node(1), town.node(2), town.node(3));
    town.lose_every(3);
    let checkpoint = maker
        .save(name(40), town.checkpoint(40, &files()), &[NodeId(2)])
        .await
        .unwrap();
    let into = town.place.path().join("heir");
    heir.restore(LEASE, fence(50), &checkpoint, &into).await.unwrap();
    assert_eq!(newest_verified(&into).unwrap().unwrap().1.digest, checkpoint.manifest);
}

#[tokio::test]
async fn a_holder_whose_copy_has_rotted_is_passed_over_for_the_next() {
    let town = Town::new();
    let (maker, rotten, _, heir) = (town.node(1), town.node(2), town.node(3), town.node(4));
    let folder = town.checkpoint(1, &[("w", vec![7; 5000])]);
    let mut checkpoint = maker.save(name(1), folder.clone(), &[NodeId(2)]).await.unwrap();
    maker.save(name(1), folder, &[NodeId(3)]).await.unwrap();
    checkpoint.holders = vec![NodeId(2), NodeId(3)];
    let held = rotten.store().find(LEASE, checkpoint.manifest).unwrap().unwrap();
    fs::write(held.folder.join("w"), vec![8; 5000]).unwrap();

    let into = town.place.path().join("heir");
    heir.restore(LEASE, fence(50), &checkpoint, &into).await.unwrap();
    assert_eq!(fs::read(into.join("step-1/w")).unwrap(), vec![7; 5000]);
}

#[tokio::test]
async fn a_checkpoint_that_nobody_holds_is_not_restored() {
    let town = Town::new();
    let (maker, holder, heir) = (town.node(1), town.node(2), town.node(3));
    let checkpoint = maker
        .save(name(1), town.checkpoint(1, &[("w", vec![7])]), &[NodeId(2)])
        .await
        .unwrap();
    town.kill(1);
    holder.store().forget(LEASE).unwrap();
    let into = town.place.path().join("heir");
    let error = heir.restore(LEASE, fence(50), &checkpoint, &into).await.unwrap_err();
    assert!(matches!(error, CourierError::Nobody(Some(_))), "{error}");
    assert!(newest_verified(&into).unwrap().is_none());
}

#[tokio::test]
async fn a_shown_token_stops_the_old_start_and_a_dead_gate_does_not_stop_the_new_one() {
    let town = Town::new();
    let (old, _gate, new) = (town.node(1), town.node(2), town.node(3));
    town.node(4);
    town.kill(4);
    let shown = new
        .fence(LEASE, fence(50), &[NodeId(2), NodeId(3), NodeId(4)])
        .await
        .unwrap();
    assert_eq!(shown.silent, [NodeId(4)]);

    let late = old
        .save(name(1), town.checkpoint(1, &[("w", vec![7])]), &[NodeId(2)])
        .await
        .unwrap_err();
    assert!(
        matches!(late, CourierError::Stale { shown } if shown == fence(50)),
        "{late}"
    );
    let older = old.fence(LEASE, fence(42), &[NodeId(2)]).await.unwrap_err();
    assert!(matches!(older, CourierError::Stale { .. }), "{older}");
}
