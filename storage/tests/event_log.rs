//! The event log: order, cursors, retention and crashes.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::Cursor;
use holdfast_proto::time::Timestamp;
use holdfast_storage::disk::memory::{Faults, MemoryDisk};
use holdfast_storage::event_log::{EventLog, EventsError, Found, Options, Retention};

const OPTIONS: Options = Options {
    segment_bytes: 4096,
    recent_max: 20,
};

fn dir() -> &'static Path {
    Path::new("/events")
}

fn open(disk: &MemoryDisk) -> (EventLog, Found) {
    EventLog::open(Arc::new(disk.clone()), dir(), OPTIONS).unwrap()
}

/// The events of entry `index`: none, one, two or three.
fn events(index: u64) -> Vec<EventRecord> {
    let one = |sub| EventRecord {
        cursor: Cursor { index, sub },
        at: Timestamp(1000 + index),
        request: None,
        event: Event::MachineLevelRaised {
            level: (index * 10) as u32 + sub,
        },
    };
    (0..(index % 4) as u32).map(one).collect()
}

fn append(log: &EventLog, entries: std::ops::RangeInclusive<u64>) {
    for index in entries {
        log.append(events(index)).unwrap();
        log.write().unwrap();
        if let Some(job) = log.spare_job() {
            job.run();
        }
    }
}

fn read_all(log: &EventLog, mut after: Cursor, step: usize) -> Vec<EventRecord> {
    let mut all = Vec::new();
    loop {
        let some = log.after(after, step).unwrap();
        let Some(last) = some.last() else { return all };
        assert!(some.len() <= step);
        after = last.cursor;
        all.extend(some.iter().map(|event| (**event).clone()));
    }
}

fn expected(entries: std::ops::RangeInclusive<u64>) -> Vec<EventRecord> {
    entries.flat_map(events).collect()
}

#[test]
fn every_cursor_gets_all_events_after_it_in_order_from_memory_and_from_disk() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    append(&log, 1..=300);
    assert!(
        disk.bytes(&dir().join("0000000004.seg")).is_some(),
        "too few segments for this test"
    );
    let all = expected(1..=300);
    let reopened = {
        log.sync().unwrap();
        open(&disk).0
    };
    for log in [&log, &reopened] {
        for step in [1, 7, 1000] {
            assert_eq!(read_all(log, Cursor::default(), step), all);
        }
        for (at, event) in all.iter().enumerate() {
            let next = log.after(event.cursor, 2).unwrap();
            let next: Vec<EventRecord> = next.iter().map(|event| (**event).clone()).collect();
            assert_eq!(next, all[at + 1..all.len().min(at + 3)], "after {}", event.cursor);
        }
        let whole_entry = Cursor {
            index: 7,
            sub: u32::MAX,
        };
        assert_eq!(
            log.after(whole_entry, 1).unwrap()[0].cursor,
            Cursor { index: 9, sub: 0 }
        );
    }
}

#[test]
fn events_as_they_lie_on_disk_join_those_in_memory_without_a_gap_from_every_cursor() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    append(&log, 1..=300);
    log.sync().unwrap();
    let reopened = open(&disk).0;
    let all = expected(1..=300);
    for log in [&log, &reopened] {
        for bytes in [1, 700, 1 << 20] {
            for from in (0..all.len()).step_by(7) {
                let mut after = from.checked_sub(1).map(|at| all[at].cursor).unwrap_or_default();
                let mut read = Vec::new();
                while let Some(some) = log.raw_after(after, bytes).unwrap() {
                    assert!(!some.is_empty());
                    for raw in some {
                        let event = EventRecord::decode(&raw.frame).unwrap();
                        assert_eq!(event.cursor, raw.cursor);
                        after = raw.cursor;
                        read.push(event);
                    }
                }
                read.extend(read_all(log, after, 100));
                assert_eq!(read, all[from..]);
            }
        }
    }
    log.retain(Retention {
        bytes_max: 3 * 4096,
        since: Timestamp(0),
    })
    .unwrap();
    let gone = log.floor();
    match log.raw_after(Cursor::default(), 100) {
        Err(EventsError::Compacted { gone: told }) => assert_eq!(told, gone),
        other => panic!("{other:?}"),
    }
    let next = log.raw_after(gone, 1).unwrap().unwrap();
    assert!(next[0].cursor > gone);
}

