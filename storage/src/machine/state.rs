//! What the cluster knows: the fold of all its events, as values that clone cheaply.
//!
//! Everyone on a replica reads these types; only [`super::evolve`] writes them. Whatever is here follows from the
//! public event stream alone, but for [`State::applied`], which says how far this replica has read the log and is no
//! part of the state hash.

use std::sync::Arc;

use holdfast_proto::condition::Condition;
use holdfast_proto::device::{Device, Grade, ModelName};
use holdfast_proto::event::LeaseRequested;
use holdfast_proto::id::{
    Attempt, ClusterId, Cursor, DeviceId, Digest, Epoch, Era, FencingToken, Generation, Incarnation, LeaseId, NodeId,
    RequestId, TenantId, TokenId, ZoneId,
};
use holdfast_proto::lease::{EndReason, LeaseStatus, Plan};
use holdfast_proto::node::{BootProof, Inventory, NodeSpec, NodeStatus};
use holdfast_proto::placement::{Allocation, Exit};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::subscription::{EventFilter, SubscriptionKey};
use holdfast_proto::tariff::{ChargeLine, Tariff};
use holdfast_proto::tenant::{AccessToken, JoinToken, Limit, Quota};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_proto::workload::Checkpoint;
use rkyv::with::Unshare;

use super::map::Map;

/// Newest saved states of a lease that are remembered: enough that one of them has a store that can be reached.
pub const CHECKPOINTS_KEPT: usize = 8;

/// Most ended leases that stay in the live state; older ones are read from the index.
pub const ENDED_LEASES_MAX: usize = 1000;

/// How long an ended lease stays in the live state, 24 h.
pub const ENDED_LEASE_MS: u64 = 24 * 3_600_000;

/// How far a replica has read the log. Not part of what is hashed: entries that change nothing move it too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Position {
    /// Log index of the last applied entry.
    pub index: u64,
    /// The cluster's time at that entry.
    pub stamp: Timestamp,
}

/// The state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// How far this replica has read the log.
    pub applied: Position,
    /// What the cluster is.
    pub cluster: ClusterState,
    /// Nodes, removed ones too: their ids never come back.
    pub nodes: Map<NodeId, Arc<Node>>,
    /// Every device that a present node has reported, and who holds it.
    pub devices: Map<DeviceId, Arc<Slot>>,
    /// Leases: all that live, and the newest that have ended.
    pub leases: Map<LeaseId, Arc<Lease>>,
    /// What leases were requested with beyond their resource requests; most have nothing.
    pub conditions: Map<LeaseId, Arc<Vec<Condition>>>,
    /// Nodes that are emptied or are empty, until they take work again.
    pub drains: Map<NodeId, Drain>,
    /// Ended leases in the order of their ends, by the position of the end.
    pub ended: Map<Cursor, LeaseId>,
    /// Tenants.
    pub tenants: Map<TenantId, Tenant>,
    /// What bounds tenants beyond their number of devices; most have nothing.
    pub limits: Map<TenantId, Arc<Vec<Limit>>>,
    /// What tenants have and have had; from level 2 on.
    pub usage: Map<TenantId, Usage>,
    /// Access tokens.
    pub access_tokens: Map<TokenId, Arc<Access>>,
    /// Join tokens.
    pub join_tokens: Map<TokenId, Arc<Join>>,
    /// Durable subscriptions, by owner and name.
    pub subscriptions: Map<SubscriptionKey, Arc<Subscribed>>,
    /// Tariffs by version: the present one, and those that live leases were requested under.
    pub tariffs: Map<u32, Arc<Tariff>>,
    /// Answers to the requests of the last 24 hours, oldest first.
    pub requests: Map<RequestName, Answer>,
    /// What is found by other ways than its id. It follows from the maps above, so it is neither written nor hashed.
    pub index: Index,
}

/// Indexes over the state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Leases with a part on a node whose end is not proven.
    pub on_node: Map<(NodeId, LeaseId), ()>,
    /// Leases that wait for a placement, by their class in the queue, then oldest first.
    pub waiting: Map<(u16, LeaseId), ()>,
    /// The same by class, then tenant, then oldest first.
    pub queues: Map<(u16, TenantId, LeaseId), ()>,
    /// Leases that hold a part of a device, by the device.
    pub sharers: Map<DeviceId, Arc<Vec<Sharer>>>,
    /// How many present nodes offer the same: what could ever fit is computed from few shapes, not from many devices.
    pub shapes: Map<Shape, u32>,
}

