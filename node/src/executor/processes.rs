//! The seam to what runs: the executor core orders, something else has the processes.
//!
//! `supervised` is the real one; the simulator has a model. The rule: `Ended` is said only of what is proven to be
//! gone, and nothing here decides anything.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::placement::Exit;

use super::duty::RunKey;
use super::supervisor::course::{EndCause, Order};
use super::supervisor::record::ExitRecord;
use super::supervisor::spec::Spec;

/// What is seen of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// Its processes exist.
    Running {
        /// They do not execute.
        frozen: bool,
        /// It is being ended.
        ending: bool,
        /// How long it has been frozen in all.
        frozen_ms: u64,
    },
    /// Whoever has it does not answer now.
    Silent,
    /// Nothing of it is left.
    Ended(Exit),
}

/// Whoever has the processes. Calls may block for a moment, never for a run.
pub trait Processes: Send {
    /// Everything that earlier daemon starts left here, running or ended.
    fn recover(&mut self) -> BTreeMap<RunKey, Observed>;

    /// Starts a run, once: a second call finds the first one's. Returns when the program executes or cannot.
    fn launch(&mut self, run: RunKey, spec: &Spec) -> Observed;

    /// Gives an order.
    fn order(&mut self, run: RunKey, order: Order) -> Observed;

    /// What has changed by itself since the last call.
    fn poll(&mut self, now_ms: u64) -> Vec<(RunKey, Observed)>;

    /// Names of what runs as this node's work and is none of the `known` runs.
    fn unknown(&mut self, known: &BTreeSet<RunKey>) -> Vec<String>;

    /// Ends what `unknown` has named; true when it is gone.
    fn end_unknown(&mut self, name: &str) -> bool;

    /// Removes the files of a run that has ended.
    fn discard(&mut self, run: RunKey);
}

/// How an end is told to the log.
pub fn exit_of(record: &ExitRecord) -> Exit {
    match record.cause {
        // The tenant's mistake is an exit of the work; only what is wrong with the node counts against the node.
        EndCause::LaunchFailed if record.code.is_some() => Exit::Code(record.code.unwrap_or_default()),
        EndCause::LaunchFailed => Exit::LaunchFailed(
            record
                .launch_error
                .clone()
                .unwrap_or_else(|| "the program could not be started".into()),
        ),
        // A shell may swallow the kill of its child and leave with 0: then the work got over it.
        EndCause::Exited if record.oom_kills > 0 && record.code != Some(0) => Exit::OutOfMemory,
        EndCause::Exited => match (record.code, record.signal) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => Exit::Vanished,
        },
        EndCause::Stopped | EndCause::Killed | EndCause::RunUntil => Exit::Stopped,
        EndCause::Deadline
        | EndCause::FreezeMax
        | EndCause::FreezeFailed
        | EndCause::GuardLost
        | EndCause::Shutdown => Exit::Vanished,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_by_its_cause_and_memory_by_the_kernels_counter() {
        let check = |cause, code, signal, oom_kills, expected| {
            let record = ExitRecord {
                run: "r".into(),
                cause,
                code,
                signal,
                oom_kills,
                launch_error: None,
                started_boot_ms: None,
                ended_boot_ms: 0,
                frozen_ms: 0,
                output_lost_bytes: 0,
                boot_id: String::new(),
            };
            assert_eq!(exit_of(&record), expected);
        };
        check(EndCause::Exited, Some(3), None, 0, Exit::Code(3));
        check(EndCause::Exited, None, Some(11), 0, Exit::Signal(11));
        check(EndCause::Exited, None, Some(9), 1, Exit::OutOfMemory);
        check(EndCause::Exited, Some(137), None, 1, Exit::OutOfMemory);
        check(EndCause::Exited, Some(0), None, 1, Exit::Code(0));
        check(EndCause::Stopped, Some(0), None, 0, Exit::Stopped);
        check(EndCause::Deadline, None, None, 0, Exit::Vanished);
        check(
            EndCause::LaunchFailed,
            None,
            None,
            0,
            Exit::LaunchFailed("the program could not be started".into()),
        );
    }
}
