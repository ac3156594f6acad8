//! The judge of a world: takes what probes, clients and subscribers saw, and gives it to the checkers.
//!
//! It also finds out what each index was decided into, once, from the first replica that applied it. The one rule: it
//! only reads; nothing that happens in a world depends on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_proto::command::Envelope;
use holdfast_proto::event::{Event, EventRecord, RequestKey};
use holdfast_proto::id::{Cursor, NodeId};

use super::observe::{Passed, Probe};
use crate::check::registers::{Ended, Register};
use crate::check::{Checkers, Decision, Observation, Seen, Violation};
use crate::report::Counts;
use crate::runtime::{self, Host};
use crate::trace::{Event as Traced, Kind};

/// What the judge reads of a replica when it has applied something.
pub trait Witness: Send + Sync + 'static {
    /// A digest of the replica's state.
    fn state_digest(&self) -> u64;

    /// Events strictly after a position, at most as many.
    fn events_after(&self, after: Cursor, limit: usize) -> Vec<EventRecord>;
}

/// What the judge found in a run.
pub struct Judged {
    /// What happened.
    pub counts: Counts,
    /// What broke.
    pub violations: Vec<Violation>,
    /// What could not be decided.
    pub undecided: Vec<String>,
    /// The events around the first violation.
    pub recent: Vec<Traced>,
}

/// See the module.
#[derive(Clone, Default)]
pub struct Judge {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    checkers: Checkers,
    counts: Counts,
    /// Calls of registers so far; the next one has this number.
    calls: u64,
    witnesses: BTreeMap<Seen, Arc<dyn Witness>>,
    /// The highest index whose decision is known.
    decided: u64,
    leaders: Vec<(u64, NodeId)>,
    /// Replicas whose disk was made to forget, and whether they were found out.
    forgetful: BTreeMap<NodeId, bool>,
    at_first_violation: Vec<Traced>,
}

/// Most events that one entry is decided into; a gang of 1,000 members makes fewer.
const EVENTS_PER_ENTRY_MAX: usize = 16_384;

impl Judge {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the judge read a replica from now on.
    pub fn call(&self, by: Seen, witness: Arc<dyn Witness>) {
        self.inner().witnesses.insert(by, witness);
    }

    /// Takes an observation.
    pub fn observe(&self, observation: &Observation) {
        self.inner().observe(observation);
    }

    /// Somebody begins to write a register, or to read it; gives the number of the call.
    pub fn called(&self, register: Register, write: Option<u64>) -> u64 {
        let mut inner = self.inner();
        let (call, at_ns) = (inner.calls, runtime::true_now_ns());
        inner.calls += 1;
        inner.observe(&Observation::Called {
            call,
            at_ns,
            register,
            write,
        });
        call
    }

    /// The answer to a call came. A call whose answer never comes may still take effect.
    pub fn returned(&self, call: u64, ended: Ended) {
        let mut inner = self.inner();
        inner.counts.reads += u64::from(matches!(ended, Ended::Read(_)));
        let at_ns = runtime::true_now_ns();
        inner.observe(&Observation::Returned { call, at_ns, ended });
    }

    /// Notes a violation that no checker sees.
    pub fn violate(&self, checker: &'static str, text: String) {
        let mut inner = self.inner();
        inner.checkers.violate(checker, text);
        inner.keep_events();
    }

    /// A replica's disk is made to forget: it is to be found out.
    pub fn expect_forgetting(&self, replica: NodeId) {
        self.inner().forgetful.insert(replica, false);
    }

    /// A replica was found to remember less than it promised: right only when its disk was made to forget.
    pub fn forgot(&self, replica: NodeId, how: &str) {
        if let Some(found) = self.inner().forgetful.get_mut(&replica) {
            *found = true;
            return;
        }
        self.violate("promises", format!("{replica} remembers less than it promised: {how}"));
    }

    /// Reports whether a replica whose disk was made to forget was found out.
    pub fn found_out(&self, replica: NodeId) -> bool {
        self.inner().forgetful.get(&replica).copied().unwrap_or(false)
    }

