//! How far a card can be trusted, judged from its samples and the faults it announces.
//!
//! `Telemetry` keeps one [`Watch`] for each card. Passing troubles (heat, silence, a pending remap) lift by
//! themselves, after a while of good readings; grave ones stay until an operator clears the card in the log. The
//! rule kept here: the log is reconciled with, not fired at. An edge is wanted as long as the applied state differs,
//! and what others decided about a card (an operator, the check after a lease) is never lifted from here.

use holdfast_proto::device::{Device, Grade};
use holdfast_proto::id::DeviceId;
use holdfast_proto::telemetry::HealthEdge;

use super::xid::{self, XidClass};
use crate::device::catalog;
use crate::device::{DeviceFault, Sample};

/// Periods without an answer after which a card takes no new work.
const SILENT_SAMPLES: u32 = 3;
/// Samples in a row at the slowdown temperature after which a card takes no new work.
const HOT_SAMPLES: u32 = 10;
/// Good readings for this long lift a passing trouble.
const RECOVERY_MS: u64 = 60_000;
/// A card counts as cool this far below its slowdown temperature.
const COOL_MARGIN_C: i32 = 5;
/// Slowdown temperature of a model that the catalogue does not have, °C.
const SLOWDOWN_C_DEFAULT: i32 = 90;

/// A trouble, with what a person is told about it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trouble {
    grade: Grade,
    xid: Option<u32>,
    reason: String,
}

/// What is known about one card's health.
#[derive(Debug)]
pub struct Watch {
    slowdown_c: i32,
    /// The gravest fault seen; it stays until an operator clears the card.
    grave: Option<Trouble>,
    /// The trouble of the newest readings; it lifts by itself.
    passing: Option<Trouble>,
    /// When the passing trouble was last seen, or the watch began.
    troubled_ms: Option<u64>,
    silent: u32,
    hot: u32,
    ecc_double: Option<u64>,
    /// The grade that this watch and the log last agreed on.
    agreed: Option<Grade>,
}

impl Watch {
    /// A watch that has seen nothing yet.
    pub fn new(device: &Device) -> Self {
        let known = catalog::find(device.model.as_str());
        Self {
            slowdown_c: known.map_or(SLOWDOWN_C_DEFAULT, |model| model.slowdown_c),
            grave: None,
            passing: None,
            troubled_ms: None,
            silent: 0,
            hot: 0,
            ecc_double: None,
            agreed: None,
        }
    }

    /// Takes in a fault that the card announced.
    pub fn announce(&mut self, xid: u32) {
        let (grade, what) = match xid::class_of(xid) {
            XidClass::Application | XidClass::Informational => return,
            XidClass::Link => (Grade::Suspect, "its links failed"),
            XidClass::Unknown => (Grade::Suspect, "an unknown fault"),
            XidClass::Reset => (Grade::Quarantined, "it needs a reset"),
            XidClass::Lost => (Grade::Missing, "it has fallen off the bus"),
        };
        self.worsen(Trouble {
            grade,
            xid: Some(xid),
            reason: format!("xid {xid}: {what}"),
        });
    }

    /// Takes in a sample, or why there is none.
    pub fn observe(&mut self, now_ms: u64, sample: &Result<Sample, DeviceFault>) {
        let trouble = match sample {
            Ok(sample) => {
                self.silent = 0;
                self.settle_missing();
                self.judge(sample)
            }
            Err(DeviceFault::Lost) => {
                self.worsen(plain(Grade::Missing, "it has fallen off the bus".to_owned()));
                None
            }
            Err(fault) => {
                self.silent += 1;
                let reason = || format!("no sample for {} periods: {fault}", self.silent);
                (self.silent >= SILENT_SAMPLES).then(|| plain(Grade::Suspect, reason()))
            }
        };
        if trouble.is_some() || self.troubled_ms.is_none() {
            self.troubled_ms = Some(now_ms);
        }
        match (trouble, &self.passing) {
            // The first reason stays: a text that changes every second would be an edge every second.
            (Some(trouble), Some(before)) if before.grade == trouble.grade => {}
            (Some(trouble), _) => self.passing = Some(trouble),
            (None, _) if self.is_steady(now_ms) => self.passing = None,
            (None, _) => {}
        }
    }

