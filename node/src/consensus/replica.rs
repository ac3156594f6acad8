//! One replica as the rest of the node sees it: propose, read fresh, know who leads.
//!
//! Owns openraft's handle and the tasks around it. `boot.rs` starts one per node, the simulator one per simulated node; everything else
//! holds it as [`Propose`], [`Linearize`] or [`Lead`]. The one rule: a command is sent again only while it is certain, by its request id or by
//! its content, that a second entry changes nothing; what stays uncertain when time is up is told as unknown.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use holdfast_proto::command::Envelope;
use holdfast_proto::frame;
use holdfast_proto::id::NodeId;
use holdfast_proto::limits::COMMAND_BYTES_MAX;
use holdfast_proto::rejection::Rejection;
use holdfast_storage::types::{Reply, Types};
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Instant as _, Raft, ReadPolicy};
use openraft_rt::mpsc::{Mpsc, MpscSender};
use openraft_rt::oneshot::Oneshot;
use openraft_rt::watch::WatchReceiver;

use super::clock::ClusterClock;
use super::leadership::{Confirmed, Lead, Leadership, Pulse};
use super::proposer::{Pending, Proposer, QUEUE, Returned, STOPPED, Submitted};
use super::rounds::Rounds;
use super::ticker::Signs;
use super::walls::Walls;
use super::wire::{Answer, Question, kind};
use super::{Linearize, Outcome, Propose, ReadError};
use crate::identity::secret::Secret;
use crate::net::{Class, NetError, Transport};

/// How long a proposal or a read is tried before its outcome is told as unknown.
const PATIENCE_MS: u64 = 10_000;
/// How long one try at one leader may take. A leader that changes ends a try at once.
const TRY_WAIT: Duration = Duration::from_secs(5);
/// Why a leader's own proposal is not answered in time.
const NO_QUORUM: &str = "this leader reaches no quorum";
/// How often a missing leader is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// Judges, on the leader, a node's command that only this leader's memory can judge. The error says what is wrong with it.
pub type Gate = Arc<dyn Fn(&Envelope) -> Result<(), String> + Send + Sync>;

type Sender<RT> = <<RT as AsyncRuntime>::Mpsc as Mpsc>::Sender<Pending<RT>>;

/// A running replica.
pub struct Replica<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    pub(super) raft: Raft<Types<RT>, SM>,
    pub(super) me: NodeId,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Arc<ClusterClock>,
    /// When a leader was last heard.
    pub(super) pulse: Arc<Pulse>,
    queue: Sender<RT>,
    rounds: Rounds,
    signs: Arc<Signs<RT>>,
    gate: OnceLock<Gate>,
}

