//! One machine and what can be wrong with it: folders, ports, disks, files, secrets. The program is run as its users run it.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use super::*;

/// A machine with its own home.
struct Machine {
    folder: tempfile::TempDir,
}

/// A node that serves.
struct Node {
    child: Child,
    ready: Value,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("holdfast-edges-").tempdir().unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(words)
            .env("HOLDFAST_CONFIG", self.path("config"))
            .env("HOME", self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// A command that starts a node on free ports.
    fn node(&self, words: &[&str], data: &Path) -> Command {
        self.node_on(["0"; 3], words, data)
    }

    fn node_on(&self, ports: [&str; 3], words: &[&str], data: &Path) -> Command {
        let mut command = self.command(words);
        command.arg("--json").arg("--data").arg(data);
        if words[0] != "serve" {
            for (flag, port) in ["--port", "--lease-port", "--bulk-port"].iter().zip(ports) {
                command.args([flag, port]);
            }
            command.args(["--bind", "127.0.0.1", "--simulate", "1xt4"]);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a node and waits until it serves; what it said instead when it does not.
    async fn start(&self, words: &[&str], data: &Path) -> Result<Node, Ended> {
        self.start_as(self.node(words, data)).await
    }

    async fn start_as(&self, mut command: Command) -> Result<Node, Ended> {
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        tokio::time::timeout(WITHIN, out.read_line(&mut line))
            .await
            .unwrap()
            .unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_default();
        if said["address"].is_string() {
            return Ok(Node { child, ready: said });
        }
        let status = tokio::time::timeout(WITHIN, child.wait()).await.unwrap().unwrap();
        let mut told = said["error"]["message"].as_str().unwrap_or_default().to_owned();
        if told.is_empty() {
            child.stderr.take().unwrap().read_to_string(&mut told).await.unwrap();
        }
        Err(Ended {
            code: status.code(),
            told,
        })
    }

    async fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().await.unwrap()
    }

    async fn json(&self, words: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(words);
        let output = self.run(&all).await;
        assert!(output.status.success(), "{words:?}: {}", text(&output.stdout));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until a lease is in a state.
    async fn status(&self, lease: &str, wanted: &str) -> Value {
        let asking = async {
            loop {
                let shown = self.json(&["show", lease]).await;
                if shown["status"] == wanted {
                    return shown;
                }
            }
        };
        tokio::time::timeout(WITHIN, asking).await.unwrap()
    }
}

/// How a start ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    told: String,
}

impl Node {
    async fn stop(mut self) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        kill_process(Pid::from_raw(pid.unwrap()).unwrap(), Signal::TERM).unwrap();
        tokio::time::timeout(WITHIN, self.child.wait()).await.unwrap().unwrap();
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits until it ends by itself.
    async fn ended(mut self) -> (Option<i32>, String) {
        let status = tokio::time::timeout(WITHIN, self.child.wait()).await.unwrap().unwrap();
        let mut log = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut log)
            .await
            .unwrap();
        (status.code(), log)
    }
}

#[tokio::test]
async fn a_folder_is_one_nodes_and_a_port_is_one_programs() {
    let _alone = alone().await;
    let machine = Machine::new();
    let data = machine.path("data");
    let node = machine.start(&["init"], &data).await.unwrap();
    let port = node.ready["address"]
        .as_str()
        .unwrap()
        .rsplit(':')
        .next()
        .unwrap()
        .to_owned();
    let cluster = node.ready["cluster"].clone();
    let told = |ended: Result<Node, Ended>, code: i32, words: &[&str]| {
        let Err(ended) = ended else { panic!("it serves") };
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(words.iter().all(|word| ended.told.contains(word)), "{ended:?}");
    };
    for words in [&["init"], &["serve"]] {
        told(machine.start(words, &data).await, 65, &["in use by process", "--data"]);
    }
    // A taken port leaves nothing behind, and the same command works with another.
    let other = machine.path("other");
    let taken = machine.node_on([&port, "0", "0"], &["init"], &other);
    told(
        machine.start_as(taken).await,
        65,
        &["cannot listen on TCP", &port, "--lease-port"],
    );
    assert!(!other.exists());
    let twice = machine.node_on(["0", "7777", "7777"], &["init"], &other);
    told(machine.start_as(twice).await, 64, &["port 7777 is named twice"]);
    node.stop().await;

    told(
        machine.start(&["init"], &data).await,
        65,
        &["already holds node", "holdfast serve"],
    );
    // Nor does it become a node of another cluster.
    let elsewhere = machine.start(&["init"], &machine.path("elsewhere")).await.unwrap();
    let line = elsewhere.ready["join"].as_str().unwrap().to_owned();
    let join: Vec<&str> = line.split_whitespace().skip(1).collect();
    let own = cluster.as_str().unwrap();
    told(
        machine.start(&join, &data).await,
        65,
        &["already holds node", "of cluster", own, "--data"],
    );
    elsewhere.stop().await;
    told(
        machine.start(&["serve"], &other).await,
        65,
        &["holds no node yet", "holdfast init"],
    );
    let file = machine.path("file");
    std::fs::write(&file, "").unwrap();
    told(machine.start(&["init"], &file).await, 65, &["file"]);
    // What a node had promised to remember is gone: it must not vote again under its old name.
    std::fs::rename(data.join("raft"), machine.path("raft-moved-away")).unwrap();
    told(
        machine.start(&["serve"], &data).await,
        65,
        &["no data", "holdfast node remove", "holdfast join"],
    );

    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give a folder to another user");
        return;
    }
    std::os::unix::fs::chown(&data, Some(12_345), None).unwrap();
    for words in [&["init"], &["serve"]] {
        told(machine.start(words, &data).await, 65, &["12345"]);
    }
}