    /// Judges a good sample: grave findings are kept, the passing one is returned.
    fn judge(&mut self, sample: &Sample) -> Option<Trouble> {
        if let Ok(total) = sample.ecc_double_bit {
            let before = *self.ecc_double.get_or_insert(total);
            self.ecc_double = Some(total);
            if total > before {
                self.worsen(plain(
                    Grade::Quarantined,
                    format!("{} uncorrected memory errors", total - before),
                ));
            }
        }
        if sample.remap_failed == Ok(true) {
            self.worsen(plain(
                Grade::Quarantined,
                "a memory row could not be remapped; replace the card".to_owned(),
            ));
        }
        if sample.remap_pending == Ok(true) {
            return Some(plain(
                Grade::Suspect,
                "a memory row waits for a reset to be remapped".to_owned(),
            ));
        }
        self.judge_heat(sample)
    }

    fn judge_heat(&mut self, sample: &Sample) -> Option<Trouble> {
        let celsius = *sample.temperature_c.as_ref().ok()?;
        if celsius >= self.slowdown_c {
            self.hot += 1;
        } else if celsius <= self.slowdown_c - COOL_MARGIN_C {
            self.hot = 0;
        }
        let reason = || format!("{celsius} °C; it slows down at {} °C", self.slowdown_c);
        (self.hot >= HOT_SAMPLES).then(|| plain(Grade::Suspect, reason()))
    }

    fn worsen(&mut self, trouble: Trouble) {
        if self.grave.as_ref().is_none_or(|grave| grave.grade < trouble.grade) {
            self.grave = Some(trouble);
        }
    }

    /// A missing card that answers again is there, but nobody knows what happened to it.
    fn settle_missing(&mut self) {
        if let Some(grave) = self.grave.as_mut().filter(|grave| grave.grade == Grade::Missing) {
            grave.grade = Grade::Quarantined;
            grave.reason = format!("it answers again after: {}", grave.reason);
        }
    }

    fn is_steady(&self, now_ms: u64) -> bool {
        self.troubled_ms
            .is_some_and(|at_ms| now_ms.saturating_sub(at_ms) >= RECOVERY_MS)
    }

    fn worst(&self) -> Option<&Trouble> {
        self.grave
            .iter()
            .chain(&self.passing)
            .max_by_key(|trouble| trouble.grade)
    }

    /// The grade that this watch would give, and why.
    pub fn verdict(&self) -> (Grade, String) {
        match self.worst() {
            Some(trouble) => (trouble.grade, trouble.reason.clone()),
            None => (Grade::Healthy, "all readings are good".to_owned()),
        }
    }

    /// The change that the log should take in, if the applied grade differs from the verdict.
    pub fn wanted_edge(&mut self, now_ms: u64, device: DeviceId, applied: Grade) -> Option<HealthEdge> {
        let (wanted, _) = self.verdict();
        if applied < wanted && self.agreed == Some(wanted) {
            // The log knew and was changed by someone else: an operator cleared the card. What is over is forgiven;
            // what still reads wrong is found again by the next sample.
            self.forgive();
        }
        let (wanted, reason) = self.verdict();
        if applied == wanted {
            self.agreed = Some(wanted);
            return None;
        }
        let is_worse = wanted > applied;
        // Suspect is given by watches only, so a watch of a later daemon may lift it, once it has seen enough.
        let is_ours = self.agreed == Some(applied) || (applied == Grade::Suspect && self.is_steady(now_ms));
        let xid = self.worst().and_then(|trouble| trouble.xid);
        (is_worse || is_ours).then_some(HealthEdge {
            device,
            grade: wanted,
            xid,
            reason,
        })
    }

    fn forgive(&mut self) {
        self.grave = None;
        self.passing = None;
        self.silent = 0;
        self.hot = 0;
        self.agreed = None;
    }
}

fn plain(grade: Grade, reason: String) -> Trouble {
    Trouble {
        grade,
        xid: None,
        reason,
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
