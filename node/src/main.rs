//! The `holdfast` program: the command line, the daemon behind it, and two small programs that it starts itself.

use std::process::ExitCode;

use holdfast_node::{boot, cli, executor, trainer};

/// A committed write makes hundreds of small allocations: a quarter of its CPU went into the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(feature = "planted")]
    plant();
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

/// Breaks the rule that the environment names. A name that is none ends the program: a test that breaks nothing proves
/// nothing.
#[cfg(feature = "planted")]
fn plant() {
    use holdfast_storage::planted::{Plant, VARIABLE, plant};

    if let Ok(name) = std::env::var(VARIABLE) {
        let Some(named) = Plant::named(&name) else {
            eprintln!("holdfast: {VARIABLE}={name} names no plant");
            std::process::exit(64);
        };
        plant(Some(named));
    }
}
