//! Leases as clients order and see them.

use std::collections::BTreeMap;

use holdfast_proto::id::{DeviceId, LeaseId, Name, NodeId};
use holdfast_proto::lease::{EndReason, Isolation, LeaseKind, Plan, Spread};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// CPU for each device when an order names none: one core.
pub const CPU_MILLI_DEFAULT: u32 = 1_000;
/// Memory for each device when an order names none, in MiB.
pub const MEMORY_MIB_DEFAULT: u32 = 1_024;
/// Time between SIGTERM and SIGKILL when an order names none, in milliseconds.
pub const GRACE_MS_DEFAULT: u64 = 10_000;
/// Place in the queue when an order names none.
pub const PRIORITY_DEFAULT: u8 = 100;

/// An order for a lease: which devices, on what terms, to run what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseOrder {
    /// Who pays; a tenant's token may leave it out or name its own, an operator's order without it is for `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tenant: Option<Name>,
    /// `job`, `session` or `service`.
    #[serde(default = "default_kind")]
    #[schema(value_type = String)]
    pub kind: LeaseKind,
    /// Label for people, not unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub label: Option<Name>,
    /// Fewest devices that will do: all of them, or none.
    pub devices: u32,
    /// Most devices that are of use; the same as the fewest when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices_max: Option<u32>,
    /// How much of the one device is enough, in thousandths of it, 1 to 999; all of it when absent. Others may have the
    /// rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_milli: Option<u16>,
    /// Models that are preferred, with weights from 1 to 1,000; weights of model and zone add up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, u16>)]
    pub prefer_models: BTreeMap<Name, u16>,
    /// Zones that are preferred, with weights from 1 to 1,000.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, u16>)]
    pub prefer_zones: BTreeMap<Name, u16>,
    /// Accepted models, best first; empty accepts any.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub models: Vec<Name>,
    /// All devices must be of one model.
    #[serde(default)]
    pub same_model: bool,
    /// All devices must be on one node.
    #[serde(default)]
    pub single_node: bool,
    /// CPU for each device, in thousandths of a core.
    #[serde(default = "default_cpu")]
    pub cpu_milli_per_device: u32,
    /// Memory for each device, in MiB.
    #[serde(default = "default_memory")]
    pub memory_mib_per_device: u32,
    /// Accepted zones; empty accepts any.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub zones: Vec<Name>,
    /// `pack` or `zones`.
    #[serde(default = "default_spread")]
    #[schema(value_type = String)]
    pub spread: Spread,
    /// Length of the lease, counted from its first start.
    pub duration_ms: u64,
    /// `on-demand`, `reserved` or `spot`.
    #[serde(default = "default_plan")]
    #[schema(value_type = String)]
    pub plan: Plan,
    /// Most that the lease may cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_micros: Option<u64>,
    /// What happens when the node of the work is not heard: `freeze`, `stop` or `keep`.
    #[serde(default = "default_isolation")]
    #[schema(value_type = String)]
    pub isolation: Isolation,
    /// Place in the queue; higher first.
    #[serde(default = "default_priority")]
    pub priority: u8,
    /// Time between SIGTERM and SIGKILL at a stop.
    #[serde(default = "default_grace")]
    pub grace_ms: u64,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Extra environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Working folder on the node; the lease's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The work saves its state in `HOLDFAST_CHECKPOINT_DIR` and resumes from it.
    #[serde(default)]
    pub checkpoints: bool,
}

fn default_kind() -> LeaseKind {
    LeaseKind::Job
}
fn default_cpu() -> u32 {
    CPU_MILLI_DEFAULT
}
fn default_memory() -> u32 {
    MEMORY_MIB_DEFAULT
}
fn default_spread() -> Spread {
    Spread::Pack
}
fn default_plan() -> Plan {
    Plan::OnDemand
}
fn default_isolation() -> Isolation {
    Isolation::Freeze
}
fn default_priority() -> u8 {
    PRIORITY_DEFAULT
}
fn default_grace() -> u64 {
    GRACE_MS_DEFAULT
}

impl LeaseOrder {
    /// An order of `devices` devices of any model for `duration_ms`, with every default.
    pub fn new(devices: u32, duration_ms: u64, command: Vec<String>) -> Self {
        Self {
            tenant: None,
            kind: default_kind(),
            label: None,
            devices,
            devices_max: None,
            share_milli: None,
            prefer_models: BTreeMap::new(),
            prefer_zones: BTreeMap::new(),
            models: Vec::new(),
            same_model: false,
            single_node: false,
            cpu_milli_per_device: CPU_MILLI_DEFAULT,
            memory_mib_per_device: MEMORY_MIB_DEFAULT,
            zones: Vec::new(),
            spread: default_spread(),
            duration_ms,
            plan: default_plan(),
            cap_micros: None,
            isolation: default_isolation(),
            priority: PRIORITY_DEFAULT,
            grace_ms: GRACE_MS_DEFAULT,
            command,
            environment: BTreeMap::new(),
            folder: None,
            checkpoints: false,
        }
    }
}

