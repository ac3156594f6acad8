//! `/v1/join`: a machine with a join token becomes a node.
//!
//! The endpoint takes no access token: the join token in the body is checked by the log, which also uses it up. Everything that makes
//! the machine a node is behind [`super::seam::Admit`]. A node without the authority's key passes the request on to a voter, over TLS
//! that is checked against the cluster's authority; the one rule: a request that was passed on once is not passed on again.

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::Api;
use super::body::{Named, Posted};
use super::forward;
use super::problem::Failure;
use super::seam::AdmitError;
use crate::join::JoinRequest;
use crate::wire::FORWARDED;
use crate::wire::problem::code;

/// Admits a machine that shows a join token, once.
#[utoipa::path(post, path = "/v1/join", tag = "nodes", request_body = Object,
    responses((status = 200, description = "Its certificate, and the nodes to begin with", body = Object)))]
pub async fn join(
    State(api): State<Api>,
    Named(request): Named,
    headers: HeaderMap,
    Posted(order): Posted<JoinRequest>,
) -> Result<Response, Failure> {
    match api.parts().admit.admit(order.clone()).await {
        Ok(answer) => Ok(Json(answer).into_response()),
        Err(AdmitError::Refused { rejection, index }) => Err(Failure::refused(rejection, Some(index))),
        Err(AdmitError::Malformed { reason }) => Err(Failure::bad_request(reason)),
        Err(AdmitError::Unknown { reason }) => Err(Failure::unknown(request, &reason)),
        Err(AdmitError::NotHere) if !headers.contains_key(FORWARDED) => passed_on(&api, &order).await,
        Err(error @ AdmitError::NotHere) => Err(Failure::new(
            StatusCode::MISDIRECTED_REQUEST,
            code::NOT_HERE,
            error.to_string(),
        )),
    }
}

/// Has a voter admit the machine: its answer, or why none could be asked.
async fn passed_on(api: &Api, order: &JoinRequest) -> Result<Response, Failure> {
    let state = api.parts().committed.state();
    let others = state.cluster.voters.iter().filter(|voter| **voter != api.parts().node);
    let addresses: Vec<String> = others
        .filter_map(|voter| state.nodes.get(voter))
        .map(|voter| voter.spec.address.to_string())
        .collect();
    for address in &addresses {
        let Ok(answer) = forward::admission(&api.parts().peers, address, order).send().await else {
            continue;
        };
        let status = answer.status();
        if status == StatusCode::MISDIRECTED_REQUEST {
            continue;
        }
        let kind = answer.headers().get(CONTENT_TYPE).cloned();
        let Ok(body) = answer.bytes().await else {
            break;
        };
        let mut passed = (status, body).into_response();
        if let Some(kind) = kind {
            passed.headers_mut().insert(CONTENT_TYPE, kind);
        }
        return Ok(passed);
    }
    let detail = format!(
        "this node cannot sign certificates, and no voter answers it; join at one of the voters: {}",
        addresses.join(", ")
    );
    Err(Failure::new(StatusCode::MISDIRECTED_REQUEST, code::NOT_HERE, detail))
}
