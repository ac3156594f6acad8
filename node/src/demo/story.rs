//! The story of the demo: one lease, from its request over the loss of its node to its bill.
//!
//! Called by the demo; the failover benchmark tells the same story with other endings. Every step reads what it shows
//! from the cluster, and fails with a sentence when it is not what was promised.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinHandle;

use super::{DemoError, Stage, events_of, three_zones, until};
use crate::env::{Clock, OsClock};
use crate::local::{LocalCluster, LocalError};

const STEPS: u64 = 600;
const INTERVAL: u64 = 50;
const STEP_MS: u64 = 20;
/// Longest wait for anything; far above what is expected, because machines can be crowded.
const WITHIN: Duration = Duration::from_secs(60);

/// What the demo proved.
struct Proof {
    failover_s: f64,
    double_runs: u64,
    resumed_step: u64,
    final_hash_equal: bool,
    bill_total_micros: u64,
}

/// Tells the story, and returns its summary as one line of JSON.
pub(super) async fn tell(program: &Path, stage: &Stage) -> Result<Value, DemoError> {
    let clock = OsClock;
    let began = clock.boot_ms();
    stage.say("Three nodes in three zones, on this machine, with simulated GPUs.");
    let mut cluster = LocalCluster::start(program, &three_zones()).await?;
    ready(&cluster).await?;
    stage.say(&format!("  ready after {}", seconds(clock.boot_ms() - began)));

    let lease = request(&cluster, stage).await?;
    let log = LogTail::follow(&cluster, &lease, stage);
    let (home, saved) = first_checkpoint(&cluster, &lease).await?;
    let place = cluster
        .index_of(&home)
        .ok_or_else(|| DemoError::Claim(format!("no node {home}")))?;
    let label = cluster.nodes()[place].spec.label.clone();
    stage.say(&format!("  checkpoint of step {saved} is held in another zone"));

    stage.say(&format!(
        "\nkill -9 everything of node {label}: daemon, supervisor, work; and its disk is gone."
    ));
    cluster.kill_all(place).await;
    let killed_ms = clock.wall_ms();
    let data = cluster.nodes()[place].data.clone();
    std::fs::rename(&data, data.with_extension("gone")).map_err(|source| LocalError::Os {
        what: "move the dead node's data away".to_owned(),
        source,
    })?;
    let log = log.moved_to(&cluster, &lease, stage);

    let failover_s = running_again(&cluster, &lease, killed_ms).await?;
    stage.say(&format!("  runs again in another zone after {failover_s:.2} s"));
    finished(&cluster, &lease).await?;
    let lines = log.end(&cluster, &lease).await;
    let proof = prove(&cluster, program, &lease, &lines, failover_s).await?;
    show(&cluster, stage, &lease, &proof).await?;
    Ok(json!({
        "ok": true, "failover_s": proof.failover_s, "double_runs": proof.double_runs,
        "resumed_step": proof.resumed_step, "final_hash_equal": proof.final_hash_equal,
        "bill_total_micros": proof.bill_total_micros,
    }))
}

/// Waits until all nodes take work and vote, so that losing any one of them is survived.
pub(crate) async fn ready(cluster: &LocalCluster) -> Result<(), DemoError> {
    let all = cluster.nodes().len();
    until(cluster, &["nodes"], "all nodes ready and voting", WITHIN, |nodes| {
        let nodes = nodes["nodes"].as_array()?;
        let good = |node: &&Value| {
            node["status"] == "ready" && node["voter"] == true && node["devices_free"].as_u64() > Some(0)
        };
        (nodes.iter().filter(good).count() == all).then_some(())
    })
    .await
}

async fn request(cluster: &LocalCluster, stage: &Stage) -> Result<String, DemoError> {
    let program = cluster.program().to_string_lossy().into_owned();
    let (steps, interval, step_ms) = (STEPS.to_string(), INTERVAL.to_string(), STEP_MS.to_string());
    let arguments = [
        "lease",
        "1x(h100|a100|rtx4090)",
        "--for",
        "10m",
        "--cap",
        "5",
        "--yes",
        "--detach",
        "--checkpoints",
        "--",
        &program,
        "trainer",
        "--steps",
        &steps,
        "--interval",
        &interval,
        "--step-ms",
        &step_ms,
    ];
    stage.say("\nholdfast lease '1x(h100|a100|rtx4090)' --for 10m --cap 5 -- holdfast trainer --steps 600");
    let answer = cluster.json(&arguments).await?;
    let lease = answer["lease"].as_str().unwrap_or_default().to_owned();
    stage.say(&format!("  {lease}; its log:"));
    Ok(lease)
}

