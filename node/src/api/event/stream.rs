//! A stream of events to one subscriber.
//!
//! A task reads the ring, or the event log behind it, at the subscriber's pace and fills a short queue; the answer's body drains it. The
//! log is the buffer, so a subscriber that is behind costs a queue and no more. The first event after a silence goes out at once; what
//! follows closely is sent together. The one rule: a stream ends with `compacted`, `reset`, `too-slow` or `token-ended` and the position
//! to go on from, or because a side closed it; it never skips.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use holdfast_proto::event::Event;
use holdfast_proto::id::Cursor;
use holdfast_proto::time::Timestamp;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::Filter;
use super::ring::Line;
use crate::api::Api;
use crate::api::auth::holds_for;
use crate::api::problem::Failure;
use crate::api::read::stale;
use crate::api::seam::HistoryError;
use crate::env::Clock;
use crate::wire::event::StreamNote;
use crate::wire::problem::code;

/// Events read and written at once: one write of 16 events costs a tenth of 16 writes.
const BATCH_EVENTS: usize = 128;

/// What stands around an event's JSON, at most.
const FRAME_BYTES: usize = 48;

/// How a stream is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `text/event-stream`.
    ServerSent,
    /// One JSON object a line.
    Lines,
}

/// Opens a stream strictly after a position.
pub fn open(api: &Api, filter: Filter, form: Form, after: Cursor) -> Result<Response, Failure> {
    let permit = api.streams.clone().try_acquire_owned().map_err(|_| {
        let detail = "this node has as many streams open as it may; try another node";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, code::BUSY, detail)
    })?;
    // One place more than the queue is kept free for the last word.
    let (sender, receiver) = channel(api.limits().queue_batches.saturating_add(1));
    let feed = Feed {
        api: api.clone(),
        filter,
        form,
        after,
        sender,
        _permit: permit,
    };
    tokio::spawn(feed.run());

    let kind = match form {
        Form::ServerSent => "text/event-stream",
        Form::Lines => "application/x-ndjson",
    };
    let mut response = ([(CONTENT_TYPE, kind)], body(receiver)).into_response();
    stale(api).mark(&mut response);
    Ok(response)
}

fn body(receiver: Receiver<Bytes>) -> Body {
    Body::from_stream(ReceiverStream::new(receiver).map(Ok::<_, Infallible>))
}

struct Feed {
    api: Api,
    filter: Filter,
    form: Form,
    after: Cursor,
    sender: Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
}

/// Why a feed stops.
enum Stop {
    /// The subscriber has gone.
    Closed,
    /// The subscriber left its queue full.
    TooSlow,
    /// Events were dropped from the log before they were read.
    Compacted(Cursor),
    /// A snapshot took this replica over events before they were read.
    Reset(Cursor),
    /// The token that opened the stream was revoked, or has expired.
    TokenEnded,
    /// The log cannot be read.
    Broken,
}

/// How long it is to the next beat. One timer then wakes all subscribers: at 200 of them, timers of their own would wake the process
/// four times a millisecond.
fn until_beat(clock: &dyn Clock, beat: Duration) -> Duration {
    let beat_ms = u64::try_from(beat.as_millis()).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(beat_ms - clock.boot_ms() % beat_ms)
}

/// How long nothing was sent.
fn quiet(clock: &dyn Clock, told_ms: u64) -> Duration {
    Duration::from_millis(clock.boot_ms().saturating_sub(told_ms))
}

impl Form {
    /// Appends one event.
    fn put(self, line: &Line, text: &mut Vec<u8>) {
        if self == Self::ServerSent {
            text.extend_from_slice(format!("id: {}\ndata: ", line.record.cursor).as_bytes());
        }
        text.extend_from_slice(&line.json);
        text.extend_from_slice(match self {
            Self::ServerSent => b"\n\n",
            Self::Lines => b"\n",
        });
    }
}

impl Feed {
    async fn run(mut self) {
        let Ok(last_word) = self.sender.clone().try_reserve_owned() else {
            return;
        };
        // Bytes at once, so that a client and every proxy between know that the stream has begun.
        let stop = match self.send(self.note("bookmark", self.after)).await {
            Ok(()) => self.feed().await,
            Err(stop) => stop,
        };
        match stop {
            Stop::Closed | Stop::Broken => {}
            Stop::TooSlow => drop(last_word.send(self.note("too-slow", self.after))),
            Stop::TokenEnded => drop(last_word.send(self.note("token-ended", self.after))),
            Stop::Compacted(through) => drop(last_word.send(self.note("compacted", through))),
            Stop::Reset(through) => drop(last_word.send(self.note("reset", through))),
        }
    }

