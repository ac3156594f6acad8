//! How jobs get to the log's writer: over a thread in production, inside a task in the simulator.
//!
//! Both take everything that has queued up as one group, so the sync that is running is the batching window: no timer,
//! and yet a busy log shares each sync among hundreds of entries.
//!
//! The rule: nothing but this file knows which of the two it is.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::async_runtime::watch::{WatchReceiver, WatchSender};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::{WatchReceiverOf, WatchSenderOf};

use super::held;
use super::writer::{Job, Writer};
use crate::types::Types;

/// Most jobs in one group, and most bytes of entries (the last job may pass it): bounds how long the first one waits.
const GROUP_JOBS_MAX: usize = 4096;
const GROUP_BYTES_MAX: usize = 4 << 20;

/// Takes the next group off the queue.
fn group<RT: AsyncRuntime>(mut queued: impl Iterator<Item = Job<RT>>) -> Vec<Job<RT>> {
    let mut jobs = Vec::new();
    let mut bytes = 0;
    while jobs.len() < GROUP_JOBS_MAX && bytes < GROUP_BYTES_MAX {
        let Some(job) = queued.next() else { break };
        bytes += job.weight();
        jobs.push(job);
    }
    jobs
}

/// Where the log's handle leaves its jobs.
pub(super) trait Queue<RT: AsyncRuntime>: Send + Sync {
    /// Queues a job behind all earlier ones. False when the writer is gone.
    fn push(&self, job: Job<RT>) -> bool;
}

/// Told about each sync, from the log thread; the node measures them with its clock.
pub trait SyncObserver: Send {
    /// A group is written, its sync begins.
    fn begins(&mut self);
    /// The sync has ended and its jobs are completed.
    fn ends(&mut self);
}

/// The log thread. It ends once every handle of the log is gone.
#[derive(Debug)]
pub struct LogThread(thread::JoinHandle<()>);

impl LogThread {
    /// Waits until the thread has written down everything and ended.
    pub fn join(self) {
        // A panic in the thread has been reported by the panic hook and has failed every waiting job.
        let _ = self.0.join();
    }
}

struct ThreadQueue<RT: AsyncRuntime>(mpsc::Sender<Job<RT>>);

impl<RT: AsyncRuntime> Queue<RT> for ThreadQueue<RT> {
    fn push(&self, job: Job<RT>) -> bool {
        self.0.send(job).is_ok()
    }
}

pub(super) fn start_thread<RT: AsyncRuntime>(
    writer: Writer,
    observer: Option<Box<dyn SyncObserver>>,
) -> std::io::Result<(Arc<dyn Queue<RT>>, LogThread)> {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::Builder::new()
        .name("holdfast-log".into())
        .spawn(move || drain(writer, &receiver, observer))?;
    Ok((Arc::new(ThreadQueue(sender)), LogThread(thread)))
}

fn drain<RT: AsyncRuntime>(
    mut writer: Writer,
    jobs: &mpsc::Receiver<Job<RT>>,
    mut observer: Option<Box<dyn SyncObserver>>,
) {
    let mut preparing = None;
    while let Ok(first) = jobs.recv() {
        let group = writer.write(group(std::iter::once(first).chain(jobs.try_iter())));
        if let Some(observer) = &mut observer {
            observer.begins();
        }
        let spare = writer.finish(group);
        if let Some(observer) = &mut observer {
            observer.ends();
        }
        if let Some(spare) = spare {
            // Zeroing a segment takes longer than many syncs. When no thread can be had, the writer makes it itself.
            preparing = thread::Builder::new()
                .name("holdfast-segment".into())
                .spawn(move || spare.run())
                .ok();
        }
    }
    // Whoever opens the folder next finds nobody at work in it.
    if let Some(preparing) = preparing {
        let _ = preparing.join();
    }
    writer.close();
}

struct TaskQueue<RT: AsyncRuntime> {
    jobs: Jobs<RT>,
    /// Not every runtime's sender can be shared between threads by itself.
    wake: Mutex<WatchSenderOf<Types<RT>, u64>>,
}

type Jobs<RT> = Arc<Mutex<VecDeque<Job<RT>>>>;

impl<RT: AsyncRuntime> Queue<RT> for TaskQueue<RT> {
    fn push(&self, job: Job<RT>) -> bool {
        let number = job.number;
        held(&self.jobs).push_back(job);
        held(&self.wake).send(number).is_ok()
    }
}

/// Makes a queue and the task that serves it; the caller spawns the task on its runtime.
///
/// `sync_time` says how long each sync takes; a crash in that time loses the group, as it would on a real disk.
pub(super) fn start_task<RT: AsyncRuntime>(
    writer: Writer,
    sync_time: impl FnMut() -> Duration + Send + 'static,
) -> (Arc<dyn Queue<RT>>, impl Future<Output = ()> + Send + 'static) {
    let (wake, woken) = Types::<RT>::watch_channel(0);
    let jobs = Jobs::<RT>::default();
    (
        Arc::new(TaskQueue {
            jobs: jobs.clone(),
            wake: Mutex::new(wake),
        }),
        serve(writer, jobs, woken, sync_time),
    )
}

async fn serve<RT: AsyncRuntime>(
    mut writer: Writer,
    jobs: Jobs<RT>,
    mut woken: WatchReceiverOf<Types<RT>, u64>,
    mut sync_time: impl FnMut() -> Duration + Send + 'static,
) {
    loop {
        let waiting = {
            let mut jobs = held(&jobs);
            group(std::iter::from_fn(|| jobs.pop_front()))
        };
        if waiting.is_empty() {
            if woken.changed().await.is_err() {
                break;
            }
            continue;
        }
        let group = writer.write(waiting);
        RT::sleep(sync_time()).await;
        if let Some(spare) = writer.finish(group) {
            spare.run();
        }
    }
    writer.close();
}
