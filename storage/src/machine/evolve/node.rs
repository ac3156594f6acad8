//! Folds what happens to nodes and their devices.

use std::sync::Arc;

use holdfast_proto::device::{Device, Grade};
use holdfast_proto::event::{Event, EventRecord, NodeWork};
use holdfast_proto::id::{Generation, Incarnation, NodeId, TokenId};
use holdfast_proto::node::{BootProof, Inventory, NodeAddress, NodeSpec, NodeStatus};
use holdfast_proto::telemetry::HealthEdge;
use holdfast_proto::time::Timestamp;

use super::super::state::{Drain, Node, Sharer, Slot, State};

pub(super) fn fold(state: &mut State, record: &EventRecord) {
    let at = record.at;
    match &record.event {
        Event::NodeJoined { spec, token } => joined(state, spec, *token, at),
        Event::NodeRegistered {
            node,
            incarnation,
            boot,
            address,
        } => registered(state, *node, *incarnation, *boot, address, at),
        Event::InventoryReported { node, inventory } => inventory_reported(state, *node, inventory, at),
        Event::NodeUnreachable { node, .. } => enter(state, *node, NodeStatus::Unreachable, at),
        Event::NodeLost { node, generation } => lost(state, *node, *generation, at),
        Event::NodeReturned { node, generation, work } => returned(state, *node, *generation, work, at),
        Event::NodeCordoned { node, cordoned, reason } => {
            state.change_node(*node, |node| {
                node.cordoned = cordoned.then(|| reason.clone());
                node.launch_failures = 0;
            });
            if !cordoned {
                state.drains.remove(node);
            }
        }
        Event::NodeDraining { node, until } => {
            let since = state.drains.get(node).map_or(at, |drain| drain.since);
            let (until, drained) = (*until, None);
            state.drains.insert(*node, Drain { since, until, drained });
        }
        Event::NodeDrained { node } => {
            if let Some(drain) = state.drains.get_mut(node) {
                drain.drained = Some(at);
            }
        }
        Event::NodeRemoved { node } => {
            removed(state, *node, at);
            state.drains.remove(node);
        }
        Event::NodeQuieted { node, until } => state.change_node(*node, |node| node.quiet_until = Some(*until)),
        Event::DeviceGraded { node, edge } => graded(state, *node, edge, at),
        Event::ClockSuspected { node, offset_ms } => {
            state.change_node(*node, |node| node.clock_offset_ms = Some(*offset_ms));
        }
        _ => {}
    }
}

fn enter(state: &mut State, node: NodeId, status: NodeStatus, at: Timestamp) {
    state.change_node(node, |node| {
        node.status = status;
        node.since = at;
    });
}

fn joined(state: &mut State, spec: &NodeSpec, token: Option<TokenId>, at: Timestamp) {
    let node = Node {
        spec: spec.clone(),
        status: NodeStatus::Joined,
        since: at,
        joined: at,
        incarnation: None,
        boot: None,
        generation: Generation(1),
        inventory: None,
        inventory_by: None,
        devices: Vec::new(),
        cordoned: None,
        quiet_until: None,
        launch_failures: 0,
        clock_offset_ms: None,
    };
    state.nodes.insert(spec.node, Arc::new(node));
    if let Some(join) = token.and_then(|token| state.join_tokens.get_mut(&token)) {
        Arc::make_mut(join).used_by = Some(spec.node);
    }
}

fn registered(
    state: &mut State,
    node: NodeId,
    incarnation: Incarnation,
    boot: BootProof,
    address: &NodeAddress,
    at: Timestamp,
) {
    state.change_node(node, |node| {
        node.incarnation = Some(incarnation);
        node.boot = Some(boot);
        node.spec.address = address.clone();
        node.quiet_until = None;
        if node.status == NodeStatus::Joined {
            node.status = NodeStatus::Ready;
            node.since = at;
        }
    });
}

