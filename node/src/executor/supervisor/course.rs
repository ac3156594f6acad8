//! The rules of one supervised run, without any process: inputs and `now` in, acts out.
//!
//! The supervisor feeds it orders, the passing of time and what became of the work, and carries out the acts that it
//! returns. All times are milliseconds on the boot clock. The rule: nothing but an order that carries a deadline in
//! the future thaws work, and what is once to be killed is never anything else again.

use holdfast_storage::planted::{self, Plant};
use serde::{Deserialize, Serialize};

use super::spec::{DeadlinePolicy, Spec};

/// Why a run ended, or is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndCause {
    /// The work's main process ended by itself.
    Exited,
    /// The program could not be started.
    LaunchFailed,
    /// The daemon ordered a stop.
    Stopped,
    /// The node lease ran out under the `stop` policy.
    Deadline,
    /// The lease's own time (expiry or cap) was over.
    RunUntil,
    /// It stayed frozen longer than `freeze_max`.
    FreezeMax,
    /// A freeze did not take hold within its bound.
    FreezeFailed,
    /// The daemon ordered a kill.
    Killed,
    /// The guard of the work ended unexpectedly, and the work with it.
    GuardLost,
    /// The machine is shutting down (the supervisor received SIGTERM).
    Shutdown,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "phase")]
pub enum Phase {
    /// The program has not been executed yet.
    Launching,
    /// It executes.
    Running,
    /// It exists and does not execute.
    Frozen {
        /// Since when, boot clock.
        since_boot_ms: u64,
    },
    /// It was asked to leave by SIGTERM.
    Stopping {
        /// When the grace is over, boot clock.
        kill_at_boot_ms: u64,
        /// Why it must leave.
        cause: EndCause,
    },
    /// SIGKILL is out; not yet proven empty.
    Killing {
        /// Why.
        cause: EndCause,
    },
    /// Proven empty.
    Ended {
        /// Why.
        cause: EndCause,
    },
}

/// What the supervisor must do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Freeze the whole group within the bound.
    Freeze,
    /// Let it run again.
    Thaw,
    /// SIGTERM to the main process.
    Terminate,
    /// SIGKILL to the whole group first, then thaw it.
    Kill,
}

/// What the daemon may order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "order", deny_unknown_fields)]
pub enum Order {
    /// A renewal: the new deadline, never moved backwards, and the lease's own end.
    Deadline {
        /// Deadline of the node lease, boot clock.
        until_boot_ms: u64,
        /// Lesser of expiry and cap, boot clock; `None` leaves what was known.
        run_until_boot_ms: Option<u64>,
    },
    /// Freeze now.
    Freeze,
    /// Run again, under this deadline.
    Thaw {
        /// Deadline of the renewal that permits it, boot clock.
        until_boot_ms: u64,
    },
    /// SIGTERM, then after the grace the whole group.
    Stop {
        /// Milliseconds of grace.
        grace_ms: u64,
    },
    /// The whole group, now.
    Kill,
}

/// Why an order was not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum OrderRefused {
    /// A thaw whose renewal is no longer in force.
    #[error("the renewal that should permit the thaw has run out")]
    Lapsed,
    /// A thaw of work that is being ended.
    #[error("the work is being ended")]
    Ending,
    /// Freeze under a policy that never freezes, before the program was started, or during a stop.
    #[error("the work cannot be frozen now")]
    NotRunning,
}

/// The state of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Course {
    policy: DeadlinePolicy,
    freeze_max_ms: u64,
    grace_ms: u64,
    deadline_ms: u64,
    run_until_ms: Option<u64>,
    phase: Phase,
    /// Milliseconds spent frozen in freezes that are over.
    frozen_ms: u64,
}

impl Course {
    /// The course of a run that has not been launched yet.
    pub fn new(spec: &Spec) -> Self {
        Self {
            policy: spec.policy,
            freeze_max_ms: spec.freeze_max_ms,
            grace_ms: spec.grace_ms,
            deadline_ms: spec.deadline_boot_ms,
            run_until_ms: spec.run_until_boot_ms,
            phase: Phase::Launching,
            frozen_ms: 0,
        }
    }

