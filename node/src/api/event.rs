//! `/v1/events`: everything that happened, in log order, from any node.
//!
//! Owns the three forms (server-sent events, NDJSON, pages), who sees what, and the filters. A stream begins strictly after a position
//! and goes on for ever; it needs no leader. The one rule: a subscriber misses nothing without being told, and sees nothing of another
//! tenant; what cannot be tied to the caller's tenant is not shown.

pub mod channel;
mod far;
pub mod filter;
pub mod ring;
pub mod stream;

use axum::extract::{Query, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use holdfast_proto::event::EventRecord;
use holdfast_proto::id::Cursor;
use holdfast_storage::machine::state::{State as Machine, Subscribed};
use serde::Deserialize;

use super::Api;
use super::auth::Caller;
use super::problem::Failure;
use super::read::{fresh, stale};
use super::subscription::{self, Owner};
use crate::wire::event::{CloudEvent, EventPage};
use crate::wire::problem::code;
use filter::{Filter, Wishes};
use stream::Form;

/// Most events of one page.
const PAGE_MAX: usize = 1_000;
/// Most events looked at for one page, so that a filter that lets nothing through still ends.
const PAGE_SCAN_MAX: usize = 20_000;

/// Where to begin, and in which form.
#[derive(Debug, Default, Deserialize)]
pub struct EventQuery {
    after: Option<String>,
    from: Option<String>,
    cluster: Option<String>,
    limit: Option<usize>,
    subscription: Option<String>,
    owner: Option<String>,
}

/// Reads events strictly after a position: as a stream, or with `limit` as a page.
///
/// A stream ends with one of these notes and the position to go on from: `compacted` (events were dropped by retention), `reset` (a
/// snapshot took this node over events; another node may have them), `too-slow` (the subscriber left its queue full), `token-ended`
/// (the token was revoked or has expired). A `bookmark` note says that everything up to its position was looked at.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(("after" = Option<String>, Query, description = "Strictly after this position, such as `12.0`; `0` begins at the first. A stream without it begins now"),
        ("from" = Option<String>, Query, description = "`now`, `start` (the first that is kept), or a position, which is the same as `after`"),
        ("cluster" = Option<String>, Query, description = "The cluster that the position is of; another cluster refuses it"),
        ("subscription" = Option<String>, Query, description = "The filter of this durable subscription, and strictly after what it has acknowledged when no other position is said"),
        ("owner" = Option<String>, Query, description = "The tenant that the subscription belongs to; for operators"),
        ("limit" = Option<u32>, Query, description = "Answer with one page of at most this many"),
        ("topic" = Option<String>, Query, description = "Only these topics, with commas"),
        ("type" = Option<String>, Query, description = "Only these types, with commas, such as `lease-ended`"),
        ("lease" = Option<String>, Query, description = "Only about this lease"),
        ("tenant" = Option<String>, Query, description = "Only about this tenant"),
        ("node" = Option<String>, Query, description = "Only about this node"),
        ("Last-Event-ID" = Option<String>, Header, description = "Where a broken stream ended")),
    responses((status = 200, description = "Events; a stream by default, NDJSON when it is accepted, a page with `limit`", content(
        (EventPage = "application/json"), (String = "text/event-stream"), (String = "application/x-ndjson")))))]
pub async fn events(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<EventQuery>,
    Query(wishes): Query<Wishes>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let resumed = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let (filter, after) = asked(&api, caller, resumed, &query, &wishes).await?;
    if let Some(limit) = query.limit {
        return page(&api, filter, after, limit).await;
    }
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let form = if accept.contains("application/x-ndjson") {
        Form::Lines
    } else {
        Form::ServerSent
    };
    stream::open(&api, filter, form, after)
}

/// What a reader is to be given, and from where on, whichever way it has come.
pub async fn asked(
    api: &Api,
    caller: Caller,
    resumed: Option<&str>,
    query: &EventQuery,
    wishes: &Wishes,
) -> Result<(Filter, Cursor), Failure> {
    let mut beginning = Beginning::new(resumed, query)?;
    let filter = match &query.subscription {
        None => Filter::new(caller, wishes)?,
        Some(name) => {
            let subscribed = subscribed(api, &caller, name, query, wishes).await?;
            if beginning == Beginning::Unsaid {
                beginning = Beginning::After(subscribed.acknowledged);
            }
            Filter::of_subscription(caller, &subscribed.filter)
        }
    };
    check_cluster(api, query.cluster.as_deref())?;
    if let Beginning::After(after) = beginning {
        check_past(api, after).await?;
    }
    Ok((filter, beginning.resolve(api, query.limit.is_some())))
}

