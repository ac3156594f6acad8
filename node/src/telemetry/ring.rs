//! The newest samples of one card: a bounded queue.
//!
//! `Telemetry` owns one for each card. The rule kept here: it never holds more than [`SAMPLES_MAX`], so a node with
//! eight cards keeps 15 minutes at one a second in about 2 MB.

use std::collections::VecDeque;

use crate::device::Sample;

/// Most samples kept of one card.
pub(super) const SAMPLES_MAX: usize = 900;

#[derive(Debug, Default)]
pub(super) struct Ring {
    samples: VecDeque<(u64, Sample)>,
}

impl Ring {
    pub(super) fn push(&mut self, now_ms: u64, sample: Sample) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back((now_ms, sample));
    }

    pub(super) fn newest(&self) -> Option<(u64, &Sample)> {
        self.samples.back().map(|(at_ms, sample)| (*at_ms, sample))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Sample)> {
        self.samples.iter().map(|(at_ms, sample)| (*at_ms, sample))
    }
}
