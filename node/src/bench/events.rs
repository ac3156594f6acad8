//! Fan-out of events: many subscribers of one node, each on a connection of its own, while notes are committed at a steady rate.
//!
//! The same writes are made twice, without and with the subscribers, so that what the serving node spends on delivery is told apart from
//! what it spends on the log. Each subscriber checks that positions rise and counts what it was given: one that misses or repeats an
//! event makes the result incomplete.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::command::Command;
use holdfast_proto::id::Cursor;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

use super::log::{Writer, addressed, lane_at};
use super::{BenchError, cpu_us, ms, percentile, resident_mib};
use crate::client::Client;
use crate::demo::{ready, three_zones};
use crate::env::{Clock, OsClock};
use crate::local::{LocalCluster, LocalError};

/// Notes are written in bursts this long: what a steady rate looks like to a log that commits in groups.
const BURST_MS: u64 = 20;
/// The subject of the note that ends a run.
const LAST: &str = "bench-last";
/// Longest wait for the subscribers to have everything.
const WITHIN: Duration = Duration::from_secs(120);

/// Flags of `holdfast bench events`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct EventsFlags {
    /// Subscribers of one node, each on its own TLS connection.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=4_000))]
    subscribers: u64,
    /// Events committed a second.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=50_000))]
    rate: u64,
    /// Seconds of writing, each time.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Measure instead how fast one reader reads this many events from the disk of one node: rkyv over QUIC, and JSON over HTTPS.
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..=100_000_000), conflicts_with_all = ["subscribers", "rate", "seconds"])]
    catch_up: Option<u64>,
}

/// Flags of the process that subscribes.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ClientFlags {
    #[arg(long)]
    subscribers: u64,
}

/// One round of writing.
struct Round {
    writes: u64,
    seconds: f64,
    /// CPU of the serving node.
    cpu_us: u64,
    /// CPU of all nodes.
    cluster_us: u64,
}

impl Round {
    fn rate(&self) -> f64 {
        self.writes as f64 / self.seconds
    }
}

pub(super) async fn measure(program: &Path, flags: &EventsFlags, json: bool) -> Result<Value, BenchError> {
    if let Some(events) = flags.catch_up {
        return super::catch_up::measure(program, events, json).await;
    }
    let cluster = LocalCluster::start(program, &three_zones()).await?;
    ready(&cluster).await?;
    // Not the first, which founded the cluster and most likely leads: any node serves.
    let served = &cluster.nodes()[1];
    let lane = lane_at(&cluster.credentials(), cluster.addresses()).map_err(BenchError::Void)?;
    let writer = Writer::Lane(lane.clone());
    let pid = served.pid().unwrap_or_default();
    let pids: Vec<i32> = cluster.nodes().iter().filter_map(|node| node.pid()).collect();
    let alone = write(&writer, flags, pid, &pids).await;

    let idle_mib = resident_mib(pid);
    let mut command = cluster.command(&["bench", "event-client", "--subscribers", &flags.subscribers.to_string()]);
    command.env("HOLDFAST_ADDRESS", &served.address);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| LocalError::Os {
            what: "run the subscribers".to_owned(),
            source,
        })?;
    let silent = || BenchError::Void("the subscribers told no result".to_owned());
    let mut told = BufReader::new(child.stdout.take().ok_or_else(silent)?).lines();
    let mut line = async || told.next_line().await.ok().flatten().ok_or_else(silent);
    line().await?;
    let crowd = write(&writer, flags, pid, &pids).await;
    let last = Command::Annotate {
        subject: LAST.parse().expect("a fixed, valid name"),
        text: String::new(),
    };
    lane.issue(last)
        .await
        .map_err(|error| BenchError::Void(error.to_string()))?;
    let result = tokio::time::timeout(WITHIN, line())
        .await
        .map_err(|_| BenchError::Void(format!("not every subscriber had everything within {WITHIN:?}")))??;
    let result: Value = serde_json::from_str(&result).map_err(|_| silent())?;
    let own_us = crowd.cpu_us.saturating_sub(alone.cpu_us);
    let delivered = result["delivered"].as_u64().unwrap_or_default();
    // Each subscriber is given every note, and the last one.
    let complete = result["wrong"] == 0 && delivered == flags.subscribers * (crowd.writes + 1);
    let each = |us: u64| (us as f64 / delivered.max(1) as f64 * 100.0).round() / 100.0;
    let per_delivery = each(own_us);
    if !json {
        println!(
            "{} subscribers at {:.0} events/s: {per_delivery:.2} us of CPU per delivered event, p99 {} ms",
            flags.subscribers,
            crowd.rate(),
            result["p99_ms"],
        );
    }
    Ok(json!({
        "complete": complete, "cpu_us_per_delivery": per_delivery,
        "p50_ms": result["p50_ms"], "p99_ms": result["p99_ms"], "delivered": delivered, "subscribers": flags.subscribers,
        "writes_per_s": crowd.rate().round(), "writes_per_s_alone": alone.rate().round(),
        "node_cpu_us_per_delivery_with_log": each(crowd.cpu_us), "cluster_cpu_us_per_delivery": each(crowd.cluster_us),
        "kib_per_subscriber": resident_mib(pid).saturating_sub(idle_mib) * 1_024 / flags.subscribers,
    }))
}

