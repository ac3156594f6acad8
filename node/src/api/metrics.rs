//! `/metrics`: Prometheus' text form.
//!
//! Owns the series of the interface and of the state that this replica has applied; devices and the rest come from
//! [`super::seam::MetricSource`]s. The one rule: a series is documented where it is written, and no label holds a secret or a free text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::node::NodeStatus;
use holdfast_proto::rejection::status_name;
use holdfast_proto::subscription::SubscriptionKey;
use holdfast_storage::machine::state::State as Machine;

use super::Api;
use super::subscription::behind;

/// Counts of answers by method, path and status.
#[derive(Debug, Default)]
pub struct Requests(Mutex<BTreeMap<(String, String, u16), u64>>);

impl Requests {
    /// Counts one answer. The path is the endpoint's pattern, so that the series are as many as the endpoints.
    pub fn count(&self, method: &Method, path: &str, status: StatusCode) {
        self.add(method, path, status, 1);
    }

    /// Counts several alike.
    pub fn add(&self, method: &Method, path: &str, status: StatusCode, answers: u64) {
        if answers == 0 {
            return;
        }
        let known = [Method::GET, Method::POST, Method::PUT, Method::DELETE].contains(method);
        let method = if known { method.as_str() } else { "other" };
        let key = (method.to_owned(), path.to_owned(), status.as_u16());
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_default();
        *count = count.saturating_add(answers);
    }

    fn write(&self, out: &mut String) {
        family(
            out,
            "holdfast_http_requests_total",
            "counter",
            "Answers given, by endpoint and status.",
        );
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((method, path, status), count) in counts.iter() {
            let labels = format!("method=\"{method}\",path=\"{path}\",status=\"{status}\"");
            sample(out, "holdfast_http_requests_total", &labels, *count);
        }
    }
}

/// Everything that this node measures.
#[utoipa::path(get, path = "/metrics", tag = "about", responses((status = 200, description = "Series", body = String, content_type = "text/plain")))]
pub async fn metrics(State(api): State<Api>) -> Response {
    let parts = api.parts();
    let mut out = String::new();
    api.requests.write(&mut out);

    family(&mut out, "holdfast_http_in_flight", "gauge", "Requests being served.");
    let busy = parts
        .limits
        .in_flight_max
        .saturating_sub(api.in_flight.available_permits());
    sample(&mut out, "holdfast_http_in_flight", "", busy as u64);
    family(
        &mut out,
        "holdfast_http_streams",
        "gauge",
        "Event and log streams open.",
    );
    let open = parts.limits.streams_max.saturating_sub(api.streams.available_permits());
    sample(&mut out, "holdfast_http_streams", "", open as u64);

    let leadership = parts.standing.leadership();
    family(&mut out, "holdfast_raft_term", "gauge", "Term that this replica is in.");
    sample(&mut out, "holdfast_raft_term", "", leadership.term);
    family(
        &mut out,
        "holdfast_raft_is_leader",
        "gauge",
        "1 on the node that leads.",
    );
    sample(
        &mut out,
        "holdfast_raft_is_leader",
        "",
        u64::from(leadership.leader == Some(parts.node)),
    );
    write_state(&mut out, &parts.committed.state());
    for source in &parts.metrics {
        source.write(&mut out);
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out).into_response()
}

fn write_state(out: &mut String, state: &Machine) {
    family(
        out,
        "holdfast_applied_index",
        "gauge",
        "Log index of the last entry applied here.",
    );
    sample(out, "holdfast_applied_index", "", state.applied.index);

    let mut leases: BTreeMap<&str, u64> = BTreeMap::new();
    for lease in state.leases.values().filter(|lease| !lease.status.is_ended()) {
        *leases.entry(status_name(lease.status)).or_default() += 1;
    }
    family(out, "holdfast_leases", "gauge", "Live leases by status.");
    let all = [
        LeaseStatus::Pending,
        LeaseStatus::Placed,
        LeaseStatus::Starting,
        LeaseStatus::Active,
        LeaseStatus::Frozen,
        LeaseStatus::Migrating,
    ];
    for status in all.map(status_name).into_iter().chain(["ending"]) {
        sample(
            out,
            "holdfast_leases",
            &format!("status=\"{status}\""),
            leases.get(status).copied().unwrap_or(0),
        );
    }

    write_subscriptions(out, state);

    family(out, "holdfast_nodes", "gauge", "Nodes by status, removed ones apart.");
    let statuses = [
        ("joined", NodeStatus::Joined),
        ("ready", NodeStatus::Ready),
        ("unreachable", NodeStatus::Unreachable),
        ("lost", NodeStatus::Lost),
    ];
    for (word, status) in statuses {
        let count = state.nodes.values().filter(|node| node.status == status).count();
        sample(out, "holdfast_nodes", &format!("status=\"{word}\""), count as u64);
    }

    family(
        out,
        "holdfast_devices",
        "gauge",
        "Devices of present nodes by model, and whether a lease may have them now.",
    );
    let mut devices: BTreeMap<(&str, bool), u64> = BTreeMap::new();
    for node in state.present_nodes() {
        let takes = node.takes_work();
        for slot in state.devices_of(node.spec.node) {
            let free = takes && state.is_free(slot);
            *devices.entry((slot.device.model.as_str(), free)).or_default() += 1;
        }
    }
    for ((model, free), count) in devices {
        sample(
            out,
            "holdfast_devices",
            &format!("model=\"{model}\",free=\"{free}\""),
            count,
        );
    }
}

fn write_subscriptions(out: &mut String, state: &Machine) {
    let labels = |key: &SubscriptionKey| {
        let owner = key.tenant.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("owner=\"{owner}\",subscription=\"{}\"", key.subscription)
    };
    let lag = "holdfast_subscription_lag_entries";
    let help = "Entries of the log since a durable subscription's acknowledged position, with events for it or not.";
    family(out, lag, "gauge", help);
    for (key, one) in &state.subscriptions {
        sample(out, lag, &labels(key), behind(state, one));
    }
    let last = "holdfast_subscription_acknowledged_timestamp_seconds";
    let help = "When the reader of a durable subscription last acknowledged anything, in seconds since 1970.";
    family(out, last, "gauge", help);
    for (key, one) in &state.subscriptions {
        sample(out, last, &labels(key), one.acknowledged_at.0 / 1_000);
    }
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(out: &mut String, name: &str, labels: &str, value: u64) {
    let _ = match labels {
        "" => writeln!(out, "{name} {value}"),
        labels => writeln!(out, "{name}{{{labels}}} {value}"),
    };
}
