//! `holdfast lease`: price, y/n, and then attached to the work.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use holdfast_proto::id::Name;
use holdfast_proto::lease::{Isolation, LeaseKind, Plan};
use holdfast_proto::time::Span;
use reqwest::Method;

use super::attach::attach;
use super::console::Console;
use super::error::{CliError, code};
use super::interrupt::{Interrupts, interrupted};
use super::shape::ShapeArgs;
use super::show::money;
use super::{amount, duration, render};
use crate::client::Client;
use crate::wire::lease::{LeaseAccepted, LeaseOrder, Quote};

/// What happens at each moment, for `--help`.
const LEASE_HELP: &str = "\
Standard output carries what the work writes; what happens to the lease is told on standard error.

Ctrl-C, or a terminal that goes away:
  at the price      nothing was leased
  while it is sent  it is not known whether it was leased; `holdfast leases` shows it
  afterwards        the lease goes on and is charged: `holdfast logs -f LEASE` shows its output,
                    `holdfast release LEASE` ends it

Exit codes: the work's own (128 and the number when a signal ended it, 126 and 127 when it could not be run);
with --detach 0 once the lease is accepted. 65 refused or said no to the price, 66 the lease ended before its work
did, 74 nobody reads the output, 75 not known whether it was leased, 129, 130 or 143 ended by a signal;
`holdfast --help` lists the others. Work may end with any of these itself: with --json the last line tells.";

/// What to lease, on what terms, to run what.
#[derive(Debug, Args)]
#[command(after_help = LEASE_HELP)]
pub struct LeaseArgs {
    /// What is wanted, and where.
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Length, counted from the first start, such as 2h.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    pub length: Span,
    /// Most that it may cost, in units of the currency.
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true, value_parser = amount::money)]
    pub cap: Option<u64>,
    /// Price class.
    #[arg(long, value_enum, default_value = "on-demand")]
    pub plan: PlanWord,
    /// What happens to the work while its node cannot be heard.
    #[arg(long, value_enum, default_value = "freeze")]
    pub isolation: IsolationWord,
    /// What the work is.
    #[arg(long, value_enum, default_value = "job")]
    pub kind: KindWord,
    /// The work saves its state in HOLDFAST_CHECKPOINT_DIR and resumes from it.
    #[arg(long)]
    pub checkpoints: bool,
    /// Extra environment; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub env: Vec<(String, String)>,
    /// Working folder on the node.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<String>,
    /// Time between SIGTERM and SIGKILL at a stop.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "10s")]
    pub grace: Span,
    /// Label for people.
    #[arg(long)]
    pub name: Option<Name>,
    /// Do not ask about the price.
    #[arg(long, short)]
    pub yes: bool,
    /// Do not stay attached.
    #[arg(long, short)]
    pub detach: bool,
    /// Program and arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Price classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanWord {
    /// Per second, never reclaimed.
    OnDemand,
    /// Committed for a term.
    Reserved,
    /// Reclaimed with notice.
    Spot,
}

/// What happens while a node cannot be heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsolationWord {
    /// Frozen, and thawed if the node returns in time.
    Freeze,
    /// Stopped.
    Stop,
    /// Goes on: for work without state or exclusive output.
    Keep,
}

/// What work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KindWord {
    /// Runs to its end.
    Job,
    /// Interactive.
    Session,
    /// Runs until released.
    Service,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("an environment entry is NAME=VALUE".to_owned()),
    }
}

impl LeaseArgs {
    fn order(self) -> LeaseOrder {
        let mut order = self.shape.order(self.length.0, self.command);
        order.label = self.name;
        order.plan = match self.plan {
            PlanWord::OnDemand => Plan::OnDemand,
            PlanWord::Reserved => Plan::Reserved,
            PlanWord::Spot => Plan::Spot,
        };
        order.isolation = match self.isolation {
            IsolationWord::Freeze => Isolation::Freeze,
            IsolationWord::Stop => Isolation::Stop,
            IsolationWord::Keep => Isolation::Keep,
        };
        order.kind = match self.kind {
            KindWord::Job => LeaseKind::Job,
            KindWord::Session => LeaseKind::Session,
            KindWord::Service => LeaseKind::Service,
        };
        order.cap_micros = self.cap;
        order.grace_ms = self.grace.0;
        order.environment = self.env.into_iter().collect::<BTreeMap<_, _>>();
        order.folder = self.folder;
        order.checkpoints = self.checkpoints;
        order
    }
}

/// Leases; gives the exit code of the work, or 0 when it does not stay attached.
///
/// # Errors
/// When the cluster cannot be asked, says no, or the person does.
pub async fn lease(args: LeaseArgs, client: &Client, console: &mut Console<'_>) -> Result<u8, CliError> {
    let (yes, detach) = (args.yes, args.detach);
    let order = args.order();
    if !yes {
        if !console.is_terminal {
            return Err(CliError::Usage(
                "nobody can be asked about the price here: say --yes to take it, and --cap AMOUNT to bound it"
                    .to_owned(),
            ));
        }
        let quote: Quote = client.ask("/v1/quotes", &order).await?.body;
        console.tell(&priced(&quote, &order));
        if !console.ask("lease?")? {
            return Err(CliError::Declined);
        }
    }
    let mut interrupts = Interrupts::listen();
    let accepted: LeaseAccepted = tokio::select! {
        accepted = client.command(Method::POST, "/v1/leases", &order) => accepted?.body,
        exit_code = interrupts.next() => {
            let told = "it is not known whether it was leased; `holdfast leases` shows it, `holdfast release LEASE` ends it";
            return Err(interrupted(exit_code, told));
        }
    };
    if detach {
        console.show(&accepted, |_, accepted| accepted.lease.to_string())?;
        return Ok(code::DONE);
    }
    if console.json {
        console.print_json(&accepted)?;
    }
    attach(accepted.lease, client, console, &mut interrupts).await
}

fn priced(quote: &Quote, order: &LeaseOrder) -> String {
    let mut text = String::new();
    for offer in &quote.offers {
        let rate = money(offer.micros_per_hour, &quote.currency);
        let total = money(offer.total_micros, &quote.currency);
        text.push_str(&format!(
            "{}x{}: {rate} an hour, {total} for {}",
            order.devices,
            offer.model,
            Span(order.duration_ms)
        ));
        text.push_str(&match offer.capped_after_ms {
            Some(ms) => format!(
                ", the cap ends it after {}; {} free now. ",
                render::length(ms),
                offer.free
            ),
            None => format!("; {} free now. ", offer.free),
        });
    }
    text.push_str(&format!(
        "At most {}, for the seconds that it runs.",
        money(quote.most_micros, &quote.currency)
    ));
    text
}
