//! The cards' series under the names of NVIDIA's DCGM exporter, so that existing dashboards and alerts work.
//!
//! `/metrics` calls [`Telemetry::write_metrics`]. Units are DCGM's: watts, millijoules, MiB, percent, MHz. The rule
//! kept here: a field that a card did not report has no sample; labels name cards of this node and nothing else.

use holdfast_proto::device::Grade;

use super::exposition::{Exposition, Kind};
use super::{SAMPLE_PERIOD_MS, Telemetry, Track};
use crate::device::{Reading, Sample, catalog};

/// A sample older than this is not shown: a card that hangs must not look alive on a dashboard.
const STALE_MS: u64 = 5 * SAMPLE_PERIOD_MS;

type Read = fn(&Sample) -> Option<f64>;

/// One series: name, kind, help, and how it is read from a sample.
struct Series(&'static str, Kind, &'static str, Read);

fn value<T: Copy + Into<f64>>(reading: &Reading<T>) -> Option<f64> {
    reading.as_ref().ok().map(|value| (*value).into())
}

/// Counters beyond 2^53 lose their last digits, as every Prometheus value does.
fn wide(reading: &Reading<u64>) -> Option<f64> {
    reading.as_ref().ok().map(|value| *value as f64)
}

fn flag(reading: &Reading<bool>) -> Option<f64> {
    reading.as_ref().ok().map(|value| if *value { 1.0 } else { 0.0 })
}

const SERIES: &[Series] = &[
    Series(
        "DCGM_FI_DEV_SM_CLOCK",
        Kind::Gauge,
        "SM clock frequency (in MHz).",
        |s| value(&s.sm_clock_mhz),
    ),
    Series(
        "DCGM_FI_DEV_MEM_CLOCK",
        Kind::Gauge,
        "Memory clock frequency (in MHz).",
        |s| value(&s.memory_clock_mhz),
    ),
    Series(
        "DCGM_FI_DEV_MEMORY_TEMP",
        Kind::Gauge,
        "Memory temperature (in C).",
        |s| value(&s.memory_temperature_c),
    ),
    Series("DCGM_FI_DEV_GPU_TEMP", Kind::Gauge, "GPU temperature (in C).", |s| {
        value(&s.temperature_c)
    }),
    Series("DCGM_FI_DEV_POWER_USAGE", Kind::Gauge, "Power draw (in W).", |s| {
        value(&s.power_mw).map(|mw| mw / 1000.0)
    }),
    Series(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        Kind::Counter,
        "Total energy consumption since boot (in mJ).",
        |s| wide(&s.energy_mj),
    ),
    Series(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        Kind::Counter,
        "Total number of PCIe retries.",
        |s| wide(&s.pcie_replays),
    ),
    Series("DCGM_FI_DEV_GPU_UTIL", Kind::Gauge, "GPU utilization (in %).", |s| {
        value(&s.utilisation_percent)
    }),
    Series(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        Kind::Gauge,
        "Memory utilization (in %).",
        |s| value(&s.memory_utilisation_percent),
    ),
    Series(
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        Kind::Gauge,
        "Why clocks are held down (bit mask).",
        |s| wide(&s.throttle_reasons),
    ),
    Series(
        "DCGM_FI_DEV_FB_FREE",
        Kind::Gauge,
        "Framebuffer memory free (in MiB).",
        |s| value(&s.memory_free_mib),
    ),
    Series(
        "DCGM_FI_DEV_FB_USED",
        Kind::Gauge,
        "Framebuffer memory used (in MiB).",
        |s| value(&s.memory_used_mib),
    ),
    Series(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        Kind::Counter,
        "Total number of single-bit volatile ECC errors.",
        |s| wide(&s.ecc_single_bit),
    ),
    Series(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        Kind::Counter,
        "Total number of double-bit volatile ECC errors.",
        |s| wide(&s.ecc_double_bit),
    ),
    Series(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        Kind::Counter,
        "Remapped rows for correctable errors.",
        |s| value(&s.remapped_correctable),
    ),
    Series(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        Kind::Counter,
        "Remapped rows for uncorrectable errors.",
        |s| value(&s.remapped_uncorrectable),
    ),
    Series(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        Kind::Gauge,
        "Whether remapping of rows has failed.",
        |s| flag(&s.remap_failed),
    ),
    Series(
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        Kind::Gauge,
        "Whether a remapping waits for a reset.",
        |s| flag(&s.remap_pending),
    ),
    Series(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        Kind::Counter,
        "Total number of NVLink CRC errors.",
        |s| wide(&s.nvlink_crc_errors),
    ),
];

