//! Connects the interface with the replica, the work's output, the authority and the metrics.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_proto::id::{Epoch, LeaseId, NodeId};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;
use holdfast_storage::index::Index;
use holdfast_storage::raft_log::RaftLog;
use openraft_rt_tokio::TokioRuntime;

use super::ReadState;
use super::device::Devices;
use super::disk::DiskHere;
use super::envelope::by_node;
use super::found::Beginning;
use super::node::{NodeReplica, Shared};
use super::storage::Storage;
use crate::api::lane::LaneService;
use crate::api::seam::{Admit, AdmitError, Leadership, LogChunk, LogError, LogRequest, Logs, MetricSource, Standing};
use crate::api::source::Indexed;
use crate::api::{Api, Parts, forward};
use crate::cli::daemon::DaemonError;
use crate::config::Config;
use crate::consensus::leadership::Lead;
use crate::consensus::{Outcome, Propose};
use crate::env::Clock;
use crate::executor::duty::RunKey;
use crate::executor::supervisor::output::{output_end, read_output};
use crate::identity::Identity;
use crate::identity::authority::Authority;
use crate::identity::secret::Secret;
use crate::join::{JoinAnswer, JoinRequest, Peer};
use crate::net::router::Router;
use crate::net::tls::{https_client, https_server};
use crate::telemetry::exposition::{Exposition, Kind};
use tokio::sync::watch;

/// How often a running log is looked at for more.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Looks for more output within one request: 5 s of them.
const LOOKS_MAX: u32 = 100;

