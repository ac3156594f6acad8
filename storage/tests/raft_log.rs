//! The Raft log: openraft's own suite, and what it must keep across crashes, damage and slow syncs.

#![allow(clippy::unwrap_used)]

#[path = "support/shared.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_storage::disk::memory::{Faults, MemoryDisk};
use holdfast_storage::disk::{Disk, RealDisk};
use holdfast_storage::raft_log::{LogThread, OpenError, Opened, Options, RaftLog};
use holdfast_storage::types::{Entry, LeaderId, LogId, Payload, Proposal, Types, Vote};
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use support::gate::GateDisk;
use support::{Runtime, proposal};
use tokio::task::JoinHandle;

/// Small segments and almost no memory, so that every path is taken.
const OPTIONS: Options = Options {
    segment_bytes: 4096,
    tail_bytes_max: 600,
    read_bytes_max: 1000,
};

fn dir() -> &'static Path {
    Path::new("/raft")
}

fn open(disk: impl Disk) -> (RaftLog<Runtime>, LogThread) {
    Opened::open(Arc::new(disk), dir(), OPTIONS)
        .unwrap()
        .start_thread(None)
        .unwrap()
}

/// The log served by a task: segments are prepared in its line, so that a run makes the same disk calls each time.
fn open_in_task(disk: &MemoryDisk) -> Result<(RaftLog<Runtime>, JoinHandle<()>), OpenError> {
    let opened = Opened::open(Arc::new(disk.clone()), dir(), OPTIONS)?;
    let (log, task) = opened.start_task(|| Duration::ZERO);
    Ok((log, tokio::spawn(task)))
}

fn id(term: u64, index: u64) -> LogId {
    LogId {
        leader_id: LeaderId { term, node_id: 1 },
        index,
    }
}

fn entry(term: u64, index: u64) -> Entry {
    let payload = vec![(term * 16 + index) as u8; (index * 31 % 150) as usize];
    Entry {
        log_id: id(term, index),
        payload: Payload::Normal(Proposal(Bytes::from(payload))),
    }
}

fn vote(term: u64) -> Vote {
    Vote {
        leader_id: LeaderId { term, node_id: 1 },
        committed: false,
    }
}

async fn append(log: &mut RaftLog<Runtime>, term: u64, range: std::ops::Range<u64>) -> std::io::Result<()> {
    let (done, flushed) = Types::<Runtime>::oneshot();
    log.append(range.map(|index| entry(term, index)), IOFlushed::signal(done))
        .await?;
    flushed.await.map_err(std::io::Error::other)?
}

async fn all(log: &mut RaftLog<Runtime>) -> Vec<Entry> {
    log.try_get_log_entries(..).await.unwrap()
}

#[tokio::test]
async fn everything_asked_for_is_there_after_a_restart() {
    let disk = MemoryDisk::new(1);
    let (mut log, thread) = open(disk.clone());
    append(&mut log, 1, 0..60).await.unwrap();
    log.save_vote(&vote(2)).await.unwrap();
    log.truncate_after(Some(id(1, 49))).await.unwrap();
    append(&mut log, 2, 50..90).await.unwrap();
    log.purge(id(1, 44)).await.unwrap();
    log.save_committed(Some(id(2, 70))).await.unwrap();
    let expected: Vec<Entry> = (45..50)
        .map(|i| entry(1, i))
        .chain((50..90).map(|i| entry(2, i)))
        .collect();
    assert_eq!(all(&mut log).await, expected);
    drop(log);
    thread.join();
    disk.crash();

    let (mut log, thread) = open(disk.clone());
    assert_eq!(all(&mut log).await, expected);
    assert_eq!(log.read_vote().await.unwrap(), Some(vote(2)));
    assert_eq!(log.read_committed().await.unwrap(), Some(id(2, 70)));
    let state = log.get_log_state().await.unwrap();
    assert_eq!(
        (state.last_purged_log_id, state.last_log_id),
        (Some(id(1, 44)), Some(id(2, 89)))
    );
    assert!(
        !disk.list(dir()).unwrap().contains(&"0000000001.seg".into()),
        "a purged segment stays"
    );
    drop(log);
    thread.join();
}

#[tokio::test]
async fn entries_are_readable_before_they_are_durable_and_from_disk_after_memory_lets_go() {
    let disk = GateDisk::new(MemoryDisk::new(1));
    let (mut log, thread) = open(disk.clone());
    disk.close();
    let (done, flushed) = Types::<Runtime>::oneshot();
    log.append((0..40).map(|index| entry(1, index)), IOFlushed::signal(done))
        .await
        .unwrap();
    assert_eq!(
        all(&mut log).await,
        (0..40).map(|index| entry(1, index)).collect::<Vec<_>>()
    );
    disk.open();
    flushed.await.unwrap().unwrap();
    append(&mut log, 1, 40..80).await.unwrap();
    assert_eq!(
        all(&mut log).await,
        (0..80).map(|index| entry(1, index)).collect::<Vec<_>>()
    );
    drop(log);
    thread.join();
}

