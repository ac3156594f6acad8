//! Raft's answering side: votes, appends and snapshots of other replicas.
//!
//! Owns the services of the Raft and the snapshot class. The one rule: a node speaks for itself only. A vote or an append whose leader
//! or candidate is not the node in the peer's certificate is refused and never reaches openraft, and so is one of a node whose role
//! never votes.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use holdfast_proto::frame;
use holdfast_proto::id::NodeId;
use holdfast_storage::types::{LogId, Types, Vote};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Raft, Snapshot};

use super::super::promise::Promises;
use super::super::ticker::Signs;
use super::super::wire::{self, SnapshotOffer, kind};
use super::snapshot::{Install, ReceiveError, SnapshotFiles, receive};
use crate::net::{Channel, FrameSource, Refusal, Service};

/// Whether a node's role lets it vote or lead. A node that is not known yet may: its entry may be what it brings.
pub type MayVote = Arc<dyn Fn(NodeId) -> bool + Send + Sync>;

/// Answers the Raft class.
pub struct RaftService<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// The replica.
    pub raft: Raft<Types<RT>, SM>,
    /// Who may vote.
    pub may_vote: MayVote,
    /// Notes that the leader was heard.
    pub heard: Arc<dyn Fn() + Send + Sync>,
    /// What replicas have promised.
    pub promises: Arc<Promises>,
    /// Told of each append that openraft accepted.
    pub signs: Arc<Signs<RT>>,
}

impl<RT, SM> RaftService<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    fn own(&self, from: NodeId, vote: &Vote) -> Result<(), Refusal> {
        if vote.leader_id.node_id != from.0 {
            tracing::warn!(%from, claimed = %NodeId(vote.leader_id.node_id), "refused a message in another node's name");
            return Err(Refusal("this message is in another node's name".into()));
        }
        if !(self.may_vote)(from) {
            tracing::warn!(%from, "refused a node that never votes");
            return Err(Refusal("this node's role never votes".into()));
        }
        Ok(())
    }

    /// A candidate without what it promised must not lead. Nor may one whose request was under way while it promised
    /// more: it has no use for the vote any longer.
    fn remembers(&self, from: NodeId, end: Option<LogId>) -> Result<(), Refusal> {
        if self.promises.suffices(from.0, end) {
            return Ok(());
        }
        tracing::warn!(%from, ?end, "refused a vote: the candidate has promised more than its request shows");
        Err(Refusal("this request shows less than its sender has promised".into()))
    }

    async fn answer(&self, from: NodeId, request: &Bytes) -> Result<Bytes, Refusal> {
        let (kind, _) = frame::open(request).map_err(refusal)?;
        match kind {
            kind::VOTE => {
                let request = wire::read_vote(request, kind).map_err(refusal)?;
                self.own(from, &request.vote)?;
                self.remembers(from, request.last_log_id)?;
                Ok(wire::voted(&self.raft.vote(request).await.map_err(refusal)?))
            }
            kind::PRE_VOTE => {
                let request = wire::read_vote(request, kind).map_err(refusal)?;
                self.own(from, &request.vote)?;
                self.remembers(from, request.last_log_id)?;
                Ok(wire::voted(&self.raft.pre_vote(request).await.map_err(refusal)?))
            }
            kind::APPEND => {
                let request = wire::read_append(request).map_err(refusal)?;
                self.own(from, &request.vote)?;
                (self.heard)();
                let mut answers = Box::pin(self.raft.stream_append(stream::once(std::future::ready(request))));
                let answer = answers
                    .next()
                    .await
                    .ok_or_else(|| Refusal("this replica has stopped".into()))?;
                Ok(self.appended(&answer.map_err(refusal)?))
            }
            kind::TRANSFER => {
                let request = wire::read_transfer(request).map_err(refusal)?;
                self.own(from, request.from_leader())?;
                Ok(wire::transferred::<RT>(
                    &self.raft.handle_transfer_leader(request).await.map_err(refusal)?,
                ))
            }
            other => Err(Refusal(format!(
                "frames of kind {other:#06x} are not spoken on the raft class"
            ))),
        }
    }

    /// An answer of openraft's, encoded. All but a higher vote show that it takes the sender for the leader.
    fn appended(&self, answer: &StreamAppendResult<Types<RT>>) -> Bytes {
        if !matches!(answer, Err(StreamAppendError::HigherVote(_))) {
            self.signs.note();
        }
        wire::appended::<RT>(answer)
    }

    /// Serves one append stream until either side ends it.
    async fn appends(self: Arc<Self>, from: NodeId, channel: Channel) {
        let Channel { mut sink, source } = channel;
        let service = self.clone();
        let requests = stream::unfold(source, move |source| {
            let service = service.clone();
            async move { service.next_append(from, source).await }
        });
        let mut answers = Box::pin(self.raft.stream_append(requests));
        while let Some(answer) = answers.next().await {
            let Ok(answer) = answer else { return };
            if sink.send(self.appended(&answer)).await.is_err() {
                return;
            }
        }
        // The leader reads this as the end; what fails now has been answered already.
        let _ = sink.finish().await;
    }

    async fn next_append(
        &self,
        from: NodeId,
        mut source: Box<dyn FrameSource>,
    ) -> Option<(AppendEntriesRequest<Types<RT>>, Box<dyn FrameSource>)> {
        let frame = source.next().await.ok()??;
        match wire::read_append(&frame) {
            Ok(request) if self.own(from, &request.vote).is_ok() => {
                (self.heard)();
                Some((request, source))
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(%from, %error, "an append cannot be read");
                None
            }
        }
    }
}