    /// Where the run stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The deadline that is in force.
    pub fn deadline_ms(&self) -> u64 {
        if planted::has(Plant::DeadlineIgnored) {
            return u64::MAX;
        }
        self.deadline_ms
    }

    /// The end of the lease's own time, when known.
    pub fn run_until_ms(&self) -> Option<u64> {
        self.run_until_ms
    }

    /// All time spent frozen, a freeze that still lasts included.
    pub fn frozen_ms(&self, now: u64) -> u64 {
        match self.phase {
            Phase::Frozen { since_boot_ms } => self.frozen_ms + now.saturating_sub(since_boot_ms),
            _ => self.frozen_ms,
        }
    }

    /// Whether the program may still be executed: a spec whose deadline has passed starts nothing.
    pub fn may_launch(&self, now: u64) -> bool {
        let lapsed = self.policy != DeadlinePolicy::Keep && now >= self.deadline_ms();
        let over = self.run_until_ms.is_some_and(|until| now >= until);
        self.phase == Phase::Launching && !lapsed && !over
    }

    /// The program executes.
    pub fn launched(&mut self) {
        if self.phase == Phase::Launching {
            self.phase = Phase::Running;
        }
    }

    /// The main process ended, could not be started, or its guard is gone: what is left of the group must go.
    pub fn main_ended(&mut self, cause: EndCause, now: u64) -> Option<Act> {
        match self.phase {
            Phase::Killing { .. } | Phase::Ended { .. } => None,
            // A stop that was obeyed within its grace is still a stop.
            Phase::Stopping { cause: stop, .. } => self.kill(stop, now),
            _ => self.kill(cause, now),
        }
    }

    /// The guard froze the group on its own because the supervisor was late.
    pub fn frozen_by_guard(&mut self, now: u64) {
        if self.phase == Phase::Running {
            self.phase = Phase::Frozen { since_boot_ms: now };
        }
    }

    /// The freeze that was acted on did not take hold.
    pub fn freeze_failed(&mut self, now: u64) -> Option<Act> {
        self.kill(EndCause::FreezeFailed, now)
    }

    /// The group is proven empty.
    pub fn emptied(&mut self) {
        if let Phase::Killing { cause } = self.phase {
            self.phase = Phase::Ended { cause };
        }
    }

    /// Follows an order of the daemon.
    pub fn order(&mut self, order: Order, now: u64) -> Result<Option<Act>, OrderRefused> {
        match order {
            Order::Deadline {
                until_boot_ms,
                run_until_boot_ms,
            } => {
                self.deadline_ms = self.deadline_ms.max(until_boot_ms);
                self.run_until_ms = run_until_boot_ms.or(self.run_until_ms);
                Ok(None)
            }
            Order::Freeze => match self.phase {
                Phase::Running => Ok(Some(self.freeze(now))),
                Phase::Frozen { .. } => Ok(None),
                _ => Err(OrderRefused::NotRunning),
            },
            Order::Thaw { until_boot_ms } => self.thaw(until_boot_ms, now),
            Order::Stop { grace_ms } => Ok(self.stop(EndCause::Stopped, grace_ms, now)),
            Order::Kill => Ok(self.kill(EndCause::Killed, now)),
        }
    }

    /// The machine goes down: leave with grace.
    pub fn shutdown(&mut self, now: u64) -> Option<Act> {
        self.stop(EndCause::Shutdown, self.grace_ms, now)
    }

