//! A histogram that stays empty, in the place of the `base2histogram` crate.
//!
//! openraft counts the sizes of its batches in such histograms and shows them only with its feature `runtime-stats`,
//! which Holdfast does not switch on. The crate (0.2.3) fills its tables for all sixteen precisions at the first use:
//! 27 MB resident in every node, nearly half of what an idle one may take. The rule: this has exactly what openraft
//! names, and records nothing. Once the crate makes a table when it is asked for, this folder and its line in `[patch]`
//! go.

use std::fmt;
use std::marker::PhantomData;

/// What openraft records into.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram<T = ()>(PhantomData<T>);

impl<T> Histogram<T> {
    /// One without samples.
    pub const fn new() -> Self {
        Self(PhantomData)
    }

    /// Does nothing.
    pub fn record(&mut self, _: u64) {}

    /// Does nothing, a number of times.
    pub fn record_n(&mut self, _: u64, _: u64) {}

    /// Zero samples.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats::default()
    }
}

/// Percentiles of no samples: all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct PercentileStats {
    pub samples: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no samples")
    }
}

/// A chart of nothing.
#[derive(Debug, Clone, Default)]
pub struct AsciiChart;

impl AsciiChart {
    /// An empty one.
    pub const fn new() -> Self {
        Self
    }

    /// It stays empty.
    #[must_use]
    pub fn add<T>(self, _: &str, _: Histogram<T>) -> Self {
        self
    }
}
