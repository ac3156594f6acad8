//! What would come of an order, or of a lease that waits, if it were planned now.

use holdfast_proto::device::ModelName;
use holdfast_proto::id::ZoneId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A dry run of the scheduler. Nothing is granted by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    /// It would be placed now.
    pub fits: bool,
    /// Where, by rank.
    pub members: Vec<PreviewMember>,
    /// Why it would have to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Nodes that have devices.
    pub nodes: u32,
    /// How many of them each constraint takes out, one after the other.
    pub removed: Vec<Removed>,
    /// Most devices of this shape that could be placed now.
    pub largest: u32,
    /// When it could start, in milliseconds since 1970, as far as the ends of other leases are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earliest_ms: Option<u64>,
    /// Leases that wait before it.
    pub before: u32,
}

/// One node of a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreviewMember {
    /// Label of the node.
    pub node: String,
    /// Its zone.
    #[schema(value_type = String)]
    pub zone: ZoneId,
    /// Devices there.
    pub devices: u32,
    /// Their models.
    #[schema(value_type = Vec<String>)]
    pub models: Vec<ModelName>,
}

/// Nodes that a constraint takes out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// What they lack, as the end of a sentence whose subject they are.
    pub what: String,
    /// How many.
    pub nodes: u32,
}
