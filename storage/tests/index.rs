//! The projections: what they answer, and that they can always be made again.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use holdfast_proto::event::{Event, EventRecord, LeaseRequested};
use holdfast_proto::id::{Cursor, Epoch, LeaseId};
use holdfast_proto::lease::{EndReason, Isolation, LeaseKind, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::tariff::ChargeLine;
use holdfast_proto::time::{Span, Timestamp};
use holdfast_proto::workload::Workload;
use holdfast_storage::disk::memory::MemoryDisk;
use holdfast_storage::event_log::{EventLog, Options, Retention};
use holdfast_storage::index::{Index, IndexError};

fn requested(index: u64, tenant: &str) -> Event {
    Event::LeaseRequested(Box::new(LeaseRequested {
        lease: LeaseId::from_index(index),
        tenant: tenant.parse().unwrap(),
        project: None,
        kind: LeaseKind::Job,
        label: None,
        request: ResourceRequest {
            devices_min: 1,
            devices_max: 1,
            models: vec![],
            same_model: false,
            single_node: false,
            cpu_milli_per_device: 0,
            memory_mib_per_device: 0,
            zones: vec![],
            spread: Spread::Pack,
        },
        terms: Terms {
            duration: Span::seconds(60),
            plan: Plan::OnDemand,
            cap_micros: None,
            isolation: Isolation::Freeze,
            priority: 0,
            grace: Span(0),
        },
        workload: Workload {
            command: vec!["true".into()],
            environment: vec![],
            folder: None,
            image: None,
            checkpoints: false,
        },
        tariff: 1,
    }))
}

fn charged(lease: u64, amount_micros: u64) -> Event {
    Event::LeaseCharged(ChargeLine {
        lease: LeaseId::from_index(lease),
        epoch: Epoch(1),
        meter: "device-second".parse().unwrap(),
        from: Timestamp(0),
        until: Timestamp(1),
        unpaid: Span(0),
        micros_per_hour: 1,
        amount_micros,
        opened_at: Cursor::default(),
    })
}

fn ended(lease: u64) -> Event {
    Event::LeaseEnded {
        lease: LeaseId::from_index(lease),
        reason: EndReason::Released,
        exit_code: Some(3),
    }
}

/// Appends one entry with these events, stamped by its index.
fn append(log: &EventLog, index: u64, events: Vec<Event>) {
    let record = |(sub, event)| EventRecord {
        cursor: Cursor { index, sub: sub as u32 },
        at: Timestamp(index * 10),
        request: None,
        event,
    };
    log.append(events.into_iter().enumerate().map(record).collect())
        .unwrap();
    log.write().unwrap();
}

/// Six leases of two tenants; the even ones end, twice charged.
fn log() -> EventLog {
    let options = Options {
        segment_bytes: 4096,
        recent_max: 8,
    };
    let log = EventLog::open(Arc::new(MemoryDisk::new(1)), Path::new("/events"), options)
        .unwrap()
        .0;
    for lease in 1..=6 {
        append(
            &log,
            lease,
            vec![requested(lease, if lease <= 3 { "blue" } else { "green" })],
        );
    }
    for lease in [2, 4, 6] {
        append(&log, 10 + lease, vec![charged(lease, 100 * lease), charged(lease, 7)]);
    }
    for lease in [6, 4, 2] {
        append(&log, 30 - lease, vec![ended(lease)]);
    }
    log
}

/// Leaves a store of the whole log behind, closed.
fn fill(place: &Path, log: &EventLog) {
    let index = Index::new(place, log.clone());
    catch_up(&index);
    index.sync().unwrap();
}

fn catch_up(index: &Index) -> bool {
    let mut rebuilt = false;
    loop {
        let step = index.catch_up().unwrap();
        rebuilt |= step.rebuilt;
        if step.events == 0 {
            return rebuilt;
        }
    }
}

fn assert_answers(index: &Index) {
    let leases = |tenant: Option<&str>, before, limit| -> Vec<u64> {
        let tenant = tenant.map(|name| name.parse().unwrap());
        let found = index.ended(tenant.as_ref(), before, limit).unwrap();
        found.iter().map(|ended| ended.lease.index).collect()
    };
    assert_eq!(leases(None, None, 10), [2, 4, 6]);
    assert_eq!(leases(Some("green"), None, 10), [4, 6]);
    assert_eq!(leases(Some("gree"), None, 10), Vec::<u64>::new());
    assert_eq!(leases(None, None, 1), [2]);
    let two = index.ended_lease(LeaseId::from_index(2)).unwrap().unwrap();
    assert_eq!(leases(None, Some(two.end), 10), [4, 6]);
    assert_eq!(
        (two.charged_micros, two.exit_code, two.reason),
        (207, Some(3), EndReason::Released)
    );
    assert_eq!((two.requested_at, two.ended_at), (Timestamp(20), Timestamp(280)));
    assert_eq!(index.ended_lease(LeaseId::from_index(3)).unwrap(), None);
    let at = |index, sub| Cursor { index, sub };
    let events = index.events_of(LeaseId::from_index(2), Cursor::default(), 10).unwrap();
    assert_eq!(events, [at(2, 0), at(12, 0), at(12, 1), at(28, 0)]);
    assert_eq!(
        index.events_of(LeaseId::from_index(2), at(12, 0), 1).unwrap(),
        [at(12, 1)]
    );
}

#[test]
fn ended_leases_and_the_events_of_each_are_found_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let log = log();
    {
        let index = Index::new(&dir.path().join("index"), log.clone());
        catch_up(&index);
        assert_answers(&index);
        index.sync().unwrap();
    }
    let index = Index::new(&dir.path().join("index"), log);
    assert!(!catch_up(&index));
    assert_answers(&index);
}

