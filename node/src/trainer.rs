//! The trainer (`holdfast-trainer`, `holdfast trainer`): real work for a lease. It trains a multilayer perceptron by gradient descent on data made
//! from a seed, saves itself every interval, and goes on from its newest complete checkpoint when it starts
//! again, also on another machine.
//!
//! The demo, the benchmarks and the failure tests run it as any tenant's program is run: it knows of Holdfast
//! only the environment variable `HOLDFAST_CHECKPOINT_DIR`. The rule kept here: the final weights are the same
//! to the last bit however often the run was interrupted.

mod checkpoint;
mod model;
mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Exit code of work that was told to stop and saved itself first: 128 + SIGTERM.
const EXIT_TERMINATED: u8 = 143;

/// Trains a small network on generated data; saves and resumes.
#[derive(Debug, Parser)]
#[command(name = "holdfast-trainer", version)]
struct Flags {
    /// Steps to train in all, those of earlier runs included.
    #[arg(long, default_value_t = 1000)]
    steps: u64,
    /// Save a checkpoint every so many steps.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,
    /// Seed of the weights and of the data.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pause after each step, in milliseconds, so that a run lasts as long as wanted.
    #[arg(long, default_value_t = 0)]
    step_ms: u64,
    /// Units in each hidden layer; a checkpoint holds about 8 × the square of this in bytes.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    hidden: u64,
    /// Where checkpoints go; without it nothing is saved.
    #[arg(long, env = "HOLDFAST_CHECKPOINT_DIR")]
    checkpoint_dir: Option<PathBuf>,
}

/// Runs the trainer with the given command line, program name first.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let flags = Flags::parse_from(arguments);
    let stop = match run::StopFlag::install() {
        Ok(stop) => stop,
        Err(error) => return fail(&error),
    };
    match run::train(&flags, &stop, &mut std::io::stdout()) {
        Ok(run::Ending::Finished { .. }) => ExitCode::SUCCESS,
        Ok(run::Ending::Stopped { .. }) => ExitCode::from(EXIT_TERMINATED),
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    eprintln!("holdfast-trainer: {text}");
    ExitCode::FAILURE
}
