//! The executor: one thread, virtual time, and a scheduler that draws the next task from the seed.
//!
//! Tasks belong to hosts; a host has a boot clock, can be paused, and can be killed, which drops its tasks at once and
//! in order. Time moves only when nothing can run. The one rule: no decision depends on anything but the seed. Tasks
//! are woken only from this thread (a wake from another stops the run), and every collection that is walked is ordered.

mod hosts;
mod task;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use self::hosts::HostState;
pub use self::task::Panic;
use self::task::{Body, Task};
use super::clock::Instant;
use crate::random::Stream;
use crate::trace::{Event, Kind, Trace};

/// True time at the start of a simulation: above zero, so that "an hour before" exists.
const START_NS: u64 = 3_600_000_000_000;

/// Polls at one instant of virtual time after which the run is held to be a live-lock.
const POLLS_PER_INSTANT_MAX: u64 = 2_000_000;

/// A simulated machine. Host 0 is the simulation itself: its clock runs true, and no fault befalls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(pub u64);

impl Host {
    /// The simulation itself: fault injector, checkers, and whatever must not be killed.
    pub const WORLD: Self = Self(0);
}

/// Names one running timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    at_ns: u64,
    serial: u64,
}

enum Due {
    Wake(Host, Waker),
    Resume(Host),
}

/// One running simulation.
pub(crate) struct Simulation {
    serial: u64,
    root: Stream,
    now_ns: Cell<u64>,
    current: Cell<Host>,
    dropping: Cell<bool>,
    serials: Cell<u64>,
    polls: Cell<u64>,
    schedule: RefCell<Stream>,
    ready: RefCell<Vec<Arc<Task>>>,
    timers: RefCell<BTreeMap<TimerKey, Due>>,
    hosts: RefCell<BTreeMap<Host, HostState>>,
    trace: RefCell<Trace>,
    panics: RefCell<Vec<Panic>>,
    foreign_wake: Arc<AtomicBool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Simulation>>> = const { RefCell::new(None) };
    static STARTED: Cell<u64> = const { Cell::new(0) };
}

/// Gives the running simulation to `body`, or nothing when none runs in this thread.
pub(crate) fn try_with<T>(body: impl FnOnce(&Simulation) -> T) -> Option<T> {
    let current = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten();
    current.map(|sim| body(&sim))
}

/// Gives the running simulation to `body`.
///
/// # Panics
/// When no simulation runs in this thread: the caller is code that belongs into one.
pub(crate) fn with<T>(body: impl FnOnce(&Simulation) -> T) -> T {
    try_with(body).expect("simulated time, tasks and streams exist only inside a running simulation")
}

/// What a simulation leaves behind.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Everything that happened.
    pub trace: Trace,
    /// Tasks that panicked, in order.
    pub panics: Vec<Panic>,
    /// Virtual time that passed.
    pub elapsed: Duration,
    /// How often a task was polled.
    pub polls: u64,
}

impl Simulation {
    fn new(seed: u64, trace: Trace) -> Self {
        let serial = STARTED.with(|started| started.replace(started.get() + 1));
        let root = Stream::seeded(seed);
        let schedule = RefCell::new(root.child("schedule"));
        Self {
            serial,
            root,
            now_ns: Cell::new(START_NS),
            current: Cell::new(Host::WORLD),
            dropping: Cell::new(false),
            serials: Cell::new(1),
            polls: Cell::new(0),
            schedule,
            ready: RefCell::default(),
            timers: RefCell::default(),
            hosts: RefCell::default(),
            trace: RefCell::new(trace),
            panics: RefCell::default(),
            foreign_wake: Arc::default(),
        }
    }

