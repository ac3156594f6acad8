//! `/v1/previews` and `/v1/leases/{lease}/preview`: what would come of an order or of a lease that waits, planned now.
//!
//! The one rule: nothing is granted, kept or written by asking.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use holdfast_proto::id::LeaseId;
use holdfast_proto::rejection::Rejection;
use holdfast_storage::machine::state::State as Machine;

use super::Api;
use super::auth::Caller;
use super::body::Posted;
use super::lease::{conditions, resources, tenant_of};
use super::problem::Failure;
use super::quote::{price, unpriced};
use super::read::{Reading, fresh};
use crate::scheduler::explain::{self, Explanation, models_of};
use crate::wire::lease::LeaseOrder;
use crate::wire::preview::{Preview, PreviewMember, Removed};

/// Plans an order. Nothing is granted by it.
#[utoipa::path(post, path = "/v1/previews", tag = "leases", request_body = LeaseOrder,
    responses((status = 200, description = "What would come of it", body = Preview)))]
pub async fn preview(
    State(api): State<Api>,
    caller: Caller,
    Posted(order): Posted<LeaseOrder>,
) -> Result<Response, Failure> {
    let tenant = tenant_of(&caller, order.tenant.clone())?;
    let reading = fresh(&api).await?;
    // What can never be placed, or has no price, is refused as the order itself would be.
    price(&reading.state, &order).map_err(|rejection| unpriced(&reading.state, order.clone(), rejection))?;
    let (plan, priority) = (order.plan, order.priority);
    let conditions = conditions(&order);
    let explanation = explain::order(&reading.state, &tenant, &resources(order), &conditions, plan);
    let now = reading.state.applied.stamp;
    let before = reading.state.queue_before(now, &tenant, plan, priority);
    let preview = told(&reading.state, explanation, before);
    let mut response = (StatusCode::OK, axum::Json(&preview)).into_response();
    reading.mark(&mut response);
    Ok(response)
}

/// Plans a lease that waits, and says what keeps it.
#[utoipa::path(get, path = "/v1/leases/{lease}/preview", tag = "leases",
    params(("lease" = String, Path, description = "Its id"),
        ("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "What would come of it now", body = Preview)))]
pub async fn of_lease(caller: Caller, reading: Reading, Path(id): Path<String>) -> Result<Response, Failure> {
    let state = &reading.state;
    let lease = caller.lease(state, &id)?;
    let Some(before) = place_of(state, lease.id()) else {
        let needed = "only a lease that waits is planned";
        let rejection = Rejection::LeaseState {
            lease: lease.id(),
            status: lease.status,
            needed: needed.to_owned(),
        };
        return Err(Failure::refused(rejection, None));
    };
    Ok(reading.answer(&told(state, explain::lease(state, lease), before)))
}

/// How many leases wait before one that waits.
fn place_of(state: &Machine, lease: LeaseId) -> Option<usize> {
    let queue = state.queue(state.applied.stamp, usize::MAX);
    queue.iter().position(|waiting| waiting.id() == lease)
}

fn told(state: &Machine, explanation: Explanation, before: usize) -> Preview {
    let member = |allocation: &holdfast_proto::placement::Allocation| {
        let node = state.nodes.get(&allocation.node)?;
        Some(PreviewMember {
            node: node.spec.label.to_string(),
            zone: node.spec.zone.clone(),
            devices: u32::try_from(allocation.devices.len()).unwrap_or(u32::MAX),
            models: models_of(state, allocation),
        })
    };
    let removed = explanation.removed.iter().map(|(what, nodes)| Removed {
        what: (*what).to_owned(),
        nodes: *nodes,
    });
    Preview {
        fits: explanation.reason.is_none(),
        members: explanation.allocations.iter().filter_map(member).collect(),
        reason: explanation.reason.map(|reason| reason.to_string()),
        nodes: explanation.nodes,
        removed: removed.collect(),
        largest: explanation.largest,
        earliest_ms: explanation.earliest.map(|at| at.0),
        before: u32::try_from(before).unwrap_or(u32::MAX),
    }
}
