//! Events behind a position, for ever, from whichever node serves them.
//!
//! [`EventStream`] is what the CLI follows events with, and what programs use. It reads over the client lane (rkyv over QUIC) where the
//! client has one and UDP comes through, and over HTTPS elsewhere. The one rule: after a break, on whatever node and by whatever way it
//! goes on, reading goes on strictly behind the last item that was given out, and nothing is given out twice.

mod frames;
pub mod lane;

#[cfg(test)]
mod tests;

use futures_util::future::BoxFuture;
use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::{ClusterId, Cursor, RequestId};
use holdfast_proto::time::Timestamp;
use serde::Deserialize;

pub(crate) use self::frames::{Frames, Part};
use self::lane::Unserved;
use super::stream::{Broken, Lines, PAUSE};
use super::{Client, ClientError};
use crate::wire::deliver::Note;
use crate::wire::event::CloudEvent;
use crate::wire::problem::code;

/// What an event stream gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An event.
    Event(Box<Told>),
    /// Nothing of interest happened up to here.
    Bookmark(Cursor),
    /// Events up to this position are gone; the stream goes on behind it.
    Compacted(Cursor),
}

/// An event as a subscriber is told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The cluster that it is of.
    pub cluster: Option<ClusterId>,
    /// Its position.
    pub id: Cursor,
    /// Stamp of its entry.
    pub at: Timestamp,
    /// The request that it answers.
    pub request: Option<RequestId>,
    /// The fact.
    pub data: Event,
}

impl Told {
    fn of(cluster: ClusterId, record: EventRecord) -> Self {
        Self {
            cluster: Some(cluster),
            id: record.cursor,
            at: record.at,
            request: record.request.map(|key| key.id),
            data: record.event,
        }
    }
}

impl From<CloudEvent> for Told {
    fn from(event: CloudEvent) -> Self {
        Self {
            cluster: event.cluster(),
            id: event.id,
            at: Timestamp(event.time_ms),
            request: event.request,
            data: event.data,
        }
    }
}

impl From<Told> for CloudEvent {
    fn from(told: Told) -> Self {
        Self::from_parts(told.cluster, told.id, told.at, told.request, told.data)
    }
}

/// What brings the events at the moment.
enum Carrier {
    Lines(Lines),
    Frames(Frames),
}

impl Carrier {
    fn address(&self) -> &str {
        match self {
            Self::Lines(lines) => &lines.address,
            Self::Frames(frames) => &frames.address,
        }
    }
}

/// One thing that a node said.
#[allow(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and boxing would cost each event"
)]
enum Said {
    Event(Told),
    Note(Note, Cursor),
    /// A word that a later version knows.
    Nothing,
}

/// Events behind a position, for ever.
pub struct EventStream<'a> {
    client: &'a Client,
    query: String,
    after: Option<Cursor>,
    carrier: Option<Carrier>,
    /// A connection that is being made: whoever stops waiting for it finds it further on.
    connecting: Option<BoxFuture<'a, Result<Carrier, ClientError>>>,
    /// Nodes answer over HTTPS and not over the lane: UDP does not come through.
    no_lane: bool,
    /// Nodes in a row that stepped over what comes next.
    resets: usize,
}

#[derive(Deserialize)]
struct NoteLine {
    note: String,
    next: Cursor,
}

impl Client {
    /// Opens the event stream. `query` holds further parameters (`topic=lease&lease=lease-12`), `after` where to begin; without it the
    /// stream begins now.
    pub fn events(&self, query: &str, after: Option<Cursor>) -> EventStream<'_> {
        EventStream {
            client: self,
            query: query.to_owned(),
            after,
            carrier: None,
            connecting: None,
            no_lane: false,
            resets: 0,
        }
    }
}

