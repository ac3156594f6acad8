//! `/v1/leases`: order, read, extend and give back.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use holdfast_proto::command::{Command, CreateLease, CreateLeaseWith};
use holdfast_proto::condition::{Condition, Prefer, Share, Weight};
use holdfast_proto::id::{Cursor, LeaseId, Name, TenantId};
use holdfast_proto::lease::{ResourceRequest, Terms};
use holdfast_proto::limits::DEVICE_MILLI;
use holdfast_proto::rejection::status_name;
use holdfast_proto::tenant::Role;
use holdfast_proto::time::{Span, Timestamp};
use holdfast_proto::workload::Workload;
use holdfast_storage::machine::state::{Lease, Member, Run, State as Machine};
use serde::Deserialize;

use super::Api;
use super::archive;
use super::auth::Caller;
use super::body::{Named, Posted};
use super::cluster::currency_of;
use super::command::issue;
use super::event::present;
use super::problem::Failure;
use super::quote::limited;
use super::read::Reading;
use crate::history::sentence;
use crate::wire::cluster::Applied;
use crate::wire::event::{HistoryLine, LeaseHistory};
use crate::wire::lease::{LeaseAccepted, LeaseList, LeaseOrder, LeaseRenewal, LeaseView, MemberView};

/// Leases listed when the request names no limit.
const LIST_DEFAULT: usize = 100;
/// Most leases listed at once.
const LIST_MAX: usize = 1_000;
/// Most events of one history.
const HISTORY_MAX: usize = 10_000;

/// Orders a lease. It waits for its devices; `GET` shows how it goes on.
#[utoipa::path(post, path = "/v1/leases", tag = "leases", request_body = LeaseOrder,
    params(("Holdfast-Request-Id" = Option<String>, Header, description = "Names the request; a retry with it makes no second lease")),
    responses((status = 201, description = "The lease exists", body = LeaseAccepted)))]
pub async fn create(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Posted(order): Posted<LeaseOrder>,
) -> Result<Response, Failure> {
    let tenant = tenant_of(&caller, order.tenant.clone())?;
    let conditions = conditions(&order);
    let lease = command(order, tenant);
    let wanted = lease.request.clone();
    let command = match conditions.is_empty() {
        true => Command::CreateLease(Box::new(lease)),
        false => Command::CreateLeaseWith(Box::new(CreateLeaseWith { lease, conditions })),
    };
    let done = issue(&api, &caller, request, command)
        .await
        .map_err(|failure| limited(&api.parts().committed.state(), &wanted, failure))?;
    // The id is the log index of the request, also when an earlier copy of it was the one that took effect.
    let lease = LeaseId::from_index(done.index);
    let mut response = done.answer(
        StatusCode::CREATED,
        &LeaseAccepted {
            lease,
            index: done.index,
        },
    );
    if let Ok(place) = format!("/v1/leases/{lease}").parse() {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// Who pays: the token's tenant, or the one that an operator names.
pub fn tenant_of(caller: &Caller, named: Option<TenantId>) -> Result<TenantId, Failure> {
    match (&caller.tenant, named) {
        (Some(own), Some(named)) if *own != named && caller.role != Role::Operator => Err(Failure::not_allowed(
            format!("this token is of tenant {own}; it cannot order for {named}"),
        )),
        (_, Some(named)) => Ok(named),
        (Some(own), None) => Ok(own.clone()),
        (None, None) => "default".parse().map_err(Failure::from),
    }
}

fn command(order: LeaseOrder, tenant: TenantId) -> CreateLease {
    CreateLease {
        tenant,
        kind: order.kind,
        label: order.label.clone(),
        terms: Terms {
            duration: Span(order.duration_ms),
            plan: order.plan,
            cap_micros: order.cap_micros,
            isolation: order.isolation,
            priority: order.priority,
            grace: Span(order.grace_ms),
        },
        workload: Workload {
            command: order.command.clone(),
            environment: order.environment.clone().into_iter().collect(),
            folder: order.folder.clone(),
            image: None,
            checkpoints: order.checkpoints,
        },
        request: resources(order),
    }
}

/// What an order says beyond its resource request.
pub fn conditions(order: &LeaseOrder) -> Vec<Condition> {
    let share = |milli| Condition::Share(Box::new(Share { milli }));
    let weights = |weights: &BTreeMap<Name, u16>| -> Vec<Weight> {
        let weight = |(name, weight): (&Name, &u16)| Weight {
            name: name.clone(),
            weight: *weight,
        };
        weights.iter().map(weight).collect()
    };
    let prefer = Prefer {
        models: weights(&order.prefer_models),
        zones: weights(&order.prefer_zones),
    };
    let prefers = !(prefer.models.is_empty() && prefer.zones.is_empty());
    let prefer = prefers.then(|| Condition::Prefer(Box::new(prefer)));
    order.share_milli.map(share).into_iter().chain(prefer).collect()
}

/// Which devices an order asks for, as the log knows it.
pub fn resources(order: LeaseOrder) -> ResourceRequest {
    ResourceRequest {
        devices_min: order.devices,
        devices_max: order.devices_max.unwrap_or(order.devices),
        models: order.models,
        same_model: order.same_model,
        single_node: order.single_node,
        cpu_milli_per_device: order.cpu_milli_per_device,
        memory_mib_per_device: order.memory_mib_per_device,
        zones: order.zones,
        spread: order.spread,
    }
}

/// Which leases to list.
#[derive(Debug, Default, Deserialize)]
pub struct ListQuery {
    /// Ended ones instead of live ones.
    #[serde(default)]
    ended: bool,
    tenant: Option<String>,
    limit: Option<usize>,
}

/// Lists leases, newest first.
#[utoipa::path(get, path = "/v1/leases", tag = "leases",
    params(("ended" = Option<bool>, Query, description = "List ended leases instead of live ones"),
        ("tenant" = Option<String>, Query, description = "Only this tenant's"),
        ("limit" = Option<u32>, Query, description = "At most this many; 100 when absent, 1000 at most"),
        ("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Leases", body = LeaseList)))]
