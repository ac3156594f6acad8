//! Reaching every process of the work: by its cgroup, and by descent from the supervisor.
//!
//! The supervisor uses it to freeze, thaw and kill, and to prove that nothing is left. The rule: never a signal to a
//! process group, which misses every child that called `setsid` (measured); always the cgroup, the namespace, or
//! scans until two of them agree.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::executor::cgroup::{FreezeError, Group};
use crate::executor::procfs::{self, ProcessStat};

/// All processes of one run, seen from an ancestor of theirs.
#[derive(Debug)]
pub(super) struct Reach {
    /// Whether the end of the guard is the end of all of them: then no scan is needed to end them or to know that
    /// they have ended.
    pub(super) namespaced: bool,
    /// The cgroup; may be empty.
    pub(super) group: Group,
    /// The ancestor whose descendants they are.
    pub(super) ancestor: i32,
    /// A descendant that belongs to the supervision and not to the work.
    pub(super) spared: Option<i32>,
}

/// Pause between two scans.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Reach {
    /// The live processes of the work. An unreadable `/proc` counts as "something lives".
    fn members(&self) -> Option<BTreeMap<i32, ProcessStat>> {
        let mut found = procfs::descendants(self.ancestor).ok()?;
        if let Some(spared) = self.spared {
            found.remove(&spared);
        }
        Some(found)
    }

    /// Stops everything from executing and returns once that is so.
    pub(super) fn freeze(&self, bound_ms: u64) -> Result<(), FreezeError> {
        if self.group.can_freeze() {
            return self.group.freeze(bound_ms);
        }
        let mut before: Option<Vec<i32>> = None;
        for _ in 0..=bound_ms {
            let members = self.members().unwrap_or_default();
            let pids: Vec<i32> = members.keys().copied().collect();
            let stopped = members.values().all(|stat| matches!(stat.state, 'T' | 't'));
            if stopped && before.as_ref() == Some(&pids) {
                return Ok(());
            }
            before = stopped.then_some(pids);
            for (pid, stat) in members {
                procfs::signal(pid, stat.start_ticks, Signal::STOP);
            }
            thread::sleep(LOOK_AGAIN);
        }
        Err(FreezeError::Timeout(bound_ms))
    }

    /// Lets everything run again.
    pub(super) fn thaw(&self) {
        if self.group.can_freeze() {
            let _ = self.group.thaw();
            return;
        }
        for (pid, stat) in self.members().unwrap_or_default() {
            procfs::signal(pid, stat.start_ticks, Signal::CONT);
        }
    }

    /// One round of SIGKILL to everything, then a thaw so that it is delivered. What is in a namespace and in no
    /// group dies with the guard, which the caller kills next.
    pub(super) fn kill(&self) {
        if !self.namespaced {
            for (pid, stat) in self.members().unwrap_or_default() {
                procfs::signal(pid, stat.start_ticks, Signal::KILL);
            }
        }
        self.group.kill();
    }

    /// Whether nothing of the work is left, once the guard is gone.
    pub(super) fn is_empty(&self) -> bool {
        let scanned = || self.members().is_some_and(|members| members.is_empty());
        self.group.pids().is_empty() && (self.namespaced || scanned())
    }
}
