//! `/v1/gpus`: every device, how far it is trusted, and who holds it.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use holdfast_proto::command::Command;
use holdfast_proto::id::{DeviceId, LeaseId};
use holdfast_proto::telemetry::HealthEdge;
use holdfast_storage::machine::state::{Sharer, Slot, State as Machine};

use super::Api;
use super::auth::Caller;
use super::body::{Named, Posted};
use super::command::issue;
use super::problem::Failure;
use super::read::Reading;
use crate::wire::cluster::Applied;
use crate::wire::node::{GpuList, GpuView, GradeOrder, PartView};

/// Lists devices. Of other tenants' leases it says only that they are there.
#[utoipa::path(get, path = "/v1/gpus", tag = "nodes",
    params(("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Devices", body = GpuList)))]
pub async fn list(caller: Caller, reading: Reading) -> Result<Response, Failure> {
    let state = &reading.state;
    let mut gpus: Vec<GpuView> = state.devices.values().map(|slot| view(state, slot, &caller)).collect();
    gpus.sort_by(|left, right| (&left.label, left.id).cmp(&(&right.label, right.id)));
    Ok(reading.answer(&GpuList { gpus }))
}

/// Says how far a device is to be trusted: clears one that was taken out, or takes one out.
#[utoipa::path(post, path = "/v1/gpus/{gpu}/grade", tag = "nodes", request_body = GradeOrder,
    params(("gpu" = String, Path, description = "Its UUID")),
    responses((status = 200, description = "It is graded", body = Applied)))]
pub async fn grade(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(id): Path<String>,
    Posted(order): Posted<GradeOrder>,
) -> Result<Response, Failure> {
    let device: DeviceId = id.parse()?;
    let state = api.parts().committed.state();
    let slot = state.devices.get(&device).ok_or_else(|| {
        Failure::new(
            StatusCode::NOT_FOUND,
            "device-unknown",
            format!("there is no device {device}; `holdfast gpus` lists them"),
        )
    })?;
    let edge = HealthEdge {
        device,
        grade: order.grade,
        xid: None,
        reason: order.reason,
    };
    Ok(
        issue(&api, &caller, request, Command::GradeDevice { node: slot.node, edge })
            .await?
            .applied(),
    )
}

/// A device as `caller` sees it.
pub fn view(state: &Machine, slot: &Slot, caller: &Caller) -> GpuView {
    let node = state.nodes.get(&slot.node);
    let sees = |lease: &LeaseId| {
        let lease = state.leases.get(lease);
        lease.is_some_and(|lease| caller.sees(&lease.requested.tenant))
    };
    let part = |sharer: &Sharer| PartView {
        milli: sharer.milli,
        lease: Some(sharer.lease).filter(sees),
    };
    let holder = slot.holder.map(|holder| holder.lease);
    GpuView {
        id: slot.device.id,
        kind: slot.device.kind,
        model: slot.device.model.clone(),
        memory_mib: slot.device.memory_mib,
        node: slot.node,
        label: node.map(|node| node.spec.label.to_string()).unwrap_or_default(),
        zone: node.map(|node| node.spec.zone.to_string()).unwrap_or_default(),
        grade: slot.grade,
        since_ms: slot.since.0,
        reason: slot.reason.clone(),
        xid: slot.xid,
        leased: state.is_held(slot),
        lease: holder.filter(sees),
        parts: state.sharers(slot.device.id).iter().map(part).collect(),
    }
}
