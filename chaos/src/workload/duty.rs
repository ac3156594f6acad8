//! What a node owes the log: its registration, its inventory, the life of its allocations, and, while it leads, the
//! placements. A stand-in for the executor and the scheduler that takes their commands to the machine at a high rate.
//!
//! It reads a replica's state and proposes one command at a time; which of those that it owes is drawn. It does not aim
//! to be right: it acts on stale state, starts what has moved, and grants what is taken, because the machine's rules
//! must refuse all that. The one rule: it speaks only for its own node, as a real one can.

use std::collections::BTreeSet;

use holdfast_proto::command::Command;
use holdfast_proto::id::{Cursor, DeviceId, Digest, Epoch, Generation, Incarnation, LeaseId, NodeId, Nonce};
use holdfast_proto::lease::{EndReason, LeaseStatus};
use holdfast_proto::node::{BootProof, NodeStatus};
use holdfast_proto::placement::{Allocation, Exit};
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::state::{Lease, Member, Placement, Run, State};

use super::setup;
use crate::random::Stream;

/// One start of one node's agent.
#[derive(Debug)]
pub struct Agent {
    /// The node.
    pub node: NodeId,
    /// This start.
    pub incarnation: Incarnation,
    /// The boot that it runs on.
    pub boot: BootProof,
    draws: Stream,
}

impl Agent {
    /// An agent that has proposed nothing yet.
    pub fn new(node: NodeId, incarnation: Incarnation, boot: BootProof, draws: Stream) -> Self {
        Self {
            node,
            incarnation,
            boot,
            draws,
        }
    }

    /// How long the agent waits before it looks again.
    pub fn pause_ms(&mut self) -> u64 {
        self.draws.between(5, 60)
    }

    /// What the agent proposes next, if it owes anything. `time` is what the cluster's time may be by now.
    pub fn next(&mut self, state: &State, leads: bool, time: Timestamp) -> Option<Command> {
        let node = state.nodes.get(&self.node)?;
        if node.incarnation != Some(self.incarnation) {
            return Some(Command::RegisterNode {
                node: self.node,
                incarnation: self.incarnation,
                replaces: node.incarnation,
                boot: self.boot,
                address: setup::address(self.node),
            });
        }
        if node.inventory_by != Some(self.incarnation) {
            let inventory = setup::inventory(self.node);
            return Some(Command::ReportInventory {
                node: self.node,
                incarnation: self.incarnation,
                inventory,
            });
        }
        if matches!(node.status, NodeStatus::Unreachable | NodeStatus::Lost) {
            return self.come_back(node.generation);
        }
        let mut owed = self.owed_by_members(state);
        if leads {
            owed.extend(self.owed_by_leader(state, time));
        }
        let at = self.draws.below(owed.len() as u64);
        let at = usize::try_from(at).ok()?;
        (at < owed.len()).then(|| owed.swap_remove(at))
    }

    fn come_back(&mut self, generation: Generation) -> Option<Command> {
        let nonce = Nonce(self.draws.next());
        let (node, incarnation) = (self.node, self.incarnation);
        // It takes a while until a node that is given up learns of it.
        let learns = self.draws.chance(100);
        learns.then_some(Command::ReturnNode {
            node,
            incarnation,
            generation,
            nonce,
            work: Vec::new(),
        })
    }

    fn owed_by_members(&mut self, state: &State) -> Vec<Command> {
        let first = (self.node, LeaseId { cell: 0, index: 0 });
        let here = state
            .index
            .on_node
            .iter_from(&first)
            .take_while(|((node, _), ())| *node == self.node);
        let leases: Vec<LeaseId> = here.map(|((_, lease), ())| *lease).collect();
        let mut owed = Vec::new();
        for id in leases {
            let Some(lease) = state.leases.get(&id) else { continue };
            for placement in lease.placements() {
                if let Some(member) = placement.member(self.node) {
                    owed.extend(self.owed_by_member(lease, placement, member));
                }
            }
        }
        owed
    }

