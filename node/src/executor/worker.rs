//! The executor's own thread: waits, looks, turns.
//!
//! `boot` starts it with what it needs to look at (the node lease and the applied state) and where its commands go.
//! A thread and not a task, because it launches processes and waits for supervisors. The rule: the permit is read
//! before the duties, so that the duties are at least as new as the barrier that the permit has seen.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use holdfast_proto::command::Command;
use holdfast_proto::event::NodeWork;

use super::core::{Authority, Core, Inputs, PrepareOrder, Turn};
use super::duty::{Duties, RunKey};
use super::journal::JournalError;
use super::supervised::Supervised;
use crate::env::Clock;

/// Longest time between two turns: a permit runs out, a survey is due, a report must be made again.
const TURN_EVERY_MS: u16 = 200;
/// The same while nothing runs here and nothing shall: then only strays are looked for.
const IDLE_TURN_EVERY_MS: u16 = 1_000;

/// What the executor looks at and speaks to. Implemented where the parts are wired.
pub trait Surroundings: Send + 'static {
    /// What the node lease permits now. Called before `duties`.
    fn authority(&mut self, now_ms: u64) -> Authority;

    /// What the applied state asks of this node; `runs` are those that have a folder here.
    fn duties(&mut self, runs: &[RunKey]) -> Arc<Duties>;

    /// Proposes a command, without waiting for what becomes of it.
    fn propose(&mut self, command: Command);

    /// Prepares a run, in its own time: checks the node, brings the saved state, shows the fence to every gate. The
    /// answer goes to `done`, from any thread.
    fn prepare(&mut self, order: PrepareOrder, done: Prepared);
}

/// Takes the result of one preparation.
#[derive(Debug)]
pub struct Prepared {
    run: RunKey,
    results: Sender<(RunKey, Result<(), String>)>,
    waker: Waker,
}

impl Prepared {
    /// Says how it went. The text of a failure is for the tenant.
    pub fn done(self, result: Result<(), String>) {
        // Nobody listens any more when the executor has been stopped.
        let _ = self.results.send((self.run, result));
        self.waker.wake();
    }
}

/// Makes the executor look at once: after a change of the applied state, or a renewal.
#[derive(Debug, Clone)]
pub struct Waker(Arc<UnixStream>);

impl Waker {
    /// Wakes it. Cheap, never blocks.
    pub fn wake(&self) {
        // Full means that it is being woken already.
        let _ = (&*self.0).write(&[1]);
    }
}

/// The running executor.
#[derive(Debug)]
pub struct Worker {
    waker: Waker,
    stopping: Arc<AtomicBool>,
    work: Arc<Mutex<Vec<NodeWork>>>,
    thread: Option<thread::JoinHandle<Result<(), JournalError>>>,
}

impl Worker {
    /// Starts the thread.
    pub fn start(
        core: Core<Supervised>,
        clock: Arc<dyn Clock>,
        surroundings: impl Surroundings,
    ) -> std::io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let waker = Waker(Arc::new(wake));
        let stopping = Arc::new(AtomicBool::new(false));
        let work = Arc::new(Mutex::new(core.work()));
        let (results, prepared) = channel();
        let mut body = Body {
            core,
            clock,
            surroundings,
            woken,
            waker: waker.clone(),
            stopping: Arc::clone(&stopping),
            work: Arc::clone(&work),
            results,
            prepared,
        };
        let thread = thread::Builder::new()
            .name("executor".into())
            .spawn(move || body.run())?;
        Ok(Self {
            waker,
            stopping,
            work,
            thread: Some(thread),
        })
    }

    /// Wakes the executor.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// What runs here and how long it was frozen: shown when the node returns.
    pub fn work(&self) -> Vec<NodeWork> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the thread has ended by itself: a fault of the disk, with which the daemon must end too.
    pub fn has_failed(&self) -> bool {
        self.thread.as_ref().is_some_and(thread::JoinHandle::is_finished) && !self.stopping.load(Ordering::Relaxed)
    }

    /// Stops the thread; the work goes on under its supervisors until its deadline.
    pub fn stop(mut self) -> Result<(), JournalError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), JournalError> {
        self.stopping.store(true, Ordering::Relaxed);
        self.waker.wake();
        match self.thread.take().map(thread::JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !thread::panicking()
            && let Err(error) = self.end()
        {
            tracing::error!(%error, "the executor had stopped");
        }
    }
}

struct Body<S> {
    core: Core<Supervised>,
    clock: Arc<dyn Clock>,
    surroundings: S,
    woken: UnixStream,
    waker: Waker,
    stopping: Arc<AtomicBool>,
    work: Arc<Mutex<Vec<NodeWork>>>,
    results: Sender<(RunKey, Result<(), String>)>,
    prepared: Receiver<(RunKey, Result<(), String>)>,
}

impl<S: Surroundings> Body<S> {
    fn run(&mut self) -> Result<(), JournalError> {
        while !self.stopping.load(Ordering::Relaxed) {
            let wait_ms = match self.turn() {
                Ok(true) => TURN_EVERY_MS,
                Ok(false) => IDLE_TURN_EVERY_MS,
                Err(error) => {
                    tracing::error!(%error, "the executor stops: its journal cannot be written");
                    return Err(error);
                }
            };
            self.core.processes().wait(self.woken.as_fd(), wait_ms);
            while matches!(self.woken.read(&mut [0; 64]), Ok(1..)) {}
        }
        Ok(())
    }

    /// One turn; tells whether there is anything here to look after.
    fn turn(&mut self) -> Result<bool, JournalError> {
        let now_ms = self.clock.boot_ms();
        let authority = self.surroundings.authority(now_ms);
        let runs: Vec<RunKey> = self.core.actual().keys().copied().collect();
        let duties = self.surroundings.duties(&runs);
        let prepared = self.prepared.try_iter().collect();
        let inputs = Inputs {
            now_ms,
            authority: &authority,
            duties: &duties,
            prepared,
        };
        let Turn {
            commands,
            prepare,
            notes,
        } = self.core.turn(inputs)?;
        for note in notes {
            tracing::warn!("{note}");
        }
        for command in commands {
            self.surroundings.propose(command);
        }
        for order in prepare {
            let done = Prepared {
                run: order.run,
                results: self.results.clone(),
                waker: self.waker.clone(),
            };
            self.surroundings.prepare(order, done);
        }
        *self.work.lock().unwrap_or_else(PoisonError::into_inner) = self.core.work();
        Ok(!duties.members.is_empty() || !self.core.actual().is_empty())
    }
}
