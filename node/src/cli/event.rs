//! `holdfast events`: what happens in the cluster.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use holdfast_proto::event::{Event, Topic};
use holdfast_proto::id::{Cursor, LeaseId, Name, NodeId};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::subscription::EventFilter;

use super::console::Console;
use super::error::CliError;
use super::interrupt::{Interrupts, interrupted};
use super::render;
use crate::client::event::Item;
use crate::client::{Client, segment};
use crate::history::sentence;
use crate::wire::cluster::TariffView;
use crate::wire::event::{CloudEvent, EventPage};
use crate::wire::node::{NodeList, NodeView};

/// Events of one page.
const PAGE: usize = 1_000;

/// Which events.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on as they happen.
    #[arg(short, long)]
    pub follow: bool,
    /// Begin strictly after this position; without it -f begins now, and a list at the first that is kept.
    #[arg(long, value_name = "POSITION")]
    pub after: Option<Cursor>,
    /// Which ones.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// What events are asked for; all of it has to be met.
#[derive(Debug, Default, Args)]
pub struct FilterArgs {
    /// Only these types, with commas, such as lease-ended.
    #[arg(long = "type", value_name = "TYPES")]
    pub kind: Option<String>,
    /// Only these topics, with commas: lease, placement, node, telemetry, billing, security, cluster.
    #[arg(long, value_name = "TOPICS", value_delimiter = ',', value_parser = topic)]
    pub topic: Vec<Topic>,
    /// Only about this lease.
    #[arg(long)]
    pub lease: Option<LeaseId>,
    /// Only about this tenant.
    #[arg(long)]
    pub tenant: Option<Name>,
    /// Only about this node: its label or id.
    #[arg(long)]
    pub node: Option<String>,
}

fn topic(text: &str) -> Result<Topic, String> {
    let known = || {
        Topic::ALL
            .iter()
            .map(|topic| topic.name())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let found = Topic::ALL.iter().find(|topic| topic.name() == text);
    found
        .copied()
        .ok_or_else(|| format!("there is no such topic; topics are {}", known()))
}

impl EventsArgs {
    /// People are not shown each acknowledgement of a subscription; programs, and whoever asks for that type, are.
    fn leaves_out(&self, event: &CloudEvent, console: &Console<'_>) -> bool {
        !console.json && self.filter.kind.is_none() && matches!(event.data, Event::EventsAcknowledged { .. })
    }
}

impl FilterArgs {
    /// The topics, with commas.
    pub fn topics(&self) -> Option<String> {
        let topics: Vec<&str> = self.topic.iter().map(|topic| topic.name()).collect();
        (!topics.is_empty()).then(|| topics.join(","))
    }

    /// The same as a subscription keeps it.
    ///
    /// # Errors
    /// When a node has no such label, or a type is not written like one.
    pub fn filter(&self, labels: &Labels) -> Result<EventFilter, CliError> {
        let name = |text: &str| {
            let name = text.strip_prefix("holdfast.").unwrap_or(text).parse::<Name>();
            name.map_err(|error| CliError::Usage(error.to_string()))
        };
        let types = self.kind.iter().flat_map(|text| text.split(','));
        let types: BTreeSet<Name> = types
            .filter(|text| !text.is_empty())
            .map(name)
            .collect::<Result<_, _>>()?;
        Ok(EventFilter {
            topics: BTreeSet::from_iter(self.topic.iter().copied()).into_iter().collect(),
            types: types.into_iter().collect(),
            lease: self.lease,
            tenant: self.tenant.clone(),
            node: self.node.as_deref().map(|name| labels.find(name)).transpose()?,
        })
    }

    fn query(&self, labels: &Labels) -> Result<String, CliError> {
        let mut query = String::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                query.push_str(&format!("&{name}={}", segment(&value)));
            }
        };
        add("topic", self.topics());
        add("type", self.kind.clone());
        add("lease", self.lease.map(|lease| lease.to_string()));
        add("tenant", self.tenant.as_ref().map(ToString::to_string));
        let node = self.node.as_deref().map(|name| labels.find(name)).transpose()?;
        add("node", node.map(|node| node.to_string()));
        Ok(query.trim_start_matches('&').to_owned())
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
    let mut interrupts = Interrupts::listen();
    let mut stream = client.events(&args.filter.query(&labels)?, args.after);
    loop {
        let item = tokio::select! {
            item = stream.next() => item?,
            exit_code = interrupts.next() => {
                let next = stream.position().map_or("stopped".to_owned(), |at| format!("stopped; go on with --after {at}"));
                return Err(interrupted(exit_code, next));
            }
        };
        match item {
            Item::Event(told) => {
                let event = CloudEvent::from(*told);
                if !args.leaves_out(&event, console) {
                    print(&event, &labels, console)?;
                }
            }
            Item::Compacted(next) => {
                console.tell(&format!("events up to {next} are no longer kept; going on after them"))
            }
            Item::Bookmark(_) => {}
        }
    }
}

