//! Invariant 5: every subscriber sees the events in log order, without gap or repeat, the same ones from any replica.
//!
//! The reference is what the log was decided into. A subscriber's position only moves forward, over restarts and
//! changes of the replica that serves it, and each event that it receives is the next one.

use std::collections::BTreeMap;

use holdfast_proto::id::Cursor;

use super::{Checker, Observation};
use crate::trace::digest;

/// See the module.
#[derive(Debug, Default)]
pub struct Streams {
    /// Digest of every event that was decided.
    decided: BTreeMap<Cursor, u64>,
    at: BTreeMap<u64, Cursor>,
}

impl Streams {
    fn receive(&mut self, subscriber: u64, cursor: Cursor, content: u64) -> Result<(), String> {
        let before = self.at.insert(subscriber, cursor);
        let decided = match before {
            Some(before) if before >= cursor => {
                return Err(format!("subscriber {subscriber} received {cursor} after {before}"));
            }
            Some(before) => self.decided.range(before..).find(|(at, _)| **at > before),
            None => self.decided.iter().next(),
        };
        match decided {
            Some((next, expected)) if *next == cursor && *expected == content => Ok(()),
            Some((next, _)) if *next == cursor => Err(format!(
                "subscriber {subscriber} received another event at {cursor} than was decided"
            )),
            Some((next, _)) => Err(format!(
                "subscriber {subscriber} received {cursor}; the next event was {next}"
            )),
            None => Err(format!(
                "subscriber {subscriber} received {cursor}, which nobody decided"
            )),
        }
    }
}

impl Checker for Streams {
    fn name(&self) -> &'static str {
        "streams"
    }

    fn observe(&mut self, observation: &Observation) -> Result<(), String> {
        match observation {
            Observation::Decided { events, .. } => {
                let decided = events.iter().map(|record| (record.cursor, digest(&record.encode())));
                self.decided.extend(decided);
                Ok(())
            }
            Observation::Received {
                subscriber,
                cursor,
                content,
                ..
            } => self.receive(*subscriber, *cursor, *content),
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        let Some((last, _)) = self.decided.iter().next_back() else {
            return Ok(());
        };
        match self.at.iter().find(|(_, at)| *at < last) {
            None => Ok(()),
            Some((subscriber, at)) => Err(format!(
                "subscriber {subscriber} has healed, and is still at {at} of {last}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::event::{Event, EventRecord};
    use holdfast_proto::id::NodeId;
    use holdfast_proto::time::Timestamp;

    use super::super::Decision;
    use super::*;

    fn record(index: u64, sub: u32, level: u32) -> EventRecord {
        let event = Event::MachineLevelRaised { level };
        EventRecord {
            cursor: Cursor { index, sub },
            at: Timestamp(index),
            request: None,
            event,
        }
    }

    /// The log decides (1, 0), (1, 1), (3, 0) and (4, 0); a subscriber receives what is given.
    fn outcome(received: &[EventRecord]) -> Result<(), String> {
        let mut checker = Streams::default();
        for events in [
            vec![record(1, 0, 1), record(1, 1, 2)],
            vec![record(3, 0, 3)],
            vec![record(4, 0, 4)],
        ] {
            let index = events[0].cursor.index;
            let decided = Observation::Decided {
                index,
                request: None,
                decision: Decision::Effect,
                events: events.into(),
            };
            checker.observe(&decided)?;
        }
        for record in received {
            let content = digest(&record.encode());
            let (subscriber, from) = (1, NodeId(1));
            checker.observe(&Observation::Received {
                subscriber,
                from,
                cursor: record.cursor,
                content,
            })?;
        }
        checker.finish()
    }

    #[test]
    fn whole_stream_in_order_passes_over_indices_without_events() {
        assert_eq!(
            outcome(&[record(1, 0, 1), record(1, 1, 2), record(3, 0, 3), record(4, 0, 4)]),
            Ok(())
        );
    }

    #[test]
    fn gap_is_caught() {
        assert!(outcome(&[record(1, 0, 1), record(3, 0, 3)]).is_err());
        assert!(outcome(&[record(1, 1, 2)]).is_err());
    }

    #[test]
    fn repeat_is_caught() {
        assert!(outcome(&[record(1, 0, 1), record(1, 0, 1)]).is_err());
    }

    #[test]
    fn step_back_is_caught() {
        assert!(outcome(&[record(1, 0, 1), record(1, 1, 2), record(1, 0, 1)]).is_err());
    }

    #[test]
    fn other_content_at_the_same_place_is_caught() {
        assert!(outcome(&[record(1, 0, 9)]).is_err());
    }

    #[test]
    fn event_that_nobody_decided_is_caught() {
        let all = [
            record(1, 0, 1),
            record(1, 1, 2),
            record(3, 0, 3),
            record(4, 0, 4),
            record(5, 0, 5),
        ];
        assert!(outcome(&all).is_err());
    }

    #[test]
    fn stream_that_never_catches_up_is_caught() {
        assert!(outcome(&[record(1, 0, 1)]).is_err());
    }
}
