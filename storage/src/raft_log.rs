//! openraft's log storage on the journal: entries, vote, committed, truncations and purges in one ordered file.
//!
//! Opened by the node's boot and by the simulator; used by openraft alone. Asking is separate from writing: the handle
//! updates the index in memory and queues a job, one writer takes the jobs in order, syncs once per group, and completes
//! them. So any number of appends share a sync, and entries can be read before they are durable.
//!
//! The rules: nothing is reported flushed before the sync that covers it; reports come in the order of the appends; a
//! vote goes through the same queue and file as entries, so a durable vote implies that every earlier append is durable.
//! The last one is asserted, because openraft counts unflushed entries as flushed when it becomes leader (#2118).

mod entry;
mod flush;
mod index;
mod writer;

use std::fmt::{self, Debug};
use std::future::Future;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, stream};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{AsyncRuntime, OptionalSend};

use crate::disk::Disk;
use crate::journal::{self, ReadError, Repair, describe};
use crate::types::{Entry, LogId, Types, Vote};

pub use flush::{LogThread, SyncObserver};
pub use writer::{Group, Job, SyncStats, Writer};

use flush::Queue;
use index::{Index, Run};
use writer::Work;

/// How a Raft log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// See [`journal::Options::segment_bytes`].
    pub segment_bytes: u32,
    /// Memory for the newest entries; older ones are read from disk.
    pub tail_bytes_max: usize,
    /// Most bytes of entries that one read for replication returns; bounds what a lagging follower costs.
    pub read_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            tail_bytes_max: 32 << 20,
            read_bytes_max: 1 << 20,
        }
    }
}

/// Why a Raft log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its journal could not.
    #[error("open the raft log")]
    Journal(#[from] journal::OpenError),
    /// Entries are missing at its beginning.
    #[error(
        "the raft log in {} begins with entry {first}, but {wanted} should be the first; this replica's copy cannot be trusted: move its data folder away and join the machine again as a new node", dir.display()
    )]
    Gap {
        /// The log's folder.
        dir: PathBuf,
        /// The first entry found.
        first: u64,
        /// The entry that should be the first.
        wanted: u64,
    },
}

struct Shared {
    index: Mutex<Index>,
    reader: journal::Reader,
    stats: Mutex<SyncStats>,
    disk_bytes: AtomicU64,
}

impl Shared {
    fn new(index: Index, reader: journal::Reader) -> Self {
        Self {
            index: Mutex::new(index),
            reader,
            stats: Mutex::default(),
            disk_bytes: AtomicU64::new(0),
        }
    }
}

/// A panic elsewhere must not hide the log from readers: the index is consistent between statements.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A Raft log that was read and waits to be started.
pub struct Opened {
    /// The torn end that was cut off, if there was one.
    pub repair: Option<Repair>,
    writer: Writer,
    shared: Arc<Shared>,
    options: Options,
}

impl Opened {
    /// Opens the log in `dir`, or makes it there.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<Self, OpenError> {
        let (writer, shared, repair) = Writer::open(disk, dir, &options)?;
        Ok(Self {
            repair,
            writer,
            shared,
            options,
        })
    }

    /// Serves the log from a thread of its own: production.
    pub fn start_thread<RT: AsyncRuntime>(
        self,
        observer: Option<Box<dyn SyncObserver>>,
    ) -> io::Result<(RaftLog<RT>, LogThread)> {
        let (queue, thread) = flush::start_thread(self.writer, observer)?;
        Ok((
            RaftLog {
                shared: self.shared,
                queue,
                options: self.options,
            },
            thread,
        ))
    }

    /// Serves the log from a task that the caller spawns on `RT`, with syncs that take `sync_time`: simulation.
    pub fn start_task<RT: AsyncRuntime>(
        self,
        sync_time: impl FnMut() -> Duration + Send + 'static,
    ) -> (RaftLog<RT>, impl Future<Output = ()> + Send + 'static) {
        let (queue, task) = flush::start_task(self.writer, sync_time);
        (
            RaftLog {
                shared: self.shared,
                queue,
                options: self.options,
            },
            task,
        )
    }
}

impl Debug for Opened {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Opened")
            .field("repair", &self.repair)
            .finish_non_exhaustive()
    }
}

/// The log's handle: openraft's storage and, cloned, its readers.
pub struct RaftLog<RT: AsyncRuntime> {
    shared: Arc<Shared>,
    queue: Arc<dyn Queue<RT>>,
    options: Options,
}

impl<RT: AsyncRuntime> Clone for RaftLog<RT> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            queue: self.queue.clone(),
            options: self.options,
        }
    }
}

impl<RT: AsyncRuntime> Debug for RaftLog<RT> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RaftLog")
            .field("last", &held(&self.shared.index).last)
            .finish_non_exhaustive()
    }
}

impl<RT: AsyncRuntime> RaftLog<RT> {
    /// Returns how many syncs there were and how many entries they covered.
    pub fn sync_stats(&self) -> SyncStats {
        *held(&self.shared.stats)
    }

