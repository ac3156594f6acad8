//! `holdfast cluster …` and `note`; backups and what is done with them are in [`super::backup`].

use std::path::PathBuf;

use clap::{Args, Subcommand};
use futures_util::future::join_all;
use holdfast_proto::id::Name;
use reqwest::Method;

use super::backup;
use super::console::Console;
use super::error::CliError;
use super::event::Labels;
use super::init::NodeFlags;
use super::{node, render, show};
use crate::client::{Client, View};
use crate::wire::cluster::{Applied, ClusterView, Disk, LEADER_SILENT_MS, NoteOrder};
use crate::wire::node::{NodeList, NodeView};
use crate::wire::state::StateView;

/// What to ask of the cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show how the cluster is.
    Status,
    /// Show everything in it at one position of the log: nodes, devices, tenants and leases; with --at as it was then.
    State,
    /// Write a backup of the whole cluster into a file, and verify it.
    ///
    /// It holds what is known at one entry of the log: tenants, tokens' digests, prices, leases and their bills. It does
    /// not hold past events, the work's output and saved states, private keys or the secrets of tokens.
    Backup {
        /// The file; it must not be there yet.
        file: PathBuf,
    },
    /// Verify a backup, without a cluster.
    BackupVerify {
        /// The file.
        file: PathBuf,
    },
    /// Make a new cluster from a backup, and run its first node.
    ///
    /// Machines are not taken from the backup: each joins anew. Leases that were live wait for new devices. The era
    /// rises, so whatever still runs under the old cluster is refused by every gate.
    Restore(RestoreArgs),
    /// Go on with this node alone after a majority of the voters was lost for ever.
    ///
    /// Run it on the survivor whose log reaches furthest (`--dry-run` tells how far it does), while no node of the
    /// cluster runs. Entries that only the lost voters had are lost. Never start a lost voter again.
    Recover(RecoverArgs),
}

/// What `restore` is given.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup.
    pub file: PathBuf,
    /// Keep the cluster's identity; the old cluster must be gone for ever.
    #[arg(long)]
    pub adopt: bool,
    /// How the node is set up.
    #[command(flatten)]
    pub node: NodeFlags,
}

/// What `recover` is given.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Only tell how far this node's log reaches, and who would be left out.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder of everything that the node remembers.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
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
    match command {
        ClusterCommand::Status => status(client, console).await,
        ClusterCommand::State => state(client, console).await,
        ClusterCommand::Backup { file } => backup::backup(&file, client, console).await,
        other => unreachable!("{other:?} does not talk to a cluster"),
    }
}

async fn status(client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let view: ClusterView = client.get("/v1/cluster").await?.body;
    let nodes: Vec<NodeView> = client
        .get::<NodeList>("/v1/nodes?consistency=stale")
        .await
        .map(|answer| answer.body.nodes)
        .unwrap_or_default();
    let reach = match console.view == View::Stale && !console.json {
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
            ("disk there", disk_use(&view.disk)),
        ])
    })
}

/// Shows everything at one position.
async fn state(client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let view: StateView = client.get("/v1/state").await?.body;
    console.show(&view, |console, view| {
        let cluster = &view.cluster;
        let head = render::fields(&[
            (
                "index",
                format!("{} at {}", view.index, render::when(cluster.time_ms, &console.zone)),
            ),
            (
                "position",
                format!("{}; `holdfast events --after {0}` goes on from here", view.cursor),
            ),
            (
                "devices",
                format!("{} of {} free", cluster.devices_free, cluster.devices),
            ),
            (
                "leases",
                format!("{} live, {} waiting", cluster.leases, cluster.leases_pending),
            ),
        ]);
        let (nodes, leases) = (node::table(console, &view.nodes), show::table(console, &view.leases));
        format!("{head}\n{nodes}\n{leases}")
    })
}

/// How long the node that answers has not heard a leader, when that is longer than an election takes.
fn silence(view: &ClusterView) -> Option<u64> {
    view.leader_heard_ms_ago.filter(|silent| *silent > LEADER_SILENT_MS)
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

/// What takes how much, in words.
fn disk_use(disk: &Disk) -> String {
    let parts = [
        ("log", disk.raft_log_bytes),
        ("events", disk.event_log_bytes),
        ("snapshots", disk.snapshot_bytes),
        ("index", disk.index_bytes),
        ("reserve", disk.reserve_bytes),
        ("free", disk.free_bytes),
    ];
    let words: Vec<String> = parts
        .iter()
        .map(|(part, bytes)| format!("{part} {} MiB", bytes >> 20))
        .collect();
    words.join(", ")
}
