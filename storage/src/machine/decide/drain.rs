//! Decides the emptying of a node: that it begins, which leases are sent elsewhere, and when nothing is left.
//!
//! The scheduler chooses whom to send away and when; the operator's time is the limit. The one rule: a node is drained
//! when every lease that had a part on it has proven its end there, and not before.

use holdfast_proto::command::Command;
use holdfast_proto::condition::LEVEL;
use holdfast_proto::event::Event;
use holdfast_proto::id::{Epoch, LeaseId, NodeId};
use holdfast_proto::limits::DRAIN_MS_MAX;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::time::Span;

use super::super::draft::Draft;
use super::super::state::Drain;
use super::attempt::wrong_state;
use super::settle::migrate;
use super::shape;

pub(super) fn decide(draft: &mut Draft, command: &Command) -> Result<(), Rejection> {
    match command {
        Command::DrainNode { node, span, reason } => begin(draft, *node, *span, reason),
        Command::EvictLease { lease, epoch, node } => evict(draft, *lease, *epoch, *node),
        Command::FinishDrain { node } => finish(draft, *node),
        _ => unreachable!("decide.rs routes drain commands only"),
    }
}

/// Begins a drain, or changes the time of one that goes on.
fn begin(draft: &mut Draft, node: NodeId, span: Span, reason: &str) -> Result<(), Rejection> {
    draft.node(node)?;
    shape::text("reason", reason)?;
    shape::level(draft.state().cluster.level, LEVEL, "drain")?;
    if span.0 > DRAIN_MS_MAX {
        let allowed = format!("at most {}", Span(DRAIN_MS_MAX));
        return Err(shape::out_of_range("deadline", span, &allowed));
    }
    draft.emit(Event::NodeCordoned {
        node,
        cordoned: true,
        reason: reason.to_owned(),
    });
    draft.emit(Event::NodeDraining {
        node,
        until: draft.at().plus(span),
    });
    Ok(())
}

fn draining(draft: &Draft, node: NodeId) -> Result<Drain, Rejection> {
    draft.node(node)?;
    let drain = draft.state().drains.get(&node).filter(|drain| drain.drained.is_none());
    drain.copied().ok_or(Rejection::NodeState {
        node,
        status: "not being drained".to_owned(),
        needed: "an operator begins that".to_owned(),
    })
}

/// Stops a lease's placement because of one of its members; the next one is placed when that member's end is proven.
fn evict(draft: &mut Draft, id: LeaseId, epoch: Epoch, node: NodeId) -> Result<(), Rejection> {
    draining(draft, node)?;
    let lease = draft.lease(id)?;
    if epoch != lease.epoch {
        let present = lease.epoch;
        return Err(Rejection::EpochStale {
            lease: id,
            given: epoch,
            present,
        });
    }
    let member = lease.placement.as_ref().and_then(|placement| placement.member(node));
    if member.is_none_or(|member| member.released) {
        return Err(Rejection::NotAMember { lease: id, node });
    }
    if !lease.stays() {
        return Err(wrong_state(&lease, "only a lease that stays is sent away"));
    }
    let label = draft.node(node)?.spec.label.clone();
    draft.emit(Event::LeaseEvicted { lease: id, epoch, node });
    migrate(draft, id, &format!("node {label} is drained"));
    Ok(())
}

fn finish(draft: &mut Draft, node: NodeId) -> Result<(), Rejection> {
    let known = draft.node(node)?;
    draining(draft, node)?;
    let leases = draft.state().leases_on(node);
    if let Some(first) = leases.first() {
        return Err(Rejection::NodeInUse {
            node: known.spec.node,
            holds: format!("runs {first}"),
            next: "it is drained when that has ended there".to_owned(),
        });
    }
    draft.emit(Event::NodeDrained { node });
    Ok(())
}
