//! A local cluster: real node processes on loopback in a scratch folder, for the demo, the benchmarks and the tests.
//!
//! Every node is started with the commands that an operator types, and asked through the commands that a tenant types.
//! The one rule: whatever was started here is gone afterwards, whichever way the caller ends. The caller's process
//! becomes the reaper of everything below it, so that supervisors, which outlive their daemons on purpose, are found.

pub mod lab;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::client::credentials::{Credentials, Overrides};
use crate::env::{Clock, Entropy, OsClock, OsEntropy};
use crate::executor::cgroup::Group;
use crate::executor::outfit::Outfit;
use crate::executor::supervisor::spec::GroupChoice;
use crate::executor::{cgroup, procfs};

use self::lab::{Cut, Lab, LabError};

/// Longest wait for a node to say that it is ready; generous, because test machines are crowded.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Why a local cluster could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A folder or process could not be made.
    #[error("cannot {what}")]
    Os {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A command ended with an error.
    #[error("`holdfast {command}` ended with {code}: {text}")]
    Command {
        /// The arguments.
        command: String,
        /// Its exit code, or the signal that ended it.
        code: String,
        /// What it printed.
        text: String,
    },
    /// A command printed something that is not the JSON it promises.
    #[error("`holdfast {command}` printed no JSON: {text}")]
    Output {
        /// The arguments.
        command: String,
        /// What it printed.
        text: String,
    },
    /// A node did not get ready.
    #[error("node {label} did not get ready: {text}")]
    NotReady {
        /// The node.
        label: String,
        /// The end of its log.
        text: String,
    },
}

/// What kind of node to start.
#[derive(Debug, Clone)]
pub struct LocalSpec {
    /// Label and data folder.
    pub label: String,
    /// Failure domain.
    pub zone: String,
    /// Simulated devices, for example `8xa100`.
    pub simulate: String,
}

impl LocalSpec {
    /// Names a node `label` in `zone` with the devices `simulate`.
    #[must_use]
    pub fn new(label: &str, zone: &str, simulate: &str) -> Self {
        Self {
            label: label.to_owned(),
            zone: zone.to_owned(),
            simulate: simulate.to_owned(),
        }
    }
}

/// One node process.
#[derive(Debug)]
pub struct LocalNode {
    /// How it was started.
    pub spec: LocalSpec,
    /// Its data folder.
    pub data: PathBuf,
    /// Its id, as text.
    pub id: String,
    /// Host and port of its API.
    pub address: String,
    child: Option<Child>,
}

impl LocalNode {
    /// The daemon's pid while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.child
            .as_ref()
            .and_then(Child::id)
            .and_then(|pid| i32::try_from(pid).ok())
    }
}

/// Real nodes on loopback, and the folder that everything of theirs is in.
#[derive(Debug)]
pub struct LocalCluster {
    scratch: TempDir,
    program: PathBuf,
    nodes: Vec<LocalNode>,
    last_token: String,
    lab: Option<Lab>,
}

impl LocalCluster {
    /// Makes a scratch folder and starts a node for each of `specs`: the first initializes, the others join it.
    ///
    /// # Errors
    /// [`LocalError`] when a node cannot be started; what was started is gone then.
    pub async fn start(program: &Path, specs: &[LocalSpec]) -> Result<Self, LocalError> {
        Self::start_in(program, specs, None).await
    }

    /// The same, with each node on its own network of `lab`.
    ///
    /// # Errors
    /// As for [`LocalCluster::start`].
    pub async fn start_in(program: &Path, specs: &[LocalSpec], lab: Option<Lab>) -> Result<Self, LocalError> {
        adopt_orphans();
        let scratch = tempfile::Builder::new()
            .prefix("holdfast-local-")
            .tempdir()
            .map_err(os("make a scratch folder"))?;
        let mut cluster = Self {
            scratch,
            program: program.to_owned(),
            nodes: Vec::new(),
            last_token: String::new(),
            lab,
        };
        for spec in specs {
            cluster.add(spec).await?;
        }
        Ok(cluster)
    }

