//! Whether this process lives, and whether it serves.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::read::fresh;
use crate::wire::cluster::Readiness;

/// The process answers.
#[utoipa::path(get, path = "/healthz", tag = "about", responses((status = 200, description = "It lives", body = String, content_type = "text/plain")))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// The node serves fresh reads, and so writes too.
#[utoipa::path(get, path = "/readyz", tag = "about",
    responses((status = 200, description = "It serves", body = Readiness), (status = 503, description = "It does not", body = Readiness)))]
pub async fn readyz(State(api): State<Api>) -> Response {
    match fresh(&api).await {
        Ok(_) => Json(Readiness {
            ready: true,
            reason: None,
        })
        .into_response(),
        Err(failure) => {
            let reason = Some(failure.problem().detail.clone());
            (
                StatusCode::SERVICE_UNAVAILABLE,
                Json(Readiness { ready: false, reason }),
            )
                .into_response()
        }
    }
}
