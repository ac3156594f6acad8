//! `/v1/queue`: who waits, in the order in which they are planned, and what tenants have had.
//!
//! The one rule: a place counts all that wait; whose lease is on another place, and why, only those see who may see the lease.

use std::collections::BTreeMap;

use axum::response::Response;
use holdfast_proto::id::TenantId;
use holdfast_storage::machine::state::State as Machine;

use super::auth::Caller;
use super::problem::Failure;
use super::read::Reading;
use crate::wire::queue::{QueueLease, QueueTenant, QueueView};

/// Leases of the queue that are listed at most.
const LISTED_MAX: usize = 1_000;

/// Lists the leases that wait, first ones first.
#[utoipa::path(get, path = "/v1/queue", tag = "leases",
    params(("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Who waits", body = QueueView)))]
pub async fn queue(caller: Caller, reading: Reading) -> Result<Response, Failure> {
    let state = &reading.state;
    let queue = state.queue(state.applied.stamp, usize::MAX);
    let mut waits: BTreeMap<&TenantId, u32> = BTreeMap::new();
    for lease in &queue {
        *waits.entry(&lease.requested.tenant).or_default() += 1;
    }
    let row = |(place, lease): (u32, &&std::sync::Arc<holdfast_storage::machine::state::Lease>)| QueueLease {
        place,
        lease: lease.id(),
        tenant: lease.requested.tenant.clone(),
        devices: lease.requested.request.devices_min,
        models: lease.requested.request.models.clone(),
        plan: lease.requested.terms.plan,
        priority: lease.requested.terms.priority,
        requested_ms: lease.requested_at.0,
        waits_because: lease.reason.clone(),
    };
    let seen = (1..)
        .zip(&queue)
        .filter(|(_, lease)| caller.sees(&lease.requested.tenant));
    Ok(reading.answer(&QueueView {
        waiting: u32::try_from(queue.len()).unwrap_or(u32::MAX),
        leases: seen.map(row).take(LISTED_MAX).collect(),
        tenants: tenants(state, &caller, &waits),
    }))
}

/// What tenants that wait, or have or had devices, come to.
fn tenants(state: &Machine, caller: &Caller, waits: &BTreeMap<&TenantId, u32>) -> Vec<QueueTenant> {
    let now = state.applied.stamp;
    let all = state.tenants.keys().filter(|tenant| caller.sees(tenant));
    let row = |tenant: &TenantId| {
        let usage = state.usage_of(tenant);
        QueueTenant {
            tenant: tenant.clone(),
            waiting: waits.get(tenant).copied().unwrap_or(0),
            devices: usage.devices,
            had_device_ms: u64::try_from(usage.had(now)).unwrap_or(u64::MAX),
        }
    };
    all.map(row)
        .filter(|row| row.waiting > 0 || row.devices > 0 || row.had_device_ms > 0)
        .collect()
}