pub async fn list(
    State(api): State<Api>,
    caller: Caller,
    reading: Reading,
    Query(query): Query<ListQuery>,
) -> Result<Response, Failure> {
    let tenant: Option<Name> = query.tenant.as_deref().map(str::parse).transpose()?;
    let limit = query.limit.unwrap_or(LIST_DEFAULT).min(LIST_MAX);
    let state = &reading.state;
    let mut leases: Vec<LeaseView> = Vec::new();
    let all: Vec<&Lease> = state.leases.values().map(AsRef::as_ref).collect();
    for lease in all.into_iter().rev() {
        let of = &lease.requested.tenant;
        if lease.status.is_ended() == query.ended
            && caller.sees(of)
            && tenant.as_ref().is_none_or(|wanted| wanted == of)
        {
            leases.push(view(state, lease, reading.now));
        }
        if leases.len() >= limit {
            break;
        }
    }
    if query.ended && leases.len() < limit && !reading.past {
        leases.extend(archive::list(&api, &caller, tenant, state, limit - leases.len()).await?);
    }
    Ok(reading.answer(&LeaseList { leases }))
}

/// Shows a lease.
#[utoipa::path(get, path = "/v1/leases/{lease}", tag = "leases",
    params(("lease" = String, Path, description = "Its id"),
        ("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "The lease", body = LeaseView)))]
pub async fn show(
    State(api): State<Api>,
    caller: Caller,
    reading: Reading,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let state = &reading.state;
    let view = match caller.lease(state, &id) {
        Ok(lease) => view(state, lease, reading.now),
        Err(unknown) if reading.past => return Err(unknown),
        Err(unknown) => archive::find(&api, &caller, id.parse()?)
            .await?
            .ok_or(unknown)?
            .view(state),
    };
    Ok(reading.answer(&view))
}

/// Gives a lease back: its work is stopped, and nothing more is charged once that is proven.
#[utoipa::path(delete, path = "/v1/leases/{lease}", tag = "leases",
    params(("lease" = String, Path, description = "Its id")),
    responses((status = 200, description = "The lease ends", body = Applied)))]
pub async fn release(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let lease = id.parse()?;
    Ok(issue(&api, &caller, request, Command::ReleaseLease { lease })
        .await?
        .applied())
}

/// Asks for more time.
#[utoipa::path(post, path = "/v1/leases/{lease}/renew", tag = "leases", request_body = LeaseRenewal,
    params(("lease" = String, Path, description = "Its id")),
    responses((status = 200, description = "The lease is longer", body = Applied)))]
pub async fn renew(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(id): Path<String>,
    Posted(renewal): Posted<LeaseRenewal>,
) -> Result<Response, Failure> {
    let command = Command::RenewLease {
        lease: id.parse()?,
        more: Span(renewal.more_ms),
    };
    Ok(issue(&api, &caller, request, command).await?.applied())
}

/// Where to begin in a lease's history.
#[derive(Debug, Default, Deserialize)]
pub struct HistoryQuery {
    after: Option<String>,
}

