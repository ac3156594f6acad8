//! Everything at one position.

use holdfast_proto::id::Cursor;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::cluster::ClusterView;
use super::lease::LeaseView;
use super::node::{GpuView, NodeView};
use super::token::TenantView;

/// All that a token may see of the cluster at one position. Who leads and what the disk holds is
/// of now, also in a view of the past: the log does not say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StateView {
    /// The entry of the log after which this holds.
    pub index: u64,
    /// Position of the last event up to it: read on strictly after this.
    #[schema(value_type = String)]
    pub cursor: Cursor,
    /// The cluster.
    pub cluster: ClusterView,
    /// Nodes that are not removed.
    pub nodes: Vec<NodeView>,
    /// Devices.
    pub gpus: Vec<GpuView>,
    /// Tenants.
    pub tenants: Vec<TenantView>,
    /// Leases: all that live, and the newest that have ended.
    pub leases: Vec<LeaseView>,
}
