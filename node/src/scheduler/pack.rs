//! Packing: where a request goes so that the pool loses least for those that come after it.
//!
//! The scheduler asks it for leases, `holdfast replay` for recorded requests, `holdfast bench scheduler` for speed: all by
//! the same code. The one rule: the same nodes and requests in the same order give the same grants on every machine, and
//! a request that fits somewhere is placed.
//!
//! Nodes are kept by their state (kind, CPU left, what is free on each device), so that a thousand equal nodes are looked
//! at once. Each family of requests of one size keeps states in heaps by the least cost; they are brought up to date when
//! one of them is asked for, from the states that have come to life since. Memory is checked node by node. Of equal
//! costs, the fuller node wins, then the lower number.

mod band;
mod family;
pub mod knobs;
pub mod mix;
mod pool;
pub mod price;
mod quote;

use std::collections::HashMap;

use self::family::{Family, Look, Size};
use self::knobs::{KNOBS, Knobs};
use self::mix::Mix;
use self::pool::Pool;
use self::price::Prices;
use self::quote::Quote;

/// A whole device, in thousandths.
pub const WHOLE: u16 = 1000;

/// Classes of requests that are kept; past it all are made anew when they are asked for.
const CLASSES_MAX: usize = 4096;

/// A set of models or of zones, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Models(pub u128);

impl Models {
    /// All of them.
    pub const ANY: Self = Self(0);
}

/// Devices of one model in one island.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Model, by number.
    pub model: u8,
    /// How many.
    pub devices: u16,
}

/// What nodes that can serve the same requests when empty have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// Its devices.
    pub groups: Vec<Group>,
    /// Zone, by number.
    pub zone: u8,
    /// Only requests that say so are placed here.
    pub last: bool,
}

/// A request for part of one device, for devices of one node, or for no device at all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    /// Devices.
    pub devices: u16,
    /// Milli of each.
    pub milli: u16,
    /// CPU for all, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory for all, in MiB.
    pub memory_mib: u32,
    /// Models that will do.
    pub models: Models,
    /// Zones that will do.
    pub zones: Models,
    /// Nodes that are to be taken last will do.
    pub last: bool,
}

impl Request {
    /// A request that any model in any zone serves.
    #[must_use]
    pub fn of(devices: u16, milli: u16, cpu_milli: u32, memory_mib: u32) -> Self {
        Self {
            devices,
            milli,
            cpu_milli,
            memory_mib,
            models: Models::ANY,
            zones: Models::ANY,
            last: true,
        }
    }

    /// Milli of all its devices.
    #[must_use]
    pub fn total_milli(&self) -> u64 {
        u64::from(self.devices) * u64::from(self.milli)
    }
}

/// What a request was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Node.
    pub node: u32,
    /// Its devices, by place.
    pub devices: Vec<u16>,
    /// Milli of each.
    pub milli: u16,
    /// CPU, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory, in MiB.
    pub memory_mib: u32,
}

/// The best so far: cost, fullness, node.
type Best = (i64, u16, u32);

/// Requests that are equal.
#[derive(Debug, Clone)]
struct Class {
    family: usize,
    /// By kind: groups that can serve it.
    able: Vec<Option<u64>>,
}

/// The packer: a pool, what it has learned, and what follows for each class.
#[derive(Debug, Clone)]
pub struct Packer {
    pool: Pool,
    knobs: Knobs,
    mix: Mix,
    learns: bool,
    /// Requests after which prices are made anew.
    reprice_at: u64,
    seen: u64,
    prices: Prices,
    epoch: u32,
    numbers: HashMap<Request, usize>,
    classes: Vec<Class>,
    sizes: HashMap<Size, usize>,
    families: Vec<Family>,
}

impl Packer {
    /// A packer of no nodes that learns the mix as it comes.
    #[must_use]
    pub fn new() -> Self {
        Self::with(KNOBS, None)
    }

    /// A packer with constants of its own, that knows the mix or learns it.
    #[must_use]
    pub fn with(knobs: Knobs, mix: Option<Mix>) -> Self {
        let (learns, mix) = (mix.is_none(), mix.unwrap_or_default());
        Self {
            pool: Pool::default(),
            prices: Prices::of(&mix, &[], &knobs),
            reprice_at: 0,
            seen: 0,
            epoch: 1,
            knobs,
            mix,
            learns,
            numbers: HashMap::new(),
            classes: Vec::new(),
            sizes: HashMap::new(),
            families: Vec::new(),
        }
    }

