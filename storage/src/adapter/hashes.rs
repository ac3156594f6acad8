//! The state at chosen positions of the log, so that replicas can compare their hashes of the very same state.
//!
//! A hash is proposed by the leader and reaches the others entries later, when their states have moved on. So each
//! replica keeps its state, which costs nothing but what changes after it, at the same positions: after every
//! [`HASH_EVERY`]th entry. The adapter notes them; the node's consensus compares.
//!
//! The rule: hashes are computed by whoever asks, never at apply.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_proto::id::{Cursor, Digest};

use crate::machine::State;

/// Entries between two positions.
const HASH_EVERY: u64 = 1_024;

/// Positions kept: more than go by while a proposal is on its way.
const KEPT: usize = 16;

/// A hash that came through the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateClaim {
    /// The position.
    pub at: Cursor,
    /// What the leader's state hashed to there.
    pub hash: Digest,
}

#[derive(Debug)]
enum Kept {
    State(Box<State>),
    Hash(Digest),
}

#[derive(Debug)]
struct Point {
    at: Cursor,
    kept: Mutex<Kept>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct HashPoints {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    recent: VecDeque<Arc<Point>>,
    claim: Option<StateClaim>,
    /// The claim's own point, as long as no other claim comes.
    claimed: Option<Arc<Point>>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Point {
    fn new(state: &State) -> Arc<Self> {
        Arc::new(Self {
            at: state.cluster.cursor,
            kept: Mutex::new(Kept::State(Box::new(state.clone()))),
        })
    }

    /// The hash; once it is known, the state is let go.
    fn hash(&self) -> Digest {
        let mut kept = held(&self.kept);
        let hash = match &*kept {
            Kept::State(state) => state.hash(),
            Kept::Hash(hash) => *hash,
        };
        *kept = Kept::Hash(hash);
        hash
    }
}

impl HashPoints {
    /// Keeps the state after an entry, where replicas keep theirs.
    pub(crate) fn passed(&self, index: u64, state: &State) {
        if !index.is_multiple_of(HASH_EVERY) {
            return;
        }
        let mut inner = held(&self.inner);
        inner.recent.push_back(Point::new(state));
        if inner.recent.len() > KEPT {
            inner.recent.pop_front();
        }
    }

    /// Notes a claim; `state` is the one before its entry.
    pub(crate) fn claim(&self, claim: StateClaim, state: &State) {
        let mut inner = held(&self.inner);
        let known = inner.recent.iter().find(|point| point.at == claim.at).cloned();
        let present = || (state.cluster.cursor == claim.at).then(|| Point::new(state));
        inner.claimed = known.or_else(present);
        inner.claim = Some(claim);
    }

    /// The last claim.
    pub(crate) fn claimed(&self) -> Option<StateClaim> {
        held(&self.inner).claim
    }

    /// The newest position that every replica keeps.
    pub(crate) fn newest(&self) -> Option<Cursor> {
        held(&self.inner).recent.back().map(|point| point.at)
    }

    /// What this replica's state hashed to at a position, if it kept it.
    pub(crate) fn hash_at(&self, at: Cursor) -> Option<Digest> {
        let point = {
            let inner = held(&self.inner);
            let mut points = inner.claimed.iter().chain(&inner.recent);
            points.find(|point| point.at == at).cloned()
        };
        point.map(|point| point.hash())
    }
}
