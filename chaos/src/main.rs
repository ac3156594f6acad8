//! `holdfast-chaos`: runs simulated clusters under seeds. `holdfast chaos …` runs this program.
//!
//! Exit codes: 0 pass, 1 violation, 2 undecided, 3 void (too little happened to prove anything), 64 wrong usage. The
//! one rule: the last line of `run` begins with `trace` and sixteen digits, and a failure prints the line to replay it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use holdfast_chaos::fault::Plan;
use holdfast_chaos::renewals::{self, Outcome};
use holdfast_chaos::report::{Sweep, Verdict};
use holdfast_chaos::world::{self, Mutant, Options};

/// Exit code of wrong usage, as in sysexits.
const USAGE: u8 = 64;

/// Simulates whole clusters, with faults, from a seed.
#[derive(Debug, Parser)]
#[command(name = "holdfast-chaos", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run one seed.
    Run {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// A plan of faults to carry out instead of the seed's own.
        #[arg(long, value_name = "FILE")]
        plan: Option<PathBuf>,
        /// Write every event of the trace into this file.
        #[arg(long, value_name = "FILE")]
        dump: Option<PathBuf>,
        #[command(flatten)]
        world: World,
    },
    /// Run many seeds.
    Sweep {
        /// The first seed.
        #[arg(long)]
        from: u64,
        /// How many.
        #[arg(long)]
        count: u64,
        /// End with one line of JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        world: World,
    },
    /// Let many healthy nodes renew their leases through changes of the leader; none may notice.
    Renewals {
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Healthy nodes.
        #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
        nodes: u64,
        /// How often the leader is killed.
        #[arg(long, default_value_t = 5)]
        changes: u64,
        /// Print one line of JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct World {
    /// Replicas, all of which vote.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Seconds of faults, before everything heals.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    secs: u64,
    /// Plant a bug, to see it caught.
    #[arg(long, value_enum)]
    mutant: Option<Mutant>,
}

impl World {
    fn options(&self, plan: Option<Plan>, complete_trace: bool) -> Options {
        let Self { nodes, secs, mutant } = *self;
        let (replicas, span_ms) = (nodes, secs * 1_000);
        Options {
            replicas,
            span_ms,
            plan,
            mutant,
            complete_trace,
            ..Options::default()
        }
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help that was asked for is no error.
            let wanted = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let _ = error.print();
            return ExitCode::from(if wanted { 0 } else { USAGE });
        }
    };
    let outcome = match arguments.verb {
        Verb::Run {
            seed,
            plan,
            dump,
            world,
        } => run(seed, plan, dump, &world),
        Verb::Sweep {
            from,
            count,
            json,
            world,
        } => Ok(sweep(from, count, json, &world)),
        Verb::Renewals {
            seed,
            nodes,
            changes,
            json,
        } => Ok(renewals(seed, nodes, changes, json)),
    };
    match outcome {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(USAGE)
        }
    }
}

fn run(seed: u64, plan: Option<PathBuf>, dump: Option<PathBuf>, world: &World) -> Result<Verdict, String> {
    let plan = plan.map(|file| read_plan(&file, world.nodes)).transpose()?;
    let report = world::run(seed, &world.options(plan, dump.is_some()));
    if let Some(file) = dump {
        let lines: String = report.recent.iter().map(|event| format!("{event}\n")).collect();
        std::fs::write(&file, lines).map_err(|error| format!("write the trace into {}: {error}", file.display()))?;
    }
    let verdict = report.verdict();
    match verdict {
        Verdict::Pass => {}
        Verdict::Void => println!("void: {}", report.counts.void_reason().unwrap_or_default()),
        Verdict::Violation | Verdict::Undecided => print!("{}", report.failure()),
    }
    println!("{report}");
    Ok(verdict)
}

fn read_plan(file: &std::path::Path, replicas: u8) -> Result<Plan, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| format!("read the plan {name}: {error}"))?;
    let plan: Plan = serde_json::from_str(&text).map_err(|error| format!("the plan {name} is not one: {error}"))?;
    plan.check()
        .map_err(|error| format!("the plan {name} fits no cluster: {error}"))?;
    if plan.replicas > replicas {
        return Err(format!(
            "the plan {name} is for {} replicas; run it with --nodes {0}",
            plan.replicas
        ));
    }
    Ok(plan)
}

fn sweep(from: u64, count: u64, json: bool, world: &World) -> Verdict {
    let mut sweep = Sweep::default();
    for seed in from..from.saturating_add(count) {
        let report = world::run(seed, &world.options(None, false));
        sweep.add(&report);
        if report.verdict() != Verdict::Pass && !json {
            println!("{report}");
            let first = report.violations.first().map(ToString::to_string);
            let why = first.or_else(|| report.counts.void_reason()).unwrap_or_default();
            println!("  {why}\n  replay: {}", report.replay);
        }
    }
    let verdict = sweep.verdict();
    if json {
        println!("{}", serde_json::to_string(&sweep).expect("plain data serialises"));
    } else {
        let Sweep {
            seeds,
            violations,
            void,
            undecided,
            commands,
            ..
        } = &sweep;
        println!("{seeds} seeds: {violations} violations, {void} void, {undecided} undecided, {commands} commands");
    }
    verdict
}

fn renewals(seed: u64, nodes: u64, changes: u64, json: bool) -> Verdict {
    let outcome = renewals::run(seed, nodes, changes);
    if json {
        println!("{}", serde_json::to_string(&outcome).expect("plain data serialises"));
    } else {
        let Outcome {
            leader_changes,
            frozen,
            moved,
            unreachable,
            renewals,
            margin_ms_min,
            trace,
            ..
        } = &outcome;
        println!(
            "{nodes} healthy nodes through {leader_changes} leader changes: {moved} leases moved, {frozen} frozen, \
             {unreachable} given up; {renewals} renewals, at least {margin_ms_min} ms left on any of them"
        );
        println!("trace {trace} seed {seed}");
    }
    if outcome.moved + outcome.frozen + outcome.unreachable > 0 {
        Verdict::Violation
    } else if outcome.leader_changes < changes {
        Verdict::Void
    } else {
        Verdict::Pass
    }
}
