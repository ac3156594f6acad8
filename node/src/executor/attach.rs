//! Finding supervisors again: after a restart of the daemon, after a reboot, after somebody killed one.
//!
//! Called at the start of the executor and whenever a supervisor stops answering. A saved pid proves nothing: it may
//! belong to anybody by now. The rule: a process is ours only by boot id, start time and pidfd together, and a cgroup
//! only by its own name; anything else is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use super::cgroup::{self, Group};
use super::launch::FOLDER_PREFIX;
use super::procfs;
use super::supervisor::control::{ControlClient, ControlError, Status};
use super::supervisor::course::Order;
use super::supervisor::record::{self, CLAIM_FILE, EXIT_FILE, ExitRecord, IDENTITY_FILE, Identity};
use super::supervisor::spec::GroupChoice;

/// How long a supervisor may take to answer. A freeze takes longer than anything else it does, and has its own bound.
/// Short, because one that is stopped by a signal holds up the renewals of all others for this long, once.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause between two rounds of ending something.
const SWEEP_AGAIN: Duration = Duration::from_millis(2);
/// Rounds of ending something: two seconds of pauses.
const SWEEP_ROUNDS: u32 = 1_000;

/// What became of an attempt that has a folder.
#[derive(Debug)]
pub enum Found {
    /// Its supervisor runs and answers.
    Running(Box<Attached>, Status),
    /// Its supervisor runs and does not answer (stopped by a signal, or its machine is overloaded). Its guard watches.
    Silent(OwnedFd),
    /// It has ended, with proof.
    Ended(ExitRecord),
    /// It runs no more and nothing says how it ended.
    Lost(Lost),
    /// No supervisor ever took it.
    NotStarted,
}

/// Why an attempt is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The machine was booted again.
    Reboot,
    /// The supervisor was killed. What was left of the work has been ended.
    SupervisorGone,
    /// A supervisor took the folder and was gone before it started anything.
    BeforeStart,
}

/// Why nothing could be said about an attempt.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A file of the folder is damaged or unreadable.
    #[error("could not read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// The record names things that are not this attempt's.
    #[error("{0} belongs to another attempt")]
    Foreign(PathBuf),
    /// A process of the work could not be ended.
    #[error("processes of {0} do not end")]
    Unending(String),
}

/// A supervisor to which this daemon is attached.
#[derive(Debug)]
pub struct Attached {
    folder: PathBuf,
    identity: Identity,
    handle: OwnedFd,
    client: ControlClient,
}

impl Attached {
    /// The run.
    pub fn run(&self) -> &str {
        &self.identity.run
    }

