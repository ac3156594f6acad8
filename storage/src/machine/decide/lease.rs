//! Decides leases as a whole: requests, releases, renewals, their time and money, and the states they save.

use holdfast_proto::command::{Command, CreateLease, CreateLeaseWith};
use holdfast_proto::condition;
use holdfast_proto::device::ModelName;
use holdfast_proto::event::{Event, LeaseRequested};
use holdfast_proto::id::{Fence, LeaseId, ProjectId};
use holdfast_proto::lease::{EndReason, LeaseStatus};
use holdfast_proto::limits::DEVICE_MILLI;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tenant::Principal;
use holdfast_proto::time::Span;
use holdfast_proto::workload::Checkpoint;

use super::super::draft::Draft;
use super::super::meter;
use super::super::state::Lease;
use super::attempt::wrong_state;
use super::settle::end;
use super::shape;

/// Most stores that one checkpoint may name.
const HOLDERS_MAX: usize = 64;

pub(super) fn decide(draft: &mut Draft, who: &Principal, command: &Command) -> Result<(), Rejection> {
    match command {
        Command::ReleaseLease { lease } => {
            let found = draft.own_lease(*lease, who)?;
            goes_on(&found)?;
            end(draft, *lease, EndReason::Released);
            Ok(())
        }
        Command::RenewLease { lease, more } => renew(draft, who, *lease, *more),
        Command::EndLease { lease, reason, renewal } => end_when_due(draft, *lease, *reason, *renewal),
        Command::CommitCheckpoint {
            lease,
            fence,
            checkpoint,
        } => commit_checkpoint(draft, who, *lease, *fence, checkpoint),
        _ => unreachable!("decide.rs routes lease commands only"),
    }
}

fn goes_on(lease: &Lease) -> Result<(), Rejection> {
    match lease.status {
        LeaseStatus::Ending(_) | LeaseStatus::Ended(_) => {
            Err(wrong_state(lease, "only a lease that goes on can be changed"))
        }
        _ => Ok(()),
    }
}

/// Decides a new lease. It starts pending: devices are granted later, by a placement.
pub(super) fn create(draft: &mut Draft, project: Option<&ProjectId>, create: &CreateLease) -> Result<(), Rejection> {
    request(draft, project, create, DEVICE_MILLI)
}

/// Decides the request for a lease that holds `milli` of each of its devices.
fn request(draft: &mut Draft, project: Option<&ProjectId>, create: &CreateLease, milli: u16) -> Result<(), Rejection> {
    draft.tenant(&create.tenant)?;
    shape::request(&create.request)?;
    shape::terms(&create.terms)?;
    shape::workload(&create.workload)?;
    if let Some(label) = &create.label {
        shape::name("label", label)?;
    }
    if let Some(project) = project {
        shape::name("project", project)?;
    }
    quota(draft, create)?;
    models(draft, create)?;
    fits(draft, create)?;
    limits(draft, create, milli)?;
    draft.emit(Event::LeaseRequested(Box::new(LeaseRequested {
        // The id is the log index, so two replicas cannot name one lease differently.
        lease: LeaseId::from_index(draft.index()),
        tenant: create.tenant.clone(),
        project: project.cloned(),
        kind: create.kind,
        label: create.label.clone(),
        request: create.request.clone(),
        terms: create.terms.clone(),
        workload: create.workload.clone(),
        tariff: draft.state().cluster.tariff,
    })));
    Ok(())
}

/// Decides a new lease under conditions.
pub(super) fn create_with(
    draft: &mut Draft,
    project: Option<&ProjectId>,
    asked: &CreateLeaseWith,
) -> Result<(), Rejection> {
    shape::conditions(draft.state().cluster.level, &asked.lease.request, &asked.conditions)?;
    request(draft, project, &asked.lease, condition::milli(&asked.conditions))?;
    draft.emit(Event::LeaseConditioned {
        lease: LeaseId::from_index(draft.index()),
        conditions: asked.conditions.clone(),
    });
    Ok(())
}

fn quota(draft: &Draft, create: &CreateLease) -> Result<(), Rejection> {
    let Some(tenant) = draft.state().tenants.get(&create.tenant) else {
        return Ok(());
    };
    let left = tenant.quota.devices_max.saturating_sub(tenant.held);
    let asked = create.request.devices_min;
    match asked > left {
        true => Err(Rejection::QuotaExceeded {
            tenant: create.tenant.clone(),
            asked,
            left,
        }),
        false => Ok(()),
    }
}

/// Checks that the models exist, and that each one that may be granted has a price.
fn models(draft: &Draft, create: &CreateLease) -> Result<(), Rejection> {
    let state = draft.state();
    let present = state.models();
    let asked = &create.request.models;
    let accepted: Vec<_> = match asked.is_empty() {
        true => present.clone(),
        false => asked.iter().filter(|model| present.contains(model)).cloned().collect(),
    };
    if accepted.is_empty() && !asked.is_empty() {
        let asked = asked.clone();
        return Err(Rejection::ModelUnknown { asked, present });
    }
    let plan = create.terms.plan;
    match accepted
        .iter()
        .find(|model| state.price(state.cluster.tariff, model, plan).is_none())
    {
        Some(model) => Err(Rejection::PriceUnknown { model: model.clone() }),
        None => Ok(()),
    }
}

