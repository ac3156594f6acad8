//! The asking side of the node lease: one per daemon start, on every node, the leader's own node included.
//!
//! The renewal thread calls it with the boot clock's time; the executor asks it for permission before each step and for the deadlines that it hands to
//! the supervisors. It owns the questions that this incarnation remembers and the renewals that are still in force.
//!
//! The one rule: a deadline counts from the moment at which the question was asked, as remembered here; nothing that comes back is ever read as a time.

use std::collections::{BTreeMap, VecDeque};

use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId, Nonce};
use holdfast_proto::node::NodeStatus;

use super::wire::{Refusal, Renew, Renewed, Reply};
use super::{Rules, Timing, mix};

/// Questions that are remembered at most; older ones are forgotten first, and their answers come to nothing.
const QUESTIONS_MAX: usize = 128;
/// Renewals that are remembered at most; the oldest go first, which can only deny a step.
const RENEWALS_MAX: usize = 64;
/// Shortest time between two questions that a hint about the leader sets off, so that two confused voters cannot make a node spin.
const HINT_GAP_MS: u64 = 20;

/// What an asker is born with.
#[derive(Debug, Clone)]
pub struct AskerSetup {
    /// This node.
    pub node: NodeId,
    /// This start of the daemon.
    pub incarnation: Incarnation,
    /// 64 random bits, new for each start: nonces come from it.
    pub nonce_seed: u64,
    /// The machine's boot id differs from the one that the state last saw of this node. A copy of this machine may still run under the old
    /// incarnation, so nothing may start here until that one's renewals have surely run out.
    pub rebooted: bool,
}

/// What the log says of this node, as far as its own replica has applied it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Index of the last entry applied here.
    pub index: u64,
    /// This node's own entry in the state; none before it has joined.
    pub standing: Option<Standing>,
}

/// A node's own entry in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The registered incarnation; none before the first.
    pub incarnation: Option<Incarnation>,
    /// Generation of the node lease.
    pub generation: Generation,
    /// What the cluster believes of the node.
    pub status: NodeStatus,
}

/// What the caller must do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Put this question to that voter.
    Send {
        /// The voter, possibly this very node.
        to: NodeId,
        /// The question.
        renew: Renew,
    },
    /// Propose `Register{node, incarnation, replaces}`; repeated until the own state shows it.
    RegisterNeeded {
        /// The incarnation that the own state shows now.
        replaces: Option<Incarnation>,
    },
    /// Propose `NodeReturned` for this generation and show this nonce; repeated until the generation has moved on.
    ReturnNeeded {
        /// The generation that was given up.
        generation: Generation,
        /// The nonce of the latest refusal.
        nonce: Nonce,
    },
    /// A later start of this node has registered. This one is over: it must stop, and touch nothing any more.
    Superseded,
}

/// Permission for one step, valid at the time it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// The generation under which the step is taken.
    pub generation: Generation,
    /// Boot-clock time at which the renewal behind it runs out.
    pub until_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Question {
    asked_ms: u64,
    generation: Generation,
}

#[derive(Debug, Clone, Copy)]
struct Renewal {
    asked_ms: u64,
    generation: Generation,
    barrier: u64,
}

#[derive(Debug, Clone, Copy)]
struct RunUntil {
    asked_ms: u64,
    until_ms: u64,
}

/// The asking side. See the file's head.
#[derive(Debug)]
pub struct Asker {
    timing: Timing,
    rules: Rules,
    setup: AskerSetup,
    asked_count: u64,
    voters: Vec<NodeId>,
    leader: Option<NodeId>,
    /// Whose turn it is among the voters when the leader does not answer.
    turn: usize,
    questions: BTreeMap<Nonce, Question>,
    /// When the present round of asking began; none before the first question.
    round_ms: Option<u64>,
    /// When the next round of asking begins.
    next_ms: u64,
    /// When the last question left.
    sent_ms: Option<u64>,
    /// When a hint about the leader last set off a question.
    hinted_ms: Option<u64>,
    /// A question of the present round was answered or refused for good.
    settled: bool,
    renewals: VecDeque<Renewal>,
    deadline_ms: Option<u64>,
    run_until: BTreeMap<LeaseId, RunUntil>,
    applied: Applied,
    /// A generation learnt from a reply, ahead of the own replica.
    learnt: Option<Generation>,
    /// The own registration was seen in applied state.
    registered: bool,
    refused: Option<(Generation, Nonce)>,
    /// When the caller was last told to register or to return.
    nagged_ms: Option<u64>,
    /// With `rebooted`: when the hold ends; none until the first answer.
    held_until_ms: Option<u64>,
}

