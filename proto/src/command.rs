//! Commands: what clients and nodes ask of the log, and the envelope that they travel in.
//!
//! A command is a wish. The rules in `holdfast-storage` decide it when it is applied: into events, or a rejection.
//! Append only: a tag in [`Command::tag`] is written down here and never used for anything else.

// rkyv's derive gives the fields of archived struct variants no documentation of their own.
#![allow(missing_docs)]

use crate::condition::Condition;
use crate::event::NodeWork;
use crate::id::{
    Attempt, ClusterId, Cursor, Digest, Epoch, Era, Fence, Generation, Incarnation, LeaseId, Name, NodeId, Nonce,
    ProjectId, RequestId, TenantId, TokenId,
};
use crate::lease::{EndReason, LeaseKind, ResourceRequest, Terms};
use crate::node::{BootProof, Inventory, NodeAddress, NodeRole, NodeSpec};
use crate::placement::{Allocation, Exit};
use crate::subscription::{self, Subscription, SubscriptionKey};
use crate::tariff::Tariff;
use crate::telemetry::{HealthEdge, Rollup};
use crate::tenant::{AccessToken, Limit, Principal, Quota};
use crate::time::{Span, Timestamp};
use crate::workload::{Checkpoint, Workload};

/// A command with what the cluster must know about where it comes from.
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Envelope {
    /// Time of the entry: set by the leader when it proposes, 0 before.
    pub stamp: Timestamp,
    /// Who asks, as authenticated at the edge.
    pub principal: Principal,
    /// The project that it is asked for.
    pub project: Option<ProjectId>,
    /// The node that the command entered through; compared with the peer certificate when it is forwarded.
    pub origin: NodeId,
    /// Names the request, so that a retry is answered and not executed again. Node duties carry none: their commands
    /// are idempotent by their content.
    pub request: Option<RequestId>,
    /// What is asked.
    pub command: Command,
}

