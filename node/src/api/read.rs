//! Reads of committed state: fresh by default, stale when the client says so.
//!
//! A fresh read waits until this replica has applied everything that was acknowledged before it, on whichever node it is made. A stale
//! one (`?consistency=stale`) answers at once, also without a leader, and says how old its answer may be. One of the past (`?at=INDEX`)
//! answers from the state after that entry. The one rule: no read is
//! called fresh without a confirmation that began after it.

use std::sync::Arc;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::state::State;
use serde::Serialize;

use super::problem::Failure;
use super::{Api, past};
use crate::consensus::ReadError;
use crate::wire::cluster::LEADER_SILENT_MS;
use crate::wire::{AGE_MS, INDEX};

/// A view of committed state that a read is answered from.
pub struct Reading {
    /// The state.
    pub state: Arc<State>,
    /// How old it may be; absent on a fresh read.
    pub age_ms: Option<u64>,
    /// The cluster's time that the answer is as of: what has run until then is counted.
    pub now: Timestamp,
    /// It is of an earlier entry that the reader named.
    pub past: bool,
}

impl FromRequestParts<Api> for Reading {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Failure> {
        let query = parts.uri.query().unwrap_or_default();
        let said = |name: &str| {
            query
                .split('&')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        if let Some(index) = said("at") {
            let wrong = |_| Failure::bad_request("at is the index of an entry of the log, a whole number");
            let state = past::at(api, index.parse().map_err(wrong)?).await?;
            let now = state.applied.stamp;
            return Ok(Self {
                state,
                age_ms: None,
                now,
                past: true,
            });
        }
        match said("consistency") {
            Some("stale") => Ok(stale(api)),
            None | Some("linearizable") => fresh(api).await,
            Some(_) => Err(Failure::bad_request("consistency is `linearizable` or `stale`")),
        }
    }
}

/// Answers from what is here.
pub fn stale(api: &Api) -> Reading {
    let parts = api.parts();
    let age_ms = parts.standing.leadership().heard_ms_ago.unwrap_or(u64::MAX);
    let state = parts.committed.state();
    // Nobody knows what runs elsewhere since the leader was last heard.
    let now = match age_ms <= LEADER_SILENT_MS {
        true => state.applied.stamp.max(parts.standing.time()),
        false => state.applied.stamp,
    };
    Reading {
        state,
        age_ms: Some(age_ms),
        now,
        past: false,
    }
}

/// Waits until what is here is fresh.
pub async fn fresh(api: &Api) -> Result<Reading, Failure> {
    let parts = api.parts();
    let late = || ReadError {
        reason: "no leader answered in time".to_owned(),
    };
    let limit = parts.limits.read_timeout;
    tokio::time::timeout(limit, parts.linearize.linearize())
        .await
        .map_err(|_| late())??;
    let state = parts.committed.state();
    let now = state.applied.stamp.max(parts.standing.time());
    Ok(Reading {
        state,
        age_ms: None,
        now,
        past: false,
    })
}

impl Reading {
    /// Answers with `body` and with what it reflects.
    pub fn answer(&self, body: &impl Serialize) -> Response {
        let mut response = Json(body).into_response();
        self.mark(&mut response);
        response
    }

    /// Says in the headers what an answer reflects.
    pub fn mark(&self, response: &mut Response) {
        let headers = response.headers_mut();
        headers.insert(INDEX, self.state.applied.index.into());
        if let Some(age_ms) = self.age_ms {
            headers.insert(AGE_MS, age_ms.into());
        }
    }
}
