//! The event log: what the machine decided, in order, kept by its own retention.
//!
//! The adapter appends at apply; subscribers, the API and the projections read. It lies off the acknowledgement path:
//! an event is derived from a committed entry, so losing unsynced ones costs nothing while the entry can still be
//! applied again. That is why the adapter syncs it before each snapshot, and only snapshots let entries be purged.
//!
//! The rules: positions only rise, and appending a position again changes nothing; a reader gets every event after its
//! cursor, or is told that they are gone and where to go on.

mod read;
mod record;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_proto::event::EventRecord;
use holdfast_proto::id::Cursor;
use holdfast_proto::time::Timestamp;

pub use self::read::RawEvent;
use crate::disk::Disk;
use crate::journal::{
    self, Journal, Objection, Position, ReadError, Record, RecordRef, Repair, Scan, SpareJob, WriteError,
};

/// A place to begin a scan is kept for about each this many bytes of a segment.
const LANDMARK_BYTES: u32 = 64 << 10;

/// How an event log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// See [`journal::Options::segment_bytes`].
    pub segment_bytes: u32,
    /// How many of the newest events are kept in memory for subscribers.
    pub recent_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            recent_max: 16 << 10,
        }
    }
}

/// What of the past is kept. Whole segments go at a time, so a little more stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Most bytes on disk.
    pub bytes_max: u64,
    /// Events stamped before this may go.
    pub since: Timestamp,
}

/// Why events could not be read.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// Events after the cursor are gone from this replica.
    #[error("events up to {gone} are no longer kept here; go on after {gone}")]
    Compacted {
        /// The last position that is gone: reading after it works.
        gone: Cursor,
    },
    /// This replica was behind, and a snapshot took it over the events after the cursor; other nodes may have them.
    #[error("a snapshot stepped over the events up to {gone} here; another node may have them, or go on after {gone}")]
    Reset {
        /// The last position that was stepped over: reading after it works.
        gone: Cursor,
    },
    /// The journal could not be read.
    #[error("read the event log")]
    Read(#[source] ReadError),
    /// A record is not what it should be.
    #[error("decode the event log at entry {index}: {reason}")]
    Decode {
        /// The entry.
        index: u64,
        /// What is wrong.
        reason: String,
    },
}

/// The event log; clones share it.
#[derive(Debug, Clone)]
pub struct EventLog {
    core: Arc<Mutex<Core>>,
    reader: journal::Reader,
}

#[derive(Debug)]
struct Core {
    journal: Journal,
    options: Options,
    /// The newest events; everything after `recent_after` is here.
    recent: VecDeque<Arc<EventRecord>>,
    recent_after: Cursor,
    /// Where the last snapshot that stepped over events since the start ended.
    reset_to: Cursor,
    last: Cursor,
    last_stamp: u64,
    /// The last position before each segment.
    bases: BTreeMap<u32, Cursor>,
    /// Places in the active segment and the ones closed since the start, and where readers have been.
    landmarks: BTreeMap<u32, Vec<(Cursor, u32)>>,
    /// Where readers stopped last.
    stops: VecDeque<read::Stop>,
}

