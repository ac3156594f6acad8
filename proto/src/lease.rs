//! Leases: what a tenant asks for, on what terms, and the states a lease goes through.

use crate::device::ModelName;
use crate::id::ZoneId;
use crate::time::Span;

/// What the work is.
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
pub enum LeaseKind {
    /// Runs to its end.
    Job,
    /// Interactive; ends with its user or its time.
    Session,
    /// Runs until released; may have instances.
    Service,
}

/// How the right to devices is priced and how firm it is.
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
pub enum Plan {
    /// Per second, never reclaimed.
    OnDemand,
    /// Committed for a term, below list price.
    Reserved,
    /// Market price, reclaimed with notice.
    Spot,
}

/// What happens to the work when its node's lease runs out.
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
pub enum Isolation {
    /// Frozen, and thawed if the node returns in time; the default for work with state.
    Freeze,
    /// Stopped.
    Stop,
    /// Goes on: for instances without state or exclusive output.
    Keep,
}

/// How a gang is laid over zones.
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
pub enum Spread {
    /// As few nodes and zones as possible.
    Pack,
    /// Over as many zones as possible.
    Zones,
}

/// What a tenant asks for.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct ResourceRequest {
    /// Fewest devices that will do; all of them or none.
    pub devices_min: u32,
    /// Most devices that are of use; equal to the minimum unless the lease is elastic.
    pub devices_max: u32,
    /// Accepted models, best first; empty accepts any.
    pub models: Vec<ModelName>,
    /// All devices must be of one model.
    pub same_model: bool,
    /// All devices must be on one node.
    pub single_node: bool,
    /// CPU for each device, in thousandths of a core.
    pub cpu_milli_per_device: u32,
    /// Memory for each device, in MiB.
    pub memory_mib_per_device: u32,
    /// Accepted zones; empty accepts any.
    pub zones: Vec<ZoneId>,
    /// How a gang is laid over zones.
    pub spread: Spread,
}

/// On what terms.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Terms {
    /// How long, counted from the first start.
    pub duration: Span,
    /// Price class, frozen at the request.
    pub plan: Plan,
    /// Most that the lease may cost, in micro-units of the currency; it ends before it would cost more.
    pub cap_micros: Option<u64>,
    /// What happens when the node's lease runs out.
    pub isolation: Isolation,
    /// Order in the queue; higher first.
    pub priority: u8,
    /// Time between SIGTERM and SIGKILL at a stop.
    pub grace: Span,
}

/// Where a lease is. One value, never flags.
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
pub enum LeaseStatus {
    /// Waits for a placement.
    Pending,
    /// Devices are granted, nothing runs yet.
    Placed,
    /// An attempt was accepted; its members are starting.
    Starting,
    /// All members run.
    Active,
    /// A member cannot be heard; nobody is charged.
    Frozen,
    /// A member is lost; waits for its next placement.
    Migrating,
    /// Must stop; members still owe proof that they have.
    Ending(EndReason),
    /// Over, for good.
    Ended(EndReason),
}

impl LeaseStatus {
    /// Reports whether the lease is over for good.
    #[must_use]
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

/// Why a lease is over.
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
pub enum EndReason {
    /// All members ended with exit code 0.
    Completed,
    /// A member failed, or could not be started in as many attempts as are allowed.
    Failed,
    /// The tenant or an operator released it.
    Released,
    /// Its time is up.
    Expired,
    /// A lease with a better right took its devices.
    Preempted,
    /// Its cost reached the cap.
    Capped,
}
