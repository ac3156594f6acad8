//! From the request of a lease to its process running, one after the other on an idle cluster of three.
//!
//! The clock starts before the request is sent, and stops when the client's event stream shows the start.

use std::path::Path;
use std::time::Duration;

use holdfast_proto::event::Event;
use holdfast_proto::id::{Cursor, LeaseId};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{BenchError, cpu_us, ms, percentile, resident_mib};
use crate::client::{Client, ClientError, event::Item};
use crate::demo::{ready, three_zones};
use crate::env::OsClock;
use crate::local::LocalCluster;
use crate::wire::lease::{LeaseAccepted, LeaseOrder};

/// Flags of `holdfast bench lease`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LeaseFlags {
    /// Leases to request.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    count: u64,
    /// Seconds to watch the idle cluster for, before the leases.
    #[arg(long, default_value_t = 10)]
    idle_s: u64,
}

/// Longest wait for one lease.
const WITHIN: Duration = Duration::from_secs(60);

pub(super) async fn measure(program: &Path, flags: &LeaseFlags, json: bool) -> Result<Value, BenchError> {
    let cluster = LocalCluster::start(program, &three_zones()).await?;
    ready(&cluster).await?;
    let client = cluster.client().map_err(BenchError::Void)?;
    let idle = watch_idle(&cluster, flags.idle_s).await;

    let (seen, mut starts) = mpsc::unbounded_channel();
    let watcher = cluster.client().map_err(BenchError::Void)?;
    let watching = tokio::spawn(async move { watch(&watcher, seen).await });
    let clock = OsClock;
    let mut took_us = Vec::new();
    for _ in 0..flags.count {
        let began_us = clock.boot_us();
        let order = LeaseOrder::new(1, 600_000, vec!["true".to_owned()]);
        let lease = client
            .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order)
            .await?
            .body
            .lease;
        let started_us = next(&mut starts, lease, Seen::Started).await?;
        took_us.push(started_us.saturating_sub(began_us));
        next(&mut starts, lease, Seen::Ended).await?;
    }
    watching.abort();
    took_us.sort_unstable();
    let (p50, p99) = (percentile(&took_us, 500), percentile(&took_us, 990));
    if !json {
        println!(
            "{} leases, request to running: p50 {} ms, p99 {} ms",
            took_us.len(),
            ms(p50),
            ms(p99)
        );
    }
    Ok(
        json!({ "p50_ms": ms(p50), "p99_ms": ms(p99), "max_ms": ms(percentile(&took_us, 1000)),
               "leases": took_us.len(), "idle": idle }),
    )
}

/// Memory and CPU of each node while nothing is asked.
async fn watch_idle(cluster: &LocalCluster, seconds: u64) -> Value {
    let pids: Vec<i32> = cluster.nodes().iter().filter_map(|node| node.pid()).collect();
    let before: u64 = pids.iter().copied().map(cpu_us).sum();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let used = pids.iter().copied().map(cpu_us).sum::<u64>().saturating_sub(before);
    let percent = used as f64 / 10_000.0 / (seconds.max(1) * pids.len().max(1) as u64) as f64;
    let resident = pids.iter().copied().map(resident_mib).max().unwrap_or_default();
    json!({ "core_percent_per_node": (percent * 100.0).round() / 100.0, "resident_mib_max": resident })
}

/// What the stream showed of a lease, and when; or why there is no stream.
type Told = Result<(LeaseId, Seen, u64), ClientError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Started,
    Ended,
}

/// Tells each start and end with the moment at which the stream showed it.
async fn watch(client: &Client, seen: mpsc::UnboundedSender<Told>) {
    // From the start of history, so that no start is missed while the stream opens.
    let mut events = client.events("topic=placement,lease", Some(Cursor::default()));
    loop {
        let item = match events.next().await {
            Ok(item) => item,
            Err(error) => return drop(seen.send(Err(error))),
        };
        let Item::Event(event) = item else { continue };
        let told = match event.data {
            Event::AllocationStarted { lease, .. } => (lease, Seen::Started, OsClock.boot_us()),
            Event::LeaseEnded { lease, .. } => (lease, Seen::Ended, OsClock.boot_us()),
            _ => continue,
        };
        if seen.send(Ok(told)).is_err() {
            return;
        }
    }
}

async fn next(starts: &mut mpsc::UnboundedReceiver<Told>, lease: LeaseId, wanted: Seen) -> Result<u64, BenchError> {
    let waiting = async {
        while let Some(told) = starts.recv().await {
            let (of, what, at_us) = told?;
            if of == lease && what == wanted {
                return Ok(at_us);
            }
        }
        Err(BenchError::Void("the event stream ended".to_owned()))
    };
    let late = |_| BenchError::Void(format!("{lease} was not {wanted:?} within {WITHIN:?}"));
    tokio::time::timeout(WITHIN, waiting).await.map_err(late)?
}
