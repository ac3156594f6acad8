//! Output and events of work, read through another node than the one that it runs on, and through one that hangs.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Child;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;

/// A command that goes on, and the lines that it prints.
struct Running {
    child: Child,
    out: UnboundedReceiver<String>,
    err: UnboundedReceiver<String>,
}

fn lines(from: impl AsyncRead + Unpin + Send + 'static) -> UnboundedReceiver<String> {
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Running {
    fn start(cluster: &LocalCluster, through: &[usize], arguments: &[&str]) -> Self {
        let addresses: Vec<&str> = through
            .iter()
            .map(|node| cluster.nodes()[*node].address.as_str())
            .collect();
        let mut child = cluster
            .command(arguments)
            .env("HOLDFAST_ADDRESS", addresses.join(","))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, err) = (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        Self { child, out, err }
    }

    /// The next line of standard output; `None` at its end.
    async fn line(&mut self) -> Option<String> {
        tokio::time::timeout(WITHIN, self.out.recv())
            .await
            .expect("it stands still")
    }

    /// Reads until a line holds `wanted`; gives all that were read.
    async fn until(&mut self, wanted: &str) -> Vec<String> {
        let mut read = Vec::new();
        while let Some(line) = self.line().await {
            read.push(line);
            if read.last().is_some_and(|line| line.contains(wanted)) {
                return read;
            }
        }
        panic!("{wanted} never came: {read:?}");
    }

    async fn rest(&mut self) -> Vec<String> {
        let mut read = Vec::new();
        while let Some(line) = self.line().await {
            read.push(line);
        }
        read
    }

    async fn told(&mut self) -> String {
        let mut told = String::new();
        while let Some(line) = tokio::time::timeout(WITHIN, self.err.recv()).await.unwrap() {
            told.push_str(&line);
            told.push('\n');
        }
        told
    }

    async fn code(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(WITHIN, self.child.wait()).await;
        ended.expect("it does not end").unwrap().code()
    }

    fn signal(&self, signal: Signal) {
        send(self.child.id().and_then(|pid| i32::try_from(pid).ok()), signal);
    }
}

fn send(pid: Option<i32>, signal: Signal) {
    kill_process(Pid::from_raw(pid.unwrap()).unwrap(), signal).unwrap();
}

/// Work that counts until a file is there.
fn counting(until: &Path) -> String {
    format!(
        "i=0; while [ ! -e {} ]; do echo count $i; i=$((i+1)); sleep 0.1; done; exit 5",
        until.display()
    )
}

fn counts(lines: &[String]) -> Vec<u32> {
    let counts = lines.iter().filter_map(|line| line.strip_prefix("count "));
    counts.map(|count| count.parse().unwrap()).collect()
}

#[tokio::test]
async fn streams_go_on_through_another_node_when_the_one_that_serves_them_hangs() {
    let _alone = alone().await;
    let cluster = cluster(3).await;
    let done = cluster.path().join("done");
    let work = counting(&done);
    // The work runs on the second node, and is read through the first.
    let order = ["lease", "1xh100", "--for", "10m", "--yes", "--", "sh", "-c", &work];
    let mut attached = Running::start(&cluster, &[0, 1, 2], &order);
    let mut seen = attached.until("count 3").await;
    let listed = cluster.json(&["leases"]).await.unwrap();
    let lease = listed["leases"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(listed["leases"][0]["members"][0]["label"], "b1", "{listed}");
    let mut logs = Running::start(&cluster, &[0, 2, 1], &["logs", "-f", &lease]);
    let mut logged = logs.until("count 3").await;
    let follow = ["--json", "events", "-f", "--after", "0", "--lease", &lease];
    let mut events = Running::start(&cluster, &[0, 2, 1], &follow);
    let mut told = events.until("lease-activated").await;

    let paused = cluster.nodes()[0].pid();
    send(paused, Signal::STOP);
    // Lines that were written after the node had stopped can only have come another way.
    let beyond = format!("count {}", counts(&logged).last().unwrap() + 100);
    seen.extend(attached.until(&beyond).await);
    logged.extend(logs.until(&beyond).await);
    // A stream that is opened at the node that hangs is served by another too.
    let mut late = Running::start(&cluster, &[0, 1, 2], &["logs", "-f", &lease]);
    let mut late_lines = late.until(&beyond).await;
    std::fs::write(&done, "").unwrap();
    assert_eq!(attached.code().await, Some(5), "{}", attached.told().await);
    seen.extend(attached.rest().await);
    for (name, running, lines) in [("logs", &mut logs, &mut logged), ("late", &mut late, &mut late_lines)] {
        assert_eq!(running.code().await, Some(0), "{name}: {}", running.told().await);
        lines.extend(running.rest().await);
    }
    told.extend(events.until("lease-ended").await);
    events.signal(Signal::INT);
    assert_eq!(events.code().await, Some(130));
    send(paused, Signal::CONT);

    let all = text(&run(&cluster, &["logs", &lease]).await.stdout);
    let all: Vec<u32> = counts(&all.lines().map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(all, (0..u32::try_from(all.len()).unwrap()).collect::<Vec<_>>());
    for (name, lines) in [("attached", seen), ("logs", logged), ("late", late_lines)] {
        assert_eq!(counts(&lines), all, "{name} has a gap or a repeat");
    }
    let position = |line: &String| {
        let event: Value = serde_json::from_str(line).unwrap();
        let id = event["id"]
            .as_str()
            .unwrap()
            .split_once('.')
            .map(|(index, sub)| (index.parse(), sub.parse()));
        id.map(|(index, sub): (Result<u64, _>, Result<u32, _>)| (index.unwrap(), sub.unwrap()))
            .unwrap()
    };
    let positions: Vec<(u64, u32)> = told.iter().map(position).collect();
    assert!(positions.is_sorted_by(|left, right| left < right), "{positions:?}");
    let ids: Vec<String> = until(&cluster, &["events", "--after", "0", "--lease", &lease], |page| {
        let events = page.as_array()?;
        let ended = events.iter().any(|event| event["type"] == "holdfast.lease-ended");
        ended.then(|| events.iter().map(|event| event["id"].to_string()).collect())
    })
    .await;
    assert_eq!(told.len(), ids.len(), "{told:#?}");
}

#[tokio::test]
async fn the_output_of_a_gang_is_read_through_any_node_with_the_rank_in_front() {
    let _alone = alone().await;
    let cluster = cluster(3).await;
    let work = "echo rank $HOLDFAST_RANK of $HOLDFAST_WORLD_SIZE under $HOLDFAST_LEADER_HOST; exit 0";
    let shape = ["4xany", "--zone", "a", "--zone", "b"];
    let mut arguments = vec!["lease"];
    arguments.extend(shape);
    arguments.extend(["--for", "10m", "--yes", "--", "sh", "-c", work]);
    let expected = ["[0] rank 0 of 2 under 127.0.0.1", "[1] rank 1 of 2 under 127.0.0.1"];
    // The third node runs no member.
    let mut attached = Running::start(&cluster, &[2], &arguments);
    let mut lines = attached.rest().await;
    lines.sort();
    assert_eq!(attached.code().await, Some(0), "{}", attached.told().await);
    assert_eq!(lines, expected);
    let ended = cluster.json(&["leases", "--ended"]).await.unwrap();
    let lease = ended["leases"][0]["id"].as_str().unwrap().to_owned();
    for node in 0..3 {
        let mut logs = Running::start(&cluster, &[node], &["logs", &lease]);
        let mut lines = logs.rest().await;
        lines.sort();
        assert_eq!(lines, expected, "through node {node}");
        let mut one = Running::start(&cluster, &[node], &["logs", "--rank", "1", &lease]);
        assert_eq!(one.rest().await, ["rank 1 of 2 under 127.0.0.1"], "through node {node}");
    }
}

#[tokio::test]
async fn whoever_goes_away_from_a_lease_is_told_that_it_goes_on() {
    let _alone = alone().await;
    let cluster = cluster(1).await;
    let done = cluster.path().join("done");
    let work = counting(&done);
    let order = ["lease", "1xa100", "--for", "10m", "--yes", "--", "sh", "-c", &work];
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut attached = Running::start(&cluster, &[0], &order);
        attached.until("count 1").await;
        attached.signal(signal);
        assert_eq!(attached.code().await, Some(code));
        let told = attached.told().await;
        let live = cluster.json(&["leases"]).await.unwrap();
        let lease = live["leases"][0]["id"].as_str().unwrap().to_owned();
        assert_eq!(live["leases"][0]["status"], "active", "{live}");
        let next =
            format!("{lease} goes on: `holdfast logs -f {lease}` shows its output, `holdfast release {lease}` ends it");
        assert!(told.contains(&next), "{told}");
        run(&cluster, &["release", &lease]).await;
        status(&cluster, &lease, "ended").await;
    }
    // Nobody reads any more, as after `| head`; and a terminal that is gone.
    let mut unread = Running::start(&cluster, &[0], &order);
    unread.until("count 1").await;
    let closed = unread.out;
    drop(closed);
    assert_eq!(unread.child.wait().await.unwrap().code(), Some(74));
    let mut hung_up = Running::start(&cluster, &[0], &order);
    hung_up.until("count 1").await;
    hung_up.signal(Signal::HUP);
    assert_eq!(hung_up.code().await, Some(129));
    let live = cluster.json(&["leases"]).await.unwrap();
    assert_eq!(live["leases"].as_array().unwrap().len(), 2, "{live}");
    std::fs::write(&done, "").unwrap();
    for lease in live["leases"].as_array().unwrap() {
        let ended = status(&cluster, lease["id"].as_str().unwrap(), "ended").await;
        assert_eq!(ended["exit_code"], 5);
    }
}

#[tokio::test]
async fn whoever_interrupts_at_the_price_leases_nothing_and_later_is_told_what_is_not_known() {
    let _alone = alone().await;
    let cluster = cluster(1).await;
    // A terminal at which the price is asked for.
    let pty = nix::pty::openpty(None, None).unwrap();
    let order = ["lease", "1xa100", "--for", "10m", "--", "sleep", "600"];
    let mut asked = cluster
        .command(&order)
        .stdin(Stdio::from(pty.slave.try_clone().unwrap()))
        .stderr(Stdio::from(pty.slave))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut terminal = std::fs::File::from(pty.master);
    let reading = tokio::task::spawn_blocking(move || {
        let (mut seen, mut part) = (Vec::new(), [0; 256]);
        while !text(&seen).contains("[y/N]") {
            let read = std::io::Read::read(&mut terminal, &mut part).unwrap();
            seen.extend_from_slice(&part[..read]);
        }
        // It stays open: a terminal that is gone would be another story.
        terminal
    });
    let _terminal = tokio::time::timeout(WITHIN, reading).await.unwrap().unwrap();
    let pid = |child: &Child| child.id().and_then(|pid| i32::try_from(pid).ok());
    send(pid(&asked), Signal::INT);
    let ended = tokio::time::timeout(WITHIN, asked.wait()).await.unwrap().unwrap();
    assert!(!ended.success(), "{ended}");
    let listed = cluster.json(&["leases"]).await.unwrap();
    assert!(listed["leases"].as_array().unwrap().is_empty(), "{listed}");

    // The order is on its way to a node that hangs.
    let node = cluster.nodes()[0].pid();
    send(node, Signal::STOP);
    let order = ["lease", "1xa100", "--for", "10m", "--yes", "--detach", "--", "true"];
    let mut sent = Running::start(&cluster, &[0], &order);
    let status = format!("/proc/{}/status", pid(&sent.child).unwrap());
    let listens = async {
        loop {
            let status = std::fs::read_to_string(&status).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            if u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 1) != 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WITHIN, listens).await.unwrap();
    sent.signal(Signal::INT);
    assert_eq!(sent.code().await, Some(130));
    let told = sent.told().await;
    send(node, Signal::CONT);
    assert!(
        told.contains("it is not known whether it was leased") && told.contains("holdfast leases"),
        "{told}"
    );
}

#[tokio::test]
async fn what_a_lost_node_wrote_is_said_to_be_missing_and_each_place_has_its_head() {
    let _alone = alone().await;
    let mut cluster = cluster(3).await;
    let work = "echo written on $HOLDFAST_NODE; sleep 600";
    let lease = lease(&cluster, "1xany", &["sh", "-c", work]).await;
    let first = status(&cluster, &lease, "active").await["members"][0]["label"]
        .as_str()
        .unwrap()
        .to_owned();
    let place = cluster
        .nodes()
        .iter()
        .position(|node| node.spec.label == first)
        .unwrap();
    let mut before = Running::start(&cluster, &[(place + 1) % 3], &["logs", "-f", &lease]);
    before.until("written on").await;
    before.signal(Signal::INT);
    cluster.kill_all(place).await;
    let second = until(&cluster, &["show", &lease], |shown| {
        let moved = shown["status"] == "active" && shown["epoch"].as_u64() > Some(1);
        moved.then(|| shown["members"][0]["label"].as_str().unwrap().to_owned())
    })
    .await;
    let told = async {
        loop {
            let output = run(&cluster, &["logs", &lease]).await;
            if text(&output.stdout).contains("written on") {
                return (text(&output.stdout), text(&output.stderr));
            }
        }
    };
    let (out, err) = tokio::time::timeout(WITHIN, told).await.unwrap();
    assert_eq!(out.lines().count(), 1, "{out}");
    for said in [
        format!("— epoch 1 on {first} —"),
        format!("the output of epoch 1 is on {first}, which cannot be heard since 20"),
        "that part is missing".to_owned(),
        format!("— epoch 2 on {second} —"),
    ] {
        assert!(err.contains(&said), "{said}: {err}");
    }
}

/// The numbers in the notes that a reader was told, in the order in which it was.
fn numbers(lines: &[String]) -> Vec<u64> {
    let told = lines
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    told.map(|event| event["data"]["text"].as_str().unwrap().parse().unwrap())
        .collect()
}

/// CASES 33: a rolling restart delivered some messages twice.
#[tokio::test]
async fn a_subscription_is_told_each_number_once_while_its_nodes_are_restarted_one_by_one() {
    let _alone = alone().await;
    let mut cluster = cluster(3).await;
    // It is told of the first node only, and learns of the others there.
    let order = [
        "--json",
        "subscribe",
        "counts",
        "--from",
        "start",
        "--type",
        "annotated",
    ];
    let mut reader = Running::start(&cluster, &[0], &order);
    cluster.json(&["note", "count", "1"]).await.unwrap();
    let (mut told, mut written) = (reader.until("\"text\":\"1\"").await, 1);
    for restarted in 0..3 {
        for step in 0..3 {
            match step {
                0 => cluster.kill_daemon(restarted).await,
                1 => cluster.restart(restarted).await.unwrap(),
                _ => {}
            }
            for _ in 0..3 {
                written += 1;
                let number = written.to_string();
                cluster.json(&["note", "count", &number]).await.unwrap();
            }
            let last = format!("\"text\":\"{written}\"");
            told.extend(reader.until(&last).await);
        }
    }
    let all: Vec<u64> = (1..=written).collect();
    assert_eq!(numbers(&told), all);
    // What it had written it has acknowledged; the next reader of that name goes on behind it.
    reader.signal(Signal::INT);
    assert_eq!(reader.code().await, Some(130));
    written += 1;
    cluster.json(&["note", "count", &written.to_string()]).await.unwrap();
    let mut next = Running::start(&cluster, &[1], &["--json", "subscribe", "counts", "--once"]);
    assert_eq!(numbers(&next.rest().await), [written]);
    assert_eq!(next.code().await, Some(0));
}
