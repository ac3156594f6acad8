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
use holdfast_proto::frame;
use holdfast_proto::id::Cursor;
use holdfast_proto::time::Timestamp;
use holdfast_storage::event_log::RawEvent;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::ring::Line;
use super::{Filter, far};
use crate::api::Api;
use crate::api::auth::holds_for;
use crate::api::problem::Failure;
use crate::api::read::stale;
use crate::api::seam::HistoryError;
use crate::env::Clock;
use crate::wire::deliver::{self, Note, Noted};
use crate::wire::event::StreamNote;
use crate::wire::problem::code;

/// Events read and written at once: one write of 16 events costs a tenth of 16 writes.
const BATCH_EVENTS: usize = 128;

/// Large pieces that wait for readers of this node, all together: each has some hundreds of kilobytes.
pub const PIECES_MAX: usize = 64;
/// Events of a large piece.
const PIECE_EVENTS: usize = 1_024;
/// Bytes of one that is passed on as it lies on disk.
const PIECE_BYTES: usize = 256 << 10;

/// What stands around an event, at most.
const FRAME_BYTES: usize = 48;

/// How a stream is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `text/event-stream`.
    ServerSent,
    /// One JSON object a line.
    Lines,
    /// Frames of [`crate::wire::deliver`], each piece one.
    Frames,
}

/// What is written at once.
pub struct Piece {
    /// The bytes.
    pub bytes: Bytes,
    /// A large one takes a place until it is on its way.
    _place: Option<OwnedSemaphorePermit>,
}

/// Opens a stream strictly after a position, as the body of an answer.
pub fn open(api: &Api, filter: Filter, form: Form, after: Cursor) -> Result<Response, Failure> {
    let pieces = feed(api, filter, form, after)?;
    let kind = match form {
        Form::ServerSent => "text/event-stream",
        Form::Lines => "application/x-ndjson",
        Form::Frames => "application/octet-stream",
    };
    let mut response = ([(CONTENT_TYPE, kind)], body(pieces)).into_response();
    stale(api).mark(&mut response);
    Ok(response)
}

/// Begins to read strictly after a position, for one subscriber; the pieces come in the order in which they are to be written.
pub fn feed(api: &Api, filter: Filter, form: Form, after: Cursor) -> Result<Receiver<Piece>, Failure> {
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
        far: false,
        sender,
        _permit: permit,
    };
    tokio::spawn(feed.run());
    Ok(receiver)
}

fn body(receiver: Receiver<Piece>) -> Body {
    let bytes = ReceiverStream::new(receiver).map(|piece| piece.bytes);
    Body::from_stream(bytes.map(Ok::<_, Infallible>))
}

struct Feed {
    api: Api,
    filter: Filter,
    form: Form,
    after: Cursor,
    /// The last reading did not reach the end of the log.
    far: bool,
    sender: Sender<Piece>,
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

impl Stop {
    fn of(error: HistoryError) -> Self {
        match error {
            HistoryError::Compacted { through } => Self::Compacted(through),
            HistoryError::Reset { through } => Self::Reset(through),
            HistoryError::Failed { .. } => Self::Broken,
        }
    }
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
    /// Writes events that belong together; none when there is none.
    fn write<'a>(self, lines: impl Iterator<Item = &'a Line> + Clone) -> Option<Bytes> {
        let bytes = lines.clone().map(|line| self.bytes_of(line).len() + FRAME_BYTES).sum();
        if bytes == 0 {
            return None;
        }
        if self == Self::Frames {
            let mut out = deliver::begin(bytes);
            lines.for_each(|line| deliver::put(line.frame(), &mut out));
            return Some(frame::seal(deliver::kind::DELIVERED, out));
        }
        let mut text = Vec::with_capacity(bytes);
        for line in lines {
            if self == Self::ServerSent {
                text.extend_from_slice(format!("id: {}\ndata: ", line.record.cursor).as_bytes());
            }
            text.extend_from_slice(line.json());
            text.extend_from_slice(if self == Self::ServerSent { b"\n\n" } else { b"\n" });
        }
        Some(text.into())
    }

    fn bytes_of(self, line: &Line) -> &Bytes {
        match self {
            Self::ServerSent | Self::Lines => line.json(),
            Self::Frames => line.frame(),
        }
    }

    fn note(self, note: Note, next: Cursor) -> Bytes {
        let name = note.word();
        let json = || serde_json::to_string(&StreamNote { next }).unwrap_or_default();
        let text = match self {
            Self::ServerSent => format!("event: {name}\nid: {next}\ndata: {}\n\n", json()),
            Self::Lines => format!("{{\"note\":\"{name}\",\"next\":\"{next}\"}}\n"),
            Self::Frames => return frame::encode(deliver::kind::NOTED, &Noted { note, next }),
        };
        text.into()
    }
}

