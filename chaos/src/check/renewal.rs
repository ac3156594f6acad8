//! The node lease: a node is declared lost only when its work has surely stopped, and is not renewed afterwards.
//!
//! Work on a node may run until the deadline of its last renewal by the node's own clock, and its supervisor has a bound
//! to stop it. The world tells both in true time, which nobody in it can read. Invariants 2 and 10 rest on this.

use std::collections::BTreeMap;

use holdfast_node::nodelease::Timing;
use holdfast_proto::id::{Generation, NodeId};

use super::{Checker, Observation};

type Life = (NodeId, Generation);

/// See the module.
#[derive(Debug, Default)]
pub struct Renewal {
    /// Until when work may run, in true time.
    until_ns: BTreeMap<Life, u64>,
    lost_ns: BTreeMap<Life, u64>,
}

impl Renewal {
    fn judge(&self, life: Life) -> Result<(), String> {
        let (Some(until_ns), Some(lost_ns)) = (self.until_ns.get(&life), self.lost_ns.get(&life)) else {
            return Ok(());
        };
        let stopped_ns = until_ns + Timing::METRO.stop_bound_ms * 1_000_000;
        if stopped_ns <= *lost_ns {
            return Ok(());
        }
        let (node, generation) = life;
        let over_ms = (stopped_ns - lost_ns) / 1_000_000;
        Err(format!(
            "{node} was declared lost in generation {} while its work may run for {over_ms} ms more",
            generation.0
        ))
    }
}

impl Checker for Renewal {
    fn name(&self) -> &'static str {
        "node-lease"
    }

    fn observe(&mut self, observation: &Observation) -> Result<(), String> {
        let life = match *observation {
            Observation::Renewed {
                node,
                generation,
                until_ns,
            } => {
                let until = self.until_ns.entry((node, generation)).or_default();
                *until = until_ns.max(*until);
                (node, generation)
            }
            Observation::Lost {
                node,
                generation,
                at_ns,
            } => {
                self.lost_ns.entry((node, generation)).or_insert(at_ns);
                (node, generation)
            }
            _ => return Ok(()),
        };
        self.judge(life)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);
    const SECOND: u64 = 1_000_000_000;

    fn renewed(generation: u64, until_ns: u64) -> Observation {
        Observation::Renewed {
            node: NODE,
            generation: Generation(generation),
            until_ns,
        }
    }

    fn lost(generation: u64, at_ns: u64) -> Observation {
        Observation::Lost {
            node: NODE,
            generation: Generation(generation),
            at_ns,
        }
    }

    fn holds(history: &[Observation]) -> bool {
        let mut checker = Renewal::default();
        history.iter().all(|observation| checker.observe(observation).is_ok())
    }

    #[test]
    fn loss_after_the_deadline_and_the_time_to_stop_is_right() {
        assert!(holds(&[
            renewed(1, 4 * SECOND),
            renewed(1, 3 * SECOND),
            lost(1, 5 * SECOND)
        ]));
    }

    #[test]
    fn loss_before_the_deadline_is_caught() {
        assert!(!holds(&[renewed(1, 4 * SECOND), lost(1, 3 * SECOND)]));
    }

    #[test]
    fn loss_while_a_supervisor_may_still_be_stopping_is_caught() {
        assert!(!holds(&[renewed(1, 4 * SECOND), lost(1, 4 * SECOND + 1)]));
    }

    #[test]
    fn renewal_of_a_generation_that_was_lost_is_caught() {
        assert!(!holds(&[
            renewed(1, 4 * SECOND),
            lost(1, 5 * SECOND),
            renewed(1, 9 * SECOND)
        ]));
    }

    #[test]
    fn node_that_returned_is_renewed_in_its_next_generation() {
        assert!(holds(&[
            renewed(1, 4 * SECOND),
            lost(1, 5 * SECOND),
            renewed(2, 9 * SECOND)
        ]));
    }
}
