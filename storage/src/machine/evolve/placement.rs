//! Folds what happens to placements: grants, starts and ends of members, and who holds which device.

use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::{Attempt, DeviceId, Epoch, FencingToken, LeaseId, NodeId};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::placement::{Allocation, Exit};
use holdfast_proto::workload::Checkpoint;

use super::super::state::{Holder, Lease, Member, Placement, Run, State};
use super::lease::{have, hold};

pub(super) fn fold(state: &mut State, record: &EventRecord) {
    match &record.event {
        Event::PlacementCommitted {
            lease,
            epoch,
            token,
            allocations,
            micros_per_hour,
            restore,
        } => {
            let placement = granted(record, *epoch, *token, allocations, *micros_per_hour, restore.clone());
            committed(state, *lease, placement);
        }
        Event::AllocationPrepared {
            lease,
            epoch,
            node,
            incarnation,
            ..
        } => change_member(state, *lease, *epoch, *node, |member| {
            member.prepared = Some(*incarnation)
        }),
        Event::StartAccepted { lease, attempt, .. } => state.change_lease(*lease, |lease| {
            lease.exit_code = None;
            lease.enter(LeaseStatus::Starting, record.at);
            if let Some(placement) = &mut lease.placement {
                accept(placement, *attempt);
            }
        }),
        Event::AllocationStarted { lease, epoch, node, .. } => {
            change_member(state, *lease, *epoch, *node, |member| {
                if let Run::Accepted(incarnation) = member.run {
                    member.run = Run::Started(incarnation);
                }
            });
            state.change_node(*node, |node| node.launch_failures = 0);
        }
        Event::AllocationExited {
            lease,
            epoch,
            attempt,
            node,
            exit,
        } => exited(state, *lease, *epoch, *attempt, *node, exit),
        Event::AttemptEnded { lease, .. } => state.change_lease(*lease, |lease| attempt_ended(lease, record)),
        Event::LeaseEvicted { lease, epoch, .. } | Event::LeasePreempted { lease, epoch, .. } => {
            sent_away(state, *lease, *epoch);
        }
        Event::AllocationEnded { lease, epoch, node } => released(state, *lease, *epoch, *node),
        _ => {}
    }
}

fn granted(
    record: &EventRecord,
    epoch: Epoch,
    token: FencingToken,
    allocations: &[Allocation],
    micros_per_hour: u64,
    restore: Option<Checkpoint>,
) -> Placement {
    let member = |allocation: &Allocation| Member {
        allocation: allocation.clone(),
        prepared: None,
        run: Run::Idle,
        lost: None,
        released: false,
    };
    Placement {
        epoch,
        token,
        granted: record.at,
        micros_per_hour,
        restore,
        members: allocations.iter().map(member).collect(),
        attempt: Attempt(0),
        activated: false,
        over: false,
        given_up: false,
    }
}

/// Puts a placement in force. One that it replaces is kept until the ends of its members are proven.
fn committed(state: &mut State, lease: LeaseId, placement: Placement) {
    let Some(known) = state.leases.get(&lease) else { return };
    let (tenant, before, now) = (known.requested.tenant.clone(), known.devices, placement.devices());
    let had = known.placement.as_ref().map_or(0, Placement::devices);
    hold(state, &tenant, before, now);
    have(state, &tenant, had, now, placement.granted);
    let epoch = placement.epoch;
    for member in &placement.members {
        state.index.on_node.insert((member.allocation.node, lease), ());
        for device in &member.allocation.devices {
            state.set_holder(*device, lease, Some(Holder { lease, epoch }));
        }
    }
    state.change_lease(lease, |lease| {
        lease.devices = now;
        // States saved after the one that it resumes from are of a past that is given up; their steps come again.
        let step = placement.restore.as_ref().map(|restore| restore.step);
        lease.checkpoints.retain(|saved| Some(saved.step) <= step);
        lease.epoch = epoch;
        lease.reason = None;
        lease.enter(LeaseStatus::Placed, placement.granted);
        let last = lease.placement.replace(placement);
        lease
            .earlier
            .extend(last.filter(|last| last.members.iter().any(|member| !member.released)));
    });
}

/// It is not the lease's fault that it has to go: however often that happens, it uses up no attempts.
fn sent_away(state: &mut State, lease: LeaseId, epoch: Epoch) {
    state.change_lease(lease, |lease| {
        lease.failed_attempts = 0;
        if let Some(placement) = lease.placement_mut(epoch) {
            placement.given_up = true;
        }
    });
}

fn accept(placement: &mut Placement, attempt: Attempt) {
    placement.attempt = attempt;
    placement.activated = false;
    placement.over = false;
    for member in &mut placement.members {
        if let Some(incarnation) = member.prepared.take() {
            member.run = Run::Accepted(incarnation);
        }
    }
}

