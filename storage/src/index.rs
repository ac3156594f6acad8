//! Projections over the event log, in sled: the events of each lease, and the leases that have ended.
//!
//! The node folds new events into it in the background; `leases --ended`, `why` and `bill` read it. Everything here can
//! be made again from the event log, and sled is trusted with nothing else: 0.34 does not sync its file (so this does),
//! has failed to open after abrupt stops, panics on damage, and never shrinks.
//!
//! The rule: when the store does not open, panics, is ahead of the event log or has grown far beyond what it holds, it
//! is moved aside and made again. It has its own files, outside the file seam, and is no part of a simulation.

mod fold;

use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use holdfast_proto::id::{Cursor, LeaseId, TenantId};

use crate::event_log::{EventLog, EventsError};

pub use fold::EndedLease;
use fold::{Fold, Position};

/// Memory for sled's page cache.
const CACHE_BYTES: u64 = 16 << 20;

/// A store larger than three times what it holds, and this, is made again.
const SLACK_BYTES: u64 = 64 << 20;

/// Events folded in one batch.
const BATCH_EVENTS: usize = 1000;

/// Why the projections could not be read or brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The store's files could not be moved or opened.
    #[error("open the index in {}", dir.display())]
    Files {
        /// The folder.
        dir: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// The store is damaged; it is made again at the next catch-up.
    #[error("the index is damaged and will be made again from the event log: {reason}")]
    Damaged {
        /// What sled said.
        reason: String,
    },
    /// The event log could not be read.
    #[error("read events for the index")]
    Events(#[from] EventsError),
}

/// What one catch-up did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaughtUp {
    /// Events folded.
    pub events: usize,
    /// The position reached.
    pub at: Cursor,
    /// Whether the store was made again from the beginning.
    pub rebuilt: bool,
}

/// The projections of one replica.
#[derive(Debug)]
pub struct Index {
    dir: PathBuf,
    events: EventLog,
    slot: Mutex<Slot>,
}

#[derive(Debug)]
enum Slot {
    Closed,
    Open(Store),
    /// It has failed: made again by the next catch-up, even if it would open.
    Damaged,
}

#[derive(Debug)]
struct Store {
    db: sled::Db,
    /// sled's own file, to sync what sled does not.
    file: File,
    position: Position,
}

impl Index {
    /// Names the store in `dir`. It is opened, or made, by the first [`Index::catch_up`].
    pub fn new(dir: &Path, events: EventLog) -> Self {
        Self {
            dir: dir.to_owned(),
            events,
            slot: Mutex::new(Slot::Closed),
        }
    }

    /// Folds the next events, at most a thousand; opens or makes the store first where needed.
    pub fn catch_up(&self) -> Result<CaughtUp, IndexError> {
        let mut slot = self.held();
        let mut rebuilt = false;
        // Whatever fails below leaves the mark, so that the next call makes the store again.
        let store = match std::mem::replace(&mut *slot, Slot::Damaged) {
            Slot::Open(store) => store,
            Slot::Closed => self.open_or_rebuild(&mut rebuilt)?,
            Slot::Damaged => self.rebuild(&mut rebuilt)?,
        };
        let (store, caught_up) = self.fold(store, rebuilt)?;
        *slot = Slot::Open(store);
        Ok(caught_up)
    }

    /// Makes what was folded durable. Without it a crash only costs folding again.
    pub fn sync(&self) -> Result<(), IndexError> {
        self.with(|store| {
            store.db.flush()?;
            store.file.sync_data().map_err(sled::Error::Io)
        })
    }

