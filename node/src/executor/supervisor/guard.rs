//! The guard: parent of the work, init of its PID namespace, and second watchdog.
//!
//! Forked by the supervisor, it starts the program, reaps orphans, reports the exit, and waits. A supervisor that was
//! stopped by a signal or hangs on a disk cannot enforce a deadline, so the guard knows two times from it, `freeze_at`
//! and `kill_at`, and acts on them alone. The rule: it does nothing that can block, and when the supervisor is gone
//! (its pipe closes) it ends everything, because nobody would enforce the next deadline.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::poll::PollTimeout;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::reach::Reach;
use super::spec::Spec;
use super::{clock, process};
use crate::executor::cgroup::Group;

/// Never, as a time.
pub(super) const NEVER: u64 = u64::MAX;

/// Bytes of a message in either direction: kind and two numbers. Below PIPE_BUF, so a write is whole or not at all.
const MESSAGE_BYTES: usize = 24;

/// What the supervisor tells the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToGuard {
    /// When to act alone.
    Watch { freeze_at: u64, kill_at: u64 },
    /// Start the program.
    Go,
    /// SIGTERM to the main process.
    Terminate,
}

/// What the guard tells the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FromGuard {
    /// The program executes.
    Started,
    /// It does not, with the error number of the failed step.
    LaunchFailed { errno: i32 },
    /// The main process ended.
    Exited { code: Option<i32>, signal: Option<i32> },
    /// The guard froze the group because nobody else had.
    Froze,
    /// The guard is killing the group for the same reason.
    Killed,
}

impl ToGuard {
    pub(super) fn encode(self) -> [u8; MESSAGE_BYTES] {
        match self {
            Self::Watch { freeze_at, kill_at } => encode([1, freeze_at, kill_at]),
            Self::Go => encode([2, 0, 0]),
            Self::Terminate => encode([3, 0, 0]),
        }
    }

    fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        match decode(bytes) {
            [1, freeze_at, kill_at] => Some(Self::Watch { freeze_at, kill_at }),
            [2, ..] => Some(Self::Go),
            [3, ..] => Some(Self::Terminate),
            _ => None,
        }
    }
}

impl FromGuard {
    fn encode(self) -> [u8; MESSAGE_BYTES] {
        match self {
            Self::Started => encode([1, 0, 0]),
            Self::LaunchFailed { errno } => encode([2, u64::from(errno.cast_unsigned()), 0]),
            Self::Exited { code: Some(code), .. } => encode([3, 0, u64::from(code.cast_unsigned())]),
            Self::Exited { signal, .. } => encode([3, 1, u64::from(signal.unwrap_or(0).cast_unsigned())]),
            Self::Froze => encode([4, 0, 0]),
            Self::Killed => encode([5, 0, 0]),
        }
    }

    fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        let number = |value: u64| i32::try_from(value).ok();
        match decode(bytes) {
            [1, ..] => Some(Self::Started),
            [2, errno, _] => Some(Self::LaunchFailed { errno: number(errno)? }),
            [3, 0, code] => Some(Self::Exited {
                code: number(code),
                signal: None,
            }),
            [3, _, signal] => Some(Self::Exited {
                code: None,
                signal: number(signal),
            }),
            [4, ..] => Some(Self::Froze),
            [5, ..] => Some(Self::Killed),
            _ => None,
        }
    }
}

fn encode(words: [u64; 3]) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn decode(bytes: &[u8; MESSAGE_BYTES]) -> [u64; 3] {
    let mut words = [0; 3];
    for (word, slot) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut raw = [0; 8];
        raw.copy_from_slice(slot);
        *word = u64::from_le_bytes(raw);
    }
    words
}