/// Tells what happened to a lease, in words.
#[utoipa::path(get, path = "/v1/leases/{lease}/events", tag = "leases",
    params(("lease" = String, Path, description = "Its id"),
        ("after" = Option<String>, Query, description = "Only what is strictly after this position"),
        ("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Its history", body = LeaseHistory)))]
pub async fn history(
    State(api): State<Api>,
    caller: Caller,
    reading: Reading,
    Path(id): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> Result<Response, Failure> {
    let lease: LeaseId = id.parse()?;
    let tariff = match caller.lease(&reading.state, &id) {
        Ok(lease) => lease.requested.tariff,
        Err(unknown) => archive::find(&api, &caller, lease).await?.ok_or(unknown)?.tariff(),
    };
    let currency = currency_of(&reading.state, tariff);
    let after: Cursor = query.after.as_deref().map(str::parse).transpose()?.unwrap_or_default();
    let mut records = api.parts().committed.lease_events(lease, after, HISTORY_MAX).await?;
    if reading.past {
        records.retain(|record| record.cursor <= reading.state.cluster.cursor);
    }
    let next = records.last().map_or(after, |record| record.cursor);
    let name = |node| reading.state.nodes.get(&node).map(|node| node.spec.label.to_string());
    let lines = records
        .iter()
        .map(|record| HistoryLine {
            cursor: record.cursor,
            at_ms: record.at.0,
            text: sentence(&record.event, &name, &currency),
            event: present(&reading.state, record),
        })
        .collect();
    Ok(reading.answer(&LeaseHistory { lines, next }).into_response())
}

/// A lease as clients see it.
pub fn view(state: &Machine, lease: &Lease, now: Timestamp) -> LeaseView {
    let requested = &lease.requested;
    let placement = lease.placement.as_ref();
    LeaseView {
        id: lease.id(),
        tenant: requested.tenant.clone(),
        project: requested.project.clone(),
        kind: requested.kind,
        label: requested.label.clone(),
        status: status_name(lease.status).to_owned(),
        since_ms: lease.since.0,
        end_reason: lease.end_reason(),
        waits_because: lease.reason.clone(),
        exit_code: lease.exit_code,
        requested_ms: lease.requested_at.0,
        duration_ms: lease.duration.0,
        expires_ms: lease.expires.map(|at| at.0),
        devices_min: requested.request.devices_min,
        share_milli: Some(state.milli_of(lease.id())).filter(|milli| *milli < DEVICE_MILLI),
        devices: placement
            .filter(|_| !lease.status.is_ended())
            .map_or(0, |placement| placement.devices()),
        models: requested.request.models.clone(),
        plan: requested.terms.plan,
        isolation: requested.terms.isolation,
        cap_micros: requested.terms.cap_micros,
        currency: currency_of(state, requested.tariff),
        micros_per_hour: placement.map(|placement| placement.micros_per_hour),
        charged_micros: lease.meter.charged_micros,
        so_far_micros: state.bill(lease, now).total_micros,
        // What has ended costs what it cost then.
        as_of_ms: if lease.status.is_ended() { lease.since.0 } else { now.0 },
        command: requested.workload.command.clone(),
        epoch: lease.epoch.0,
        attempt: placement.map_or(0, |placement| placement.attempt.0),
        members: placement
            .map(|placement| placement.members.iter().map(|of| member(state, of)).collect())
            .unwrap_or_default(),
        checkpoint_step: lease.checkpoints.last().map(|checkpoint| checkpoint.step),
    }
}

fn member(state: &Machine, member: &Member) -> MemberView {
    let node = state.nodes.get(&member.allocation.node);
    let text =
        |of: &dyn Fn(&holdfast_storage::machine::state::Node) -> String| node.map(|node| of(node)).unwrap_or_default();
    MemberView {
        rank: member.allocation.rank,
        node: member.allocation.node,
        label: text(&|node| node.spec.label.to_string()),
        zone: text(&|node| node.spec.zone.to_string()),
        devices: member.allocation.devices.clone(),
        state: match (&member.run, member.lost, member.prepared) {
            (Run::Exited(exit), _, _) => crate::history::ended_how(exit),
            (_, Some(_), _) => "lost".to_owned(),
            (Run::Started(_), None, _) => "running".to_owned(),
            (Run::Accepted(_), None, _) => "starting".to_owned(),
            (Run::Idle, None, Some(_)) => "prepared".to_owned(),
            (Run::Idle, None, None) => "preparing".to_owned(),
        },
    }
}