fn inventory_reported(state: &mut State, node: NodeId, inventory: &Inventory, at: Timestamp) {
    let moved = |device: &Device| {
        state
            .devices
            .get(&device.id)
            .map(|slot| slot.node)
            .filter(|owner| *owner != node)
    };
    let mut touched: Vec<NodeId> = inventory.devices.iter().filter_map(moved).collect();
    touched.sort_unstable();
    touched.dedup();
    touched.push(node);
    touched.iter().for_each(|node| state.drop_shape(*node));
    for device in &inventory.devices {
        put_device(state, node, device, at);
    }
    state.change_node(node, |node| {
        node.devices.extend(inventory.devices.iter().map(|device| device.id));
        node.devices.sort_unstable();
        node.devices.dedup();
        node.inventory = Some(inventory.clone());
        node.inventory_by = node.incarnation;
    });
    touched.iter().for_each(|node| state.put_shape(*node));
}

fn put_device(state: &mut State, node: NodeId, device: &Device, at: Timestamp) {
    if let Some(slot) = state.devices.get_mut(&device.id) {
        let slot = Arc::make_mut(slot);
        slot.device = device.clone();
        let before = std::mem::replace(&mut slot.node, node);
        if before != node {
            state.change_node(before, |before| before.devices.retain(|id| *id != device.id));
        }
        return;
    }
    let slot = Slot {
        node,
        device: device.clone(),
        grade: Grade::Healthy,
        xid: None,
        reason: String::new(),
        since: at,
        holder: None,
    };
    state.devices.insert(device.id, Arc::new(slot));
}

/// Marks every member on the node: its work is stopped or frozen, and may not go on unless the node takes it back.
fn lost(state: &mut State, node: NodeId, generation: Generation, at: Timestamp) {
    enter(state, node, NodeStatus::Lost, at);
    for lease in state.leases_on(node) {
        state.change_lease(lease, |lease| {
            for placement in lease.earlier.iter_mut().chain(lease.placement.as_mut()) {
                for member in &mut placement.members {
                    if member.allocation.node == node && !member.released {
                        member.lost = Some(generation);
                    }
                }
            }
        });
    }
}

fn returned(state: &mut State, node: NodeId, generation: Generation, work: &[NodeWork], at: Timestamp) {
    state.change_node(node, |node| {
        node.status = NodeStatus::Ready;
        node.since = at;
        node.generation = generation;
        node.quiet_until = None;
    });
    for lease in state.leases_on(node) {
        state.change_lease(lease, |lease| {
            // Only the present placement is taken back; an earlier one was ended by the loss.
            for member in lease.placement.iter_mut().flat_map(|placement| &mut placement.members) {
                if member.allocation.node == node {
                    member.lost = None;
                }
            }
        });
    }
    for done in work {
        state.change_lease(done.lease, |lease| {
            if let Some(open) = lease.meter.open.as_mut().filter(|open| open.epoch == done.epoch) {
                open.frozen = Some(done.frozen);
            }
        });
    }
}

/// Takes a node out with its devices. Work that a lost node held cannot come back, so its placements are given up.
fn removed(state: &mut State, node: NodeId, at: Timestamp) {
    state.drop_shape(node);
    enter(state, node, NodeStatus::Removed, at);
    for lease in state.leases_on(node) {
        state.change_lease(lease, |lease| {
            if let Some(placement) = lease
                .placement
                .as_mut()
                .filter(|placement| placement.member(node).is_some())
            {
                placement.given_up = true;
            }
        });
    }
    let devices = state
        .nodes
        .get(&node)
        .map(|node| node.devices.clone())
        .unwrap_or_default();
    for device in devices {
        state.devices.remove(&device);
    }
}

fn graded(state: &mut State, node: NodeId, edge: &HealthEdge, at: Timestamp) {
    state.drop_shape(node);
    let holder = state.devices.get_mut(&edge.device).and_then(|slot| {
        let slot = Arc::make_mut(slot);
        slot.grade = edge.grade;
        slot.xid = edge.xid;
        slot.reason.clone_from(&edge.reason);
        slot.since = at;
        slot.holder
    });
    state.put_shape(node);
    if !edge.grade.ends_work() {
        return;
    }
    let sharers = state.sharers(edge.device).iter().map(Sharer::holder);
    for holder in holder.into_iter().chain(sharers).collect::<Vec<_>>() {
        state.change_lease(holder.lease, |lease| {
            if let Some(placement) = lease
                .placement
                .as_mut()
                .filter(|placement| placement.epoch == holder.epoch)
            {
                placement.given_up = true;
            }
        });
    }
}
