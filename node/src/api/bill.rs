//! `/v1/leases/{lease}/bill`: what a lease has cost, line by line.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use holdfast_proto::event::Event;
use holdfast_proto::id::{Cursor, LeaseId};
use holdfast_proto::tariff::ChargeLine;
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::state::Stretch;
use serde::Deserialize;

use super::Api;
use super::archive;
use super::auth::Caller;
use super::cluster::currency_of;
use super::problem::Failure;
use super::read::Reading;
use crate::wire::bill::{Bill, BillLine, OpenStretch};

/// Most events read to explain one bill.
const EXPLAIN_EVENTS_MAX: usize = 10_000;

/// How much of the bill to tell.
#[derive(Debug, Default, Deserialize)]
pub struct BillQuery {
    #[serde(default)]
    explain: bool,
}

/// Shows the bill. Each line is a pure function of the log; `explain` gives the positions of the events behind it.
#[utoipa::path(get, path = "/v1/leases/{lease}/bill", tag = "leases",
    params(("lease" = String, Path, description = "Its id"),
        ("explain" = Option<bool>, Query, description = "Name the event that charged each line"),
        ("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "The bill", body = Bill)))]
pub async fn bill(
    State(api): State<Api>,
    caller: Caller,
    reading: Reading,
    Path(id): Path<String>,
    Query(query): Query<BillQuery>,
) -> Result<Response, Failure> {
    let state = &reading.state;
    let lease = match caller.lease(state, &id) {
        Ok(lease) => lease,
        Err(unknown) => {
            let archived = archive::find(&api, &caller, id.parse()?).await?.ok_or(unknown)?;
            return Ok(reading.answer(&archived.bill(state)));
        }
    };
    let charged = match query.explain {
        true => charges(&api, lease.id()).await?,
        false => BTreeMap::new(),
    };
    let bill = Bill {
        lease: lease.id(),
        currency: currency_of(state, lease.requested.tariff),
        tariff: lease.requested.tariff,
        lines: lease
            .meter
            .lines
            .iter()
            .map(|line| charged_line(line, charged.get(&key(line)).copied()))
            .collect(),
        total_micros: lease.meter.charged_micros,
        open: lease.meter.open.as_ref().map(|stretch| {
            let bill = state.bill(lease, reading.now);
            running(stretch, bill.running.map_or(0, |line| line.amount_micros))
        }),
        as_of_ms: if lease.status.is_ended() {
            lease.since.0
        } else {
            reading.now.0
        },
        is_final: lease.status.is_ended(),
    };
    Ok(reading.answer(&bill))
}

/// Tells the lines of one lease apart.
type Key = (Cursor, Timestamp);

fn key(line: &ChargeLine) -> Key {
    (line.opened_at, line.until)
}

/// The positions of the events that charged a lease's lines.
async fn charges(api: &Api, lease: LeaseId) -> Result<BTreeMap<Key, Cursor>, Failure> {
    let records = api
        .parts()
        .committed
        .lease_events(lease, Cursor::default(), EXPLAIN_EVENTS_MAX)
        .await?;
    let charged = records.iter().filter_map(|record| match &record.event {
        Event::LeaseCharged(line) => Some((key(line), record.cursor)),
        _ => None,
    });
    Ok(charged.collect())
}

/// A line as clients see it.
pub fn charged_line(line: &ChargeLine, charged_at: Option<Cursor>) -> BillLine {
    BillLine {
        meter: line.meter.clone(),
        epoch: line.epoch.0,
        from_ms: line.from.0,
        until_ms: line.until.0,
        unpaid_ms: line.unpaid.0,
        micros_per_hour: line.micros_per_hour,
        amount_micros: line.amount_micros,
        opened_at: line.opened_at,
        charged_at,
    }
}

/// A running stretch, and what the machine would charge for it now.
fn running(stretch: &Stretch, so_far_micros: u64) -> OpenStretch {
    OpenStretch {
        from_ms: stretch.from.0,
        unpaid_ms: stretch.unpaid.0,
        micros_per_hour: stretch.micros_per_hour,
        so_far_micros,
        opened_at: stretch.opened_at,
    }
}
