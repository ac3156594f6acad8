//! What must always hold of a state, as checks that name what is wrong.
//!
//! Tests run them after every entry; the simulator and a replica that has loaded a snapshot may run them too. A
//! violation is a defect of the rules, never an input error. The numbers are those of the design's list.

use std::collections::BTreeMap;
use std::fmt;

use holdfast_proto::condition::LEVEL;
use holdfast_proto::id::{DeviceId, TenantId};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::limits::DEVICE_MILLI;
use holdfast_proto::node::NodeStatus;
use holdfast_proto::subscription::SUBSCRIPTIONS_MAX;
use holdfast_proto::tariff::amount_micros;
use holdfast_proto::time::Span;

use super::state::{Holder, Lease, Placement, Run, State};

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant.
    pub invariant: u8,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "invariant {}: {}", self.invariant, self.what)
    }
}

struct Found(Vec<Violation>);

impl Found {
    fn unless(&mut self, holds: bool, invariant: u8, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Violation {
                invariant,
                what: what(),
            });
        }
    }
}

/// Checks everything.
#[must_use]
pub fn check(state: &State) -> Vec<Violation> {
    let mut found = Found(Vec::new());
    devices(state, &mut found);
    quotas(state, &mut found);
    usage(state, &mut found);
    for lease in state.leases.values() {
        attempts(lease, &mut found);
        gang(lease, &mut found);
        status(lease, &mut found);
        money(lease, &mut found);
    }
    loss(state, &mut found);
    subscriptions(state, &mut found);
    indexes(state, &mut found);
    found.0
}

/// 1: no device is in two live allocations, and the map of holders says what the leases say.
fn devices(state: &State, found: &mut Found) {
    let mut holders: BTreeMap<DeviceId, Holder> = BTreeMap::new();
    for (id, lease) in &state.leases {
        for placement in lease.placements() {
            let epoch = placement.epoch;
            let members = placement.members.iter().filter(|member| !member.released);
            if state.milli_of(*id) < DEVICE_MILLI {
                continue;
            }
            for device in members.flat_map(|member| &member.allocation.devices) {
                let before = holders.insert(*device, Holder { lease: *id, epoch });
                // A later epoch of the same lease may take a device over from an earlier one.
                let twice = before.filter(|other| other.lease != *id || other.epoch >= epoch);
                found.unless(twice.is_none(), 1, || {
                    format!("device {device} is in {twice:?} and in {id}")
                });
            }
        }
    }
    for (id, slot) in &state.devices {
        let held = holders.get(id).copied();
        let what = || format!("device {id} is held by {:?}, its leases say {held:?}", slot.holder);
        found.unless(slot.holder == held, 1, what);
        shares(state, *id, slot.holder.is_some(), found);
        let listed = state
            .nodes
            .get(&slot.node)
            .is_some_and(|node| node.devices.binary_search(id).is_ok());
        found.unless(listed, 1, || {
            format!("device {id} is not in the list of its node {}", slot.node)
        });
    }
}

/// 1: what is held of a device in parts is at most the whole, and nothing when somebody holds the whole.
fn shares(state: &State, id: DeviceId, whole: bool, found: &mut Found) {
    let sharers = state.sharers(id);
    let held: u32 = sharers.iter().map(|sharer| u32::from(sharer.milli)).sum();
    let most = if whole { 0 } else { u32::from(DEVICE_MILLI) };
    found.unless(held <= most, 1, || {
        format!("{held} thousandths of device {id} are held, {most} may be: {sharers:?}")
    });
}

/// 1: what tenants hold is the sum of their live leases.
fn quotas(state: &State, found: &mut Found) {
    let mut held: BTreeMap<&TenantId, u32> = BTreeMap::new();
    for lease in state.live_leases() {
        let sum = held.entry(&lease.requested.tenant).or_default();
        *sum = sum.saturating_add(lease.devices);
    }
    for (name, tenant) in &state.tenants {
        let counted = held.get(name).copied().unwrap_or(0);
        let what = || format!("tenant {name} holds {counted} devices, {} are counted", tenant.held);
        found.unless(counted == tenant.held, 1, what);
    }
}

/// What the queue counts as had by tenants now is the sum of their placements, from the level on that knows of it.
fn usage(state: &State, found: &mut Found) {
    if state.cluster.level < LEVEL {
        return;
    }
    let mut placed: BTreeMap<&TenantId, u32> = BTreeMap::new();
    for lease in state.live_leases() {
        let devices = lease.placement.as_ref().map_or(0, Placement::devices);
        let sum = placed.entry(&lease.requested.tenant).or_default();
        *sum = sum.saturating_add(devices);
    }
    for (name, devices) in placed {
        let counted = state.usage_of(name).devices;
        found.unless(counted == devices, 1, || {
            format!("tenant {name} has {devices} devices in placements, the queue counts {counted}")
        });
    }
}

/// 2: while an attempt may run, nothing of an earlier placement may.
fn attempts(lease: &Lease, found: &mut Found) {
    let runs = |placement: &Placement| placement.members.iter().any(super::state::Member::may_run);
    let id = lease.id();
    let now = lease.placement.as_ref().is_some_and(runs);
    let before = lease.earlier.iter().any(runs);
    found.unless(!(now && before), 2, || format!("{id} may run in two epochs at once"));
    let ordered = lease.placements().map(|placement| placement.epoch);
    found.unless(ordered.is_sorted_by(|a, b| a < b), 2, || {
        format!("the epochs of {id} are not in order")
    });
    let last = lease.placement.as_ref().map_or(0, |placement| placement.epoch.0);
    found.unless(last == lease.epoch.0, 2, || {
        format!("{id} is in epoch {}, its placement in {last}", lease.epoch)
    });
}

