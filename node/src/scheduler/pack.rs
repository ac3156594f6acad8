//! Packing: where a request goes so that the pool loses least for those that come after it.
//!
//! The scheduler asks it for leases, `holdfast replay` for recorded requests, `holdfast bench scheduler` for speed: all by
//! the same code. The one rule: the same nodes and requests in the same order give the same grants on every machine, and
//! a request that fits somewhere is placed.
//!
//! Nodes are kept by their state (kind, CPU left, what is free on each device), so that a thousand equal nodes are looked
//! at once. Each class of equal requests keeps a heap of states by cost; it is brought up to date when the class is asked
//! for, from the states that have come to life since. Memory is checked node by node. Of equal costs, the fuller node
//! wins, then the lower number.

mod band;
pub mod knobs;
pub mod mix;
mod pool;
pub mod price;
mod quote;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use self::band::BANDS;
use self::knobs::{KNOBS, Knobs};
use self::mix::Mix;
use self::pool::{Pool, StateName};
use self::price::Prices;
use self::quote::Quote;

/// A whole device, in thousandths.
pub const WHOLE: u16 = 1000;

/// Classes of requests whose heaps are kept; past it all are made anew when they are asked for.
const CLASSES_MAX: usize = 4096;

/// A class has no heap if more requests came between two of its own than its living states by this.
const SELDOM: u64 = 4;

/// A heap with so many entries more than four for each state is made anew.
const HEAP_MIN: usize = 64;

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

/// A state in a class's heap: cost, fullness, its first node, and which.
type Entry = Reverse<(i64, u16, u32, StateName)>;

/// The best so far: cost, fullness, node.
type Best = (i64, u16, u32);

#[derive(Debug, Clone, Default)]
struct Class {
    heap: BinaryHeap<Entry>,
    /// How far each band was read, and by which prices.
    read: [u64; BANDS],
    epoch: u32,
    /// By kind: groups that can serve it.
    able: Vec<Option<u64>>,
    /// When it was asked for last, in requests seen.
    asked: u64,
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
        let found = match self.catch_up(number, request) {
            true => self.search(number, request, may),
            false => self.scan(number, request, may),
        };
        found.map(|(_, _, node)| node)
    }

    /// Searches the heap of a class from its top.
    fn search(&mut self, number: usize, request: &Request, may: &dyn Fn(u32) -> bool) -> Option<Best> {
        let heap = &mut self.classes[number].heap;
        let mut kept = Vec::new();
        let mut found: Option<Best> = None;
        while let Some(Reverse((cost, fullness, first, name))) = heap.peek().copied() {
            if found.is_some_and(|best| best < (cost, fullness, first)) {
                break;
            }
            heap.pop();
            let Some(glance) = self.pool.glance(name) else { continue };
            if glance.first != first {
                // Nodes have left or come: it stands elsewhere now, or stands there already.
                if glance.first > first {
                    heap.push(Reverse((cost, fullness, glance.first, name)));
                }
                continue;
            }
            kept.push(Reverse((cost, fullness, first, name)));
            if let Some(node) = self.pool.first(name, request.memory_mib, may) {
                let best = (cost, fullness, node);
                found = Some(found.map_or(best, |before| before.min(best)));
            }
        }
        heap.extend(kept);
        found
    }

    /// Looks over all states, for a class that comes so seldom that its heap would be made anew each time.
    fn scan(&mut self, number: usize, request: &Request, may: &dyn Fn(u32) -> bool) -> Option<Best> {
        let able = &self.classes[number].able;
        let mut found: Option<Best> = None;
        for band in first_band(request)..BANDS {
            for at in 0..self.pool.band(band).living.len() {
                let name = self.pool.band(band).living[at];
                let most = found.map_or(i64::MAX, |best| best.0);
                let prices = (&self.prices, self.epoch);
                let Some(quote) = self.pool.quote(name, (request, able), prices, most) else {
                    continue;
                };
                let Some(glance) = self.pool.glance(name) else { continue };
                let least = (quote.cost, glance.fullness(self.knobs.fullness_parts), glance.first);
                if found.is_some_and(|best| best < least) {
                    continue;
                }
                if let Some(node) = self.pool.first(name, request.memory_mib, may) {
                    let best = (least.0, least.1, node);
                    found = Some(found.map_or(best, |before| before.min(best)));
                }
            }
        }
        found
    }

    /// Takes what a request asks for from a node on which it fits.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn take(&mut self, node: u32, request: &Request) -> Grant {
        let quote = self.quote(node, request).expect("the request fits");
        self.pool.take(node, request, quote, &self.prices)
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
        }
        self.numbers.insert(request.clone(), self.classes.len());
        self.classes.push(Class::default());
        self.classes.len() - 1
    }

    /// Brings a class's heap up to date with what was told of states since it was asked for last; false when it was
    /// asked for so long ago that it is not worth it.
    fn catch_up(&mut self, number: usize, request: &Request) -> bool {
        let class = &mut self.classes[number];
        for kind in &self.pool.kinds[class.able.len()..] {
            class.able.push(kind.groups_for(request));
        }
        let bands = first_band(request)..BANDS;
        let living: usize = bands.clone().map(|band| self.pool.band(band).living.len()).sum();
        let told: Option<u64> = bands
            .clone()
            .map(|band| {
                self.pool
                    .band(band)
                    .told_since(class.read[band])
                    .map(|told| told.len() as u64)
            })
            .sum();
        let fresh = told.is_some_and(|told| told <= living as u64);
        let seldom = !fresh && self.seen.saturating_sub(class.asked) > 1 + living as u64 / SELDOM;
        class.asked = self.seen;
        if seldom {
            return false;
        }
        let goes_on = fresh && class.epoch == self.epoch && class.heap.len() <= HEAP_MIN + 4 * living;
        let mut names: Vec<StateName> = Vec::new();
        if !goes_on {
            class.heap.clear();
        }
        for band in bands {
            let (read, band) = (&mut class.read[band], self.pool.band(band));
            names.extend_from_slice(match goes_on {
                true => band.told_since(*read).unwrap_or_default(),
                false => &band.living,
            });
            *read = band.log_end();
        }
        class.epoch = self.epoch;
        let (pool, prices, epoch, parts) = (&mut self.pool, &self.prices, self.epoch, self.knobs.fullness_parts);
        let able = &class.able;
        class.heap.extend(names.into_iter().filter_map(|name| {
            let cost = pool.quote(name, (request, able), (prices, epoch), i64::MAX)?.cost;
            let glance = pool.glance(name)?;
            Some(Reverse((cost, glance.fullness(parts), glance.first, name)))
        }));
        true
    }
}

/// The first band in which a request may fit.
fn first_band(request: &Request) -> usize {
    match request.devices {
        0 => 0,
        devices => band::of_request(devices, request.milli),
    }
}

impl Default for Packer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
