//! What a replica's Raft log may let go, and when its state is written down.
//!
//! Owns every purge of the log: openraft's own policy is off, because it looks at the newest snapshot only. Runs on each
//! replica. The one rule: an entry stays until the older of two whole snapshots covers it, so that a damaged newest one
//! can be fallen back from, and until no follower is being sent a snapshot that ends before it, so that the follower can
//! go on from there and does not need another.
//!
//! openraft takes a snapshot after so many entries; here one is taken when the log has grown large, or is old.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_storage::raft_log::RaftLog;
use holdfast_storage::snapshot::SnapshotStore;
use holdfast_storage::types::Types;
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Raft};
use openraft_rt::Instant;
use openraft_rt::watch::WatchReceiver;

/// How often the log is looked at.
const PERIOD: Duration = Duration::from_secs(2);
/// A log larger than this is written down in a snapshot, however few entries it has.
const LOG_BYTES_MAX: u64 = 1 << 30;
/// A snapshot older than this is followed by another one, if anything was applied since.
const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(6 * 3600);
/// Snapshots that are taken for the log's size are at least this far apart: the log shrinks only after the second one.
const SNAPSHOT_APART: Duration = Duration::from_secs(60);

/// Snapshots that are on their way to followers.
#[derive(Debug, Default)]
pub struct Departures {
    by_ticket: Mutex<Sending>,
}

#[derive(Debug, Default)]
struct Sending {
    next: u64,
    ends: BTreeMap<u64, u64>,
}

/// One snapshot on its way; dropped when it has arrived or was given up.
#[derive(Debug)]
pub struct Departure {
    departures: Arc<Departures>,
    ticket: u64,
}

impl Departures {
    fn held(&self) -> MutexGuard<'_, Sending> {
        self.by_ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a snapshot that ends with entry `end` is being sent.
    pub fn begin(self: &Arc<Self>, end: u64) -> Departure {
        let mut sending = self.held();
        sending.next += 1;
        let ticket = sending.next;
        sending.ends.insert(ticket, end);
        Departure {
            departures: self.clone(),
            ticket,
        }
    }

    /// The lowest end of those that are on their way.
    fn lowest(&self) -> Option<u64> {
        self.held().ends.values().min().copied()
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.departures.held().ends.remove(&self.ticket);
    }
}

/// What the storage says about itself. May block; called off the async threads.
pub trait Kept: Send + Sync + 'static {
    /// The last entry that every snapshot kept for a fall-back covers.
    fn covered(&self) -> std::io::Result<Option<u64>>;

    /// Bytes that the Raft log takes.
    fn log_bytes(&self) -> u64;
}

/// The storage crate's log and snapshots.
pub struct Stored<RT: AsyncRuntime> {
    /// The snapshots.
    pub snapshots: SnapshotStore,
    /// The log.
    pub log: RaftLog<RT>,
}

impl<RT: AsyncRuntime> Kept for Stored<RT> {
    fn covered(&self) -> std::io::Result<Option<u64>> {
        self.snapshots.covered().map_err(std::io::Error::other)
    }

    fn log_bytes(&self) -> u64 {
        self.log.disk_bytes()
    }
}

/// The duty.
pub struct Compaction<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    raft: Raft<Types<RT>, SM>,
    kept: Arc<dyn Kept>,
    departures: Arc<Departures>,
    /// The lowest end that was on its way when it was looked at last: a follower that has just taken a snapshot in has
    /// not asked for the entries after it yet.
    departed: Option<u64>,
    /// The newest snapshot, and since when it is that.
    newest: (Option<u64>, RT::Instant),
    asked: Option<RT::Instant>,
}

impl<RT, SM> Compaction<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// For one replica.
    pub fn new(raft: Raft<Types<RT>, SM>, kept: Arc<dyn Kept>, departures: Arc<Departures>) -> Self {
        Self {
            raft,
            kept,
            departures,
            departed: None,
            newest: (None, RT::Instant::now()),
            asked: None,
        }
    }

    /// Runs until openraft stops.
    pub async fn run(mut self) {
        loop {
            RT::sleep(PERIOD).await;
            let metrics = self.raft.metrics().borrow_watched().clone();
            if metrics.running_state.is_err() {
                return;
            }
            let snapshot = metrics.snapshot.map(|id| id.index);
            let applied = metrics.last_applied.map(|id| id.index);
            if snapshot != self.newest.0 {
                self.newest = (snapshot, RT::Instant::now());
            }
            if self.purge(metrics.purged.map(|id| id.index)).await.is_err() {
                return;
            }
            if applied > snapshot && self.is_due() {
                self.asked = Some(RT::Instant::now());
                if self.raft.trigger().snapshot().await.is_err() {
                    return;
                }
            }
        }
    }

    async fn purge(&mut self, purged: Option<u64>) -> Result<(), ()> {
        let kept = self.kept.clone();
        let covered = match RT::spawn_blocking(move || kept.covered()).await {
            Ok(Ok(covered)) => covered,
            Ok(Err(error)) | Err(error) => {
                tracing::warn!(%error, "the snapshots cannot be looked at, so the log keeps all entries");
                return Ok(());
            }
        };
        let sending = self.departures.lowest();
        let upto = purge_upto(covered, sending, self.departed);
        self.departed = sending;
        match upto {
            Some(upto) if Some(upto) > purged => self.raft.trigger().purge_log(upto).await.map_err(drop),
            _ => Ok(()),
        }
    }

    fn is_due(&self) -> bool {
        if self.asked.is_some_and(|asked| asked.elapsed() < SNAPSHOT_APART) {
            return false;
        }
        self.kept.log_bytes() > LOG_BYTES_MAX || self.newest.1.elapsed() > SNAPSHOT_AGE_MAX
    }
}

/// The last entry that may go, if any.
fn purge_upto(covered: Option<u64>, sending: Option<u64>, departed: Option<u64>) -> Option<u64> {
    let ends = [sending, departed].into_iter().flatten();
    covered.map(|covered| ends.fold(covered, u64::min))
}

/// Starts the duty on the runtime.
pub fn start<RT, SM>(compaction: Compaction<RT, SM>)
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    let run: BoxFuture<'static, ()> = Box::pin(compaction.run());
    drop(RT::spawn(run));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_goes_that_a_fall_back_or_a_follower_needs() {
        assert_eq!(purge_upto(None, None, None), None);
        assert_eq!(purge_upto(Some(100), None, None), Some(100));
        assert_eq!(purge_upto(Some(100), Some(40), None), Some(40));
        assert_eq!(purge_upto(Some(100), None, Some(60)), Some(60));
        assert_eq!(purge_upto(Some(100), Some(200), Some(60)), Some(60));
    }

    #[test]
    fn a_departure_counts_until_it_is_over() {
        let departures = Arc::new(Departures::default());
        let first = departures.begin(7);
        let second = departures.begin(5);
        assert_eq!(departures.lowest(), Some(5));
        drop(second);
        assert_eq!(departures.lowest(), Some(7));
        drop(first);
        assert_eq!(departures.lowest(), None);
    }
}
