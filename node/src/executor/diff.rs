//! Compares what the log asks of this node with what runs here, and says what to do. Pure.
//!
//! The executor calls it after every change and carries out the steps. Every rule is a sentence below, named as in
//! the model of the node lease where it comes from there. The rule above all: without a renewal in force, of the
//! generation in the applied state, whose barrier has been applied, nothing is prepared, spawned, adopted, thawed or
//! ended here, because the state may be an old one. Only proven facts are reported without it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::id::{Attempt, Epoch, Incarnation, LeaseId};
use holdfast_proto::placement::Exit;

use super::duty::{Duties, Duty, MemberRun, RunKey, Standing};

/// Grace for the rest of an attempt that is over: long enough to flush a file, short enough that the next attempt of
/// the gang does not wait for it.
const OVER_GRACE_MS: u64 = 2_000;

/// What really is, for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actual {
    /// Its processes exist.
    Running {
        /// They do not execute.
        frozen: bool,
        /// This daemon start answers for it: it was spawned or adopted.
        adopted: bool,
        /// It was told to end.
        ending: bool,
    },
    /// Its supervisor does not answer.
    Silent,
    /// Nothing of it is left.
    Ended(Exit),
}

/// What is compared.
#[derive(Debug, Clone, Copy)]
pub struct Picture<'a> {
    /// This daemon start.
    pub incarnation: Incarnation,
    /// Whether a renewal is in force, of the applied generation, with its barrier applied.
    pub permitted: bool,
    /// What the log asks.
    pub duties: &'a Duties,
    /// What really is, by run: from the journal and the supervisors.
    pub actual: &'a BTreeMap<RunKey, Actual>,
    /// Names of processes and groups of this node that belong to no run in `actual`.
    pub unknown: &'a [String],
    /// Preparations that go on now.
    pub preparing: &'a BTreeSet<RunKey>,
    /// Preparations that are done: the gates have acknowledged the fence.
    pub ready: &'a BTreeSet<RunKey>,
    /// Runs whose program is known to have executed.
    pub ran: &'a BTreeSet<RunKey>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Check the node, bring the saved state, show the coming fence to the gates; then report it prepared. The key
    /// names the attempt that will follow.
    Prepare(RunKey),
    /// Tell the log that this daemon start has prepared it.
    ReportPrepared(RunKey),
    /// Start it.
    Spawn(RunKey),
    /// Answer for it from now on: renew its deadline.
    Adopt(RunKey),
    /// Let it execute again.
    Thaw(RunKey),
    /// End it: SIGTERM, grace in milliseconds, then the whole group.
    Stop(RunKey, u64),
    /// End what has no record.
    EndUnknown(String),
    /// Tell the log that it runs.
    ReportStarted(RunKey),
    /// Tell the log how it ended.
    ReportExited(RunKey, ReportedExit),
    /// Remove its folder.
    Collect(RunKey),
}

/// An exit that can be ordered, so that steps can be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReportedExit {
    /// As the supervisor recorded it.
    Recorded,
    /// Accepted, and never started here.
    NotStarted,
    /// It was running, and nothing of it is left.
    Vanished,
}

/// Says what to do. The order of the result is the order in which to do it: facts first, then ends, then starts.
pub fn diff(picture: &Picture<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    for ((lease, epoch), duty) in &picture.duties.members {
        let member = Member {
            picture,
            lease: *lease,
            epoch: *epoch,
            duty,
        };
        member.report(&mut steps);
        if picture.permitted && !duty.lost {
            member.resolve(&mut steps);
        }
    }
    for (run, actual) in picture.actual {
        without_duty(picture, *run, actual, &mut steps);
    }
    if picture.permitted {
        // Work without a record is nobody's: it is ended, and its lease is told by the rule for vanished work.
        steps.extend(picture.unknown.iter().cloned().map(Step::EndUnknown));
    }
    steps.sort_by_key(urgency);
    steps
}

