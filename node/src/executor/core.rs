//! The executor without threads and clocks: one `turn` takes what is known, acts, and returns what others must do.
//!
//! The thread in `worker` calls it in production, the simulator calls it with a model of processes. It keeps what
//! runs beside what the log asks (`diff`), writes its journal before it acts, and passes renewals on. The rule: a turn
//! may be repeated at any time; nothing happens twice, because each step is taken from the difference that is left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::event::NodeWork;
use holdfast_proto::id::{Attempt, Fence, Incarnation, LeaseId};
use holdfast_proto::placement::Exit;
use holdfast_proto::time::Span;

use super::diff::{Actual, Picture, ReportedExit, Step, diff};
use super::duty::{Duties, Duty, RunKey, Standing, Work};
use super::journal::{Entry, Journal, JournalError, Remembered};
use super::launch::FOLDER_PREFIX;
use super::outfit::{Outfit, Until};
use super::processes::{Observed, Processes};
use super::supervisor::course::Order;

/// A report that the applied state does not show yet is made again after this long, then after twice as long.
const REPORT_AGAIN_MS: u64 = 500;
/// At most this long: a report that is always refused must not fill the log.
const REPORT_AGAIN_MS_MAX: u64 = 30_000;
/// How often processes without a record are looked for.
const SURVEY_EVERY_MS: u64 = 10_000;
/// Launches in one turn: each takes some 20 ms, and renewals must reach running work in between.
const LAUNCHES_PER_TURN: usize = 8;
/// Rounds of comparing and acting in one turn; what is left then is for the next turn.
const ROUNDS: usize = 4;

/// What the node lease permits now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Authority {
    /// Until when steps may be taken, boot clock: from a renewal in force, of the generation in the applied state,
    /// whose barrier has been applied. Asked for *before* the duties are read, so that they are not older than it.
    pub permit_until_ms: Option<u64>,
    /// The supervisors' deadline; `None` before the first renewal of this daemon start.
    pub deadline_ms: Option<u64>,
    /// When each lease's own time ends here.
    pub run_until_ms: BTreeMap<LeaseId, u64>,
}

/// A preparation to carry out elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrepareOrder {
    /// The coming run.
    pub run: RunKey,
    /// What to show to the gates.
    pub fence: Fence,
    /// The work, with the saved state to bring.
    pub work: Arc<Work>,
    /// The folder that the run will have.
    pub folder: PathBuf,
}

/// What a turn asks of others.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// To be proposed to the log. No answer is needed: the applied state is the answer.
    pub commands: Vec<Command>,
    /// To be carried out, and answered in `Inputs::prepared`.
    pub prepare: Vec<PrepareOrder>,
    /// What a person should know, in words.
    pub notes: Vec<String>,
}

/// What a turn is given.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// The boot clock.
    pub now_ms: u64,
    /// What the node lease permits.
    pub authority: &'a Authority,
    /// What the log asks.
    pub duties: &'a Duties,
    /// Preparations that are done, or have failed.
    pub prepared: Vec<(RunKey, Result<(), String>)>,
}

/// The executor's core.
#[derive(Debug)]
pub struct Core<P> {
    outfit: Outfit,
    incarnation: Incarnation,
    folder: PathBuf,
    processes: P,
    journal: Journal,
    actual: BTreeMap<RunKey, Actual>,
    frozen_ms: BTreeMap<RunKey, u64>,
    /// What each adopted run was last told: deadline and end of the lease's time.
    told: BTreeMap<RunKey, (u64, Option<u64>)>,
    /// Reports made: when to make them again, and the gap until then.
    reported: BTreeMap<Step, (u64, u64)>,
    preparing: BTreeSet<RunKey>,
    ready: BTreeSet<RunKey>,
    /// Runs whose program is known to have executed.
    ran: BTreeSet<RunKey>,
    unknown: Vec<String>,
    next_survey_ms: u64,
}