/// Everything that can be asked.
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Command {
    /// Tag 1. First entry of a cluster: its identity, its first node, its operator's token and its prices.
    InitCluster(Box<InitCluster>),
    /// Tag 2. Admits a node that showed a join token; the use of the token is this entry.
    AdmitNode {
        /// The token's public part.
        token: TokenId,
        /// Digest of the secret that was shown.
        secret: Digest,
        /// The node.
        spec: NodeSpec,
    },
    /// Tag 3. Announces a daemon start. Compare-and-swap on the incarnation before it.
    RegisterNode {
        /// The node.
        node: NodeId,
        /// This start.
        incarnation: Incarnation,
        /// The start that the node's own applied state shows; `None` for the first.
        replaces: Option<Incarnation>,
        /// Proof of the boot, to tell a restarted daemon from a restarted machine.
        boot: BootProof,
        /// Where the node is reached from now on.
        address: NodeAddress,
    },
    /// Tag 4. Reports what a node can hold.
    ReportInventory {
        /// The node.
        node: NodeId,
        /// The start that measured it.
        incarnation: Incarnation,
        /// What it measured.
        inventory: Inventory,
    },
    /// Tag 5. The leader has not heard the node for a while.
    MarkNodeUnreachable {
        /// The node.
        node: NodeId,
        /// The generation that will never be answered again.
        generation: Generation,
    },
    /// Tag 6. The node's lease has surely ended.
    MarkNodeLost {
        /// The node.
        node: NodeId,
        /// The generation that ended.
        generation: Generation,
    },
    /// Tag 7. The node is heard and hears again.
    ReturnNode {
        /// The node.
        node: NodeId,
        /// The start that speaks.
        incarnation: Incarnation,
        /// The generation that was refused.
        generation: Generation,
        /// Nonce of that refusal: proves the way back.
        nonce: Nonce,
        /// What its work did in the silence.
        work: Vec<NodeWork>,
    },
    /// Tag 8. Keeps new work away from a node, or lets it in again.
    CordonNode {
        /// The node.
        node: NodeId,
        /// True to keep work away.
        cordoned: bool,
        /// Why, for people.
        reason: String,
    },
    /// Tag 9. Takes a node out for good.
    RemoveNode {
        /// The node.
        node: NodeId,
    },
    /// Tag 10. Announces a planned silence, so that nobody is frozen or moved by it.
    QuietNode {
        /// The node.
        node: NodeId,
        /// The start that will be silent.
        incarnation: Incarnation,
        /// How long at most, counted from the stamp.
        span: Span,
    },
    /// Tag 11. Records who votes, as the consensus layer has it.
    RecordVoters {
        /// Voters, ordered.
        voters: Vec<NodeId>,
    },
    /// Tag 12. Makes a join token.
    CreateJoinToken {
        /// Public part.
        token: TokenId,
        /// Digest of the secret.
        secret: Digest,
        /// The role that it admits.
        role: NodeRole,
        /// Life, counted from the stamp.
        life: Span,
    },
    /// Tag 13. Makes an access token.
    CreateAccessToken(AccessToken),
    /// Tag 14. Revokes a join or an access token.
    RevokeToken {
        /// The token.
        token: TokenId,
    },
    /// Tag 15. Creates a tenant, or changes its quota.
    SetTenant {
        /// The tenant.
        tenant: TenantId,
        /// What it may hold at once.
        quota: Quota,
    },
    /// Tag 16. Changes the prices for leases placed from now on.
    SetTariff(Tariff),
    /// Tag 17. Requests a lease.
    CreateLease(Box<CreateLease>),
    /// Tag 18. Grants devices to a lease.
    CommitPlacement {
        /// The lease.
        lease: LeaseId,
        /// The generation that this placement is: one above the last.
        epoch: Epoch,
        /// All members, ordered by rank.
        allocations: Vec<Allocation>,
    },
    /// Tag 19. Says why a lease still waits.
    DeferPlacement {
        /// The lease.
        lease: LeaseId,
        /// The reason, for a person.
        reason: String,
    },
    /// Tag 20. A member is ready to start. The last member's entry also accepts the attempt, if it may start.
    ReportPrepared {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The attempt that this one follows; `Attempt(0)` for the first of an epoch.
        follows: Attempt,
        /// The member.
        node: NodeId,
        /// The start that prepared it, and alone may spawn it.
        incarnation: Incarnation,
    },
    /// Tag 21. A member runs.
    ReportStarted {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The attempt.
        attempt: Attempt,
        /// The member.
        node: NodeId,
    },
    /// Tag 22. A member has ended, with proof that nothing of it runs.
    ReportExited {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The attempt; the accepted one, or the one that would have followed when preparing failed.
        attempt: Attempt,
        /// The member.
        node: NodeId,
        /// How it ended.
        exit: Exit,
    },
    /// Tag 23. The tenant gives the lease back.
    ReleaseLease {
        /// The lease.
        lease: LeaseId,
    },
    /// Tag 24. The tenant asks for more time.
    RenewLease {
        /// The lease.
        lease: LeaseId,
        /// How much more.
        more: Span,
    },
    /// Tag 25. The leader saw that a lease's time or money is up.
    EndLease {
        /// The lease.
        lease: LeaseId,
        /// `Expired` or `Capped`.
        reason: EndReason,
        /// Log index of the renewal that the proposer saw; refused when a later one was applied.
        renewal: u64,
    },
    /// Tag 26. A store holds a new saved state.
    CommitCheckpoint {
        /// The lease.
        lease: LeaseId,
        /// The placement and start that saved it.
        fence: Fence,
        /// The saved state.
        checkpoint: Checkpoint,
    },
    /// Tag 27. Devices changed their health.
    ReportHealth {
        /// The node that they are in.
        node: NodeId,
        /// The changes.
        edges: Vec<HealthEdge>,
    },
    /// Tag 28. A minute of device telemetry.
    ReportRollup {
        /// The node.
        node: NodeId,
        /// A digest for each device.
        rollups: Vec<Rollup>,
    },
    /// Tag 29. An operator clears a device that was taken out.
    GradeDevice {
        /// The device's node.
        node: NodeId,
        /// The change.
        edge: HealthEdge,
    },
    /// Tag 30. What one replica's state hashes to at an index, for all to compare.
    RecordStateHash {
        /// The position hashed: all events up to and including it.
        at: Cursor,
        /// The hash.
        hash: Digest,
    },
    /// Tag 31. Turns on rules that every replica supports.
    RaiseMachineLevel {
        /// The level from the next entry on.
        level: u32,
    },
    /// Tag 32. Sets the cluster's time, after its clocks were wrong.
    SetTime {
        /// The time from this entry on; never before the last stamp.
        time: Timestamp,
    },
    /// Tag 33. A voter's wall clock is off the others'.
    ReportClockSuspect {
        /// The node.
        node: NodeId,
        /// Its wall clock less the median, in milliseconds.
        offset_ms: i64,
    },
    /// Tag 34. Writes a note into the log, for people and programs.
    Annotate {
        /// What the note is about.
        subject: Name,
        /// The note.
        text: String,
    },
    /// Tag 35. Requests a lease under conditions; from level [`crate::condition::LEVEL`] on.
    CreateLeaseWith(Box<CreateLeaseWith>),
    /// Tag 36. Empties a node: no new work, and what it runs ends or moves, at the latest when the time is up.
    DrainNode {
        /// The node.
        node: NodeId,
        /// How long leases may go on there, counted from the stamp.
        span: Span,
        /// Why, for people.
        reason: String,
    },
    /// Tag 37. Stops a lease that has a part on a node which is drained, and sends it to its next placement.
    EvictLease {
        /// The lease.
        lease: LeaseId,
        /// The placement that is given up.
        epoch: Epoch,
        /// The node.
        node: NodeId,
    },
    /// Tag 38. Says that a drained node holds nothing any more.
    FinishDrain {
        /// The node.
        node: NodeId,
    },
    /// Tag 39. Sets bounds of a tenant beyond the number of devices; those not named stay as they are.
    SetLimits {
        /// The tenant.
        tenant: TenantId,
        /// Bounds to set; one that binds nothing takes the bound away.
        limits: Vec<Limit>,
    },
    /// Tag 40. Takes a spot lease's devices for a lease with a better right; it goes back into the queue.
    PreemptLease {
        /// The spot lease.
        lease: LeaseId,
        /// The placement that is given up.
        epoch: Epoch,
        /// The lease that waits for the devices.
        by: LeaseId,
    },
    /// Tag 45. Makes a durable subscription; from level [`subscription::LEVEL`] on.
    CreateSubscription(Box<Subscription>),
    /// Tag 46. Acknowledges all events up to a position. Needs no request id: saying it twice is saying it once.
    AcknowledgeEvents {
        /// The subscription.
        key: SubscriptionKey,
        /// The last position that its reader is done with.
        through: Cursor,
    },
    /// Tag 47. Forgets a subscription.
    RemoveSubscription {
        /// The subscription.
        key: SubscriptionKey,
    },
}

