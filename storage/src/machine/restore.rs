//! The state that a cluster begins with when it is restored from a backup.
//!
//! What people own comes along: tenants, access tokens, prices, answers to requests, leases with their bills and saved
//! states. What machines said does not: nodes, devices, placements, voters and join tokens belong to a cluster that is
//! gone, and each machine joins anew. Called by `holdfast cluster restore` only, before the first entry.
//!
//! The rule: the era has risen, so whatever still runs under the old one is fenced by every gate, and a lease that was
//! live waits for a new placement.

use std::sync::Arc;

use holdfast_proto::id::{Cursor, Epoch, Era};
use holdfast_proto::lease::LeaseStatus;

use super::map::Map;
use super::state::{ClusterState, Lease, State};

/// Why a lease waits after a restore.
const WAITS: &str = "the cluster was restored from a backup";

impl State {
    /// Returns the state that a new cluster goes on from; its first entry must be `InitCluster` in this state's era.
    ///
    /// Time since the last charge of a lease that ran is not charged: nobody can prove it.
    #[must_use]
    pub fn restored(&self) -> Self {
        let mut state = Self {
            nodes: Map::default(),
            devices: Map::default(),
            drains: Map::default(),
            join_tokens: Map::default(),
            cluster: ClusterState {
                id: None,
                era: Era(self.cluster.era.0.saturating_add(1)),
                voters: Vec::new(),
                hashed: None,
                ..self.cluster.clone()
            },
            ..self.clone()
        };
        for lease in self.leases.values().filter(|lease| !lease.status.is_ended()) {
            state.set_down(lease);
        }
        // Nothing is placed any more; what tenants have had counts on.
        let usage: Vec<_> = state
            .usage
            .iter()
            .map(|(tenant, usage)| (tenant.clone(), *usage))
            .collect();
        for (tenant, mut usage) in usage {
            usage.change(usage.devices, 0, state.applied.stamp);
            state.usage.insert(tenant, usage);
        }
        state.reindex();
        state
    }

    /// Takes a live lease off its machines.
    fn set_down(&mut self, lease: &Lease) {
        let id = lease.id();
        let mut waiting = Lease {
            status: LeaseStatus::Pending,
            since: self.applied.stamp,
            epoch: Epoch(0),
            placement: None,
            earlier: Vec::new(),
            failed_attempts: 0,
            failed_on: Vec::new(),
            reason: Some(WAITS.to_owned()),
            exit_code: None,
            ..lease.clone()
        };
        waiting.meter.open = None;
        if let LeaseStatus::Ending(reason) = lease.status {
            // It only owed proof of its end, which its machines can no longer give.
            waiting.status = LeaseStatus::Ended(reason);
            waiting.reason = None;
            if let Some(tenant) = self.tenants.get_mut(&lease.requested.tenant) {
                tenant.held = tenant.held.saturating_sub(lease.devices);
            }
            let last = self.cluster.cursor;
            self.cluster.cursor = Cursor {
                sub: last.sub.saturating_add(1),
                ..last
            };
            self.ended.insert(self.cluster.cursor, id);
        }
        self.leases.insert(id, Arc::new(waiting));
    }
}
