//! Families: requests for as many devices with as much of each share one order of states, whatever else they ask for.
//!
//! The packer asks a family where one of its requests costs least. States stand in it by what the least request of the
//! family costs there, one without CPU, in one heap for each kind of node: a request goes from the cheapest on, works out
//! what it costs itself, and stops where even the bound is dearer. The one rule: a bound is never above the cost of any
//! request of the family, so what is found is what a look at all states finds.
//!
//! Rare classes are why: each change of a node is taken in once for each family, and not for each of hundreds of classes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::band::{self, BANDS};
use super::pool::{Pool, StateName};
use super::price::Prices;
use super::{Best, Request};

/// A heap with so many entries more than four for each state is made anew.
const HEAP_MIN: usize = 64;

/// A family looks at all states without heaps if more requests came between two of its own than its living states by this.
const SELDOM: u64 = 4;

/// A state in a heap: bound of the cost, fullness, its first node, and which.
type Entry = Reverse<(i64, u16, u32, StateName)>;

/// The requests of one size.
#[derive(Debug, Clone)]
pub(super) struct Family {
    /// The least of them: it asks for nothing beside.
    least: Request,
    /// By kind of node.
    heaps: Vec<BinaryHeap<Entry>>,
    /// By kind of node: groups that can serve the least of them.
    able: Vec<Option<u64>>,
    entries: usize,
    /// How far each band was read, and by which prices.
    read: [u64; BANDS],
    epoch: u32,
    /// When it was asked last, in requests seen.
    asked: u64,
    /// Room for what a search takes out and puts back, and for what was told.
    looked_at: Vec<Entry>,
    names: Vec<StateName>,
}

/// What a family is found by: devices, and milli of each.
pub(super) type Size = (u16, u16);

/// By what is looked: prices and their epoch, parts of fullness, and requests seen.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) prices: &'a Prices,
    pub(super) epoch: u32,
    pub(super) parts: u16,
    pub(super) seen: u64,
}