    /// The folder with its records and its output.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Who supervises.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Becomes readable when the supervisor has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Sends an order, or only asks. After a failed exchange, attach again.
    pub fn send(&mut self, order: Option<Order>) -> Result<Status, ControlError> {
        match self.client.send(order) {
            Err(ControlError::Exchange(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                // The supervisor keeps few connections and drops the oldest; a new one settles whether it lives.
                self.client = ControlClient::connect(&self.folder, &self.identity.nonce, ANSWER_TIMEOUT)?;
                self.client.send(order)
            }
            result => result,
        }
    }
}

/// Finds out what became of the attempt in a folder, and attaches to it when it runs.
pub fn attach(folder: &Path) -> Result<Found, AttachError> {
    attach_in(folder, &procfs::boot_id(), ANSWER_TIMEOUT)
}

/// The same, with the id of the present boot, and how long to wait for an answer, as values.
pub fn attach_in(folder: &Path, boot_id: &str, timeout: Duration) -> Result<Found, AttachError> {
    if let Some(exit) = read_exit(folder)? {
        return Ok(Found::Ended(exit));
    }
    let path = folder.join(IDENTITY_FILE);
    let identity: Option<Identity> =
        record::read(folder, IDENTITY_FILE).map_err(|error| AttachError::Read(path.clone(), error))?;
    let Some(identity) = identity else {
        return unidentified(folder);
    };
    if !is_of(&identity, folder) {
        return Err(AttachError::Foreign(path));
    }
    if identity.boot_id != boot_id {
        return Ok(Found::Lost(Lost::Reboot));
    }
    let Some(handle) = procfs::open(identity.pid, identity.start_ticks) else {
        return without_supervisor(folder, &identity);
    };
    let connected = ControlClient::connect(folder, &identity.nonce, timeout)
        .and_then(|mut client| client.send(None).map(|status| (client, status)));
    match connected {
        Ok((client, status)) => {
            let attached = Attached {
                folder: folder.to_owned(),
                identity,
                handle,
                client,
            };
            Ok(Found::Running(Box::new(attached), status))
        }
        // It may have ended between the two looks.
        Err(_) => match (read_exit(folder)?, procfs::open(identity.pid, identity.start_ticks)) {
            (Some(exit), _) => Ok(Found::Ended(exit)),
            (None, Some(handle)) => Ok(Found::Silent(handle)),
            (None, None) => without_supervisor(folder, &identity),
        },
    }
}

fn read_exit(folder: &Path) -> Result<Option<ExitRecord>, AttachError> {
    record::read(folder, EXIT_FILE).map_err(|error| AttachError::Read(folder.join(EXIT_FILE), error))
}

/// Whether a record is this folder's own: otherwise its pids and cgroups are somebody else's business.
fn is_of(identity: &Identity, folder: &Path) -> bool {
    let named = folder
        .file_name()
        .and_then(|name| name.to_str()?.strip_prefix(FOLDER_PREFIX));
    let group = |dir: &Path| dir.file_name().is_some_and(|name| name == identity.run.as_str());
    named == Some(identity.run.as_str()) && identity.group.seats.values().all(|seat| group(&seat.dir))
}

/// A folder without an identity record: nothing was ever started in it, but a supervisor may be about to.
fn unidentified(folder: &Path) -> Result<Found, AttachError> {
    if !folder.join(CLAIM_FILE).exists() {
        return Ok(Found::NotStarted);
    }
    let Some(root) = folder.parent() else {
        return Ok(Found::NotStarted);
    };
    let mine = |found: &Supervisor| found.folder == folder;
    let Some(found) = supervisors(root).into_iter().find(mine) else {
        return Ok(Found::Lost(Lost::BeforeStart));
    };
    match procfs::open(found.pid, found.start_ticks) {
        Some(handle) => Ok(Found::Silent(handle)),
        None => Ok(Found::Lost(Lost::BeforeStart)),
    }
}

/// The supervisor is dead and left no exit record. Its guard ends the work when it notices; when that was killed too,
/// nobody would enforce a deadline any more, so what is left is ended here and now.
fn without_supervisor(folder: &Path, identity: &Identity) -> Result<Found, AttachError> {
    if let Some(exit) = read_exit(folder)? {
        return Ok(Found::Ended(exit));
    }
    for _ in 0..SWEEP_ROUNDS {
        identity.group.kill();
        // The guard leaves by itself. One that was stopped by a signal does not.
        let guard = procfs::open(identity.guard_pid, identity.guard_start_ticks);
        if guard.is_none() && identity.group.pids().is_empty() {
            identity.group.remove();
            return Ok(Found::Lost(Lost::SupervisorGone));
        }
        end_guard(identity.guard_pid, identity.guard_start_ticks);
        thread::sleep(SWEEP_AGAIN);
    }
    Err(AttachError::Unending(identity.run.clone()))
}

/// Ends a guard and what it guards. Its descendants first: without a PID namespace they would outlive it.
fn end_guard(pid: i32, start_ticks: u64) {
    let Some(guard) = procfs::open(pid, start_ticks) else {
        return;
    };
    for (pid, stat) in procfs::descendants(pid).unwrap_or_default() {
        procfs::signal(pid, stat.start_ticks, Signal::KILL);
    }
    let _ = pidfd_send_signal(guard, Signal::KILL);
}

/// A supervisor process, found by its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Supervisor {
    folder: PathBuf,
    pid: i32,
    start_ticks: u64,
    /// A guard whose supervisor lives: it ends the work by itself once that one is gone.
    is_guard: bool,
}

