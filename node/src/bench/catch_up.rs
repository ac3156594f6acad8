//! Catch-up: how fast one reader that was away reads what it has missed, from the disk of one node.
//!
//! Notes are committed first; then the serving node is started again, so that nothing of them is in its memory but what the system
//! caches of its files. The reader is a process of its own and reads from the first event to the last, over the client lane (rkyv over
//! QUIC) and as JSON lines over HTTPS, in turn. It checks that positions rise, and counts: a reading that misses or repeats an event
//! makes the result incomplete.

use std::path::Path;
use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::id::Cursor;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::log::{Writer, addressed, lane_at};
use super::{BenchError, cpu_us};
use crate::client::Client;
use crate::client::credentials::{Credentials, Overrides};
use crate::client::event::Item;
use crate::client::event::lane::EventLane;
use crate::demo::{ready, three_zones};
use crate::env::OsClock;
use crate::local::{LocalCluster, LocalError};

/// Writes in flight while the log is filled.
const WRITES_AT_ONCE: usize = 2_048;
/// Readings each way; the median counts.
const ROUNDS: usize = 5;

/// Flags of the process that reads.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ReaderFlags {
    /// The last event.
    #[arg(long)]
    through: Cursor,
    /// As JSON over HTTPS.
    #[arg(long)]
    https: bool,
}

pub(super) async fn measure(program: &Path, events: u64, json: bool) -> Result<Value, BenchError> {
    let mut cluster = LocalCluster::start(program, &three_zones()).await?;
    ready(&cluster).await?;
    let through = fill(&cluster, events).await?;
    // Not the first, which founded the cluster and most likely leads: any node serves.
    cluster.kill_daemon(1).await;
    cluster.restart(1).await?;
    // Once beside the count: the node may have to catch up itself first.
    read_once(&cluster, through, true).await?;
    let (mut over_quic, mut over_https) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        over_quic.push(read_once(&cluster, through, false).await?);
        over_https.push(read_once(&cluster, through, true).await?);
    }
    let complete = over_quic
        .iter()
        .chain(&over_https)
        .all(|reading| reading.wrong == 0 && reading.events >= events && reading.events == over_quic[0].events);
    let (quic, https) = (Reading::median(over_quic), Reading::median(over_https));
    if !json {
        println!(
            "{} events from disk to one reader: {:.0}/s as rkyv over QUIC, {:.0}/s as JSON over HTTPS",
            quic.events,
            quic.rate(),
            https.rate()
        );
    }
    Ok(json!({ "complete": complete, "events": quic.events, "quic": quic.told(), "https": https.told() }))
}

/// Commits notes; gives the position of the last one.
async fn fill(cluster: &LocalCluster, events: u64) -> Result<Cursor, BenchError> {
    let lane = lane_at(&cluster.credentials(), cluster.addresses()).map_err(BenchError::Void)?;
    let (writer, places) = (Writer::Lane(lane.clone()), Arc::new(Semaphore::new(WRITES_AT_ONCE)));
    let failed = || BenchError::Void("a write failed".to_owned());
    let mut writing = tokio::task::JoinSet::new();
    for _ in 1..events {
        let place = places.clone().acquire_owned().await.map_err(|_| failed())?;
        let writer = writer.clone();
        writing.spawn(async move {
            let written = writer.write().await;
            drop(place);
            written
        });
        while let Some(done) = writing.try_join_next() {
            done.ok().filter(|written| *written).ok_or_else(failed)?;
        }
    }
    while let Some(done) = writing.join_next().await {
        done.ok().filter(|written| *written).ok_or_else(failed)?;
    }
    let last = Command::Annotate {
        subject: "bench-last".parse().expect("a fixed, valid name"),
        text: String::new(),
    };
    let landed = lane
        .issue(last)
        .await
        .map_err(|error| BenchError::Void(error.to_string()))?;
    Ok(Cursor {
        index: landed.index,
        sub: 0,
    })
}

/// What one reading came to.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Reading {
    events: u64,
    /// Events that do not lie behind the one before.
    wrong: u64,
    took_us: u64,
    /// CPU of the reader.
    reader_us: u64,
    /// CPU of the node that served.
    #[serde(default)]
    node_us: u64,
}

impl Reading {
    fn rate(&self) -> f64 {
        self.events as f64 * 1e6 / self.took_us.max(1) as f64
    }

