//! What the parts of a node read out of the applied state: each in the words of its own protocol.
//!
//! Only translation: no rule is decided here, and nothing is kept. `boot.rs` hands these to the node lease, the
//! executor and the membership duty.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_proto::id::{Epoch, LeaseId, NodeId};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::state::{Lease, Member, Node, Placement, Run, State};

use crate::consensus::membership::{Known, Picture};
use crate::executor::duty::{Duties, Duty, MemberRun, RunKey, Standing, Work};
use crate::nodelease::answerer::Quiet;
use crate::nodelease::{Applied, ClusterView, NodeView, asker};

/// The applied state as the node lease reads it.
#[derive(Debug)]
pub(super) struct LeaseView(pub(super) Arc<State>);

impl ClusterView for LeaseView {
    fn for_each_node(&self, visit: &mut dyn FnMut(NodeView)) {
        for node in self.0.present_nodes() {
            visit(node_view(&self.0, node));
        }
    }

    fn node(&self, node: NodeId) -> Option<NodeView> {
        self.0.nodes.get(&node).map(|node| node_view(&self.0, node))
    }

    fn for_each_limit(&self, node: NodeId, visit: &mut dyn FnMut(LeaseId, Timestamp)) {
        for lease in self.0.leases_on(node) {
            if let Some(until) = self.0.leases.get(&lease).and_then(|lease| lease.run_until()) {
                visit(lease, until);
            }
        }
    }
}

fn node_view(state: &State, node: &Node) -> NodeView {
    let quiet = |until: Timestamp| Quiet {
        until,
        left_ms: until.since(state.applied.stamp).0,
    };
    NodeView {
        node: node.spec.node,
        incarnation: node.incarnation,
        generation: node.generation,
        status: node.status,
        quiet: node.quiet_until.map(quiet).filter(|quiet| quiet.left_ms > 0),
    }
}

/// What the state says of this node.
pub(super) fn standing(state: &State, me: NodeId) -> Applied {
    let standing = state.nodes.get(&me).map(|node| asker::Standing {
        incarnation: node.incarnation,
        generation: node.generation,
        status: node.status,
    });
    Applied {
        index: state.applied.index,
        standing,
    }
}

/// What the state says of the members.
pub(super) fn picture(state: &State) -> Picture {
    let known = |node: &Arc<Node>| Known {
        node: node.spec.node,
        zone: node.spec.zone.clone(),
        role: node.spec.role,
        removed: node.status == NodeStatus::Removed,
        lost: node.status == NodeStatus::Lost,
        address: node.spec.address.to_string(),
    };
    Picture {
        nodes: state.nodes.values().map(known).collect(),
        voters: state.cluster.voters.clone(),
    }
}

/// Keeps the unchanging part of each duty between two readings, so that a turn of the executor copies no workloads.
#[derive(Debug, Default)]
pub(super) struct Works(BTreeMap<(LeaseId, Epoch), Arc<Work>>);

impl Works {
    /// What the state asks of this node; `runs` are those that have a folder here.
    pub(super) fn duties(&mut self, state: &State, me: NodeId, runs: &[RunKey]) -> Duties {
        let mut duties = Duties::default();
        for assignment in state.assignments(me) {
            let key = (assignment.lease.id(), assignment.placement.epoch);
            let make = || {
                Arc::new(work_of(
                    state,
                    assignment.lease,
                    assignment.placement,
                    assignment.member,
                ))
            };
            let work = self.0.entry(key).or_insert_with(make).clone();
            duties.members.insert(
                key,
                duty(assignment.lease, assignment.placement, assignment.member, work),
            );
        }
        self.0.retain(|key, _| duties.members.contains_key(key));
        let leases = runs.iter().map(|run| run.lease);
        duties.remembered = leases.filter(|lease| state.leases.get(lease).is_some()).collect();
        duties
    }
}

fn duty(lease: &Lease, placement: &Placement, member: &Member, work: Arc<Work>) -> Duty {
    let standing = if placement.epoch != lease.epoch {
        Standing::Replaced
    } else if lease.end_reason().is_some() || placement.given_up {
        Standing::Ending
    } else if placement.attempt_runs() {
        Standing::Current
    } else if lease.status == LeaseStatus::Placed {
        Standing::Waiting
    } else {
        Standing::Ending
    };
    let run = match &member.run {
        Run::Idle => MemberRun::Idle,
        Run::Accepted(by) => MemberRun::Accepted(*by),
        Run::Started(_) => MemberRun::Started,
        Run::Exited(_) => MemberRun::Exited,
    };
    Duty {
        token: placement.token,
        standing,
        attempt: placement.attempt,
        run,
        prepared: member.prepared,
        lost: member.lost.is_some(),
        work,
    }
}

fn work_of(state: &State, lease: &Lease, placement: &Placement, member: &Member) -> Work {
    let members: Vec<NodeId> = placement.members.iter().map(|member| member.allocation.node).collect();
    let leader = members.first().and_then(|node| state.nodes.get(node));
    Work {
        requested: lease.requested.clone(),
        allocation: member.allocation.clone(),
        leader_host: leader.map(|node| node.spec.address.host.clone()).unwrap_or_default(),
        members,
        restore: placement.restore.clone(),
    }
}
