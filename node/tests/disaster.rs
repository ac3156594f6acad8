//! Disasters that befall real processes: kills under load, a backup that is restored, a majority that is lost.
//!
//! What was acknowledged is written down outside of the cluster and compared at the end. `HOLDFAST_KILLS=1000` kills
//! more often; `chaos/nightly.sh` does. One cluster at a time, and every wait is for something that can be read.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Shared};
use std::time::Duration;

use holdfast_node::client::Client;
use holdfast_node::local::{LocalCluster, LocalSpec};
use holdfast_node::wire::cluster::{Applied, NoteOrder};
use reqwest::Method;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
const WITHIN: Duration = Duration::from_secs(120);

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_holdfast"))
}

async fn cluster() -> LocalCluster {
    let specs = ["a", "b", "c"].map(|zone| LocalSpec::new(&format!("{zone}1"), zone, "2xa100"));
    let cluster = LocalCluster::start(program(), &specs).await.unwrap();
    until(&cluster, &["cluster", "status"], |view| {
        view["voters"].as_array().is_some_and(|voters| voters.len() == 3)
    })
    .await;
    cluster
}

async fn until(cluster: &LocalCluster, arguments: &[&str], holds: impl Fn(&Value) -> bool) -> Value {
    let last = std::cell::RefCell::new(String::new());
    let asking = async {
        loop {
            match cluster.json(arguments).await {
                Ok(answer) if holds(&answer) => return answer,
                Ok(answer) => *last.borrow_mut() = answer.to_string(),
                Err(error) => *last.borrow_mut() = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let found = tokio::time::timeout(WITHIN, asking).await;
    found.unwrap_or_else(|_| panic!("`{}` never showed it: {}", arguments.join(" "), last.borrow()))
}

/// The texts of all notes in the event log, in order.
async fn notes(cluster: &LocalCluster) -> Vec<String> {
    let events = until(cluster, &["events", "--topic", "cluster"], |events| {
        !events.as_array().unwrap().is_empty()
    })
    .await;
    let text = |event: &Value| {
        (event["data"]["type"] == "annotated")
            .then(|| event["data"]["text"].as_str())
            .flatten()
            .map(ToOwned::to_owned)
    };
    events.as_array().unwrap().iter().filter_map(text).collect()
}

async fn write_note(client: &Client, text: &str) -> bool {
    let order = NoteOrder {
        subject: "disaster".parse().unwrap(),
        text: text.to_owned(),
    };
    client
        .command::<Applied>(Method::POST, "/v1/notes", &order)
        .await
        .is_ok()
}

/// Writes notes until it is told to stop; keeps those that were acknowledged.
async fn load(client: Client, number: u64, stop: Arc<AtomicBool>, acked: Arc<Shared<Vec<String>>>) {
    let mut count = 0;
    while !stop.load(Ordering::SeqCst) {
        count += 1;
        let text = format!("load {number}-{count}");
        if write_note(&client, &text).await {
            acked.lock().unwrap().push(text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_or_doubled_when_daemons_are_killed_under_load() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let kills: u64 = std::env::var("HOLDFAST_KILLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20);
    let mut cluster = cluster().await;
    let (stop, acked) = (Arc::new(AtomicBool::new(false)), Arc::<Shared<Vec<String>>>::default());
    let loads: Vec<_> = (0..4)
        .map(|number| tokio::spawn(load(cluster.client().unwrap(), number, stop.clone(), acked.clone())))
        .collect();
    let mut seed = kills;
    for round in 0..kills {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let before = acked.lock().unwrap().len();
        let victim = (seed >> 33) as usize % 3;
        cluster.kill_daemon(victim).await;
        // A third of the time a second one falls before the first is back.
        let second = (seed >> 40).is_multiple_of(3).then_some((victim + 1) % 3);
        if let Some(second) = second {
            cluster.kill_daemon(second).await;
            cluster.restart(second).await.unwrap();
        }
        cluster.restart(victim).await.unwrap();
        let served = async {
            while acked.lock().unwrap().len() <= before + 5 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let served = tokio::time::timeout(WITHIN, served).await;
        assert!(served.is_ok(), "after kill {round} nothing is acknowledged any more");
    }
    stop.store(true, Ordering::SeqCst);
    for load in loads {
        load.await.unwrap();
    }
    let found = notes(&cluster).await;
    let distinct: BTreeSet<&String> = found.iter().collect();
    assert_eq!(distinct.len(), found.len(), "a note is there twice");
    let acked = acked.lock().unwrap().clone();
    let lost: Vec<&String> = acked.iter().filter(|text| !distinct.contains(text)).collect();
    assert!(
        lost.is_empty(),
        "of {} acknowledged notes are lost: {lost:?}",
        acked.len()
    );
    let sizes = disk_bytes(&cluster).await;
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    // A segment of each log may have been begun on one node and not yet on another.
    assert!(*most <= 2 * least + (128 << 20), "{sizes:?}");
    println!("{kills} kills, {} acknowledged, {} written", acked.len(), found.len());
}

/// What each node's logs, snapshots and index take.
async fn disk_bytes(cluster: &LocalCluster) -> Vec<u64> {
    let mut sizes = Vec::new();
    for node in cluster.nodes() {
        let status = until(cluster, &["cluster", "status", "--address", &node.address], |view| {
            view["disk"]["raft_log_bytes"].as_u64().is_some_and(|bytes| bytes > 0)
        })
        .await;
        let parts = ["raft_log_bytes", "event_log_bytes", "snapshot_bytes", "index_bytes"];
        sizes.push(parts.iter().filter_map(|part| status["disk"][part].as_u64()).sum());
    }
    sizes
}

/// A node that was started by hand, and what it said when it was ready.
async fn start(config: &Path, arguments: &[&str]) -> (Child, Value) {
    let mut child = Command::new(program())
        .args(arguments)
        .arg("--json")
        .env("HOLDFAST_CONFIG", config)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(WITHIN, lines.next_line()).await.unwrap().unwrap();
    let ready: Value = serde_json::from_str(&line.unwrap_or_default()).unwrap_or_default();
    assert!(ready["address"].is_string(), "{arguments:?} did not get ready: {ready}");
    (child, ready)
}

async fn asked(config: &Path, arguments: &[&str]) -> Value {
    let output = Command::new(program())
        .args(arguments)
        .arg("--json")
        .env("HOLDFAST_CONFIG", config)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

const ALONE: [&str; 8] = [
    "--bind",
    "127.0.0.1",
    "--port",
    "0",
    "--lease-port",
    "0",
    "--bulk-port",
    "0",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_verified_and_restored_into_a_new_cluster_of_a_higher_era() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let cluster = cluster().await;
    cluster
        .json(&["tenant", "set", "blue", "--devices", "7"])
        .await
        .unwrap();
    let lease = cluster
        .json(&[
            "lease", "1xa100", "--for", "1h", "--tenant", "blue", "--detach", "--yes", "--", "sleep", "600",
        ])
        .await;
    let lease = lease.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    let name = file.to_str().unwrap();
    let made = cluster.json(&["cluster", "backup", name]).await.unwrap();
    let verified = cluster.json(&["cluster", "backup-verify", name]).await.unwrap();
    assert_eq!(made, verified);
    assert!(
        cluster.json(&["cluster", "backup", name]).await.is_err(),
        "a backup is not written over"
    );
    let before = cluster.json(&["cluster", "status"]).await.unwrap();
    drop(cluster);

    let cut = folder.path().join("cut");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 10]).unwrap();
    let refused = asked(folder.path(), &["cluster", "backup-verify", cut.to_str().unwrap()]).await;
    assert_eq!(refused["error"]["code"], "backup", "{refused}");

    for adopt in [false, true] {
        let place = folder.path().join(format!("adopt-{adopt}"));
        std::fs::create_dir(&place).unwrap();
        let (config, data) = (place.join("config"), place.join("data"));
        let mut arguments = vec!["cluster", "restore", name, "--data", data.to_str().unwrap()];
        arguments.extend(ALONE);
        if adopt {
            arguments.push("--adopt");
        }
        let (mut node, ready) = start(&config, &arguments).await;
        let status = asked(&config, &["cluster", "status"]).await;
        assert_eq!(status["id"] == before["id"], adopt);
        assert_eq!(status["era"], 1);
        assert_eq!(status["nodes"], 1, "machines are not taken from a backup");
        assert!(
            status["applied"].as_u64() > made["index"].as_u64(),
            "ids go on after the backup's"
        );
        let tenants = asked(&config, &["tenant", "list"]).await;
        assert!(tenants.to_string().contains("blue"), "{tenants}");
        let leases = asked(&config, &["leases"]).await;
        assert!(
            leases.to_string().contains(lease["lease"].as_str().unwrap_or("?")),
            "{leases} {lease}"
        );
        // It is a node like any other: it starts again.
        node.kill().await.unwrap();
        let (_again, served) = start(&config, &["serve", "--data", data.to_str().unwrap()]).await;
        assert_eq!(served["node"], ready["node"]);
        assert_eq!(asked(&config, &["cluster", "status"]).await["era"], 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_survivor_goes_on_alone_after_a_majority_was_lost() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut cluster = cluster().await;
    let client = cluster.client().unwrap();
    assert!(write_note(&client, "before the loss").await);
    // All have it: the survivor's log reaches as far as any.
    for node in 0..3 {
        let address = cluster.nodes()[node].address.clone();
        let seen = async {
            loop {
                let text = cluster
                    .json(&["events", "--topic", "cluster", "--address", &address])
                    .await;
                if text.is_ok_and(|events| events.to_string().contains("before the loss")) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(WITHIN, seen).await.unwrap();
    }
    for node in 0..3 {
        cluster.kill_daemon(node).await;
    }
    let data = cluster.nodes()[0].data.to_str().unwrap().to_owned();
    let config = cluster.path().join("config");
    let looked = asked(&config, &["cluster", "recover", "--dry-run", "--data", &data]).await;
    assert_eq!(
        (looked["done"].as_bool(), looked["without"].as_array().unwrap().len()),
        (Some(false), 2),
        "{looked}"
    );
    let done = asked(&config, &["cluster", "recover", "--yes", "--data", &data]).await;
    assert_eq!(done["done"], true, "{done}");
    cluster.restart(0).await.unwrap();
    let status = until(&cluster, &["cluster", "status"], |view| {
        view["era"] == 1 && view["voters"].as_array().is_some_and(|voters| voters.len() == 1)
    })
    .await;
    assert_eq!(status["leader"], status["served_by"], "{status}");
    assert!(write_note(&cluster.client().unwrap(), "after the loss").await);
    let found = notes(&cluster).await;
    assert!(
        found.contains(&"before the loss".to_owned()) && found.contains(&"after the loss".to_owned()),
        "{found:?}"
    );
}
