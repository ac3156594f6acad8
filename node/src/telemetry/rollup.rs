//! The digest of one card over one minute.
//!
//! `Telemetry` adds each sample and closes the digest when the minute is over. The rule kept here: counters become
//! what happened in the span, measured from the end of the span before, so nothing between two spans is lost; a
//! counter that went back (the driver was reloaded) counts from zero.

use holdfast_proto::id::DeviceId;
use holdfast_proto::telemetry::{Range, Rollup};
use holdfast_proto::time::Span;

use crate::device::{Reading, Sample};

/// Lowest, highest and sum of a gauge.
#[derive(Debug, Clone, Copy)]
struct Gauge {
    min: i32,
    max: i32,
    sum: i64,
    count: i64,
}

impl Gauge {
    fn add(gauge: &mut Option<Self>, value: i32) {
        let seen = gauge.get_or_insert(Self {
            min: value,
            max: value,
            sum: 0,
            count: 0,
        });
        seen.min = seen.min.min(value);
        seen.max = seen.max.max(value);
        seen.sum += i64::from(value);
        seen.count += 1;
    }

    fn mean(&self) -> i32 {
        i32::try_from(self.sum.div_euclid(self.count)).unwrap_or(i32::MAX)
    }

    fn range(self) -> Range {
        Range {
            min: self.min,
            mean: self.mean(),
            max: self.max,
        }
    }
}

/// What a counter rose by, across spans.
#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    last: Option<u64>,
    /// `None` until the first reading after a reading: a single one says nothing about a rise.
    rise: Option<u64>,
}

impl Counter {
    fn add(&mut self, reading: &Reading<u64>) {
        let Ok(value) = *reading else { return };
        if let Some(last) = self.last.replace(value) {
            let rise = value.checked_sub(last).unwrap_or(value);
            self.rise = Some(self.rise.unwrap_or(0).saturating_add(rise));
        }
    }

    fn take(&mut self) -> Option<u64> {
        self.rise.take()
    }

    fn take_narrow(&mut self) -> Option<u32> {
        self.take().map(|rise| u32::try_from(rise).unwrap_or(u32::MAX))
    }
}

/// The digest that is being made.
#[derive(Debug, Default)]
pub(super) struct Digest {
    samples: u32,
    temperature: Option<Gauge>,
    memory_temperature: Option<Gauge>,
    power: Option<Gauge>,
    utilisation: Option<Gauge>,
    throttle_reasons: Option<u64>,
    energy: Counter,
    ecc_single: Counter,
    ecc_double: Counter,
    pcie_replays: Counter,
    nvlink_errors: Counter,
    /// The newest values of what is a state rather than a rate.
    memory_used_mib: Option<u32>,
    remapped_rows: Option<u32>,
    remap_pending: Option<bool>,
    remap_failed: Option<bool>,
    coolant_decic: Option<i32>,
    optical_rx_centidbm: Option<i32>,
}

impl Digest {
    pub(super) fn add(&mut self, sample: &Sample) {
        self.samples += 1;
        add_gauge(&mut self.temperature, &sample.temperature_c);
        add_gauge(&mut self.memory_temperature, &sample.memory_temperature_c);
        add_gauge(&mut self.power, &sample.power_mw);
        add_gauge(&mut self.utilisation, &sample.utilisation_percent);
        if let Ok(reasons) = sample.throttle_reasons {
            *self.throttle_reasons.get_or_insert(0) |= reasons;
        }
        self.energy.add(&sample.energy_mj);
        self.ecc_single.add(&sample.ecc_single_bit);
        self.ecc_double.add(&sample.ecc_double_bit);
        self.pcie_replays.add(&sample.pcie_replays);
        self.nvlink_errors.add(&sample.nvlink_crc_errors);
        self.memory_used_mib = newest(self.memory_used_mib, &sample.memory_used_mib);
        let rows = match (&sample.remapped_correctable, &sample.remapped_uncorrectable) {
            (Ok(correctable), Ok(uncorrectable)) => Ok(correctable.saturating_add(*uncorrectable)),
            (Err(unread), _) | (_, Err(unread)) => Err(unread.clone()),
        };
        self.remapped_rows = newest(self.remapped_rows, &rows);
        self.remap_pending = newest(self.remap_pending, &sample.remap_pending);
        self.remap_failed = newest(self.remap_failed, &sample.remap_failed);
        self.coolant_decic = newest(self.coolant_decic, &sample.coolant_decic);
        self.optical_rx_centidbm = newest(self.optical_rx_centidbm, &sample.optical_rx_centidbm);
    }

    /// Returns the digest and begins the next one. Only counters reach over: the next rise is measured from here.
    pub(super) fn close(&mut self, device: DeviceId, elapsed_ms: u64) -> Rollup {
        let rollup = Rollup {
            device,
            span: Span(elapsed_ms),
            samples: self.samples,
            temperature_c: self.temperature.map(Gauge::range),
            memory_temperature_c: self.memory_temperature.map(Gauge::range),
            power_mw: self.power.map(Gauge::range),
            energy_mj: self.energy.take(),
            utilisation_permille: self.utilisation.map(permille),
            memory_used_mib: self.memory_used_mib,
            ecc_single_bit: self.ecc_single.take_narrow(),
            ecc_double_bit: self.ecc_double.take_narrow(),
            remapped_rows: self.remapped_rows,
            remap_pending: self.remap_pending,
            remap_failed: self.remap_failed,
            pcie_replays: self.pcie_replays.take_narrow(),
            nvlink_crc_errors: self.nvlink_errors.take_narrow(),
            throttle_reasons: self.throttle_reasons,
            coolant_decic: self.coolant_decic,
            optical_rx_centidbm: self.optical_rx_centidbm,
        };
        *self = Self {
            energy: self.energy,
            ecc_single: self.ecc_single,
            ecc_double: self.ecc_double,
            pcie_replays: self.pcie_replays,
            nvlink_errors: self.nvlink_errors,
            ..Self::default()
        };
        rollup
    }
}

fn add_gauge<T: Copy + TryInto<i32>>(gauge: &mut Option<Gauge>, reading: &Reading<T>) {
    if let Ok(value) = reading {
        Gauge::add(gauge, (*value).try_into().unwrap_or(i32::MAX));
    }
}

fn newest<T: Copy>(before: Option<T>, reading: &Reading<T>) -> Option<T> {
    reading.as_ref().ok().copied().or(before)
}

/// Mean of percents as thousandths, rounded down.
fn permille(gauge: Gauge) -> u16 {
    u16::try_from(gauge.sum * 10 / gauge.count).unwrap_or(1000).min(1000)
}
