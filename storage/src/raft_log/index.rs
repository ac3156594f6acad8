//! What the Raft log knows in memory: where each entry lies, and the newest entries themselves.
//!
//! The log's handle changes it when openraft asks for something, the log's writer when that has reached the file. The
//! handle's side (`last`, `purged`, `tail`) is ahead; the writer's side (`first`, `places`) follows in the same order.
//!
//! The rule: an entry leaves the tail only after it was written, so each entry can be read from one or the other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::entry::weight;
use crate::journal::Position;
use crate::types::{Entry, LogId, Vote};

/// Both sides of the index, under one lock.
#[derive(Debug)]
pub(super) struct Index {
    /// The last saved vote; set once it is durable.
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) last: Option<LogId>,
    tail: VecDeque<Held>,
    tail_bytes: usize,
    tail_bytes_max: usize,
    /// Index of the first entry in `places`.
    first: u64,
    places: VecDeque<Position>,
    /// Jobs up to this one are in the file.
    written: u64,
    /// Jobs up to this one are durable.
    pub(super) durable: u64,
    /// The newest job.
    pub(super) submitted: u64,
    /// Why the log has stopped, once it has.
    pub(super) failed: Option<Arc<str>>,
}

#[derive(Debug)]
struct Held {
    entry: Entry,
    /// The job that writes it.
    job: u64,
}

/// Where a run of entries is to be read from.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// These come first and lie on disk.
    pub(super) places: Vec<Position>,
    /// These follow.
    pub(super) entries: Vec<Entry>,
}

impl Index {
    pub(super) fn new(tail_bytes_max: usize) -> Self {
        Self {
            vote: None,
            committed: None,
            purged: None,
            last: None,
            tail: VecDeque::new(),
            tail_bytes: 0,
            tail_bytes_max,
            first: 0,
            places: VecDeque::new(),
            written: 0,
            durable: 0,
            submitted: 0,
            failed: None,
        }
    }

    /// Returns the number for the next job; jobs are numbered from 1 in the order that the file keeps.
    pub(super) fn number_job(&mut self) -> u64 {
        self.submitted += 1;
        self.submitted
    }

    /// Index of the first entry that is not purged, and of the one after the last.
    fn bounds(&self) -> Range<u64> {
        let end = self.last.map_or(0, |id| id.index + 1);
        let first_held = self.tail.front().map(|held| held.entry.log_id.index);
        let first_known = if self.places.is_empty() {
            first_held.unwrap_or(end)
        } else {
            self.first
        };
        let after_purge = self.purged.map_or(0, |id| id.index + 1);
        first_known.max(after_purge)..end
    }

    /// Says whether the writer's side has any entry.
    pub(super) fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns the first entry of an opened log and the one that should be, where they differ.
    pub(super) fn gap(&self) -> Option<(u64, u64)> {
        let wanted = self.purged.map_or(0, |id| id.index + 1);
        (self.has_places() && self.first != wanted).then_some((self.first, wanted))
    }

    /// Takes in entries that were just handed over by openraft.
    pub(super) fn append(&mut self, entry: Entry, job: u64) {
        let index = entry.log_id.index;
        let next = self.last.map(|id| id.index + 1);
        assert!(
            next.is_none_or(|next| next == index),
            "entry {index} appended after {:?}",
            self.last
        );
        self.last = Some(entry.log_id);
        self.tail_bytes += weight(&entry);
        self.tail.push_back(Held { entry, job });
    }

    /// Forgets the entries after `after`.
    pub(super) fn truncate(&mut self, after: Option<LogId>) {
        let end = after.map_or(0, |id| id.index + 1);
        while self.tail.back().is_some_and(|held| held.entry.log_id.index >= end) {
            self.drop_back();
        }
        // Nothing is removed when the log ends before `after`.
        if self.last.is_some_and(|last| last.index >= end) {
            self.last = after.or(self.purged);
        }
    }

    /// Forgets the entries up to `upto`.
    pub(super) fn purge(&mut self, upto: LogId) {
        while self
            .tail
            .front()
            .is_some_and(|held| held.entry.log_id.index <= upto.index)
        {
            self.drop_front();
        }
        self.purged = self.purged.max(Some(upto));
        if self.last < self.purged {
            self.last = self.purged;
        }
    }

    /// Notes where the writer has put an entry.
    pub(super) fn place(&mut self, index: u64, position: Position) {
        if self.places.is_empty() {
            self.first = index;
        }
        assert_eq!(
            index,
            self.first + self.places.len() as u64,
            "the writer's entries are not consecutive"
        );
        self.places.push_back(position);
    }

    /// Notes that the writer has put a truncation after `after`.
    pub(super) fn place_truncate(&mut self, after: Option<LogId>) {
        let end = after.map_or(0, |id| id.index + 1);
        self.places.truncate(end.saturating_sub(self.first) as usize);
    }

    /// Notes that the writer has put a purge up to `upto`.
    pub(super) fn place_purge(&mut self, upto: LogId) {
        let gone = (upto.index + 1)
            .saturating_sub(self.first)
            .min(self.places.len() as u64);
        self.places.drain(..gone as usize);
        self.first += gone;
    }

    /// Notes that jobs up to `job` are in the file, and lets go of what need not be held any more.
    pub(super) fn note_written(&mut self, job: u64) {
        self.written = job;
        while self.tail_bytes > self.tail_bytes_max && self.tail.front().is_some_and(|held| held.job <= self.written) {
            self.drop_front();
        }
    }

    /// Returns where the entries of `range` are, as far as the log has them.
    pub(super) fn run(&self, range: Range<u64>, bytes_max: usize) -> Run {
        let bounds = self.bounds();
        let (start, end) = (range.start.max(bounds.start), range.end.min(bounds.end));
        let mut run = Run::default();
        let held_from = self.tail.front().map_or(bounds.end, |held| held.entry.log_id.index);
        let mut bytes = 0;
        for index in start..end {
            if bytes >= bytes_max {
                break;
            }
            if index < held_from {
                let position = self.places[(index - self.first) as usize];
                bytes += position.size as usize;
                run.places.push(position);
            } else {
                let entry = &self.tail[(index - held_from) as usize].entry;
                bytes += weight(entry);
                run.entries.push(entry.clone());
            }
        }
        run
    }

    fn drop_front(&mut self) {
        if let Some(held) = self.tail.pop_front() {
            self.tail_bytes -= weight(&held.entry);
        }
    }

    fn drop_back(&mut self) {
        if let Some(held) = self.tail.pop_back() {
            self.tail_bytes -= weight(&held.entry);
        }
    }
}