impl<RT, SM> Replica<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// Starts the tasks around an openraft that runs.
    pub fn start(
        raft: Raft<Types<RT>, SM>,
        me: NodeId,
        transport: Arc<dyn Transport>,
        clock: Arc<ClusterClock>,
        signs: Arc<Signs<RT>>,
    ) -> Arc<Self> {
        let (queue, waiting) = RT::Mpsc::channel(QUEUE);
        let walls = Walls::new(me, transport.clone(), clock.clone());
        let proposer = Proposer {
            raft: raft.clone(),
            clock: clock.clone(),
            walls,
            led: None,
        };
        // A dropped handle leaves its task running: these end with the queue and with openraft.
        drop(RT::spawn(proposer.run(waiting)));
        drop(RT::spawn(follow_time(raft.clone(), clock.clone())));
        Arc::new(Self {
            raft,
            me,
            transport,
            clock,
            pulse: Arc::default(),
            queue,
            rounds: Rounds::default(),
            signs,
            gate: OnceLock::new(),
        })
    }

    /// openraft's own handle, for those who start and stop it.
    pub fn raft(&self) -> &Raft<Types<RT>, SM> {
        &self.raft
    }

    /// The cluster's time here.
    pub fn clock(&self) -> &Arc<ClusterClock> {
        &self.clock
    }

    /// Milliseconds since this replica last heard its leader; on the leader, since a quorum last answered it.
    pub fn heard_ms_ago(&self) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if !Leadership::of(&metrics).is_self {
            return self.pulse.silent_ms(self.clock.boot_ms());
        }
        let acknowledged = metrics.last_quorum_acked?;
        Some(u64::try_from(acknowledged.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Sets the gate, once. Without one every command passes.
    pub fn set_gate(&self, gate: Gate) {
        assert!(
            self.gate.set(gate).is_ok(),
            "the gate is set once, while the node boots"
        );
    }

    /// Asks the gate while this replica leads. A follower proposes nothing, so it judges nothing.
    pub(super) fn admits(&self, envelope: &Envelope) -> Result<(), String> {
        match self.gate.get().filter(|_| self.leadership().is_self) {
            Some(gate) => gate(envelope),
            None => Ok(()),
        }
    }

    /// Hands a command of so many bytes to this replica's own openraft, once.
    pub(super) async fn submit(&self, envelope: Envelope, bytes: usize) -> Submitted {
        let returned = self.submit_many(vec![envelope], bytes).await.pop();
        returned.map_or_else(|| Submitted::Unknown(STOPPED.into()), |(submitted, _)| submitted)
    }

    /// Hands commands of about so many bytes to this replica's own openraft, once; the answers are in their order. None
    /// come when the replica shuts down.
    async fn submit_many(&self, envelopes: Vec<Envelope>, bytes: usize) -> Returned {
        let (answer, decided) = RT::Oneshot::channel();
        let pending = Pending {
            envelopes,
            bytes,
            answer,
        };
        if self.queue.send(pending).await.is_err() {
            return Vec::new();
        }
        decided.await.unwrap_or_default()
    }

    /// On the leader, one batch; whatever that leaves open, and everything on another node, is proposed by itself.
    async fn propose_group(&self, envelopes: Vec<Envelope>, bytes: usize) -> Vec<Outcome> {
        if self.leadership().leader != Some(self.me) {
            return join_all(envelopes.into_iter().map(|envelope| self.propose_anywhere(envelope))).await;
        }
        let (mut outcomes, mut batch) = (Vec::with_capacity(envelopes.len()), Vec::with_capacity(envelopes.len()));
        for envelope in envelopes {
            outcomes.push(self.admits(&envelope).map_err(refused));
            if matches!(outcomes.last(), Some(Ok(()))) {
                batch.push(envelope);
            }
        }
        let patience = Duration::from_millis(PATIENCE_MS);
        let returned = match batch.is_empty() {
            true => Vec::new(),
            false => RT::timeout(patience, self.submit_many(batch, bytes))
                .await
                .unwrap_or_default(),
        };
        let (mut returned, mut open) = (returned.into_iter(), Vec::new());
        let settle = |(at, admitted): (usize, Result<(), Outcome>)| match admitted {
            Err(refused) => refused,
            Ok(()) => match returned.next() {
                Some((Submitted::Decided(reply), _)) => outcome(reply),
                Some((Submitted::TooLarge(bytes), _)) => oversize(bytes),
                // Worth another try.
                Some((Submitted::NotLeader(_) | Submitted::Unknown(_), envelope)) => {
                    open.push((at, envelope));
                    unreached()
                }
                None => unreached(),
            },
        };
        let mut outcomes: Vec<Outcome> = outcomes.into_iter().enumerate().map(settle).collect();
        let settling = open
            .into_iter()
            .map(|(at, envelope)| async move { (at, self.propose_anywhere(envelope).await) });
        for (at, outcome) in join_all(settling).await {
            outcomes[at] = outcome;
        }
        outcomes
    }

    async fn propose_anywhere(&self, envelope: Envelope) -> Outcome {
        let bytes = envelope.encode();
        if bytes.len() > COMMAND_BYTES_MAX {
            return oversize(bytes.len());
        }
        let give_up = self.clock.boot_ms() + PATIENCE_MS;
        let mut reason = String::from("no leader is known");
        let mut hint = None;
        loop {
            let leader = hint.take().or(self.leadership().leader);
            let (tried, said) = match leader {
                Some(leader) if leader == self.me => self.propose_here(envelope.clone(), bytes.len(), give_up).await,
                Some(leader) => self.propose_there(leader, bytes.clone()).await,
                None => (Tried::Elsewhere(None), None),
            };
            match tried {
                Tried::Done(outcome) => return outcome,
                Tried::Elsewhere(leader) => hint = leader.filter(|other| Some(*other) != self.leadership().leader),
                Tried::Unsure => {}
            }
            reason = said.unwrap_or(reason);
            if self.clock.boot_ms() >= give_up {
                return Outcome::Unknown { reason };
            }
            RT::sleep(LOOK_AGAIN).await;
        }
    }

    /// A leader that is cut off keeps its entry until it hears of another leader, so the wait has an end.
    async fn propose_here(&self, envelope: Envelope, bytes: usize, give_up: u64) -> (Tried, Option<String>) {
        if let Err(why) = self.admits(&envelope) {
            return (Tried::Done(refused(why)), None);
        }
        let left = Duration::from_millis(give_up.saturating_sub(self.clock.boot_ms()));
        match RT::timeout(left, self.submit(envelope, bytes)).await {
            Ok(Submitted::Decided(reply)) => (Tried::Done(outcome(reply)), None),
            Ok(Submitted::TooLarge(bytes)) => (Tried::Done(oversize(bytes)), None),
            Ok(Submitted::NotLeader(leader)) => (Tried::Elsewhere(leader), None),
            Ok(Submitted::Unknown(why)) => (Tried::Unsure, Some(why)),
            Err(_) => (Tried::Unsure, Some(NO_QUORUM.into())),
        }
    }

    async fn propose_there(&self, leader: NodeId, bytes: bytes::Bytes) -> (Tried, Option<String>) {
        match self.ask(leader, &Question::Propose(bytes)).await {
            Ok(Answer::Applied { index, events }) => (Tried::Done(Outcome::Applied { index, events }), None),
            Ok(Answer::Refused { rejection, index }) => (Tried::Done(Outcome::Refused { rejection, index }), None),
            Ok(Answer::NotLeader { leader }) => (Tried::Elsewhere(leader.map(NodeId)), None),
            Ok(Answer::Unknown { reason }) => (Tried::Unsure, Some(reason)),
            Ok(_) => (Tried::Unsure, Some("the leader answered something else".into())),
            Err(NetError::Refused { why, .. }) => (Tried::Done(refused(why)), None),
            Err(error) => (Tried::Unsure, Some(error.to_string())),
        }
    }

    /// Asks the leader. Ends early when somebody else leads.
    pub(super) async fn ask(&self, leader: NodeId, question: &Question) -> Result<Answer, NetError> {
        let call = self
            .transport
            .call(leader, Class::Control, frame::encode(kind::QUESTION, question));
        let moved = async {
            let begun = self.leadership();
            let mut seen = begun;
            while seen.leader == begun.leader || seen.leader.is_none_or(|now| now == leader) {
                seen = self.changed(seen).await;
            }
        };
        let lost = |why: &str| NetError::Lost {
            node: leader,
            why: why.into(),
        };
        let answer = match RT::select3(call, moved, RT::sleep(TRY_WAIT)).await {
            openraft_rt::Select3::First(answer) => answer?,
            openraft_rt::Select3::Second(()) => return Err(lost("another node leads now")),
            openraft_rt::Select3::Third(()) => return Err(lost("it did not answer in time")),
        };
        frame::decode(kind::ANSWER, &answer).map_err(|error| lost(&error.to_string()))
    }

    async fn read_index(&self) -> Result<u64, ReadError> {
        let give_up = self.clock.boot_ms() + PATIENCE_MS;
        let mut reason = String::from("no leader is known");
        loop {
            match self.leadership().leader {
                Some(leader) if leader == self.me => match self.confirm().await {
                    Ok(confirmed) => return Ok(confirmed.index),
                    Err(error) => reason = error.reason,
                },
                Some(leader) => match self.ask(leader, &Question::ReadIndex).await {
                    Ok(Answer::ReadIndex(index)) => return Ok(index),
                    Ok(_) => "the leader could not confirm that it leads".clone_into(&mut reason),
                    Err(error) => reason = error.to_string(),
                },
                None => {}
            }
            if self.clock.boot_ms() >= give_up {
                return Err(ReadError { reason });
            }
            RT::sleep(LOOK_AGAIN).await;
        }
    }

    /// Fetches the authority's key from the leader; voters are given it.
    pub async fn fetch_authority_key(&self) -> Option<Secret<String>> {
        let leader = self.leadership().leader.filter(|leader| *leader != self.me)?;
        match self.ask(leader, &Question::AuthorityKey).await {
            Ok(Answer::AuthorityKey(key)) => Some(Secret::new(key)),
            _ => None,
        }
    }
}

/// Asks a quorum, once, whether this replica still leads.
async fn confirm_once<RT, SM>(raft: Raft<Types<RT>, SM>) -> Result<Confirmed, ReadError>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    let failed = |error: &dyn std::fmt::Display| ReadError {
        reason: error.to_string(),
    };
    let leadership = || Leadership::of(&raft.metrics().borrow_watched());
    let before = leadership();
    if !before.own_term_applied {
        return Err(ReadError {
            reason: "this replica does not lead, or has applied nothing of its leadership yet".into(),
        });
    }
    let round = RT::timeout(TRY_WAIT, raft.get_read_linearizer(ReadPolicy::ReadIndex)).await;
    let round = round.map_err(|_| failed(&"no quorum answered in time"))?;
    let round = round.map_err(|error| failed(&error))?;
    let index = round.read_log_id().index();
    let leadership = leadership();
    if (leadership.leader, leadership.term) != (before.leader, before.term) || !leadership.is_self {
        return Err(failed(&"another node leads now"));
    }
    Ok(Confirmed { index, leadership })
}

