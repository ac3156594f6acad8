//! A picture as the packer takes it: nodes, models and zones by number, and what is free on each node.
//!
//! The planner asks it on which one node a request for whole devices costs the pool least. The one rule: it only
//! proposes; what it cannot tell apart (more models, zones or islands than it has numbers for) it leaves to the planner.

use std::collections::BTreeMap;

use holdfast_proto::device::ModelName;
use holdfast_proto::id::{DeviceId, LeaseId, NodeId, ZoneId};
use holdfast_proto::lease::ResourceRequest;
use holdfast_proto::placement::Allocation;

use super::pack::knobs::LEASES;
use super::pack::mix::Mix;
use super::pack::{Group, Kind, Models, Packer, Request, WHOLE};
use super::picture::{DevicePicture, NodePicture, Picture, Takes};
use super::plan::Ask;

/// Bits of a set of models or zones.
const NUMBERS_MAX: usize = 128;
/// Groups of devices of one node that the packer tells apart.
const GROUPS_MAX: usize = 64;

/// The packer over a picture.
#[derive(Debug, Clone)]
pub struct Packing {
    packer: Packer,
    /// Nodes in the packer's order, which is that of their ids.
    nodes: Vec<NodeId>,
    models: Vec<ModelName>,
    zones: Vec<ZoneId>,
}

impl Packing {
    /// A packer over the nodes of a picture, which knows the mix of requests that have come.
    #[must_use]
    pub fn of(picture: &Picture, mix: &Mix) -> Self {
        let mut zones: Vec<ZoneId> = picture.nodes.values().map(|node| node.zone.clone()).collect();
        zones.sort();
        zones.dedup();
        let mut packing = Self {
            packer: Packer::with(LEASES, Some(mix.clone())),
            nodes: picture.nodes.keys().copied().collect(),
            models: picture.models(),
            zones,
        };
        for (number, node) in (0_u32..).zip(picture.nodes.values()) {
            packing.packer.add(packing.kind(node), 0, 0);
            packing.refresh(number, node);
        }
        packing.packer.reprice();
        packing
    }

    /// Takes in what a plan has granted.
    pub fn granted(&mut self, picture: &Picture, allocations: &[Allocation]) {
        for allocation in allocations {
            let number = self.nodes.binary_search(&allocation.node).ok();
            if let Some((number, node)) = number.zip(picture.nodes.get(&allocation.node)) {
                self.refresh(u32::try_from(number).unwrap_or(u32::MAX), node);
            }
        }
    }

    /// The one node on which so many devices of any of the models cost least, among those that may be taken.
    pub fn node_for(
        &mut self,
        ask: &Ask<'_>,
        devices: u32,
        models: &[ModelName],
        may: &dyn Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let request = self.request(ask, devices, models)?;
        let nodes = &self.nodes;
        let found = self.packer.find(&request, &|number| may(nodes[number as usize]))?;
        Some(self.nodes[found as usize])
    }

    /// The device of a node of which a part costs least; none when whole devices are asked for.
    pub fn part_of(
        &mut self,
        picture: &Picture,
        node: NodeId,
        ask: &Ask<'_>,
        models: &[ModelName],
    ) -> Option<DeviceId> {
        if ask.milli >= WHOLE {
            return None;
        }
        let request = self.request(ask, 1, models)?;
        let number = u32::try_from(self.nodes.binary_search(&node).ok()?).ok()?;
        let at = *self.packer.pick(number, &request)?.first()?;
        let node = picture.nodes.get(&node)?;
        self.in_order(node).get(usize::from(at)).map(|device| device.id)
    }

    fn request(&self, ask: &Ask<'_>, devices: u32, models: &[ModelName]) -> Option<Request> {
        let request = ask.request;
        Some(Request {
            devices: u16::try_from(devices).ok()?,
            milli: ask.milli,
            cpu_milli: request.cpu_milli_per_device.checked_mul(devices)?,
            memory_mib: request.memory_mib_per_device.checked_mul(devices)?,
            models: bits(&self.models, models)?,
            zones: match request.zones.as_slice() {
                [] => Models::ANY,
                zones => bits(&self.zones, zones)?,
            },
            last: true,
        })
    }

    fn kind(&self, node: &NodePicture) -> Kind {
        let zone = self.zones.iter().position(|zone| *zone == node.zone);
        let group = |((model, _), devices): ((u8, u16), usize)| Group {
            model,
            devices: u16::try_from(devices).unwrap_or(u16::MAX),
        };
        Kind {
            groups: self.groups(node).into_iter().map(group).collect(),
            // A zone without a number is in no set of zones, so nothing that names zones is placed there by the packer.
            zone: zone.and_then(|zone| u8::try_from(zone).ok()).unwrap_or(u8::MAX),
            last: false,
        }
    }

    /// Devices by model and island; one that cannot be told apart from others is not counted.
    fn groups(&self, node: &NodePicture) -> BTreeMap<(u8, u16), usize> {
        let mut groups = BTreeMap::new();
        for device in &node.devices {
            if let Some(model) = number(&self.models, &device.model) {
                *groups.entry((model, device.island)).or_default() += 1;
            }
        }
        while groups.len() > GROUPS_MAX {
            groups.pop_last();
        }
        groups
    }

