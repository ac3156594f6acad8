//! Puts the parts of a node together, starts them in order, and stops them in the opposite one.
//!
//! The only file that knows all parts. `init` founds a cluster of one, `join` is admitted to one, `serve` runs what the
//! data folder holds; all three end in `run`. The rule: a node is told ready only when it can answer, and nothing is
//! started here that is not stopped here; the work of leases goes on under its supervisors.

mod api;
mod device;
mod disk;
mod envelope;
mod executor;
mod found;
mod genesis;
mod kept;
mod lease;
mod link;
mod node;
mod recover;
mod restore;
mod scheduler;
mod sockets;
mod storage;
pub mod view;
mod work;

use std::ffi::OsString;
use std::sync::Arc;

use holdfast_storage::backup::Backup;
use holdfast_storage::machine::state::State;

use crate::bench::{self, BenchFlags};
use crate::cli::daemon::{Daemon, DaemonError, Ready, Recovery};
use crate::cli::error::CliError;
use crate::config::Config;
use crate::demo::{self, DemoFlags};
use crate::join::JoinToken;

/// Reads the newest applied state; cheap.
pub(crate) type ReadState = Arc<dyn Fn() -> Arc<State> + Send + Sync>;

/// The real daemon behind the command line.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDaemon;

impl Daemon for RealDaemon {
    fn init(&self, config: Config, ready: Ready<'_>) -> Result<(), DaemonError> {
        let founding = found::found(&config)?;
        node::run(config, founding, ready)
    }

    fn join(&self, config: Config, address: &str, token: JoinToken, ready: Ready<'_>) -> Result<(), DaemonError> {
        let joining = found::join(&config, address, &token)?;
        node::run(config, joining, ready)
    }

    fn serve(&self, config: Config, ready: Ready<'_>) -> Result<(), DaemonError> {
        let resuming = found::resume(&config)?;
        node::run(config, resuming, ready)
    }

    fn restore(&self, config: Config, backup: Backup, adopt: bool, ready: Ready<'_>) -> Result<(), DaemonError> {
        let founding = restore::found(&config, &backup, adopt)?;
        node::run(config, founding, ready)
    }

    fn recover(&self, config: Config, dry_run: bool) -> Result<Recovery, DaemonError> {
        recover::recover(&config, dry_run)
    }

    fn demo(&self, arguments: &[OsString], json: bool) -> Result<u8, CliError> {
        let flags: Sub<DemoFlags> = flags("holdfast demo", arguments)?;
        Ok(with_runtime(demo::run(flags.flags, json || flags.json)))
    }

    fn bench(&self, arguments: &[OsString], json: bool) -> Result<u8, CliError> {
        let flags: Sub<BenchFlags> = flags("holdfast bench", arguments)?;
        Ok(with_runtime(bench::run(flags.flags, json || flags.json)))
    }
}

#[derive(Debug, clap::Parser)]
struct Sub<T: clap::Args> {
    #[command(flatten)]
    flags: T,
    /// Print JSON, also for errors.
    #[arg(long, global = true)]
    json: bool,
}

/// Reads the flags of a program that comes along. What is no flag of its ends as any wrong command line does; its help
/// was asked for, and is printed.
fn flags<T: clap::Parser>(name: &str, arguments: &[OsString]) -> Result<T, CliError> {
    let named = std::iter::once(OsString::from(name)).chain(arguments.iter().cloned());
    T::try_parse_from(named).map_err(|error| match error.use_stderr() {
        true => CliError::Usage(error.to_string().trim_end().to_owned()),
        false => CliError::Help(error.to_string()),
    })
}

fn with_runtime(work: impl Future<Output = u8>) -> u8 {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => {
            eprintln!("holdfast: cannot start the runtime: {error}");
            1
        }
    }
}

/// Runs something short before the node's own runtime exists.
fn briefly<T>(work: impl Future<Output = T>) -> Result<T, DaemonError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(|error| DaemonError::failed(&error))?.block_on(work))
}
