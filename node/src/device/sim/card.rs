//! One simulated card: a small thermal model, counters that only rise, and the ways it can fail.
//!
//! The simulator asks it to advance, to act and to be sampled. The rule kept here: a field that the real model does
//! not have is `NotSupported` here too, so code that forgets this fails in a demo and not on a customer's machine.

use holdfast_proto::device::Device;

use crate::device::catalog::{Fabric, GpuModel};
use crate::device::script::Action;
use crate::device::{DeviceFault, Reading, Sample, Unread};

/// Inlet air, °C.
const AMBIENT_C: i64 = 27;
/// Rise over the inlet at idle, and at full load, °C.
const IDLE_RISE_C: i64 = 6;
const LOAD_RISE_C: i64 = 41;
/// Time constant of heating and cooling.
const THERMAL_MS: i64 = 20_000;
/// Share of the memory that simulated work holds, percent.
const WORK_MEMORY_PERCENT: u32 = 60;
/// NVML's "hardware thermal slowdown".
const THROTTLE_THERMAL: u64 = 0x40;
/// The driver's code for "fallen off the bus".
const XID_LOST: u32 = 79;

/// What was done to the card beyond its load.
#[derive(Debug, Default)]
struct Trouble {
    held_c: Option<i32>,
    throttle: u64,
    leak_mib: u32,
    lost: bool,
    hung: bool,
    remap_pending: bool,
    remap_failed: bool,
}

#[derive(Debug)]
pub(super) struct Card {
    pub(super) identity: Device,
    model: &'static GpuModel,
    busy: bool,
    /// The last time the model was advanced to, if it was asked before.
    at_ms: Option<u64>,
    /// Core temperature, thousandths of °C.
    millidegrees: i64,
    energy_uj: u64,
    ecc_single: u64,
    ecc_double: u64,
    pcie_replays: u64,
    nvlink_errors: u64,
    trouble: Trouble,
}

