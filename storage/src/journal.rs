//! An append-only journal in preallocated segment files: the one durability mechanism of a replica.
//!
//! Two owners: the Raft log and the event log. An owner stages records, writes them, and syncs once for the whole group;
//! the journal decides nothing about when. It neither spawns nor waits, so the same code runs on a log thread in
//! production and inside one task with a virtual clock in the simulator.
//!
//! The rules: a record counts as durable only when [`Journal::sync`] has returned; after any failed write or sync every
//! later call fails too (a failed fsync is never tried again); records never span segments; a segment is synced before
//! the next one is written, so only the last one can be torn by a crash.

mod error;
mod reader;
mod record;
mod recover;
mod scan;
mod segment;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::disk::{Disk, DiskFile};

pub(crate) use error::describe;
pub use error::{OpenError, ReadError, WriteError};
pub use reader::Reader;
pub use record::{Record, RecordRef};
pub use recover::{Objection, Recovered, Repair, Scan};
pub use segment::Summary;

/// The largest segment; offsets are 32 bits wide, and a segment is read into memory when it is repaired.
const SEGMENT_BYTES_MAX: u32 = 1 << 30;

/// How a journal is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Written into each segment, at most 16 bytes; a journal of another purpose is refused.
    pub purpose: &'static str,
    /// Length of new segments, 4 KiB to 1 GiB; also bounds a record. Older segments keep theirs.
    pub segment_bytes: u32,
}

impl Options {
    /// Returns the production layout: 64 MiB segments.
    pub fn new(purpose: &'static str) -> Self {
        Self {
            purpose,
            segment_bytes: 64 << 20,
        }
    }
}

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The segment's number.
    pub segment: u32,
    /// The offset of the record's header.
    pub offset: u32,
    /// Bytes with header and padding.
    pub size: u32,
}

/// The writer. There is one per folder; readers are made by [`Journal::reader`].
#[derive(Debug)]
pub struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: Options,
    sealed: BTreeMap<u32, Summary>,
    active: Active,
    spare: Arc<Mutex<SpareSlot>>,
    /// The highest segment that a [`SpareJob`] was given out for.
    spare_asked: u32,
    files: Files,
    stopped: Option<Arc<str>>,
}

type Files = Arc<RwLock<BTreeMap<u32, Arc<dyn DiskFile>>>>;

#[derive(Debug)]
struct Active {
    file: Arc<dyn DiskFile>,
    /// The file's length.
    bytes: u32,
    /// Bytes handed to the file so far.
    written: u32,
    /// Bytes known to be synced.
    durable: u32,
    staged: Vec<u8>,
    summary: Summary,
}

/// Where the segment that is made ahead of time waits.
#[derive(Debug)]
struct SpareSlot {
    /// The highest segment made so far; a job that comes late must not make one again.
    made: u32,
    ready: Option<Spare>,
}

#[derive(Debug)]
struct Spare {
    segment: u32,
    bytes: u32,
    file: Arc<dyn DiskFile>,
}

impl Journal {
    /// Opens the journal in `dir`, or makes it there, and shows the owner its records in order.
    ///
    /// `visit` objects when a record contradicts the ones before, or is of a kind that only a newer build knows. A torn end of
    /// the last segment is repaired; everything else that is wrong is an error, and nothing has been changed then.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: Options,
        scan: Scan,
        visit: impl FnMut(Position, RecordRef<'_>) -> Result<(), Objection>,
    ) -> Result<(Self, Recovered), OpenError> {
        assert!(
            (4096..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes),
            "{options:?}"
        );
        recover::recover(disk, dir, options, scan, visit)
    }

    /// Says whether a record with this payload fits into what is left of the active segment.
    pub fn fits(&self, payload: usize) -> bool {
        let room = self.active.bytes - segment::SEAL_BYTES - self.end();
        record::encoded_bytes(payload) <= room as usize
    }

    /// Refuses a payload that no segment can take.
    pub fn check_size(&self, payload: usize) -> Result<(), WriteError> {
        let room = self.options.segment_bytes - segment::HEADER_BYTES - segment::SEAL_BYTES;
        let size = record::encoded_bytes(payload) as u64;
        // Half a segment, so that an owner's own records for a new segment always fit beside it.
        if size > u64::from(room / 2) {
            Err(WriteError::TooLarge { size, room: room / 2 })
        } else {
            Ok(())
        }
    }

    /// Puts a record in line and returns where it will lie. The owner has asked [`Journal::fits`] first.
    pub fn stage(&mut self, record: &Record) -> Position {
        assert!(
            self.fits(record.payload.len()),
            "staged a record that does not fit; rotate first"
        );
        let offset = self.end();
        let active = &mut self.active;
        record::encode(record, active.summary.segment, active.durable, &mut active.staged);
        let size = record::encoded_bytes(record.payload.len()) as u32;
        let summary = &mut active.summary;
        if summary.records == 0 {
            summary.first_index = record.index;
        }
        summary.last_index = record.index;
        summary.last_term = record.term;
        summary.records += 1;
        summary.end = offset + size;
        Position {
            segment: summary.segment,
            offset,
            size,
        }
    }