    /// What the passing of time demands.
    pub fn tick(&mut self, now: u64) -> Option<Act> {
        match self.phase {
            Phase::Launching | Phase::Running if self.run_until_ms.is_some_and(|until| now >= until) => {
                self.stop(EndCause::RunUntil, self.grace_ms, now)
            }
            Phase::Launching | Phase::Running if now >= self.deadline_ms() => match self.policy {
                DeadlinePolicy::Freeze => Some(self.freeze(now)),
                DeadlinePolicy::Stop => self.kill(EndCause::Deadline, now),
                DeadlinePolicy::Keep => None,
            },
            Phase::Frozen { since_boot_ms } if now >= since_boot_ms.saturating_add(self.freeze_max_ms) => {
                self.kill(EndCause::FreezeMax, now)
            }
            Phase::Frozen { .. } if self.run_until_ms.is_some_and(|until| now >= until) => {
                self.kill(EndCause::RunUntil, now)
            }
            Phase::Stopping { cause, .. } if self.deadline_binds(now) => self.kill(cause, now),
            Phase::Stopping { kill_at_boot_ms, cause } if now >= kill_at_boot_ms => self.kill(cause, now),
            _ => None,
        }
    }

    /// When `tick` next has something to do.
    pub fn next_wake(&self) -> Option<u64> {
        let deadline = (self.policy != DeadlinePolicy::Keep).then_some(self.deadline_ms());
        let earliest = |times: [Option<u64>; 2]| times.into_iter().flatten().min();
        match self.phase {
            Phase::Launching | Phase::Running => earliest([deadline, self.run_until_ms]),
            Phase::Frozen { since_boot_ms } => earliest([
                Some(since_boot_ms.saturating_add(self.freeze_max_ms)),
                self.run_until_ms,
            ]),
            Phase::Stopping { kill_at_boot_ms, .. } => earliest([deadline, Some(kill_at_boot_ms)]),
            Phase::Killing { .. } | Phase::Ended { .. } => None,
        }
    }

    /// A stop in its grace is still execution: the deadline ends the grace.
    fn deadline_binds(&self, now: u64) -> bool {
        self.policy != DeadlinePolicy::Keep && now >= self.deadline_ms()
    }

    fn freeze(&mut self, now: u64) -> Act {
        self.phase = Phase::Frozen { since_boot_ms: now };
        Act::Freeze
    }

    fn thaw(&mut self, until_ms: u64, now: u64) -> Result<Option<Act>, OrderRefused> {
        match self.phase {
            Phase::Stopping { .. } | Phase::Killing { .. } | Phase::Ended { .. } => return Err(OrderRefused::Ending),
            _ if until_ms <= now => return Err(OrderRefused::Lapsed),
            _ => self.deadline_ms = self.deadline_ms.max(until_ms),
        }
        let Phase::Frozen { since_boot_ms } = self.phase else {
            return Ok(None);
        };
        self.frozen_ms += now.saturating_sub(since_boot_ms);
        self.phase = Phase::Running;
        Ok(Some(Act::Thaw))
    }

    fn stop(&mut self, cause: EndCause, grace_ms: u64, now: u64) -> Option<Act> {
        let kill_at_boot_ms = now.saturating_add(grace_ms);
        match self.phase {
            Phase::Running if grace_ms > 0 && !self.deadline_binds(now) => {
                self.phase = Phase::Stopping { kill_at_boot_ms, cause };
                Some(Act::Terminate)
            }
            // A second stop may shorten the grace, never lengthen it.
            Phase::Stopping {
                kill_at_boot_ms: before,
                cause,
            } => {
                self.phase = Phase::Stopping {
                    kill_at_boot_ms: before.min(kill_at_boot_ms),
                    cause,
                };
                None
            }
            // Frozen work cannot act on SIGTERM without running, which only a thaw may permit.
            _ => self.kill(cause, now),
        }
    }

    fn kill(&mut self, cause: EndCause, now: u64) -> Option<Act> {
        if matches!(self.phase, Phase::Killing { .. } | Phase::Ended { .. }) {
            return None;
        }
        self.frozen_ms = self.frozen_ms(now);
        self.phase = Phase::Killing { cause };
        Some(Act::Kill)
    }
}

#[cfg(test)]
#[path = "course_tests.rs"]
mod tests;