/// The subscription that is read, whose filter is its own.
async fn subscribed(
    api: &Api,
    caller: &Caller,
    name: &str,
    query: &EventQuery,
    wishes: &Wishes,
) -> Result<Subscribed, Failure> {
    if *wishes != Wishes::default() {
        let detail = format!("subscription {name} says itself which events it is about; leave the filters out");
        return Err(Failure::bad_request(detail));
    }
    let owner = Owner {
        owner: query.owner.clone(),
    };
    subscription::opened(api, &owner.key(caller, name)?).await
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// It does not say: a page begins at the first event, a stream now.
    Unsaid,
    /// At the first event that is kept.
    Start,
    /// Behind the newest event.
    Now,
    /// Strictly after a position.
    After(Cursor),
}

impl Beginning {
    /// What a broken stream says goes before what its address says.
    fn new(resumed: Option<&str>, query: &EventQuery) -> Result<Self, Failure> {
        if query.after.is_some() && query.from.is_some() {
            return Err(Failure::bad_request("say `after` or `from`, not both"));
        }
        let said = resumed.or(query.after.as_deref());
        match (said, query.from.as_deref()) {
            (Some(text), _) => Ok(Self::After(text.parse()?)),
            (None, None) => Ok(Self::Unsaid),
            (None, Some(word)) => Self::from_word(word),
        }
    }

    /// Reads `now`, `start`, or a position.
    pub fn from_word(word: &str) -> Result<Self, Failure> {
        match word {
            "start" => Ok(Self::Start),
            "now" => Ok(Self::Now),
            text => Ok(Self::After(text.parse()?)),
        }
    }

    /// The position that it stands for on this node.
    pub fn resolve(self, api: &Api, page: bool) -> Cursor {
        let committed = &api.parts().committed;
        match self {
            Self::After(after) => after,
            Self::Start => committed.floor(),
            Self::Unsaid if page => Cursor::default(),
            Self::Unsaid | Self::Now => committed.state().cluster.cursor,
        }
    }
}

/// Refuses a position of another cluster: the same numbers name other events there.
fn check_cluster(api: &Api, cluster: Option<&str>) -> Result<(), Failure> {
    let here = api.parts().committed.state().cluster.id.map(|id| id.to_string());
    match (cluster, here) {
        (Some(said), Some(here)) if said != here => {
            let detail = format!("the position is of cluster {said}, and this is {here}; begin with ?from=start");
            Err(Failure::new(StatusCode::CONFLICT, code::OTHER_CLUSTER, detail))
        }
        _ => Ok(()),
    }
}

/// Refuses a position that was never given out. A replica that is behind asks how far the log is; when nobody can tell, the stream
/// waits for the position instead, which misses nothing.
async fn check_past(api: &Api, after: Cursor) -> Result<(), Failure> {
    let ahead = |state: &Machine| after.index > state.applied.index;
    if !ahead(&api.parts().committed.state()) {
        return Ok(());
    }
    match fresh(api).await {
        Ok(reading) if ahead(&reading.state) => {
            let newest = reading.state.cluster.cursor;
            let detail = format!("position {after} was not given out yet; the newest is {newest}");
            Err(Failure::new(StatusCode::BAD_REQUEST, code::CURSOR_FROM_FUTURE, detail))
        }
        _ => Ok(()),
    }
}

async fn page(api: &Api, mut filter: Filter, after: Cursor, limit: usize) -> Result<Response, Failure> {
    let limit = limit.clamp(1, PAGE_MAX);
    let reading = stale(api);
    let committed = &api.parts().committed;
    let mut page = EventPage {
        events: Vec::new(),
        next: after,
        end: false,
    };
    let mut looked_at = 0;
    while page.events.len() < limit && looked_at < PAGE_SCAN_MAX {
        let records = committed.events(page.next, PAGE_MAX).await?;
        page.end = records.is_empty();
        if page.end {
            break;
        }
        for record in &records {
            if page.events.len() == limit {
                break;
            }
            looked_at += 1;
            page.next = record.cursor;
            if filter.passes(&reading.state, record) {
                page.events.push(present(&reading.state, record));
            }
        }
    }
    Ok(reading.answer(&page))
}

/// An event in the public form.
pub fn present(state: &Machine, record: &EventRecord) -> CloudEvent {
    CloudEvent::of(state.cluster.id, record)
}
