//! Probes around a replica's storage: they pass everything on, and tell the checkers what passed.
//!
//! The log's probe sees each entry as it is taken in, before it is durable; the machine's sees what was applied, and
//! then asks the replica for its state hash and its events, as a subscriber would. The one rule: a probe changes
//! nothing but the size of a batch, which openraft leaves open anyway.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use holdfast_proto::id::NodeId;
use holdfast_storage::types::{Entry, LogId, Payload, SnapshotMeta, StoredMembership, Types, Vote};
use openraft::OptionalSend;
use openraft::storage::{EntryResponder, IOFlushed, LogState, RaftLogStorage, RaftStateMachine};

use crate::check::{Place, Seen};
use crate::random::Stream as Draws;
use crate::runtime::Simulated;
use crate::trace::digest;

type Raft = Types<Simulated>;
type Snapshot<D> = openraft::type_config::alias::SnapshotOf<Raft, D>;

/// An entry that passed.
#[derive(Debug, Clone)]
pub struct Passed {
    /// Where it is in the log.
    pub place: Place,
    /// Digest of what it holds.
    pub content: u64,
    /// The command that it carries, encoded, if it carries one.
    pub proposal: Option<Bytes>,
}

impl Passed {
    fn of(entry: &Entry) -> Self {
        let id = &entry.log_id;
        let place = Place {
            term: id.leader_id.term,
            leader: NodeId(id.leader_id.node_id),
            index: id.index,
        };
        let (content, proposal) = match &entry.payload {
            Payload::Blank => (1, None),
            Payload::Normal(proposal) => (digest(&proposal.0), Some(proposal.0.clone())),
            Payload::Membership(members) => (digest(format!("{members:?}").as_bytes()), None),
        };
        Self {
            place,
            content,
            proposal,
        }
    }
}

/// Hears what passes a replica's storage.
pub trait Probe: Send + Sync + 'static {
    /// Entries were taken into the log.
    fn appended(&self, by: Seen, entries: &[Passed]);

    /// Entries were applied; the replica now stands after the last of them.
    fn applied(&self, by: Seen, entries: &[Passed]);

    /// A snapshot was taken in.
    fn installed(&self, by: Seen);
}

/// The log's probe.
pub struct ObservedLog<L> {
    inner: L,
    by: Seen,
    probe: Arc<dyn Probe>,
}

impl<L> ObservedLog<L> {
    /// Puts the probe around a log.
    pub fn new(inner: L, by: Seen, probe: Arc<dyn Probe>) -> Self {
        Self { inner, by, probe }
    }
}

impl<L: RaftLogStorage<Raft>> RaftLogStorage<Raft> for ObservedLog<L> {
    type LogReader = L::LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Raft>> {
        self.inner.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> L::LogReader {
        self.inner.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.inner.save_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.inner.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.inner.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Raft>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let seen: Vec<Passed> = entries.iter().map(Passed::of).collect();
        self.probe.appended(self.by, &seen);
        self.inner.append(entries, callback).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.inner.truncate_after(last).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.inner.purge(upto).await
    }
}

/// The machine's probe.
pub struct ObservedMachine<M> {
    inner: M,
    by: Seen,
    probe: Arc<dyn Probe>,
    draws: Draws,
}

impl<M> ObservedMachine<M> {
    /// Puts the probe around a machine; `draws` decide how large the batches are.
    pub fn new(inner: M, by: Seen, probe: Arc<dyn Probe>, draws: Draws) -> Self {
        Self {
            inner,
            by,
            probe,
            draws,
        }
    }
}

impl<M: RaftStateMachine<Raft>> RaftStateMachine<Raft> for ObservedMachine<M> {
    type SnapshotData = M::SnapshotData;
    type SnapshotBuilder = M::SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        self.inner.applied_state().await
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Raft>>> + Unpin + OptionalSend,
    {
        let mut entries = pin!(entries.fuse());
        loop {
            // Mostly one by one, so that states are compared at every index; sometimes many, as under load.
            let most = if self.draws.chance(900) { 1 } else { 64 };
            let (mut batch, mut seen) = (Vec::new(), Vec::new());
            while batch.len() < most {
                let Some(next) = entries.next().await else { break };
                let (entry, responder) = next?;
                seen.push(Passed::of(&entry));
                batch.push(Ok((entry, responder)));
            }
            if batch.is_empty() {
                return Ok(());
            }
            self.inner.apply(stream::iter(batch)).await?;
            self.probe.applied(self.by, &seen);
        }
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<M::SnapshotBuilder> {
        self.inner.try_create_snapshot_builder(force).await
    }

    async fn get_snapshot_builder(&mut self) -> M::SnapshotBuilder {
        self.inner.get_snapshot_builder().await
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: M::SnapshotData) -> io::Result<()> {
        self.inner.install_snapshot(meta, snapshot).await?;
        self.probe.installed(self.by);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot<M::SnapshotData>>> {
        self.inner.get_current_snapshot().await
    }
}
