//! Decides what members report: that they are ready, that they run, that they have ended.
//!
//! A start is accepted inside the entry that makes it possible, so no second round through the log is needed. One
//! member's end is the end of the attempt for all, but for a job's clean end, which the others may still reach.

use holdfast_proto::command::Command;
use holdfast_proto::event::Event;
use holdfast_proto::id::{Attempt, Epoch, Incarnation, LeaseId, NodeId};
use holdfast_proto::lease::{EndReason, LeaseStatus};
use holdfast_proto::limits::{NODE_LAUNCH_FAILURES_MAX, TEXT_BYTES_MAX};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::placement::Exit;
use holdfast_proto::rejection::Rejection;

use super::super::draft::Draft;
use super::super::state::{Lease, Placement, Run};
use super::node::is_present;
use super::settle::{end, end_attempt, migrate, settle};

pub(super) fn decide(draft: &mut Draft, command: &Command) -> Result<(), Rejection> {
    match command {
        Command::ReportPrepared {
            lease,
            epoch,
            follows,
            node,
            incarnation,
        } => prepared(draft, *lease, *epoch, *follows, *node, *incarnation),
        Command::ReportStarted {
            lease,
            epoch,
            attempt,
            node,
        } => started(draft, *lease, *epoch, *attempt, *node),
        Command::ReportExited {
            lease,
            epoch,
            attempt,
            node,
            exit,
        } => exited(draft, *lease, *epoch, *attempt, *node, exit),
        _ => unreachable!("decide.rs routes reports of members only"),
    }
}

/// Refuses what the lease's state does not allow.
pub(super) fn wrong_state(lease: &Lease, needed: &str) -> Rejection {
    Rejection::LeaseState {
        lease: lease.id(),
        status: lease.status,
        needed: needed.to_owned(),
    }
}

/// Returns the present placement, if it is the one that is named.
fn present(lease: &Lease, given: Epoch) -> Result<&Placement, Rejection> {
    let stale = Rejection::EpochStale {
        lease: lease.id(),
        given,
        present: lease.epoch,
    };
    lease
        .placement
        .as_ref()
        .filter(|placement| placement.epoch == given)
        .ok_or(stale)
}

fn in_attempt(lease: &Lease, placement: &Placement, given: Attempt) -> Result<(), Rejection> {
    match placement.attempt == given {
        true => Ok(()),
        false => Err(Rejection::AttemptStale {
            lease: lease.id(),
            given,
            present: placement.attempt,
        }),
    }
}

fn prepared(
    draft: &mut Draft,
    id: LeaseId,
    epoch: Epoch,
    follows: Attempt,
    node: NodeId,
    incarnation: Incarnation,
) -> Result<(), Rejection> {
    let lease = draft.lease(id)?;
    let placement = present(&lease, epoch)?;
    let member = placement
        .member(node)
        .ok_or(Rejection::NotAMember { lease: id, node })?;
    is_present(&*draft.node(node)?, incarnation)?;
    in_attempt(&lease, placement, follows)?;
    if lease.status != LeaseStatus::Placed || member.may_run() {
        return Err(wrong_state(
            &lease,
            "a member prepares while its lease is placed and nothing of it runs",
        ));
    }
    if member.prepared == Some(incarnation) {
        return Ok(());
    }
    draft.emit(Event::AllocationPrepared {
        lease: id,
        epoch,
        follows,
        node,
        incarnation,
    });
    settle(draft, id);
    Ok(())
}

fn started(draft: &mut Draft, id: LeaseId, epoch: Epoch, attempt: Attempt, node: NodeId) -> Result<(), Rejection> {
    let lease = draft.lease(id)?;
    let placement = present(&lease, epoch)?;
    let member = placement
        .member(node)
        .ok_or(Rejection::NotAMember { lease: id, node })?;
    in_attempt(&lease, placement, attempt)?;
    match member.run {
        Run::Accepted(_) => {}
        Run::Started(_) => return Ok(()),
        Run::Idle | Run::Exited(_) => return Err(wrong_state(&lease, "only an accepted member can start")),
    }
    draft.emit(Event::AllocationStarted {
        lease: id,
        epoch,
        attempt,
        node,
    });
    activate(draft, id);
    Ok(())
}

/// Activates a lease whose members all run. When one of their nodes has fallen silent meanwhile, it freezes at once.
fn activate(draft: &mut Draft, id: LeaseId) {
    let Some(lease) = draft.state().leases.get(&id).cloned() else {
        return;
    };
    let Some(placement) = lease
        .placement
        .as_ref()
        .filter(|_| lease.status == LeaseStatus::Starting)
    else {
        return;
    };
    let ran = |run: &Run| matches!(run, Run::Started(_) | Run::Exited(Exit::Code(0)));
    if !placement.members.iter().all(|member| ran(&member.run)) {
        return;
    }
    draft.emit(Event::LeaseActivated {
        lease: id,
        epoch: placement.epoch,
        attempt: placement.attempt,
        expires: lease.expires.unwrap_or(draft.at().plus(lease.duration)),
    });
    let silent = placement
        .members
        .iter()
        .find(|member| member.may_run() && !hears(draft, member.allocation.node));
    if let Some(member) = silent {
        let node = member.allocation.node;
        draft.emit(Event::LeaseFrozen { lease: id, node });
    }
}

