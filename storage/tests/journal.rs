//! The journal against crashes, damage, full disks and failed syncs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use holdfast_storage::disk::memory::{Faults, MemoryDisk};
use holdfast_storage::journal::{Journal, OpenError, Options, Position, Record, Recovered, Scan, WriteError};

const OPTIONS: Options = Options {
    purpose: "test",
    segment_bytes: 4096,
};

fn dir() -> &'static Path {
    Path::new("/journal")
}

fn segment(number: u32) -> PathBuf {
    dir().join(format!("{number:010}.seg"))
}

/// Record number `index`; sizes differ so that they end at all kinds of places.
fn record(index: u64) -> Record {
    let payload = Bytes::from(vec![index as u8; (index * 37 % 200) as usize]);
    Record {
        kind: 1 + (index % 5) as u8,
        term: index / 3,
        node: 7,
        index,
        payload,
    }
}

type Found = Vec<(Position, Record)>;

fn open(disk: &MemoryDisk, scan: Scan) -> Result<(Journal, Recovered, Found), OpenError> {
    let mut found = Vec::new();
    let (journal, recovered) = Journal::open(Arc::new(disk.clone()), dir(), OPTIONS, scan, |position, record| {
        found.push((position, record.to_record()));
        Ok(())
    })?;
    Ok((journal, recovered, found))
}

/// Appends `count` records from `first` on and syncs after each group of `group`; returns the last acknowledged index.
fn append(journal: &mut Journal, first: u64, count: u64, group: u64) -> (u64, Result<(), WriteError>) {
    let mut acknowledged = first - 1;
    for index in first..first + count {
        let record = record(index);
        if !journal.fits(record.payload.len())
            && let Err(error) = journal.rotate()
        {
            return (acknowledged, Err(error));
        }
        journal.stage(&record);
        if index % group == 0 {
            if let Err(error) = journal.sync() {
                return (acknowledged, Err(error));
            }
            acknowledged = index;
            if let Some(job) = journal.spare_job() {
                job.run();
            }
        }
    }
    (acknowledged, Ok(()))
}

fn assert_prefix(found: &Found) {
    for (at, (_, read)) in found.iter().enumerate() {
        assert_eq!(*read, record(at as u64 + 1));
    }
}

#[test]
fn records_read_back_in_order_over_many_segments() {
    let disk = MemoryDisk::new(1);
    let (mut journal, _, _) = open(&disk, Scan::All).unwrap();
    append(&mut journal, 1, 200, 4).1.unwrap();
    assert!(journal.segments().count() > 3);
    let reader = journal.reader();
    drop(journal);
    let (journal, recovered, found) = open(&disk, Scan::All).unwrap();
    assert_eq!(recovered.repair, None);
    assert_eq!(found.len(), 200);
    assert_prefix(&found);
    for (position, record) in &found {
        assert_eq!(reader.read(*position).unwrap(), *record);
        assert_eq!(journal.reader().read(*position).unwrap(), *record);
    }
}

#[test]
fn a_crash_at_every_disk_call_keeps_what_was_acknowledged_and_never_invents() {
    for seed in 0..4 {
        let calls = {
            let disk = MemoryDisk::new(seed);
            let (mut journal, _, _) = open(&disk, Scan::All).unwrap();
            append(&mut journal, 1, 90, 3).1.unwrap();
            disk.calls()
        };
        for call in 0..calls {
            let disk = MemoryDisk::new(seed * 1000 + call);
            disk.set_faults(Faults {
                power_off_after: Some(call),
                ..Faults::default()
            });
            let acknowledged = match open(&disk, Scan::All) {
                Ok((mut journal, _, _)) => append(&mut journal, 1, 90, 3).0,
                Err(_) => 0,
            };
            disk.crash();
            let (mut journal, _, found) = open(&disk, Scan::All).unwrap_or_else(|error| panic!("call {call}: {error}"));
            assert_prefix(&found);
            assert!(
                found.len() as u64 >= acknowledged,
                "call {call}: {} of {acknowledged} left",
                found.len()
            );

            // What was recovered is a base to go on from, and survives the next crash.
            let next = found.len() as u64 + 1;
            append(&mut journal, next, 12, 1).1.unwrap();
            disk.crash();
            let (_, _, found) = open(&disk, Scan::All).unwrap_or_else(|error| panic!("again {call}: {error}"));
            assert_prefix(&found);
            assert_eq!(found.len() as u64, next + 11);
        }
    }
}

