//! `holdfast cluster status` and `note`.

use clap::{Args, Subcommand};
use futures_util::future::join_all;
use holdfast_proto::id::Name;
use reqwest::Method;

use super::console::Console;
use super::error::CliError;
use super::event::Labels;
use super::render;
use crate::client::Client;
use crate::wire::cluster::{Applied, ClusterView, NoteOrder};
use crate::wire::node::{NodeList, NodeView};

/// Silence after which the leader that a node names is the last one and not the present one.
const SILENT_MS: u64 = 2_000;

/// What to ask of the cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show how the cluster is.
    Status,
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
    let ClusterCommand::Status = command;
    let view: ClusterView = client.get("/v1/cluster").await?.body;
    let nodes: Vec<NodeView> = client
        .get::<NodeList>("/v1/nodes?consistency=stale")
        .await
        .map(|answer| answer.body.nodes)
        .unwrap_or_default();
    let reach = match console.stale && !console.json {
        true => reach(client, &nodes).await,
        false => String::new(),
    };
    let labels = Labels::of_nodes(nodes);
    console.show(&view, |console, view| {
        let voters: Vec<String> = view.voters.iter().map(|node| labels.of(*node)).collect();
        render::fields(&[
            ("cluster", view.id.map(|id| id.to_string()).unwrap_or_default()),
            ("leader", leader(view, &labels)),
            ("voters", voters.join(", ")),
            (
                "nodes",
                format!("{} of {} ready{}", view.nodes_ready, view.nodes, last_known(view)),
            ),
            ("reached from here", reach),
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

/// How long the node that answers has not heard a leader, when that is longer than an election takes.
fn silence(view: &ClusterView) -> Option<u64> {
    view.leader_heard_ms_ago.filter(|silent| *silent > SILENT_MS)
}

fn leader(view: &ClusterView, labels: &Labels) -> String {
    match (view.leader, silence(view)) {
        (None, _) => "none known".to_owned(),
        (Some(leader), None) => format!("{}, term {}", labels.of(leader), view.term),
        (Some(leader), Some(silent)) => format!(
            "none heard: {} led in term {} and was last heard {} ago",
            labels.of(leader),
            view.term,
            render::length(silent)
        ),
    }
}

fn last_known(view: &ClusterView) -> String {
    silence(view).map_or(String::new(), |silent| {
        format!(" when a leader was last heard, {} ago", render::length(silent))
    })
}

/// Which nodes answer the machine that asks. Nobody else can tell while there is no leader.
async fn reach(client: &Client, nodes: &[NodeView]) -> String {
    let asked = nodes.iter().map(|node| async {
        let word = match client.answers(&node.address).await {
            true => "answers",
            false => "does not answer",
        };
        format!("{} {word}", node.label)
    });
    join_all(asked).await.join(", ")
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
