//! What the log asks of this node: its member of each placement, as plain values.
//!
//! `duties` reads them out of the applied state, `diff` compares them with what runs. The rule: everything that a
//! decision about a process may rest on is here, so that the decision can be tested with values made by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use holdfast_proto::event::LeaseRequested;
use holdfast_proto::id::{Attempt, Epoch, Fence, FencingToken, Incarnation, LeaseId, NodeId};
use holdfast_proto::placement::Allocation;
use holdfast_proto::workload::Checkpoint;
use serde::{Deserialize, Serialize};

/// Names one start of one placement of one lease on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunKey {
    /// The lease.
    pub lease: LeaseId,
    /// The placement.
    pub epoch: Epoch,
    /// The start.
    pub attempt: Attempt,
}

impl fmt::Display for RunKey {
    /// As in folder and cgroup names: `0-42-e3-a1`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}-{}-e{}-a{}",
            self.lease.cell, self.lease.index, self.epoch.0, self.attempt.0
        )
    }
}

/// A name that is not a run's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not name a run")]
pub struct NotARun(pub String);

impl FromStr for RunKey {
    type Err = NotARun;

    fn from_str(text: &str) -> Result<Self, NotARun> {
        let parse = || {
            let mut parts = text.split('-');
            let cell = parts.next()?.parse().ok()?;
            let index = parts.next()?.parse().ok()?;
            let epoch = Epoch(parts.next()?.strip_prefix('e')?.parse().ok()?);
            let attempt = Attempt(parts.next()?.strip_prefix('a')?.parse().ok()?);
            parts.next().is_none().then_some(Self {
                lease: LeaseId { cell, index },
                epoch,
                attempt,
            })
        };
        parse().ok_or_else(|| NotARun(text.to_owned()))
    }
}

/// What the log says of a placement, as far as this node's member goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The newest placement of a live lease, and no attempt of it runs: the next one may be prepared.
    Waiting,
    /// The newest placement, with an accepted attempt that is not over.
    Current,
    /// The newest placement, and it must end: the lease is over or will be placed anew.
    Ending,
    /// A newer placement is in the log.
    Replaced,
}

/// What the log knows of this member's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberRun {
    /// Nothing was ever started.
    Idle,
    /// This daemon start, and no other, may spawn the attempt.
    Accepted(Incarnation),
    /// It was reported running.
    Started,
    /// Its end is proven.
    Exited,
}

/// What does not change over the life of a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The lease as it was requested: what to run, on what terms, for whom.
    pub requested: Arc<LeaseRequested>,
    /// The devices and limits of this member.
    pub allocation: Allocation,
    /// Nodes of all members, by rank: rank 0 leads.
    pub members: Vec<NodeId>,
    /// Where the member of rank 0 is reached, for the members to find each other.
    pub leader_host: String,
    /// The saved state that the placement resumes from.
    pub restore: Option<Checkpoint>,
    /// The part of its device that it has; none when it has whole devices.
    pub part: Option<Part>,
}

/// A part of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// In thousandths of the device.
    pub milli: u16,
    /// The same part of the device's memory, in MiB.
    pub memory_mib: u32,
}

/// This node's member of one placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duty {
    /// Fences everything that this placement does.
    pub token: FencingToken,
    /// What the log says of the placement.
    pub standing: Standing,
    /// The last attempt of the placement; 0 before the first.
    pub attempt: Attempt,
    /// What the log knows of the process of that attempt.
    pub run: MemberRun,
    /// The daemon start that reported the next attempt as prepared.
    pub prepared: Option<Incarnation>,
    /// The lost generation of this node has not been taken back yet.
    pub lost: bool,
    /// The work itself.
    pub work: Arc<Work>,
}

/// All duties of this node at one applied index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Duties {
    /// By lease and placement.
    pub members: BTreeMap<(LeaseId, Epoch), Duty>,
    /// Leases with a folder here that the state still remembers: their output may still be read.
    pub remembered: BTreeSet<LeaseId>,
}

impl Duty {
    /// What the gates are shown for an attempt.
    pub fn fence(&self, epoch: Epoch, attempt: Attempt) -> Fence {
        Fence {
            token: self.token,
            epoch,
            attempt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_back_from_its_name() {
        let lease = LeaseId { cell: 2, index: 42 };
        let run = RunKey {
            lease,
            epoch: Epoch(3),
            attempt: Attempt(1),
        };
        assert_eq!(run.to_string().parse(), Ok(run));
        for text in ["", "2-42-e3", "2-42-3-1", "2-42-e3-a1-x", "probe-17"] {
            assert_eq!(text.parse::<RunKey>(), Err(NotARun(text.into())));
        }
    }
}