/// The supervisors of attempts below an executor's folder, whether or not the folders still exist. The guard, forked
/// from a supervisor, has the same command line.
fn supervisors(root: &Path) -> Vec<Supervisor> {
    let mut found = Vec::new();
    for pid in procfs::pids().into_iter().flatten() {
        let line = procfs::command_line(pid);
        let mut arguments = line.split(|byte| *byte == 0).skip(1);
        let (Some(b"supervise"), Some(folder)) = (arguments.next(), arguments.next()) else {
            continue;
        };
        let Ok(folder) = std::str::from_utf8(folder) else {
            continue;
        };
        let folder = PathBuf::from(folder);
        let Some(stat) = procfs::stat(pid).filter(|_| folder.parent() == Some(root)) else {
            continue;
        };
        if !matches!(stat.state, 'Z' | 'X') {
            found.push((
                Supervisor {
                    folder,
                    pid,
                    start_ticks: stat.start_ticks,
                    is_guard: false,
                },
                stat.parent,
            ));
        }
    }
    let pids: BTreeSet<i32> = found.iter().map(|(supervisor, _)| supervisor.pid).collect();
    let guards = |(supervisor, parent)| Supervisor {
        is_guard: pids.contains(&parent),
        ..supervisor
    };
    found.into_iter().map(guards).collect()
}

/// Work that runs below this node's roots, by run.
#[derive(Debug, Default)]
pub struct Unknown {
    /// The run, as far as folder or cgroup tell.
    pub run: String,
    group: Group,
    supervisors: Vec<Supervisor>,
}

impl Unknown {
    /// Ends it: the supervision first, so that nothing restarts or records anything, then the group.
    pub fn end(&self) -> Result<(), AttachError> {
        for round in 0..SWEEP_ROUNDS {
            for supervisor in &self.supervisors {
                if !supervisor.is_guard {
                    procfs::signal(supervisor.pid, supervisor.start_ticks, Signal::KILL);
                } else if round > SWEEP_ROUNDS / 2 {
                    end_guard(supervisor.pid, supervisor.start_ticks);
                }
            }
            self.group.kill();
            let supervised = self
                .supervisors
                .iter()
                .any(|one| procfs::open(one.pid, one.start_ticks).is_some());
            if !supervised && self.group.pids().is_empty() {
                self.group.remove();
                return Ok(());
            }
            thread::sleep(SWEEP_AGAIN);
        }
        Err(AttachError::Unending(self.run.clone()))
    }
}

/// Everything that runs below this node's executor folder and cgroup root but is not among the `known` runs: the
/// executor's own record of it was lost.
pub fn unknown(folder: &Path, group_root: &str, known: &BTreeSet<String>) -> Vec<Unknown> {
    let mut found: BTreeMap<String, Unknown> = BTreeMap::new();
    for choice in [GroupChoice::V1, GroupChoice::V2] {
        for (run, group) in cgroup::inhabited(choice, group_root) {
            if !known.contains(&run) && !group.pids().is_empty() {
                found.entry(run).or_default().group.seats.extend(group.seats);
            }
        }
    }
    for supervisor in supervisors(folder) {
        let name = supervisor
            .folder
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(FOLDER_PREFIX));
        let Some(run) = name.map(str::to_owned) else { continue };
        if !known.contains(&run) {
            found.entry(run).or_default().supervisors.push(supervisor);
        }
    }
    for (run, unknown) in &mut found {
        unknown.run.clone_from(run);
    }
    found.into_values().collect()
}

/// The names of the runs that have a folder.
pub fn recorded(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut runs = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        runs.extend(
            name.to_str()
                .and_then(|name| name.strip_prefix(FOLDER_PREFIX))
                .map(str::to_owned),
        );
    }
    Ok(runs)
}
