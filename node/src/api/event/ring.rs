//! The newest events as they are sent, written once for all subscribers of this node.
//!
//! The subscriber that first needs an event writes it; all others share the bytes. Older events are read from disk for the one that is
//! behind, until it has caught up with the ring. The one rule: the ring's events follow one another in the log, so that whoever reads
//! to its beginning from disk joins it without a gap.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::body::Bytes;
use holdfast_proto::event::EventRecord;
use holdfast_proto::id::Cursor;

use crate::api::seam::{Committed, HistoryError};
use crate::wire::event::{CloudEventRef, source};

/// About how many bytes the ring keeps.
const RING_BYTES: usize = 24 << 20;
/// An event's forms take about this many times the bytes of its frame: JSON is twice as long.
const FORMS: usize = 3;

/// An event, and the forms in which it is sent, each written by the first that needs it.
#[derive(Debug)]
pub struct Line {
    /// The event.
    pub record: Arc<EventRecord>,
    source: Arc<str>,
    json: OnceLock<Bytes>,
    frame: OnceLock<Bytes>,
}

impl Line {
    fn new(record: Arc<EventRecord>, source: Arc<str>) -> Self {
        Self {
            record,
            source,
            json: OnceLock::new(),
            frame: OnceLock::new(),
        }
    }

    /// Its JSON, as CloudEvents have it.
    pub fn json(&self) -> &Bytes {
        self.json.get_or_init(|| {
            let event = CloudEventRef::of(&self.source, &self.record);
            serde_json::to_vec(&event).unwrap_or_default().into()
        })
    }

    /// Its frame, as it lies in the log.
    pub fn frame(&self) -> &Bytes {
        self.frame.get_or_init(|| self.record.encode())
    }

    /// About how many bytes it takes once all forms are written.
    fn weight(&self) -> usize {
        self.frame().len() * FORMS
    }
}

/// The newest events of a node.
#[derive(Debug, Default)]
pub struct Ring {
    kept: Mutex<Kept>,
    /// Held by the one that reads on at the ring's end.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<Arc<Line>>,
    /// Everything after this, up to the last line, is here.
    after: Cursor,
    last: Cursor,
    bytes: usize,
}

impl Ring {
    /// The next `limit` events strictly after a position; none when there are none yet.
    ///
    /// # Errors
    /// When events after the position are gone, or the log cannot be read.
    pub async fn read(
        &self,
        committed: &dyn Committed,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<Arc<Line>>, HistoryError> {
        if let Some(lines) = self.held().after(after, limit) {
            return Ok(lines);
        }
        if after < self.held().last {
            return read_lines(committed, after, limit).await;
        }
        let _reading = self.reading.lock().await;
        if let Some(lines) = self.held().after(after, limit) {
            return Ok(lines);
        }
        let lines = read_lines(committed, after, limit).await?;
        self.held().extend(after, &lines, lines.len() < limit);
        Ok(lines)
    }

    fn held(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read_lines(committed: &dyn Committed, after: Cursor, limit: usize) -> Result<Vec<Arc<Line>>, HistoryError> {
    let records = committed.events(after, limit).await?;
    let source: Arc<str> = source(committed.state().cluster.id).into();
    let line = |record| Arc::new(Line::new(record, source.clone()));
    Ok(records.into_iter().map(line).collect())
}

impl Kept {
    /// What is here after a position; `None` when that has to be read from the log.
    fn after(&self, after: Cursor, limit: usize) -> Option<Vec<Arc<Line>>> {
        if after < self.after || after >= self.last {
            return None;
        }
        let start = self.lines.partition_point(|line| line.record.cursor <= after);
        Some(self.lines.range(start..).take(limit).cloned().collect())
    }

    /// Takes lines that follow `after`. The ring begins anew with lines that do not follow its own, if they reach the end of the log.
    fn extend(&mut self, after: Cursor, lines: &[Arc<Line>], at_end: bool) {
        let Some(last) = lines.last() else { return };
        if after != self.last {
            if !at_end {
                return;
            }
            self.lines.clear();
            self.bytes = 0;
            self.after = after;
        }
        self.last = last.record.cursor;
        self.bytes += lines.iter().map(|line| line.weight()).sum::<usize>();
        self.lines.extend(lines.iter().cloned());
        while self.bytes > RING_BYTES {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.weight();
            self.after = oldest.record.cursor;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::event::Event;
    use holdfast_proto::id::TokenId;
    use holdfast_proto::time::Timestamp;

    use super::*;

    fn at(index: u64) -> Cursor {
        Cursor { index, sub: 0 }
    }

    fn line(index: u64, bytes: usize) -> Arc<Line> {
        let event = Event::TokenRevoked { token: TokenId(index) };
        let record = EventRecord {
            cursor: at(index),
            at: Timestamp(index),
            request: None,
            event,
        };
        let line = Line::new(Arc::new(record), source(None).into());
        line.frame.set(vec![b' '; bytes].into()).unwrap();
        Arc::new(line)
    }

    fn indexes(lines: Option<Vec<Arc<Line>>>) -> Option<Vec<u64>> {
        Some(lines?.iter().map(|line| line.record.cursor.index).collect())
    }

    #[test]
    fn the_ring_gives_only_what_follows_without_a_gap() {
        let mut kept = Kept::default();
        kept.extend(at(7), &[line(8, 1), line(9, 1)], true);
        assert_eq!(indexes(kept.after(at(6), 9)), None, "event 7 may be missing");
        assert_eq!(indexes(kept.after(at(7), 9)), Some(vec![8, 9]));
        assert_eq!(indexes(kept.after(at(8), 9)), Some(vec![9]));
        assert_eq!(indexes(kept.after(at(9), 9)), None, "what follows is not known here");
    }

    #[test]
    fn lines_that_leave_a_gap_replace_the_ring_only_at_the_end_of_the_log() {
        let mut kept = Kept::default();
        kept.extend(at(0), &[line(1, 1)], true);
        kept.extend(at(50), &[line(51, 1)], false);
        assert_eq!(indexes(kept.after(at(0), 9)), Some(vec![1]));
        kept.extend(at(50), &[line(51, 1)], true);
        assert_eq!(indexes(kept.after(at(0), 9)), None);
        assert_eq!(indexes(kept.after(at(50), 9)), Some(vec![51]));
    }

    #[test]
    fn the_ring_keeps_to_its_bytes_and_then_sends_readers_to_the_log() {
        let mut kept = Kept::default();
        let half = RING_BYTES / FORMS / 2;
        kept.extend(at(0), &[line(1, half), line(2, half)], true);
        kept.extend(at(2), &[line(3, half)], true);
        assert_eq!(indexes(kept.after(at(0), 9)), None);
        assert_eq!(indexes(kept.after(at(1), 9)), Some(vec![2, 3]));
    }
}
