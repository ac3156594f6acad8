//! Raft: a log id names one entry for ever, across restarts; and what was applied at an index stays.
//!
//! openraft checks log ids, not contents. A leader that restarts, resumes its term without a vote and hands out an
//! index a second time breaks exactly this, with no error raised anywhere; that is why appends are watched here too,
//! before anything is committed.

use std::collections::BTreeMap;

use super::{Checker, Observation, Place, Seen};

/// See the module.
#[derive(Debug, Default)]
pub struct OneContent {
    appended: BTreeMap<Place, (u64, Seen)>,
    applied: BTreeMap<u64, (Place, u64, Seen)>,
}

impl OneContent {
    fn append(&mut self, by: Seen, place: Place, content: u64) -> Result<(), String> {
        let (first, who) = *self.appended.entry(place).or_insert((content, by));
        if first == content {
            return Ok(());
        }
        Err(format!(
            "{place} is {content:016x} in the log of {by}, and {first:016x} in that of {who}"
        ))
    }
}

impl Checker for OneContent {
    fn name(&self) -> &'static str {
        "one-content"
    }

    fn observe(&mut self, observation: &Observation) -> Result<(), String> {
        match observation {
            Observation::Appended { by, place, content } => self.append(*by, *place, *content),
            Observation::Applied { by, place, content, .. } => {
                self.append(*by, *place, *content)?;
                let (first, told, who) = *self.applied.entry(place.index).or_insert((*place, *content, *by));
                if (first, told) == (*place, *content) {
                    return Ok(());
                }
                Err(format!(
                    "{by} applied {place} ({content:016x}), but {who} applied {first} ({told:016x})"
                ))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::id::NodeId;

    use super::*;

    fn appended(replica: u64, life: u32, term: u64, index: u64, content: u64) -> Observation {
        let by = Seen {
            replica: NodeId(replica),
            life,
        };
        Observation::Appended {
            by,
            place: Place {
                term,
                leader: NodeId(3),
                index,
            },
            content,
        }
    }

    fn applied(replica: u64, term: u64, index: u64, content: u64) -> Observation {
        let by = Seen {
            replica: NodeId(replica),
            life: 0,
        };
        Observation::Applied {
            by,
            place: Place {
                term,
                leader: NodeId(3),
                index,
            },
            content,
            state: None,
        }
    }

    #[test]
    fn uncommitted_entry_may_be_replaced_by_one_of_a_later_term() {
        let mut checker = OneContent::default();
        for observation in [
            appended(1, 0, 1, 5, 7),
            appended(2, 0, 2, 5, 8),
            appended(1, 0, 2, 5, 8),
            applied(1, 2, 5, 8),
        ] {
            assert_eq!(checker.observe(&observation), Ok(()));
        }
    }

    #[test]
    fn leader_that_resumes_its_term_and_hands_out_an_index_again_is_caught() {
        let mut checker = OneContent::default();
        assert!(checker.observe(&appended(3, 0, 2, 170, 7)).is_ok());
        assert!(checker.observe(&appended(3, 1, 2, 170, 8)).is_err());
    }

    #[test]
    fn two_entries_applied_at_one_index_are_caught() {
        let mut checker = OneContent::default();
        assert!(checker.observe(&applied(1, 1, 5, 7)).is_ok());
        assert!(checker.observe(&applied(2, 2, 5, 7)).is_err());
    }
}