impl<P: Processes> Core<P> {
    /// Begins with what the journal and the processes of earlier daemon starts say.
    pub fn new(
        outfit: Outfit,
        incarnation: Incarnation,
        folder: &Path,
        mut processes: P,
        mut journal: Journal,
    ) -> Result<Self, JournalError> {
        let mut actual = BTreeMap::new();
        let mut frozen = BTreeMap::new();
        for (run, observed) in processes.recover() {
            if let Observed::Running { frozen_ms, .. } = observed {
                frozen.insert(run, frozen_ms);
            }
            actual.insert(run, actual_of(&observed, false));
        }
        for (run, remembered) in journal.runs() {
            match remembered {
                // The first end that was recorded is the one that the log may have been told.
                Remembered::Ended(exit) => drop(actual.insert(*run, Actual::Ended(exit.clone()))),
                // Spawned or about to be, and nothing is left of it: never spawned again.
                Remembered::Spawned => drop(actual.entry(*run).or_insert(Actual::Ended(Exit::Vanished))),
            }
        }
        let ends: Vec<Entry> = actual
            .iter()
            .filter_map(|(run, actual)| end_entry(*run, actual))
            .collect();
        journal.append(&ends)?;
        let ran = actual
            .iter()
            .filter(|(_, actual)| shows_a_start(actual))
            .map(|(run, _)| *run)
            .collect();
        Ok(Self {
            outfit,
            incarnation,
            folder: folder.to_owned(),
            processes,
            journal,
            actual,
            frozen_ms: frozen,
            told: BTreeMap::new(),
            reported: BTreeMap::new(),
            preparing: BTreeSet::new(),
            ready: BTreeSet::new(),
            ran,
            unknown: Vec::new(),
            next_survey_ms: 0,
        })
    }

    /// Acts on what is known. An error is a fault of this node's disk: the daemon must stop, the supervisors go on.
    pub fn turn(&mut self, inputs: Inputs<'_>) -> Result<Turn, JournalError> {
        let mut turn = Turn::default();
        let permitted = inputs
            .authority
            .permit_until_ms
            .is_some_and(|until| inputs.now_ms < until);
        self.take_prepared(inputs.prepared, inputs.duties)?;
        for (run, observed) in self.processes.poll(inputs.now_ms) {
            self.observe(run, &observed)?;
        }
        self.renew(inputs.authority)?;
        if permitted && inputs.now_ms >= self.next_survey_ms {
            self.survey(inputs.now_ms);
        }
        self.ready.retain(|run| awaited(inputs.duties, *run));
        let mut launches = 0;
        for _ in 0..ROUNDS {
            let steps = self.steps(inputs.duties, permitted);
            self.reported.retain(|step, _| steps.contains(step));
            let mut acted = false;
            for step in steps {
                if matches!(step, Step::Spawn(_)) {
                    launches += 1;
                    if launches > LAUNCHES_PER_TURN {
                        continue;
                    }
                }
                acted |= self.act(step, inputs.authority, inputs.duties, inputs.now_ms, &mut turn)?;
            }
            if !acted {
                break;
            }
        }
        Ok(turn)
    }

    /// The runs that exist here and how long each was frozen: shown when the node returns.
    pub fn work(&self) -> Vec<NodeWork> {
        let lives = self
            .actual
            .iter()
            .filter(|(_, actual)| !matches!(actual, Actual::Ended(_)));
        lives
            .map(|(run, _)| NodeWork {
                lease: run.lease,
                epoch: run.epoch,
                attempt: run.attempt,
                frozen: Span(self.frozen_ms.get(run).copied().unwrap_or(0)),
            })
            .collect()
    }

    /// What runs and what has ended here, as this node knows it.
    pub fn actual(&self) -> &BTreeMap<RunKey, Actual> {
        &self.actual
    }

    /// Whoever has the processes: to wait for them, and for models to be looked at.
    pub fn processes(&mut self) -> &mut P {
        &mut self.processes
    }

    fn steps(&self, duties: &Duties, permitted: bool) -> Vec<Step> {
        diff(&Picture {
            incarnation: self.incarnation,
            permitted,
            duties,
            actual: &self.actual,
            unknown: &self.unknown,
            preparing: &self.preparing,
            ready: &self.ready,
            ran: &self.ran,
        })
    }

    fn take_prepared(
        &mut self,
        prepared: Vec<(RunKey, Result<(), String>)>,
        duties: &Duties,
    ) -> Result<(), JournalError> {
        for (run, result) in prepared {
            self.preparing.remove(&run);
            match result {
                // The log went on meanwhile; nobody waits for this one any more.
                _ if !awaited(duties, run) => {}
                Ok(()) => drop(self.ready.insert(run)),
                Err(text) => self.ended(run, Exit::LaunchFailed(text))?,
            }
        }
        Ok(())
    }

