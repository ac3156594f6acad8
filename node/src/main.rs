//! Holdfast.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Before anything else: a supervisor has one thread, and every thread started first would break its forks.
    if arguments.first().is_some_and(|first| first == "supervise") {
        return holdfast_node::executor::supervisor::supervise_command(&arguments[1..]);
    }
    ExitCode::SUCCESS
}
