//! What a run was worth: its verdict, what broke, what befell it, and how to see it again.
//!
//! The one rule: a run with too little traffic or too few faults proves nothing, and is void, not passed.

use std::fmt;

use serde::Serialize;

use crate::check::Violation;
use crate::fault::Plan;
use crate::net::Traffic;
use crate::trace::Event;

/// Commands that must have been committed for a run to count.
pub const COMMANDS_MIN: u64 = 200;
/// Changes of the leader that must have happened for a run to count.
pub const LEADER_CHANGES_MIN: u64 = 2;
/// Crashes that lost unsynced writes, of which a run that counts has at least this many.
pub const LOSSY_CRASHES_MIN: u64 = 1;

/// How a run ended. The exit codes are public.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything held, and enough happened for that to mean something.
    Pass,
    /// Too little happened.
    Void,
    /// A checker ran out of its budget, so nothing is known.
    Undecided,
    /// An invariant broke.
    Violation,
}

impl Verdict {
    /// The exit code of a run that ended like this.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Violation => 1,
            Self::Undecided => 2,
            Self::Void => 3,
        }
    }
}

/// What happened in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Commands that were committed.
    pub commands: u64,
    /// Those that took effect.
    pub effects: u64,
    /// Changes of the leader, the first one not counted.
    pub leader_changes: u64,
    /// Processes that were killed, machines that lost their power included.
    pub crashes: u64,
    /// Losses of power that took unsynced writes with them.
    pub lossy_crashes: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Requests of clients that were acknowledged.
    pub acknowledged: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests whose fate their client does not know.
    pub unknown: u64,
    /// Fresh reads that were answered.
    pub reads: u64,
    /// Renewals of node leases that came in.
    pub renewals: u64,
    /// Nodes that were declared lost.
    pub losses: u64,
    /// Snapshots that replicas took in from others.
    pub snapshots_installed: u64,
    /// What checkers judged.
    pub observations: u64,
}

impl Counts {
    /// Why the run proves nothing, if it does not.
    pub fn void_reason(&self) -> Option<String> {
        let least = [
            ("committed commands", self.commands, COMMANDS_MIN),
            ("leader changes", self.leader_changes, LEADER_CHANGES_MIN),
            (
                "crashes that lost unsynced writes",
                self.lossy_crashes,
                LOSSY_CRASHES_MIN,
            ),
        ];
        let (what, got, wanted) = least.into_iter().find(|(_, got, wanted)| got < wanted)?;
        Some(format!("{got} {what}, at least {wanted} are needed"))
    }
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash over everything that happened.
    pub trace: u64,
    /// How many events that covers.
    pub events: u64,
    /// Virtual time, in milliseconds.
    pub simulated_ms: u64,
    /// What happened.
    pub counts: Counts,
    /// What became of the packets.
    pub traffic: Traffic,
    /// What broke.
    pub violations: Vec<Violation>,
    /// What a checker could not decide.
    pub undecided: Vec<String>,
    /// What befell the cluster.
    pub plan: Plan,
    /// The line that runs it again; a plan of its own comes in beside it.
    pub replay: String,
    /// Where every replica stood in the end, one line each.
    pub replicas: Vec<String>,
    /// The last events before the end, or around the first violation.
    #[serde(skip)]
    pub recent: Vec<Event>,
}

impl Report {
    /// How the run ended.
    pub fn verdict(&self) -> Verdict {
        if !self.violations.is_empty() {
            Verdict::Violation
        } else if !self.undecided.is_empty() {
            Verdict::Undecided
        } else if self.counts.void_reason().is_some() {
            Verdict::Void
        } else {
            Verdict::Pass
        }
    }

    /// Everything that somebody needs who looks into a failure.
    pub fn failure(&self) -> String {
        let mut text = String::new();
        for violation in &self.violations {
            text.push_str(&format!("violation: {violation}\n"));
        }
        for undecided in &self.undecided {
            text.push_str(&format!("undecided: {undecided}\n"));
        }
        let plan = serde_json::to_string(&self.plan).unwrap_or_else(|error| error.to_string());
        text.push_str(&format!("plan: {plan}\nreplicas:\n"));
        for replica in &self.replicas {
            text.push_str(&format!("  {replica}\n"));
        }
        if !self.recent.is_empty() {
            text.push_str("events before it:\n");
        }
        for event in &self.recent {
            text.push_str(&format!("  {event}\n"));
        }
        text.push_str(&format!("replay: {}\n", self.replay));
        text
    }
}

impl fmt::Display for Report {
    /// The last line of `run`: scripts read its first two words.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace,
            seed,
            events,
            counts,
            ..
        } = self;
        write!(
            out,
            "trace {trace:016x} seed {seed} {:?}: {events} events, {} commands, {} leader changes, {} crashes of which \
             {} lossy, {} acknowledged, {} refused, {} unknown, {} reads, {}.{:03} s simulated",
            self.verdict(),
            counts.commands,
            counts.leader_changes,
            counts.crashes,
            counts.lossy_crashes,
            counts.acknowledged,
            counts.refused,
            counts.unknown,
            counts.reads,
            self.simulated_ms / 1_000,
            self.simulated_ms % 1_000
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn report() -> Report {
        Report {
            seed: 7,
            trace: 0xabc,
            events: 9,
            simulated_ms: 20_500,
            counts: Counts {
                commands: 200,
                leader_changes: 2,
                lossy_crashes: 1,
                ..Counts::default()
            },
            traffic: Traffic::default(),
            violations: Vec::new(),
            undecided: Vec::new(),
            plan: Plan::calm(3, 20_000),
            replay: "holdfast-chaos run --seed 7".to_owned(),
            replicas: Vec::new(),
            recent: Vec::new(),
        }
    }

    #[test]
    fn run_counts_only_with_enough_commands_changes_and_losses() {
        assert_eq!(report().verdict(), Verdict::Pass);
        for short in [
            Counts {
                commands: 199,
                ..report().counts
            },
            Counts {
                leader_changes: 1,
                ..report().counts
            },
            Counts {
                lossy_crashes: 0,
                ..report().counts
            },
        ] {
            assert_eq!(
                Report {
                    counts: short,
                    ..report()
                }
                .verdict(),
                Verdict::Void
            );
        }
    }

    #[test]
    fn violation_outweighs_a_void_run() {
        let violations = vec![Violation {
            checker: "agreement",
            text: "x".to_owned(),
        }];
        let broken = Report {
            counts: Counts::default(),
            violations,
            ..report()
        };
        assert_eq!(broken.verdict(), Verdict::Violation);
        assert!(broken.failure().ends_with("replay: holdfast-chaos run --seed 7\n"));
    }

    #[test]
    fn last_line_begins_with_the_trace_in_sixteen_digits() {
        assert!(report().to_string().starts_with("trace 0000000000000abc seed 7 Pass"));
    }

    #[test]
    fn exit_codes_are_the_public_ones() {
        let codes = [Verdict::Pass, Verdict::Violation, Verdict::Undecided, Verdict::Void].map(Verdict::exit_code);
        assert_eq!(codes, [0, 1, 2, 3]);
    }
}