/// Waits for the second committed checkpoint; returns the node that runs the lease, and the step that is saved.
async fn first_checkpoint(cluster: &LocalCluster, lease: &str) -> Result<(String, u64), DemoError> {
    let page = ["events", "--after", "0", "--lease", lease];
    until(cluster, &page, "a second checkpoint in another zone", WITHIN, |page| {
        let events = events_of(page);
        let home = of_type(&events, "placement-committed").next()?["data"]["allocations"][0]["node"]
            .as_str()?
            .to_owned();
        let saved = of_type(&events, "checkpoint-committed").nth(1)?["data"]["checkpoint"]["step"].as_u64()?;
        Some((home, saved))
    })
    .await
}

/// Waits until the lease runs in its second placement; returns the seconds from the kill to that, by the log's stamps.
async fn running_again(cluster: &LocalCluster, lease: &str, killed_ms: u64) -> Result<f64, DemoError> {
    let page = ["events", "--after", "0", "--lease", lease];
    let started_ms = until(cluster, &page, "the failover", WITHIN, |page| {
        let again = |event: &&Value| event["data"]["epoch"].as_u64() > Some(1);
        of_type(&events_of(page), "allocation-started").find(again)?["timems"].as_u64()
    })
    .await?;
    Ok(started_ms.saturating_sub(killed_ms) as f64 / 1000.0)
}

async fn finished(cluster: &LocalCluster, lease: &str) -> Result<(), DemoError> {
    let reason = until(cluster, &["show", lease], "the end of the lease", WITHIN, |shown| {
        (shown["status"] == "ended").then(|| shown["end_reason"].as_str().unwrap_or_default().to_owned())
    })
    .await?;
    match reason.as_str() {
        "completed" => Ok(()),
        other => Err(DemoError::Claim(format!("{lease} ended as {other}, not completed"))),
    }
}

async fn prove(
    cluster: &LocalCluster,
    program: &Path,
    lease: &str,
    lines: &[String],
    failover_s: f64,
) -> Result<Proof, DemoError> {
    let claim = |text: String| DemoError::Claim(text);
    let page = cluster.json(&["events", "--after", "0", "--lease", lease]).await?;
    let events = events_of(&page);
    let resumed =
        number(lines, "resumed step=").ok_or_else(|| claim("the work did not resume from a checkpoint".into()))?;
    let before_move: Vec<_> = events
        .iter()
        .take_while(|event| !is_second_placement(event))
        .cloned()
        .collect();
    let committed = of_type(&before_move, "checkpoint-committed").last();
    let committed = committed.and_then(|event| event["data"]["checkpoint"]["step"].as_u64());
    if committed != Some(resumed) {
        return Err(claim(format!(
            "resumed from step {resumed}, the last committed one is {committed:?}"
        )));
    }
    let resumed_at = lines
        .iter()
        .position(|line| line.starts_with("resumed step="))
        .unwrap_or_default();
    let reached = lines[..resumed_at]
        .iter()
        .filter_map(|line| step_of(line))
        .max()
        .unwrap_or(resumed);
    let in_all = reached + (STEPS - resumed);
    if in_all > STEPS + INTERVAL {
        return Err(claim(format!(
            "{in_all} steps were made for {STEPS}: more than one interval was lost"
        )));
    }
    let hash = text(lines, "final hash=").ok_or_else(|| claim("the work printed no final hash".into()))?;
    let undisturbed = undisturbed_hash(program).await?;
    if hash != undisturbed {
        return Err(claim(format!(
            "the final weights hash to {hash}, undisturbed to {undisturbed}"
        )));
    }
    let bill = cluster.json(&["bill", lease]).await?;
    let total = bill["total_micros"]
        .as_u64()
        .ok_or_else(|| claim("the bill has no total".into()))?;
    let double_runs = double_runs(&events);
    if double_runs > 0 {
        return Err(claim(format!(
            "{double_runs} starts overlap an earlier one that was not ended or lost"
        )));
    }
    Ok(Proof {
        failover_s,
        double_runs,
        resumed_step: resumed,
        final_hash_equal: true,
        bill_total_micros: total,
    })
}