impl Family {
    pub(super) fn new(size: Size) -> Self {
        let (devices, milli) = size;
        Self {
            least: Request::of(devices, milli, 0, 0),
            heaps: Vec::new(),
            able: Vec::new(),
            entries: 0,
            read: [0; BANDS],
            epoch: 0,
            asked: 0,
            looked_at: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Where a request of the family costs least: by kind, `able` says which groups can serve it.
    pub(super) fn find(
        &mut self,
        pool: &mut Pool,
        (request, able): (&Request, &[Option<u64>]),
        look: Look<'_>,
        may: &dyn Fn(u32) -> bool,
    ) -> Option<Best> {
        if !self.catch_up(pool, look) {
            return scan(pool, (request, able), look, may);
        }
        let mut order: Vec<(Entry, usize)> = Vec::with_capacity(self.heaps.len());
        for (kind, heap) in self.heaps.iter().enumerate() {
            if able.get(kind).is_some_and(Option::is_some) {
                order.extend(heap.peek().map(|top| (*top, kind)));
            }
        }
        order.sort_unstable_by(|a, b| b.cmp(a));
        let mut found = None;
        for (Reverse((bound, fullness, first, _)), kind) in order {
            if found.is_some_and(|best| best < (bound, fullness, first)) {
                break;
            }
            found = self.search(pool, kind, (request, able), look, (may, found));
        }
        found
    }

    /// Searches the heap of one kind from its top for something better than what was found.
    fn search(
        &mut self,
        pool: &mut Pool,
        kind: usize,
        asked: (&Request, &[Option<u64>]),
        look: Look<'_>,
        (may, mut found): (&dyn Fn(u32) -> bool, Option<Best>),
    ) -> Option<Best> {
        let heap = &mut self.heaps[kind];
        let before = heap.len();
        while let Some(Reverse((bound, fullness, first, name))) = heap.peek().copied() {
            if found.is_some_and(|best| best < (bound, fullness, first)) {
                break;
            }
            heap.pop();
            let Some(glance) = pool.glance(name) else { continue };
            if glance.first != first {
                // Nodes have left or come: it stands elsewhere now, or stands there already.
                if glance.first > first {
                    heap.push(Reverse((bound, fullness, glance.first, name)));
                }
                continue;
            }
            self.looked_at.push(Reverse((bound, fullness, first, name)));
            let most = found.map_or(i64::MAX, |best| best.0);
            let Some(quote) = pool.quote(name, asked, (look.prices, look.epoch), most) else {
                continue;
            };
            if found.is_some_and(|best| best < (quote.cost, fullness, first)) {
                continue;
            }
            if let Some(node) = pool.first(name, asked.0.memory_mib, may) {
                let best = (quote.cost, fullness, node);
                found = Some(found.map_or(best, |before| before.min(best)));
            }
        }
        heap.extend(self.looked_at.drain(..));
        self.entries -= before - heap.len();
        found
    }

    /// Takes in what was told of states since it was asked last; false when that is so long ago that it is not worth it.
    fn catch_up(&mut self, pool: &mut Pool, look: Look<'_>) -> bool {
        let bands = first_band(&self.least)..BANDS;
        let living: usize = bands.clone().map(|band| pool.band(band).living.len()).sum();
        let told = |band: usize| {
            pool.band(band)
                .told_since(self.read[band])
                .map(|told| told.len() as u64)
        };
        let told: Option<u64> = bands.clone().map(told).sum();
        let fresh = told.is_some_and(|told| told <= living as u64);
        let seldom = !fresh && look.seen.saturating_sub(self.asked) > 1 + living as u64 / SELDOM;
        self.asked = look.seen;
        if seldom {
            return false;
        }
        let goes_on = fresh && self.epoch == look.epoch && self.entries <= HEAP_MIN + 4 * living;
        if !goes_on {
            self.heaps.iter_mut().for_each(BinaryHeap::clear);
            self.entries = 0;
        }
        self.heaps.resize_with(pool.kinds.len(), BinaryHeap::new);
        for kind in &pool.kinds[self.able.len()..] {
            self.able.push(kind.groups_for(&self.least));
        }
        self.epoch = look.epoch;
        let mut names = std::mem::take(&mut self.names);
        for band in bands {
            let (read, band) = (&mut self.read[band], pool.band(band));
            names.extend_from_slice(match goes_on {
                true => band.told_since(*read).unwrap_or_default(),
                false => &band.living,
            });
            *read = band.log_end();
        }
        names.drain(..).for_each(|name| self.take_in(pool, name, look));
        self.names = names;
        true
    }

    fn take_in(&mut self, pool: &mut Pool, name: StateName, look: Look<'_>) {
        let asked = (&self.least, &self.able[..]);
        let Some(quote) = pool.quote(name, asked, (look.prices, look.epoch), i64::MAX) else {
            return;
        };
        let Some(glance) = pool.glance(name) else { return };
        let entry = Reverse((quote.cost, glance.fullness(look.parts), glance.first, name));
        self.heaps[glance.kind as usize].push(entry);
        self.entries += 1;
    }

    /// Entries of all heaps.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heaps.iter().map(BinaryHeap::len).sum()
    }
}

/// Looks over all states, for a family that comes so seldom that its heaps would be made anew each time.
fn scan(pool: &mut Pool, asked: (&Request, &[Option<u64>]), look: Look<'_>, may: &dyn Fn(u32) -> bool) -> Option<Best> {
    let mut found: Option<Best> = None;
    for band in first_band(asked.0)..BANDS {
        for at in 0..pool.band(band).living.len() {
            let name = pool.band(band).living[at];
            let most = found.map_or(i64::MAX, |best| best.0);
            let Some(quote) = pool.quote(name, asked, (look.prices, look.epoch), most) else {
                continue;
            };
            let Some(glance) = pool.glance(name) else { continue };
            let least = (quote.cost, glance.fullness(look.parts), glance.first);
            if found.is_some_and(|best| best < least) {
                continue;
            }
            if let Some(node) = pool.first(name, asked.0.memory_mib, may) {
                let best = (least.0, least.1, node);
                found = Some(found.map_or(best, |before| before.min(best)));
            }
        }
    }
    found
}

/// The first band in which a request may fit.
fn first_band(request: &Request) -> usize {
    match request.devices {
        0 => 0,
        devices => band::of_request(devices, request.milli),
    }
}
