//! Faults as data: a plan says what befalls whom and when, and a seed makes a plan.
//!
//! A plan can be written to a file, replayed, and shrunk. Each seed enables a random subset of the fault kinds (swarm
//! testing: a mix of everything at once hides bugs that need a few kinds often). The one rule: each step draws from a
//! stream of its own number, so that leaving one out changes no other.

use serde::{Deserialize, Serialize};

use crate::net::Weather;
use crate::random::Stream;

/// Who is meant. Leaders are found when the fault strikes, for nobody knows them before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The replica that leads when the fault strikes; the first one when none does.
    Leader,
    /// A replica by its place, from 0.
    Replica(u8),
}

/// Which way a cut goes, seen from its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// It neither hears nor is heard.
    Both,
    /// It hears nobody, and is heard.
    Inward,
    /// It hears, and nobody hears it.
    Outward,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Fault {
    /// The process dies at once, and starts again; its disk keeps what was written.
    Kill {
        /// Whose.
        target: Target,
        /// How long it stays down.
        down_ms: u64,
    },
    /// The machine loses its power at once: unsynced writes survive by chance.
    PowerLoss {
        /// Whose.
        target: Target,
        /// How long it stays down.
        down_ms: u64,
    },
    /// The power goes between two disk calls of this many from now, which no timer could hit.
    PowerLossInWrite {
        /// Whose.
        target: Target,
        /// Changing disk calls that still succeed.
        calls: u64,
        /// Wait after them for a sync, so that what it was to cover is surely lost.
        at_sync: bool,
        /// How long it stays down.
        down_ms: u64,
    },
    /// The process stands still, its clock goes on.
    Pause {
        /// Whose.
        target: Target,
        /// How long.
        span_ms: u64,
    },
    /// The boot clock runs at another rate.
    ClockRate {
        /// Whose.
        target: Target,
        /// Parts per million of true time.
        rate_ppm: u64,
    },
    /// The wall clock jumps.
    ClockStep {
        /// Whose.
        target: Target,
        /// By how much.
        by_ms: i64,
    },
    /// A replica is cut off from all others.
    Isolate {
        /// Which.
        target: Target,
        /// Which way.
        way: Way,
        /// How long.
        span_ms: u64,
    },
    /// One direction of one link is cut.
    CutLink {
        /// Place of the sender.
        from: u8,
        /// Place of the receiver.
        to: u8,
        /// How long.
        span_ms: u64,
    },
    /// All links get worse.
    Storm {
        /// How they behave.
        weather: Weather,
        /// How long.
        span_ms: u64,
    },
    /// Syncs take long.
    SlowDisk {
        /// Whose.
        target: Target,
        /// Longest time that a sync takes.
        sync_us_max: u64,
        /// How long.
        span_ms: u64,
    },
}

/// Kinds of faults, to enable and to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// See [`Fault::Kill`].
    Kill,
    /// See [`Fault::PowerLoss`] and [`Fault::PowerLossInWrite`].
    Power,
    /// See [`Fault::Pause`].
    Pause,
    /// See [`Fault::ClockRate`] and [`Fault::ClockStep`].
    Clock,
    /// See [`Fault::Isolate`] and [`Fault::CutLink`].
    Cut,
    /// See [`Fault::Storm`].
    Storm,
    /// See [`Fault::SlowDisk`].
    Disk,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Kill,
        Self::Power,
        Self::Pause,
        Self::Clock,
        Self::Cut,
        Self::Storm,
        Self::Disk,
    ];
}

impl Fault {
    /// The kind that it counts as.
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Kill { .. } => FaultKind::Kill,
            Self::PowerLoss { .. } | Self::PowerLossInWrite { .. } => FaultKind::Power,
            Self::Pause { .. } => FaultKind::Pause,
            Self::ClockRate { .. } | Self::ClockStep { .. } => FaultKind::Clock,
            Self::Isolate { .. } | Self::CutLink { .. } => FaultKind::Cut,
            Self::Storm { .. } => FaultKind::Storm,
            Self::SlowDisk { .. } => FaultKind::Disk,
        }
    }

    /// The replicas that it names by place.
    fn places(&self) -> Vec<u8> {
        match self {
            Self::Kill { target, .. }
            | Self::PowerLoss { target, .. }
            | Self::PowerLossInWrite { target, .. }
            | Self::Pause { target, .. }
            | Self::ClockRate { target, .. }
            | Self::ClockStep { target, .. }
            | Self::Isolate { target, .. }
            | Self::SlowDisk { target, .. } => match target {
                Target::Leader => Vec::new(),
                Target::Replica(place) => vec![*place],
            },
            Self::CutLink { from, to, .. } => vec![*from, *to],
            Self::Storm { .. } => Vec::new(),
        }
    }
}

