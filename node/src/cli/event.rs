//! `holdfast events`: what happens in the cluster.

use std::collections::BTreeMap;

use clap::Args;
use holdfast_proto::id::{Cursor, LeaseId, Name, NodeId};
use holdfast_proto::node::NodeStatus;

use super::console::Console;
use super::error::CliError;
use super::render;
use crate::client::stream::Item;
use crate::client::{Client, segment};
use crate::history::sentence;
use crate::wire::event::{CloudEvent, EventPage};
use crate::wire::node::NodeList;

/// Events of one page.
const PAGE: usize = 1_000;

/// Which events.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on as they happen.
    #[arg(short, long)]
    pub follow: bool,
    /// Begin strictly after this position; without it -f begins now, and a list at the first.
    #[arg(long, value_name = "POSITION")]
    pub after: Option<Cursor>,
    /// Only these topics, with commas: lease, placement, node, telemetry, billing, security, cluster.
    #[arg(long, value_name = "TOPICS")]
    pub topic: Option<String>,
    /// Only about this lease.
    #[arg(long)]
    pub lease: Option<LeaseId>,
    /// Only about this tenant.
    #[arg(long)]
    pub tenant: Option<Name>,
    /// Only about this node (its id).
    #[arg(long)]
    pub node: Option<NodeId>,
}

impl EventsArgs {
    fn query(&self) -> String {
        let mut query = String::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                query.push_str(&format!("&{name}={}", segment(&value)));
            }
        };
        add("topic", self.topic.clone());
        add("lease", self.lease.map(|lease| lease.to_string()));
        add("tenant", self.tenant.as_ref().map(ToString::to_string));
        add("node", self.node.map(|node| node.to_string()));
        query.trim_start_matches('&').to_owned()
    }
}

/// Shows events.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn events(args: EventsArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let labels = Labels::fetch(client).await;
    if !args.follow {
        return list(&args, &labels, client, console).await;
    }
    let mut stream = client.events(&args.query(), args.after);
    loop {
        let item = tokio::select! {
            item = stream.next() => item?,
            _ = tokio::signal::ctrl_c() => {
                let at = stream.position().map(|at| at.to_string()).unwrap_or_default();
                return Err(CliError::Interrupted(format!("stopped; go on with --after {at}")));
            }
        };
        match item {
            Item::Event(event) => print(&event, &labels, console)?,
            Item::Compacted(next) => {
                console.tell(&format!("events up to {next} are no longer kept; going on after them"))
            }
            Item::Bookmark(_) => {}
        }
    }
}

async fn list(args: &EventsArgs, labels: &Labels, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let mut after = args.after.unwrap_or_default();
    loop {
        let page: EventPage = client
            .get(&format!("/v1/events?limit={PAGE}&after={after}&{}", args.query()))
            .await?
            .body;
        for event in &page.events {
            print(event, labels, console)?;
        }
        if page.end {
            return Ok(());
        }
        after = page.next;
    }
}

fn print(event: &CloudEvent, labels: &Labels, console: &mut Console<'_>) -> Result<(), CliError> {
    if console.json {
        return console.print_json(event);
    }
    let subject = event.subject.clone().unwrap_or_default();
    let when = render::when(event.time_ms, &console.zone);
    let text = render::plain(&labels.told(event));
    console.print(&format!(
        "{:>8}  {when}  {}  {text}\n",
        event.id.to_string(),
        render::plain(&subject)
    ))
}

/// Labels of nodes, so that sentences can name them.
pub struct Labels(BTreeMap<NodeId, String>);

impl Labels {
    /// Asks for the labels; without them, nodes are named by their ids.
    pub async fn fetch(client: &Client) -> Self {
        let nodes = client
            .get::<NodeList>("/v1/nodes?consistency=stale")
            .await
            .map(|answer| answer.body.nodes)
            .unwrap_or_default();
        let present = nodes.into_iter().filter(|node| node.status != NodeStatus::Removed);
        Self(present.map(|node| (node.id, node.label.to_string())).collect())
    }

    /// The sentence of an event.
    pub fn told(&self, event: &CloudEvent) -> String {
        sentence(&event.data, &|node| self.0.get(&node).cloned())
    }
}
