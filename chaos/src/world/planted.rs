//! Bugs that are planted around a replica's storage and its events.
//!
//! Each wrapper passes everything on unless its bug is planted. The one rule: a bug breaks its promise and no other, so
//! that what catches it says what would be caught.

use std::io;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use holdfast_proto::command::Envelope;
use holdfast_proto::event::EventRecord;
use holdfast_proto::id::NodeId;
use holdfast_proto::time::Timestamp;
use holdfast_storage::types::{Entry, LogId, Payload, Proposal, SnapshotMeta, StoredMembership, Types, Vote};
use openraft::OptionalSend;
use openraft::storage::{EntryResponder, IOFlushed, LogState, RaftLogStorage, RaftStateMachine};

use crate::mutant::Mutant;
use crate::random::Stream as Draws;
use crate::runtime::Simulated;

type Raft = Types<Simulated>;
type Snapshot<D> = openraft::type_config::alias::SnapshotOf<Raft, D>;

/// How often a bug strikes that strikes now and then, in a thousand.
const NOW_AND_THEN: u64 = 20;
/// Entries that [`Mutant::PurgeTooFar`] takes with it.
const TOO_FAR: u64 = 50;

/// A log with a bug, or none.
pub struct PlantedLog<L> {
    inner: L,
    mutant: Option<Mutant>,
}

impl<L> PlantedLog<L> {
    /// Plants the bug in a log.
    pub fn new(inner: L, mutant: Option<Mutant>) -> Self {
        Self { inner, mutant }
    }

    fn has(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

impl<L: RaftLogStorage<Raft>> RaftLogStorage<Raft> for PlantedLog<L> {
    type LogReader = L::LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Raft>> {
        self.inner.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> L::LogReader {
        self.inner.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        if self.has(Mutant::VoteForgotten) {
            return Ok(());
        }
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
        let mut entries: Vec<Entry> = entries.into_iter().collect();
        if self.has(Mutant::AppendLosesTail) && entries.len() > 1 {
            entries.pop();
        }
        if self.has(Mutant::AcknowledgeBeforeFsync) {
            callback.io_completed(Ok(()));
            return self.inner.append(entries, IOFlushed::noop()).await;
        }
        self.inner.append(entries, callback).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        if self.has(Mutant::TruncateIgnored) {
            return Ok(());
        }
        self.inner.truncate_after(last).await
    }

    async fn purge(&mut self, mut upto: LogId) -> io::Result<()> {
        if self.has(Mutant::PurgeTooFar) {
            upto.index += TOO_FAR;
        }
        self.inner.purge(upto).await
    }
}

/// A machine with a bug, or none.
pub struct PlantedMachine<M> {
    inner: M,
    mutant: Option<Mutant>,
    node: NodeId,
    draws: Draws,
}

impl<M> PlantedMachine<M> {
    /// Plants the bug in the machine of a node.
    pub fn new(inner: M, mutant: Option<Mutant>, node: NodeId, draws: Draws) -> Self {
        Self {
            inner,
            mutant,
            node,
            draws,
        }
    }

    fn strikes(&mut self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant) && self.draws.chance(NOW_AND_THEN)
    }

    fn change(&mut self, entries: &mut [EntryResponder<Raft>]) {
        if self.mutant == Some(Mutant::WallClockInApply) {
            let off_ms = self.node.0;
            entries.iter_mut().for_each(|(entry, _)| late(entry, off_ms));
        }
        if self.mutant == Some(Mutant::DedupForgotten) {
            entries.iter_mut().for_each(|(entry, _)| forget(entry));
        }
        // Who waits for an answer would get that of another entry; that is another bug.
        let follows = entries.iter().all(|(_, responder)| responder.is_none());
        if !follows {
            return;
        }
        if self.strikes(Mutant::ApplySkips)
            && let Some((entry, _)) = entries.first_mut()
            && let Payload::Normal(_) = entry.payload
        {
            entry.payload = Payload::Blank;
        }
        if let [(first, _), (second, _), ..] = entries
            && self.mutant == Some(Mutant::ApplySwaps)
        {
            std::mem::swap(&mut first.payload, &mut second.payload);
        }
    }
}

/// Takes the request's id from an entry.
fn forget(entry: &mut Entry) {
    if let Payload::Normal(Proposal(bytes)) = &entry.payload
        && let Ok(mut envelope) = Envelope::decode(bytes)
    {
        envelope.request = None;
        entry.payload = Payload::Normal(Proposal(envelope.encode()));
    }
}

/// Moves the time of an entry.
fn late(entry: &mut Entry, by_ms: u64) {
    if let Payload::Normal(Proposal(bytes)) = &entry.payload
        && let Ok(mut envelope) = Envelope::decode(bytes)
    {
        envelope.stamp = Timestamp(envelope.stamp.0 + by_ms);
        entry.payload = Payload::Normal(Proposal(envelope.encode()));
    }
}

impl<M: RaftStateMachine<Raft>> RaftStateMachine<Raft> for PlantedMachine<M> {
    type SnapshotData = M::SnapshotData;
    type SnapshotBuilder = M::SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        self.inner.applied_state().await
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Raft>>> + Unpin + OptionalSend,
    {
        if self.mutant.is_none() {
            return self.inner.apply(entries).await;
        }
        let entries: Vec<io::Result<EntryResponder<Raft>>> = entries.collect().await;
        let mut entries = entries.into_iter().collect::<io::Result<Vec<_>>>()?;
        self.change(&mut entries);
        self.inner.apply(stream::iter(entries.into_iter().map(Ok))).await
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<M::SnapshotBuilder> {
        self.inner.try_create_snapshot_builder(force).await
    }

    async fn get_snapshot_builder(&mut self) -> M::SnapshotBuilder {
        self.inner.get_snapshot_builder().await
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: M::SnapshotData) -> io::Result<()> {
        if self.mutant == Some(Mutant::SnapshotNotInstalled) {
            return Ok(());
        }
        self.inner.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot<M::SnapshotData>>> {
        self.inner.get_current_snapshot().await
    }
}

/// Plants the bug in what a reader gets.
pub fn events(mut events: Vec<Arc<EventRecord>>, mutant: Option<Mutant>, draws: &mut Draws) -> Vec<Arc<EventRecord>> {
    let strikes = mutant.is_some() && draws.chance(NOW_AND_THEN);
    if !strikes || events.len() < 2 {
        return events;
    }
    match mutant {
        Some(Mutant::EventMissed) => {
            events.remove(0);
        }
        Some(Mutant::EventRepeated) => events.insert(1, events[0].clone()),
        Some(Mutant::EventsSwapped) => events.swap(0, 1),
        _ => {}
    }
    events
}