/// A fault and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Milliseconds after the cluster has started to serve.
    pub at_ms: u64,
    /// What happens.
    #[serde(flatten)]
    pub fault: Fault,
}

/// What befalls a cluster, in order of time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How many replicas it is for.
    pub replicas: u8,
    /// How long faults go on before everything heals.
    pub span_ms: u64,
    /// The faults.
    pub steps: Vec<Step>,
}

/// A plan that fits no cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// It names a replica that is not there.
    #[error("step {step} names replica {place}, and the cluster has {replicas}, counted from 0")]
    NoSuchReplica {
        /// The step, counted from 0.
        step: usize,
        /// The place that it names.
        place: u8,
        /// How many there are.
        replicas: u8,
    },
    /// A clock that stands still or runs backwards.
    #[error("step {step} sets a clock's rate to zero")]
    NoRate {
        /// The step, counted from 0.
        step: usize,
    },
}

impl Plan {
    /// A plan without faults.
    pub const fn calm(replicas: u8, span_ms: u64) -> Self {
        Self {
            replicas,
            span_ms,
            steps: Vec::new(),
        }
    }

    /// Checks that the plan fits its cluster.
    ///
    /// # Errors
    /// The first step that does not.
    pub fn check(&self) -> Result<(), PlanError> {
        for (step, at) in self.steps.iter().enumerate() {
            if let Some(place) = at.fault.places().into_iter().find(|place| *place >= self.replicas) {
                return Err(PlanError::NoSuchReplica {
                    step,
                    place,
                    replicas: self.replicas,
                });
            }
            if matches!(at.fault, Fault::ClockRate { rate_ppm: 0, .. }) {
                return Err(PlanError::NoRate { step });
            }
        }
        Ok(())
    }

    /// Makes the plan of a seed.
    ///
    /// Two steps are in every plan, because a run without them proves little and counts as void: the leader loses its
    /// power in the middle of a write, and the leader is killed or cut off.
    pub fn swarm(seed: &Stream, replicas: u8, span_ms: u64) -> Self {
        assert!(replicas > 0, "a plan is for a cluster");
        let mut choice = seed.child("plan");
        let mut enabled: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|_| choice.chance(500)).collect();
        if enabled.is_empty() {
            enabled.push(FaultKind::Cut);
        }
        let mut steps = Self::spine(&mut choice, span_ms);
        let count = choice.between(4, 14);
        steps.extend((0..count).map(|number| {
            let mut draws = seed.numbered("step", &[number]);
            let kind = *draws.pick(&enabled).expect("at least one kind is enabled");
            Step {
                at_ms: draws.below(span_ms),
                fault: draw_fault(&mut draws, kind, replicas),
            }
        }));
        steps.sort_by_key(|step| step.at_ms);
        Self {
            replicas,
            span_ms,
            steps,
        }
    }

    fn spine(choice: &mut Stream, span_ms: u64) -> Vec<Step> {
        let first_ms = choice.between(span_ms / 8, span_ms / 3);
        let second_ms = choice.between(span_ms / 2, span_ms * 3 / 4);
        let down_ms = choice.between(400, 2_000);
        let power = Fault::PowerLossInWrite {
            target: Target::Leader,
            calls: choice.below(12),
            at_sync: true,
            down_ms,
        };
        let span = choice.between(1_500, 2_500);
        let other = if choice.chance(500) {
            Fault::Kill {
                target: Target::Leader,
                down_ms: span,
            }
        } else {
            Fault::Isolate {
                target: Target::Leader,
                way: Way::Both,
                span_ms: span,
            }
        };
        vec![
            Step {
                at_ms: first_ms,
                fault: power,
            },
            Step {
                at_ms: second_ms,
                fault: other,
            },
        ]
    }
}

fn draw_target(draws: &mut Stream, replicas: u8) -> Target {
    // Half of the faults go where they hurt.
    if draws.chance(500) {
        Target::Leader
    } else {
        Target::Replica(draw_place(draws, replicas))
    }
}

fn draw_place(draws: &mut Stream, replicas: u8) -> u8 {
    u8::try_from(draws.below(u64::from(replicas))).expect("below a byte")
}

