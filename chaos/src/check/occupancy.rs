//! Invariant 1: no device is in two live allocations at any log index; parts of one add up to the whole at most.
//!
//! Replays the events alone, with its own small model of who holds what: never the machine's own occupancy. A device is
//! held from `PlacementCommitted` until its member's `AllocationEnded` or the lease's end; the devices of a lost node
//! also fall free when a newer epoch of the same lease is placed.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::condition;
use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::{DeviceId, Epoch, LeaseId, NodeId};
use holdfast_proto::placement::Allocation;

use super::{Checker, Observation};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    lease: LeaseId,
    epoch: Epoch,
    node: NodeId,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Occupancy {
    held: BTreeMap<DeviceId, Vec<Holder>>,
    /// Leases that hold parts of devices, in thousandths.
    shares: BTreeMap<LeaseId, u32>,
    lost: BTreeSet<NodeId>,
    epochs: BTreeMap<LeaseId, Epoch>,
}

impl Occupancy {
    fn place(&mut self, index: u64, lease: LeaseId, epoch: Epoch, allocations: &[Allocation]) -> Result<(), String> {
        if let Some(before) = self.epochs.insert(lease, epoch)
            && before >= epoch
        {
            return Err(format!(
                "index {index}: {lease} was placed as epoch {epoch} after epoch {before}"
            ));
        }
        let lost = self.lost.clone();
        self.free(|holder| holder.lease == lease && lost.contains(&holder.node));
        let milli = |lease: &LeaseId| self.shares.get(lease).copied().unwrap_or(1000);
        for allocation in allocations {
            for device in &allocation.devices {
                let holder = Holder {
                    lease,
                    epoch,
                    node: allocation.node,
                };
                let others = self.held.entry(*device).or_default();
                let held: u32 = others.iter().map(|other| milli(&other.lease)).sum();
                if held + milli(&lease) > 1000 {
                    return Err(format!(
                        "index {index}: {device} is granted to {lease} in epoch {epoch}, while {others:?} hold {held} thousandths"
                    ));
                }
                others.push(holder);
            }
        }
        Ok(())
    }

    fn free(&mut self, which: impl Fn(&Holder) -> bool) {
        for holders in self.held.values_mut() {
            holders.retain(|holder| !which(holder));
        }
    }

    fn replay(&mut self, record: &EventRecord) -> Result<(), String> {
        match &record.event {
            Event::PlacementCommitted {
                lease,
                epoch,
                allocations,
                ..
            } => {
                return self.place(record.cursor.index, *lease, *epoch, allocations);
            }
            Event::AllocationEnded { lease, epoch, node } => {
                let ended = Holder {
                    lease: *lease,
                    epoch: *epoch,
                    node: *node,
                };
                self.free(|holder| *holder == ended);
            }
            Event::LeaseEnded { lease, .. } => self.free(|holder| holder.lease == *lease),
            Event::LeaseConditioned { lease, conditions } => {
                self.shares.insert(*lease, condition::milli(conditions).into());
            }
            Event::NodeLost { node, .. } => drop(self.lost.insert(*node)),
            Event::NodeReturned { node, .. } => drop(self.lost.remove(node)),
            _ => {}
        }
        Ok(())
    }
}