impl Card {
    pub(super) fn new(identity: Device, model: &'static GpuModel) -> Self {
        Self {
            identity,
            model,
            busy: false,
            at_ms: None,
            millidegrees: (AMBIENT_C + IDLE_RISE_C) * 1000,
            energy_uj: 0,
            ecc_single: 0,
            ecc_double: 0,
            pcie_replays: 0,
            nvlink_errors: 0,
            trouble: Trouble::default(),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.trouble.lost
    }

    pub(super) fn set_busy(&mut self, now_ms: u64, busy: bool) {
        self.advance(now_ms);
        self.busy = busy;
    }

    /// Does it; returns the fault code that the driver announces for it.
    pub(super) fn act(&mut self, now_ms: u64, action: Action) -> Option<u32> {
        self.advance(now_ms);
        match action {
            Action::Temperature(celsius) => self.trouble.held_c = Some(celsius),
            Action::Cool => self.trouble.held_c = None,
            Action::EccSingle(count) => self.ecc_single += u64::from(count),
            Action::EccDouble(count) => self.ecc_double += u64::from(count),
            Action::Xid(code) => return Some(code),
            Action::RemapPending => self.trouble.remap_pending = true,
            Action::RemapFailed => self.trouble.remap_failed = true,
            Action::PcieReplays(count) => self.pcie_replays += u64::from(count),
            Action::NvlinkErrors(count) => self.nvlink_errors += u64::from(count),
            Action::Throttle(mask) => self.trouble.throttle = mask,
            Action::Leak(mib) => self.trouble.leak_mib = mib,
            Action::Lose => {
                self.trouble.lost = true;
                return Some(XID_LOST);
            }
            Action::Hang => self.trouble.hung = true,
            Action::Mend => self.trouble = Trouble::default(),
        }
        None
    }

    pub(super) fn sample(&mut self, now_ms: u64) -> Result<Sample, DeviceFault> {
        self.advance(now_ms);
        if self.trouble.lost {
            return Err(DeviceFault::Lost);
        }
        if self.trouble.hung {
            return Err(DeviceFault::TimedOut);
        }
        let temperature = self.temperature_c();
        let throttle = self.trouble.throttle | if self.is_too_hot() { THROTTLE_THERMAL } else { 0 };
        let used_mib = self.memory_used_mib();
        Ok(Sample {
            temperature_c: Ok(temperature),
            memory_temperature_c: has(self.model.memory_sensor, temperature + 7),
            power_mw: Ok(self.power_mw()),
            energy_mj: Ok(self.energy_uj / 1000),
            utilisation_percent: Ok(if self.busy { 94 + self.wobble(now_ms, 6) } else { 0 }),
            memory_utilisation_percent: Ok(if self.busy { 48 + self.wobble(now_ms, 20) } else { 0 }),
            memory_used_mib: Ok(used_mib),
            memory_free_mib: Ok(self.model.memory_mib - used_mib),
            sm_clock_mhz: Ok(self.sm_clock_mhz(throttle)),
            memory_clock_mhz: Ok(self.model.memory_clock_mhz),
            throttle_reasons: Ok(throttle),
            ecc_single_bit: has(self.model.ecc, self.ecc_single),
            ecc_double_bit: has(self.model.ecc, self.ecc_double),
            remapped_correctable: has(self.remaps_rows(), u32::from(self.trouble.remap_pending)),
            remapped_uncorrectable: has(self.remaps_rows(), u32::from(self.trouble.remap_failed)),
            remap_pending: has(self.remaps_rows(), self.trouble.remap_pending),
            remap_failed: has(self.remaps_rows(), self.trouble.remap_failed),
            pcie_replays: Ok(self.pcie_replays),
            nvlink_crc_errors: has(self.model.fabric == Fabric::NvLink, self.nvlink_errors),
            coolant_decic: Err(Unread::NotSupported),
            optical_rx_centidbm: Err(Unread::NotSupported),
        })
    }

    /// Moves heat and energy on to this time. The step is first order and exact enough: the demo shows a curve, and
    /// nobody's money depends on it.
    fn advance(&mut self, now_ms: u64) {
        let before_ms = self.at_ms.replace(now_ms).unwrap_or(now_ms);
        let elapsed_ms = now_ms.saturating_sub(before_ms);
        self.energy_uj += u64::from(self.power_mw()) * elapsed_ms;
        let elapsed_ms = i64::try_from(elapsed_ms).unwrap_or(i64::MAX).min(THERMAL_MS);
        let rise_c = if self.busy { LOAD_RISE_C } else { IDLE_RISE_C };
        let target = (AMBIENT_C + rise_c) * 1000;
        self.millidegrees += (target - self.millidegrees) * elapsed_ms / THERMAL_MS;
    }

    fn temperature_c(&self) -> i32 {
        let modelled = i32::try_from(self.millidegrees / 1000).unwrap_or(i32::MAX);
        self.trouble.held_c.unwrap_or(modelled)
    }

    fn is_too_hot(&self) -> bool {
        self.temperature_c() >= self.model.slowdown_c
    }

    fn power_mw(&self) -> u32 {
        if self.trouble.lost {
            return 0;
        }
        let span = self.model.power_limit_mw - self.model.power_idle_mw;
        self.model.power_idle_mw + if self.busy { span / 100 * 88 } else { 0 }
    }

    fn memory_used_mib(&self) -> u32 {
        let work = if self.busy {
            self.model.memory_mib / 100 * WORK_MEMORY_PERCENT
        } else {
            0
        };
        work.saturating_add(self.trouble.leak_mib).min(self.model.memory_mib)
    }

    fn sm_clock_mhz(&self, throttle: u64) -> u32 {
        match (self.busy, throttle) {
            (false, _) => 210.min(self.model.sm_clock_mhz),
            (true, 0) => self.model.sm_clock_mhz,
            (true, _) => self.model.sm_clock_mhz / 2,
        }
    }

    /// Row remapping came with compute capability 8.0 on cards with ECC.
    fn remaps_rows(&self) -> bool {
        self.model.ecc && self.model.compute_capability >= 80
    }

    /// A number below `bound` that changes each second and differs between cards.
    fn wobble(&self, now_ms: u64, bound: u32) -> u32 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.identity.id.0);
        hasher.update(&(now_ms / 1000).to_be_bytes());
        u32::from(hasher.finalize().as_bytes()[0]) % bound
    }
}

fn has<T>(supported: bool, value: T) -> Reading<T> {
    if supported {
        Ok(value)
    } else {
        Err(Unread::NotSupported)
    }
}