/// 3: a placement has every member of its gang.
fn gang(lease: &Lease, found: &mut Found) {
    let request = &lease.requested.request;
    for placement in lease.placements() {
        let devices = placement.devices();
        let whole = (request.devices_min..=request.devices_max).contains(&devices);
        let epoch = placement.epoch;
        found.unless(whole, 3, || {
            format!("epoch {epoch} of {} has {devices} devices", lease.id())
        });
    }
}

/// The one status of a lease and the facts below it agree.
fn status(lease: &Lease, found: &mut Found) {
    let id = lease.id();
    let placement = lease.placement.as_ref();
    let runs = placement.is_some_and(Placement::attempt_runs);
    let activated = placement.is_some_and(|placement| placement.activated);
    let owes = lease
        .placements()
        .any(|placement| placement.members.iter().any(|member| !member.released));
    let agrees = match lease.status {
        LeaseStatus::Pending => placement.is_none(),
        LeaseStatus::Placed => placement.is_some_and(|placement| !placement.given_up) && !runs,
        LeaseStatus::Starting => runs && !activated,
        LeaseStatus::Active => runs && activated && lease.meter.open.is_some_and(|open| open.suspended.is_none()),
        LeaseStatus::Frozen => runs && activated && lease.meter.open.is_some_and(|open| open.suspended.is_some()),
        LeaseStatus::Migrating => placement.is_some(),
        LeaseStatus::Ending(_) => owes,
        LeaseStatus::Ended(_) => !owes,
    };
    found.unless(agrees, 9, || {
        format!("{id} is {:?}, which its members do not bear out", lease.status)
    });
    let metered = matches!(lease.status, LeaseStatus::Active | LeaseStatus::Frozen);
    found.unless(metered || lease.meter.open.is_none(), 8, || {
        format!("{id} is {:?} and still pays", lease.status)
    });
    // A member that may run belongs to an attempt that was accepted.
    let accepted = |placement: &Placement| {
        placement.attempt.0 > 0 || placement.members.iter().all(|member| matches!(member.run, Run::Idle))
    };
    found.unless(lease.placements().all(accepted), 9, || {
        format!("{id} runs without an accepted attempt")
    });
}

/// 7 and 8: lines follow from their own figures and add up; the cap holds.
fn money(lease: &Lease, found: &mut Found) {
    let id = lease.id();
    let mut sum = 0_u64;
    let mut last = None;
    for line in &lease.meter.lines {
        let charged = Span(line.until.since(line.from).0.saturating_sub(line.unpaid.0));
        let amount = amount_micros(charged, line.micros_per_hour);
        let what = || format!("a line of {id} says {} where {amount:?} follows", line.amount_micros);
        found.unless(amount == Some(line.amount_micros), 7, what);
        found.unless(last.is_none_or(|until| until <= line.from), 7, || {
            format!("lines of {id} overlap")
        });
        last = Some(line.until);
        sum = sum.saturating_add(line.amount_micros);
    }
    let total = lease.meter.charged_micros;
    found.unless(sum == total, 7, || {
        format!("the lines of {id} add up to {sum}, not {total}")
    });
    let cap = lease.requested.terms.cap_micros.unwrap_or(u64::MAX);
    found.unless(total <= cap, 8, || format!("{id} costs {total}, its cap is {cap}"));
}

/// 10: a member is lost only while its node is lost, in that generation.
fn loss(state: &State, found: &mut Found) {
    for lease in state.live_leases() {
        let placement = lease.placement.iter();
        for member in placement
            .flat_map(|placement| &placement.members)
            .filter(|member| !member.released)
        {
            let Some(generation) = member.lost else { continue };
            let node = state.nodes.get(&member.allocation.node);
            let lost = node.is_some_and(|node| node.status == NodeStatus::Lost && node.generation == generation);
            let what = || {
                format!(
                    "{} counts node {} as lost, which it is not",
                    lease.id(),
                    member.allocation.node
                )
            };
            found.unless(lost, 10, what);
        }
    }
}

/// 5: nobody has acknowledged what has not happened, and no owner has more subscriptions than are kept.
fn subscriptions(state: &State, found: &mut Found) {
    let mut kept: BTreeMap<Option<&TenantId>, usize> = BTreeMap::new();
    for (key, one) in &state.subscriptions {
        *kept.entry(key.tenant.as_ref()).or_default() += 1;
        let what = || {
            format!(
                "subscription {} acknowledges {} of {}",
                key.subscription, one.acknowledged, state.cluster.cursor
            )
        };
        found.unless(one.acknowledged <= state.cluster.cursor, 5, what);
    }
    let most = kept.values().copied().max().unwrap_or(0);
    found.unless(most <= SUBSCRIPTIONS_MAX, 5, || {
        format!("one owner has {most} subscriptions")
    });
}

/// 5: what is derived from the state is what deriving it anew gives.
fn indexes(state: &State, found: &mut Found) {
    let mut fresh = state.clone();
    fresh.reindex();
    found.unless(fresh.index == state.index, 5, || {
        "an index does not follow from the state".to_owned()
    });
}

#[cfg(test)]
pub(super) mod tests;
