//! A small model of the replicated machine: the nodes' leases and one lease of work, single or a gang of two.
//!
//! It is what the world's voters and nodes apply. Node indexes are places in the world, not ids.

use std::collections::BTreeSet;

use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;

use holdfast_node::nodelease::answerer::{ClusterView, NodeView, Quiet};

pub(crate) const NODES: usize = 3;
pub(crate) const VOTERS: usize = 3;

pub(crate) fn node_id(place: usize) -> NodeId {
    NodeId(11 + place as u64)
}

pub(crate) fn voter_id(place: usize) -> NodeId {
    NodeId(1 + place as u64)
}

/// Rules of the machine and of the executor that the model can go without.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelRules {
    /// `NodeLost` is rejected when the generation has moved on.
    pub(crate) lost_for_generation: bool,
    /// Work starts only by a start in the log, not by its placement.
    pub(crate) start_command: bool,
    /// An attempt starts only when every earlier epoch has ended with proof or sits on a lost generation.
    pub(crate) earlier_ended: bool,
    /// `NodeReturned` takes back lost allocations that nothing has replaced.
    pub(crate) revive: bool,
    /// `Prepared` names the attempt that it follows, and an attempt starts only after all members of the last one ended.
    pub(crate) attempts_follow: bool,
    /// An accepted attempt is spawned only by the incarnation that prepared it.
    pub(crate) bound: bool,
    /// The supervisor keeps the deadline while the daemon is down.
    pub(crate) supervisor: bool,
    /// The store is shown a token before its work starts.
    pub(crate) fence_first: bool,
}

impl ModelRules {
    pub(crate) const ALL: ModelRules = ModelRules {
        lost_for_generation: true,
        start_command: true,
        earlier_ended: true,
        revive: true,
        attempts_follow: true,
        bound: true,
        supervisor: true,
        fence_first: true,
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    Blank,
    Register {
        node: usize,
        incarnation: u64,
        replaces: u64,
    },
    Unreachable {
        node: usize,
        generation: u64,
    },
    Lost {
        node: usize,
        generation: u64,
    },
    Returned {
        node: usize,
        generation: u64,
        incarnation: u64,
    },
    Place {
        epoch: u32,
        nodes: Vec<usize>,
    },
    Prepared {
        node: usize,
        epoch: u32,
        follows: u32,
        incarnation: u64,
    },
    Start {
        epoch: u32,
        attempt: u32,
    },
    Exited {
        node: usize,
        epoch: u32,
        attempt: u32,
    },
    Ended {
        node: usize,
        epoch: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeState {
    pub(crate) generation: u64,
    pub(crate) incarnation: u64,
    pub(crate) status: NodeStatus,
}

/// A member of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) epoch: u32,
    pub(crate) node: usize,
    /// Its work may still run there.
    pub(crate) open: bool,
    pub(crate) lost: bool,
    /// The accepted attempt; 0 when none, or when it has ended.
    pub(crate) attempt: u32,
    pub(crate) incarnation: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) nodes: [NodeState; NODES],
    pub(crate) epoch: u32,
    pub(crate) attempt: u32,
    pub(crate) prepared: BTreeSet<usize>,
    pub(crate) members: Vec<Member>,
}

impl Machine {
    /// Epoch 1 of the lease runs its first attempt on node 0, of a gang also on node 1.
    pub(crate) fn new(gang: bool) -> Self {
        let member = |node| Member {
            epoch: 1,
            node,
            open: true,
            lost: false,
            attempt: 1,
            incarnation: 1,
        };
        Self {
            nodes: [NodeState {
                generation: 1,
                incarnation: 1,
                status: NodeStatus::Ready,
            }; NODES],
            epoch: 1,
            attempt: 1,
            prepared: BTreeSet::new(),
            members: (0..1 + usize::from(gang)).map(member).collect(),
        }
    }

    fn present(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.epoch == self.epoch)
    }

    /// This attempt on this node is what ought to run now.
    pub(crate) fn current(&self, node: usize, epoch: u32, attempt: u32) -> bool {
        (epoch, attempt) == (self.epoch, self.attempt)
            && self.present().all(|member| member.open && member.attempt == attempt)
            && self.present().any(|member| member.node == node)
    }

    /// This attempt will never be wanted again: a newer one is in the log, or a member of it has ended.
    pub(crate) fn superseded(&self, epoch: u32, attempt: u32) -> bool {
        epoch < self.epoch
            || (epoch == self.epoch
                && (attempt < self.attempt || self.present().any(|member| member.attempt != attempt)))
    }

    /// The node's own member of the epoch is still its own, and this is its newest attempt.
    pub(crate) fn owns(&self, node: usize, epoch: u32, attempt: u32) -> bool {
        self.members
            .iter()
            .any(|m| (m.node, m.epoch, m.attempt, m.open) == (node, epoch, attempt, true))
    }

    pub(crate) fn needs_placement(&self) -> bool {
        self.present().any(|member| !member.open)
    }

    pub(crate) fn can_start(&self, rules: ModelRules) -> bool {
        let ended = |member: &Member| member.epoch == self.epoch || !member.open;
        let idle = |member: &&Member| member.attempt == 0;
        self.present()
            .all(|member| member.open && self.prepared.contains(&member.node))
            && (!rules.earlier_ended || self.members.iter().all(ended))
            && (!rules.attempts_follow || self.present().all(|member| idle(&member)))
    }

