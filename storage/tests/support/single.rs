//! A cluster of one: real openraft on the Raft log and the adapter, without a network.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::command::Envelope;
use holdfast_storage::adapter::{Adapter, StateSnapshot};
use holdfast_storage::disk::memory::MemoryDisk;
use holdfast_storage::raft_log::Opened;
use holdfast_storage::snapshot::SnapshotFile;
use holdfast_storage::types::{Peer, Proposal, Types, Vote};
use holdfast_storage::{CommittedSource, Reply};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, v2::RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{Config, OptionalSend, Raft, SnapshotPolicy};
use tokio::task::JoinHandle;

use super::{RAFT_LOG, Runtime, try_open_adapter};

type T = Types<Runtime>;

/// There is nobody to talk to.
struct Alone;

fn nobody() -> Unreachable<T> {
    Unreachable::new(&std::io::Error::other("there is no other node"))
}

impl RaftNetworkFactory<T> for Alone {
    type Network = Self;

    async fn new_client(&mut self, _: u64, _: &Peer) -> Self {
        Self
    }
}

impl RaftNetworkV2<T> for Alone {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<T>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<T>, RPCError<T>> {
        Err(RPCError::Unreachable(nobody()))
    }

    async fn vote(&mut self, _: VoteRequest<T>, _: RPCOption) -> Result<VoteResponse<T>, RPCError<T>> {
        Err(RPCError::Unreachable(nobody()))
    }

    async fn full_snapshot(
        &mut self,
        _: Vote,
        _: StateSnapshot,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<T>, StreamingError<T>> {
        Err(StreamingError::Unreachable(nobody()))
    }
}

/// One life of the only replica.
pub(crate) struct Single {
    pub(crate) raft: Raft<T, Adapter<Runtime>>,
    pub(crate) source: Arc<dyn CommittedSource>,
    log: JoinHandle<()>,
}

impl Single {
    /// Starts the replica on what the disk holds; fails when the disk does.
    pub(crate) async fn start(disk: &MemoryDisk) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let opened = Opened::open(Arc::new(disk.clone()), Path::new("/data/raft"), RAFT_LOG);
        let (log, task) = opened.map_err(|error| text(&error))?.start_task(|| Duration::ZERO);
        let log_task = tokio::spawn(task);
        let (adapter, _) = try_open_adapter(disk.clone()).map_err(|error| text(&error))?;
        let source = adapter.source();
        let config = Config {
            heartbeat_interval: 20,
            election_timeout_min: 40,
            election_timeout_max: 60,
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: 0,
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        let config = Arc::new(config.validate().unwrap());
        let raft = Raft::new(1, config, Alone, log, adapter)
            .await
            .map_err(|error| text(&error))?;
        Ok(Self {
            raft,
            source,
            log: log_task,
        })
    }

    /// Makes the cluster of one.
    pub(crate) async fn initialize(&self) -> Result<(), String> {
        let members = BTreeMap::from([(
            1,
            Peer {
                address: "n1:7400".into(),
            },
        )]);
        self.raft.initialize(members).await.map_err(|error| error.to_string())
    }

    /// Waits for leadership and proposes.
    pub(crate) async fn propose(&self, envelope: &Envelope) -> Result<Reply, String> {
        let wait = self.raft.wait(Some(Duration::from_secs(60)));
        wait.state(openraft::ServerState::Leader, "leads")
            .await
            .map_err(|error| error.to_string())?;
        let written = self.raft.client_write(Proposal(envelope.encode())).await;
        written.map(|written| written.data).map_err(|error| error.to_string())
    }

    /// Stops it; what was written stays written, and the power may go after.
    pub(crate) async fn stop(self) {
        // A replica that has failed is stopped already.
        let _ = self.raft.shutdown().await;
        drop(self.raft);
        self.log.await.unwrap();
    }
}
