//! The leader's duty towards the members: who is replicated to, and who votes.
//!
//! Owns every change of openraft's membership, so that changes never overlap. Runs on each replica and acts only while it leads. It makes
//! learners of nodes that joined, voters of those that [`super::voters`] chooses, takes removed nodes out, finishes a change that an
//! earlier leader left half done, and writes into the log who votes. The one rule: a node votes only after it was seen to keep up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::id::{NodeId, ZoneId};
use holdfast_proto::node::NodeRole;
use holdfast_proto::tenant::Principal;
use holdfast_proto::time::Timestamp;
use holdfast_storage::promise::Promised;
use holdfast_storage::types::{LeaderId, Peer, Types};
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, ChangeMembers, RaftMetrics};
use openraft_rt::Instant;
use openraft_rt::watch::WatchReceiver;

use super::leadership::{Leadership, leading};
use super::promise::{Promises, TOLD_EVERY};
use super::replica::Replica;
use super::stamp::TRUST_MS;
use super::voters::{Candidate, plan};
use super::walls::Walls;
use super::wire::Question;
use super::{Outcome, Propose};

/// Shortest time between two looks at the members.
const PERIOD: Duration = Duration::from_millis(250);
/// The same while nothing is applied: who was silent may be heard again, and the other way round.
const IDLE_PERIOD: Duration = Duration::from_secs(1);
/// How long a change may take before it is tried again.
const CHANGE_WAIT: Duration = Duration::from_secs(10);
/// A node that answered within this time is alive enough to become a voter.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);
/// A voter that answered nothing for this long may be replaced, even when no executor runs there that could be declared lost.
const LOST_AFTER: Duration = Duration::from_secs(30);
/// Entries that a node may be behind and still count as caught up.
const BEHIND_MAX: u64 = 1_000;
/// Time between two looks at the voters' wall clocks.
const WALLS_EVERY: Duration = Duration::from_secs(10);

/// A node as applied state knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The node.
    pub node: NodeId,
    /// Its failure domain.
    pub zone: ZoneId,
    /// What it does for the cluster.
    pub role: NodeRole,
    /// Whether an operator took it out.
    pub removed: bool,
    /// Whether its node lease has ended.
    pub lost: bool,
    /// Where it is reached, for people who read the membership.
    pub address: String,
}

/// What applied state says of the members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Picture {
    /// All nodes that ever joined.
    pub nodes: Vec<Known>,
    /// Who votes, as last recorded in the log.
    pub voters: Vec<NodeId>,
}

/// Reads the picture from applied state.
pub type ReadPicture = Arc<dyn Fn() -> Picture + Send + Sync>;

/// The duty.
pub struct Membership<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    replica: Arc<Replica<RT, SM>>,
    picture: ReadPicture,
    promises: Arc<Promises>,
    walls: Walls<RT>,
    /// The leadership, and since when.
    led: Option<(LeaderId, RT::Instant)>,
    /// When the wall clocks were looked at last, or leading began.
    walls_at: RT::Instant,
    suspects: BTreeSet<NodeId>,
    /// What the others were told last, and when.
    told: (Promised, RT::Instant),
}

/// What the next change of the membership is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// Finish what an earlier leader began.
    Settle(BTreeSet<u64>),
    /// Replicate to nodes that joined.
    Learn(BTreeMap<u64, Peer>),
    /// Change who votes.
    Vote(BTreeSet<u64>),
    /// Stop to replicate to nodes that were removed.
    Forget(BTreeSet<u64>),
}

