//! The cluster as clients see it, and the small answers that most commands get.

use holdfast_proto::id::{ClusterId, Cursor, Name, NodeId};
use holdfast_proto::tariff::Tariff;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Silence, in milliseconds, up to which the leader that was heard last counts as the leader, and a replica's own idea of the time is
/// good enough to count by: an election, and some.
pub const LEADER_SILENT_MS: u64 = 2_000;

/// The cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterView {
    /// Its identity.
    #[schema(value_type = Option<String>)]
    pub id: Option<ClusterId>,
    /// Rises at every restore.
    pub era: u32,
    /// The rules in force.
    pub machine_level: u32,
    /// Who leads, as far as this node knows: who led last, when `leader_heard_ms_ago` is more than a moment.
    #[schema(value_type = Option<String>)]
    pub leader: Option<NodeId>,
    /// Term of that leadership.
    pub term: u64,
    /// How long ago the node that answers heard the leader, or as the leader a quorum; absent when it has not yet.
    #[serde(default)]
    pub leader_heard_ms_ago: Option<u64>,
    /// Who votes.
    #[schema(value_type = Vec<String>)]
    pub voters: Vec<NodeId>,
    /// Nodes that are not removed.
    pub nodes: u32,
    /// Nodes whose renewals are answered.
    pub nodes_ready: u32,
    /// Devices.
    pub devices: u32,
    /// Devices that are healthy and free, on nodes that can be heard.
    pub devices_free: u32,
    /// Leases that are not ended.
    pub leases: u32,
    /// Leases that wait for devices.
    pub leases_pending: u32,
    /// Log index that this answer reflects.
    pub applied: u64,
    /// The cluster's time at that entry.
    pub time_ms: u64,
    /// Position of the last event.
    #[schema(value_type = String)]
    pub cursor: Cursor,
    /// ISO 4217 code of the currency.
    pub currency: String,
    /// The node that answers.
    #[schema(value_type = String)]
    pub served_by: NodeId,
    /// What its memory of the cluster takes on that node's disk.
    #[serde(default)]
    pub disk: Disk,
}

/// Bytes on the disk of one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// The Raft log: what is kept until two snapshots cover it.
    pub raft_log_bytes: u64,
    /// The event log: what retention keeps.
    pub event_log_bytes: u64,
    /// Snapshots of the state.
    pub snapshot_bytes: u64,
    /// The index over the event log, which can be made again.
    pub index_bytes: u64,
    /// Room that is held back for a start on a full disk; 0 when it was needed.
    pub reserve_bytes: u64,
    /// What is left on the disk.
    pub free_bytes: u64,
}

/// A command that has taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// Log index of its entry.
    pub index: u64,
}

/// A note for the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NoteOrder {
    /// What it is about.
    #[schema(value_type = String)]
    pub subject: Name,
    /// The note.
    pub text: String,
}

/// The prices in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TariffView {
    /// Version, currency and prices.
    #[schema(value_type = Object)]
    pub tariff: Tariff,
}

/// A node that is ready to serve, or why it is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// It serves reads and writes.
    pub ready: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
