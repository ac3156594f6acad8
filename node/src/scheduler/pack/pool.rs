//! The pool: nodes, and the states that they are in, each state once with all nodes that are in it.
//!
//! The packer moves nodes between states and reads which states are new. The one rule: a state lives as long as a node
//! is in it; what is remembered of states is bounded by the number of nodes.

use std::collections::{BTreeSet, HashMap};

use super::band::{self, BANDS, Band};
use super::price::Prices;
use super::quote::{Glance, Quote};
use super::{Grant, Group, Kind, Request, WHOLE};

/// What all nodes of one state have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    kind: u32,
    cpu_milli: u32,
    /// Free milli of each device: group after group, the freest first.
    free: Box<[u16]>,
}

/// A state, and the nodes in it.
#[derive(Debug, Clone)]
struct State {
    key: Key,
    nodes: BTreeSet<u32>,
    band: usize,
    /// Its place among the living of its band.
    place: usize,
}

/// A node.
#[derive(Debug, Clone)]
struct Node {
    kind: u32,
    cpu_milli: u32,
    memory_mib: u32,
    /// Free milli of each device, group after group.
    free: Vec<u16>,
    /// Its state, while it takes work.
    state: Option<u32>,
}

/// A live state, named so that a later state in the same slot is not taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StateName {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// Nodes by state.
#[derive(Debug, Clone, Default)]
pub(super) struct Pool {
    pub(super) kinds: Vec<Kind>,
    nodes: Vec<Node>,
    states: Vec<State>,
    /// By slot, like the states.
    glances: Vec<Glance>,
    unused: Vec<u32>,
    slots: HashMap<Key, u32>,
    bands: [Band; BANDS],
    /// Milli of all devices by model.
    pub(super) capacity: Vec<u64>,
}

