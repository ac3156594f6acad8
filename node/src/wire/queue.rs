//! The queue as people see it.

use holdfast_proto::id::{LeaseId, Name};
use holdfast_proto::lease::Plan;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who waits for devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    /// How many leases wait.
    pub waiting: u32,
    /// Those that the caller may see, first ones first; the first 1,000.
    pub leases: Vec<QueueLease>,
    /// Tenants that the caller may see and that wait, have or lately had devices.
    pub tenants: Vec<QueueTenant>,
}

/// A lease that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueLease {
    /// Its place; the first is 1.
    pub place: u32,
    /// The lease.
    #[schema(value_type = String)]
    pub lease: LeaseId,
    /// Who pays.
    #[schema(value_type = String)]
    pub tenant: Name,
    /// Fewest devices that will do.
    pub devices: u32,
    /// Accepted models, best first; empty for any.
    #[schema(value_type = Vec<String>)]
    pub models: Vec<Name>,
    /// Price class; spot goes after all others.
    #[schema(value_type = String)]
    pub plan: Plan,
    /// Priority; higher first.
    pub priority: u8,
    /// When it was requested.
    pub requested_ms: u64,
    /// Why it waits.
    pub waits_because: Option<String>,
}

/// What a tenant has of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueTenant {
    /// The tenant.
    #[schema(value_type = String)]
    pub tenant: Name,
    /// Leases of it that wait.
    pub waiting: u32,
    /// Devices that its leases have now.
    pub devices: u32,
    /// Device milliseconds that it has had; what is six hours old counts half.
    pub had_device_ms: u64,
}
