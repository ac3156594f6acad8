//! Invariant 4: an acknowledged command is never lost, a refused one never takes effect, and none takes effect twice.
//!
//! Held together from both ends: what clients were told, and what the log decided. A request that a client gave up on
//! is unknown to it and may have taken effect, once, or never.

use std::collections::BTreeMap;

use holdfast_proto::event::RequestKey;

use super::{Checker, Knowledge, Observation};

/// See the module.
#[derive(Debug, Default)]
pub struct Acknowledged {
    told: BTreeMap<RequestKey, Knowledge>,
    effects: BTreeMap<RequestKey, u64>,
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
                effect: true,
                ..
            } => match self.effects.insert(*request, *index) {
                None => Ok(()),
                Some(first) => Err(format!(
                    "{request:?} took effect at index {first} and again at index {index}"
                )),
            },
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        for (request, knowledge) in &self.told {
            match (knowledge, self.effects.get(request)) {
                (Knowledge::Acknowledged(index), Some(decided)) if index == decided => {}
                (Knowledge::Acknowledged(index), Some(decided)) => {
                    return Err(format!(
                        "{request:?} was acknowledged at index {index}, but took effect at {decided}"
                    ));
                }
                (Knowledge::Acknowledged(index), None) => {
                    return Err(format!("{request:?} was acknowledged at index {index}, and is lost"));
                }
                (Knowledge::Refused, Some(decided)) => {
                    return Err(format!("{request:?} was refused, and took effect at index {decided}"));
                }
                (Knowledge::Refused, None) | (Knowledge::Unknown, _) => {}
            }
        }
        Ok(())
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

    fn decided(index: u64, request: u64, effect: bool) -> Observation {
        Observation::Decided {
            index,
            request: Some(key(request)),
            effect,
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
            decided(1, 1, true),
            answered(1, Knowledge::Acknowledged(1)),
            decided(2, 2, false),
            answered(2, Knowledge::Refused),
            answered(3, Knowledge::Unknown),
            decided(3, 4, true),
            decided(4, 4, false),
            answered(4, Knowledge::Unknown),
        ];
        assert_eq!(outcome(&history), Ok(()));
    }

    #[test]
    fn lost_acknowledged_command_is_caught() {
        assert!(outcome(&[answered(1, Knowledge::Acknowledged(1))]).is_err());
    }

    #[test]
    fn acknowledgement_of_another_index_is_caught() {
        assert!(outcome(&[decided(2, 1, true), answered(1, Knowledge::Acknowledged(1))]).is_err());
    }

    #[test]
    fn refused_command_that_takes_effect_later_is_caught() {
        assert!(outcome(&[answered(1, Knowledge::Refused), decided(9, 1, true)]).is_err());
    }

    #[test]
    fn command_that_takes_effect_twice_is_caught() {
        assert!(outcome(&[decided(1, 1, true), decided(2, 1, true)]).is_err());
    }
}