    /// Changes the counts.
    pub fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.inner().counts);
    }

    /// A replica sees itself lead.
    pub fn leads(&self, term: u64, leader: NodeId) {
        let mut inner = self.inner();
        if inner.leaders.contains(&(term, leader)) {
            return;
        }
        runtime::note(Host(leader.0), Kind::Lead, [term, 0, 0]);
        inner.counts.leader_changes += u64::from(!inner.leaders.is_empty());
        inner.leaders.push((term, leader));
    }

    /// The highest index whose decision is known.
    pub fn decided(&self) -> u64 {
        self.inner().decided
    }

    /// How many violations there are so far.
    pub fn violations(&self) -> usize {
        self.inner().checkers.violations().len()
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.inner().counts
    }

    /// Ends the run.
    pub fn finish(&self) -> Judged {
        let mut inner = self.inner();
        inner.checkers.finish();
        inner.keep_events();
        let mut counts = inner.counts;
        counts.observations = inner.checkers.observations();
        Judged {
            counts,
            violations: inner.checkers.violations().to_vec(),
            undecided: inner.checkers.undecided(),
            recent: inner.at_first_violation.clone(),
        }
    }
}

impl Inner {
    fn observe(&mut self, observation: &Observation) {
        self.checkers.observe(observation);
        self.keep_events();
    }

    /// Keeps the events before the first violation: later ones tell less.
    fn keep_events(&mut self) {
        if self.at_first_violation.is_empty() && !self.checkers.violations().is_empty() {
            self.at_first_violation = runtime::recent_events();
        }
    }

    fn decide(&mut self, witness: &dyn Witness, passed: &Passed) {
        let index = passed.place.index;
        let after = Cursor {
            index: self.decided,
            sub: u32::MAX,
        };
        let events: Vec<EventRecord> = witness
            .events_after(after, EVENTS_PER_ENTRY_MAX)
            .into_iter()
            .take_while(|record| record.cursor.index <= index)
            .collect();
        let envelope = passed.proposal.as_ref().and_then(|bytes| Envelope::decode(bytes).ok());
        let asked = envelope.as_ref().and_then(|envelope| {
            envelope
                .request
                .map(|request| RequestKey::new(&envelope.principal, request))
        });
        let told = events.first().and_then(|record| record.request);
        let decision = match events.first().map(|record| &record.event) {
            None => Decision::Nothing,
            Some(Event::RequestRefused { .. }) => Decision::Refused,
            Some(_) => Decision::Effect,
        };
        let at_ns = runtime::true_now_ns();
        for record in &events {
            if let Some((lease, phase)) = phase(record) {
                runtime::note(Host::WORLD, Kind::Lease, [lease, phase, 0]);
            }
            if let Event::NodeLost { node, generation } = record.event {
                self.counts.losses += 1;
                self.observe(&Observation::Lost {
                    node,
                    generation,
                    at_ns,
                });
            }
        }
        self.counts.commands += u64::from(envelope.is_some());
        self.counts.effects += u64::from(decision == Decision::Effect);
        self.decided = index;
        let request = asked.or(told);
        self.observe(&Observation::Decided {
            index,
            request,
            decision,
            events: events.into(),
        });
    }
}

/// The lease that begins a phase with an event, and which.
fn phase(record: &EventRecord) -> Option<(u64, u64)> {
    Some(match &record.event {
        Event::LeaseRequested(_) => (record.cursor.index, 0),
        Event::PlacementCommitted { lease, .. } => (lease.index, 1),
        Event::LeaseActivated { lease, .. } | Event::LeaseThawed { lease, .. } => (lease.index, 2),
        Event::LeaseFrozen { lease, .. } => (lease.index, 3),
        Event::LeaseEnded { lease, .. } => (lease.index, 4),
        _ => return None,
    })
}

impl Probe for Judge {
    fn appended(&self, by: Seen, entries: &[Passed]) {
        let mut inner = self.inner();
        for Passed { place, content, .. } in entries {
            inner.observe(&Observation::Appended {
                by,
                place: *place,
                content: *content,
            });
        }
    }

    fn applied(&self, by: Seen, entries: &[Passed]) {
        let mut inner = self.inner();
        let Some(witness) = inner.witnesses.get(&by).cloned() else {
            return;
        };
        let last = entries.len().saturating_sub(1);
        for (at, passed) in entries.iter().enumerate() {
            let (place, content) = (passed.place, passed.content);
            let state = (at == last).then(|| witness.state_digest());
            runtime::note(
                Host(by.replica.0),
                Kind::Apply,
                [place.index, content, state.unwrap_or(0)],
            );
            inner.observe(&Observation::Applied {
                by,
                place,
                content,
                state,
            });
            if place.index > inner.decided {
                inner.decide(&*witness, passed);
            }
        }
    }

    fn installed(&self, by: Seen) {
        let mut inner = self.inner();
        inner.counts.snapshots_installed += 1;
        drop(inner);
        runtime::note(Host(by.replica.0), Kind::Note, [1, u64::from(by.life), 0]);
    }
}
