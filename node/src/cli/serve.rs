//! `holdfast serve`: runs the node of an existing data folder.

use clap::Args;
use serde_json::json;

use super::console::Console;
use super::daemon::{Daemon, Serving};
use super::error::CliError;
use super::init::{NodeFlags, announce};

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
pub fn serve(args: ServeArgs, daemon: &dyn Daemon, console: &mut Console<'_>) -> Result<(), CliError> {
    let config = args.node.config(console.env, nix::unistd::geteuid().is_root())?;
    // After a crash the log is read and mended first.
    console.tell(&format!(
        "starting the node in {}: reading what it remembers",
        config.data.display()
    ));
    Ok(daemon.serve(config, &mut |serving| tell(serving, console))?)
}

/// Says where the node is. The credentials are as they were.
fn tell(serving: &Serving, console: &mut Console<'_>) -> Result<(), CliError> {
    if serving.operator.is_some() {
        // The founding was cut short before anybody had the operator's token.
        return announce(serving, console);
    }
    let said = json!({ "cluster": serving.cluster, "node": serving.node, "address": serving.address });
    console.show(&said, |_, _| {
        format!(
            "node {} of cluster {} serves at {}\n",
            serving.node, serving.cluster, serving.address
        )
    })
}
