//! The answering side of the node lease: one per voter, speaking only while that voter leads.
//!
//! The renewal thread brings it the questions, the ends of quorum rounds and the ticks; it returns replies to send at once and verdicts to propose. It
//! owns what the leader remembers of each node in its present term, and what this replica noted while applying the log.
//!
//! The one rule: an answer leaves only if, in the very step that hands it over, the leader is confirmed by a quorum round begun after the question came,
//! has applied an entry of its own term, finds the question's incarnation and generation in its state, and has not proposed to give that generation up.

use std::collections::{BTreeMap, VecDeque};

use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId, Nonce};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;

use super::notes::Notes;
use super::wire::{Refusal, Renew, Renewed, Reply, RunFor};
use super::{Rules, Timing, mix, phase};

/// Nonces of refusals that a leader remembers per node: a node may show any of the last ones, because its proposal and the next refusal cross.
const CHALLENGES_MAX: usize = 16;
/// Good ticks after which a verdict that has not shown in the state is proposed again.
const REPROPOSE_TICKS: u32 = 4;

/// What the answerer needs of the replicated state, as applied on this replica.
pub trait ClusterView {
    /// Calls `visit` with every node that is not removed, in a fixed order.
    fn for_each_node(&self, visit: &mut dyn FnMut(NodeView));
    /// One node.
    fn node(&self, node: NodeId) -> Option<NodeView>;
    /// Calls `visit` with every lease placed on the node and the stamp at which it must end: the lesser of its expiry and its cap.
    fn for_each_limit(&self, node: NodeId, visit: &mut dyn FnMut(LeaseId, Timestamp));
}

/// A node in the replicated state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeView {
    /// The node.
    pub node: NodeId,
    /// The registered incarnation; none before the first.
    pub incarnation: Option<Incarnation>,
    /// Generation of its node lease.
    pub generation: Generation,
    /// What the cluster believes of it.
    pub status: NodeStatus,
    /// The quiet time that it took before a planned restart, if one stands.
    pub quiet: Option<Quiet>,
}

/// A planned silence: the node's supervisors hold out until its end, so nothing may be concluded before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quiet {
    /// When it ends, in stamped time; tells one quiet time from the next.
    pub until: Timestamp,
    /// What was left of it at the last stamp that this replica has applied.
    pub left_ms: u64,
}

/// What to propose, as one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// `NodeUnreachable` for each: from now on this leader refuses these generations.
    Unreachable(Vec<(NodeId, Generation)>),
    /// `NodeLost` for each: every renewal of these generations has run out, and the work stands still.
    Lost(Vec<(NodeId, Generation)>),
}

/// What the caller must do now, before anything else happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Begin a quorum round, and report its end with the same number.
    BeginRound(u64),
    /// Send this reply.
    Reply {
        /// The node that asked.
        to: NodeId,
        /// The reply.
        reply: Reply,
    },
    /// Propose this.
    Propose(Verdict),
}

/// The time, as the caller read it for one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Boot clock.
    pub boot_ms: u64,
    /// The stamp that the leader would put into an entry now.
    pub stamp: Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    renew: Renew,
    /// The judgement at arrival; kept for the rule that it must not be used.
    fit_at_arrival: bool,
}

#[derive(Debug)]
struct Round {
    number: u64,
    covers: Vec<Waiting>,
}

/// A leader's memory of one node, within one term.
#[derive(Debug, Default)]
struct Memory {
    generation: Generation,
    silent_ticks: u32,
    heard_ms: u64,
    answered_ms: Option<u64>,
    given_up: Option<Generation>,
    /// Good ticks since the last proposal about this node.
    proposed_ticks: Option<u32>,
    challenges: VecDeque<(Generation, Nonce)>,
}

#[derive(Debug)]
struct Leading {
    /// When this leader applied the first entry of its own term; it answers and counts nothing before.
    ready_ms: Option<u64>,
    challenge_seed: u64,
    challenges: u64,
    waiting: BTreeMap<NodeId, Waiting>,
    round: Option<Round>,
    round_began_ms: Option<u64>,
    round_ended: bool,
    ticked_ms: Option<u64>,
    ticks: u64,
}

/// The answering side. See the file's head.
#[derive(Debug)]
pub struct Answerer {
    timing: Timing,
    rules: Rules,
    leading: Option<Leading>,
    leader_hint: Option<NodeId>,
    memory: BTreeMap<NodeId, Memory>,
    notes: Notes,
    rounds: u64,
}