impl Pool {
    pub(super) fn kind(&mut self, kind: Kind) -> u32 {
        let at = self.kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        });
        u32::try_from(at).expect("there are fewer kinds than nodes, which u32 numbers")
    }

    pub(super) fn add(&mut self, kind: Kind, cpu_milli: u32, memory_mib: u32, free: Vec<u16>) -> u32 {
        assert_eq!(kind.devices(), free.len(), "each device has something free or nothing");
        for group in &kind.groups {
            let model = group.model as usize;
            if self.capacity.len() <= model {
                self.capacity.resize(model + 1, 0);
            }
            self.capacity[model] += u64::from(group.devices) * u64::from(WHOLE);
        }
        let kind = self.kind(kind);
        let id = u32::try_from(self.nodes.len()).expect("a pool has fewer than four billion nodes");
        self.nodes.push(Node {
            kind,
            cpu_milli,
            memory_mib,
            free,
            state: None,
        });
        self.enter(id);
        id
    }

    /// Replaces what is free on a node.
    pub(super) fn set(&mut self, id: u32, cpu_milli: u32, memory_mib: u32, free: Vec<u16>) {
        self.leave(id);
        let node = &mut self.nodes[id as usize];
        assert_eq!(node.free.len(), free.len(), "a node keeps its devices");
        (node.cpu_milli, node.memory_mib, node.free) = (cpu_milli, memory_mib, free);
        self.enter(id);
    }

    pub(super) fn len(&self) -> usize {
        self.states.len() - self.unused.len()
    }

    pub(super) fn band(&self, band: usize) -> &Band {
        &self.bands[band]
    }

    /// What is to be seen of a state, if it lives.
    pub(super) fn glance(&self, name: StateName) -> Option<&Glance> {
        let glance = &self.glances[name.slot as usize];
        (glance.generation == name.generation && glance.alive).then_some(glance)
    }

    pub(super) fn state_of(&self, node: u32) -> Option<StateName> {
        let slot = self.nodes[node as usize].state?;
        Some(self.name(slot))
    }

    /// The first node in a state that has the memory and that may be taken.
    pub(super) fn first(&self, name: StateName, memory_mib: u32, may: &dyn Fn(u32) -> bool) -> Option<u32> {
        let nodes = &self.states[name.slot as usize].nodes;
        nodes
            .iter()
            .copied()
            .find(|node| self.nodes[*node as usize].memory_mib >= memory_mib && may(*node))
    }

    /// What it costs to place a request on a node in a state, at the least; `None` when it does not fit, or costs more
    /// than `most`.
    pub(super) fn quote(
        &mut self,
        name: StateName,
        (request, able): (&Request, &[Option<u64>]),
        (prices, epoch): (&Prices, u32),
        most: i64,
    ) -> Option<Quote> {
        let glance = &mut self.glances[name.slot as usize];
        if glance.generation != name.generation || !glance.alive || !glance.may_fit(request) {
            return None;
        }
        let able = able[glance.kind as usize]?;
        // Read only where it is needed: it lies far from the glance.
        let far: &[u16] = match glance.is_close() {
            true => &[],
            false => &self.states[name.slot as usize].key.free,
        };
        glance.value(far, prices, epoch);
        let groups = &self.kinds[glance.kind as usize].groups;
        glance.quote(far, (groups, able), request, prices, most)
    }

    /// Takes what a request asks for from a node.
    pub(super) fn take(&mut self, id: u32, request: &Request, quote: Quote, prices: &Prices) -> Grant {
        let grant = Grant {
            node: id,
            devices: self.pick(id, request, quote, prices),
            milli: request.milli,
            cpu_milli: request.cpu_milli,
            memory_mib: request.memory_mib,
        };
        self.change(&grant, false);
        grant
    }

    /// The devices that a request is given on a node.
    pub(super) fn pick(&self, id: u32, request: &Request, quote: Quote, prices: &Prices) -> Vec<u16> {
        let node = &self.nodes[id as usize];
        match request.devices {
            0 => Vec::new(),
            _ => self.kinds[node.kind as usize].pick(&node.free, request, quote, prices),
        }
    }

    /// Changes what is free on a node by a grant.
    pub(super) fn change(&mut self, grant: &Grant, back: bool) {
        self.leave(grant.node);
        let node = &mut self.nodes[grant.node as usize];
        let moved = |free: u32, by: u32| {
            if back {
                free.checked_add(by)
            } else {
                free.checked_sub(by)
            }
        };
        node.cpu_milli = moved(node.cpu_milli, grant.cpu_milli).expect("a grant takes what was free, once");
        node.memory_mib = moved(node.memory_mib, grant.memory_mib).expect("a grant takes what was free, once");
        for device in &grant.devices {
            let free = &mut node.free[*device as usize];
            let milli = moved(u32::from(*free), u32::from(grant.milli)).and_then(|free| u16::try_from(free).ok());
            *free = milli
                .filter(|milli| *milli <= WHOLE)
                .expect("a grant takes what was free, once");
        }
        self.enter(grant.node);
    }

    fn leave(&mut self, id: u32) {
        let Some(slot) = self.nodes[id as usize].state.take() else {
            return;
        };
        let state = &mut self.states[slot as usize];
        state.nodes.remove(&id);
        let glance = &mut self.glances[slot as usize];
        glance.first = state.nodes.first().copied().unwrap_or(u32::MAX);
        if state.nodes.is_empty() {
            self.slots.remove(&state.key);
            self.unused.push(slot);
            glance.alive = false;
            let (band, place) = (state.band, state.place);
            self.bands[band].living.swap_remove(place);
            if let Some(moved) = self.bands[band].living.get(place) {
                self.states[moved.slot as usize].place = place;
            }
        }
    }

    fn enter(&mut self, id: u32) {
        let node = &self.nodes[id as usize];
        let mut free: Box<[u16]> = node.free.as_slice().into();
        let mut rest = &mut free[..];
        for group in &self.kinds[node.kind as usize].groups {
            let (here, after) = rest.split_at_mut(group.devices as usize);
            here.sort_unstable_by(|a, b| b.cmp(a));
            rest = after;
        }
        let key = Key {
            kind: node.kind,
            cpu_milli: node.cpu_milli,
            free,
        };
        let slot = match self.slots.get(&key) {
            Some(slot) => *slot,
            None => self.bear(key),
        };
        if self.glances[slot as usize].first > id {
            self.glances[slot as usize].first = id;
            let name = self.name(slot);
            self.bands[self.states[slot as usize].band].tell(name);
        }
        self.states[slot as usize].nodes.insert(id);
        self.nodes[id as usize].state = Some(slot);
    }

    fn bear(&mut self, key: Key) -> u32 {
        let whole = key.free.iter().filter(|free| **free == WHOLE).count();
        let band = band::of_state(key.free.iter().copied().max().unwrap_or(0), whole);
        let mut glance = Glance::new(key.kind, key.cpu_milli, &key.free);
        let state = State {
            key: key.clone(),
            nodes: BTreeSet::new(),
            band,
            place: self.bands[band].living.len(),
        };
        let slot = match self.unused.pop() {
            Some(slot) => {
                let before = &mut self.glances[slot as usize];
                glance.generation = before.generation.wrapping_add(1);
                *before = glance;
                self.states[slot as usize] = state;
                slot
            }
            None => {
                self.states.push(state);
                self.glances.push(glance);
                u32::try_from(self.states.len() - 1).expect("there are no more states than nodes")
            }
        };
        self.slots.insert(key, slot);
        let name = self.name(slot);
        self.bands[band].living.push(name);
        slot
    }

    fn name(&self, slot: u32) -> StateName {
        StateName {
            slot,
            generation: self.glances[slot as usize].generation,
        }
    }
}

