//! The clocks of a simulated host behind node's seam: the boot clock is the runtime's, the wall clock adds steps to it.
//!
//! The one rule: a step moves the wall clock alone, as an operator or a broken time server does.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use holdfast_node::env::{Clock, Entropy};

use crate::random::Stream;
use crate::runtime::{self, Host};

/// True wall-clock time when a simulation starts: a day in 2027, so that every stamp is plausible.
const EPOCH_MS: u64 = 1_800_000_000_000;

/// One host's clocks; clones share them.
#[derive(Debug, Clone)]
pub struct SimulatedClock {
    host: Host,
    booted_wall_ms: u64,
    stepped_ms: Arc<AtomicI64>,
}

impl SimulatedClock {
    /// The clocks of a host, right at this moment.
    pub fn new(host: Host) -> Self {
        let booted_wall_ms = true_wall_ms() - local_ms(host);
        Self {
            host,
            booted_wall_ms,
            stepped_ms: Arc::default(),
        }
    }

    /// Moves the wall clock.
    pub fn step(&self, by_ms: i64) {
        self.stepped_ms.fetch_add(by_ms, SeqCst);
    }

    /// Sets the wall clock right again.
    pub fn set_right(&self) {
        let shown_ms = self.booted_wall_ms + local_ms(self.host);
        let off_ms = i128::from(true_wall_ms()) - i128::from(shown_ms);
        self.stepped_ms.store(i64::try_from(off_ms).unwrap_or(0), SeqCst);
    }
}

/// True wall-clock time.
pub fn true_wall_ms() -> u64 {
    EPOCH_MS + runtime::true_now_ns() / 1_000_000
}

fn local_ms(host: Host) -> u64 {
    runtime::local_now_of(host).since_boot_ns() / 1_000_000
}

impl Clock for SimulatedClock {
    fn boot_ms(&self) -> u64 {
        local_ms(self.host)
    }

    fn wall_ms(&self) -> u64 {
        (self.booted_wall_ms + local_ms(self.host)).saturating_add_signed(self.stepped_ms.load(SeqCst))
    }
}

/// Randomness of one life of a host, from the seed.
pub struct SimulatedEntropy(std::sync::Mutex<Stream>);

impl SimulatedEntropy {
    /// Draws from a stream.
    pub fn new(draws: Stream) -> Self {
        Self(std::sync::Mutex::new(draws))
    }
}

impl Entropy for SimulatedEntropy {
    fn fill(&self, out: &mut [u8]) {
        let mut draws = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&draws.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::runtime::Simulated;

    #[test]
    fn step_moves_the_wall_clock_and_not_the_boot_clock() {
        Simulated::seeded(1).simulate(async {
            let clock = SimulatedClock::new(Host(1));
            let (boot_ms, wall_ms) = (clock.boot_ms(), clock.wall_ms());
            clock.step(-3_600_000);
            assert_eq!((clock.boot_ms(), clock.wall_ms()), (boot_ms, wall_ms - 3_600_000));
            runtime::sleep(Duration::from_secs(1)).await;
            assert_eq!(
                (clock.boot_ms(), clock.wall_ms()),
                (boot_ms + 1_000, wall_ms - 3_599_000)
            );
            clock.set_right();
            assert_eq!(clock.wall_ms(), true_wall_ms());
        });
    }
}