    /// Starts one more node.
    ///
    /// # Errors
    /// [`LocalError`] when it cannot be started or admitted.
    pub async fn add(&mut self, spec: &LocalSpec) -> Result<&LocalNode, LocalError> {
        let through = self.nodes.iter().position(|node| node.child.is_some());
        self.add_through(spec, through).await
    }

    /// Starts one more node, which joins at the node in place `through`.
    ///
    /// # Errors
    /// As for [`LocalCluster::add`].
    pub async fn add_through(&mut self, spec: &LocalSpec, through: Option<usize>) -> Result<&LocalNode, LocalError> {
        let first = self.nodes.is_empty();
        let mut arguments: Vec<String> = Vec::new();
        if first {
            arguments.push("init".to_owned());
        } else {
            let token = self.json(&["token", "create"]).await?;
            let token = token["token"].as_str().unwrap_or_default().to_owned();
            let peer = through.map(|place| self.nodes[place].address.clone());
            self.last_token.clone_from(&token);
            arguments.extend(["join".to_owned(), peer.unwrap_or_default(), "--token".to_owned(), token]);
        }
        let data = self.path().join(&spec.label);
        for (flag, value) in [
            ("--name", &spec.label),
            ("--zone", &spec.zone),
            ("--simulate", &spec.simulate),
        ] {
            arguments.extend([flag.to_owned(), value.clone()]);
        }
        let place = self.nodes.len();
        let host = self
            .lab
            .as_ref()
            .map_or_else(|| "127.0.0.1".to_owned(), |lab| lab.address(place));
        let ports = ["--port", "--lease-port", "--bulk-port"]
            .into_iter()
            .flat_map(|flag| [flag.to_owned(), "0".to_owned()]);
        arguments.extend(["--bind".to_owned(), host]);
        arguments.extend(ports);
        let (child, ready) = self.launch(place, &spec.label, &data, &arguments).await?;
        let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
        let node = LocalNode {
            spec: spec.clone(),
            data,
            id: text("node"),
            address: text("address"),
            child: Some(child),
        };
        self.nodes.push(node);
        Ok(&self.nodes[self.nodes.len() - 1])
    }

    /// Starts a node again that was killed, with its data.
    ///
    /// # Errors
    /// [`LocalError`] when it does not get ready.
    pub async fn restart(&mut self, index: usize) -> Result<(), LocalError> {
        let (label, data) = (self.nodes[index].spec.label.clone(), self.nodes[index].data.clone());
        let (child, ready) = self.launch(index, &label, &data, &["serve".to_owned()]).await?;
        let node = &mut self.nodes[index];
        node.child = Some(child);
        ready["address"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut node.address);
        Ok(())
    }

    /// The scratch folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// The program that the nodes run.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The nodes, in the order that they were started in.
    #[must_use]
    pub fn nodes(&self) -> &[LocalNode] {
        &self.nodes
    }

    /// The join token that the last node was admitted with.
    #[must_use]
    pub fn last_token(&self) -> &str {
        &self.last_token
    }

