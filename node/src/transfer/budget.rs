//! How fast bulk may go, so that it never delays what keeps the cluster alive.
//!
//! One bulk flow on a shared link raised the round trip of small packets from 0.24 ms to over 100 ms (measured):
//! enough to start elections. The courier asks before each piece. Sans-io: the time comes in, a wait goes out. The
//! rule kept here: when Raft's round trips grow, bulk gives way at once and comes back slowly.

/// Never slower than this, or a checkpoint would never leave: 1 MiB/s.
const FLOOR_BYTES_PER_S: u64 = 1 << 20;
/// Bulk gives way when round trips are this many times the best seen, plus [`SLACK_US`].
const SLOW_FACTOR: u64 = 3;
/// Round trips of a quiet loopback differ by this much for no reason.
const SLACK_US: u64 = 2000;
/// How much may be sent at once after a pause.
const BURST_MS: u64 = 50;
/// Rates change at most this often, so that one burst of measurements counts once.
const STEP_MS: u64 = 200;

/// A byte budget over time.
#[derive(Debug)]
pub struct Budget {
    max_bytes_per_s: u64,
    bytes_per_s: u64,
    /// When everything that was allowed so far is paid for, in microseconds.
    paid_us: u64,
    best_us: Option<u64>,
    stepped_ms: u64,
}

impl Budget {
    /// A budget that allows at most this rate.
    pub fn new(max_bytes_per_s: u64) -> Self {
        let max_bytes_per_s = max_bytes_per_s.max(FLOOR_BYTES_PER_S);
        Self {
            max_bytes_per_s,
            bytes_per_s: max_bytes_per_s,
            paid_us: 0,
            best_us: None,
            stepped_ms: 0,
        }
    }

    /// Takes so many bytes from the budget; returns how long to wait before sending them, in milliseconds.
    pub fn take(&mut self, now_ms: u64, bytes: u64) -> u64 {
        let now_us = now_ms.saturating_mul(1000);
        let from_us = self.paid_us.max(now_us.saturating_sub(BURST_MS * 1000));
        let cost_us = u128::from(bytes) * 1_000_000 / u128::from(self.bytes_per_s);
        self.paid_us = from_us.saturating_add(u64::try_from(cost_us).unwrap_or(u64::MAX));
        from_us.saturating_sub(now_us).div_ceil(1000)
    }

    /// Takes in a round trip of Raft's traffic, in microseconds.
    pub fn observe_round_trip(&mut self, now_ms: u64, round_trip_us: u64) {
        let best_us = *self.best_us.get_or_insert(round_trip_us);
        self.best_us = Some(best_us.min(round_trip_us));
        if now_ms < self.stepped_ms.saturating_add(STEP_MS) {
            return;
        }
        self.stepped_ms = now_ms;
        let is_slow = round_trip_us > best_us.saturating_mul(SLOW_FACTOR).saturating_add(SLACK_US);
        self.bytes_per_s = if is_slow {
            (self.bytes_per_s / 2).max(FLOOR_BYTES_PER_S)
        } else {
            (self.bytes_per_s + self.bytes_per_s / 10).min(self.max_bytes_per_s)
        };
    }

    /// The rate that is allowed now.
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn bytes_are_spread_over_time() {
        let mut budget = Budget::new(100 * MIB);
        assert_eq!(budget.take(1000, 5 * MIB), 0);
        assert_eq!(budget.take(1000, 100 * MIB), 0, "the burst allowance is only 5 MiB");
        assert_eq!(budget.take(1000, MIB), 1000);
        assert_eq!(budget.take(2010, 0), 0);
        // A long pause saves up no more than the burst.
        assert_eq!(budget.take(100_000, 6 * MIB), 0);
        assert_eq!(budget.take(100_000, MIB), 10);
    }

    #[test]
    fn bulk_gives_way_when_round_trips_grow_and_comes_back_slowly() {
        let mut budget = Budget::new(100 * MIB);
        budget.observe_round_trip(1000, 300);
        budget.observe_round_trip(2000, 30_000);
        assert_eq!(budget.bytes_per_s(), 50 * MIB);
        budget.observe_round_trip(2010, 30_000);
        assert_eq!(budget.bytes_per_s(), 50 * MIB, "one burst of measurements counts once");
        for step in 1..=20 {
            budget.observe_round_trip(2000 + step * 200, 30_000);
        }
        assert_eq!(budget.bytes_per_s(), MIB);
        for step in 1..=60 {
            budget.observe_round_trip(10_000 + step * 200, 400);
        }
        assert_eq!(budget.bytes_per_s(), 100 * MIB);
    }
}