    fn owed_by_member(&mut self, lease: &Lease, placement: &Placement, member: &Member) -> Option<Command> {
        let (node, epoch, attempt) = (self.node, placement.epoch, placement.attempt);
        let lease_id = lease.id();
        let current = placement.epoch == lease.epoch;
        let ending = matches!(lease.status, LeaseStatus::Ending(_)) || !current || placement.over;
        let exit = |exit| Command::ReportExited {
            lease: lease_id,
            epoch,
            attempt,
            node,
            exit,
        };
        match &member.run {
            _ if member.released => None,
            Run::Accepted(incarnation) if *incarnation != self.incarnation => Some(exit(Exit::NotStarted)),
            Run::Started(incarnation) if *incarnation != self.incarnation => Some(exit(Exit::Vanished)),
            Run::Accepted(_) | Run::Started(_) if ending => Some(exit(Exit::Stopped)),
            Run::Accepted(_) if self.draws.chance(30) => Some(exit(Exit::LaunchFailed("no such program".to_owned()))),
            Run::Accepted(_) => Some(Command::ReportStarted {
                lease: lease_id,
                epoch,
                attempt,
                node,
            }),
            Run::Started(_) => {
                let code = i32::from(self.draws.chance(200));
                self.draws.chance(150).then(|| exit(Exit::Code(code)))
            }
            Run::Idle | Run::Exited(_) if ending => self.draws.chance(500).then(|| exit(Exit::NotStarted)),
            Run::Idle | Run::Exited(_) if member.prepared == Some(self.incarnation) => None,
            Run::Idle | Run::Exited(_) => Some(Command::ReportPrepared {
                lease: lease_id,
                epoch,
                follows: attempt,
                node,
                incarnation: self.incarnation,
            }),
        }
    }

    fn owed_by_leader(&mut self, state: &State, time: Timestamp) -> Vec<Command> {
        let mut owed = Vec::new();
        for lease in state.leases.values() {
            if lease.is_placeable() {
                owed.extend(self.place(state, lease));
            } else if lease.expires.is_some_and(|expires| expires <= time) && !lease.status.is_ended() {
                let (reason, renewal) = (EndReason::Expired, lease.renewal);
                owed.push(Command::EndLease {
                    lease: lease.id(),
                    reason,
                    renewal,
                });
            }
        }
        if self.draws.chance(20) {
            owed.extend(self.give_a_node_up(state));
        }
        if self.draws.chance(30) {
            let (at, hash): (Cursor, Digest) = (state.cluster.cursor, state.hash());
            owed.push(Command::RecordStateHash { at, hash });
        }
        owed
    }

    /// Grants free devices; sometimes ones that are taken, or under an epoch that has passed.
    fn place(&mut self, state: &State, lease: &Lease) -> Option<Command> {
        let wanted = usize::try_from(lease.requested.request.devices_min).ok()?;
        let careless = self.draws.chance(50);
        let mut free: Vec<(NodeId, DeviceId)> = Vec::new();
        for (id, slot) in &state.devices {
            if careless || state.is_free(slot) {
                free.push((slot.node, *id));
            }
        }
        if free.len() < wanted {
            let reason = format!("{wanted} devices are wanted, {} are free", free.len());
            return Some(Command::DeferPlacement {
                lease: lease.id(),
                reason,
            });
        }
        let mut chosen = BTreeSet::new();
        while chosen.len() < wanted {
            let at = self.draws.below(free.len() as u64);
            chosen.insert(free.swap_remove(usize::try_from(at).ok()?));
        }
        let epoch = Epoch(lease.epoch.0 + u32::from(!self.draws.chance(20)));
        Some(Command::CommitPlacement {
            lease: lease.id(),
            epoch,
            allocations: allocations(&chosen),
        })
    }

    fn give_a_node_up(&mut self, state: &State) -> Option<Command> {
        let nodes: Vec<NodeId> = state.nodes.keys().copied().collect();
        let node = *self.draws.pick(&nodes)?;
        let known = state.nodes.get(&node)?;
        let generation = known.generation;
        match known.status {
            NodeStatus::Ready => Some(Command::MarkNodeUnreachable { node, generation }),
            NodeStatus::Unreachable => Some(Command::MarkNodeLost { node, generation }),
            _ => None,
        }
    }
}

/// Devices by node, ordered by rank.
fn allocations(chosen: &BTreeSet<(NodeId, DeviceId)>) -> Vec<Allocation> {
    let mut allocations: Vec<Allocation> = Vec::new();
    for (node, device) in chosen {
        match allocations.last_mut() {
            Some(last) if last.node == *node => last.devices.push(*device),
            _ => {
                let rank = u32::try_from(allocations.len()).unwrap_or(u32::MAX);
                let devices = vec![*device];
                allocations.push(Allocation {
                    node: *node,
                    rank,
                    devices,
                    cpu_milli: 0,
                    memory_mib: 0,
                });
            }
        }
    }
    for allocation in &mut allocations {
        let devices = u32::try_from(allocation.devices.len()).unwrap_or(u32::MAX);
        (allocation.cpu_milli, allocation.memory_mib) = (1_000 * devices, 1_024 * devices);
    }
    allocations
}
