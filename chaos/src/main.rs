//! `holdfast-chaos`: runs simulated clusters under seeds. `holdfast chaos …` runs this program.
//!
//! Exit codes: 0 pass, 1 violation, 2 undecided, 3 void (too little happened to prove anything), 64 wrong usage. The
//! one rule: the last line of `run` begins with `trace` and sixteen digits, and a failure prints the line to replay it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand, ValueEnum as _};
use holdfast_chaos::case::{Case, REPLICAS_MAX};
use holdfast_chaos::fault::Plan;
use holdfast_chaos::mutant::{self, Hunted, Mutant};
use holdfast_chaos::nodelease;
use holdfast_chaos::page;
use holdfast_chaos::renewals::{self, Outcome};
use holdfast_chaos::report::{Report, Verdict};
use holdfast_chaos::shrink::shrink;
use holdfast_chaos::sweep::{self, Sweep};
use holdfast_chaos::trace::Kind;
use holdfast_chaos::world::{self, Options};
use holdfast_node::cli::duration;
use holdfast_node::env::{Clock as _, OsClock};
use holdfast_proto::time::Span;

/// Exit code of wrong usage, as in sysexits.
const USAGE: u8 = 64;
/// Events that `replay --until` shows.
const SHOWN_EVENTS: usize = 200;

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
        /// Write the run into this file, as a case for `replay` and `shrink`.
        #[arg(long, value_name = "FILE")]
        keep: Option<PathBuf>,
        #[command(flatten)]
        world: World,
    },
    /// Run a case again.
    Replay {
        /// The case, as `run --keep`, `sweep --keep` or `shrink` wrote it.
        file: PathBuf,
        /// Show the 200 events up to this one, counted from 1.
        #[arg(long, value_name = "EVENT", value_parser = clap::value_parser!(u64).range(1..))]
        until: Option<u64>,
        /// Write every event of the trace into this file.
        #[arg(long, value_name = "FILE")]
        dump: Option<PathBuf>,
    },
    /// Make a case that fails as small as it can be: fewer faults, clients, seconds, replicas.
    Shrink {
        /// The case, as `run --keep` or `sweep --keep` wrote it.
        file: PathBuf,
        /// Where the small case goes; FILE with `.min` before its ending when not said.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Most runs that it may take.
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
        runs: u64,
    },
    /// Run a case again and write what happened when: a page with timelines, text for a ticket, or JSON.
    Report {
        /// The case, as `run --keep`, `sweep --keep` or `shrink` wrote it.
        file: PathBuf,
        /// Where it goes; its ending says what it becomes: html, md or json.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Run many seeds.
    Sweep {
        /// The first seed.
        #[arg(long)]
        from: u64,
        /// How many.
        #[arg(long)]
        count: u64,
        /// Seeds that run at the same time.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
        jobs: u16,
        /// Begin no seed after this time, such as 8h.
        #[arg(long, value_parser = duration::parse)]
        budget: Option<Span>,
        /// Write each run that does not pass into this folder, as a case for `replay` and `shrink`.
        #[arg(long, value_name = "FOLDER")]
        keep: Option<PathBuf>,
        /// End with one line of JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        world: World,
    },
    /// Plant bugs, one after the other, and see which seeds catch them.
    Mutants {
        /// Seeds that each bug may take.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
        /// Only these.
        #[arg(long, value_enum)]
        only: Vec<Mutant>,
        /// End with one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Let nodes be killed, stopped and cut off: none may be declared lost while its work may run.
    Losses {
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// How many.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
        /// Plant a bug, to see it caught.
        #[arg(long, value_enum)]
        mutant: Option<Mutant>,
        /// Print one line of JSON for each.
        #[arg(long)]
        json: bool,
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
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=i64::from(REPLICAS_MAX)))]
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
            make_up: plan.is_none(),
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
    match carry_out(arguments.verb) {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        Err(error) => {
            eprint!("error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::from(USAGE)
        }
    }
}

