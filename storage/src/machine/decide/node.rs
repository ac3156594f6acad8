//! Decides the life of nodes: joining, daemon starts, silence, loss, return, and what each means for their leases.

use holdfast_proto::command::Command;
use holdfast_proto::event::{Event, NodeWork};
use holdfast_proto::id::{Digest, Generation, Incarnation, Name, NodeId, TokenId};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::limits::NODE_QUIET_MS_MAX;
use holdfast_proto::node::{BootProof, NodeAddress, NodeRole, NodeSpec, NodeStatus};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::time::Span;

use super::super::draft::Draft;
use super::super::state::{Lease, Node};
use super::settle::{migrate, settle};
use super::shape;

pub(super) fn decide(draft: &mut Draft, command: &Command) -> Result<(), Rejection> {
    match command {
        Command::AdmitNode { token, secret, spec } => admit(draft, *token, *secret, spec),
        Command::RegisterNode {
            node,
            incarnation,
            replaces,
            boot,
            address,
        } => register(draft, *node, *incarnation, *replaces, *boot, address),
        Command::MarkNodeUnreachable { node, generation } => unreachable(draft, *node, *generation),
        Command::MarkNodeLost { node, generation } => lost(draft, *node, *generation),
        // The nonce was compared by the leader that refused: it alone knows what it sent.
        Command::ReturnNode {
            node,
            incarnation,
            generation,
            nonce: _,
            work,
        } => returned(draft, *node, *incarnation, *generation, work),
        Command::CordonNode { node, cordoned, reason } => cordon(draft, *node, *cordoned, reason),
        Command::RemoveNode { node } => remove(draft, *node),
        Command::QuietNode {
            node,
            incarnation,
            span,
        } => quiet(draft, *node, *incarnation, *span),
        Command::ReportClockSuspect { node, offset_ms } => {
            draft.node(*node)?;
            draft.emit(Event::ClockSuspected {
                node: *node,
                offset_ms: *offset_ms,
            });
            Ok(())
        }
        _ => unreachable!("decide.rs routes node commands only"),
    }
}

/// Checks that a daemon start is its node's present one.
pub(super) fn is_present(node: &Node, given: Incarnation) -> Result<(), Rejection> {
    match node.incarnation == Some(given) {
        true => Ok(()),
        false => Err(Rejection::IncarnationStale {
            node: node.spec.node,
            given,
            present: node.incarnation,
        }),
    }
}

/// Checks a node's description on its own. The id is part of the key's digest, so nobody can take another's.
pub(super) fn check_spec(spec: &NodeSpec) -> Result<(), Rejection> {
    shape::name("label", &spec.label)?;
    shape::name("zone", &spec.zone)?;
    shape::address(&spec.address)?;
    let of_key = spec.key.0.first_chunk().map(|head| u64::from_be_bytes(*head));
    match of_key == Some(spec.node.0) {
        true => Ok(()),
        false => Err(Rejection::NodeKeyMismatch { node: spec.node }),
    }
}

fn role_name(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Replica => "replica",
        NodeRole::Worker => "worker",
        NodeRole::Witness => "witness",
    }
}

fn admit(draft: &mut Draft, token: TokenId, secret: Digest, spec: &NodeSpec) -> Result<(), Rejection> {
    let join = draft
        .state()
        .join_tokens
        .get(&token)
        .cloned()
        .ok_or(Rejection::TokenUnknown { token })?;
    if join.token.secret != secret {
        return Err(Rejection::TokenWrongSecret { token });
    }
    if join.revoked {
        return Err(Rejection::TokenRevoked { token });
    }
    match join.used_by {
        // A joining node that did not hear the answer asks again.
        Some(by) if by == spec.node => return Ok(()),
        Some(by) => return Err(Rejection::TokenUsed { token, by }),
        None => {}
    }
    let expired = join.token.expires;
    if expired <= draft.at() {
        return Err(Rejection::TokenExpired { token, expired });
    }
    if join.token.role != spec.role {
        return Err(Rejection::TokenWrongRole {
            token,
            admits: role_name(join.token.role).to_owned(),
            asked: role_name(spec.role).to_owned(),
        });
    }
    check_spec(spec)?;
    match draft.node(spec.node) {
        Ok(_) => return Err(Rejection::NodeExists { node: spec.node }),
        Err(Rejection::NodeUnknown { .. }) => {}
        Err(removed) => return Err(removed),
    }
    label_is_free(draft, &spec.label)?;
    draft.emit(Event::NodeJoined {
        spec: spec.clone(),
        token: Some(token),
    });
    Ok(())
}