async fn list(args: &EventsArgs, labels: &Labels, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let mut position = args
        .after
        .map_or("from=start".to_owned(), |after| format!("after={after}"));
    let query = args.filter.query(labels)?;
    loop {
        let page: EventPage = client
            .get(&format!("/v1/events?limit={PAGE}&{position}&{query}"))
            .await?
            .body;
        for event in &page.events {
            if !args.leaves_out(event, console) {
                print(event, labels, console)?;
            }
        }
        if page.end {
            return Ok(());
        }
        position = format!("after={}", page.next);
    }
}

/// Prints one event.
///
/// # Errors
/// When the other end is gone.
pub fn print(event: &CloudEvent, labels: &Labels, console: &mut Console<'_>) -> Result<(), CliError> {
    if console.json {
        return console.print_json(event);
    }
    // The sentence names nodes, tokens and tenants itself; a lease it does not.
    let lease = event.data.lease().map(|lease| format!("{lease}: ")).unwrap_or_default();
    let when = render::when(event.time_ms, &console.zone);
    let text = render::plain(&labels.told(&event.data));
    console.print(&format!("{:>8}  {when}  {lease}{text}\n", event.id.to_string()))
}

/// Labels of nodes and the currency, so that sentences can name them.
pub struct Labels {
    nodes: BTreeMap<NodeId, String>,
    currency: String,
}

impl Labels {
    /// Asks for the labels; without them, nodes are named by their ids.
    pub async fn fetch(client: &Client) -> Self {
        let nodes = client
            .get::<NodeList>("/v1/nodes?consistency=stale")
            .await
            .map(|answer| answer.body.nodes)
            .unwrap_or_default();
        let tariff = client.get::<TariffView>("/v1/tariff?consistency=stale").await;
        Self {
            currency: tariff.map(|answer| answer.body.tariff.currency).unwrap_or_default(),
            ..Self::of_nodes(nodes)
        }
    }

    /// The labels of these nodes.
    pub fn of_nodes(nodes: Vec<NodeView>) -> Self {
        let present = nodes.into_iter().filter(|node| node.status != NodeStatus::Removed);
        Self {
            nodes: present.map(|node| (node.id, node.label.to_string())).collect(),
            currency: String::new(),
        }
    }

    /// The node with this id, or this label.
    ///
    /// # Errors
    /// When no label is like it and it is no id.
    pub fn find(&self, name: &str) -> Result<NodeId, CliError> {
        let labelled = self
            .nodes
            .iter()
            .find(|(_, label)| *label == name)
            .map(|(node, _)| *node);
        labelled
            .or_else(|| name.parse().ok())
            .ok_or_else(|| CliError::NodeUnknown(render::plain(name)))
    }

    /// A node's label; its id when it has none that is known.
    pub fn of(&self, node: NodeId) -> String {
        self.nodes.get(&node).cloned().unwrap_or_else(|| node.to_string())
    }

    /// The sentence of an event.
    pub fn told(&self, event: &Event) -> String {
        sentence(event, &|node| self.nodes.get(&node).cloned(), &self.currency)
    }
}
