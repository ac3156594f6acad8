//! The files by which a supervisor is known after its daemon, or it itself, has died.
//!
//! `supervisor.json` says who supervises (enough to re-attach or to sweep), `exit.json` how the run ended. The rule:
//! an exit record appears whole or not at all, is durable once it appears, and is written only after the group was
//! proven empty.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::course::EndCause;
use crate::executor::cgroup::Group;

/// File name of the spec, written by the daemon.
pub const SPEC_FILE: &str = "spec.json";
/// File name of the identity record.
pub const IDENTITY_FILE: &str = "supervisor.json";
/// File name of the exit record.
pub const EXIT_FILE: &str = "exit.json";
/// File name of the control socket.
pub const SOCKET_FILE: &str = "control.sock";
/// Present once a supervisor has taken the folder: it is never taken twice.
pub const CLAIM_FILE: &str = "claimed";
/// The working directory of work that names none.
pub const WORK_DIR: &str = "work";

/// How the work is kept together and told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Namespace {
    /// Own PID namespace: the end of its init is the end of everything in it.
    Pid,
    /// The same, inside a user namespace, without root.
    UserPid,
    /// None: a subreaper and scans of its descendants.
    None,
}

/// Who supervises a run: written before the work is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The run of the spec.
    pub run: String,
    /// The boot in which all of the following means anything.
    pub boot_id: String,
    /// The supervisor's pid.
    pub pid: i32,
    /// Its start time in clock ticks since boot.
    pub start_ticks: u64,
    /// The guard's pid, as the host numbers it.
    pub guard_pid: i32,
    /// Its start time.
    pub guard_start_ticks: u64,
    /// Shown by whoever sends orders: proof of having read this file.
    pub nonce: String,
    /// The kind of isolation.
    pub namespace: Namespace,
    /// The cgroup.
    pub group: Group,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The run of the spec.
    pub run: String,
    /// Why it ended.
    pub cause: EndCause,
    /// Exit code of the main process, if it exited.
    pub code: Option<i32>,
    /// Signal that ended the main process, if one did.
    pub signal: Option<i32>,
    /// Kills for lack of memory that the kernel counted in the group.
    pub oom_kills: u64,
    /// Why the program could not be started, in words.
    pub launch_error: Option<String>,
    /// When the program was executed, boot clock; `None` when it never was.
    pub started_boot_ms: Option<u64>,
    /// When the group was proven empty, boot clock.
    pub ended_boot_ms: u64,
    /// Milliseconds of that time spent frozen.
    pub frozen_ms: u64,
    /// Output bytes that could not be written, for example on a full disk.
    pub output_lost_bytes: u64,
    /// The boot whose clock the times are on.
    pub boot_id: String,
}

/// Writes a record: temporary name, fsync, rename, fsync of the folder and its parent.
pub fn write_durable<T: Serialize>(folder: &Path, name: &str, record: &T) -> io::Result<()> {
    write_visible(folder, name, record, true)?;
    File::open(folder)?.sync_all()?;
    match folder.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Writes a record so that it appears whole. It need not survive a power loss: after one, what it names is gone.
pub fn write_atomic<T: Serialize>(folder: &Path, name: &str, record: &T) -> io::Result<()> {
    write_visible(folder, name, record, false)
}

fn write_visible<T: Serialize>(folder: &Path, name: &str, record: &T, sync: bool) -> io::Result<()> {
    let temporary = folder.join(format!("{name}.tmp"));
    let mut file = File::create(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(record).map_err(io::Error::other)?)?;
    if sync {
        file.sync_all()?;
    }
    drop(file);
    fs::rename(&temporary, folder.join(name))
}

/// Reads a record; `None` when there is none. A record that cannot be understood is an error, never "none".
pub fn read<T: DeserializeOwned>(folder: &Path, name: &str) -> io::Result<Option<T>> {
    match fs::read(folder.join(name)) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
