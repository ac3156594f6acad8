//! The cluster's time: which stamp the next entry gets.
//!
//! Owns a running estimate of the time that the log has reached. Sans-io: readings of the boot and wall clocks are parameters. A
//! follower feeds it the stamps that it applies; the leader takes stamps from it. The one rule: time goes on at the boot clock's rate,
//! bent towards the wall clock by at most 500 ppm, and never goes back. So a wall clock that steps an hour moves no expiry by more than
//! a second and no bill at all: an untrusted wall clock is not followed.

use holdfast_proto::time::Timestamp;

/// Most that a second may be stretched or shortened, in microseconds per millisecond times two: 500 ppm is half a microsecond.
const SLEW_HALF_US_PER_MS: u64 = 1;

/// A wall clock further than this from the voters' median, or one that has stepped by more than this, is not followed.
pub const TRUST_MS: u64 = 2_000;

/// Readings of both clocks of this machine, taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The boot clock.
    pub boot_ms: u64,
    /// The wall clock.
    pub wall_ms: u64,
}

/// Estimates the cluster's time and gives out stamps.
#[derive(Debug, Clone)]
pub struct Stamper {
    /// The time at `at_boot_ms`, in microseconds, so that slewing over short spans is not lost.
    time_us: u64,
    at_boot_ms: u64,
    /// Greatest stamp given out or applied.
    floor_ms: u64,
    /// Wall less boot, in milliseconds, when the wall clock was last trusted.
    trusted_offset: i128,
    /// Whether the voters' median agrees with the wall clock of this machine.
    agrees: bool,
    /// Whether the estimate rests on a stamp of a living leader, and not on what the disk remembers.
    live: bool,
    leading: bool,
}

impl Stamper {
    /// Begins from the last stamp on disk, or 0.
    pub fn new(last: Timestamp, now: Reading) -> Self {
        Self {
            time_us: last.0.saturating_mul(1_000),
            at_boot_ms: now.boot_ms,
            floor_ms: last.0,
            trusted_offset: offset(now),
            agrees: true,
            live: false,
            leading: false,
        }
    }

    /// Takes over the stamp of an entry that was just applied. `live` tells an entry of a living leader from one that the disk held
    /// when the daemon started.
    pub fn applied(&mut self, stamp: Timestamp, live: bool, now: Reading) {
        self.floor_ms = self.floor_ms.max(stamp.0);
        self.live |= live;
        let stamp_us = stamp.0.saturating_mul(1_000);
        // A leader sees its own stamps come back late; following them would slow its time down.
        if !self.leading || stamp_us > self.at(now.boot_ms) {
            self.time_us = stamp_us;
            self.at_boot_ms = now.boot_ms;
        }
    }

    /// Begins to lead. `median_wall_ms` is the median of the voters' wall clocks, when a quorum told it.
    ///
    /// After a stop of the whole cluster no boot clock knows how long it lasted, so time goes on from the wall clocks then; never back.
    pub fn lead(&mut self, median_wall_ms: Option<u64>, now: Reading) {
        if self.leading {
            return;
        }
        let mut time_us = self.at(now.boot_ms);
        if !self.live {
            time_us = time_us.max(median_wall_ms.unwrap_or(now.wall_ms).saturating_mul(1_000));
        }
        self.time_us = time_us;
        self.at_boot_ms = now.boot_ms;
        self.leading = true;
        self.live = true;
        self.judge(median_wall_ms, now);
    }

    /// Ends to lead: from now on others' stamps are followed.
    pub fn follow(&mut self) {
        self.leading = false;
    }

    /// Compares the wall clock of this machine with the voters' median.
    pub fn judge(&mut self, median_wall_ms: Option<u64>, now: Reading) {
        self.agrees = median_wall_ms.is_none_or(|median| median.abs_diff(now.wall_ms) <= TRUST_MS);
        if median_wall_ms.is_some() && self.agrees {
            // A quorum agrees with the wall clock as it stands, whatever it did before.
            self.trusted_offset = offset(now);
        }
    }

