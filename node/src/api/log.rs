//! `/v1/leases/{lease}/logs`: what the work writes, from any node.
//!
//! The node that is asked gathers the output of every member: its own from [`super::seam::Logs`], others' over HTTPS. It follows a lease
//! from one place to the next and ends when the lease has ended and all was read. The one rule: a line is given with the placement and
//! the position that it came from, so that a client whose connection broke goes on without gap or repeat.

pub mod follow;
pub mod lines;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use holdfast_proto::id::Epoch;
use serde::Deserialize;
use tokio::sync::mpsc::{Receiver, channel};
use tokio_stream::wrappers::ReceiverStream;

use super::Api;
use super::auth::Caller;
use super::problem::Failure;
use super::read::{Reading, stale};
use crate::wire::FORWARDED;
use crate::wire::lease::LogLine;
use crate::wire::problem::code;
use follow::{Follow, Place};

/// Lines that wait for the client before the reading stands still.
const LINES_QUEUED: usize = 256;

/// Which part of the output.
#[derive(Debug, Default, Deserialize)]
pub struct LogQuery {
    #[serde(default)]
    follow: bool,
    after: Option<String>,
    rank: Option<u32>,
    epoch: Option<u32>,
    consistency: Option<String>,
}

/// Reads what the work wrote; with `follow`, until the lease has ended.
#[utoipa::path(get, path = "/v1/leases/{lease}/logs", tag = "leases",
    params(("lease" = String, Path, description = "Its id"),
        ("follow" = Option<bool>, Query, description = "Go on until the lease has ended"),
        ("rank" = Option<u32>, Query, description = "Only this member's"),
        ("after" = Option<String>, Query, description = "Only behind these positions: `rank:epoch:position`, with commas"),
        ("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "The text; lines with their positions when NDJSON is accepted", content(
        (String = "text/plain"), (LogLine = "application/x-ndjson")))))]
pub async fn logs(
    State(api): State<Api>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<LogQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let places = query.after.as_deref().map(places).transpose()?.unwrap_or_default();
    let permit = api.streams.clone().try_acquire_owned().map_err(|_| {
        let detail = "this node has as many streams open as it may; try another node";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, code::BUSY, detail)
    })?;
    let (out, lines) = channel(LINES_QUEUED);
    let forwarded = headers.contains_key(FORWARDED);
    // The node that passes the request on has looked the lease up already; this replica may know a little less.
    let reading = if forwarded || query.consistency.as_deref() == Some("stale") {
        stale(&api)
    } else {
        super::read::fresh(&api).await?
    };
    let lease = caller.lease(&reading.state, &id)?;
    let follow = Follow {
        api: api.clone(),
        lease: lease.id(),
        rank: query.rank,
        follow: query.follow,
        places: std::sync::Mutex::new(places),
        authorization: headers.get(AUTHORIZATION).cloned(),
        out,
    };
    if forwarded {
        let (rank, epoch) = (query.rank.unwrap_or(0), Epoch(query.epoch.unwrap_or(lease.epoch.0)));
        tokio::spawn(async move {
            follow.here(rank, epoch, query.follow).await;
            drop(permit);
        });
    } else {
        if lease.placement.is_none() && !query.follow {
            let detail = format!(
                "{} was not started yet; `holdfast why {}` says why",
                lease.id(),
                lease.id()
            );
            return Err(Failure::new(StatusCode::NOT_FOUND, code::LOG_ABSENT, detail));
        }
        if let (Some(rank), Some(placement)) = (query.rank, &lease.placement)
            && placement.members.iter().all(|member| member.allocation.rank != rank)
        {
            let (id, members) = (lease.id(), placement.members.len());
            let detail = match members {
                1 => format!("{id} has one member, of rank 0"),
                members => format!("{id} has ranks 0 to {}", members - 1),
            };
            return Err(Failure::bad_request(detail));
        }
        tokio::spawn(async move {
            follow.run().await;
            drop(permit);
        });
    }
    Ok(answer(&reading, &headers, lines, api.limits().bookmark_every))
}

/// The lines, and an empty one wherever nothing was written for a while: so a client knows a node that is quiet from one
/// that hangs, whose kernel still answers for it.
fn alive(lines: impl Stream<Item = Bytes> + Send + 'static, every: Duration) -> impl Stream<Item = Bytes> + Send {
    let lines = Box::pin(lines);
    futures_util::stream::unfold(lines, move |mut lines| async move {
        match tokio::time::timeout(every, lines.next()).await {
            Ok(Some(line)) => Some((line, lines)),
            Ok(None) => None,
            Err(_) => Some((Bytes::from_static(b"\n"), lines)),
        }
    })
}

fn answer(reading: &Reading, headers: &HeaderMap, lines: Receiver<LogLine>, life_every: Duration) -> Response {
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let structured = accept.contains("application/x-ndjson");
    let kind = if structured {
        "application/x-ndjson"
    } else {
        "text/plain; charset=utf-8"
    };
    let text = move |line: LogLine| match structured {
        true => serde_json::to_string(&line).unwrap_or_default() + "\n",
        false => line.text,
    };
    let lines = ReceiverStream::new(lines).map(move |line| Bytes::from(text(line)));
    // A reader of plain text takes what it gets; one of lines is told that the node lives, by a line without anything.
    let body = match structured {
        true => Body::from_stream(alive(lines, life_every).map(Ok::<_, Infallible>)),
        false => Body::from_stream(lines.map(Ok::<_, Infallible>)),
    };
    let mut response = ([(CONTENT_TYPE, kind)], body).into_response();
    reading.mark(&mut response);
    response
}

/// Reads `rank:epoch:position,…`.
fn places(text: &str) -> Result<BTreeMap<u32, Place>, Failure> {
    let wrong = || Failure::bad_request("after is `rank:epoch:position`, with commas");
    text.split(',')
        .map(|place| {
            let mut parts = place.split(':');
            let (Some(rank), Some(epoch), Some(position), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Err(wrong());
            };
            let rank = rank.parse().map_err(|_| wrong())?;
            let epoch = epoch.parse().map(Epoch).map_err(|_| wrong())?;
            Ok((
                rank,
                Place {
                    epoch,
                    position: position.parse().map_err(|_| wrong())?,
                },
            ))
        })
        .collect()
}
