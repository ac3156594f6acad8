//! The bytes of every command and every event, written down: a replica of tomorrow must read what one of today wrote.
//!
//! A changed line here is a changed wire format: it needs a new frame version and a reader for the old one.
//! `UPDATE_GOLDEN=1` writes the files; tags and layouts that were released are only ever added to.

#![allow(clippy::unwrap_used)]

#[path = "samples/commands.rs"]
mod commands;
#[path = "samples/events.rs"]
mod events;
#[path = "samples/values.rs"]
mod values;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::frame::{self, FrameError, HEADER_BYTES};
use holdfast_proto::rejection::Rejection;

fn envelopes() -> Vec<Envelope> {
    commands::all().into_iter().map(values::envelope).collect()
}

fn records() -> Vec<EventRecord> {
    events::all().into_iter().map(values::record).collect()
}

/// Compares lines of `tag name hex` with a golden file.
fn check(file: &str, lines: impl Iterator<Item = (u16, &'static str, Vec<u8>)>) {
    let mut text = String::new();
    for (tag, name, bytes) in lines {
        writeln!(text, "{tag} {name} {}", hex::encode(bytes)).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    for (golden, now) in golden.lines().zip(text.lines()) {
        assert_eq!(golden, now, "the bytes of a released layout have changed");
    }
    assert_eq!(
        golden.lines().count(),
        text.lines().count(),
        "{file} has another number of lines"
    );
}

#[test]
fn commands_have_the_bytes_that_were_written_down() {
    let envelopes = envelopes();
    let tags: BTreeSet<u16> = envelopes.iter().map(|envelope| envelope.command.tag()).collect();
    let all: BTreeSet<u16> = Command::TABLE.iter().map(|(tag, _)| *tag).collect();
    assert_eq!(tags, all, "every command has a sample");
    check(
        "commands.txt",
        envelopes
            .iter()
            .map(|one| (one.command.tag(), one.command.name(), one.encode().to_vec())),
    );
}

#[test]
fn events_have_the_bytes_that_were_written_down() {
    let records = records();
    let tags: BTreeSet<u16> = records.iter().map(|record| record.event.tag()).collect();
    let all: BTreeSet<u16> = Event::TABLE.iter().map(|(tag, _, _)| *tag).collect();
    assert_eq!(tags, all, "every event has a sample");
    check(
        "events.txt",
        records
            .iter()
            .map(|one| (one.event.tag(), one.event.name(), one.encode().to_vec())),
    );
}

/// Samples stay on their node; what goes into the log is a digest of a minute.
#[test]
fn an_hour_of_a_thousand_cards_takes_less_than_64_mib_of_the_log() {
    let cards = 1_000;
    let command = Command::ReportRollup {
        node: values::NODE,
        rollups: vec![values::rollup(); 8],
    };
    let minute = values::envelope(command).encode().len() * cards / 8;
    assert!(minute * 60 < 64 << 20, "{minute} bytes a minute");
}

#[test]
fn tags_and_names_are_each_given_once() {
    let commands: BTreeSet<_> = Command::TABLE.iter().map(|(tag, _)| tag).collect();
    let events: BTreeSet<_> = Event::TABLE.iter().map(|(tag, _, _)| tag).collect();
    let codes: BTreeSet<_> = Rejection::CODES.iter().collect();
    assert_eq!(commands.len(), Command::TABLE.len());
    assert_eq!(events.len(), Event::TABLE.len());
    assert_eq!(codes.len(), Rejection::CODES.len());
}

#[test]
fn frames_read_back_as_what_was_written() {
    for envelope in envelopes() {
        assert_eq!(Envelope::decode(&envelope.encode()).unwrap(), envelope);
    }
    for record in records() {
        assert_eq!(EventRecord::decode(&record.encode()).unwrap(), record);
    }
}

#[test]
fn json_reads_back_as_what_was_written_and_names_its_type() {
    for envelope in envelopes() {
        let json = serde_json::to_value(&envelope).unwrap();
        assert_eq!(json["command"]["command"], envelope.command.name());
        assert_eq!(serde_json::from_value::<Envelope>(json).unwrap(), envelope);
    }
    for record in records() {
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json["event"]["type"], record.event.name());
        assert_eq!(serde_json::from_value::<EventRecord>(json).unwrap(), record);
    }
}

/// A small generator; the only source of variety here.
fn step(seed: &mut u64) -> usize {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize
}

/// Damages bytes in one of the ways that disks, networks and attackers do.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], seed: &mut u64) {
    let at = step(seed) % bytes.len().max(1);
    match step(seed) % 6 {
        0 => bytes.truncate(at),
        1 => bytes.extend_from_slice(&other[..step(seed) % other.len()]),
        2 => {
            let from = step(seed) % other.len();
            let length = (step(seed) % 16).min(other.len() - from).min(bytes.len() - at);
            bytes[at..at + length].copy_from_slice(&other[from..from + length]);
        }
        3 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][step(seed) % 5],
        4 => drop(bytes.drain(at..(at + step(seed) % 9).min(bytes.len()))),
        _ if !bytes.is_empty() => bytes[at] ^= 1 << (step(seed) % 8),
        _ => {}
    }
}

