//! The planner: from a picture and one request to a whole placement, or to the reason why not.
//!
//! Pure: the same picture and request give the same plan on every replica and in every test. The scheduler calls it;
//! `decide` checks every rule again at the entry. The one rule: a gang is planned whole, or not at all.
//!
//! In this order: what the tenant prefers, zones and models; models in the order of the request, or by price; nodes that have not failed to launch this lease; nodes that do not
//! vote; the one node where the pool loses least, else as few nodes as will do, in one zone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::condition::Prefer;
use holdfast_proto::device::ModelName;
use holdfast_proto::id::{DeviceId, LeaseId, NodeId, ZoneId};
use holdfast_proto::lease::{ResourceRequest, Spread};
use holdfast_proto::placement::Allocation;

use super::gang::{Offer, Want, lay};
use super::pack::WHOLE;
use super::pack::mix::Mix;
use super::packing::Packing;
use super::picture::{DevicePicture, NodePicture, Picture, Takes};
use super::reason::{Reason, why};

/// One lease that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The lease: what an earlier epoch of it holds is free for it.
    pub lease: LeaseId,
    /// What it asks for.
    pub request: &'a ResourceRequest,
    /// The models that it may get, best first: those of the request, or all that have a price, cheapest first.
    pub models: Vec<ModelName>,
    /// Most devices that may be granted: the request's, or what the quota leaves.
    pub devices_max: u32,
    /// How much of each device it asks for, in thousandths.
    pub milli: u16,
    /// Nodes that failed to launch it since it last ran.
    pub failed_on: &'a [NodeId],
    /// What it prefers.
    pub prefer: Option<&'a Prefer>,
}

/// Plans one lease.
///
/// # Errors
/// The reason for which it must wait, for a person.
pub fn plan(picture: &Picture, ask: &Ask<'_>) -> Result<Vec<Allocation>, Reason> {
    let mut packing = Packing::of(picture, &Mix::new());
    find(picture, Some(&mut packing), ask).ok_or_else(|| why(picture, ask))
}

/// Looks for a whole placement: on the one node where it costs the pool least, if one holds it, else over several.
pub(super) fn find(picture: &Picture, mut packing: Option<&mut Packing>, ask: &Ask<'_>) -> Option<Vec<Allocation>> {
    let want = Want {
        least: ask.request.devices_min.max(1),
        most: ask.devices_max.max(ask.request.devices_min).max(1),
        single_node: ask.request.single_node,
        spread: ask.request.spread,
    };
    // What its earlier epoch holds is free for this lease alone, which the packer does not know.
    let holds = || picture.nodes.values().any(|node| node.grants.contains_key(&ask.lease));
    let together = want.single_node || want.spread == Spread::Pack || want.most == 1;
    if !together || want.least != want.most || holds() {
        packing = None;
    }
    let preferring;
    let ask = match ask.prefer {
        None => ask,
        Some(prefer) => {
            preferring = best_first(ask, prefer);
            &preferring
        }
    };
    let tiers = tiers(picture, ask);
    for (models, zones) in choices(picture, ask) {
        for tier in &tiers {
            let narrowed;
            let tier = match zones {
                0 => tier,
                least => {
                    narrowed = in_zones(tier, ask, least);
                    &narrowed
                }
            };
            let packed = packing.as_mut().and_then(|packing| {
                let may = |node: NodeId| tier.binary_search_by_key(&node, |(id, _)| **id).is_ok();
                packing.node_for(ask, want.most, models, &may)
            });
            if let Some(node) = packed {
                let mut allocations = allocations(picture, ask, models, &[(node, want.most)]);
                let part = packing
                    .as_mut()
                    .and_then(|packing| packing.part_of(picture, node, ask, models));
                if let (Some(part), Some(allocation)) = (part, allocations.first_mut()) {
                    allocation.devices = vec![part];
                }
                return Some(allocations);
            }
            let offers: Vec<Offer<'_>> = tier.iter().map(|(id, node)| offer(**id, node, ask, models)).collect();
            if let Some(shares) = lay(&offers, want) {
                return Some(allocations(picture, ask, models, &shares));
            }
        }
    }
    None
}

/// The same with the models that are preferred before the others.
fn best_first<'a>(ask: &Ask<'a>, prefer: &Prefer) -> Ask<'a> {
    let mut ask = ask.clone();
    ask.models.sort_by_key(|model| Reverse(prefer.of_model(model)));
    ask
}

/// Models and the least weight of zones to try, in the order of what is preferred: weights of model and zone add up, and
/// of a set of models the least preferred one counts.
fn choices<'a>(picture: &Picture, ask: &'a Ask<'_>) -> Vec<(&'a [ModelName], u16)> {
    let Some(prefer) = ask.prefer else {
        return model_sets(ask).map(|models| (models, 0)).collect();
    };
    let zones: BTreeSet<u16> = picture.nodes.values().map(|node| prefer.of_zone(&node.zone)).collect();
    let zones: BTreeSet<u16> = zones.into_iter().chain([0]).collect();
    let mut choices: Vec<(&[ModelName], u16)> = Vec::new();
    for models in model_sets(ask) {
        choices.extend(zones.iter().rev().map(|zones| (models, *zones)));
    }
    let weight = |models: &[ModelName]| models.last().map_or(0, |model| prefer.of_model(model));
    choices.sort_by_key(|(models, zones)| Reverse(u32::from(weight(models)) + u32::from(*zones)));
    choices
}

