//! `holdfast subscribe`: reads events under a name that the cluster keeps, with how far the reader has come.
//!
//! Owns the making, reading, listing and removing of durable subscriptions. The one rule: an event is acknowledged after it was written,
//! so a reader that is started again, here or elsewhere, is told every event at least once.

use std::pin::Pin;
use std::time::Duration;

use clap::Args;
use futures_util::future::BoxFuture;
use holdfast_proto::id::{Cursor, Name};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::subscription::EventFilter;
use reqwest::Method;
use tokio::time::{Sleep, sleep, timeout};

use super::console::Console;
use super::error::CliError;
use super::event::{FilterArgs, Labels, print};
use super::interrupt::{Interrupts, interrupted};
use super::render;
use crate::client::event::Item;
use crate::client::{Client, ClientError, segment};
use crate::wire::cluster::Applied;
use crate::wire::event::{CloudEvent, EventPage};
use crate::wire::subscription::{Acknowledgement, SubscriptionList, SubscriptionOrder, SubscriptionView};

/// Events of one page.
const PAGE: usize = 1_000;
/// Time between two acknowledgements: each is an entry of the log.
const ACKNOWLEDGE_EVERY: Duration = Duration::from_secs(1);
/// Entries without an event for the reader that are worth an acknowledgement: far fewer than are ever compacted at once.
const PASSED_ENTRIES: u64 = 4_096;
/// Patience for the last acknowledgement; what is not acknowledged is told again.
const LAST_WORD: Duration = Duration::from_secs(3);

/// Which subscription, and what it is about when it is new.
#[derive(Debug, Args)]
pub struct SubscribeArgs {
    /// Its name. The first use makes it; later ones go on behind what was acknowledged last.
    pub name: Name,
    /// Where a new one begins: now, start (the first event that is kept), or strictly after a position.
    #[arg(long, value_name = "PLACE", default_value = "now")]
    pub from: String,
    /// Print what there is, acknowledge it, and end.
    #[arg(long)]
    pub once: bool,
    /// Acknowledge nothing: whoever reads the output does, with `holdfast acknowledge`.
    #[arg(long)]
    pub no_acknowledge: bool,
    /// The tenant that it belongs to, when that is not your own; for operators.
    #[arg(long, value_name = "TENANT")]
    pub owner: Option<Name>,
    /// What a new one is about; one that exists keeps its own.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Which subscription.
#[derive(Debug, Args)]
pub struct UnsubscribeArgs {
    /// Its name.
    pub name: Name,
    /// The tenant that it belongs to, when that is not your own; for operators.
    #[arg(long, value_name = "TENANT")]
    pub owner: Option<Name>,
}

/// How far a reader has come.
#[derive(Debug, Args)]
pub struct AcknowledgeArgs {
    /// The subscription.
    pub name: Name,
    /// The last position that is done with, such as 12.0.
    pub through: Cursor,
    /// The tenant that it belongs to, when that is not your own; for operators.
    #[arg(long, value_name = "TENANT")]
    pub owner: Option<Name>,
}

/// Reads a subscription's events, and acknowledges them.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn subscribe(args: SubscribeArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let labels = Labels::fetch(client).await;
    let view = open(&args, &labels, client).await?;
    let through = view.acknowledged;
    console.tell(&format!("subscription {}: reading on after {through}", args.name));
    let mut acks = Acks::new(client, path(&args.name, args.owner.as_ref(), "/cursor"), through);
    acks.asleep = args.no_acknowledge;
    let read = match args.once {
        true => read_page_by_page(&args, &labels, &mut acks, client, console).await,
        false => read_for_ever(&args, &labels, &mut acks, client, console).await,
    };
    // Also after a failure: what was written need not be told again.
    let finished = acks.finish().await;
    match read {
        Err(CliError::Interrupted { exit_code, .. }) => {
            let goes_on = format!(
                "stopped; `holdfast subscribe {}` goes on after {}",
                args.name, acks.done
            );
            finished?;
            Err(interrupted(exit_code, goes_on))
        }
        Ok(()) => finished,
        failed => failed,
    }
}

