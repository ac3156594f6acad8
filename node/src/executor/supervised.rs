//! The real processes: one supervisor per run, launched, attached, ordered, waited for.
//!
//! Used by the executor's thread only; calls block for at most the answer time of one supervisor. The rule: what a
//! supervisor does not answer is looked up again by its records, never guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use holdfast_proto::placement::Exit;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::attach::{Attached, Found, Lost, attach, attach_in, recorded, unknown};
use super::duty::RunKey;
use super::launch::Launcher;
use super::processes::{Observed, Processes, exit_of};
use super::procfs;
use super::supervisor::control::{ControlError, Status};
use super::supervisor::course::{Order, Phase};
use super::supervisor::spec::Spec;

/// How long a supervisor that was silent before is waited for: it must not hold up the others.
const SILENT_TIMEOUT: Duration = Duration::from_millis(30);
/// How often it is tried.
const SILENT_EVERY_MS: u64 = 1_000;

/// A supervisor as this daemon holds it.
#[derive(Debug)]
enum Held {
    Attached(Box<Attached>),
    Silent(OwnedFd),
}

impl Held {
    fn ended(&self) -> BorrowedFd<'_> {
        match self {
            Self::Attached(attached) => attached.ended(),
            Self::Silent(handle) => handle.as_fd(),
        }
    }
}

/// The supervisors of this node.
#[derive(Debug)]
pub struct Supervised {
    launcher: Launcher,
    group_root: String,
    held: BTreeMap<RunKey, Held>,
    next_silent_ms: u64,
}

impl Supervised {
    /// Supervisors are launched by `launcher`; their cgroups lie below `group_root`.
    pub fn new(launcher: Launcher, group_root: String) -> Self {
        Self {
            launcher,
            group_root,
            held: BTreeMap::new(),
            next_silent_ms: 0,
        }
    }

    /// Waits until a supervisor ends, `wake` is readable, or the time is up.
    pub fn wait(&self, wake: BorrowedFd<'_>, timeout_ms: u16) {
        let fds = self.held.values().map(Held::ended).chain([wake]);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // Whatever wakes us: everything is looked at.
        let _ = poll(&mut fds, PollTimeout::from(timeout_ms));
    }

    fn look(&mut self, run: RunKey, timeout: Duration) -> Observed {
        let found = attach_in(&self.launcher.folder_of(&run.to_string()), &procfs::boot_id(), timeout);
        match found {
            Ok(found) => self.take(run, found),
            // Unreadable records, or work that does not die: unknown is not ended.
            Err(error) => {
                tracing::error!(%run, error = %chain(&error), "cannot tell what became of a run");
                Observed::Silent
            }
        }
    }

    fn take(&mut self, run: RunKey, found: Found) -> Observed {
        match found {
            Found::Running(attached, status) => {
                self.held.insert(run, Held::Attached(attached));
                observed(&status)
            }
            Found::Silent(handle) => {
                self.held.insert(run, Held::Silent(handle));
                Observed::Silent
            }
            Found::Ended(record) => self.gone(run, exit_of(&record)),
            Found::Lost(Lost::BeforeStart) | Found::NotStarted => self.gone(run, Exit::NotStarted),
            Found::Lost(Lost::Reboot | Lost::SupervisorGone) => self.gone(run, Exit::Vanished),
        }
    }

    fn gone(&mut self, run: RunKey, exit: Exit) -> Observed {
        self.held.remove(&run);
        Observed::Ended(exit)
    }

    /// Ends a run whose supervisor does not take orders.
    fn force(&mut self, run: RunKey) -> Observed {
        let mut known: BTreeSet<String> = self.held.keys().map(ToString::to_string).collect();
        known.remove(&run.to_string());
        for stray in unknown(self.launcher.folder(), &self.group_root, &known) {
            if stray.run == run.to_string()
                && let Err(error) = stray.end()
            {
                tracing::error!(%run, error = %chain(&error), "cannot end a run");
                return Observed::Silent;
            }
        }
        self.look(run, SILENT_TIMEOUT)
    }
}

impl Processes for Supervised {
    fn recover(&mut self) -> BTreeMap<RunKey, Observed> {
        let runs = match recorded(self.launcher.folder()) {
            Ok(runs) => runs,
            Err(error) => {
                tracing::error!(%error, "cannot list the runs of this node");
                return BTreeMap::new();
            }
        };
        let mut found = BTreeMap::new();
        for run in runs.iter().filter_map(|run| run.parse::<RunKey>().ok()) {
            if self.launcher.is_unclaimed(&run.to_string()) {
                // Prepared by a daemon start that is over, and never spawned: whoever comes next prepares anew.
                self.discard(run);
                continue;
            }
            found.insert(run, self.look(run, super::attach::ANSWER_TIMEOUT));
        }
        found
    }

