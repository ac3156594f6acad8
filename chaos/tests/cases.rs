//! Runs that are kept, by the program as users call it: a case replays to the same trace, and shrinks to a smaller one.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn chaos(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-chaos"));
    command.current_dir(folder).args(arguments).output().unwrap()
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().last().unwrap_or_default().to_owned()
}

fn faults(folder: &Path, file: &str) -> usize {
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let case: serde_json::Value = serde_json::from_str(&text).unwrap();
    case["plan"]["steps"].as_array().unwrap().len()
}

#[test]
fn failure_is_kept_replays_alike_and_shrinks() {
    let folder = tempfile::tempdir().unwrap();
    let run = ["run", "--seed", "2", "--mutant", "lying-sync", "--keep", "two.json"];
    let ran = chaos(folder.path(), &run);
    assert_eq!(ran.status.code(), Some(1), "{}", last_line(&ran));
    let replayed = chaos(folder.path(), &["replay", "two.json"]);
    assert_eq!(replayed.status.code(), Some(1));
    assert_eq!(last_line(&replayed), last_line(&ran));
    assert_eq!(String::from_utf8_lossy(&replayed.stderr), "", "the trace is another");

    let page = chaos(folder.path(), &["report", "two.json", "--out", "two.html"]);
    assert_eq!(page.status.code(), Some(1));
    let page = std::fs::read_to_string(folder.path().join("two.html")).unwrap();
    assert!(page.contains("Seed 2: Violation") && page.contains("replica 3"));

    let shrunk = chaos(folder.path(), &["shrink", "two.json", "--runs", "4"]);
    assert_eq!(shrunk.status.code(), Some(0), "{shrunk:?}");
    assert!(faults(folder.path(), "two.min.json") < faults(folder.path(), "two.json"));
    let again = chaos(folder.path(), &["replay", "two.min.json", "--until", "500"]);
    assert_eq!(again.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&again.stderr), "");
}

#[test]
fn what_cannot_be_run_is_wrong_usage_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = chaos(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said(&["replay", "absent.json"]).contains("read the case absent.json"));
    std::fs::write(folder.path().join("other.json"), r#"{"format":2,"program":"9.0.0"}"#).unwrap();
    assert!(said(&["shrink", "other.json"]).contains("written by version 9.0.0"));
    assert!(said(&["report", "other.json", "--out", "page.txt"]).contains("must end with .html"));
    assert!(said(&["sweep", "--from", "1", "--count", "1", "--budget", "8"]).contains("no unit"));
}