fn hears(draft: &Draft, node: NodeId) -> bool {
    draft
        .state()
        .nodes
        .get(&node)
        .is_some_and(|node| node.status == NodeStatus::Ready)
}

fn exited(
    draft: &mut Draft,
    id: LeaseId,
    epoch: Epoch,
    attempt: Attempt,
    node: NodeId,
    exit: &Exit,
) -> Result<(), Rejection> {
    let lease = draft.lease(id)?;
    if epoch > lease.epoch {
        let present = lease.epoch;
        return Err(Rejection::EpochStale {
            lease: id,
            given: epoch,
            present,
        });
    }
    let Some(placement) = lease.placements().find(|placement| placement.epoch == epoch) else {
        return Ok(()); // Every end in that epoch is known.
    };
    let member = placement
        .member(node)
        .ok_or(Rejection::NotAMember { lease: id, node })?;
    let unaccepted = attempt == placement.attempt.next();
    match &member.run {
        _ if member.released => return Ok(()),
        Run::Exited(_) if attempt <= placement.attempt => return Ok(()),
        Run::Accepted(_) | Run::Started(_) if attempt == placement.attempt => {}
        Run::Idle | Run::Exited(_) if unaccepted && !exit.needs_a_start() => {}
        _ => {
            let present = placement.attempt;
            return Err(Rejection::AttemptStale {
                lease: id,
                given: attempt,
                present,
            });
        }
    }
    let was_over = placement.over && !unaccepted;
    draft.emit(Event::AllocationExited {
        lease: id,
        epoch,
        attempt,
        node,
        exit: printable(exit),
    });
    quarantine(draft, node, exit);
    follow(draft, id, epoch, node, exit, was_over);
    Ok(())
}

/// Makes the text of a failed launch fit for screens. It is not refused: then the end would never be known.
fn printable(exit: &Exit) -> Exit {
    let Exit::LaunchFailed(reason) = exit else {
        return exit.clone();
    };
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut text: String = reason.chars().map(plain).take(TEXT_BYTES_MAX).collect();
    while text.len() > TEXT_BYTES_MAX {
        text.pop();
    }
    Exit::LaunchFailed(text)
}

/// Keeps work away from a node that fails one launch after another, before it uses up every lease's attempts.
fn quarantine(draft: &mut Draft, node: NodeId, exit: &Exit) {
    let Exit::LaunchFailed(reason) = printable(exit) else {
        return;
    };
    let Some(known) = draft.state().nodes.get(&node) else {
        return;
    };
    if known.launch_failures >= NODE_LAUNCH_FAILURES_MAX && known.cordoned.is_none() {
        let mut reason = format!("{} launches failed in a row; the last: {reason}", known.launch_failures);
        while reason.len() > TEXT_BYTES_MAX {
            reason.pop();
        }
        draft.emit(Event::NodeCordoned {
            node,
            cordoned: true,
            reason,
        });
    }
}

/// Decides what one member's end means for the lease.
fn follow(draft: &mut Draft, id: LeaseId, epoch: Epoch, node: NodeId, exit: &Exit, was_over: bool) {
    let Some(lease) = draft.state().leases.get(&id).cloned() else {
        return;
    };
    let Some(placement) = lease.placement.as_ref().filter(|placement| placement.epoch == epoch) else {
        return settle(draft, id);
    };
    if matches!(lease.status, LeaseStatus::Ending(_)) || was_over {
        return settle(draft, id);
    }
    if exit.is_success() {
        let clean = |run: &Run| matches!(run, Run::Exited(exit) if exit.is_success());
        if placement.members.iter().all(|member| clean(&member.run)) {
            end(draft, id, EndReason::Completed);
        } else {
            activate(draft, id);
        }
        return;
    }
    // A member whose peer cannot be heard often fails because of that; then the work is not to blame.
    let peers_heard = placement
        .members
        .iter()
        .filter(|peer| peer.allocation.node != node)
        .all(|peer| peer.lost.is_none() && hears(draft, peer.allocation.node));
    if exit.needs_a_start() && peers_heard {
        return end(draft, id, EndReason::Failed);
    }
    if !end_attempt(draft, id) {
        return;
    }
    match printable(exit) {
        Exit::LaunchFailed(reason) => migrate(draft, id, &format!("the launch failed: {reason}")),
        _ => settle(draft, id),
    }
}