fn held(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What opening found, beside the log.
#[derive(Debug)]
pub struct Found {
    /// The torn end that was cut off, if there was one.
    pub repair: Option<Repair>,
    /// The last position that survived.
    pub last: Cursor,
}

impl EventLog {
    /// Opens the log in `dir`, or makes it there.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<(Self, Found), OpenError> {
        let layout = journal::Options {
            purpose: "events",
            segment_bytes: options.segment_bytes,
        };
        let mut replay = Replay::default();
        let (journal, recovered) = Journal::open(disk, dir, layout, Scan::Tail, |position, record| {
            replay.take(position, record)
        })?;
        let mut core = Core {
            journal,
            options,
            recent: VecDeque::new(),
            recent_after: replay.last,
            reset_to: Cursor::default(),
            last: replay.last,
            last_stamp: replay.last_stamp,
            bases: replay.bases,
            landmarks: replay.landmarks,
            stops: VecDeque::new(),
        };
        core.settle_beginning(dir)?;
        core.recent_after = core.last;
        let found = Found {
            repair: recovered.repair,
            last: core.last,
        };
        let reader = core.journal.reader();
        Ok((
            Self {
                core: Arc::new(Mutex::new(core)),
                reader,
            },
            found,
        ))
    }

    /// Appends the events of one entry; an entry that is here already is passed over. They are readable at once.
    pub fn append(&self, events: Vec<EventRecord>) -> Result<(), WriteError> {
        let Some(first) = events.first() else { return Ok(()) };
        let mut core = held(&self.core);
        if first.cursor <= core.last {
            return Ok(());
        }
        let record = record::from_events(&events);
        core.stage(&record)?;
        core.recent.extend(events.into_iter().map(Arc::new));
        Ok(())
    }

    /// Hands what was appended to the file, and lets go of old events in memory.
    pub fn write(&self) -> Result<(), WriteError> {
        let mut core = held(&self.core);
        core.journal.write()?;
        core.trim_recent();
        Ok(())
    }

    /// Makes everything appended so far durable. Appending goes on meanwhile.
    pub fn sync(&self) -> Result<(), WriteError> {
        let job = held(&self.core).journal.sync_job()?;
        let Some(job) = job else { return Ok(()) };
        let synced = job.run();
        held(&self.core).journal.note_synced(synced)
    }

    /// Returns the work of preparing the next segment, once for each.
    pub fn spare_job(&self) -> Option<SpareJob> {
        held(&self.core).journal.spare_job()
    }

    /// Begins anew after `last`: what is here ends earlier, because a snapshot has stepped over the events between.
    pub fn reset(&self, last: Cursor, stamp: Timestamp) -> Result<(), WriteError> {
        let mut core = held(&self.core);
        assert!(
            core.last < last,
            "the event log reaches to {}, so nothing is missing before {last}",
            core.last
        );
        core.last = last;
        core.last_stamp = stamp.0;
        core.journal.rotate()?;
        core.stage_mark();
        core.journal.sync()?;
        core.recent.clear();
        core.recent_after = last;
        core.reset_to = last;
        let active = core.active();
        core.remove_before(active)
    }

    /// Removes the oldest segments that retention lets go.
    pub fn retain(&self, retention: Retention) -> Result<(), WriteError> {
        let mut core = held(&self.core);
        let active = core.active();
        let mut bytes = core.journal.disk_bytes();
        let mut keep_from = active;
        for summary in core.journal.segments() {
            let expired = summary.last_term < retention.since.0;
            if summary.segment == active || !(expired || bytes > retention.bytes_max) {
                keep_from = summary.segment;
                break;
            }
            bytes = bytes.saturating_sub(u64::from(core.options.segment_bytes));
        }
        core.remove_before(keep_from)
    }

    /// Returns how many bytes the log's segments take on disk.
    pub fn disk_bytes(&self) -> u64 {
        held(&self.core).journal.disk_bytes()
    }

    /// Returns the position of the last event.
    pub fn last(&self) -> Cursor {
        held(&self.core).last
    }

    /// Returns the last position that is gone: everything after it can be read.
    pub fn floor(&self) -> Cursor {
        held(&self.core).floor()
    }

    /// Returns the next `limit` events after a cursor if all that follow it are in memory.
    pub fn recent(&self, after: Cursor, limit: usize) -> Option<Vec<Arc<EventRecord>>> {
        let core = held(&self.core);
        (after >= core.recent_after).then(|| core.recent_after(after, limit).cloned().collect())
    }
}

/// Why an event log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its journal could not.
    #[error("open the event log")]
    Journal(#[from] journal::OpenError),
    /// Its first record could not be written.
    #[error("begin the event log in {}", dir.display())]
    Begin {
        /// The log's folder.
        dir: PathBuf,
        /// What the journal said.
        #[source]
        source: WriteError,
    },
    /// The segment before the last could not be read.
    #[error("read the end of the event log in {}", dir.display())]
    End {
        /// The log's folder.
        dir: PathBuf,
        /// What the journal said.
        #[source]
        source: ReadError,
    },
}

/// What is read back when the log is opened.
#[derive(Debug, Default)]
struct Replay {
    last: Cursor,
    last_stamp: u64,
    bases: BTreeMap<u32, Cursor>,
    landmarks: BTreeMap<u32, Vec<(Cursor, u32)>>,
}

