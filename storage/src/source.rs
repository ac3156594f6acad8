//! The one way in for readers: the committed state, how far it is, and the events after a cursor.
//!
//! Scheduler, executor, API and event streams take a [`CommittedSource`]; openraft's adapter is its first
//! implementation. Nothing here waits on consensus: what is read was committed and applied on this replica.
//!
//! The rule: what is announced is there. When a subscription says an index, [`CommittedSource::state`] is at least that
//! far, and the events up to it can be read.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};

use holdfast_proto::event::EventRecord;
use holdfast_proto::id::{Cursor, Digest};

use crate::adapter::{HashPoints, StateClaim};
use crate::event_log::{EventLog, EventsError, RawEvent};
use crate::machine::State;

/// A state's hash and the entry that it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateHash {
    /// The last applied entry.
    pub index: u64,
    /// The hash of the state after it.
    pub hash: Digest,
}

/// What a replica has committed and applied.
pub trait CommittedSource: Send + Sync + 'static {
    /// Returns the state after the last applied entry.
    fn state(&self) -> Arc<State>;

    /// Begins to watch how far entries are applied.
    fn applied(&self) -> Subscription;

    /// Returns the next `limit` events after a cursor; fewer only where the log ends.
    ///
    /// # Errors
    /// [`EventsError::Compacted`] or [`EventsError::Reset`] when some of them are gone from this replica.
    fn events(&self, after: Cursor, limit: usize) -> Result<Vec<Arc<EventRecord>>, EventsError>;

    /// Returns the next `limit` events after a cursor if all that follow it are in memory: what needs no disk.
    fn recent_events(&self, _after: Cursor, _limit: usize) -> Option<Vec<Arc<EventRecord>>> {
        None
    }

    /// Returns the events after a cursor as they lie on disk, about `bytes` of them; `None` where they are in memory or the log ends, and
    /// where the source does not know them in this form.
    ///
    /// # Errors
    /// As [`CommittedSource::events`].
    fn raw_events(&self, _after: Cursor, _bytes: usize) -> Result<Option<Vec<RawEvent>>, EventsError> {
        Ok(None)
    }

    /// Returns the last position whose events are gone from this replica.
    fn events_floor(&self) -> Cursor;

    /// Returns the newest position at which every replica keeps its state for comparison; `None` before the first.
    fn hash_point(&self) -> Option<Cursor>;

    /// Returns what this replica's state hashed to at a position, if it kept it. Costs what had changed by then.
    fn hash_at(&self, at: Cursor) -> Option<Digest>;

    /// Returns the last hash that came through the log, and that [`CommittedSource::hash_at`] is to be compared with.
    fn claimed_hash(&self) -> Option<StateClaim>;

    /// Returns the hash of the present state; it costs what has changed since the last one.
    fn state_hash(&self) -> StateHash {
        let state = self.state();
        StateHash {
            index: state.applied.index,
            hash: state.hash(),
        }
    }
}

/// The adapter's side of the source: it publishes, and closes when it goes.
#[derive(Debug)]
pub(crate) struct Published {
    state: RwLock<Arc<State>>,
    events: EventLog,
    progress: Arc<Progress>,
    pub(crate) hashes: HashPoints,
}

impl Published {
    pub(crate) fn new(state: Arc<State>, events: EventLog) -> Self {
        let progress = Arc::new(Progress::default());
        progress.advance(state.applied.index);
        Self {
            state: RwLock::new(state),
            events,
            progress,
            hashes: HashPoints::default(),
        }
    }

    pub(crate) fn publish(&self, state: Arc<State>) {
        let index = state.applied.index;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        self.progress.advance(index);
    }

    pub(crate) fn close(&self) {
        self.progress.close();
    }
}

impl CommittedSource for Published {
    fn state(&self) -> Arc<State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn applied(&self) -> Subscription {
        Subscription::new(self.progress.clone())
    }

    fn events(&self, after: Cursor, limit: usize) -> Result<Vec<Arc<EventRecord>>, EventsError> {
        self.events.after(after, limit)
    }

    fn recent_events(&self, after: Cursor, limit: usize) -> Option<Vec<Arc<EventRecord>>> {
        self.events.recent(after, limit)
    }

