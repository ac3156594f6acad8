//! Replay: recorded requests, one after the other, against the nodes of a file, by the packer that the scheduler uses.
//!
//! For operators who plan capacity, and for the benchmark: `holdfast replay` calls it. Requests arrive in the order of the
//! file until 130 % of the milli of all devices have arrived; nothing departs and nothing waits. The one rule: what a
//! policy did is believed only when [`check`] has gone over it again: capacity, models, no device granted twice, and
//! nothing refused that would have fitted.
//!
//! # Results
//! openb trace, 1,213 nodes with 6,212 GPUs: allocated % when 100 % of the load has arrived, mean of seeds 42 to 46, no
//! violation in any run. `holdfast replay --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_MIX.csv --order
//! arrival_order/MIX.s42-46.txt --policy random,dot,best-fit,fgd,waste [--mix known] --json`; the published column is that
//! of the FGD paper's artifact. FGD knows the mix of the whole list; ours learns it online, but for the last column.
//!
//! | mix | random | dot | best fit | FGD here | FGD published | ours, online | ours, known |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | default | 86.74 | 90.64 | 93.10 | 95.11 | 95.24 | 96.03 | 96.07 |
//! | cpu050 | 89.03 | 93.16 | 93.74 | 94.89 | 94.98 | 96.03 | 96.05 |
//! | cpu100 | 87.42 | 91.92 | 93.43 | 95.05 | 95.17 | 96.07 | 96.08 |
//! | cpu250 | 79.78 | 83.58 | 91.25 | 91.68 | 93.27 | 94.71 | 94.72 |
//! | gpushare40 | 84.79 | 89.14 | 91.63 | 93.90 | 93.94 | 94.69 | 94.69 |
//! | gpushare60 | 82.74 | 86.48 | 89.27 | 91.22 | 91.31 | 92.18 | 92.21 |
//! | gpuspec10 | 86.40 | 90.31 | 93.22 | 94.36 | 94.67 | 95.88 | 95.95 |
//! | gpuspec33 | 83.74 | 79.85 | 80.35 | 87.92 | 87.89 | 94.58 | 94.91 |
//! | multigpu20 | 86.60 | 91.79 | 93.80 | 95.40 | 95.55 | 96.58 | 96.60 |
//! | multigpu50 | 81.79 | 94.66 | 95.74 | 97.09 | 97.11 | 97.77 | 97.78 |

pub mod arrival;
pub mod check;
pub mod drawing;
pub mod policy;
pub mod table;
pub mod trace;

use serde::Serialize;

use self::policy::PolicyName;
use self::trace::{Inventory, Trace};
use crate::env::OsClock;
use crate::scheduler::pack::Grant;

/// Whether the policy knows the mix beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MixKnowledge {
    /// It learns the mix from requests that have come.
    Online,
    /// It knows the mix of the whole list.
    Known,
}

/// What came of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Allocated, in per cent of all devices' milli, when the last request had come with which at most 100 % had arrived.
    pub allocated_at_100: f64,
    /// The same for 130 %.
    pub allocated_at_130: f64,
    /// Requests that fitted nowhere.
    pub unplaced: u64,
    /// What the checker found.
    pub violations: u64,
    /// Requests decided in a second.
    pub decisions_per_s: f64,
    /// Requests decided.
    #[serde(skip)]
    pub decisions: u64,
    /// The first violations, in words.
    #[serde(skip)]
    pub found: Vec<String>,
    /// Allocation over load, both in hundredths of a per cent.
    #[serde(skip)]
    pub curve: Vec<(u32, u32)>,
}

/// Load at which the run ends, in per cent.
const LOAD_MAX_PERCENT: u64 = 130;

/// Runs the requests of `order` through one policy.
#[must_use]
pub fn run(
    inventory: &Inventory,
    trace: &Trace,
    order: &[u32],
    policy: PolicyName,
    mix: MixKnowledge,
    seed: u64,
) -> Outcome {
    let mut place = policy.make(inventory, trace, mix, seed);
    let order = arriving(inventory, trace, order);
    let began_us = OsClock.boot_us();
    let grants: Vec<Option<Grant>> = order
        .iter()
        .map(|at| place.place(&trace.requests[*at as usize]))
        .collect();
    let took_us = OsClock.boot_us().saturating_sub(began_us).max(1);
    measure(inventory, trace, order, &grants, took_us)
}

/// The requests that arrive before the load is over its end.
fn arriving<'a>(inventory: &Inventory, trace: &Trace, order: &'a [u32]) -> &'a [u32] {
    let end = inventory.milli() * LOAD_MAX_PERCENT / 100;
    let mut arrived = 0_u64;
    let within = order.iter().take_while(|at| {
        arrived = arrived.saturating_add(trace.requests[**at as usize].total_milli());
        arrived <= end
    });
    &order[..within.count()]
}

fn measure(inventory: &Inventory, trace: &Trace, order: &[u32], grants: &[Option<Grant>], took_us: u64) -> Outcome {
    let all = inventory.milli().max(1);
    let hundredths = |milli: u64| u32::try_from(milli.saturating_mul(10_000) / all).unwrap_or(u32::MAX);
    let (mut arrived, mut allocated, mut at_100) = (0_u64, 0_u64, 0_u64);
    let mut curve = Vec::with_capacity(order.len());
    for (at, grant) in order.iter().zip(grants) {
        let milli = trace.requests[*at as usize].total_milli();
        arrived = arrived.saturating_add(milli);
        allocated += if grant.is_some() { milli } else { 0 };
        if arrived <= all {
            at_100 = allocated;
        }
        curve.push((hundredths(arrived), hundredths(allocated)));
    }
    let percent = |milli: u64| (milli as f64 * 1_000_000.0 / all as f64).round() / 10_000.0;
    let found = check::check(inventory, trace, order, grants);
    Outcome {
        allocated_at_100: percent(at_100),
        allocated_at_130: percent(allocated),
        unplaced: grants.iter().filter(|grant| grant.is_none()).count() as u64,
        violations: found.len() as u64,
        decisions_per_s: (order.len() as f64 * 1_000_000.0 / took_us as f64).round(),
        decisions: order.len() as u64,
        found: found.into_iter().take(10).collect(),
        curve,
    }
}

#[cfg(test)]
mod tests;
