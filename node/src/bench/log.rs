//! Committed writes a second: separate client processes, bearer tokens, deduplication, decide, events and state hash, three nodes with
//! fsync on. A write is a note of 256 bytes, over the client lane or over HTTPS.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_proto::command::Command;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{BenchError, cpu_us, ms, percentile};
use crate::client::Client;
use crate::client::credentials::{Credentials, Overrides};
use crate::client::lane::Lane;
use crate::demo::{ready, three_zones};
use crate::env::{OsClock, OsEntropy};
use crate::local::{LocalCluster, LocalError};
use crate::wire::cluster::{Applied, NoteOrder};

/// Length of a note.
const NOTE_BYTES: usize = 256;

/// Flags of `holdfast bench log`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LogFlags {
    /// Clients that each wait for one write before they send the next.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    clients: u64,
    /// Processes that the clients are spread over.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    processes: u64,
    /// Seconds to measure for, after one second of warming up.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Write with JSON over HTTPS instead of the client lane (rkyv over QUIC).
    #[arg(long)]
    http: bool,
}

/// Flags of one client process.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ClientFlags {
    #[arg(long)]
    clients: u64,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    http: bool,
}

pub(super) async fn measure(program: &Path, flags: &LogFlags, json: bool) -> Result<Value, BenchError> {
    let cluster = LocalCluster::start(program, &three_zones()).await?;
    ready(&cluster).await?;
    let pids: Vec<i32> = cluster.nodes().iter().filter_map(|node| node.pid()).collect();
    let processes = flags.processes.min(flags.clients);
    let each = flags.clients.div_ceil(processes).to_string();
    let seconds = flags.seconds.to_string();
    let before = Counters::read(&cluster, &pids).await;
    let mut loads = JoinSet::new();
    for _ in 0..processes {
        let mut arguments = vec!["bench", "log-client", "--clients", &each, "--seconds", &seconds];
        arguments.extend(flags.http.then_some("--http"));
        let mut command = cluster.command(&arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        loads.spawn(async move { command.output().await });
    }
    let (mut latencies_us, mut writes, mut failures, mut clients_us) = (Vec::new(), 0, 0, 0);
    while let Some(done) = loads.join_next().await {
        let output = done.map_err(|error| BenchError::Void(error.to_string()))?;
        let output = output.map_err(|source| LocalError::Os {
            what: "run a client".to_owned(),
            source,
        })?;
        let told: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| BenchError::Void("a client process told no result".to_owned()))?;
        writes += told["writes"].as_u64().unwrap_or_default();
        failures += told["failures"].as_u64().unwrap_or_default();
        clients_us += told["cpu_us"].as_u64().unwrap_or_default();
        let each = told["latencies_us"].as_array().cloned().unwrap_or_default();
        latencies_us.extend(each.iter().filter_map(Value::as_u64));
    }
    let used = Counters::read(&cluster, &pids).await.since(&before);
    latencies_us.sort_unstable();
    let measured = latencies_us.len() as u64;
    if measured == 0 {
        return Err(BenchError::Void(format!(
            "no write was acknowledged; {failures} failed"
        )));
    }
    let per_s = measured / flags.seconds;
    let (p50, p99) = (percentile(&latencies_us, 500), percentile(&latencies_us, 990));
    if !json {
        println!(
            "{} clients: {per_s} writes/s, p50 {} ms, p99 {} ms",
            flags.clients,
            ms(p50),
            ms(p99)
        );
    }
    // Warm-up writes cost CPU and syncs too, so both are divided by all writes.
    Ok(json!({
        "writes_per_s": per_s, "p50_ms": ms(p50), "p99_ms": ms(p99), "clients": flags.clients, "failures": failures,
        "lane": if flags.http { "https" } else { "quic" },
        "cpu_us_per_write": (used.cpu_us as f64 / writes.max(1) as f64 * 10.0).round() / 10.0,
        "client_cpu_us_per_write": (clients_us as f64 / writes.max(1) as f64 * 10.0).round() / 10.0,
        "entries_per_fsync": (used.entries as f64 / used.syncs.max(1) as f64 * 10.0).round() / 10.0,
    }))
}

/// What the nodes have used and written so far.
struct Counters {
    cpu_us: u64,
    entries: u64,
    syncs: u64,
}

