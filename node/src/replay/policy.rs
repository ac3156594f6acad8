//! The policies of a replay: the scheduler's own, and what others do, for comparison.
//!
//! The run asks them request by request. The others look at every node each time and are scored as the FGD paper's
//! artifact scores them ("Beware of Fragmentation", USENIX ATC 2023); equal scores go to the first name. The one rule:
//! only the scheduler's own policy is used for leases.

use std::collections::HashMap;

use super::MixKnowledge;
use super::arrival::Draws;
use super::trace::{Inventory, Trace};
use crate::scheduler::pack::knobs::KNOBS;
use crate::scheduler::pack::mix::Mix;
use crate::scheduler::pack::{Grant, Packer, Request, WHOLE};

/// CPU and device milli of the largest node that the artifact scales by.
const SCALE_CPU: f64 = 128_000.0;
const SCALE_MILLI: f64 = 8_000.0;
/// Share of the requests whose shapes FGD calls typical.
const TYPICAL: f64 = 0.95;

/// Places one request after the other.
pub trait Place {
    /// Places a request; `None` when it fits nowhere.
    fn place(&mut self, request: &Request) -> Option<Grant>;
}

/// A policy by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PolicyName {
    /// The scheduler's own: where the pool is expected to lose least.
    Waste,
    /// Where least is left.
    BestFit,
    /// Where fragmentation grows least, by the mix of the whole list (FGD).
    Fgd,
    /// Where what is asked and what is free agree least.
    Dot,
    /// Anywhere.
    Random,
}

impl PolicyName {
    /// Makes the policy over the nodes of an inventory, all of them empty.
    #[must_use]
    pub fn make(self, inventory: &Inventory, trace: &Trace, mix: MixKnowledge, seed: u64) -> Box<dyn Place> {
        let score = match self {
            Self::Waste => return Box::new(packer(inventory, trace, mix)),
            Self::BestFit => Score::BestFit,
            Self::Fgd => Score::Fgd(typical(trace)),
            Self::Dot => Score::Dot,
            Self::Random => Score::Random(Draws::new(seed)),
        };
        Box::new(Scan::new(inventory, score))
    }
}

fn packer(inventory: &Inventory, trace: &Trace, mix: MixKnowledge) -> Packer {
    let known = (mix == MixKnowledge::Known).then(|| Mix::of(&trace.requests));
    let mut packer = Packer::with(KNOBS, known);
    for node in &inventory.nodes {
        packer.add(node.kind(), node.cpu_milli, node.memory_mib);
    }
    packer
}

impl Place for Packer {
    fn place(&mut self, request: &Request) -> Option<Grant> {
        Packer::place(self, request)
    }
}

/// A shape that is typical for the list, and how often it comes.
struct Typical {
    request: Request,
    share: f64,
}

/// The most popular shapes that make up most of a list; memory does not count.
fn typical(trace: &Trace) -> Vec<Typical> {
    let mut counts: HashMap<Request, u64> = HashMap::new();
    for request in &trace.requests {
        let shape = Request {
            memory_mib: 0,
            ..request.clone()
        };
        *counts.entry(shape).or_default() += 1;
    }
    let mut shapes: Vec<(Request, u64)> = counts.into_iter().collect();
    let order = |request: &Request| (request.cpu_milli, request.milli, request.devices, request.models);
    shapes.sort_by_key(|(request, count)| std::cmp::Reverse((*count, order(request))));
    let enough = trace.requests.len() as f64 * TYPICAL;
    let mut taken = 0.0;
    shapes.retain(|(_, count)| {
        let more = taken < enough;
        taken += if more { *count as f64 } else { 0.0 };
        more
    });
    let share = |(request, count)| Typical {
        request,
        share: count as f64 / taken.max(1.0),
    };
    shapes.into_iter().map(share).collect()
}

enum Score {
    BestFit,
    Dot,
    Fgd(Vec<Typical>),
    Random(Draws),
}

#[derive(Clone)]
struct Free {
    cpu_milli: u32,
    memory_mib: u32,
    devices: Vec<u16>,
    model: u8,
    /// Rises with each change.
    version: u64,
}

/// A node's version, and what it scored then with which device; none when the request did not fit.
type Known = (u64, Option<(i64, usize)>);

/// A policy that looks at every node.
struct Scan {
    nodes: Vec<Free>,
    score: Score,
    /// By request: what each node scored at which version, and with which device.
    known: HashMap<Request, Vec<Known>>,
}

impl Scan {
    fn new(inventory: &Inventory, score: Score) -> Self {
        let free = |node: &super::trace::NodeLine| Free {
            cpu_milli: node.cpu_milli,
            memory_mib: node.memory_mib,
            devices: vec![WHOLE; node.devices.into()],
            model: node.model,
            version: 1,
        };
        Self {
            nodes: inventory.nodes.iter().map(free).collect(),
            score,
            known: HashMap::new(),
        }
    }

