//! What the planner sees: nodes, their devices, and who holds them, as plain values.
//!
//! The scheduler takes a picture of the replicated state, plans on it, and enters each plan into it, so that a batch of
//! plans never grants one device twice. The one rule: free is counted device by device, never computed as a total less
//! what is used.

use std::collections::BTreeMap;

use holdfast_proto::device::{Grade, ModelName};
use holdfast_proto::id::{DeviceId, LeaseId, Name, NodeId, ZoneId};
use holdfast_proto::lease::ResourceRequest;
use holdfast_proto::node::NodeStatus;
use holdfast_proto::placement::Allocation;
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::Node;

use super::pack::WHOLE;

/// The cluster, as far as it matters for placing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Picture {
    /// Nodes that have told of devices, by id.
    pub nodes: BTreeMap<NodeId, NodePicture>,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePicture {
    /// Label for people.
    pub label: Name,
    /// Failure domain.
    pub zone: ZoneId,
    /// It votes, so it gets tenants' work last.
    pub votes: bool,
    /// Whether it takes new work.
    pub takes: Takes,
    /// CPU for tenants, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory for tenants, in MiB.
    pub memory_mib: u32,
    /// Devices, ordered by id.
    pub devices: Vec<DevicePicture>,
    /// What leases hold of CPU and memory.
    pub grants: BTreeMap<LeaseId, Machine>,
}

/// Whether a node takes new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Takes {
    /// It does.
    Work,
    /// It cannot be heard.
    Unheard,
    /// An operator keeps work away from it.
    Cordoned,
    /// Its present daemon start has not told what it holds.
    Untold,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePicture {
    /// UUID.
    pub id: DeviceId,
    /// Model.
    pub model: ModelName,
    /// Devices of one island have full mutual bandwidth.
    pub island: u16,
    /// Who has it.
    pub hold: Hold,
}

/// Who has a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// Nobody.
    Free,
    /// This lease has all of it.
    By(LeaseId),
    /// These leases have parts of it, in thousandths.
    Parts(Vec<(LeaseId, u16)>),
    /// Nobody, but it may not be granted.
    Out,
}

/// CPU and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPU, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory, in MiB.
    pub memory_mib: u32,
}

impl Picture {
    /// Takes a picture of the state.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let nodes = state.present_nodes().filter(|node| !node.devices.is_empty());
        Self {
            nodes: nodes
                .map(|node| (node.spec.node, NodePicture::of(state, node)))
                .collect(),
        }
    }

    /// Enters a plan: what it grants, `milli` of each device, is held from now on. Returns what was free of it, by model, as
    /// [`Picture::free_by_model`] counts.
    pub fn grant(&mut self, lease: LeaseId, milli: u16, allocations: &[Allocation]) -> BTreeMap<ModelName, u32> {
        let mut taken: BTreeMap<ModelName, u32> = BTreeMap::new();
        for allocation in allocations {
            let Some(node) = self.nodes.get_mut(&allocation.node) else {
                continue;
            };
            let open = node.takes == Takes::Work;
            for device in node
                .devices
                .iter_mut()
                .filter(|device| allocation.devices.contains(&device.id))
            {
                if open && device.hold == Hold::Free {
                    *taken.entry(device.model.clone()).or_default() += 1;
                }
                device.give(lease, milli);
            }
            // Two epochs of one lease never run at once, so the larger one counts.
            let grant = node.grants.entry(lease).or_default();
            grant.cpu_milli = grant.cpu_milli.max(allocation.cpu_milli);
            grant.memory_mib = grant.memory_mib.max(allocation.memory_mib);
        }
        taken
    }

    /// Takes a lease out: what it holds is free.
    pub fn end(&mut self, lease: LeaseId) {
        for node in self.nodes.values_mut().filter(|node| node.grants.contains_key(&lease)) {
            node.grants.remove(&lease);
            node.devices.iter_mut().for_each(|device| device.take_back(lease));
        }
    }

    /// Devices that nobody holds on nodes that take work, by model.
    #[must_use]
    pub fn free_by_model(&self) -> BTreeMap<ModelName, u32> {
        let mut free = BTreeMap::new();
        let open = self.nodes.values().filter(|node| node.takes == Takes::Work);
        for device in open
            .flat_map(|node| &node.devices)
            .filter(|device| device.hold == Hold::Free)
        {
            // A look before the insert, so that a name is copied once for each model and not for each device.
            match free.get_mut(&device.model) {
                Some(count) => *count += 1,
                None => drop(free.insert(device.model.clone(), 1_u32)),
            }
        }
        free
    }

    /// The models that the cluster has, ordered.
    #[must_use]
    pub fn models(&self) -> Vec<ModelName> {
        let devices = self.nodes.values().flat_map(|node| &node.devices);
        let mut models: Vec<ModelName> = devices.map(|device| device.model.clone()).collect();
        models.sort();
        models.dedup();
        models
    }
}

