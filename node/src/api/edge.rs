//! What every request passes before its endpoint: how many at once, how long, and the headers that every answer has.
//!
//! The one rule: nothing that a client does, or leaves undone, holds more of this node than the limits say.

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use holdfast_storage::machine::state::State as Machine;

use super::Api;
use super::problem::Failure;
use crate::wire::problem::code;
use crate::wire::{NODES, SERVED_BY};

/// Most nodes that an answer names.
const NODES_NAMED_MAX: usize = 7;

/// Serves within the limits, counts, and says who served.
pub async fn bound(State(api): State<Api>, request: Request, next: Next) -> Response {
    let path = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("none", MatchedPath::as_str)
        .to_owned();
    let method = request.method().clone();
    let mut response = serve(&api, request, next).await;
    api.requests.count(&method, &path, response.status());

    let parts = api.parts();
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&parts.node.to_string()) {
        headers.insert(SERVED_BY, value);
    }
    if response.status() != StatusCode::UNAUTHORIZED
        && path.starts_with("/v1/")
        && let Ok(value) = HeaderValue::from_str(&reached(&parts.committed.state()))
    {
        response.headers_mut().insert(NODES, value);
    }
    response
}

async fn serve(api: &Api, request: Request, next: Next) -> Response {
    let Ok(_permit) = api.in_flight.try_acquire() else {
        return busy().into_response();
    };
    let writes = request.method() != Method::GET;
    match tokio::time::timeout(api.limits().request_timeout, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = match writes {
                true => "the request took too long and may still take effect; send it again with the same request id",
                false => "the request took too long",
            };
            let code = if writes { code::OUTCOME_UNKNOWN } else { code::TIMED_OUT };
            Failure::new(StatusCode::GATEWAY_TIMEOUT, code, detail).into_response()
        }
    }
}

/// Keeps answers out of caches and browsers' guesses.
pub async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The answer of a node that serves as much as it may.
pub(super) fn busy() -> Failure {
    let detail = "this node serves as many requests as it may; try again, or at another node";
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, code::BUSY, detail)
}

/// Where the voters are reached.
pub(super) fn voters(state: &Machine) -> impl Iterator<Item = String> + '_ {
    let voters = state.cluster.voters.iter().filter_map(|id| state.nodes.get(id));
    voters.take(NODES_NAMED_MAX).map(|node| node.spec.address.to_string())
}

fn reached(state: &Machine) -> String {
    voters(state).collect::<Vec<_>>().join(",")
}