/// A lease that holds a part of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sharer {
    /// The lease.
    pub lease: LeaseId,
    /// The generation of its placement.
    pub epoch: Epoch,
    /// Its part, in thousandths.
    pub milli: u16,
}

/// What a node offers when it is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Its zone.
    pub zone: ZoneId,
    /// CPU for tenants, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory for tenants, in MiB.
    pub memory_mib: u32,
    /// Devices that are not out, by model.
    pub devices: Vec<(ModelName, u32)>,
}

/// What the cluster is, in one small value.
#[derive(Debug, Clone, Default, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct ClusterState {
    /// Random identity; `None` before the first entry.
    pub id: Option<ClusterId>,
    /// Rises at every restore.
    pub era: Era,
    /// The rules in force.
    pub level: u32,
    /// Who votes, ordered.
    pub voters: Vec<NodeId>,
    /// Time is never before this: set by an operator after clocks were wrong.
    pub time_floor: Timestamp,
    /// Position of the last event.
    pub cursor: Cursor,
    /// Version of the prices in force; 0 before there are any.
    pub tariff: u32,
    /// Requests dated up to here are too old, because their answers were forgotten early.
    pub requests_floor_ms: u64,
    /// The last state hash that was recorded.
    pub hashed: Option<StateHash>,
}

/// A state hash that went through the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct StateHash {
    /// The position hashed.
    pub at: Cursor,
    /// The hash.
    pub hash: Digest,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Node {
    /// Who it is and where it is reached now.
    pub spec: NodeSpec,
    /// Whether it is heard.
    pub status: NodeStatus,
    /// When the status began.
    pub since: Timestamp,
    /// When it joined.
    pub joined: Timestamp,
    /// Its present daemon start.
    pub incarnation: Option<Incarnation>,
    /// The boot that start belongs to.
    pub boot: Option<BootProof>,
    /// Generation of its node lease.
    pub generation: Generation,
    /// What it can hold, as last reported.
    pub inventory: Option<Inventory>,
    /// The start that reported the inventory; an older start's is not believed for new work.
    pub inventory_by: Option<Incarnation>,
    /// Every device that it has reported and that is not in another node now, ordered.
    pub devices: Vec<DeviceId>,
    /// Why it takes no new work, when somebody said so.
    pub cordoned: Option<String>,
    /// Its silence does not count before this.
    pub quiet_until: Option<Timestamp>,
    /// Launches that failed in a row.
    pub launch_failures: u32,
    /// How far its wall clock was off when that was last noticed, in milliseconds.
    pub clock_offset_ms: Option<i64>,
}

impl Node {
    /// Reports whether the present start has told what it can hold.
    #[must_use]
    pub fn inventory_known(&self) -> bool {
        self.inventory.is_some() && self.inventory_by == self.incarnation
    }

    /// Reports whether the node may be given new work.
    #[must_use]
    pub fn takes_work(&self) -> bool {
        self.status == NodeStatus::Ready && self.cordoned.is_none() && self.inventory_known()
    }
}

/// The emptying of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Drain {
    /// When it began.
    pub since: Timestamp,
    /// Until when leases may go on there.
    pub until: Timestamp,
    /// When nothing was left.
    pub drained: Option<Timestamp>,
}

/// A device and who holds it.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Slot {
    /// The node that it is in.
    pub node: NodeId,
    /// What it is.
    pub device: Device,
    /// How far it can be trusted.
    pub grade: Grade,
    /// The driver's fault code behind the grade.
    pub xid: Option<u32>,
    /// What was seen, for a person; empty for a device that was always healthy.
    pub reason: String,
    /// When the grade began.
    pub since: Timestamp,
    /// The allocation that holds it whole; parts of it are in [`Index::sharers`].
    pub holder: Option<Holder>,
}