fn label_is_free(draft: &Draft, label: &Name) -> Result<(), Rejection> {
    let mut present = draft
        .state()
        .nodes
        .values()
        .filter(|node| node.status != NodeStatus::Removed);
    match present.any(|node| node.spec.label == *label) {
        true => Err(Rejection::LabelTaken { label: label.clone() }),
        false => Ok(()),
    }
}

fn register(
    draft: &mut Draft,
    node: NodeId,
    incarnation: Incarnation,
    replaces: Option<Incarnation>,
    boot: BootProof,
    address: &NodeAddress,
) -> Result<(), Rejection> {
    let known = draft.node(node)?;
    shape::address(address)?;
    if known.incarnation == Some(incarnation) {
        return Ok(());
    }
    if known.incarnation != replaces {
        return Err(Rejection::IncarnationStale {
            node,
            given: incarnation,
            present: known.incarnation,
        });
    }
    draft.emit(Event::NodeRegistered {
        node,
        incarnation,
        boot,
        address: address.clone(),
    });
    Ok(())
}

fn in_generation(node: &Node, given: Generation) -> Result<(), Rejection> {
    match node.generation == given {
        true => Ok(()),
        false => Err(Rejection::GenerationStale {
            node: node.spec.node,
            given,
            present: node.generation,
        }),
    }
}

fn status_name(status: NodeStatus) -> &'static str {
    match status {
        NodeStatus::Joined => "joined",
        NodeStatus::Ready => "ready",
        NodeStatus::Unreachable => "unreachable",
        NodeStatus::Lost => "lost",
        NodeStatus::Removed => "removed",
    }
}

/// Refuses what the node's state does not allow.
pub(super) fn wrong_state(node: &Node, needed: &str) -> Rejection {
    Rejection::NodeState {
        node: node.spec.node,
        status: status_name(node.status).to_owned(),
        needed: needed.to_owned(),
    }
}

/// The node cannot be heard. Its work may run on, so nothing is placed anew; but nobody pays for what is not seen.
fn unreachable(draft: &mut Draft, node: NodeId, generation: Generation) -> Result<(), Rejection> {
    let known = draft.node(node)?;
    in_generation(&known, generation)?;
    match known.status {
        NodeStatus::Ready => {}
        NodeStatus::Unreachable | NodeStatus::Lost => return Ok(()),
        NodeStatus::Joined | NodeStatus::Removed => {
            return Err(wrong_state(&known, "only a ready node can fall silent"));
        }
    }
    if known.quiet_until.is_some_and(|until| until > draft.at()) {
        return Err(wrong_state(&known, "its silence is planned and does not count yet"));
    }
    draft.emit(Event::NodeUnreachable { node, generation });
    for lease in draft.state().leases_on(node) {
        let silent = |lease: &Lease| {
            let member = lease.placement.as_ref().and_then(|placement| placement.member(node));
            lease.status == LeaseStatus::Active && member.is_some_and(|member| member.may_run())
        };
        if draft.state().leases.get(&lease).is_some_and(|lease| silent(lease)) {
            draft.emit(Event::LeaseFrozen { lease, node });
        }
    }
    Ok(())
}

/// The node's lease has ended: whatever ran there is stopped or frozen, which is proof enough to go on elsewhere.
fn lost(draft: &mut Draft, node: NodeId, generation: Generation) -> Result<(), Rejection> {
    let known = draft.node(node)?;
    in_generation(&known, generation)?;
    match known.status {
        NodeStatus::Unreachable => {}
        NodeStatus::Lost => return Ok(()),
        _ => return Err(wrong_state(&known, "only an unreachable node can be lost")),
    }
    draft.emit(Event::NodeLost { node, generation });
    let reason = format!("node {} is lost", known.spec.label);
    for lease in draft.state().leases_on(node) {
        match draft.state().leases.get(&lease).is_some_and(|lease| lease.awaits(node)) {
            true => migrate(draft, lease, &reason),
            false => settle(draft, lease),
        }
    }
    Ok(())
}

