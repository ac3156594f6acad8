//! What the kernel says about processes: boot id, start times, states, ancestry.
//!
//! Called by the supervisor (which must find everything that descends from it) and by the attach code (which must
//! not mistake another program for ours). The rule: a pid alone names nothing. It is compared with a start time and
//! a boot id, or it is held as a pidfd, before anything is done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The fields of `/proc/PID/stat` that this crate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    /// One letter: R, S, D, T (stopped), Z (zombie), X.
    pub state: char,
    /// The parent, as seen in this PID namespace.
    pub parent: i32,
    /// Clock ticks between boot and the start of the process: with the boot id it names one process for ever.
    pub start_ticks: u64,
}

/// The random id of this boot of the kernel. Empty when `/proc` does not show it, which then never matches a record.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// State, parent and start time of a process; `None` when there is no such process.
pub fn stat(pid: i32) -> Option<ProcessStat> {
    parse_stat(&String::from_utf8_lossy(&read::<1024>(pid, "stat")?))
}

/// The arguments of a process, each ended by a zero byte, as far as 4 KiB go; empty when there is no such process.
pub fn command_line(pid: i32) -> Vec<u8> {
    read::<4096>(pid, "cmdline").unwrap_or_default()
}

/// The first `SIZE` bytes of a file of a process in one read: these files have no length, and growing a buffer would
/// take eight.
fn read<const SIZE: usize>(pid: i32, file: &str) -> Option<Vec<u8>> {
    let mut buffer = [0; SIZE];
    let mut file = fs::File::open(format!("/proc/{pid}/{file}")).ok()?;
    let count = file.read(&mut buffer).ok()?;
    Some(buffer[..count].to_vec())
}

/// Reads a line of `/proc/PID/stat`. The command may hold spaces and brackets, so fields count from the last `)`.
fn parse_stat(line: &str) -> Option<ProcessStat> {
    let rest = line.get(line.rfind(')')? + 2..)?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let start_ticks = fields.nth(17)?.parse().ok()?;
    Some(ProcessStat {
        state,
        parent,
        start_ticks,
    })
}

/// The pids that `/proc` shows.
pub fn pids() -> io::Result<impl Iterator<Item = i32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// Every process that `/proc` shows, in order of pid.
pub fn all() -> io::Result<BTreeMap<i32, ProcessStat>> {
    Ok(pids()?.filter_map(|pid| Some((pid, stat(pid)?))).collect())
}

/// The live processes that descend from `root`, without it and without zombies.
///
/// A subreaper, and the init of a PID namespace, is an ancestor of everything that was ever started below it:
/// orphans return to it. So this finds daemonised grandchildren too.
pub fn descendants(root: i32) -> io::Result<BTreeMap<i32, ProcessStat>> {
    Ok(descendants_in(&all()?, root))
}

fn descendants_in(all: &BTreeMap<i32, ProcessStat>, root: i32) -> BTreeMap<i32, ProcessStat> {
    let mut below: BTreeSet<i32> = BTreeSet::from([root]);
    // Pids wrap, so a child may have a smaller number than its parent: repeat until nothing is added.
    loop {
        let before = below.len();
        below.extend(
            all.iter()
                .filter(|(_, stat)| below.contains(&stat.parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if below.len() == before {
            break;
        }
    }
    all.iter()
        .filter(|(pid, stat)| **pid != root && below.contains(pid) && !matches!(stat.state, 'Z' | 'X'))
        .map(|(pid, stat)| (*pid, *stat))
        .collect()
}

/// A handle on the process that has this pid *and* this start time. `None` when it is gone or is another one.
pub fn open(pid: i32, start_ticks: u64) -> Option<OwnedFd> {
    let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // Checked after opening: from here on the handle cannot move to another process.
    let now = stat(pid)?;
    (now.start_ticks == start_ticks && !matches!(now.state, 'Z' | 'X')).then_some(handle)
}

/// Sends a signal to the process with this pid and start time. Returns whether there was one.
pub fn signal(pid: i32, start_ticks: u64, signal: Signal) -> bool {
    open(pid, start_ticks).is_some_and(|handle| pidfd_send_signal(handle, signal).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(parent: i32, state: char) -> ProcessStat {
        ProcessStat {
            state,
            parent,
            start_ticks: 1,
        }
    }

    #[test]
    fn a_command_with_brackets_and_spaces_does_not_shift_the_fields() {
        let line = "42 (a) b (c)) T 7 42 42 0 -1 4194304 100 0 0 0 1 2 3 4 20 0 1 0 987654 1 2 3";
        assert_eq!(
            parse_stat(line),
            Some(ProcessStat {
                state: 'T',
                parent: 7,
                start_ticks: 987_654
            })
        );
        assert_eq!(parse_stat("nonsense"), None);
    }

    #[test]
    fn descendants_are_found_across_wrapped_pids_and_zombies_are_left_out() {
        let all = BTreeMap::from([
            (10, at(1, 'S')),
            (5, at(10, 'S')),
            (3, at(5, 'R')),
            (8, at(3, 'Z')),
            (9, at(1, 'S')),
        ]);
        assert_eq!(descendants_in(&all, 10).into_keys().collect::<Vec<_>>(), [3, 5]);
    }

    #[test]
    fn a_pid_with_another_start_time_is_not_opened() {
        let me = std::process::id().cast_signed();
        let start = stat(me).expect("this process is in /proc").start_ticks;
        assert!(open(me, start).is_some());
        assert!(open(me, start + 1).is_none());
    }
}
