//! openraft's state machine on ours: applies committed entries, keeps their events, publishes the state, snapshots it.
//!
//! openraft drives it; everyone else reads through [`CommittedSource`]. It is generic over the runtime and keeps no time,
//! so the simulator runs it unchanged.
//!
//! The rules: every responder is answered, after the state and the events that it speaks of can be read; a committed
//! entry that cannot be decoded stops the replica with a clear text and is never skipped; events are durable before a
//! snapshot that covers them is, because a snapshot is what lets their entries be purged.

mod build;
mod hashes;

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{Stream, TryStreamExt};
use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::frame::FrameError;
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine, Snapshot};
use openraft::{AsyncRuntime, OptionalSend};

use crate::Reply;
use crate::disk::Disk;
use crate::event_log::{self, EventLog, Found};
use crate::journal::{WriteError, describe};
use crate::machine::{DecodeError, LEVEL_MAX, Machine, State};
use crate::snapshot::{Pause, SnapshotError, SnapshotFile, SnapshotStore};
use crate::source::{CommittedSource, Published};
use crate::types::stored::MembersError;
use crate::types::{Entry, LeaderId, LogId, Payload, Peer, SnapshotMeta, StoredMembership, Types};

pub use build::SnapshotBuilder;
pub use hashes::StateClaim;

pub(crate) use hashes::HashPoints;

/// Entries are answered in groups of at most this many, so that the state is published once for all of them.
const ANSWERED_TOGETHER_MAX: usize = 1_024;

/// A snapshot as it goes between openraft and the network.
pub type StateSnapshot = Snapshot<LeaderId, u64, Peer, SnapshotFile>;

/// Where an adapter keeps its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// The event log.
    pub events: PathBuf,
    /// The snapshots.
    pub snapshots: PathBuf,
}

impl Folders {
    /// Returns the folders inside a data folder.
    pub fn in_data(data: &Path) -> Self {
        Self {
            events: data.join("events"),
            snapshots: data.join("snapshots"),
        }
    }
}

/// Why an adapter could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The event log could not.
    #[error("open the adapter's event log")]
    Events(#[from] event_log::OpenError),
    /// The snapshots could not be read.
    #[error("open the adapter's snapshots")]
    Snapshots(#[from] SnapshotError),
    /// The newest whole snapshot could not be used.
    #[error("load the newest snapshot")]
    Load(#[from] LoadError),
    /// The event log could not be brought in line with the snapshot.
    #[error("bring the event log to the snapshot's position")]
    Align(#[source] WriteError),
}

/// Why a whole snapshot is no state for this build.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its bytes could not be read.
    #[error("read the snapshot")]
    Read(#[from] SnapshotError),
    /// Its bytes are no state.
    #[error("decode the snapshot's state")]
    State(#[from] DecodeError),
    /// Its members are none.
    #[error("decode the snapshot's members")]
    Members(#[from] MembersError),
    /// The state is not the one that was written.
    #[error(
        "the snapshot's state has another hash than its header names; this build folds events differently, do not run it with this data"
    )]
    Hash,
    /// It is not the one that was announced.
    #[error("the snapshot covers {found:?}, but {announced:?} was announced")]
    Other {
        /// What it covers.
        found: Option<LogId>,
        /// What was said.
        announced: Option<LogId>,
    },
    /// It needs newer rules.
    #[error("{}", too_new(*level))]
    Level {
        /// The rules' level.
        level: u32,
    },
}

/// Why an entry could not be applied. Each stops the replica; none is about the command being allowed.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error(
        "entry {index} is committed but this build cannot decode it; it stops here and skips nothing: upgrade this node and start it again"
    )]
    Undecodable {
        index: u64,
        #[source]
        source: FrameError,
    },
    #[error("entry {index}: {}", too_new(*level))]
    Level { index: u64, level: u32 },
    #[error("keep the events of entry {index}")]
    Events {
        index: u64,
        #[source]
        source: WriteError,
    },
}

fn too_new(level: u32) -> String {
    format!(
        "the cluster's rules are at level {level} and this build knows {LEVEL_MAX}: upgrade this node and start it again"
    )
}