    fn observe(&mut self, run: RunKey, observed: &Observed) -> Result<(), JournalError> {
        if let Observed::Running { frozen_ms, .. } = observed {
            self.frozen_ms.insert(run, *frozen_ms);
        }
        if shows_a_start(&actual_of(observed, false)) {
            self.ran.insert(run);
        }
        match observed {
            Observed::Ended(exit) => self.ended(run, exit.clone()),
            _ => {
                let adopted = matches!(self.actual.get(&run), Some(Actual::Running { adopted: true, .. }));
                self.actual.insert(run, actual_of(observed, adopted));
                Ok(())
            }
        }
    }

    /// An end is an obligation to report it: durable before anything else happens.
    fn ended(&mut self, run: RunKey, exit: Exit) -> Result<(), JournalError> {
        self.journal.append(&[Entry::Ended(run, exit.clone())])?;
        self.told.remove(&run);
        self.frozen_ms.remove(&run);
        self.actual.insert(run, Actual::Ended(exit));
        Ok(())
    }

    /// Passes the deadline on to every run that this daemon start answers for. Nothing is thawed by it.
    fn renew(&mut self, authority: &Authority) -> Result<(), JournalError> {
        let Some(deadline_ms) = authority.deadline_ms else {
            return Ok(());
        };
        let adopted = |actual: &Actual| matches!(actual, Actual::Running { adopted: true, .. });
        let runs: Vec<RunKey> = self
            .actual
            .iter()
            .filter(|(_, a)| adopted(a))
            .map(|(run, _)| *run)
            .collect();
        for run in runs {
            let run_until_ms = authority.run_until_ms.get(&run.lease).copied();
            let news = (deadline_ms, run_until_ms);
            if self.told.get(&run) == Some(&news) {
                continue;
            }
            let order = Order::Deadline {
                until_boot_ms: deadline_ms,
                run_until_boot_ms: run_until_ms,
            };
            let observed = self.processes.order(run, order);
            self.told.insert(run, news);
            self.observe(run, &observed)?;
        }
        Ok(())
    }

    fn survey(&mut self, now_ms: u64) {
        let known = self.actual.keys().copied().collect();
        self.unknown = self.processes.unknown(&known);
        self.next_survey_ms = now_ms + SURVEY_EVERY_MS;
    }

    /// Carries a step out. True when the picture has changed by it.
    fn act(
        &mut self,
        step: Step,
        authority: &Authority,
        duties: &Duties,
        now_ms: u64,
        turn: &mut Turn,
    ) -> Result<bool, JournalError> {
        match &step {
            Step::Prepare(run) => {
                let Some(duty) = duty_of(duties, *run) else {
                    return Ok(false);
                };
                self.preparing.insert(*run);
                let fence = duty.fence(run.epoch, run.attempt);
                let folder = self.folder_of(*run);
                turn.prepare.push(PrepareOrder {
                    run: *run,
                    fence,
                    work: Arc::clone(&duty.work),
                    folder,
                });
                Ok(true)
            }
            Step::ReportPrepared(_) | Step::ReportStarted(_) | Step::ReportExited(..) => {
                if self.due(&step, now_ms) {
                    turn.commands.extend(self.command(&step));
                }
                Ok(false)
            }
            Step::Spawn(run) => self.spawn(*run, authority, duties, now_ms),
            Step::Adopt(run) => {
                if let Some(Actual::Running { adopted, .. }) = self.actual.get_mut(run) {
                    *adopted = true;
                }
                self.renew(authority)?;
                Ok(true)
            }
            Step::Thaw(run) => {
                let Some(until_boot_ms) = authority.deadline_ms else {
                    return Ok(false);
                };
                let observed = self.processes.order(*run, Order::Thaw { until_boot_ms });
                self.observe(*run, &observed)?;
                Ok(false)
            }
            Step::Stop(run, grace_ms) => {
                let order = if *grace_ms == 0 {
                    Order::Kill
                } else {
                    Order::Stop { grace_ms: *grace_ms }
                };
                let observed = self.processes.order(*run, order);
                self.observe(*run, &observed)?;
                Ok(matches!(observed, Observed::Ended(_)))
            }
            Step::EndUnknown(name) => {
                let gone = self.processes.end_unknown(name);
                let what = if gone { "was ended" } else { "does not end" };
                turn.notes
                    .push(format!("work {name} ran here without a record and {what}"));
                if gone {
                    self.unknown.retain(|other| other != name);
                }
                Ok(gone)
            }
            Step::Collect(run) => {
                self.journal.append(&[Entry::Forgotten(*run)])?;
                self.processes.discard(*run);
                self.actual.remove(run);
                self.ran.remove(run);
                Ok(true)
            }
        }
    }