    /// Hands everything staged to the file, in one write. It is readable then, but not durable.
    pub fn write(&mut self) -> Result<(), WriteError> {
        self.running()?;
        let active = &mut self.active;
        if active.staged.is_empty() {
            return Ok(());
        }
        let offset = active.written;
        if let Err(source) = active.file.write_at(&active.staged, u64::from(offset)) {
            let file = segment::path(&self.dir, active.summary.segment);
            return Err(self.stop(WriteError::Write { file, offset, source }));
        }
        active.written += active.staged.len() as u32;
        active.staged.clear();
        Ok(())
    }

    /// Writes what is staged and makes everything durable; costs nothing when everything is.
    pub fn sync(&mut self) -> Result<(), WriteError> {
        self.write()?;
        let active = &mut self.active;
        if active.durable == active.written {
            return Ok(());
        }
        if let Err(source) = active.file.sync_data() {
            let file = segment::path(&self.dir, active.summary.segment);
            return Err(self.stop(WriteError::Sync { file, source }));
        }
        active.durable = active.written;
        Ok(())
    }

    /// Returns the work of making what is written durable, to be done outside the owner's lock; `None` when it all is.
    ///
    /// The owner brings the result back with [`Journal::note_synced`].
    pub fn sync_job(&mut self) -> Result<Option<SyncJob>, WriteError> {
        self.write()?;
        let active = &self.active;
        if active.durable == active.written {
            return Ok(None);
        }
        Ok(Some(SyncJob {
            file: active.file.clone(),
            segment: active.summary.segment,
            end: active.written,
        }))
    }

    /// Takes in how a [`SyncJob`] ended.
    pub fn note_synced(&mut self, synced: Synced) -> Result<(), WriteError> {
        self.running()?;
        if let Err(source) = synced.result {
            let file = segment::path(&self.dir, synced.segment);
            return Err(self.stop(WriteError::Sync { file, source }));
        }
        // A segment that was closed meanwhile was synced then.
        if synced.segment == self.active.summary.segment {
            self.active.durable = self.active.durable.max(synced.end);
        }
        Ok(())
    }

    /// Closes the active segment, durably, and goes on in the next one. Makes that one here if none is ready.
    pub fn rotate(&mut self) -> Result<(), WriteError> {
        self.running()?;
        let next = self.take_spare()?;
        self.write()?;
        let active = &mut self.active;
        let offset = active.bytes - segment::SEAL_BYTES;
        let seal = segment::encode_seal(&active.summary);
        if let Err(source) = active.file.write_at(&seal, u64::from(offset)) {
            let file = segment::path(&self.dir, active.summary.segment);
            return Err(self.stop(WriteError::Write { file, offset, source }));
        }
        if let Err(source) = active.file.sync_data() {
            let file = segment::path(&self.dir, active.summary.segment);
            return Err(self.stop(WriteError::Sync { file, source }));
        }
        self.sealed.insert(active.summary.segment, active.summary);
        held_files(&self.files).insert(next.segment, next.file.clone());
        self.active = Active::new(next);
        Ok(())
    }

    /// Returns the work of making the next segment ahead of time, once for each segment.
    ///
    /// The owner runs it off the write path. Running it is never required, only faster.
    pub fn spare_job(&mut self) -> Option<SpareJob> {
        let segment = self.active.summary.segment + 1;
        if self.spare_asked >= segment || self.stopped.is_some() {
            return None;
        }
        self.spare_asked = segment;
        Some(SpareJob {
            disk: self.disk.clone(),
            dir: self.dir.clone(),
            segment,
            bytes: self.options.segment_bytes,
            purpose: self.options.purpose,
            spare: self.spare.clone(),
        })
    }

    /// Removes closed segments before `segment`, oldest first, so that a crash in between leaves no hole.
    pub fn remove_before(&mut self, segment: u32) -> Result<(), WriteError> {
        self.running()?;
        let doomed: Vec<u32> = self.sealed.range(..segment).map(|(number, _)| *number).collect();
        if doomed.is_empty() {
            return Ok(());
        }
        for number in doomed {
            let file = segment::path(&self.dir, number);
            if let Err(source) = self.disk.remove(&file) {
                return Err(self.stop(WriteError::Remove { file, source }));
            }
            self.sealed.remove(&number);
            held_files(&self.files).remove(&number);
        }
        if let Err(source) = self.disk.sync_dir(&self.dir) {
            let file = self.dir.clone();
            return Err(self.stop(WriteError::Remove { file, source }));
        }
        Ok(())
    }