/// A lease that now exists and waits for its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseAccepted {
    /// Its id.
    #[schema(value_type = String)]
    pub lease: LeaseId,
    /// Log index of the request.
    pub index: u64,
}

/// More time for a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRenewal {
    /// How much more.
    pub more_ms: u64,
}

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: LeaseId,
    /// Who pays.
    #[schema(value_type = String)]
    pub tenant: Name,
    /// The project that it belongs to.
    #[schema(value_type = Option<String>)]
    pub project: Option<Name>,
    /// `job`, `session` or `service`.
    #[schema(value_type = String)]
    pub kind: LeaseKind,
    /// Label for people.
    #[schema(value_type = Option<String>)]
    pub label: Option<Name>,
    /// `pending`, `placed`, `starting`, `active`, `frozen`, `migrating`, `ending` or `ended`.
    pub status: String,
    /// When the status began.
    pub since_ms: u64,
    /// Why it ends or has ended.
    #[schema(value_type = Option<String>)]
    pub end_reason: Option<EndReason>,
    /// Why it waits, for a person.
    pub waits_because: Option<String>,
    /// Exit code of the work, when it ended by itself.
    pub exit_code: Option<i32>,
    /// When it was requested.
    pub requested_ms: u64,
    /// Length, counted from the first start.
    pub duration_ms: u64,
    /// When it ends by its terms; absent before its first start.
    pub expires_ms: Option<u64>,
    /// Fewest devices that will do.
    pub devices_min: u32,
    /// How much of its device it asks for, in thousandths; absent when it asks for whole devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_milli: Option<u16>,
    /// Devices that it holds now.
    pub devices: u32,
    /// Accepted models, best first.
    #[schema(value_type = Vec<String>)]
    pub models: Vec<Name>,
    /// Price class.
    #[schema(value_type = String)]
    pub plan: Plan,
    /// What happens when its node is not heard.
    #[schema(value_type = String)]
    pub isolation: Isolation,
    /// Most that it may cost.
    pub cap_micros: Option<u64>,
    /// Currency of every amount.
    pub currency: String,
    /// Rate of the present placement.
    pub micros_per_hour: Option<u64>,
    /// Charged, by closed lines.
    pub charged_micros: u64,
    /// What it costs so far: what is charged, and what the running stretch comes to at `as_of_ms`.
    #[serde(default)]
    pub so_far_micros: u64,
    /// The cluster's time that this is counted to.
    #[serde(default)]
    pub as_of_ms: u64,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Generation of the placement; 0 before the first.
    pub epoch: u32,
    /// Start within the epoch.
    pub attempt: u32,
    /// Members of the present placement, ordered by rank.
    pub members: Vec<MemberView>,
    /// Step of the newest saved state that is proven.
    pub checkpoint_step: Option<u64>,
}

/// One member of a lease's placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// Place in the gang.
    pub rank: u32,
    /// Its node.
    #[schema(value_type = String)]
    pub node: NodeId,
    /// The node's label.
    pub label: String,
    /// The node's zone.
    pub zone: String,
    /// Devices.
    #[schema(value_type = Vec<String>)]
    pub devices: Vec<DeviceId>,
    /// `waiting`, `preparing`, `starting`, `running`, `lost`, or how it ended.
    pub state: String,
}

/// A list of leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseList {
    /// Leases, newest first.
    pub leases: Vec<LeaseView>,
}

/// What an order would cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quote {
    /// ISO 4217 code of the currency.
    pub currency: String,
    /// Version of the prices.
    pub tariff: u32,
    /// One offer for each accepted model that the cluster has, in the order of preference.
    pub offers: Vec<Offer>,
    /// The most that the lease can cost: the dearest offer for the whole duration, or the cap.
    pub most_micros: u64,
}

/// The price of one model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Offer {
    /// The model.
    #[schema(value_type = String)]
    pub model: Name,
    /// Price of one device for one hour.
    pub micros_per_device_hour: u64,
    /// Price of all devices for one hour.
    pub micros_per_hour: u64,
    /// Price of the whole duration, not capped.
    pub total_micros: u64,
    /// Free and healthy devices of the model now.
    pub free: u32,
    /// How long the work can run before the cap ends it, when the cap is less than the total.
    pub capped_after_ms: Option<u64>,
}

/// A line that the work wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    /// Place in the gang of the member that wrote it.
    pub rank: u32,
    /// Generation of the placement.
    pub epoch: u32,
    /// Position behind the line in that member's log.
    pub position: u64,
    /// The text, with its line end when there was one.
    pub text: String,
    /// No output, but what a reader should know of it: where what follows was written, or why a part is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