/// The generation of a lease's placement that holds a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Holder {
    /// The lease.
    pub lease: LeaseId,
    /// The generation.
    pub epoch: Epoch,
}

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Lease {
    /// What was requested.
    #[rkyv(with = Unshare)]
    pub requested: Arc<LeaseRequested>,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// Where it is.
    pub status: LeaseStatus,
    /// When the status began.
    pub since: Timestamp,
    /// Generation of the last placement; 0 before the first.
    pub epoch: Epoch,
    /// The last placement.
    pub placement: Option<Placement>,
    /// Earlier placements with members whose end is not proven.
    pub earlier: Vec<Placement>,
    /// Devices that count against the tenant's quota.
    pub devices: u32,
    /// Length, counted from the first activation.
    pub duration: Span,
    /// When it ends by its terms; set at the first activation.
    pub expires: Option<Timestamp>,
    /// Log index of the last change of its length: the request's, or the last renewal's.
    pub renewal: u64,
    /// Attempts that ended before all members ran, since it last ran.
    pub failed_attempts: u32,
    /// Nodes that failed to launch it since it last ran.
    pub failed_on: Vec<NodeId>,
    /// Newest saved states, newest last.
    pub checkpoints: Vec<Checkpoint>,
    /// Why it waits, for a person.
    pub reason: Option<String>,
    /// What it costs.
    pub meter: Meter,
    /// Exit code for the tenant, of the present attempt.
    pub exit_code: Option<i32>,
}

/// What a lease has cost, and the stretch that is running.
#[derive(Debug, Clone, Default, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Meter {
    /// The stretch that is not charged yet.
    pub open: Option<Stretch>,
    /// Lines so far.
    pub lines: Vec<ChargeLine>,
    /// Sum of the lines.
    pub charged_micros: u64,
}

/// Time in which a lease runs without a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Stretch {
    /// The placement that runs.
    pub epoch: Epoch,
    /// First moment charged.
    pub from: Timestamp,
    /// Time in it that is not charged: frozen, or not proven to have run.
    pub unpaid: Span,
    /// Since when a member is not heard; nothing is charged from then on.
    pub suspended: Option<Timestamp>,
    /// How long the work was frozen in the present silence, as its returning node said.
    pub frozen: Option<Span>,
    /// Rate of all devices together, micro-units for one hour.
    pub micros_per_hour: u64,
    /// Position of the event that opened it.
    pub opened_at: Cursor,
}

/// All allocations of one generation of a lease.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Placement {
    /// The generation.
    pub epoch: Epoch,
    /// Fences everything it does.
    pub token: FencingToken,
    /// When it was granted.
    pub granted: Timestamp,
    /// Rate of all devices together, micro-units for one hour.
    pub micros_per_hour: u64,
    /// The saved state that it resumes from.
    pub restore: Option<Checkpoint>,
    /// Members, ordered by rank.
    pub members: Vec<Member>,
    /// The last attempt, accepted or failed while it was prepared; 0 before the first.
    pub attempt: Attempt,
    /// All members have run in this attempt.
    pub activated: bool,
    /// The attempt is over: its members must end, and may not go on.
    pub over: bool,
    /// It will not start again: a device or a launch failed, so the lease moves.
    pub given_up: bool,
}

impl Placement {
    /// Returns the member on `node`.
    #[must_use]
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.allocation.node == node)
    }

    /// Reports whether an attempt was accepted and is not over.
    #[must_use]
    pub fn attempt_runs(&self) -> bool {
        self.attempt > Attempt(0) && !self.over
    }

    /// Returns the number of devices.
    #[must_use]
    pub fn devices(&self) -> u32 {
        let count = |member: &Member| u32::try_from(member.allocation.devices.len()).unwrap_or(u32::MAX);
        self.members.iter().map(count).fold(0, u32::saturating_add)
    }
}

/// One member of a placement.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Member {
    /// What it was granted.
    pub allocation: Allocation,
    /// The daemon start that has prepared the next attempt; spent by the start.
    pub prepared: Option<Incarnation>,
    /// What it does in the present attempt.
    pub run: Run,
    /// The generation of its node that was lost under it, until the node returns.
    pub lost: Option<Generation>,
    /// Its end is proven and its devices are free.
    pub released: bool,
}

impl Member {
    /// Reports whether a process of it may exist that is allowed to run.
    #[must_use]
    pub fn may_run(&self) -> bool {
        !self.released && self.lost.is_none() && matches!(self.run, Run::Accepted(_) | Run::Started(_))
    }
}

/// What a member does.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Run {
    /// Nothing was ever started here.
    Idle,
    /// This daemon start, and no other, may spawn it.
    Accepted(Incarnation),
    /// It runs, spawned by this daemon start.
    Started(Incarnation),
    /// It has ended, with proof.
    Exited(Exit),
}

