//! Linearizability of what clients read and write: each device, each node's cordon and the tenant's quota is a register.
//!
//! The histories are the clients' own: when they asked, when they heard, what they were told. A client reads through any
//! replica and asks for a fresh answer, as the product's reads are by default. A device is written by placements alone,
//! and may fall free at any time; a lease that holds it again after it was seen free must have been placed there anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use holdfast_proto::id::{DeviceId, NodeId};
use serde::{Deserialize, Serialize};

use super::linearize::{Found, Model, Timed, search};
use super::{Checker, Observation};

/// Something that clients read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Register {
    /// Why a node is cordoned.
    Cordon(NodeId),
    /// What a tenant may hold, by its number.
    Quota(u8),
    /// Which lease holds a device.
    Device(DeviceId),
}

impl fmt::Display for Register {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cordon(node) => write!(out, "the cordon of {node}"),
            Self::Quota(number) => write!(out, "the quota of tenant {number}"),
            Self::Device(device) => write!(out, "{device}"),
        }
    }
}

/// How a call ended, as its caller knows. One that has not ended may still take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The value was written.
    Wrote,
    /// This value was read.
    Read(u64),
    /// It was refused, or failed to read: nothing came of it and nothing will.
    Nothing,
}

/// What was done to a register. 0 is the value of one that nothing was ever written to, and of a free device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Write(u64),
    Read(u64),
}

/// A register that keeps what was written to it, or that may also become 0 by itself.
struct Kept {
    falls_free: bool,
}

/// A register's value; whether it was seen to have become 0 since it was written.
type Value = (u64, bool);

impl Model for Kept {
    type State = Value;
    type Operation = Use;

    fn step(&self, (value, freed): &Value, operation: &Use) -> Option<Value> {
        match *operation {
            Use::Write(next) => Some((next, false)),
            Use::Read(0) if self.falls_free => Some((*value, true)),
            Use::Read(read) => (read == *value && !freed).then_some((*value, false)),
        }
    }

    fn only_looks(&self, operation: &Use) -> bool {
        matches!(operation, Use::Read(_))
    }
}

#[derive(Debug)]
struct Call {
    called_ns: u64,
    register: Register,
    write: Option<u64>,
    ended: Option<(u64, Ended)>,
}

/// See the module.
#[derive(Debug)]
pub struct Registers {
    calls: BTreeMap<u64, Call>,
    undecided: Vec<String>,
    budget: usize,
}

/// Configurations that the search for an order may look at, for each register.
const BUDGET: usize = 100_000;

impl Default for Registers {
    fn default() -> Self {
        Self::with_budget(BUDGET)
    }
}

impl Registers {
    fn with_budget(budget: usize) -> Self {
        Self {
            calls: BTreeMap::new(),
            undecided: Vec::new(),
            budget,
        }
    }

    fn histories(&self) -> BTreeMap<Register, Vec<Timed<Use>>> {
        let read: BTreeSet<(Register, u64)> = self
            .calls
            .values()
            .filter_map(|call| match call.ended {
                Some((_, Ended::Read(value))) => Some((call.register, value)),
                _ => None,
            })
            .collect();
        let mut histories: BTreeMap<Register, Vec<Timed<Use>>> = BTreeMap::new();
        for call in self.calls.values() {
            let (returned_ns, operation) = match (call.ended, call.write) {
                (Some((at_ns, Ended::Read(value))), _) => (Some(at_ns), Use::Read(value)),
                (Some((at_ns, Ended::Wrote)), Some(value)) => (Some(at_ns), Use::Write(value)),
                // One that nobody saw may as well never have taken effect.
                (None, Some(value)) if read.contains(&(call.register, value)) => (None, Use::Write(value)),
                _ => continue,
            };
            histories.entry(call.register).or_default().push(Timed {
                called_ns: call.called_ns,
                returned_ns,
                operation,
            });
        }
        histories
    }
}

