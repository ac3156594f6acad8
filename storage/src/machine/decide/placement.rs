//! Decides placements: the scheduler proposes from what it saw, and every rule is checked again at the entry itself.
//!
//! A gang is granted whole or not at all. The next epoch of a lease may take over devices that its earlier one still
//! holds; nothing of it starts before that one is proven to be over.

use std::sync::Arc;

use holdfast_proto::condition::share_of;
use holdfast_proto::device::{Grade, ModelName};
use holdfast_proto::event::Event;
use holdfast_proto::id::{DeviceId, Epoch, FencingToken, LeaseId, NodeId};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::node::NodeStatus;
use holdfast_proto::placement::Allocation;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::workload::Checkpoint;

use super::super::draft::Draft;
use super::super::state::{Lease, Node, Slot};
use super::attempt::wrong_state;
use super::settle::release;
use super::shape;

pub(super) fn commit(
    draft: &mut Draft,
    id: LeaseId,
    epoch: Epoch,
    allocations: &[Allocation],
) -> Result<(), Rejection> {
    let lease = draft.lease(id)?;
    if epoch != lease.epoch.next() {
        let present = lease.epoch;
        return Err(Rejection::EpochStale {
            lease: id,
            given: epoch,
            present,
        });
    }
    if !lease.is_placeable() {
        let needed = "only a lease that waits, and of which one member's end is proven, is placed";
        return Err(wrong_state(&lease, needed));
    }
    let slots = check(draft, &lease, allocations)?;
    let micros_per_hour = rate(draft, &lease, &slots)?;
    limits(draft, &lease, &slots, micros_per_hour)?;
    let restore = restore_point(draft, &lease)?;
    if let Some(last) = &lease.placement {
        release(draft, id, last);
    }
    let token = FencingToken {
        era: draft.state().cluster.era,
        index: draft.index(),
    };
    draft.emit(Event::PlacementCommitted {
        lease: id,
        epoch,
        token,
        allocations: allocations.to_vec(),
        micros_per_hour,
        restore,
    });
    Ok(())
}

fn conflict(lease: &Lease, problem: impl Into<String>) -> Rejection {
    Rejection::PlacementConflict {
        lease: lease.id(),
        problem: problem.into(),
    }
}

/// Checks the whole gang, and returns its devices.
fn check(draft: &Draft, lease: &Lease, allocations: &[Allocation]) -> Result<Vec<Arc<Slot>>, Rejection> {
    let request = &lease.requested.request;
    let mut slots = Vec::new();
    for (rank, allocation) in (0_u32..).zip(allocations) {
        if allocation.rank != rank {
            return Err(conflict(
                lease,
                format!("rank {} stands in place {rank}", allocation.rank),
            ));
        }
        if allocations[..rank as usize]
            .iter()
            .any(|other| other.node == allocation.node)
        {
            return Err(conflict(lease, format!("node {} is named twice", allocation.node)));
        }
        slots.extend(check_member(draft, lease, allocation)?);
    }
    let devices = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    if !(request.devices_min..=request.devices_max).contains(&devices) {
        let asked = format!("{} to {}", request.devices_min, request.devices_max);
        return Err(conflict(lease, format!("{devices} devices granted, {asked} asked")));
    }
    if request.single_node && allocations.len() > 1 {
        return Err(conflict(lease, "all devices must be on one node"));
    }
    if request.same_model && slots.iter().any(|slot| slot.device.model != slots[0].device.model) {
        return Err(conflict(lease, "all devices must be of one model"));
    }
    quota(draft, lease, devices)?;
    Ok(slots)
}

