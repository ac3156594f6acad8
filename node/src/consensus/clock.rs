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
    heard: Mutex<Heard>,
    stamper: Mutex<Stamper>,
}

/// What applied entries have said of the time so far.
#[derive(Debug, Clone, Copy)]
struct Heard {
    stamp: Timestamp,
    /// Everything that was on disk at the start is applied.
    replayed: bool,
}

impl ClusterClock {
    /// Begins from what the disk remembers.
    pub fn new(clock: Arc<dyn Clock>, applied_stamp: AppliedStamp, replayed_to: u64) -> Self {
        let now = reading(&*clock);
        let stamp = applied_stamp();
        let stamper = Mutex::new(Stamper::new(stamp, now));
        let heard = Mutex::new(Heard { stamp, replayed: false });
        Self {
            clock,
            applied_stamp,
            replayed_to,
            heard,
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
    ///
    /// An entry without a command (a leader's first, a change of members) carries no stamp and says nothing of the
    /// time: taking the last stamp for its own would turn an idle cluster's time back to its last command, and a new
    /// cluster's to 1970.
    pub fn applied(&self, index: u64) {
        let stamp = (self.applied_stamp)();
        let live = {
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            let live = heard.replayed;
            heard.replayed |= index > self.replayed_to;
            if stamp <= heard.stamp {
                return;
            }
            heard.stamp = stamp;
            live
        };
        self.with(|stamper, now| stamper.applied(stamp, live, now));
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

    /// The stamp of the next entry, or of several that enter the log together.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    const NOON: u64 = 1_800_000_000_000;

    /// A machine whose boot clock began an hour before noon.
    struct Hands(AtomicU64);

    impl Clock for Hands {
        fn boot_ms(&self) -> u64 {
            3_600_000 + self.0.load(SeqCst)
        }

        fn wall_ms(&self) -> u64 {
            NOON + self.0.load(SeqCst)
        }
    }

    /// A clock, its hands, and the stamp that the replica has applied.
    fn clock(replayed_to: u64) -> (ClusterClock, Arc<Hands>, Arc<AtomicU64>) {
        let (hands, applied) = (Arc::new(Hands(AtomicU64::new(0))), Arc::new(AtomicU64::new(0)));
        let stamp = applied.clone();
        let clock = ClusterClock::new(
            hands.clone(),
            Arc::new(move || Timestamp(stamp.load(SeqCst))),
            replayed_to,
        );
        (clock, hands, applied)
    }

    #[test]
    fn a_new_clusters_first_entry_does_not_date_it_to_1970() {
        let (clock, _, _) = clock(0);
        clock.applied(1);
        clock.lead(Some(NOON));
        assert_eq!(clock.take(), Timestamp(NOON));
    }

    #[test]
    fn a_new_leaders_first_entry_does_not_turn_an_idle_clusters_time_back() {
        let (clock, hands, applied) = clock(0);
        clock.applied(1);
        applied.store(NOON, SeqCst);
        clock.applied(2);
        hands.0.store(1_800_000, SeqCst);
        clock.applied(3);
        clock.lead(Some(NOON + 1_800_000));
        assert!(clock.take() >= Timestamp(NOON + 1_800_000 - 1));
    }

    #[test]
    fn after_a_stop_of_the_whole_cluster_the_new_leaders_first_entry_is_no_living_stamp() {
        let (clock, _, applied) = clock(10);
        applied.store(NOON - 86_400_000, SeqCst);
        clock.applied(10);
        clock.applied(11);
        clock.lead(Some(NOON));
        assert_eq!(clock.take(), Timestamp(NOON));
    }
}