/// Checks the tenant's limits: one accepted model must be left for all devices, and the least that they cost.
fn limits(draft: &Draft, create: &CreateLease, milli: u16) -> Result<(), Rejection> {
    let (state, tenant, request) = (draft.state(), &create.tenant, &create.request);
    if state.limits_of(tenant).is_empty() {
        return Ok(());
    }
    let left = state.left(tenant, &state.used_by(tenant), None);
    let present = state.models();
    let accepts = |model: &&ModelName| request.models.is_empty() || request.models.contains(model);
    let models: Vec<ModelName> = present.iter().filter(accepts).cloned().collect();
    let most = models.iter().map(|model| left.of(model)).max().unwrap_or(u32::MAX);
    if request.devices_min > most {
        return Err(Rejection::ModelQuotaExceeded {
            tenant: tenant.clone(),
            models,
            asked: request.devices_min,
            left: most,
        });
    }
    let asked_micros = state.least_rate(request, create.terms.plan, state.cluster.tariff, milli);
    match left.micros_per_hour.filter(|left| asked_micros > *left) {
        Some(left_micros) => Err(Rejection::SpendQuotaExceeded {
            tenant: tenant.clone(),
            asked_micros,
            left_micros,
        }),
        None => Ok(()),
    }
}

fn fits(draft: &Draft, create: &CreateLease) -> Result<(), Rejection> {
    let most = draft.state().most_that_fits(&create.request);
    let asked = create.request.devices_min;
    match most < asked {
        true => Err(Rejection::CannotFit { asked, most }),
        false => Ok(()),
    }
}

fn renew(draft: &mut Draft, who: &Principal, id: LeaseId, more: Span) -> Result<(), Rejection> {
    let lease = draft.own_lease(id, who)?;
    goes_on(&lease)?;
    if lease.expires.is_some_and(|expires| expires <= draft.at()) {
        // Its supervisors have stopped the work at that time already.
        return Err(wrong_state(&lease, "its time was up before this renewal"));
    }
    shape::duration(more)?;
    let duration = Span(lease.duration.0.saturating_add(more.0));
    shape::duration(duration)?;
    draft.emit(Event::LeaseRenewed {
        lease: id,
        duration,
        expires: lease.expires.map(|expires| expires.plus(more)),
    });
    Ok(())
}

/// Ends a lease whose time or money is up. The proposer names the renewal that it saw, so one that slept cannot end
/// what was renewed meanwhile; and whether it is due is decided by the stamp, not by its clock.
fn end_when_due(draft: &mut Draft, id: LeaseId, reason: EndReason, renewal: u64) -> Result<(), Rejection> {
    let lease = draft.lease(id)?;
    goes_on(&lease)?;
    if !matches!(reason, EndReason::Expired | EndReason::Capped) {
        return Err(shape::out_of_range(
            "reason",
            format!("{reason:?}"),
            "expired or capped",
        ));
    }
    if renewal != lease.renewal {
        return Err(Rejection::RenewalStale {
            lease: id,
            given: renewal,
            present: lease.renewal,
        });
    }
    let due = match reason {
        EndReason::Capped => meter::capped_at(&lease),
        _ => lease.expires,
    };
    let Some(due) = due else {
        return Err(wrong_state(
            &lease,
            "its time runs from its first start, and its money while it has a cap",
        ));
    };
    if draft.at() < due {
        return Err(Rejection::NotDue { lease: id, due });
    }
    end(draft, id, reason);
    Ok(())
}

/// Takes a saved state of the attempt that holds the lease's token. A member that is lost, or of an earlier placement,
/// has no say any more.
fn commit_checkpoint(
    draft: &mut Draft,
    who: &Principal,
    id: LeaseId,
    fence: Fence,
    checkpoint: &Checkpoint,
) -> Result<(), Rejection> {
    let lease = draft.lease(id)?;
    check_fence(draft, &lease, fence)?;
    let Principal::Node(node) = *who else {
        return Err(Rejection::LeaseUnknown { lease: id });
    };
    let member = lease.placement.as_ref().and_then(|placement| placement.member(node));
    if member.is_none_or(|member| member.released || member.lost.is_some()) {
        return Err(Rejection::NotAMember { lease: id, node });
    }
    shape::within("holders", checkpoint.holders.len(), 1..=HOLDERS_MAX)?;
    for holder in &checkpoint.holders {
        draft.node(*holder)?;
    }
    if let Some(newest) = lease.checkpoints.last().filter(|newest| checkpoint.step <= newest.step) {
        return Err(Rejection::CheckpointStale {
            lease: id,
            given: checkpoint.step,
            committed: newest.step,
        });
    }
    draft.emit(Event::CheckpointCommitted {
        lease: id,
        fence,
        checkpoint: checkpoint.clone(),
    });
    Ok(())
}

fn check_fence(draft: &Draft, lease: &Lease, fence: Fence) -> Result<(), Rejection> {
    let present = draft.state().cluster.era;
    let id = lease.id();
    if fence.token.era != present {
        let given = fence.token.era;
        return Err(Rejection::EraStale { given, present });
    }
    let Some(placement) = lease.placement.as_ref().filter(|_| !lease.status.is_ended()) else {
        return Err(wrong_state(lease, "only a placed lease saves its state"));
    };
    if fence.epoch != placement.epoch || fence.token != placement.token {
        return Err(Rejection::EpochStale {
            lease: id,
            given: fence.epoch,
            present: placement.epoch,
        });
    }
    match fence.attempt == placement.attempt {
        true => Ok(()),
        false => Err(Rejection::AttemptStale {
            lease: id,
            given: fence.attempt,
            present: placement.attempt,
        }),
    }
}