    /// Returns what each segment holds, oldest first; the last one is the active one.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = Summary> + '_ {
        self.sealed.values().copied().chain([self.active.summary])
    }

    /// Returns where the records of a segment that can be read end; those staged come after it.
    pub fn readable_end(&self, segment: u32) -> u32 {
        if segment == self.active.summary.segment {
            return self.active.written;
        }
        self.sealed.get(&segment).map_or(0, |summary| summary.end)
    }

    /// Returns how many bytes the segments take on disk, the spare not counted.
    pub fn disk_bytes(&self) -> u64 {
        (self.sealed.len() as u64 + 1) * u64::from(self.options.segment_bytes)
    }

    /// Says whether something staged or written is not durable yet.
    pub fn is_dirty(&self) -> bool {
        self.end() != self.active.durable
    }

    /// Returns how many bytes wait for [`Journal::write`].
    pub fn staged_bytes(&self) -> usize {
        self.active.staged.len()
    }

    /// Returns a handle that reads records by position, from any thread.
    pub fn reader(&self) -> Reader {
        Reader {
            dir: self.dir.clone(),
            files: self.files.clone(),
        }
    }

    fn end(&self) -> u32 {
        self.active.written + self.active.staged.len() as u32
    }

    fn running(&self) -> Result<(), WriteError> {
        match &self.stopped {
            Some(first) => Err(WriteError::Stopped {
                dir: self.dir.clone(),
                first: first.clone(),
            }),
            None => Ok(()),
        }
    }

    /// From here on every call fails: what is on disk is no longer known.
    fn stop(&mut self, error: WriteError) -> WriteError {
        self.stopped = Some(describe(&error).into());
        error
    }

    fn take_spare(&mut self) -> Result<Spare, WriteError> {
        let segment = self.active.summary.segment + 1;
        let bytes = self.options.segment_bytes;
        let mut slot = held_spare(&self.spare);
        if let Some(spare) = slot.ready.take_if(|spare| spare.segment == segment) {
            return Ok(spare);
        }
        let made = segment::prepare(&*self.disk, &self.dir, segment, bytes, self.options.purpose);
        if made.is_ok() {
            slot.made = segment;
        }
        drop(slot);
        made.map(|file| Spare { segment, bytes, file }).map_err(|source| {
            let error = if source.kind() == io::ErrorKind::StorageFull {
                WriteError::NoSpace {
                    dir: self.dir.clone(),
                    bytes,
                    source,
                }
            } else {
                WriteError::Prepare {
                    file: segment::path(&self.dir, segment),
                    source,
                }
            };
            self.stop(error)
        })
    }
}

impl Active {
    fn new(spare: Spare) -> Self {
        let end = segment::HEADER_BYTES;
        let summary = Summary {
            segment: spare.segment,
            end,
            ..recover::EMPTY
        };
        Self {
            file: spare.file,
            bytes: spare.bytes,
            written: end,
            durable: end,
            staged: Vec::new(),
            summary,
        }
    }
}

/// Makes what is written durable; see [`Journal::sync_job`].
#[derive(Debug)]
pub struct SyncJob {
    file: Arc<dyn DiskFile>,
    segment: u32,
    end: u32,
}

/// How a [`SyncJob`] ended.
#[derive(Debug)]
pub struct Synced {
    result: io::Result<()>,
    segment: u32,
    end: u32,
}

impl SyncJob {
    /// Syncs; blocks on the disk.
    pub fn run(self) -> Synced {
        Synced {
            result: self.file.sync_data(),
            segment: self.segment,
            end: self.end,
        }
    }
}

/// Makes the next segment; see [`Journal::spare_job`].
#[derive(Debug)]
pub struct SpareJob {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment: u32,
    bytes: u32,
    purpose: &'static str,
    spare: Arc<Mutex<SpareSlot>>,
}

impl SpareJob {
    /// Makes the segment and leaves it for the journal. A failure is only noted: the journal tries once more itself
    /// when it needs the segment, and reports then.
    pub fn run(self) {
        let mut slot = held_spare(&self.spare);
        if slot.made >= self.segment {
            return;
        }
        match segment::prepare(&*self.disk, &self.dir, self.segment, self.bytes, self.purpose) {
            Ok(file) => {
                slot.made = self.segment;
                slot.ready = Some(Spare {
                    segment: self.segment,
                    bytes: self.bytes,
                    file,
                });
            }
            Err(error) => {
                let dir = self.dir.display();
                tracing::warn!(%error, segment = self.segment, "cannot prepare the next journal segment in {dir} yet");
            }
        }
    }
}

fn held_files(files: &Files) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u32, Arc<dyn DiskFile>>> {
    files.write().unwrap_or_else(PoisonError::into_inner)
}

fn held_spare(spare: &Mutex<SpareSlot>) -> MutexGuard<'_, SpareSlot> {
    spare.lock().unwrap_or_else(PoisonError::into_inner)
}
