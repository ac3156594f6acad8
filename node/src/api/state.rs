//! `/v1/state`: all that a reader may see of the cluster at one position, to begin a fold of the event stream with.

use axum::extract::State;
use axum::response::Response;
use holdfast_proto::node::NodeStatus;

use super::auth::Caller;
use super::problem::Failure;
use super::read::Reading;
use super::{Api, cluster, gpu, lease, node, tenant};
use crate::wire::state::StateView;

/// Shows everything at one position. A subscriber that was told `compacted` begins anew with this, and reads on after its `cursor`.
#[utoipa::path(get, path = "/v1/state", tag = "cluster",
    params(("at" = Option<u64>, Query, description = "As it was after this entry of the log; now when absent"),
        ("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Everything that the token may see", body = StateView)))]
pub async fn state(State(api): State<Api>, caller: Caller, reading: Reading) -> Result<Response, Failure> {
    let state = &reading.state;
    let leader = api.parts().standing.leadership().leader;
    let nodes = state.nodes.values().filter(|node| node.status != NodeStatus::Removed);
    let leases = state
        .leases
        .values()
        .filter(|lease| caller.sees(&lease.requested.tenant));
    let view = StateView {
        index: state.applied.index,
        cursor: state.cluster.cursor,
        cluster: cluster::view(&api, state).await,
        nodes: nodes.map(|of| node::view(state, of, leader)).collect(),
        gpus: state
            .devices
            .values()
            .map(|slot| gpu::view(state, slot, &caller))
            .collect(),
        tenants: tenant::views(state, &caller),
        leases: leases.map(|of| lease::view(state, of, reading.now)).collect(),
    };
    Ok(reading.answer(&view))
}
