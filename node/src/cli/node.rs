//! `holdfast nodes`, `gpus`, `cordon`, `uncordon`, `node drain` and `node remove`.

use clap::{Args, Subcommand};
use holdfast_proto::id::LeaseId;
use reqwest::Method;
use serde_json::json;

use super::console::Console;
use super::drain::{self, DrainArgs};
use super::error::CliError;
use super::render::{self, word};
use super::resource::percent;
use crate::client::{Client, segment};
use crate::wire::cluster::Applied;
use crate::wire::node::{CordonOrder, GpuList, NodeList, NodeView, PartView};

/// A node.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Its label or id.
    pub node: String,
}

/// A node and why work is kept away from it.
#[derive(Debug, Args)]
pub struct CordonArgs {
    /// Its label or id.
    pub node: String,
    /// Why, for people.
    #[arg(short = 'm', long = "reason", default_value = "")]
    pub reason: String,
}

/// What to do with nodes.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Empty a node and watch it: leases move or end there, at the latest at the deadline.
    Drain(DrainArgs),
    /// Take a node out for good.
    Remove(NodeArgs),
}

/// Lists nodes.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn nodes(client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let list: NodeList = client.get("/v1/nodes").await?.body;
    console.show(&list, |console, list| table(console, &list.nodes))
}

/// Nodes, one a row.
pub fn table(console: &Console<'_>, nodes: &[NodeView]) -> String {
    let head = ["name", "zone", "status", "role", "free", "isolation", "address", "note"];
    render::table(console.width, &head, nodes.iter().map(row))
}

fn row(node: &NodeView) -> Vec<String> {
    let votes = match (node.leader, node.voter) {
        (true, _) => "leader".to_owned(),
        (false, true) => "voter".to_owned(),
        (false, false) => word(&node.role),
    };
    let mut notes = Vec::new();
    if let Some(reason) = &node.cordoned {
        notes.push(format!("cordoned {reason}").trim_end().to_owned());
    }
    if node.simulated {
        notes.push("simulated".to_owned());
    }
    if node.launch_failures > 0 {
        notes.push(format!("{} launches failed", node.launch_failures));
    }
    if let Some(offset) = node.clock_offset_ms {
        notes.push(format!("clock off by {offset} ms"));
    }
    vec![
        node.label.to_string(),
        node.zone.to_string(),
        word(&node.status),
        votes,
        format!("{}/{}", node.devices_free, node.devices),
        node.isolation.as_ref().map(word).unwrap_or_default(),
        node.address.clone(),
        notes.join(", "),
    ]
}

/// Lists devices.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn gpus(client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let list: GpuList = client.get("/v1/gpus").await?.body;
    console.show(&list, |console, list| {
        let rows = list.gpus.iter().map(|gpu| {
            let holder = |lease: Option<LeaseId>| lease.map_or("leased".to_owned(), |lease| lease.to_string());
            let part = |part: &PartView| format!("{} {}", percent(part.milli), holder(part.lease));
            let held = match (gpu.parts.as_slice(), gpu.leased) {
                ([], true) => holder(gpu.lease),
                ([], false) => "free".to_owned(),
                (parts, _) => parts.iter().map(part).collect::<Vec<_>>().join(", "),
            };
            let fault = gpu.xid.map(|xid| format!("Xid {xid} ")).unwrap_or_default();
            vec![
                gpu.label.clone(),
                gpu.zone.clone(),
                gpu.model.to_string(),
                format!("{} MiB", gpu.memory_mib),
                word(&gpu.grade),
                held,
                gpu.id.to_string(),
                format!("{fault}{}", gpu.reason),
            ]
        });
        render::table(
            console.width,
            &["node", "zone", "model", "memory", "grade", "lease", "id", "note"],
            rows,
        )
    })
}

/// Keeps new work away from a node.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn cordon(args: CordonArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let path = format!("/v1/nodes/{}/cordon", segment(&args.node));
    let done: Applied = client
        .command(Method::POST, &path, &CordonOrder { reason: args.reason })
        .await?
        .body;
    console.show(&done, |_, _| format!("{} takes no new work", render::plain(&args.node)))
}

/// Lets new work in again.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn uncordon(args: NodeArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let path = format!("/v1/nodes/{}/uncordon", segment(&args.node));
    let done: Applied = client.command(Method::POST, &path, &json!({})).await?.body;
    console.show(&done, |_, _| format!("{} takes work again", render::plain(&args.node)))
}

/// Takes a node out.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn node(command: NodeCommand, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let args = match command {
        NodeCommand::Drain(args) => return drain::drain(args, client, console).await,
        NodeCommand::Remove(args) => args,
    };
    let path = format!("/v1/nodes/{}", segment(&args.node));
    let done: Applied = client.command(Method::DELETE, &path, &json!({})).await?.body;
    console.show(&done, |_, _| format!("{} is removed", render::plain(&args.node)))
}
