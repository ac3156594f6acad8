//! Rejections: why a command was refused. Replicated knowledge: every replica refuses the same command the same way.
//!
//! The code is stable and public; the text is for people and says what to do next where there is something to do.

// rkyv's derive gives the fields of archived struct variants no documentation of their own.
#![allow(missing_docs)]

use crate::id::{Attempt, Cursor, Epoch, Era, Generation, Incarnation, LeaseId, Name, NodeId, TenantId, TokenId};
use crate::lease::LeaseStatus;
use crate::time::{Span, Timestamp};

/// Why a command was refused.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    PartialEq,
    Eq,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
    thiserror::Error,
)]
#[serde(tag = "code", rename_all = "kebab-case")]
pub enum Rejection {
    /// The cluster has no first entry yet, or has one already.
    #[error("the cluster is {}; run `holdfast init` on one node only, once", if *initialized { "initialized already" } else { "not initialized" })]
    ClusterState {
        /// Whether it is initialized.
        initialized: bool,
    },
    /// This principal, or this node, may not issue this command.
    #[error("{who} may not issue {command}")]
    OriginNotAllowed {
        /// Who asked.
        who: String,
        /// What was asked.
        command: String,
    },
    /// The request id is older than the cluster remembers, so it cannot tell whether it was executed.
    #[error("the request was made more than {memory} ago; check whether it took effect, then send it with a new id")]
    RequestTooOld {
        /// How long requests are remembered.
        memory: Span,
    },
    /// The client's clock is far ahead of the cluster's.
    #[error("the request is dated {ahead} ahead of the cluster; set the client's clock")]
    RequestFromFuture {
        /// How far ahead.
        ahead: Span,
    },
    /// A value is outside its limits.
    #[error("{field} is {given}; it must be {allowed}")]
    OutOfRange {
        /// Which value.
        field: String,
        /// What was given, shortened.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// No such node.
    #[error("there is no node {node}; `holdfast nodes` lists them")]
    NodeUnknown {
        /// The id that was given.
        node: NodeId,
    },
    /// The node was removed.
    #[error("node {node} was removed; wipe its data folder and join it with a new token")]
    NodeRemoved {
        /// The node.
        node: NodeId,
    },
    /// A node with this id is there already.
    #[error("node {node} has joined already; start it with `holdfast serve`")]
    NodeExists {
        /// The node.
        node: NodeId,
    },
    /// Another node has this label.
    #[error("another node is labelled {label}; join with --name and a free one")]
    LabelTaken {
        /// The label.
        label: Name,
    },
    /// The node's key does not hash to its id.
    #[error("the key of node {node} does not match its id")]
    NodeKeyMismatch {
        /// The node.
        node: NodeId,
    },
    /// Another start of the daemon has taken over.
    #[error("incarnation {given} of node {node} is not the present one")]
    IncarnationStale {
        /// The node.
        node: NodeId,
        /// The incarnation that spoke or was replaced.
        given: Incarnation,
        /// The present one.
        present: Option<Incarnation>,
    },
    /// The node's lease has moved on.
    #[error("node {node} is in generation {present}, not {given}")]
    GenerationStale {
        /// The node.
        node: NodeId,
        /// The generation named.
        given: Generation,
        /// The present one.
        present: Generation,
    },
    /// The node is not in the state that the command needs.
    #[error("node {node} is {status}; {needed}")]
    NodeState {
        /// The node.
        node: NodeId,
        /// Its state.
        status: String,
        /// What the command needs.
        needed: String,
    },
    /// The node still has work or a vote.
    #[error("node {node} still {holds}; {next}")]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// What it holds.
        holds: String,
        /// What to do.
        next: String,
    },
    /// A device is named twice, is in another node, or is unknown.
    #[error("device {device} of node {node}: {problem}")]
    DeviceConflict {
        /// The node.
        node: NodeId,
        /// The device.
        device: crate::id::DeviceId,
        /// What is wrong.
        problem: String,
    },
    /// No such token.
    #[error("there is no token {token}; make one with `holdfast token create`")]
    TokenUnknown {
        /// The token's public part.
        token: TokenId,
    },
    /// The token's time is up.
    #[error("token {token} expired at {expired}; make a new one with `holdfast token create`")]
    TokenExpired {
        /// The token.
        token: TokenId,
        /// When.
        expired: Timestamp,
    },
    /// The join token admitted a node already.
    #[error("token {token} was used by node {by}; each admits one node, make a new one with `holdfast token create`")]
    TokenUsed {
        /// The token.
        token: TokenId,
        /// Who used it.
        by: NodeId,
    },
    /// The secret is not the token's.
    #[error("the secret of token {token} is wrong; copy the whole join line again")]
    TokenWrongSecret {
        /// The token.
        token: TokenId,
    },
    /// The token was revoked.
    #[error("token {token} was revoked; ask an operator for a new one")]
    TokenRevoked {
        /// The token.
        token: TokenId,
    },
    /// The token is for something else.
    #[error("token {token} admits a {admits}, not a {asked}; make one with `holdfast token create --role {asked}`")]
    TokenWrongRole {
        /// The token.
        token: TokenId,
        /// What it admits.
        admits: String,
        /// What was asked.
        asked: String,
    },
    /// A token with this public part is there already.
    #[error("token {token} exists already; draw another id")]
    TokenExists {
        /// The token.
        token: TokenId,
    },
    /// No such tenant.
    #[error("there is no tenant {tenant}; an operator makes one with `holdfast tenant set {tenant}`")]
    TenantUnknown {
        /// The tenant.
        tenant: TenantId,
    },
    /// More than the tenant may hold.
    #[error(
        "{} asked, {left} left of the quota of tenant {tenant}; release some, or ask an operator for more", devices(*asked)
    )]
    QuotaExceeded {
        /// The tenant.
        tenant: TenantId,
        /// Devices asked.
        asked: u32,
        /// Devices left.
        left: u32,
    },
    /// No node of the cluster has any of the models.
    #[error("no node has {}; there are {}", list(asked), list(present))]
    ModelUnknown {
        /// Models asked.
        asked: Vec<Name>,
        /// Models that exist.
        present: Vec<Name>,
    },
    /// The cluster could not hold the request even if it were empty.
    #[error(
        "{} asked, the most that could ever fit is {most}; ask for fewer, or loosen what limits them (models, zones, one node, CPU, memory): `holdfast gpus` lists what there is", devices(*asked)
    )]
    CannotFit {
        /// Devices asked.
        asked: u32,
        /// The most that this shape could get from an empty cluster.
        most: u32,
    },
    /// A model has no price under the plan.
    #[error("{model} is not offered under this plan; leave --plan out to lease it on-demand")]
    PriceUnknown {
        /// The model.
        model: Name,
    },
    /// No such lease, or not one of this tenant.
    #[error("there is no lease {lease}; `holdfast leases` lists them")]
    LeaseUnknown {
        /// The lease.
        lease: LeaseId,
    },
    /// The lease is not in a state that allows this.
    #[error("{lease} is {}; {needed}", status_name(*status))]
    LeaseState {
        /// The lease.
        lease: LeaseId,
        /// Its state.
        status: LeaseStatus,
        /// What the command needs.
        needed: String,
    },
    /// The placement has moved on.
    #[error("{lease} is in epoch {present}, not {given}")]
    EpochStale {
        /// The lease.
        lease: LeaseId,
        /// The epoch named.
        given: Epoch,
        /// The present one.
        present: Epoch,
    },
    /// The attempt is not the one that may do this.
    #[error("{lease} is in attempt {present}, not {given}")]
    AttemptStale {
        /// The lease.
        lease: LeaseId,
        /// The attempt named.
        given: Attempt,
        /// The present one.
        present: Attempt,
    },
    /// The node has no part in the placement.
    #[error("node {node} is not a member of {lease}")]
    NotAMember {
        /// The lease.
        lease: LeaseId,
        /// The node.
        node: NodeId,
    },
    /// The placement would break a rule.
    #[error("placement of {lease} refused: {problem}")]
    PlacementConflict {
        /// The lease.
        lease: LeaseId,
        /// What is wrong.
        problem: String,
    },
    /// The lease was renewed after the proposer looked.
    #[error("{lease} was renewed at index {present}, after {given}")]
    RenewalStale {
        /// The lease.
        lease: LeaseId,
        /// The renewal that the proposer saw.
        given: u64,
        /// The present one.
        present: u64,
    },
    /// The lease's time or money is not up yet.
    #[error("{lease} is due at {due}, not before")]
    NotDue {
        /// The lease.
        lease: LeaseId,
        /// When it is.
        due: Timestamp,
    },
    /// The saved state is older than one that is committed.
    #[error("checkpoint step {given} of {lease} is not after step {committed}")]
    CheckpointStale {
        /// The lease.
        lease: LeaseId,
        /// Its step.
        given: u64,
        /// The newest committed step.
        committed: u64,
    },
    /// The era is not this cluster's.
    #[error("era {given} is not the cluster's era {present}")]
    EraStale {
        /// The era named.
        given: Era,
        /// The present one.
        present: Era,
    },
    /// The hash of this replica's state differs: replicas have diverged.
    #[error("state hash at {index} differs; stop this node and rebuild it from a healthy one")]
    StateDiverged {
        /// Log index hashed.
        index: u64,
    },
    /// The level is not the next one.
    #[error("machine level is {present}; {given} cannot follow it")]
    LevelNotNext {
        /// The level named.
        given: u32,
        /// The present one.
        present: u32,
    },
    /// Time cannot go back.
    #[error("time {given} is before the last stamp {last}")]
    TimeBackwards {
        /// The time named.
        given: Timestamp,
        /// The last stamp.
        last: Timestamp,
    },
    /// No such subscription, or not one of this tenant.
    #[error("there is no subscription {subscription}; `holdfast subscriptions` lists them")]
    SubscriptionUnknown {
        /// The name.
        subscription: Name,
    },
    /// The name is taken.
    #[error("there is a subscription {subscription} already; read on with it, or take another name")]
    SubscriptionExists {
        /// The name.
        subscription: Name,
    },
    /// There are as many as there may be.
    #[error("there are {most} subscriptions, and no more are kept; remove one with `holdfast unsubscribe`")]
    SubscriptionsFull {
        /// How many there may be.
        most: u32,
    },
    /// An acknowledgement cannot be taken back.
    #[error("events up to {acknowledged} are acknowledged already; {given} is before that")]
    AcknowledgedBeyond {
        /// The position named.
        given: Cursor,
        /// The one that stands.
        acknowledged: Cursor,
    },
    /// More devices of a model than the tenant may hold.
    #[error(
        "{} asked, {left} left of what tenant {tenant} may hold of {}; release some, accept other models, or ask an operator for more", devices(*asked), list(models)
    )]
    ModelQuotaExceeded {
        /// The tenant.
        tenant: TenantId,
        /// The models that the request accepts.
        models: Vec<Name>,
        /// Devices asked.
        asked: u32,
        /// The most that is left of one of them.
        left: u32,
    },
    /// More money an hour than the tenant may spend.
    #[error(
        "{} an hour asked, {} left of what tenant {tenant} may spend; release some, ask for less, or ask an operator for more", units(*asked_micros), units(*left_micros)
    )]
    SpendQuotaExceeded {
        /// The tenant.
        tenant: TenantId,
        /// The least that the request costs, micro-units for one hour.
        asked_micros: u64,
        /// What is left, micro-units for one hour.
        left_micros: u64,
    },
}

