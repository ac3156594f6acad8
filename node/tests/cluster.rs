//! Real node processes on loopback, asked through the command line as people ask it.
//!
//! One cluster runs at a time: a crowded machine would make elections, and not the code, decide these tests. Nothing
//! here sleeps to be safe; every wait is for something that is read from the cluster, with a generous bound.

#![allow(clippy::unwrap_used)]

#[path = "cluster/edges.rs"]
mod edges;
#[path = "cluster/leaders.rs"]
mod leaders;
#[path = "cluster/placing.rs"]
mod placing;
#[path = "cluster/streams.rs"]
mod streams;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use holdfast_node::local::{LocalCluster, LocalSpec};
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
const WITHIN: Duration = Duration::from_secs(90);

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_holdfast"))
}

async fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().await
}

async fn cluster(nodes: usize) -> LocalCluster {
    let all = [
        LocalSpec::new("a1", "a", "2xa100"),
        LocalSpec::new("b1", "b", "2xh100"),
        LocalSpec::new("c1", "c", "2xrtx4090"),
    ];
    let cluster = LocalCluster::start(program(), &all[..nodes]).await.unwrap();
    // Two nodes cannot agree against each other, so only one of them votes.
    let voters = if nodes == 2 { 1 } else { nodes };
    until(&cluster, &["nodes"], |list| {
        let list = list["nodes"].as_array()?;
        let count = |key: &str, value: Value| list.iter().filter(|node| node[key] == value).count();
        let takes_work = count("devices_free", 2.into()) == nodes;
        (takes_work && count("status", "ready".into()) == nodes && count("voter", true.into()) == voters).then_some(())
    })
    .await;
    cluster
}

