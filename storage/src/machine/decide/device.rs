//! Decides what nodes report about their devices, and what a bad device means for the lease that holds it.

use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::device::{Device, Grade};
use holdfast_proto::event::Event;
use holdfast_proto::id::{DeviceId, Incarnation, NodeId};
use holdfast_proto::limits::NODE_DEVICES_MAX;
use holdfast_proto::node::{Inventory, NodeRole, NodeStatus};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::telemetry::{HealthEdge, Rollup};

use super::super::draft::Draft;
use super::super::state::{Node, Slot};
use super::node::is_present;
use super::settle::migrate;
use super::shape;

pub(super) fn decide(draft: &mut Draft, command: &Command) -> Result<(), Rejection> {
    match command {
        Command::ReportInventory {
            node,
            incarnation,
            inventory,
        } => inventory_reported(draft, *node, *incarnation, inventory),
        Command::ReportHealth { node, edges } => health(draft, *node, edges),
        Command::ReportRollup { node, rollups } => rollup(draft, *node, rollups),
        Command::GradeDevice { node, edge } => {
            draft.node(*node)?;
            slot(draft, *node, edge.device)?;
            shape::text("reason", &edge.reason)?;
            grade(draft, *node, edge.clone());
            Ok(())
        }
        _ => unreachable!("decide.rs routes device commands only"),
    }
}

fn conflict(node: NodeId, device: DeviceId, problem: &str) -> Rejection {
    Rejection::DeviceConflict {
        node,
        device,
        problem: problem.to_owned(),
    }
}

/// Returns a device of a node.
fn slot(draft: &Draft, node: NodeId, device: DeviceId) -> Result<Arc<Slot>, Rejection> {
    match draft.state().devices.get(&device) {
        Some(slot) if slot.node == node => Ok(Arc::clone(slot)),
        Some(_) => Err(conflict(node, device, "it is in another node")),
        None => Err(conflict(node, device, "the node has not reported it")),
    }
}

fn inventory_reported(
    draft: &mut Draft,
    node: NodeId,
    incarnation: Incarnation,
    inventory: &Inventory,
) -> Result<(), Rejection> {
    let known = draft.node(node)?;
    is_present(&known, incarnation)?;
    check_inventory(draft, &known, inventory)?;
    let same = known.inventory.as_ref() == Some(inventory) && known.inventory_known();
    if !same {
        draft.emit(Event::InventoryReported {
            node,
            inventory: inventory.clone(),
        });
    }
    let known: Vec<Arc<Slot>> = draft.state().devices_of(node).cloned().collect();
    for slot in known {
        let id = slot.device.id;
        let reported = inventory.devices.binary_search_by_key(&id, |device| device.id).is_ok();
        let (now, reason) = match (reported, slot.grade) {
            (true, _) if came_back(&slot) => (Grade::Healthy, "the node reports it again"),
            // A card that is out for a reason keeps it, or its absence would be forgiven at its return.
            (true, _) | (false, Grade::Missing | Grade::Quarantined) => continue,
            (false, _) => (Grade::Missing, "the node no longer reports it"),
        };
        let edge = HealthEdge {
            device: id,
            grade: now,
            xid: None,
            reason: reason.to_owned(),
        };
        grade(draft, node, edge);
    }
    Ok(())
}

/// Reports whether a device that is reported now was out only because it had not been. One that fell off the bus with
/// a fault code stays out until an operator clears it, or a restart of the daemon would heal it.
fn came_back(slot: &Slot) -> bool {
    slot.grade == Grade::Missing && slot.xid.is_none()
}

fn check_inventory(draft: &Draft, node: &Node, inventory: &Inventory) -> Result<(), Rejection> {
    let id = node.spec.node;
    let devices = &inventory.devices;
    shape::within("number of devices", devices.len(), 0..=NODE_DEVICES_MAX)?;
    shape::text("version", &inventory.version)?;
    if node.spec.role == NodeRole::Witness && !devices.is_empty() {
        return Err(shape::out_of_range("devices of a witness", devices.len(), "none"));
    }
    let had = node.inventory.as_ref().map_or(0, |inventory| inventory.devices.len());
    if devices.is_empty() && had > 0 {
        // A driver that answers with an empty list while it starts would otherwise move every lease.
        let allowed = format!("a measured list: the node had {had}, and an empty one says that it cannot tell");
        return Err(shape::out_of_range("devices", 0, &allowed));
    }
    if let Some(pair) = devices.windows(2).find(|pair| pair[0].id >= pair[1].id) {
        return Err(conflict(id, pair[1].id, "devices must be in order, each once"));
    }
    devices.iter().try_for_each(|device| check_device(draft, id, device))
}

fn check_device(draft: &Draft, node: NodeId, device: &Device) -> Result<(), Rejection> {
    shape::name("model", &device.model)?;
    let Some(slot) = draft.state().devices.get(&device.id).filter(|slot| slot.node != node) else {
        return Ok(());
    };
    // A card may move with its machine to a new node id (a wiped disk), once the old one is known to be gone.
    let owner = draft.state().nodes.get(&slot.node).map(|owner| owner.status);
    let gone = matches!(owner, None | Some(NodeStatus::Lost | NodeStatus::Removed));
    match gone && !draft.state().is_held(slot) {
        true => Ok(()),
        false => Err(conflict(node, device.id, "another node has it; remove that node first")),
    }
}

fn health(draft: &mut Draft, node: NodeId, edges: &[HealthEdge]) -> Result<(), Rejection> {
    draft.node(node)?;
    shape::within("number of changes", edges.len(), 1..=NODE_DEVICES_MAX)?;
    for edge in edges {
        slot(draft, node, edge.device)?;
        shape::text("reason", &edge.reason)?;
    }
    for edge in edges {
        let slot = slot(draft, node, edge.device)?;
        // What is out stays out, whatever a restarted daemon believes: an operator clears it.
        let stays_out = slot.grade == Grade::Quarantined && edge.grade != Grade::Missing;
        if slot.grade != edge.grade && !stays_out {
            grade(draft, node, edge.clone());
        }
    }
    Ok(())
}

/// Changes a device's grade. Work on a device that is out of the pool stops, and moves once that is proven.
fn grade(draft: &mut Draft, node: NodeId, edge: HealthEdge) {
    let holders = draft.state().holders(edge.device);
    let reason = format!("device {} is {}: {}", edge.device, grade_name(edge.grade), edge.reason);
    let ends_work = edge.grade.ends_work();
    draft.emit(Event::DeviceGraded { node, edge });
    for holder in holders.into_iter().filter(|_| ends_work) {
        let lease = draft.state().leases.get(&holder.lease);
        if lease.is_some_and(|lease| lease.epoch == holder.epoch) {
            migrate(draft, holder.lease, &reason);
        }
    }
}

fn grade_name(grade: Grade) -> &'static str {
    match grade {
        Grade::Healthy => "healthy",
        Grade::Suspect => "suspect",
        Grade::Dirty => "dirty",
        Grade::Quarantined => "quarantined",
        Grade::Missing => "missing",
    }
}

fn rollup(draft: &mut Draft, node: NodeId, rollups: &[Rollup]) -> Result<(), Rejection> {
    draft.node(node)?;
    shape::within("number of rollups", rollups.len(), 1..=NODE_DEVICES_MAX)?;
    for rollup in rollups {
        slot(draft, node, rollup.device)?;
    }
    draft.emit_last(Event::RollupReported {
        node,
        rollups: rollups.to_vec(),
    });
    Ok(())
}