/// The subscription, which is made when there is none.
async fn open(args: &SubscribeArgs, labels: &Labels, client: &Client) -> Result<SubscriptionView, CliError> {
    let wanted = args.filter.filter(labels)?;
    let place = path(&args.name, args.owner.as_ref(), "");
    match client.get::<SubscriptionView>(&place).await {
        Ok(found) if wanted == EventFilter::default() || wanted == found.body.filter => return Ok(found.body),
        Ok(_) => {
            return Err(CliError::Usage(format!(
                "subscription {0} is about other events (`holdfast subscriptions` says which): leave the filters out, \
                 or take another name, or begin anew after `holdfast unsubscribe {0}`",
                args.name
            )));
        }
        Err(error) if is_unknown(&error) => {}
        Err(error) => return Err(error.into()),
    }
    let order = SubscriptionOrder {
        name: args.name.clone(),
        from: Some(args.from.clone()),
        topic: args.filter.topics(),
        kind: args.filter.kind.clone(),
        lease: wanted.lease.map(|lease| lease.to_string()),
        tenant: wanted.tenant.map(|tenant| tenant.to_string()),
        node: wanted.node.map(|node| node.to_string()),
    };
    let made = format!("/v1/subscriptions{}", of(args.owner.as_ref()));
    client.command::<Applied>(Method::POST, &made, &order).await?;
    Ok(client.get::<SubscriptionView>(&place).await?.body)
}

fn is_unknown(error: &ClientError) -> bool {
    let rejection = error.problem().and_then(|problem| problem.rejection.as_ref());
    matches!(rejection, Some(Rejection::SubscriptionUnknown { .. }))
}

fn path(name: &Name, owner: Option<&Name>, rest: &str) -> String {
    format!("/v1/subscriptions/{}{rest}{}", segment(name.as_str()), of(owner))
}

fn of(owner: Option<&Name>) -> String {
    owner.map_or(String::new(), |owner| format!("?owner={owner}"))
}

fn query(args: &SubscribeArgs) -> String {
    let owner = args
        .owner
        .as_ref()
        .map_or(String::new(), |owner| format!("&owner={owner}"));
    format!("subscription={}{owner}", args.name)
}

async fn read_for_ever(
    args: &SubscribeArgs,
    labels: &Labels,
    acks: &mut Acks<'_>,
    client: &Client,
    console: &mut Console<'_>,
) -> Result<(), CliError> {
    let mut interrupts = Interrupts::listen();
    let mut stream = client.events(&query(args), Some(acks.seen));
    loop {
        let item = tokio::select! {
            item = stream.next() => item?,
            acknowledged = acks.step() => {
                acknowledged?;
                continue;
            }
            exit_code = interrupts.next() => return Err(interrupted(exit_code, "")),
        };
        match item {
            Item::Event(told) => {
                let at = told.id;
                print(&CloudEvent::from(*told), labels, console)?;
                acks.written(at);
            }
            Item::Compacted(next) => {
                console.tell(&format!("events up to {next} are no longer kept; going on after them"));
                acks.written(next);
            }
            Item::Bookmark(next) => acks.passed(next),
        }
    }
}

async fn read_page_by_page(
    args: &SubscribeArgs,
    labels: &Labels,
    acks: &mut Acks<'_>,
    client: &Client,
    console: &mut Console<'_>,
) -> Result<(), CliError> {
    loop {
        let page = format!("/v1/events?limit={PAGE}&{}&after={}", query(args), acks.seen);
        let page: EventPage = client.get(&page).await?.body;
        for event in &page.events {
            print(event, labels, console)?;
            acks.written(event.id);
        }
        acks.passed(page.next);
        if page.end {
            return Ok(());
        }
    }
}

/// Acknowledgements on their way, while events go on being read.
struct Acks<'a> {
    client: &'a Client,
    path: String,
    /// Acknowledged.
    done: Cursor,
    /// Written, or passed over.
    seen: Cursor,
    /// What was seen is worth an acknowledgement.
    due: bool,
    /// The reader's reader acknowledges.
    asleep: bool,
    /// Until the next acknowledgement may leave.
    rest: Pin<Box<Sleep>>,
    flying: Option<Flying<'a>>,
}

type Flying<'a> = BoxFuture<'a, (Cursor, Result<(), ClientError>)>;

impl<'a> Acks<'a> {
    fn new(client: &'a Client, path: String, done: Cursor) -> Self {
        Self {
            client,
            path,
            done,
            seen: done,
            due: false,
            asleep: false,
            rest: Box::pin(sleep(Duration::ZERO)),
            flying: None,
        }
    }

    fn written(&mut self, at: Cursor) {
        self.seen = self.seen.max(at);
        self.due = true;
    }

