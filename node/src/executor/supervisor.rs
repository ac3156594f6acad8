//! The supervisor: one small process per attempt that outlives the daemon.
//!
//! `holdfast supervise FOLDER` is started by `launch`; it detaches, makes the cgroup and the PID namespace, forks the
//! guard that starts the work, copies the output to disk, follows the daemon's orders and, when those stop coming,
//! enforces the deadline on its own. It ends by proving that the group is empty and writing `exit.json`. The rule:
//! synchronous, one thread, and no decision here that is not in `course`.
//!
//! Not here: what ought to run (`diff`), talking to the log, GPUs.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::fcntl::OFlag;
use nix::poll::PollTimeout;
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};

mod blame;
pub(super) mod clock;
pub mod control;
pub mod course;
mod guard;
pub mod output;
pub(super) mod process;
mod reach;
pub mod record;
pub mod spec;

use control::{Answer, ControlServer, Status};
use course::{Act, Course, EndCause, Phase};
use guard::{FromGuard, Guard, NEVER, ToGuard};
use output::OutputWriter;
use process::Side;
use reach::Reach;
use record::{ExitRecord, Identity, Namespace};
use spec::{DeadlinePolicy, Spec};

use super::cgroup::Group;
use super::{isolation, procfs};
use crate::env::{Entropy, OsEntropy};

/// How long the guard waits beyond the supervisor's own times. Together with a freeze it stays within STOP_BOUND.
const GUARD_SLACK_MS: u64 = 100;
/// Pause between two rounds of SIGKILL.
const SWEEP_AGAIN_MS: u64 = 5;
/// Rounds in which an emptied cgroup may still be kept by the kernel before the exit is recorded without it.
const REMOVE_ROUNDS: u32 = 400;
/// Output copied in one turn of the loop: orders and deadlines wait no longer than this takes.
const COPY_BYTES: usize = 64 << 10;

