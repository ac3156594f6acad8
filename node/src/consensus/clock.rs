//! The cluster's time on one replica: the stamper, fed from applied entries and from both clocks.
//!
//! Owns the shared [`Stamper`]. The proposer takes stamps, a task of its own feeds it, the membership duty judges the wall clock. The one
//! rule: both clocks are read here, together, and nowhere else in consensus.

use std::sync::{Arc, Mutex, PoisonError};

use holdfast_proto::time::Timestamp;

use super::stamp::{Reading, Stamper};
use crate::env::Clock;

/// Tells the stamp of the last applied entry.
pub type AppliedStamp = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The cluster's time, shared by the parts of a replica.
pub struct ClusterClock {
    clock: Arc<dyn Clock>,
    applied_stamp: AppliedStamp,
    /// Last index on disk when the daemon started: what is applied up to there says nothing about the present.
    replayed_to: u64,
    /// The stamp when everything that was on disk had been applied; only a later one is news of a living leader.
    replayed: Mutex<Option<Timestamp>>,
    stamper: Mutex<Stamper>,
}

impl ClusterClock {
    /// Begins from what the disk remembers.
    pub fn new(clock: Arc<dyn Clock>, applied_stamp: AppliedStamp, replayed_to: u64) -> Self {
        let now = reading(&*clock);
        let stamper = Mutex::new(Stamper::new(applied_stamp(), now));
        Self {
            clock,
            applied_stamp,
            replayed_to,
            replayed: Mutex::new(None),
            stamper,
        }
    }

    /// Milliseconds since this machine started.
    pub fn boot_ms(&self) -> u64 {
        self.clock.boot_ms()
    }

    /// This machine's wall clock.
    pub fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Notes that the entry at `index` is applied.
    pub fn applied(&self, index: u64) {
        let stamp = (self.applied_stamp)();
        let live = self.is_live(index, stamp);
        self.with(|stamper, now| stamper.applied(stamp, live, now));
    }

    /// Blank entries carry no stamp, so the index alone does not tell whether a stamp is news.
    fn is_live(&self, index: u64, stamp: Timestamp) -> bool {
        if index < self.replayed_to {
            return false;
        }
        let mut replayed = self.replayed.lock().unwrap_or_else(PoisonError::into_inner);
        stamp > *replayed.get_or_insert(stamp)
    }

    /// Begins to lead.
    pub fn lead(&self, median_wall_ms: Option<u64>) {
        self.with(|stamper, now| stamper.lead(median_wall_ms, now));
    }

    /// Ends to lead.
    pub fn follow(&self) {
        self.with(|stamper, _| stamper.follow());
    }

    /// Compares this machine's wall clock with the voters' median.
    pub fn judge(&self, median_wall_ms: Option<u64>) {
        self.with(|stamper, now| stamper.judge(median_wall_ms, now));
    }

    /// The stamp of the next entry.
    pub fn take(&self) -> Timestamp {
        self.with(Stamper::take)
    }

    /// The cluster's time as this replica believes it.
    pub fn time(&self) -> Timestamp {
        self.with(|stamper, now| stamper.time(now))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Stamper, Reading) -> T) -> T {
        let now = reading(&*self.clock);
        work(&mut self.stamper.lock().unwrap_or_else(PoisonError::into_inner), now)
    }
}

fn reading(clock: &dyn Clock) -> Reading {
    Reading {
        boot_ms: clock.boot_ms(),
        wall_ms: clock.wall_ms(),
    }
}
