//! Devices: what a node can offer, how healthy it is, and what may be asked of it.

use crate::id::{DeviceId, Name};

/// What a device is. Kinds beyond GPUs are inventory entries declared in a node's config.
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
pub enum DeviceKind {
    /// A graphics processor that runs CUDA work.
    Gpu,
    /// A field-programmable gate array.
    Fpga,
    /// Anything else with a model and a count.
    Other,
}

/// A device model such as `h100`: a [`Name`], so it is lower case and safe on screens.
pub type ModelName = Name;

/// One device as its node reported it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Device {
    /// UUID, the same wherever the device is named.
    pub id: DeviceId,
    /// What it is.
    pub kind: DeviceKind,
    /// Model, for example `a100`.
    pub model: ModelName,
    /// Memory in MiB; 0 when the kind has none.
    pub memory_mib: u32,
    /// CUDA compute capability times ten (80 for 8.0); 0 when unknown.
    pub compute_capability: u16,
    /// Devices of one node with the same island have full mutual bandwidth.
    pub island: u16,
    /// NUMA node; `None` when the machine does not say.
    pub numa: Option<u16>,
}

/// How far a device can be trusted with work.
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
pub enum Grade {
    /// Takes work.
    Healthy,
    /// Keeps what it runs, takes no new work.
    Suspect,
    /// Memory was in use after its lease ended; takes no work until it is empty.
    Dirty,
    /// Out of the pool until an operator or a reset clears it.
    Quarantined,
    /// Not there any more: fell off the bus, or its node no longer reports it.
    Missing,
}

impl Grade {
    /// Reports whether work on the device must stop and move: it is out of the pool, not merely doubted.
    #[must_use]
    pub fn ends_work(self) -> bool {
        matches!(self, Self::Quarantined | Self::Missing)
    }
}
