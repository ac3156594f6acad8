//! Devices: the seam between a node and its cards, real or simulated.
//!
//! [`DeviceProbe`] is what the executor (inventory, preflight) and telemetry (samples, faults) see. [`sim`] is the
//! simulator that ships in the product; NVML is a later form of the same seam. The rule kept here: results come for
//! each card and each field on their own, so that one card off the bus, or one field that a card does not have,
//! hides nothing of the others. Cards are named by UUID only; index order changes when a card falls off the bus.
//!
//! Not here: whether a reading makes a card bad (`telemetry::health`), and who may use a card (the machine).

pub mod catalog;
pub mod script;
pub mod sim;

use holdfast_proto::device::Device;
use holdfast_proto::id::DeviceId;

/// One reading of one field: its value, or why there is none.
pub type Reading<T> = Result<T, Unread>;

/// Why a field could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// This card does not have it; it is null for ever, not an alarm.
    #[error("the card does not report this")]
    NotSupported,
    /// It could not be read this time.
    #[error("the reading failed: {0}")]
    Failed(String),
}

/// Why a whole card gave no sample. Each is a signal of its own for its health.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFault {
    /// The driver says that the card is gone.
    #[error("the card is not on the bus any more")]
    Lost,
    /// The driver did not answer in time; the probe goes on with the other cards.
    #[error("the driver did not answer in time")]
    TimedOut,
    /// Any other error of the driver.
    #[error("the driver failed: {0}")]
    Driver(String),
}

/// What one card reads at one moment. Counters are totals since the driver was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Core temperature, °C.
    pub temperature_c: Reading<i32>,
    /// Memory temperature, °C.
    pub memory_temperature_c: Reading<i32>,
    /// Power drawn, milliwatts.
    pub power_mw: Reading<u32>,
    /// Energy used, millijoules; a counter.
    pub energy_mj: Reading<u64>,
    /// Share of the last period in which a kernel ran, percent.
    pub utilisation_percent: Reading<u32>,
    /// Share of the last period in which memory was read or written, percent.
    pub memory_utilisation_percent: Reading<u32>,
    /// Memory in use, MiB.
    pub memory_used_mib: Reading<u32>,
    /// Memory not in use, MiB.
    pub memory_free_mib: Reading<u32>,
    /// Clock of the multiprocessors, MHz.
    pub sm_clock_mhz: Reading<u32>,
    /// Clock of the memory, MHz.
    pub memory_clock_mhz: Reading<u32>,
    /// Why clocks are held down; NVML's bit mask.
    pub throttle_reasons: Reading<u64>,
    /// Single-bit errors that ECC corrected; a counter.
    pub ecc_single_bit: Reading<u64>,
    /// Double-bit errors that ECC found; a counter.
    pub ecc_double_bit: Reading<u64>,
    /// Memory rows remapped after correctable errors; a counter.
    pub remapped_correctable: Reading<u32>,
    /// Memory rows remapped after uncorrectable errors; a counter.
    pub remapped_uncorrectable: Reading<u32>,
    /// A remap waits for a reset.
    pub remap_pending: Reading<bool>,
    /// A remap failed.
    pub remap_failed: Reading<bool>,
    /// PCIe replays; a counter.
    pub pcie_replays: Reading<u64>,
    /// NVLink CRC errors over all links; a counter.
    pub nvlink_crc_errors: Reading<u64>,
    /// Coolant inlet temperature, tenths of °C.
    pub coolant_decic: Reading<i32>,
    /// Received optical power of the worst lane, hundredths of dBm.
    pub optical_rx_centidbm: Reading<i32>,
}

/// One card's sample, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSample {
    /// The card.
    pub device: DeviceId,
    /// What it reads.
    pub sample: Result<Sample, DeviceFault>,
}

/// Something that a card announced by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceEvent {
    /// The card.
    pub device: DeviceId,
    /// The driver's fault code (Xid).
    pub xid: u32,
}

/// A node's cards. Calls return what is known at `now_ms`, the node's boot clock in milliseconds.
///
/// A call may take as long as a driver hangs, so its caller is a thread of its own, never an async task.
pub trait DeviceProbe: Send + 'static {
    /// The cards that are here now, ordered by id.
    fn inventory(&mut self, now_ms: u64) -> Vec<Device>;

    /// A sample of each card that was ever in the inventory.
    fn sample(&mut self, now_ms: u64) -> Vec<DeviceSample>;

    /// What the cards announced since the last call, oldest first.
    fn events(&mut self, now_ms: u64) -> Vec<DeviceEvent>;
}
