//! The scheduler: what the leader proposes about leases that wait, and about leases whose time or money is up.
//!
//! Owns the memory of what was proposed and not yet seen. `watch` runs it on the leader and feeds it; the simulator feeds it
//! directly. It never grants anything: it proposes from what it saw, and `decide` checks every rule again. The one rule:
//! whatever it forgets or repeats changes nothing, because epoch, renewal and occupancy are compared at the entry.
//!
//! Leases are planned in the order of the queue. For the first one that cannot be placed a place is kept; later ones have
//! what is free beside it, and what is kept only if they are over in time.

pub mod drain;
pub mod explain;
pub mod gang;
mod limits;
pub mod pack;
pub mod packing;
pub mod picture;
pub mod plan;
mod preempt;
pub mod reason;
pub mod reserve;

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::condition::{LEVEL, preferred};
use holdfast_proto::device::ModelName;
use holdfast_proto::id::{Epoch, LeaseId, NodeId};
use holdfast_proto::lease::{Plan, ResourceRequest};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::placement::Allocation;
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::{Lease, Member, Placement};

use self::drain::Drains;
use self::limits::Limits;
use self::pack::WHOLE;
use self::pack::knobs::LEASES;
use self::pack::mix::Mix;
use self::packing::{Packing, counted};
use self::picture::Picture;
use self::plan::{Ask, find};
use self::preempt::victims;
use self::reason::{Reason, why};
use self::reserve::{Reserved, earliest};