fn exited(state: &mut State, lease: LeaseId, epoch: Epoch, attempt: Attempt, node: NodeId, exit: &Exit) {
    let failed_launch = matches!(exit, Exit::LaunchFailed(_));
    state.change_lease(lease, |lease| {
        // The first member that failed speaks for all.
        let speaks = lease.epoch == epoch && lease.exit_code.is_none_or(|earlier| earlier == 0);
        lease.exit_code = exit_code(exit).filter(|_| speaks).or(lease.exit_code);
        if failed_launch && !lease.failed_on.contains(&node) {
            lease.failed_on.push(node);
        }
        let Some(placement) = lease.placement_mut(epoch) else {
            return;
        };
        if attempt > placement.attempt {
            // It failed while it was prepared: the attempt is used up, so that the next one has a number of its own.
            placement.attempt = attempt;
            placement.activated = false;
            for member in &mut placement.members {
                member.prepared = None;
            }
        }
        placement.given_up |= failed_launch;
        for member in &mut placement.members {
            if member.allocation.node == node {
                member.run = Run::Exited(exit.clone());
                member.prepared = None;
            }
        }
    });
    if failed_launch {
        state.change_node(node, |node| {
            node.launch_failures = node.launch_failures.saturating_add(1)
        });
    }
}

/// Returns what the tenant's shell would show for a process that ended by itself.
fn exit_code(exit: &Exit) -> Option<i32> {
    match exit {
        Exit::Code(code) => Some(*code),
        Exit::Signal(signal) => Some(signal.saturating_add(128)),
        Exit::OutOfMemory => Some(137),
        Exit::LaunchFailed(_) | Exit::NotStarted | Exit::Stopped | Exit::Vanished => None,
    }
}

fn attempt_ended(lease: &mut Lease, record: &EventRecord) {
    lease.meter.open = None;
    lease.exit_code = None;
    let Some(placement) = &mut lease.placement else { return };
    placement.over = true;
    if !placement.activated {
        lease.failed_attempts = lease.failed_attempts.saturating_add(1);
    }
    if matches!(
        lease.status,
        LeaseStatus::Starting | LeaseStatus::Active | LeaseStatus::Frozen
    ) {
        lease.enter(LeaseStatus::Placed, record.at);
    }
}

/// Frees what one member held. A device that a later placement of the lease has taken over stays with that one, and
/// one that it had taken over goes back to the earlier placement, whose member may still run on it.
fn released(state: &mut State, lease: LeaseId, epoch: Epoch, node: NodeId) {
    let mut freed = Vec::new();
    state.change_lease(lease, |lease| {
        let Some(placement) = lease.placement_mut(epoch) else {
            return;
        };
        for member in placement
            .members
            .iter_mut()
            .filter(|member| member.allocation.node == node)
        {
            member.released = true;
            freed.extend_from_slice(&member.allocation.devices);
        }
        lease
            .earlier
            .retain(|placement| placement.members.iter().any(|member| !member.released));
    });
    for device in freed {
        if state.holds(device, Holder { lease, epoch }) {
            let holder = state.leases.get(&lease).and_then(|lease| lease.holder_of(device));
            state.set_holder(device, lease, holder);
        }
    }
    let held = |placement: &Placement| placement.member(node).is_some_and(|member| !member.released);
    if !state
        .leases
        .get(&lease)
        .is_some_and(|lease| lease.placements().any(held))
    {
        state.index.on_node.remove(&(node, lease));
    }
}

fn change_member(state: &mut State, lease: LeaseId, epoch: Epoch, node: NodeId, change: impl FnOnce(&mut Member)) {
    state.change_lease(lease, |lease| {
        let members = lease.placement_mut(epoch).map(|placement| &mut placement.members);
        if let Some(member) = members.and_then(|all| all.iter_mut().find(|member| member.allocation.node == node)) {
            change(member);
        }
    });
}

impl Lease {
    /// Returns the last placement with a member that holds the device.
    pub(super) fn holder_of(&self, device: DeviceId) -> Option<Holder> {
        let holds = |member: &Member| !member.released && member.allocation.devices.contains(&device);
        let placements = self
            .placements()
            .filter(|placement| placement.members.iter().any(holds));
        placements.last().map(|placement| Holder {
            lease: self.id(),
            epoch: placement.epoch,
        })
    }

    fn placement_mut(&mut self, epoch: Epoch) -> Option<&mut Placement> {
        let mut all = self.earlier.iter_mut().chain(self.placement.as_mut());
        all.find(|placement| placement.epoch == epoch)
    }
}
