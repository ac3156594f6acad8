//! Invariant 6: the state is equal on all replicas at each index.
//!
//! Compares the digest of the state after every entry, over all replicas and all their lives, so that a state restored
//! from a snapshot is held against what others computed. Also: one replica's applied index never goes back in one life.

use std::collections::BTreeMap;

use super::{Checker, Observation, Seen};

/// See the module.
#[derive(Debug, Default)]
pub struct Agreement {
    states: BTreeMap<u64, (u64, Seen)>,
    applied: BTreeMap<Seen, u64>,
}

impl Checker for Agreement {
    fn name(&self) -> &'static str {
        "agreement"
    }

    fn observe(&mut self, observation: &Observation) -> Result<(), String> {
        let Observation::Applied { by, place, state, .. } = observation else {
            return Ok(());
        };
        let index = place.index;
        if let Some(before) = self.applied.insert(*by, index)
            && before >= index
        {
            return Err(format!("{by} applied index {index} after index {before}"));
        }
        let Some(state) = state else { return Ok(()) };
        let (first, who) = *self.states.entry(index).or_insert((*state, *by));
        if first == *state {
            return Ok(());
        }
        Err(format!(
            "state after index {index} is {state:016x} on {by}, and {first:016x} on {who}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::id::NodeId;

    use super::super::Place;
    use super::*;

    fn applied(replica: u64, life: u32, index: u64, state: u64) -> Observation {
        let by = Seen {
            replica: NodeId(replica),
            life,
        };
        Observation::Applied {
            by,
            place: Place {
                term: 1,
                leader: NodeId(1),
                index,
            },
            content: 0,
            state: Some(state),
        }
    }

    #[test]
    fn equal_states_pass_and_a_restart_may_apply_again() {
        let mut checker = Agreement::default();
        for observation in [
            applied(1, 0, 1, 7),
            applied(2, 0, 1, 7),
            applied(1, 0, 2, 8),
            applied(1, 1, 1, 7),
        ] {
            assert_eq!(checker.observe(&observation), Ok(()));
        }
    }

    #[test]
    fn states_that_differ_at_one_index_are_caught() {
        let mut checker = Agreement::default();
        assert!(checker.observe(&applied(1, 0, 1, 7)).is_ok());
        assert!(checker.observe(&applied(2, 0, 1, 8)).is_err());
    }

    #[test]
    fn restarted_replica_that_computes_another_state_is_caught() {
        let mut checker = Agreement::default();
        assert!(checker.observe(&applied(1, 0, 1, 7)).is_ok());
        assert!(checker.observe(&applied(1, 1, 1, 8)).is_err());
    }

    #[test]
    fn entry_applied_twice_in_one_life_is_caught() {
        let mut checker = Agreement::default();
        assert!(checker.observe(&applied(1, 0, 1, 7)).is_ok());
        assert!(checker.observe(&applied(1, 0, 1, 7)).is_err());
    }
}