#[tokio::test]
async fn a_founding_that_was_cut_short_is_gone_on_with_and_its_operator_gets_the_token() {
    let _alone = alone().await;
    let mut moment = u64::from(std::process::id());
    for round in 0..8 {
        let machine = Machine::new();
        let data = machine.path("data");
        moment = moment
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mut child = machine.node(&["init"], &data).spawn().unwrap();
        // The moment is the point of this test, not a wait for something.
        tokio::time::sleep(Duration::from_millis((moment >> 33) % 600)).await;
        child.kill().await.unwrap();
        let words = if round % 2 == 0 { "init" } else { "serve" };
        let again = match machine.start(&[words], &data).await {
            Ok(node) => node,
            // Too early for a node to be there, or too late for another founding.
            Err(ended) => {
                assert!(
                    ended.told.contains("holdfast init") || ended.told.contains("holdfast serve"),
                    "{ended:?}"
                );
                let other = if words == "init" { "serve" } else { "init" };
                machine.start(&[other], &data).await.unwrap()
            }
        };
        let nodes = machine.json(&["nodes"]).await;
        assert_eq!(nodes["nodes"].as_array().unwrap().len(), 1, "{nodes}");
        let tenants = machine.json(&["tenant", "list"]).await;
        assert_eq!(tenants["tenants"][0]["tenant"], "default", "{tenants}");
        assert!(!data.join("identity/operator.token").exists());
        again.stop().await;
    }
}

