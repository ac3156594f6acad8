//! `/v1/quotes`: what a lease would cost, before it exists.
//!
//! The one rule: the rate quoted is the rate that is charged, because a lease keeps the prices that it was requested under.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use holdfast_proto::condition::{milli, share_of};
use holdfast_proto::device::Grade;
use holdfast_proto::id::{LeaseId, Name};
use holdfast_proto::lease::ResourceRequest;
use holdfast_proto::limits::{DEVICE_MILLI, LEASE_DEVICES_MAX, LEASE_DURATION_MS_MAX, LEASE_DURATION_MS_MIN};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tariff::{Tariff, affordable, amount_micros};
use holdfast_proto::time::Span;
use holdfast_storage::machine::state::State as Machine;

use super::Api;
use super::auth::Caller;
use super::body::Posted;
use super::lease::{conditions, resources, tenant_of};
use super::problem::Failure;
use super::read::fresh;
use crate::wire::lease::{LeaseOrder, Offer, Quote};

/// No lease ever has this id, so nothing that is held counts as its own.
const NOBODY: LeaseId = LeaseId {
    cell: u32::MAX,
    index: u64::MAX,
};

/// Prices an order. Nothing is reserved by it.
#[utoipa::path(post, path = "/v1/quotes", tag = "leases", request_body = LeaseOrder,
    responses((status = 200, description = "What it would cost", body = Quote)))]
pub async fn quote(
    State(api): State<Api>,
    caller: Caller,
    Posted(order): Posted<LeaseOrder>,
) -> Result<Response, Failure> {
    tenant_of(&caller, order.tenant.clone())?;
    let reading = fresh(&api).await?;
    let quote = price(&reading.state, &order).map_err(|rejection| unpriced(&reading.state, order, rejection))?;
    let mut response = (StatusCode::OK, axum::Json(&quote)).into_response();
    reading.mark(&mut response);
    Ok(response)
}

/// The refusal of an order that has no price, or can never be met.
pub fn unpriced(state: &Machine, order: LeaseOrder, rejection: Rejection) -> Failure {
    limited(state, &resources(order), Failure::refused(rejection, None))
}

/// Says which limit of a request keeps it from fitting, when a failure is about that.
pub fn limited(state: &Machine, request: &ResourceRequest, failure: Failure) -> Failure {
    match failure.problem().rejection {
        Some(Rejection::CannotFit { most, .. }) => failure.saying(&what_limits(state, request, most)),
        _ => failure,
    }
}

/// A limit of a request: its name, whether it is set, and how it is taken away.
type Limit = (String, bool, fn(&mut ResourceRequest));

/// What would fit without each limit of a request by itself; only those that make a difference.
fn what_limits(state: &Machine, request: &ResourceRequest, most: u32) -> String {
    let names = |names: &[Name]| names.iter().map(Name::as_str).collect::<Vec<_>>().join(" or ");
    let (cpu, memory) = (request.cpu_milli_per_device, request.memory_mib_per_device);
    let limits: [Limit; 6] = [
        (
            format!("zone {}", names(&request.zones)),
            !request.zones.is_empty(),
            |free| free.zones.clear(),
        ),
        (
            format!("model {}", names(&request.models)),
            !request.models.is_empty(),
            |free| free.models.clear(),
        ),
        ("all on one node".to_owned(), request.single_node, |free| {
            free.single_node = false
        }),
        ("all of one model".to_owned(), request.same_model, |free| {
            free.same_model = false
        }),
        (format!("{cpu}m CPU for each device"), cpu > 0, |free| {
            free.cpu_milli_per_device = 0
        }),
        (format!("{memory} MiB of memory for each device"), memory > 0, |free| {
            free.memory_mib_per_device = 0
        }),
    ];
    let loosened = limits
        .into_iter()
        .filter(|(_, set, _)| *set)
        .filter_map(|(limit, _, loosen)| {
            let mut free = request.clone();
            loosen(&mut free);
            let fits = state.most_that_fits(&free);
            (fits > most).then(|| format!("without \"{limit}\" {fits}"))
        });
    let loosened: Vec<String> = loosened.collect();
    match loosened.is_empty() {
        true => String::new(),
        false => format!("; there would fit {}", loosened.join(", ")),
    }
}