    fn raw_events(&self, after: Cursor, bytes: usize) -> Result<Option<Vec<RawEvent>>, EventsError> {
        self.events.raw_after(after, bytes)
    }

    fn events_floor(&self) -> Cursor {
        self.events.floor()
    }

    fn hash_point(&self) -> Option<Cursor> {
        self.hashes.newest()
    }

    fn hash_at(&self, at: Cursor) -> Option<Digest> {
        self.hashes.hash_at(at)
    }

    fn claimed_hash(&self) -> Option<StateClaim> {
        self.hashes.claimed()
    }
}

/// How far entries are applied, for any number of waiters on any runtime, woken in the order in which they subscribed.
#[derive(Debug, Default)]
struct Progress(Mutex<Reached>);

#[derive(Debug, Default)]
struct Reached {
    index: u64,
    closed: bool,
    waiting: BTreeMap<u64, Waker>,
    next_id: u64,
}

impl Progress {
    fn held(&self) -> MutexGuard<'_, Reached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, index: u64) {
        self.wake(|reached| reached.index = reached.index.max(index));
    }

    fn close(&self) {
        self.wake(|reached| reached.closed = true);
    }

    /// Wakes outside the lock, because a waker may run whatever it likes.
    fn wake(&self, change: impl FnOnce(&mut Reached)) {
        let waiting = {
            let mut reached = self.held();
            change(&mut reached);
            std::mem::take(&mut reached.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }
}

/// Watches how far entries are applied on this replica.
#[derive(Debug)]
pub struct Subscription {
    progress: Arc<Progress>,
    id: u64,
    seen: u64,
}

impl Subscription {
    fn new(progress: Arc<Progress>) -> Self {
        let (id, seen) = {
            let mut reached = progress.held();
            reached.next_id += 1;
            (reached.next_id, reached.index)
        };
        Self { progress, id, seen }
    }

    /// Returns the last applied entry without waiting.
    pub fn index(&self) -> u64 {
        self.progress.held().index
    }

    /// Waits until the entry `index` is applied, and returns how far it is then; `None` once the replica has stopped.
    pub async fn reached(&mut self, index: u64) -> Option<u64> {
        poll_fn(|cx| self.poll_reached(index, cx)).await
    }

    /// Waits until something is applied that this subscription has not reported yet; `None` once the replica has
    /// stopped.
    pub async fn changed(&mut self) -> Option<u64> {
        let next = self.seen + 1;
        self.reached(next).await
    }

    fn poll_reached(&mut self, index: u64, cx: &mut Context<'_>) -> Poll<Option<u64>> {
        let mut reached = self.progress.held();
        if reached.index >= index {
            self.seen = reached.index;
            return Poll::Ready(Some(reached.index));
        }
        if reached.closed {
            return Poll::Ready(None);
        }
        reached.waiting.insert(self.id, cx.waker().clone());
        Poll::Pending
    }
}

impl Clone for Subscription {
    /// The clone has seen what this one has.
    fn clone(&self) -> Self {
        let mut clone = Self::new(self.progress.clone());
        clone.seen = self.seen;
        clone
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.progress.held().waiting.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;

    use super::*;

    fn polled<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_subscription_reports_each_advance_once_and_the_end() {
        let progress = Arc::new(Progress::default());
        let mut watch = Subscription::new(progress.clone());
        assert_eq!(polled(watch.changed()), Poll::Pending);
        progress.advance(3);
        assert_eq!(polled(watch.changed()), Poll::Ready(Some(3)));
        assert_eq!(polled(watch.changed()), Poll::Pending);
        assert_eq!(polled(watch.reached(2)), Poll::Ready(Some(3)));
        progress.close();
        assert_eq!(polled(watch.changed()), Poll::Ready(None));
        assert_eq!(polled(watch.reached(3)), Poll::Ready(Some(3)));
    }

    #[test]
    fn a_dropped_subscription_leaves_no_waker_behind() {
        let progress = Arc::new(Progress::default());
        let mut watch = Subscription::new(progress.clone());
        assert_eq!(polled(watch.changed()), Poll::Pending);
        drop(watch);
        assert!(progress.held().waiting.is_empty());
    }
}