    /// The place of the node with this id among [`LocalCluster::nodes`].
    #[must_use]
    pub fn index_of(&self, id: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// A `holdfast` command against this cluster: through any node that runs, with the operator's credentials.
    #[must_use]
    pub fn command<I: AsRef<OsStr>>(&self, arguments: &[I]) -> Command {
        self.prepared(Command::new(&self.program), arguments)
    }

    fn prepared<I: AsRef<OsStr>>(&self, mut command: Command, arguments: &[I]) -> Command {
        command
            .args(arguments)
            .env("HOLDFAST_CONFIG", self.config())
            .stdin(Stdio::null());
        if let Some(addresses) = self.addresses() {
            command.env("HOLDFAST_ADDRESS", addresses);
        }
        command.process_group(0).kill_on_drop(true);
        command
    }

    /// The file with the operator's credentials.
    pub(crate) fn credentials(&self) -> PathBuf {
        self.config().join("credentials.toml")
    }

    fn config(&self) -> PathBuf {
        self.path().join("config")
    }

    /// The addresses of the nodes that run, with commas.
    pub(crate) fn addresses(&self) -> Option<String> {
        let running = self.nodes.iter().filter(|node| node.child.is_some());
        let addresses: Vec<&str> = running.map(|node| node.address.as_str()).collect();
        (!addresses.is_empty()).then(|| addresses.join(","))
    }

    /// A client of this cluster with the operator's credentials.
    ///
    /// # Errors
    /// What is wrong with the credentials, as text.
    pub fn client(&self) -> Result<Client, String> {
        client_at(&self.credentials(), self.addresses(), OsClock, OsEntropy)
    }

    /// Cuts a node's network, in a lab.
    ///
    /// # Errors
    /// [`LabError`] without a lab, or when the kernel refuses.
    pub fn cut(&self, index: usize, cut: Cut) -> Result<(), LabError> {
        self.lab
            .as_ref()
            .map_or(Err(LabError::NotRoot), |lab| lab.cut(index, cut))
    }

    /// Mends it.
    ///
    /// # Errors
    /// As for [`LocalCluster::cut`].
    pub fn heal(&self, index: usize) -> Result<(), LabError> {
        self.lab.as_ref().map_or(Err(LabError::NotRoot), |lab| lab.heal(index))
    }

    /// Runs a command with `--json` and returns what it printed.
    ///
    /// # Errors
    /// [`LocalError`] when it fails or prints something else.
    pub async fn json(&self, arguments: &[&str]) -> Result<Value, LocalError> {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let output = self.command(&all).output().await.map_err(os("run holdfast"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let text = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
            return Err(LocalError::Command {
                command: arguments.join(" "),
                code: output.status.to_string(),
                text,
            });
        }
        // A command that lists events prints a line for each; they become one list.
        let is_list = arguments.first() == Some(&"events");
        let text = if is_list {
            format!("[{}]", text.trim_end().replace('\n', ","))
        } else {
            text
        };
        serde_json::from_str(&text).map_err(|_| LocalError::Output {
            command: arguments.join(" "),
            text,
        })
    }

    /// What a node's `/metrics` says; nothing when it does not answer.
    pub async fn metrics(&self, address: &str) -> String {
        let client = client_at(
            &self.config().join("credentials.toml"),
            Some(address.to_owned()),
            OsClock,
            OsEntropy,
        );
        match client {
            Ok(client) => client.text("/metrics").await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    /// Kills a node's daemon with SIGKILL. Its supervisors and their work go on.
    pub async fn kill_daemon(&mut self, index: usize) {
        if let Some(mut child) = self.nodes[index].child.take() {
            // An error here says that it has ended already.
            let _ = child.start_kill();
            let _ = child.wait().await;
        }
    }

    /// Kills everything of a node at once, as a power loss would: daemon, supervisors and work.
    pub async fn kill_all(&mut self, index: usize) {
        let daemon = self.nodes[index].pid();
        // The daemon first: it must not see its supervisors die and report it.
        if let Some(pid) = daemon {
            signal(pid);
        }
        for pid in self.supervisors(index) {
            let below = procfs::descendants(pid).unwrap_or_default();
            signal(pid);
            below.into_keys().for_each(signal);
        }
        self.kill_daemon(index).await;
    }

    /// The pids of a node's supervisors that run now.
    #[must_use]
    pub fn supervisors(&self, index: usize) -> Vec<i32> {
        let data = self.nodes[index].data.to_string_lossy().into_owned();
        let of_node = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
            words.iter().any(|word| word == "supervise") && words.iter().any(|word| word.starts_with(&data))
        };
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        procfs::descendants(own)
            .unwrap_or_default()
            .into_keys()
            .filter(of_node)
            .collect()
    }

    async fn launch(
        &self,
        place: usize,
        label: &str,
        data: &Path,
        arguments: &[String],
    ) -> Result<(Child, Value), LocalError> {
        let log_path = self.path().join(format!("{label}.log"));
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&log_path)
            .map_err(os("open a node's log"))?;
        let mut command = match &self.lab {
            None => self.command(arguments),
            Some(lab) => {
                let [enter, network] = lab.enter(place);
                let mut inner = vec![network, self.program.to_string_lossy().into_owned()];
                inner.extend(arguments.iter().cloned());
                self.prepared(Command::new(enter), &inner)
            }
        };
        command
            .arg("--json")
            .arg("--data")
            .arg(data)
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.spawn().map_err(os("start a node"))?;
        let failed = || {
            let text = fs::read_to_string(&log_path).unwrap_or_default();
            let from = text.char_indices().rev().nth(2000).map_or(0, |(at, _)| at);
            LocalError::NotReady {
                label: label.to_owned(),
                text: text[from..].to_owned(),
            }
        };
        let mut lines = BufReader::new(child.stdout.take().ok_or_else(failed)?).lines();
        let line = tokio::time::timeout(READY_WITHIN, lines.next_line())
            .await
            .ok()
            .and_then(Result::ok)
            .flatten();
        let ready = line
            .and_then(|line| serde_json::from_str::<Value>(&line).ok())
            .ok_or_else(failed)?;
        if ready["address"].as_str().is_none() {
            return Err(failed());
        }
        Ok((child, ready))
    }
}

impl Drop for LocalCluster {
    /// Ends every process below this one, and removes the control groups that they were in; the folder goes last.
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.child.take().as_mut().map(Child::start_kill);
        }
        let ids = self.nodes.iter().filter_map(|node| node.id.parse().ok());
        let roots: Vec<String> = ids.map(Outfit::group_root_of).collect();
        for root in &roots {
            // Frozen work holds a SIGKILL back until it is thawed, which a group's kill does.
            cgroup::inhabited(GroupChoice::Auto, root)
                .values()
                .for_each(Group::kill);
        }
        end_all_of(self.scratch.path());
        for root in &roots {
            cgroup::remove_all(GroupChoice::Auto, root);
        }
    }
}