/// Micro-units as people read money: two decimals, more where there are any.
fn units(micros: u64) -> String {
    let exact = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let kept = exact.trim_end_matches('0').len().max(exact.len() - 4);
    exact[..kept].to_owned()
}

fn devices(count: u32) -> String {
    match count {
        1 => "1 device".to_owned(),
        count => format!("{count} devices"),
    }
}

fn list(names: &[Name]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.iter().map(Name::as_str).collect::<Vec<_>>().join(", "),
    }
}

/// Returns the public name of a lease's state.
#[must_use]
pub fn status_name(status: LeaseStatus) -> &'static str {
    match status {
        LeaseStatus::Pending => "pending",
        LeaseStatus::Placed => "placed",
        LeaseStatus::Starting => "starting",
        LeaseStatus::Active => "active",
        LeaseStatus::Frozen => "frozen",
        LeaseStatus::Migrating => "migrating",
        LeaseStatus::Ending(_) => "ending",
        LeaseStatus::Ended(_) => "ended",
    }
}

macro_rules! rejection_table {
    ($($variant:ident $code:literal;)*) => {
        impl Rejection {
            /// Every stable code, for documents and coverage checks.
            pub const CODES: &'static [&'static str] = &[$($code),*];

            /// Returns the stable code.
            #[must_use]
            pub fn code(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $code,)* }
            }
        }
    };
}