const MUTANTS: usize = 400;

#[test]
fn damaged_frames_are_refused_and_never_panic() {
    let frames: Vec<Vec<u8>> = envelopes().iter().map(|one| one.encode().to_vec()).collect();
    let mut seed = 1;
    for frame in &frames {
        for _ in 0..MUTANTS {
            let mut damaged = frame.clone();
            let other = &frames[step(&mut seed) % frames.len()];
            mutate(&mut damaged, other, &mut seed);
            if damaged != *frame {
                // The checksum covers header and payload, so nothing that differs is believed.
                assert!(Envelope::decode(&damaged).is_err());
                let _ = EventRecord::decode(&damaged);
            }
        }
    }
}

#[test]
fn damaged_payloads_under_a_right_checksum_never_panic() {
    let commands: Vec<Vec<u8>> = envelopes().iter().map(|one| one.encode().to_vec()).collect();
    let events: Vec<Vec<u8>> = records().iter().map(|one| one.encode().to_vec()).collect();
    let (mut seed, mut believed) = (2, 0);
    for frames in [&commands, &events] {
        for frame in frames {
            let (kind, payload) = frame::open(frame).unwrap();
            for _ in 0..MUTANTS {
                let mut damaged = payload.to_vec();
                let other = &frames[step(&mut seed) % frames.len()][HEADER_BYTES..];
                mutate(&mut damaged, other, &mut seed);
                let forged = frame::encode_payload(kind, &damaged);
                // What is believed is a value like any other: it has a text and bytes of its own.
                if let Ok(envelope) = Envelope::decode(&forged) {
                    believed += 1;
                    let _ = format!("{envelope:?}");
                    assert_eq!(Envelope::decode(&envelope.encode()).unwrap(), envelope);
                }
                if let Ok(record) = EventRecord::decode(&forged) {
                    believed += 1;
                    let _ = serde_json::to_string(&record);
                    assert_eq!(EventRecord::decode(&record.encode()).unwrap(), record);
                }
            }
        }
    }
    assert!(
        believed > 1000,
        "only {believed} forged frames got past the checks, so little was tried"
    );
}

#[test]
fn a_tag_that_does_not_match_its_content_is_refused() {
    for envelope in envelopes() {
        let frame = envelope.encode();
        let (kind, payload) = frame::open(&frame).unwrap();
        let forged = frame::encode_payload(kind + 1, payload);
        assert!(matches!(Envelope::decode(&forged), Err(FrameError::Kind { .. })));
    }
}

#[test]
fn a_command_over_the_limit_is_refused_before_it_is_read() {
    let payload = vec![0; holdfast_proto::limits::COMMAND_BYTES_MAX];
    let frame = frame::encode_payload(34, &payload);
    assert!(matches!(Envelope::decode(&frame), Err(FrameError::TooLarge { .. })));
}