#[tokio::test]
async fn a_damaged_log_is_mended_at_its_end_and_stops_the_node_with_a_text_before_it() {
    let _alone = alone().await;
    let machine = Machine::new();
    let data = machine.path("data");
    let node = machine.start(&["init"], &data).await.unwrap();
    for text in ["one", "two", "three", "four"] {
        machine.json(&["note", "damage", text]).await;
    }
    node.kill().await;
    let segment = segment_with(&data.join("raft"), "three");
    let bytes = std::fs::read(&segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();

    // The tail: what a power loss leaves of the last write.
    let mut torn = bytes.clone();
    torn[end - 3..=end].fill(0);
    std::fs::write(&segment, &torn).unwrap();
    let node = machine.start(&["serve"], &data).await.unwrap();
    let notes = text(&machine.run(&["events", "--topic", "cluster"]).await.stdout);
    assert!(notes.contains("note on damage: three"), "{notes}");
    machine.json(&["note", "damage", "five"]).await;
    node.kill().await;

    // The middle: entries that were acknowledged are unreadable.
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.windows(5).position(|part| part == b"three").unwrap();
    bytes[middle] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    let Err(ended) = machine.start(&["serve"], &data).await else {
        panic!("it serves with a damaged log")
    };
    assert_eq!(ended.code, Some(70), "{ended:?}");
    let name = segment.file_name().unwrap().to_string_lossy().into_owned();
    assert!(ended.told.contains(&name) && ended.told.contains("join"), "{ended:?}");
    bytes[middle] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    machine.start(&["serve"], &data).await.unwrap().stop().await;
}

/// A small disk of its own; gone with the value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(at: PathBuf, mib: u32) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let size = format!("size={mib}m");
        mount(Some("none"), &at, Some("tmpfs"), MsFlags::empty(), Some(size.as_str())).ok()?;
        Some(Self(at))
    }

    fn resize(&self, mib: u32) {
        let size = format!("size={mib}m");
        mount(
            None::<&str>,
            &self.0,
            None::<&str>,
            MsFlags::MS_REMOUNT,
            Some(size.as_str()),
        )
        .unwrap();
    }

    fn fill(&self) -> PathBuf {
        let path = self.0.join("fill");
        let mut file = std::fs::File::create(&path).unwrap();
        let block = vec![0_u8; 1 << 16];
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

#[tokio::test]
async fn a_full_disk_stops_the_node_with_a_text_and_it_goes_on_once_there_is_room() {
    let _alone = alone().await;
    let machine = Machine::new();
    let Some(disk) = SmallDisk::new(machine.path("disk"), 100) else {
        eprintln!("skipped: a small disk needs root");
        return;
    };
    let data = disk.0.join("data");
    let told = |ended: Result<Node, Ended>| {
        let Err(ended) = ended else {
            panic!("it serves without room")
        };
        assert_eq!(ended.code, Some(70), "{ended:?}");
        assert!(
            ended.told.contains("No space left") && ended.told.contains("free space"),
            "{ended:?}"
        );
    };
    told(machine.start(&["init"], &data).await);
    told(machine.start(&["init"], &data).await);
    disk.resize(600);
    // The same command goes on.
    let node = machine.start(&["init"], &data).await.unwrap();
    machine.json(&["note", "before", "full"]).await;

    let fill = disk.fill();
    let order = [
        "lease", "1xt4", "--for", "1h", "--yes", "--detach", "--", "sleep", "600",
    ];
    let lease = machine.json(&order).await["lease"].as_str().unwrap().to_owned();
    let (code, log) = node.ended().await;
    assert_eq!(code, Some(70), "{log}");
    assert!(
        log.contains("cannot be written") || log.contains("No space left"),
        "{log}"
    );
    told(machine.start(&["serve"], &data).await);
    std::fs::remove_file(fill).unwrap();
    let node = machine.start(&["serve"], &data).await.unwrap();
    let shown = machine.status(&lease, "active").await;
    assert_eq!(shown["command"][0], "sleep");
    machine.json(&["release", &lease]).await;
    machine.status(&lease, "ended").await;
    node.stop().await;
}

#[tokio::test]
async fn no_secret_is_in_any_log_event_or_file_but_where_its_owner_keeps_it() {
    let _alone = alone().await;
    let machine = Machine::new();
    let data = machine.path("data");
    let log = machine.path("log");
    let mut command = machine.node(&["init"], &data);
    command
        .env("RUST_LOG", "trace")
        .stderr(std::fs::File::create(&log).unwrap());
    let node = machine.start_as(command).await.unwrap();
    let credentials = std::fs::read_to_string(machine.path("config/credentials.toml")).unwrap();
    let join = machine.json(&["token", "create"]).await["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let access = machine.json(&["token", "create", "--role", "read-only"]).await["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let operator = credentials
        .lines()
        .find_map(|line| line.strip_prefix("token = "))
        .unwrap();
    // The last part is the secret; a join token has its check behind it.
    let secret = |token: &str| token.trim_matches('"').rsplit('.').next().unwrap()[..32].to_owned();
    let secrets = [
        secret(operator),
        secret(&access),
        secret(&join),
        secret(node.ready["join"].as_str().unwrap()),
    ];
    assert_eq!(secrets.iter().collect::<BTreeSet<_>>().len(), 4);
    // Everything that could write one down: good and bad commands, and a machine that joins.
    let mut printed = String::new();
    let bad = format!("hfa.0000000000000000.{}{}", secrets[0], "0".repeat(32));
    for (words, token) in [
        (vec!["nodes"], None),
        (vec!["token", "list"], None),
        (vec!["events"], None),
        (vec!["show", "lease-99"], None),
        (vec!["nodes"], Some(bad.as_str())),
        (vec!["lease", "1xt4", "--for", "1h", "--yes", "--", "env"], None),
    ] {
        let mut command = machine.command(&words);
        if let Some(token) = token {
            command.env("HOLDFAST_TOKEN", token);
        }
        let output = command.output().await.unwrap();
        printed.push_str(&text(&output.stdout));
        printed.push_str(&text(&output.stderr));
    }
    let address = node.ready["address"].as_str().unwrap();
    let joined = machine.path("joined");
    let mut command = machine.node(&["join", address, "--name", "second"], &joined);
    let second_log = machine.path("second-log");
    command.env("HOLDFAST_JOIN_TOKEN", &join).env("RUST_LOG", "trace");
    command.stderr(std::fs::File::create(&second_log).unwrap());
    let second = machine.start_as(command).await.unwrap();
    second.stop().await;
    node.stop().await;

    assert!(!secrets.iter().any(|secret| printed.contains(secret.as_str())));
    let owners = machine.path("config/credentials.toml");
    let found = holding(machine.folder.path(), &secrets);
    assert_eq!(found, [owners], "a secret was written down");
    for file in ["identity/node.key", "identity/ca.key"] {
        let mode = std::fs::metadata(data.join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file}");
    }
}

/// The files below a folder that hold one of these texts, or the bytes that they write out. A search of its own would take
/// minutes over logs of this length without optimization.
fn holding(folder: &Path, secrets: &[String]) -> Vec<PathBuf> {
    let search = |kind: &str, patterns: &[String]| {
        let patterns = patterns.iter().flat_map(|pattern| ["-e", pattern]);
        let mut grep = std::process::Command::new("grep");
        grep.args(["-r", "-l", "-a", kind])
            .args(patterns)
            .arg("--")
            .arg(folder)
            .env("LC_ALL", "C");
        let output = grep.output().unwrap();
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(PathBuf::from).collect::<Vec<_>>()
    };
    let raw = |secret: &String| {
        secret
            .as_bytes()
            .chunks(2)
            .map(|pair| format!("\\x{}", text(pair)))
            .collect::<String>()
    };
    // One pattern is all that -P takes.
    let raw = secrets.iter().map(raw).collect::<Vec<_>>().join("|");
    [search("-F", secrets), search("-P", &[raw])].concat()
}

/// The segment of a log that holds a text.
fn segment_with(folder: &Path, wanted: &str) -> PathBuf {
    let mut found = holding(folder, &[hex::encode(wanted)]);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}
