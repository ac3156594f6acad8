//! Where a leader's proposals become entries: stamped and handed to openraft in order, many at once.
//!
//! Owns the queue in front of openraft. Fed by [`super::replica`] with local and forwarded commands. The one rule: stamps are taken in the
//! order in which entries enter the log, by one task, and only after this leader has applied an entry of its own: before that it does
//! not know the time that its predecessors' entries have reached.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use holdfast_proto::command::Envelope;
use holdfast_proto::id::NodeId;
use holdfast_proto::limits::COMMAND_BYTES_MAX;
use holdfast_proto::time::Timestamp;
use holdfast_storage::types::{LeaderId, Proposal, Reply, Types};
use openraft::errors::{ClientWriteError, Fatal};
use openraft::raft::WriteResult;
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Raft, RaftMetrics};
use openraft_rt::mpsc::{Mpsc, MpscReceiver};
use openraft_rt::oneshot::{Oneshot, OneshotSender};
use openraft_rt::watch::WatchReceiver;

use super::clock::ClusterClock;
use super::leadership::{Leadership, leading};
use super::walls::Walls;

/// Groups of proposals that wait at most; a full queue slows its callers down.
pub(super) const QUEUE: usize = 8_192;
/// Proposals that go into openraft at once (the last group may pass it), and the bytes of them: what bounds how long the first one waits.
const BATCH: usize = 4_096;
const BATCH_BYTES: usize = 1 << 20;
/// What is told when openraft has gone before it answered.
pub(super) const STOPPED: &str = "this replica is shutting down";
/// How long a new leader's first entry may take before its proposals are sent away.
const FIRST_ENTRY_WAIT: Duration = Duration::from_secs(5);

/// What became of a proposal that was handed to this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// It is applied, or was decided against.
    Decided(Reply),
    /// It was not proposed: another node leads, or none.
    NotLeader(Option<NodeId>),
    /// It was not proposed: it has so many bytes, more than a command may have.
    TooLarge(usize),
    /// It may or may not take effect.
    Unknown(String),
}

/// What became of proposals that came together, with the proposals themselves: whoever tries again needs them.
pub(super) type Returned = Vec<(Submitted, Envelope)>;

type Answer<RT> = <<RT as AsyncRuntime>::Oneshot as Oneshot>::Sender<Returned>;

/// Proposals that came together, wait, and are answered together.
pub(super) struct Pending<RT: AsyncRuntime> {
    /// Never empty.
    pub(super) envelopes: Vec<Envelope>,
    /// About how many bytes they take.
    pub(super) bytes: usize,
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
            let (mut count, mut bytes) = (first.envelopes.len(), first.bytes);
            let mut batch = vec![first];
            while count < BATCH && bytes < BATCH_BYTES {
                let Ok(next) = queue.try_recv() else { break };
                count += next.envelopes.len();
                bytes += next.bytes;
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

    /// All of the batch get one stamp: they are ready at one moment, and enter the log in one append.
    async fn propose(&self, batch: Vec<Pending<RT>>) {
        let (groups, proposals) = encode(batch, self.clock.take());
        match self.raft.client_write_many(proposals).await {
            Err(fatal) => {
                for Group { places, answer } in groups {
                    let told = places.into_iter().map(|(place, envelope)| {
                        let submitted = place.unwrap_or_else(|InLog| Submitted::Unknown(fatal.to_string()));
                        (submitted, envelope)
                    });
                    let _ = answer.send(told.collect());
                }
            }
            // Results come when entries are applied; the next batch does not wait for them.
            Ok(results) => drop(RT::spawn(tell(groups, results.map(submitted::<RT>)))),
        }
    }
}

/// Proposals of one caller, after they were encoded.
struct Group<RT: AsyncRuntime> {
    /// In the caller's order; what is settled already was not proposed.
    places: Vec<(Result<Submitted, InLog>, Envelope)>,
    answer: Answer<RT>,
}

/// Marks a proposal whose answer comes from the log.
struct InLog;

/// Encodes each proposal, once: the same bytes go to the disk and to the other voters.
fn encode<RT: AsyncRuntime>(batch: Vec<Pending<RT>>, stamp: Timestamp) -> (Vec<Group<RT>>, Vec<Proposal>) {
    let mut groups = Vec::with_capacity(batch.len());
    let mut proposals = Vec::with_capacity(batch.iter().map(|pending| pending.envelopes.len()).sum());
    for Pending { envelopes, answer, .. } in batch {
        let place = |mut envelope: Envelope| {
            envelope.stamp = stamp;
            let bytes = envelope.encode();
            if bytes.len() > COMMAND_BYTES_MAX {
                return (Ok(Submitted::TooLarge(bytes.len())), envelope);
            }
            proposals.push(Proposal(bytes));
            (Err(InLog), envelope)
        };
        let places = envelopes.into_iter().map(place).collect();
        groups.push(Group { places, answer });
    }
    (groups, proposals)
}

/// Answers the groups in order, each when all of it is settled.
async fn tell<RT: AsyncRuntime>(groups: Vec<Group<RT>>, results: impl Stream<Item = Submitted>) {
    // It ends early when openraft stops, and must not be asked again then.
    let mut results = pin!(results.fuse());
    for Group { places, answer } in groups {
        let mut told = Vec::with_capacity(places.len());
        for (place, envelope) in places {
            let submitted = match place {
                Ok(settled) => settled,
                Err(InLog) => (results.next().await).unwrap_or_else(|| Submitted::Unknown(STOPPED.into())),
            };
            told.push((submitted, envelope));
        }
        // Whoever asked may have given up.
        let _ = answer.send(told);
    }
}

fn submitted<RT: AsyncRuntime>(result: Result<WriteResult<Types<RT>>, Fatal<Types<RT>>>) -> Submitted {
    match result {
        Ok(Ok(written)) => Submitted::Decided(written.response),
        Ok(Err(error)) => refused::<RT>(&error),
        Err(fatal) => Submitted::Unknown(fatal.to_string()),
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
        let told = pending
            .envelopes
            .into_iter()
            .map(|envelope| (submitted.clone(), envelope));
        let _ = pending.answer.send(told.collect());
    }
}