fn urgency(step: &Step) -> u8 {
    match step {
        Step::ReportStarted(_) | Step::ReportExited(..) => 0,
        Step::Adopt(_) | Step::Thaw(_) => 1,
        Step::Stop(..) | Step::EndUnknown(_) => 2,
        Step::Spawn(_) => 3,
        Step::Prepare(_) | Step::ReportPrepared(_) => 4,
        Step::Collect(_) => 5,
    }
}

/// This node's member of one placement, beside what runs.
struct Member<'a> {
    picture: &'a Picture<'a>,
    lease: LeaseId,
    epoch: Epoch,
    duty: &'a Duty,
}

impl Member<'_> {
    fn key(&self, attempt: Attempt) -> RunKey {
        RunKey {
            lease: self.lease,
            epoch: self.epoch,
            attempt,
        }
    }

    /// The run of the placement's last attempt.
    fn last(&self) -> RunKey {
        self.key(self.duty.attempt)
    }

    /// The run that would follow.
    fn next(&self) -> RunKey {
        self.key(Attempt(self.duty.attempt.0 + 1))
    }

    /// Facts that the log does not have yet. They are proven here and stay true, so they need no renewal.
    fn report(&self, steps: &mut Vec<Step>) {
        let last = self.last();
        match (self.picture.actual.get(&last), self.duty.run) {
            // The log hears of a start before it hears of its end, however short the work was: only what has started is
            // charged. Once its placement is not current any more, nothing is waited for.
            (Some(Actual::Ended(exit)), MemberRun::Accepted(_))
                if self.duty.standing == Standing::Current
                    && self.picture.ran.contains(&last)
                    && exit.needs_a_start() =>
            {
                steps.push(Step::ReportStarted(last));
            }
            // An exit is reported until the applied state shows it.
            (Some(Actual::Ended(_)), MemberRun::Accepted(_) | MemberRun::Started) => {
                steps.push(Step::ReportExited(last, ReportedExit::Recorded));
            }
            // A start is reported until the applied state shows it.
            (Some(Actual::Running { adopted: true, .. }), MemberRun::Accepted(_)) => {
                steps.push(Step::ReportStarted(last));
            }
            _ => {}
        }
        // A preparation that failed uses up the attempt that it was for.
        let next = self.next();
        if self.duty.standing == Standing::Waiting && matches!(self.picture.actual.get(&next), Some(Actual::Ended(_))) {
            steps.push(Step::ReportExited(next, ReportedExit::Recorded));
        }
    }

    /// Everything that needs a renewal in force.
    fn resolve(&self, steps: &mut Vec<Step>) {
        self.end_older(steps);
        let last = self.last();
        match self.picture.actual.get(&last) {
            Some(Actual::Running {
                frozen,
                adopted,
                ending,
            }) => {
                self.running(last, *frozen, *adopted, *ending, steps);
            }
            Some(Actual::Silent) if self.must_end().is_some() => steps.push(Step::Stop(last, 0)),
            Some(Actual::Silent) => {}
            Some(Actual::Ended(_)) => self.prepare(steps),
            None => self.absent(last, steps),
        }
    }

    /// A member is ended by a newer epoch or attempt in the log, by the end of its lease or attempt, and by nothing
    /// else: not by the loss of its peers (V7). The grace is the lease's own when the lease ends, short when only the
    /// attempt is over, and none when the placement has been replaced.
    fn must_end(&self) -> Option<u64> {
        match (self.duty.standing, self.duty.run) {
            (Standing::Current, MemberRun::Accepted(_) | MemberRun::Started) => None,
            // The log has its end already, so nothing of it may run.
            (Standing::Current, MemberRun::Idle | MemberRun::Exited) => Some(0),
            (Standing::Waiting, _) => Some(OVER_GRACE_MS),
            (Standing::Ending, _) => Some(self.duty.work.requested.terms.grace.0),
            (Standing::Replaced, _) => Some(0),
        }
    }

    fn running(&self, run: RunKey, frozen: bool, adopted: bool, ending: bool, steps: &mut Vec<Step>) {
        if let Some(grace_ms) = self.must_end() {
            if !ending {
                steps.push(Step::Stop(run, grace_ms));
            }
            return;
        }
        if ending {
            return;
        }
        if !adopted {
            // An accepted attempt that runs here is adopted, whichever daemon start spawned it (V5).
            steps.push(Step::Adopt(run));
        }
        if frozen {
            // A thaw needs a renewal in force, its barrier applied, and the allocation still current (V2).
            steps.push(Step::Thaw(run));
        }
    }

    /// Nothing of the last attempt exists here, nor a record of its end.
    fn absent(&self, run: RunKey, steps: &mut Vec<Step>) {
        if self.strays() {
            // It may be the missing run itself: ended first, spoken of afterwards.
            return;
        }
        match (self.duty.standing, self.duty.run) {
            // Only the daemon start that prepared an accepted attempt spawns it (V5).
            (Standing::Current, MemberRun::Accepted(by)) if by == self.picture.incarnation => {
                // A start is accepted while an earlier member sits on a lost generation, which may be this node's.
                if self.is_free() {
                    steps.push(Step::Spawn(run));
                }
            }
            // A member that runs nothing of an accepted attempt, and will not start it, says so (V5).
            (_, MemberRun::Accepted(_)) => steps.push(Step::ReportExited(run, ReportedExit::NotStarted)),
            (_, MemberRun::Started) => steps.push(Step::ReportExited(run, ReportedExit::Vanished)),
            (_, MemberRun::Idle | MemberRun::Exited) => self.prepare(steps),
        }
    }

    /// The next attempt is prepared when the last one has ended in the log and here, once, by this daemon start (V4).
    fn prepare(&self, steps: &mut Vec<Step>) {
        let next = self.next();
        let ended_in_log = matches!(self.duty.run, MemberRun::Idle | MemberRun::Exited);
        if self.duty.standing == Standing::Waiting
            && ended_in_log
            && self.is_free()
            && self.duty.prepared != Some(self.picture.incarnation)
            && !self.picture.preparing.contains(&next)
            && !self.picture.actual.contains_key(&next)
        {
            // Fence first, report second: the gates have seen the coming attempt before the log hears of it.
            let ready = self.picture.ready.contains(&next);
            steps.push(if ready {
                Step::ReportPrepared(next)
            } else {
                Step::Prepare(next)
            });
        }
    }

    /// Whether no process of this lease exists here.
    fn is_free(&self) -> bool {
        let lives = |(run, actual): (&RunKey, &Actual)| run.lease == self.lease && !matches!(actual, Actual::Ended(_));
        !self.picture.actual.iter().any(lives) && !self.strays()
    }

    /// Whether something without a record, and with this lease's name, exists here.
    fn strays(&self) -> bool {
        let mut runs = self
            .picture
            .unknown
            .iter()
            .filter_map(|name| name.parse::<RunKey>().ok());
        runs.any(|run| run.lease == self.lease)
    }

    /// Runs of this placement other than its last attempt are ended: a newer attempt is in the log (V4).
    fn end_older(&self, steps: &mut Vec<Step>) {
        let last = self.last();
        for (run, actual) in self.picture.actual {
            if run.lease == self.lease && run.epoch == self.epoch && *run != last {
                end(*run, actual, steps);
            }
        }
    }
}

fn end(run: RunKey, actual: &Actual, steps: &mut Vec<Step>) {
    match actual {
        Actual::Running { ending: false, .. } | Actual::Silent => steps.push(Step::Stop(run, 0)),
        Actual::Running { .. } | Actual::Ended(_) => {}
    }
}

/// A run whose placement this node has no part in any more (or never had): with a fresh state, it is ended, and its
/// folder goes once the state has forgotten the lease and with it the reader of its output.
fn without_duty(picture: &Picture<'_>, run: RunKey, actual: &Actual, steps: &mut Vec<Step>) {
    if picture.duties.members.contains_key(&(run.lease, run.epoch)) || !picture.permitted {
        return;
    }
    end(run, actual, steps);
    if matches!(actual, Actual::Ended(_)) && !picture.duties.remembered.contains(&run.lease) {
        steps.push(Step::Collect(run));
    }
}

#[cfg(test)]
#[path = "diff_tests.rs"]
pub(in crate::executor) mod tests;