/// Checks that a grant which is larger than what the lease counts for fits the quota. One that is not was admitted
/// before, and a quota that was lowered since does not strand running work.
fn quota(draft: &Draft, lease: &Lease, devices: u32) -> Result<(), Rejection> {
    let name = &lease.requested.tenant;
    let tenant = draft
        .state()
        .tenants
        .get(name)
        .ok_or(Rejection::TenantUnknown { tenant: name.clone() })?;
    let others = tenant.held.saturating_sub(lease.devices);
    let left = tenant.quota.devices_max.saturating_sub(others);
    match devices > lease.devices && devices > left {
        true => Err(Rejection::QuotaExceeded {
            tenant: name.clone(),
            asked: devices,
            left,
        }),
        false => Ok(()),
    }
}

/// Checks that what is granted is within the tenant's limits on models and money.
fn limits(draft: &Draft, lease: &Lease, slots: &[Arc<Slot>], micros_per_hour: u64) -> Result<(), Rejection> {
    let (state, tenant) = (draft.state(), &lease.requested.tenant);
    if state.limits_of(tenant).is_empty() {
        return Ok(());
    }
    let left = state.left(tenant, &state.used_by(tenant), Some(lease));
    for (model, left) in &left.models {
        let granted = slots.iter().filter(|slot| slot.device.model == *model).count();
        let asked = u32::try_from(granted).unwrap_or(u32::MAX);
        if asked > *left {
            return Err(Rejection::ModelQuotaExceeded {
                tenant: tenant.clone(),
                models: vec![model.clone()],
                asked,
                left: *left,
            });
        }
    }
    match left.micros_per_hour.filter(|left| micros_per_hour > *left) {
        Some(left_micros) => Err(Rejection::SpendQuotaExceeded {
            tenant: tenant.clone(),
            asked_micros: micros_per_hour,
            left_micros,
        }),
        None => Ok(()),
    }
}

fn check_member(draft: &Draft, lease: &Lease, allocation: &Allocation) -> Result<Vec<Arc<Slot>>, Rejection> {
    let node = draft.node(allocation.node)?;
    let label = &node.spec.label;
    if let Some(problem) = refuses_work(&node) {
        return Err(conflict(lease, format!("node {label} {problem}")));
    }
    let request = &lease.requested.request;
    if !request.zones.is_empty() && !request.zones.contains(&node.spec.zone) {
        return Err(conflict(lease, format!("node {label} is in zone {}", node.spec.zone)));
    }
    if allocation.devices.is_empty() {
        return Err(conflict(lease, format!("nothing is granted on node {label}")));
    }
    if !allocation.devices.windows(2).all(|pair| pair[0] < pair[1]) {
        return Err(conflict(
            lease,
            format!("devices of node {label} are not in order, each once"),
        ));
    }
    let slots: Result<Vec<_>, _> = allocation
        .devices
        .iter()
        .map(|device| check_device(draft, lease, allocation.node, *device))
        .collect();
    check_machine(draft, lease, &node, allocation)?;
    slots
}

/// Returns why a node takes no new work.
fn refuses_work(node: &Node) -> Option<String> {
    if node.status != NodeStatus::Ready {
        return Some("cannot be heard".to_owned());
    }
    if let Some(reason) = &node.cordoned {
        return Some(format!("is cordoned: {reason}"));
    }
    (!node.inventory_known()).then(|| "has not told what it holds since its daemon started".to_owned())
}

fn check_device(draft: &Draft, lease: &Lease, node: NodeId, device: DeviceId) -> Result<Arc<Slot>, Rejection> {
    let Some(slot) = draft.state().devices.get(&device).filter(|slot| slot.node == node) else {
        return Err(conflict(lease, format!("device {device} is not in node {node}")));
    };
    if slot.grade != Grade::Healthy {
        return Err(conflict(lease, format!("device {device} is out: {}", slot.reason)));
    }
    check_share(draft, lease, slot)?;
    let models = &lease.requested.request.models;
    if !models.is_empty() && !models.contains(&slot.device.model) {
        return Err(conflict(lease, format!("device {device} is a {}", slot.device.model)));
    }
    Ok(Arc::clone(slot))
}

