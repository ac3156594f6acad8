//! Prices: what free devices in each state are expected to be lost for, and so what each placement costs the pool.
//!
//! Made of a mix by the packer, asked for each pair of a node's state and a request. The one rule: integers only, so
//! that every machine comes to the same prices. Waste and cost are in 1/65536 milli.
//!
//! The cost of a node is the expected waste of its devices, plus the square of what is stranded for lack of CPU, less
//! what is free of a scarce model. Waste follows from offering a device a number of requests for one device, each of
//! which it takes if that lowers its expected waste.

use super::knobs::Knobs;
use super::mix::Mix;
use super::{Models, WHOLE};

/// One milli, in the units of waste and cost.
pub const MILLI: i64 = 1 << 16;

const WHOLE_AT: usize = WHOLE as usize;

/// CPU that a device needs while nothing is known, in thousandths of a core.
const CPU_PER_DEVICE: i64 = 8_000;

/// Prices of one mix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    /// By residual: expected waste.
    waste: Vec<i64>,
    /// CPU for a whole device, in thousandths of a core.
    cpu_per_device: i64,
    /// Its reciprocal: milli of a device for a thousandth of a core, in 1/1048576. A division less where it counts.
    milli_per_cpu: i64,
    /// By model: cost of one milli.
    scarcity: Vec<i64>,
    stranded_permille: i64,
    need_permille: i64,
}

impl Prices {
    /// Makes prices of a mix, for a pool that has so many milli of each model.
    #[must_use]
    pub fn of(mix: &Mix, capacity: &[u64], knobs: &Knobs) -> Self {
        let cpu = mix.cpu_milli.saturating_mul(u64::from(WHOLE)).checked_div(mix.milli);
        let cpu = cpu.map_or(CPU_PER_DEVICE, |cpu| {
            i64::try_from(cpu).unwrap_or(i64::MAX).clamp(1, 1 << 24)
        });
        Self {
            waste: waste(mix, knobs.horizon),
            cpu_per_device: cpu,
            milli_per_cpu: (i64::from(WHOLE) << 20) / cpu,
            scarcity: scarcity(mix, capacity, knobs),
            stranded_permille: knobs.stranded_permille,
            need_permille: knobs.need_permille,
        }
    }

    /// Expected waste of a device of which `residual` milli are free.
    #[must_use]
    pub fn waste(&self, residual: u16) -> i64 {
        self.waste[residual as usize]
    }

    /// Cost of taking one milli of a model.
    #[must_use]
    pub fn scarcity(&self, model: u8) -> i64 {
        self.scarcity.get(model as usize).copied().unwrap_or(0)
    }

    /// Cost of what is stranded for lack of CPU, when `usable` of a node's devices is left and `cpu_milli` of its CPU.
    #[must_use]
    pub fn stranded(&self, usable: i64, cpu_milli: u32) -> i64 {
        let need = usable / 1000 * self.cpu_per_device / 1000 * self.need_permille;
        let short = need - i64::from(cpu_milli) * MILLI;
        if short <= 0 {
            return 0;
        }
        let milli = ((short >> 10) * self.milli_per_cpu) >> 10;
        // Half of the fraction's bits each, so that the square has as many as the rest.
        let root = milli >> 8;
        root.saturating_mul(root) / 1_000_000 * self.stranded_permille
    }

    /// Whether these prices differ from others by enough to plan by them.
    #[must_use]
    pub fn moved(&self, other: &Self, milli: i64) -> bool {
        let apart =
            |a: &[i64], b: &[i64], by: i64| a.len() != b.len() || a.iter().zip(b).any(|(a, b)| (a - b).abs() > by);
        apart(&self.waste, &other.waste, milli * MILLI)
            || apart(&self.scarcity, &other.scarcity, MILLI / 50)
            || (self.cpu_per_device - other.cpu_per_device).abs() * 50 > other.cpu_per_device
    }
}

/// By residual: the waste that is expected after `horizon` requests for one device.
fn waste(mix: &Mix, horizon: u32) -> Vec<i64> {
    let mut waste: Vec<i64> = (0..=i64::from(WHOLE)).map(|residual| residual * MILLI).collect();
    let all: u64 = mix.sizes.values().sum();
    if all == 0 {
        return waste;
    }
    // In 1/65536 of all requests.
    let sizes: Vec<(usize, i64)> = mix
        .sizes
        .iter()
        .filter(|(size, _)| **size > 0)
        .map(|(size, count)| {
            (
                *size as usize,
                i64::try_from(u128::from(*count) * 65_536 / u128::from(all)).unwrap_or(0),
            )
        })
        .collect();
    for _ in 0..horizon {
        // From the largest residual on, so that smaller ones are still of the step before.
        for residual in (1..=WHOLE_AT).rev() {
            let here = waste[residual];
            let taken = sizes.iter().take_while(|(size, _)| *size <= residual);
            let gain: i64 = taken
                .map(|(size, share)| share * (here - waste[residual - size]).max(0))
                .sum();
            waste[residual] = here - gain / 65_536;
        }
    }
    waste
}

/// By model: the cost of one of its milli, from the demand that only it and few others can serve.
fn scarcity(mix: &Mix, capacity: &[u64], knobs: &Knobs) -> Vec<i64> {
    let all: u64 = capacity.iter().sum();
    let mut permille = vec![0_i64; capacity.len()];
    if mix.milli == 0 {
        return permille;
    }
    for (models, demand) in &mix.restricted {
        let able = |model: &usize| models.has(u8::try_from(*model).unwrap_or(u8::MAX));
        let holds: u64 = (0..capacity.len()).filter(able).map(|model| capacity[model]).sum();
        if holds == 0 {
            continue;
        }
        // The share of all demand, over the share of the pool that can serve it.
        let over = u128::from(*demand) * u128::from(all) * 1000 / (u128::from(mix.milli) * u128::from(holds));
        let over = i64::try_from(over).unwrap_or(i64::MAX);
        for model in (0..capacity.len()).filter(able) {
            permille[model] = permille[model].saturating_add(over);
        }
    }
    for value in &mut permille {
        *value = (*value).min(knobs.scarcity_max_permille) * knobs.scarcity_permille * MILLI / 1_000_000;
    }
    permille
}

impl Models {
    /// Whether a model is among them.
    #[must_use]
    pub fn has(self, model: u8) -> bool {
        self == Self::ANY || (model < 128 && self.0 >> model & 1 == 1)
    }
}
