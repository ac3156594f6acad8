//! The one writer of the Raft log: takes jobs in order, stages them as one group, syncs once, completes in order.
//!
//! It is driven by [`super::flush`]: by the log thread in production, by a task with a virtual clock in the simulator.
//! It blocks only on the disk and knows no time.
//!
//! The rules: a job is completed only after the sync that covers it, and never before an earlier job; the first failure
//! fails every job from then on.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use openraft::AsyncRuntime;
use openraft::async_runtime::OneshotSender;
use openraft::storage::IOFlushed;
use openraft::type_config::alias::OneshotSenderOf;

use super::entry;
use super::index::Index;
use super::{OpenError, Options, Shared, held};
use crate::disk::Disk;
use crate::journal::{self, Journal, Objection, Position, Record, RecordRef, Repair, Scan, WriteError, describe};
use crate::types::{Entry, LogId, Types, Vote};

/// Something to write, in the order that openraft asked for it.
pub struct Job<RT: AsyncRuntime> {
    pub(super) number: u64,
    pub(super) work: Work<RT>,
}

impl<RT: AsyncRuntime> Job<RT> {
    /// Returns about how many bytes the job adds to its group.
    pub(super) fn weight(&self) -> usize {
        match &self.work {
            Work::Append { entries, .. } => entries.iter().map(entry::weight).sum(),
            _ => 0,
        }
    }
}

pub(super) enum Work<RT: AsyncRuntime> {
    Append {
        entries: Vec<Entry>,
        done: IOFlushed<Types<RT>>,
    },
    Vote {
        vote: Vote,
        done: OneshotSenderOf<Types<RT>, io::Result<()>>,
    },
    Committed(LogId),
    Truncate(Option<LogId>),
    Purge(LogId),
    /// Nothing to write; completed once everything before it is durable.
    Settle {
        done: OneshotSenderOf<Types<RT>, io::Result<()>>,
    },
}

/// What waits for the sync of a group.
enum Waiting<RT: AsyncRuntime> {
    Append(IOFlushed<Types<RT>>),
    Vote(Vote, OneshotSenderOf<Types<RT>, io::Result<()>>),
    Settle(OneshotSenderOf<Types<RT>, io::Result<()>>),
}

/// Jobs that are written and wait for one sync.
pub struct Group<RT: AsyncRuntime> {
    waiting: Vec<Waiting<RT>>,
    last_job: u64,
    entries: u64,
    sync: bool,
}

/// Syncs and what they covered, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyncStats {
    /// Syncs.
    pub syncs: u64,
    /// Entries that they made durable.
    pub entries: u64,
}

/// The writer's state.
pub struct Writer {
    journal: Journal,
    shared: Arc<Shared>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    /// Known to be committed, and not written yet: it goes with the next group, because it is worth no sync.
    unwritten_committed: Option<LogId>,
    /// The highest entry in each segment, which decides when the segment may go.
    highest: BTreeMap<u32, u64>,
    last_job: u64,
    stats: SyncStats,
    /// The first failure; it fails everything after it.
    failed: Option<Arc<str>>,
}

/// What is read back when the log is opened.
struct Replay {
    index: Index,
    highest: BTreeMap<u32, u64>,
}

impl Replay {
    /// Takes in the next record; an objection says what is wrong with it.
    fn take(&mut self, position: Position, record: RecordRef<'_>) -> Result<(), Objection> {
        let index = &mut self.index;
        match record.kind {
            entry::VOTE => index.vote = Some(entry::to_vote(record)),
            entry::COMMITTED => index.committed = Some(entry::to_id(record)),
            entry::TRUNCATE => {
                index.truncate(entry::to_truncate(record));
                index.place_truncate(entry::to_truncate(record));
            }
            entry::PURGE => {
                index.purge(entry::to_id(record));
                index.place_purge(entry::to_id(record));
            }
            entry::BLANK | entry::PROPOSAL | entry::MEMBERSHIP => {
                let id = entry::to_id(record);
                if let Some(last) = index.last
                    && (id < last || (index.has_places() && id.index != last.index + 1))
                {
                    return Err(format!("entry {id} follows entry {last}").into());
                }
                index.last = Some(id);
                index.place(id.index, position);
                let highest = self.highest.entry(position.segment).or_default();
                *highest = (*highest).max(id.index);
            }
            kind => {
                return Err(Objection::Newer(format!("record kind {kind} of the raft log")));
            }
        }
        Ok(())
    }
}

