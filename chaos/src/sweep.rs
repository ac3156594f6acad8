//! A sweep: many seeds, over several threads, until they or the time are used up.
//!
//! The one rule: a seed is begun or it is not; when the time is up the seeds that run are finished, so that what is
//! reported was wholly seen.

use std::sync::Mutex;
use std::sync::PoisonError;

use serde::Serialize;

use crate::report::{Report, Verdict};

/// Many runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Sweep {
    /// Runs.
    pub seeds: u64,
    /// Runs in which an invariant broke.
    pub violations: u64,
    /// Runs that proved nothing.
    pub void: u64,
    /// Runs with a checker out of its budget.
    pub undecided: u64,
    /// Commands committed over all runs.
    pub commands: u64,
    /// Virtual time over all runs, in milliseconds.
    pub simulated_ms: u64,
    /// Seeds that did not pass, at most the first 100.
    pub failed: Vec<u64>,
}

impl Sweep {
    /// Adds a run.
    pub fn add(&mut self, report: &Report) {
        let verdict = report.verdict();
        self.seeds += 1;
        self.violations += u64::from(verdict == Verdict::Violation);
        self.void += u64::from(verdict == Verdict::Void);
        self.undecided += u64::from(verdict == Verdict::Undecided);
        self.commands += report.counts.commands;
        self.simulated_ms += report.simulated_ms;
        if verdict != Verdict::Pass && self.failed.len() < 100 {
            self.failed.push(report.seed);
        }
    }

    /// How the sweep ended: as its worst run, but a void run among others is a blind spot and no failure of all.
    pub fn verdict(&self) -> Verdict {
        if self.violations > 0 {
            Verdict::Violation
        } else if self.undecided > 0 {
            Verdict::Undecided
        } else if self.void == self.seeds {
            Verdict::Void
        } else {
            Verdict::Pass
        }
    }
}

/// Runs the seeds from `from` on, `count` of them, over `jobs` threads; no seed is begun after `over` says true. Each
/// report goes to `told` as it comes, which is not in the order of the seeds.
pub fn run(
    from: u64,
    count: u64,
    jobs: usize,
    over: impl Fn() -> bool + Sync,
    world: impl Fn(u64) -> Report + Sync,
    told: impl Fn(&Report) + Sync,
) -> Sweep {
    let next = Mutex::new(from..from.saturating_add(count));
    let sweep = Mutex::new(Sweep::default());
    let work = || {
        while !over() {
            let Some(seed) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else {
                return;
            };
            let report = world(seed);
            let mut sweep = sweep.lock().unwrap_or_else(PoisonError::into_inner);
            sweep.add(&report);
            // Under the lock: lines of two reports are not mixed.
            told(&report);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    let mut sweep = sweep.into_inner().unwrap_or_else(PoisonError::into_inner);
    sweep.failed.sort_unstable();
    sweep
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::report::Counts;
    use crate::report::tests::report;

    fn void(seed: u64) -> Report {
        Report {
            seed,
            counts: Counts::default(),
            ..report()
        }
    }

    #[test]
    fn every_seed_is_run_once_whatever_the_number_of_jobs() {
        for jobs in [1, 3] {
            let told = Mutex::new(Vec::new());
            let note = |report: &Report| told.lock().unwrap().push(report.seed);
            let sweep = run(10, 20, jobs, || false, void, note);
            let mut told = told.into_inner().unwrap();
            told.sort_unstable();
            assert_eq!(told, (10..30).collect::<Vec<_>>());
            assert_eq!((sweep.seeds, sweep.failed.len()), (20, 20));
            assert!(sweep.failed.is_sorted());
        }
    }

    #[test]
    fn no_seed_is_begun_after_the_time_is_up() {
        let begun = AtomicU64::new(0);
        let world = |seed| {
            begun.fetch_add(1, Ordering::Relaxed);
            void(seed)
        };
        let sweep = run(1, 1_000, 1, || begun.load(Ordering::Relaxed) == 3, world, |_| ());
        assert_eq!(sweep.seeds, 3);
    }

    #[test]
    fn sweep_fails_with_its_worst_run_and_is_void_only_as_a_whole() {
        let void = Report {
            counts: Counts::default(),
            ..report()
        };
        let mut sweep = Sweep::default();
        sweep.add(&void);
        assert_eq!(sweep.verdict(), Verdict::Void);
        sweep.add(&report());
        assert_eq!(sweep.verdict(), Verdict::Pass);
        assert_eq!((sweep.seeds, sweep.void, sweep.failed.as_slice()), (2, 1, &[7_u64][..]));
        let undecided = Report {
            undecided: vec!["budget".to_owned()],
            ..report()
        };
        sweep.add(&undecided);
        assert_eq!(sweep.verdict(), Verdict::Undecided);
    }
}
