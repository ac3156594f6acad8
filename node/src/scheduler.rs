//! The scheduler: what the leader proposes about leases that wait, and about leases whose time or money is up.
//!
//! Owns the memory of what was proposed and not yet seen. `watch` runs it on the leader and feeds it; the simulator feeds it
//! directly. It never grants anything: it proposes from what it saw, and `decide` checks every rule again. The one rule:
//! whatever it forgets or repeats changes nothing, because epoch, renewal and occupancy are compared at the entry.
//!
//! Leases are planned in the order of the queue; one that cannot be placed does not keep later ones from what is free.

pub mod gang;
pub mod picture;
pub mod plan;
pub mod reason;

use std::collections::BTreeMap;

use holdfast_proto::command::Command;
use holdfast_proto::device::ModelName;
use holdfast_proto::id::{Epoch, LeaseId, NodeId};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::placement::Allocation;
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::Lease;

use self::picture::Picture;
use self::plan::{Ask, plan};
use self::reason::Reason;

/// Waiting leases that one step plans, from the head of the queue: bounds the work of a step when thousands wait.
const PLANNED_MAX: usize = 256;
/// A proposal that has not shown in the state after this long is made again.
const FLIGHT_MS: u64 = 2_000;
/// A lease's reason is told anew at most this often, however the numbers in it move.
const REASON_MS: u64 = 5_000;

/// What was proposed and has not shown in the state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flight {
    epoch: Epoch,
    allocations: Vec<Allocation>,
    proposed_ms: u64,
}

/// The scheduler's memory, empty at the beginning of each term.
#[derive(Debug, Default)]
pub struct Scheduler {
    placing: BTreeMap<LeaseId, Flight>,
    /// By lease: the renewal that the proposal named, and when it was made.
    ending: BTreeMap<LeaseId, (u64, u64)>,
    /// When a lease's reason was last told.
    deferred: BTreeMap<LeaseId, u64>,
    /// When the first reason that was held back may be told.
    retell_ms: Option<u64>,
    /// The state that the last plans were made on: the same one gives the same plans.
    planned: Option<u64>,
}

impl Scheduler {
    /// A scheduler that has proposed nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the state and returns what to propose now. `now_ms` is the boot clock, `stamp` what the leader would stamp.
    pub fn step(&mut self, now_ms: u64, stamp: Timestamp, state: &State) -> Vec<Command> {
        let mut commands = self.ends(now_ms, stamp, state);
        self.forget(now_ms, state);
        if self.planned != Some(state.applied.index) {
            commands.extend(self.placements(now_ms, state));
            self.planned = Some(state.applied.index);
        }
        commands
    }

    /// A proposal about this lease was refused, or its fate is unknown: it may be made again at once.
    pub fn settled(&mut self, lease: LeaseId) {
        self.placing.remove(&lease);
        self.ending.remove(&lease);
        self.planned = None;
    }

    /// Leases whose time or money is up, each with the renewal that was seen: a later one makes the command void.
    fn ends(&mut self, now_ms: u64, stamp: Timestamp, state: &State) -> Vec<Command> {
        let mut commands = Vec::new();
        let due = state.due(stamp);
        self.ending.retain(|lease, _| due.iter().any(|due| due.lease == *lease));
        for due in due {
            let flying = self.ending.get(&due.lease);
            if flying.is_some_and(|(renewal, at)| *renewal == due.renewal && now_ms < *at + FLIGHT_MS) {
                continue;
            }
            self.ending.insert(due.lease, (due.renewal, now_ms));
            commands.push(Command::EndLease {
                lease: due.lease,
                reason: due.reason,
                renewal: due.renewal,
            });
        }
        commands
    }

    fn forget(&mut self, now_ms: u64, state: &State) {
        let before = self.placing.len();
        self.placing.retain(|lease, flight| {
            let waits = state
                .leases
                .get(lease)
                .is_some_and(|lease| lease.is_placeable() && lease.epoch < flight.epoch);
            waits && now_ms < flight.proposed_ms + FLIGHT_MS
        });
        if self.placing.len() < before {
            self.planned = None;
        }
        let waits = |lease: &LeaseId| state.leases.get(lease).is_some_and(|lease| lease.queue_key().is_some());
        self.deferred.retain(|lease, _| waits(lease));
        // A reason that was held back is told when its time has come, though the state stands still.
        if self.retell_ms.take_if(|at| now_ms >= *at).is_some() {
            self.planned = None;
        }
    }