    /// Returns how many bytes the log's segments take on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.shared.disk_bytes.load(Ordering::Relaxed)
    }

    /// Waits until everything asked for so far is durable.
    pub async fn settle(&self) -> io::Result<()> {
        self.queue_and_wait(|_| {}, |done| Work::Settle { done })
            .await
            .map(drop)
    }

    /// Changes the index and queues the job that brings the change to disk; returns the job's number.
    fn queue(&self, change: impl FnOnce(&mut Index, u64), work: Work<RT>) -> io::Result<u64> {
        let number = {
            let mut index = held(&self.shared.index);
            if let Some(failed) = &index.failed {
                return Err(stopped(failed));
            }
            let number = index.number_job();
            change(&mut index, number);
            number
        };
        if self.queue.push(Job { number, work }) {
            Ok(number)
        } else {
            Err(stopped("its writer is gone"))
        }
    }

    async fn queue_and_wait(
        &self,
        change: impl FnOnce(&mut Index),
        work: impl FnOnce(openraft::type_config::alias::OneshotSenderOf<Types<RT>, io::Result<()>>) -> Work<RT>,
    ) -> io::Result<u64> {
        let (done, answer) = Types::<RT>::oneshot();
        let number = self.queue(|index, _| change(index), work(done))?;
        answer.await.map_err(|_| stopped("its writer has died"))??;
        Ok(number)
    }

    /// Reads entries from memory and disk, at least one where there is one, until `bytes_max` is passed.
    fn read(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<Entry>> {
        loop {
            let run = held(&self.shared.index).run(range.clone(), bytes_max);
            match self.read_run(run) {
                // Purged since the index was looked at; now the index knows.
                Err(ReadRunError::Read(ReadError::Removed { .. })) => {}
                Err(error) => return Err(io::Error::other(describe(&error))),
                Ok(entries) => return Ok(entries),
            }
        }
    }

    fn read_run(&self, run: Run) -> Result<Vec<Entry>, ReadRunError> {
        let mut entries = Vec::with_capacity(run.places.len() + run.entries.len());
        for position in run.places {
            entries.push(entry::to_entry(self.shared.reader.read(position)?)?);
        }
        entries.extend(run.entries);
        Ok(entries)
    }
}

#[derive(Debug, thiserror::Error)]
enum ReadRunError {
    #[error("read an entry of the raft log")]
    Read(#[from] ReadError),
    #[error("decode an entry of the raft log")]
    Decode(#[from] entry::EntryError),
}

fn stopped(why: &str) -> io::Error {
    io::Error::other(format!("the raft log has stopped: {why}"))
}

fn half_open(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl<RT: AsyncRuntime> RaftLogReader<Types<RT>> for RaftLog<RT> {
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (log, range) = (self.clone(), half_open(&range));
        let pieces = stream::unfold(Some(range), move |left| {
            let log = log.clone();
            async move {
                let range = left?;
                let piece = log.read(range.clone(), log.options.read_bytes_max);
                let next = piece
                    .as_ref()
                    .ok()
                    .and_then(|entries| entries.last())
                    .map(|entry| entry.log_id.index + 1);
                let left = next.filter(|next| *next < range.end).map(|next| next..range.end);
                let items: Vec<io::Result<Entry>> = match piece {
                    Ok(entries) => entries.into_iter().map(Ok).collect(),
                    Err(error) => vec![Err(error)],
                };
                (!items.is_empty()).then(|| (stream::iter(items), left))
            }
        });
        Box::pin(futures_util::StreamExt::flatten(pieces))
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.read(half_open(&range), usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start..end, self.options.read_bytes_max)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(held(&self.shared.index).vote)
    }
}

impl<RT: AsyncRuntime> RaftLogStorage<Types<RT>> for RaftLog<RT> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types<RT>>> {
        let index = held(&self.shared.index);
        Ok(LogState {
            last_purged_log_id: index.purged,
            last_log_id: index.last,
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = *vote;
        let number = self.queue_and_wait(|_| {}, |done| Work::Vote { vote, done }).await?;
        let durable = held(&self.shared.index).durable;
        assert!(
            durable >= number,
            "vote {vote} was reported durable before the appends ahead of it (#2118)"
        );
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(id) = committed else { return Ok(()) };
        self.queue(|index, _| index.committed = Some(id), Work::Committed(id))
            .map(drop)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let index = held(&self.shared.index);
        // What was known to be committed may have been ahead of what this disk kept.
        Ok(index.committed.min(index.last))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types<RT>>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let held_entries = entries.clone();
        let work = Work::Append {
            entries,
            done: callback,
        };
        let change = |index: &mut Index, job| held_entries.into_iter().for_each(|entry| index.append(entry, job));
        self.queue(change, work).map(drop)
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        self.queue(|index, _| index.truncate(last_log_id), Work::Truncate(last_log_id))
            .map(drop)
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.queue(|index, _| index.purge(log_id), Work::Purge(log_id))
            .map(drop)
    }
}