#[test]
fn a_damaged_store_is_moved_aside_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("index");
    let log = log();
    fill(&place, &log);
    for name in ["db", "conf"] {
        let file = place.join(name);
        let mut bytes = fs::read(&file).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
        fs::write(&file, bytes).unwrap();
    }
    let index = Index::new(&place, log);
    assert!(catch_up(&index));
    assert_answers(&index);
    assert!(dir.path().join("index.damaged").exists());
}

#[test]
fn a_store_that_is_gone_cut_or_left_half_made_is_made_again() {
    type Harm = fn(&Path);
    let harm: [(&str, Harm); 4] = [
        ("the folder is gone", |place| fs::remove_dir_all(place).unwrap()),
        ("the file is cut", |place| {
            let file = fs::File::options().write(true).open(place.join("db")).unwrap();
            file.set_len(file.metadata().unwrap().len() / 3).unwrap();
        }),
        ("the file is empty", |place| fs::write(place.join("db"), b"").unwrap()),
        // What a killed process leaves of a snapshot that it was writing.
        ("half a snapshot", |place| {
            fs::write(place.join("snap.0000000000000123.generating"), b"half a snapsh").unwrap();
        }),
    ];
    for (what, harm) in harm {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("index");
        let log = log();
        fill(&place, &log);
        harm(&place);
        let index = Index::new(&place, log);
        catch_up(&index);
        println!("{what}");
        assert_answers(&index);
    }
}

#[test]
fn whichever_byte_is_flipped_the_answers_are_right_or_the_store_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("index");
    let log = log();
    for flip in 0..10_usize {
        fill(&place, &log);
        let file = place.join("db");
        let mut bytes = fs::read(&file).unwrap();
        // Bytes that hold something, spread over the file.
        let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        bytes[used[used.len() * flip / 10]] ^= 0x10;
        fs::write(&file, bytes).unwrap();

        let index = Index::new(&place, log.clone());
        // A failure on the way is reported, and the next catch-up makes the store again.
        let read = || -> Result<_, IndexError> {
            while index.catch_up()?.events > 0 {}
            let ended = index.ended(None, None, 10)?;
            let events = index.events_of(LeaseId::from_index(2), Cursor::default(), 10)?;
            Ok((ended, events))
        };
        if read().is_err() {
            read().unwrap();
        }
        assert_answers(&index);
    }
}

#[test]
fn a_store_that_is_ahead_of_the_event_log_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("index");
    {
        let longer = log();
        append(&longer, 99, vec![requested(99, "blue"), ended(99)]);
        let index = Index::new(&place, longer);
        catch_up(&index);
        index.sync().unwrap();
    }
    let index = Index::new(&place, log());
    assert!(catch_up(&index));
    assert_answers(&index);
}

#[test]
fn events_that_are_gone_are_stepped_over_and_said_to_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let log = log();
    log.retain(Retention {
        bytes_max: 0,
        since: Timestamp(0),
    })
    .unwrap();
    let floor = log.floor();
    assert!(floor.index > 0, "nothing is gone; the test shows nothing");
    let index = Index::new(&dir.path().join("index"), log.clone());
    catch_up(&index);
    assert_eq!(index.position().unwrap(), (log.last(), Some(floor)));
}