    /// Whether the wall clock of this machine is followed.
    pub fn trusts(&self, now: Reading) -> bool {
        self.agrees && (offset(now) - self.trusted_offset).unsigned_abs() <= u128::from(TRUST_MS)
    }

    /// The stamp of the next entry.
    pub fn take(&mut self, now: Reading) -> Timestamp {
        let free_us = self.at(now.boot_ms);
        let elapsed_ms = now.boot_ms.saturating_sub(self.at_boot_ms);
        let most_us = elapsed_ms.saturating_mul(SLEW_HALF_US_PER_MS) / 2;
        self.time_us = if self.trusts(now) && most_us > 0 {
            now.wall_ms
                .saturating_mul(1_000)
                .clamp(free_us - most_us.min(free_us), free_us.saturating_add(most_us))
        } else if most_us == 0 {
            // Too short a span to bend: leave it on the account, or frequent stamps would never slew.
            self.floor_ms = self.floor_ms.max(free_us / 1_000);
            return Timestamp(self.floor_ms);
        } else {
            free_us
        };
        self.at_boot_ms = now.boot_ms.max(self.at_boot_ms);
        self.floor_ms = self.floor_ms.max(self.time_us / 1_000);
        Timestamp(self.floor_ms)
    }

    /// The cluster's time as this replica believes it, without giving out a stamp.
    pub fn time(&self, now: Reading) -> Timestamp {
        Timestamp(self.floor_ms.max(self.at(now.boot_ms) / 1_000))
    }

    fn at(&self, boot_ms: u64) -> u64 {
        self.time_us
            .saturating_add(boot_ms.saturating_sub(self.at_boot_ms).saturating_mul(1_000))
    }
}

/// The median of wall clocks that were read at one moment; of an even number the lower of the middle two.
pub fn median(mut walls: Vec<u64>) -> Option<u64> {
    walls.sort_unstable();
    let middle = walls.len().checked_sub(1)? / 2;
    walls.get(middle).copied()
}

