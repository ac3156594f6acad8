//! Asks another node for what only it has.
//!
//! The caller's own token travels along, over TLS that is checked against the cluster's authority, so that the other node judges the
//! caller's rights by itself. The one rule: a request that was passed on once is not passed on again.

use std::time::Duration;

use axum::http::header::ACCEPT;
use holdfast_proto::id::{Epoch, LeaseId};
use reqwest::RequestBuilder;
use rustls::ClientConfig;

use crate::join::JoinRequest;
use crate::wire::FORWARDED;

/// Time to connect to another node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a voter to admit a machine: a log entry and a signature.
const ADMITTED_WITHIN: Duration = Duration::from_secs(8);
/// Silence after which a connection is probed.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Probes of a silent connection, after which it counts as broken.
const PROBES_MAX: u32 = 3;

/// The client that reaches other nodes of the cluster.
///
/// # Errors
/// When the TLS configuration is not one that the HTTP client can use.
pub fn peers(tls: ClientConfig) -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .https_only(true)
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(KEEPALIVE)
        .tcp_keepalive_interval(KEEPALIVE)
        .tcp_keepalive_retries(PROBES_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .build()
}

/// Asks a voter to admit a machine. No longer than a machine waits for the answer.
pub fn admission(peers: &reqwest::Client, address: &str, order: &JoinRequest) -> RequestBuilder {
    let url = format!("https://{address}/v1/join");
    peers
        .post(url)
        .header(FORWARDED, "1")
        .timeout(ADMITTED_WITHIN)
        .json(order)
}

/// Asks a member's node for the output that was written there.
pub fn member_log(
    peers: &reqwest::Client,
    address: &str,
    lease: LeaseId,
    rank: u32,
    epoch: Epoch,
    position: u64,
    follow: bool,
) -> RequestBuilder {
    let after = format!("{rank}:{epoch}:{position}");
    let url = format!(
        "https://{address}/v1/leases/{lease}/logs?rank={rank}&epoch={epoch}&after={after}&follow={follow}&consistency=stale"
    );
    peers
        .get(url)
        .header(FORWARDED, "1")
        .header(ACCEPT, "application/x-ndjson")
}
