//! The adapter under openraft: the suite, restarts, crashes, snapshots, and entries that cannot be read.

#![allow(clippy::unwrap_used)]

#[path = "support/shared.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::Cursor;
use holdfast_storage::CommittedSource;
use holdfast_storage::adapter::Adapter;
use holdfast_storage::disk::Disk;
use holdfast_storage::disk::memory::{Faults, MemoryDisk};
use holdfast_storage::event_log::EventsError;
use holdfast_storage::raft_log::{Opened, RaftLog};
use holdfast_storage::types::{Entry, LeaderId, LogId, Payload, Proposal, Types};
use openraft::StorageError;
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use support::single::Single;
use support::{RAFT_LOG, Runtime, commands, open_adapter};

struct Builder;

impl StoreBuilder<Types<Runtime>, RaftLog<Runtime>, Adapter<Runtime>> for Builder {
    async fn build(&self) -> Result<((), RaftLog<Runtime>, Adapter<Runtime>), StorageError<Types<Runtime>>> {
        let disk = MemoryDisk::new(1);
        let opened = Opened::open(Arc::new(disk.clone()), Path::new("/data/raft"), RAFT_LOG).unwrap();
        let (log, task) = opened.start_task(|| Duration::ZERO);
        tokio::spawn(task);
        Ok(((), log, open_adapter(disk).0))
    }
}

#[tokio::test]
async fn openrafts_storage_suite_passes() {
    Suite::test_all(Builder).await.unwrap();
}

fn entry(index: u64, payload: Payload) -> Entry {
    Entry {
        log_id: LogId {
            leader_id: LeaderId { term: 1, node_id: 1 },
            index,
        },
        payload,
    }
}

fn noted(index: u64) -> Entry {
    let envelope = commands::note(&format!("note {index}"), 1000 + index);
    entry(index, Payload::Normal(Proposal(envelope.encode())))
}

/// Applies the first command as entry 1 and notes after it.
async fn apply(adapter: &mut Adapter<Runtime>, range: std::ops::RangeInclusive<u64>) {
    let entries = range.map(|index| match index {
        0 => entry(0, Payload::Blank),
        1 => entry(1, Payload::Normal(Proposal(commands::init().encode()))),
        _ => noted(index),
    });
    let stream = futures_util::stream::iter(entries.map(|entry| Ok((entry, None))));
    adapter.apply(stream).await.unwrap();
}

async fn snapshot(adapter: &mut Adapter<Runtime>) {
    let mut builder = adapter.try_create_snapshot_builder(true).await.unwrap();
    builder.build_snapshot().await.unwrap();
}

fn events(source: &dyn CommittedSource, mut after: Cursor) -> Vec<EventRecord> {
    let mut all = Vec::new();
    loop {
        let some = source.events(after, 7).unwrap();
        let Some(last) = some.last() else { return all };
        after = last.cursor;
        all.extend(some.iter().map(|event| (**event).clone()));
    }
}

#[tokio::test]
async fn what_is_announced_can_be_read() {
    let (mut adapter, _) = open_adapter(MemoryDisk::new(1));
    let source = adapter.source();
    let mut applied = source.applied();
    apply(&mut adapter, 0..=40).await;
    assert_eq!(applied.reached(40).await, Some(40));
    assert_eq!(source.state().applied.index, 40);
    let all = events(&*source, Cursor::default());
    assert_eq!(
        all.iter()
            .filter(|event| matches!(event.event, Event::Annotated { .. }))
            .count(),
        39
    );
    assert_eq!(all.last().unwrap().cursor, source.state().cluster.cursor);
    drop(adapter);
    assert_eq!(applied.changed().await, None);
}

#[tokio::test]
async fn a_committed_entry_that_cannot_be_decoded_stops_the_replica_with_a_clear_text() {
    let (mut adapter, _) = open_adapter(MemoryDisk::new(1));
    let source = adapter.source();
    let damaged = entry(
        2,
        Payload::Normal(Proposal(Bytes::from_static(b"from a newer version"))),
    );
    let entries = [entry(1, Payload::Blank), damaged, noted(3)];
    let stream = futures_util::stream::iter(entries.map(|entry| Ok((entry, None))));
    let error = adapter.apply(stream).await.unwrap_err().to_string();
    assert!(
        error.contains("entry 2 is committed but this build cannot decode it"),
        "{error}"
    );
    assert!(error.contains("upgrade this node"), "{error}");
    assert_eq!(source.state().applied.index, 1, "the entry was skipped");
}

#[tokio::test]
async fn a_snapshot_and_the_rest_of_the_log_give_the_same_state_and_events_as_the_whole_log() {
    let disk = MemoryDisk::new(1);
    let (hash, all) = {
        let (mut adapter, _) = open_adapter(disk.clone());
        apply(&mut adapter, 0..=30).await;
        snapshot(&mut adapter).await;
        apply(&mut adapter, 31..=60).await;
        let source = adapter.source();
        (source.state_hash(), events(&*source, Cursor::default()))
    };
    // Events after the snapshot were never synced, so the crash may take them; the log gives them back.
    disk.crash();
    let (mut adapter, _) = open_adapter(disk);
    assert_eq!(adapter.applied_state().await.unwrap().0.unwrap().index, 30);
    apply(&mut adapter, 31..=60).await;
    let source = adapter.source();
    assert_eq!(source.state_hash(), hash);
    assert_eq!(events(&*source, Cursor::default()), all);
}