impl Checker for Occupancy {
    fn name(&self) -> &'static str {
        "occupancy"
    }

    fn observe(&mut self, observation: &Observation) -> Result<(), String> {
        match observation {
            Observation::Decided { events, .. } => events.iter().try_for_each(|record| self.replay(record)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::condition::{Condition, Share};
    use holdfast_proto::id::{Cursor, FencingToken, Generation};
    use holdfast_proto::lease::EndReason;
    use holdfast_proto::time::Timestamp;

    use super::super::Decision;
    use super::*;

    fn lease(index: u64) -> LeaseId {
        LeaseId::from_index(index)
    }

    fn placed(of: u64, epoch: u32, node: u64, devices: &[u8]) -> Event {
        let devices = devices.iter().map(|device| DeviceId([*device; 16])).collect();
        let allocation = Allocation {
            node: NodeId(node),
            rank: 0,
            devices,
            cpu_milli: 0,
            memory_mib: 0,
        };
        Event::PlacementCommitted {
            lease: lease(of),
            epoch: Epoch(epoch),
            token: FencingToken::default(),
            allocations: vec![allocation],
            micros_per_hour: 0,
            restore: None,
        }
    }

    fn ended(of: u64, epoch: u32, node: u64) -> Event {
        Event::AllocationEnded {
            lease: lease(of),
            epoch: Epoch(epoch),
            node: NodeId(node),
        }
    }

    fn outcome(history: Vec<Event>) -> Result<(), String> {
        let mut checker = Occupancy::default();
        history.into_iter().zip(1..).try_for_each(|(event, index)| {
            let cursor = Cursor { index, sub: 0 };
            let record = EventRecord {
                cursor,
                at: Timestamp(index),
                request: None,
                event,
            };
            checker.observe(&Observation::Decided {
                index,
                request: None,
                decision: Decision::Effect,
                events: [record].into(),
            })
        })
    }

    #[test]
    fn device_may_be_granted_again_once_its_member_or_its_lease_has_ended() {
        let end = Event::LeaseEnded {
            lease: lease(2),
            reason: EndReason::Released,
            exit_code: None,
        };
        let history = vec![
            placed(1, 1, 7, &[1, 2]),
            ended(1, 1, 7),
            placed(2, 1, 7, &[1]),
            end,
            placed(3, 1, 7, &[1, 2]),
        ];
        assert_eq!(outcome(history), Ok(()));
    }

    #[test]
    fn device_in_two_live_allocations_is_caught() {
        assert!(outcome(vec![placed(1, 1, 7, &[1, 2]), placed(2, 1, 7, &[2])]).is_err());
    }

    #[test]
    fn device_granted_twice_in_one_placement_is_caught() {
        assert!(outcome(vec![placed(1, 1, 7, &[1, 1])]).is_err());
    }

    #[test]
    fn parts_of_a_device_add_up_to_the_whole_at_most() {
        let share = |of, milli| Event::LeaseConditioned {
            lease: lease(of),
            conditions: vec![Condition::Share(Box::new(Share { milli }))],
        };
        let shared = vec![
            share(1, 400),
            share(2, 600),
            placed(1, 1, 7, &[1]),
            placed(2, 1, 7, &[1]),
        ];
        assert_eq!(outcome(shared.clone()), Ok(()));
        let more = [shared.clone(), vec![share(3, 1), placed(3, 1, 7, &[1])]].concat();
        assert!(outcome(more).is_err());
        assert!(outcome([shared.clone(), vec![placed(4, 1, 7, &[1])]].concat()).is_err());
        let ended = [shared, vec![ended(1, 1, 7), share(3, 400), placed(3, 1, 7, &[1])]].concat();
        assert_eq!(outcome(ended), Ok(()));
    }

    #[test]
    fn end_of_another_epoch_frees_nothing() {
        assert!(outcome(vec![placed(1, 2, 7, &[1]), ended(1, 1, 7), placed(2, 1, 7, &[1])]).is_err());
    }

    #[test]
    fn lost_node_keeps_its_devices_until_its_lease_is_placed_anew() {
        let lost = Event::NodeLost {
            node: NodeId(7),
            generation: Generation(1),
        };
        assert!(outcome(vec![placed(1, 1, 7, &[1]), lost.clone(), placed(2, 1, 7, &[1])]).is_err());
        let moved = vec![
            placed(1, 1, 7, &[1]),
            lost,
            placed(1, 2, 8, &[2]),
            placed(2, 1, 7, &[1]),
        ];
        assert_eq!(outcome(moved), Ok(()));
    }

    #[test]
    fn epoch_that_does_not_rise_is_caught() {
        assert!(outcome(vec![placed(1, 2, 7, &[1]), ended(1, 2, 7), placed(1, 2, 7, &[1])]).is_err());
    }
}
