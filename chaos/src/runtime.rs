//! A deterministic runtime for openraft: one thread, a seeded scheduler, virtual time, a clock per host.
//!
//! Worlds run the production replica on it, unchanged: openraft takes its runtime as a type. tokio's own paused time
//! is no substitute: its watch channel wakes in an order drawn from the operating system, so one seed gives many runs.
//! The one rule: equal seeds give equal traces, in one process or in two.
//!
//! mpsc, oneshot and mutex are tokio's: they are first come, first served, and need no tokio runtime.

mod clock;
mod executor;
mod timer;
pub mod watch;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use openraft_rt::{AsyncRuntime, OptionalSend};

pub use self::clock::{Instant, TRUE_RATE_PPM};
pub use self::executor::{Finished, Host, Panic};
pub use self::timer::{Elapsed, Sleep, Timeout};
pub use self::watch::OrderedWatch;
use crate::random::Stream;
use crate::trace::{Event, Kind, Trace};

/// The runtime type that openraft and the product's runtime-generic code take.
#[derive(Debug, Clone)]
pub struct Simulated {
    seed: u64,
}

impl Simulated {
    /// A runtime whose simulations run under this seed.
    pub const fn seeded(seed: u64) -> Self {
        Self { seed }
    }

    /// Runs a future to its end, and returns what it left behind beside its output.
    ///
    /// # Panics
    /// When the future panics, when nothing can run any more, or when a simulation already runs in this thread.
    pub fn simulate<T>(&self, future: impl Future<Output = T>) -> (T, Finished) {
        executor::run(self.seed, Trace::default(), future)
    }

    /// As [`Self::simulate`], with every event kept: to find where two runs part.
    pub fn simulate_complete<T>(&self, future: impl Future<Output = T>) -> (T, Finished) {
        executor::run(self.seed, Trace::complete(), future)
    }
}

/// True time since the start of the simulated world's epoch, in nanoseconds; hosts see only their own clocks.
pub fn true_now_ns() -> u64 {
    executor::with(|sim| sim.now_ns())
}

/// The boot clock of the current host.
pub fn local_now() -> Instant {
    executor::with(|sim| sim.local_now(sim.host()))
}

/// The boot clock of any host.
pub fn local_now_of(host: Host) -> Instant {
    executor::with(|sim| sim.local_now(host))
}

/// The host whose task runs.
pub fn current_host() -> Host {
    executor::with(|sim| sim.host())
}

/// Waits on the current host's clock.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep::lasting(duration)
}

/// Waits until the current host's clock shows an instant.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep::until(deadline)
}

/// Gives a future a deadline on the current host's clock.
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    Timeout::new(Sleep::lasting(duration), future)
}

/// Starts a task on a host.
pub fn spawn_on<T: Send + 'static>(host: Host, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let body = async move {
        let outcome = AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| {
            executor::with(|sim| sim.note_panic(panic_text(panic.as_ref())));
            JoinError::Panicked
        });
        // Nobody has to wait for a task.
        let _ = sender.send(outcome);
    };
    executor::with(|sim| sim.spawn(host, Box::pin(body)));
    JoinHandle(receiver)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Drops every task of a host at once, as `kill -9` does; returns how many there were.
pub fn kill(host: Host) -> usize {
    executor::with(|sim| sim.kill(host))
}

/// Stops a host's tasks for a while, as SIGSTOP does; its clock goes on.
pub fn pause(host: Host, duration: Duration) {
    executor::with(|sim| sim.pause(host, duration));
}

/// Sets how fast a host's clock runs, in parts per million of true time.
pub fn set_rate(host: Host, rate_ppm: u64) {
    executor::with(|sim| sim.set_rate(host, rate_ppm));
}

/// The random stream of a name and numbers under the simulation's seed.
pub fn stream(name: &str, numbers: &[u64]) -> Stream {
    executor::with(|sim| sim.stream(name, numbers))
}

/// Notes an event of a host in the trace.
pub fn note(host: Host, kind: Kind, words: [u64; 3]) {
    executor::with(|sim| sim.note(host, kind, words));
}

/// The last events of the trace, oldest first.
pub fn recent_events() -> Vec<Event> {
    executor::with(|sim| sim.trace(|trace| trace.recent().copied().collect()))
}

/// The tasks that have panicked so far.
pub fn panics() -> Vec<Panic> {
    executor::with(|sim| sim.panics())
}

/// Why a task has no output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Its host was killed, or the simulation ended.
    #[error("task was cancelled")]
    Cancelled,
    /// It panicked.
    #[error("task panicked")]
    Panicked,
}

/// Waits for a task's output. Dropping it lets the task go on.
pub struct JoinHandle<T>(tokio::sync::oneshot::Receiver<Result<T, JoinError>>);

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JoinHandle")
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|received| received.unwrap_or(Err(JoinError::Cancelled)))
    }
}

impl openraft_rt::Instant for Instant {
    fn now() -> Self {
        local_now()
    }
}

impl AsyncRuntime for Simulated {
    type JoinError = JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = Stream;
    type Mpsc = openraft_rt_tokio::TokioMpsc;
    type Watch = OrderedWatch;
    type Oneshot = openraft_rt_tokio::TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = openraft_rt_tokio::TokioMutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        spawn_on(current_host(), future)
    }

    fn sleep(duration: Duration) -> Sleep {
        sleep(duration)
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Instant, future: F) -> Timeout<F> {
        Timeout::new(Sleep::until(deadline), future)
    }

    fn is_panic(error: &JoinError) -> bool {
        *error == JoinError::Panicked
    }

    /// A stream seeded by the next draw of the current host's own stream.
    fn thread_rng() -> Stream {
        executor::with(|sim| Stream::seeded(sim.draw(sim.host())))
    }

    fn new(_threads: usize) -> Self {
        Self::seeded(0)
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.simulate(future).0
    }

    /// Runs in line: a second thread would have an order of its own.
    fn spawn_blocking<F, T>(body: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        std::future::ready(Ok(body()))
    }
}

#[cfg(test)]
mod tests;