impl Writer {
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
    ) -> Result<(Self, Arc<Shared>, Option<Repair>), OpenError> {
        let layout = journal::Options {
            purpose: "raft",
            segment_bytes: options.segment_bytes,
        };
        let mut replay = Replay {
            index: Index::new(options.tail_bytes_max),
            highest: BTreeMap::new(),
        };
        let (journal, recovered) = Journal::open(disk, dir, layout, Scan::All, |position, record| {
            replay.take(position, record)
        })?;
        let Replay { index, highest } = replay;
        if let Some((first, wanted)) = index.gap() {
            return Err(OpenError::Gap {
                dir: dir.to_owned(),
                first,
                wanted,
            });
        }
        let (vote, committed, purged) = (index.vote, index.committed, index.purged);
        let shared = Arc::new(Shared::new(index, journal.reader()));
        let writer = Self {
            journal,
            shared: shared.clone(),
            vote,
            committed,
            purged,
            unwritten_committed: None,
            highest,
            last_job: 0,
            stats: SyncStats::default(),
            failed: None,
        };
        writer.tell_size();
        Ok((writer, shared, recovered.repair))
    }

    /// Writes a group of jobs to the file; they are not durable yet.
    pub fn write<RT: AsyncRuntime>(&mut self, jobs: impl IntoIterator<Item = Job<RT>>) -> Group<RT> {
        let mut group = Group {
            waiting: vec![],
            last_job: self.last_job,
            entries: 0,
            sync: false,
        };
        for job in jobs {
            assert_eq!(
                job.number,
                self.last_job + 1,
                "a job of the raft log was lost or overtaken"
            );
            self.last_job = job.number;
            group.last_job = job.number;
            if let Err(error) = self.take(job.work, &mut group) {
                self.fail(&error);
            }
        }
        if group.sync && self.failed.is_none() {
            let written = self.stage_committed().and_then(|()| self.journal.write());
            written.unwrap_or_else(|error| self.fail(&error));
        }
        if self.failed.is_none() {
            held(&self.shared.index).note_written(group.last_job);
        }
        group
    }

    /// Makes a group durable and completes its jobs in order. Returns the work of preparing the next segment, if any.
    pub fn finish<RT: AsyncRuntime>(&mut self, group: Group<RT>) -> Option<journal::SpareJob> {
        if group.sync && self.failed.is_none() {
            match self.journal.sync() {
                Ok(()) => {
                    self.stats.syncs += 1;
                    self.stats.entries += group.entries;
                    *held(&self.shared.stats) = self.stats;
                }
                Err(error) => self.fail(&error),
            }
        }
        if self.failed.is_none() {
            held(&self.shared.index).durable = group.last_job;
        }
        for waiting in group.waiting {
            self.complete(waiting);
        }
        if self.failed.is_none() {
            self.remove_purged().unwrap_or_else(|error| self.fail(&error));
        }
        self.tell_size();
        self.journal.spare_job()
    }

    fn tell_size(&self) {
        self.shared
            .disk_bytes
            .store(self.journal.disk_bytes(), Ordering::Relaxed);
    }

    /// Writes down what was not worth a sync so far; called when no more jobs can come.
    pub fn close(&mut self) {
        if self.failed.is_none() {
            let closed = self.stage_committed().and_then(|()| self.journal.sync());
            closed.unwrap_or_else(|error| self.fail(&error));
        }
    }

    /// The first failure is final: what is on disk is not known from here on.
    fn fail(&mut self, error: &WriteError) {
        if self.failed.is_none() {
            let text: Arc<str> = describe(error).into();
            tracing::error!(error = &*text, "the raft log has stopped");
            held(&self.shared.index).failed = Some(text.clone());
            self.failed = Some(text);
        }
    }

    /// Stages one job. After a failure nothing is staged any more, but whoever waits is still noted.
    fn take<RT: AsyncRuntime>(&mut self, work: Work<RT>, group: &mut Group<RT>) -> Result<(), WriteError> {
        let running = self.failed.is_none();
        group.sync |= !matches!(work, Work::Committed(_));
        match work {
            Work::Append { entries, done } => {
                group.entries += entries.len() as u64;
                group.waiting.push(Waiting::Append(done));
                if running {
                    entries.iter().try_for_each(|entry| self.stage_entry(entry))?;
                }
            }
            Work::Vote { vote, done } => {
                group.waiting.push(Waiting::Vote(vote, done));
                if running {
                    self.stage(&entry::from_vote(&vote))?;
                    self.vote = Some(vote);
                }
            }
            Work::Truncate(after) if running => {
                self.stage(&entry::from_truncate(after))?;
                held(&self.shared.index).place_truncate(after);
            }
            Work::Purge(upto) if running => {
                self.stage(&entry::from_purge(upto))?;
                self.purged = self.purged.max(Some(upto));
                held(&self.shared.index).place_purge(upto);
            }
            Work::Committed(id) => self.unwritten_committed = Some(id),
            Work::Settle { done } => group.waiting.push(Waiting::Settle(done)),
            Work::Truncate(_) | Work::Purge(_) => {}
        }
        Ok(())
    }

    fn stage_entry(&mut self, entry: &Entry) -> Result<(), WriteError> {
        let position = self.stage(&entry::from_entry(entry))?;
        let index = entry.log_id.index;
        let highest = self.highest.entry(position.segment).or_default();
        *highest = (*highest).max(index);
        held(&self.shared.index).place(index, position);
        Ok(())
    }

    fn stage_committed(&mut self) -> Result<(), WriteError> {
        if let Some(id) = self.unwritten_committed.take() {
            self.stage(&entry::from_committed(id))?;
            self.committed = Some(id);
        }
        Ok(())
    }

    fn stage(&mut self, record: &Record) -> Result<Position, WriteError> {
        self.journal.check_size(record.payload.len())?;
        if !self.journal.fits(record.payload.len()) {
            self.journal.rotate()?;
            self.carry_over();
        }
        Ok(self.journal.stage(record))
    }

    /// Begins a segment with what the segments before it say, so that they can be removed.
    fn carry_over(&mut self) {
        let vote = self.vote.as_ref().map(entry::from_vote);
        let purged = self.purged.map(entry::from_purge);
        let committed = self.committed.map(entry::from_committed);
        for record in [vote, purged, committed].into_iter().flatten() {
            self.journal.stage(&record);
        }
    }

    fn complete<RT: AsyncRuntime>(&self, waiting: Waiting<RT>) {
        let answer = match &self.failed {
            None => Ok(()),
            Some(text) => Err(io::Error::other(text.to_string())),
        };
        match waiting {
            Waiting::Append(done) => done.io_completed(answer),
            Waiting::Vote(vote, done) => {
                if answer.is_ok() {
                    held(&self.shared.index).vote = Some(vote);
                }
                // Nobody waits any more when the core has shut down; the vote is saved all the same.
                let _ = done.send(answer);
            }
            Waiting::Settle(done) => {
                let _ = done.send(answer);
            }
        }
    }

    /// Removes the segments that hold nothing but purged entries.
    fn remove_purged(&mut self) -> Result<(), WriteError> {
        let Some(purged) = self.purged else { return Ok(()) };
        let needed = |segment: u32| {
            self.highest
                .get(&segment)
                .is_some_and(|highest| *highest > purged.index)
        };
        // The active segment stays; it is the last one listed.
        let Some(active) = self.journal.segments().next_back().map(|summary| summary.segment) else {
            return Ok(());
        };
        let keep_from = self
            .journal
            .segments()
            .map(|summary| summary.segment)
            .find(|segment| needed(*segment));
        let keep_from = keep_from.unwrap_or(active);
        self.journal.remove_before(keep_from)?;
        self.highest = self.highest.split_off(&keep_from);
        Ok(())
    }
}
