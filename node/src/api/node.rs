//! `/v1/nodes`: who is there, and keeping work away from one.

use axum::extract::{Path, State};
use axum::response::Response;
use holdfast_proto::command::Command;
use holdfast_proto::id::NodeId;
use holdfast_proto::node::NodeStatus;
use holdfast_proto::rejection::Rejection;
use holdfast_storage::machine::state::{Node, State as Machine};

use super::Api;
use super::auth::Caller;
use super::body::{Named, Posted};
use super::command::issue;
use super::problem::Failure;
use super::read::Reading;
use crate::wire::cluster::{Applied, LEADER_SILENT_MS};
use crate::wire::node::{CordonOrder, NodeList, NodeView};

/// Lists nodes, removed ones apart.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes",
    params(("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Nodes", body = NodeList)))]
pub async fn list(State(api): State<Api>, reading: Reading) -> Result<Response, Failure> {
    let state = &reading.state;
    let leadership = api.parts().standing.leadership();
    // The last leader stays named; one that is not heard is not said to lead.
    let heard = leadership.heard_ms_ago.is_some_and(|silent| silent <= LEADER_SILENT_MS);
    let leader = leadership.leader.filter(|_| heard);
    let present = state.nodes.values().filter(|node| node.status != NodeStatus::Removed);
    let mut nodes: Vec<NodeView> = present.map(|node| view(state, node, leader)).collect();
    nodes.sort_by(|left, right| left.label.cmp(&right.label));
    Ok(reading.answer(&NodeList { nodes }))
}

/// Keeps new work away from a node.
#[utoipa::path(post, path = "/v1/nodes/{node}/cordon", tag = "nodes", request_body = CordonOrder,
    params(("node" = String, Path, description = "Its id or label")),
    responses((status = 200, description = "It takes no new work", body = Applied)))]
pub async fn cordon(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(name): Path<String>,
    Posted(order): Posted<CordonOrder>,
) -> Result<Response, Failure> {
    let node = find(&api.parts().committed.state(), &name)?;
    let command = Command::CordonNode {
        node,
        cordoned: true,
        reason: order.reason,
    };
    Ok(issue(&api, &caller, request, command).await?.applied())
}

/// Lets new work in again.
#[utoipa::path(post, path = "/v1/nodes/{node}/uncordon", tag = "nodes",
    params(("node" = String, Path, description = "Its id or label")),
    responses((status = 200, description = "It takes work", body = Applied)))]
pub async fn uncordon(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(name): Path<String>,
) -> Result<Response, Failure> {
    let node = find(&api.parts().committed.state(), &name)?;
    let command = Command::CordonNode {
        node,
        cordoned: false,
        reason: String::new(),
    };
    Ok(issue(&api, &caller, request, command).await?.applied())
}

/// Takes a node out for good.
#[utoipa::path(delete, path = "/v1/nodes/{node}", tag = "nodes",
    params(("node" = String, Path, description = "Its id or label")),
    responses((status = 200, description = "It is removed", body = Applied)))]
pub async fn remove(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(name): Path<String>,
) -> Result<Response, Failure> {
    let node = find(&api.parts().committed.state(), &name)?;
    let removed = issue(&api, &caller, request, Command::RemoveNode { node }).await;
    Ok(removed.map_err(guided)?.applied())
}

/// What to do about a node that votes: the vote moves by itself, but only away from a node that is gone.
fn guided(failure: Failure) -> Failure {
    match &failure.problem().rejection {
        Some(Rejection::NodeInUse { holds, .. }) if holds == "votes" => failure.saying(
            ": stop its daemon and wait until `holdfast nodes` shows it as lost and another node as voter (where none could vote instead, join one first); then remove it",
        ),
        _ => failure,
    }
}

/// The node with this id, or with this label among those present.
pub fn find(state: &Machine, name: &str) -> Result<NodeId, Failure> {
    if let Ok(node) = name.parse::<NodeId>() {
        return match state.nodes.contains_key(&node) {
            true => Ok(node),
            false => Err(Failure::refused(Rejection::NodeUnknown { node }, None)),
        };
    }
    let labelled =
        |node: &&std::sync::Arc<Node>| node.status != NodeStatus::Removed && node.spec.label.as_str() == name;
    state
        .nodes
        .values()
        .find(labelled)
        .map(|node| node.spec.node)
        .ok_or_else(|| {
            let shown: String = name
                .chars()
                .take(64)
                .map(|c| if c.is_control() { '\u{fffd}' } else { c })
                .collect();
            let detail = format!("there is no node `{shown}`; `holdfast nodes` lists them");
            Failure::new(axum::http::StatusCode::NOT_FOUND, "node-unknown", detail)
        })
}

/// A node as clients see it.
pub fn view(state: &Machine, node: &Node, leader: Option<NodeId>) -> NodeView {
    let id = node.spec.node;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let inventory = node.inventory.as_ref();
    NodeView {
        id,
        label: node.spec.label.clone(),
        zone: node.spec.zone.clone(),
        role: node.spec.role,
        status: node.status,
        since_ms: node.since.0,
        address: node.spec.address.to_string(),
        voter: state.cluster.voters.contains(&id),
        leader: leader == Some(id),
        cordoned: node.cordoned.clone(),
        devices: count(state.devices_of(id).count()),
        devices_free: count(state.heard_free(id).count()),
        cpu_milli: inventory.map_or(0, |inventory| inventory.cpu_milli),
        memory_mib: inventory.map_or(0, |inventory| inventory.memory_mib),
        isolation: inventory.map(|inventory| inventory.isolation),
        simulated: inventory.is_some_and(|inventory| inventory.simulated),
        version: inventory.map(|inventory| inventory.version.clone()),
        launch_failures: node.launch_failures,
        clock_offset_ms: node.clock_offset_ms,
    }
}
