//! Where a node gets time and randomness from.
//!
//! Owns the two seams [`Clock`] and [`Entropy`] and their real forms. `boot.rs` makes the real ones and hands them down; tests and the
//! simulator hand down their own. The one rule: no other production file reads a clock or the system's random source.

use rustix::time::{ClockId, clock_gettime};

/// What the time is, in whole milliseconds.
///
/// Durations are measured on the boot clock, which goes on through a suspend and never steps. The wall clock is only ever shown, put
/// into certificates, or slewed towards (see `consensus/stamp.rs`).
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since this machine started; never goes back.
    fn boot_ms(&self) -> u64;

    /// Milliseconds of UTC since 1970; may step either way at any moment.
    fn wall_ms(&self) -> u64;
}

/// Random bytes that nobody can guess.
pub trait Entropy: Send + Sync + 'static {
    /// Fills `out`.
    fn fill(&self, out: &mut [u8]);

    /// A random number over the whole range.
    fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_be_bytes(bytes)
    }
}

/// The kernel's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsClock;

impl OsClock {
    /// Microseconds since this machine started: for measurements, never for rules.
    pub fn boot_us(&self) -> u64 {
        self.boot_ns() / 1_000
    }

    /// Nanoseconds since this machine started: for measurements, never for rules.
    pub fn boot_ns(&self) -> u64 {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
    }
}

impl Clock for OsClock {
    fn boot_ms(&self) -> u64 {
        read(ClockId::Boottime)
    }

    fn wall_ms(&self) -> u64 {
        read(ClockId::Realtime)
    }
}

/// A clock that stands before zero (a wall clock before 1970) reads as zero.
fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let millis = u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0);
    seconds.saturating_mul(1_000).saturating_add(millis)
}

/// The kernel's random source.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&self, out: &mut [u8]) {
        getrandom::fill(out).expect("the kernel's random source is ready once user space runs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_never_goes_back() {
        let mut last = 0;
        for _ in 0..1_000 {
            let now = OsClock.boot_ms();
            assert!(now >= last);
            last = now;
        }
        assert!(last > 0);
    }

    #[test]
    fn the_wall_clock_is_past_the_year_2020() {
        assert!(OsClock.wall_ms() > 1_577_836_800_000);
    }

    #[test]
    fn two_draws_differ() {
        assert_ne!(OsEntropy.random_u64(), OsEntropy.random_u64());
    }
}
