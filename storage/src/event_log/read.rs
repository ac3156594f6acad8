//! Reading the event log: from memory where it is there, from disk behind that.
//!
//! Subscribers and projections come here at their own pace, so that a place to begin at matters: a segment that was closed before the
//! start is read from its beginning once, and every reader that comes back begins where it stopped. The one rule: a reader gets every
//! event after its cursor in order, or is told that they are gone.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_proto::event::EventRecord;
use holdfast_proto::id::Cursor;

use super::{Core, EventLog, EventsError, LANDMARK_BYTES, held, record};
use crate::journal::{self, Position, ReadError, RecordRef};

/// Places where readers stopped that are remembered: a reader that comes back begins exactly there.
const STOPS_MAX: usize = 256;

/// A read takes so many bytes from the disk at once: about as much as a reader is given.
const READ_BYTES: usize = 256 << 10;

/// Where a read from disk stopped: what follows `last` begins there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    last: Cursor,
    pub(super) segment: u32,
    offset: u32,
}

/// An event as it lies in the log, not looked into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEvent {
    /// Its position.
    pub cursor: Cursor,
    /// Its frame: [`EventRecord::decode`] reads it.
    pub frame: Bytes,
}

/// Where a read from disk begins and ends.
struct Route {
    segment: u32,
    offset: u32,
    end: u32,
}

