//! `/v1/join`: a machine with a join token becomes a node.
//!
//! The endpoint takes no access token: the join token in the body is checked by the log, which also uses it up. Everything that makes
//! the machine a node is behind [`super::seam::Admit`].

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::body::{Named, Posted};
use super::problem::Failure;
use super::seam::AdmitError;
use crate::join::JoinRequest;
use crate::wire::problem::code;

/// Admits a machine that shows a join token, once.
#[utoipa::path(post, path = "/v1/join", tag = "nodes", request_body = Object,
    responses((status = 200, description = "Its certificate, and the nodes to begin with", body = Object)))]
pub async fn join(
    State(api): State<Api>,
    Named(request): Named,
    Posted(order): Posted<JoinRequest>,
) -> Result<Response, Failure> {
    match api.parts().admit.admit(order).await {
        Ok(answer) => Ok(Json(answer).into_response()),
        Err(AdmitError::Refused { rejection, index }) => Err(Failure::refused(rejection, Some(index))),
        Err(AdmitError::Malformed { reason }) => Err(Failure::bad_request(reason)),
        Err(AdmitError::Unknown { reason }) => Err(Failure::unknown(request, &reason)),
        Err(error @ AdmitError::NotHere) => Err(Failure::new(
            StatusCode::MISDIRECTED_REQUEST,
            code::NOT_HERE,
            error.to_string(),
        )),
    }
}