#[cfg(test)]
impl Pool {
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn memory_of(&self, node: u32) -> u32 {
        self.nodes[node as usize].memory_mib
    }

    pub(super) fn free_of(&self, node: u32) -> (u32, u32, Vec<u16>) {
        let node = &self.nodes[node as usize];
        (node.cpu_milli, node.memory_mib, node.free.clone())
    }

    pub(super) fn log_len(&self) -> usize {
        self.bands.iter().map(Band::log_len).max().unwrap_or(0)
    }
}

impl Kind {
    /// Devices of a node of this kind.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.groups.iter().map(|group| group.devices as usize).sum()
    }

    /// The groups that can serve a request, a bit each.
    pub(super) fn groups_for(&self, request: &Request) -> Option<u64> {
        let zone = request.zones == super::Models::ANY || request.zones.has(self.zone);
        if !zone || (self.last && !request.last) {
            return None;
        }
        let able = |(number, group): (u32, &Group)| u64::from(request.models.has(group.model)) << number.min(63);
        let groups = (0_u32..).zip(&self.groups).map(able).fold(0, |all, one| all | one);
        (groups != 0 || request.devices == 0).then_some(groups)
    }

    fn pick(&self, free: &[u16], request: &Request, quote: Quote, prices: &Prices) -> Vec<u16> {
        let start: usize = self.groups[..quote.group as usize]
            .iter()
            .map(|group| group.devices as usize)
            .sum();
        let group = start..start + self.groups[quote.group as usize].devices as usize;
        let mut fits: Vec<usize> = group.filter(|at| free[*at] >= request.milli).collect();
        match request.devices {
            1 => fits.retain(|at| free[*at] == quote.residual),
            _ => fits.sort_by_key(|at| prices.waste(free[*at] - request.milli) - prices.waste(free[*at])),
        }
        let mut picked: Vec<u16> = fits
            .into_iter()
            .take(request.devices as usize)
            .map(|at| at as u16)
            .collect();
        assert_eq!(
            picked.len(),
            request.devices as usize,
            "a quote counts only what is free"
        );
        picked.sort_unstable();
        picked
    }
}