fn offset(now: Reading) -> i128 {
    i128::from(now.wall_ms) - i128::from(now.boot_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_800_000_000_000;
    const HOUR: u64 = 3_600_000;

    fn at(boot_ms: u64, wall_ms: u64) -> Reading {
        Reading { boot_ms, wall_ms }
    }

    fn leader() -> Stamper {
        let mut stamper = Stamper::new(Timestamp(0), at(0, NOON));
        stamper.lead(None, at(0, NOON));
        stamper
    }

    #[test]
    fn the_first_stamp_of_a_cluster_is_the_wall_clocks() {
        assert_eq!(leader().take(at(0, NOON)), Timestamp(NOON));
    }

    #[test]
    fn time_goes_on_at_the_boot_clocks_rate() {
        let mut stamper = leader();
        assert_eq!(stamper.take(at(60_000, NOON + 60_000)), Timestamp(NOON + 60_000));
    }

    #[test]
    fn stamps_never_decrease_even_when_both_clocks_do() {
        let mut stamper = leader();
        let first = stamper.take(at(10_000, NOON + 10_000));
        assert_eq!(stamper.take(at(9_000, NOON - HOUR)), first);
    }

    #[test]
    fn an_hours_step_of_the_wall_clock_either_way_moves_no_stamp() {
        for wall in [NOON + HOUR, NOON - HOUR] {
            let mut stamper = leader();
            for second in 1..=86_400_u64 {
                let stamp = stamper.take(at(second * 1_000, wall + second * 1_000));
                assert!(stamp.0.abs_diff(NOON + second * 1_000) <= 1, "{stamp} after {second} s");
            }
        }
    }

    #[test]
    fn a_small_error_is_slewed_away_at_no_more_than_500_ppm() {
        let mut stamper = leader();
        let mut last = NOON;
        // The wall clock shows a second more than time has reached.
        for tenth in 1..=30_000_u64 {
            let stamp = stamper.take(at(tenth * 100, NOON + 1_000 + tenth * 100)).0;
            assert!(stamp - last <= 101);
            last = stamp;
        }
        // 3,000 s at 500 ppm is 1.5 s: all of the second is gained.
        assert_eq!(last, NOON + 1_000 + 3_000_000);
    }

    #[test]
    fn stamps_a_millisecond_apart_still_slew() {
        let mut stamper = leader();
        let mut last = Timestamp(0);
        for ms in 1..=2_000_000_u64 {
            last = stamper.take(at(ms, NOON + 500 + ms));
        }
        assert_eq!(last.0, NOON + 500 + 2_000_000);
    }

    #[test]
    fn a_wall_clock_off_the_voters_median_is_not_followed_until_it_agrees() {
        let mut stamper = leader();
        stamper.judge(Some(NOON + 10_000), at(1_000, NOON + 1_000));
        assert!(!stamper.trusts(at(1_000, NOON + 1_000)));
        stamper.judge(Some(NOON + 2_000), at(1_000, NOON + 1_000));
        assert!(stamper.trusts(at(1_000, NOON + 1_000)));
    }

    #[test]
    fn a_new_leader_goes_on_from_the_last_stamp_and_its_own_boot_clock() {
        // This machine's wall clock is an hour ahead, and always was.
        let mut stamper = Stamper::new(Timestamp(0), at(500, NOON + HOUR));
        stamper.applied(Timestamp(NOON), true, at(1_000, NOON + HOUR));
        stamper.lead(Some(NOON + 60_000), at(61_000, NOON + HOUR + 60_000));
        assert_eq!(stamper.take(at(61_000, NOON + HOUR + 60_000)), Timestamp(NOON + 60_000));
        assert_eq!(
            stamper.take(at(161_000, NOON + HOUR + 160_000)),
            Timestamp(NOON + 160_000)
        );
    }

    #[test]
    fn a_follower_with_a_wrong_wall_clock_keeps_the_leaders_time() {
        let mut stamper = Stamper::new(Timestamp(0), at(0, NOON + HOUR));
        for second in 1..=86_400_u64 {
            stamper.applied(
                Timestamp(NOON + second * 1_000),
                true,
                at(second * 1_000, NOON + HOUR + second * 1_000),
            );
        }
        assert_eq!(stamper.time(at(86_401_000, NOON + HOUR)), Timestamp(NOON + 86_401_000));
    }

    #[test]
    fn after_a_stop_of_the_whole_cluster_time_goes_on_from_the_voters_median() {
        let mut stamper = Stamper::new(Timestamp(NOON), at(5, NOON + 24 * HOUR));
        stamper.applied(Timestamp(NOON), false, at(6, NOON + 24 * HOUR));
        stamper.lead(Some(NOON + 23 * HOUR), at(1_000, NOON + 24 * HOUR));
        assert_eq!(stamper.take(at(1_000, NOON + 24 * HOUR)), Timestamp(NOON + 23 * HOUR));
        // And never back, when all wall clocks are behind the log.
        let mut stamper = Stamper::new(Timestamp(NOON), at(5, NOON - HOUR));
        stamper.lead(Some(NOON - HOUR), at(1_000, NOON - HOUR));
        assert!(stamper.take(at(1_005, NOON - HOUR)) >= Timestamp(NOON));
    }

    #[test]
    fn a_set_time_is_followed_by_the_leader_when_it_is_applied() {
        let mut stamper = leader();
        stamper.applied(Timestamp(NOON + HOUR), true, at(1_000, NOON + 1_000));
        assert!(stamper.take(at(2_000, NOON + 2_000)).0 >= NOON + HOUR + 1_000 - 1);
    }

    #[test]
    fn a_leaders_own_late_stamps_do_not_slow_it_down() {
        let mut stamper = leader();
        for ms in (10..=100_000).step_by(10) {
            let stamp = stamper.take(at(ms, NOON + ms));
            stamper.applied(stamp, true, at(ms + 8, NOON + ms + 8));
        }
        assert_eq!(stamper.take(at(100_010, NOON + 100_010)), Timestamp(NOON + 100_010));
    }

    #[test]
    fn the_median_ignores_one_wrong_clock() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![5]), Some(5));
        assert_eq!(median(vec![5, 1_000_000, 6]), Some(6));
        assert_eq!(median(vec![1, 2, 3, 4]), Some(2));
    }
}