impl Answerer {
    /// An answerer of a replica that does not lead.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self::with_rules(timing, Rules::ALL)
    }

    /// The same with some rules taken away, for the tests that prove the checkers.
    #[doc(hidden)]
    #[must_use]
    pub fn with_rules(timing: Timing, rules: Rules) -> Self {
        Self {
            timing,
            rules,
            leading: None,
            leader_hint: None,
            memory: BTreeMap::new(),
            notes: Notes::default(),
            rounds: 0,
        }
    }

    /// A term of this voter's leadership begins, with an empty memory. `seed` is 64 random bits for the nonces of refusals.
    pub fn lead(&mut self, now_ms: u64, seed: u64) {
        if self.rules.empty_with_term {
            self.memory.clear();
        } else {
            // What a forgetful implementation would still clear.
            self.memory.values_mut().for_each(|memory| {
                memory.given_up = None;
                memory.silent_ticks = 0;
                memory.heard_ms = now_ms;
            });
        }
        self.leading = Some(Leading {
            ready_ms: None,
            challenge_seed: seed,
            challenges: 0,
            waiting: BTreeMap::new(),
            round: None,
            round_began_ms: None,
            round_ended: false,
            ticked_ms: None,
            ticks: 0,
        });
    }

    /// This voter does not lead (any more). What waits is dropped: its nodes ask again, elsewhere.
    pub fn follow(&mut self, leader: Option<NodeId>) {
        self.leading = None;
        self.leader_hint = leader;
    }

    /// The leader has applied the first entry of its own term.
    pub fn own_term_applied(&mut self, now_ms: u64) {
        if let Some(leading) = &mut self.leading {
            leading.ready_ms.get_or_insert(now_ms);
        }
    }

    /// This replica has applied more of the log: notes when it learnt of what. To be called on every voter, leading or not.
    pub fn applied(&mut self, now_ms: u64, view: &impl ClusterView) {
        self.notes.take(now_ms, &self.timing, view);
        let notes = &self.notes;
        self.memory.retain(|node, _| notes.knows(*node));
    }

    /// A question came in from the authenticated peer. It is refused at once by a voter that does not lead; else it waits for a round.
    pub fn question(&mut self, now: Now, peer: NodeId, renew: Renew, view: &impl ClusterView) -> Vec<Output> {
        if peer != renew.node {
            // Another's name on a true certificate: not even worth a refusal.
            return Vec::new();
        }
        let Some(leading) = &mut self.leading else {
            let refusal = Refusal::NotLeader {
                leader: self.leader_hint,
            };
            return vec![Output::Reply {
                to: peer,
                reply: Reply::Refused {
                    nonce: renew.nonce,
                    refusal,
                },
            }];
        };
        let known = view.node(renew.node);
        let same = known
            .is_some_and(|node| node.generation == renew.generation && node.incarnation == Some(renew.incarnation));
        let memory = self.memory.entry(renew.node).or_default();
        if (renew.in_force || !self.rules.deaf_is_silent) && (same || !self.rules.generation) {
            memory.silent_ticks = 0;
            memory.heard_ms = now.boot_ms;
        }
        let given_up = memory.given_up == Some(renew.generation);
        let fit_at_arrival = same && !given_up && known.is_some_and(|node| is_heard(node.status));
        leading.waiting.insert(renew.node, Waiting { renew, fit_at_arrival });
        if !self.rules.quorum_round {
            let waiting: Vec<_> = std::mem::take(&mut leading.waiting).into_values().collect();
            return self.hand_over(now, 0, waiting, view);
        }
        self.begin_round(now.boot_ms).into_iter().collect()
    }

    /// A quorum round has ended well: the leader still led after every question that the round covers had come in. `barrier` is its commit
    /// index. The replies must be handed to the network before this thread does anything else.
    pub fn round_finished(&mut self, now: Now, number: u64, barrier: u64, view: &impl ClusterView) -> Vec<Output> {
        let Some(leading) = &mut self.leading else {
            return Vec::new();
        };
        let Some(round) = leading.round.take_if(|round| round.number == number) else {
            return Vec::new();
        };
        leading.round_ended = true;
        let mut outputs = self.hand_over(now, barrier, round.covers, view);
        if self.leading.as_ref().is_some_and(|leading| !leading.waiting.is_empty()) {
            outputs.extend(self.begin_round(now.boot_ms));
        }
        outputs
    }

    /// A quorum round could not be had. Its questions wait for the next one, unless their nodes have asked again since.
    pub fn round_failed(&mut self, number: u64) {
        let Some(leading) = &mut self.leading else { return };
        let Some(round) = leading.round.take_if(|round| round.number == number) else {
            return;
        };
        for waiting in round.covers {
            leading.waiting.entry(waiting.renew.node).or_insert(waiting);
        }
    }

    /// One tick of the renewal thread. `drained`: its queue of questions was read to the end since the last tick.
    pub fn tick(&mut self, now: Now, drained: bool, view: &impl ClusterView) -> Vec<Output> {
        let Some(leading) = &mut self.leading else {
            return Vec::new();
        };
        let last = leading.ticked_ms.replace(now.boot_ms);
        leading.ticks += 1;
        let on_time = last.is_some_and(|last| now.boot_ms - last <= self.timing.tick_ms + self.timing.tick_ms / 2);
        let ended = std::mem::replace(&mut leading.round_ended, false);
        let good = !self.rules.good_ticks || (on_time && drained && ended);
        let mut outputs = Vec::new();
        if good && let Some(ready_ms) = leading.ready_ms {
            outputs.extend(self.judge(now.boot_ms, ready_ms, view));
        }
        // A tick counts only when a round ended in it, so once somebody is late each tick begins one. Before that a round
        // that questions have just begun will do. Rounds are never farther apart than a tick and a half: they are
        // heartbeats too.
        let recent = self.began_since(now.boot_ms.saturating_sub(self.timing.tick_ms / 2));
        if !recent || self.awaits_somebody(now.boot_ms, view) {
            outputs.extend(self.begin_round(now.boot_ms));
        }
        outputs
    }

    fn began_since(&self, since_ms: u64) -> bool {
        let began_ms = self.leading.as_ref().and_then(|leading| leading.round_began_ms);
        began_ms.is_some_and(|began_ms| began_ms > since_ms)
    }

    /// Reports whether a node is late with its question, or its time is being waited out.
    fn awaits_somebody(&self, now_ms: u64, view: &impl ClusterView) -> bool {
        let patience_ms = self.timing.renew_every_ms + self.timing.reask_after_ms;
        let mut awaited = false;
        view.for_each_node(&mut |node| {
            let heard_ms = self.memory.get(&node.node).map_or(0, |memory| memory.heard_ms);
            awaited |= match node.status {
                NodeStatus::Ready => heard_ms + patience_ms <= now_ms,
                NodeStatus::Unreachable => true,
                NodeStatus::Joined | NodeStatus::Lost | NodeStatus::Removed => false,
            };
        });
        awaited
    }

    /// Begins a round for what waits once the gap since the last one has passed. To be called at `wake_ms`.
    pub fn poll(&mut self, now_ms: u64) -> Option<Output> {
        let waits = self.leading.as_ref().is_some_and(|leading| !leading.waiting.is_empty());
        if waits { self.begin_round(now_ms) } else { None }
    }

    /// When `poll` next has something to begin; none while nothing waits or a round is out.
    #[must_use]
    pub fn wake_ms(&self) -> Option<u64> {
        let leading = self.leading.as_ref()?;
        let idle = !leading.waiting.is_empty() && leading.round.is_none();
        idle.then(|| {
            leading
                .round_began_ms
                .map_or(0, |began| began + self.timing.round_gap_ms)
        })
    }

    /// Reports whether `NodeReturned` for this generation shows a nonce that this leader gave the node in its present term. The caller
    /// proposes it only then.
    #[must_use]
    pub fn admits_return(&self, node: NodeId, generation: Generation, nonce: Nonce) -> bool {
        let shown = (generation, nonce);
        let known = || {
            self.memory
                .get(&node)
                .is_some_and(|memory| memory.challenges.contains(&shown))
        };
        self.leading.is_some() && (!self.rules.return_nonce || known())
    }

    /// Reports whether this voter answers questions at present.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.ready_ms.is_some())
    }

    fn begin_round(&mut self, now_ms: u64) -> Option<Output> {
        let leading = self.leading.as_mut()?;
        let early = leading
            .round_began_ms
            .is_some_and(|began| now_ms < began + self.timing.round_gap_ms);
        if leading.round.is_some() || early {
            return None;
        }
        self.rounds += 1;
        leading.round_began_ms = Some(now_ms);
        let covers = std::mem::take(&mut leading.waiting).into_values().collect();
        leading.round = Some(Round {
            number: self.rounds,
            covers,
        });
        Some(Output::BeginRound(self.rounds))
    }

    /// Judges and answers in one step: nothing can come between the judgement and the reply that the caller sends.
    fn hand_over(&mut self, now: Now, barrier: u64, questions: Vec<Waiting>, view: &impl ClusterView) -> Vec<Output> {
        let ready = self.leading.as_ref().is_some_and(|leading| leading.ready_ms.is_some());
        let mut outputs = Vec::with_capacity(questions.len());
        for waiting in questions {
            let node = waiting.renew.node;
            if !ready && self.rules.own_term {
                if let Some(leading) = &mut self.leading {
                    leading.waiting.entry(node).or_insert(waiting);
                }
                continue;
            }
            match self.judge_question(&waiting, view) {
                Judgement::Answer => {
                    self.memory.entry(node).or_default().answered_ms = Some(now.boot_ms);
                    let ticks = self.leading.as_ref().and_then(|led| Some((led.ticks, led.ticked_ms?)));
                    let again_ms = phase::again_ms(&self.timing, now.boot_ms, ticks, node, self.memory.len());
                    outputs.push(answer(now, barrier, again_ms, waiting.renew, view));
                }
                Judgement::Refuse(refusal) => {
                    outputs.push(Output::Reply {
                        to: node,
                        reply: Reply::Refused {
                            nonce: waiting.renew.nonce,
                            refusal,
                        },
                    });
                }
                Judgement::Ignore => {}
            }
        }
        outputs
    }

    fn judge_question(&mut self, waiting: &Waiting, view: &impl ClusterView) -> Judgement {
        let renew = waiting.renew;
        let Some(known) = view.node(renew.node) else {
            return Judgement::Refuse(Refusal::Unknown);
        };
        if !self.rules.judged_at_sending && waiting.fit_at_arrival {
            return Judgement::Answer;
        }
        if !self.rules.generation {
            return Judgement::Answer;
        }
        if renew.generation > known.generation {
            // The node learnt of its return before this replica applied it: it asks again in a moment.
            return Judgement::Ignore;
        }
        if renew.generation < known.generation || known.incarnation != Some(renew.incarnation) {
            return Judgement::Refuse(Refusal::Moved {
                generation: known.generation,
            });
        }
        let given_up = self
            .memory
            .get(&renew.node)
            .is_some_and(|memory| memory.given_up == Some(renew.generation));
        if self.rules.refuse_after_unreachable && (given_up || !is_heard(known.status)) {
            return Judgement::Refuse(self.challenge(renew));
        }
        Judgement::Answer
    }

    fn challenge(&mut self, renew: Renew) -> Refusal {
        let Some(leading) = &mut self.leading else {
            return Refusal::NotLeader { leader: None };
        };
        let challenge = Nonce(mix(leading.challenge_seed.wrapping_add(leading.challenges)));
        leading.challenges += 1;
        let kept = &mut self.memory.entry(renew.node).or_default().challenges;
        if kept.len() == CHALLENGES_MAX {
            kept.pop_front();
        }
        kept.push_back((renew.generation, challenge));
        Refusal::GivenUp {
            generation: renew.generation,
            challenge,
        }
    }

    /// A good tick: counts silence, and decides whom to give up.
    fn judge(&mut self, now_ms: u64, ready_ms: u64, view: &impl ClusterView) -> Vec<Output> {
        let (mut unreachable, mut lost, mut nodes) = (Vec::new(), Vec::new(), 0);
        self.notes.forget_losses(now_ms);
        view.for_each_node(&mut |node| {
            nodes += 1;
            match node.status {
                NodeStatus::Ready if self.falls_silent(now_ms, ready_ms, node) => {
                    unreachable.push((node.node, node.generation))
                }
                NodeStatus::Unreachable if self.surely_stopped(now_ms, ready_ms, node) => {
                    lost.push((node.node, node.generation))
                }
                _ => {}
            }
        });
        if self.rules.loss_cap {
            let mut room = self.timing.losses_per_minute(nodes).saturating_sub(self.notes.losses());
            lost.retain(|loss| {
                // One that was proposed already has its place under the cap.
                let known = self.notes.has_lost(*loss);
                let fits = known || room > 0;
                room -= usize::from(fits && !known);
                fits
            });
        }
        for (node, generation) in &lost {
            self.notes.declare_lost((*node, *generation), now_ms);
            self.memory.entry(*node).or_default().proposed_ticks = Some(0);
        }
        let mut outputs = Vec::new();
        if !unreachable.is_empty() {
            outputs.push(Output::Propose(Verdict::Unreachable(unreachable)));
        }
        if !lost.is_empty() {
            outputs.push(Output::Propose(Verdict::Lost(lost)));
        }
        outputs
    }

    /// Counts one good tick of silence of a node that is believed to be there; true when it must be proposed unreachable, and is refused from here on.
    fn falls_silent(&mut self, now_ms: u64, ready_ms: u64, node: NodeView) -> bool {
        let quiet = self.rules.quiet && self.notes.quiet(node.node).is_some_and(|quiet| now_ms < quiet.over_ms);
        let memory = self.memory.entry(node.node).or_default();
        if memory.generation != node.generation {
            // A new generation starts with a clean slate, and its nonces are of the past.
            memory.generation = node.generation;
            memory.silent_ticks = 0;
            memory.heard_ms = now_ms;
            memory.proposed_ticks = None;
            memory
                .challenges
                .retain(|(generation, _)| *generation >= node.generation);
        }
        if quiet {
            memory.silent_ticks = 0;
            memory.heard_ms = now_ms;
            return false;
        }
        memory.silent_ticks = memory.silent_ticks.saturating_add(1);
        if memory.given_up == Some(node.generation) {
            return again(&mut memory.proposed_ticks);
        }
        let subtracted = now_ms.saturating_sub(memory.heard_ms.max(ready_ms)) / self.timing.tick_ms;
        let silent = if self.rules.good_ticks {
            u64::from(memory.silent_ticks)
        } else {
            subtracted
        };
        if silent < u64::from(self.timing.silence_ticks) {
            return false;
        }
        memory.given_up = Some(node.generation);
        memory.proposed_ticks = Some(0);
        true
    }

    /// Reports whether every renewal of an unreachable node has run out and its work stands still, by any clock within rho.
    fn surely_stopped(&mut self, now_ms: u64, ready_ms: u64, node: NodeView) -> bool {
        let noted = self.notes.unreachable_ms(node.node, node.generation);
        let quiet_until = self.notes.quiet(node.node).map_or(0, |quiet| quiet.stopped_ms);
        let memory = self.memory.entry(node.node).or_default();
        // An answer of an earlier leader rests on a question asked before a quorum elected this one: it has run out
        // when as much time has passed since this leader was ready, even when `NodeUnreachable` was applied later.
        let unanswered_ms = noted.map_or(ready_ms, |noted| noted.min(ready_ms));
        let base_ms = memory.answered_ms.unwrap_or(unanswered_ms);
        let waited = now_ms >= (base_ms + self.timing.lost_wait_ms()).max(quiet_until);
        if self.rules.lost_wait && !waited {
            return false;
        }
        match memory.proposed_ticks {
            // The count may still be that of `NodeUnreachable`, which has shown in the state: the loss itself was not proposed.
            Some(_) if !self.notes.has_lost((node.node, node.generation)) => true,
            _ => again(&mut memory.proposed_ticks),
        }
    }
}

