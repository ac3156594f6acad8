//! What follows from a change of a lease's members: devices come free, the next attempt starts, the lease moves or ends.
//!
//! Other rules call this after they have emitted what happened. It looks at the state as it is then, so it does not
//! matter which of several changes came last.

use holdfast_proto::event::Event;
use holdfast_proto::id::LeaseId;
use holdfast_proto::lease::{EndReason, LeaseStatus};
use holdfast_proto::limits::LEASE_ATTEMPTS_MAX;
use holdfast_proto::node::NodeStatus;

use super::super::draft::Draft;
use super::super::meter;
use super::super::state::{Lease, Member, Placement};

/// Lets everything follow that the members' states allow now.
pub(super) fn settle(draft: &mut Draft, id: LeaseId) {
    let Some(lease) = draft.state().leases.get(&id).cloned() else {
        return;
    };
    let ending = matches!(lease.status, LeaseStatus::Ending(_));
    if lease.status.is_ended() {
        return;
    }
    for placement in lease.placements() {
        // A placement in force keeps its devices between attempts and while its lost node may come back.
        if ending || placement.given_up || placement.epoch < lease.epoch {
            release(draft, id, placement);
        }
    }
    match lease.status {
        LeaseStatus::Ending(reason) => finish(draft, id, reason),
        LeaseStatus::Placed => accept(draft, id),
        _ => {}
    }
}

/// Frees the devices of every member whose end is proven.
pub(super) fn release(draft: &mut Draft, lease: LeaseId, placement: &Placement) {
    for member in placement
        .members
        .iter()
        .filter(|member| !member.released && !member.may_run())
    {
        draft.emit(Event::AllocationEnded {
            lease,
            epoch: placement.epoch,
            node: member.allocation.node,
        });
    }
}

/// Ends a lease that owes no more proof.
fn finish(draft: &mut Draft, id: LeaseId, reason: EndReason) {
    let Some(lease) = draft.state().leases.get(&id).cloned() else {
        return;
    };
    let owes = lease
        .placements()
        .any(|placement| placement.members.iter().any(|member| !member.released));
    if !owes {
        draft.emit(Event::LeaseEnded {
            lease: id,
            reason,
            exit_code: lease.exit_code,
        });
    }
}

/// Accepts the next attempt when it may start: every member is prepared by its node's present daemon, every node is
/// heard, and every earlier attempt, of all epochs, is proven to be over.
fn accept(draft: &mut Draft, id: LeaseId) {
    let Some(lease) = draft.state().leases.get(&id).cloned() else {
        return;
    };
    let Some(placement) = lease.placement.as_ref().filter(|placement| !placement.given_up) else {
        return;
    };
    let ready = |member: &Member| {
        let node = draft.state().nodes.get(&member.allocation.node);
        let prepared = |incarnation| member.prepared == Some(incarnation);
        let heard = node.is_some_and(|node| node.status == NodeStatus::Ready && node.incarnation.is_some_and(prepared));
        heard && !member.may_run() && member.lost.is_none()
    };
    if lease.earlier.is_empty() && placement.members.iter().all(ready) {
        draft.emit(Event::StartAccepted {
            lease: id,
            epoch: placement.epoch,
            attempt: placement.attempt.next(),
        });
    }
}

/// Closes the stretch that is being metered, with its line.
pub(super) fn charge(draft: &mut Draft, lease: &Lease) {
    if let Some(line) = meter::line(lease, draft.at()) {
        draft.emit(Event::LeaseCharged(line));
    }
}

/// Ends a lease: its members must stop, and it is over once they have proven it.
pub(super) fn end(draft: &mut Draft, id: LeaseId, reason: EndReason) {
    let Some(lease) = draft.state().leases.get(&id).cloned() else {
        return;
    };
    charge(draft, &lease);
    draft.emit(Event::LeaseEnding { lease: id, reason });
    settle(draft, id);
}

/// Ends the present attempt for all members. Returns false when the lease has no attempts left and ends with it.
pub(super) fn end_attempt(draft: &mut Draft, id: LeaseId) -> bool {
    let Some(lease) = draft.state().leases.get(&id).cloned() else {
        return false;
    };
    let Some(placement) = &lease.placement else {
        return false;
    };
    charge(draft, &lease);
    draft.emit(Event::AttemptEnded {
        lease: id,
        epoch: placement.epoch,
        attempt: placement.attempt,
    });
    let failed = draft.state().leases.get(&id).map_or(0, |lease| lease.failed_attempts);
    if failed < LEASE_ATTEMPTS_MAX {
        return true;
    }
    end(draft, id, EndReason::Failed);
    false
}

/// Sends a lease to its next placement. A placement that is given up stops first; one that has only lost a node stays
/// as it is, because the node may return before another place is found.
pub(super) fn migrate(draft: &mut Draft, id: LeaseId, reason: &str) {
    let Some(lease) = draft.state().leases.get(&id).cloned() else {
        return;
    };
    let Some(placement) = &lease.placement else { return };
    if matches!(lease.status, LeaseStatus::Ending(_) | LeaseStatus::Ended(_)) {
        return settle(draft, id);
    }
    if placement.given_up && placement.attempt_runs() {
        if !end_attempt(draft, id) {
            return;
        }
    } else {
        charge(draft, &lease);
    }
    if lease.status != LeaseStatus::Migrating {
        draft.emit(Event::LeaseMigrating {
            lease: id,
            epoch: placement.epoch,
            reason: reason.to_owned(),
        });
    }
    settle(draft, id);
}
