//! From a request to the log: builds the envelope, proposes it, and tells the outcome.
//!
//! The one rule: only a rejection is told as a refusal. A proposal that takes too long is `outcome-unknown`, with the request id that
//! makes a retry safe.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::event::Event;
use holdfast_proto::id::RequestId;
use holdfast_proto::limits::COMMAND_BYTES_MAX;
use holdfast_proto::origin;
use holdfast_proto::time::Timestamp;
use serde::Serialize;

use super::Api;
use super::auth::Caller;
use super::problem::Failure;
use crate::consensus::Outcome;
use crate::wire::cluster::Applied;
use crate::wire::problem::code;
use crate::wire::{INDEX, REQUEST_ID};

/// A command that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The request.
    pub request: RequestId,
    /// Log index of its entry.
    pub index: u64,
    /// What it was decided into.
    pub events: Vec<Event>,
}

/// Proposes `command` for `caller`.
pub async fn issue(api: &Api, caller: &Caller, request: RequestId, command: Command) -> Result<Done, Failure> {
    let envelope = envelope(api, caller, request, command)?;
    if envelope.encode().len() > COMMAND_BYTES_MAX {
        let detail = format!("the command is larger than {COMMAND_BYTES_MAX} bytes");
        return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, code::TOO_LARGE, detail));
    }
    propose(api, request, envelope).await
}

async fn propose(api: &Api, request: RequestId, envelope: Envelope) -> Result<Done, Failure> {
    let parts = api.parts();
    match tokio::time::timeout(parts.limits.propose_timeout, parts.propose.propose(envelope)).await {
        Ok(outcome) => ended(request, outcome),
        Err(_) => Err(Failure::unknown(request, LATE)),
    }
}

/// Proposes a command of which a second copy changes nothing, without its request id: one that is said all day would push the ids of
/// others out of the cluster's memory.
pub async fn issue_again(api: &Api, caller: &Caller, request: RequestId, command: Command) -> Result<Done, Failure> {
    let mut envelope = envelope(api, caller, request, command)?;
    envelope.request = None;
    propose(api, request, envelope).await
}

/// Proposes several that are ready together; the ends are in the same order. `bytes` is about what they take.
pub async fn issue_many(
    api: &Api,
    caller: &Caller,
    orders: Vec<(RequestId, Command)>,
    bytes: usize,
) -> Vec<Result<Done, Failure>> {
    let mut ends = Vec::with_capacity(orders.len());
    let mut envelopes = Vec::with_capacity(orders.len());
    for (request, command) in orders {
        ends.push(match envelope(api, caller, request, command) {
            Ok(envelope) => {
                envelopes.push(envelope);
                Ok(request)
            }
            Err(failure) => Err(failure),
        });
    }
    let parts = api.parts();
    let proposing = parts.propose.propose_many(envelopes, bytes);
    let outcomes = tokio::time::timeout(parts.limits.propose_timeout, proposing).await;
    let mut outcomes = outcomes.unwrap_or_default().into_iter();
    let mut end = |request| match outcomes.next() {
        Some(outcome) => ended(request, outcome),
        None => Err(Failure::unknown(request, LATE)),
    };
    ends.into_iter().map(|proposed| proposed.and_then(&mut end)).collect()
}

/// Why an outcome is unknown when the propose timeout has passed.
const LATE: &str = "it was not applied in time";

/// What is proposed, when the caller may issue it.
fn envelope(api: &Api, caller: &Caller, request: RequestId, command: Command) -> Result<Envelope, Failure> {
    let envelope = Envelope {
        stamp: Timestamp(0),
        principal: caller.principal(),
        project: caller.project.clone(),
        origin: api.parts().node,
        request: Some(request),
        command,
    };
    if !origin::permits(&envelope.command, &envelope.principal, envelope.origin, |_| false) {
        return Err(Failure::not_allowed("this token may not issue this command"));
    }
    // A replica of a build that does not know the command would have to stop at it.
    let (needed, present) = (envelope.command.level(), api.parts().committed.state().cluster.level);
    if needed > present {
        let detail = format!(
            "this needs rules of level {needed}, the cluster has {present}: every node must run this version first"
        );
        return Err(Failure::new(StatusCode::CONFLICT, code::LEVEL_TOO_LOW, detail));
    }
    Ok(envelope)
}

fn ended(request: RequestId, outcome: Outcome) -> Result<Done, Failure> {
    match outcome {
        Outcome::Applied { index, events } => Ok(Done { request, index, events }),
        Outcome::Refused { rejection, index } => Err(Failure::refused(rejection, Some(index))),
        Outcome::Unknown { reason } => Err(Failure::unknown(request, &reason)),
    }
}

impl Done {
    /// Answers with the index alone.
    pub fn applied(&self) -> Response {
        self.answer(StatusCode::OK, &Applied { index: self.index })
    }

    /// Answers with `body`.
    pub fn answer(&self, status: StatusCode, body: &impl Serialize) -> Response {
        let headers = [(INDEX, self.index.to_string()), (REQUEST_ID, self.request.to_string())];
        (status, headers, Json(body)).into_response()
    }
}