enum Judgement {
    Answer,
    Refuse(Refusal),
    Ignore,
}

/// Renewals are given to a node that is believed to be there.
fn is_heard(status: NodeStatus) -> bool {
    matches!(status, NodeStatus::Ready)
}

/// Counts a good tick since the last proposal; true when it is time to propose again.
fn again(proposed_ticks: &mut Option<u32>) -> bool {
    let ticks = proposed_ticks.map_or(REPROPOSE_TICKS, |ticks| ticks + 1);
    let due = ticks >= REPROPOSE_TICKS;
    *proposed_ticks = Some(if due { 0 } else { ticks });
    due
}

/// The answer to one question, with the limits of all leases on the node.
fn answer(now: Now, barrier: u64, again_ms: u64, renew: Renew, view: &impl ClusterView) -> Output {
    let mut run_for = Vec::new();
    view.for_each_limit(renew.node, &mut |lease, until| {
        run_for.push(RunFor {
            lease,
            ms: until.since(now.stamp).0,
        });
    });
    let renewed = Renewed {
        nonce: renew.nonce,
        node: renew.node,
        incarnation: renew.incarnation,
        generation: renew.generation,
        barrier,
        again_ms,
        run_for,
    };
    Output::Reply {
        to: renew.node,
        reply: Reply::Renewed(renewed),
    }
}
