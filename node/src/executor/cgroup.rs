//! The cgroup of one attempt: made, limited, frozen, thawed, emptied, counted, removed.
//!
//! The supervisor makes it, the guard of the work and the attach code use it through its record, so that it can be
//! swept after whoever made it was killed. Version 1 hierarchies and the unified one both work, also mixed: each
//! controller is taken where this machine has it. The rule: SIGKILL first and thaw second, because a version 1
//! freezer holds SIGKILL back, and between the two nothing may run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::supervisor::spec::{GroupChoice, GroupLimits};

pub mod hierarchy;

use hierarchy::{Hierarchies, Version};

/// The controllers that a lease's group uses, where the machine has them.
const CONTROLLERS: [&str; 4] = ["freezer", "memory", "cpu", "pids"];

/// Pause between two looks at a state that the kernel is changing.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// One directory of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Which interface its files have.
    pub version: Version,
    /// The directory.
    pub dir: PathBuf,
}

/// The cgroup of one attempt: up to one directory per controller (several may share one).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Controller to directory. Empty when no cgroup could be made.
    pub seats: BTreeMap<String, Seat>,
    /// What was asked for and could not be had, in words.
    pub missing: Vec<String>,
}

/// A freeze that did not take hold.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// This machine gave the group no freezer.
    #[error("the group has no freezer")]
    NoFreezer,
    /// The kernel refused.
    #[error("could not write the freezer")]
    Write(#[source] io::Error),
    /// Some task did not stop in time, for example one that waits for a broken disk.
    #[error("tasks still run after {0} ms of freezing")]
    Timeout(u64),
}

impl Group {
    /// Makes the group `root/name` in every hierarchy that permits it and sets the limits. What is not permitted is
    /// listed in `missing`; that is not an error, because a node without cgroups still runs work.
    pub fn create(choice: GroupChoice, root: &str, name: &str, limits: &GroupLimits) -> Self {
        let mut group = Self::default();
        if choice == GroupChoice::Off {
            return group;
        }
        let hierarchies = Hierarchies::read();
        for controller in CONTROLLERS {
            let made = match hierarchies.base(controller, choice) {
                Some((version, base)) => {
                    make_dir(&base, root, name, version, controller).map(|dir| Seat { version, dir })
                }
                None => Err(io::Error::new(io::ErrorKind::NotFound, "no such controller here")),
            };
            match made {
                Ok(seat) => drop(group.seats.insert(controller.to_owned(), seat)),
                Err(error) => group.missing.push(format!("{controller}: {error}")),
            }
        }
        group.set_limits(limits);
        group
    }

    /// Whether there is a freezer.
    pub fn can_freeze(&self) -> bool {
        self.seats.contains_key("freezer")
    }

    /// The files into which a process with one thread writes `0` to enter the group, opened by whoever may.
    ///
    /// In version 1 that is `tasks`: for a thread that moves itself the kernel skips the lock of all thread groups,
    /// whose grace period costs some 10 ms for each hierarchy on a busy machine.
    pub fn entrances(&self) -> io::Result<Vec<File>> {
        let files: BTreeSet<PathBuf> = self
            .seats
            .values()
            .map(|seat| match seat.version {
                Version::V1 => seat.dir.join("tasks"),
                Version::V2 => seat.dir.join("cgroup.procs"),
            })
            .collect();
        files
            .iter()
            .map(|file| OpenOptions::new().write(true).open(file))
            .collect()
    }

    /// Stops every task of the group from executing; returns when the kernel says that all have stopped.
    pub fn freeze(&self, bound_ms: u64) -> Result<(), FreezeError> {
        let seat = self.seats.get("freezer").ok_or(FreezeError::NoFreezer)?;
        let (file, text) = match seat.version {
            Version::V1 => ("freezer.state", "FROZEN"),
            Version::V2 => ("cgroup.freeze", "1"),
        };
        fs::write(seat.dir.join(file), text).map_err(FreezeError::Write)?;
        // Counted in looks and not on a clock: a supervisor that was itself not scheduled gives the tasks more time.
        for _ in 0..=bound_ms {
            if self.is_frozen() {
                return Ok(());
            }
            thread::sleep(LOOK_AGAIN);
        }
        Err(FreezeError::Timeout(bound_ms))
    }

    /// Whether the kernel says that every task has stopped.
    pub fn is_frozen(&self) -> bool {
        let Some(seat) = self.seats.get("freezer") else {
            return false;
        };
        match seat.version {
            Version::V1 => read(&seat.dir, "freezer.state").trim() == "FROZEN",
            Version::V2 => read(&seat.dir, "cgroup.events").lines().any(|line| line == "frozen 1"),
        }
    }

    /// Lets every task run again.
    pub fn thaw(&self) -> io::Result<()> {
        match self.seats.get("freezer") {
            Some(Seat {
                version: Version::V1,
                dir,
            }) => fs::write(dir.join("freezer.state"), "THAWED"),
            Some(Seat {
                version: Version::V2,
                dir,
            }) => fs::write(dir.join("cgroup.freeze"), "0"),
            None => Ok(()),
        }
    }

