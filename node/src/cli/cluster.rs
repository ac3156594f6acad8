//! `holdfast cluster status` and `note`.

use clap::{Args, Subcommand};
use holdfast_proto::id::Name;
use reqwest::Method;

use super::console::Console;
use super::error::CliError;
use super::event::Labels;
use super::render;
use crate::client::Client;
use crate::wire::cluster::{Applied, ClusterView, NoteOrder};

/// What to ask of the cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show how the cluster is.
    Status {
        /// Answer from one node, also without a leader.
        #[arg(long)]
        stale: bool,
    },
}

/// A note.
#[derive(Debug, Args)]
pub struct NoteArgs {
    /// What it is about.
    pub subject: Name,
    /// The note.
    pub text: String,
}

/// Shows how the cluster is.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn cluster(command: ClusterCommand, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let ClusterCommand::Status { stale } = command;
    let path = if stale {
        "/v1/cluster?consistency=stale"
    } else {
        "/v1/cluster"
    };
    let view: ClusterView = client.get(path).await?.body;
    let labels = Labels::fetch(client).await;
    console.show(&view, |console, view| {
        let voters: Vec<String> = view.voters.iter().map(|node| labels.of(*node)).collect();
        render::fields(&[
            ("cluster", view.id.map(|id| id.to_string()).unwrap_or_default()),
            (
                "leader",
                view.leader.map_or("none known".to_owned(), |leader| {
                    format!("{}, term {}", labels.of(leader), view.term)
                }),
            ),
            ("voters", voters.join(", ")),
            ("nodes", format!("{} of {} ready", view.nodes_ready, view.nodes)),
            ("devices", format!("{} of {} free", view.devices_free, view.devices)),
            (
                "leases",
                format!("{} live, {} waiting", view.leases, view.leases_pending),
            ),
            (
                "index",
                format!("{} at {}", view.applied, render::when(view.time_ms, &console.zone)),
            ),
            ("rules", format!("level {}, era {}", view.machine_level, view.era)),
            ("served by", labels.of(view.served_by)),
        ])
    })
}

/// Writes a note into the log.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn note(args: NoteArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let order = NoteOrder {
        subject: args.subject,
        text: args.text,
    };
    let done: Applied = client.command(Method::POST, "/v1/notes", &order).await?.body;
    console.show(&done, |_, done| format!("written at index {}", done.index))
}
