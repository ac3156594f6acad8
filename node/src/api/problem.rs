//! Failures of requests, and how they are answered.
//!
//! Owns [`Failure`] and the HTTP status of each rejection. Every endpoint and every layer ends in one of these; nothing else answers
//! with an error. The one rule: `outcome-unknown` is said whenever a command may still take effect, and nothing else is.

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_proto::id::{ParseIdError, RequestId};
use holdfast_proto::rejection::Rejection;

use super::seam::HistoryError;
use crate::consensus::ReadError;
use crate::wire::problem::{Problem, code};

/// A request that is answered with a problem document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(Box<Problem>);

impl Failure {
    /// A problem of the interface's own.
    pub fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        // A detail may repeat a part of the request; no reader's screen is to be moved by it.
        let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        let detail = detail.into().chars().map(plain).collect();
        Self(Box::new(Problem {
            kind: format!("urn:holdfast:problem:{code}"),
            title: code.replace('-', " "),
            status: status.as_u16(),
            detail,
            code: code.to_owned(),
            request: None,
            index: None,
            rejection: None,
        }))
    }

    /// The request is not what its endpoint takes.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::BAD_REQUEST, detail)
    }

    /// The token does not allow this.
    pub fn not_allowed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code::NOT_ALLOWED, detail)
    }

    /// The rules refused a command, at a log index; or the edge refused it the same way, before it was proposed.
    pub fn refused(rejection: Rejection, index: Option<u64>) -> Self {
        let mut failure = Self::new(status_of(&rejection), rejection.code(), rejection.to_string());
        failure.0.index = index;
        failure.0.rejection = Some(rejection);
        failure
    }

    /// The command may or may not take effect.
    pub fn unknown(request: RequestId, reason: &str) -> Self {
        let detail =
            format!("the request may or may not take effect ({reason}); send it again with the same request id");
        let mut failure = Self::new(StatusCode::SERVICE_UNAVAILABLE, code::OUTCOME_UNKNOWN, detail);
        failure.0.request = Some(request.to_string());
        failure
    }

    /// The same, saying more at its end.
    #[must_use]
    pub fn saying(mut self, more: &str) -> Self {
        self.0.detail.push_str(more);
        self
    }

    /// The document.
    pub fn problem(&self) -> &Problem {
        &self.0
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&self.0)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"holdfast\""));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let detail = format!(
            "the answer may be out of date, because no leader confirms it ({error}); try again, or take what this node knows with `--stale` (over HTTP, ?consistency=stale)"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code::NOT_FRESH, detail)
    }
}

impl From<ParseIdError> for Failure {
    fn from(error: ParseIdError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<HistoryError> for Failure {
    fn from(error: HistoryError) -> Self {
        match error {
            HistoryError::Compacted { through } | HistoryError::Reset { through } => {
                let code = match error {
                    HistoryError::Reset { .. } => code::RESET,
                    _ => code::COMPACTED,
                };
                let mut failure = Self::new(StatusCode::GONE, code, error.to_string());
                failure.0.index = Some(through.index);
                failure
            }
            HistoryError::Failed { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, code::INTERNAL, error.to_string())
            }
        }
    }
}

/// The HTTP status of a rejection: what kind of mistake it is.
pub fn status_of(rejection: &Rejection) -> StatusCode {
    match rejection {
        Rejection::OriginNotAllowed { .. } => StatusCode::FORBIDDEN,
        Rejection::TokenExpired { .. }
        | Rejection::TokenUsed { .. }
        | Rejection::TokenWrongSecret { .. }
        | Rejection::TokenRevoked { .. }
        | Rejection::TokenWrongRole { .. } => StatusCode::FORBIDDEN,
        Rejection::NodeUnknown { .. }
        | Rejection::TokenUnknown { .. }
        | Rejection::TenantUnknown { .. }
        | Rejection::LeaseUnknown { .. }
        | Rejection::SubscriptionUnknown { .. } => StatusCode::NOT_FOUND,
        Rejection::NodeRemoved { .. } => StatusCode::GONE,
        Rejection::OutOfRange { .. }
        | Rejection::ModelUnknown { .. }
        | Rejection::CannotFit { .. }
        | Rejection::PriceUnknown { .. }
        | Rejection::RequestTooOld { .. }
        | Rejection::RequestFromFuture { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::CONFLICT,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::id::LeaseId;

    use super::*;

    #[test]
    fn a_refusal_carries_its_code_its_index_and_its_values() {
        let failure = Failure::refused(
            Rejection::LeaseUnknown {
                lease: LeaseId::from_index(4),
            },
            Some(9),
        );
        let json = serde_json::to_value(failure.problem()).unwrap();
        assert_eq!(json["code"], "lease-unknown");
        assert_eq!(json["status"], 404);
        assert_eq!(json["index"], 9);
        assert_eq!(json["rejection"]["lease"], "lease-4");
        assert!(json["detail"].as_str().unwrap().contains("holdfast leases"));
    }

    #[test]
    fn an_unknown_outcome_names_the_request_to_send_again() {
        let request = RequestId {
            client_ms: 5,
            random: 6,
        };
        let failure = Failure::unknown(request, "no leader");
        assert_eq!(failure.problem().request.as_deref(), Some("5-0000000000000006"));
        assert_eq!(failure.problem().status, 503);
    }
}
