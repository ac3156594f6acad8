//! Snapshots: proven before they have a name, and what happens when the newest one is damaged.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_storage::disk::Disk;
use holdfast_storage::disk::memory::{Faults, MemoryDisk};
use holdfast_storage::snapshot::{Header, SnapshotError, SnapshotFile, SnapshotStore};
use holdfast_storage::types::stored::{EntryId, MembersAt};

fn dir() -> &'static Path {
    Path::new("/snapshots")
}

fn store(disk: &MemoryDisk) -> SnapshotStore {
    SnapshotStore::open(Arc::new(disk.clone()), dir()).unwrap()
}

fn body(index: u64) -> Vec<u8> {
    (0..5000).map(|at| (at * index) as u8).collect()
}

fn save(store: &SnapshotStore, index: u64) -> Result<SnapshotFile, SnapshotError> {
    let body = body(index);
    let header = Header {
        last: Some(EntryId {
            term: 1,
            node: 7,
            index,
        }),
        members: MembersAt::default(),
        state_hash: [index as u8; 32],
        body_hash: *blake3::hash(&body).as_bytes(),
        body_bytes: body.len() as u64,
    };
    store.save(&header, &body)
}

fn newest_index(store: &SnapshotStore) -> Option<u64> {
    store.newest().unwrap().0.map(|file| file.header.last.unwrap().index)
}

fn files(disk: &MemoryDisk) -> Vec<PathBuf> {
    disk.list(dir())
        .unwrap()
        .into_iter()
        .map(|name| dir().join(name))
        .collect()
}

#[test]
fn the_newest_is_found_its_bytes_read_back_and_two_are_kept() {
    let disk = MemoryDisk::new(1);
    let store = store(&disk);
    assert_eq!(newest_index(&store), None);
    for index in [10, 20, 30] {
        save(&store, index).unwrap();
        let file = store.newest().unwrap().0.unwrap();
        assert_eq!(file.header.last.unwrap().index, index);
        assert_eq!(file.body().unwrap(), body(index));
    }
    assert_eq!(files(&disk).len(), 2);
}

#[test]
fn a_newest_snapshot_of_zeros_torn_or_flipped_falls_back_to_the_one_before() {
    type Damage = fn(&MemoryDisk, &Path);
    let damages: [(&str, Damage); 4] = [
        ("zeros", |disk, path| disk.corrupt(path, 0, |bytes| bytes.fill(0))),
        ("torn", |disk, path| disk.cut(path, 3000)),
        ("empty", |disk, path| disk.cut(path, 0)),
        ("flipped", |disk, path| disk.corrupt(path, 2000, |bytes| bytes[0] ^= 1)),
    ];
    for (name, damage) in damages {
        let disk = MemoryDisk::new(1);
        let store = store(&disk);
        save(&store, 10).unwrap();
        save(&store, 20).unwrap();
        damage(&disk, files(&disk).last().unwrap());
        let (found, damaged) = store.newest().unwrap();
        assert_eq!(found.unwrap().header.last.unwrap().index, 10, "{name}");
        assert!(matches!(damaged[..], [SnapshotError::Damaged { .. }]), "{name}");
    }
}

#[test]
fn a_crash_at_every_disk_call_leaves_the_old_or_the_new_snapshot() {
    let calls = {
        let disk = MemoryDisk::new(0);
        let store = store(&disk);
        save(&store, 10).unwrap();
        disk.set_faults(Faults::default());
        save(&store, 20).unwrap();
        disk.calls()
    };
    for call in 0..=calls {
        let disk = MemoryDisk::new(call);
        let first = store(&disk);
        save(&first, 10).unwrap();
        disk.set_faults(Faults {
            power_off_after: Some(call),
            ..Faults::default()
        });
        let saved = save(&first, 20).is_ok();
        disk.crash();
        let second = store(&disk);
        let newest = newest_index(&second);
        assert!(
            newest == Some(20) || (newest == Some(10) && !saved),
            "call {call}: {newest:?}"
        );
        assert!(
            files(&disk)
                .iter()
                .all(|path| path.extension().is_some_and(|kind| kind == "snap"))
        );
    }
}

#[test]
fn a_full_disk_gives_the_space_back_and_keeps_the_old_snapshot() {
    let disk = MemoryDisk::new(1);
    let store = store(&disk);
    save(&store, 10).unwrap();
    disk.set_faults(Faults {
        capacity_bytes: Some(6000),
        ..Faults::default()
    });
    assert!(matches!(save(&store, 20), Err(SnapshotError::Write { .. })));
    assert_eq!(files(&disk).len(), 1);
    assert_eq!(newest_index(&store), Some(10));
}

#[test]
fn a_received_snapshot_counts_only_when_every_byte_has_come() {
    let (there, here) = (MemoryDisk::new(1), MemoryDisk::new(2));
    let sent = save(&store(&there), 40).unwrap();
    let receiver = store(&here);
    let copy = |skip: Option<u64>| {
        let incoming = receiver.receive().unwrap();
        let mut offset = 0;
        let mut piece = [0; 700];
        loop {
            let got = sent.read_at(&mut piece, offset).unwrap();
            if got == 0 {
                return incoming.finish();
            }
            if skip != Some(offset) {
                incoming.write_at(&piece[..got], offset).unwrap();
            }
            offset += got as u64;
        }
    };
    assert!(matches!(copy(Some(1400)), Err(SnapshotError::Damaged { .. })));
    let received = copy(None).unwrap();
    assert_eq!(newest_index(&receiver), None);
    receiver.adopt(&received).unwrap();
    assert_eq!(newest_index(&receiver), Some(40));
    assert_eq!(files(&here).len(), 1);
}