#[test]
fn a_flipped_bit_is_repaired_in_the_last_group_and_stops_the_node_anywhere_else() {
    let layout = {
        let disk = MemoryDisk::new(1);
        append(&mut open(&disk, Scan::All).unwrap().0, 1, 60, 2).1.unwrap();
        open(&disk, Scan::All).unwrap().2
    };
    let last_segment = layout.last().unwrap().0.segment;
    assert!(last_segment > 1);
    for (at, (position, record)) in layout.iter().enumerate() {
        let touched = [0, 4, 8, 13, 16, 30, 39, 40 + record.payload.len() / 2];
        for byte in touched.into_iter().filter(|byte| *byte < 40 + record.payload.len()) {
            let disk = MemoryDisk::new(1);
            append(&mut open(&disk, Scan::All).unwrap().0, 1, 60, 2).1.unwrap();
            disk.corrupt(&segment(position.segment), u64::from(position.offset), |bytes| {
                bytes[byte] ^= 0x10
            });
            let in_last_group = at >= layout.len() - 2;
            match open(&disk, Scan::All) {
                Ok((_, recovered, found)) => {
                    assert!(in_last_group, "record {at} byte {byte} was dropped silently");
                    let repair = recovered.repair.unwrap();
                    assert_eq!(
                        (repair.file, repair.offset),
                        (segment(position.segment), position.offset)
                    );
                    assert_eq!(found.len(), at);
                }
                Err(OpenError::Corrupt { file, offset, what }) => {
                    assert!(!in_last_group, "record {at} byte {byte}: {what}");
                    assert_eq!((file, offset), (segment(position.segment), position.offset));
                }
                Err(error) => panic!("record {at} byte {byte}: {error}"),
            }
        }
    }
}