#[test]
fn appending_an_entry_again_changes_nothing() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    append(&log, 1..=50);
    append(&log, 30..=60);
    assert_eq!(read_all(&log, Cursor::default(), 100), expected(1..=60));
    log.sync().unwrap();
    drop(log);
    let (log, found) = open(&disk);
    assert_eq!(found.last, Cursor { index: 59, sub: 2 });
    append(&log, 1..=70);
    assert_eq!(read_all(&log, Cursor::default(), 100), expected(1..=70));
}

#[test]
fn a_cursor_below_the_retained_events_is_told_so_and_where_to_go_on() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    append(&log, 1..=300);
    log.sync().unwrap();
    log.retain(Retention {
        bytes_max: 2 * 4096,
        since: Timestamp(0),
    })
    .unwrap();
    let floor = log.floor();
    assert!(floor > Cursor::default());
    for log in [log, open(&disk).0] {
        assert_eq!(log.floor(), floor);
        let below = Cursor {
            index: floor.index - 1,
            sub: 0,
        };
        let Err(EventsError::Compacted { gone }) = log.after(below, 10) else {
            panic!("events were made up")
        };
        assert_eq!(gone, floor);
        let kept: Vec<EventRecord> = expected(1..=300)
            .into_iter()
            .filter(|event| event.cursor > floor)
            .collect();
        assert_eq!(read_all(&log, floor, 10), kept);
    }
}

#[test]
fn retention_by_time_goes_by_the_stamps_and_keeps_the_newest_segment() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    append(&log, 1..=300);
    log.retain(Retention {
        bytes_max: u64::MAX,
        since: Timestamp(1100),
    })
    .unwrap();
    let first = read_all(&log, log.floor(), 1000)[0].clone();
    assert!(first.at <= Timestamp(1100) && log.floor().index > 1);
    log.retain(Retention {
        bytes_max: 0,
        since: Timestamp(u64::MAX),
    })
    .unwrap();
    let left = read_all(&log, log.floor(), 1000);
    assert_eq!(left.last(), expected(1..=300).last());
}

#[test]
fn a_reset_steps_over_a_gap_and_says_so_until_the_restart_and_compacted_after_it() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    append(&log, 1..=20);
    log.reset(Cursor { index: 500, sub: 1 }, Timestamp(9000)).unwrap();
    append(&log, 501..=520);
    log.sync().unwrap();
    let gone = Cursor { index: 500, sub: 1 };
    assert!(matches!(log.after(Cursor { index: 20, sub: 0 }, 1), Err(EventsError::Reset { gone: g }) if g == gone));
    disk.crash();
    let (log, _) = open(&disk);
    assert!(matches!(log.after(Cursor { index: 20, sub: 0 }, 1), Err(EventsError::Compacted { gone: g }) if g == gone));
    assert_eq!(read_all(&log, gone, 10), expected(501..=520));
}

#[test]
fn a_crash_at_every_disk_call_keeps_what_was_synced_and_the_rest_can_be_appended_again() {
    let live = |disk: &MemoryDisk| {
        let mut synced = 0;
        let Ok((log, _)) = EventLog::open(Arc::new(disk.clone()), dir(), OPTIONS) else {
            return 0;
        };
        for index in 1..=120 {
            if log.append(events(index)).and_then(|()| log.write()).is_err() {
                return synced;
            }
            if index % 10 == 0 {
                if log.sync().is_err() {
                    return synced;
                }
                synced = index;
            }
        }
        synced
    };
    let calls = {
        let disk = MemoryDisk::new(0);
        live(&disk);
        disk.calls()
    };
    for call in 0..=calls {
        let disk = MemoryDisk::new(call);
        disk.set_faults(Faults {
            power_off_after: Some(call),
            ..Faults::default()
        });
        let synced = live(&disk);
        disk.crash();
        let (log, found) = open(&disk);
        let kept = expected(1..=120)
            .into_iter()
            .filter(|event| event.cursor <= found.last)
            .collect::<Vec<_>>();
        assert_eq!(read_all(&log, Cursor::default(), 7), kept, "call {call}");
        assert!(
            kept.len() >= expected(1..=synced).len(),
            "call {call}: synced events are gone"
        );
        append(&log, 1..=150);
        assert_eq!(read_all(&log, Cursor::default(), 50), expected(1..=150), "call {call}");
    }
}
