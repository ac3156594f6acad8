//! Where a leader's proposals become entries: stamped and handed to openraft in order, many at once.
//!
//! Owns the queue in front of openraft. Fed by [`super::replica`] with local and forwarded commands. The one rule: stamps are taken in the
//! order in which entries enter the log, by one task, and only after this leader has applied an entry of its own: before that it does
//! not know the time that its predecessors' entries have reached.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use holdfast_proto::command::Envelope;
use holdfast_proto::id::NodeId;
use holdfast_storage::types::{LeaderId, Proposal, Reply, Types};
use openraft::errors::ClientWriteError;
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Raft, RaftMetrics};
use openraft_rt::mpsc::{Mpsc, MpscReceiver};
use openraft_rt::oneshot::{Oneshot, OneshotSender};
use openraft_rt::watch::WatchReceiver;

use super::clock::ClusterClock;
use super::leadership::{Leadership, leading};
use super::walls::Walls;

/// Proposals that wait at most; a full queue slows its callers down.
pub(super) const QUEUE: usize = 8_192;
/// Proposals that go into openraft at once.
const BATCH: usize = 4_096;
/// How long a new leader's first entry may take before its proposals are sent away.
const FIRST_ENTRY_WAIT: Duration = Duration::from_secs(5);

/// What became of a proposal that was handed to this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// It is applied, or was decided against.
    Decided(Reply),
    /// It was not proposed: another node leads, or none.
    NotLeader(Option<NodeId>),
    /// It may or may not take effect.
    Unknown(String),
}

type Answer<RT> = <<RT as AsyncRuntime>::Oneshot as Oneshot>::Sender<Submitted>;

/// A proposal that waits.
pub(super) struct Pending<RT: AsyncRuntime> {
    pub(super) envelope: Envelope,
    pub(super) answer: Answer<RT>,
}

type Queue<RT> = <<RT as AsyncRuntime>::Mpsc as Mpsc>::Receiver<Pending<RT>>;

/// The task that empties the queue.
pub(super) struct Proposer<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    pub(super) raft: Raft<Types<RT>, SM>,
    pub(super) clock: Arc<ClusterClock>,
    pub(super) walls: Walls<RT>,
    /// The leadership that the clock was told of.
    pub(super) led: Option<LeaderId>,
}

impl<RT, SM> Proposer<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// Runs until the queue is closed.
    pub(super) async fn run(mut self, mut queue: Queue<RT>) {
        while let Some(first) = queue.recv().await {
            let mut batch = vec![first];
            while batch.len() < BATCH {
                let Ok(next) = queue.try_recv() else { break };
                batch.push(next);
            }
            match self.ready().await {
                Ok(()) => self.propose(batch).await,
                Err(leader) => answer_all(batch, &Submitted::NotLeader(leader)),
            }
        }
    }

    /// Makes sure that this replica leads, and that the clock knows it.
    async fn ready(&mut self) -> Result<(), Option<NodeId>> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let Some(own) = leading(&metrics) else {
            self.led = None;
            self.clock.follow();
            return Err(metrics.current_leader.map(NodeId));
        };
        if self.led == Some(own) {
            return Ok(());
        }
        let applied_own = |metrics: &RaftMetrics<Types<RT>>| {
            leading(metrics) != Some(own) || Leadership::of(metrics).own_term_applied
        };
        let waited = self
            .raft
            .wait(Some(FIRST_ENTRY_WAIT))
            .metrics(applied_own, "the leader's first entry")
            .await;
        let applied = waited
            .ok()
            .filter(|metrics| Leadership::of(metrics).own_term_applied)
            .and_then(|metrics| metrics.last_applied);
        let Some(applied) = applied else { return Err(None) };
        self.clock.applied(applied.index);
        self.clock.lead(self.walls.median(&metrics).await);
        self.led = Some(own);
        Ok(())
    }

    async fn propose(&self, batch: Vec<Pending<RT>>) {
        let mut answers = Vec::with_capacity(batch.len());
        let mut proposals = Vec::with_capacity(batch.len());
        for Pending { mut envelope, answer } in batch {
            envelope.stamp = self.clock.take();
            proposals.push(Proposal(envelope.encode()));
            answers.push(answer);
        }
        match self.raft.client_write_many(proposals).await {
            Err(fatal) => {
                for answer in answers {
                    let _ = answer.send(Submitted::Unknown(fatal.to_string()));
                }
            }
            Ok(results) => {
                // Results come when entries are applied; the next batch does not wait for them.
                drop(RT::spawn(async move {
                    // It ends early when openraft stops, and must not be asked again then.
                    let mut results = results.fuse();
                    for answer in answers {
                        let submitted = match results.next().await {
                            Some(Ok(Ok(written))) => Submitted::Decided(written.response),
                            Some(Ok(Err(error))) => refused::<RT>(&error),
                            Some(Err(fatal)) => Submitted::Unknown(fatal.to_string()),
                            None => Submitted::Unknown("this replica is shutting down".into()),
                        };
                        // Whoever asked may have given up.
                        let _ = answer.send(submitted);
                    }
                }));
            }
        }
    }
}

fn refused<RT: AsyncRuntime>(error: &ClientWriteError<Types<RT>>) -> Submitted {
    match error {
        ClientWriteError::ForwardToLeader(forward) => Submitted::NotLeader(forward.leader_id.map(NodeId)),
        other => Submitted::Unknown(other.to_string()),
    }
}

fn answer_all<RT: AsyncRuntime>(batch: Vec<Pending<RT>>, submitted: &Submitted) {
    for pending in batch {
        let _ = pending.answer.send(submitted.clone());
    }
}
