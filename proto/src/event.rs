//! Events: the facts that commands were decided into. State is a fold over them, and subscribers read them.
//!
//! Append only: a tag in [`Event::tag`] is written down here and never used for anything else.

// rkyv's derive gives the fields of archived struct variants no documentation of their own.
#![allow(missing_docs)]

use crate::condition::Condition;
use crate::id::{
    Attempt, ClusterId, Cursor, Digest, Epoch, Era, Fence, FencingToken, Generation, Incarnation, LeaseId, Name,
    NodeId, ProjectId, RequestId, TenantId, TokenId,
};
use crate::lease::{EndReason, LeaseKind, ResourceRequest, Terms};
use crate::node::{BootProof, Inventory, NodeAddress, NodeSpec};
use crate::placement::{Allocation, Exit};
use crate::rejection::Rejection;
use crate::subscription::{Subscription, SubscriptionKey};
use crate::tariff::{ChargeLine, Tariff};
use crate::telemetry::{HealthEdge, Rollup};
use crate::tenant::{AccessToken, JoinToken, Limit, Principal, Quota};
use crate::time::{Span, Timestamp};
use crate::workload::{Checkpoint, Workload};

/// An event with its place in the log.
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct EventRecord {
    /// Position; strictly increasing, the same on every replica.
    pub cursor: Cursor,
    /// Stamp of its entry.
    pub at: Timestamp,
    /// The request that it answers, if a client made one.
    pub request: Option<RequestKey>,
    /// The fact.
    pub event: Event,
}

/// Names one request of one principal for the whole cluster.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct RequestKey {
    /// The bearer's token or the node, as a number.
    pub principal: u64,
    /// The request.
    pub id: RequestId,
}

impl RequestKey {
    /// Names the request `id` of `principal`.
    #[must_use]
    pub fn new(principal: &Principal, id: RequestId) -> Self {
        let principal = match principal {
            Principal::Bearer { token, .. } => token.0,
            Principal::Node(node) => node.0,
        };
        Self { principal, id }
    }
}

/// What one lease's work on a returning node did while the node was not heard.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct NodeWork {
    /// The lease.
    pub lease: LeaseId,
    /// The placement and start that run here.
    pub epoch: Epoch,
    /// Start within the epoch.
    pub attempt: Attempt,
    /// Time that it was frozen, by the node's boot clock.
    pub frozen: Span,
}