impl<RT, SM> Membership<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// For `replica`.
    pub fn new(replica: Arc<Replica<RT, SM>>, picture: ReadPicture, promises: Arc<Promises>) -> Self {
        let walls = Walls::new(replica.me, replica.transport.clone(), replica.clock.clone());
        Self {
            replica,
            picture,
            promises,
            walls,
            led: None,
            walls_at: RT::Instant::now(),
            suspects: BTreeSet::new(),
            told: (Promised::new(), RT::Instant::now()),
        }
    }

    /// Runs until openraft stops.
    pub async fn run(mut self) {
        let mut applied = self.replica.raft.watch_apply_progress();
        loop {
            let looked = RT::Instant::now();
            RT::select2(applied.changed(), RT::sleep(IDLE_PERIOD)).await;
            RT::sleep(PERIOD.saturating_sub(looked.elapsed())).await;
            let metrics = self.replica.raft.metrics().borrow_watched().clone();
            if metrics.running_state.is_err() {
                return;
            }
            self.tell_forgetful().await;
            match leading(&metrics).filter(|_| Leadership::of(&metrics).own_term_applied) {
                None => self.led = None,
                Some(leader) => {
                    if self.led.is_none_or(|(led, _)| led != leader) {
                        self.led = Some((leader, RT::Instant::now()));
                        self.suspects.clear();
                        self.walls_at = RT::Instant::now();
                    }
                    self.step(&metrics).await;
                }
            }
        }
    }

    async fn step(&mut self, metrics: &RaftMetrics<Types<RT>>) {
        let picture = (self.picture)();
        let members = members(metrics);
        let candidates = self.candidates(&picture, metrics);
        if let Some(change) = next_change(&picture, &members, &candidates) {
            self.change(change).await;
        } else if members.voters.len() == 1 {
            self.record_voters(&picture, metrics).await;
        }
        self.tell_promises(metrics);
        if self.walls_at.elapsed() >= WALLS_EVERY {
            self.walls_at = RT::Instant::now();
            self.check_walls(metrics).await;
        }
    }

    fn candidates(&self, picture: &Picture, metrics: &RaftMetrics<Types<RT>>) -> Vec<Candidate> {
        let broken = self.promises.broken();
        let behind = metrics
            .cluster_committed
            .map_or(0, |committed| committed.index)
            .saturating_sub(BEHIND_MAX);
        let judge = |known: &Known| {
            let me = known.node == self.replica.me;
            let silence = self.silence(known.node, metrics);
            let votes = metrics.membership_config.voter_ids().any(|voter| voter == known.node.0);
            let heard = silence <= ALIVE_WITHIN;
            // A voter keeps its vote through a restart; a newcomer gets none while it is silent.
            let alive = if votes {
                heard || !(known.lost || silence > LOST_AFTER)
            } else {
                heard
            };
            let matched = metrics
                .replication
                .as_ref()
                .and_then(|all| all.get(&known.node.0).copied().flatten());
            Candidate {
                node: known.node,
                zone: known.zone.clone(),
                may_vote: known.role != NodeRole::Worker,
                removed: known.removed,
                alive: me || (alive && !broken.contains(&known.node)),
                caught_up: me || matched.is_some_and(|matched| matched.index >= behind),
                witness: known.role == NodeRole::Witness,
            }
        };
        picture.nodes.iter().map(judge).collect()
    }

    /// How long a node has answered nothing; counted from the beginning of this leadership at most.
    fn silence(&self, node: NodeId, metrics: &RaftMetrics<Types<RT>>) -> Duration {
        let since = self.led.map_or(Duration::MAX, |(_, since)| since.elapsed());
        let acked = metrics
            .heartbeat
            .as_ref()
            .and_then(|all| all.get(&node.0).copied().flatten());
        acked.map_or(since, |acked| acked.elapsed().min(since))
    }

    async fn change(&self, change: Change) {
        tracing::info!(?change, "changing the membership");
        let (members, retain) = match change.clone() {
            Change::Settle(voters) | Change::Vote(voters) => (ChangeMembers::ReplaceAllVoters(voters), true),
            Change::Learn(nodes) => (ChangeMembers::AddNodes(nodes), true),
            Change::Forget(nodes) => (ChangeMembers::RemoveNodes(nodes), false),
        };
        match RT::timeout(CHANGE_WAIT, self.replica.raft.change_membership(members, retain)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(?change, %error, "the membership was not changed; it is looked at again"),
            Err(_) => tracing::warn!(?change, "a change of the membership takes long; it is looked at again"),
        }
    }

    async fn record_voters(&self, picture: &Picture, metrics: &RaftMetrics<Types<RT>>) {
        let committed = &metrics.committed_membership_config;
        let voters: Vec<NodeId> = committed
            .voter_ids()
            .map(NodeId)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        if committed.membership().get_joint_config().len() == 1 && voters != picture.voters {
            self.propose(Command::RecordVoters { voters }).await;
        }
    }

    /// Nodes whose disk forgot are told, so that they stop with a clear text.
    async fn tell_forgetful(&self) {
        for node in self.promises.broken() {
            // It may be down or be told already; it is told again in the next round.
            let _ = self.replica.ask(node, &Question::Forgot).await;
        }
    }

    /// Tells all voters what each of them has acknowledged of the committed log, so that none can forget it unnoticed
    /// under another leader.
    fn tell_promises(&mut self, metrics: &RaftMetrics<Types<RT>>) {
        let committed = metrics.cluster_committed.map_or(0, |committed| committed.index);
        let matched = metrics.replication.iter().flatten();
        let acknowledged = matched.filter_map(|(node, matched)| Some((*node, matched.as_ref()?.index.min(committed))));
        self.promises.note(acknowledged);
        let lasting = self.promises.lasting();
        if lasting == self.told.0 || self.told.1.elapsed() < TOLD_EVERY {
            return;
        }
        let question = Question::Promised(lasting.iter().map(|(node, index)| (*node, *index)).collect());
        self.told = (lasting, RT::Instant::now());
        let voters = metrics.membership_config.voter_ids().map(NodeId);
        let others: BTreeSet<NodeId> = voters.filter(|voter| *voter != self.replica.me).collect();
        for voter in others {
            let (replica, question) = (self.replica.clone(), question.clone());
            // One that is down is told when there is more to tell.
            let told: BoxFuture<'static, ()> = Box::pin(async move { drop(replica.ask(voter, &question).await) });
            drop(RT::spawn(told));
        }
    }

    async fn check_walls(&mut self, metrics: &RaftMetrics<Types<RT>>) {
        let voters = metrics.membership_config.voter_ids().count();
        let offsets = self.walls.offsets(metrics).await;
        if offsets.len() <= voters / 2 {
            return;
        }
        let here = self.replica.clock.wall_ms();
        let Some(median) = self.walls.median_of(&offsets) else {
            return;
        };
        self.replica.clock.judge(Some(median));
        let trust = i64::try_from(TRUST_MS).unwrap_or(i64::MAX);
        let median_offset = i64::try_from(i128::from(median) - i128::from(here)).unwrap_or(0);
        for (node, offset) in offsets {
            let offset_ms = offset.saturating_sub(median_offset);
            if offset_ms.saturating_abs() <= trust {
                self.suspects.remove(&node);
            } else if self.suspects.insert(node) {
                self.propose(Command::ReportClockSuspect { node, offset_ms }).await;
            }
        }
    }

    async fn propose(&self, command: Command) {
        let me = self.replica.me;
        let envelope = Envelope {
            stamp: Timestamp(0),
            principal: Principal::Node(me),
            project: None,
            origin: me,
            request: None,
            command,
        };
        match self.replica.propose(envelope).await {
            Outcome::Applied { .. } => {}
            Outcome::Refused { rejection, .. } => tracing::warn!(%rejection, "a duty of the leader was refused"),
            Outcome::Unknown { reason } => tracing::debug!(%reason, "a duty of the leader is repeated"),
        }
    }
}