/// Asks until `found` answers.
async fn until<T>(cluster: &LocalCluster, arguments: &[&str], found: impl Fn(&Value) -> Option<T>) -> T {
    let last = std::cell::RefCell::new(String::new());
    let asking = async {
        loop {
            match cluster.json(arguments).await {
                Ok(answer) => match found(&answer) {
                    Some(value) => return value,
                    None => *last.borrow_mut() = answer.to_string(),
                },
                Err(error) => *last.borrow_mut() = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    match tokio::time::timeout(WITHIN, asking).await {
        Ok(value) => value,
        Err(_) => panic!(
            "`{}` never showed it; last answer: {}",
            arguments.join(" "),
            last.borrow()
        ),
    }
}

async fn run(cluster: &LocalCluster, arguments: &[&str]) -> Output {
    cluster
        .command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .await
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn lease(cluster: &LocalCluster, shape: &str, work: &[&str]) -> String {
    let mut arguments = vec!["lease", shape, "--for", "10m", "--yes", "--detach", "--"];
    arguments.extend(work);
    cluster.json(&arguments).await.unwrap()["lease"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn status(cluster: &LocalCluster, lease: &str, wanted: &str) -> Value {
    until(cluster, &["show", lease], |shown| {
        (shown["status"] == wanted).then(|| shown.clone())
    })
    .await
}

async fn leader(cluster: &LocalCluster) -> usize {
    let id = until(cluster, &["cluster", "status"], |status| {
        status["leader"].as_str().map(str::to_owned)
    })
    .await;
    cluster.index_of(&id).unwrap()
}

#[tokio::test]
async fn an_attached_lease_prints_its_log_and_exits_with_the_works_code() {
    let _alone = alone().await;
    let cluster = cluster(1).await;
    let arguments = [
        "lease",
        "1xa100",
        "--for",
        "2m",
        "--yes",
        "--",
        "sh",
        "-c",
        "echo out; echo devices=$CUDA_VISIBLE_DEVICES; exit 7",
    ];
    let output = run(&cluster, &arguments).await;
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(
        printed.contains("out\n") && printed.contains("devices=GPU-"),
        "{printed}"
    );
}

#[tokio::test]
async fn a_request_that_can_never_be_met_says_what_there_is() {
    let _alone = alone().await;
    let cluster = cluster(1).await;
    for (shape, told) in [("1xh900", "a100"), ("64xa100", "2"), ("0xa100", "1")] {
        let order = ["lease", shape, "--for", "1h", "--yes", "--detach", "--", "true"];
        let output = run(&cluster, &order).await;
        let code = if shape.starts_with('0') { 64 } else { 65 };
        assert_eq!(output.status.code(), Some(code), "{shape}");
        assert!(text(&output.stderr).contains(told), "{shape}: {}", text(&output.stderr));
    }
    let missing = lease(&cluster, "1xa100", &["no-such-program-anywhere"]).await;
    let shown = status(&cluster, &missing, "ended").await;
    assert_eq!(shown["end_reason"], "failed");
    assert_eq!(shown["exit_code"], 127);
    let log = text(&run(&cluster, &["logs", &missing]).await.stdout);
    assert!(log.contains("command not found: no-such-program-anywhere"), "{log}");
    // A tenant's mistake takes no node out, however often it is made.
    for _ in 0..4 {
        let refused = lease(&cluster, "1xa100", &["/etc/passwd"]).await;
        let shown = status(&cluster, &refused, "ended").await;
        assert_eq!(
            (&shown["end_reason"], &shown["exit_code"]),
            (&"failed".into(), &126.into())
        );
    }
    let nodes = cluster.json(&["nodes"]).await.unwrap();
    assert_eq!(
        (&nodes["nodes"][0]["cordoned"], &nodes["nodes"][0]["devices_free"]),
        (&Value::Null, &2.into())
    );
}

#[tokio::test]
async fn work_that_ends_at_once_is_told_as_started_before_it_is_told_as_ended() {
    let _alone = alone().await;
    let cluster = cluster(1).await;
    let mut leases = Vec::new();
    for _ in 0..15 {
        leases.push(lease(&cluster, "1xa100", &["true"]).await);
    }
    for lease in &leases {
        status(&cluster, lease, "ended").await;
        let events = cluster
            .json(&["events", "--after", "0", "--lease", lease])
            .await
            .unwrap();
        let kinds: Vec<&str> = events
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["type"].as_str().unwrap())
            .collect();
        let place = |kind: &str| kinds.iter().position(|other| *other == format!("holdfast.{kind}"));
        let course = [
            "allocation-started",
            "lease-activated",
            "allocation-exited",
            "lease-ended",
        ]
        .map(place);
        assert!(
            course.iter().all(Option::is_some) && course.is_sorted(),
            "{lease}: {kinds:?}"
        );
    }
}

#[tokio::test]
async fn every_process_is_given_the_devices_that_the_log_names_and_no_two_the_same() {
    let _alone = alone().await;
    let cluster = cluster(1).await;
    let work = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 600"];
    let first = lease(&cluster, "1xa100", &work).await;
    status(&cluster, &first, "active").await;
    // A change that is none of its devices'.
    run(&cluster, &["renew", &first, "--for", "1h"]).await;
    let second = lease(&cluster, "1xa100", &work).await;
    let mut given = Vec::new();
    for lease in [&first, &second] {
        let shown = status(&cluster, lease, "active").await;
        let named = shown["members"][0]["devices"][0].as_str().unwrap().to_owned();
        let printed = async {
            loop {
                let printed = text(&run(&cluster, &["logs", lease]).await.stdout);
                if printed.ends_with('\n') {
                    return printed.trim().to_owned();
                }
            }
        };
        let printed = tokio::time::timeout(WITHIN, printed).await.unwrap();
        assert_eq!(printed, named);
        let gpus = cluster.json(&["gpus"]).await.unwrap();
        let held = gpus["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .find(|gpu| gpu["id"] == named.as_str())
            .unwrap();
        assert_eq!(held["lease"], lease.as_str(), "{gpus}");
        given.push(named);
    }
    assert_ne!(given[0], given[1]);
}

#[tokio::test]
async fn what_was_cancelled_under_a_new_leader_never_runs_and_no_device_is_lost_over_restarts() {
    let _alone = alone().await;
    let mut cluster = cluster(3).await;
    let done = cluster.path().join("done");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", done.display());
    let holds = lease(&cluster, "2xh100", &["sh", "-c", &script]).await;
    status(&cluster, &holds, "active").await;
    let queued = lease(&cluster, "2xh100", &["true"]).await;
    let old = leader(&cluster).await;
    cluster.kill_daemon(old).await;
    // Under a new leader.
    let released = async { while !run(&cluster, &["release", &queued]).await.status.success() {} };
    tokio::time::timeout(WITHIN, released).await.unwrap();
    status(&cluster, &queued, "ended").await;
    cluster.restart(old).await.unwrap();
    std::fs::write(&done, "").unwrap();
    let ended = status(&cluster, &holds, "ended").await;
    assert_eq!(ended["end_reason"], "completed", "{ended}");
    let failed = lease(&cluster, "1xany", &["false"]).await;
    status(&cluster, &failed, "ended").await;

    let free = |list: &Value| {
        let nodes = list["nodes"].as_array()?;
        let ready = nodes.iter().all(|node| node["status"] == "ready");
        ready.then(|| {
            nodes
                .iter()
                .map(|node| node["devices_free"].as_u64().unwrap_or(0))
                .sum::<u64>()
        })
    };
    let all_free = |list: &Value| free(list).filter(|free| *free == 6);
    until(&cluster, &["nodes"], all_free).await;
    let before = cluster.json(&["leases", "--ended"]).await.unwrap();
    for node in 0..3 {
        cluster.kill_daemon(node).await;
    }
    for node in 0..3 {
        cluster.restart(node).await.unwrap();
    }
    until(&cluster, &["nodes"], all_free).await;
    assert_eq!(cluster.json(&["leases", "--ended"]).await.unwrap(), before);
    let events = cluster
        .json(&["events", "--after", "0", "--lease", &queued])
        .await
        .unwrap();
    assert!(!events.to_string().contains("placement-committed"), "{events}");
}

#[tokio::test]
async fn four_wrong_join_tokens_get_four_different_answers() {
    let _alone = alone().await;
    let mut cluster = cluster(2).await;
    let other = LocalCluster::start(program(), &[LocalSpec::new("x1", "x", "1xt4")])
        .await
        .unwrap();
    let token = |made: Value| made["token"].as_str().unwrap().to_owned();
    let foreign = token(other.json(&["token", "create"]).await.unwrap());
    let good = token(cluster.json(&["token", "create"]).await.unwrap());
    let expired = token(cluster.json(&["token", "create", "--for", "1s"]).await.unwrap());
    // Cluster time passes only with entries; these are some.
    until(&cluster, &["note", "clock", "ticks"], |_| Some(())).await;
    let mut answers = Vec::new();
    let mut mistyped = good.clone();
    mistyped.pop();
    // The second node is a learner and cannot sign certificates; machines join through it all the same.
    let learner = &cluster.json(&["nodes"]).await.unwrap()["nodes"][1];
    assert_eq!((&learner["label"], &learner["voter"]), (&"b1".into(), &false.into()));
    let new = LocalSpec::new("c1", "c", "1xt4");
    cluster.add_through(&new, Some(1)).await.unwrap();
    let used = cluster.last_token().to_owned();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for (name, wrong, through) in [
        ("foreign", foreign, 0),
        ("expired", expired, 0),
        ("mistyped", mistyped, 0),
        ("used", used, 1),
    ] {
        let address = cluster.nodes()[through].address.clone();
        let data = cluster.path().join(format!("joiner-{name}"));
        let data = data.to_string_lossy();
        let arguments = [
            "join",
            &address,
            "--token",
            &wrong,
            "--data",
            &data,
            "--bind",
            "127.0.0.1",
            "--port",
            "0",
            "--lease-port",
            "0",
            "--bulk-port",
            "0",
            "--simulate",
            "1xt4",
        ];
        let output = run(&cluster, &arguments).await;
        let code = if name == "mistyped" { 64 } else { 65 };
        assert_eq!(output.status.code(), Some(code), "{name}");
        let answer = text(&output.stderr);
        assert!(
            answer.contains("holdfast token create") || answer.contains("join line"),
            "{name}: {answer}"
        );
        if name == "expired" {
            assert!(answer.contains("expired at 20") && answer.contains("s ago"), "{answer}");
        }
        answers.push(answer);
    }
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 4, "{answers:#?}");
}

#[tokio::test]
async fn writes_go_on_after_kill_9_of_the_leader_and_nothing_acknowledged_is_lost() {
    let _alone = alone().await;
    let mut cluster = cluster(3).await;
    let before = lease(&cluster, "1xany", &["sleep", "600"]).await;
    let leader = leader(&cluster).await;
    cluster.kill_daemon(leader).await;
    let after = until(
        &cluster,
        &["lease", "1xany", "--for", "10m", "--yes", "--detach", "--", "true"],
        |answer| answer["lease"].as_str().map(str::to_owned),
    )
    .await;
    let listed = until(&cluster, &["leases"], |list| Some(list.to_string())).await;
    assert!(listed.contains(&before), "{listed}");
    let shown = cluster.json(&["show", &after]).await.unwrap();
    assert_eq!(shown["id"], after.as_str());
}

#[tokio::test]
async fn work_outlives_a_restart_of_every_daemon_and_is_not_started_again() {
    let _alone = alone().await;
    let mut cluster = cluster(3).await;
    // On the node that comes back first: the last one may be given up before it is there, on a crowded machine.
    let lease = lease(&cluster, "1xa100", &["sleep", "600"]).await;
    status(&cluster, &lease, "active").await;
    for node in 0..3 {
        cluster.kill_daemon(node).await;
    }
    for node in 0..3 {
        cluster.restart(node).await.unwrap();
    }
    let shown = status(&cluster, &lease, "active").await;
    assert_eq!(
        (&shown["epoch"], &shown["attempt"]),
        (&Value::from(1), &Value::from(1)),
        "{shown}"
    );
    run(&cluster, &["release", &lease]).await;
    let ended = status(&cluster, &lease, "ended").await;
    assert_eq!(ended["end_reason"], "released");
    let supervisors: Vec<i32> = (0..3).flat_map(|node| cluster.supervisors(node)).collect();
    assert!(supervisors.is_empty(), "{supervisors:?} still run");
}

#[tokio::test]
async fn a_stopped_lease_takes_its_whole_process_group_along() {
    let _alone = alone().await;
    let cluster = cluster(1).await;
    let mark = cluster.path().join("grandchild");
    let script = format!(
        "setsid sh -c 'trap \"\" TERM; echo $$ > {}; while :; do sleep 1; done' & wait",
        mark.display()
    );
    let lease = lease(&cluster, "1xa100", &["sh", "-c", &script]).await;
    until(&cluster, &["show", &lease], |_| mark.exists().then_some(())).await;
    run(&cluster, &["release", &lease]).await;
    status(&cluster, &lease, "ended").await;
    let left = cluster.supervisors(0);
    assert!(left.is_empty(), "{left:?}");
    let gpus = cluster.json(&["gpus"]).await.unwrap();
    assert!(
        gpus["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .all(|gpu| gpu["lease"].is_null()),
        "{gpus}"
    );
}

#[tokio::test]
async fn a_node_without_a_leader_still_serves_the_committed_stream_and_says_how_old_it_is() {
    let _alone = alone().await;
    let mut cluster = cluster(3).await;
    let lease = lease(&cluster, "1xany", &["true"]).await;
    status(&cluster, &lease, "ended").await;
    cluster.kill_daemon(0).await;
    cluster.kill_daemon(1).await;
    let events = until(&cluster, &["events", "--after", "0", "--lease", &lease], |page| {
        page.as_array().filter(|events| !events.is_empty()).map(Vec::len)
    })
    .await;
    assert!(events > 0);
    let refused = run(&cluster, &["note", "without", "a leader", "--json"]).await;
    assert_eq!(
        refused.status.code(),
        Some(75),
        "a minority acknowledged or refused a write"
    );
    let told: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(told["error"]["code"], "outcome-unknown");
    let aged = cluster.json(&["cluster", "status", "--stale"]).await.unwrap();
    assert!(aged["applied"].as_u64() > Some(0), "{aged}");
    let fresh = run(&cluster, &["nodes", "--json"]).await;
    assert_eq!(fresh.status.code(), Some(69), "{}", text(&fresh.stdout));
    let told: Value = serde_json::from_slice(&fresh.stdout).unwrap();
    assert_eq!(told["error"]["code"], "not-fresh", "{told}");
    // The leader that is still named is not said to lead, and those that are down are not said to be there.
    until(&cluster, &["cluster", "status", "--stale"], |status| {
        (status["leader_heard_ms_ago"].as_u64() > Some(2_000)).then_some(())
    })
    .await;
    let shown = text(&run(&cluster, &["cluster", "status", "--stale"]).await.stdout);
    for said in ["none heard", "a1 does not answer", "b1 does not answer", "c1 answers"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
}

#[tokio::test]
async fn the_demo_keeps_its_promises_and_leaves_nothing_behind() {
    let _alone = alone().await;
    let traces = Traces::new();
    let output = traces.demo().output().await.unwrap();
    let last = text(&output.stdout).lines().last().unwrap_or_default().to_owned();
    assert!(output.status.success(), "{last}\n{}", text(&output.stderr));
    let summary: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(
        (&summary["ok"], &summary["double_runs"], &summary["final_hash_equal"]),
        (&true.into(), &0.into(), &true.into())
    );
    assert!(summary["failover_s"].as_f64().unwrap() > 0.0 && summary["bill_total_micros"].as_u64().unwrap() > 0);
    traces.assert_none().await;
}

#[tokio::test]
async fn the_demo_interrupted_at_any_moment_leaves_nothing_behind() {
    let _alone = alone().await;
    let mut moment = u64::from(std::process::id());
    for _ in 0..10 {
        moment = moment
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let traces = Traces::new();
        let mut command = traces.demo();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The moment is the point of this test, not a wait for something.
        tokio::time::sleep(Duration::from_millis((moment >> 33) % 8_000)).await;
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        tokio::time::timeout(WITHIN, child.wait()).await.unwrap().unwrap();
        traces.assert_none().await;
    }
}

#[tokio::test]
async fn a_real_trace_is_leased_billed_and_told_by_the_events_alone() {
    let data = PathBuf::from(std::env::var("HOLDFAST_DATA").unwrap_or_else(|_| "../../shared/data".to_owned()));
    let pods = data.join("openb/openb_pod_list_default.csv");
    if !pods.exists() {
        eprintln!(
            "skipped: {} is absent; set HOLDFAST_DATA to the folder of public traces",
            pods.display()
        );
        return;
    }
    let _alone = alone().await;
    let mut command = tokio::process::Command::new(program());
    let output = command
        .arg("demo")
        .arg("--trace")
        .arg(&pods)
        .args(["--count", "300", "--json"])
        .output()
        .await
        .unwrap();
    let last = text(&output.stdout).lines().last().unwrap_or_default().to_owned();
    assert!(output.status.success(), "{last}\n{}", text(&output.stderr));
    let summary: Value = serde_json::from_str(&last).unwrap();
    assert_eq!((&summary["leases"], &summary["completed"]), (&300.into(), &300.into()));
}

/// What a cluster could leave on a machine, on which others may run meanwhile: it gets a folder of its own for
/// temporary files, and everything of it names that folder.
struct Traces {
    scratch: tempfile::TempDir,
    groups: BTreeSet<String>,
}

impl Traces {
    fn new() -> Self {
        let scratch = tempfile::Builder::new().prefix("hf").tempdir().unwrap();
        Self {
            scratch,
            groups: groups(),
        }
    }

    fn demo(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(program());
        command.args(["demo", "--json"]).env("TMPDIR", self.scratch.path());
        command
    }

    async fn assert_none(&self) {
        let mark = self.scratch.path().to_string_lossy().into_owned();
        assert_eq!(names(self.scratch.path()), BTreeSet::new());
        let is_ours = |pid: &String| {
            let names = |file: &str| {
                let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                bytes.windows(mark.len()).any(|part| part == mark.as_bytes())
            };
            names("cmdline") || names("environ")
        };
        assert!(!names(Path::new("/proc")).iter().any(is_ours), "processes are left");
        let left: Vec<String> = mounts().into_iter().filter(|mount| mount.contains(&mark)).collect();
        assert_eq!(left, Vec::<String>::new());
        // A new group that nobody is in was ours, or that of a cluster which is being made or torn down.
        let empty = |group: &String| !has_processes(&Path::new(GROUPS).join(group));
        let deadline = tokio::time::Instant::now() + WITHIN;
        while groups().difference(&self.groups).any(empty) {
            assert!(tokio::time::Instant::now() < deadline, "control groups are left");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Where the control groups of work are frozen.
const GROUPS: &str = "/sys/fs/cgroup/freezer";

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn groups() -> BTreeSet<String> {
    let mut groups = names(Path::new(GROUPS));
    groups.retain(|name| name.starts_with("holdfast-"));
    groups
}

fn mounts() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn has_processes(group: &Path) -> bool {
    let own = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let below = || std::fs::read_dir(group).into_iter().flatten().flatten();
    !own.is_empty() || below().any(|entry| entry.path().is_dir() && has_processes(&entry.path()))
}
