//! Folds what happens to a lease as a whole: its request, its states, its money, its saved states.

use std::sync::Arc;

use holdfast_proto::condition::LEVEL;
use holdfast_proto::event::{Event, EventRecord, LeaseRequested};
use holdfast_proto::id::{Epoch, LeaseId, TenantId};
use holdfast_proto::lease::{EndReason, LeaseStatus};
use holdfast_proto::time::{Span, Timestamp};

use super::super::meter;
use super::super::state::{CHECKPOINTS_KEPT, ENDED_LEASE_MS, ENDED_LEASES_MAX, Lease, Meter, Placement, State};

pub(super) fn fold(state: &mut State, record: &EventRecord) {
    let at = record.at;
    match &record.event {
        Event::LeaseRequested(requested) => lease_requested(state, requested, record),
        Event::LeaseConditioned { lease, conditions } if state.leases.contains_key(lease) => {
            state.conditions.insert(*lease, Arc::new(conditions.clone()));
        }
        Event::PlacementDeferred { lease, reason } => {
            state.change_lease(*lease, |lease| lease.reason = Some(reason.clone()));
        }
        Event::LeaseActivated { lease, expires, .. } => state.change_lease(*lease, |lease| {
            lease.expires = Some(*expires);
            lease.enter(LeaseStatus::Active, at);
            lease.failed_attempts = 0;
            lease.failed_on.clear();
            if let Some(placement) = &mut lease.placement {
                placement.activated = true;
            }
            meter::open(lease, at, record.cursor);
        }),
        Event::LeaseFrozen { lease, .. } => state.change_lease(*lease, |lease| {
            lease.enter(LeaseStatus::Frozen, at);
            meter::suspend(lease, at);
        }),
        Event::LeaseThawed { lease, .. } => state.change_lease(*lease, |lease| {
            let status = lease.resumed_status();
            lease.enter(status, at);
            lease.reason = None;
            if status == LeaseStatus::Active {
                meter::resume(lease, at, record.cursor);
            }
        }),
        Event::LeaseMigrating { lease, reason, .. } => state.change_lease(*lease, |lease| {
            lease.enter(LeaseStatus::Migrating, at);
            lease.reason = Some(reason.clone());
            lease.meter.open = None;
        }),
        Event::LeaseEnding { lease, reason } => state.change_lease(*lease, |lease| {
            lease.enter(LeaseStatus::Ending(*reason), at);
            lease.reason = None;
            lease.meter.open = None;
        }),
        Event::LeaseEnded { lease, reason, .. } => ended(state, *lease, *reason, record),
        Event::LeaseRenewed {
            lease,
            duration,
            expires,
        } => state.change_lease(*lease, |lease| {
            lease.duration = *duration;
            lease.expires = *expires;
            lease.renewal = record.cursor.index;
        }),
        Event::LeaseCharged(line) => state.change_lease(line.lease, |lease| {
            lease.meter.charged_micros = lease.meter.charged_micros.saturating_add(line.amount_micros);
            lease.meter.lines.push(line.clone());
            lease.meter.open = None;
        }),
        Event::CheckpointCommitted { lease, checkpoint, .. } => state.change_lease(*lease, |lease| {
            lease.checkpoints.push(checkpoint.clone());
            if lease.checkpoints.len() > CHECKPOINTS_KEPT {
                lease.checkpoints.remove(0);
            }
        }),
        _ => {}
    }
}

fn lease_requested(state: &mut State, requested: &LeaseRequested, record: &EventRecord) {
    let devices = requested.request.devices_min;
    let lease = Lease {
        requested: Arc::new(requested.clone()),
        requested_at: record.at,
        status: LeaseStatus::Pending,
        since: record.at,
        epoch: Epoch(0),
        placement: None,
        earlier: Vec::new(),
        devices,
        duration: requested.terms.duration,
        expires: None,
        renewal: record.cursor.index,
        failed_attempts: 0,
        failed_on: Vec::new(),
        checkpoints: Vec::new(),
        reason: None,
        meter: Meter::default(),
        exit_code: None,
    };
    if let Some(key) = lease.queue_key() {
        state.index.enter(key, &requested.tenant);
    }
    state.leases.insert(requested.lease, Arc::new(lease));
    hold(state, &requested.tenant, 0, devices);
}

/// Counts `now` devices against the tenant's quota where it was `before`.
pub(super) fn hold(state: &mut State, tenant: &TenantId, before: u32, now: u32) {
    if let Some(tenant) = state.tenants.get_mut(tenant) {
        tenant.held = tenant.held.saturating_sub(before).saturating_add(now);
    }
}

/// Counts `now` placed devices of the tenant where there were `before`, from the level on that knows of usage.
pub(super) fn have(state: &mut State, tenant: &TenantId, before: u32, now: u32, at: Timestamp) {
    if state.cluster.level < LEVEL || (before == now && !state.usage.contains_key(tenant)) {
        return;
    }
    let mut usage = state.usage_of(tenant);
    usage.change(before, now, at);
    state.usage.insert(tenant.clone(), usage);
}

fn ended(state: &mut State, lease: LeaseId, reason: EndReason, record: &EventRecord) {
    let Some(known) = state.leases.get(&lease) else { return };
    let (tenant, devices) = (known.requested.tenant.clone(), known.devices);
    let had = known.placement.as_ref().map_or(0, Placement::devices);
    hold(state, &tenant, devices, 0);
    have(state, &tenant, had, 0, record.at);
    state.change_lease(lease, |lease| {
        lease.enter(LeaseStatus::Ended(reason), record.at);
        lease.earlier.clear();
    });
    state.ended.insert(record.cursor, lease);
    let keep = Span(ENDED_LEASE_MS);
    while let Some((&cursor, &oldest)) = state.ended.first() {
        let since = state.leases.get(&oldest).map(|lease| lease.since);
        let aged = since.is_none_or(|since| since.plus(keep) < record.at);
        if !aged && state.ended.len() <= ENDED_LEASES_MAX {
            return;
        }
        state.ended.remove(&cursor);
        state.leases.remove(&oldest);
        state.conditions.remove(&oldest);
    }
}

impl Lease {
    /// Returns the status that the present placement's work gives the lease when all its nodes are heard.
    fn resumed_status(&self) -> LeaseStatus {
        match &self.placement {
            Some(placement) if placement.attempt_runs() && placement.activated => LeaseStatus::Active,
            Some(placement) if placement.attempt_runs() => LeaseStatus::Starting,
            _ => LeaseStatus::Placed,
        }
    }
}
