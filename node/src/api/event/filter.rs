//! Which events a subscriber sees: its rights first, then what it asked for.
//!
//! The one rule: a right is judged event by event; no filter, wildcard or position widens it.

use std::collections::BTreeSet;

use holdfast_proto::event::{Event, EventRecord, Topic};
use holdfast_proto::id::{LeaseId, NodeId, TenantId};
use holdfast_storage::machine::state::State as Machine;

use crate::api::auth::Caller;
use crate::api::problem::Failure;

/// Leases remembered as the caller's after the state has forgotten them; the oldest go first.
const OWN_LEASES_MAX: usize = 65_536;

/// The rights and wishes of one subscriber.
#[derive(Debug, Clone)]
pub struct Filter {
    caller: Caller,
    topics: BTreeSet<Topic>,
    lease: Option<LeaseId>,
    tenant: Option<TenantId>,
    node: Option<NodeId>,
    /// Leases of the tenant that is looked for, learnt from their requests as the stream passed them.
    passed: BTreeSet<LeaseId>,
}

impl Filter {
    /// Reads the wishes from the query's texts.
    pub fn new(
        caller: Caller,
        topics: Option<&str>,
        lease: Option<&str>,
        tenant: Option<&str>,
        node: Option<&str>,
    ) -> Result<Self, Failure> {
        let topics = topics
            .into_iter()
            .flat_map(|texts| texts.split(','))
            .filter(|text| !text.is_empty());
        let topics = topics.map(topic).collect::<Result<_, _>>()?;
        let filter = Self {
            topics,
            lease: lease.map(str::parse).transpose()?,
            tenant: tenant.map(str::parse).transpose()?,
            node: node.map(str::parse).transpose()?,
            passed: BTreeSet::new(),
            caller,
        };
        if let Some(tenant) = &filter.tenant
            && !filter.caller.sees(tenant)
        {
            return Err(Failure::not_allowed(format!("this token does not see tenant {tenant}")));
        }
        Ok(filter)
    }

    /// Whether the subscriber is shown this event.
    pub fn passes(&mut self, state: &Machine, record: &EventRecord) -> bool {
        self.remember(&record.event);
        self.may_see(state, record) && self.wants(state, record)
    }

    fn may_see(&self, state: &Machine, record: &EventRecord) -> bool {
        if self.caller.sees_all() {
            return true;
        }
        let Some(own) = &self.caller.tenant else { return false };
        match &record.event {
            Event::TenantSet { tenant, .. } => tenant == own,
            Event::TariffSet(_) => true,
            Event::RequestRefused { .. } => record.request.is_some_and(|key| key.principal == self.caller.token.0),
            event => event.lease().is_some_and(|lease| self.belongs(state, lease, own)),
        }
    }

    fn wants(&self, state: &Machine, record: &EventRecord) -> bool {
        let event = &record.event;
        (self.topics.is_empty() || self.topics.contains(&event.topic()))
            && self.lease.is_none_or(|lease| event.lease() == Some(lease))
            && self.node.is_none_or(|node| mentions(event, node))
            && self.tenant.as_ref().is_none_or(|tenant| match event {
                Event::TenantSet { tenant: of, .. } => of == tenant,
                event => event.lease().is_some_and(|lease| self.belongs(state, lease, tenant)),
            })
    }

    fn belongs(&self, state: &Machine, lease: LeaseId, tenant: &TenantId) -> bool {
        match state.leases.get(&lease) {
            Some(found) => found.requested.tenant == *tenant,
            None => self.passed.contains(&lease),
        }
    }

    fn remember(&mut self, event: &Event) {
        let looked_for = if self.caller.sees_all() {
            &self.tenant
        } else {
            &self.caller.tenant
        };
        if let Event::LeaseRequested(requested) = event
            && looked_for.as_ref() == Some(&requested.tenant)
        {
            self.passed.insert(requested.lease);
            if self.passed.len() > OWN_LEASES_MAX {
                self.passed.pop_first();
            }
        }
    }
}

fn topic(text: &str) -> Result<Topic, Failure> {
    Topic::ALL
        .into_iter()
        .find(|topic| topic.name() == text)
        .ok_or_else(|| {
            let names: Vec<&str> = Topic::ALL.iter().map(|topic| topic.name()).collect();
            Failure::bad_request(format!("there is no such topic; topics are {}", names.join(", ")))
        })
}

fn mentions(event: &Event, wanted: NodeId) -> bool {
    match event {
        Event::NodeJoined { spec, .. } => spec.node == wanted,
        Event::PlacementCommitted { allocations, .. } => allocations.iter().any(|member| member.node == wanted),
        Event::VotersChanged { voters } => voters.contains(&wanted),
        Event::NodeRegistered { node, .. }
        | Event::InventoryReported { node, .. }
        | Event::NodeUnreachable { node, .. }
        | Event::NodeLost { node, .. }
        | Event::NodeReturned { node, .. }
        | Event::NodeCordoned { node, .. }
        | Event::NodeRemoved { node }
        | Event::NodeQuieted { node, .. }
        | Event::AllocationPrepared { node, .. }
        | Event::AllocationStarted { node, .. }
        | Event::LeaseFrozen { node, .. }
        | Event::LeaseThawed { node, .. }
        | Event::AllocationExited { node, .. }
        | Event::AllocationEnded { node, .. }
        | Event::DeviceGraded { node, .. }
        | Event::RollupReported { node, .. }
        | Event::ClockSuspected { node, .. } => *node == wanted,
        _ => false,
    }
}