impl Counters {
    async fn read(cluster: &LocalCluster, pids: &[i32]) -> Self {
        let (mut entries, mut syncs) = (0, 0);
        for node in cluster.nodes() {
            let text = cluster.metrics(&node.address).await;
            let value = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|rest| rest.trim().parse::<f64>().ok())
                    .unwrap_or_default() as u64
            };
            entries += value("holdfast_journal_records_total");
            syncs += value("holdfast_journal_syncs_total");
        }
        Self {
            cpu_us: pids.iter().copied().map(cpu_us).sum(),
            entries,
            syncs,
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            cpu_us: self.cpu_us.saturating_sub(before.cpu_us),
            entries: self.entries.saturating_sub(before.entries),
            syncs: self.syncs.saturating_sub(before.syncs),
        }
    }
}

/// One client process: so many clients, each with one write in flight.
///
/// It runs on one thread of its own: a client that wakes other cores for each answer would measure itself.
pub(super) async fn load(flags: &ClientFlags) -> Result<Value, BenchError> {
    let flags = flags.clone();
    let thread = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| BenchError::Void(error.to_string()))?;
        runtime.block_on(load_here(&flags))
    });
    thread.await.map_err(|error| BenchError::Void(error.to_string()))?
}

async fn load_here(flags: &ClientFlags) -> Result<Value, BenchError> {
    let writer = Writer::connect(flags.http).map_err(BenchError::Void)?;
    let (measuring, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut clients = JoinSet::new();
    for _ in 0..flags.clients {
        let (writer, measuring, over) = (writer.clone(), measuring.clone(), over.clone());
        clients.spawn(async move { write_until(&writer, &measuring, &over).await });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    measuring.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(flags.seconds)).await;
    over.store(true, Ordering::Relaxed);
    let (mut latencies, mut writes, mut failures) = (Vec::new(), 0, 0);
    while let Some(done) = clients.join_next().await {
        let (own, made, failed) = done.map_err(|error| BenchError::Void(error.to_string()))?;
        latencies.extend(own);
        writes += made;
        failures += failed;
    }
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    Ok(json!({ "latencies_us": latencies, "writes": writes, "failures": failures, "cpu_us": cpu_us(own) }))
}

async fn write_until(writer: &Writer, measuring: &AtomicBool, over: &AtomicBool) -> (Vec<u64>, u64, u64) {
    let (mut latencies, mut writes, mut failures) = (Vec::new(), 0, 0);
    while !over.load(Ordering::Relaxed) {
        let counts = measuring.load(Ordering::Relaxed);
        let began = OsClock.boot_us();
        if writer.write().await {
            writes += 1;
            if counts && !over.load(Ordering::Relaxed) {
                latencies.push(OsClock.boot_us().saturating_sub(began));
            }
        } else {
            failures += 1;
        }
    }
    (latencies, writes, failures)
}

/// A client with the credentials that the environment names.
pub(super) fn addressed() -> Result<Client, String> {
    let env = |name: &str| std::env::var(name).ok();
    let path = Credentials::path(&env).map_err(|error| error.to_string())?;
    crate::local::client_at(&path, env("HOLDFAST_ADDRESS"), OsClock, OsEntropy)
}

/// A client lane with the credentials in a file, to other addresses than it names.
pub(super) fn lane_at(path: &Path, address: Option<String>) -> Result<Lane, String> {
    let overrides = Overrides {
        address,
        ..Overrides::default()
    };
    let credentials = Credentials::find(path, &overrides).map_err(|error| error.to_string())?;
    Lane::open(&credentials, Arc::new(OsClock), Arc::new(OsEntropy)).map_err(|error| error.to_string())
}

/// Writes notes, one way or the other.
#[derive(Clone)]
pub(super) enum Writer {
    Lane(Lane),
    Http(Arc<Client>),
}

impl Writer {
    /// With the credentials that the environment names.
    fn connect(http: bool) -> Result<Self, String> {
        if http {
            return addressed().map(|client| Self::Http(Arc::new(client)));
        }
        let env = |name: &str| std::env::var(name).ok();
        let path = Credentials::path(&env).map_err(|error| error.to_string())?;
        lane_at(&path, env("HOLDFAST_ADDRESS")).map(Self::Lane)
    }

    /// Writes one note; says whether it is known to have taken effect.
    pub(super) async fn write(&self) -> bool {
        let subject = "bench".parse().expect("a fixed, valid name");
        let text = "x".repeat(NOTE_BYTES);
        match self {
            Self::Lane(lane) => lane.issue(Command::Annotate { subject, text }).await.is_ok(),
            Self::Http(client) => {
                let order = NoteOrder { subject, text };
                client
                    .command::<Applied>(Method::POST, "/v1/notes", &order)
                    .await
                    .is_ok()
            }
        }
    }
}