/// Reads all messages that have arrived on a non-blocking pipe. The flag says that the other end is closed.
fn drain<T>(pipe: &mut File, decode: impl Fn(&[u8; MESSAGE_BYTES]) -> Option<T>) -> (Vec<T>, bool) {
    let mut messages = Vec::new();
    let mut bytes = [0; MESSAGE_BYTES];
    loop {
        match pipe.read(&mut bytes) {
            Ok(MESSAGE_BYTES) => messages.extend(decode(&bytes)),
            Ok(0) => return (messages, true),
            // Whole messages only are written, so a short read cannot happen; treat it as a broken pipe.
            Ok(_) => return (messages, true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (messages, error.kind() != io::ErrorKind::WouldBlock),
        }
    }
}

/// The supervisor's reading side.
pub(super) fn drain_reports(pipe: &mut File) -> (Vec<FromGuard>, bool) {
    drain(pipe, FromGuard::decode)
}

/// Everything that the guard needs, made by the supervisor before the fork.
pub(super) struct Guard<'a> {
    pub(super) spec: &'a Spec,
    pub(super) folder: &'a Path,
    pub(super) group: Group,
    /// Whether this process is the init of a new PID namespace.
    pub(super) is_init: bool,
    pub(super) orders: File,
    pub(super) reports: File,
    pub(super) output: File,
    pub(super) signals: SignalFd,
}

/// What the guard remembers.
struct Watch {
    freeze_at: u64,
    kill_at: u64,
    main: Option<Pid>,
    froze: bool,
}

