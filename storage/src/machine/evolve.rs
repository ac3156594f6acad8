//! Folds events into the state: the only place that changes it.
//!
//! Every event has an arm, checked by the compiler. An event is a fact, so nothing here refuses: what cannot apply to
//! this state (a foreign stream) changes nothing and never panics. Nothing but the record and the state is looked at,
//! so that any subscriber who folds the public stream gets the same state.

mod cluster;
mod index;
mod lease;
mod node;
mod placement;
mod subscription;

use std::sync::Arc;

use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::{LeaseId, NodeId};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::limits::{REQUEST_MEMORY_MS, REQUESTS_REMEMBERED_MAX};
use holdfast_proto::time::Timestamp;

use super::state::{Answer, Lease, Node, RequestName, State};

impl State {
    /// Folds one event.
    pub fn fold(&mut self, record: &EventRecord) {
        self.remember(record);
        self.cluster.cursor = record.cursor;
        match &record.event {
            Event::ClusterInitialized { .. }
            | Event::VotersChanged { .. }
            | Event::JoinTokenCreated(_)
            | Event::AccessTokenCreated(_)
            | Event::TokenRevoked { .. }
            | Event::TenantSet { .. }
            | Event::LimitsSet { .. }
            | Event::TariffSet(_)
            | Event::StateHashRecorded { .. }
            | Event::MachineLevelRaised { .. }
            | Event::TimeSet { .. } => cluster::fold(self, record),
            Event::NodeJoined { .. }
            | Event::NodeRegistered { .. }
            | Event::InventoryReported { .. }
            | Event::NodeUnreachable { .. }
            | Event::NodeLost { .. }
            | Event::NodeReturned { .. }
            | Event::NodeCordoned { .. }
            | Event::NodeRemoved { .. }
            | Event::NodeQuieted { .. }
            | Event::NodeDraining { .. }
            | Event::NodeDrained { .. }
            | Event::DeviceGraded { .. }
            | Event::ClockSuspected { .. } => node::fold(self, record),
            Event::LeaseRequested(_)
            | Event::LeaseConditioned { .. }
            | Event::PlacementDeferred { .. }
            | Event::LeaseActivated { .. }
            | Event::LeaseFrozen { .. }
            | Event::LeaseThawed { .. }
            | Event::LeaseMigrating { .. }
            | Event::LeaseEnding { .. }
            | Event::LeaseEnded { .. }
            | Event::LeaseRenewed { .. }
            | Event::LeaseCharged(_)
            | Event::CheckpointCommitted { .. } => lease::fold(self, record),
            Event::PlacementCommitted { .. }
            | Event::AllocationPrepared { .. }
            | Event::StartAccepted { .. }
            | Event::AllocationStarted { .. }
            | Event::AllocationExited { .. }
            | Event::AttemptEnded { .. }
            | Event::LeaseEvicted { .. }
            | Event::LeasePreempted { .. }
            | Event::AllocationEnded { .. } => placement::fold(self, record),
            Event::SubscriptionCreated(_) | Event::EventsAcknowledged { .. } | Event::SubscriptionRemoved { .. } => {
                subscription::fold(self, record)
            }
            // Facts for subscribers; the rules do not look at them.
            Event::RollupReported { .. } | Event::Annotated { .. } | Event::RequestRefused { .. } => {}
        }
    }

    /// Remembers the answer to a client's request, and forgets what is older than a day.
    fn remember(&mut self, record: &EventRecord) {
        let Some(key) = record.request else { return };
        let name = RequestName {
            id: key.id,
            principal: key.principal,
        };
        if let Some(answer) = self.requests.get_mut(&name) {
            answer.events += 1;
            return;
        }
        let refused = match &record.event {
            Event::RequestRefused { rejection } => Some(Box::new(rejection.clone())),
            _ => None,
        };
        let answer = Answer {
            index: record.cursor.index,
            events: 1,
            refused,
        };
        self.requests.insert(name, answer);
        self.forget(record.at);
    }

    fn forget(&mut self, at: Timestamp) {
        let floor_ms = at.0.saturating_sub(REQUEST_MEMORY_MS);
        while let Some((&oldest, _)) = self.requests.first() {
            let full = self.requests.len() > REQUESTS_REMEMBERED_MAX;
            if oldest.id.client_ms >= floor_ms && !full {
                return;
            }
            if full {
                // What is forgotten early must count as too old, or a late copy of it would be executed again.
                let floor = &mut self.cluster.requests_floor_ms;
                *floor = (*floor).max(oldest.id.client_ms);
            }
            self.requests.remove(&oldest);
        }
    }

    /// Changes a lease, if it is there, and keeps the queue in step.
    fn change_lease(&mut self, lease: LeaseId, change: impl FnOnce(&mut Lease)) {
        let Some(lease) = self.leases.get_mut(&lease).map(Arc::make_mut) else {
            return;
        };
        let before = lease.queue_key();
        change(lease);
        let after = lease.queue_key();
        if before != after {
            let tenant = lease.requested.tenant.clone();
            if let Some(key) = before {
                self.index.leave(key, &tenant);
            }
            if let Some(key) = after {
                self.index.enter(key, &tenant);
            }
        }
    }

    /// Changes a node, if it is there.
    fn change_node(&mut self, node: NodeId, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(&node) {
            change(Arc::make_mut(node));
        }
    }
}

impl Lease {
    fn enter(&mut self, status: LeaseStatus, at: Timestamp) {
        self.status = status;
        self.since = at;
    }
}