impl Asker {
    /// An asker that has asked nothing yet. `voters` are those of the last known membership.
    #[must_use]
    pub fn new(timing: Timing, setup: AskerSetup, voters: Vec<NodeId>) -> Self {
        Self::with_rules(timing, Rules::ALL, setup, voters)
    }

    /// The same with some rules taken away, for the tests that prove the checkers.
    #[doc(hidden)]
    #[must_use]
    pub fn with_rules(timing: Timing, rules: Rules, setup: AskerSetup, voters: Vec<NodeId>) -> Self {
        Self {
            timing,
            rules,
            setup,
            asked_count: 0,
            voters,
            leader: None,
            turn: 0,
            questions: BTreeMap::new(),
            round_ms: None,
            next_ms: 0,
            sent_ms: None,
            hinted_ms: None,
            settled: false,
            renewals: VecDeque::new(),
            deadline_ms: None,
            run_until: BTreeMap::new(),
            applied: Applied::default(),
            learnt: None,
            registered: false,
            refused: None,
            nagged_ms: None,
            held_until_ms: None,
        }
    }

    /// The voters and the leader as this node's replica or a refusal names them. Without a leader the node asks more often.
    pub fn cluster(&mut self, voters: Vec<NodeId>, leader: Option<NodeId>) {
        self.voters = voters;
        self.leader = leader;
    }