/// A tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Tenant {
    /// What it may hold at once.
    pub quota: Quota,
    /// Devices of all its live leases, waiting ones too.
    pub held: u32,
}

/// What a tenant has of the cluster and has had lately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Usage {
    /// Devices of its placements, until their leases have ended.
    pub devices: u32,
    /// Device milliseconds that it had had at `at`, faded.
    pub had: u64,
    /// When that was counted.
    pub at: Timestamp,
}

/// An access token.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Access {
    /// The token.
    pub token: AccessToken,
    /// When it was made.
    pub created: Timestamp,
    /// It works no more.
    pub revoked: bool,
}

/// A join token.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Join {
    /// The token.
    pub token: JoinToken,
    /// When it was made.
    pub created: Timestamp,
    /// The node that it admitted.
    pub used_by: Option<NodeId>,
    /// It works no more.
    pub revoked: bool,
}

/// A durable subscription and how far its reader has come.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Subscribed {
    /// What it is about.
    pub filter: EventFilter,
    /// When it was made.
    pub created: Timestamp,
    /// Its reader is done with all events up to this one.
    pub acknowledged: Cursor,
    /// When its reader last said so; when it was made before the first time.
    pub acknowledged_at: Timestamp,
}

/// A request of a principal, ordered by the client's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct RequestName {
    /// The request.
    pub id: RequestId,
    /// The bearer's token or the node, as a number.
    pub principal: u64,
}

/// How a request was answered.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Answer {
    /// Log index of the entry that decided it. A lease that it requested has this index as its id.
    pub index: u64,
    /// Number of events that it was decided into.
    pub events: u32,
    /// Why it was refused; `None` when it was applied.
    pub refused: Option<Box<Rejection>>,
}

/// The class of a lease in the queue, first ones first: spot after all others; then by priority; within one, work that has
/// lost its place goes before whoever waits for their first.
#[must_use]
pub fn queue_class(plan: Plan, priority: u8, lost_its_place: bool) -> u16 {
    let spot = u16::from(plan == Plan::Spot) * 512;
    spot + u16::from(u8::MAX - priority) * 2 + u16::from(!lost_its_place)
}

impl Lease {
    /// Returns the lease's id.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.requested.lease
    }

    /// Returns why the lease ends or has ended.
    #[must_use]
    pub fn end_reason(&self) -> Option<EndReason> {
        match self.status {
            LeaseStatus::Ending(reason) | LeaseStatus::Ended(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns every placement that is not proven to be over: earlier ones first, the present one last.
    pub fn placements(&self) -> impl Iterator<Item = &Placement> {
        self.earlier.iter().chain(self.placement.as_ref())
    }

    /// Returns the lease's class in the queue and its id, if it waits in it.
    #[must_use]
    pub fn queue_key(&self) -> Option<(u16, LeaseId)> {
        let waits = matches!(self.status, LeaseStatus::Pending | LeaseStatus::Migrating);
        let class = queue_class(
            self.requested.terms.plan,
            self.requested.terms.priority,
            self.epoch > Epoch(0),
        );
        waits.then(|| (class, self.id()))
    }

    /// Reports whether the lease has devices that nobody has told it to give up.
    #[must_use]
    pub fn stays(&self) -> bool {
        let stays = matches!(
            self.status,
            LeaseStatus::Placed | LeaseStatus::Starting | LeaseStatus::Active | LeaseStatus::Frozen
        );
        stays && self.placement.as_ref().is_some_and(|placement| !placement.given_up)
    }

    /// Reports whether the lease's work needs to hear from `node`. A member that has done all its work is not awaited.
    #[must_use]
    pub fn awaits(&self, node: NodeId) -> bool {
        let Some(placement) = &self.placement else { return false };
        let done =
            |member: &Member| placement.attempt_runs() && matches!(&member.run, Run::Exited(exit) if exit.is_success());
        placement
            .member(node)
            .is_some_and(|member| !member.released && !done(member))
    }

    /// Reports whether the lease waits for a placement that may be committed now. A lease that runs is moved only when
    /// one member's end is proven: its node is lost, it has reported its end, or it never started.
    #[must_use]
    pub fn is_placeable(&self) -> bool {
        match self.status {
            LeaseStatus::Pending => true,
            LeaseStatus::Migrating => self
                .placement
                .as_ref()
                .is_none_or(|placement| placement.members.iter().any(|member| !member.may_run())),
            _ => false,
        }
    }
}
