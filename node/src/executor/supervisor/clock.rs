//! The boot clock and a timer on it, for the supervisor's two processes.
//!
//! CLOCK_BOOTTIME goes on through a suspend, and a timer on it fires on waking: a machine that slept past its deadline
//! freezes before it does anything else. `poll` timeouts would not. The rule: deadlines are absolute.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::env::{Clock, OsClock};

/// Milliseconds since boot, time asleep included.
pub(super) fn boot_ms() -> u64 {
    OsClock.boot_ms()
}

/// Fires when the boot clock reaches a time.
#[derive(Debug)]
pub(super) struct Timer(TimerFd);

impl Timer {
    pub(super) fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        TimerFd::new(ClockId::CLOCK_BOOTTIME, flags).map(Self)
    }

    /// Arms it for an absolute time, replacing what was set. `u64::MAX` disarms it.
    pub(super) fn set(&self, at_ms: u64) {
        if at_ms == u64::MAX {
            let _ = self.0.unset();
            return;
        }
        // Zero would disarm it; a time in the past fires at once, as it must.
        let at = TimeSpec::from(Duration::from_millis(at_ms.clamp(1, FURTHEST_MS)));
        self.0
            .set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
            .expect("a valid absolute time on a valid descriptor is accepted");
    }
}

/// A thousand years: the kernel refuses seconds beyond its own range.
const FURTHEST_MS: u64 = 1_000 * 365 * 24 * 3_600 * 1_000;

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
