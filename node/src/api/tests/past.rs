//! The cluster as it was.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::id::Cursor;
use holdfast_proto::tenant::{Quota, Role};
use reqwest::Method;

use super::world::{World, name, shown};
use crate::api::past;
use crate::api::seam::Committed;
use crate::client::{Client, View};
use crate::wire::lease::{LeaseAccepted, LeaseOrder, LeaseView};
use crate::wire::state::StateView;

async fn ordered(world: &World, client: &Client) -> LeaseAccepted {
    let order = LeaseOrder::new(2, 60_000, vec!["true".to_owned()]);
    let lease = client.command::<LeaseAccepted>(Method::POST, "/v1/leases", &order);
    let lease = lease.await.unwrap().body;
    world.run(lease.lease);
    world.finish(lease.lease, 0);
    lease
}

#[tokio::test]
async fn a_lease_is_shown_as_it_was_after_each_entry() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let lease = ordered(&world, &client).await;
    let mut seen = Vec::new();
    for index in lease.index..=world.state().applied.index {
        let client = world.client(Some(&world.operator)).with_view(View::At(index));
        let path = format!("/v1/leases/{}", lease.lease);
        let view: LeaseView = client.get(&path).await.unwrap().body;
        seen.push((view.status, view.devices));
    }
    seen.dedup();
    let expected = [
        ("pending", 0),
        ("placed", 2),
        ("starting", 2),
        ("active", 2),
        ("ended", 0),
    ];
    assert_eq!(seen, expected.map(|(status, devices)| (status.to_owned(), devices)));
    let before = world.client(Some(&world.operator)).with_view(View::At(lease.index - 1));
    let gone = before.get::<LeaseView>(&format!("/v1/leases/{}", lease.lease)).await;
    assert_eq!(gone.unwrap_err().problem().unwrap().code, "lease-unknown");
}

#[tokio::test]
async fn a_fold_of_the_stream_has_the_state_hash_of_the_replica_in_any_order_of_asking() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let mut hashes = Vec::new();
    for _ in 0..3 {
        ordered(&world, &client).await;
        let state = world.state();
        hashes.push((state.applied.index, state.hash()));
    }
    // One more, so that the last is of the past too.
    ordered(&world, &client).await;
    for at in [1, 2, 0, 2] {
        let (index, hash) = hashes[at];
        assert_eq!(
            past::at(&world.api(), index).await.ok().unwrap().hash(),
            hash,
            "entry {index}"
        );
    }
}

#[tokio::test]
async fn everything_at_one_position_is_cut_to_what_the_token_sees() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    ordered(&world, &client).await;
    world.operate(Command::SetTenant {
        tenant: name("blue"),
        quota: Quota { devices_max: 8 },
    });
    let all: StateView = client.get("/v1/state").await.unwrap().body;
    let sizes = (all.nodes.len(), all.gpus.len(), all.leases.len(), all.tenants.len());
    assert_eq!((sizes, all.cursor), ((1, 8, 1, 2), world.state_cursor()));
    let blue = world.token(Role::Tenant, Some("blue"), None);
    let own: StateView = world.client(Some(&blue)).get("/v1/state").await.unwrap().body;
    assert_eq!((own.leases.len(), own.tenants.len()), (0, 1));
}

#[tokio::test]
async fn a_state_that_is_not_there_is_refused_with_the_reason() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    ordered(&world, &client).await;
    let world: &Arc<World> = &world;
    let refused = async |query: &str| {
        let http = world.http();
        let asked = http
            .get(world.url(&format!("/v1/state?{query}")))
            .header("authorization", shown(&world.operator));
        asked.send().await.unwrap().text().await.unwrap()
    };
    assert!(refused("at=9000").await.contains("cursor-from-future"));
    assert!(refused("at=yesterday").await.contains("a whole number"));
    world.compact(Cursor { index: 2, sub: 0 });
    let text = refused("at=4").await;
    assert!(
        text.contains("compacted") && text.contains("another node may have them"),
        "{text}"
    );
}
