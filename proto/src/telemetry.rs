//! Device telemetry as it enters the log: one digest a minute, and every change of health. Samples stay on the node.
//!
//! A rollup is about 200 bytes; 1,000 devices write 290 MB a day, where raw samples at 1 Hz would write 8.6 GB.

use crate::device::Grade;
use crate::id::DeviceId;
use crate::time::Span;

/// Lowest, mean and highest of a reading over the rollup's span.
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
pub struct Range {
    /// Lowest reading.
    pub min: i32,
    /// Mean reading, rounded down.
    pub mean: i32,
    /// Highest reading.
    pub max: i32,
}

/// Digest of one device over one span. `None` is "this card does not say".
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Rollup {
    /// The device.
    pub device: DeviceId,
    /// Time covered.
    pub span: Span,
    /// Samples it rests on; 0 says that the device did not answer.
    pub samples: u32,
    /// Core temperature, °C.
    pub temperature_c: Option<Range>,
    /// Memory temperature, °C.
    pub memory_temperature_c: Option<Range>,
    /// Power, milliwatts.
    pub power_mw: Option<Range>,
    /// Energy used in the span, millijoules.
    pub energy_mj: Option<u64>,
    /// Share of the span in which a kernel ran, thousandths.
    pub utilisation_permille: Option<u16>,
    /// Memory in use at the end, MiB.
    pub memory_used_mib: Option<u32>,
    /// Single-bit ECC errors in the span.
    pub ecc_single_bit: Option<u32>,
    /// Double-bit ECC errors in the span.
    pub ecc_double_bit: Option<u32>,
    /// Rows remapped so far.
    pub remapped_rows: Option<u32>,
    /// A row remap waits for a reset.
    pub remap_pending: Option<bool>,
    /// A row remap failed; the card must be replaced.
    pub remap_failed: Option<bool>,
    /// PCIe replays in the span.
    pub pcie_replays: Option<u32>,
    /// NVLink CRC errors in the span.
    pub nvlink_crc_errors: Option<u32>,
    /// Throttle reasons seen in the span, NVML's bit mask.
    pub throttle_reasons: Option<u64>,
    /// Coolant inlet temperature, tenths of °C.
    pub coolant_decic: Option<i32>,
    /// Received optical power of the worst lane, hundredths of dBm.
    pub optical_rx_centidbm: Option<i32>,
}

/// A change in how far a device can be trusted.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct HealthEdge {
    /// The device.
    pub device: DeviceId,
    /// Its grade from now on.
    pub grade: Grade,
    /// The driver's fault code, when one caused this.
    pub xid: Option<u32>,
    /// What was seen, for a person.
    pub reason: String,
}
