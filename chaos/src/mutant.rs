//! Planted bugs: each breaks one promise of a replica, to prove that the checkers notice.
//!
//! They sit between the product's parts and the seams below them, so that no build of the product contains one. The one
//! rule: a bug that goes through many seeds unseen is a hole in the checkers or in the faults, not bad luck.

use serde::{Deserialize, Serialize};

use crate::nodelease;
use crate::world::{self, Options};

/// Bugs that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mutant {
    /// Syncs claim to be done and do nothing: entries and votes are acknowledged before they are durable.
    LyingSync,
    /// Syncs claim to be done one group too early: what was acknowledged last is lost with the power.
    LateSync,
    /// Entries are acknowledged to consensus before they are written.
    AcknowledgeBeforeFsync,
    /// A vote is answered and never written: after a restart the replica votes again in the same term.
    VoteForgotten,
    /// Entries that another leader's log overrules stay.
    TruncateIgnored,
    /// The last of several entries that come together is left out.
    AppendLosesTail,
    /// The log forgets entries that no snapshot covers.
    PurgeTooFar,
    /// The local wall clock goes into the time of an entry when it is applied.
    WallClockInApply,
    /// A follower leaves out what an entry says, now and then.
    ApplySkips,
    /// A follower applies the first two of a batch in the wrong order.
    ApplySwaps,
    /// A follower takes in a snapshot and keeps its old state.
    SnapshotNotInstalled,
    /// A request that takes long, so that its fate is unknown, is told as done.
    UnknownToldAsDone,
    /// A request that took effect is told as refused, now and then.
    DoneToldAsRefused,
    /// A retry comes under another request id, so that it is served twice.
    RetryServedTwice,
    /// A read that is to be fresh is answered from what the replica has, without asking who leads.
    StaleRead,
    /// A leader answers reads from what it has, without asking a quorum whether it still leads.
    UnconfirmedRead,
    /// Requests are not remembered: one that is sent again is served again.
    DedupForgotten,
    /// A leader that restarts leads on in its old term, as openraft does by default.
    LeaderRestored,
    /// A leader answers renewals without asking a quorum whether it still leads.
    RenewalWithoutRound,
    /// A leader goes on to renew a node that it has given up.
    RenewalAfterGivingUp,
    /// A leader declares a node lost without waiting until its work has stopped.
    LossWithoutWait,
    /// The clocks of two nodes are slower than any is allowed to be.
    ClockBeyondRho,
    /// A reader of events misses one, now and then.
    EventMissed,
    /// A reader of events gets one twice, now and then.
    EventRepeated,
    /// A reader of events gets two in the wrong order, now and then.
    EventsSwapped,
}

/// What became of one bug.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Caught {
    /// The bug.
    pub mutant: Mutant,
    /// How many seeds it took; none when all of them passed it.
    pub seeds: Option<u64>,
    /// The checker that fired first.
    pub checker: Option<String>,
}

impl Mutant {
    /// Reports whether it breaks a rule of the node lease, which has worlds of its own.
    pub const fn is_of_node_lease(self) -> bool {
        matches!(
            self,
            Self::RenewalWithoutRound | Self::RenewalAfterGivingUp | Self::LossWithoutWait | Self::ClockBeyondRho
        )
    }

    /// The checker that catches it under a seed, if one does.
    fn caught(self, seed: u64) -> Option<&'static str> {
        let violations = if self.is_of_node_lease() {
            nodelease::run(seed, Some(self)).violations
        } else {
            let options = Options {
                mutant: Some(self),
                ..Options::default()
            };
            world::run(seed, &options).violations
        };
        violations.first().map(|violation| violation.checker)
    }
}

/// Lets a bug go through seeds from 1 on, until one catches it.
pub fn hunt(mutant: Mutant, seeds_max: u64) -> Caught {
    let caught = (1..=seeds_max).find_map(|seed| Some((seed, mutant.caught(seed)?)));
    Caught {
        mutant,
        seeds: caught.map(|(seed, _)| seed),
        checker: caught.map(|(_, checker)| checker.to_owned()),
    }
}

/// All bugs together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hunted {
    /// How many were caught.
    pub caught: usize,
    /// How many were not.
    pub missed: usize,
    /// The median of the seeds that the caught ones took.
    pub median_seeds: Option<u64>,
    /// Each of them.
    pub mutants: Vec<Caught>,
}

impl Hunted {
    /// Adds them up.
    pub fn of(mutants: Vec<Caught>) -> Self {
        let mut seeds: Vec<u64> = mutants.iter().filter_map(|caught| caught.seeds).collect();
        seeds.sort_unstable();
        Self {
            caught: seeds.len(),
            missed: mutants.len() - seeds.len(),
            median_seeds: seeds.get(seeds.len() / 2).copied(),
            mutants,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_that_were_not_caught_are_missed_and_not_in_the_median() {
        let caught = |seeds| Caught {
            mutant: Mutant::LateSync,
            seeds,
            checker: None,
        };
        let hunted = Hunted::of(vec![caught(Some(9)), caught(None), caught(Some(1)), caught(Some(2))]);
        assert_eq!((hunted.caught, hunted.missed, hunted.median_seeds), (3, 1, Some(2)));
        assert_eq!(Hunted::of(Vec::new()).median_seeds, None);
    }
}