/// The node is back. It takes back what has not been placed elsewhere; a placement that was ordered first wins.
fn returned(
    draft: &mut Draft,
    node: NodeId,
    incarnation: Incarnation,
    generation: Generation,
    work: &[NodeWork],
) -> Result<(), Rejection> {
    let known = draft.node(node)?;
    is_present(&known, incarnation)?;
    in_generation(&known, generation)?;
    if !matches!(known.status, NodeStatus::Unreachable | NodeStatus::Lost) {
        return Err(wrong_state(&known, "only an unreachable or lost node can return"));
    }
    let mut goes_on: Vec<NodeWork> = work
        .iter()
        .filter(|done| is_current(draft, node, done))
        .copied()
        .collect();
    goes_on.sort();
    goes_on.dedup_by_key(|done| done.lease);
    draft.emit(Event::NodeReturned {
        node,
        generation: generation.next(),
        work: goes_on,
    });
    for lease in draft.state().leases_on(node) {
        if draft
            .state()
            .leases
            .get(&lease)
            .is_some_and(|lease| thaws(draft, lease))
        {
            draft.emit(Event::LeaseThawed { lease, node });
        }
        settle(draft, lease);
    }
    Ok(())
}

/// Reports whether work that a node names is what the log has there.
fn is_current(draft: &Draft, node: NodeId, done: &NodeWork) -> bool {
    let lease = draft.state().leases.get(&done.lease);
    let placement = lease.and_then(|lease| lease.placement.as_ref());
    placement.is_some_and(|placement| {
        let member = placement.member(node).is_some_and(|member| !member.released);
        placement.epoch == done.epoch && placement.attempt == done.attempt && member
    })
}

/// Reports whether a lease that waited for its nodes has them all.
fn thaws(draft: &Draft, lease: &Lease) -> bool {
    let waits = matches!(lease.status, LeaseStatus::Frozen | LeaseStatus::Migrating);
    let Some(placement) = lease
        .placement
        .as_ref()
        .filter(|placement| waits && !placement.given_up)
    else {
        return false;
    };
    placement.members.iter().all(|member| {
        let node = draft.state().nodes.get(&member.allocation.node);
        let heard = member.lost.is_none() && node.is_some_and(|node| node.status == NodeStatus::Ready);
        heard || !lease.awaits(member.allocation.node)
    })
}

fn cordon(draft: &mut Draft, node: NodeId, cordoned: bool, reason: &str) -> Result<(), Rejection> {
    draft.node(node)?;
    shape::text("reason", reason)?;
    draft.emit(Event::NodeCordoned {
        node,
        cordoned,
        reason: reason.to_owned(),
    });
    Ok(())
}

/// Takes a node out for good. One that is lost cannot come back for its work any more, so its leases move.
fn remove(draft: &mut Draft, node: NodeId) -> Result<(), Rejection> {
    let known = draft.node(node)?;
    let in_use = |holds: String, next: &str| {
        let next = next.to_owned();
        Err(Rejection::NodeInUse { node, holds, next })
    };
    if draft.state().cluster.voters.contains(&node) {
        return in_use("votes".to_owned(), "let another node vote in its place first");
    }
    let leases = draft.state().leases_on(node);
    if !leases.is_empty() && known.status != NodeStatus::Lost {
        let named: Vec<String> = leases.iter().take(8).map(ToString::to_string).collect();
        return in_use(
            format!("runs {}", named.join(", ")),
            "release its leases or let them end first",
        );
    }
    draft.emit(Event::NodeRemoved { node });
    for lease in leases {
        migrate(draft, lease, &format!("node {} was removed", known.spec.label));
    }
    Ok(())
}

fn quiet(draft: &mut Draft, node: NodeId, incarnation: Incarnation, span: Span) -> Result<(), Rejection> {
    let known = draft.node(node)?;
    is_present(&known, incarnation)?;
    if span.0 > NODE_QUIET_MS_MAX {
        let allowed = format!("at most {}", Span(NODE_QUIET_MS_MAX));
        return Err(shape::out_of_range("quiet time", span, &allowed));
    }
    let until = draft.at().plus(span);
    draft.emit(Event::NodeQuieted { node, until });
    Ok(())
}