impl Feed {
    async fn run(mut self) {
        let Ok(last_word) = self.sender.clone().try_reserve_owned() else {
            return;
        };
        // Bytes at once, so that a client and every proxy between know that the stream has begun.
        let stop = match self.send(self.note(Note::Bookmark, self.after)).await {
            Ok(()) => self.feed().await,
            Err(stop) => stop,
        };
        let (note, next) = match stop {
            Stop::Closed | Stop::Broken => return,
            Stop::TooSlow => (Note::TooSlow, self.after),
            Stop::TokenEnded => (Note::TokenEnded, self.after),
            Stop::Compacted(through) => (Note::Compacted, through),
            Stop::Reset(through) => (Note::Reset, through),
        };
        drop(last_word.send(self.note(note, next)));
    }

    fn note(&self, note: Note, next: Cursor) -> Piece {
        Piece {
            bytes: self.form.note(note, next),
            _place: None,
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
            let left = bookmark_every.saturating_sub(quiet(&*clock, told_ms));
            match self.step(&*clock, left.min(token_left)).await {
                Ok(true) => told_ms = clock.boot_ms(),
                Ok(false) if quiet(&*clock, told_ms) >= bookmark_every => {
                    if let Err(stop) = self.send(self.note(Note::Bookmark, self.after)).await {
                        return stop;
                    }
                    told_ms = clock.boot_ms();
                }
                Ok(false) => {}
                Err(stop) => return stop,
            }
        }
    }

    /// Reads once and sends what passes, or waits for events, at most so long; tells whether anything was sent.
    async fn step(&mut self, clock: &dyn Clock, left: Duration) -> Result<bool, Stop> {
        let pieces = self.api.pieces.clone();
        // Who finds all places taken reads in small pieces, and comes on too.
        let place = self.far.then(|| pieces.try_acquire_owned().ok()).flatten();
        if place.is_some() && self.form == Form::Frames && self.filter.judges_by_tag().is_some() {
            let read = self.api.parts().committed.raw_events(self.after, PIECE_BYTES).await;
            if let Some(events) = read.map_err(Stop::of)? {
                return self.pass_raw(&events, place).await;
            }
        }
        let limit = if place.is_some() { PIECE_EVENTS } else { BATCH_EVENTS };
        let committed = &self.api.parts().committed;
        let lines = self
            .api
            .ring
            .read(&**committed, self.after, limit)
            .await
            .map_err(Stop::of)?;
        self.far = lines.len() == limit;
        if lines.is_empty() {
            return self.idle(left).await;
        }
        self.pass_on(clock, &lines, place).await
    }

    /// How long the token that opened the stream still holds; `None` when it does not.
    fn token_left(&self, clock: &dyn Clock) -> Option<Duration> {
        let state = self.api.parts().committed.state();
        holds_for(&state, self.filter.caller(), Timestamp(clock.wall_ms()))
    }

    /// Sends what passes the filter; tells whether that was anything.
    async fn pass_on(
        &mut self,
        clock: &dyn Clock,
        lines: &[Arc<Line>],
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<bool, Stop> {
        let state = self.api.parts().committed.state();
        // By the log's order, however late this subscriber reads: nothing behind its own revocation.
        let token = self.filter.caller().token;
        let revoked = |line: &Arc<Line>| line.record.event == Event::TokenRevoked { token };
        let end = lines.iter().position(revoked).unwrap_or(lines.len());
        let mut passed = Vec::with_capacity(end);
        for line in &lines[..end] {
            if self.filter.passes(&state, &line.record) {
                passed.push(&**line);
            }
        }
        let bytes = self.form.write(passed.iter().copied());
        let any = bytes.is_some();
        if let Some(bytes) = bytes {
            self.send(Piece { bytes, _place: place }).await?;
        }
        self.after = lines[..end].last().map_or(self.after, |line| line.record.cursor);
        if end < lines.len() {
            return Err(Stop::TokenEnded);
        }
        if any && !self.far {
            sleep(until_beat(clock, self.api.limits().gather)).await;
        }
        Ok(any)
    }

    /// The same with events as they lie on disk.
    async fn pass_raw(&mut self, events: &[RawEvent], place: Option<OwnedSemaphorePermit>) -> Result<bool, Stop> {
        let Some(wanted) = self.filter.judges_by_tag() else {
            return Err(Stop::Broken);
        };
        let taken = far::take(events, wanted, self.filter.caller().token).map_err(|_| Stop::Broken)?;
        let any = taken.piece.is_some();
        if let Some(bytes) = taken.piece {
            self.send(Piece { bytes, _place: place }).await?;
        }
        self.after = taken.last.unwrap_or(self.after);
        if taken.token_ended {
            return Err(Stop::TokenEnded);
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

    async fn send(&self, piece: Piece) -> Result<(), Stop> {
        match timeout(self.api.limits().slow_after, self.sender.send(piece)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(mpsc::error::SendError(_))) => Err(Stop::Closed),
            Err(_) => Err(Stop::TooSlow),
        }
    }
}