#[test]
fn the_text_of_a_corruption_names_file_offset_and_next_step() {
    let disk = MemoryDisk::new(1);
    append(&mut open(&disk, Scan::All).unwrap().0, 1, 60, 2).1.unwrap();
    disk.corrupt(&segment(1), 64 + 41, |bytes| bytes[0] ^= 1);
    let text = open(&disk, Scan::All).unwrap_err().to_string();
    for part in [
        "/journal/0000000001.seg",
        "at byte 64",
        "checksum",
        "join the machine again",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_file_cut_short_is_repaired_at_the_end_and_refused_before_it() {
    let fresh = || {
        let disk = MemoryDisk::new(1);
        append(&mut open(&disk, Scan::All).unwrap().0, 1, 60, 2).1.unwrap();
        disk
    };
    let layout = open(&fresh(), Scan::All).unwrap().2;
    let last = layout.last().unwrap().0;
    for cut in [last.offset, last.offset + 1, last.offset + 40, last.offset + last.size] {
        let disk = fresh();
        disk.cut(&segment(last.segment), u64::from(cut));
        let (mut journal, _, found) = open(&disk, Scan::All).unwrap();
        let kept = if cut == last.offset + last.size { 60 } else { 59 };
        assert_eq!(found.len(), kept, "cut at {cut}");
        append(&mut journal, kept as u64 + 1, 60, 1).1.unwrap();
        drop(journal);
        assert_eq!(open(&disk, Scan::All).unwrap().2.len(), kept + 60);
    }
    let disk = fresh();
    disk.cut(&segment(1), 2000);
    assert!(matches!(open(&disk, Scan::All), Err(OpenError::Corrupt { .. })));
}

#[test]
fn a_damaged_header_is_made_anew_when_nothing_was_ever_written_behind_it() {
    let fresh = |count| {
        let disk = MemoryDisk::new(1);
        let (mut journal, ..) = open(&disk, Scan::All).unwrap();
        append(&mut journal, 1, count, 1).1.unwrap();
        let tail = journal.segments().last().unwrap().segment;
        (disk, tail)
    };
    for torn in [0, 1, 63, 64] {
        // The spare after the segment that is being written.
        let (disk, tail) = fresh(60);
        if torn == 64 {
            disk.corrupt(&segment(tail + 1), 0, |bytes| bytes[40] ^= 1);
        } else {
            disk.cut(&segment(tail + 1), torn);
        }
        let (mut journal, _, found) = open(&disk, Scan::All).unwrap();
        assert_eq!(found.len(), 60, "torn at {torn}");
        append(&mut journal, 61, 60, 1).1.unwrap();
        drop(journal);
        assert_eq!(open(&disk, Scan::All).unwrap().2.len(), 120, "torn at {torn}");
        // The segment that is being written: what it holds was acknowledged.
        let (disk, tail) = fresh(60);
        disk.corrupt(&segment(tail), 0, |bytes| bytes[40] ^= 1);
        assert!(matches!(open(&disk, Scan::All), Err(OpenError::Corrupt { .. })));
    }
}

#[test]
fn a_missing_segment_is_corruption() {
    use holdfast_storage::disk::Disk;
    for gone in [1, 2] {
        let disk = MemoryDisk::new(1);
        append(&mut open(&disk, Scan::All).unwrap().0, 1, 90, 2).1.unwrap();
        disk.remove(&segment(gone)).unwrap();
        let opened = open(&disk, Scan::All);
        if gone == 1 {
            // Without its first segment a journal looks purged; that the owner knows better is the owner's test.
            assert_ne!(opened.unwrap().2[0].1.index, 1);
        } else {
            assert!(
                opened
                    .unwrap_err()
                    .to_string()
                    .contains("0000000002.seg is corrupt at byte 0: the file is missing")
            );
        }
    }
}

#[test]
fn a_full_disk_stops_the_journal_and_it_goes_on_once_space_is_freed() {
    let disk = MemoryDisk::new(1);
    let (mut journal, _, _) = open(&disk, Scan::All).unwrap();
    disk.set_faults(Faults {
        capacity_bytes: Some(3 * 4096),
        ..Faults::default()
    });
    let (acknowledged, result) = append(&mut journal, 1, 500, 1);
    let error = result.unwrap_err();
    assert!(matches!(error, WriteError::NoSpace { .. }), "{error}");
    assert!(error.to_string().contains("free space on this disk"), "{error}");
    assert!(matches!(journal.sync(), Err(WriteError::Stopped { .. })));
    drop(journal);
    disk.crash();
    let (mut journal, _, found) = open(&disk, Scan::All).unwrap();
    assert_prefix(&found);
    assert!(found.len() as u64 >= acknowledged);
    append(&mut journal, found.len() as u64 + 1, 100, 1).1.unwrap();
}

#[test]
fn a_new_journal_on_a_full_disk_says_so_and_leaves_nothing_in_the_way() {
    let disk = MemoryDisk::new(1);
    disk.set_faults(Faults {
        capacity_bytes: Some(100),
        ..Faults::default()
    });
    let error = open(&disk, Scan::All).unwrap_err();
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
    disk.set_faults(Faults::default());
    open(&disk, Scan::All).unwrap();
}

#[test]
fn a_failed_sync_is_never_tried_again() {
    let disk = MemoryDisk::new(1);
    let (mut journal, _, _) = open(&disk, Scan::All).unwrap();
    journal.stage(&record(1));
    disk.set_faults(Faults {
        fail_syncs: true,
        ..Faults::default()
    });
    assert!(matches!(journal.sync(), Err(WriteError::Sync { .. })));
    disk.set_faults(Faults::default());
    assert!(matches!(journal.sync(), Err(WriteError::Stopped { .. })));
    assert!(matches!(journal.rotate(), Err(WriteError::Stopped { .. })));
    assert_eq!(disk.calls(), 0);
}

#[test]
fn old_segments_go_and_the_rest_opens_without_them() {
    let disk = MemoryDisk::new(1);
    let (mut journal, _, _) = open(&disk, Scan::All).unwrap();
    append(&mut journal, 1, 200, 4).1.unwrap();
    let segments: Vec<_> = journal.segments().collect();
    let keep = segments[2];
    journal.remove_before(keep.segment).unwrap();
    drop(journal);
    disk.crash();
    for scan in [Scan::All, Scan::Tail] {
        let (journal, _, found) = open(&disk, scan).unwrap();
        assert_eq!(found[0].1, record(keep.first_index));
        assert_eq!(journal.segments().next(), Some(keep));
        assert_eq!(found.last().unwrap().1.index, 200);
    }
}

#[test]
fn a_quick_open_shows_first_records_and_the_whole_tail_and_a_scan_reads_the_rest() {
    let disk = MemoryDisk::new(1);
    append(&mut open(&disk, Scan::All).unwrap().0, 1, 200, 4).1.unwrap();
    let (journal, _, found) = open(&disk, Scan::Tail).unwrap();
    assert!(found.len() < 200);
    let mut indices = Vec::new();
    for summary in journal.segments() {
        let result = journal.reader().scan(summary.segment, 0, summary.end, |_, record| {
            indices.push(record.index);
            true
        });
        result.unwrap();
    }
    assert_eq!(indices, (1..=200).collect::<Vec<_>>());
}

#[test]
fn another_journals_segment_is_refused() {
    let disk = MemoryDisk::new(1);
    drop(open(&disk, Scan::All).unwrap());
    let other = Options {
        purpose: "other",
        ..OPTIONS
    };
    let error = Journal::open(Arc::new(disk), dir(), other, Scan::All, |_, _| Ok(())).unwrap_err();
    assert!(error.to_string().contains("belongs to another journal"), "{error}");
}
