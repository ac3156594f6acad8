//! Golden scripts: each file of `scripts/` is a sentence, commands, and under each command the events or the rejection
//! that it was decided into. `UPDATE_SCRIPTS=1` rewrites the expectations; a person then reads the difference.
//!
//! `machine/streams.txt` holds a digest of the bytes of all events of each script: one log must be decided into the same
//! events by every later version.
//!
//! After every command the invariants are checked; at the end of a script the log is replayed, the public stream is
//! folded from nothing, and the state is encoded and decoded: all three must give the same state hash.

#![allow(clippy::unwrap_used)]

#[path = "machine/script.rs"]
mod script;
#[path = "machine/words.rs"]
mod words;
#[path = "machine/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use holdfast_proto::command::Command;
use holdfast_proto::event::Event;
use holdfast_proto::rejection::Rejection;

use script::Coverage;

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

fn run_all() -> Coverage {
    let update = std::env::var_os("UPDATE_SCRIPTS").is_some();
    let mut coverage = Coverage::default();
    let mut differing = Vec::new();
    let mut streams = String::new();
    for path in scripts() {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# "), "{} must open with a sentence", path.display());
        let played = match script::play(&text, &mut coverage) {
            Ok((played, stream)) => {
                writeln!(streams, "{stream} {}", path.file_name().unwrap().display()).unwrap();
                played
            }
            Err(error) => {
                differing.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        if played != text {
            if update {
                std::fs::write(&path, &played).unwrap();
            } else {
                differing.push(format!("{}\n{}", path.display(), difference(&text, &played)));
            }
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    check_streams(&streams, update);
    coverage
}

/// Compares the bytes of every event, of which a script shows only what a person wants to read.
fn check_streams(streams: &str, update: bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/streams.txt");
    if update {
        std::fs::write(&path, streams).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(golden, streams, "a script's events have other bytes than before");
}

fn difference(expected: &str, played: &str) -> String {
    let lines = expected.lines().zip(played.lines()).enumerate();
    let differing = lines.filter(|(_, (a, b))| a != b).take(5);
    differing
        .map(|(at, (a, b))| format!("{:>4} expected {a}\n     played   {b}\n", at + 1))
        .collect()
}

#[test]
fn scripts_play_as_written_and_speak_of_every_command_event_and_rejection() {
    let coverage = run_all();
    let missing = |all: BTreeSet<&'static str>, seen: &BTreeSet<String>| {
        all.into_iter().filter(|name| !seen.contains(*name)).collect::<Vec<_>>()
    };
    let commands = Command::TABLE.iter().map(|(_, name)| *name).collect();
    assert_eq!(
        missing(commands, &coverage.commands),
        [""; 0],
        "commands that no script applies"
    );
    let events = Event::TABLE.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(missing(events, &coverage.events), [""; 0], "events that no script sees");
    let codes: BTreeSet<&str> = Rejection::CODES.iter().copied().collect();
    assert_eq!(
        missing(codes.clone(), &coverage.rejections),
        [""; 0],
        "rejections that no script sees"
    );
    assert_eq!(
        missing(codes, &coverage.twins),
        [""; 0],
        "rejections without an accepted twin"
    );
}