    pub(crate) fn host(&self) -> Host {
        self.current.get()
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    pub(crate) fn stream(&self, name: &str, numbers: &[u64]) -> Stream {
        self.root.numbered(name, numbers)
    }

    fn next_serial(&self) -> u64 {
        self.serials.replace(self.serials.get() + 1)
    }

    pub(crate) fn note(&self, host: Host, kind: Kind, words: [u64; 3]) {
        self.trace.borrow_mut().note(Event {
            at_ns: self.now_ns() - START_NS,
            host: host.0,
            kind,
            words,
        });
    }

    pub(crate) fn trace<T>(&self, read: impl FnOnce(&Trace) -> T) -> T {
        read(&self.trace.borrow())
    }

    pub(crate) fn panics(&self) -> Vec<Panic> {
        self.panics.borrow().clone()
    }

    pub(crate) fn note_panic(&self, text: String) {
        self.panics.borrow_mut().push(Panic {
            host: self.host(),
            text,
        });
    }

    pub(crate) fn set_timer(&self, host: Host, deadline: Instant, waker: Waker) -> TimerKey {
        let at_ns = self
            .with_host(host, |state| state.clock.true_at(deadline.0))
            .max(self.now_ns());
        let key = TimerKey {
            at_ns,
            serial: self.next_serial(),
        };
        self.timers.borrow_mut().insert(key, Due::Wake(host, waker));
        key
    }

    pub(crate) fn cancel_timer(&self, key: TimerKey) {
        let cancelled = self.timers.borrow_mut().remove(&key);
        drop(cancelled);
    }

    /// Starts a task on a host. A task that a dying task starts on its way out never runs.
    pub(crate) fn spawn(&self, host: Host, body: Body) {
        if self.dropping.get() {
            return;
        }
        let task = self.new_task(host, Some(body));
        self.with_host(host, |state| state.tasks.insert(task.id, task.clone()));
        task.wake();
    }

    fn new_task(&self, host: Host, body: Option<Body>) -> Arc<Task> {
        Arc::new(Task {
            simulation: self.serial,
            thread: std::thread::current().id(),
            id: self.next_serial(),
            host,
            queued: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            foreign_wake: self.foreign_wake.clone(),
            body: Mutex::new(body),
        })
    }

    fn fire(&self, due: Due) {
        match due {
            Due::Wake(_, waker) => waker.wake(),
            Due::Resume(host) => {
                let now_ns = self.now_ns();
                let resumed = self.with_host(host, |state| {
                    if state.paused_until_ns > now_ns {
                        Vec::new()
                    } else {
                        std::mem::take(&mut state.parked)
                    }
                });
                self.ready.borrow_mut().extend(resumed);
            }
        }
    }

    /// Takes a ready task, drawn by the scheduler's stream.
    fn next_ready(&self) -> Option<Arc<Task>> {
        let mut ready = self.ready.borrow_mut();
        match ready.len() {
            0 => None,
            1 => ready.pop(),
            count => Some(ready.swap_remove(self.schedule.borrow_mut().below(count as u64) as usize)),
        }
    }

    /// Moves time to the next timer, and fires all that are due then: the scheduler draws their order.
    fn advance(&self) -> bool {
        let Some(at_ns) = self.timers.borrow().keys().next().map(|key| key.at_ns) else {
            return false;
        };
        self.now_ns.set(at_ns);
        loop {
            let due = {
                let mut timers = self.timers.borrow_mut();
                match timers.first_entry() {
                    Some(entry) if entry.key().at_ns == at_ns => entry.remove(),
                    _ => return true,
                }
            };
            if let Due::Wake(host, _) = &due {
                self.note(*host, Kind::Timer, [self.local_now(*host).0, 0, 0]);
            }
            self.fire(due);
        }
    }

    fn poll(&self, task: &Arc<Task>) {
        if self.park_if_paused(task) {
            return;
        }
        task.queued.store(false, SeqCst);
        let Some(mut body) = task.take_body() else { return };
        self.current.set(task.host);
        self.polls.set(self.polls.get() + 1);
        self.note(task.host, Kind::Poll, [task.id, 0, 0]);
        let waker = Waker::from(task.clone());
        let done = body.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        // A task may have killed its own host while it ran.
        if done || task.dead.load(SeqCst) {
            self.with_host(task.host, |state| state.tasks.remove(&task.id));
            task.dead.store(true, SeqCst);
            drop(body);
        } else {
            *task.body.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
        self.current.set(Host::WORLD);
    }

    /// Runs until the root future has ended.
    fn drive<T>(&self, root: impl Future<Output = T>) -> T {
        let mut root = pin!(root);
        let task = self.new_task(Host::WORLD, None);
        let waker = Waker::from(task.clone());
        task.wake_by_ref();
        let (mut instant_ns, mut polls_before) = (0, 0);
        loop {
            assert!(
                !self.foreign_wake.load(SeqCst),
                "a simulated task was woken from another thread"
            );
            if let Some(next) = self.next_ready() {
                if !Arc::ptr_eq(&next, &task) {
                    self.poll(&next);
                } else {
                    task.queued.store(false, SeqCst);
                    self.note(Host::WORLD, Kind::Poll, [task.id, 0, 0]);
                    if let Poll::Ready(output) = root.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return output;
                    }
                }
            } else {
                assert!(
                    self.advance(),
                    "dead-lock: nothing can run, and no timer will ever fire"
                );
            }
            if self.now_ns() != instant_ns {
                (instant_ns, polls_before) = (self.now_ns(), self.polls.get());
            }
            let polls = self.polls.get() - polls_before;
            assert!(polls < POLLS_PER_INSTANT_MAX, "live-lock: {polls} polls at one instant");
        }
    }
}

/// Ends a simulation also when its root future panics: its tasks are dropped while its time still exists.
struct Running(Rc<Simulation>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.tear_down();
        CURRENT.with(|current| current.borrow_mut().take());
        // Whatever a queue still holds is dropped outside the simulation.
        self.0.ready.borrow_mut().clear();
        self.0.timers.borrow_mut().clear();
    }
}

/// Runs a future to its end under a seed.
///
/// # Panics
/// When a simulation already runs in this thread, when nothing can run any more, and when the future panics.
pub(crate) fn run<T>(seed: u64, trace: Trace, root: impl Future<Output = T>) -> (T, Finished) {
    let sim = Rc::new(Simulation::new(seed, trace));
    CURRENT.with(|current| {
        let mut current = current.borrow_mut();
        assert!(current.is_none(), "a simulation already runs in this thread");
        *current = Some(sim.clone());
    });
    let running = Running(sim.clone());
    let output = sim.drive(root);
    let elapsed = Duration::from_nanos(sim.now_ns() - START_NS);
    let finished = Finished {
        trace: sim.trace.take(),
        panics: sim.panics.take(),
        elapsed,
        polls: sim.polls.get(),
    };
    drop(running);
    (output, finished)
}
