//! Decides who may speak: a token that still works, a node that still belongs, and the table of origins.

use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::id::NodeId;
use holdfast_proto::node::NodeRole;
use holdfast_proto::origin;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tenant::Principal;

use super::super::draft::Draft;

pub(super) fn check(draft: &Draft, envelope: &Envelope) -> Result<(), Rejection> {
    let genesis = matches!(envelope.command, Command::InitCluster(_));
    let initialized = draft.state().cluster.id.is_some();
    if initialized == genesis && !begins_anew(draft, envelope) {
        return Err(Rejection::ClusterState { initialized });
    }
    if !genesis {
        draft.node(envelope.origin)?;
        speaker(draft, envelope)?;
    }
    let voters = &draft.state().cluster.voters;
    let may_lead = |node: NodeId| voters.contains(&node) || records_itself(draft, &envelope.command, node);
    match origin::permits(&envelope.command, &envelope.principal, envelope.origin, may_lead) {
        true => Ok(()),
        false => Err(not_allowed(envelope)),
    }
}

/// Reports whether a voter that goes on alone, after a majority was lost, begins a new era of the same cluster.
fn begins_anew(draft: &Draft, envelope: &Envelope) -> bool {
    let Command::InitCluster(init) = &envelope.command else {
        return false;
    };
    let cluster = &draft.state().cluster;
    cluster.id == Some(init.cluster) && init.era > cluster.era && cluster.voters.contains(&envelope.origin)
}

/// Reports whether a leader records a set of voters that it is new in. It may have been elected by that very set
/// before anybody recorded it, and nobody else would ever do so.
fn records_itself(draft: &Draft, command: &Command, node: NodeId) -> bool {
    let Command::RecordVoters { voters } = command else {
        return false;
    };
    let known = draft.state().nodes.get(&node);
    voters.contains(&node) && known.is_some_and(|node| node.spec.role != NodeRole::Worker)
}

/// Checks the bearer's token, or the node behind the certificate, as the state has it now.
fn speaker(draft: &Draft, envelope: &Envelope) -> Result<(), Rejection> {
    let (token, role, tenant) = match &envelope.principal {
        Principal::Node(node) => return draft.node(*node).map(drop),
        Principal::Bearer { token, role, tenant } => (*token, role, tenant),
    };
    let access = draft
        .state()
        .access_tokens
        .get(&token)
        .ok_or(Rejection::TokenUnknown { token })?;
    if access.revoked {
        return Err(Rejection::TokenRevoked { token });
    }
    if let Some(expired) = access.token.expires.filter(|expires| *expires <= draft.at()) {
        return Err(Rejection::TokenExpired { token, expired });
    }
    let bound = access.token.project.is_none() || access.token.project == envelope.project;
    if access.token.role != *role || access.token.tenant != *tenant || !bound {
        return Err(not_allowed(envelope));
    }
    Ok(())
}

fn not_allowed(envelope: &Envelope) -> Rejection {
    let who = match &envelope.principal {
        Principal::Bearer { token, .. } => format!("the bearer of {token}"),
        Principal::Node(node) if *node == envelope.origin => format!("node {node}"),
        Principal::Node(node) => format!("node {node} through node {}", envelope.origin),
    };
    Rejection::OriginNotAllowed {
        who,
        command: envelope.command.name().to_owned(),
    }
}
