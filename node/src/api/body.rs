//! Reading what a request carries: a JSON body, and the request id.
//!
//! The one rule: a text that cannot be read is answered with what is wrong where, and never with a repetition of the text.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use holdfast_proto::id::RequestId;
use serde::de::DeserializeOwned;

use super::Api;
use super::problem::Failure;
use crate::wire::REQUEST_ID;
use crate::wire::problem::code;

/// A JSON body. An empty one counts as `{}`.
pub struct Posted<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Api> for Posted<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, api)
            .await
            .map_err(|rejection| unreadable(api, &rejection))?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Self).map_err(|error| {
            let place = format!("line {}, column {}", error.line(), error.column());
            Failure::bad_request(format!(
                "the body is not what this endpoint takes ({place}): {}",
                plain(&error)
            ))
        })
    }
}

fn unreadable(api: &Api, rejection: &BytesRejection) -> Failure {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = format!("the body is larger than {} bytes", api.limits().body_bytes_max);
        return Failure::new(StatusCode::PAYLOAD_TOO_LARGE, code::TOO_LARGE, detail);
    }
    Failure::bad_request("the body ended early")
}

/// What serde says, without the values that it met: those may be secrets.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    let shows_value = ["invalid type: ", "invalid value: ", "unknown variant "]
        .iter()
        .any(|begin| text.starts_with(begin));
    match text.split_once(", expected ") {
        Some((_, expected)) if shows_value => format!("expected {expected}"),
        _ if shows_value => "a value of another kind is expected".to_owned(),
        _ => text.to_owned(),
    }
}

/// The id of the request: the client's, or one that is drawn here and returned.
pub struct Named(pub RequestId);

impl FromRequestParts<Api> for Named {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Failure> {
        match parts.headers.get(REQUEST_ID) {
            Some(value) => {
                let text = value.to_str().unwrap_or_default();
                text.parse().map(Self).map_err(|_| {
                    Failure::bad_request(
                        "Holdfast-Request-Id is not milliseconds since 1970, a hyphen and 16 hexadecimal digits",
                    )
                })
            }
            None => {
                let seams = api.parts();
                Ok(Self(RequestId {
                    client_ms: seams.clock.wall_ms(),
                    random: seams.entropy.random_u64(),
                }))
            }
        }
    }
}