/// Waiting leases that one step plans, from the head of the queue: bounds the work of a step when thousands wait.
const PLANNED_MAX: usize = 256;
/// A proposal that has not shown in the state after this long is made again.
const FLIGHT_MS: u64 = 2_000;
/// The reason of a lease that waits is looked for at most this often, however the numbers in it move.
const REASON_MS: u64 = 5_000;
/// The second refusal in a row holds a lease back for so long, each further one twice as long: a plan that the log refuses
/// would otherwise be proposed as fast as the log can refuse it.
const REFUSED_MS: u64 = 200;
/// The place that is kept for a lease is looked for anew at most this often: ends come earlier, or are put off.
const RESERVE_MS: u64 = 1_000;
/// Leases at most for which a place to keep is looked for in one step; one for whom no end of others helps gets none.
const RESERVE_TRIES_MAX: usize = 4;
/// Longest time that refusals hold a lease back.
const REFUSED_MS_MAX: u64 = 10_000;

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
    /// When a lease's reason was last looked for.
    looked: BTreeMap<LeaseId, u64>,
    /// By lease: refusals in a row, and until when they hold it back; none until the next step has set it.
    refused: BTreeMap<LeaseId, (u32, Option<u64>)>,
    /// By lease: when a place to keep for it was looked for last, and what was found.
    reserved: BTreeMap<LeaseId, (u64, Option<Reserved>)>,
    /// The requests that have come, and the last of them that is counted.
    mix: Mix,
    counted: Option<LeaseId>,
    drains: Drains,
    /// When spot leases were told last to give way.
    preempted_ms: Option<u64>,
    /// The level of the rules that was proposed last, and when.
    raised: Option<(u32, u64)>,
    /// When the first lease that is held back may be looked at, though the state stands still.
    again_ms: Option<u64>,
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
        commands.extend(self.raise(now_ms, state));
        commands.extend(self.drains.step(now_ms, stamp, state));
        if self.planned != Some(state.applied.index) {
            commands.extend(self.placements(now_ms, stamp, state));
            self.planned = Some(state.applied.index);
        }
        commands
    }

    /// A proposal about this lease was refused, or its fate is unknown. It is made again at once, and later each time it
    /// fails again.
    pub fn settled(&mut self, lease: LeaseId) {
        self.ending.remove(&lease);
        if self.placing.remove(&lease).is_some() {
            let (refusals, until_ms) = self.refused.entry(lease).or_default();
            (*refusals, *until_ms) = (refusals.saturating_add(1), None);
        }
        self.planned = None;
    }

    /// Turns on the next rules once every node runs a build that knows them.
    fn raise(&mut self, now_ms: u64, state: &State) -> Option<Command> {
        let level = state.cluster.level.saturating_add(1);
        let flying = self
            .raised
            .is_some_and(|(proposed, at)| proposed == level && now_ms < at + FLIGHT_MS);
        if level > state.rules_known() || flying {
            return None;
        }
        self.raised = Some((level, now_ms));
        Some(Command::RaiseMachineLevel { level })
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
        self.looked.retain(|lease, _| waits(lease));
        self.refused.retain(|lease, _| waits(lease));
        self.reserved.retain(|lease, _| waits(lease));
        for (refusals, until_ms) in self.refused.values_mut() {
            let held = match *refusals {
                0 | 1 => 0,
                more => REFUSED_MS.saturating_mul(1 << (more - 2).min(16)).min(REFUSED_MS_MAX),
            };
            until_ms.get_or_insert(now_ms + held);
        }
        if self.again_ms.take_if(|at| now_ms >= *at).is_some() {
            self.planned = None;
        }
    }

    fn placements(&mut self, now_ms: u64, stamp: Timestamp, state: &State) -> Vec<Command> {
        self.learn(state);
        let waiting = state.queue(stamp, PLANNED_MAX);
        if waiting.is_empty() {
            return Vec::new();
        }
        let mut board = Board::new(state, &self.mix, &self.placing);
        let (mut commands, mut tries) = (Vec::new(), 0);
        for lease in waiting {
            let id = lease.id();
            if self.placing.contains_key(&id) || self.held_back(now_ms, id) {
                continue;
            }
            match board.place(state, lease, stamp) {
                Try::Placed(allocations) => {
                    board.grant(state, lease, &allocations);
                    let epoch = lease.epoch.next();
                    commands.push(Command::CommitPlacement {
                        lease: id,
                        epoch,
                        allocations: allocations.clone(),
                    });
                    self.placing.insert(
                        id,
                        Flight {
                            epoch,
                            allocations,
                            proposed_ms: now_ms,
                        },
                    );
                }
                Try::Waits(reason) => commands.extend(self.defer(now_ms, lease, || reason)),
                Try::NoRoom(ask) => {
                    if board.kept.is_none() && tries < RESERVE_TRIES_MAX {
                        tries += 1;
                        board.kept = self.reserve(now_ms, stamp, state, &board.now, &ask);
                        let soon = board.kept.as_ref().is_some_and(|kept| kept.place.from <= stamp);
                        if tries == 1 && !soon && lease.requested.terms.plan != Plan::Spot {
                            commands.extend(self.preempt(now_ms, stamp, state, &board.now, &ask));
                        }
                    }
                    commands.extend(self.defer(now_ms, lease, || why(&board.now.picture, &ask)));
                }
                Try::Kept(reserved) => commands.extend(self.defer(now_ms, lease, || reserved)),
            }
        }
        commands
    }

    /// Counts the requests that have come since.
    fn learn(&mut self, state: &State) {
        let first = LeaseId { cell: 0, index: 0 };
        for (id, lease) in state.leases.iter_from(&self.counted.unwrap_or(first)) {
            if self.counted.is_none_or(|counted| *id > counted) {
                let request = counted(&lease.requested.request, state.milli_of(*id));
                self.mix.learn(&request, LEASES.remembered_max);
                self.counted = Some(*id);
            }
        }
    }

    /// The place to keep for a lease that cannot be placed now, as what lies beside it.
    fn reserve(&mut self, now_ms: u64, stamp: Timestamp, state: &State, now: &Side, ask: &Ask<'_>) -> Option<Kept> {
        let known = self
            .reserved
            .get(&ask.lease)
            .filter(|(at, _)| now_ms < *at + RESERVE_MS);
        let found = match known {
            Some((_, found)) => found.clone(),
            // Less than it needs is granted to it in any case, so it waits for its quota and not for devices.
            None if ask.devices_max < ask.request.devices_min => None,
            None => {
                let found = earliest(state, &now.picture, ask, stamp);
                self.reserved.insert(ask.lease, (now_ms, found.clone()));
                found
            }
        };
        let place = found?;
        let mut beside = now.clone();
        beside.grant(place.lease, ask.milli, &place.allocations);
        Some(Kept { place, beside })
    }

    /// Makes spot leases give way to a lease, those that lose least.
    fn preempt(&mut self, now_ms: u64, stamp: Timestamp, state: &State, now: &Side, ask: &Ask<'_>) -> Vec<Command> {
        let spot = |lease: &Arc<Lease>| lease.requested.terms.plan == Plan::Spot && lease.stays();
        let helps = ask.devices_max >= ask.request.devices_min && state.live_leases().any(spot);
        if state.cluster.level < LEVEL || !helps {
            return Vec::new();
        }
        let next_ms = self.preempted_ms.map_or(0, |at| at + RESERVE_MS);
        if now_ms < next_ms {
            self.look_again(next_ms);
            return Vec::new();
        }
        self.preempted_ms = Some(now_ms);
        // Those that have not run for long enough may be taken later, though the state stands still.
        self.look_again(now_ms + RESERVE_MS);
        let give_way = victims(state, &now.picture, ask, stamp);
        if !give_way.is_empty() {
            self.reserved.remove(&ask.lease);
        }
        let epoch = |lease: LeaseId| state.leases.get(&lease).map_or(Epoch(0), |lease| lease.epoch);
        give_way
            .into_iter()
            .map(|lease| Command::PreemptLease {
                lease,
                epoch: epoch(lease),
                by: ask.lease,
            })
            .collect()
    }

    fn held_back(&mut self, now_ms: u64, lease: LeaseId) -> bool {
        let until = self
            .refused
            .get(&lease)
            .and_then(|(_, until)| *until)
            .filter(|until| now_ms < *until);
        if let Some(until) = until {
            self.look_again(until);
        }
        until.is_some()
    }

    fn look_again(&mut self, at_ms: u64) {
        self.again_ms = Some(self.again_ms.map_or(at_ms, |before| before.min(at_ms)));
    }

    /// Tells why a lease waits when that has changed, but looks for the reason only now and then.
    fn defer(&mut self, now_ms: u64, lease: &Lease, reason: impl FnOnce() -> Reason) -> Option<Command> {
        let next = self.looked.get(&lease.id()).map(|looked| looked + REASON_MS);
        if let Some(next_ms) = next.filter(|next| now_ms < *next) {
            self.look_again(next_ms);
            return None;
        }
        self.looked.insert(lease.id(), now_ms);
        let reason = reason().to_string();
        let lease_id = lease.id();
        (lease.reason.as_ref() != Some(&reason)).then_some(Command::DeferPlacement {
            lease: lease_id,
            reason,
        })
    }
}