    fn spawn(
        &mut self,
        run: RunKey,
        authority: &Authority,
        duties: &Duties,
        now_ms: u64,
    ) -> Result<bool, JournalError> {
        let (Some(duty), Some(deadline_ms)) = (duty_of(duties, run), authority.deadline_ms) else {
            return Ok(false);
        };
        if deadline_ms <= now_ms {
            return Ok(false);
        }
        // The intention is durable before the act: whatever happens next, this attempt is never spawned again.
        self.journal.append(&[Entry::Spawning(run)])?;
        let run_until_ms = authority.run_until_ms.get(&run.lease).copied();
        let spec = self.outfit.spec(
            run,
            duty,
            &self.folder_of(run),
            Until {
                deadline_ms,
                run_until_ms,
            },
        );
        let observed = self.processes.launch(run, &spec);
        self.actual.insert(run, actual_of(&observed, true));
        self.told.insert(run, (deadline_ms, run_until_ms));
        self.observe(run, &observed)?;
        Ok(true)
    }

    fn folder_of(&self, run: RunKey) -> PathBuf {
        self.folder.join(format!("{FOLDER_PREFIX}{run}"))
    }

    /// Whether a report is to be made now; notes that it was.
    fn due(&mut self, step: &Step, now_ms: u64) -> bool {
        let gap = match self.reported.get(step) {
            Some((next, _)) if now_ms < *next => return false,
            Some((_, gap)) => (gap * 2).min(REPORT_AGAIN_MS_MAX),
            None => REPORT_AGAIN_MS,
        };
        self.reported.insert(step.clone(), (now_ms + gap, gap));
        true
    }

    fn command(&self, step: &Step) -> Option<Command> {
        let node = self.outfit.node;
        match step {
            Step::ReportPrepared(run) => Some(Command::ReportPrepared {
                lease: run.lease,
                epoch: run.epoch,
                follows: Attempt(run.attempt.0.saturating_sub(1)),
                node,
                incarnation: self.incarnation,
            }),
            Step::ReportStarted(run) => Some(Command::ReportStarted {
                lease: run.lease,
                epoch: run.epoch,
                attempt: run.attempt,
                node,
            }),
            Step::ReportExited(run, how) => {
                let exit = match (how, self.actual.get(run)) {
                    (ReportedExit::Recorded, Some(Actual::Ended(exit))) => exit.clone(),
                    (ReportedExit::Recorded, _) => return None,
                    (ReportedExit::NotStarted, _) => Exit::NotStarted,
                    (ReportedExit::Vanished, _) => Exit::Vanished,
                };
                let RunKey { lease, epoch, attempt } = *run;
                Some(Command::ReportExited {
                    lease,
                    epoch,
                    attempt,
                    node,
                    exit,
                })
            }
            _ => None,
        }
    }
}

fn duty_of(duties: &Duties, run: RunKey) -> Option<&Duty> {
    duties.members.get(&(run.lease, run.epoch))
}

/// Whether the log still waits for this preparation.
fn awaited(duties: &Duties, run: RunKey) -> bool {
    duty_of(duties, run).is_some_and(|duty| duty.standing == Standing::Waiting && duty.attempt.0 + 1 == run.attempt.0)
}

fn actual_of(observed: &Observed, adopted: bool) -> Actual {
    match observed {
        Observed::Running { frozen, ending, .. } => Actual::Running {
            frozen: *frozen,
            adopted,
            ending: *ending,
        },
        Observed::Silent => Actual::Silent,
        Observed::Ended(exit) => Actual::Ended(exit.clone()),
    }
}

/// Whether what is seen proves that the program executed. With the shell's codes for what cannot be run, it may not have.
fn shows_a_start(actual: &Actual) -> bool {
    match actual {
        Actual::Running { .. } => true,
        Actual::Ended(Exit::Code(code)) => !matches!(code, 126 | 127),
        Actual::Ended(exit) => exit.needs_a_start(),
        Actual::Silent => false,
    }
}

fn end_entry(run: RunKey, actual: &Actual) -> Option<Entry> {
    match actual {
        Actual::Ended(exit) => Some(Entry::Ended(run, exit.clone())),
        _ => None,
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
pub(in crate::executor) mod tests;