    /// Devices of a node as the packer numbers them: group after group.
    fn in_order<'a>(&self, node: &'a NodePicture) -> Vec<&'a DevicePicture> {
        let mut devices = Vec::with_capacity(node.devices.len());
        for (model, island) in self.groups(node).into_keys() {
            let here =
                |device: &&DevicePicture| device.island == island && number(&self.models, &device.model) == Some(model);
            devices.extend(node.devices.iter().filter(here));
        }
        devices
    }

    /// Says what is free on a node now.
    fn refresh(&mut self, number_of_node: u32, node: &NodePicture) {
        let open = node.takes == Takes::Work;
        // No lease ever has this id, so nothing that is held counts as its own.
        let nobody = LeaseId {
            cell: u32::MAX,
            index: u64::MAX,
        };
        let left = |device: &DevicePicture| if open { device.left(nobody) } else { 0 };
        let free = self.in_order(node).into_iter().map(left).collect();
        let left = node.rest();
        self.packer.set(number_of_node, left.cpu_milli, left.memory_mib, free);
    }
}

fn number<T: Ord>(all: &[T], one: &T) -> Option<u8> {
    let at = all.binary_search(one).ok().filter(|at| *at < NUMBERS_MAX)?;
    u8::try_from(at).ok()
}

/// The set of those that are there; none when none is.
fn bits<T: Ord>(all: &[T], some: &[T]) -> Option<Models> {
    let set = some
        .iter()
        .filter_map(|one| number(all, one))
        .fold(0, |set, at| set | 1_u128 << at);
    (set != 0).then_some(Models(set))
}

/// A request of a lease as the mix counts it: what it may be granted on one node.
#[must_use]
pub fn counted(request: &ResourceRequest, milli: u16) -> Request {
    let devices = request.devices_min;
    Request::of(
        u16::try_from(devices).unwrap_or(u16::MAX),
        milli,
        request.cpu_milli_per_device.saturating_mul(devices),
        request.memory_mib_per_device.saturating_mul(devices),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scheduler::picture::{Hold, Machine};
    use holdfast_proto::lease::Spread;

    fn node(cpu_milli: u32, devices: u8) -> NodePicture {
        let device = |number| DevicePicture {
            id: DeviceId([number; 16]),
            model: "a100".parse().unwrap(),
            island: 0,
            hold: Hold::Free,
        };
        NodePicture {
            label: "n".parse().unwrap(),
            zone: "a".parse().unwrap(),
            votes: false,
            takes: Takes::Work,
            cpu_milli,
            memory_mib: 1_000_000,
            devices: (0..devices).map(device).collect(),
            grants: BTreeMap::<_, Machine>::new(),
        }
    }

    #[test]
    fn cpu_that_other_leases_will_need_beside_devices_is_not_stranded() {
        let picture = Picture {
            nodes: [(NodeId(1), node(32_000, 4)), (NodeId(2), node(256_000, 4))].into(),
        };
        let request = |devices: u32, cpu_milli_per_device| ResourceRequest {
            devices_min: devices,
            devices_max: devices,
            models: Vec::new(),
            same_model: false,
            single_node: true,
            cpu_milli_per_device,
            memory_mib_per_device: 0,
            zones: Vec::new(),
            spread: Spread::Pack,
        };
        let mut mix = Mix::new();
        (0..20).for_each(|_| mix.learn(&counted(&request(1, 8_000), WHOLE), 1_000));
        let mut packing = Packing::of(&picture, &mix);
        let model = ["a100".parse().unwrap()];
        // One device with much CPU would leave three on node 1 without; node 2 has CPU to spare.
        let node_for = |packing: &mut Packing, request: &ResourceRequest, milli, model: &[ModelName]| {
            let ask = Ask {
                lease: LeaseId::from_index(7),
                request,
                models: model.to_vec(),
                devices_max: request.devices_max,
                milli,
                failed_on: &[],
                prefer: None,
            };
            let node = packing.node_for(&ask, request.devices_max, model, &|_| true)?;
            Some((node, packing.part_of(&picture, node, &ask, model)))
        };
        let greedy = node_for(&mut packing, &request(1, 24_000), WHOLE, &model);
        assert_eq!(greedy, Some((NodeId(2), None)));
        let usual = node_for(&mut packing, &request(1, 8_000), WHOLE, &model);
        assert_eq!(usual, Some((NodeId(1), None)));
        let part = node_for(&mut packing, &request(1, 8_000), 400, &model);
        assert_eq!(part, Some((NodeId(1), Some(DeviceId([0; 16])))));
        assert_eq!(node_for(&mut packing, &request(5, 0), WHOLE, &model), None);
        assert_eq!(
            node_for(&mut packing, &request(1, 0), WHOLE, &["h100".parse().unwrap()]),
            None
        );
    }
}
