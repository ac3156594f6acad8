//! What must always hold of a state, as checks that name what is wrong.
//!
//! Tests run them after every entry; the simulator and a replica that takes a snapshot run them too. A violation is a
//! defect of the rules, never an input error.

use std::collections::BTreeMap;
use std::fmt;

use holdfast_proto::id::{DeviceId, TenantId};

use super::state::{Holder, State};

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant.
    pub invariant: u8,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "invariant {}: {}", self.invariant, self.what)
    }
}

/// Checks everything.
#[must_use]
pub fn check(state: &State) -> Vec<Violation> {
    let mut found = Vec::new();
    devices(state, &mut found);
    quotas(state, &mut found);
    found
}

fn devices(state: &State, found: &mut Vec<Violation>) {
    let mut holders: BTreeMap<DeviceId, Holder> = BTreeMap::new();
    for (id, lease) in &state.leases {
        for placement in lease.placements() {
            for member in placement.members.iter().filter(|member| !member.released) {
                for device in &member.allocation.devices {
                    let holder = Holder {
                        lease: *id,
                        epoch: placement.epoch,
                    };
                    // A later epoch of the same lease may take a device over from an earlier one.
                    if let Some(other) = holders.insert(*device, holder).filter(|other| other.lease != *id) {
                        let what = format!("device {device} is in {} and in {id}", other.lease);
                        found.push(Violation { invariant: 1, what });
                    }
                }
            }
        }
    }
    for (id, slot) in &state.devices {
        if slot.holder != holders.get(id).copied() {
            let what = format!(
                "device {id} is held by {:?}, its leases say {:?}",
                slot.holder,
                holders.get(id)
            );
            found.push(Violation { invariant: 1, what });
        }
    }
}

fn quotas(state: &State, found: &mut Vec<Violation>) {
    let mut held: BTreeMap<&TenantId, u32> = BTreeMap::new();
    for lease in state.live_leases() {
        *held.entry(&lease.requested.tenant).or_default() += lease.devices;
    }
    for (name, tenant) in &state.tenants {
        let counted = held.get(name).copied().unwrap_or(0);
        if counted != tenant.held {
            let what = format!("tenant {name} holds {counted} devices, {} are counted", tenant.held);
            found.push(Violation { invariant: 1, what });
        }
    }
}
