//! The trace of a simulation: one hash over everything that happened, and the last events in readable form.
//!
//! The runtime notes each timer and each poll, the network each message, the disk each write and sync, the fault
//! injector each fault. The one rule: whatever two runs of one seed could do differently is noted here, so that equal
//! hashes mean equal runs. Events are kept as words and rendered only when somebody asks, for most are never read.

use std::collections::VecDeque;
use std::fmt;

use crate::random::mix;

/// Events kept for the report of a failure.
const RECENT_EVENTS: usize = 400;

/// What happened. The number goes into the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u64)]
pub enum Kind {
    /// A task was polled: task.
    Poll = 1,
    /// A timer fired: local deadline.
    Timer = 2,
    /// A host's tasks were dropped: how many.
    Kill = 3,
    /// A host stopped running: until when.
    Pause = 4,
    /// A host's clock changed its rate: parts per million.
    Rate = 5,
    /// A message left: receiver, serial, digest.
    Send = 6,
    /// A message arrived: sender, serial, digest.
    Deliver = 7,
    /// A message was lost, or cut off: receiver, serial, reason.
    Drop = 8,
    /// Bytes were written: file, offset, digest.
    Write = 9,
    /// A file was synced: file, bytes made durable.
    Sync = 10,
    /// A disk lost what was not synced: operations, bytes.
    Lose = 11,
    /// A client's operation, began or ended: client, serial, outcome.
    Operation = 12,
    /// A replica applied: index, state hash.
    Apply = 13,
    /// A fault of the plan: its number.
    Fault = 14,
    /// A replica saw itself lead: term.
    Lead = 15,
    /// Anything else that a world wants in its hash: a label's digest, a value.
    Note = 16,
    /// It was decided that a lease begins a phase: lease, phase as [`LEASE_PHASES`] counts them.
    Lease = 17,
}

/// Names of the phases of a lease, as [`Kind::Lease`] counts them.
pub const LEASE_PHASES: [&str; 5] = ["waits", "placed", "runs", "frozen", "ended"];

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Virtual time, in nanoseconds.
    pub at_ns: u64,
    /// The host concerned; 0 is the simulation itself.
    pub host: u64,
    /// What happened.
    pub kind: Kind,
    /// Its words, as the kind tells.
    pub words: [u64; 3],
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, third] = self.words;
        let (millis, nanos) = (self.at_ns / 1_000_000, self.at_ns % 1_000_000);
        write!(
            out,
            "{millis:>8}.{nanos:06} host {:<4x} {:?} {first:x} {second:x} {third:x}",
            self.host, self.kind
        )
    }
}

/// A running hash over events.
#[derive(Debug, Clone)]
pub struct Trace {
    hash: u64,
    events: u64,
    recent: VecDeque<Event>,
    keep: usize,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            hash: 0,
            events: 0,
            recent: VecDeque::new(),
            keep: RECENT_EVENTS,
        }
    }
}

impl Trace {
    /// A trace that keeps every event, to find the first one in which two runs differ.
    pub fn complete() -> Self {
        Self {
            keep: usize::MAX,
            ..Self::default()
        }
    }

    /// Notes one event.
    pub fn note(&mut self, event: Event) {
        let Event {
            at_ns,
            host,
            kind,
            words,
        } = event;
        for word in [at_ns, host, kind as u64, words[0], words[1], words[2]] {
            self.hash = mix(self.hash.rotate_left(5) ^ word);
        }
        self.events += 1;
        // Polls are nearly all of the events and say nothing to a reader; a complete trace wants them all the same.
        if kind == Kind::Poll && self.keep != usize::MAX {
            return;
        }
        if self.recent.len() >= self.keep {
            self.recent.pop_front();
        }
        self.recent.push_back(event);
    }

    /// The hash over everything noted so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events were noted.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The last events, oldest first.
    pub fn recent(&self) -> impl ExactSizeIterator<Item = &Event> {
        self.recent.iter()
    }
}

/// A digest of bytes for the trace: not cryptographic, equal for equal bytes on every machine.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        hash = mix(hash.rotate_left(5) ^ u64::from_le_bytes(word));
    }
    chunks
        .remainder()
        .iter()
        .fold(hash, |hash, byte| mix(hash.rotate_left(5) ^ u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(host: u64, first: u64) -> Event {
        Event {
            at_ns: 5,
            host,
            kind: Kind::Note,
            words: [first, 0, 0],
        }
    }

    fn hash_of(events: &[Event]) -> u64 {
        let mut trace = Trace::default();
        events.iter().for_each(|event| trace.note(*event));
        trace.hash()
    }

    #[test]
    fn hash_tells_order_host_and_words_apart() {
        let base = hash_of(&[event(1, 1), event(1, 2)]);
        assert_eq!(base, hash_of(&[event(1, 1), event(1, 2)]));
        assert_ne!(base, hash_of(&[event(1, 2), event(1, 1)]));
        assert_ne!(base, hash_of(&[event(2, 1), event(1, 2)]));
        assert_ne!(base, hash_of(&[event(1, 1)]));
    }

    #[test]
    fn only_the_last_events_are_kept() {
        let mut trace = Trace::default();
        (0..1_000).for_each(|n| trace.note(event(1, n)));
        assert_eq!(trace.recent().len(), RECENT_EVENTS);
        assert_eq!(trace.recent().last().map(|event| event.words[0]), Some(999));
        assert_eq!(trace.events(), 1_000);
    }

    #[test]
    fn digest_covers_every_byte() {
        let bytes: Vec<u8> = (0..21).collect();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(digest(&bytes), digest(&other), "byte {at}");
        }
        assert_ne!(digest(&[0]), digest(&[0, 0]));
    }
}
