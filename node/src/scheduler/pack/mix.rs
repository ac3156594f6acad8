//! The mix of requests that come: what it learns, it learns from requests that have come already.
//!
//! The packer feeds it each request and makes prices of it. The one rule: it knows nothing of what is still to come, and
//! what came long ago counts less and less.

use std::collections::BTreeMap;

use super::{Models, Request, WHOLE};

/// How often what was asked for, with decay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mix {
    /// Requests for one device, by the milli asked of it.
    pub(super) sizes: BTreeMap<u16, u64>,
    /// CPU of all requests for devices, in thousandths of a core.
    pub(super) cpu_milli: u64,
    /// Milli of devices of all requests.
    pub(super) milli: u64,
    /// Of these, those that only some models can give.
    pub(super) restricted: BTreeMap<Models, u64>,
    /// Requests counted.
    pub(super) requests: u64,
}

/// Sizes are counted in steps of so many milli, upwards: it bounds the work that prices are.
const SIZE_STEP: u16 = 10;

/// Weight of one request, so that halving loses little.
const ONE: u64 = 1024;

impl Mix {
    /// A mix of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A mix of all of these requests, for those who know it beforehand.
    pub fn of<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Self {
        let mut mix = Self::new();
        requests.into_iter().for_each(|request| mix.count(request));
        mix
    }

    /// Counts a request; once more than `remembered_max` are remembered, all before count half.
    pub fn learn(&mut self, request: &Request, remembered_max: u64) {
        if self.requests / ONE >= remembered_max {
            self.halve();
        }
        self.count(request);
    }

    /// Requests that are remembered.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests / ONE
    }

    fn count(&mut self, request: &Request) {
        self.requests += ONE;
        if request.devices == 0 {
            return;
        }
        let milli = u64::from(request.devices) * u64::from(request.milli) * ONE;
        self.cpu_milli = self.cpu_milli.saturating_add(u64::from(request.cpu_milli) * ONE);
        self.milli = self.milli.saturating_add(milli);
        if request.devices == 1 {
            let size = request.milli.min(WHOLE).next_multiple_of(SIZE_STEP);
            *self.sizes.entry(size).or_default() += ONE;
        }
        if request.models != Models::ANY {
            *self.restricted.entry(request.models).or_default() += milli;
        }
    }

    fn halve(&mut self) {
        for value in [&mut self.cpu_milli, &mut self.milli, &mut self.requests] {
            *value /= 2;
        }
        halve(&mut self.restricted);
        halve(&mut self.sizes);
    }
}

/// What is down to nothing is forgotten.
fn halve<K: Ord>(counts: &mut BTreeMap<K, u64>) {
    counts.retain(|_, count| {
        *count /= 2;
        *count > 0
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_long_ago_counts_less_and_less() {
        let request = |milli| Request::of(1, milli, 1_000, 0);
        let mut mix = Mix::new();
        (0..64).for_each(|_| mix.learn(&request(500), 64));
        (0..64).for_each(|_| mix.learn(&request(250), 64));
        assert!(mix.sizes[&250] > mix.sizes[&500] && mix.requests() <= 65);
        (0..2_000).for_each(|_| mix.learn(&request(250), 64));
        assert_eq!(mix.sizes.keys().collect::<Vec<_>>(), [&250]);
    }
}
