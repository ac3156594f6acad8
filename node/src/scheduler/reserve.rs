//! The place that is kept for the first lease in the queue that cannot be placed now, so that later ones do not starve it.
//!
//! The scheduler asks here when a lease must wait, and plans later leases around what is kept: they may have it only for
//! a time that is over before it is needed (EASY backfill; Lifka, 1995). The one rule: what is kept delays nobody who is
//! before the lease in the queue, and is given up as soon as the lease has a placement.

use holdfast_proto::id::LeaseId;
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::placement::Allocation;
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::Lease;

use super::picture::Picture;
use super::plan::{Ask, find};

/// Devices that are kept for a lease from some time on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// For whom.
    pub lease: LeaseId,
    /// When all of them are expected to be free.
    pub from: Timestamp,
    /// What is kept.
    pub allocations: Vec<Allocation>,
}

impl Reserved {
    /// Whether a lease that starts now is over before the place is needed.
    #[must_use]
    pub fn lets_pass(&self, lease: &Lease, now: Timestamp) -> bool {
        now.plus(lease.duration) <= self.from
    }
}

/// The earliest time at which a lease fits, as far as the ends of those that hold devices are known, and where. None if
/// their ends do not help: nodes are away, or its own bounds are in the way.
#[must_use]
pub fn earliest(state: &State, picture: &Picture, ask: &Ask<'_>, now: Timestamp) -> Option<Reserved> {
    let ends = ends(state, now);
    let at = |ended: usize| {
        let mut later = picture.clone();
        ends[..ended].iter().for_each(|(_, lease)| later.end(*lease));
        find(&later, None, ask)
    };
    let mut allocations = at(ends.len())?;
    // The fewer have ended the less is free, so the first that suffices is found by halves.
    let (mut too_few, mut enough) = (0, ends.len());
    while too_few < enough {
        let middle = too_few.midpoint(enough);
        match at(middle) {
            Some(found) => (allocations, enough) = (found, middle),
            None => too_few = middle + 1,
        }
    }
    let from = enough.checked_sub(1).map_or(now, |last| ends[last].0);
    Some(Reserved {
        lease: ask.lease,
        from,
        allocations,
    })
}

/// Leases that hold devices, by when they end: by their terms; if they have not started, as if they did now; and now if
/// they were told to stop.
fn ends(state: &State, now: Timestamp) -> Vec<(Timestamp, LeaseId)> {
    let holding = state.live_leases().filter(|lease| {
        lease
            .placements()
            .any(|placement| placement.members.iter().any(|member| !member.released))
    });
    let stops = |lease: &Lease| {
        let ending = matches!(lease.status, LeaseStatus::Ending(_));
        ending || lease.placements().all(|placement| placement.given_up)
    };
    let end = |lease: &Lease| match stops(lease) {
        true => now,
        false => lease.run_until().unwrap_or_else(|| now.plus(lease.duration)).max(now),
    };
    let mut ends: Vec<_> = holding.map(|lease| (end(lease), lease.id())).collect();
    ends.sort_unstable();
    ends
}