    /// Returns the leases that ended before `before` (all, when `None`), newest first.
    pub fn ended(
        &self,
        tenant: Option<&TenantId>,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<Vec<EndedLease>, IndexError> {
        self.with(|store| fold::ended(&store.db, tenant, before, limit))
    }

    /// Returns one ended lease.
    pub fn ended_lease(&self, lease: LeaseId) -> Result<Option<EndedLease>, IndexError> {
        self.with(|store| fold::ended_lease(&store.db, lease))
    }

    /// Returns the positions of a lease's events after `after`, oldest first.
    pub fn events_of(&self, lease: LeaseId, after: Cursor, limit: usize) -> Result<Vec<Cursor>, IndexError> {
        self.with(|store| fold::events_of(&store.db, lease, after, limit))
    }

    /// Returns how far events are folded, and the last position that was gone when it should have been folded.
    pub fn position(&self) -> Result<(Cursor, Option<Cursor>), IndexError> {
        self.with(|store| Ok((store.position.at, store.position.missing_upto)))
    }

    fn held(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a read or a sync; a store that fails or panics is given up.
    fn with<T>(&self, work: impl FnOnce(&Store) -> sled::Result<T>) -> Result<T, IndexError> {
        let mut slot = self.held();
        let Slot::Open(store) = &*slot else {
            return Err(IndexError::Damaged {
                reason: "it is not open now".into(),
            });
        };
        let result = guarded(|| work(store));
        if result.is_err() {
            *slot = Slot::Damaged;
        }
        result
    }

    fn fold(&self, mut store: Store, mut rebuilt: bool) -> Result<(Store, CaughtUp), IndexError> {
        if store.position.at > self.events.last() {
            drop(store);
            store = self.rebuild(&mut rebuilt)?;
        }
        let events = match self.events.after(store.position.at, BATCH_EVENTS) {
            Err(EventsError::Compacted { gone } | EventsError::Reset { gone }) => {
                store.position.at = gone;
                store.position.missing_upto = Some(gone);
                self.events.after(gone, BATCH_EVENTS)?
            }
            other => other?,
        };
        let position = guarded(|| {
            let mut fold = Fold::new(&store.db, store.position);
            events.iter().try_for_each(|event| fold.take(event))?;
            fold.apply()
        })?;
        store.position = position;
        Ok((
            store,
            CaughtUp {
                events: events.len(),
                at: position.at,
                rebuilt,
            },
        ))
    }

    fn open_or_rebuild(&self, rebuilt: &mut bool) -> Result<Store, IndexError> {
        match self.open() {
            Ok(store) if !self.is_bloated(&store) => return Ok(store),
            Ok(store) => drop(store),
            Err(IndexError::Damaged { reason }) => {
                tracing::warn!(reason, "the index does not open, it is made again from the event log");
            }
            Err(error) => return Err(error),
        }
        self.rebuild(rebuilt)
    }

    fn rebuild(&self, rebuilt: &mut bool) -> Result<Store, IndexError> {
        *rebuilt = true;
        self.move_aside()?;
        self.open()
    }

    fn is_bloated(&self, store: &Store) -> bool {
        let size = store.db.size_on_disk().unwrap_or(0);
        size > SLACK_BYTES + 3 * store.position.live_bytes
    }

    fn open(&self) -> Result<Store, IndexError> {
        let failed = |source| IndexError::Files {
            dir: self.dir.clone(),
            source,
        };
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let (db, position) = guarded(|| {
            let config = sled::Config::new()
                .path(&self.dir)
                .cache_capacity(CACHE_BYTES)
                .flush_every_ms(None);
            let db = config.open()?;
            let position = fold::position(&db)?;
            Ok((db, position))
        })?;
        let file = File::open(self.dir.join("db")).map_err(failed)?;
        Ok(Store { db, file, position })
    }

    /// Keeps one damaged store beside, for whoever wants to look into it.
    fn move_aside(&self) -> Result<(), IndexError> {
        let failed = |source| IndexError::Files {
            dir: self.dir.clone(),
            source,
        };
        let mut name = self.dir.file_name().unwrap_or_default().to_owned();
        name.push(".damaged");
        let aside = self.dir.with_file_name(name);
        let unless_missing = |result: io::Result<()>| match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
        unless_missing(fs::remove_dir_all(&aside))?;
        unless_missing(fs::rename(&self.dir, &aside))
    }
}

/// sled panics where others return errors; both mean that the store is made again.
fn guarded<T>(work: impl FnOnce() -> sled::Result<T>) -> Result<T, IndexError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| IndexError::Damaged {
            reason: error.to_string(),
        }),
        Err(_) => Err(IndexError::Damaged {
            reason: "sled panicked".into(),
        }),
    }
}