    /// Adds a node, and returns its number: they count up from 0.
    pub fn add(&mut self, kind: Kind, cpu_milli: u32, memory_mib: u32) -> u32 {
        let free = vec![WHOLE; kind.devices()];
        self.reprice_at = 0;
        self.pool.add(kind, cpu_milli, memory_mib, free)
    }

    /// Says what is free on a node: each device's milli, group after group.
    pub fn set(&mut self, node: u32, cpu_milli: u32, memory_mib: u32, free: Vec<u16>) {
        self.pool.set(node, cpu_milli, memory_mib, free);
    }

    /// Places a request and takes what it is given; `None` when it fits nowhere.
    pub fn place(&mut self, request: &Request) -> Option<Grant> {
        self.learn(request);
        let node = self.find(request, &|_| true)?;
        Some(self.take(node, request))
    }

    /// Takes in that a request has come.
    pub fn learn(&mut self, request: &Request) {
        self.seen += 1;
        if self.learns {
            self.mix.learn(request, self.knobs.remembered_max);
        }
        if self.seen >= self.reprice_at {
            self.reprice();
        }
    }

    /// Gives back what a grant has taken.
    pub fn give_back(&mut self, grant: &Grant) {
        self.pool.change(grant, true);
    }

    /// The states that nodes are in now.
    #[must_use]
    pub fn states(&self) -> usize {
        self.pool.len()
    }

    /// Makes prices of the mix as it is now.
    pub fn reprice(&mut self) {
        let more = self.mix.requests() * self.knobs.relearn_permille / 1000;
        self.reprice_at = self.seen + more.max(self.knobs.learned_min);
        let prices = Prices::of(&self.mix, &self.pool.capacity, &self.knobs);
        if prices.moved(&self.prices, self.knobs.moved_min_milli) {
            self.prices = prices;
            // 0 is the epoch of what was never priced.
            self.epoch = self.epoch.wrapping_add(1).max(1);
        }
    }

    /// Finds the node on which a request costs least, among those that it may take.
    pub fn find(&mut self, request: &Request, may: &dyn Fn(u32) -> bool) -> Option<u32> {
        let number = self.number(request);
        let class = &mut self.classes[number];
        for kind in &self.pool.kinds[class.able.len()..] {
            class.able.push(kind.groups_for(request));
        }
        let look = Look {
            prices: &self.prices,
            epoch: self.epoch,
            parts: self.knobs.fullness_parts,
            seen: self.seen,
        };
        let family = &mut self.families[class.family];
        let found = family.find(&mut self.pool, (request, &class.able), look, may);
        found.map(|(_, _, node)| node)
    }

    /// Takes what a request asks for from a node on which it fits.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn take(&mut self, node: u32, request: &Request) -> Grant {
        let quote = self.quote(node, request).expect("the request fits");
        self.pool.take(node, request, quote, &self.prices)
    }

    /// The devices of a node that a request would be given, by place; `None` when it does not fit.
    pub fn pick(&mut self, node: u32, request: &Request) -> Option<Vec<u16>> {
        let quote = self.quote(node, request)?;
        Some(self.pool.pick(node, request, quote, &self.prices))
    }

    fn quote(&mut self, node: u32, request: &Request) -> Option<Quote> {
        let name = self.pool.state_of(node)?;
        let able: Vec<_> = self.pool.kinds.iter().map(|kind| kind.groups_for(request)).collect();
        self.pool
            .quote(name, (request, &able), (&self.prices, self.epoch), i64::MAX)
    }

    fn number(&mut self, request: &Request) -> usize {
        if let Some(number) = self.numbers.get(request) {
            return *number;
        }
        if self.classes.len() >= CLASSES_MAX {
            self.numbers.clear();
            self.classes.clear();
            self.sizes.clear();
            self.families.clear();
        }
        let size = (request.devices, request.milli);
        let family = *self.sizes.entry(size).or_insert_with(|| {
            self.families.push(Family::new(size));
            self.families.len() - 1
        });
        self.numbers.insert(request.clone(), self.classes.len());
        self.classes.push(Class {
            family,
            able: Vec::new(),
        });
        self.classes.len() - 1
    }
}

impl Default for Packer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
