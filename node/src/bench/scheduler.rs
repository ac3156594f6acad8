//! Decisions of the packer on one thread, on a full pool in which leases come and go.
//!
//! No cluster and no log: what the decision itself costs. Requests are of a few hundred classes, some common and most
//! rare, drawn from a fixed seed; whenever more than the load is allocated, leases chosen at random end. Figures begin
//! once the pool is full for the first time.

use serde_json::{Value, json};

use super::{BenchError, percentile};
use crate::env::OsClock;
use crate::replay::arrival::Draws;
use crate::scheduler::pack::{Grant, Group, Kind, Models, Packer, Request, WHOLE};

/// Flags of `holdfast bench scheduler`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct SchedulerFlags {
    /// Nodes.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// GPUs of each node.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=128))]
    gpus_per_node: u16,
    /// Classes of equal requests.
    #[arg(long, default_value_t = 450, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    classes: u32,
    /// Decisions to measure.
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    decisions: u32,
    /// How full the pool is kept, in per cent of all milli.
    #[arg(long, default_value_t = 95, value_parser = clap::value_parser!(u8).range(1..=100))]
    load: u8,
    /// Seed of the classes, the arrivals and the ends.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Models of the nodes, in turn.
const MODELS: u8 = 4;
/// CPU of the nodes, in turn.
const CPU_MILLI: [u32; 4] = [96_000, 96_000, 128_000, 192_000];
/// Milli asked of one device, and devices asked whole, as often as in the openb trace, roughly.
const SHARES: [u16; 10] = [1000, 1000, 1000, 460, 810, 500, 250, 190, 340, 100];
const DEVICES: [u16; 12] = [1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 0, 0];

/// What comes and goes.
struct Churn {
    packer: Packer,
    draws: Draws,
    classes: Vec<Request>,
    /// Sums of the classes' weights: the first is the most common, the n-th comes an n-th as often.
    weights: Vec<u64>,
    live: Vec<Grant>,
    allocated: u64,
    most: u64,
}

impl Churn {
    fn new(flags: &SchedulerFlags) -> Self {
        let mut draws = Draws::new(flags.seed);
        let mut packer = Packer::new();
        for node in 0..flags.nodes {
            let group = Group {
                model: u8::try_from(node % u32::from(MODELS)).unwrap_or(0),
                devices: flags.gpus_per_node,
            };
            let kind = Kind {
                groups: vec![group],
                zone: 0,
                last: false,
            };
            packer.add(kind, CPU_MILLI[node as usize % CPU_MILLI.len()], 1 << 20);
        }
        let mut sum = 0;
        let weight = |class: u64| {
            sum += 1_000_000 / class;
            sum
        };
        let milli = u64::from(flags.nodes) * u64::from(flags.gpus_per_node) * u64::from(WHOLE);
        Self {
            packer,
            classes: (0..flags.classes).map(|_| class(&mut draws)).collect(),
            weights: (1..=u64::from(flags.classes)).map(weight).collect(),
            draws,
            live: Vec::new(),
            allocated: 0,
            most: milli * u64::from(flags.load) / 100,
        }
    }

    /// The next request.
    fn next(&mut self) -> Request {
        let all = self.weights.last().copied().unwrap_or(1);
        let drawn = self.draws.below(usize::try_from(all).unwrap_or(usize::MAX)) as u64;
        let class = self.weights.partition_point(|sum| *sum <= drawn);
        self.classes[class.min(self.classes.len() - 1)].clone()
    }

    /// Takes in a grant, and ends leases while the pool is fuller than it is to be; reports whether it is full.
    fn settle(&mut self, grant: Option<Grant>) -> bool {
        let milli = |grant: &Grant| grant.devices.len() as u64 * u64::from(grant.milli);
        if let Some(grant) = grant {
            self.allocated += milli(&grant);
            self.live.push(grant);
        }
        let full = self.allocated > self.most;
        while self.allocated > self.most {
            let ended = self.live.swap_remove(self.draws.below(self.live.len()));
            self.allocated -= milli(&ended);
            self.packer.give_back(&ended);
        }
        full
    }
}

fn class(draws: &mut Draws) -> Request {
    let devices = DEVICES[draws.below(DEVICES.len())];
    let milli = match devices {
        0 => 0,
        1 => SHARES[draws.below(SHARES.len())],
        _ => WHOLE,
    };
    let number = |below: usize, draws: &mut Draws| u32::try_from(draws.below(below)).unwrap_or(0);
    let each = u32::from(devices.max(1));
    let cpu = (number(12, draws) + 1) * 1_000 * each;
    let mut request = Request::of(devices, milli, cpu, number(16, draws) * 4_096 * each);
    if devices > 0 && draws.below(4) == 0 {
        let models = usize::from(MODELS);
        request.models = Models(1 << draws.below(models) | 1 << draws.below(models));
    }
    request
}

/// Measures decisions one by one.
pub(super) fn measure(flags: &SchedulerFlags, json: bool) -> Result<Value, BenchError> {
    let mut churn = Churn::new(flags);
    // Three requests for each device fill the pool, or it cannot be filled.
    let patience = u64::from(flags.nodes) * u64::from(flags.gpus_per_node) * 3;
    for _ in 0..patience {
        let request = churn.next();
        let grant = churn.packer.place(&request);
        if churn.settle(grant) {
            break;
        }
    }
    let clock = OsClock;
    let (mut took_ns, mut placed) = (Vec::with_capacity(flags.decisions as usize), 0_u64);
    let began_us = clock.boot_us();
    for _ in 0..flags.decisions {
        let request = churn.next();
        let from_ns = clock.boot_ns();
        let grant = churn.packer.place(&request);
        took_ns.push(clock.boot_ns().saturating_sub(from_ns));
        placed += u64::from(grant.is_some());
        churn.settle(grant);
    }
    let all_us = clock.boot_us().saturating_sub(began_us).max(1);
    let deciding_ns = took_ns.iter().sum::<u64>().max(1);
    took_ns.sort_unstable();
    let us = |permille| Value::from((percentile(&took_ns, permille) as f64 / 100.0).round() / 10.0);
    let per_second = |count: u64, ns: u64| (count as f64 * 1e9 / ns as f64).round();
    let decisions = u64::from(flags.decisions);
    if !json {
        println!(
            "{decisions} decisions, {placed} placed, {} states of nodes",
            churn.packer.states()
        );
    }
    Ok(json!({
        "decisions_per_s": per_second(decisions, deciding_ns),
        "decisions_and_ends_per_s": per_second(decisions, all_us * 1_000),
        "p50_us": us(500),
        "p99_us": us(990),
        "p999_us": us(999),
        "peak_mib": super::peak_mib(),
        "placed": placed,
        "allocated_percent": (churn.allocated as f64 * f64::from(flags.load) * 100.0 / churn.most.max(1) as f64).round() / 100.0,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pool_stays_full_and_decides() {
        let flags = SchedulerFlags {
            nodes: 20,
            gpus_per_node: 4,
            classes: 30,
            decisions: 300,
            load: 80,
            seed: 3,
        };
        let figures = measure(&flags, true).unwrap();
        assert!(figures["placed"].as_u64() > Some(100), "{figures}");
        assert!(figures["decisions_per_s"].as_f64() > Some(0.0));
    }
}
