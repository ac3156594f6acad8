//! Opens what this replica remembers, and lets old events go.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::time::Timestamp;
use holdfast_storage::adapter::{Adapter, Folders};
use holdfast_storage::disk::{Disk, RealDisk};
use holdfast_storage::raft_log::{LogThread, RaftLog};
use holdfast_storage::snapshot::SnapshotStore;
use holdfast_storage::source::CommittedSource;
use holdfast_storage::{event_log, raft_log};
use openraft_rt_tokio::TokioRuntime;

use super::ReadState;
use super::disk::{hold_reserve, make_room};
use super::found::Beginning;
use crate::cli::daemon::DaemonError;
use crate::config::EventConfig;
use crate::identity::folder::{DataFolder, write_durably};

/// Time between two looks at what the event log may let go.
const RETAIN_EVERY: Duration = Duration::from_secs(60);

/// How fast a snapshot is written: a state of 100,000 leases takes about two seconds, and the log keeps its disk.
const SNAPSHOT_BYTES_PER_SECOND: u64 = 64 << 20;

/// The log, the state and the events of this replica.
pub(super) struct Storage {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) log: RaftLog<TokioRuntime>,
    pub(super) log_thread: LogThread,
    pub(super) snapshots: SnapshotStore,
    pub(super) events: event_log::EventLog,
    pub(super) source: Arc<dyn CommittedSource>,
    pub(super) state: ReadState,
    machine: Option<Adapter<TokioRuntime>>,
}

impl Storage {
    /// Opens all of it; what was torn by a crash is repaired, and told.
    pub(super) fn open(beginning: &Beginning) -> Result<Self, DaemonError> {
        let failed = |error: &dyn std::error::Error| DaemonError::failed(error);
        refuse_diverged(&beginning.folder)?;
        make_room(beginning.folder.root());
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let raft = beginning.folder.part("raft");
        let folders = Folders::in_data(beginning.folder.root());
        // Both read all that is there, so a start takes as long as the longer one.
        let (opened, adapter) = std::thread::scope(|both| {
            let log = both.spawn(|| raft_log::Opened::open(disk.clone(), &raft, raft_log::Options::default()));
            let adapter = Adapter::open(&disk, &folders, event_log::Options::default());
            (log.join().expect("opening a log answers with errors"), adapter)
        });
        let opened = opened.map_err(|error| failed(&error))?;
        if let Some(repair) = &opened.repair {
            tracing::warn!(?repair, "the end of the raft log was torn by a crash and was cut off");
        }
        let (log, log_thread) = opened
            .start_thread::<TokioRuntime>(None)
            .map_err(|error| failed(&error))?;
        let (mut machine, opening) = adapter.map_err(|error| failed(&error))?;
        for damaged in &opening.damaged {
            tracing::warn!(%damaged, "a snapshot is damaged and was passed over");
        }
        machine.pace_snapshots(Arc::new(|bytes| {
            std::thread::sleep(Duration::from_micros(
                bytes as u64 * 1_000_000 / SNAPSHOT_BYTES_PER_SECOND,
            ));
        }));
        let source = machine.source();
        let reads = source.clone();
        hold_reserve(beginning.folder.root());
        Ok(Self {
            disk,
            log,
            log_thread,
            snapshots: machine.snapshots(),
            events: machine.event_log(),
            state: Arc::new(move || reads.state()),
            source,
            machine: Some(machine),
        })
    }

    /// Hands the state machine to consensus, once.
    pub(super) fn take_machine(&mut self) -> Result<Adapter<TokioRuntime>, DaemonError> {
        self.machine.take().ok_or_else(|| DaemonError {
            reason: "consensus was started twice".to_owned(),
            exit_code: 70,
        })
    }

    /// Lets events go that are older, or more, than the configuration keeps; whole segments at a time.
    pub(super) fn keep_events(&self, kept: &EventConfig) {
        let (state, kept, events) = (self.state.clone(), kept.clone(), self.events.clone());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(RETAIN_EVERY).await;
                let age_ms = u64::from(kept.retention_days) * 24 * 3_600_000;
                let retention = event_log::Retention {
                    bytes_max: kept.retention_mib << 20,
                    since: Timestamp(state().applied.stamp.0.saturating_sub(age_ms)),
                };
                let events = events.clone();
                let retained = tokio::task::spawn_blocking(move || events.retain(retention)).await;
                if let Ok(Err(error)) = retained {
                    tracing::warn!(%error, "old events could not be let go");
                }
            }
        });
    }
}

/// Says why this replica's copy is wrong, so that a restart does not go on with it.
pub(super) const DIVERGED_FILE: &str = "diverged";

/// Keeps the reason across restarts.
pub(super) fn keep_divergence(file: &Path, reason: &str) {
    if let Err(error) = write_durably(file, reason.as_bytes(), 0o600) {
        tracing::error!(%error, "cannot keep why this node was stopped; do not start it again");
    }
}

fn refuse_diverged(folder: &DataFolder) -> Result<(), DaemonError> {
    match std::fs::read_to_string(folder.part(DIVERGED_FILE)) {
        Ok(reason) => Err(DaemonError { reason, exit_code: 70 }),
        Err(_) => Ok(()),
    }
}
