//! Which isolation holds on this node: namespaces and cgroup controllers, found by trying.
//!
//! The daemon asks once at start (`report`) and shows it in `nodes`. The trial runs in a child process, because a
//! process that has entered a namespace cannot leave it. The rule: what is reported was done, not deduced.

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use serde::{Deserialize, Serialize};

use super::cgroup::Group;
use super::cgroup::hierarchy::Version;
use super::supervisor::process::enter_namespace;
use super::supervisor::record::Namespace;
use super::supervisor::spec::{GroupChoice, GroupLimits, NamespaceChoice};

/// What holds here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// How the processes of a lease are kept together.
    pub namespace: Namespace,
    /// The interface that freezes a lease; without one, stop signals do it.
    pub freezer: Option<Version>,
    /// Whether memory limits hold.
    pub memory: bool,
    /// Whether CPU limits hold.
    pub cpu: bool,
    /// Whether limits on the number of processes hold.
    pub pids: bool,
    /// What could not be had and why, in words.
    pub missing: Vec<String>,
}

impl Isolation {
    /// A few words for a table.
    pub fn summary(&self) -> String {
        let namespace = match self.namespace {
            Namespace::Pid => "pid namespace",
            Namespace::UserPid => "user+pid namespace",
            Namespace::None => "descendant scan",
        };
        let freezer = match self.freezer {
            Some(Version::V1) => "cgroup v1",
            Some(Version::V2) => "cgroup v2",
            None => "stop signals",
        };
        let limits: Vec<&str> = [("memory", self.memory), ("cpu", self.cpu), ("pids", self.pids)]
            .into_iter()
            .filter_map(|(name, holds)| holds.then_some(name))
            .collect();
        let limits = if limits.is_empty() {
            "no limits".to_owned()
        } else {
            limits.join("+")
        };
        format!("{namespace}, {freezer}, {limits}")
    }
}

/// Asks a child process what holds here. Blocking; some milliseconds.
pub fn report(program: &Path, group_root: &str) -> io::Result<Isolation> {
    let output = Command::new(program)
        .args(["supervise", "--probe", group_root])
        .env_clear()
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(io::Error::other)
}

/// The child's side: tries, cleans up, prints.
pub(super) fn print_probe(group_root: &str) -> ExitCode {
    let limits = GroupLimits {
        memory_bytes: Some(1 << 30),
        cpu_millis: Some(1_000),
        pids_max: Some(64),
    };
    let name = format!("probe-{}", std::process::id());
    let group = Group::create(GroupChoice::Auto, group_root, &name, &limits);
    let holds = |controller: &str| {
        let refused = group.missing.iter().any(|text| text.starts_with(controller));
        group.seats.contains_key(controller) && !refused
    };
    let mut isolation = Isolation {
        namespace: Namespace::None,
        freezer: group.seats.get("freezer").map(|seat| seat.version),
        memory: holds("memory"),
        cpu: holds("cpu"),
        pids: holds("pids"),
        missing: group.missing.clone(),
    };
    group.remove();
    isolation.namespace = enter_namespace(NamespaceChoice::Auto);
    match serde_json::to_string(&isolation) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("could not print the isolation: {error}");
            ExitCode::FAILURE
        }
    }
}
