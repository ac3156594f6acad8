//! `/v1/tenants`: who pays, and how much each may hold.

use axum::extract::{Path, State};
use axum::response::Response;
use holdfast_proto::command::Command;
use holdfast_proto::id::TenantId;
use holdfast_proto::tenant::Quota;
use holdfast_storage::machine::state::State as Machine;

use super::Api;
use super::auth::Caller;
use super::body::{Named, Posted};
use super::command::issue;
use super::problem::Failure;
use super::read::{Reading, fresh};
use crate::wire::cluster::Applied;
use crate::wire::token::{TenantList, TenantOrder, TenantView};

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
    let views = seen.map(|(name, tenant)| TenantView {
        tenant: name.clone(),
        devices_max: Some(tenant.quota.devices_max).filter(|most| *most != u32::MAX),
        devices_held: tenant.held,
    });
    views.collect()
}