/// The outcome when time runs out before a quorum has answered.
fn unreached() -> Outcome {
    Outcome::Unknown {
        reason: NO_QUORUM.into(),
    }
}

/// Where a proposal stands after one try.
enum Tried {
    Done(Outcome),
    /// It certainly had no effect; another node leads, or none.
    Elsewhere(Option<NodeId>),
    /// It may have had an effect.
    Unsure,
}

impl<RT, SM> Propose for Replica<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    fn propose(&self, envelope: Envelope) -> BoxFuture<'_, Outcome> {
        Box::pin(self.propose_anywhere(envelope))
    }

    fn propose_many(&self, envelopes: Vec<Envelope>, bytes: usize) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(self.propose_group(envelopes, bytes))
    }
}

impl<RT, SM> Linearize for Replica<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    fn linearize(&self) -> BoxFuture<'_, Result<u64, ReadError>> {
        Box::pin(async move {
            let index = self.read_index().await?;
            let wait = self.raft.wait(Some(Duration::from_millis(PATIENCE_MS)));
            let applied = wait.applied_index_at_least(Some(index), "a fresh read").await;
            applied.map_err(|error| ReadError {
                reason: error.to_string(),
            })?;
            Ok(index)
        })
    }
}

impl<RT, SM> Lead for Replica<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    fn leadership(&self) -> Leadership {
        Leadership::of(&self.raft.metrics().borrow_watched())
    }

    fn changed(&self, seen: Leadership) -> BoxFuture<'_, Leadership> {
        Box::pin(async move {
            let (mut metrics, mut server) = (self.raft.metrics(), self.raft.server_metrics());
            loop {
                let now = Leadership::of(&metrics.borrow_and_update());
                if now != seen {
                    return now;
                }
                // openraft sends all metrics at each turn of its loop, a hundred times a second; those of the server
                // change with the leader. They are sent first, so the others are waited for as well. Only the first
                // entry of an own term shows in the others alone.
                let awaits_entry = now.is_self && !now.own_term_applied;
                let heard = awaits_entry || server.changed().await.is_ok();
                if !heard || metrics.changed().await.is_err() {
                    // openraft has stopped: this replica will never hear of another leader.
                    std::future::pending::<()>().await;
                }
            }
        })
    }

    fn confirm(&self) -> BoxFuture<'_, Result<Confirmed, ReadError>> {
        let (raft, signs) = (self.raft.clone(), self.signs.clone());
        Box::pin(self.rounds.join::<RT, _>(move || async move {
            let confirmed = confirm_once(raft).await?;
            signs.note();
            Ok(confirmed)
        }))
    }
}

