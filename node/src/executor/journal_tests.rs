//! The executor's journal: replay, torn tails, damage, compaction.
#![allow(clippy::unwrap_used)]

use super::*;
use holdfast_proto::id::{Attempt, Epoch, LeaseId};
use holdfast_storage::disk::memory::MemoryDisk;

const FOLDER: &str = "/executor";

fn run(index: u64) -> RunKey {
    RunKey {
        lease: LeaseId { cell: 0, index },
        epoch: Epoch(1),
        attempt: Attempt(1),
    }
}

fn disk(seed: u64) -> MemoryDisk {
    MemoryDisk::new(seed)
}

fn open(disk: &MemoryDisk) -> Result<Journal, JournalError> {
    Journal::open(Arc::new(disk.clone()), Path::new(FOLDER))
}

#[test]
fn what_was_appended_is_read_back_and_replay_is_idempotent() {
    let disk = disk(1);
    let mut journal = open(&disk).unwrap();
    journal
        .append(&[
            Entry::Spawning(run(1)),
            Entry::Spawning(run(2)),
            Entry::Spawning(run(3)),
        ])
        .unwrap();
    journal.append(&[Entry::Ended(run(2), Exit::Code(7))]).unwrap();
    journal
        .append(&[Entry::Ended(run(2), Exit::Vanished), Entry::Spawning(run(2))])
        .unwrap();
    journal.append(&[Entry::Forgotten(run(3))]).unwrap();
    let expected = BTreeMap::from([
        (run(1), Remembered::Spawned),
        (run(2), Remembered::Ended(Exit::Code(7))),
    ]);
    assert_eq!(journal.runs(), &expected);
    for _ in 0..3 {
        assert_eq!(open(&disk).unwrap().runs(), &expected);
    }
}

#[test]
fn an_acknowledged_append_survives_any_crash_and_a_torn_one_is_dropped() {
    for seed in 0..200 {
        let disk = disk(seed);
        let mut journal = open(&disk).unwrap();
        let mut acknowledged = 0;
        disk.set_faults(holdfast_storage::disk::memory::Faults {
            power_off_after: Some(seed % 37),
            ..Default::default()
        });
        for index in 1..20 {
            if journal
                .append(&[Entry::Spawning(run(index)), Entry::Ended(run(index), Exit::Code(0))])
                .is_err()
            {
                break;
            }
            acknowledged = index;
        }
        disk.crash();
        let again = open(&disk).unwrap();
        let last = again.runs().len() as u64;
        assert!(
            last == acknowledged || last == acknowledged + 1,
            "seed {seed}: {acknowledged} acknowledged, {last} read"
        );
        assert!(
            again
                .runs()
                .values()
                .all(|run| *run == Remembered::Ended(Exit::Code(0))),
            "seed {seed}: half an append"
        );
    }
}

#[test]
fn damage_in_the_middle_stops_the_executor() {
    let disk = disk(1);
    let mut journal = open(&disk).unwrap();
    journal.append(&[Entry::Spawning(run(1))]).unwrap();
    journal.append(&[Entry::Spawning(run(2))]).unwrap();
    let file = disk.open(&Path::new(FOLDER).join(FILE), Open::Write).unwrap();
    file.write_at(b"x", HEADER_BYTES as u64 + 3).unwrap();
    assert!(matches!(open(&disk), Err(JournalError::Damaged(_, 0))));
}

#[test]
fn a_failed_write_is_final() {
    let disk = disk(1);
    let mut journal = open(&disk).unwrap();
    disk.set_faults(holdfast_storage::disk::memory::Faults {
        fail_syncs: true,
        ..Default::default()
    });
    assert!(matches!(
        journal.append(&[Entry::Spawning(run(1))]),
        Err(JournalError::Write(..))
    ));
    disk.set_faults(Default::default());
    assert!(matches!(
        journal.append(&[Entry::Spawning(run(2))]),
        Err(JournalError::Failed)
    ));
}

#[test]
fn the_file_stays_small_however_long_the_node_lives() {
    let disk = disk(1);
    let mut journal = open(&disk).unwrap();
    journal.append(&[Entry::Spawning(run(0))]).unwrap();
    for index in 1..20_000 {
        journal
            .append(&[Entry::Spawning(run(index)), Entry::Forgotten(run(index))])
            .unwrap();
    }
    assert!(journal.end <= COMPACT_BYTES + RECORD_BYTES_MAX as u64);
    assert_eq!(
        open(&disk).unwrap().runs(),
        &BTreeMap::from([(run(0), Remembered::Spawned)])
    );
}