fn draw_fault(draws: &mut Stream, kind: FaultKind, replicas: u8) -> Fault {
    let target = draw_target(draws, replicas);
    match kind {
        FaultKind::Kill => Fault::Kill {
            target,
            down_ms: draws.between(50, 2_000),
        },
        FaultKind::Power if draws.chance(500) => Fault::PowerLoss {
            target,
            down_ms: draws.between(50, 2_000),
        },
        FaultKind::Power => Fault::PowerLossInWrite {
            target,
            calls: draws.below(40),
            at_sync: draws.chance(500),
            down_ms: draws.between(50, 2_000),
        },
        FaultKind::Pause => Fault::Pause {
            target,
            span_ms: draws.between(20, 2_500),
        },
        FaultKind::Clock if draws.chance(500) => {
            // Within rho, one part in a hundred, either way.
            Fault::ClockRate {
                target,
                rate_ppm: draws.between(990_000, 1_010_000),
            }
        }
        FaultKind::Clock => {
            let by_ms = i64::try_from(draws.below(7_200_000)).expect("two hours fit") - 3_600_000;
            Fault::ClockStep { target, by_ms }
        }
        FaultKind::Cut => draw_cut(draws, target, replicas),
        FaultKind::Storm => {
            let weather = Weather {
                tail_permille: draws.between(10, 200),
                tail_us: draws.between(5_000, 60_000),
                loss_permille: draws.below(150),
                duplicate_permille: draws.below(150),
                ..Weather::FAIR
            };
            Fault::Storm {
                weather,
                span_ms: draws.between(200, 3_000),
            }
        }
        FaultKind::Disk => Fault::SlowDisk {
            target,
            sync_us_max: draws.between(2_000, 60_000),
            span_ms: draws.between(200, 3_000),
        },
    }
}

fn draw_cut(draws: &mut Stream, target: Target, replicas: u8) -> Fault {
    let span_ms = draws.between(100, 2_500);
    match draws.below(4) {
        0 => Fault::Isolate {
            target,
            way: Way::Inward,
            span_ms,
        },
        1 => Fault::Isolate {
            target,
            way: Way::Outward,
            span_ms,
        },
        2 => Fault::Isolate {
            target,
            way: Way::Both,
            span_ms,
        },
        _ => {
            let from = draw_place(draws, replicas);
            let to = (from + 1 + draw_place(draws, replicas.max(2) - 1)) % replicas;
            Fault::CutLink { from, to, span_ms }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn plan(seed: u64) -> Plan {
        Plan::swarm(&Stream::seeded(seed), 3, 20_000)
    }

    #[test]
    fn seed_makes_one_plan_and_another_seed_another() {
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn every_plan_fits_its_cluster_and_is_in_order() {
        for seed in 0..500 {
            let plan = plan(seed);
            assert_eq!(plan.check(), Ok(()));
            assert!(plan.steps.is_sorted_by_key(|step| step.at_ms));
            assert!(plan.steps.iter().all(|step| step.at_ms < plan.span_ms));
            let crashes = plan.steps.iter().any(|step| step.fault.kind() == FaultKind::Power);
            assert!(crashes, "seed {seed} loses no unsynced write");
        }
    }

    #[test]
    fn seeds_differ_in_the_kinds_that_they_enable_and_reach_all() {
        let kinds: Vec<BTreeSet<FaultKind>> = (0..100)
            .map(|seed| plan(seed).steps.iter().map(|step| step.fault.kind()).collect())
            .collect();
        assert!(kinds.iter().collect::<BTreeSet<_>>().len() > 20);
        assert_eq!(
            kinds.into_iter().flatten().collect::<BTreeSet<_>>().len(),
            FaultKind::ALL.len()
        );
    }

    #[test]
    fn cut_link_never_joins_a_replica_with_itself() {
        let steps = (0..500).flat_map(|seed| plan(seed).steps);
        let cuts: Vec<Fault> = steps
            .map(|step| step.fault)
            .filter(|f| matches!(f, Fault::CutLink { .. }))
            .collect();
        assert!(cuts.len() > 50);
        assert!(
            cuts.iter()
                .all(|cut| !matches!(cut, Fault::CutLink { from, to, .. } if from == to))
        );
    }

    #[test]
    fn plan_survives_its_text_form() {
        let plan = plan(7);
        let text = serde_json::to_string(&plan).expect("plain data serialises");
        assert_eq!(serde_json::from_str::<Plan>(&text).expect("its own text reads"), plan);
    }

    #[test]
    fn plan_that_names_an_absent_replica_is_refused_by_name() {
        let fault = Fault::Kill {
            target: Target::Replica(3),
            down_ms: 1,
        };
        let plan = Plan {
            replicas: 3,
            span_ms: 10,
            steps: vec![Step { at_ms: 1, fault }],
        };
        let error = plan.check().expect_err("there is no such replica");
        assert_eq!(
            error.to_string(),
            "step 0 names replica 3, and the cluster has 3, counted from 0"
        );
        let fault = Fault::ClockRate {
            target: Target::Leader,
            rate_ppm: 0,
        };
        let plan = Plan {
            replicas: 3,
            span_ms: 10,
            steps: vec![Step { at_ms: 1, fault }],
        };
        assert_eq!(plan.check(), Err(PlanError::NoRate { step: 0 }));
    }
}
