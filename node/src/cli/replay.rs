//! `holdfast replay`: recorded requests against the nodes of a file, without a cluster.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::console::Console;
use super::error::CliError;
use super::render;
use crate::replay::arrival::{Order, endless, orders};
use crate::replay::drawing::{Line, draw};
use crate::replay::policy::PolicyName;
use crate::replay::table::TableError;
use crate::replay::trace::{Inventory, Trace};
use crate::replay::{MixKnowledge, Outcome, run};

/// What to replay.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Nodes: a CSV file with the columns sn, cpu_milli, memory_mib, gpu and model.
    #[arg(long, value_name = "FILE")]
    pub nodes: PathBuf,
    /// Requests: a CSV file with the columns name, cpu_milli, memory_mib, num_gpu, gpu_milli and, if wanted, gpu_spec.
    #[arg(long, value_name = "FILE")]
    pub pods: PathBuf,
    /// Orders of arrival: lines of a seed and row numbers from 0. Without it, requests arrive in the order of the file.
    #[arg(long, value_name = "FILE")]
    pub order: Option<PathBuf>,
    /// With --order, the one order to replay (all when not given); without, shuffle the requests by it.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Policies to compare, with commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "waste")]
    pub policy: Vec<PolicyName>,
    /// Whether the mix of requests is learned as they come, or known beforehand.
    #[arg(long, value_enum, default_value = "online")]
    pub mix: MixKnowledge,
    /// Write a picture of allocation over load.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Replays and tells what came of it.
///
/// # Errors
/// When a file cannot be read or written, or holds a mistake.
pub fn replay(args: ReplayArgs, console: &mut Console<'_>) -> Result<(), CliError> {
    let usage = |error: TableError| match error {
        TableError::Read { path, cause } => CliError::Io(std::io::Error::new(
            cause.kind(),
            format!("{}: {cause}", path.display()),
        )),
        wrong => CliError::Usage(format!("holdfast replay: {}", render::plain(&wrong.to_string()))),
    };
    let mut inventory = Inventory::read(&args.nodes).map_err(usage)?;
    let trace = Trace::read(&args.pods, &mut inventory).map_err(usage)?;
    let orders = match &args.order {
        Some(path) => orders(path, args.seed, trace.requests.len()).map_err(usage)?,
        None => vec![endless(&inventory, &trace, args.seed)],
    };
    let mut runs = Vec::new();
    for policy in &args.policy {
        for order in &orders {
            let word = render::word_of(policy);
            console.tell(&format!("{word}, order {}: {} requests", order.seed, order.rows.len()));
            runs.push((
                word,
                order,
                run(&inventory, &trace, &order.rows, *policy, args.mix, order.seed),
            ));
        }
    }
    if let Some(path) = &args.svg {
        let line = |(policy, order, outcome): &(String, &Order, Outcome)| Line {
            name: format!("{policy}, order {}: {:.2} %", order.seed, outcome.allocated_at_100),
            points: outcome.curve.clone(),
        };
        let lines: Vec<Line> = runs.iter().map(line).collect();
        std::fs::write(path, draw("Allocated devices over the load that has arrived", &lines)).map_err(CliError::Io)?;
    }
    if !console.json {
        console.print(&table(console.width, &runs))?;
    }
    for found in runs.iter().flat_map(|(_, _, outcome)| &outcome.found) {
        console.tell(found);
    }
    summaries(&args.policy, &runs, console)
}

fn table(width: u16, runs: &[(String, &Order, Outcome)]) -> String {
    let head = [
        "policy",
        "order",
        "at 100 %",
        "at 130 %",
        "unplaced",
        "violations",
        "decisions",
        "per second",
    ];
    let row = |(policy, order, outcome): &(String, &Order, Outcome)| {
        vec![
            policy.clone(),
            order.seed.to_string(),
            format!("{:.2}", outcome.allocated_at_100),
            format!("{:.2}", outcome.allocated_at_130),
            outcome.unplaced.to_string(),
            outcome.violations.to_string(),
            outcome.decisions.to_string(),
            format!("{:.0}", outcome.decisions_per_s),
        ]
    };
    render::table(width, &head, runs.iter().map(row))
}

/// One line of JSON for each policy: its only run, or the mean over its orders.
fn summaries(
    policies: &[PolicyName],
    runs: &[(String, &Order, Outcome)],
    console: &mut Console<'_>,
) -> Result<(), CliError> {
    for policy in policies {
        let word = render::word_of(policy);
        let of: Vec<&Outcome> = runs.iter().filter(|run| run.0 == word).map(|run| &run.2).collect();
        let orders = of.len().max(1) as f64;
        let mean = |figure: &dyn Fn(&Outcome) -> f64| of.iter().map(|outcome| figure(outcome)).sum::<f64>() / orders;
        let percent = |figure: &dyn Fn(&Outcome) -> f64| (mean(figure) * 10_000.0).round() / 10_000.0;
        console.print_json(&json!({
            "policy": word,
            "orders": of.len(),
            "allocated_at_100": percent(&|outcome| outcome.allocated_at_100),
            "allocated_at_130": percent(&|outcome| outcome.allocated_at_130),
            "unplaced": of.iter().map(|outcome| outcome.unplaced).sum::<u64>(),
            "violations": of.iter().map(|outcome| outcome.violations).sum::<u64>(),
            "decisions_per_s": mean(&|outcome| outcome.decisions_per_s).round(),
        }))?;
    }
    Ok(())
}
