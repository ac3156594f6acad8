//! Which events a subscriber sees: its rights first, then what it asked for.
//!
//! The one rule: a right is judged event by event; no filter, wildcard or position widens it.

use std::collections::BTreeSet;

use holdfast_proto::event::{Event, EventRecord, Topic};
use holdfast_proto::id::{LeaseId, Name, NodeId, TenantId};
use holdfast_proto::subscription::EventFilter;
use holdfast_storage::machine::state::State as Machine;
use serde::Deserialize;

use crate::api::auth::Caller;
use crate::api::problem::Failure;

/// Leases remembered as the caller's after the state has forgotten them; the oldest go first.
const OWN_LEASES_MAX: usize = 65_536;

/// The tag of an acknowledgement.
const ACKNOWLEDGED: u16 = 56;

/// A tag that no event has.
const NO_TAG: u16 = u16::MAX;

/// What a subscriber asks for; all of it has to be met.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Wishes {
    /// Topics, with commas.
    pub topic: Option<String>,
    /// Types, with commas.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// A lease.
    pub lease: Option<String>,
    /// A tenant.
    pub tenant: Option<String>,
    /// A node.
    pub node: Option<String>,
}

/// The rights and wishes of one subscriber.
#[derive(Debug, Clone)]
pub struct Filter {
    caller: Caller,
    topics: BTreeSet<Topic>,
    /// Tags of the types that are wanted; all when empty.
    types: BTreeSet<u16>,
    lease: Option<LeaseId>,
    tenant: Option<TenantId>,
    node: Option<NodeId>,
    /// Acknowledgements are left out when they are not asked for by their type: they are made by being told of others.
    no_acknowledgements: bool,
    /// Leases of the tenant that is looked for, learnt from their requests as the stream passed them.
    passed: BTreeSet<LeaseId>,
    /// The tags that pass, where nothing but the tag decides; no event has to be looked into.
    tags: Option<BTreeSet<u16>>,
}

impl Filter {
    /// Reads the wishes from the query's texts.
    pub fn new(caller: Caller, wishes: &Wishes) -> Result<Self, Failure> {
        let wanted = filter(&caller, wishes)?;
        Ok(Self::of(caller, &wanted))
    }

    /// The filter of a subscription, with the rights of the one that reads it.
    pub fn of_subscription(caller: Caller, wanted: &EventFilter) -> Self {
        let mut filter = Self::of(caller, wanted);
        filter.no_acknowledgements = true;
        filter.with_tags()
    }

    fn of(caller: Caller, wanted: &EventFilter) -> Self {
        // A type that only a later version knows passes nothing.
        let tag = |name: &Name| kind(name.as_str()).map_or(NO_TAG, |(tag, _)| tag);
        let filter = Self {
            topics: wanted.topics.iter().copied().collect(),
            types: wanted.types.iter().map(tag).collect(),
            lease: wanted.lease,
            tenant: wanted.tenant.clone(),
            node: wanted.node,
            no_acknowledgements: false,
            passed: BTreeSet::new(),
            tags: None,
            caller,
        };
        filter.with_tags()
    }

    fn with_tags(mut self) -> Self {
        let looks_inside = self.lease.is_some() || self.tenant.is_some() || self.node.is_some();
        self.tags = (self.caller.sees_all() && !looks_inside).then(|| {
            let wanted = Event::TABLE
                .iter()
                .filter(|(tag, _, topic)| self.wants_kind(*tag, *topic));
            wanted.map(|(tag, ..)| *tag).collect()
        });
        self
    }

    /// Whether an event with this tag passes, where nothing but the tag decides.
    pub fn judges_by_tag(&self) -> Option<&BTreeSet<u16>> {
        self.tags.as_ref()
    }

    /// Whose rights it keeps to.
    pub fn caller(&self) -> &Caller {
        &self.caller
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
        if let Some(key) = record.event.subscription() {
            return key.tenant.as_ref() == Some(own);
        }
        match &record.event {
            Event::TenantSet { tenant, .. } | Event::LimitsSet { tenant, .. } => tenant == own,
            Event::TariffSet(_) => true,
            Event::RequestRefused { .. } => record.request.is_some_and(|key| key.principal == self.caller.token.0),
            event => event.lease().is_some_and(|lease| self.belongs(state, lease, own)),
        }
    }

    fn wants(&self, state: &Machine, record: &EventRecord) -> bool {
        let event = &record.event;
        self.wants_kind(event.tag(), event.topic())
            && self.lease.is_none_or(|lease| event.lease() == Some(lease))
            && self.node.is_none_or(|node| mentions(event, node))
            && self.tenant.as_ref().is_none_or(|tenant| match event {
                Event::TenantSet { tenant: of, .. } | Event::LimitsSet { tenant: of, .. } => of == tenant,
                event if event.subscription().is_some() => {
                    event.subscription().and_then(|key| key.tenant.as_ref()) == Some(tenant)
                }
                event => event.lease().is_some_and(|lease| self.belongs(state, lease, tenant)),
            })
    }

    fn wants_kind(&self, tag: u16, topic: Topic) -> bool {
        (self.topics.is_empty() || self.topics.contains(&topic))
            && match self.types.is_empty() {
                true => !(self.no_acknowledgements && tag == ACKNOWLEDGED),
                false => self.types.contains(&tag),
            }
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

fn words(text: &Option<String>) -> impl Iterator<Item = &str> {
    text.iter()
        .flat_map(|text| text.split(','))
        .filter(|word| !word.is_empty())
}

/// Reads what is asked for from the query's texts; refuses a tenant that the caller does not see.
pub fn filter(caller: &Caller, wishes: &Wishes) -> Result<EventFilter, Failure> {
    let topics: BTreeSet<Topic> = words(&wishes.topic).map(topic).collect::<Result<_, _>>()?;
    let types: BTreeSet<&str> = words(&wishes.kind)
        .map(|text| kind(text).map(|(_, name)| name))
        .collect::<Result<_, _>>()?;
    let tenant: Option<TenantId> = wishes.tenant.as_deref().map(str::parse).transpose()?;
    if let Some(tenant) = tenant.as_ref().filter(|tenant| !caller.sees(tenant)) {
        return Err(Failure::not_allowed(format!("this token does not see tenant {tenant}")));
    }
    Ok(EventFilter {
        topics: topics.into_iter().collect(),
        types: types.into_iter().map(str::parse).collect::<Result<_, _>>()?,
        lease: wishes.lease.as_deref().map(str::parse).transpose()?,
        tenant,
        node: wishes.node.as_deref().map(str::parse).transpose()?,
    })
}

/// The tag and name of a type, by its name or as CloudEvents' `type` has it.
fn kind(text: &str) -> Result<(u16, &'static str), Failure> {
    let name = text.strip_prefix("holdfast.").unwrap_or(text);
    let found = Event::TABLE.iter().find(|(_, known, _)| *known == name);
    found.map(|(tag, name, _)| (*tag, *name)).ok_or_else(|| {
        let names: Vec<&str> = Event::TABLE.iter().map(|(_, name, _)| *name).collect();
        Failure::bad_request(format!(
            "there is no event type `{text}`; types are {}",
            names.join(", ")
        ))
    })
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
        | Event::NodeDraining { node, .. }
        | Event::NodeDrained { node }
        | Event::LeaseEvicted { node, .. }
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
