//! A subscription on a channel of the client lane: the same stream as over HTTPS, as rkyv frames.
//!
//! [`crate::api::lane`] hands a channel over once its token was shown to be valid. What is asked for is read by the code that reads the
//! address of `GET /v1/events`, and what is told comes from the same feed: filters, rights, interruptions and bounds have no second
//! form here. The one rule: what QUIC's flow control holds back stays in the log, so a subscriber that is behind costs a queue and no more.

use axum::extract::Query;
use axum::http::{Method, StatusCode, Uri};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Receiver;

use super::filter::Wishes;
use super::stream::{Form, Piece, feed};
use super::{EventQuery, asked};
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::problem::Failure;
use crate::net::{Channel, FrameSource};

/// The name under which subscriptions are counted.
const PATH: &str = "client-lane-events";

/// Begins a subscription; the pieces are whole frames.
pub async fn open(api: &Api, caller: Caller, query: &str) -> Result<Receiver<Piece>, Failure> {
    let opened = begin(api, caller, query).await;
    let status = match &opened {
        Ok(_) => StatusCode::OK,
        Err(failure) => StatusCode::from_u16(failure.problem().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    };
    api.requests.add(&Method::GET, PATH, status, 1);
    opened
}

async fn begin(api: &Api, caller: Caller, query: &str) -> Result<Receiver<Piece>, Failure> {
    let (place, wishes): (EventQuery, Wishes) = (parsed(query)?, parsed(query)?);
    if place.limit.is_some() {
        return Err(Failure::bad_request("a subscription has no pages; leave `limit` out"));
    }
    let (filter, after) = asked(api, caller, None, &place, &wishes).await?;
    feed(api, filter, Form::Frames, after)
}

/// Reads a query as the HTTP interface does.
fn parsed<T: DeserializeOwned>(query: &str) -> Result<T, Failure> {
    let malformed = |error: String| Failure::bad_request(format!("the query cannot be read: {error}"));
    let uri = Uri::builder().path_and_query(format!("/v1/events?{query}")).build();
    let uri = uri.map_err(|error| malformed(error.to_string()))?;
    let read = Query::try_from_uri(&uri).map_err(|error| malformed(error.body_text()))?;
    Ok(read.0)
}

/// Writes the pieces until the stream ends or the subscriber has gone.
pub async fn carry(channel: Channel, mut pieces: Receiver<Piece>) {
    let Channel { mut sink, mut source } = channel;
    let writing = async {
        while let Some(piece) = pieces.recv().await {
            if sink.send(piece.bytes).await.is_err() {
                return;
            }
        }
        // Whether the last word is read is the subscriber's concern.
        let _ = sink.finish().await;
    };
    tokio::select! {
        () = writing => {}
        () = gone(&mut *source) => {}
    }
}

/// Waits until the subscriber ends the channel, or says what it may not: it has nothing to say any more.
async fn gone(source: &mut dyn FrameSource) {
    let _ = source.next().await;
}
