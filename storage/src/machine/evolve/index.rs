//! Keeps the indexes over the state in step with it, and builds them anew for a state that was read from a snapshot.

use std::collections::BTreeMap;

use holdfast_proto::device::ModelName;
use holdfast_proto::id::{LeaseId, NodeId, TenantId};
use holdfast_proto::node::NodeStatus;

use super::super::state::{Index, Node, Shape, State};

impl State {
    /// Builds all indexes.
    pub(in super::super) fn reindex(&mut self) {
        let mut index = Index::default();
        for (id, lease) in &self.leases {
            if let Some(key) = lease.queue_key() {
                index.enter(key, &lease.requested.tenant);
            }
            index.share(self.milli_of(*id), lease);
            for member in lease.placements().flat_map(|placement| &placement.members) {
                if !member.released {
                    index.on_node.insert((member.allocation.node, *id), ());
                }
            }
        }
        for node in self.nodes.values() {
            if let Some(shape) = self.shape(node) {
                let count = index.shapes.get(&shape).copied().unwrap_or(0);
                index.shapes.insert(shape, count + 1);
            }
        }
        self.index = index;
    }

    /// Returns what a node offers, if it belongs to the cluster and has reported.
    fn shape(&self, node: &Node) -> Option<Shape> {
        let inventory = node.inventory.as_ref().filter(|_| node.status != NodeStatus::Removed)?;
        let mut devices: BTreeMap<ModelName, u32> = BTreeMap::new();
        for slot in node.devices.iter().filter_map(|device| self.devices.get(device)) {
            if !slot.grade.ends_work() {
                *devices.entry(slot.device.model.clone()).or_default() += 1;
            }
        }
        Some(Shape {
            zone: node.spec.zone.clone(),
            cpu_milli: inventory.cpu_milli,
            memory_mib: inventory.memory_mib,
            devices: devices.into_iter().collect(),
        })
    }

    /// Takes a node's shape out before a change of the node or its devices...
    pub(super) fn drop_shape(&mut self, node: NodeId) {
        let Some(shape) = self.nodes.get(&node).and_then(|node| self.shape(node)) else {
            return;
        };
        match self.index.shapes.get_mut(&shape) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                self.index.shapes.remove(&shape);
            }
        }
    }

    /// ... and puts it back in after the change.
    pub(super) fn put_shape(&mut self, node: NodeId) {
        let Some(shape) = self.nodes.get(&node).and_then(|node| self.shape(node)) else {
            return;
        };
        let count = self.index.shapes.get(&shape).copied().unwrap_or(0);
        self.index.shapes.insert(shape, count + 1);
    }
}

impl Index {
    /// Puts a lease of a tenant into the queue.
    pub(super) fn enter(&mut self, (class, lease): (u16, LeaseId), tenant: &TenantId) {
        self.waiting.insert((class, lease), ());
        self.queues.insert((class, tenant.clone(), lease), ());
    }

    /// Takes it out.
    pub(super) fn leave(&mut self, (class, lease): (u16, LeaseId), tenant: &TenantId) {
        self.waiting.remove(&(class, lease));
        self.queues.remove(&(class, tenant.clone(), lease));
    }
}
