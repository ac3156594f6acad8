//! Invariant 4: an acknowledged command is never lost, a refused one never takes effect, and none takes effect twice.
//!
//! Held together from both ends: what clients were told, and what the log decided. A request that a client gave up on
//! is unknown to it and may have taken effect, once, or never.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::event::RequestKey;

use super::{Checker, Decision, Knowledge, Observation};

/// See the module.
#[derive(Debug, Default)]
pub struct Acknowledged {
    told: BTreeMap<RequestKey, Knowledge>,
    effects: BTreeMap<RequestKey, u64>,
    /// Where the log holds a request without refusing it.
    entries: BTreeSet<(RequestKey, u64)>,
}

impl Acknowledged {
    fn decided(&mut self, index: u64, request: RequestKey, decision: Decision) -> Result<(), String> {
        if decision != Decision::Refused {
            self.entries.insert((request, index));
        }
        if decision != Decision::Effect {
            return Ok(());
        }
        match self.effects.insert(request, index) {
            None => Ok(()),
            Some(first) => Err(format!(
                "{request:?} took effect at index {first} and again at index {index}"
            )),
        }
    }

    fn judge(&self, request: &RequestKey, knowledge: Knowledge) -> Result<(), String> {
        match (knowledge, self.effects.get(request)) {
            (Knowledge::Acknowledged(index), Some(decided)) if index != *decided => Err(format!(
                "{request:?} was acknowledged at index {index}, but took effect at {decided}"
            )),
            (Knowledge::Acknowledged(index), _) if !self.entries.contains(&(*request, index)) => {
                Err(format!("{request:?} was acknowledged at index {index}, and is lost"))
            }
            (Knowledge::Refused, Some(decided)) => {
                Err(format!("{request:?} was refused, and took effect at index {decided}"))
            }
            _ => Ok(()),
        }
    }
}

impl Checker for Acknowledged {
    fn name(&self) -> &'static str {
        "acknowledged"
    }

    fn observe(&mut self, observation: &Observation) -> Result<(), String> {
        match observation {
            Observation::Answered { request, knowledge } => {
                self.told.insert(*request, *knowledge);
                Ok(())
            }
            Observation::Decided {
                index,
                request: Some(request),
                decision,
                ..
            } => self.decided(*index, *request, *decision),
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        self.told
            .iter()
            .try_for_each(|(request, knowledge)| self.judge(request, *knowledge))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_proto::id::RequestId;

    use super::*;

    fn key(random: u64) -> RequestKey {
        RequestKey {
            principal: 1,
            id: RequestId { client_ms: 1, random },
        }
    }

    fn decided(index: u64, request: u64, decision: Decision) -> Observation {
        Observation::Decided {
            index,
            request: Some(key(request)),
            decision,
            events: Arc::new([]),
        }
    }

    fn answered(request: u64, knowledge: Knowledge) -> Observation {
        Observation::Answered {
            request: key(request),
            knowledge,
        }
    }

    fn outcome(history: &[Observation]) -> Result<(), String> {
        let mut checker = Acknowledged::default();
        history
            .iter()
            .try_for_each(|observation| checker.observe(observation))?;
        checker.finish()
    }

    #[test]
    fn every_request_may_end_as_its_client_was_told() {
        let history = [
            decided(1, 1, Decision::Effect),
            answered(1, Knowledge::Acknowledged(1)),
            decided(2, 2, Decision::Refused),
            answered(2, Knowledge::Refused),
            answered(3, Knowledge::Unknown),
            decided(3, 4, Decision::Effect),
            decided(4, 4, Decision::Nothing),
            answered(4, Knowledge::Unknown),
        ];
        assert_eq!(outcome(&history), Ok(()));
    }

    #[test]
    fn lost_acknowledged_command_is_caught() {
        assert!(outcome(&[answered(1, Knowledge::Acknowledged(1))]).is_err());
    }

    #[test]
    fn acknowledged_command_may_have_said_what_was_so_already() {
        let history = [
            decided(5, 1, Decision::Nothing),
            answered(1, Knowledge::Acknowledged(5)),
        ];
        assert_eq!(outcome(&history), Ok(()));
        assert!(
            outcome(&[
                decided(5, 1, Decision::Refused),
                answered(1, Knowledge::Acknowledged(5))
            ])
            .is_err()
        );
    }

    #[test]
    fn acknowledgement_of_another_index_is_caught() {
        assert!(outcome(&[decided(2, 1, Decision::Effect), answered(1, Knowledge::Acknowledged(1))]).is_err());
    }

    #[test]
    fn refused_command_that_takes_effect_later_is_caught() {
        assert!(outcome(&[answered(1, Knowledge::Refused), decided(9, 1, Decision::Effect)]).is_err());
    }

    #[test]
    fn command_that_takes_effect_twice_is_caught() {
        assert!(outcome(&[decided(1, 1, Decision::Effect), decided(2, 1, Decision::Effect)]).is_err());
    }
}