    /// The replica has applied more of the log.
    pub fn applied(&mut self, applied: Applied) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.applied = applied;
        if let Some(standing) = applied.standing {
            if standing.incarnation == Some(self.setup.incarnation) {
                self.registered = true;
            } else if self.registered {
                outputs.push(Output::Superseded);
            }
            self.refused = self
                .refused
                .filter(|(generation, _)| *generation >= standing.generation);
        }
        outputs
    }

    /// A reply to an own proposal (or a refusal) showed a newer generation than the replica has applied. Asking with it keeps the
    /// deadline ahead; no step is allowed by it until the replica has caught up.
    pub fn learnt(&mut self, generation: Generation) {
        self.learnt = self.learnt.max(Some(generation));
        self.refused = self.refused.filter(|(refused, _)| *refused >= generation);
    }

    /// The clock moved. Returns the question that is due, and what the log still has to be told.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Output> {
        self.forget(now_ms);
        let mut outputs = Vec::new();
        let Some(standing) = self.applied.standing else {
            return outputs;
        };
        if !self.registered && self.nag_due(now_ms) {
            outputs.push(Output::RegisterNeeded {
                replaces: standing.incarnation,
            });
        }
        if let Some((generation, nonce)) = self.way_back(standing)
            && self.nag_due(now_ms)
        {
            outputs.push(Output::ReturnNeeded { generation, nonce });
        }
        if !outputs.is_empty() {
            self.nagged_ms = Some(now_ms);
        }
        if self.may_ask() {
            outputs.extend(self.due(now_ms));
        }
        outputs
    }

    /// When `tick` next has something to do, so that the thread may sleep until then.
    #[must_use]
    pub fn wake_ms(&self, now_ms: u64) -> u64 {
        let owes = self.applied.standing.is_some() && (!self.registered || self.refused.is_some());
        let nag = self
            .nagged_ms
            .map_or(now_ms, |nagged| nagged + self.timing.renew_every_ms);
        let ask = match self.sent_ms {
            Some(_) if self.settled => self.next_ms,
            Some(sent) => sent + self.patience_ms(),
            None => now_ms,
        };
        let ask = if self.may_ask() { ask } else { u64::MAX };
        let nag = if owes { nag } else { u64::MAX };
        ask.min(nag).max(now_ms)
    }

    /// A voter's reply came in. It may set off the next question at once.
    pub fn reply(&mut self, now_ms: u64, from: NodeId, reply: &Reply) -> Vec<Output> {
        match reply {
            Reply::Renewed(renewed) => {
                let starved = !self.in_force(now_ms);
                if !self.renewed(now_ms, renewed) {
                    return Vec::new();
                }
                self.leader = Some(from);
                // The leader counts silence until it hears that answers arrive here: it hears that at once.
                if starved {
                    vec![self.ask(now_ms, from)]
                } else {
                    Vec::new()
                }
            }
            Reply::Refused { nonce, refusal } => self.refusal(now_ms, from, *nonce, *refusal),
        }
    }

    fn renewed(&mut self, now_ms: u64, renewed: &Renewed) -> bool {
        if renewed.node != self.setup.node || renewed.incarnation != self.setup.incarnation {
            return false;
        }
        let asked_ms = match self.questions.get(&renewed.nonce) {
            Some(question) if question.generation != renewed.generation => return false,
            Some(question) if self.rules.deadline_from_asking => question.asked_ms,
            None if self.rules.only_remembered => return false,
            Some(_) | None => now_ms,
        };
        let until_ms = asked_ms + self.timing.node_ttl_ms;
        if until_ms <= now_ms {
            return false;
        }
        if self.round_ms.is_some_and(|round| asked_ms >= round) {
            self.settled = true;
            let period = self.timing.renew_every_ms;
            self.next_ms = now_ms + renewed.again_ms.clamp(period / 4, period + period / 4);
        }
        self.deadline_ms = self.deadline_ms.max(Some(until_ms));
        if self.setup.rebooted && self.held_until_ms.is_none() {
            self.held_until_ms = Some(now_ms + self.timing.lost_wait_ms());
        }
        if self.renewals.len() == RENEWALS_MAX {
            self.renewals.pop_front();
        }
        self.renewals.push_back(Renewal {
            asked_ms,
            generation: renewed.generation,
            barrier: renewed.barrier,
        });
        for run in &renewed.run_for {
            let fresh = RunUntil {
                asked_ms,
                until_ms: asked_ms.saturating_add(run.ms),
            };
            let kept = self.run_until.entry(run.lease).or_insert(fresh);
            if kept.asked_ms <= asked_ms {
                *kept = fresh;
            }
        }
        true
    }

    fn refusal(&mut self, now_ms: u64, from: NodeId, nonce: Nonce, refusal: Refusal) -> Vec<Output> {
        let Some(question) = self.questions.remove(&nonce) else {
            return Vec::new();
        };
        match refusal {
            Refusal::NotLeader { leader } => {
                let named = leader.filter(|leader| *leader != from);
                if self.leader == Some(from) || named.is_some() {
                    self.leader = named;
                }
                let spun = self.hinted_ms.is_some_and(|hinted| now_ms < hinted + HINT_GAP_MS);
                if let Some(leader) = named
                    && !spun
                    && !self.settled
                {
                    self.hinted_ms = Some(now_ms);
                    return vec![self.ask(now_ms, leader)];
                }
            }
            Refusal::GivenUp { generation, challenge } => {
                if generation == question.generation {
                    // Said once per refused round, not per re-asked question: `tick` repeats it.
                    let first = self.refused.is_none_or(|(known, _)| known < generation);
                    self.refused = Some((generation, challenge));
                    self.settled = true;
                    if first {
                        self.nagged_ms = Some(now_ms);
                        return vec![Output::ReturnNeeded {
                            generation,
                            nonce: challenge,
                        }];
                    }
                }
            }
            Refusal::Moved { generation } => self.learnt(generation),
            Refusal::Unknown => self.settled = true,
        }
        Vec::new()
    }

    /// Reports whether any renewal, of any generation, still holds.
    #[must_use]
    pub fn in_force(&self, now_ms: u64) -> bool {
        self.renewals.iter().any(|renewal| self.holds(renewal, now_ms))
    }

    /// Permission to take a step now (prepare, spawn, thaw, adopt, end unknown work), or none. Any renewal in force will do, not only the
    /// newest, so that a replica that lags a little is not starved.
    #[must_use]
    pub fn permit(&self, now_ms: u64) -> Option<Permit> {
        let standing = self.applied.standing?;
        if self.setup.rebooted && self.held_until_ms.is_none_or(|until| now_ms < until) {
            return None;
        }
        let allowed = |renewal: &&Renewal| {
            (!self.rules.step_in_force || self.holds(renewal, now_ms))
                && (!self.rules.step_generation || renewal.generation == standing.generation)
                && (!self.rules.step_barrier || renewal.barrier <= self.applied.index)
        };
        let best = self
            .renewals
            .iter()
            .filter(allowed)
            .max_by_key(|renewal| renewal.asked_ms)?;
        Some(Permit {
            generation: standing.generation,
            until_ms: best.asked_ms + self.timing.node_ttl_ms,
        })
    }

    /// When the work of this node must stand still unless a later renewal comes: the supervisors' deadline. None before the first renewal
    /// of this incarnation, when the deadlines that the supervisors hold stay what they are.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        self.deadline_ms
    }

    /// The log has accepted a quiet time that was asked for at `asked_ms`: until its end the leader concludes nothing from silence, so the
    /// supervisors may hold out as long.
    pub fn quiet(&mut self, asked_ms: u64, for_ms: u64) {
        self.deadline_ms = self.deadline_ms.max(Some(asked_ms + for_ms));
    }

    /// When each lease must end here whatever its isolation policy: the lesser of its expiry and its cap, on this node's boot clock.
    pub fn run_until(&self) -> impl Iterator<Item = (LeaseId, u64)> + '_ {
        self.run_until.iter().map(|(lease, run)| (*lease, run.until_ms))
    }

    /// Forgets the limits of leases that have nothing on this node any more.
    pub fn keep_leases(&mut self, keep: impl Fn(LeaseId) -> bool) {
        self.run_until.retain(|lease, _| keep(*lease));
    }

    /// The leader that this node would ask next, if it knows one.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    fn holds(&self, renewal: &Renewal, now_ms: u64) -> bool {
        now_ms < renewal.asked_ms + self.timing.node_ttl_ms
    }

    fn forget(&mut self, now_ms: u64) {
        let ttl = self.timing.node_ttl_ms;
        self.questions.retain(|_, question| now_ms < question.asked_ms + ttl);
        if self.rules.step_in_force {
            self.renewals.retain(|renewal| now_ms < renewal.asked_ms + ttl);
        }
    }

    /// The refusal to return with. Reading the own replica is not enough: it proves nothing about the way from the leader to this node.
    fn way_back(&self, standing: Standing) -> Option<(Generation, Nonce)> {
        let given_up = matches!(standing.status, NodeStatus::Unreachable | NodeStatus::Lost);
        match self.refused {
            None if given_up && !self.rules.return_nonce => Some((standing.generation, Nonce(0))),
            refused => refused,
        }
    }

    fn nag_due(&self, now_ms: u64) -> bool {
        self.nagged_ms
            .is_none_or(|nagged| now_ms >= nagged + self.timing.renew_every_ms)
    }

    /// An unregistered incarnation would only be refused, unless a reply has already told it that it stands.
    fn may_ask(&self) -> bool {
        self.applied.standing.is_some() && (self.registered || self.learnt.is_some()) && !self.voters.is_empty()
    }

    fn patience_ms(&self) -> u64 {
        if self.leader.is_some() {
            self.timing.reask_after_ms
        } else {
            self.timing.leaderless_every_ms
        }
    }

    /// The question that is due now. A round begins every half second with the leader, or when its last answer said; unanswered, it goes on with each voter in turn.
    fn due(&mut self, now_ms: u64) -> Option<Output> {
        let round_due = now_ms >= self.next_ms;
        let unanswered = !self.settled && self.sent_ms.is_some_and(|sent| now_ms >= sent + self.patience_ms());
        if round_due && (self.settled || unanswered || self.sent_ms.is_none()) {
            // A round that was never answered goes on in its turn of voters: the leader of memory may be the dead one.
            let silent = self.sent_ms.is_some() && !self.settled;
            self.round_ms = Some(now_ms);
            self.next_ms = now_ms + self.timing.renew_every_ms;
            self.settled = false;
            let to = if silent {
                self.next_voter()
            } else {
                self.leader.unwrap_or_else(|| self.next_voter())
            };
            return Some(self.ask(now_ms, to));
        }
        if unanswered {
            let to = self.next_voter();
            return Some(self.ask(now_ms, to));
        }
        None
    }

    fn next_voter(&mut self) -> NodeId {
        assert!(!self.voters.is_empty()); // `may_ask` saw to it.
        self.turn = (self.turn + 1) % self.voters.len();
        self.voters[self.turn]
    }

    fn ask(&mut self, now_ms: u64, to: NodeId) -> Output {
        let replica = self
            .applied
            .standing
            .map_or(Generation(0), |standing| standing.generation);
        let generation = self.learnt.map_or(replica, |learnt| learnt.max(replica));
        let nonce = Nonce(mix(self.setup.nonce_seed.wrapping_add(self.asked_count)));
        self.asked_count += 1;
        self.sent_ms = Some(now_ms);
        if self.questions.len() == QUESTIONS_MAX
            && let Some(oldest) = self
                .questions
                .iter()
                .min_by_key(|(_, question)| question.asked_ms)
                .map(|(nonce, _)| *nonce)
        {
            self.questions.remove(&oldest);
        }
        self.questions.insert(
            nonce,
            Question {
                asked_ms: now_ms,
                generation,
            },
        );
        let in_force = self
            .renewals
            .iter()
            .any(|renewal| renewal.generation == generation && self.holds(renewal, now_ms));
        Output::Send {
            to,
            renew: Renew {
                node: self.setup.node,
                incarnation: self.setup.incarnation,
                generation,
                nonce,
                in_force,
            },
        }
    }
}