impl NodePicture {
    fn of(state: &State, node: &Node) -> Self {
        let id = node.spec.node;
        let device = |slot: &std::sync::Arc<holdfast_storage::machine::state::Slot>| DevicePicture {
            id: slot.device.id,
            model: slot.device.model.clone(),
            island: slot.device.island,
            hold: match (slot.holder, slot.grade, state.sharers(slot.device.id)) {
                (_, Grade::Suspect | Grade::Dirty | Grade::Quarantined | Grade::Missing, _) => Hold::Out,
                (Some(holder), Grade::Healthy, _) => Hold::By(holder.lease),
                (None, Grade::Healthy, []) => Hold::Free,
                (None, Grade::Healthy, parts) => {
                    Hold::Parts(parts.iter().map(|part| (part.lease, part.milli)).collect())
                }
            },
        };
        let mut grants: BTreeMap<LeaseId, Machine> = BTreeMap::new();
        for lease in state.leases_on(id) {
            let placements = state
                .leases
                .get(&lease)
                .into_iter()
                .flat_map(|lease| lease.placements());
            for member in placements
                .filter_map(|placement| placement.member(id))
                .filter(|member| !member.released)
            {
                let grant = grants.entry(lease).or_default();
                grant.cpu_milli = grant.cpu_milli.max(member.allocation.cpu_milli);
                grant.memory_mib = grant.memory_mib.max(member.allocation.memory_mib);
            }
        }
        Self {
            label: node.spec.label.clone(),
            zone: node.spec.zone.clone(),
            votes: state.cluster.voters.contains(&id),
            takes: takes(node),
            cpu_milli: node.inventory.as_ref().map_or(0, |inventory| inventory.cpu_milli),
            memory_mib: node.inventory.as_ref().map_or(0, |inventory| inventory.memory_mib),
            devices: state.devices_of(id).map(device).collect(),
            grants,
        }
    }

    /// CPU and memory that nobody holds.
    #[must_use]
    pub fn rest(&self) -> Machine {
        self.less(self.grants.values())
    }

    /// CPU and memory that nobody but `lease` holds.
    #[must_use]
    pub fn left(&self, lease: LeaseId) -> Machine {
        let others = self.grants.iter().filter(|(holder, _)| **holder != lease);
        self.less(others.map(|(_, grant)| grant))
    }

    fn less<'a>(&self, grants: impl Iterator<Item = &'a Machine>) -> Machine {
        let mut left = Machine {
            cpu_milli: self.cpu_milli,
            memory_mib: self.memory_mib,
        };
        for grant in grants {
            left.cpu_milli = left.cpu_milli.saturating_sub(grant.cpu_milli);
            left.memory_mib = left.memory_mib.saturating_sub(grant.memory_mib);
        }
        left
    }

    /// Devices of which `milli` may be granted to `lease`, of any of `models`: what an earlier epoch of it holds, too.
    pub fn free_for<'a>(
        &'a self,
        lease: LeaseId,
        milli: u16,
        models: &'a [ModelName],
    ) -> impl Iterator<Item = &'a DevicePicture> {
        self.devices
            .iter()
            .filter(move |device| device.left(lease) >= milli)
            .filter(|device| models.contains(&device.model))
    }
}

