//! Limits: what bounds a tenant beyond its number of devices, and what its leases have of that.
//!
//! Rules ask here at a request and at a placement, the scheduler before it plans, the API for people. Nothing is kept:
//! what leases have follows from their placements, and from their requests while they wait. The one rule: a limit that
//! is lowered takes nothing from a lease that had a placement; a lease that waits for its first one keeps to it.

use std::collections::BTreeMap;

use holdfast_proto::condition::share_of;
use holdfast_proto::device::ModelName;
use holdfast_proto::id::TenantId;
use holdfast_proto::lease::{Plan, ResourceRequest};
use holdfast_proto::placement::Allocation;
use holdfast_proto::tenant::Limit;

use super::state::{Lease, State};

/// What leases have of what limits bound.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// Devices, by model.
    pub models: BTreeMap<ModelName, u32>,
    /// Micro-units for one hour.
    pub micros_per_hour: u64,
}

impl Used {
    /// Counts more.
    pub fn add(&mut self, more: &Self) {
        for (model, count) in &more.models {
            let sum = self.models.entry(model.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        self.micros_per_hour = self.micros_per_hour.saturating_add(more.micros_per_hour);
    }

    /// Counts less.
    pub fn take(&mut self, less: &Self) {
        for (model, count) in &less.models {
            if let Some(sum) = self.models.get_mut(model) {
                *sum = sum.saturating_sub(*count);
            }
        }
        self.micros_per_hour = self.micros_per_hour.saturating_sub(less.micros_per_hour);
    }

    fn of(&self, model: &ModelName) -> u32 {
        self.models.get(model).copied().unwrap_or(0)
    }
}

/// What a tenant's limits leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Devices of each model that is limited.
    pub models: BTreeMap<ModelName, u32>,
    /// Micro-units for one hour; `None` for any amount.
    pub micros_per_hour: Option<u64>,
}

impl Left {
    /// Returns how many devices of a model are left.
    #[must_use]
    pub fn of(&self, model: &ModelName) -> u32 {
        self.models.get(model).copied().unwrap_or(u32::MAX)
    }

    /// Reports whether so much an hour is left.
    #[must_use]
    pub fn pays(&self, micros_per_hour: u64) -> bool {
        self.micros_per_hour.is_none_or(|left| micros_per_hour <= left)
    }
}

impl State {
    /// Returns what bounds a tenant beyond its number of devices.
    #[must_use]
    pub fn limits_of(&self, tenant: &TenantId) -> &[Limit] {
        self.limits.get(tenant).map_or(&[], |limits| limits)
    }

    /// Returns what a tenant's live leases have of what limits bound.
    #[must_use]
    pub fn used_by(&self, tenant: &TenantId) -> Used {
        let own = self.live_leases().filter(|lease| lease.requested.tenant == *tenant);
        own.fold(Used::default(), |mut sum, lease| {
            sum.add(&self.used(lease));
            sum
        })
    }

    /// Returns what a lease counts for: what it was granted last; until then the least that its request can come to.
    #[must_use]
    pub fn used(&self, lease: &Lease) -> Used {
        let requested = &lease.requested;
        let Some(placement) = &lease.placement else {
            let request = &requested.request;
            let only = match request.models.as_slice() {
                [model] => Some((model.clone(), request.devices_min)),
                _ => None,
            };
            let milli = self.milli_of(lease.id());
            return Used {
                models: only.into_iter().collect(),
                micros_per_hour: self.least_rate(request, requested.terms.plan, requested.tariff, milli),
            };
        };
        let granted = placement.members.iter().map(|member| &member.allocation);
        Used {
            models: self.models_in(granted),
            micros_per_hour: placement.micros_per_hour,
        }
    }

    /// Returns what a lease would count for with these allocations.
    #[must_use]
    pub fn used_with(&self, lease: &Lease, allocations: &[Allocation]) -> Used {
        let models = self.models_in(allocations.iter());
        let (plan, tariff) = (lease.requested.terms.plan, lease.requested.tariff);
        let price = |model: &ModelName| self.price(tariff, model, plan).unwrap_or(0);
        let whole = models.iter().fold(0_u64, |sum, (model, count)| {
            sum.saturating_add(price(model).saturating_mul((*count).into()))
        });
        Used {
            micros_per_hour: share_of(whole, self.milli_of(lease.id())),
            models,
        }
    }

    fn models_in<'a>(&self, allocations: impl Iterator<Item = &'a Allocation>) -> BTreeMap<ModelName, u32> {
        let mut models: BTreeMap<ModelName, u32> = BTreeMap::new();
        let devices = allocations.flat_map(|allocation| &allocation.devices);
        for slot in devices.filter_map(|device| self.devices.get(device)) {
            *models.entry(slot.device.model.clone()).or_default() += 1;
        }
        models
    }

    /// Returns the least that a request costs for one hour: the fewest devices, of the cheapest model that it accepts.
    #[must_use]
    pub fn least_rate(&self, request: &ResourceRequest, plan: Plan, tariff: u32, milli: u16) -> u64 {
        let accepts = |model: &&ModelName| request.models.is_empty() || request.models.contains(model);
        let present = self.models();
        let prices = present
            .iter()
            .filter(accepts)
            .filter_map(|model| self.price(tariff, model, plan));
        let whole = prices.min().unwrap_or(0).saturating_mul(request.devices_min.into());
        share_of(whole, milli)
    }

    /// Returns what a tenant's limits leave for `lease`, or for a new one, when its leases together have `used`.
    #[must_use]
    pub fn left(&self, tenant: &TenantId, used: &Used, lease: Option<&Lease>) -> Left {
        let own = lease.map(|lease| self.used(lease)).unwrap_or_default();
        let mut others = used.clone();
        others.take(&own);
        let had = match lease.is_some_and(|lease| lease.placement.is_some()) {
            true => own,
            false => Used::default(),
        };
        let mut left = Left {
            models: BTreeMap::new(),
            micros_per_hour: None,
        };
        for limit in self.limits_of(tenant) {
            match limit {
                Limit::Model(limit) => {
                    let free = limit.devices_max.saturating_sub(others.of(&limit.model));
                    left.models.insert(limit.model.clone(), free.max(had.of(&limit.model)));
                }
                Limit::Spend(limit) => {
                    let free = |most: u64| most.saturating_sub(others.micros_per_hour).max(had.micros_per_hour);
                    left.micros_per_hour = limit.micros_per_hour_max.map(free);
                }
            }
        }
        left
    }
}
