//! Checkers: what must always hold, judged from what the cluster was seen to do.
//!
//! A world reports observations as they happen; each checker, one file each, keeps what it needs and says when its
//! invariant broke. Checkers never look into a replica: what a faulty machine believes of itself proves nothing.
//! The one rule: a checker is itself tested with a bad history made by hand, for one that never fires proves nothing.

pub mod acknowledged;
pub mod agreement;
pub mod content;
pub mod linearize;
pub mod occupancy;
pub mod registers;
pub mod renewal;
pub mod stream;

use std::fmt;
use std::sync::Arc;

use holdfast_proto::event::{EventRecord, RequestKey};
use holdfast_proto::id::{Cursor, Generation, NodeId};

use self::registers::{Ended, Register};

/// Which run of which replica observed something: a replica that restarts begins a new life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    /// The replica.
    pub replica: NodeId,
    /// 0 for its first start.
    pub life: u32,
}

impl fmt::Display for Seen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} in life {}", self.replica, self.life)
    }
}

/// Place of an entry in the log: who made it, and where. A term may have several leaders, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Term of the leader that made the entry.
    pub term: u64,
    /// That leader.
    pub leader: NodeId,
    /// Log index.
    pub index: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "index {} of {} in term {}", self.index, self.leader, self.term)
    }
}

/// What a client knows of its request in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// It was told that the command took effect at this index.
    Acknowledged(u64),
    /// It was told that the command was refused for good.
    Refused,
    /// It was told neither.
    Unknown,
}

/// What an entry came to, as its events tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It changed something.
    Effect,
    /// It was refused, and that is remembered.
    Refused,
    /// It said what was so already, it repeated an earlier request, or it carries no command.
    Nothing,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Observation {
    /// A replica took an entry into its log: made it, or received it.
    Appended {
        /// Who.
        by: Seen,
        /// Where.
        place: Place,
        /// Digest of the entry.
        content: u64,
    },
    /// A replica applied an entry.
    Applied {
        /// Who.
        by: Seen,
        /// Where.
        place: Place,
        /// Digest of the entry.
        content: u64,
        /// Digest of the state after it, where it was taken: not inside a batch.
        state: Option<u64>,
    },
    /// The entry at an index is decided; reported once for each index, in order.
    Decided {
        /// The index.
        index: u64,
        /// The request that it answers, if a client made one.
        request: Option<RequestKey>,
        /// What it came to.
        decision: Decision,
        /// The events that it was decided into.
        events: Arc<[EventRecord]>,
    },
    /// A client is done with a request.
    Answered {
        /// The request.
        request: RequestKey,
        /// What the client knows of it.
        knowledge: Knowledge,
    },
    /// A subscriber received an event.
    Received {
        /// The subscriber.
        subscriber: u64,
        /// The replica that served it.
        from: NodeId,
        /// Position of the event.
        cursor: Cursor,
        /// Digest of the event.
        content: u64,
    },
    /// A node was renewed: its work may run for longer.
    Renewed {
        /// The node.
        node: NodeId,
        /// In this generation of its lease.
        generation: Generation,
        /// Until when, in true time.
        until_ns: u64,
    },
    /// It is decided that a node is lost: its work may be started elsewhere.
    Lost {
        /// The node.
        node: NodeId,
        /// The generation that ended.
        generation: Generation,
        /// When, in true time.
        at_ns: u64,
    },
    /// A client, or a node on its own account, asks to read or write a register.
    Called {
        /// The call, by a number of its own.
        call: u64,
        /// When, in true time.
        at_ns: u64,
        /// The register.
        register: Register,
        /// What is to be written, if it is no read.
        write: Option<u64>,
    },
    /// The answer to a call came.
    Returned {
        /// The call.
        call: u64,
        /// When, in true time.
        at_ns: u64,
        /// What the answer was.
        ended: Ended,
    },
}

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, thiserror::Error)]
#[error("{checker}: {text}")]
pub struct Violation {
    /// The checker that fired.
    pub checker: &'static str,
    /// What it saw.
    pub text: String,
}

/// One invariant.
pub trait Checker {
    /// Names the checker in reports.
    fn name(&self) -> &'static str;

    /// Takes an observation.
    ///
    /// # Errors
    /// What was seen, when it breaks the invariant.
    fn observe(&mut self, observation: &Observation) -> Result<(), String>;

    /// The run is over and the cluster has healed: everything that is still owed is missing.
    ///
    /// # Errors
    /// What is missing.
    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// What could not be decided, once the run is over.
    fn undecided(&self) -> &[String] {
        &[]
    }
}

/// All checkers over one run.
pub struct Checkers {
    checkers: Vec<Box<dyn Checker + Send>>,
    violations: Vec<Violation>,
    observations: u64,
}

impl Default for Checkers {
    fn default() -> Self {
        Self {
            checkers: vec![
                Box::new(agreement::Agreement::default()),
                Box::new(content::OneContent::default()),
                Box::new(acknowledged::Acknowledged::default()),
                Box::new(occupancy::Occupancy::default()),
                Box::new(stream::Streams::default()),
                Box::new(registers::Registers::default()),
                Box::new(renewal::Renewal::default()),
            ],
            violations: Vec::new(),
            observations: 0,
        }
    }
}

impl Checkers {
    /// Takes an observation.
    pub fn observe(&mut self, observation: &Observation) {
        self.observations += 1;
        for checker in &mut self.checkers {
            if let Err(text) = checker.observe(observation) {
                self.violations.push(Violation {
                    checker: checker.name(),
                    text,
                });
            }
        }
    }

    /// Notes a violation that the world itself saw: a panic, a replica that does not start.
    pub fn violate(&mut self, checker: &'static str, text: String) {
        self.violations.push(Violation { checker, text });
    }

    /// Ends the run.
    pub fn finish(&mut self) {
        for checker in &mut self.checkers {
            if let Err(text) = checker.finish() {
                self.violations.push(Violation {
                    checker: checker.name(),
                    text,
                });
            }
        }
    }

    /// What no checker could decide, each with the checker's name.
    pub fn undecided(&self) -> Vec<String> {
        let of = |checker: &dyn Checker| {
            let name = checker.name();
            let told = |text: &String| format!("{name}: {text}");
            checker.undecided().iter().map(told).collect::<Vec<_>>()
        };
        self.checkers.iter().flat_map(|checker| of(&**checker)).collect()
    }

    /// What broke, in order.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// How many observations were judged.
    pub fn observations(&self) -> u64 {
        self.observations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violation_names_its_checker_and_ends_nothing() {
        let mut checkers = Checkers::default();
        let by = Seen {
            replica: NodeId(1),
            life: 0,
        };
        for content in [7, 8, 9] {
            let place = Place {
                term: 1,
                leader: NodeId(1),
                index: 1,
            };
            checkers.observe(&Observation::Appended { by, place, content });
        }
        checkers.finish();
        assert_eq!(checkers.observations(), 3);
        assert_eq!(checkers.violations().len(), 2);
        assert_eq!(checkers.violations()[0].checker, "one-content");
    }
}
