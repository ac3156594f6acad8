//! Reads this node's duties out of the applied state.
//!
//! The rule: what the state says of a placement is turned into a standing once, here, so that `diff` and the machine
//! mean the same by it.

use std::sync::Arc;

use holdfast_proto::id::NodeId;
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::limits::DEVICE_MILLI;
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::Run;
use holdfast_storage::machine::view::Assignment;

use super::duty::{Duties, Duty, MemberRun, Part, RunKey, Standing, Work};

/// What the state asks of a node. `runs` are those that have a folder here.
pub fn duties(state: &State, node: NodeId, runs: &[RunKey]) -> Duties {
    let assigned = state.assignments(node);
    let members = assigned
        .iter()
        .map(|one| ((one.lease.id(), one.placement.epoch), duty(state, one)))
        .collect();
    let remembered = runs
        .iter()
        .map(|run| run.lease)
        .filter(|lease| state.leases.get(lease).is_some())
        .collect();
    Duties { members, remembered }
}

fn duty(state: &State, assigned: &Assignment<'_>) -> Duty {
    let Assignment {
        lease,
        placement,
        member,
        ..
    } = assigned;
    let run = match &member.run {
        Run::Idle => MemberRun::Idle,
        Run::Accepted(incarnation) => MemberRun::Accepted(*incarnation),
        Run::Started(_) => MemberRun::Started,
        Run::Exited(_) => MemberRun::Exited,
    };
    let members: Vec<NodeId> = placement.members.iter().map(|member| member.allocation.node).collect();
    let leader = members.first().and_then(|node| state.nodes.get(node));
    Duty {
        token: placement.token,
        standing: standing(assigned, run),
        attempt: placement.attempt,
        run,
        prepared: member.prepared,
        lost: member.lost.is_some(),
        work: Arc::new(Work {
            requested: Arc::clone(&lease.requested),
            allocation: member.allocation.clone(),
            members,
            leader_host: leader.map(|node| node.spec.address.host.clone()).unwrap_or_default(),
            restore: placement.restore.clone(),
            part: part(state, assigned),
        }),
    }
}

/// The part of its device that a member has, if it does not have all of it.
fn part(state: &State, assigned: &Assignment<'_>) -> Option<Part> {
    let milli = Some(state.milli_of(assigned.lease.id())).filter(|milli| *milli < DEVICE_MILLI)?;
    let device = assigned.member.allocation.devices.first()?;
    let all_mib = state.devices.get(device).map_or(0, |slot| slot.device.memory_mib);
    let memory_mib = u64::from(all_mib) * u64::from(milli) / u64::from(DEVICE_MILLI);
    Some(Part {
        milli,
        memory_mib: u32::try_from(memory_mib).unwrap_or(all_mib),
    })
}

fn standing(assigned: &Assignment<'_>, run: MemberRun) -> Standing {
    let Assignment { lease, placement, .. } = assigned;
    if placement.epoch != lease.epoch {
        return Standing::Replaced;
    }
    if lease.end_reason().is_some() || placement.given_up {
        return Standing::Ending;
    }
    match run {
        // Over for all, and this member has not ended yet. Whether another attempt follows here shows afterwards.
        MemberRun::Accepted(_) | MemberRun::Started if placement.over => Standing::Waiting,
        MemberRun::Accepted(_) | MemberRun::Started => Standing::Current,
        // An attempt may be used up without having been accepted, so the lease says whether the next one is awaited.
        MemberRun::Idle | MemberRun::Exited if lease.status == LeaseStatus::Placed => Standing::Waiting,
        MemberRun::Idle | MemberRun::Exited => Standing::Current,
    }
}

#[cfg(test)]
#[path = "assigned_tests.rs"]
mod tests;
