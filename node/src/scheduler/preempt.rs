//! Preemption: which spot leases give way to the first lease in the queue that cannot be placed otherwise.
//!
//! The scheduler asks here when the place that it keeps for that lease is not about to be free by itself. The cost of a
//! spot lease is the work that it would lose: the time since it was granted its devices, or a minute when it has a saved
//! state to go on from, times its devices. The one rule: those that give way cost least together and every one of them is needed.

use std::collections::BTreeMap;

use holdfast_proto::id::{LeaseId, NodeId};
use holdfast_proto::lease::Plan;
use holdfast_proto::limits::SPOT_RUN_MS_MIN;
use holdfast_proto::time::{Span, Timestamp};
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::Lease;

use super::picture::Picture;
use super::plan::{Ask, find};

/// What going on from a saved state loses, 1 min.
const RESUMED_MS: u64 = 60_000;
/// Spot leases that are looked at for one lease at most, those that cost least first.
const CANDIDATES_MAX: usize = 256;

/// A spot lease that may give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    cost: u64,
    lease: LeaseId,
}

/// The spot leases that give way to `ask`; none when that would not help.
pub(super) fn victims(state: &State, picture: &Picture, ask: &Ask<'_>, now: Timestamp) -> Vec<LeaseId> {
    let candidates = candidates(state, now);
    let everywhere = chosen(picture, ask, &candidates);
    let on_one = on_single_nodes(state, picture, ask, &candidates);
    let best = everywhere.into_iter().chain(on_one).min_by_key(|chosen| {
        let cost = chosen
            .iter()
            .fold(0_u64, |sum, candidate| sum.saturating_add(candidate.cost));
        (cost, chosen.clone())
    });
    let leases = best.into_iter().flatten().map(|candidate| candidate.lease);
    leases.collect()
}

/// Spot leases that may give way now, cheapest first.
fn candidates(state: &State, now: Timestamp) -> Vec<Candidate> {
    let spot = state
        .live_leases()
        .filter(|lease| lease.requested.terms.plan == Plan::Spot && lease.stays());
    let mut candidates: Vec<Candidate> = spot.filter_map(|lease| candidate(lease, now)).collect();
    candidates.sort_unstable();
    candidates.truncate(CANDIDATES_MAX);
    candidates
}

fn candidate(lease: &Lease, now: Timestamp) -> Option<Candidate> {
    let placement = lease.placement.as_ref()?;
    if now < placement.granted.plus(Span(SPOT_RUN_MS_MIN)) {
        return None;
    }
    let lost = match lease.checkpoints.is_empty() {
        true => now.since(placement.granted).0,
        false => RESUMED_MS,
    };
    Some(Candidate {
        cost: lost.saturating_mul(placement.devices().into()),
        lease: lease.id(),
    })
}

/// Of the cheapest that suffice those that are needed.
fn chosen(picture: &Picture, ask: &Ask<'_>, candidates: &[Candidate]) -> Option<Vec<Candidate>> {
    let fits = |ended: &[Candidate]| {
        let mut without = picture.clone();
        ended.iter().for_each(|candidate| without.end(candidate.lease));
        find(&without, None, ask).is_some()
    };
    if !fits(candidates) {
        return None;
    }
    let (mut too_few, mut enough) = (0, candidates.len());
    while too_few < enough {
        let middle = too_few.midpoint(enough);
        match fits(&candidates[..middle]) {
            true => enough = middle,
            false => too_few = middle + 1,
        }
    }
    let mut chosen = candidates[..enough].to_vec();
    // The dearest are let go first.
    for at in (0..chosen.len()).rev() {
        let spared = chosen.remove(at);
        if !fits(&chosen) {
            chosen.insert(at, spared);
        }
    }
    Some(chosen)
}

/// The same for each node alone: the cheapest of all are often scattered over many.
fn on_single_nodes(state: &State, picture: &Picture, ask: &Ask<'_>, candidates: &[Candidate]) -> Vec<Vec<Candidate>> {
    let mut on: BTreeMap<NodeId, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        let lease = state.leases.get(&candidate.lease);
        for node in lease.iter().flat_map(|lease| lease.nodes()) {
            on.entry(node).or_default().push(*candidate);
        }
    }
    let alone = |node: &NodeId| picture.nodes.get(node).map(|found| (*node, found.clone()));
    let chosen = on.iter().filter_map(|(node, candidates)| {
        let nodes = alone(node).into_iter().collect();
        chosen(&Picture { nodes }, ask, candidates)
    });
    chosen.collect()
}
