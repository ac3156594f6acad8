//! How many devices of a gang each node gives: all of them or none.
//!
//! Called by the planner with what each node can give. The one rule: packing keeps a gang on as few nodes as possible,
//! and takes the node that is left with least, so that the large gaps stay large.

use std::collections::BTreeMap;

use holdfast_proto::id::{NodeId, ZoneId};
use holdfast_proto::lease::Spread;

/// What one node can give to the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer<'a> {
    /// The node.
    pub node: NodeId,
    /// Its zone.
    pub zone: &'a ZoneId,
    /// Devices that it can give, with CPU and memory for each.
    pub fits: u32,
    /// Devices that are free there, of any model: what a grant would cut into.
    pub free: u32,
}

/// What is wanted of the offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Fewest devices.
    pub least: u32,
    /// Most devices.
    pub most: u32,
    /// All on one node.
    pub single_node: bool,
    /// Over zones, or packed.
    pub spread: Spread,
}

/// Lays the gang over the offers: how many devices on which node, by rank. None when it does not fit whole.
#[must_use]
pub fn lay(offers: &[Offer<'_>], want: Want) -> Option<Vec<(NodeId, u32)>> {
    assert!(want.least > 0 && want.least <= want.most); // The log refuses other requests.
    let offers: Vec<&Offer<'_>> = offers.iter().filter(|offer| offer.fits > 0).collect();
    if want.single_node {
        let count = offers.iter().map(|offer| offer.fits).max()?.min(want.most);
        return (count >= want.least).then(|| tightest(&offers, count).map(|offer| vec![(offer.node, count)]))?;
    }
    let total = offers.iter().fold(0_u32, |sum, offer| sum.saturating_add(offer.fits));
    let count = total.min(want.most);
    if count < want.least {
        return None;
    }
    Some(match want.spread {
        Spread::Pack => pack(&offers, count),
        Spread::Zones => over_zones(&offers, count),
    })
}

/// The node that holds all and is left with least.
fn tightest<'a, 'b>(offers: &[&'a Offer<'b>], count: u32) -> Option<&'a Offer<'b>> {
    let holding = offers.iter().filter(|offer| offer.fits >= count);
    holding
        .min_by_key(|offer| (offer.free, offer.fits, offer.node))
        .copied()
}

fn by_zone<'a, 'b>(offers: &[&'a Offer<'b>]) -> BTreeMap<&'b ZoneId, Vec<&'a Offer<'b>>> {
    let mut zones: BTreeMap<&ZoneId, Vec<&Offer<'_>>> = BTreeMap::new();
    for offer in offers {
        zones.entry(offer.zone).or_default().push(offer);
    }
    zones
}

