//! Nodes and devices as clients see them.

use holdfast_proto::device::{DeviceKind, Grade};
use holdfast_proto::id::{DeviceId, LeaseId, Name, NodeId};
use holdfast_proto::node::{IsolationLevel, NodeRole, NodeStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its id, born with its data folder.
    #[schema(value_type = String)]
    pub id: NodeId,
    /// Its label.
    #[schema(value_type = String)]
    pub label: Name,
    /// Its failure domain.
    #[schema(value_type = String)]
    pub zone: Name,
    /// `replica`, `worker` or `witness`.
    #[schema(value_type = String)]
    pub role: NodeRole,
    /// `joined`, `ready`, `unreachable`, `lost` or `removed`.
    #[schema(value_type = String)]
    pub status: NodeStatus,
    /// When the status began.
    pub since_ms: u64,
    /// Where its HTTP interface is.
    pub address: String,
    /// It votes.
    pub voter: bool,
    /// It leads.
    pub leader: bool,
    /// Why it takes no new work.
    pub cordoned: Option<String>,
    /// Devices.
    pub devices: u32,
    /// Devices that are healthy and free; none while the node cannot be heard.
    pub devices_free: u32,
    /// CPU for tenants, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory for tenants, in MiB.
    pub memory_mib: u32,
    /// How work is kept apart: `cgroup`, `pid-namespace` or `descendants`.
    #[schema(value_type = Option<String>)]
    pub isolation: Option<IsolationLevel>,
    /// Its devices are simulated.
    pub simulated: bool,
    /// Version of the daemon.
    pub version: Option<String>,
    /// Launches that failed in a row.
    pub launch_failures: u32,
    /// How far its wall clock was off when that was last noticed.
    pub clock_offset_ms: Option<i64>,
}

/// A list of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// Nodes, ordered by label.
    pub nodes: Vec<NodeView>,
}

/// Why an operator keeps work away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CordonOrder {
    /// The reason, for people.
    #[serde(default)]
    pub reason: String,
}

/// Until when a node is to be empty, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainOrder {
    /// How long leases may go on there.
    pub deadline_ms: u64,
    /// The reason, for people.
    #[serde(default)]
    pub reason: String,
}

/// How far the emptying of a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainView {
    /// The node.
    #[schema(value_type = String)]
    pub node: NodeId,
    /// Its label.
    pub label: String,
    /// When it began.
    pub since_ms: u64,
    /// Until when leases may go on there.
    pub until_ms: u64,
    /// When nothing was left: every lease had proven its end there.
    pub drained_ms: Option<u64>,
    /// Leases that are still there.
    pub leases: Vec<DrainLease>,
}

/// A lease on a node that is drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainLease {
    /// The lease.
    #[schema(value_type = String)]
    pub lease: LeaseId,
    /// Who pays.
    #[schema(value_type = String)]
    pub tenant: Name,
    /// Its status.
    pub status: String,
    /// `stops`, `when-placed` (it moves once there is a place elsewhere) or `at-deadline`.
    pub leaves: String,
    /// Step of the newest saved state, from which it goes on elsewhere.
    pub checkpoint_step: Option<u64>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuView {
    /// Its UUID.
    #[schema(value_type = String)]
    pub id: DeviceId,
    /// `gpu`, `fpga` or `other`.
    #[schema(value_type = String)]
    pub kind: DeviceKind,
    /// Its model.
    #[schema(value_type = String)]
    pub model: Name,
    /// Its memory, in MiB.
    pub memory_mib: u32,
    /// The node that it is in.
    #[schema(value_type = String)]
    pub node: NodeId,
    /// The node's label.
    pub label: String,
    /// The node's zone.
    pub zone: String,
    /// `healthy`, `suspect`, `dirty`, `quarantined` or `missing`.
    #[schema(value_type = String)]
    pub grade: Grade,
    /// When the grade began.
    pub since_ms: u64,
    /// What was seen, for a person.
    pub reason: String,
    /// The driver's fault code behind the grade.
    pub xid: Option<u32>,
    /// A lease holds it.
    pub leased: bool,
    /// The lease that holds it, when the caller may see that lease.
    #[schema(value_type = Option<String>)]
    pub lease: Option<LeaseId>,
    /// Leases that hold parts of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartView>,
}

/// A part of a device that a lease holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartView {
    /// In thousandths of the device.
    pub milli: u16,
    /// The lease, when the caller may see it.
    #[schema(value_type = Option<String>)]
    pub lease: Option<LeaseId>,
}

/// A list of devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuList {
    /// Devices, ordered by node and id.
    pub gpus: Vec<GpuView>,
}

/// An operator's judgement of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GradeOrder {
    /// `healthy`, `suspect`, `dirty`, `quarantined` or `missing`.
    #[schema(value_type = String)]
    pub grade: Grade,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}