    /// The processes in the group and below it, as this PID namespace numbers them.
    pub fn pids(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self
            .dirs()
            .iter()
            .flat_map(|dir| pids_below(dir))
            .filter(|pid| *pid > 0)
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// SIGKILL to everything in the group, then a thaw, so that the signal is delivered. One round: callers repeat
    /// until `pids` is empty, because a task may fork between the reading and the signal.
    pub fn kill(&self) {
        if let Some(Seat {
            version: Version::V2,
            dir,
        }) = self.seats.get("freezer")
        {
            // One write reaches everything below, forks included. Kernels before 5.14 lack the file.
            let _ = fs::write(dir.join("cgroup.kill"), "1");
        }
        // A pidfd taken before the second reading belongs to a process that is in the group, whatever its number.
        let held: Vec<_> = self
            .pids()
            .into_iter()
            .filter_map(|pid| Some((pid, open(pid)?)))
            .collect();
        let still = self.pids();
        for (pid, handle) in held {
            if still.contains(&pid) {
                let _ = pidfd_send_signal(handle, Signal::KILL);
            }
        }
        let _ = self.thaw();
    }

    /// How often the kernel killed for lack of memory here: the exit code of the work does not tell.
    pub fn oom_kills(&self) -> u64 {
        let Some(seat) = self.seats.get("memory") else { return 0 };
        let file = match seat.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = read(&seat.dir, file);
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Removes the empty group, its sub-groups and the root when nobody else is in it. False while the kernel keeps it.
    pub fn remove(&self) -> bool {
        let mut gone = true;
        for dir in self.dirs() {
            remove_below(&dir);
            gone &= !dir.exists();
            if let Some(root) = dir.parent() {
                // Fails while another lease of this node is in it, which is what we want.
                let _ = fs::remove_dir(root);
            }
        }
        gone
    }

    fn dirs(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = self.seats.values().map(|seat| seat.dir.clone()).collect();
        dirs.sort_unstable();
        dirs.dedup();
        dirs
    }

    fn set_limits(&mut self, limits: &GroupLimits) {
        let mut set = |controller: &str, value: Option<u64>, write: &dyn Fn(&Seat, u64) -> io::Result<()>| {
            let Some(value) = value else { return };
            let result = match self.seats.get(controller) {
                Some(seat) => write(seat, value),
                None => return, // Already listed as missing.
            };
            if let Err(error) = result {
                self.missing.push(format!("{controller} limit: {error}"));
            }
        };
        set("memory", limits.memory_bytes, &|seat, bytes| match seat.version {
            Version::V1 => fs::write(seat.dir.join("memory.limit_in_bytes"), bytes.to_string()),
            Version::V2 => fs::write(seat.dir.join("memory.max"), bytes.to_string()),
        });
        set("cpu", limits.cpu_millis, &|seat, millis| {
            let quota = millis.saturating_mul(CPU_PERIOD_US / 1_000).max(CPU_QUOTA_MIN_US);
            match seat.version {
                Version::V1 => fs::write(seat.dir.join("cpu.cfs_period_us"), CPU_PERIOD_US.to_string())
                    .and_then(|()| fs::write(seat.dir.join("cpu.cfs_quota_us"), quota.to_string())),
                Version::V2 => fs::write(seat.dir.join("cpu.max"), format!("{quota} {CPU_PERIOD_US}")),
            }
        });
        set("pids", limits.pids_max, &|seat, max| {
            fs::write(seat.dir.join("pids.max"), max.to_string())
        });
    }
}

/// The kernel's default bandwidth period.
const CPU_PERIOD_US: u64 = 100_000;
/// The kernel refuses quotas below a millisecond.
const CPU_QUOTA_MIN_US: u64 = 1_000;

/// The groups below `root` in the freezer hierarchy (or the first one that has it) that hold processes, by name.
/// With it a daemon finds work of which it has no record.
pub fn inhabited(choice: GroupChoice, root: &str) -> BTreeMap<String, Group> {
    let hierarchies = Hierarchies::read();
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for controller in CONTROLLERS {
        let Some((version, base)) = hierarchies.base(controller, choice) else {
            continue;
        };
        for entry in fs::read_dir(base.join(root)).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let seat = Seat {
                version,
                dir: entry.path(),
            };
            groups
                .entry(name)
                .or_default()
                .seats
                .insert(controller.to_owned(), seat);
        }
    }
    groups
}

fn make_dir(base: &Path, root: &str, name: &str, version: Version, controller: &str) -> io::Result<PathBuf> {
    let dir = base.join(root).join(name);
    let mut result = Ok(());
    // Another lease of this node may remove the empty root between our two steps.
    for _ in 0..3 {
        result = fs::create_dir_all(&dir);
        if result.is_ok() {
            break;
        }
    }
    result?;
    if version == Version::V2 && controller != "freezer" {
        // Freezing and killing belong to every group of the unified hierarchy; the others are enabled from above.
        for parent in [base.to_owned(), base.join(root)] {
            fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"))?;
        }
    }
    Ok(dir)
}

fn pids_below(dir: &Path) -> Vec<i32> {
    let mut pids: Vec<i32> = read(dir, "cgroup.procs")
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    for below in sub_groups(dir) {
        pids.extend(pids_below(&below));
    }
    pids
}

/// Removes everything below `root` and itself, in every hierarchy; only what is empty goes.
pub fn remove_all(choice: GroupChoice, root: &str) {
    let hierarchies = Hierarchies::read();
    for controller in CONTROLLERS {
        if let Some((_, base)) = hierarchies.base(controller, choice) {
            remove_below(&base.join(root));
        }
    }
}

fn remove_below(dir: &Path) {
    for below in sub_groups(dir) {
        remove_below(&below);
    }
    let _ = fs::remove_dir(dir);
}

fn sub_groups(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn read(dir: &Path, file: &str) -> String {
    fs::read_to_string(dir.join(file)).unwrap_or_default()
}

fn open(pid: i32) -> Option<std::os::fd::OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}