    fn best(&mut self, request: &Request) -> Option<(usize, usize)> {
        if let Score::Random(draws) = &mut self.score {
            let able: Vec<usize> = (0..self.nodes.len())
                .filter(|at| self.nodes[*at].fits(request))
                .collect();
            let node = *able.get(draws.below(able.len()))?;
            let devices: Vec<usize> = self.nodes[node].able(request).collect();
            return Some((node, devices.get(draws.below(devices.len())).copied().unwrap_or(0)));
        }
        let known = self
            .known
            .entry(request.clone())
            .or_insert_with(|| vec![(0, None); self.nodes.len()]);
        for (node, known) in self.nodes.iter().zip(known.iter_mut()) {
            if known.0 != node.version {
                *known = (node.version, node.fits(request).then(|| self.score.of(node, request)));
            }
        }
        let scored = (0..)
            .zip(known)
            .filter_map(|(at, (_, score))| score.map(|(score, device)| (score, at, device)));
        let best = scored.min_by_key(|(score, at, _): &(i64, usize, usize)| (std::cmp::Reverse(*score), *at));
        best.map(|(_, node, device)| (node, device))
    }
}

impl Place for Scan {
    fn place(&mut self, request: &Request) -> Option<Grant> {
        let (at, device) = self.best(request)?;
        let node = &mut self.nodes[at];
        let devices = node.take(request, device);
        Some(Grant {
            node: u32::try_from(at).unwrap_or(u32::MAX),
            devices: devices
                .into_iter()
                .map(|device| u16::try_from(device).unwrap_or(u16::MAX))
                .collect(),
            milli: request.milli,
            cpu_milli: request.cpu_milli,
            memory_mib: request.memory_mib,
        })
    }
}

impl Score {
    /// How good a node is for a request, and which device is best.
    fn of(&self, node: &Free, request: &Request) -> (i64, usize) {
        let tightest = node
            .able(request)
            .min_by_key(|device| (node.devices[*device], *device))
            .unwrap_or(0);
        let (cpu, milli) = (f64::from(node.cpu_milli), node.milli());
        let (asks_cpu, asks_milli) = (f64::from(request.cpu_milli), request.total_milli() as f64);
        let percent = |share: f64| ((1.0 - share) * 100.0).floor() as i64;
        match self {
            Self::Random(_) => (0, tightest),
            Self::BestFit => {
                let left = (cpu - asks_cpu) / SCALE_CPU + (milli - asks_milli) / SCALE_MILLI;
                (percent(left * 0.5), tightest)
            }
            Self::Dot => {
                let agree = cpu / SCALE_CPU * asks_cpu / SCALE_CPU + milli / SCALE_MILLI * asks_milli / SCALE_MILLI;
                (percent(agree / 2.0), tightest)
            }
            Self::Fgd(typical) => {
                let before = node.fragmented(typical);
                let after = |device: usize| {
                    let mut node = node.clone();
                    node.take(request, device);
                    let lost = (before - node.fragmented(typical)) / 1000.0;
                    (100.0 / (1.0 + (-lost).exp())).floor() as i64
                };
                if request.devices != 1 || request.milli == WHOLE {
                    return (after(tightest), tightest);
                }
                let all = node.able(request).map(|device| (after(device), device));
                all.min_by_key(|(score, device)| (std::cmp::Reverse(*score), *device))
                    .unwrap_or((0, tightest))
            }
        }
    }
}

impl Free {
    fn milli(&self) -> f64 {
        self.devices.iter().copied().map(f64::from).sum()
    }

    /// Devices on which a request's share fits.
    fn able(&self, request: &Request) -> impl Iterator<Item = usize> {
        (0..self.devices.len()).filter(|device| self.devices[*device] >= request.milli)
    }

    fn serves(&self, request: &Request) -> bool {
        let model = request.devices == 0 || request.models.has(self.model);
        model && self.cpu_milli >= request.cpu_milli && self.able(request).count() >= usize::from(request.devices)
    }

    fn fits(&self, request: &Request) -> bool {
        self.memory_mib >= request.memory_mib && self.serves(request)
    }

    /// Takes what is asked: from `device` and on, in order; whole devices from the first.
    fn take(&mut self, request: &Request, device: usize) -> Vec<usize> {
        let mut devices: Vec<usize> = match request.devices {
            0 => Vec::new(),
            1 => vec![device],
            several => self.able(request).take(several.into()).collect(),
        };
        devices.sort_unstable();
        for device in &devices {
            self.devices[*device] -= request.milli;
        }
        self.cpu_milli -= request.cpu_milli;
        self.memory_mib -= request.memory_mib;
        self.version += 1;
        devices
    }

    /// Free milli that the typical requests cannot use, on average.
    fn fragmented(&self, typical: &[Typical]) -> f64 {
        let all = self.milli();
        let lost = |request: &Request| match self.serves(request) {
            true if request.devices > 0 => {
                let small = self.devices.iter().filter(|free| **free < request.milli);
                small.copied().map(f64::from).sum()
            }
            _ => all,
        };
        typical
            .iter()
            .map(|typical| typical.share * lost(&typical.request))
            .sum()
    }
}