/// Everything that can have happened.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Event {
    /// Tag 1.
    ClusterInitialized {
        /// Random identity.
        cluster: ClusterId,
        /// 0 for a new cluster.
        era: Era,
    },
    /// Tag 2. A node belongs to the cluster from now on.
    NodeJoined {
        /// The node.
        spec: NodeSpec,
        /// The join token that it used up; `None` for the first node.
        token: Option<TokenId>,
    },
    /// Tag 3. A daemon start was accepted as the node's present one.
    NodeRegistered {
        /// The node.
        node: NodeId,
        /// The start.
        incarnation: Incarnation,
        /// Its boot.
        boot: BootProof,
        /// Where it is reached.
        address: NodeAddress,
    },
    /// Tag 4.
    InventoryReported {
        /// The node.
        node: NodeId,
        /// What it can hold.
        inventory: Inventory,
    },
    /// Tag 5. Unheard; its work may still run.
    NodeUnreachable {
        /// The node.
        node: NodeId,
        /// The generation that is not answered any more.
        generation: Generation,
    },
    /// Tag 6. Its lease has ended; its work is stopped or frozen.
    NodeLost {
        /// The node.
        node: NodeId,
        /// The generation that ended.
        generation: Generation,
    },
    /// Tag 7. Heard again.
    NodeReturned {
        /// The node.
        node: NodeId,
        /// The generation from now on.
        generation: Generation,
        /// Its work that goes on, and how long it was frozen.
        work: Vec<NodeWork>,
    },
    /// Tag 8.
    NodeCordoned {
        /// The node.
        node: NodeId,
        /// False when work is let in again.
        cordoned: bool,
        /// Why.
        reason: String,
    },
    /// Tag 9.
    NodeRemoved {
        /// The node.
        node: NodeId,
    },
    /// Tag 10. A planned silence.
    NodeQuieted {
        /// The node.
        node: NodeId,
        /// When the silence counts again.
        until: Timestamp,
    },
    /// Tag 11.
    VotersChanged {
        /// Voters, ordered.
        voters: Vec<NodeId>,
    },
    /// Tag 12.
    JoinTokenCreated(JoinToken),
    /// Tag 13.
    AccessTokenCreated(AccessToken),
    /// Tag 14.
    TokenRevoked {
        /// The token.
        token: TokenId,
    },
    /// Tag 15. A tenant was created, or its quota changed.
    TenantSet {
        /// The tenant.
        tenant: TenantId,
        /// What it may hold at once.
        quota: Quota,
    },
    /// Tag 16.
    TariffSet(Tariff),
    /// Tag 17. A lease exists and waits for devices.
    LeaseRequested(Box<LeaseRequested>),
    /// Tag 18. Devices were granted: all members, or none.
    PlacementCommitted {
        /// The lease.
        lease: LeaseId,
        /// Generation of the placement.
        epoch: Epoch,
        /// Fences everything that this placement does.
        token: FencingToken,
        /// All members, ordered by rank.
        allocations: Vec<Allocation>,
        /// Rate of all devices together, micro-units for one hour.
        micros_per_hour: u64,
        /// Where the work resumes: the newest proven saved state at this entry, pinned until the next one.
        restore: Option<Checkpoint>,
    },
    /// Tag 19. Why a lease waits; only when the reason changes.
    PlacementDeferred {
        /// The lease.
        lease: LeaseId,
        /// The reason, for a person.
        reason: String,
    },
    /// Tag 20.
    AllocationPrepared {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The attempt that this one follows.
        follows: Attempt,
        /// The member.
        node: NodeId,
        /// The start that prepared it.
        incarnation: Incarnation,
    },
    /// Tag 21. Every member is prepared and every earlier attempt has ended: its members may start this one.
    StartAccepted {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The attempt.
        attempt: Attempt,
    },
    /// Tag 22.
    AllocationStarted {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The attempt.
        attempt: Attempt,
        /// The member.
        node: NodeId,
    },
    /// Tag 23. All members run; the meter runs from the stamp of the first activation's entry.
    LeaseActivated {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The attempt.
        attempt: Attempt,
        /// When the lease ends by its terms: set at the first activation, kept by moves and leader changes.
        expires: Timestamp,
    },
    /// Tag 24. A member cannot be heard; the meter stands.
    LeaseFrozen {
        /// The lease.
        lease: LeaseId,
        /// The member's node.
        node: NodeId,
    },
    /// Tag 25. All members are heard again; the meter runs.
    LeaseThawed {
        /// The lease.
        lease: LeaseId,
        /// The node that came back.
        node: NodeId,
    },
    /// Tag 26. A member ended; nothing of it runs.
    AllocationExited {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The attempt.
        attempt: Attempt,
        /// The member.
        node: NodeId,
        /// How.
        exit: Exit,
    },
    /// Tag 27. The attempt is over and the lease waits for its next start in the same placement.
    AttemptEnded {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The attempt.
        attempt: Attempt,
    },
    /// Tag 28. A member is lost; the lease waits for its next placement.
    LeaseMigrating {
        /// The lease.
        lease: LeaseId,
        /// The placement that is given up.
        epoch: Epoch,
        /// Why, for a person.
        reason: String,
    },
    /// Tag 29. Every member must stop and prove it.
    LeaseEnding {
        /// The lease.
        lease: LeaseId,
        /// Why.
        reason: EndReason,
    },
    /// Tag 30. One member's devices are free again.
    AllocationEnded {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The member.
        node: NodeId,
    },
    /// Tag 31. Over, for good.
    LeaseEnded {
        /// The lease.
        lease: LeaseId,
        /// Why.
        reason: EndReason,
        /// Exit code for the tenant: the first failing member's, else 0; `None` when no member ended by itself.
        exit_code: Option<i32>,
    },
    /// Tag 32. More time was granted.
    LeaseRenewed {
        /// The lease.
        lease: LeaseId,
        /// Length of the lease from now on, counted from its first activation.
        duration: Span,
        /// When it ends by its terms; `None` when it never ran.
        expires: Option<Timestamp>,
    },
    /// Tag 33. One line of the invoice.
    LeaseCharged(ChargeLine),
    /// Tag 34. A saved state is proven to be held.
    CheckpointCommitted {
        /// The lease.
        lease: LeaseId,
        /// Who saved it.
        fence: Fence,
        /// The saved state.
        checkpoint: Checkpoint,
    },
    /// Tag 35.
    DeviceGraded {
        /// The device's node.
        node: NodeId,
        /// The change.
        edge: HealthEdge,
    },
    /// Tag 36.
    RollupReported {
        /// The node.
        node: NodeId,
        /// A digest for each device.
        rollups: Vec<Rollup>,
    },
    /// Tag 37.
    StateHashRecorded {
        /// The position hashed.
        at: Cursor,
        /// The hash.
        hash: Digest,
    },
    /// Tag 38.
    MachineLevelRaised {
        /// The level from the next entry on.
        level: u32,
    },
    /// Tag 39.
    TimeSet {
        /// The time from this entry on.
        time: Timestamp,
    },
    /// Tag 40.
    ClockSuspected {
        /// The node.
        node: NodeId,
        /// Its wall clock less the median of the voters', in milliseconds.
        offset_ms: i64,
    },
    /// Tag 41.
    Annotated {
        /// What the note is about.
        subject: Name,
        /// The note.
        text: String,
    },
    /// Tag 42. A client's request was refused; remembered, so that a late copy of it is refused too.
    RequestRefused {
        /// Why.
        rejection: Rejection,
    },
    /// Tag 43. What a lease was requested with beyond its resource request; follows `LeaseRequested`.
    LeaseConditioned {
        /// The lease.
        lease: LeaseId,
        /// The conditions.
        conditions: Vec<Condition>,
    },
    /// Tag 44. A node is to be emptied; follows its `NodeCordoned`.
    NodeDraining {
        /// The node.
        node: NodeId,
        /// Until when leases may go on there.
        until: Timestamp,
    },
    /// Tag 45. A placement is given up because one of its nodes is drained.
    LeaseEvicted {
        /// The lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The node.
        node: NodeId,
    },
    /// Tag 46. Every lease that had a part on the node has proven its end there.
    NodeDrained {
        /// The node.
        node: NodeId,
    },
    /// Tag 47. What bounds a tenant beyond its number of devices, all of it.
    LimitsSet {
        /// The tenant.
        tenant: TenantId,
        /// The bounds, models first, in order.
        limits: Vec<Limit>,
    },
    /// Tag 48. A spot lease gives its placement up to a lease with a better right.
    LeasePreempted {
        /// The spot lease.
        lease: LeaseId,
        /// The placement.
        epoch: Epoch,
        /// The lease that waits for its devices.
        by: LeaseId,
    },
    /// Tag 55. A durable subscription exists.
    SubscriptionCreated(Box<Subscription>),
    /// Tag 56. The reader of a subscription is done with all events up to a position.
    EventsAcknowledged {
        /// The subscription.
        #[serde(flatten)]
        key: SubscriptionKey,
        /// The position.
        through: Cursor,
    },
    /// Tag 57. A subscription is forgotten.
    SubscriptionRemoved {
        /// The subscription.
        #[serde(flatten)]
        key: SubscriptionKey,
    },
}

