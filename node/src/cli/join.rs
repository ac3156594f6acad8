//! `holdfast join`: this machine becomes a node of a cluster.

use clap::Args;

use super::console::Console;
use super::daemon::Daemon;
use super::error::CliError;
use super::init::{NodeFlags, announce};
use crate::config::MAIN_PORT;
use crate::join::JoinToken;

/// What `join` is given.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// A node of the cluster.
    #[arg(value_name = "HOST:PORT")]
    pub at: String,
    /// The join token; HOLDFAST_JOIN_TOKEN when absent.
    #[arg(long, value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// How the node is set up.
    #[command(flatten)]
    pub node: NodeFlags,
}

/// Joins and runs the node until it is stopped.
///
/// # Errors
/// When it is not admitted, or the node fails.
pub fn join(args: JoinArgs, daemon: &dyn Daemon, console: &mut Console<'_>) -> Result<(), CliError> {
    let text = args
        .token
        .or_else(|| (console.env)("HOLDFAST_JOIN_TOKEN"))
        .ok_or_else(|| {
            CliError::Usage(
                "a join token is needed: `holdfast token create` on a node of the cluster prints the whole line"
                    .to_owned(),
            )
        })?;
    let token: JoinToken = text
        .parse()
        .map_err(|error: crate::join::TokenError| CliError::Usage(error.to_string()))?;
    let config = args.node.config(console.env, nix::unistd::geteuid().is_root())?;
    let at = with_port(&args.at);
    Ok(daemon.join(config, &at, token, &mut |serving| announce(serving, console))?)
}

/// The address with the usual port when it has none.
fn with_port(at: &str) -> String {
    let tail = at.rsplit_once(']').map_or(at, |(_, tail)| tail);
    let bare_v6 = !at.starts_with('[') && at.matches(':').count() > 1;
    match (bare_v6, tail.contains(':')) {
        (true, _) => format!("[{at}]:{MAIN_PORT}"),
        (false, true) => at.to_owned(),
        (false, false) => format!("{at}:{MAIN_PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_gets_the_usual_one() {
        for (given, taken) in [
            ("host", "host:7400"),
            ("host:1", "host:1"),
            ("10.0.0.1", "10.0.0.1:7400"),
            ("[::1]", "[::1]:7400"),
            ("[::1]:5", "[::1]:5"),
            ("::1", "[::1]:7400"),
        ] {
            assert_eq!(with_port(given), taken);
        }
    }
}
