//! Shrinking: from a case that fails to a small one that fails alike.
//!
//! Faults are left out by delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
//! IEEE TSE 2002), then clients, time and replicas. The one rule: a smaller case counts only when the same checker
//! fires in it; another failure is another bug.

use crate::case::Case;
use crate::fault::Plan;

/// Fewest replicas that are tried: with fewer a cluster has no majority to lose.
const REPLICAS_MIN: u8 = 3;
/// Shortest time of faults that is tried, in milliseconds.
const SPAN_MS_MIN: u64 = 500;

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shrunk {
    /// The smallest case found, with the trace that it makes.
    pub case: Case,
    /// How many cases were run.
    pub runs: u64,
    /// Whether the runs were used up before nothing more could be left out.
    pub cut_short: bool,
}

/// Runs cases until their number is used up.
struct Trial<'a> {
    runs: u64,
    runs_max: u64,
    checker: String,
    case: Case,
    fires: &'a mut dyn FnMut(&Case) -> Case,
}

impl Trial<'_> {
    /// Takes the change if the case still fails by the same checker with it.
    fn take(&mut self, change: impl FnOnce(&mut Case)) -> bool {
        let mut smaller = self.case.clone();
        change(&mut smaller);
        if self.over() || smaller == self.case {
            return false;
        }
        self.runs += 1;
        let ran = (self.fires)(&smaller);
        let alike = ran.checker.as_deref() == Some(&*self.checker);
        if alike {
            self.case = ran;
        }
        alike
    }

    fn over(&self) -> bool {
        self.runs >= self.runs_max
    }

    /// Leaves out faults in ever smaller pieces, until none can go alone.
    fn faults(&mut self) {
        let mut pieces = 1;
        while !self.case.plan.steps.is_empty() && !self.over() {
            let steps = self.case.plan.steps.len();
            let size = steps.div_ceil(pieces);
            let gone = (0..steps).step_by(size).any(|from| {
                self.take(|case| {
                    case.plan.steps.drain(from..steps.min(from + size));
                })
            });
            if gone {
                pieces = pieces.saturating_sub(1).max(1);
            } else if size == 1 {
                break;
            } else {
                pieces = (2 * pieces).min(steps);
            }
        }
    }

    fn clients(&mut self) {
        while self.case.clients > 1 && self.take(|case| case.clients /= 2) {}
    }

    /// Ends the faults sooner: those that would strike later are left out.
    fn span(&mut self) {
        let halve = |case: &mut Case| {
            case.plan.span_ms = (case.plan.span_ms / 2).max(SPAN_MS_MIN);
            let end_ms = case.plan.span_ms;
            case.plan.steps.retain(|step| step.at_ms < end_ms);
        };
        while self.take(halve) {}
    }

    fn replicas(&mut self) {
        let fewer = |case: &mut Case| {
            case.plan.replicas = case
                .plan
                .replicas
                .saturating_sub(1)
                .max(REPLICAS_MIN.min(case.plan.replicas));
            case.plan = within(&case.plan);
        };
        while self.take(fewer) {}
    }
}

/// The plan without the steps that name a replica which it has not.
fn within(plan: &Plan) -> Plan {
    let fits = |step: &&crate::fault::Step| {
        let alone = Plan {
            steps: vec![**step],
            ..plan.clone()
        };
        alone.check().is_ok()
    };
    Plan {
        steps: plan.steps.iter().filter(fits).copied().collect(),
        ..plan.clone()
    }
}

