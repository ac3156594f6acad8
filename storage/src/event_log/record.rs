//! How the event log lies in its journal: one record per log entry that had events, and a mark at each segment's start.
//!
//! The rule: kinds are written down here and never reused. An event is its frame, the form that `holdfast_proto` gives
//! it, behind its length.

use bytes::{BufMut, Bytes, BytesMut};
use holdfast_proto::event::EventRecord;
use holdfast_proto::frame::FrameError;
use holdfast_proto::id::Cursor;

use crate::journal::{Record, RecordRef};

/// The events of one entry: `term` is their stamp, `node` their number, `index` the entry.
pub(super) const EVENTS: u8 = 16;
/// The position of the last event before this segment: `index`, and its place in `node`.
pub(super) const MARK: u8 = 17;

/// Why a record of the event log has no events in it.
#[derive(Debug, thiserror::Error)]
pub(super) enum EventsError {
    #[error("the events of entry {index} are cut off")]
    Short { index: u64 },
    #[error("event {at} of entry {index}")]
    Event {
        index: u64,
        at: usize,
        #[source]
        source: FrameError,
    },
}

pub(super) fn from_events(events: &[EventRecord]) -> Record {
    let first = events.first().expect("an entry without events has no record");
    let frames: Vec<Bytes> = events.iter().map(EventRecord::encode).collect();
    let mut payload = BytesMut::with_capacity(frames.iter().map(|frame| 4 + frame.len()).sum());
    for frame in frames {
        // A frame is bounded far below 4 GiB.
        payload.put_u32_le(frame.len() as u32);
        payload.put_slice(&frame);
    }
    Record {
        kind: EVENTS,
        term: first.at.0,
        node: events.len() as u64,
        index: first.cursor.index,
        payload: payload.freeze(),
    }
}

pub(super) fn to_events(record: RecordRef<'_>) -> Result<Vec<EventRecord>, EventsError> {
    let index = record.index;
    let mut events = Vec::with_capacity(record.node.min(1024) as usize);
    let mut failed = None;
    frames(record, |frame| match EventRecord::decode(frame) {
        Ok(event) => events.push(event),
        Err(source) => {
            let at = events.len();
            failed.get_or_insert(EventsError::Event { index, at, source });
        }
    })?;
    failed.map_or(Ok(events), Err)
}

/// Shows `visit` the frame of each event of a record, in order.
pub(super) fn frames(record: RecordRef<'_>, mut visit: impl FnMut(&[u8])) -> Result<(), EventsError> {
    let index = record.index;
    let mut found = 0;
    let mut rest = record.payload;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        visit(after.get(..length).ok_or(EventsError::Short { index })?);
        rest = &after[length..];
        found += 1;
    }
    if rest.is_empty() && found == record.node {
        Ok(())
    } else {
        Err(EventsError::Short { index })
    }
}

pub(super) fn from_mark(last: Cursor, stamp: u64) -> Record {
    Record {
        kind: MARK,
        term: stamp,
        node: u64::from(last.sub),
        index: last.index,
        payload: Bytes::new(),
    }
}

/// Returns the position of the last event that a record speaks of.
pub(super) fn last_cursor(record: RecordRef<'_>) -> Cursor {
    let sub = if record.kind == MARK {
        record.node
    } else {
        record.node.saturating_sub(1)
    };
    Cursor {
        index: record.index,
        sub: sub as u32,
    }
}
