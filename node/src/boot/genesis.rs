//! The first and the last things of a start: the first entries of a cluster, and what is told once the node serves.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_proto::command::{Command, Envelope, InitCluster};
use holdfast_proto::id::{Era, NodeId, TenantId};
use holdfast_proto::limits::JOIN_TOKEN_MS_DEFAULT;
use holdfast_proto::node::{NodeRole, NodeSpec};
use holdfast_proto::tariff::Tariff;
use holdfast_proto::tenant::{AccessToken, Principal, Quota, Role};
use holdfast_proto::time::Span;
use holdfast_storage::types::Peer;
use tokio::sync::watch;

use super::envelope::by_node;
use super::found::Beginning;
use super::node::{Fatal, Shared};
use crate::bearer::Bearer;
use crate::cli::daemon::{DaemonError, Serving};
use crate::consensus::Outcome;
use crate::device::catalog;
use crate::join::JoinToken;

/// The tenant that an operator's lease is for when it names none.
const DEFAULT_TENANT: &str = "default";
/// Longest wait for a new node to be part of the cluster: it may have a snapshot to fetch.
const MEMBER_WITHIN: Duration = Duration::from_secs(120);

/// Makes the cluster: one voter, and the first entry with its identity, its prices and the operator's token.
pub(super) async fn found_cluster(parts: &Shared, beginning: &Beginning) -> Result<Bearer, DaemonError> {
    let address = beginning.sockets.address.to_string();
    let members = BTreeMap::from([(parts.me.0, Peer { address })]);
    if let Err(error) = parts.replica.raft().initialize(members).await {
        // A founding that was interrupted goes on here: the log has its first member already.
        tracing::info!(%error, "the log has members already");
    }
    let operator = beginning.operator()?;
    // A restored cluster begins with a state that has everything but an identity and nodes.
    let before = (parts.state)();
    let init = first_entry(parts, beginning, &operator, before.cluster.era)?;
    let first = parts
        .propose
        .propose(by_node(parts.me, Command::InitCluster(Box::new(init))))
        .await;
    let is_there = (parts.state)().access_tokens.contains_key(&operator.id);
    match first {
        // A founding that was cut short had written it.
        Outcome::Refused { .. } if is_there => {}
        outcome => effected(outcome, "the first entry")?,
    }
    // Somebody to pay: an operator's lease without a tenant is for this one.
    let tenant: TenantId = DEFAULT_TENANT.parse().map_err(|error| DaemonError::failed(&error))?;
    if before.tenants.contains_key(&tenant) {
        return Ok(operator);
    }
    let quota = Quota { devices_max: u32::MAX };
    let set = by_operator(parts.me, &operator, Command::SetTenant { tenant, quota });
    effected(parts.propose.propose(set).await, "the first tenant")?;
    Ok(operator)
}

/// The entry that a cluster, or a new era of it, begins with.
pub(super) fn first_entry(
    parts: &Shared,
    beginning: &Beginning,
    operator: &Bearer,
    era: Era,
) -> Result<InitCluster, DaemonError> {
    let before = (parts.state)();
    let key = beginning
        .identity
        .key_digest()
        .map_err(|error| DaemonError::failed(&error))?;
    Ok(InitCluster {
        cluster: beginning.identity.cluster,
        era,
        node: NodeSpec {
            node: parts.me,
            label: beginning.label.clone(),
            zone: beginning.zone.clone(),
            role: beginning.role,
            address: beginning.sockets.address.clone(),
            key,
        },
        operator: AccessToken {
            token: operator.id,
            secret: operator.digest(),
            role: Role::Operator,
            tenant: None,
            project: None,
            note: "made by init".to_owned(),
            expires: None,
        },
        tariff: before
            .tariffs
            .get(&before.cluster.tariff)
            .map_or_else(catalog::first_tariff, |tariff| Tariff::clone(tariff)),
    })
}

pub(super) fn effected(outcome: Outcome, what: &str) -> Result<(), DaemonError> {
    match outcome {
        Outcome::Applied { .. } => Ok(()),
        Outcome::Refused { rejection, .. } => Err(DaemonError::refused(&rejection)),
        Outcome::Unknown { reason } => Err(DaemonError {
            reason: format!("{what} was not written: {reason}"),
            exit_code: 70,
        }),
    }
}

/// A command of the operator, on the node that has just made the operator's token.
fn by_operator(me: NodeId, operator: &Bearer, command: Command) -> Envelope {
    let principal = Principal::Bearer {
        token: operator.id,
        role: Role::Operator,
        tenant: None,
    };
    Envelope {
        principal,
        ..by_node(me, command)
    }
}

/// Waits until the applied state shows this start. A node that only resumes does not wait: its cluster may still be down.
pub(super) async fn wait_member(
    parts: &Shared,
    beginning: &Beginning,
    stopped: &mut watch::Receiver<Option<Fatal>>,
) -> Result<(), DaemonError> {
    if !beginning.founds && beginning.file.established {
        return Ok(());
    }
    let mut applied = parts.source.applied();
    let registered = async {
        loop {
            let shown = (parts.state)().nodes.get(&parts.me).and_then(|node| node.incarnation);
            if shown == Some(parts.incarnation) {
                return;
            }
            if applied.changed().await.is_none() {
                // Whoever sees the replica stop says why.
                std::future::pending::<()>().await;
            }
        }
    };
    let why = tokio::select! {
        registered = tokio::time::timeout(MEMBER_WITHIN, registered) => match registered {
            Ok(()) => return Ok(()),
            Err(_) => format!("it was not registered within {MEMBER_WITHIN:?}"),
        },
        fatal = stopped.wait_for(Option::is_some) => {
            fatal.ok().and_then(|fatal| fatal.clone()).map_or_else(String::new, |Fatal(why)| why)
        }
    };
    Err(DaemonError {
        reason: format!("the node could not become a member: {why}"),
        exit_code: 70,
    })
}

/// What the command tells about the node that now serves. A founder also makes the first join token.
pub(super) async fn serving(
    parts: &Shared,
    beginning: &Beginning,
    operator: Option<Bearer>,
) -> Result<Serving, DaemonError> {
    let address = beginning.sockets.address.to_string();
    let join_line = match &operator {
        None => None,
        Some(operator) => {
            let authority = beginning
                .identity
                .authority_fingerprint()
                .map_err(|error| DaemonError::failed(&error))?;
            let token = JoinToken::draw(NodeRole::Replica, authority, &*parts.entropy);
            let command = Command::CreateJoinToken {
                token: token.id,
                secret: token.digest(),
                role: NodeRole::Replica,
                life: Span(JOIN_TOKEN_MS_DEFAULT),
            };
            let envelope = by_operator(parts.me, operator, command);
            match parts.propose.propose(envelope).await {
                Outcome::Applied { .. } => Some(format!("holdfast join {address} --token {}", token.reveal())),
                other => {
                    tracing::warn!(?other, "no first join token was made");
                    None
                }
            }
        }
    };
    Ok(Serving {
        cluster: beginning.identity.cluster,
        node: parts.me,
        authority: beginning.identity.authority().clone(),
        address,
        role: beginning.role,
        devices: beginning
            .simulate
            .iter()
            .flat_map(|spec| &spec.groups)
            .map(|(count, _)| *count)
            .sum(),
        operator,
        join_line,
    })
}
