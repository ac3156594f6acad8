//! Raft's asking side: votes, appends and snapshots over the transport seam.
//!
//! Owns the connection of openraft's network traits to [`Transport`]; openraft makes one of these per peer and purpose. Runtime-generic:
//! the simulator runs this very code. The one rule: an answer counts only as what the follower really said: a pre-vote is asked, never
//! assumed, and a follower that lacks what it acknowledged to this leader is cut off instead of being written to anew.
//!
//! Appends go through one ordered channel and are not held back by answers; a heartbeat is a call of its own.

pub mod files;
mod pipeline;
pub mod serve;
pub mod snapshot;

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use holdfast_proto::id::NodeId;
use holdfast_storage::types::{LeaderId, LogId, Peer, Types, Vote};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AsyncRuntime, OptionalSend, RaftNetworkFactory, RaftNetworkV2};

use self::snapshot::{Snapshot, SnapshotFiles};
use super::compaction::Departures;
use super::promise::{FORGOT, Promises};
use super::wire::{self, WireError};
use crate::net::{Class, NetError, Transport};

/// Waits between tries to reach a peer that does not answer. openraft's own begin at 200 ms, which would keep a follower that
/// restarted in 50 ms waiting for two heartbeats.
const BACKOFF_MS: [u64; 4] = [20, 50, 100, 200];

