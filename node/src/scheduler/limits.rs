//! What a tenant's limits leave for a lease that waits: which models it may get, and how many devices.
//!
//! The scheduler asks before it plans, so that what the rules would refuse is not proposed. The one rule: it leaves out
//! what `decide` refuses and nothing else, but for a gang of mixed models, which must fit what is left of each.

use std::collections::BTreeMap;

use holdfast_proto::condition::share_of;
use holdfast_proto::device::ModelName;
use holdfast_proto::id::TenantId;
use holdfast_proto::lease::Plan;
use holdfast_proto::placement::Allocation;
use holdfast_storage::machine::State;
use holdfast_storage::machine::quota::{Left, Used};
use holdfast_storage::machine::state::Lease;

use super::plan::Ask;
use super::reason::Reason;

/// What the tenants with limits have, as plans are made.
#[derive(Debug, Clone, Default)]
pub(super) struct Limits {
    used: BTreeMap<TenantId, Used>,
}

impl Limits {
    /// Narrows what a lease may get to what its tenant's limits leave.
    pub(super) fn narrow(&mut self, state: &State, lease: &Lease, ask: &mut Ask<'_>) -> Result<(), Reason> {
        let requested = &lease.requested;
        let tenant = &requested.tenant;
        if state.limits_of(tenant).is_empty() {
            return Ok(());
        }
        let used = self.used.entry(tenant.clone()).or_insert_with(|| state.used_by(tenant));
        let left = state.left(tenant, used, Some(lease));
        narrow(state, tenant, &left, (requested.terms.plan, requested.tariff), ask)
    }

    /// Counts what a plan grants.
    pub(super) fn granted(&mut self, state: &State, lease: &Lease, allocations: &[Allocation]) {
        if let Some(used) = self.used.get_mut(&lease.requested.tenant) {
            used.take(&state.used(lease));
            used.add(&state.used_with(lease, allocations));
        }
    }
}

/// Narrows what an order may get to what its tenant's limits leave.
pub(super) fn order(state: &State, tenant: &TenantId, plan: Plan, ask: &mut Ask<'_>) -> Result<(), Reason> {
    if state.limits_of(tenant).is_empty() {
        return Ok(());
    }
    let left = state.left(tenant, &state.used_by(tenant), None);
    narrow(state, tenant, &left, (plan, state.cluster.tariff), ask)
}

fn narrow(
    state: &State,
    tenant: &TenantId,
    left: &Left,
    (plan, tariff): (Plan, u32),
    ask: &mut Ask<'_>,
) -> Result<(), Reason> {
    let least = ask.request.devices_min;
    let rate = |model: &ModelName, devices: u32| {
        let price = state.price(tariff, model, plan).unwrap_or(0);
        share_of(price.saturating_mul(devices.into()), ask.milli)
    };
    let may = |model: &ModelName, devices: u32| devices <= left.of(model) && left.pays(rate(model, devices));
    let models: Vec<ModelName> = ask.models.iter().filter(|model| may(model, least)).cloned().collect();
    if models.is_empty() && !ask.models.is_empty() {
        let bound = ask.models.iter().filter(|model| left.models.contains_key(*model));
        return Err(Reason::Limited {
            tenant: tenant.clone(),
            asked: least,
            models: bound.map(|model| (model.clone(), left.of(model))).collect(),
            micros_left: left.micros_per_hour,
        });
    }
    // More than the fewest only as far as every model that may be granted allows it.
    let mut more = (least..=ask.devices_max).rev();
    let most = more.find(|devices| models.iter().all(|model| may(model, *devices)));
    ask.devices_max = most.unwrap_or(ask.devices_max);
    ask.models = models;
    Ok(())
}