impl<RT, SM> Service for RaftService<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    fn call(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        Box::pin(async move { self.answer(from, &request).await })
    }

    fn channel(self: Arc<Self>, from: NodeId, channel: Channel) -> BoxFuture<'static, ()> {
        Box::pin(self.appends(from, channel))
    }
}

/// Answers the snapshot class.
pub struct SnapshotService<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// The replica.
    pub raft: Raft<Types<RT>, SM>,
    /// Where snapshots are written.
    pub files: Arc<dyn SnapshotFiles<SM::SnapshotData>>,
    /// Who may lead.
    pub may_vote: MayVote,
}

impl<RT, SM> Install<SM::SnapshotData> for SnapshotService<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    fn higher_vote(&self, vote: &Vote) -> Option<Vote> {
        let known = self.raft.metrics().borrow_watched().vote;
        (known > *vote).then_some(known)
    }

    fn install(&self, offer: SnapshotOffer, snapshot: SM::SnapshotData) -> BoxFuture<'_, Result<Vote, ReceiveError>> {
        Box::pin(async move {
            let snapshot = Snapshot {
                meta: wire::snapshot_meta(&offer)?,
                snapshot,
            };
            let installed = self.raft.install_full_snapshot(offer.vote.into(), snapshot).await;
            Ok(installed.map_err(|_| ReceiveError::Stopped)?.vote)
        })
    }
}

impl<RT, SM> Service for SnapshotService<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
    SM::SnapshotData: Clone + Send + Sync,
{
    fn call(self: Arc<Self>, _: NodeId, _: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        Box::pin(std::future::ready(Err(Refusal(
            "snapshots are sent over a channel".into(),
        ))))
    }

    fn channel(self: Arc<Self>, from: NodeId, channel: Channel) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if !(self.may_vote)(from) {
                tracing::warn!(%from, "refused a snapshot from a node that never leads");
                return;
            }
            if let Err(error) = receive::<RT, SM::SnapshotData>(from, channel, self.files.clone(), &*self).await {
                tracing::warn!(%from, %error, "a snapshot was not taken in");
            }
        })
    }
}

fn refusal(error: impl std::fmt::Display) -> Refusal {
    Refusal(error.to_string())
}