/// A lease as it was requested.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct LeaseRequested {
    /// The lease.
    pub lease: LeaseId,
    /// Who pays.
    pub tenant: TenantId,
    /// The project that it belongs to.
    pub project: Option<ProjectId>,
    /// What the work is.
    pub kind: LeaseKind,
    /// Label for people.
    pub label: Option<Name>,
    /// Which devices.
    pub request: ResourceRequest,
    /// On what terms.
    pub terms: Terms,
    /// What to run.
    pub workload: Workload,
    /// The tariff that its rate is taken from, also after later changes of prices.
    pub tariff: u32,
}

/// What an event is about; the closed set that subscribers filter by.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// Requests, terms, ends.
    Lease,
    /// Grants, starts, exits, checkpoints.
    Placement,
    /// Nodes and devices.
    Node,
    /// Rollups.
    Telemetry,
    /// Prices and charges.
    Billing,
    /// Tokens, tenants, refused requests.
    Security,
    /// The cluster itself, and who reads its events.
    Cluster,
}

impl Topic {
    /// All topics, in the order that they are documented in.
    pub const ALL: [Self; 7] = [
        Self::Lease,
        Self::Placement,
        Self::Node,
        Self::Telemetry,
        Self::Billing,
        Self::Security,
        Self::Cluster,
    ];

    /// Returns the public name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Placement => "placement",
            Self::Node => "node",
            Self::Telemetry => "telemetry",
            Self::Billing => "billing",
            Self::Security => "security",
            Self::Cluster => "cluster",
        }
    }
}

macro_rules! event_table {
    ($($variant:ident $tag:literal $name:literal $topic:ident;)*) => {
        impl Event {
            /// Every event's tag, name and topic, for documents and filters.
            pub const TABLE: &'static [(u16, &'static str, Topic)] = &[$(($tag, $name, Topic::$topic)),*];

            /// Returns the tag, which goes into the frame's header and is never reused.
            #[must_use]
            pub fn tag(&self) -> u16 {
                match self { $(Self::$variant { .. } => $tag,)* }
            }

            /// Returns the public name of the type.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name,)* }
            }

            /// Returns what the event is about.
            #[must_use]
            pub fn topic(&self) -> Topic {
                match self { $(Self::$variant { .. } => Topic::$topic,)* }
            }
        }
    };
}