/// Shrinks a case with at most `runs_max` runs. `fires` runs a case and returns it with what it came to, as
/// [`Case::again`] does; none when the case does not fail.
pub fn shrink(case: &Case, runs_max: u64, fires: &mut dyn FnMut(&Case) -> Case) -> Option<Shrunk> {
    let first = fires(case);
    let mut trial = Trial {
        runs: 1,
        runs_max: runs_max.max(1),
        checker: first.checker.clone()?,
        case: first,
        fires,
    };
    // What is added after the plan would hide what the plan lacks.
    trial.take(|case| case.make_up = false);
    loop {
        let before = trial.case.clone();
        trial.faults();
        trial.clients();
        trial.span();
        trial.replicas();
        if trial.case == before || trial.over() {
            break;
        }
    }
    Some(Shrunk {
        cut_short: trial.over(),
        runs: trial.runs,
        case: trial.case,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::FORMAT;
    use crate::fault::{Fault, Step, Target};

    fn kill(place: u8, at_ms: u64) -> Step {
        let fault = Fault::Kill {
            target: Target::Replica(place),
            down_ms: 1,
        };
        Step { at_ms, fault }
    }

    fn case(steps: Vec<Step>) -> Case {
        Case {
            format: FORMAT,
            program: String::new(),
            seed: 1,
            clients: 8,
            mutant: None,
            make_up: true,
            checker: None,
            trace: String::new(),
            plan: Plan {
                replicas: 5,
                span_ms: 16_000,
                steps,
            },
        }
    }

    /// Runs nothing: the case fails when this says so.
    fn judged(fails: impl Fn(&Case) -> Option<&'static str>) -> impl FnMut(&Case) -> Case {
        move |case| Case {
            checker: fails(case).map(str::to_owned),
            ..case.clone()
        }
    }

    #[test]
    fn two_faults_that_fail_only_together_are_found_among_forty() {
        let steps: Vec<Step> = (0..40).map(|n| kill(u8::try_from(n % 3).unwrap(), 100 * n)).collect();
        let pair = [steps[3], steps[31]];
        let both = move |case: &Case| {
            let all = pair.iter().all(|step| case.plan.steps.contains(step));
            all.then_some("agreement")
        };
        let shrunk = shrink(&case(steps), 1_000, &mut judged(both)).unwrap();
        assert_eq!(shrunk.case.plan.steps, pair);
        assert_eq!((shrunk.case.clients, shrunk.case.plan.replicas), (1, 3));
        assert!(shrunk.case.plan.span_ms > 3_100, "the second fault must still strike");
        assert!(!shrunk.case.make_up && !shrunk.cut_short);
    }

    #[test]
    fn another_failure_is_not_taken_for_this_one() {
        let steps = vec![kill(0, 1), kill(1, 2)];
        let wanted = steps.clone();
        let judge = move |case: &Case| {
            let whole = case.plan.steps == wanted;
            Some(if whole { "agreement" } else { "liveness" })
        };
        let shrunk = shrink(&case(steps.clone()), 1_000, &mut judged(judge)).unwrap();
        assert_eq!(shrunk.case.plan.steps, steps);
    }

    #[test]
    fn failure_without_any_fault_loses_all_of_them() {
        let steps = (0..9).map(|n| kill(0, n)).collect();
        let shrunk = shrink(&case(steps), 1_000, &mut judged(|_| Some("panic"))).unwrap();
        assert_eq!(shrunk.case.plan.steps, []);
        assert_eq!(shrunk.case.plan.span_ms, SPAN_MS_MIN);
    }

    #[test]
    fn replicas_go_with_the_faults_that_name_them() {
        let steps = vec![kill(4, 1), kill(0, 2)];
        let judge = |case: &Case| {
            let first = case.plan.steps.contains(&kill(0, 2));
            (first && case.plan.check().is_ok()).then_some("agreement")
        };
        let shrunk = shrink(&case(steps), 1_000, &mut judged(judge)).unwrap();
        assert_eq!(shrunk.case.plan.steps, [kill(0, 2)]);
        assert_eq!(shrunk.case.plan.replicas, 3);
    }

    #[test]
    fn case_that_passes_is_not_shrunk_and_runs_are_counted() {
        assert_eq!(shrink(&case(Vec::new()), 10, &mut judged(|_| None)), None);
        let steps = (0..40).map(|n| kill(0, n)).collect();
        let shrunk = shrink(
            &case(steps),
            3,
            &mut judged(|case| case.plan.steps.first().map(|_| "a")),
        )
        .unwrap();
        assert!(shrunk.cut_short && shrunk.runs == 3);
    }
}
