//! Sleeping and timing out in virtual time.
//!
//! Both are futures over one timer of the executor. The one rule: a timer is due when the *host's own* clock says so,
//! which is asked again at each poll, so that a change of the clock's rate moves timers that already run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::clock::Instant;
use super::executor::{self, Host, TimerKey};

/// Ends when the clock of the host that made it reaches the deadline.
#[must_use = "a sleep does nothing until it is awaited"]
#[derive(Debug)]
pub struct Sleep {
    host: Host,
    deadline: Instant,
    timer: Option<TimerKey>,
}

impl Sleep {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self {
            host: executor::with(|sim| sim.host()),
            deadline,
            timer: None,
        }
    }

    pub(crate) fn lasting(duration: Duration) -> Self {
        let (host, now) = executor::with(|sim| (sim.host(), sim.local_now(sim.host())));
        Self {
            host,
            deadline: now.after(duration),
            timer: None,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        executor::with(|sim| {
            if let Some(timer) = self.timer.take() {
                sim.cancel_timer(timer);
            }
            if sim.local_now(self.host) >= self.deadline {
                return Poll::Ready(());
            }
            self.timer = Some(sim.set_timer(self.host, self.deadline, context.waker().clone()));
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            // A sleep may outlive its simulation, in a value that the caller kept.
            executor::try_with(|sim| sim.cancel_timer(timer));
        }
    }
}

/// A deadline passed before the future had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("deadline has elapsed")
    }
}

impl std::error::Error for Elapsed {}

/// A future with a deadline. The future is polled first, so that one that is ready at its deadline counts as done.
#[must_use = "a timeout does nothing until it is awaited"]
pub struct Timeout<F> {
    sleep: Sleep,
    future: Pin<Box<F>>,
}

impl<F> Timeout<F> {
    pub(crate) fn new(sleep: Sleep, future: F) -> Self {
        Self {
            sleep,
            future: Box::pin(future),
        }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(context).map(|()| Err(Elapsed))
    }
}