impl Checker for Registers {
    fn name(&self) -> &'static str {
        "linearizable"
    }

    fn observe(&mut self, observation: &Observation) -> Result<(), String> {
        match observation {
            Observation::Called {
                call,
                at_ns,
                register,
                write,
            } => {
                let (called_ns, register, write) = (*at_ns, *register, *write);
                let began = Call {
                    called_ns,
                    register,
                    write,
                    ended: None,
                };
                self.calls.insert(*call, began);
            }
            Observation::Returned { call, at_ns, ended } => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.ended = Some((*at_ns, *ended));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        let mut broken = Ok(());
        for (register, history) in self.histories() {
            let falls_free = matches!(register, Register::Device(_));
            let operations = history.len();
            // One step for each operation is spent even where nothing overlaps.
            let budget = self.budget.max(10 * operations);
            match search(&Kept { falls_free }, (0, false), history, budget) {
                Found::Order => {}
                Found::None(text) if broken.is_ok() => broken = Err(format!("{register}: {text}")),
                Found::None(_) => {}
                Found::Undecided => self.undecided.push(format!(
                    "{register}: no order of {operations} operations was found or excluded within {budget} steps"
                )),
            }
        }
        broken
    }

    fn undecided(&self) -> &[String] {
        &self.undecided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Register = Register::Device(DeviceId([1; 16]));

    /// A call of a register: its begin, its end, what is written, how it ended.
    type Line = (u64, u64, Register, Option<u64>, Option<Ended>);

    fn wrote(from: u64, to: u64, register: Register, value: u64) -> Line {
        (from, to, register, Some(value), Some(Ended::Wrote))
    }

    fn read(from: u64, to: u64, register: Register, value: u64) -> Line {
        (from, to, register, None, Some(Ended::Read(value)))
    }

    fn judged(lines: &[Line], budget: usize) -> (Result<(), String>, usize) {
        let mut checker = Registers::with_budget(budget);
        for (call, (from, to, register, write, ended)) in (0..).zip(lines) {
            let (at_ns, register, write) = (*from, *register, *write);
            let called = Observation::Called {
                call,
                at_ns,
                register,
                write,
            };
            assert_eq!(checker.observe(&called), Ok(()));
            if let Some(ended) = *ended {
                let at_ns = *to;
                let returned = Observation::Returned { call, at_ns, ended };
                assert_eq!(checker.observe(&returned), Ok(()));
            }
        }
        let outcome = checker.finish();
        (outcome, checker.undecided().len())
    }

    fn passes(lines: &[Line]) -> bool {
        let (outcome, undecided) = judged(lines, BUDGET);
        assert_eq!(undecided, 0);
        outcome.is_ok()
    }

    #[test]
    fn fresh_reads_pass_and_a_stale_one_is_caught() {
        let quota = Register::Quota(0);
        let mut lines = vec![read(1, 2, quota, 0), wrote(3, 4, quota, 900), read(5, 6, quota, 900)];
        assert!(passes(&lines));
        lines.push(read(7, 8, quota, 0));
        assert!(!passes(&lines));
    }

    #[test]
    fn registers_are_judged_apart() {
        let (one, two) = (Register::Cordon(NodeId(1)), Register::Cordon(NodeId(2)));
        assert!(passes(&[wrote(1, 2, one, 7), read(3, 4, two, 0), read(3, 4, one, 7)]));
    }

    #[test]
    fn device_may_fall_free_and_be_placed_again() {
        let again = [
            wrote(1, 2, DEVICE, 7),
            read(3, 4, DEVICE, 7),
            read(5, 6, DEVICE, 0),
            wrote(7, 8, DEVICE, 7),
            read(9, 10, DEVICE, 7),
        ];
        assert!(passes(&again));
    }

    #[test]
    fn lease_that_holds_a_device_again_without_a_placement_is_caught() {
        assert!(!passes(&[
            wrote(1, 2, DEVICE, 7),
            read(3, 4, DEVICE, 0),
            read(5, 6, DEVICE, 7)
        ]));
    }

    #[test]
    fn lease_that_was_placed_over_is_never_seen_again() {
        let over = [wrote(1, 2, DEVICE, 7), wrote(3, 4, DEVICE, 8), read(5, 6, DEVICE, 7)];
        assert!(!passes(&over));
    }

    #[test]
    fn refused_write_that_is_seen_is_caught_and_an_unknown_one_may_be() {
        let seen = read(5, 6, Register::Quota(0), 900);
        let write = |ended| (1, 2, Register::Quota(0), Some(900), ended);
        assert!(!passes(&[write(Some(Ended::Nothing)), seen]));
        assert!(passes(&[write(None), seen]));
    }

    #[test]
    fn what_takes_too_long_is_undecided_and_no_violation() {
        let mut lines: Vec<Line> = (1..=20).map(|value| wrote(1, 100, Register::Quota(0), value)).collect();
        lines.push(read(1, 100, Register::Quota(0), 99));
        assert_eq!(judged(&lines, 1_000), (Ok(()), 1));
    }
}
