//! The queue: in which order leases wait, so that no tenant waits because another one asks for much.
//!
//! Spot goes after all others: it has what they leave. Priority is an order: no lease goes before one of a higher priority. Within one, work that has lost its place goes first;
//! then whoever has waited for [`AGED_MS`], oldest first; then the tenant that has had least of the cluster lately. What a tenant has had fades
//! with a half-life of [`HALF_LIFE_MS`], and each device that it has, or would have by its own leases before this one,
//! counts as if it had had it for an hour already.
//!
//! Scheduler, API and tests ask here, so that all of them mean the same by a place in the queue. The one rule: integers
//! only, from the state and a time, so that every replica gives the same order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use holdfast_proto::condition::LEVEL;
use holdfast_proto::id::{Epoch, LeaseId, TenantId};
use holdfast_proto::lease::Plan;
use holdfast_proto::time::Timestamp;

use super::state::{Lease, State, Usage, queue_class};

/// In so long, what a tenant has had counts half: 6 hours.
pub const HALF_LIFE_MS: u64 = 6 * 3_600_000;

/// Who has waited so long goes before all younger ones of its priority: 1 hour.
pub const AGED_MS: u64 = 3_600_000;

/// A device that a tenant has counts as if it had had it for this long already: 1 hour.
const HELD_MS: u128 = 3_600_000;

/// The half-life over the natural logarithm of 2, in milliseconds: what a device had for ever comes to.
const MEAN_LIFE_MS: u128 = 31_162_212;

/// One, in the fixed point that factors are counted in.
const ONE: u128 = 1 << 48;

/// The natural logarithm of 2 in that fixed point.
const LN_2: u128 = 195_103_586_505_167;

/// Returns what is left of one after `ms` of fading, in the fixed point of [`ONE`].
fn faded(ms: u64) -> u128 {
    let halves = ms / HALF_LIFE_MS;
    if halves >= 48 {
        return 0;
    }
    // 2^-x = e^-y for the part of a half-life that remains; the series of e^-y is exact to a few units after sixteen terms.
    let y = u128::from(ms % HALF_LIFE_MS) * LN_2 / u128::from(HALF_LIFE_MS);
    let (mut plus, mut minus, mut term) = (ONE, 0, ONE);
    for place in 1..=16 {
        term = term * y / ONE / place;
        match place % 2 {
            1 => minus += term,
            _ => plus += term,
        }
    }
    plus.saturating_sub(minus).min(ONE) >> halves
}

impl Usage {
    /// Returns what the tenant has had by `now`, in device milliseconds that fade.
    #[must_use]
    pub fn had(&self, now: Timestamp) -> u128 {
        let factor = faded(now.since(self.at).0);
        let before = u128::from(self.had) * factor / ONE;
        before + u128::from(self.devices) * MEAN_LIFE_MS * (ONE - factor) / ONE
    }

    /// Notes that the tenant has `now` devices where it had `before`.
    pub(super) fn change(&mut self, before: u32, now: u32, at: Timestamp) {
        self.had = u64::try_from(self.had(at)).unwrap_or(u64::MAX);
        self.at = self.at.max(at);
        self.devices = self.devices.saturating_sub(before).saturating_add(now);
    }

    /// How much the tenant stands back at `now`.
    fn weight(&self, now: Timestamp) -> u128 {
        self.had(now) + u128::from(self.devices) * HELD_MS
    }
}

/// A tenant's next lease in a race of tenants.
type Runner<'a> = Reverse<(u128, LeaseId, &'a TenantId)>;

/// The order as it is made.
struct Order {
    leases: Vec<LeaseId>,
    most: usize,
    /// The place of the lease that is asked about.
    place: Option<usize>,
}

impl Order {
    fn push(&mut self, lease: LeaseId) -> bool {
        self.leases.push(lease);
        self.leases.len() < self.most
    }
}

/// Stands for a lease that is not requested yet: it is younger than all that are.
const NEXT: LeaseId = LeaseId {
    cell: u32::MAX,
    index: u64::MAX,
};

impl State {
    /// Returns the first leases that wait for a placement, at most `most`, in the order of the queue at `now`. Only those
    /// that [`Lease::is_placeable`] may be placed yet.
    #[must_use]
    pub fn queue(&self, now: Timestamp, most: usize) -> Vec<&Arc<Lease>> {
        if self.cluster.level < LEVEL {
            return self.waiting().take(most).collect();
        }
        let order = self.ordered(now, most, None);
        order.leases.iter().filter_map(|lease| self.leases.get(lease)).collect()
    }

    /// Returns how many leases would wait before one that a tenant requested now.
    #[must_use]
    pub fn queue_before(&self, now: Timestamp, tenant: &TenantId, plan: Plan, priority: u8) -> usize {
        if self.cluster.level < LEVEL {
            let class = queue_class(plan, priority, false);
            let before = self.waiting().filter_map(|lease| lease.queue_key());
            return before.filter(|key| key.0 <= class).count();
        }
        let next = (queue_class(plan, priority, false), tenant);
        let order = self.ordered(now, usize::MAX, Some(next));
        order.place.unwrap_or(order.leases.len())
    }

