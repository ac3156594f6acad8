//! What is said on a channel of the client lane that is a subscription: rkyv frames, one way.
//!
//! Owns the frames that [`crate::api::event::channel`] serves and [`crate::client::stream`] reads. A channel that begins with a
//! [`Subscribe`] in place of a hello is answered like one, with [`super::lane::Answered`]; from then on only the node speaks:
//! [`kind::DELIVERED`] frames with events, and [`Noted`] frames. The one rule: an event travels as the frame that `holdfast_proto` gives
//! it, byte for byte as it lies in the log, so that what is written once serves every subscriber.

// The archived twins that rkyv derives have no texts of their own.
#![allow(missing_docs)]

use std::fmt;

use bytes::Bytes;
use holdfast_proto::event::EventRecord;
use holdfast_proto::frame::{self, FrameError};
use holdfast_proto::id::Cursor;

/// Kinds of frames.
pub mod kind {
    use holdfast_proto::frame::kind::NODE;

    /// [`super::Subscribe`].
    pub const SUBSCRIBE: u16 = NODE + 0x74;
    /// Events, as [`super::put`] writes them.
    pub const DELIVERED: u16 = NODE + 0x75;
    /// [`super::Noted`].
    pub const NOTED: u16 = NODE + 0x76;
}

/// Begins a subscription: who asks, and for what.
#[derive(Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Subscribe {
    /// The whole access token.
    pub token: String,
    /// What is asked for, in the words of `GET /v1/events?…`: one grammar for both ways in.
    pub query: String,
}

impl fmt::Debug for Subscribe {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Subscribe({})", self.query)
    }
}

/// What stands between events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Noted {
    /// What happened.
    pub note: Note,
    /// Where to go on: read strictly after this.
    pub next: Cursor,
}

/// What a stream says beside events. All but a bookmark end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Note {
    /// Everything up to here was looked at.
    Bookmark,
    /// Events up to here were dropped by retention.
    Compacted,
    /// A snapshot took the node over the events up to here; another node may have them.
    Reset,
    /// The subscriber left its queue full.
    TooSlow,
    /// The token was revoked or has expired.
    TokenEnded,
}

impl Note {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Bookmark,
        Self::Compacted,
        Self::Reset,
        Self::TooSlow,
        Self::TokenEnded,
    ];

    /// The word that stands for it in streams of text.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bookmark => "bookmark",
            Self::Compacted => "compacted",
            Self::Reset => "reset",
            Self::TooSlow => "too-slow",
            Self::TokenEnded => "token-ended",
        }
    }
}

/// Bytes that stand before each event.
pub const LENGTH_BYTES: usize = 4;

/// Begins a frame of events; [`put`] fills it and [`frame::seal`] closes it.
#[must_use]
pub fn begin(bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(frame::HEADER_BYTES + bytes);
    out.resize(frame::HEADER_BYTES, 0);
    out
}

/// Appends one event's frame, behind its length.
pub fn put(event: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(event.len()).expect("a frame is bounded far below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(event);
}

/// Takes the next event out of what is left of a frame of events; `None` at its end.
///
/// # Errors
/// [`FrameError`] when the bytes are not events one behind the other.
pub fn take(rest: &mut Bytes) -> Result<Option<EventRecord>, FrameError> {
    if rest.is_empty() {
        return Ok(None);
    }
    let cut_off = |expected: usize| FrameError::Length {
        got: rest.len(),
        expected,
    };
    let head = rest
        .first_chunk::<LENGTH_BYTES>()
        .ok_or_else(|| cut_off(LENGTH_BYTES))?;
    let end = LENGTH_BYTES.saturating_add(u32::from_le_bytes(*head) as usize);
    let event = rest.get(LENGTH_BYTES..end).ok_or_else(|| cut_off(end))?;
    let record = EventRecord::decode(event)?;
    *rest = rest.slice(end..);
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::event::Event;
    use holdfast_proto::id::TokenId;
    use holdfast_proto::time::Timestamp;

    use super::*;

    fn record(index: u64) -> EventRecord {
        EventRecord {
            cursor: Cursor { index, sub: 0 },
            at: Timestamp(index),
            request: None,
            event: Event::TokenRevoked { token: TokenId(index) },
        }
    }

    #[test]
    fn events_come_out_of_a_frame_as_they_went_in_and_a_cut_one_is_refused() {
        let mut bytes = begin(0);
        for index in 1..=3 {
            put(&record(index).encode(), &mut bytes);
        }
        let sealed = frame::seal(kind::DELIVERED, bytes);
        let (kind, payload) = frame::open(&sealed).unwrap();
        assert_eq!(kind, kind::DELIVERED);
        let payload = sealed.slice_ref(payload);
        let mut rest = payload.clone();
        for index in 1..=3 {
            assert_eq!(take(&mut rest).unwrap(), Some(record(index)));
        }
        assert_eq!(take(&mut rest).unwrap(), None);
        for length in 1..payload.len() {
            let mut cut = payload.slice(..length);
            let mut whole = 0;
            let ended = loop {
                match take(&mut cut) {
                    Ok(Some(_)) => whole += 1,
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            assert!(whole < 3 && (!ended || length % (payload.len() / 3) == 0), "{length}");
        }
    }

    #[test]
    fn each_note_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<&str> = Note::ALL.into_iter().map(Note::word).collect();
        assert_eq!(words.len(), Note::ALL.len());
    }
}