/// Commits notes at the rate; every one is waited for.
async fn write(writer: &Writer, flags: &EventsFlags, pid: i32, pids: &[i32]) -> Round {
    let all_us = || pids.iter().copied().map(cpu_us).sum::<u64>();
    let (began_us, before_us, before_all_us) = (OsClock.boot_us(), cpu_us(pid), all_us());
    let (mut writing, mut begun, mut writes) = (JoinSet::new(), 0, 0);
    let bursts = flags.seconds * 1_000 / BURST_MS;
    let mut every = tokio::time::interval(Duration::from_millis(BURST_MS));
    for burst in 1..=bursts {
        every.tick().await;
        let due = flags.rate * BURST_MS * burst / 1_000;
        for _ in begun..due {
            let writer = writer.clone();
            writing.spawn(async move { writer.write().await });
        }
        begun = due;
    }
    while let Some(done) = writing.join_next().await {
        writes += u64::from(done.unwrap_or_default());
    }
    Round {
        writes,
        seconds: OsClock.boot_us().saturating_sub(began_us) as f64 / 1e6,
        cpu_us: cpu_us(pid).saturating_sub(before_us),
        cluster_us: all_us().saturating_sub(before_all_us),
    }
}

/// The process that subscribes: says `ready`, then what its subscribers were given.
pub(super) async fn subscribe(flags: &ClientFlags) -> Result<Value, BenchError> {
    let mut reading = JoinSet::new();
    let (begun, mut all) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..flags.subscribers {
        let client = Arc::new(addressed().map_err(BenchError::Void)?);
        let begun = begun.clone();
        // Whoever counts them is there until all have begun.
        reading.spawn(async move { read(&client, || begun.send(()).unwrap_or_default()).await });
    }
    for _ in 0..flags.subscribers {
        all.recv().await;
    }
    println!("ready");
    let (mut delivered, mut wrong, mut latencies_us) = (0, 0, Vec::new());
    while let Some(done) = reading.join_next().await {
        let given = done.map_err(|error| BenchError::Void(error.to_string()))??;
        delivered += given.events;
        wrong += given.wrong;
        latencies_us.extend(given.latencies_us);
    }
    latencies_us.sort_unstable();
    Ok(json!({ "delivered": delivered, "wrong": wrong,
               "p50_ms": ms(percentile(&latencies_us, 500)), "p99_ms": ms(percentile(&latencies_us, 990)) }))
}

/// What one subscriber was given.
#[derive(Default)]
struct Given {
    events: u64,
    /// Events that do not lie behind the one before.
    wrong: u64,
    latencies_us: Vec<u64>,
}

/// What of a line is looked at; a note has no `id`.
#[derive(Deserialize)]
struct Seen {
    id: Option<Cursor>,
    timems: Option<u64>,
    data: Option<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    subject: String,
}

async fn read(client: &Client, begun: impl Fn()) -> Result<Given, BenchError> {
    let mut lines = client.open("/v1/events?from=now&type=annotated").await?;
    let broken = || BenchError::Void("a stream broke".to_owned());
    let (mut given, mut last) = (Given::default(), Cursor::default());
    // The first line is a bookmark: from here on nothing is missed.
    lines.next().await.map_err(|_| broken())?;
    begun();
    loop {
        let line = lines.next().await.map_err(|_| broken())?.ok_or_else(broken)?;
        let seen: Seen = serde_json::from_slice(&line).map_err(|_| broken())?;
        let (Some(id), Some(at_ms), Some(data)) = (seen.id, seen.timems, seen.data) else {
            continue;
        };
        given.events += 1;
        given.wrong += u64::from(id <= last);
        last = id;
        given.latencies_us.push(OsClock.wall_ms().saturating_sub(at_ms) * 1_000);
        if data.subject == LAST {
            return Ok(given);
        }
    }
}
