//! `holdfast bench`: the numbers that the documents state, measured on a cluster of real processes on this machine.
//!
//! Each bench starts its own cluster, asks it through the doors that users have, and ends with one line of JSON whose
//! keys other programs rely on. The rule: wall-clock figures are printed with the CPU time behind them, because on a
//! shared machine only the latter keeps.

mod catch_up;
mod events;
mod failover;
mod lease;
mod log;
mod scheduler;

use std::path::Path;

use serde_json::Value;

use crate::client::ClientError;
use crate::demo::{DemoError, interruptible};
use crate::local::LocalError;

/// Flags of `holdfast bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchFlags {
    #[command(subcommand)]
    what: Bench,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Bench {
    /// Committed writes a second on three nodes, from separate client processes through authentication and decide.
    Log(log::LogFlags),
    /// From the request of a lease to its process running, as the client sees it.
    Lease(lease::LeaseFlags),
    /// From the loss of a node to the lease's work running elsewhere, and whether it ever ran twice.
    Failover(failover::FailoverFlags),
    /// Decisions of the scheduler's packer on one thread, on a full pool in which leases come and go.
    Scheduler(scheduler::SchedulerFlags),
    /// Delivery of events to many subscribers of one node, and what it costs the node.
    Events(events::EventsFlags),
    #[command(hide = true)]
    LogClient(log::ClientFlags),
    #[command(hide = true)]
    EventClient(events::ClientFlags),
    #[command(hide = true)]
    EventReader(catch_up::ReaderFlags),
}

/// Why a bench has no number.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The local cluster failed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A step of the story failed.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A request failed.
    #[error("request failed")]
    Client(#[from] ClientError),
    /// No network of its own could be made.
    #[error("cannot make a network of its own")]
    Lab(#[from] crate::local::lab::LabError),
    /// Something else did not go as needed.
    #[error("{0}")]
    Void(String),
}

/// Runs a bench and returns its exit code.
pub async fn run(flags: BenchFlags, json: bool) -> u8 {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("holdfast bench: cannot find its own program: {error}");
            return 1;
        }
    };
    let work = async {
        match &flags.what {
            Bench::Log(flags) => log::measure(&program, flags, json).await,
            Bench::Lease(flags) => lease::measure(&program, flags, json).await,
            Bench::Failover(flags) => failover::measure(&program, flags, json).await,
            Bench::Scheduler(flags) => scheduler::measure(flags, json),
            Bench::Events(flags) => events::measure(&program, flags, json).await,
            Bench::LogClient(flags) => log::load(flags).await,
            Bench::EventClient(flags) => events::subscribe(flags).await,
            Bench::EventReader(flags) => catch_up::read(flags).await,
        }
    };
    match interruptible(work).await {
        None => 130,
        Some(Ok(summary)) => {
            println!("{summary}");
            0
        }
        Some(Err(error)) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                text.push_str(&format!(": {error}"));
                cause = error.source();
            }
            if json {
                println!("{}", serde_json::json!({ "ok": false, "error": text }));
            }
            eprintln!("holdfast bench: {text}");
            1
        }
    }
}

/// The value below which `permille` of the sorted `values` lie; 0 of none.
fn percentile(sorted: &[u64], permille: usize) -> u64 {
    let at = (sorted.len() * permille).div_ceil(1000).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// Microseconds as milliseconds with two decimals.
fn ms(us: u64) -> Value {
    Value::from((us as f64 / 10.0).round() / 100.0)
}

/// CPU time that a process has used so far, in microseconds; 0 when it is gone.
fn cpu_us(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    // The kernel counts in hundredths of a second for every program.
    ticks * 10_000
}

/// The most memory of this process that was in RAM at once, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    kib_of(&status, "VmHWM:") / 1024
}

/// Memory of a process that is in RAM now, in MiB; 0 when it is gone.
fn resident_mib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap_or_default();
    kib_of(&status, "VmRSS:") / 1024
}

/// A figure of a process's status, in KiB; 0 when it is not there.
fn kib_of(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!(
            (
                percentile(&values, 500),
                percentile(&values, 990),
                percentile(&values, 1000)
            ),
            (100, 198, 200)
        );
        assert_eq!(percentile(&[], 500), 0);
        assert_eq!(percentile(&[7], 990), 7);
    }

    #[test]
    fn this_process_has_used_memory() {
        assert!(resident_mib(i32::try_from(std::process::id()).unwrap()) > 0);
    }
}