/// openraft's membership in the form that is planned with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Members {
    /// One set of voters, or two while it changes.
    voters: Vec<BTreeSet<u64>>,
    /// All members.
    all: BTreeSet<u64>,
}

fn members<RT: AsyncRuntime>(metrics: &RaftMetrics<Types<RT>>) -> Members {
    let membership = metrics.membership_config.membership();
    Members {
        voters: membership.get_joint_config().clone(),
        all: membership.nodes().map(|(node, _)| *node).collect(),
    }
}

/// The one change to make next, if any.
fn next_change(picture: &Picture, members: &Members, candidates: &[Candidate]) -> Option<Change> {
    let [voters] = &members.voters[..] else {
        // Half done: the last set is what was wanted.
        return members.voters.last().cloned().map(Change::Settle);
    };
    let newcomers: BTreeMap<u64, Peer> = picture
        .nodes
        .iter()
        .filter(|known| !known.removed && !members.all.contains(&known.node.0))
        .map(|known| {
            (
                known.node.0,
                Peer {
                    address: known.address.clone(),
                },
            )
        })
        .collect();
    if !newcomers.is_empty() {
        return Some(Change::Learn(newcomers));
    }
    let voting: BTreeSet<NodeId> = voters.iter().copied().map(NodeId).collect();
    if let Some(wanted) = plan(candidates, &voting) {
        return Some(Change::Vote(wanted.into_iter().map(|node| node.0).collect()));
    }
    let gone: BTreeSet<u64> = picture
        .nodes
        .iter()
        .filter(|known| known.removed && members.all.contains(&known.node.0) && !voters.contains(&known.node.0))
        .map(|known| known.node.0)
        .collect();
    (!gone.is_empty()).then_some(Change::Forget(gone))
}

