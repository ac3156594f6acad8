//! Draining: whom the scheduler sends away from a node that an operator empties, and when it says that nothing is left.
//!
//! The scheduler asks at each step. Work that has saved its state, or has not begun, moves as soon as there is a place for
//! it elsewhere; other work may go on until the operator's time is up, and is then stopped and placed anew. The one
//! rule: it stops first and starts then, so a lease never needs its devices twice, and proof of the end, not the order to
//! stop, is what empties the node.

use std::collections::BTreeMap;

use holdfast_proto::command::Command;
use holdfast_proto::condition::preferred;
use holdfast_proto::id::{LeaseId, NodeId};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::Lease;

use super::limits::Limits;
use super::picture::Picture;
use super::plan::{Ask, find};
use super::{FLIGHT_MS, models, quota_left};

/// Places elsewhere are looked for at most this often: a picture of all nodes is made for it.
const LOOK_MS: u64 = 1_000;
/// Leases sent away in one step at most.
const EVICTED_MAX: usize = 64;

/// What was proposed and has not shown, and when places were looked for last.
#[derive(Debug, Default)]
pub(super) struct Drains {
    /// By node, and by lease where one is sent away.
    flying: BTreeMap<(NodeId, Option<LeaseId>), u64>,
    looked_ms: Option<u64>,
}

/// What becomes of a lease on a node that is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// It ends, or it moves: its end on the node is awaited.
    Stops,
    /// It moves when there is a place for it elsewhere, at the latest when the time is up.
    WhenPlaced,
    /// It goes on until it ends by itself or the time is up.
    AtDeadline,
}

/// Tells it from the lease's state; the operator's deadline is not looked at.
#[must_use]
pub fn leaving(lease: &Lease) -> Leaving {
    let given_up = lease.placement.as_ref().is_none_or(|placement| placement.given_up);
    match lease.status {
        _ if given_up => Leaving::Stops,
        LeaseStatus::Placed | LeaseStatus::Starting => Leaving::WhenPlaced,
        LeaseStatus::Active | LeaseStatus::Frozen if !lease.checkpoints.is_empty() => Leaving::WhenPlaced,
        LeaseStatus::Active | LeaseStatus::Frozen => Leaving::AtDeadline,
        LeaseStatus::Pending | LeaseStatus::Migrating | LeaseStatus::Ending(_) | LeaseStatus::Ended(_) => {
            Leaving::Stops
        }
    }
}

impl Drains {
    /// What to propose about the nodes that are drained.
    pub(super) fn step(&mut self, now_ms: u64, stamp: Timestamp, state: &State) -> Vec<Command> {
        self.flying.retain(|_, at| now_ms < *at + FLIGHT_MS);
        let mut commands = Vec::new();
        if state.drains.is_empty() {
            return commands;
        }
        let looks = self.looked_ms.is_none_or(|at| now_ms >= at + LOOK_MS);
        let mut elsewhere = None;
        for (node, drain) in state.drains.iter().filter(|(_, drain)| drain.drained.is_none()) {
            let leases = state.leases_on(*node);
            if leases.is_empty() && self.fly(*node, None, now_ms) {
                commands.push(Command::FinishDrain { node: *node });
            }
            for lease in leases.iter().filter_map(|lease| state.leases.get(lease)) {
                let goes = match leaving(lease) {
                    Leaving::Stops => false,
                    _ if stamp >= drain.until => true,
                    Leaving::WhenPlaced if looks => {
                        self.looked_ms = Some(now_ms);
                        place(state, elsewhere.get_or_insert_with(|| Picture::of(state)), lease)
                    }
                    Leaving::WhenPlaced | Leaving::AtDeadline => false,
                };
                if goes && commands.len() < EVICTED_MAX && self.fly(*node, Some(lease.id()), now_ms) {
                    commands.push(Command::EvictLease {
                        lease: lease.id(),
                        epoch: lease.epoch,
                        node: *node,
                    });
                }
            }
        }
        commands
    }

    fn fly(&mut self, node: NodeId, lease: Option<LeaseId>, now_ms: u64) -> bool {
        match self.flying.contains_key(&(node, lease)) {
            true => false,
            false => self.flying.insert((node, lease), now_ms).is_none(),
        }
    }
}

/// Whether there is a place for a lease elsewhere; it is then held in the picture, so that no two count on it.
fn place(state: &State, picture: &mut Picture, lease: &Lease) -> bool {
    let requested = &lease.requested;
    let mut ask = Ask {
        lease: lease.id(),
        request: &requested.request,
        models: models(state, &requested.request, requested.terms.plan, requested.tariff),
        devices_max: requested.request.devices_max.min(quota_left(state, lease)),
        milli: state.milli_of(lease.id()),
        failed_on: &lease.failed_on,
        prefer: preferred(state.conditions_of(lease.id())),
    };
    if Limits::default().narrow(state, lease, &mut ask).is_err() {
        return false;
    }
    let found = find(picture, None, &ask);
    if let Some(allocations) = &found {
        picture.grant(ask.lease, ask.milli, allocations);
    }
    found.is_some()
}