    pub(crate) fn apply(&mut self, rules: ModelRules, command: &Command) {
        match *command {
            Command::Blank => {}
            Command::Register {
                node,
                incarnation,
                replaces,
            } => {
                if self.nodes[node].incarnation == replaces {
                    self.nodes[node].incarnation = incarnation;
                    self.prepared.remove(&node);
                }
            }
            Command::Unreachable { node, generation } => {
                let state = &mut self.nodes[node];
                if state.status == NodeStatus::Ready && state.generation == generation {
                    state.status = NodeStatus::Unreachable;
                }
            }
            Command::Lost { node, generation } => self.lost(rules, node, generation),
            Command::Returned {
                node,
                generation,
                incarnation,
            } => self.returned(rules, node, generation, incarnation),
            Command::Place { epoch, ref nodes } => self.place(rules, epoch, nodes),
            Command::Prepared {
                node,
                epoch,
                follows,
                incarnation,
            } => {
                self.prepared(rules, node, epoch, follows, incarnation);
            }
            Command::Start { epoch, attempt } => {
                if epoch == self.epoch && attempt == self.attempt + 1 && self.can_start(rules) {
                    self.attempt = attempt;
                    self.prepared.clear();
                    self.members
                        .iter_mut()
                        .filter(|m| m.epoch == epoch)
                        .for_each(|m| m.attempt = attempt);
                }
            }
            Command::Exited { node, epoch, attempt } => {
                let hit = |m: &&mut Member| (m.node, m.epoch, m.attempt) == (node, epoch, attempt);
                self.members.iter_mut().filter(hit).for_each(|m| m.attempt = 0);
            }
            Command::Ended { node, epoch } => {
                let present = self.epoch;
                let hit = |m: &&mut Member| (m.node, m.epoch, m.open) == (node, epoch, true) && epoch < present;
                self.members
                    .iter_mut()
                    .filter(hit)
                    .for_each(|m| (m.open, m.attempt) = (false, 0));
            }
        }
    }

    fn place(&mut self, rules: ModelRules, epoch: u32, nodes: &[usize]) {
        let ready = nodes.iter().all(|&node| self.nodes[node].status == NodeStatus::Ready);
        if epoch == self.epoch + 1 && self.needs_placement() && ready {
            let attempt = u32::from(!rules.start_command);
            (self.epoch, self.attempt) = (epoch, attempt);
            self.prepared.clear();
            let member = |&node| Member {
                epoch,
                node,
                open: true,
                lost: false,
                attempt,
                incarnation: 0,
            };
            self.members.extend(nodes.iter().map(member));
        }
    }

    fn prepared(&mut self, rules: ModelRules, node: usize, epoch: u32, follows: u32, incarnation: u64) {
        let right = epoch == self.epoch
            && self.nodes[node].incarnation == incarnation
            && (!rules.attempts_follow || follows == self.attempt);
        let member = self
            .members
            .iter_mut()
            .find(|m| (m.epoch, m.node, m.open) == (epoch, node, true));
        if let Some(member) = member.filter(|member| right && (!rules.attempts_follow || member.attempt == 0)) {
            member.incarnation = incarnation;
            self.prepared.insert(node);
        }
    }

    fn lost(&mut self, rules: ModelRules, node: usize, generation: u64) {
        let state = &mut self.nodes[node];
        let right = state.status == NodeStatus::Unreachable && state.generation == generation;
        if right || (!rules.lost_for_generation && state.status != NodeStatus::Lost) {
            state.status = NodeStatus::Lost;
            self.members
                .iter_mut()
                .filter(|m| m.node == node && m.open)
                .for_each(|m| (m.open, m.lost) = (false, true));
            self.prepared.remove(&node);
        }
    }

    fn returned(&mut self, rules: ModelRules, node: usize, generation: u64, incarnation: u64) {
        let state = &mut self.nodes[node];
        if state.incarnation == incarnation && state.generation == generation && state.status != NodeStatus::Ready {
            (state.generation, state.status) = (generation + 1, NodeStatus::Ready);
            let epoch = self.epoch;
            let back = |m: &&mut Member| rules.revive && (m.node, m.lost, m.epoch) == (node, true, epoch);
            self.members
                .iter_mut()
                .filter(back)
                .for_each(|m| (m.open, m.lost) = (true, false));
        }
    }
}

impl ClusterView for Machine {
    fn for_each_node(&self, visit: &mut dyn FnMut(NodeView)) {
        (0..NODES).filter_map(|place| self.node(node_id(place))).for_each(visit);
    }

    fn node(&self, node: NodeId) -> Option<NodeView> {
        let state = self.nodes.get(usize::try_from(node.0).ok()?.checked_sub(11)?)?;
        let quiet: Option<Quiet> = None;
        Some(NodeView {
            node,
            incarnation: Some(Incarnation(state.incarnation)),
            generation: Generation(state.generation),
            status: state.status,
            quiet,
        })
    }

    fn for_each_limit(&self, _: NodeId, _: &mut dyn FnMut(LeaseId, Timestamp)) {}
}
