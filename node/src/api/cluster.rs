//! `/v1/cluster`, notes and prices.

use axum::extract::State;
use axum::response::Response;
use holdfast_proto::command::Command;
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::node::NodeStatus;
use holdfast_proto::tariff::Tariff;
use holdfast_storage::machine::state::State as Machine;

use super::Api;
use super::auth::Caller;
use super::body::{Named, Posted};
use super::command::issue;
use super::problem::Failure;
use super::read::Reading;
use crate::wire::cluster::{Applied, ClusterView, NoteOrder, TariffView};

/// Says how the cluster is.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster",
    params(("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "The cluster", body = ClusterView)))]
pub async fn status(State(api): State<Api>, reading: Reading) -> Result<Response, Failure> {
    Ok(reading.answer(&view(&api, &reading.state).await))
}

/// The cluster as clients see it. Who leads and what the disk holds is of now: the log does not say.
pub async fn view(api: &Api, state: &Machine) -> ClusterView {
    let leadership = api.parts().standing.leadership();
    let footprint = api.parts().footprint.clone();
    let disk = tokio::task::spawn_blocking(move || footprint.measure())
        .await
        .unwrap_or_default();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let live = || state.leases.values().filter(|lease| !lease.status.is_ended());
    ClusterView {
        id: state.cluster.id,
        era: state.cluster.era.0,
        machine_level: state.cluster.level,
        leader: leadership.leader,
        term: leadership.term,
        leader_heard_ms_ago: leadership.heard_ms_ago,
        voters: state.cluster.voters.clone(),
        nodes: count(
            state
                .nodes
                .values()
                .filter(|node| node.status != NodeStatus::Removed)
                .count(),
        ),
        nodes_ready: count(
            state
                .nodes
                .values()
                .filter(|node| node.status == NodeStatus::Ready)
                .count(),
        ),
        devices: count(state.devices.len()),
        devices_free: count(
            state
                .present_nodes()
                .map(|node| state.heard_free(node.spec.node).count())
                .sum(),
        ),
        leases: count(live().count()),
        leases_pending: count(live().filter(|lease| lease.status == LeaseStatus::Pending).count()),
        applied: state.applied.index,
        time_ms: state.applied.stamp.0,
        cursor: state.cluster.cursor,
        currency: currency_of(state, state.cluster.tariff),
        served_by: api.parts().node,
        disk,
    }
}

/// Writes a note into the log, for people and programs.
#[utoipa::path(post, path = "/v1/notes", tag = "cluster", request_body = NoteOrder,
    params(("Holdfast-Request-Id" = Option<String>, Header, description = "Names the request; a retry with it writes no second note")),
    responses((status = 200, description = "It is written", body = Applied)))]
pub async fn note(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Posted(order): Posted<NoteOrder>,
) -> Result<Response, Failure> {
    let command = Command::Annotate {
        subject: order.subject,
        text: order.text,
    };
    Ok(issue(&api, &caller, request, command).await?.applied())
}

/// Shows the prices in force.
#[utoipa::path(get, path = "/v1/tariff", tag = "cluster",
    params(("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Prices", body = TariffView)))]
pub async fn tariff(reading: Reading) -> Result<Response, Failure> {
    let present = reading.state.tariffs.get(&reading.state.cluster.tariff);
    let tariff = present.map(|tariff| Tariff::clone(tariff)).unwrap_or_else(|| Tariff {
        version: 0,
        currency: String::new(),
        prices: Vec::new(),
    });
    Ok(reading.answer(&TariffView { tariff }))
}

/// Changes the prices for leases requested from now on.
#[utoipa::path(put, path = "/v1/tariff", tag = "cluster", request_body = TariffView,
    responses((status = 200, description = "They are in force", body = Applied)))]
pub async fn set_tariff(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Posted(order): Posted<TariffView>,
) -> Result<Response, Failure> {
    Ok(issue(&api, &caller, request, Command::SetTariff(order.tariff))
        .await?
        .applied())
}

/// The currency of a tariff; empty when there is none.
pub fn currency_of(state: &Machine, tariff: u32) -> String {
    let known = state
        .tariffs
        .get(&tariff)
        .or_else(|| state.tariffs.get(&state.cluster.tariff));
    known.map(|tariff| tariff.currency.clone()).unwrap_or_default()
}