/// The nodes of a tier in zones of at least this weight.
fn in_zones<'a>(tier: &Tier<'a>, ask: &Ask<'_>, least: u16) -> Tier<'a> {
    let weight = |zone: &ZoneId| ask.prefer.map_or(0, |prefer| prefer.of_zone(zone));
    let nodes = tier.iter().filter(|(_, node)| weight(&node.zone) >= least);
    nodes.copied().collect()
}

/// Sets of models to try in order: each alone when all devices must be of one; else the best, the best two, and so on,
/// so that a lesser model is mixed in only when it must be.
pub(super) fn model_sets<'a>(ask: &'a Ask<'_>) -> impl Iterator<Item = &'a [ModelName]> {
    let same = ask.request.same_model;
    (0..ask.models.len()).map(move |at| if same { &ask.models[at..=at] } else { &ask.models[..=at] })
}

type Tier<'a> = Vec<(&'a NodeId, &'a NodePicture)>;

/// Nodes to try in order: the best ones alone, then also those that failed or vote.
fn tiers<'a>(picture: &'a Picture, ask: &Ask<'_>) -> Vec<Tier<'a>> {
    let open = |(_, node): &(&NodeId, &NodePicture)| node.takes == Takes::Work && in_zone(node, ask.request);
    let all: Tier<'a> = picture.nodes.iter().filter(open).collect();
    let willing: Tier<'a> = all
        .iter()
        .filter(|(id, _)| !ask.failed_on.contains(id))
        .copied()
        .collect();
    let best: Tier<'a> = willing.iter().filter(|(_, node)| !node.votes).copied().collect();
    let mut tiers = vec![best, willing, all];
    tiers.dedup_by_key(|tier| tier.len());
    tiers
}

pub(super) fn in_zone(node: &NodePicture, request: &ResourceRequest) -> bool {
    request.zones.is_empty() || request.zones.contains(&node.zone)
}

pub(super) fn offer<'a>(id: NodeId, node: &'a NodePicture, ask: &Ask<'_>, models: &[ModelName]) -> Offer<'a> {
    let fits = count(node.free_for(ask.lease, ask.milli, models));
    Offer {
        node: id,
        zone: &node.zone,
        fits: fits.min(node.left(ask.lease).carries(ask.request)),
        free: count(node.free_for(ask.lease, ask.milli, &ask.models)),
    }
}

pub(super) fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

fn allocations(picture: &Picture, ask: &Ask<'_>, models: &[ModelName], shares: &[(NodeId, u32)]) -> Vec<Allocation> {
    let allocation = |(rank, (node, here)): (u32, &(NodeId, u32))| Allocation {
        node: *node,
        rank,
        devices: match ask.milli < WHOLE {
            true => fullest(&picture.nodes[node], ask, models),
            false => pick(
                picture.nodes[node].free_for(ask.lease, ask.milli, models),
                models,
                *here,
            ),
        },
        cpu_milli: ask.request.cpu_milli_per_device.saturating_mul(*here),
        memory_mib: ask.request.memory_mib_per_device.saturating_mul(*here),
    };
    (0..).zip(shares).map(allocation).collect()
}

/// The device of a node that has least left of those that have the part.
fn fullest(node: &NodePicture, ask: &Ask<'_>, models: &[ModelName]) -> Vec<DeviceId> {
    let fits = node.free_for(ask.lease, ask.milli, models);
    let fullest = fits.min_by_key(|device| (device.left(ask.lease), device.id));
    fullest.map(|device| device.id).into_iter().collect()
}

/// Picks devices of one node: of one model and within one island when one holds all, the smallest such; else from the
/// preferred model and the largest islands on.
fn pick<'a>(free: impl Iterator<Item = &'a DevicePicture>, models: &[ModelName], wanted: u32) -> Vec<DeviceId> {
    let wanted = wanted as usize;
    let mut groups: BTreeMap<(usize, u16), Vec<DeviceId>> = BTreeMap::new();
    for device in free {
        let preference = models
            .iter()
            .position(|model| *model == device.model)
            .unwrap_or(models.len());
        groups.entry((preference, device.island)).or_default().push(device.id);
    }
    let whole = groups.iter().filter(|(_, devices)| devices.len() >= wanted);
    let tightest = whole.min_by_key(|((preference, island), devices)| (*preference, devices.len(), *island));
    let mut picked: Vec<DeviceId> = match tightest {
        Some((_, devices)) => devices.iter().take(wanted).copied().collect(),
        None => {
            let mut groups: Vec<_> = groups.into_iter().collect();
            groups.sort_by_key(|((preference, island), devices)| (*preference, Reverse(devices.len()), *island));
            groups
                .into_iter()
                .flat_map(|(_, devices)| devices)
                .take(wanted)
                .collect()
        }
    };
    assert_eq!(picked.len(), wanted, "an offer counts only devices that are there");
    picked.sort_unstable();
    picked
}