/// What came of one try.
enum Try<'a> {
    Placed(Vec<Allocation>),
    Waits(Reason),
    /// Why is found out only when it is to be told.
    NoRoom(Ask<'a>),
    /// There is room, but it is kept.
    Kept(Reason),
}

/// What is free, as plans are made.
#[derive(Clone)]
struct Side {
    picture: Picture,
    packing: Packing,
    free: BTreeMap<ModelName, u32>,
}

impl Side {
    fn grant(&mut self, lease: LeaseId, milli: u16, allocations: &[Allocation]) {
        // Counting all devices anew for each of a few hundred grants would be most of a step's work.
        for (model, taken) in self.picture.grant(lease, milli, allocations) {
            if let Some(free) = self.free.get_mut(&model) {
                *free = free.saturating_sub(taken);
            }
        }
        self.packing.granted(&self.picture, allocations);
    }
}

/// The place that is kept for the first lease that waits, and what is free beside it.
struct Kept {
    place: Reserved,
    beside: Side,
}

/// What one step plans on.
struct Board {
    now: Side,
    limits: Limits,
    kept: Option<Kept>,
}

impl Board {
    fn new(state: &State, mix: &Mix, placing: &BTreeMap<LeaseId, Flight>) -> Self {
        let mut picture = Picture::of(state);
        for (lease, flight) in placing {
            picture.grant(*lease, state.milli_of(*lease), &flight.allocations);
        }
        let now = Side {
            packing: Packing::of(&picture, mix),
            free: picture.free_by_model(),
            picture,
        };
        Self {
            now,
            limits: Limits::default(),
            kept: None,
        }
    }