    fn passed(&mut self, at: Cursor) {
        self.seen = self.seen.max(at);
        self.due |= self.seen.index.saturating_sub(self.done.index) >= PASSED_ENTRIES;
    }

    /// Waits until an acknowledgement has come to something; a call that is dropped loses nothing.
    async fn step(&mut self) -> Result<(), CliError> {
        if self.flying.is_none() {
            if !self.due || self.asleep {
                std::future::pending::<()>().await;
            }
            self.rest.as_mut().await;
        }
        self.land().await
    }

    async fn land(&mut self) -> Result<(), CliError> {
        let (client, through) = (self.client, self.seen);
        let path = &self.path;
        let due = &mut self.due;
        let flying = self.flying.get_or_insert_with(|| {
            *due = false;
            acknowledge_at(client, path.clone(), through)
        });
        let (through, result) = flying.await;
        self.flying = None;
        self.rest = Box::pin(sleep(ACKNOWLEDGE_EVERY));
        match result {
            Ok(()) => self.done = self.done.max(through),
            // Another reader of the same name is further.
            Err(ClientError::Refused { problem })
                if matches!(problem.rejection, Some(Rejection::AcknowledgedBeyond { .. })) => {}
            Err(error @ ClientError::Refused { .. }) => return Err(error.into()),
            // Nobody leads, or nobody answers: the next one says more.
            Err(_) => self.due = true,
        }
        Ok(())
    }

    /// Says the last word, if there is time.
    async fn finish(&mut self) -> Result<(), CliError> {
        let all = async {
            while self.flying.is_some() || (self.due && !self.asleep) {
                self.land().await?;
            }
            Ok(())
        };
        timeout(LAST_WORD, all).await.unwrap_or(Ok(()))
    }
}

fn acknowledge_at(client: &Client, path: String, through: Cursor) -> Flying<'_> {
    Box::pin(async move {
        let said = Acknowledgement { through };
        let done = client.command::<Applied>(Method::PUT, &path, &said).await;
        (through, done.map(drop))
    })
}

/// Acknowledges by hand.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn acknowledge(args: AcknowledgeArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let said = Acknowledgement { through: args.through };
    let cursor = path(&args.name, args.owner.as_ref(), "/cursor");
    let done: Applied = client.command(Method::PUT, &cursor, &said).await?.body;
    console.show(&done, |_, _| {
        format!("subscription {} is told what is after {}", args.name, args.through)
    })
}

/// Forgets a subscription.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn unsubscribe(args: UnsubscribeArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let place = path(&args.name, args.owner.as_ref(), "");
    let done: Applied = client
        .command(Method::DELETE, &place, &serde_json::json!({}))
        .await?
        .body;
    console.show(&done, |_, _| format!("subscription {} is forgotten", args.name))
}

/// Lists subscriptions.
///
/// # Errors
/// When the cluster cannot be asked.
pub async fn subscriptions(client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let list: SubscriptionList = client.get("/v1/subscriptions").await?.body;
    console.show(&list, |console, list| {
        let rows = list.subscriptions.iter().map(|one| {
            vec![
                one.name.to_string(),
                one.owner.as_ref().map(ToString::to_string).unwrap_or_default(),
                about(&one.filter),
                one.acknowledged.to_string(),
                one.behind.to_string(),
                render::when(one.acknowledged_ms, &console.zone),
            ]
        });
        let heads = [
            "subscription",
            "owner",
            "about",
            "acknowledged",
            "entries since",
            "last",
        ];
        render::table(console.width, &heads, rows)
    })
}

/// A filter in words.
fn about(filter: &EventFilter) -> String {
    let topics: Vec<&str> = filter.topics.iter().map(|topic| topic.name()).collect();
    let types: Vec<&str> = filter.types.iter().map(Name::as_str).collect();
    let parts = [
        (!topics.is_empty()).then(|| format!("topics {}", topics.join(", "))),
        (!types.is_empty()).then(|| format!("types {}", types.join(", "))),
        filter.lease.map(|lease| lease.to_string()),
        filter.tenant.as_ref().map(|tenant| format!("tenant {tenant}")),
        filter.node.map(|node| format!("node {node}")),
    ];
    let said: Vec<String> = parts.into_iter().flatten().collect();
    if said.is_empty() {
        "all events".to_owned()
    } else {
        said.join("; ")
    }
}