impl EventLog {
    /// Returns the next `limit` events after a cursor; fewer only where the log ends.
    pub fn after(&self, after: Cursor, limit: usize) -> Result<Vec<Arc<EventRecord>>, EventsError> {
        let mut events = Vec::new();
        loop {
            let after = events.last().map_or(after, |event: &Arc<EventRecord>| event.cursor);
            let left = limit - events.len();
            let route = {
                let core = held(&self.core);
                core.check_kept(after)?;
                if left == 0 || after >= core.recent_after {
                    events.extend(core.recent_after(after, left).cloned());
                    return Ok(events);
                }
                core.route(after)
            };
            match self.read(&route, after, left) {
                Ok(some) => events.extend(some),
                // Retention took the segment since the route was made; the next look says so.
                Err(EventsError::Read(ReadError::Removed { .. })) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the events after a cursor as they lie on disk, about `bytes` of them, without decoding any; `None` where they are in
    /// memory, or the log ends.
    pub fn raw_after(&self, after: Cursor, bytes: usize) -> Result<Option<Vec<RawEvent>>, EventsError> {
        loop {
            let route = {
                let core = held(&self.core);
                core.check_kept(after)?;
                if after >= core.recent_after {
                    return Ok(None);
                }
                core.route(after)
            };
            match self.read_raw(&route, after, bytes) {
                Ok(events) => return Ok(Some(events).filter(|events| !events.is_empty())),
                Err(EventsError::Read(ReadError::Removed { .. })) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn read_raw(&self, route: &Route, after: Cursor, bytes: usize) -> Result<Vec<RawEvent>, EventsError> {
        let mut copied = Vec::with_capacity(bytes + bytes / 8);
        let mut found: Vec<(Cursor, usize, usize)> = Vec::new();
        let mut stop = None;
        self.visit(route, after, |position, record| {
            let mut sub = 0;
            record::frames(record, |frame| {
                let cursor = Cursor {
                    index: record.index,
                    sub,
                };
                sub += 1;
                if cursor > after {
                    found.push((cursor, copied.len(), frame.len()));
                    copied.extend_from_slice(frame);
                }
            })?;
            stop = found.last().map(|(last, ..)| Stop::behind(*last, position));
            Ok(copied.len() < bytes)
        })?;
        self.note_stop(stop);
        let copied = Bytes::from(copied);
        let event = |(cursor, from, length)| RawEvent {
            cursor,
            frame: copied.slice(from..from + length),
        };
        Ok(found.into_iter().map(event).collect())
    }

    fn read(&self, route: &Route, after: Cursor, limit: usize) -> Result<Vec<Arc<EventRecord>>, EventsError> {
        let mut events: Vec<Arc<EventRecord>> = Vec::new();
        let mut stop = None;
        self.visit(route, after, |position, record| {
            let some = record::to_events(record)?;
            events.extend(some.into_iter().filter(|event| event.cursor > after).map(Arc::new));
            let cut = events.len() > limit;
            events.truncate(limit);
            stop = events.last().map(|last| match cut {
                true => Stop::at(last.cursor, position),
                false => Stop::behind(last.cursor, position),
            });
            Ok(events.len() < limit)
        })?;
        self.note_stop(stop);
        Ok(events)
    }

    /// Shows `take` the records on a route that have events after a cursor, until it has enough.
    fn visit(
        &self,
        route: &Route,
        after: Cursor,
        mut take: impl FnMut(Position, RecordRef<'_>) -> Result<bool, record::EventsError>,
    ) -> Result<(), EventsError> {
        let mut failed = None;
        let visit = |position: Position, record: RecordRef<'_>| {
            if record.kind != record::EVENTS || record::last_cursor(record) <= after {
                return true;
            }
            take(position, record).unwrap_or_else(|error| {
                let reason = journal::describe(&error);
                failed = Some(EventsError::Decode {
                    index: record.index,
                    reason,
                });
                false
            })
        };
        self.reader
            .scan_in_pieces(READ_BYTES, route.segment, route.offset, route.end, visit)
            .map_err(EventsError::Read)?;
        failed.map_or(Ok(()), Err)
    }

    fn note_stop(&self, stop: Option<Stop>) {
        if let Some(stop) = stop {
            held(&self.core).note_stop(stop);
        }
    }
}

impl Stop {
    /// The record has events after the last one that was given out.
    fn at(last: Cursor, position: Position) -> Self {
        Self {
            last,
            segment: position.segment,
            offset: position.offset,
        }
    }

    /// What follows is behind the record.
    fn behind(last: Cursor, position: Position) -> Self {
        Self {
            last,
            segment: position.segment,
            offset: position.offset + position.size,
        }
    }
}

impl Core {
    /// Remembers where a reader stopped. A segment that was closed before the start has no other places to begin at.
    fn note_stop(&mut self, stop: Stop) {
        if !self.bases.contains_key(&stop.segment) {
            // Retention took it meanwhile.
            return;
        }
        let places = self.landmarks.entry(stop.segment).or_default();
        let at = places.partition_point(|(_, offset)| *offset <= stop.offset);
        let far = |offset: u32| stop.offset.abs_diff(offset) >= LANDMARK_BYTES;
        let [before, behind] = [at.checked_sub(1), Some(at)].map(|place| place.and_then(|place| places.get(place)));
        if before.is_none_or(|(_, offset)| far(*offset)) && behind.is_none_or(|(_, offset)| far(*offset)) {
            places.insert(at, (stop.last, stop.offset));
        }
        self.stops.retain(|old| old.last != stop.last);
        if self.stops.len() == STOPS_MAX {
            self.stops.pop_front();
        }
        self.stops.push_back(stop);
    }

    /// Finds where the first event after a cursor lies on disk.
    fn route(&self, after: Cursor) -> Route {
        let at = self.bases.iter().rev().find(|(_, base)| **base <= after);
        // The caller has compared with the floor, so there is one.
        let segment = at.map_or_else(|| self.active(), |(segment, _)| *segment);
        let here = |stop: &&Stop| stop.last == after && stop.segment == segment;
        let offset = self.stops.iter().rev().find(here).map(|stop| stop.offset);
        let offset = offset.unwrap_or_else(|| {
            let places = self.landmarks.get(&segment).map_or(&[][..], Vec::as_slice);
            let at = places.partition_point(|(before, _)| *before <= after);
            if at == 0 { 0 } else { places[at - 1].1 }
        });
        Route {
            segment,
            offset,
            end: self.journal.readable_end(segment),
        }
    }
}