/// Builds the interface and serves it, over HTTPS and on the client lane, until the sender says true, or is dropped.
pub(super) fn start(
    config: &Config,
    beginning: &Beginning,
    shared: &Shared,
    storage: &Storage,
    devices: &Devices,
    router: &Router,
) -> Result<watch::Sender<bool>, DaemonError> {
    let failed = |error: &dyn std::error::Error| DaemonError::failed(error);
    let built = build(config, beginning, shared, storage, devices)?;
    router.open_door(Arc::new(LaneService::new(&built)));
    let listener = beginning.sockets.https.try_clone().map_err(|error| failed(&error))?;
    let tls = https_server(&beginning.identity).map_err(|error| failed(&error))?;
    let (stop, mut stopping) = watch::channel(false);
    let stopper = shared.stopper.clone();
    tokio::spawn(async move {
        let stopped = async move {
            // A dropped sender stops it too.
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        if let Err(error) = crate::api::server::serve(&built, listener, tls, stopped).await {
            stopper.stop(format!("the HTTPS interface has stopped: {error}"));
        }
    });
    Ok(stop)
}

/// Builds the interface.
fn build(
    config: &Config,
    beginning: &Beginning,
    shared: &Shared,
    storage: &Storage,
    devices: &Devices,
) -> Result<Api, DaemonError> {
    let identity = &beginning.identity;
    let failed = |error: &dyn std::error::Error| DaemonError::failed(error);
    let tls = https_client(identity.authority(), identity.cluster).map_err(|error| failed(&error))?;
    let peers = forward::peers(tls);
    let index = Index::new(&beginning.folder.part("index"), storage.events.clone());
    let metrics: Vec<Arc<dyn MetricSource>> = vec![
        Arc::new(DeviceMetrics {
            telemetry: devices.telemetry(),
            host: beginning.label.to_string(),
        }),
        Arc::new(JournalMetrics {
            log: storage.log.clone(),
        }),
    ];
    Ok(Api::new(Parts {
        node: shared.me,
        authority: identity.authority_fingerprint().map_err(|error| failed(&error))?,
        propose: shared.replica.clone(),
        linearize: shared.replica.clone(),
        committed: Indexed::start(shared.source.clone(), index),
        standing: Arc::new(StandingHere(shared.replica.clone())),
        footprint: Arc::new(DiskHere {
            data: beginning.folder.root().to_owned(),
            log: storage.log.clone(),
            events: storage.events.clone(),
            snapshots: storage.snapshots.clone(),
        }),
        logs: Arc::new(LogsHere {
            folder: beginning.folder.part("executor"),
            me: shared.me,
            state: shared.state.clone(),
        }),
        admit: Arc::new(AdmitHere::new(beginning, shared)),
        metrics,
        peers: peers.map_err(|error| failed(&error))?,
        clock: shared.clock.clone(),
        entropy: shared.entropy.clone(),
        limits: config.limits(),
    }))
}

/// Who leads and what time it is, as this replica knows.
struct StandingHere(Arc<NodeReplica>);

impl Standing for StandingHere {
    fn leadership(&self) -> Leadership {
        let now = self.0.leadership();
        Leadership {
            leader: now.leader,
            term: now.term,
            heard_ms_ago: self.0.heard_ms_ago(),
        }
    }

    fn time(&self) -> Timestamp {
        self.0.clock().time()
    }
}

/// Output of the work that ran on this node.
struct LogsHere {
    folder: PathBuf,
    me: NodeId,
    state: ReadState,
}

impl LogsHere {
    /// The folders of all starts of one placement, oldest first.
    fn folders(&self, lease: LeaseId, epoch: Epoch) -> Vec<PathBuf> {
        let mut found: Vec<(RunKey, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(run) = name.strip_prefix("lease-").and_then(|name| name.parse::<RunKey>().ok()) else {
                continue;
            };
            if (run.lease, run.epoch) == (lease, epoch) {
                found.push((run, entry.path()));
            }
        }
        found.sort_by_key(|(run, _)| *run);
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// The work may still write here.
    fn runs_here(&self, lease: LeaseId, epoch: Epoch) -> bool {
        let state = (self.state)();
        let assignments = state.assignments(self.me);
        assignments
            .iter()
            .any(|assignment| assignment.lease.id() == lease && assignment.placement.epoch == epoch)
    }

    fn look(&self, request: &LogRequest) -> Result<LogChunk, LogError> {
        let LogRequest {
            lease,
            epoch,
            after,
            bytes_max,
            ..
        } = *request;
        // Before the files are read: what was written until the end is in them then.
        let ended = !self.runs_here(lease, epoch);
        let folders = self.folders(lease, epoch);
        if folders.is_empty() && ended {
            return Err(LogError::Absent { lease });
        }
        let read = |error: io::Error| LogError::Read { lease, source: error };
        let (mut from, mut bytes, mut before) = (after, Vec::new(), 0_u64);
        for folder in folders {
            let end = before + output_end(&folder).map_err(read)?;
            if end > after && bytes.is_empty() {
                let chunk = read_output(&folder, after.saturating_sub(before), bytes_max).map_err(read)?;
                (from, bytes) = (before + chunk.offset, chunk.bytes);
            }
            before = end;
        }
        let behind = from + bytes.len() as u64 >= before;
        Ok(LogChunk {
            from,
            bytes: bytes.into(),
            ended: ended && behind,
        })
    }
}

impl Logs for LogsHere {
    fn read(&self, request: LogRequest) -> BoxFuture<'_, Result<LogChunk, LogError>> {
        Box::pin(async move {
            for _ in 0..LOOKS_MAX {
                let chunk = self.look(&request)?;
                if !chunk.bytes.is_empty() || chunk.ended || !request.wait {
                    return Ok(chunk);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            self.look(&request)
        })
    }
}

/// Admits machines, on nodes that hold the authority's key.
struct AdmitHere {
    me: NodeId,
    identity_folder: PathBuf,
    certificate: rustls::pki_types::CertificateDer<'static>,
    identity: Arc<Identity>,
    state: ReadState,
    propose: Arc<dyn Propose>,
    clock: Arc<dyn Clock>,
}

impl AdmitHere {
    fn new(beginning: &Beginning, shared: &Shared) -> Self {
        Self {
            me: shared.me,
            identity_folder: beginning.folder.part("identity"),
            certificate: beginning.identity.authority().clone(),
            identity: beginning.identity.clone(),
            state: shared.state.clone(),
            propose: shared.propose.clone(),
            clock: shared.clock.clone(),
        }
    }

    fn authority(&self) -> Result<Authority, AdmitError> {
        let key = std::fs::read_to_string(self.identity_folder.join("ca.key")).map_err(|_| AdmitError::NotHere)?;
        let loaded = Authority::load(self.certificate.clone(), &Secret::new(key));
        loaded.map_err(|error| AdmitError::Malformed {
            reason: error.to_string(),
        })
    }
}

impl Admit for AdmitHere {
    fn admit(&self, request: JoinRequest) -> BoxFuture<'_, Result<JoinAnswer, AdmitError>> {
        Box::pin(async move {
            let authority = self.authority()?;
            let command = request.command().map_err(|error| AdmitError::Malformed {
                reason: error.to_string(),
            })?;
            match self.propose.propose(by_node(self.me, command)).await {
                Outcome::Applied { .. } => {}
                Outcome::Refused { rejection, index } => return Err(AdmitError::Refused { rejection, index }),
                Outcome::Unknown { reason } => return Err(AdmitError::Unknown { reason }),
            }
            let state = (self.state)();
            let present = state.nodes.values().filter(|node| node.status != NodeStatus::Removed);
            let nodes = present
                .map(|node| Peer {
                    node: node.spec.node,
                    address: node.spec.address.clone(),
                })
                .collect();
            JoinAnswer::sign(&request, &self.identity, &authority, nodes, self.clock.wall_ms()).map_err(|error| {
                AdmitError::Malformed {
                    reason: error.to_string(),
                }
            })
        })
    }
}

/// The cards' series.
struct DeviceMetrics {
    telemetry: crate::telemetry::task::SharedTelemetry,
    host: String,
}

impl MetricSource for DeviceMetrics {
    fn write(&self, out: &mut String) {
        let mut text = Exposition::default();
        self.telemetry.write_metrics(&self.host, &mut text);
        out.push_str(&text.into_text());
    }
}

/// The Raft log's series.
struct JournalMetrics {
    log: RaftLog<TokioRuntime>,
}

impl MetricSource for JournalMetrics {
    fn write(&self, out: &mut String) {
        let stats = self.log.sync_stats();
        let mut text = Exposition::default();
        text.family(
            "holdfast_journal_syncs_total",
            Kind::Counter,
            "Syncs of the Raft log since the start.",
        );
        text.sample(&[], stats.syncs);
        text.family(
            "holdfast_journal_records_total",
            Kind::Counter,
            "Entries that those syncs made durable.",
        );
        text.sample(&[], stats.entries);
        out.push_str(&text.into_text());
    }
}
