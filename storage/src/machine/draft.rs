//! A decision in the making: the events so far, and the state as they leave it.
//!
//! Rules emit events into a draft and go on to look at what these have changed (a member's exit may end a lease, free
//! its devices and let another start). They cannot change the state themselves: only folding an event does. A refused
//! command's draft is dropped whole.

use std::sync::Arc;

use holdfast_proto::event::{Event, EventRecord, RequestKey};
use holdfast_proto::id::{Cursor, LeaseId, NodeId, TenantId};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tenant::{Principal, Role};
use holdfast_proto::time::Timestamp;

use super::state::{Lease, Node, State};

/// The draft of one entry's decision.
pub(super) struct Draft {
    state: State,
    /// The state before the first event was folded.
    before: Option<State>,
    /// Events of `records` that are folded.
    folded: usize,
    index: u64,
    at: Timestamp,
    request: Option<RequestKey>,
    records: Vec<EventRecord>,
}

impl Draft {
    /// Starts the decision of the entry at `index`, whose time is `at`.
    pub(super) fn new(state: State, index: u64, at: Timestamp, request: Option<RequestKey>) -> Self {
        Self {
            state,
            before: None,
            folded: 0,
            index,
            at,
            request,
            records: Vec::new(),
        }
    }

    /// Adds an event, and folds it.
    pub(super) fn emit(&mut self, event: Event) {
        self.emit_last(event);
        self.before.get_or_insert_with(|| self.state.clone());
        self.fold();
    }

    /// Adds the event that ends a decision: nothing looks at the state or refuses the command after it.
    ///
    /// It is folded when the decision ends, in place: without a state to go back to, no part of a map has to be copied.
    pub(super) fn emit_last(&mut self, event: Event) {
        let sub = u32::try_from(self.records.len()).expect("one entry decides far fewer events than that");
        let record = EventRecord {
            cursor: Cursor { index: self.index, sub },
            at: self.at,
            request: self.request,
            event,
        };
        self.records.push(record);
    }

    fn fold(&mut self) {
        for record in &self.records[self.folded..] {
            self.state.fold(record);
        }
        self.folded = self.records.len();
    }

    /// Ends the decision.
    pub(super) fn finish(mut self) -> (State, Vec<EventRecord>) {
        self.fold();
        (self.state, self.records)
    }

    /// Drops the decision: the state is as it was.
    pub(super) fn drop(self) -> State {
        self.before.unwrap_or(self.state)
    }

    /// The state as the events so far leave it.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Log index of the entry.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// Time of the entry.
    pub(super) fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns a node that belongs to the cluster.
    pub(super) fn node(&self, node: NodeId) -> Result<Arc<Node>, Rejection> {
        let known = self.state.nodes.get(&node).ok_or(Rejection::NodeUnknown { node })?;
        match known.status {
            NodeStatus::Removed => Err(Rejection::NodeRemoved { node }),
            _ => Ok(Arc::clone(known)),
        }
    }

    /// Returns a lease.
    pub(super) fn lease(&self, lease: LeaseId) -> Result<Arc<Lease>, Rejection> {
        self.state
            .leases
            .get(&lease)
            .cloned()
            .ok_or(Rejection::LeaseUnknown { lease })
    }

    /// Returns a lease that `principal` may change. Another tenant's lease is as good as none: its id tells nothing.
    pub(super) fn own_lease(&self, lease: LeaseId, principal: &Principal) -> Result<Arc<Lease>, Rejection> {
        let found = self.lease(lease)?;
        let owns = match principal {
            Principal::Bearer {
                role: Role::Operator, ..
            } => true,
            Principal::Bearer { tenant, .. } => tenant.as_ref() == Some(&found.requested.tenant),
            Principal::Node(_) => false,
        };
        if owns {
            Ok(found)
        } else {
            Err(Rejection::LeaseUnknown { lease })
        }
    }

    /// Checks that a tenant exists.
    pub(super) fn tenant(&self, tenant: &TenantId) -> Result<(), Rejection> {
        match self.state.tenants.contains_key(tenant) {
            true => Ok(()),
            false => Err(Rejection::TenantUnknown { tenant: tenant.clone() }),
        }
    }
}
