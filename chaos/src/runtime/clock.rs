//! The boot clock of one simulated host: it starts anywhere, and runs faster or slower than true time.
//!
//! Timers and instants of the runtime are measured on it. The one rule: converting a local deadline to true time
//! rounds up, because a deadline rounded down fires early, finds that it is not due, and would fire again at the same
//! instant for ever.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

/// Parts per million of a clock that runs true.
pub const TRUE_RATE_PPM: u64 = 1_000_000;

/// One host's boot clock, as a line through the last change of its rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostClock {
    rate_ppm: u64,
    local_ns: u64,
    true_ns: u64,
}

impl HostClock {
    /// A clock that shows `local_ns` at true time 0 and runs true.
    pub(crate) const fn starting_at(local_ns: u64) -> Self {
        Self {
            rate_ppm: TRUE_RATE_PPM,
            local_ns,
            true_ns: 0,
        }
    }

    /// What the clock shows at a true time.
    pub(crate) fn local(&self, now_ns: u64) -> u64 {
        assert!(now_ns >= self.true_ns, "true time runs forward");
        self.local_ns + scale(now_ns - self.true_ns, self.rate_ppm, TRUE_RATE_PPM, false)
    }

    /// The first true time at which the clock shows at least `local_ns`.
    pub(crate) fn true_at(&self, local_ns: u64) -> u64 {
        let ahead = local_ns.saturating_sub(self.local_ns);
        self.true_ns
            .saturating_add(scale(ahead, TRUE_RATE_PPM, self.rate_ppm, true))
    }

    /// Changes the rate from now on; what the clock shows does not jump.
    pub(crate) fn set_rate(&mut self, now_ns: u64, rate_ppm: u64) {
        assert!(
            rate_ppm > 0,
            "a clock that stands still has no deadlines: pause the host instead"
        );
        *self = Self {
            rate_ppm,
            local_ns: self.local(now_ns),
            true_ns: now_ns,
        };
    }
}

fn scale(value: u64, by: u64, per: u64, up: bool) -> u64 {
    let product = u128::from(value) * u128::from(by);
    let scaled = if up {
        product.div_ceil(u128::from(per))
    } else {
        product / u128::from(per)
    };
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// A point on the boot clock of the host whose task asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub(crate) u64);

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Instant {
    /// Nanoseconds since the host's boot.
    pub const fn since_boot_ns(self) -> u64 {
        self.0
    }

    /// This instant plus a duration, at most the end of time.
    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self.after(duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(
            self.0
                .checked_sub(nanos(duration))
                .expect("hosts boot long enough before the simulation starts"),
        )
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_changes_bend_the_clock_without_a_jump() {
        let mut clock = HostClock::starting_at(1_000);
        assert_eq!(clock.local(500), 1_500);
        clock.set_rate(500, 1_100_000);
        assert_eq!(clock.local(500), 1_500);
        assert_eq!(clock.local(1_500), 2_600);
        clock.set_rate(1_500, 900_000);
        assert_eq!(clock.local(2_500), 3_500);
    }

    #[test]
    fn deadline_has_come_at_the_true_time_it_converts_to_and_not_before() {
        for rate in [1, 333_333, 900_000, 999_999, 1_000_000, 1_000_001, 1_100_000, 7_000_000] {
            let mut clock = HostClock::starting_at(0);
            clock.set_rate(10, rate);
            for ahead in [1, 2, 3, 7, 1_000, 999_983] {
                let deadline = clock.local(10) + ahead;
                let due = clock.true_at(deadline);
                assert!(clock.local(due) >= deadline, "rate {rate}, {ahead} ns ahead");
                assert!(clock.local(due - 1) < deadline, "rate {rate}, {ahead} ns ahead");
            }
        }
    }
}