impl Guard<'_> {
    /// Runs until the work has ended; the return value is the exit status of the guard process.
    pub(super) fn run(mut self) -> i32 {
        let _ = nix::sys::prctl::set_name(c"holdfast-guard");
        if self.is_init {
            own_proc();
        } else {
            // Orphans of the work come here and not to the machine's init.
            let _ = nix::sys::prctl::set_child_subreaper(true);
        }
        let Ok(timer) = clock::Timer::new() else { return 1 };
        let mut watch = Watch {
            freeze_at: NEVER,
            kill_at: NEVER,
            main: None,
            froze: false,
        };
        loop {
            let (orders, closed) = drain(&mut self.orders, ToGuard::decode);
            if closed {
                return self.end(&watch);
            }
            for order in orders {
                match order {
                    ToGuard::Watch { freeze_at, kill_at } => {
                        (watch.freeze_at, watch.kill_at, watch.froze) = (freeze_at, kill_at, false);
                    }
                    ToGuard::Go => match self.start(&watch) {
                        Ok(main) => watch.main = Some(main),
                        Err(status) => return status,
                    },
                    ToGuard::Terminate => {
                        if let Some(main) = watch.main {
                            // Not reaped yet, so the number is still its own.
                            let _ = kill(main, Signal::SIGTERM);
                        }
                    }
                }
            }
            if self.reap(&watch) {
                // As init, leaving ends the rest of the namespace; otherwise the supervisor sweeps.
                return 0;
            }
            let now = clock::boot_ms();
            if now >= watch.kill_at {
                self.report(FromGuard::Killed);
                return self.end(&watch);
            }
            if now >= watch.freeze_at && !watch.froze {
                self.freeze();
                watch.froze = true;
                self.report(FromGuard::Froze);
            }
            let next = if watch.froze {
                watch.kill_at
            } else {
                watch.freeze_at.min(watch.kill_at)
            };
            timer.set(next);
            process::wait_readable(
                &[self.orders.as_fd(), self.signals.as_fd(), timer.as_fd()],
                PollTimeout::NONE,
            );
            while matches!(self.signals.read_signal(), Ok(Some(_))) {}
        }
    }

    fn report(&mut self, message: FromGuard) {
        // A full pipe means that the supervisor has not run for thousands of messages; it will see the exit.
        let _ = self.reports.write(&message.encode());
    }

    /// Starts the program. An error is the guard's own exit status.
    fn start(&mut self, watch: &Watch) -> Result<Pid, i32> {
        let now = clock::boot_ms();
        let started = if now >= watch.freeze_at.min(watch.kill_at) {
            Err(io::Error::from_raw_os_error(nix::errno::Errno::ETIME as i32))
        } else {
            self.spawn()
        };
        match started {
            Ok(pid) => {
                self.report(FromGuard::Started);
                Ok(pid)
            }
            Err(error) => {
                self.report(FromGuard::LaunchFailed {
                    errno: error.raw_os_error().unwrap_or(0),
                });
                Err(2)
            }
        }
    }

    fn spawn(&self) -> io::Result<Pid> {
        let entrances = self.group.entrances()?;
        let guard = nix::unistd::getpid();
        let mut command = Command::new(&self.spec.argv[0]); // A validated spec has a program.
        command
            .args(&self.spec.argv[1..])
            .env_clear()
            .envs(&self.spec.env)
            .current_dir(process::work_dir(self.spec, self.folder))
            .stdin(Stdio::null())
            .stdout(self.output.try_clone()?)
            .stderr(self.output.try_clone()?);
        // SAFETY: runs in the forked child before exec; the guard has one thread, so no lock can be held, and the
        // closure only makes system calls.
        unsafe {
            command.pre_exec(move || process::become_work(&entrances, guard));
        }
        let child = command.spawn()?;
        Ok(Pid::from_raw(child.id().cast_signed()))
    }

    /// Reaps whatever has ended. True when the main process was among it; it has then been reported.
    fn reap(&mut self, watch: &Watch) -> bool {
        loop {
            let ended = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Some(code), None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, None, Some(signal as i32)),
                _ => return false,
            };
            if Some(ended.0) == watch.main {
                self.report(FromGuard::Exited {
                    code: ended.1,
                    signal: ended.2,
                });
                return true;
            }
        }
    }

    fn freeze(&self) {
        let frozen = if self.group.can_freeze() {
            self.group.freeze(self.spec.freeze_bound_ms).is_ok()
        } else if self.is_init {
            // Inside the namespace this reaches everything but the caller, forks included, in one step; twice, so
            // that a child born between a fork's check and its end is reached too.
            let all = || kill(Pid::from_raw(-1), Signal::SIGSTOP);
            all().and_then(|()| all()).is_ok()
        } else {
            self.reach().freeze(self.spec.freeze_bound_ms).is_ok()
        };
        if !frozen {
            self.kill_round();
        }
    }

    fn reach(&self) -> Reach {
        Reach {
            namespaced: false,
            group: self.group.clone(),
            ancestor: nix::unistd::getpid().as_raw(),
            spared: None,
        }
    }

    fn kill_round(&self) {
        if self.is_init {
            let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
            self.group.kill();
        } else {
            self.reach().kill();
        }
    }

    /// Ends everything and leaves no cgroup behind. Never returns before the work is dead: that is what it is for.
    fn end(&mut self, watch: &Watch) -> i32 {
        loop {
            self.kill_round();
            if self.reap(watch) || waitpid(None, Some(WaitPidFlag::WNOHANG)).is_err() {
                let empty = if self.is_init {
                    self.group.pids().is_empty()
                } else {
                    self.reach().is_empty()
                };
                if empty {
                    break;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.group.remove();
        0
    }
}

/// Shows the namespace its own processes under `/proc`. Not permitted everywhere; programs then see the host's,
/// which they cannot signal.
fn own_proc() {
    if unshare(CloneFlags::CLONE_NEWNS).is_err() {
        return;
    }
    // Slave, so that an unmount on the host is not held up by us, and our mount does not reach the host.
    let flags = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    if mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).is_ok() {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let _ = mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_pipe() {
        for message in [
            ToGuard::Watch {
                freeze_at: 7,
                kill_at: NEVER,
            },
            ToGuard::Go,
            ToGuard::Terminate,
        ] {
            assert_eq!(ToGuard::decode(&message.encode()), Some(message));
        }
        let exited = |code, signal| FromGuard::Exited { code, signal };
        let failed = FromGuard::LaunchFailed { errno: 2 };
        for message in [
            FromGuard::Started,
            failed,
            exited(Some(0), None),
            exited(None, Some(9)),
            FromGuard::Froze,
            FromGuard::Killed,
        ] {
            assert_eq!(FromGuard::decode(&message.encode()), Some(message));
        }
        assert_eq!(ToGuard::decode(&encode([9, 0, 0])), None);
    }
}