    fn placements(&mut self, now_ms: u64, state: &State) -> Vec<Command> {
        let waiting: Vec<_> = state.waiting().take(PLANNED_MAX).collect();
        if waiting.is_empty() {
            return Vec::new();
        }
        let mut picture = Picture::of(state);
        for (lease, flight) in &self.placing {
            picture.grant(*lease, &flight.allocations);
        }
        let mut commands = Vec::new();
        for lease in waiting {
            if self.placing.contains_key(&lease.id()) {
                continue;
            }
            match place(state, &picture, lease) {
                Ok(allocations) => {
                    picture.grant(lease.id(), &allocations);
                    let epoch = lease.epoch.next();
                    let flight = Flight {
                        epoch,
                        allocations: allocations.clone(),
                        proposed_ms: now_ms,
                    };
                    self.placing.insert(lease.id(), flight);
                    commands.push(Command::CommitPlacement {
                        lease: lease.id(),
                        epoch,
                        allocations,
                    });
                }
                Err(reason) => commands.extend(self.defer(now_ms, lease, &reason)),
            }
        }
        commands
    }

    /// Tells why a lease waits when that has changed, but not with every move of a number in it.
    fn defer(&mut self, now_ms: u64, lease: &Lease, reason: &Reason) -> Option<Command> {
        let reason = reason.to_string();
        if lease.reason.as_ref() == Some(&reason) {
            return None;
        }
        if let Some(again_ms) = self
            .deferred
            .get(&lease.id())
            .map(|told| told + REASON_MS)
            .filter(|at| now_ms < *at)
        {
            self.retell_ms = Some(self.retell_ms.map_or(again_ms, |at| at.min(again_ms)));
            return None;
        }
        self.deferred.insert(lease.id(), now_ms);
        Some(Command::DeferPlacement {
            lease: lease.id(),
            reason,
        })
    }
}

/// Plans one lease of the state, or says why it must wait.
fn place(state: &State, picture: &Picture, lease: &Lease) -> Result<Vec<Allocation>, Reason> {
    let label = |node| {
        state
            .nodes
            .get(&node)
            .map_or_else(|| node.to_string(), |node| node.spec.label.to_string())
    };
    if !lease.is_placeable() {
        let members = lease.placement.iter().flat_map(|placement| &placement.members);
        let running = members
            .filter(|member| member.may_run())
            .map(|member| label(member.allocation.node));
        return Err(Reason::StillRuns {
            nodes: running.collect(),
        });
    }
    if let Some(holders) = state_away(state, lease) {
        return Err(Reason::StateAway {
            holders: holders.into_iter().map(label).collect(),
        });
    }
    let request = &lease.requested.request;
    let ask = Ask {
        lease: lease.id(),
        request,
        models: models(state, lease),
        devices_max: request.devices_max.min(quota_left(state, lease)),
        failed_on: &lease.failed_on,
    };
    plan(picture, &ask)
}

/// The nodes that hold the lease's saved states when none of them can be heard and some may come back. It then waits for
/// them: starting from nothing would throw its work away.
fn state_away(state: &State, lease: &Lease) -> Option<Vec<NodeId>> {
    let status = |node: &NodeId| state.nodes.get(node).map_or(NodeStatus::Removed, |node| node.status);
    let mut holders: Vec<_> = lease
        .checkpoints
        .iter()
        .flat_map(|checkpoint| &checkpoint.holders)
        .copied()
        .collect();
    holders.sort_unstable();
    holders.dedup();
    holders.retain(|node| status(node) != NodeStatus::Removed);
    let away = !holders.is_empty() && holders.iter().all(|node| status(node) != NodeStatus::Ready);
    away.then_some(holders)
}

/// Models that the lease may get, best first: as the tenant orders them; when it names none, the cheapest first.
fn models(state: &State, lease: &Lease) -> Vec<ModelName> {
    let (requested, tariff) = (&lease.requested, lease.requested.tariff);
    let price = |model: &ModelName| state.price(tariff, model, requested.terms.plan);
    if !requested.request.models.is_empty() {
        // Without a price it cannot be granted; a model that is not there is named in the reason.
        let present = state.models();
        let offered = |model: &&ModelName| price(model).is_some() || !present.contains(model);
        return requested.request.models.iter().filter(offered).cloned().collect();
    }
    let mut priced: Vec<_> = state
        .models()
        .into_iter()
        .filter_map(|model| Some((price(&model)?, model)))
        .collect();
    priced.sort();
    priced.into_iter().map(|(_, model)| model).collect()
}

/// Devices that the tenant's quota leaves for this lease; what it counts for already is granted in any case.
fn quota_left(state: &State, lease: &Lease) -> u32 {
    let left = state.tenants.get(&lease.requested.tenant).map_or(0, |tenant| {
        tenant
            .quota
            .devices_max
            .saturating_sub(tenant.held.saturating_sub(lease.devices))
    });
    left.max(lease.devices)
}