fn carry_out(verb: Verb) -> Result<Verdict, Box<dyn Error>> {
    match verb {
        Verb::Run {
            seed,
            plan,
            dump,
            keep,
            world,
        } => {
            let plan = plan.map(|file| read_plan(&file, world.nodes)).transpose()?;
            if world.mutant.is_some_and(Mutant::is_of_node_lease) {
                return Err("that bug breaks the node lease; plant it with `losses --mutant`".into());
            }
            let options = world.options(plan, dump.is_some());
            let report = world::run(seed, &options);
            if let Some(file) = keep {
                Case::of(&report, &options).write(&file)?;
            }
            finish(&report, dump.as_deref())
        }
        Verb::Replay { file, until, dump } => replay(&file, until, dump.as_deref()),
        Verb::Report { file, out } => write_report(&file, &out),
        Verb::Shrink { file, out, runs } => {
            let out = out.unwrap_or_else(|| file.with_extension("min.json"));
            make_small(&file, &out, runs)
        }
        Verb::Sweep {
            from,
            count,
            jobs,
            budget,
            keep,
            json,
            world,
        } => {
            if let Some(folder) = &keep {
                std::fs::create_dir_all(folder).map_err(|error| format!("make {}: {error}", folder.display()))?;
            }
            let until_ms = budget.map(|Span(ms)| OsClock.boot_ms().saturating_add(ms));
            let over = || until_ms.is_some_and(|until_ms| OsClock.boot_ms() >= until_ms);
            let options = world.options(None, false);
            let told = |report: &Report| tell(report, &options, keep.as_deref(), json);
            let seed = |seed| world::run(seed, &options);
            let sweep = sweep::run(from, count, usize::from(jobs), over, seed, told);
            sum_up(&sweep, json);
            Ok(sweep.verdict())
        }
        Verb::Mutants { seeds, only, json } => Ok(mutants(seeds, only, json)),
        Verb::Losses {
            from,
            count,
            mutant,
            json,
        } => Ok(losses(from, count, mutant, json)),
        Verb::Renewals {
            seed,
            nodes,
            changes,
            json,
        } => Ok(renewals(seed, nodes, changes, json)),
    }
}

