//! A subscriber that trusts nobody: it checks the gravest promises from the public stream alone.

#![allow(dead_code, unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::condition;
use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::{Attempt, Cursor, DeviceId, Epoch, LeaseId, NodeId};

#[derive(Default)]
pub struct Witness {
    last: Option<Cursor>,
    /// Members of each granted placement that are not ended: their devices.
    granted: BTreeMap<(LeaseId, Epoch, NodeId), Vec<DeviceId>>,
    /// Members that may run: accepted or started, not ended with proof, and not on a lost node.
    running: BTreeSet<(LeaseId, Epoch, NodeId)>,
    /// Members that were running when their node was lost.
    lost: BTreeSet<(LeaseId, Epoch, NodeId)>,
    epochs: BTreeMap<LeaseId, Epoch>,
    attempts: BTreeMap<LeaseId, (Epoch, Attempt)>,
    tokens: BTreeMap<LeaseId, u64>,
    /// Leases that hold parts of devices, in thousandths.
    shares: BTreeMap<LeaseId, u32>,
    ended: BTreeSet<LeaseId>,
}

impl Witness {
    pub fn see(&mut self, record: &EventRecord) -> Result<(), String> {
        if self.last.is_some_and(|last| last >= record.cursor) {
            return Err(format!("{} does not follow {:?}", record.cursor, self.last));
        }
        self.last = Some(record.cursor);
        if let Some(lease) = record.event.lease().filter(|lease| self.ended.contains(lease)) {
            return Err(format!("{} for {lease}, which has ended", record.event.name()));
        }
        match &record.event {
            Event::PlacementCommitted {
                lease,
                epoch,
                token,
                allocations,
                ..
            } => {
                if self
                    .tokens
                    .insert(*lease, token.index)
                    .is_some_and(|last| last >= token.index)
                {
                    return Err(format!("the token of {lease} did not rise"));
                }
                self.epochs.insert(*lease, *epoch);
                for allocation in allocations {
                    self.grant(*lease, *epoch, allocation.node, &allocation.devices)?;
                }
            }
            Event::LeaseConditioned { lease, conditions } => {
                self.shares.insert(*lease, condition::milli(conditions).into());
            }
            Event::StartAccepted { lease, epoch, attempt } => self.start(*lease, *epoch, *attempt)?,
            Event::AllocationExited { lease, epoch, node, .. } => {
                self.running.remove(&(*lease, *epoch, *node));
                self.lost.remove(&(*lease, *epoch, *node));
            }
            Event::AllocationEnded { lease, epoch, node } => {
                let key = (*lease, *epoch, *node);
                if self.running.contains(&key) {
                    return Err(format!("devices of {lease} on {node} are freed while it may run"));
                }
                self.lost.remove(&key);
                self.granted.remove(&key);
            }
            Event::NodeLost { node, .. } => {
                let gone: Vec<_> = self.running.iter().filter(|key| key.2 == *node).copied().collect();
                for key in gone {
                    self.running.remove(&key);
                    self.lost.insert(key);
                }
            }
            Event::NodeReturned { node, .. } => {
                let back: Vec<_> = self.lost.iter().filter(|key| key.2 == *node).copied().collect();
                for key in back {
                    self.lost.remove(&key);
                    if self.epochs.get(&key.0) == Some(&key.1) {
                        self.running.insert(key);
                    }
                }
            }
            Event::LeaseEnded { lease, .. } => {
                if let Some(key) = self.granted.keys().find(|key| key.0 == *lease) {
                    return Err(format!("{lease} has ended and still holds devices on {}", key.2));
                }
                self.ended.insert(*lease);
            }
            _ => {}
        }
        Ok(())
    }

    fn grant(&mut self, lease: LeaseId, epoch: Epoch, node: NodeId, devices: &[DeviceId]) -> Result<(), String> {
        let milli = |lease: &LeaseId| self.shares.get(lease).copied().unwrap_or(1000);
        for device in devices {
            // The next epoch of one lease may take over what its earlier one still holds.
            let holds =
                |(key, held): &(&(LeaseId, Epoch, NodeId), &Vec<DeviceId>)| key.0 != lease && held.contains(device);
            let others: BTreeSet<LeaseId> = self.granted.iter().filter(holds).map(|(key, _)| key.0).collect();
            let held: u32 = others.iter().map(milli).sum();
            if held + milli(&lease) > 1000 {
                return Err(format!("a device of {others:?} is granted to {lease}"));
            }
        }
        self.granted.insert((lease, epoch, node), devices.to_vec());
        Ok(())
    }

    fn start(&mut self, lease: LeaseId, epoch: Epoch, attempt: Attempt) -> Result<(), String> {
        if let Some(key) = self.running.iter().find(|key| key.0 == lease) {
            return Err(format!(
                "attempt {attempt} of {lease} is accepted while epoch {} may run on {}",
                key.1, key.2
            ));
        }
        if self
            .attempts
            .insert(lease, (epoch, attempt))
            .is_some_and(|last| last >= (epoch, attempt))
        {
            return Err(format!("attempt {attempt} of epoch {epoch} of {lease} is not new"));
        }
        let members: Vec<_> = self
            .granted
            .keys()
            .filter(|key| key.0 == lease && key.1 == epoch)
            .copied()
            .collect();
        self.running.extend(members);
        Ok(())
    }
}
