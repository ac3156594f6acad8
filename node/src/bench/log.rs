//! Committed writes a second: separate client processes, HTTPS, bearer tokens, deduplication, decide, events, three
//! nodes with fsync on. A write is a note of 256 bytes.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{BenchError, cpu_us, ms, percentile};
use crate::client::{Client, credentials::Credentials};
use crate::demo::{ready, three_zones};
use crate::env::{OsClock, OsEntropy};
use crate::local::{LocalCluster, LocalError};
use crate::wire::cluster::{Applied, NoteOrder};

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
}

/// Flags of one client process.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ClientFlags {
    #[arg(long)]
    clients: u64,
    #[arg(long)]
    seconds: u64,
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
        let mut command = cluster.command(&["bench", "log-client", "--clients", &each, "--seconds", &seconds]);
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        loads.spawn(async move { command.output().await });
    }
    let (mut latencies_us, mut writes, mut failures) = (Vec::new(), 0, 0);
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
        "cpu_us_per_write": used.cpu_us / writes.max(1),
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
pub(super) async fn load(flags: &ClientFlags) -> Result<Value, BenchError> {
    let client = Arc::new(connect().map_err(BenchError::Void)?);
    let (measuring, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut clients = JoinSet::new();
    for _ in 0..flags.clients {
        let (client, measuring, over) = (client.clone(), measuring.clone(), over.clone());
        clients.spawn(async move { write_until(&client, &measuring, &over).await });
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
    Ok(json!({ "latencies_us": latencies, "writes": writes, "failures": failures }))
}

async fn write_until(client: &Client, measuring: &AtomicBool, over: &AtomicBool) -> (Vec<u64>, u64, u64) {
    let (mut latencies, mut writes, mut failures) = (Vec::new(), 0, 0);
    let subject = "bench".parse().expect("a fixed, valid name");
    let order = NoteOrder {
        subject,
        text: "x".repeat(256),
    };
    while !over.load(Ordering::Relaxed) {
        let counts = measuring.load(Ordering::Relaxed);
        let began = OsClock.boot_us();
        match client.command::<Applied>(Method::POST, "/v1/notes", &order).await {
            Ok(_) => {
                writes += 1;
                if counts && !over.load(Ordering::Relaxed) {
                    latencies.push(OsClock.boot_us().saturating_sub(began));
                }
            }
            Err(_) => failures += 1,
        }
    }
    (latencies, writes, failures)
}

/// A client with the credentials that the environment names.
fn connect() -> Result<Client, String> {
    let env = |name: &str| std::env::var(name).ok();
    let path = Credentials::path(&env).map_err(|error| error.to_string())?;
    crate::local::client_at(&path, env("HOLDFAST_ADDRESS"), OsClock, OsEntropy)
}