/// Says how a run ended, and what a failure is about.
fn finish(report: &Report, dump: Option<&Path>) -> Result<Verdict, Box<dyn Error>> {
    if let Some(file) = dump {
        let lines: String = report.recent.iter().map(|event| format!("{event}\n")).collect();
        std::fs::write(file, lines).map_err(|error| format!("write the trace into {}: {error}", file.display()))?;
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

/// Runs a case again, and says so when it does not run as it did.
fn rerun(file: &Path, complete: bool) -> Result<Report, Box<dyn Error>> {
    let case = Case::read(file)?;
    let mut report = case.run(complete);
    report.replay = format!("holdfast-chaos replay {}", file.display());
    let trace = format!("{:016x}", report.trace);
    if trace != case.trace {
        eprintln!(
            "note: the case made trace {} with version {}; this program runs it differently",
            case.trace, case.program
        );
    }
    Ok(report)
}

fn replay(file: &Path, until: Option<u64>, dump: Option<&Path>) -> Result<Verdict, Box<dyn Error>> {
    let complete = until.is_some() || dump.is_some();
    let mut report = rerun(file, complete)?;
    if let Some(until) = until {
        let upto = usize::try_from(until).unwrap_or(usize::MAX).min(report.recent.len());
        let told: Vec<_> = report.recent[..upto]
            .iter()
            .filter(|event| event.kind != Kind::Poll)
            .collect();
        for event in &told[told.len().saturating_sub(SHOWN_EVENTS)..] {
            println!("{event}");
        }
    }
    if complete {
        // The file has them, or they were shown.
        report.recent.truncate(if dump.is_some() { usize::MAX } else { 0 });
    }
    finish(&report, dump)
}

fn write_report(file: &Path, out: &Path) -> Result<Verdict, Box<dyn Error>> {
    let render: fn(&Report) -> String = match out.extension().and_then(|ending| ending.to_str()) {
        Some("html") => page::html,
        Some("md") => page::markdown,
        Some("json") => |report| serde_json::to_string_pretty(report).expect("plain data serialises"),
        _ => return Err(format!("{} must end with .html, .md or .json", out.display()).into()),
    };
    let report = rerun(file, true)?;
    std::fs::write(out, render(&report)).map_err(|error| format!("write {}: {error}", out.display()))?;
    println!("{report}");
    Ok(report.verdict())
}

fn make_small(file: &Path, out: &Path, runs: u64) -> Result<Verdict, Box<dyn Error>> {
    let case = Case::read(file)?;
    let mut said = case.plan.steps.len();
    let mut again = |case: &Case| {
        let ran = case.again();
        if ran.checker.is_some() && ran.plan.steps.len() < said {
            said = ran.plan.steps.len();
            eprintln!("{said} faults still fail");
        }
        ran
    };
    let Some(shrunk) = shrink(&case, runs, &mut again) else {
        return Err(format!("{} passes here, so there is nothing to shrink", file.display()).into());
    };
    shrunk.case.write(out)?;
    let what = |case: &Case| {
        let Plan {
            replicas,
            span_ms,
            steps,
        } = &case.plan;
        let (faults, clients) = (steps.len(), case.clients);
        format!("{faults} faults, {clients} clients, {span_ms} ms, {replicas} replicas")
    };
    println!("from {}", what(&case));
    println!("to   {} after {} runs", what(&shrunk.case), shrunk.runs);
    if shrunk.cut_short {
        println!("the runs were used up; a larger --runs may find a smaller one");
    }
    println!("replay: holdfast-chaos replay {}", out.display());
    Ok(Verdict::Pass)
}

fn read_plan(file: &Path, replicas: u8) -> Result<Plan, String> {
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

/// Tells of a run of a sweep that did not pass, and keeps it.
fn tell(report: &Report, options: &Options, keep: Option<&Path>, json: bool) {
    if report.verdict() == Verdict::Pass {
        return;
    }
    let mut replay = report.replay.clone();
    if let Some(folder) = keep {
        let file = folder.join(format!("seed-{}.json", report.seed));
        match Case::of(report, options).write(&file) {
            Ok(()) => replay = format!("holdfast-chaos replay {}", file.display()),
            Err(error) => eprintln!("error: {error}"),
        }
    }
    if !json {
        println!("{report}");
        let first = report.violations.first().map(ToString::to_string);
        let why = first.or_else(|| report.counts.void_reason()).unwrap_or_default();
        println!("  {why}\n  replay: {replay}");
    }
}

fn sum_up(sweep: &Sweep, json: bool) {
    if json {
        println!("{}", serde_json::to_string(sweep).expect("plain data serialises"));
        return;
    }
    let Sweep {
        seeds,
        violations,
        void,
        undecided,
        commands,
        ..
    } = sweep;
    println!("{seeds} seeds: {violations} violations, {void} void, {undecided} undecided, {commands} commands");
}

fn mutants(seeds: u64, only: Vec<Mutant>, json: bool) -> Verdict {
    let all = if only.is_empty() {
        Mutant::value_variants().to_vec()
    } else {
        only
    };
    // Bugs make replicas panic, and the checkers say so.
    std::panic::set_hook(Box::new(|_| ()));
    let hunt = |mutant| {
        let caught = mutant::hunt(mutant, seeds);
        if !json {
            let name = mutant
                .to_possible_value()
                .map_or_else(String::new, |value| value.get_name().to_owned());
            match (&caught.seeds, &caught.checker) {
                (Some(seed), Some(checker)) => println!("{name:<24} caught by {checker} in seed {seed}"),
                _ => println!("{name:<24} went through {seeds} seeds unseen"),
            }
        }
        caught
    };
    let hunted = Hunted::of(all.into_iter().map(hunt).collect());
    if json {
        println!("{}", serde_json::to_string(&hunted).expect("plain data serialises"));
    } else {
        let Hunted { caught, missed, .. } = hunted;
        println!("{caught} caught, {missed} missed");
    }
    if hunted.missed > 0 {
        Verdict::Violation
    } else {
        Verdict::Pass
    }
}

fn losses(from: u64, count: u64, mutant: Option<Mutant>, json: bool) -> Verdict {
    let mut verdict = Verdict::Void;
    for seed in from..from.saturating_add(count) {
        let outcome = nodelease::run(seed, mutant);
        if json {
            println!("{}", serde_json::to_string(&outcome).expect("plain data serialises"));
        } else {
            let nodelease::Outcome {
                renewals,
                losses,
                leader_changes,
                trace,
                violations,
                ..
            } = &outcome;
            for violation in violations {
                println!("violation: {violation}");
            }
            println!(
                "trace {trace} seed {seed}: {renewals} renewals, {losses} losses, {leader_changes} leader changes"
            );
        }
        // Losses are what is to be proven right.
        let own = match (outcome.violations.is_empty(), outcome.losses) {
            (false, _) => Verdict::Violation,
            (true, 0) => Verdict::Void,
            (true, _) => Verdict::Pass,
        };
        verdict = match (verdict, own) {
            (Verdict::Violation, _) | (_, Verdict::Violation) => Verdict::Violation,
            (Verdict::Pass, _) | (_, Verdict::Pass) => Verdict::Pass,
            _ => Verdict::Void,
        };
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
