//! `holdfast serve`: runs the node of an existing data folder.

use clap::Args;

use super::daemon::Daemon;
use super::error::CliError;
use super::init::NodeFlags;

/// What `serve` is given.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// How the node is set up.
    #[command(flatten)]
    pub node: NodeFlags,
}

/// Runs the node until it is stopped.
///
/// # Errors
/// When there is none, or it fails.
pub fn serve(args: ServeArgs, daemon: &dyn Daemon) -> Result<(), CliError> {
    let env = |name: &str| std::env::var(name).ok();
    let config = args.node.config(&env, nix::unistd::geteuid().is_root())?;
    Ok(daemon.serve(config)?)
}