#[tokio::test]
async fn a_damaged_newest_snapshot_gives_way_to_the_one_before() {
    let disk = MemoryDisk::new(1);
    let (mut adapter, _) = open_adapter(disk.clone());
    for upto in [20, 40] {
        apply(&mut adapter, if upto == 20 { 0..=20 } else { 21..=40 }).await;
        snapshot(&mut adapter).await;
    }
    let hash = adapter.source().state_hash();
    drop(adapter);
    let folder = Path::new("/data/snapshots");
    let newest = disk.list(folder).unwrap().pop().unwrap();
    disk.corrupt(&folder.join(newest), 0, |bytes| bytes.fill(0));
    let (mut adapter, opening) = open_adapter(disk);
    assert_eq!(opening.damaged.len(), 1);
    assert_eq!(adapter.applied_state().await.unwrap().0.unwrap().index, 20);
    apply(&mut adapter, 21..=40).await;
    assert_eq!(adapter.source().state_hash(), hash);
}

#[tokio::test]
async fn a_snapshot_from_another_replica_steps_over_events_and_says_so() {
    let (mut ahead, _) = open_adapter(MemoryDisk::new(1));
    apply(&mut ahead, 0..=50).await;
    snapshot(&mut ahead).await;
    let sent = ahead.get_current_snapshot().await.unwrap().unwrap();

    let disk = MemoryDisk::new(2);
    let (mut behind, _) = open_adapter(disk.clone());
    apply(&mut behind, 0..=10).await;
    behind
        .install_snapshot(&sent.meta, sent.snapshot.clone())
        .await
        .unwrap();
    let source = behind.source();
    assert_eq!(source.state_hash(), ahead.source().state_hash());
    let last = source.state().cluster.cursor;
    assert!(matches!(source.events(Cursor::default(), 1), Err(EventsError::Reset { gone }) if gone == last));
    apply(&mut ahead, 51..=60).await;
    apply(&mut behind, 51..=60).await;
    let expected: Vec<_> = events(&*ahead.source(), last);
    assert_eq!(events(&*source, last), expected);
    drop(behind);

    disk.crash();
    let (mut behind, _) = open_adapter(disk);
    apply(&mut behind, 51..=60).await;
    assert_eq!(behind.source().state_hash(), ahead.source().state_hash());
    assert_eq!(events(&*behind.source(), last), expected);
}

#[tokio::test]
async fn another_snapshot_than_the_announced_one_is_refused() {
    let (mut adapter, _) = open_adapter(MemoryDisk::new(1));
    apply(&mut adapter, 0..=20).await;
    snapshot(&mut adapter).await;
    let mut sent = adapter.get_current_snapshot().await.unwrap().unwrap();
    sent.meta.last_log_id = Some(noted(21).log_id);
    let (mut other, _) = open_adapter(MemoryDisk::new(2));
    let error = other
        .install_snapshot(&sent.meta, sent.snapshot)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("was announced"), "{error}");
}

/// One life of a cluster of one; returns how many notes were acknowledged.
async fn live(disk: &MemoryDisk, first: u64) -> u64 {
    let Ok(single) = Single::start(disk).await else {
        return first - 1;
    };
    let mut acknowledged = first - 1;
    for number in first..first + 12 {
        if number == 1 && (single.initialize().await.is_err() || single.propose(&commands::init()).await.is_err()) {
            break;
        }
        if single
            .propose(&commands::note(&number.to_string(), 1000 + number))
            .await
            .is_err()
        {
            break;
        }
        acknowledged = number;
        if number % 5 == 0 && single.raft.trigger().snapshot().await.is_err() {
            break;
        }
    }
    single.stop().await;
    acknowledged
}

fn notes(events: &[EventRecord]) -> Vec<u64> {
    let text = |event: &EventRecord| match &event.event {
        Event::Annotated { text, .. } => Some(text.parse().unwrap()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

#[tokio::test]
async fn a_cluster_of_one_that_crashes_at_many_places_loses_nothing_it_acknowledged() {
    let calls = {
        let disk = MemoryDisk::new(0);
        assert_eq!(live(&disk, 1).await, 12);
        disk.calls()
    };
    assert!(calls > 60, "{calls} disk calls are too few to crash at");
    // Opening alone takes the first dozen calls; its crashes have their own tests.
    for call in (20..calls).step_by(7) {
        let disk = MemoryDisk::new(call);
        disk.set_faults(Faults {
            power_off_after: Some(call),
            ..Faults::default()
        });
        let acknowledged = live(&disk, 1).await;
        disk.crash();
        let single = Single::start(&disk)
            .await
            .unwrap_or_else(|error| panic!("call {call}: {error}"));
        if acknowledged == 0 {
            single.stop().await;
            continue;
        }
        single.propose(&commands::note("100", 9000)).await.unwrap();
        let found = notes(&events(&*single.source, Cursor::default()));
        let expected: Vec<u64> = (1..=found.len() as u64 - 1).chain([100]).collect();
        assert_eq!(found, expected, "call {call}");
        assert!(
            found.len() as u64 > acknowledged,
            "call {call}: {found:?} of {acknowledged}"
        );
        single.stop().await;
    }
}