/// Checks that enough of a device is free for the lease; what an earlier epoch of it holds is.
fn check_share(draft: &Draft, lease: &Lease, slot: &Slot) -> Result<(), Rejection> {
    let (id, device) = (lease.id(), slot.device.id);
    if let Some(holder) = slot.holder.filter(|holder| holder.lease != id) {
        return Err(conflict(lease, format!("device {device} belongs to {}", holder.lease)));
    }
    let (asked, free) = (draft.state().milli_of(id), draft.state().milli_free(slot, id));
    match asked > free {
        true => Err(conflict(
            lease,
            format!("{asked} thousandths of device {device} granted, {free} left"),
        )),
        false => Ok(()),
    }
}

/// Checks CPU and memory: enough for the devices, and no more than is left.
fn check_machine(draft: &Draft, lease: &Lease, node: &Node, allocation: &Allocation) -> Result<(), Rejection> {
    let request = &lease.requested.request;
    let devices = allocation.devices.len() as u64;
    let left = draft.state().machine_left(node, Some(lease.id()));
    for (what, granted, each, left) in [
        (
            "cpu",
            allocation.cpu_milli,
            request.cpu_milli_per_device,
            left.cpu_milli,
        ),
        (
            "memory",
            allocation.memory_mib,
            request.memory_mib_per_device,
            left.memory_mib,
        ),
    ] {
        if u64::from(granted) < devices * u64::from(each) {
            return Err(conflict(
                lease,
                format!("{granted} of {what} are too little for {devices} devices"),
            ));
        }
        if granted > left {
            let label = &node.spec.label;
            return Err(conflict(
                lease,
                format!("{granted} of {what} granted on node {label}, {left} left"),
            ));
        }
    }
    Ok(())
}

/// Returns what all devices together cost for an hour, by the tariff of the request.
fn rate(draft: &Draft, lease: &Lease, slots: &[Arc<Slot>]) -> Result<u64, Rejection> {
    let plan = lease.requested.terms.plan;
    let price = |model: &ModelName| {
        let unknown = Rejection::PriceUnknown { model: model.clone() };
        draft.state().price(lease.requested.tariff, model, plan).ok_or(unknown)
    };
    let whole = slots
        .iter()
        .try_fold(0_u64, |sum, slot| Ok(sum.saturating_add(price(&slot.device.model)?)))?;
    Ok(share_of(whole, draft.state().milli_of(lease.id())))
}

/// Returns the newest saved state that a store which can be heard holds. Work that has saved its state does not start
/// from nothing because a store is away for a while: it waits, unless the store is gone for good.
fn restore_point(draft: &Draft, lease: &Lease) -> Result<Option<Checkpoint>, Rejection> {
    let status = |node: &NodeId| {
        draft
            .state()
            .nodes
            .get(node)
            .map_or(NodeStatus::Removed, |node| node.status)
    };
    let held = |checkpoint: &&Checkpoint| checkpoint.holders.iter().any(|node| status(node) == NodeStatus::Ready);
    if let Some(found) = lease.checkpoints.iter().rev().find(held) {
        return Ok(Some(found.clone()));
    }
    let away = |checkpoint: &Checkpoint| {
        checkpoint
            .holders
            .iter()
            .any(|node| status(node) != NodeStatus::Removed)
    };
    match lease.checkpoints.iter().any(away) {
        true => Err(conflict(lease, "no node that holds a saved state of it can be heard")),
        false => Ok(None),
    }
}

pub(super) fn defer(draft: &mut Draft, id: LeaseId, reason: &str) -> Result<(), Rejection> {
    let lease = draft.lease(id)?;
    shape::text("reason", reason)?;
    if !matches!(lease.status, LeaseStatus::Pending | LeaseStatus::Migrating) {
        return Err(wrong_state(&lease, "only a lease that waits has a reason to"));
    }
    if lease.reason.as_deref() != Some(reason) {
        draft.emit(Event::PlacementDeferred {
            lease: id,
            reason: reason.to_owned(),
        });
    }
    Ok(())
}
