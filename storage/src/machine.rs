//! The machine: the pure function from the committed log to the state and its events.
//!
//! The adapter applies entries in order; scheduler, executor and API read the state. The same entries give the same
//! state, the same events and the same answers on every replica, for ever: nothing here reads a clock, a random
//! source, a file or a socket, and nothing depends on the order of a hash map.

mod decide;
mod draft;
mod encode;
mod evolve;
mod hash;
pub mod invariant;
pub mod map;
pub mod meter;
pub mod queue;
pub mod quota;
mod restore;
mod share;
pub mod state;
pub mod view;

use std::sync::Arc;

use holdfast_proto::command::Envelope;
use holdfast_proto::event::{Event, EventRecord, RequestKey};
use holdfast_proto::id::{LeaseId, RequestId};
use holdfast_proto::limits::{REQUEST_AHEAD_MS_MAX, REQUEST_MEMORY_MS};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::time::{Span, Timestamp};

pub use encode::DecodeError;
pub use state::State;

use draft::Draft;
use state::{Answer, RequestName};

/// The highest [`state::ClusterState::level`] that this build knows the rules of. A replica whose state is above it
/// must stop: it would decide otherwise than the others.
pub const LEVEL_MAX: u32 = 3;

/// The machine of one replica.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    state: State,
}

/// What applying one entry did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Index of the entry that decided the command: this one, or an earlier one with the same request id. A lease that
    /// it requested has this index as its id.
    pub index: u64,
    /// What the client is told.
    pub outcome: Result<Vec<Event>, Rejection>,
    /// What goes to the event log, in order. Empty for a repeated request.
    pub records: Vec<EventRecord>,
}

impl Machine {
    /// Starts from a state: an empty one, or a snapshot's.
    #[must_use]
    pub fn new(state: State) -> Self {
        Self { state }
    }

    /// Returns the state; clone it to keep it.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Notes an entry that carries no command (a leader's blank entry, a change of members).
    ///
    /// # Panics
    /// When `index` is not after the last applied one: entries would be skipped or applied twice.
    pub fn skip(&mut self, index: u64) {
        assert!(index > self.state.applied.index, "entry {index} is applied already");
        self.state.applied.index = index;
    }

    /// Applies the command of the entry at `index`.
    ///
    /// # Panics
    /// When `index` is not after the last applied one. No command that can be decoded panics.
    pub fn apply(&mut self, index: u64, envelope: &Envelope) -> Applied {
        let mut applied = self.apply_unheard(index, envelope);
        if let Ok(told) = &mut applied.outcome
            && told.is_empty()
        {
            told.extend(applied.records.iter().map(|record| record.event.clone()));
        }
        applied
    }

    /// As [`Self::apply`] where nobody waits for the outcome: what was decided is in the records alone.
    ///
    /// # Panics
    /// As [`Self::apply`].
    pub fn apply_unheard(&mut self, index: u64, envelope: &Envelope) -> Applied {
        self.skip(index);
        let at = envelope
            .stamp
            .max(self.state.applied.stamp)
            .max(self.state.cluster.time_floor);
        self.state.applied.stamp = at;
        if let Some(id) = envelope.request {
            let name = RequestName {
                id,
                principal: RequestKey::new(&envelope.principal, id).principal,
            };
            if let Some(answer) = self.state.requests.get(&name) {
                return self.repeat(answer);
            }
            if let Err(rejection) = self.in_time(id, at) {
                // Not remembered: an old one stays too old for ever, and one from the future names no time to forget it.
                return refused(index, rejection, Vec::new());
            }
        }
        self.decide(index, at, envelope)
    }

    fn decide(&mut self, index: u64, at: Timestamp, envelope: &Envelope) -> Applied {
        let request = envelope.request.map(|id| RequestKey::new(&envelope.principal, id));
        let mut draft = Draft::new(std::mem::take(&mut self.state), index, at, request);
        let decided = decide::decide(&mut draft, envelope);
        if let Err(rejection) = decided {
            self.state = draft.drop();
            if request.is_none() {
                return refused(index, rejection, Vec::new());
            }
            let mut draft = Draft::new(std::mem::take(&mut self.state), index, at, request);
            draft.emit_last(Event::RequestRefused {
                rejection: rejection.clone(),
            });
            let records;
            (self.state, records) = draft.finish();
            return refused(index, rejection, records);
        }
        let records;
        (self.state, records) = draft.finish();
        Applied {
            index,
            outcome: Ok(Vec::new()),
            records,
        }
    }

    /// Answers a request that was decided before.
    fn repeat(&self, answer: &Answer) -> Applied {
        let outcome = match &answer.refused {
            Some(rejection) => Err((**rejection).clone()),
            None => Ok(self.requested(answer.index)),
        };
        Applied {
            index: answer.index,
            outcome,
            records: Vec::new(),
        }
    }

    /// Returns the event of a lease that the entry at `index` requested, while the lease is remembered. Other events
    /// are not kept: they are in the event log, under the index that the answer names.
    fn requested(&self, index: u64) -> Vec<Event> {
        let lease = self.state.leases.get(&LeaseId::from_index(index));
        lease
            .map(|lease| Event::LeaseRequested(Box::new((*lease.requested).clone())))
            .into_iter()
            .collect()
    }

    /// Checks that the answer to a request would still be remembered if it had been given.
    fn in_time(&self, id: RequestId, at: Timestamp) -> Result<(), Rejection> {
        let oldest =
            at.0.saturating_sub(REQUEST_MEMORY_MS)
                .max(self.state.cluster.requests_floor_ms);
        // A floor that rose early forgot requests up to and including it.
        let forgotten = id.client_ms == oldest && oldest == self.state.cluster.requests_floor_ms && oldest > 0;
        if id.client_ms < oldest || forgotten {
            return Err(Rejection::RequestTooOld {
                memory: Span(REQUEST_MEMORY_MS),
            });
        }
        let ahead = Timestamp(id.client_ms).since(at);
        match ahead.0 > REQUEST_AHEAD_MS_MAX {
            true => Err(Rejection::RequestFromFuture { ahead }),
            false => Ok(()),
        }
    }
}

fn refused(index: u64, rejection: Rejection, records: Vec<EventRecord>) -> Applied {
    Applied {
        index,
        outcome: Err(rejection),
        records,
    }
}

/// Makes a published state of a machine: what readers share between two batches of entries.
impl From<&Machine> for Arc<State> {
    fn from(machine: &Machine) -> Self {
        Self::new(machine.state.clone())
    }
}