    fn grant(&mut self, state: &State, lease: &Lease, allocations: &[Allocation]) {
        let (id, milli) = (lease.id(), state.milli_of(lease.id()));
        self.limits.granted(state, lease, allocations);
        self.now.grant(id, milli, allocations);
        if let Some(kept) = &mut self.kept {
            kept.beside.grant(id, milli, allocations);
        }
    }

    /// Plans one lease beside what is kept, or on it if it is over in time.
    fn place<'a>(&mut self, state: &'a State, lease: &'a Lease, stamp: Timestamp) -> Try<'a> {
        let Some(kept) = &mut self.kept else {
            return place(state, &mut self.now, &mut self.limits, lease);
        };
        // Work that has lost its place had one before whoever waits for their first; spot never had a right to it.
        if lease.epoch > Epoch(0) && lease.requested.terms.plan != Plan::Spot {
            return place(state, &mut self.now, &mut self.limits, lease);
        }
        let beside = place(state, &mut kept.beside, &mut self.limits, lease);
        if !matches!(beside, Try::NoRoom(_)) {
            return beside;
        }
        match place(state, &mut self.now, &mut self.limits, lease) {
            Try::Placed(_) if !kept.place.lets_pass(lease, stamp) => Try::Kept(Reason::Kept {
                lease: kept.place.lease,
            }),
            now => now,
        }
    }
}

/// Plans one lease of the state.
fn place<'a>(state: &'a State, side: &mut Side, limits: &mut Limits, lease: &'a Lease) -> Try<'a> {
    let label = |node| {
        state
            .nodes
            .get(&node)
            .map_or_else(|| node.to_string(), |node| node.spec.label.to_string())
    };
    // Spot that gave way takes nothing over: what its last members still hold may be what it gave way for.
    let spot = lease.requested.terms.plan == Plan::Spot;
    let gives_way = |placement: &Placement| spot && placement.given_up;
    let holds = |member: &Member| match lease.placement.as_ref().is_some_and(gives_way) {
        true => !member.released,
        false => member.may_run(),
    };
    let members = || lease.placement.iter().flat_map(|placement| &placement.members);
    if !lease.is_placeable() || (lease.placement.as_ref().is_some_and(gives_way) && members().any(holds)) {
        let running = members()
            .filter(|member| holds(member))
            .map(|member| label(member.allocation.node));
        return Try::Waits(Reason::StillRuns {
            nodes: running.collect(),
        });
    }
    if let Some(holders) = state_away(state, lease) {
        return Try::Waits(Reason::StateAway {
            holders: holders.into_iter().map(label).collect(),
        });
    }
    let request = &lease.requested.request;
    let mut ask = Ask {
        lease: lease.id(),
        request,
        models: models(state, request, lease.requested.terms.plan, lease.requested.tariff),
        devices_max: request.devices_max.min(quota_left(state, lease)),
        milli: state.milli_of(lease.id()),
        failed_on: &lease.failed_on,
        prefer: preferred(state.conditions_of(lease.id())),
    };
    if let Err(reason) = limits.narrow(state, lease, &mut ask) {
        return Try::Waits(reason);
    }
    // Most leases that wait do so because too little is free: that is seen without a look at the nodes.
    let room = ask
        .models
        .iter()
        .filter_map(|model| side.free.get(model))
        .fold(0_u32, |sum, free| sum.saturating_add(*free));
    if ask.milli == WHOLE && lease.placement.is_none() && room < request.devices_min {
        return Try::NoRoom(ask);
    }
    match find(&side.picture, Some(&mut side.packing), &ask) {
        Some(allocations) => Try::Placed(allocations),
        None => Try::NoRoom(ask),
    }
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

/// Models that a request may get, best first: as the tenant orders them; when it names none, the cheapest first.
fn models(state: &State, request: &ResourceRequest, plan: Plan, tariff: u32) -> Vec<ModelName> {
    let price = |model: &ModelName| state.price(tariff, model, plan);
    if !request.models.is_empty() {
        // Without a price it cannot be granted; a model that is not there is named in the reason.
        let present = state.models();
        let offered = |model: &&ModelName| price(model).is_some() || !present.contains(model);
        return request.models.iter().filter(offered).cloned().collect();
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