    fn median(mut readings: Vec<Self>) -> Self {
        readings.sort_unstable_by_key(|reading| reading.took_us);
        readings[readings.len() / 2]
    }

    fn told(&self) -> Value {
        let each = |us: u64| (us as f64 / self.events.max(1) as f64 * 100.0).round() / 100.0;
        json!({ "events_per_s": self.rate().round(), "node_cpu_us_per_event": each(self.node_us),
                "reader_cpu_us_per_event": each(self.reader_us) })
    }
}

async fn read_once(cluster: &LocalCluster, through: Cursor, https: bool) -> Result<Reading, BenchError> {
    let served = &cluster.nodes()[1];
    let through = through.to_string();
    let mut arguments = vec!["bench", "event-reader", "--through", &through];
    arguments.extend(https.then_some("--https"));
    let mut command = cluster.command(&arguments);
    command.env("HOLDFAST_ADDRESS", &served.address);
    let pid = served.pid().unwrap_or_default();
    let before_us = cpu_us(pid);
    let output = command.output().await.map_err(|source| LocalError::Os {
        what: "run the reader".to_owned(),
        source,
    })?;
    let reading: Reading = serde_json::from_slice(&output.stdout).map_err(|_| {
        let told = String::from_utf8_lossy(&output.stderr);
        BenchError::Void(format!("the reader told no result: {told}"))
    })?;
    Ok(Reading {
        node_us: cpu_us(pid).saturating_sub(before_us),
        ..reading
    })
}

/// The process that reads.
pub(super) async fn read(flags: &ReaderFlags) -> Result<Value, BenchError> {
    let began_us = OsClock.boot_us();
    let (events, wrong) = match flags.https {
        true => read_lines(flags.through).await?,
        false => read_frames(flags.through).await?,
    };
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    Ok(
        json!({ "events": events, "wrong": wrong, "took_us": OsClock.boot_us().saturating_sub(began_us),
               "reader_us": cpu_us(own) }),
    )
}

async fn read_frames(through: Cursor) -> Result<(u64, u64), BenchError> {
    let client = on_lane().map_err(BenchError::Void)?;
    let mut stream = client.events("", Some(Cursor::default()));
    let (mut events, mut wrong, mut last) = (0, 0, Cursor::default());
    while last < through {
        if let Item::Event(told) = stream.next().await? {
            events += 1;
            wrong += u64::from(told.id <= last);
            last = told.id;
        }
    }
    match stream.on_lane() {
        true => Ok((events, wrong)),
        false => Err(BenchError::Void("the lane was not reached".to_owned())),
    }
}

/// A client of the node that the environment names, which reads events over the lane.
fn on_lane() -> Result<Client, String> {
    let env = |name: &str| std::env::var(name).ok();
    let path = Credentials::path(&env).map_err(|error| error.to_string())?;
    let found = Credentials::find(&path, &Overrides::default()).map_err(|error| error.to_string())?;
    let bearer = found.bearer.as_ref().ok_or("the credentials hold no token")?;
    let lane = EventLane::new(&found, bearer).map_err(|error| error.to_string())?;
    Ok(addressed()?.with_lane(lane))
}

/// What of a line is looked at; a note has no such `id`.
#[derive(Deserialize)]
struct Seen {
    id: Option<Cursor>,
}

async fn read_lines(through: Cursor) -> Result<(u64, u64), BenchError> {
    let client = addressed().map_err(BenchError::Void)?;
    let mut lines = client.open("/v1/events?from=start").await?;
    let broken = || BenchError::Void("the stream broke".to_owned());
    let (mut events, mut wrong, mut last) = (0, 0, Cursor::default());
    while last < through {
        let line = lines.next().await.map_err(|_| broken())?.ok_or_else(broken)?;
        let seen: Seen = serde_json::from_slice(&line).map_err(|_| broken())?;
        if let Some(id) = seen.id {
            events += 1;
            wrong += u64::from(id <= last);
            last = id;
        }
    }
    Ok((events, wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_readings_is_one_of_them() {
        let reading = |took_us| Reading {
            events: 1_000,
            wrong: 0,
            took_us,
            reader_us: 0,
            node_us: 500,
        };
        let median = Reading::median([5_000, 1_000, 2_000].map(reading).to_vec());
        assert_eq!((median.took_us, median.rate().round()), (2_000, 500_000.0));
        assert_eq!(median.told()["node_cpu_us_per_event"], 0.5);
    }
}
