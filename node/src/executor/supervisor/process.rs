//! The system calls around a run: pipes, forks, namespaces, what the child does before exec.
//!
//! Used by the supervisor and its guard. All `unsafe` of the supervisor is here and in the guard's `pre_exec`. The
//! rule: the supervisor has one thread, so a fork copies no held lock and PDEATHSIG, which follows the spawning
//! thread, follows the process.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, Pid, fork, getgid, getppid, getuid, pipe2, setsid};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::record::{Namespace, WORK_DIR};
use super::spec::{NamespaceChoice, Spec};

/// A close-on-exec pipe; both ends as files.
pub(super) fn pipe(flags: OFlag) -> io::Result<(File, File)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC | flags)?;
    Ok((read.into(), write.into()))
}

/// Which side of a fork this is.
pub(super) enum Side {
    /// The old process, with the pid of the new one.
    Parent(Pid),
    /// The new process.
    Child,
}

/// Forks this single-threaded process.
pub(super) fn split() -> nix::Result<Side> {
    // SAFETY: the supervisor and everything it forks has exactly one thread (it is dispatched at the top of `main`,
    // before any runtime starts), so the child may do anything that the parent may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Side::Parent(child)),
        ForkResult::Child => Ok(Side::Child),
    }
}

/// Waits until one of the descriptors is readable, or the timeout.
pub(super) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: PollTimeout) {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Interrupted or not: every caller looks at all its sources again.
    let _ = poll(&mut polled, timeout);
}

/// Turns signals into a descriptor. The mask is inherited by the guard and reset for the work.
pub(super) fn signals(which: &[Signal]) -> nix::Result<SignalFd> {
    let mask: SigSet = which.iter().copied().collect();
    mask.thread_block()?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Makes the next child of this process the init of a PID namespace, if that is permitted in any way.
pub(in crate::executor) fn enter_namespace(choice: NamespaceChoice) -> Namespace {
    if choice == NamespaceChoice::Off {
        return Namespace::None;
    }
    if unshare(CloneFlags::CLONE_NEWPID).is_ok() {
        return Namespace::Pid;
    }
    let (uid, gid) = (getuid(), getgid());
    if unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID).is_err() {
        return Namespace::None;
    }
    // Same numbers inside as outside, so that files belong to whom they did.
    let _ = std::fs::write("/proc/self/setgroups", "deny");
    let _ = std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"));
    let _ = std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"));
    Namespace::UserPid
}

/// Where the work starts.
pub(super) fn work_dir(spec: &Spec, folder: &Path) -> PathBuf {
    spec.cwd.clone().unwrap_or_else(|| folder.join(WORK_DIR))
}

/// Turns the forked child into the work: its own session, inside its cgroup, dying with its guard.
pub(super) fn become_work(entrances: &[File], guard: Pid) -> io::Result<()> {
    // `Command` leaves the mask as it is, and the guard blocks what it reads through a descriptor.
    SigSet::empty().thread_set_mask()?;
    setsid()?;
    for mut entrance in entrances {
        entrance.write_all(b"0")?;
    }
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != guard {
        // The guard died before the line above; nobody would send the signal any more.
        return Err(io::Error::from_raw_os_error(nix::errno::Errno::ESRCH as i32));
    }
    nix::sys::prctl::set_no_new_privs()?;
    // A core file of a process with a GPU's memory mapped would fill the disk.
    setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )?;
    Ok(())
}
