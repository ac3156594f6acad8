//! The trainer as a process: what its signals and exit codes promise to the node that runs it.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Starts a run of 80 steps. A pause between them gives a test seconds of slack to send its signal in time.
fn start(place: &Path, step_ms: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_holdfast-trainer"))
        .args([
            "--steps",
            "80",
            "--interval",
            "10",
            "--hidden",
            "8",
            "--step-ms",
            step_ms,
        ])
        .env("HOLDFAST_CHECKPOINT_DIR", place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads the run to its end, sends the signal once a line starts with `at`, and returns all lines.
fn follow(mut child: Child, signal: Option<(&str, Signal)>) -> (ExitStatus, Vec<String>) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let mut pending = signal;
    let mut lines = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, signal)) = pending.take_if(|(at, _)| line.starts_with(*at)) {
            kill(pid, signal).unwrap();
        }
        lines.push(line);
    }
    (child.wait().unwrap(), lines)
}

#[test]
fn work_told_to_stop_saves_itself_and_work_killed_resumes_from_its_last_checkpoint() {
    let whole = tempfile::tempdir().unwrap();
    let (status, undisturbed) = follow(start(whole.path(), "0"), None);
    assert!(status.success());

    let place = tempfile::tempdir().unwrap();
    let (status, lines) = follow(start(place.path(), "250"), Some(("step=3 ", Signal::SIGTERM)));
    assert_eq!(status.code(), Some(143));
    let stopped: u64 = lines
        .last()
        .unwrap()
        .strip_prefix("stopped step=")
        .unwrap()
        .parse()
        .unwrap();
    assert!((3..80).contains(&stopped), "{lines:?}");

    let (status, lines) = follow(
        start(place.path(), "250"),
        Some(("checkpoint step=10", Signal::SIGKILL)),
    );
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    assert_eq!(lines[0], format!("resumed step={stopped}"));

    let (status, lines) = follow(start(place.path(), "0"), None);
    assert!(status.success());
    let resumed: u64 = lines[0].strip_prefix("resumed step=").unwrap().parse().unwrap();
    assert!((10..80).contains(&resumed) && resumed.is_multiple_of(10), "{lines:?}");
    assert_eq!(lines.last(), undisturbed.last());
    assert!(lines.last().unwrap().starts_with("final hash="));
}