    /// Returns what a tenant has had.
    #[must_use]
    pub fn usage_of(&self, tenant: &TenantId) -> Usage {
        self.usage.get(tenant).copied().unwrap_or_default()
    }

    fn ordered(&self, now: Timestamp, most: usize, next: Option<(u16, &TenantId)>) -> Order {
        let mut order = Order {
            leases: Vec::new(),
            most,
            place: None,
        };
        for (class, tenants) in self.classes(next) {
            let (young, more) = self.aged(class, now, &mut order);
            if !more || !self.race(class, &tenants, young, now, next, &mut order) {
                break;
            }
        }
        order
    }

    /// Tenants whose leases wait, by the order of their priorities.
    fn classes<'a>(&'a self, next: Option<(u16, &'a TenantId)>) -> BTreeMap<u16, Vec<&'a TenantId>> {
        let mut classes: BTreeMap<u16, Vec<&TenantId>> = BTreeMap::new();
        let mut key = self.index.queues.first().map(|(key, ())| key);
        while let Some((class, tenant, _)) = key {
            classes.entry(*class).or_default().push(tenant);
            let beyond = self.index.queues.iter_from(&(*class, tenant.clone(), NEXT)).next();
            key = beyond.map(|(key, ())| key);
        }
        if let Some((class, tenant)) = next {
            let there = classes.entry(class).or_default();
            if !there.contains(&tenant) {
                there.push(tenant);
            }
        }
        classes
    }

    /// Puts those of one class that have waited long or had a place, oldest first. Returns the first id that has not, and whether the
    /// order wants more.
    fn aged(&self, class: u16, now: Timestamp, order: &mut Order) -> (LeaseId, bool) {
        let first = LeaseId { cell: 0, index: 0 };
        for ((other, id), ()) in self.index.waiting.iter_from(&(class, first)) {
            let aged = |lease: &Arc<Lease>| lease.epoch > Epoch(0) || now.since(lease.requested_at).0 >= AGED_MS;
            if *other != class || !self.leases.get(id).is_some_and(aged) {
                return (if *other == class { *id } else { NEXT }, true);
            }
            if !order.push(*id) {
                return (NEXT, false);
            }
        }
        (NEXT, true)
    }

    /// Puts the others of one priority: always the tenant's next that stands back least. Returns whether the order wants
    /// more.
    fn race<'a>(
        &'a self,
        class: u16,
        tenants: &[&'a TenantId],
        young: LeaseId,
        now: Timestamp,
        next: Option<(u16, &TenantId)>,
        order: &mut Order,
    ) -> bool {
        let asks = |tenant: &TenantId| next.is_some_and(|(of, asking)| of == class && asking == tenant);
        let runner = |weight: u128, tenant: &'a TenantId, from: LeaseId| -> Option<Runner<'a>> {
            let mut from = self.index.queues.iter_from(&(class, tenant.clone(), from));
            let own = from
                .next()
                .map(|(key, ())| key)
                .filter(|key| key.0 == class && key.1 == *tenant);
            let id = own.map(|key| key.2).or_else(|| asks(tenant).then_some(NEXT))?;
            Some(Reverse((weight, id, tenant)))
        };
        let mut runners: BinaryHeap<Runner<'a>> = tenants
            .iter()
            .filter_map(|tenant| runner(self.usage_of(tenant).weight(now), tenant, young))
            .collect();
        while let Some(Reverse((weight, id, tenant))) = runners.pop() {
            if id == NEXT {
                order.place = Some(order.leases.len());
                return false;
            }
            if !order.push(id) {
                return false;
            }
            let devices = self.leases.get(&id).map_or(0, |lease| lease.devices);
            let after = LeaseId {
                index: id.index.saturating_add(1),
                ..id
            };
            runners.extend(runner(weight + u128::from(devices) * HELD_MS, tenant, after));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tenant_has_had_fades_by_half_in_each_half_life() {
        assert_eq!(faded(0), ONE);
        for (halves, left) in [(1, ONE / 2), (2, ONE / 4), (10, ONE >> 10)] {
            let exact = faded(halves * HALF_LIFE_MS);
            assert!(exact.abs_diff(left) < 16, "{halves}: {exact}");
        }
        let root = faded(HALF_LIFE_MS / 2);
        assert!((root * root / ONE).abs_diff(ONE / 2) < 64, "{root}");
        assert_eq!(faded(u64::MAX), 0);
    }

    #[test]
    fn it_is_the_same_however_often_it_is_counted_up_to_a_millisecond_each_time() {
        let mut often = Usage::default();
        often.change(0, 8, Timestamp(1_000));
        let once = often;
        for at in (2_000..50_000_000).step_by(500_000) {
            often.change(8, 8, Timestamp(at));
        }
        let end = Timestamp(50_000_000);
        let (often, once) = (often.had(end), once.had(end));
        assert!(once.abs_diff(often) <= 200, "{once} {often}");
        // Never more than devices had for ever come to.
        assert!(once < 8 * MEAN_LIFE_MS);
    }
}