impl Replay {
    fn take(&mut self, position: Position, record: RecordRef<'_>) -> Result<(), Objection> {
        let first = !self.bases.contains_key(&position.segment);
        let cursor = record::last_cursor(record);
        match record.kind {
            record::MARK if first => {
                self.bases.insert(position.segment, cursor);
            }
            record::EVENTS if !first => {
                if cursor <= self.last {
                    return Err(format!("the events of entry {} follow {}", record.index, self.last).into());
                }
                note_landmark(&mut self.landmarks, position, self.last);
            }
            kind @ (record::MARK | record::EVENTS) => {
                return Err(format!("record kind {kind} is out of place").into());
            }
            kind => return Err(Objection::Newer(format!("record kind {kind} of the event log"))),
        }
        self.last = cursor;
        self.last_stamp = record.term;
        Ok(())
    }
}

/// Keeps a place to begin at: `before` is the last position before it.
fn note_landmark(landmarks: &mut BTreeMap<u32, Vec<(Cursor, u32)>>, position: Position, before: Cursor) {
    let places = landmarks.entry(position.segment).or_default();
    if places
        .last()
        .is_none_or(|(_, offset)| position.offset - offset >= LANDMARK_BYTES)
    {
        places.push((before, position.offset));
    }
}

impl Core {
    /// Gives a new active segment its mark. After a crash between closing one and marking the next, the end of the
    /// closed one says where the log stands.
    fn settle_beginning(&mut self, dir: &Path) -> Result<(), OpenError> {
        let active = self.active();
        if self.bases.contains_key(&active) {
            return Ok(());
        }
        let before = self.journal.segments().rev().nth(1);
        if let Some(summary) = before {
            let reader = self.journal.reader();
            let note = |_: Position, record: RecordRef<'_>| {
                self.last = record::last_cursor(record);
                self.last_stamp = record.term;
                true
            };
            let end = reader.scan(summary.segment, 0, summary.end, note);
            end.map_err(|source| OpenError::End {
                dir: dir.to_owned(),
                source,
            })?;
        }
        self.stage_mark();
        self.journal.sync().map_err(|source| OpenError::Begin {
            dir: dir.to_owned(),
            source,
        })
    }

    fn active(&self) -> u32 {
        let active = self.journal.segments().next_back();
        active.expect("a journal has an active segment").segment
    }

    fn floor(&self) -> Cursor {
        self.bases.first_key_value().map(|(_, base)| *base).unwrap_or_default()
    }

    fn check_kept(&self, after: Cursor) -> Result<(), EventsError> {
        let gone = self.floor();
        match after < gone {
            true if gone == self.reset_to => Err(EventsError::Reset { gone }),
            true => Err(EventsError::Compacted { gone }),
            false => Ok(()),
        }
    }

    fn recent_after(&self, after: Cursor, limit: usize) -> impl Iterator<Item = &Arc<EventRecord>> {
        let start = self.recent.partition_point(|event| event.cursor <= after);
        self.recent.range(start..).take(limit)
    }

    fn stage(&mut self, record: &Record) -> Result<(), WriteError> {
        self.journal.check_size(record.payload.len())?;
        if !self.journal.fits(record.payload.len()) {
            self.journal.rotate()?;
            self.stage_mark();
        }
        let position = self.journal.stage(record);
        note_landmark(&mut self.landmarks, position, self.last);
        self.last = Cursor {
            index: record.index,
            sub: (record.node - 1) as u32,
        };
        self.last_stamp = record.term;
        Ok(())
    }

    fn stage_mark(&mut self) {
        let position = self.journal.stage(&record::from_mark(self.last, self.last_stamp));
        self.bases.insert(position.segment, self.last);
    }

    fn remove_before(&mut self, segment: u32) -> Result<(), WriteError> {
        self.journal.remove_before(segment)?;
        self.bases = self.bases.split_off(&segment);
        self.landmarks = self.landmarks.split_off(&segment);
        self.stops.retain(|stop| stop.segment >= segment);
        Ok(())
    }

    /// Lets go of the oldest events in memory; all of them have been written.
    fn trim_recent(&mut self) {
        while self.recent.len() > self.options.recent_max {
            if let Some(event) = self.recent.pop_front() {
                self.recent_after = event.cursor;
            }
        }
    }
}
