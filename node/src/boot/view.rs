//! What the parts of a node read out of the applied state: each in the words of its own protocol.
//!
//! Only translation: no rule is decided here, and nothing is kept. `boot.rs` hands these to the node lease and the
//! membership duty.

use std::sync::Arc;

use holdfast_proto::id::{LeaseId, NodeId};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::state::{Node, State};

use crate::consensus::membership::{Known, Picture};
use crate::nodelease::answerer::Quiet;
use crate::nodelease::{Applied, ClusterView, NodeView, asker};

/// The applied state as the node lease reads it.
#[derive(Debug)]
pub struct LeaseView(pub Arc<State>);

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
pub fn standing(state: &State, me: NodeId) -> Applied {
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
