//! `holdfast why`: what happened to a lease, in words, and what keeps it if it waits.

use clap::Args;

use super::console::Console;
use super::error::CliError;
use super::which::{self, Which};
use super::{plan, render};
use crate::client::Client;
use crate::wire::event::LeaseHistory;
use crate::wire::preview::Preview;

/// Which lease.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Its id, such as lease-12, or the label that it was given with `lease --name`.
    #[arg(value_parser = which::parse)]
    pub lease: Which,
}

/// Tells the history of a lease.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn why(args: WhyArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let lease = args.lease.find(client).await?;
    let history: LeaseHistory = client.get(&format!("/v1/leases/{lease}/events")).await?.body;
    console.show(&history, |console, history| {
        let widest = history
            .lines
            .iter()
            .map(|line| line.cursor.to_string().len())
            .max()
            .unwrap_or(0);
        let line = |line: &crate::wire::event::HistoryLine| {
            let when = render::when(line.at_ms, &console.zone);
            format!(
                "{:>widest$}  {when}  {}\n",
                line.cursor.to_string(),
                render::plain(&line.text)
            )
        };
        history.lines.iter().map(line).collect()
    })?;
    if console.json {
        return Ok(());
    }
    // Only a lease that waits has more to tell, and only a node that knows how to.
    match client.get::<Preview>(&format!("/v1/leases/{lease}/preview")).await {
        Ok(preview) => console.print(&format!("now: {}", plan::told(console, &preview.body))),
        Err(_) => Ok(()),
    }
}
