//! Leases that the state has forgotten: it keeps the newest that have ended, the index and the event log keep the rest.
//!
//! The one rule: what was a lease's to see while it was in the state is its to see here, and to nobody else.

use std::sync::Arc;

use holdfast_proto::condition;
use holdfast_proto::event::{Event, EventRecord, LeaseRequested};
use holdfast_proto::id::{Cursor, LeaseId, TenantId};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::limits::DEVICE_MILLI;
use holdfast_proto::rejection::status_name;
use holdfast_storage::index::EndedLease;
use holdfast_storage::machine::state::State as Machine;

use super::Api;
use super::auth::Caller;
use super::bill::charged_line;
use super::cluster::currency_of;
use super::problem::Failure;
use crate::wire::bill::Bill;
use crate::wire::lease::LeaseView;

/// Most events read of one lease.
const EVENTS_MAX: usize = 10_000;

/// A lease that the state has forgotten.
pub struct Archived {
    ended: EndedLease,
    requested: LeaseRequested,
    records: Vec<Arc<EventRecord>>,
}

/// Looks a lease up that the state does not have; `None` when there never was one, or when it is not the caller's to see.
pub async fn find(api: &Api, caller: &Caller, lease: LeaseId) -> Result<Option<Archived>, Failure> {
    let ended = api.parts().committed.ended_lease(lease).await?;
    match ended.filter(|ended| caller.sees(&ended.tenant)) {
        Some(ended) => open(api, ended).await,
        None => Ok(None),
    }
}

/// Ended leases that the state has forgotten, newest end first, at most `limit`.
pub async fn list(
    api: &Api,
    caller: &Caller,
    tenant: Option<TenantId>,
    state: &Machine,
    limit: usize,
) -> Result<Vec<LeaseView>, Failure> {
    let only = if caller.sees_all() {
        tenant
    } else {
        caller.tenant.clone()
    };
    let kept = state.ended.first().map(|(end, _)| *end);
    let mut views = Vec::new();
    for ended in api.parts().committed.ended(only, kept, limit).await? {
        if caller.sees(&ended.tenant)
            && let Some(archived) = open(api, ended).await?
        {
            views.push(archived.view(state));
        }
    }
    Ok(views)
}

/// Reads the events of an ended lease; `None` when they are no longer kept.
async fn open(api: &Api, ended: EndedLease) -> Result<Option<Archived>, Failure> {
    let records = api
        .parts()
        .committed
        .lease_events(ended.lease, Cursor::default(), EVENTS_MAX)
        .await
        .unwrap_or_default();
    let requested = records.iter().find_map(|record| match &record.event {
        Event::LeaseRequested(requested) => Some(LeaseRequested::clone(requested)),
        _ => None,
    });
    Ok(requested.map(|requested| Archived {
        ended,
        requested,
        records,
    }))
}

impl Archived {
    /// The lease as clients see it.
    pub fn view(&self, state: &Machine) -> LeaseView {
        let (ended, requested) = (&self.ended, &self.requested);
        LeaseView {
            id: ended.lease,
            tenant: ended.tenant.clone(),
            project: ended.project.clone(),
            kind: requested.kind,
            label: ended.label.clone(),
            status: status_name(LeaseStatus::Ended(ended.reason)).to_owned(),
            since_ms: ended.ended_at.0,
            end_reason: Some(ended.reason),
            waits_because: None,
            exit_code: ended.exit_code,
            requested_ms: ended.requested_at.0,
            duration_ms: requested.terms.duration.0,
            expires_ms: None,
            devices_min: ended.request.devices_min,
            share_milli: self.share_milli(),
            devices: 0,
            models: ended.request.models.clone(),
            plan: requested.terms.plan,
            isolation: requested.terms.isolation,
            cap_micros: requested.terms.cap_micros,
            currency: currency_of(state, requested.tariff),
            micros_per_hour: None,
            charged_micros: ended.charged_micros,
            so_far_micros: ended.charged_micros,
            as_of_ms: ended.ended_at.0,
            command: requested.workload.command.clone(),
            epoch: 0,
            attempt: 0,
            members: Vec::new(),
            checkpoint_step: None,
        }
    }

    /// The version of the prices that it was requested under.
    pub fn tariff(&self) -> u32 {
        self.requested.tariff
    }

    fn share_milli(&self) -> Option<u16> {
        self.records.iter().find_map(|record| match &record.event {
            Event::LeaseConditioned { conditions, .. } => {
                Some(condition::milli(conditions)).filter(|milli| *milli < DEVICE_MILLI)
            }
            _ => None,
        })
    }

    /// The final bill.
    pub fn bill(&self, state: &Machine) -> Bill {
        let lines = self.records.iter().filter_map(|record| match &record.event {
            Event::LeaseCharged(line) => Some(charged_line(line, Some(record.cursor))),
            _ => None,
        });
        Bill {
            lease: self.ended.lease,
            currency: currency_of(state, self.requested.tariff),
            tariff: self.requested.tariff,
            lines: lines.collect(),
            total_micros: self.ended.charged_micros,
            open: None,
            as_of_ms: self.ended.ended_at.0,
            is_final: true,
        }
    }
}
