//! A task: a future that belongs to a host, and its waker.
//!
//! The one rule: a wake only queues. It never polls, drops or decides anything, and one from another thread is held to
//! be a bug of what runs in the simulation, because its place in the order comes from no seed.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::thread::ThreadId;

use super::{Host, try_with};

/// A task's panic, caught so that it ends only the task. A world treats it as a violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panic {
    /// The host whose task it was.
    pub host: Host,
    /// The text of the panic.
    pub text: String,
}

pub(crate) type Body = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct Task {
    pub(super) simulation: u64,
    pub(super) thread: ThreadId,
    pub(super) id: u64,
    pub(super) host: Host,
    pub(super) queued: AtomicBool,
    pub(super) dead: AtomicBool,
    pub(super) foreign_wake: Arc<AtomicBool>,
    /// None for the root task, whose future lives on the stack of `run`.
    pub(super) body: Mutex<Option<Body>>,
}

impl Task {
    pub(super) fn take_body(&self) -> Option<Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        Self::wake_by_ref(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if std::thread::current().id() != self.thread {
            self.foreign_wake.store(true, SeqCst);
            return;
        }
        try_with(|sim| {
            // A waker may outlive its simulation; it then wakes nobody.
            let alive = sim.serial == self.simulation && !self.dead.load(SeqCst);
            if alive && !self.queued.swap(true, SeqCst) {
                sim.ready.borrow_mut().push(self.clone());
            }
        });
    }
}
