//! A watch channel that wakes its receivers in the order in which they began to wait.
//!
//! tokio's wakes them in an order drawn from the operating system's random source, which alone makes two runs of one
//! seed differ. openraft's core publishes its metrics and its flushed log positions through this channel.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker};

use openraft_rt::{OptionalSend, OptionalSync, RecvError, Watch, WatchReceiver, WatchSender};

/// The watch channel of the simulated runtime.
#[derive(Debug)]
pub struct OrderedWatch;

#[derive(Debug)]
struct Shared<T> {
    value: RwLock<T>,
    version: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Waker>>,
    tickets: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

impl<T> Shared<T> {
    fn read(&self) -> RwLockReadGuard<'_, T> {
        // A panicking task of one simulated host must not poison what its peers in this thread go on using.
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the value when `modify` says so, and tells everybody who waits.
    fn write(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let changed = match self.value.try_write() {
            Ok(mut value) => modify(&mut value),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => modify(&mut poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => {
                panic!("a watched value is sent while the same task still borrows it")
            }
        };
        if changed {
            self.version.fetch_add(1, SeqCst);
            self.wake_all();
        }
        changed
    }

    fn wake_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_values().for_each(Waker::wake);
    }

    fn poll_changed(&self, seen: &mut u64, ticket: u64, context: &Context<'_>) -> Poll<Result<(), RecvError>> {
        let version = self.version.load(SeqCst);
        if version != *seen {
            *seen = version;
            return Poll::Ready(Ok(()));
        }
        if self.senders.load(SeqCst) == 0 {
            return Poll::Ready(Err(RecvError(())));
        }
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(ticket, context.waker().clone());
        Poll::Pending
    }
}

/// Sends values.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

/// Sees the newest value, and waits for newer ones.
#[derive(Debug)]
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, SeqCst);
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, SeqCst) == 1 {
            self.0.wake_all();
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, SeqCst);
        Self {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, SeqCst);
    }
}

impl Watch for OrderedWatch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = RwLockReadGuard<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Sender<T>, Receiver<T>) {
        let shared = Arc::new(Shared {
            value: RwLock::new(init),
            version: AtomicU64::new(0),
            waiting: Mutex::new(BTreeMap::new()),
            tickets: AtomicU64::new(0),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
        });
        (Sender(shared.clone()), Receiver { shared, seen: 0 })
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<OrderedWatch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), openraft_rt::watch::SendError<T>> {
        if self.0.receivers.load(SeqCst) == 0 {
            return Err(openraft_rt::watch::SendError(value));
        }
        self.0.write(|current| {
            *current = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        self.0.write(modify)
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.fetch_add(1, SeqCst);
        Receiver {
            shared: self.0.clone(),
            seen: self.0.version.load(SeqCst),
        }
    }
}

/// A place in the queue of those who wait; given up when the waiting future is dropped.
struct Ticket<'a, T> {
    shared: &'a Shared<T>,
    number: u64,
}

impl<T> Drop for Ticket<'_, T> {
    fn drop(&mut self) {
        let waiting = self
            .shared
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.number);
        drop(waiting);
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<OrderedWatch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        let Self { shared, seen } = self;
        let ticket = Ticket {
            shared,
            number: shared.tickets.fetch_add(1, SeqCst),
        };
        poll_fn(|context| ticket.shared.poll_changed(seen, ticket.number, context)).await
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.shared.read()
    }

    fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        self.seen = self.shared.version.load(SeqCst);
        self.shared.read()
    }
}