fn fatal(error: &dyn std::error::Error) -> io::Error {
    io::Error::other(describe(error))
}

/// The state machine of one replica, for openraft.
pub struct Adapter<RT> {
    machine: Machine,
    last: Option<LogId>,
    members: StoredMembership,
    events: EventLog,
    snapshots: SnapshotStore,
    current: Arc<Mutex<Option<SnapshotFile>>>,
    published: Arc<Published>,
    building: Arc<AtomicBool>,
    pause: Option<Pause>,
    runtime: PhantomData<fn() -> RT>,
}

/// What opening an adapter found.
#[derive(Debug)]
pub struct Opening {
    /// About the event log.
    pub events: Found,
    /// Snapshots that were passed over because they are damaged.
    pub damaged: Vec<SnapshotError>,
}

/// An entry's answer and who waits for it.
type Answer<RT> = (Reply, Option<ApplyResponder<Types<RT>>>);

impl<RT: AsyncRuntime> Adapter<RT> {
    /// Opens a replica's state: the newest whole snapshot, and the event log brought in line with it.
    ///
    /// openraft then applies again what the log holds after the snapshot.
    pub fn open(
        disk: &Arc<dyn Disk>,
        folders: &Folders,
        options: event_log::Options,
    ) -> Result<(Self, Opening), OpenError> {
        let (events, found) = EventLog::open(disk.clone(), &folders.events, options)?;
        let snapshots = SnapshotStore::open(disk.clone(), &folders.snapshots)?;
        let (newest, damaged) = snapshots.newest()?;
        let mut adapter = Self {
            machine: Machine::default(),
            last: None,
            members: StoredMembership::default(),
            published: Arc::new(Published::new(Arc::default(), events.clone())),
            events,
            snapshots,
            current: Arc::default(),
            building: Arc::default(),
            pause: None,
            runtime: PhantomData,
        };
        if let Some(file) = newest {
            let state = load(&file)?;
            adapter.take_over(file, state)?;
        }
        Ok((adapter, Opening { events: found, damaged }))
    }

    /// Returns what everyone but openraft reads.
    pub fn source(&self) -> Arc<dyn CommittedSource> {
        self.published.clone()
    }

    /// Returns the event log, for retention and projections.
    pub fn event_log(&self) -> EventLog {
        self.events.clone()
    }

    /// Holds the writing of snapshots up after each piece, so that it leaves the disk to the log.
    pub fn pace_snapshots(&mut self, pause: Pause) {
        self.pause = Some(pause);
    }

    /// Returns the snapshot folder, for whoever receives one.
    pub fn snapshots(&self) -> SnapshotStore {
        self.snapshots.clone()
    }

    /// Goes on from a snapshot's state.
    fn take_over(&mut self, file: SnapshotFile, state: State) -> Result<(), OpenError> {
        let meta = file.header.meta().map_err(LoadError::from)?;
        // Events are synced before a snapshot of our own, so this one came from another replica.
        if self.events.last() < state.cluster.cursor {
            self.events
                .reset(state.cluster.cursor, state.applied.stamp)
                .map_err(OpenError::Align)?;
        }
        self.machine = Machine::new(state);
        self.last = meta.last_log_id;
        self.members = meta.last_membership;
        *held(&self.current) = Some(file);
        self.published.publish((&self.machine).into());
        Ok(())
    }

    /// `heard` says whether anybody waits for the answer: on a follower its events are not copied for nobody.
    fn apply_entry(&mut self, entry: Entry, heard: bool) -> Result<Reply, ApplyError> {
        let index = entry.log_id.index;
        let reply = match entry.payload {
            Payload::Normal(proposal) => {
                let envelope = Envelope::decode(&proposal.0);
                self.apply_envelope(
                    index,
                    &envelope.map_err(|source| ApplyError::Undecodable { index, source })?,
                    heard,
                )?
            }
            Payload::Blank => self.pass(index),
            Payload::Membership(members) => {
                self.members = StoredMembership::new(Some(entry.log_id), members);
                self.pass(index)
            }
        };
        self.last = Some(entry.log_id);
        self.published.hashes.passed(index, self.machine.state());
        Ok(reply)
    }