/// Prices an order under the prices in force, for every accepted model that the cluster has.
pub fn price(state: &Machine, order: &LeaseOrder) -> Result<Quote, Rejection> {
    let out_of_range = |field: &str, given: u64, allowed: String| Rejection::OutOfRange {
        field: field.to_owned(),
        given: given.to_string(),
        allowed,
    };
    if order.devices == 0 || order.devices > LEASE_DEVICES_MAX {
        return Err(out_of_range(
            "devices",
            order.devices.into(),
            format!("1 to {LEASE_DEVICES_MAX}"),
        ));
    }
    if !(LEASE_DURATION_MS_MIN..=LEASE_DURATION_MS_MAX).contains(&order.duration_ms) {
        let allowed = format!("{} to {}", Span(LEASE_DURATION_MS_MIN), Span(LEASE_DURATION_MS_MAX));
        return Err(out_of_range("duration", order.duration_ms, allowed));
    }
    if let Some(milli) = order.share_milli {
        if !(1..DEVICE_MILLI).contains(&milli) {
            let allowed = format!("1 to {}", DEVICE_MILLI - 1);
            return Err(out_of_range("share in thousandths of a device", milli.into(), allowed));
        }
        if order.devices_max.unwrap_or(order.devices) != 1 {
            let asked = order.devices.into();
            return Err(out_of_range("devices of which a share is asked", asked, "1".to_owned()));
        }
    }
    let present = state.models();
    let wanted = if order.models.is_empty() {
        present.clone()
    } else {
        order.models.clone()
    };
    let known: Vec<Name> = wanted.iter().filter(|model| present.contains(model)).cloned().collect();
    if known.is_empty() {
        return Err(Rejection::ModelUnknown {
            asked: order.models.clone(),
            present,
        });
    }
    let most = state.most_that_fits(&resources(order.clone()));
    if most < order.devices {
        return Err(Rejection::CannotFit {
            asked: order.devices,
            most,
        });
    }
    let empty = Tariff {
        version: 0,
        currency: String::new(),
        prices: Vec::new(),
    };
    let tariff = state.tariffs.get(&state.cluster.tariff).map_or(&empty, |tariff| tariff);
    let offers = known
        .iter()
        .map(|model| offer(state, tariff, order, model))
        .collect::<Result<Vec<_>, _>>()?;
    let dearest = offers.iter().map(|offer| offer.total_micros).max().unwrap_or(0);
    let most_micros = order.cap_micros.map_or(dearest, |cap| cap.min(dearest));
    Ok(Quote {
        currency: tariff.currency.clone(),
        tariff: tariff.version,
        offers,
        most_micros,
    })
}

fn offer(state: &Machine, tariff: &Tariff, order: &LeaseOrder, model: &Name) -> Result<Offer, Rejection> {
    let price = tariff
        .prices
        .iter()
        .find(|price| price.model == *model && price.plan == order.plan);
    let price = price.ok_or_else(|| Rejection::PriceUnknown { model: model.clone() })?;
    let milli = milli(&conditions(order));
    let whole = price.micros_per_device_hour.checked_mul(order.devices.into());
    let rate = whole.map(|whole| share_of(whole, milli));
    let total = rate.and_then(|rate| amount_micros(Span(order.duration_ms), rate));
    let (Some(micros_per_hour), Some(total_micros)) = (rate, total) else {
        return Err(Rejection::OutOfRange {
            field: "cost".to_owned(),
            given: "more than can be counted".to_owned(),
            allowed: "shorter or smaller".to_owned(),
        });
    };
    let cap = order.cap_micros.filter(|cap| *cap < total_micros);
    let free = state
        .present_nodes()
        .filter(|node| node.takes_work())
        .flat_map(|node| state.devices_of(node.spec.node))
        .filter(|slot| slot.grade == Grade::Healthy && slot.device.model == *model)
        .filter(|slot| state.milli_free(slot, NOBODY) >= milli)
        .count();
    Ok(Offer {
        model: model.clone(),
        micros_per_device_hour: price.micros_per_device_hour,
        micros_per_hour,
        total_micros,
        free: u32::try_from(free).unwrap_or(u32::MAX),
        capped_after_ms: cap.and_then(|cap| affordable(cap, micros_per_hour)).map(|span| span.0),
    })
}