    fn launch(&mut self, run: RunKey, spec: &Spec) -> Observed {
        let text = match self.launcher.launch(spec) {
            Ok(found) => return self.take(run, found),
            Err(error) => chain(&error),
        };
        // Whether anything runs is asked of the records, not of the error.
        match attach(&self.launcher.folder_of(&run.to_string())) {
            Ok(Found::NotStarted | Found::Lost(Lost::BeforeStart)) => self.gone(run, Exit::LaunchFailed(text)),
            Ok(found) => self.take(run, found),
            Err(_) if !self.launcher.folder_of(&run.to_string()).exists() => self.gone(run, Exit::LaunchFailed(text)),
            Err(_) => Observed::Silent,
        }
    }

    fn order(&mut self, run: RunKey, order: Order) -> Observed {
        let sent = match self.held.get_mut(&run) {
            Some(Held::Attached(attached)) => attached.send(Some(order)),
            Some(Held::Silent(_)) if matches!(order, Order::Stop { .. } | Order::Kill) => return self.force(run),
            Some(Held::Silent(_)) => return Observed::Silent,
            None => return self.look(run, SILENT_TIMEOUT),
        };
        match sent {
            Ok(status) => observed(&status),
            Err(ControlError::Refused(reason)) => {
                tracing::debug!(%run, %reason, "a supervisor refused an order");
                self.look(run, SILENT_TIMEOUT)
            }
            Err(error) => {
                tracing::warn!(%run, error = %chain(&error), "a supervisor does not answer");
                self.look(run, SILENT_TIMEOUT)
            }
        }
    }

    fn poll(&mut self, now_ms: u64) -> Vec<(RunKey, Observed)> {
        let retry = now_ms >= self.next_silent_ms;
        if retry {
            self.next_silent_ms = now_ms + SILENT_EVERY_MS;
        }
        let mut fds: Vec<PollFd<'_>> = self
            .held
            .values()
            .map(|held| PollFd::new(held.ended(), PollFlags::POLLIN))
            .collect();
        let _ = poll(&mut fds, PollTimeout::ZERO);
        let changed: Vec<RunKey> = self
            .held
            .iter()
            .zip(&fds)
            .filter(|((_, held), fd)| fd.any() == Some(true) || (retry && matches!(held, Held::Silent(_))))
            .map(|((run, _), _)| *run)
            .collect();
        changed
            .into_iter()
            .map(|run| (run, self.look(run, SILENT_TIMEOUT)))
            .collect()
    }

    fn unknown(&mut self, known: &BTreeSet<RunKey>) -> Vec<String> {
        let known = known.iter().map(ToString::to_string).collect();
        let found = unknown(self.launcher.folder(), &self.group_root, &known);
        found.into_iter().map(|one| one.run).collect()
    }

    fn end_unknown(&mut self, name: &str) -> bool {
        let found = unknown(self.launcher.folder(), &self.group_root, &BTreeSet::new());
        found
            .into_iter()
            .filter(|one| one.run == name)
            .all(|one| match one.end() {
                Ok(()) => true,
                Err(error) => {
                    tracing::error!(run = name, error = %chain(&error), "cannot end work without a record");
                    false
                }
            })
    }

    fn discard(&mut self, run: RunKey) {
        self.held.remove(&run);
        let folder = self.launcher.folder_of(&run.to_string());
        if let Err(error) = remove(&folder) {
            tracing::warn!(%run, %error, "cannot remove the folder of an ended run");
        }
    }
}

fn remove(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn observed(status: &Status) -> Observed {
    let frozen_ms = status.frozen_ms;
    match status.phase {
        Phase::Launching | Phase::Running => Observed::Running {
            frozen: false,
            ending: false,
            frozen_ms,
        },
        Phase::Frozen { .. } => Observed::Running {
            frozen: true,
            ending: false,
            frozen_ms,
        },
        // Also when it is proven empty already: the exit record says so, and it comes next.
        Phase::Stopping { .. } | Phase::Killing { .. } | Phase::Ended { .. } => Observed::Running {
            frozen: false,
            ending: true,
            frozen_ms,
        },
    }
}

/// An error with its causes, for a log line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