/// A client with the credentials in a file, for other addresses than it names.
///
/// # Errors
/// What is wrong with them, as text.
pub(crate) fn client_at(
    path: &Path,
    address: Option<String>,
    clock: impl Clock,
    entropy: impl Entropy,
) -> Result<Client, String> {
    let overrides = Overrides {
        address,
        ..Overrides::default()
    };
    let found = Credentials::find(path, &overrides).map_err(|error| error.to_string())?;
    let tls = found.tls().map_err(|error| error.to_string())?;
    Client::new(
        found.addresses,
        tls,
        found.bearer.as_ref(),
        Arc::new(clock),
        Arc::new(entropy),
    )
    .map_err(|error| error.to_string())
}

/// Makes this process the parent of whatever is orphaned below it.
fn adopt_orphans() {
    // Refused only by kernels before 3.4; then orphans go to init, and only the daemons are found.
    let _ = rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1));
}

fn signal(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // An error says that it has ended already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Kills and reaps until nothing that was started from `scratch` is left below this process.
fn end_all_of(scratch: &Path) {
    for _ in 0..500 {
        let left = processes_of(scratch);
        for pid in &left {
            signal(*pid);
            if let Some(pid) = rustix::process::Pid::from_raw(*pid) {
                // Only orphans that this process adopted can be reaped here; for others the error says so.
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
            }
        }
        if left.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The live processes below this one whose command line or environment names `scratch`, and all below those.
fn processes_of(scratch: &Path) -> BTreeSet<i32> {
    let mark = scratch.as_os_str().as_encoded_bytes();
    let names = |pid: i32, file: &str| {
        fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|bytes| bytes.windows(mark.len()).any(|part| part == mark))
    };
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut found = BTreeSet::new();
    for pid in procfs::descendants(own).unwrap_or_default().into_keys() {
        if names(pid, "cmdline") || names(pid, "environ") {
            found.extend(procfs::descendants(pid).unwrap_or_default().into_keys());
            found.insert(pid);
        }
    }
    found
}

fn os(what: &str) -> impl FnOnce(io::Error) -> LocalError {
    let what = what.to_owned();
    move |source| LocalError::Os { what, source }
}