/// Makes the connections to peers.
pub struct Network<RT, D> {
    transport: Arc<dyn Transport>,
    files: Arc<dyn SnapshotFiles<D>>,
    promises: Arc<Promises>,
    departures: Arc<Departures>,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT, D> Network<RT, D> {
    /// Over `transport`; snapshots are read through `files`.
    pub fn new(
        transport: Arc<dyn Transport>,
        files: Arc<dyn SnapshotFiles<D>>,
        promises: Arc<Promises>,
        departures: Arc<Departures>,
    ) -> Self {
        Self {
            transport,
            files,
            promises,
            departures,
            runtime: PhantomData,
        }
    }

    fn connect(&self, to: u64, heartbeats: bool) -> PeerNetwork<RT, D> {
        PeerNetwork {
            to: NodeId(to),
            heartbeats,
            transport: self.transport.clone(),
            files: self.files.clone(),
            promises: self.promises.clone(),
            departures: self.departures.clone(),
            runtime: PhantomData,
        }
    }
}

impl<RT, D> RaftNetworkFactory<Types<RT>> for Network<RT, D>
where
    RT: AsyncRuntime,
    D: Clone + Send + Sync + 'static,
{
    type Network = PeerNetwork<RT, D>;

    async fn new_client(&mut self, target: u64, _: &Peer) -> Self::Network {
        self.connect(target, false)
    }

    async fn new_heartbeat_client(&mut self, target: u64, _: &Peer) -> Self::Network {
        self.connect(target, true)
    }
}

/// One peer.
pub struct PeerNetwork<RT, D> {
    to: NodeId,
    heartbeats: bool,
    transport: Arc<dyn Transport>,
    files: Arc<dyn SnapshotFiles<D>>,
    promises: Arc<Promises>,
    departures: Arc<Departures>,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT, D> PeerNetwork<RT, D>
where
    RT: AsyncRuntime,
    D: Clone + Send + Sync + 'static,
{
    async fn call(&self, request: Bytes, wait: Duration) -> Result<Bytes, RPCError<Types<RT>>> {
        match RT::timeout(wait, self.transport.call(self.to, Class::Raft, request)).await {
            Ok(answer) => answer.map_err(|error| rpc_error(&error)),
            Err(_) => Err(late(self.to, wait)),
        }
    }

    /// Asks for a vote, which counts only when the voter still has what it promised.
    async fn campaign(
        &self,
        rpc: &VoteRequest<Types<RT>>,
        kind: u16,
        option: &RPCOption,
    ) -> Result<VoteResponse<Types<RT>>, RPCError<Types<RT>>> {
        let before = self.promises.of(self.to);
        let answer = self.call(wire::vote(rpc, kind), option.hard_ttl()).await?;
        let voted: VoteResponse<Types<RT>> = wire::read_voted(&answer).map_err(|error| unreadable(&error))?;
        match self.promises.judge_end(self.to.0, before, voted.last_log_id) {
            true => Ok(voted),
            false => Err(forgetful(self.to)),
        }
    }
}

impl<RT, D> RaftNetworkV2<Types<RT>> for PeerNetwork<RT, D>
where
    RT: AsyncRuntime,
    D: Clone + Send + Sync + 'static,
{
    type SnapshotData = D;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types<RT>>, RPCError<Types<RT>>> {
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        let before = self.promises.of(self.to);
        let answer = self.call(wire::append(&rpc), option.hard_ttl()).await?;
        let result = wire::read_appended::<RT>(&answer).map_err(|error| unreadable(&error))?;
        checked::<RT>(&self.promises, self.to, rpc.vote.leader_id, before, &result)?;
        Ok(match result {
            Ok(matching) if matching != last => AppendEntriesResponse::PartialSuccess(matching),
            other => other.into(),
        })
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<Types<RT>>, RPCError<Types<RT>>>>, RPCError<Types<RT>>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<Types<RT>>> + OptionalSend + Unpin + 'static,
    {
        if self.heartbeats {
            return stream_append_sequential(self, input, option);
        }
        Box::pin(async move {
            let channel = self
                .transport
                .open(self.to, Class::Raft)
                .await
                .map_err(|error| rpc_error(&error))?;
            let stream: BoxStream<'s, _> =
                Box::pin(pipeline::run::<RT, S>(self.to, channel, input, self.promises.clone()));
            Ok(stream)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<RT>>, RPCError<Types<RT>>> {
        self.campaign(&rpc, wire::kind::VOTE, &option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<RT>>, RPCError<Types<RT>>> {
        self.campaign(&rpc, wire::kind::PRE_VOTE, &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<D>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types<RT>>, StreamingError<Types<RT>>> {
        let departure = self
            .departures
            .begin(snapshot.meta.last_log_id.map_or(0, |id| id.index));
        let send = snapshot::send::<RT, D>(self.to, &*self.transport, self.files.clone(), vote, snapshot);
        let sent = match RT::select2(cancel, send).await {
            openraft_rt::Select2::First(closed) => Err(closed.into()),
            openraft_rt::Select2::Second(sent) => sent,
        };
        drop(departure);
        sent
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types<RT>>, RPCError<Types<RT>>> {
        let answer = self.call(wire::transfer(&req), option.hard_ttl()).await?;
        wire::read_transferred::<RT>(&answer).map_err(|error| unreadable(&error))
    }

    fn backoff(&self) -> Option<Backoff> {
        let last = BACKOFF_MS[BACKOFF_MS.len() - 1];
        Some(Backoff::new(
            BACKOFF_MS
                .into_iter()
                .chain(std::iter::repeat(last))
                .map(Duration::from_millis),
        ))
    }
}

/// Passes an answer on only when it keeps the follower's earlier promises.
fn checked<RT: AsyncRuntime>(
    promises: &Promises,
    node: NodeId,
    leader: LeaderId,
    before: Option<u64>,
    result: &StreamAppendResult<Types<RT>>,
) -> Result<(), RPCError<Types<RT>>> {
    if promises.judge::<RT>(node.0, leader, before, result) {
        return Ok(());
    }
    Err(forgetful(node))
}

fn forgetful<RT: AsyncRuntime>(node: NodeId) -> RPCError<Types<RT>> {
    tracing::error!(%node, "{FORGOT}: it is not counted any more; remove the node, and join the machine again with an empty folder");
    Unreachable::from_string(FORGOT).into()
}

/// A failure that openraft waits after, or one after which it tries again at once.
fn rpc_error<RT: AsyncRuntime>(error: &NetError) -> RPCError<Types<RT>> {
    if error.is_unsent() {
        Unreachable::new(error).into()
    } else {
        NetworkError::new(error).into()
    }
}

fn unreadable<RT: AsyncRuntime>(error: &WireError) -> RPCError<Types<RT>> {
    Unreachable::new(error).into()
}

fn late<RT: AsyncRuntime>(node: NodeId, wait: Duration) -> RPCError<Types<RT>> {
    NetworkError::from_string(format!("node {node} did not answer within {} ms", wait.as_millis())).into()
}

/// The last log id that a request leads to.
fn last_of<RT: AsyncRuntime>(request: &AppendEntriesRequest<Types<RT>>) -> Option<LogId> {
    request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id)
}
