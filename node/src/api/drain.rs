//! `/v1/nodes/{node}/drain`: empties a node, and tells how far that is.
//!
//! The one rule: a node is called drained when the log has every lease's proof of its end there, and not before.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use holdfast_proto::command::Command;
use holdfast_proto::rejection::status_name;
use holdfast_proto::time::Span;
use holdfast_storage::machine::state::Lease;

use super::Api;
use super::auth::Caller;
use super::body::{Named, Posted};
use super::command::issue;
use super::node::find;
use super::problem::Failure;
use super::read::Reading;
use crate::scheduler::drain::{Leaving, leaving};
use crate::wire::cluster::Applied;
use crate::wire::node::{DrainLease, DrainOrder, DrainView};
use crate::wire::problem::code;

/// Empties a node: it takes no new work, leases with a saved state move when there is a place for them, and all others at
/// the deadline. Asked again, it sets the deadline anew; `uncordon` calls it off.
#[utoipa::path(post, path = "/v1/nodes/{node}/drain", tag = "nodes", request_body = DrainOrder,
    params(("node" = String, Path, description = "Its id or label")),
    responses((status = 200, description = "It is being emptied", body = Applied)))]
pub async fn drain(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(name): Path<String>,
    Posted(order): Posted<DrainOrder>,
) -> Result<Response, Failure> {
    let node = find(&api.parts().committed.state(), &name)?;
    let command = Command::DrainNode {
        node,
        span: Span(order.deadline_ms),
        reason: order.reason,
    };
    Ok(issue(&api, &caller, request, command).await?.applied())
}

/// Shows how far the emptying of a node is.
#[utoipa::path(get, path = "/v1/nodes/{node}/drain", tag = "nodes",
    params(("node" = String, Path, description = "Its id or label"),
        ("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "How far it is", body = DrainView)))]
pub async fn drained(reading: Reading, Path(name): Path<String>) -> Result<Response, Failure> {
    let state = &reading.state;
    let node = find(state, &name)?;
    let label = state.nodes.get(&node).map(|node| node.spec.label.to_string());
    let label = label.unwrap_or_default();
    let Some(drain) = state.drains.get(&node) else {
        let detail = format!("node {label} is not being drained; `holdfast node drain {label}` begins it");
        return Err(Failure::new(StatusCode::NOT_FOUND, code::NOT_DRAINED, detail));
    };
    let leases = state.leases_on(node);
    let leases = leases.iter().filter_map(|lease| state.leases.get(lease));
    Ok(reading.answer(&DrainView {
        node,
        label,
        since_ms: drain.since.0,
        until_ms: drain.until.0,
        drained_ms: drain.drained.map(|at| at.0),
        leases: leases.map(|lease| row(lease)).collect(),
    }))
}

fn row(lease: &Lease) -> DrainLease {
    DrainLease {
        lease: lease.id(),
        tenant: lease.requested.tenant.clone(),
        status: status_name(lease.status).to_owned(),
        leaves: match leaving(lease) {
            Leaving::Stops => "stops",
            Leaving::WhenPlaced => "when-placed",
            Leaving::AtDeadline => "at-deadline",
        }
        .to_owned(),
        checkpoint_step: lease.checkpoints.last().map(|checkpoint| checkpoint.step),
    }
}