/// A card's labels, as the DCGM exporter writes them.
struct Labels {
    gpu: String,
    uuid: String,
    model_name: String,
}

impl Telemetry {
    /// Writes all series of the node's cards.
    pub fn write_metrics(&self, now_ms: u64, hostname: &str, out: &mut Exposition) {
        let cards: Vec<(Labels, &Track)> = self
            .tracks
            .values()
            .enumerate()
            .map(|(index, track)| (labels_of(index, track), track))
            .collect();
        for Series(name, kind, help, read) in SERIES {
            out.family(name, *kind, help);
            for (labels, track) in &cards {
                let fresh = track
                    .ring
                    .newest()
                    .filter(|(at_ms, _)| now_ms.saturating_sub(*at_ms) <= STALE_MS);
                if let Some(value) = fresh.and_then(|(_, sample)| read(sample)) {
                    out.sample(&labels.with(hostname), value);
                }
            }
        }
        write_faults(&cards, hostname, out);
        write_grades(&cards, hostname, out);
    }
}

fn write_faults(cards: &[(Labels, &Track)], hostname: &str, out: &mut Exposition) {
    out.family(
        "DCGM_FI_DEV_XID_ERRORS",
        Kind::Gauge,
        "Value of the last XID error encountered.",
    );
    for (labels, track) in cards {
        out.sample(&labels.with(hostname), track.last_xid);
    }
    out.family(
        "holdfast_device_xids_total",
        Kind::Counter,
        "Faults that a device announced, by Xid code.",
    );
    for (labels, track) in cards {
        for (xid, count) in &track.xids {
            let code = xid.map_or_else(|| "other".to_owned(), |xid| xid.to_string());
            out.sample(&[("UUID", &labels.uuid), ("xid", &code)], count);
        }
    }
}

fn write_grades(cards: &[(Labels, &Track)], hostname: &str, out: &mut Exposition) {
    out.family(
        "holdfast_device_grade",
        Kind::Gauge,
        "1 for the grade that this node gives a device, 0 for the others.",
    );
    let grades = [
        (Grade::Healthy, "healthy"),
        (Grade::Suspect, "suspect"),
        (Grade::Dirty, "dirty"),
        (Grade::Quarantined, "quarantined"),
        (Grade::Missing, "missing"),
    ];
    for (labels, track) in cards {
        let (given, _) = track.watch.verdict();
        for (grade, name) in grades {
            let labels = [("UUID", labels.uuid.as_str()), ("Hostname", hostname), ("grade", name)];
            out.sample(&labels, u8::from(given == grade));
        }
    }
}

impl Labels {
    fn with<'a>(&'a self, hostname: &'a str) -> [(&'a str, &'a str); 4] {
        [
            ("gpu", &self.gpu),
            ("UUID", &self.uuid),
            ("modelName", &self.model_name),
            ("Hostname", hostname),
        ]
    }
}

fn labels_of(index: usize, track: &Track) -> Labels {
    let model = track.identity.model.as_str();
    let model_name = catalog::find(model).map_or(model, |model| model.driver_name);
    Labels {
        gpu: index.to_string(),
        uuid: track.identity.id.to_string(),
        model_name: model_name.to_owned(),
    }
}
