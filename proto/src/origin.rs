//! Who may issue which command: one table, checked at the edge and again when the command is decided.
//!
//! An executor speaks for its own node only; what the leader does on its own account must enter through a voter.

use crate::command::Command;
use crate::id::{NodeId, TenantId};
use crate::tenant::{Principal, Role};

/// Who may issue a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed<'a> {
    /// Bearers with the operator's role.
    Operator,
    /// Operators, and bearers bound to this tenant.
    TenantOf(&'a TenantId),
    /// Operators, and bearers of any tenant; the rule that decides it checks whose lease it is.
    LeaseOwner,
    /// Operators, and bearers of the tenant that the subscription belongs to; with a subscriber's token of all tenants
    /// those that belong to the cluster.
    SubscriberOf(Option<&'a TenantId>),
    /// The node that it is about, by its certificate.
    Node(NodeId),
    /// A node that votes: the leader's own duties.
    Voter,
    /// Only the first entry of a log.
    Genesis,
}

/// Returns who may issue `command`.
#[must_use]
pub fn allowed(command: &Command) -> Allowed<'_> {
    match command {
        Command::InitCluster(_) => Allowed::Genesis,
        Command::CordonNode { .. }
        | Command::DrainNode { .. }
        | Command::RemoveNode { .. }
        | Command::CreateJoinToken { .. }
        | Command::CreateAccessToken(_)
        | Command::RevokeToken { .. }
        | Command::SetTenant { .. }
        | Command::SetLimits { .. }
        | Command::SetTariff(_)
        | Command::GradeDevice { .. }
        | Command::SetTime { .. }
        | Command::Annotate { .. } => Allowed::Operator,
        Command::CreateLease(create) => Allowed::TenantOf(&create.tenant),
        Command::CreateLeaseWith(create) => Allowed::TenantOf(&create.lease.tenant),
        Command::ReleaseLease { .. } | Command::RenewLease { .. } => Allowed::LeaseOwner,
        Command::CreateSubscription(made) => Allowed::SubscriberOf(made.key.tenant.as_ref()),
        Command::AcknowledgeEvents { key, .. } | Command::RemoveSubscription { key } => {
            Allowed::SubscriberOf(key.tenant.as_ref())
        }
        Command::RegisterNode { node, .. }
        | Command::ReportInventory { node, .. }
        | Command::ReturnNode { node, .. }
        | Command::QuietNode { node, .. }
        | Command::ReportPrepared { node, .. }
        | Command::ReportStarted { node, .. }
        | Command::ReportExited { node, .. }
        | Command::ReportHealth { node, .. }
        | Command::ReportRollup { node, .. } => Allowed::Node(*node),
        // Decide checks that the speaker is a member of the lease's placement.
        Command::CommitCheckpoint { .. } => Allowed::LeaseOwner,
        Command::AdmitNode { .. }
        | Command::MarkNodeUnreachable { .. }
        | Command::MarkNodeLost { .. }
        | Command::RecordVoters { .. }
        | Command::CommitPlacement { .. }
        | Command::DeferPlacement { .. }
        | Command::EndLease { .. }
        | Command::EvictLease { .. }
        | Command::FinishDrain { .. }
        | Command::PreemptLease { .. }
        | Command::RecordStateHash { .. }
        // Only the leader can know that every replica has the rules; a person's word for it could stop all others.
        | Command::RaiseMachineLevel { .. }
        | Command::ReportClockSuspect { .. } => Allowed::Voter,
    }
}

/// Reports whether `principal` may issue `command`, entered through `origin`; `is_voter` answers for a node.
///
/// Ownership of a lease and membership of a placement need the state, so the rules check those.
#[must_use]
pub fn permits(command: &Command, principal: &Principal, origin: NodeId, is_voter: impl Fn(NodeId) -> bool) -> bool {
    let operator = matches!(
        principal,
        Principal::Bearer {
            role: Role::Operator,
            ..
        }
    );
    match (allowed(command), principal) {
        (Allowed::Genesis, Principal::Node(node)) => *node == origin,
        (Allowed::Operator, _) => operator,
        (
            Allowed::TenantOf(of),
            Principal::Bearer {
                role: Role::Tenant,
                tenant: Some(tenant),
                ..
            },
        ) => tenant == of,
        (
            Allowed::LeaseOwner,
            Principal::Bearer {
                role: Role::Tenant,
                tenant: Some(_),
                ..
            },
        ) => !matches!(command, Command::CommitCheckpoint { .. }),
        (Allowed::LeaseOwner, Principal::Node(node)) => {
            *node == origin && matches!(command, Command::CommitCheckpoint { .. })
        }
        (Allowed::SubscriberOf(of), Principal::Bearer { role, tenant, .. }) => {
            operator || (matches!(role, Role::Tenant | Role::Subscriber) && tenant.as_ref() == of)
        }
        (Allowed::TenantOf(_), Principal::Bearer { .. }) => operator,
        (Allowed::LeaseOwner, Principal::Bearer { .. }) => {
            operator && !matches!(command, Command::CommitCheckpoint { .. })
        }
        (Allowed::Node(of), Principal::Node(node)) => *node == of && *node == origin,
        (Allowed::Voter, Principal::Node(node)) => *node == origin && is_voter(*node),
        _ => false,
    }
}
