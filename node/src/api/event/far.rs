//! Events for a reader that is far behind and whose filter asks for nothing but types and topics: passed on as they lie on disk.
//!
//! Called by [`super::stream`] where a reader takes frames. Decoding an event and writing it again costs more than everything else of
//! reading it. The one rule is the stream's: in log order, nothing that does not pass, nothing behind the token's own revocation.

use std::collections::BTreeSet;

use axum::body::Bytes;
use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::frame;
use holdfast_proto::id::{Cursor, TokenId};
use holdfast_storage::event_log::RawEvent;

use crate::wire::deliver;

/// The tag of a token's revocation.
const REVOKED: u16 = 14;

/// What became of some events.
pub(super) struct Taken {
    /// Those that pass, as one frame; none when none does.
    pub(super) piece: Option<Bytes>,
    /// The last one that was looked at.
    pub(super) last: Option<Cursor>,
    /// The next one revokes the token.
    pub(super) token_ended: bool,
}

/// Takes what passes of events that follow one another. A frame that is no event is an error.
pub(super) fn take(events: &[RawEvent], wanted: &BTreeSet<u16>, token: TokenId) -> Result<Taken, frame::FrameError> {
    let bytes = events
        .iter()
        .map(|event| event.frame.len() + deliver::LENGTH_BYTES)
        .sum();
    let mut out = deliver::begin(bytes);
    let mut taken = Taken {
        piece: None,
        last: None,
        token_ended: false,
    };
    for event in events {
        let tag = frame::peek_kind(&event.frame)?.wrapping_sub(frame::kind::EVENT);
        if tag == REVOKED && EventRecord::decode(&event.frame)?.event == (Event::TokenRevoked { token }) {
            taken.token_ended = true;
            break;
        }
        if wanted.contains(&tag) {
            deliver::put(&event.frame, &mut out);
        }
        taken.last = Some(event.cursor);
    }
    if out.len() > frame::HEADER_BYTES {
        taken.piece = Some(frame::seal(deliver::kind::DELIVERED, out));
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::time::Timestamp;

    use super::*;

    fn raw(index: u64, event: Event) -> RawEvent {
        let cursor = Cursor { index, sub: 0 };
        let record = EventRecord {
            cursor,
            at: Timestamp(index),
            request: None,
            event,
        };
        RawEvent {
            cursor,
            frame: record.encode(),
        }
    }

    fn told(taken: &Taken) -> Vec<u64> {
        let Some(piece) = &taken.piece else { return Vec::new() };
        let (_, payload) = frame::open(piece).unwrap();
        let mut rest = piece.slice_ref(payload);
        std::iter::from_fn(|| deliver::take(&mut rest).unwrap())
            .map(|record| record.cursor.index)
            .collect()
    }

    #[test]
    fn what_passes_is_told_as_it_lies_up_to_the_revocation_of_the_own_token() {
        let level = || Event::MachineLevelRaised { level: 3 };
        let revoked = |token| Event::TokenRevoked { token: TokenId(token) };
        assert_eq!(revoked(1).tag(), REVOKED);
        let events = [
            raw(1, level()),
            raw(2, revoked(8)),
            raw(3, level()),
            raw(4, revoked(7)),
            raw(5, level()),
        ];
        let all = BTreeSet::from([REVOKED, level().tag()]);
        let taken = take(&events, &all, TokenId(9)).unwrap();
        assert_eq!((told(&taken), taken.token_ended), (vec![1, 2, 3, 4, 5], false));
        let few = BTreeSet::from([level().tag()]);
        let taken = take(&events, &few, TokenId(7)).unwrap();
        assert_eq!((told(&taken), taken.token_ended), (vec![1, 3], true));
        assert_eq!(taken.last, Some(Cursor { index: 3, sub: 0 }));
        let none = take(&events, &BTreeSet::new(), TokenId(9)).unwrap();
        assert!(none.piece.is_none() && none.last == Some(events[4].cursor));
    }
}