/// Keeps the clock at the stamps that are applied.
async fn follow_time<RT, SM>(raft: Raft<Types<RT>, SM>, clock: Arc<ClusterClock>)
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    let mut progress = raft.watch_apply_progress();
    drop(raft);
    while progress.changed().await.is_ok() {
        if let Some(applied) = progress.get() {
            clock.applied(applied.index);
        }
    }
}

/// An answer of the state machine as an outcome.
pub(super) fn outcome(reply: Reply) -> Outcome {
    match reply.outcome {
        Ok(events) => Outcome::Applied {
            index: reply.index,
            events,
        },
        Err(rejection) => Outcome::Refused {
            rejection,
            index: reply.index,
        },
    }
}

/// The outcome of a command that is larger than any may be.
pub(super) fn oversize(bytes: usize) -> Outcome {
    let rejection = Rejection::OutOfRange {
        field: "size of the command".into(),
        given: format!("{bytes} bytes"),
        allowed: format!("at most {COMMAND_BYTES_MAX} bytes"),
    };
    Outcome::Refused { rejection, index: 0 }
}

/// The outcome of a command that was not even proposed.
fn refused(why: String) -> Outcome {
    let rejection = Rejection::OriginNotAllowed {
        who: why,
        command: "this command".into(),
    };
    Outcome::Refused { rejection, index: 0 }
}
