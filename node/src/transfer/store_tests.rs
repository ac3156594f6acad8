#![allow(clippy::unwrap_used)]

use std::fs;

use holdfast_proto::id::{Attempt, Epoch, Era, FencingToken};

use super::*;
use crate::transfer::manifest::{digest_of, step_name};

fn fence(index: u64) -> Fence {
    Fence {
        token: FencingToken { era: Era(0), index },
        epoch: Epoch(1),
        attempt: Attempt(1),
    }
}

fn name(step: u64) -> CheckpointName {
    CheckpointName {
        lease: LeaseId::from_index(12),
        fence: fence(42),
        rank: 0,
        step,
    }
}

fn local(place: &Path, step: u64, content: &[u8]) -> PathBuf {
    let folder = place.join("work").join(step_name(step));
    fs::create_dir_all(folder.join("part")).unwrap();
    fs::write(folder.join("part/w"), content).unwrap();
    let file = ManifestFile {
        name: "part/w".into(),
        bytes: content.len() as u64,
        blake3: digest_of(content),
    };
    fs::write(
        folder.join(MANIFEST_NAME),
        Manifest {
            step,
            files: vec![file],
        }
        .to_bytes(),
    )
    .unwrap();
    folder
}

fn store(place: &Path) -> Store {
    Store::open(place.join("store")).unwrap()
}

#[test]
fn local_work_is_taken_in_and_restored_bit_for_bit() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    let read = store.take_in(name(7), &local(place.path(), 7, b"seven")).unwrap();
    let into = place.path().join("fresh/checkpoints");

    store.restore(name(7).lease, read.digest, &into).unwrap();
    store.restore(name(7).lease, read.digest, &into).unwrap();

    let (folder, again) = manifest::newest_verified(&into).unwrap().unwrap();
    assert_eq!(again, read);
    assert_eq!(fs::read(folder.join("part/w")).unwrap(), b"seven");
    assert_eq!(fs::read_dir(&into).unwrap().count(), 1, "no temporary folder is left");
}

#[test]
fn a_folder_that_does_not_match_its_manifest_is_not_taken_in() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    let folder = local(place.path(), 7, b"seven");
    fs::write(folder.join("part/w"), b"SEVEN").unwrap();
    let error = store.take_in(name(7), &folder).unwrap_err();
    assert!(
        matches!(error, StoreError::Manifest(ManifestError::OtherContent { .. })),
        "{error}"
    );
    fs::write(folder.join("part/w"), b"sev").unwrap();
    assert!(store.take_in(name(7), &folder).is_err());
    assert!(store.held(name(7).lease).unwrap().is_empty());

    fs::write(folder.join("part/w"), b"seven").unwrap();
    store.take_in(name(7), &folder).unwrap();
}

#[test]
fn a_checkpoint_that_rotted_in_the_store_is_not_restored() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    let read = store.take_in(name(7), &local(place.path(), 7, b"seven")).unwrap();
    let held = store.find(name(7).lease, read.digest).unwrap().unwrap();
    fs::write(held.folder.join("part/w"), b"SEVEN").unwrap();
    let into = place.path().join("fresh");
    assert!(store.restore(name(7).lease, read.digest, &into).is_err());
    assert!(manifest::newest_verified(&into).unwrap().is_none());
}

#[test]
fn one_start_cannot_save_one_step_twice_with_other_content() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    store.take_in(name(7), &local(place.path(), 7, b"seven")).unwrap();
    store.take_in(name(7), &local(place.path(), 7, b"seven")).unwrap();
    let other = store.take_in(name(7), &local(place.path(), 7, b"eight"));
    assert!(matches!(other, Err(StoreError::Conflict { step: 7 })));
    let mut later = name(7);
    later.fence = fence(43);
    store.take_in(later, &local(place.path(), 7, b"eight")).unwrap();
    assert_eq!(store.held(name(7).lease).unwrap().len(), 2);
}

#[test]
fn a_token_shown_survives_a_restart_and_never_goes_back() {
    let place = tempfile::tempdir().unwrap();
    let lease = LeaseId::from_index(12);
    store(place.path()).show(lease, fence(9)).unwrap();
    let store = store(place.path());
    assert_eq!(store.shown(lease).unwrap(), fence(9));
    store.show(lease, fence(9)).unwrap();
    assert!(matches!(store.show(lease, fence(8)), Err(StoreError::Stale { shown }) if shown == fence(9)));
    store.show(LeaseId::from_index(13), fence(1)).unwrap();
}

#[test]
fn only_what_is_to_be_kept_is_kept_and_offers_of_old_tokens_go() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    let lease = name(1).lease;
    let mut digests = Vec::new();
    for step in 1..=4 {
        let folder = local(place.path(), step, &step.to_be_bytes());
        digests.push(store.take_in(name(step), &folder).unwrap().digest);
    }
    let open = manifest::read_manifest(&local(place.path(), 5, b"five")).unwrap();
    store.offer(name(5), &open.bytes).unwrap();

    store.retain(lease, |read| read.manifest.step >= 3).unwrap();
    let steps = |store: &Store| -> Vec<u64> {
        let held = store.held(lease).unwrap();
        held.iter().map(|held| held.read.manifest.step).collect()
    };
    assert_eq!(steps(&store), [4, 3]);
    assert!(store.place(name(5), 0, 0, b"five").is_ok(), "the open offer is kept");

    store.show(lease, fence(43)).unwrap();
    store.retain(lease, |_| true).unwrap();
    assert!(
        durable::list(&store.lease_folder(lease).join(INCOMING_NAME))
            .unwrap()
            .is_empty()
    );
    assert_eq!(steps(&store), [4, 3]);

    assert_eq!(store.leases().unwrap(), [lease]);
    store.forget(lease).unwrap();
    assert!(store.leases().unwrap().is_empty());
    assert_eq!(store.shown(lease).unwrap(), Fence::default());
}

#[test]
fn parts_are_read_within_the_file_only() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    let read = store.take_in(name(7), &local(place.path(), 7, b"seven")).unwrap();
    let held = store.find(name(7).lease, read.digest).unwrap().unwrap();
    assert_eq!(store.read(&held, 0, 1, 3).unwrap(), b"eve");
    assert_eq!(store.read(&held, 0, 3, 99).unwrap(), b"en");
    assert_eq!(store.read(&held, 0, 5, 99).unwrap(), b"");
    assert_eq!(store.read(&held, 0, u64::MAX, u32::MAX).unwrap(), b"");
    assert!(matches!(store.read(&held, 1, 0, 1), Err(StoreError::NoSuchFile(1))));
}