/// Counts starts of a later epoch while an earlier one had neither ended nor been lost.
pub(crate) fn double_runs(events: &[Value]) -> u64 {
    let (mut running, mut doubles) = (None, 0);
    for event in events {
        let epoch = event["data"]["epoch"].as_u64();
        match event["data"]["type"].as_str() {
            Some("allocation-started") => {
                doubles += u64::from(running.is_some() && running != epoch);
                running = epoch;
            }
            Some("allocation-exited" | "allocation-ended") if running == epoch => running = None,
            Some("lease-migrating") => running = None,
            _ => {}
        }
    }
    doubles
}

async fn undisturbed_hash(program: &Path) -> Result<String, DemoError> {
    let (steps, interval) = (STEPS.to_string(), INTERVAL.to_string());
    let arguments = ["trainer", "--steps", &steps, "--interval", &interval];
    let output = tokio::process::Command::new(program).args(arguments).output().await;
    let output = output.map_err(|source| LocalError::Os {
        what: "run the trainer".to_owned(),
        source,
    })?;
    let printed = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    text(&printed, "final hash=")
        .ok_or_else(|| DemoError::Claim("the undisturbed run printed no final hash".to_owned()))
}

async fn show(cluster: &LocalCluster, stage: &Stage, lease: &str, proof: &Proof) -> Result<(), DemoError> {
    for arguments in [vec!["why", lease], vec!["bill", lease, "--explain"]] {
        stage.say(&format!("\nholdfast {}", arguments.join(" ")));
        let output = cluster.command(&arguments).output().await;
        let output = output.map_err(|source| LocalError::Os {
            what: "run holdfast".to_owned(),
            source,
        })?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            stage.say(&format!("  {line}"));
        }
    }
    stage.say(&format!(
        "\nFailover took {:.2} s. The work resumed from step {}, ran nowhere twice, and its final weights are those of an undisturbed run.",
        proof.failover_s, proof.resumed_step
    ));
    Ok(())
}

/// Follows a lease's log in the background: through a command, as a tenant would.
struct LogTail {
    lines: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl LogTail {
    fn follow(cluster: &LocalCluster, lease: &str, stage: &Stage) -> Self {
        Self::start(cluster, lease, stage, Arc::default())
    }

    fn start(cluster: &LocalCluster, lease: &str, stage: &Stage, lines: Arc<Mutex<Vec<String>>>) -> Self {
        let (stage, kept) = (*stage, lines.clone());
        let child = cluster
            .command(&["logs", lease, "-f"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let task = tokio::spawn(async move {
            let Ok(mut child) = child else { return };
            let Some(output) = child.stdout.take() else { return };
            let mut output = BufReader::new(output).lines();
            while let Ok(Some(line)) = output.next_line().await {
                if !line.starts_with("step=") || step_of(&line).is_some_and(|step| step % INTERVAL == 0) {
                    stage.say(&format!("  | {line}"));
                }
                if let Ok(mut kept) = kept.lock() {
                    kept.push(line);
                }
            }
        });
        Self { lines, task }
    }

    /// Goes on with the log through another node, after the one that it was read from is gone.
    fn moved_to(self, cluster: &LocalCluster, lease: &str, stage: &Stage) -> Self {
        self.task.abort();
        Self::start(cluster, lease, stage, self.lines.clone())
    }

    /// Returns all lines: those that were followed, and what the finished lease's log has beyond them.
    async fn end(mut self, cluster: &LocalCluster, lease: &str) -> Vec<String> {
        // The log of an ended lease ends; the bound is for a node that does not say so.
        let _ = tokio::time::timeout(Duration::from_secs(5), &mut self.task).await;
        self.task.abort();
        let mut lines = self.lines.lock().map(|lines| lines.clone()).unwrap_or_default();
        if text(&lines, "final hash=").is_none()
            && let Ok(output) = cluster.command(&["logs", lease]).output().await
        {
            lines.extend(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned));
        }
        lines
    }
}

/// The events of one type.
pub(crate) fn of_type<'a>(events: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["data"]["type"] == kind)
}

fn is_second_placement(event: &Value) -> bool {
    event["data"]["type"] == "placement-committed" && event["data"]["epoch"].as_u64() > Some(1)
}

fn text(lines: &[String], key: &str) -> Option<String> {
    lines
        .iter()
        .rev()
        .find_map(|line| line.strip_prefix(key))
        .map(|rest| rest.trim().to_owned())
}

fn number(lines: &[String], key: &str) -> Option<u64> {
    text(lines, key)?.parse().ok()
}

fn step_of(line: &str) -> Option<u64> {
    line.strip_prefix("step=")?.split(' ').next()?.parse().ok()
}

fn seconds(ms: u64) -> String {
    format!("{}.{:01} s", ms / 1000, ms % 1000 / 100)
}