    fn apply_envelope(&mut self, index: u64, envelope: &Envelope, heard: bool) -> Result<Reply, ApplyError> {
        if let Command::RecordStateHash { at, hash } = envelope.command {
            let claim = StateClaim { at, hash };
            self.published.hashes.claim(claim, self.machine.state());
        }
        let applied = match heard {
            true => self.machine.apply(index, envelope),
            false => self.machine.apply_unheard(index, envelope),
        };
        self.events
            .append(applied.records)
            .map_err(|source| ApplyError::Events { index, source })?;
        let level = self.machine.state().cluster.level;
        if level > LEVEL_MAX {
            return Err(ApplyError::Level { index, level });
        }
        Ok(Reply {
            index: applied.index,
            outcome: applied.outcome,
        })
    }

    /// Notes an entry of openraft's own. The machine counts from 1; entry 0 is always the first membership.
    fn pass(&mut self, index: u64) -> Reply {
        if index > 0 {
            self.machine.skip(index);
        }
        Reply {
            index,
            outcome: Ok(Vec::new()),
        }
    }

    /// Lets readers see what was applied, then answers whoever asked for it.
    fn publish(&mut self, answers: &mut Vec<Answer<RT>>) -> io::Result<()> {
        let index = self.machine.state().applied.index;
        self.events
            .write()
            .map_err(|source| fatal(&ApplyError::Events { index, source }))?;
        self.published.publish((&self.machine).into());
        for (reply, responder) in answers.drain(..) {
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        if let Some(job) = self.events.spare_job() {
            // Nobody waits for it: without a spare the event log makes its next segment itself.
            drop(RT::spawn(async move {
                let _ = RT::spawn_blocking(move || job.run()).await;
            }));
        }
        Ok(())
    }
}

impl<RT> Drop for Adapter<RT> {
    fn drop(&mut self) {
        self.published.close();
    }
}

impl<RT> std::fmt::Debug for Adapter<RT> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Adapter")
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Decodes a proven snapshot's state and compares its hash.
fn load(file: &SnapshotFile) -> Result<State, LoadError> {
    let state = State::decode(&file.body()?)?;
    let level = state.cluster.level;
    if level > LEVEL_MAX {
        return Err(LoadError::Level { level });
    }
    if state.hash().0 != file.header.state_hash {
        return Err(LoadError::Hash);
    }
    Ok(state)
}

impl<RT: AsyncRuntime> RaftStateMachine<Types<RT>> for Adapter<RT> {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder<RT>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.last, self.members.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types<RT>>>> + Unpin + OptionalSend,
    {
        let mut answers = Vec::new();
        while let Some((entry, responder)) = entries.try_next().await? {
            match self.apply_entry(entry, responder.is_some()) {
                Ok(reply) => answers.push((reply, responder)),
                Err(error) => {
                    // What came before was applied, and is answered before the replica stops.
                    self.publish(&mut answers)?;
                    return Err(fatal(&error));
                }
            }
            if answers.len() >= ANSWERED_TOGETHER_MAX {
                self.publish(&mut answers)?;
            }
        }
        self.publish(&mut answers)
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder<RT>> {
        // One at a time is enough, unless openraft cannot go on without.
        if self.building.swap(true, Ordering::AcqRel) && !force {
            return None;
        }
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<RT> {
        SnapshotBuilder::capture(self)
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotFile) -> io::Result<()> {
        let found = snapshot.header.last.map(LogId::from);
        if found != meta.last_log_id {
            return Err(fatal(&LoadError::Other {
                found,
                announced: meta.last_log_id,
            }));
        }
        let store = self.snapshots.clone();
        let work = RT::spawn_blocking(move || {
            let state = load(&snapshot)?;
            Ok((store.adopt(&snapshot)?, state))
        });
        let (file, state) = work.await?.map_err(|error: LoadError| fatal(&error))?;
        self.take_over(file, state).map_err(|error| fatal(&error))
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<StateSnapshot>> {
        let Some(snapshot) = held(&self.current).clone() else {
            return Ok(None);
        };
        let meta = snapshot.header.meta().map_err(|error| fatal(&error))?;
        Ok(Some(Snapshot { meta, snapshot }))
    }
}