impl EventStream<'_> {
    /// Where to go on later: everything up to here was given out.
    pub fn position(&self) -> Option<Cursor> {
        self.after
    }

    /// Whether events come over the client lane at the moment.
    pub fn on_lane(&self) -> bool {
        matches!(self.carrier, Some(Carrier::Frames(_)))
    }

    /// The next item. A call that is dropped loses nothing.
    ///
    /// # Errors
    /// When the request is refused, or no node serves it for a long while.
    pub async fn next(&mut self) -> Result<Item, ClientError> {
        loop {
            if self.carrier.is_none() {
                let (client, query, no_lane) = (self.client, self.query(), self.no_lane);
                let connecting = self
                    .connecting
                    .get_or_insert_with(|| Box::pin(connect(client, query, no_lane)));
                let connected = connecting.await;
                self.connecting = None;
                let carrier = connected?;
                // Nodes that answer over HTTPS alone: UDP does not come through.
                self.no_lane = matches!(carrier, Carrier::Lines(_));
                self.carrier = Some(carrier);
            }
            let Some(carrier) = &mut self.carrier else { continue };
            let said = match carrier {
                Carrier::Frames(frames) => next_frame(frames, self.client).await,
                Carrier::Lines(lines) => match lines.next().await {
                    Ok(Some(line)) => Ok(Some(self.read_line(&line)?)),
                    Ok(None) => Ok(None),
                    Err(broken) => Err(broken),
                },
            };
            match said {
                Ok(Some(said)) => {
                    if let Some(item) = self.take(said) {
                        return Ok(item);
                    }
                    continue;
                }
                // Without a last word: the node is gone, or hangs; over HTTPS its kernel would have told which.
                Ok(None) | Err(Broken::Cut) if !self.on_lane() => {}
                Ok(None) | Err(_) => self.doubt(),
            }
            self.carrier = None;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks the node that serves last from now on.
    fn doubt(&self) {
        if let Some(carrier) = &self.carrier {
            self.client.doubt(carrier.address());
        }
    }

    /// What is asked for next, in the words of `GET /v1/events?…`.
    fn query(&self) -> String {
        let after = self.after.map(|after| format!("&after={after}")).unwrap_or_default();
        let query = format!("{}{after}", self.query);
        query.trim_start_matches('&').to_owned()
    }

    fn read_line(&self, line: &[u8]) -> Result<Said, ClientError> {
        if let Ok(NoteLine { note, next }) = serde_json::from_slice(line) {
            let known = Note::ALL.into_iter().find(|known| known.word() == note);
            return Ok(known.map_or(Said::Nothing, |note| Said::Note(note, next)));
        }
        let event: CloudEvent = serde_json::from_slice(line).map_err(|error| ClientError::Garbled {
            address: self.client.addresses().join(", "),
            reason: error.to_string(),
        })?;
        Ok(Said::Event(event.into()))
    }

    /// What is given out of what was said.
    fn take(&mut self, said: Said) -> Option<Item> {
        match said {
            Said::Nothing => None,
            // Told again, by a node that began earlier than it was asked to.
            Said::Event(told) if self.after.is_some_and(|after| told.id <= after) => None,
            Said::Event(told) => {
                self.after = Some(told.id);
                self.resets = 0;
                Some(Item::Event(Box::new(told)))
            }
            Said::Note(note, next) => self.noted(note, next),
        }
    }

    fn noted(&mut self, note: Note, next: Cursor) -> Option<Item> {
        if note == Note::Reset && self.resets < self.client.addresses().len() {
            // Another node may have what this one stepped over.
            self.resets += 1;
            self.doubt();
            self.carrier = None;
            return None;
        }
        // A bookmark of a node that is behind takes nothing back.
        let next = self.after.map_or(next, |after| after.max(next));
        self.after = Some(next);
        match note {
            Note::Bookmark => Some(Item::Bookmark(next)),
            Note::Compacted | Note::Reset => {
                self.carrier = None;
                Some(Item::Compacted(next))
            }
            // The node ends the stream; what another one says of the token is told.
            Note::TooSlow | Note::TokenEnded => None,
        }
    }
}

/// Opens a stream at the first node that serves it, by the better way first.
async fn connect(client: &Client, query: String, no_lane: bool) -> Result<Carrier, ClientError> {
    let lane = client.lane.as_ref().filter(|_| !no_lane);
    let addresses = lane.map(|_| client.addresses()).unwrap_or_default();
    for (lane, address) in lane.into_iter().cycle().zip(addresses) {
        match lane.subscribe(&address, &query).await {
            Ok((frames, nodes)) => {
                client.meet(&address, nodes.into_iter());
                return Ok(Carrier::Frames(frames));
            }
            Err(Unserved::Unreached) => {}
            Err(Unserved::Refused(refused)) => match refused.code.as_str() {
                code::BUSY | code::NOT_FRESH | code::NOT_HERE => {}
                _ => {
                    let problem = Box::new(refused.into());
                    return Err(ClientError::Refused { problem });
                }
            },
        }
    }
    Ok(Carrier::Lines(client.open(&format!("/v1/events?{query}")).await?))
}

async fn next_frame(frames: &mut Frames, client: &Client) -> Result<Option<Said>, Broken> {
    let cluster = client.lane.as_ref().map(|lane| lane.cluster).unwrap_or_default();
    Ok(frames.next().await?.map(|part| match part {
        Part::Event(record) => Said::Event(Told::of(cluster, record)),
        Part::Note(noted) => Said::Note(noted.note, noted.next),
    }))
}
