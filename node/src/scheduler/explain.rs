//! What would come of a request now: where it would go, or what keeps it from anywhere, node by node.
//!
//! The API asks it for `holdfast plan` and `holdfast why`; nothing is granted by it. The one rule: it plans with the
//! scheduler's own planner, so that what it says is what would be done.

use holdfast_proto::condition::{Condition, milli, preferred};
use holdfast_proto::device::ModelName;
use holdfast_proto::id::{LeaseId, TenantId};
use holdfast_proto::lease::{Plan, ResourceRequest};
use holdfast_proto::placement::Allocation;
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::Lease;

use super::limits::{self, Limits};
use super::pack::knobs::LEASES;
use super::pack::mix::Mix;
use super::packing::{Packing, counted};
use super::picture::{NodePicture, Picture, Takes};
use super::plan::{Ask, count, find, in_zone};
use super::reason::{Reason, most_fitting, why};
use super::reserve::earliest;
use super::{models, quota_left};

/// What would come of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Where it would go; empty if it has to wait.
    pub allocations: Vec<Allocation>,
    /// Why it has to wait.
    pub reason: Option<Reason>,
    /// Nodes that have devices.
    pub nodes: u32,
    /// How many of them each constraint takes out, one after the other.
    pub removed: Vec<(&'static str, u32)>,
    /// Most devices of this shape that could be placed now.
    pub largest: u32,
    /// When it could start, as far as the ends of other leases are known.
    pub earliest: Option<Timestamp>,
}

/// Explains an order that is no lease yet.
#[must_use]
pub fn order(
    state: &State,
    tenant: &TenantId,
    request: &ResourceRequest,
    conditions: &[Condition],
    plan: Plan,
) -> Explanation {
    let quota = state
        .tenants
        .get(tenant)
        .map_or(u32::MAX, |tenant| tenant.quota.devices_max.saturating_sub(tenant.held));
    let mut ask = Ask {
        // No lease ever has this id.
        lease: LeaseId {
            cell: u32::MAX,
            index: u64::MAX,
        },
        request,
        models: models(state, request, plan, state.cluster.tariff),
        devices_max: request.devices_max.min(quota),
        milli: milli(conditions),
        failed_on: &[],
        prefer: preferred(conditions),
    };
    let limited = limits::order(state, tenant, plan, &mut ask).err();
    explain(state, &ask, limited)
}

/// Explains a lease that waits.
#[must_use]
pub fn lease(state: &State, lease: &Lease) -> Explanation {
    let requested = &lease.requested;
    let request = &requested.request;
    let mut ask = Ask {
        lease: lease.id(),
        request,
        models: models(state, request, requested.terms.plan, requested.tariff),
        devices_max: request.devices_max.min(quota_left(state, lease)),
        milli: state.milli_of(lease.id()),
        failed_on: &lease.failed_on,
        prefer: preferred(state.conditions_of(lease.id())),
    };
    let limited = Limits::default().narrow(state, lease, &mut ask).err();
    explain(state, &ask, limited)
}

fn explain(state: &State, ask: &Ask<'_>, limited: Option<Reason>) -> Explanation {
    let picture = Picture::of(state);
    let mut mix = Mix::new();
    for (id, lease) in &state.leases {
        mix.learn(
            &counted(&lease.requested.request, state.milli_of(*id)),
            LEASES.remembered_max,
        );
    }
    let found = match &limited {
        Some(_) => None,
        None => find(&picture, Some(&mut Packing::of(&picture, &mix)), ask),
    };
    let now = state.applied.stamp;
    Explanation {
        earliest: match (&found, &limited) {
            (Some(_), _) => Some(now),
            // The ends of other tenants' leases do not help it.
            (None, Some(_)) => None,
            (None, None) => earliest(state, &picture, ask, now).map(|place| place.from),
        },
        reason: limited.or_else(|| found.is_none().then(|| why(&picture, ask))),
        allocations: found.unwrap_or_default(),
        nodes: count(picture.nodes.iter()),
        removed: removed(&picture, ask),
        largest: most_fitting(&picture, ask),
    }
}

/// Goes over the nodes constraint by constraint, each time with those that are left.
fn removed(picture: &Picture, ask: &Ask<'_>) -> Vec<(&'static str, u32)> {
    let request = ask.request;
    let accepted = |node: &NodePicture| node.devices.iter().any(|device| ask.models.contains(&device.model));
    let free = |node: &NodePicture| count(node.free_for(ask.lease, ask.milli, &ask.models));
    let left = |node: &NodePicture| node.left(ask.lease);
    let together = if request.single_node { request.devices_min } else { 1 };
    let times = |each: u32| each.saturating_mul(together);
    type Rule<'a> = (&'static str, &'a dyn Fn(&NodePicture) -> bool);
    let rules: [Rule<'_>; 9] = [
        ("cannot be heard", &|node| node.takes != Takes::Unheard),
        ("are cordoned", &|node| node.takes != Takes::Cordoned),
        ("are starting", &|node| node.takes != Takes::Untold),
        ("are in another zone", &|node| in_zone(node, request)),
        ("have no accepted model", &accepted),
        ("have no such device free", &|node| free(node) > 0),
        ("have too few of them free together", &|node| free(node) >= together),
        ("have too little CPU left beside them", &|node| {
            left(node).cpu_milli >= times(request.cpu_milli_per_device)
        }),
        ("have too little memory left beside them", &|node| {
            left(node).memory_mib >= times(request.memory_mib_per_device)
        }),
    ];
    let mut nodes: Vec<&NodePicture> = picture.nodes.values().collect();
    let mut removed = Vec::new();
    for (what, keeps) in rules {
        let before = nodes.len();
        nodes.retain(|node| keeps(node));
        if nodes.len() < before {
            removed.push((what, u32::try_from(before - nodes.len()).unwrap_or(u32::MAX)));
        }
    }
    removed
}

/// The models of an explanation's allocations, in order, each once.
#[must_use]
pub fn models_of(state: &State, allocation: &Allocation) -> Vec<ModelName> {
    let slots = allocation.devices.iter().filter_map(|device| state.devices.get(device));
    let mut models: Vec<ModelName> = slots.map(|slot| slot.device.model.clone()).collect();
    models.sort();
    models.dedup();
    models
}