impl DevicePicture {
    /// How much of it `lease` could have, in thousandths: what others do not.
    #[must_use]
    pub fn left(&self, lease: LeaseId) -> u16 {
        let others = |sum: u16, (holder, milli): &(LeaseId, u16)| match *holder == lease {
            true => sum,
            false => sum.saturating_add(*milli),
        };
        match &self.hold {
            Hold::Free => WHOLE,
            Hold::By(holder) if *holder == lease => WHOLE,
            Hold::By(_) | Hold::Out => 0,
            Hold::Parts(parts) => WHOLE.saturating_sub(parts.iter().fold(0, others)),
        }
    }

    fn give(&mut self, lease: LeaseId, milli: u16) {
        if milli >= WHOLE {
            self.hold = Hold::By(lease);
            return;
        }
        let mut parts = match std::mem::replace(&mut self.hold, Hold::Free) {
            Hold::Parts(parts) => parts,
            _ => Vec::new(),
        };
        parts.retain(|(holder, _)| *holder != lease);
        parts.push((lease, milli));
        self.hold = Hold::Parts(parts);
    }

    fn take_back(&mut self, lease: LeaseId) {
        if let Hold::Parts(parts) = &mut self.hold {
            parts.retain(|(holder, _)| *holder != lease);
        }
        if self.hold == Hold::By(lease) || self.hold == Hold::Parts(Vec::new()) {
            self.hold = Hold::Free;
        }
    }
}

impl Machine {
    /// For how many devices of this request CPU and memory suffice.
    #[must_use]
    pub fn carries(&self, request: &ResourceRequest) -> u32 {
        let cpu = self
            .cpu_milli
            .checked_div(request.cpu_milli_per_device)
            .unwrap_or(u32::MAX);
        cpu.min(
            self.memory_mib
                .checked_div(request.memory_mib_per_device)
                .unwrap_or(u32::MAX),
        )
    }
}

fn takes(node: &Node) -> Takes {
    if node.status != NodeStatus::Ready {
        Takes::Unheard
    } else if node.cordoned.is_some() {
        Takes::Cordoned
    } else if !node.inventory_known() {
        Takes::Untold
    } else {
        Takes::Work
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_a_grant_takes_is_what_is_free_less() {
        let device = |number: u8| DevicePicture {
            id: DeviceId([number; 16]),
            model: ["a100", "h100"][usize::from(number % 2)].parse().unwrap(),
            island: 0,
            hold: if number == 3 { Hold::Out } else { Hold::Free },
        };
        let node = |takes| NodePicture {
            label: "n".parse().unwrap(),
            zone: "a".parse().unwrap(),
            votes: false,
            takes,
            cpu_milli: 8_000,
            memory_mib: 8_000,
            devices: (0..6).map(device).collect(),
            grants: BTreeMap::new(),
        };
        let nodes = [(NodeId(1), node(Takes::Work)), (NodeId(2), node(Takes::Cordoned))];
        let mut picture = Picture { nodes: nodes.into() };
        let mut free = picture.free_by_model();
        for (lease, on, milli, devices) in [
            (1, 1, WHOLE, vec![0, 1]),
            (2, 1, WHOLE, vec![2]),
            (2, 1, WHOLE, vec![2, 4]),
            (3, 2, WHOLE, vec![0]),
            (4, 1, 400, vec![5]),
            (5, 1, 600, vec![5]),
        ] {
            let grant = Allocation {
                node: NodeId(on),
                rank: 0,
                devices: devices.into_iter().map(|number| DeviceId([number; 16])).collect(),
                cpu_milli: 1_000,
                memory_mib: 1_000,
            };
            for (model, taken) in picture.grant(LeaseId::from_index(lease), milli, &[grant]) {
                *free.get_mut(&model).unwrap() -= taken;
            }
            free.retain(|_, count| *count > 0);
            assert_eq!(free, picture.free_by_model());
        }
        picture.end(LeaseId::from_index(2));
        assert_eq!(picture.free_by_model().values().sum::<u32>(), 2);
        let shared = &picture.nodes[&NodeId(1)].devices[5];
        let left = |lease| shared.left(LeaseId::from_index(lease));
        assert_eq!((left(9), left(4), left(5)), (0, 400, 600));
        picture.end(LeaseId::from_index(4));
        assert_eq!(picture.nodes[&NodeId(1)].devices[5].left(LeaseId::from_index(9)), 400);
        picture.end(LeaseId::from_index(5));
        assert_eq!(picture.free_by_model().values().sum::<u32>(), 3);
    }
}