/// Why a supervisor could not take up its work. The text ends up in the folder's `supervisor.log`.
#[derive(Debug, thiserror::Error)]
enum SuperviseError {
    #[error("could not read the spec")]
    ReadSpec(#[source] io::Error),
    #[error("there is no spec in the folder")]
    NoSpec,
    #[error("the spec is refused")]
    Spec(#[source] spec::SpecError),
    #[error("the folder was already taken by a supervisor")]
    Claimed(#[source] io::Error),
    #[error("could not {0}")]
    System(&'static str, #[source] io::Error),
}

/// The hidden `holdfast supervise` command: `FOLDER` supervises, `--probe ROOT` prints what isolation holds here.
pub fn supervise_command(arguments: &[OsString]) -> ExitCode {
    match arguments {
        [probe, root] if probe == "--probe" => isolation::print_probe(&root.to_string_lossy()),
        [folder] => supervise(Path::new(folder)),
        _ => {
            eprintln!("usage: holdfast supervise FOLDER (started by the node itself)");
            ExitCode::FAILURE
        }
    }
}

/// Entry of `holdfast supervise FOLDER`. Returns, in the process that the daemon started, once the detached
/// supervisor has executed the program or has recorded why not; in the supervisor itself, when the run has ended.
pub fn supervise(folder: &Path) -> ExitCode {
    match start(folder) {
        Ok(code) => code,
        Err(error) => {
            let mut text = format!("supervise {}: {error}", folder.display());
            let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(&error);
            while let Some(error) = cause {
                text.push_str(&format!(": {error}"));
                cause = error.source();
            }
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn start(folder: &Path) -> Result<ExitCode, SuperviseError> {
    let spec: Spec = record::read(folder, record::SPEC_FILE)
        .map_err(SuperviseError::ReadSpec)?
        .ok_or(SuperviseError::NoSpec)?;
    spec.validate().map_err(SuperviseError::Spec)?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(folder.join(record::CLAIM_FILE))
        .map_err(SuperviseError::Claimed)?;
    let (mut ready, tell_ready) = process::pipe(OFlag::empty()).map_err(system("make a pipe"))?;
    match process::split().map_err(|error| SuperviseError::System("fork", error.into()))? {
        Side::Parent(_) => {
            drop(tell_ready);
            let up = ready.read_exact(&mut [0]).is_ok();
            Ok(if up { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Side::Child => {
            drop(ready);
            let mut supervisor = Supervisor::prepare(folder, spec, tell_ready)?;
            supervisor.run();
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn system(step: &'static str) -> impl FnOnce(io::Error) -> SuperviseError {
    move |error| SuperviseError::System(step, error)
}

fn os(step: &'static str) -> impl FnOnce(nix::Error) -> SuperviseError {
    move |error| SuperviseError::System(step, error.into())
}

/// The running supervisor.
struct Supervisor {
    folder: PathBuf,
    spec: Spec,
    course: Course,
    reach: Reach,
    guard: Pid,
    guard_gone: bool,
    orders: File,
    reports: File,
    output: Option<File>,
    writer: OutputWriter,
    control: ControlServer,
    signals: SignalFd,
    timer: clock::Timer,
    tell_ready: Option<File>,
    missing: Vec<String>,
    /// What the guard was last told.
    watch: Option<ToGuard>,
    started_boot_ms: Option<u64>,
    main_status: (Option<i32>, Option<i32>),
    launch_error: Option<String>,
}

impl Supervisor {
    fn prepare(folder: &Path, spec: Spec, tell_ready: File) -> Result<Self, SuperviseError> {
        setsid().map_err(os("make a session"))?;
        let _ = nix::sys::prctl::set_name(c"holdfast-superv");
        // The guard's orphans come here when it has no PID namespace and dies.
        nix::sys::prctl::set_child_subreaper(true).map_err(os("become a subreaper"))?;
        let signals = process::signals(&[Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])
            .map_err(os("take signals"))?;
        make_work_dir(folder).map_err(system("make the working folder"))?;

        let group = Group::create(spec.group, &spec.group_root, &spec.run, &spec.limits);
        let me = std::process::id().cast_signed();
        let (output, output_in) = process::pipe(OFlag::empty()).map_err(system("make a pipe"))?;
        let (orders_out, orders) = process::pipe(OFlag::O_NONBLOCK).map_err(system("make a pipe"))?;
        let (reports, reports_in) = process::pipe(OFlag::O_NONBLOCK).map_err(system("make a pipe"))?;
        nonblocking(&output).map_err(system("set up the output pipe"))?;

        let namespace = process::enter_namespace(spec.namespace);
        let guard = match process::split().map_err(os("fork the guard"))? {
            Side::Parent(pid) => pid,
            Side::Child => {
                // The guard must see its pipe close when the supervisor ends, so it keeps no other end.
                drop((output, orders, reports, tell_ready));
                let is_init = namespace != Namespace::None;
                let (orders, reports, output) = (orders_out, reports_in, output_in);
                let guard = Guard {
                    spec: &spec,
                    folder,
                    group,
                    is_init,
                    orders,
                    reports,
                    output,
                    signals,
                };
                std::process::exit(guard.run());
            }
        };
        drop((output_in, orders_out, reports_in));

        let nonce = nonce();
        let control = ControlServer::bind(folder, nonce.clone()).map_err(system("bind the control socket"))?;
        let identity = identity(&spec, me, guard.as_raw(), nonce, namespace, &group);
        record::write_atomic(folder, record::IDENTITY_FILE, &identity).map_err(system("write the identity"))?;

        let mut missing = group.missing.clone();
        if namespace == Namespace::None {
            missing.push("PID namespace".into());
        }
        let writer = OutputWriter::new(folder, spec.output);
        Ok(Self {
            folder: folder.to_owned(),
            course: Course::new(&spec),
            spec,
            reach: Reach {
                namespaced: namespace != Namespace::None,
                group,
                ancestor: me,
                spared: Some(guard.as_raw()),
            },
            guard,
            guard_gone: false,
            orders,
            reports,
            output: Some(output),
            writer,
            control,
            signals,
            timer: clock::Timer::new().map_err(os("make a timer"))?,
            tell_ready: Some(tell_ready),
            missing,
            watch: None,
            started_boot_ms: None,
            main_status: (None, None),
            launch_error: None,
        })
    }

    fn run(&mut self) {
        self.tell_watch();
        if self.course.may_launch(clock::boot_ms()) {
            self.tell_guard(ToGuard::Go);
        } else {
            self.launch_failed("the deadline had passed before the program was started".into(), None);
        }
        loop {
            self.wait();
            self.take_signals();
            self.take_reports();
            self.reap();
            self.serve();
            self.copy_output(COPY_BYTES);
            let act = self.course.tick(clock::boot_ms());
            self.carry_out(act);
            self.tell_watch();
            if matches!(self.course.phase(), Phase::Killing { .. }) {
                self.sweep();
            }
            if let Phase::Ended { cause } = self.course.phase() {
                return self.finish(cause);
            }
        }
    }

    fn wait(&mut self) {
        let killing = matches!(self.course.phase(), Phase::Killing { .. });
        let wake = if killing {
            Some(clock::boot_ms() + SWEEP_AGAIN_MS)
        } else {
            self.course.next_wake()
        };
        self.timer.set(wake.unwrap_or(NEVER));
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.timer.as_fd(), self.signals.as_fd()];
        if !self.guard_gone {
            fds.push(self.reports.as_fd());
        }
        fds.extend(self.output.as_ref().map(AsFd::as_fd));
        fds.extend(self.control.fds());
        process::wait_readable(&fds, PollTimeout::NONE);
    }

    fn take_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            // A supervisor is told to leave only when the machine goes down; hang-ups and ^C are not for it.
            if signal.ssi_signo == Signal::SIGTERM as u32 {
                let act = self.course.shutdown(clock::boot_ms());
                self.carry_out(act);
            }
        }
    }

    fn take_reports(&mut self) {
        let (reports, _) = guard::drain_reports(&mut self.reports);
        let now = clock::boot_ms();
        for report in reports {
            match report {
                FromGuard::Started => {
                    self.started_boot_ms = Some(now);
                    self.course.launched();
                    self.ready();
                }
                FromGuard::LaunchFailed { errno } => {
                    let (text, code) = blame::launch_fault(&self.spec, &self.folder, errno);
                    self.launch_failed(text, code);
                }
                FromGuard::Exited { code, signal } => {
                    self.main_status = (code, signal);
                    let act = self.course.main_ended(EndCause::Exited, now);
                    self.carry_out(act);
                }
                FromGuard::Froze => self.course.frozen_by_guard(now),
                // It acts only when we are late, so time itself names the cause.
                FromGuard::Killed => {
                    let act = self.course.tick(now);
                    self.carry_out(act);
                }
            }
        }
    }

    /// `code` is what the work counts as having exited with when the fault is the tenant's; without it the node is to
    /// blame, and the lease is tried elsewhere.
    fn launch_failed(&mut self, text: String, code: Option<i32>) {
        // As shells do: what the tenant named cannot be run here, and the tenant reads why in the work's own output.
        self.writer.append(format!("holdfast: {text}\n").as_bytes());
        self.main_status = (code, None);
        self.launch_error = Some(text);
        let act = self.course.main_ended(EndCause::LaunchFailed, clock::boot_ms());
        self.carry_out(act);
        self.ready();
    }

    fn reap(&mut self) {
        loop {
            let ended = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) => pid,
                _ => return,
            };
            if ended == self.guard {
                // Its last words arrive before its end is noticed: the pipe is read once more.
                self.take_reports();
                self.guard_gone = true;
                let act = self.course.main_ended(EndCause::GuardLost, clock::boot_ms());
                self.carry_out(act);
            }
        }
    }

    fn serve(&mut self) {
        for (from, order) in self.control.requests() {
            let now = clock::boot_ms();
            // The deadline comes first: an order that arrives with it does not overtake it.
            let due = self.course.tick(now);
            self.carry_out(due);
            let refused = match order.map(|order| self.course.order(order, now)) {
                Some(Ok(act)) => {
                    // Carried out before the answer, so that an answer never says what is not yet so.
                    self.carry_out(act);
                    None
                }
                Some(Err(refused)) => Some(refused),
                None => None,
            };
            let status = self.status();
            let answer = match refused {
                Some(reason) => Answer::Refused(reason, status),
                None => Answer::Ok(status),
            };
            self.control.answer(from, &answer);
        }
    }

    fn status(&self) -> Status {
        Status {
            run: self.spec.run.clone(),
            phase: self.course.phase(),
            deadline_boot_ms: self.course.deadline_ms(),
            run_until_boot_ms: self.course.run_until_ms(),
            frozen_ms: self.course.frozen_ms(clock::boot_ms()),
            output_lost_bytes: self.writer.lost(),
            missing: self.missing.clone(),
        }
    }

    fn carry_out(&mut self, act: Option<Act>) {
        let Some(act) = act else { return };
        match act {
            Act::Freeze => {
                if self.reach.freeze(self.spec.freeze_bound_ms).is_err() {
                    let act = self.course.freeze_failed(clock::boot_ms());
                    self.carry_out(act);
                }
            }
            Act::Thaw => {
                // The guard learns of the new deadline first, or it would freeze again at the old one.
                self.tell_watch();
                self.reach.thaw();
            }
            Act::Terminate => self.tell_guard(ToGuard::Terminate),
            Act::Kill => self.reach.kill(),
        }
    }

    /// One more round against what is left, until there is proof that nothing is.
    fn sweep(&mut self) {
        self.reach.kill();
        if !self.guard_gone {
            // With a PID namespace this ends whatever is in it; without one, orphans now come to us.
            let _ = kill(self.guard, Signal::SIGKILL);
            self.reap();
        }
        if self.guard_gone && self.reach.is_empty() {
            self.course.emptied();
        }
    }

    fn tell_watch(&mut self) {
        let watch = watch(&self.course, &self.spec);
        if self.watch != Some(watch) {
            self.watch = Some(watch);
            self.tell_guard(watch);
        }
    }

    fn tell_guard(&mut self, message: ToGuard) {
        // The pipe holds thousands of messages. When it is full the guard has not run for as long, and acting on an
        // older deadline is the safe side.
        let _ = self.orders.write(&message.encode());
    }

    fn copy_output(&mut self, bytes: usize) {
        let Some(pipe) = &mut self.output else { return };
        let mut buffer = vec![0; bytes];
        match pipe.read(&mut buffer) {
            Ok(0) => self.output = None,
            Ok(count) => self.writer.append(&buffer[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.output = None,
        }
    }

    /// The starting process may return: the program executes, or it is known why not.
    fn ready(&mut self) {
        if self.launch_error.is_none()
            && let Some(mut ready) = self.tell_ready.take()
        {
            let _ = ready.write_all(b"1");
        }
    }

    fn finish(&mut self, cause: EndCause) {
        let ended_boot_ms = clock::boot_ms();
        self.drain_output();
        let oom_kills = self.reach.group.oom_kills();
        for _ in 0..REMOVE_ROUNDS {
            if self.reach.group.remove() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(SWEEP_AGAIN_MS));
        }
        let (code, signal) = self.main_status;
        let record = ExitRecord {
            run: self.spec.run.clone(),
            cause,
            code,
            signal,
            oom_kills,
            launch_error: self.launch_error.clone(),
            started_boot_ms: self.started_boot_ms,
            ended_boot_ms,
            frozen_ms: self.course.frozen_ms(ended_boot_ms),
            output_lost_bytes: self.writer.lost(),
            boot_id: procfs::boot_id(),
        };
        let _ = fs::remove_file(self.folder.join(record::SOCKET_FILE));
        while let Err(error) = record::write_durable(&self.folder, record::EXIT_FILE, &record) {
            // A full disk may get room; a folder that was removed will not come back.
            if !self.folder.exists() {
                break;
            }
            eprintln!("could not write the exit record: {error}");
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        if let Some(mut ready) = self.tell_ready.take() {
            let _ = ready.write_all(b"1");
        }
    }

    fn drain_output(&mut self) {
        // Nobody writes any more, so the pipe holds at most its capacity.
        for _ in 0..32 {
            self.copy_output(COPY_BYTES);
        }
    }
}

/// The two times at which the guard acts alone.
fn watch(course: &Course, spec: &Spec) -> ToGuard {
    let bound = spec.policy != DeadlinePolicy::Keep;
    let deadline = if bound { course.deadline_ms() } else { NEVER };
    let run_until = course.run_until_ms().unwrap_or(NEVER);
    let over = run_until.saturating_add(spec.grace_ms);
    let (freeze_at, kill_at) = match course.phase() {
        Phase::Launching | Phase::Running => match spec.policy {
            DeadlinePolicy::Freeze => (deadline, over.min(deadline.saturating_add(spec.freeze_max_ms))),
            DeadlinePolicy::Stop | DeadlinePolicy::Keep => (NEVER, over.min(deadline)),
        },
        Phase::Frozen { since_boot_ms } => (NEVER, run_until.min(since_boot_ms.saturating_add(spec.freeze_max_ms))),
        Phase::Stopping { kill_at_boot_ms, .. } => (NEVER, kill_at_boot_ms.min(deadline)),
        Phase::Killing { .. } | Phase::Ended { .. } => (NEVER, 0),
    };
    let late = |at: u64| at.saturating_add(GUARD_SLACK_MS);
    ToGuard::Watch {
        freeze_at: late(freeze_at),
        kill_at: late(kill_at),
    }
}

fn identity(spec: &Spec, pid: i32, guard_pid: i32, nonce: String, namespace: Namespace, group: &Group) -> Identity {
    let start = |pid| procfs::stat(pid).map_or(0, |stat| stat.start_ticks);
    Identity {
        run: spec.run.clone(),
        boot_id: procfs::boot_id(),
        pid,
        start_ticks: start(pid),
        guard_pid,
        guard_start_ticks: start(guard_pid),
        nonce,
        namespace,
        group: group.clone(),
    }
}

fn nonce() -> String {
    let mut bytes = [0; 16];
    OsEntropy.fill(&mut bytes);
    hex::encode(bytes)
}

fn make_work_dir(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    match builder.mode(0o700).create(folder.join(record::WORK_DIR)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn nonblocking(file: &File) -> io::Result<()> {
    let flags = OFlag::from_bits_truncate(nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_GETFL)?);
    nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}