/// The first entry of a cluster.
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct InitCluster {
    /// Random identity.
    pub cluster: ClusterId,
    /// 0 for a new cluster; rises at every restore.
    pub era: Era,
    /// The first node.
    pub node: NodeSpec,
    /// The operator's first token.
    pub operator: AccessToken,
    /// First prices.
    pub tariff: Tariff,
}

/// A request for a lease.
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct CreateLease {
    /// Who pays.
    pub tenant: TenantId,
    /// What the work is.
    pub kind: LeaseKind,
    /// Label for people, not unique.
    pub label: Option<Name>,
    /// Which devices.
    pub request: ResourceRequest,
    /// On what terms.
    pub terms: Terms,
    /// What to run.
    pub workload: Workload,
}

/// A request for a lease under conditions.
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct CreateLeaseWith {
    /// The request.
    pub lease: CreateLease,
    /// What it says beyond that; not empty.
    pub conditions: Vec<Condition>,
}

impl Command {
    /// Returns the level of the rules that a cluster needs before this command may be proposed: a replica of an older
    /// build could not decode it.
    #[must_use]
    pub fn level(&self) -> u32 {
        match self {
            Self::CreateLeaseWith(_)
            | Self::DrainNode { .. }
            | Self::EvictLease { .. }
            | Self::FinishDrain { .. }
            | Self::SetLimits { .. }
            | Self::PreemptLease { .. } => crate::condition::LEVEL,
            Self::CreateSubscription(_) | Self::AcknowledgeEvents { .. } | Self::RemoveSubscription { .. } => {
                subscription::LEVEL
            }
            _ => 1,
        }
    }
}

macro_rules! command_table {
    ($($variant:ident $tag:literal $name:literal;)*) => {
        impl Command {
            /// Every command's tag and name, for documents and coverage checks.
            pub const TABLE: &'static [(u16, &'static str)] = &[$(($tag, $name)),*];

            /// Returns the tag, which goes into the frame's header and is never reused.
            #[must_use]
            pub fn tag(&self) -> u16 {
                match self { $(Self::$variant { .. } => $tag,)* }
            }

            /// Returns the public name.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name,)* }
            }
        }
    };
}

command_table! {
    InitCluster 1 "init-cluster";
    AdmitNode 2 "admit-node";
    RegisterNode 3 "register-node";
    ReportInventory 4 "report-inventory";
    MarkNodeUnreachable 5 "mark-node-unreachable";
    MarkNodeLost 6 "mark-node-lost";
    ReturnNode 7 "return-node";
    CordonNode 8 "cordon-node";
    RemoveNode 9 "remove-node";
    QuietNode 10 "quiet-node";
    RecordVoters 11 "record-voters";
    CreateJoinToken 12 "create-join-token";
    CreateAccessToken 13 "create-access-token";
    RevokeToken 14 "revoke-token";
    SetTenant 15 "set-tenant";
    SetTariff 16 "set-tariff";
    CreateLease 17 "create-lease";
    CommitPlacement 18 "commit-placement";
    DeferPlacement 19 "defer-placement";
    ReportPrepared 20 "report-prepared";
    ReportStarted 21 "report-started";
    ReportExited 22 "report-exited";
    ReleaseLease 23 "release-lease";
    RenewLease 24 "renew-lease";
    EndLease 25 "end-lease";
    CommitCheckpoint 26 "commit-checkpoint";
    ReportHealth 27 "report-health";
    ReportRollup 28 "report-rollup";
    GradeDevice 29 "grade-device";
    RecordStateHash 30 "record-state-hash";
    RaiseMachineLevel 31 "raise-machine-level";
    SetTime 32 "set-time";
    ReportClockSuspect 33 "report-clock-suspect";
    Annotate 34 "annotate";
    CreateLeaseWith 35 "create-lease-with";
    DrainNode 36 "drain-node";
    EvictLease 37 "evict-lease";
    FinishDrain 38 "finish-drain";
    SetLimits 39 "set-limits";
    PreemptLease 40 "preempt-lease";
    CreateSubscription 45 "create-subscription";
    AcknowledgeEvents 46 "acknowledge-events";
    RemoveSubscription 47 "remove-subscription";
}