rejection_table! {
    ClusterState "cluster-state";
    OriginNotAllowed "origin-not-allowed";
    RequestTooOld "request-too-old";
    RequestFromFuture "request-from-future";
    OutOfRange "out-of-range";
    NodeUnknown "node-unknown";
    NodeRemoved "node-removed";
    NodeExists "node-exists";
    LabelTaken "label-taken";
    NodeKeyMismatch "node-key-mismatch";
    IncarnationStale "incarnation-stale";
    GenerationStale "generation-stale";
    NodeState "node-state";
    NodeInUse "node-in-use";
    DeviceConflict "device-conflict";
    TokenUnknown "token-unknown";
    TokenExpired "token-expired";
    TokenUsed "token-used";
    TokenWrongSecret "token-wrong-secret";
    TokenRevoked "token-revoked";
    TokenWrongRole "token-wrong-role";
    TokenExists "token-exists";
    TenantUnknown "tenant-unknown";
    QuotaExceeded "quota-exceeded";
    ModelUnknown "model-unknown";
    CannotFit "cannot-fit";
    PriceUnknown "price-unknown";
    LeaseUnknown "lease-unknown";
    LeaseState "lease-state";
    EpochStale "epoch-stale";
    AttemptStale "attempt-stale";
    NotAMember "not-a-member";
    PlacementConflict "placement-conflict";
    RenewalStale "renewal-stale";
    NotDue "not-due";
    CheckpointStale "checkpoint-stale";
    EraStale "era-stale";
    StateDiverged "state-diverged";
    LevelNotNext "level-not-next";
    TimeBackwards "time-backwards";
    SubscriptionUnknown "subscription-unknown";
    SubscriptionExists "subscription-exists";
    SubscriptionsFull "subscriptions-full";
    AcknowledgedBeyond "acknowledged-beyond";
    ModelQuotaExceeded "model-quota-exceeded";
    SpendQuotaExceeded "spend-quota-exceeded";
}
