//! `/v1/tenants`: who pays, and how much each may hold.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::response::Response;
use holdfast_proto::command::Command;
use holdfast_proto::id::{Name, TenantId};
use holdfast_proto::tenant::{Limit, ModelLimit, Quota, SpendLimit};
use holdfast_storage::machine::quota::Used;
use holdfast_storage::machine::state::State as Machine;

use super::Api;
use super::auth::Caller;
use super::body::{Named, Posted};
use super::command::issue;
use super::problem::Failure;
use super::read::{Reading, fresh};
use crate::wire::cluster::Applied;
use crate::wire::token::{LimitsOrder, ModelLimitView, TenantList, TenantOrder, TenantView};

/// Creates a tenant, or changes what it may hold.
#[utoipa::path(put, path = "/v1/tenants/{tenant}", tag = "tenants", request_body = TenantOrder,
    params(("tenant" = String, Path, description = "Its name")),
    responses((status = 200, description = "It may hold that much", body = Applied)))]
pub async fn set(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(name): Path<String>,
    Posted(order): Posted<TenantOrder>,
) -> Result<Response, Failure> {
    let tenant: TenantId = name.parse()?;
    let devices_max = match order.devices_max {
        Some(said) => said.unwrap_or(u32::MAX),
        // What was not named stays as it is.
        None => {
            let present = fresh(&api).await?.state.tenants.get(&tenant).map(|known| known.quota);
            present.map_or(u32::MAX, |quota| quota.devices_max)
        }
    };
    let quota = Quota { devices_max };
    let command = Command::SetTenant { tenant, quota };
    Ok(issue(&api, &caller, request, command).await?.applied())
}

/// Bounds what a tenant may have of single models, and spend in an hour. What is not named stays as it is.
#[utoipa::path(put, path = "/v1/tenants/{tenant}/limits", tag = "tenants", request_body = LimitsOrder,
    params(("tenant" = String, Path, description = "Its name")),
    responses((status = 200, description = "The limits are in force", body = Applied)))]
pub async fn limit(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(name): Path<String>,
    Posted(order): Posted<LimitsOrder>,
) -> Result<Response, Failure> {
    let models = order.models.into_iter().map(|(model, most)| {
        Limit::Model(Box::new(ModelLimit {
            model,
            devices_max: most.unwrap_or(u32::MAX),
        }))
    });
    let spend = order
        .micros_per_hour_max
        .map(|micros_per_hour_max| Limit::Spend(Box::new(SpendLimit { micros_per_hour_max })));
    let command = Command::SetLimits {
        tenant: name.parse()?,
        limits: models.chain(spend).collect(),
    };
    Ok(issue(&api, &caller, request, command).await?.applied())
}

/// Lists tenants; a tenant sees itself.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants",
    params(("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Tenants", body = TenantList)))]
pub async fn list(caller: Caller, reading: Reading) -> Result<Response, Failure> {
    let tenants = views(&reading.state, &caller);
    Ok(reading.answer(&TenantList { tenants }))
}

/// The tenants that `caller` sees.
pub fn views(state: &Machine, caller: &Caller) -> Vec<TenantView> {
    let seen = state.tenants.iter().filter(|(name, _)| caller.sees(name));
    // One pass over all leases, however many tenants there are.
    let mut used: BTreeMap<&TenantId, Used> = BTreeMap::new();
    for lease in state.live_leases() {
        used.entry(&lease.requested.tenant).or_default().add(&state.used(lease));
    }
    let views = seen.map(|(name, tenant)| {
        let used = used.remove(name).unwrap_or_default();
        let held = |model: &Name| used.models.get(model).copied().unwrap_or(0);
        let limits = state.limits_of(name);
        let model = |limit: &Limit| match limit {
            Limit::Model(limit) => Some(ModelLimitView {
                model: limit.model.clone(),
                devices_max: limit.devices_max,
                devices_held: held(&limit.model),
            }),
            Limit::Spend(_) => None,
        };
        let spend = |limit: &Limit| match limit {
            Limit::Spend(limit) => limit.micros_per_hour_max,
            Limit::Model(_) => None,
        };
        TenantView {
            tenant: name.clone(),
            devices_max: Some(tenant.quota.devices_max).filter(|most| *most != u32::MAX),
            devices_held: tenant.held,
            models: limits.iter().filter_map(model).collect(),
            micros_per_hour_max: limits.iter().find_map(spend),
            micros_per_hour: used.micros_per_hour,
        }
    });
    views.collect()
}