event_table! {
    ClusterInitialized 1 "cluster-initialized" Cluster;
    NodeJoined 2 "node-joined" Node;
    NodeRegistered 3 "node-registered" Node;
    InventoryReported 4 "inventory-reported" Node;
    NodeUnreachable 5 "node-unreachable" Node;
    NodeLost 6 "node-lost" Node;
    NodeReturned 7 "node-returned" Node;
    NodeCordoned 8 "node-cordoned" Node;
    NodeRemoved 9 "node-removed" Node;
    NodeQuieted 10 "node-quieted" Node;
    VotersChanged 11 "voters-changed" Cluster;
    JoinTokenCreated 12 "join-token-created" Security;
    AccessTokenCreated 13 "access-token-created" Security;
    TokenRevoked 14 "token-revoked" Security;
    TenantSet 15 "tenant-set" Security;
    TariffSet 16 "tariff-set" Billing;
    LeaseRequested 17 "lease-requested" Lease;
    PlacementCommitted 18 "placement-committed" Placement;
    PlacementDeferred 19 "placement-deferred" Lease;
    AllocationPrepared 20 "allocation-prepared" Placement;
    StartAccepted 21 "start-accepted" Placement;
    AllocationStarted 22 "allocation-started" Placement;
    LeaseActivated 23 "lease-activated" Lease;
    LeaseFrozen 24 "lease-frozen" Lease;
    LeaseThawed 25 "lease-thawed" Lease;
    AllocationExited 26 "allocation-exited" Placement;
    AttemptEnded 27 "attempt-ended" Placement;
    LeaseMigrating 28 "lease-migrating" Lease;
    LeaseEnding 29 "lease-ending" Lease;
    AllocationEnded 30 "allocation-ended" Placement;
    LeaseEnded 31 "lease-ended" Lease;
    LeaseRenewed 32 "lease-renewed" Lease;
    LeaseCharged 33 "lease-charged" Billing;
    CheckpointCommitted 34 "checkpoint-committed" Placement;
    DeviceGraded 35 "device-graded" Node;
    RollupReported 36 "rollup-reported" Telemetry;
    StateHashRecorded 37 "state-hash-recorded" Cluster;
    MachineLevelRaised 38 "machine-level-raised" Cluster;
    TimeSet 39 "time-set" Cluster;
    ClockSuspected 40 "clock-suspected" Node;
    Annotated 41 "annotated" Cluster;
    RequestRefused 42 "request-refused" Security;
    LeaseConditioned 43 "lease-conditioned" Lease;
    NodeDraining 44 "node-draining" Node;
    LeaseEvicted 45 "lease-evicted" Placement;
    NodeDrained 46 "node-drained" Node;
    LimitsSet 47 "limits-set" Security;
    LeasePreempted 48 "lease-preempted" Placement;
    SubscriptionCreated 55 "subscription-created" Cluster;
    EventsAcknowledged 56 "events-acknowledged" Cluster;
    SubscriptionRemoved 57 "subscription-removed" Cluster;
}

impl Event {
    /// Returns the subscription that the event is about, if it is about one.
    #[must_use]
    pub fn subscription(&self) -> Option<&SubscriptionKey> {
        match self {
            Self::SubscriptionCreated(made) => Some(&made.key),
            Self::EventsAcknowledged { key, .. } | Self::SubscriptionRemoved { key } => Some(key),
            _ => None,
        }
    }

    /// Returns the lease that the event is about, if it is about one.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::LeaseRequested(requested) => Some(requested.lease),
            Self::LeaseCharged(line) => Some(line.lease),
            Self::PlacementCommitted { lease, .. }
            | Self::PlacementDeferred { lease, .. }
            | Self::LeaseConditioned { lease, .. }
            | Self::LeaseEvicted { lease, .. }
            | Self::LeasePreempted { lease, .. }
            | Self::AllocationPrepared { lease, .. }
            | Self::StartAccepted { lease, .. }
            | Self::AllocationStarted { lease, .. }
            | Self::LeaseActivated { lease, .. }
            | Self::LeaseFrozen { lease, .. }
            | Self::LeaseThawed { lease, .. }
            | Self::AllocationExited { lease, .. }
            | Self::AttemptEnded { lease, .. }
            | Self::LeaseMigrating { lease, .. }
            | Self::LeaseEnding { lease, .. }
            | Self::AllocationEnded { lease, .. }
            | Self::LeaseEnded { lease, .. }
            | Self::LeaseRenewed { lease, .. }
            | Self::CheckpointCommitted { lease, .. } => Some(*lease),
            _ => None,
        }
    }
}