#[tokio::test]
async fn a_read_for_replication_is_bounded_in_bytes_and_never_empty() {
    let (mut log, thread) = open(MemoryDisk::new(1));
    append(&mut log, 1, 0..80).await.unwrap();
    let mut next = 0;
    let mut reads = 0;
    while next < 80 {
        let some = log.limited_get_log_entries(next, 80).await.unwrap();
        assert_eq!(some[0], entry(1, next));
        let bytes: usize = some.iter().map(|entry| proposal(entry).len()).sum();
        assert!(bytes <= OPTIONS.read_bytes_max + 150, "{bytes} bytes in one read");
        next += some.len() as u64;
        reads += 1;
    }
    assert!(reads > 4);
    drop(log);
    thread.join();
}

/// CASES 84: the storage said "on disk" before it was.
#[tokio::test]
async fn nothing_is_reported_flushed_before_the_sync_has_returned() {
    let disk = GateDisk::new(MemoryDisk::new(1));
    let (mut log, thread) = open(disk.clone());
    disk.close();
    let (done, mut flushed) = Types::<Runtime>::oneshot();
    log.append([entry(1, 0)], IOFlushed::signal(done)).await.unwrap();
    disk.wait_for_sync();
    assert!(
        flushed.try_recv().is_err(),
        "flushed was reported while the sync had not returned"
    );
    disk.open();
    flushed.await.unwrap().unwrap();
    drop(log);
    thread.join();
}

/// CASES 85: openraft counts unflushed entries as flushed once a vote is saved, so the vote must wait for them.
#[tokio::test]
async fn a_vote_is_never_durable_before_the_appends_ahead_of_it() {
    let disk = GateDisk::new(MemoryDisk::new(1));
    let (mut log, thread) = open(disk.clone());
    disk.close();
    let (done, mut first) = Types::<Runtime>::oneshot();
    log.append([entry(1, 0)], IOFlushed::signal(done)).await.unwrap();
    disk.wait_for_sync();
    let (done, mut second) = Types::<Runtime>::oneshot();
    log.append([entry(1, 1)], IOFlushed::signal(done)).await.unwrap();
    let mut voter = log.clone();
    let voting = tokio::spawn(async move { voter.save_vote(&vote(2)).await });
    tokio::task::yield_now().await;
    assert!(first.try_recv().is_err() && second.try_recv().is_err() && !voting.is_finished());

    // The sync that runs covers the first append only; the group after it holds the second append and the vote.
    disk.let_one_through();
    (&mut first).await.unwrap().unwrap();
    disk.wait_for_sync();
    assert!(second.try_recv().is_err() && !voting.is_finished());
    disk.open();
    voting.await.unwrap().unwrap();
    assert!(
        second.try_recv().is_ok(),
        "the vote was reported before the append ahead of it"
    );
    drop(log);
    thread.join();
}

/// One life of a log: appends, votes, truncations and purges; says what was acknowledged before the power went.
async fn live(disk: &MemoryDisk) -> (u64, u64) {
    let Ok((mut log, task)) = open_in_task(disk) else {
        return (0, 0);
    };
    let (mut entries, mut term) = (0, 0);
    for round in 1..=8_u64 {
        let from = (round - 1) * 10;
        if append(&mut log, round, from..from + 10).await.is_err() {
            break;
        }
        entries = from + 10;
        if log.save_vote(&vote(round + 1)).await.is_err() {
            break;
        }
        term = round + 1;
        if round % 3 == 0 && log.purge(id(round - 2, from - 15)).await.is_err() {
            break;
        }
    }
    drop(log);
    task.await.unwrap();
    (entries, term)
}

#[tokio::test]
async fn a_crash_at_every_disk_call_keeps_each_acknowledged_entry_and_vote() {
    let calls = {
        let disk = MemoryDisk::new(0);
        live(&disk).await;
        disk.calls()
    };
    for call in 0..=calls + 4 {
        let disk = MemoryDisk::new(call);
        disk.set_faults(Faults {
            power_off_after: Some(call),
            ..Faults::default()
        });
        let (entries, term) = live(&disk).await;
        disk.crash();
        let (mut log, thread) = open(disk.clone());
        let state = log.get_log_state().await.unwrap();
        let last = state.last_log_id.map_or(0, |id| id.index + 1);
        assert!(
            last >= entries,
            "call {call}: {last} of {entries} acknowledged entries are left"
        );
        let saved = log.read_vote().await.unwrap().map_or(0, |vote| vote.leader_id.term);
        assert!(saved >= term, "call {call}: vote {saved} of {term}");
        let first = state.last_purged_log_id.map_or(0, |id| id.index + 1);
        for (at, read) in all(&mut log).await.iter().enumerate() {
            let index = first + at as u64;
            assert_eq!(*read, entry(index / 10 + 1, index), "call {call}");
        }
        drop(log);
        thread.join();
    }
}

