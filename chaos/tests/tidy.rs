//! The checks of style that a compiler does not make: who may import what, which calls are banned where, and how long
//! files and functions may grow. A failure names the file, the line and the rule.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

struct Source {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the workspace")
        .to_owned()
}

fn sources(folder: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no sources in {folder}");
    found
}

/// The part of a file that ships: all before its test module.
fn shipped(source: &Source) -> &str {
    source
        .text
        .split("\n#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or(&source.text)
}

fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn ban(folder: &str, words: &[&str], except: &[&str], why: &str, wrong: &mut Vec<String>) {
    for source in sources(folder) {
        if except.iter().any(|allowed| source.path.starts_with(allowed)) {
            continue;
        }
        for (at, line) in code_lines(shipped(&source)) {
            for word in words {
                // `RT::Instant` is the clock of the runtime that the caller chose.
                if line.contains(word) && !line.contains("RT::Instant") {
                    wrong.push(format!("{}:{at}: `{word}`: {why}", source.path));
                }
            }
        }
    }
}

fn assert_clean(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn crates_import_only_to_their_left() {
    let mut wrong = Vec::new();
    ban(
        "proto/src",
        &["holdfast_storage", "holdfast_node", "holdfast_chaos"],
        &[],
        "proto imports no crate of ours",
        &mut wrong,
    );
    ban(
        "storage/src",
        &["holdfast_node", "holdfast_chaos"],
        &[],
        "storage imports proto only",
        &mut wrong,
    );
    ban(
        "node/src",
        &["holdfast_chaos"],
        &[],
        "node never knows that chaos exists",
        &mut wrong,
    );
    assert_clean(&wrong);
}

#[test]
fn the_machine_is_pure() {
    let mut wrong = Vec::new();
    let words = [
        "std::time",
        "SystemTime",
        "Instant",
        "HashMap",
        "HashSet",
        "f32",
        "f64",
        "rand::",
        "getrandom",
        "tokio",
        "openraft",
        "sled",
        "std::fs",
        "std::net",
        "std::thread",
        "std::env",
    ];
    let why = "the machine is a pure function of the log";
    ban("storage/src/machine", &words, &[], why, &mut wrong);
    let proto = [
        "std::time",
        "SystemTime",
        "HashMap",
        "std::fs",
        "std::net",
        "std::thread",
        "std::env",
        "tokio",
    ];
    ban(
        "proto/src",
        &proto,
        &[],
        "the vocabulary has no IO and no clock",
        &mut wrong,
    );
    assert_clean(&wrong);
}

#[test]
fn clocks_and_randomness_come_through_the_seam() {
    let mut wrong = Vec::new();
    let why = "read it through node/src/env.rs";
    ban(
        "node/src",
        &["SystemTime::now", "Instant::now", "getrandom::"],
        &["node/src/env.rs"],
        why,
        &mut wrong,
    );
    ban(
        "storage/src",
        &["SystemTime::now", "Instant::now", "getrandom::"],
        &[],
        why,
        &mut wrong,
    );
    assert_clean(&wrong);
}

#[test]
fn foreign_crates_are_named_in_few_places() {
    let mut wrong = Vec::new();
    let openraft = [
        "storage/src/types.rs",
        "storage/src/raft_log",
        "storage/src/adapter",
        "storage/src/snapshot",
        "storage/src/source",
    ];
    ban(
        "storage/src",
        &["openraft::"],
        &openraft,
        "openraft stays behind the adapter",
        &mut wrong,
    );
    ban(
        "storage/src",
        &["sled::"],
        &["storage/src/index"],
        "sled holds only what can be rebuilt",
        &mut wrong,
    );
    ban(
        "node/src",
        &["openraft::"],
        &["node/src/consensus", "node/src/boot"],
        "openraft stays behind consensus",
        &mut wrong,
    );
    ban(
        "node/src",
        &["quinn::"],
        &["node/src/net", "node/src/transfer"],
        "quinn stays behind the transport",
        &mut wrong,
    );
    assert_clean(&wrong);
}

#[test]
fn nothing_unfinished_or_vague_ships() {
    let mut wrong = Vec::new();
    for folder in ["proto", "storage", "node", "chaos"] {
        for source in sources(folder) {
            if source.path.ends_with("tidy.rs") {
                continue;
            }
            for (at, line) in source.text.lines().enumerate() {
                for word in ["todo!(", "unimplemented!(", "FIXME", "TODO", "#[ignore"] {
                    if line.contains(word) {
                        wrong.push(format!("{}:{}: `{word}`", source.path, at + 1));
                    }
                }
            }
            let name = source.path.rsplit('/').next().unwrap_or_default();
            for vague in ["manager", "handler", "helper", "util", "common", "misc"] {
                if name.contains(vague) {
                    wrong.push(format!("{}: `{vague}` names nothing", source.path));
                }
            }
            if name == "mod.rs" {
                wrong.push(format!("{}: use foo.rs beside foo/", source.path));
            }
        }
    }
    assert_clean(&wrong);
}

#[test]
fn every_shipped_file_says_what_it_owns() {
    let mut wrong = Vec::new();
    for folder in ["proto/src", "storage/src", "node/src", "chaos/src"] {
        for source in sources(folder) {
            let is_test = source.path.contains("tests");
            if !is_test && !source.text.starts_with("//!") {
                wrong.push(format!("{}: opens without //!", source.path));
            }
        }
    }
    assert_clean(&wrong);
}

#[test]
fn files_stay_one_thing() {
    const LINES_MAX: usize = 600;
    let mut wrong = Vec::new();
    for folder in ["storage/src", "node/src", "chaos/src"] {
        for source in sources(folder) {
            let lines = shipped(&source).lines().count();
            if lines > LINES_MAX && !source.path.contains("tests") {
                wrong.push(format!(
                    "{}: {lines} lines, {LINES_MAX} at most without its tests",
                    source.path
                ));
            }
        }
    }
    assert_clean(&wrong);
}
