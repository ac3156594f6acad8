//! The `holdfast` program: the command line, the daemon behind it, and two small programs that it starts itself.

use std::process::ExitCode;

use holdfast_node::{boot, cli, executor, trainer};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    match first.to_str() {
        // Before anything else: a supervisor has one thread, and every thread started first would break its forks.
        Some("supervise") => executor::supervisor::supervise_command(&arguments.collect::<Vec<_>>()),
        // The work that the demo leases devices for.
        Some("trainer") => trainer::main(std::iter::once(first).chain(arguments)),
        _ => cli::main(&boot::RealDaemon),
    }
}