#[tokio::test]
async fn a_failed_sync_fails_the_append_and_everything_after_it_for_good() {
    let disk = MemoryDisk::new(1);
    let (mut log, task) = open_in_task(&disk).unwrap();
    append(&mut log, 1, 0..5).await.unwrap();
    disk.set_faults(Faults {
        fail_syncs: true,
        ..Faults::default()
    });
    let error = append(&mut log, 1, 5..6).await.unwrap_err();
    assert!(error.to_string().contains("a failed sync is not retried"), "{error}");
    disk.set_faults(Faults::default());
    append(&mut log, 1, 6..7).await.unwrap_err();
    log.save_vote(&vote(3)).await.unwrap_err();
    assert_eq!(disk.calls(), 0, "the log went on writing after a failed sync");
    drop(log);
    task.await.unwrap();
}

#[tokio::test]
async fn a_full_disk_stops_the_log_and_a_restart_with_space_has_everything_acknowledged() {
    let disk = MemoryDisk::new(1);
    let (mut log, thread) = open(disk.clone());
    disk.set_faults(Faults {
        capacity_bytes: Some(3 * 4096),
        ..Faults::default()
    });
    let mut acknowledged = 0;
    let error = loop {
        match append(&mut log, 1, acknowledged..acknowledged + 1).await {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("free space on this disk"), "{error}");
    drop(log);
    thread.join();
    disk.crash();
    let (mut log, thread) = open(disk);
    let left = all(&mut log).await.len() as u64;
    assert!(left >= acknowledged);
    append(&mut log, 1, left..left + 200).await.unwrap();
    drop(log);
    thread.join();
}

#[tokio::test]
async fn a_log_without_its_first_segment_is_refused() {
    let disk = MemoryDisk::new(1);
    let (mut log, thread) = open(disk.clone());
    append(&mut log, 1, 0..90).await.unwrap();
    drop(log);
    thread.join();
    disk.remove(&dir().join("0000000001.seg")).unwrap();
    let error = Opened::open(Arc::new(disk), dir(), OPTIONS).unwrap_err();
    assert!(matches!(error, OpenError::Gap { wanted: 0, .. }), "{error}");
}

#[tokio::test]
async fn the_machines_own_file_system_keeps_a_log_too() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("raft");
    let start = || {
        Opened::open(Arc::new(RealDisk), &dir, OPTIONS)
            .unwrap()
            .start_thread::<Runtime>(None)
            .unwrap()
    };
    let (mut log, thread) = start();
    append(&mut log, 1, 0..150).await.unwrap();
    log.save_vote(&vote(4)).await.unwrap();
    log.purge(id(1, 99)).await.unwrap();
    log.settle().await.unwrap();
    assert!(log.sync_stats().syncs >= 2 && log.sync_stats().entries == 150);
    drop(log);
    thread.join();
    assert!(!dir.join("0000000001.seg").exists());
    let (mut log, thread) = start();
    assert_eq!(
        all(&mut log).await,
        (100..150).map(|index| entry(1, index)).collect::<Vec<_>>()
    );
    assert_eq!(log.read_vote().await.unwrap(), Some(vote(4)));
    drop(log);
    thread.join();
}

#[tokio::test]
async fn the_task_and_the_thread_write_the_same_bytes() {
    let (by_thread, by_task) = (MemoryDisk::new(1), MemoryDisk::new(1));
    let (mut log, thread) = open(by_thread.clone());
    append(&mut log, 1, 0..50).await.unwrap();
    log.save_vote(&vote(2)).await.unwrap();
    drop(log);
    thread.join();

    let (mut log, task) = open_in_task(&by_task).unwrap();
    append(&mut log, 1, 0..50).await.unwrap();
    log.save_vote(&vote(2)).await.unwrap();
    drop(log);
    task.await.unwrap();
    for segment in ["0000000001.seg", "0000000002.seg"] {
        assert_eq!(
            by_thread.bytes(&dir().join(segment)),
            by_task.bytes(&dir().join(segment)),
            "{segment}"
        );
    }
}