/// Starts the duty on the runtime.
pub fn start<RT, SM>(membership: Membership<RT, SM>)
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    let run: BoxFuture<'static, ()> = Box::pin(membership.run());
    drop(RT::spawn(run));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn known(node: u64, removed: bool) -> Known {
        Known {
            node: NodeId(node),
            zone: format!("z{node}").parse().unwrap(),
            role: NodeRole::Replica,
            removed,
            lost: false,
            address: format!("h{node}:7400"),
        }
    }

    fn candidate(known: &Known, ready: bool) -> Candidate {
        Candidate {
            node: known.node,
            zone: known.zone.clone(),
            may_vote: true,
            removed: known.removed,
            alive: ready,
            caught_up: ready,
            witness: false,
        }
    }

    fn next(nodes: &[(u64, bool, bool)], voters: &[&[u64]], all: &[u64]) -> Option<Change> {
        let picture = Picture {
            nodes: nodes.iter().map(|(node, removed, _)| known(*node, *removed)).collect(),
            voters: Vec::new(),
        };
        let ready = |node: NodeId| nodes.iter().any(|(other, _, ready)| *other == node.0 && *ready);
        let candidates: Vec<Candidate> = picture
            .nodes
            .iter()
            .map(|known| candidate(known, ready(known.node)))
            .collect();
        let members = Members {
            voters: voters.iter().map(|set| set.iter().copied().collect()).collect(),
            all: all.iter().copied().collect(),
        };
        next_change(&picture, &members, &candidates)
    }

    fn set(nodes: &[u64]) -> BTreeSet<u64> {
        nodes.iter().copied().collect()
    }

    #[test]
    fn nodes_that_joined_together_become_learners_in_one_change() {
        let change = next(&[(1, false, true), (2, false, false), (3, false, false)], &[&[1]], &[1]).unwrap();
        assert!(matches!(change, Change::Learn(nodes) if nodes.len() == 2));
    }

    #[test]
    fn learners_vote_only_once_they_keep_up() {
        assert_eq!(
            next(
                &[(1, false, true), (2, false, true), (3, false, false)],
                &[&[1]],
                &[1, 2, 3]
            ),
            None
        );
        let change = next(
            &[(1, false, true), (2, false, true), (3, false, true)],
            &[&[1]],
            &[1, 2, 3],
        );
        assert_eq!(change, Some(Change::Vote(set(&[1, 2, 3]))));
    }

    #[test]
    fn a_change_left_half_done_is_finished_before_anything_else() {
        let change = next(
            &[(1, false, true), (9, false, false)],
            &[&[1, 2, 3], &[1, 2, 4]],
            &[1, 2, 3, 4],
        );
        assert_eq!(change, Some(Change::Settle(set(&[1, 2, 4]))));
    }

    #[test]
    fn a_removed_voter_loses_its_vote_first_and_its_place_then() {
        let nodes = [(1, false, true), (2, false, true), (3, true, true)];
        assert_eq!(
            next(&nodes, &[&[1, 2, 3]], &[1, 2, 3]),
            Some(Change::Vote(set(&[1, 2])))
        );
        assert_eq!(next(&nodes, &[&[1, 2]], &[1, 2, 3]), Some(Change::Forget(set(&[3]))));
        assert_eq!(next(&nodes, &[&[1, 2]], &[1, 2]), None);
    }

    #[test]
    fn a_node_that_was_removed_before_it_was_a_member_is_let_be() {
        assert_eq!(next(&[(1, false, true), (2, true, false)], &[&[1]], &[1]), None);
    }
}