    /// Feeds until something stops it. `after` moves only past what is in the queue.
    async fn feed(&mut self) -> Stop {
        let clock = self.api.parts().clock.clone();
        let bookmark_every = self.api.limits().bookmark_every;
        let mut told_ms = clock.boot_ms();
        loop {
            let Some(token_left) = self.token_left(&*clock) else {
                return Stop::TokenEnded;
            };
            let lines = match self.next_lines().await {
                Ok(lines) => lines,
                Err(stop) => return stop,
            };
            let sent = if lines.is_empty() {
                let left = bookmark_every.saturating_sub(quiet(&*clock, told_ms));
                self.idle(left.min(token_left)).await
            } else {
                self.pass_on(&*clock, &lines).await
            };
            match sent {
                Ok(true) => told_ms = clock.boot_ms(),
                Ok(false) if quiet(&*clock, told_ms) >= bookmark_every => {
                    if let Err(stop) = self.send(self.note("bookmark", self.after)).await {
                        return stop;
                    }
                    told_ms = clock.boot_ms();
                }
                Ok(false) => {}
                Err(stop) => return stop,
            }
        }
    }

    /// How long the token that opened the stream still holds; `None` when it does not.
    fn token_left(&self, clock: &dyn Clock) -> Option<Duration> {
        let state = self.api.parts().committed.state();
        holds_for(&state, self.filter.caller(), Timestamp(clock.wall_ms()))
    }

    async fn next_lines(&self) -> Result<Vec<Arc<Line>>, Stop> {
        let read = self
            .api
            .ring
            .read(&*self.api.parts().committed, self.after, BATCH_EVENTS);
        read.await.map_err(|error| match error {
            HistoryError::Compacted { through } => Stop::Compacted(through),
            HistoryError::Reset { through } => Stop::Reset(through),
            HistoryError::Failed { .. } => Stop::Broken,
        })
    }

    /// Sends what passes the filter; tells whether that was anything.
    async fn pass_on(&mut self, clock: &dyn Clock, lines: &[Arc<Line>]) -> Result<bool, Stop> {
        let state = self.api.parts().committed.state();
        let mut text = Vec::with_capacity(lines.iter().map(|line| line.json.len() + FRAME_BYTES).sum());
        // By the log's order, however late this subscriber reads: nothing behind its own revocation.
        let token = self.filter.caller().token;
        let revoked = |line: &Arc<Line>| line.record.event == Event::TokenRevoked { token };
        let end = lines.iter().position(revoked).unwrap_or(lines.len());
        for line in &lines[..end] {
            if self.filter.passes(&state, &line.record) {
                self.form.put(line, &mut text);
            }
        }
        let any = !text.is_empty();
        if any {
            self.send(text.into()).await?;
        }
        self.after = lines[..end].last().map_or(self.after, |line| line.record.cursor);
        if end < lines.len() {
            return Err(Stop::TokenEnded);
        }
        if any && lines.len() < BATCH_EVENTS {
            sleep(until_beat(clock, self.api.limits().gather)).await;
        }
        Ok(any)
    }

    /// Waits for more events, or until it is time for a bookmark.
    async fn idle(&self, left: Duration) -> Result<bool, Stop> {
        let committed = &self.api.parts().committed;
        tokio::select! {
            () = committed.grown(self.after) => Ok(false),
            () = sleep(left) => Ok(false),
            () = self.sender.closed() => Err(Stop::Closed),
        }
    }

    async fn send(&self, bytes: Bytes) -> Result<(), Stop> {
        match timeout(self.api.limits().slow_after, self.sender.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(mpsc::error::SendError(_))) => Err(Stop::Closed),
            Err(_) => Err(Stop::TooSlow),
        }
    }

    fn note(&self, name: &str, next: Cursor) -> Bytes {
        let json = serde_json::to_string(&StreamNote { next }).unwrap_or_default();
        let text = match self.form {
            Form::ServerSent => format!("event: {name}\nid: {next}\ndata: {json}\n\n"),
            Form::Lines => format!("{{\"note\":\"{name}\",\"next\":\"{next}\"}}\n"),
        };
        text.into()
    }
}