fn sum(offers: &[&Offer<'_>]) -> u32 {
    offers.iter().fold(0, |sum, offer| sum.saturating_add(offer.fits))
}

/// One node if one holds all; else one zone, by fewest nodes, then by least left over; else zones from the largest on.
fn pack(offers: &[&Offer<'_>], count: u32) -> Vec<(NodeId, u32)> {
    if let Some(offer) = tightest(offers, count) {
        return vec![(offer.node, count)];
    }
    let zones = by_zone(offers);
    let whole = zones
        .values()
        .filter(|zone| sum(zone) >= count)
        .map(|zone| (few(zone, count), sum(zone)));
    if let Some((shares, _)) = whole.min_by_key(|(shares, total)| (shares.len(), *total)) {
        return shares;
    }
    let mut zones: Vec<_> = zones.into_values().collect();
    zones.sort_by_key(|zone| std::cmp::Reverse(sum(zone)));
    let (mut shares, mut left) = (Vec::new(), count);
    for zone in zones {
        let here = left.min(sum(&zone));
        shares.extend(few(&zone, here));
        left -= here;
    }
    shares
}

/// The largest nodes first, and for the rest the one that fits it tightest.
fn few(offers: &[&Offer<'_>], count: u32) -> Vec<(NodeId, u32)> {
    let mut open: Vec<&Offer<'_>> = offers.to_vec();
    open.sort_by_key(|offer| (std::cmp::Reverse(offer.fits), offer.free, offer.node));
    let (mut shares, mut left) = (Vec::new(), count);
    while left > 0 && !open.is_empty() {
        let last = tightest(&open, left).map(|offer| offer.node);
        let at = last
            .and_then(|node| open.iter().position(|offer| offer.node == node))
            .unwrap_or(0);
        let offer = open.remove(at);
        let here = left.min(offer.fits);
        shares.push((offer.node, here));
        left -= here;
    }
    shares
}

/// Device by device to the zone that has fewest of the gang; then few nodes within each zone.
fn over_zones(offers: &[&Offer<'_>], count: u32) -> Vec<(NodeId, u32)> {
    let zones = by_zone(offers);
    let mut given: BTreeMap<&ZoneId, u32> = zones.keys().map(|zone| (*zone, 0)).collect();
    for _ in 0..count {
        let open = given.iter().filter(|(zone, here)| **here < sum(&zones[*zone]));
        let next = open.min_by_key(|(zone, here)| (**here, std::cmp::Reverse(sum(&zones[*zone])), **zone));
        let Some(zone) = next.map(|(zone, _)| *zone) else { break };
        *given.entry(zone).or_default() += 1;
    }
    given
        .into_iter()
        .filter(|(_, here)| *here > 0)
        .flat_map(|(zone, here)| few(&zones[zone], here))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(nodes: &[(u64, &str, u32)], want: Want, expected: Option<&[(u64, u32)]>) {
        let zones: Vec<ZoneId> = nodes.iter().map(|(_, zone, _)| zone.parse().unwrap()).collect();
        let offer = |((id, _, fits), zone): (&(u64, &str, u32), _)| Offer {
            node: NodeId(*id),
            zone,
            fits: *fits,
            free: *fits,
        };
        let offers: Vec<_> = nodes.iter().zip(&zones).map(offer).collect();
        let laid = lay(&offers, want).map(|shares| shares.iter().map(|(node, here)| (node.0, *here)).collect());
        assert_eq!(laid, expected.map(<[_]>::to_vec), "{nodes:?} {want:?}");
    }

    fn want(least: u32, most: u32, single_node: bool, spread: Spread) -> Want {
        Want {
            least,
            most,
            single_node,
            spread,
        }
    }

    #[test]
    fn packing_keeps_gaps_large_and_gangs_together() {
        let pack = |least| want(least, least, false, Spread::Pack);
        let three = [(1, "a", 8), (2, "a", 3), (3, "b", 5)];
        check(&three, pack(3), Some(&[(2, 3)]));
        check(&three, pack(4), Some(&[(3, 4)]));
        check(&three, pack(6), Some(&[(1, 6)]));
        check(&three, pack(10), Some(&[(1, 8), (2, 2)]));
        check(&three, pack(16), Some(&[(1, 8), (2, 3), (3, 5)]));
        check(&three, pack(17), None);
        // Of two zones that hold it, the one with fewer nodes.
        check(
            &[(1, "a", 2), (2, "a", 2), (3, "a", 2), (4, "b", 4), (5, "b", 2)],
            pack(6),
            Some(&[(4, 4), (5, 2)]),
        );
    }

    #[test]
    fn a_gang_over_zones_is_as_even_as_the_zones_allow() {
        let zones = |least| want(least, least, false, Spread::Zones);
        let three = [(1, "a", 8), (2, "b", 8), (3, "c", 1)];
        check(&three, zones(3), Some(&[(1, 1), (2, 1), (3, 1)]));
        check(&three, zones(7), Some(&[(1, 3), (2, 3), (3, 1)]));
        check(&three, zones(18), None);
    }

    #[test]
    fn one_node_means_one_node() {
        let one = |least, most| want(least, most, true, Spread::Pack);
        let three = [(1, "a", 1), (2, "a", 2), (3, "b", 1)];
        check(&three, one(2, 2), Some(&[(2, 2)]));
        check(&three, one(4, 4), None);
        check(&three, one(1, 8), Some(&[(2, 2)]));
        check(&[], one(1, 1), None);
    }

    #[test]
    fn an_elastic_gang_takes_what_there_is() {
        check(
            &[(1, "a", 3), (2, "a", 2)],
            want(2, 64, false, Spread::Pack),
            Some(&[(1, 3), (2, 2)]),
        );
        check(
            &[(1, "a", u32::MAX), (2, "a", u32::MAX)],
            want(2, 3, false, Spread::Pack),
            Some(&[(1, 3)]),
        );
    }
}
