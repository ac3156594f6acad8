//! `holdfast leases`, `show`, `release` and `renew`.

use clap::Args;
use holdfast_proto::id::Name;
use holdfast_proto::time::Span;
use reqwest::Method;
use serde_json::json;

use super::console::Console;
use super::duration;
use super::error::CliError;
use super::render::{self, word};
use super::resource::percent;
use super::which::{self, Which};
use crate::client::Client;
use crate::history::micros;
use crate::wire::cluster::Applied;
use crate::wire::lease::{LeaseList, LeaseRenewal, LeaseView};

/// Which leases.
#[derive(Debug, Args)]
pub struct LeasesArgs {
    /// Ended ones instead of live ones.
    #[arg(long)]
    pub ended: bool,
    /// Only this tenant's.
    #[arg(long)]
    pub tenant: Option<Name>,
    /// At most this many.
    #[arg(long, default_value_t = 100)]
    pub limit: u32,
}

/// A lease.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Its id, such as lease-12, or the label that it was given with `lease --name`.
    #[arg(value_parser = which::parse)]
    pub lease: Which,
}

/// A lease and how much more time.
#[derive(Debug, Args)]
pub struct RenewArgs {
    /// Its id, such as lease-12, or the label that it was given with `lease --name`.
    #[arg(value_parser = which::parse)]
    pub lease: Which,
    /// How much more, such as 1h.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    pub more: Span,
}

/// Lists leases.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn leases(args: LeasesArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let tenant = args
        .tenant
        .map(|tenant| format!("&tenant={tenant}"))
        .unwrap_or_default();
    let list: LeaseList = client
        .get(&format!("/v1/leases?ended={}&limit={}{tenant}", args.ended, args.limit))
        .await?
        .body;
    console.show(&list, |console, list| table(console, &list.leases))?;
    if list.leases.is_empty() && !args.ended {
        console.tell("no live leases; `holdfast leases --ended` lists those that have ended");
    }
    Ok(())
}

/// Leases, one a row.
pub fn table(console: &Console<'_>, leases: &[LeaseView]) -> String {
    let rows = leases.iter().map(|lease| {
        vec![
            lease.id.to_string(),
            lease.tenant.to_string(),
            status(lease),
            asked(lease),
            places(lease),
            so_far(lease),
            render::command(&lease.command),
        ]
    });
    render::table(
        console.width,
        &["lease", "tenant", "status", "devices", "on", "charged", "command"],
        rows,
    )
}

/// Shows one lease.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn show(args: ShowArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let lease = args.lease.find(client).await?;
    let lease: LeaseView = client.get(&format!("/v1/leases/{lease}")).await?.body;
    console.show(&lease, told)
}

/// Gives a lease back.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn release(args: ShowArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let lease = args.lease.find(client).await?;
    let done: Applied = client
        .command(Method::DELETE, &format!("/v1/leases/{lease}"), &json!({}))
        .await?
        .body;
    console.show(&done, |_, _| {
        format!("{lease} ends; its work is being stopped, and what it ran is charged")
    })
}

/// Asks for more time.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn renew(args: RenewArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let lease = args.lease.find(client).await?;
    let order = LeaseRenewal { more_ms: args.more.0 };
    let done: Applied = client
        .command(Method::POST, &format!("/v1/leases/{lease}/renew"), &order)
        .await?
        .body;
    console.show(&done, |_, _| format!("{lease} may run {} longer", args.more))
}

/// An amount with its currency.
pub fn money(amount: u64, currency: &str) -> String {
    format!("{} {currency}", micros(amount)).trim_end().to_owned()
}

fn is_over(lease: &LeaseView) -> bool {
    lease.status == "ended"
}

/// What a lease costs; of one that is not over it says so.
fn so_far(lease: &LeaseView) -> String {
    // A node of an earlier version tells what is charged, and no more.
    let amount = money(lease.so_far_micros.max(lease.charged_micros), &lease.currency);
    match is_over(lease) {
        true => amount,
        false => format!("{amount} so far"),
    }
}

fn told(console: &Console<'_>, lease: &LeaseView) -> String {
    let when = |at: u64| render::when(at, &console.zone);
    let mut text = render::fields(&[
        ("lease", lease.id.to_string()),
        ("tenant", lease.tenant.to_string()),
        (
            "label",
            lease.label.as_ref().map(ToString::to_string).unwrap_or_default(),
        ),
        ("status", format!("{} since {}", status(lease), when(lease.since_ms))),
        ("waits", lease.waits_because.clone().unwrap_or_default()),
        (
            "exit code",
            lease.exit_code.map(|code| code.to_string()).unwrap_or_default(),
        ),
        ("devices", asked(lease)),
        ("requested", when(lease.requested_ms)),
        ("length", Span(lease.duration_ms).to_string()),
        ("expires", lease.expires_ms.map(when).unwrap_or_default()),
        ("plan", word(&lease.plan)),
        ("if unheard", word(&lease.isolation)),
        (
            "cap",
            lease
                .cap_micros
                .map(|cap| money(cap, &lease.currency))
                .unwrap_or_default(),
        ),
        (
            "rate",
            lease
                .micros_per_hour
                .map(|rate| format!("{} an hour", money(rate, &lease.currency)))
                .unwrap_or_default(),
        ),
        (
            "charged",
            match is_over(lease) {
                true => money(lease.charged_micros, &lease.currency),
                false => format!("{}, as of {}", so_far(lease), when(lease.as_of_ms)),
            },
        ),
        (
            "saved step",
            lease.checkpoint_step.map(|step| step.to_string()).unwrap_or_default(),
        ),
        (
            "placement",
            if lease.epoch == 0 {
                String::new()
            } else {
                format!("epoch {}, start {}", lease.epoch, lease.attempt)
            },
        ),
        ("command", render::command(&lease.command)),
    ]);
    for member in &lease.members {
        let devices: Vec<String> = member.devices.iter().map(ToString::to_string).collect();
        let line = format!(
            "  {} on {} (zone {}): {}\n",
            member.rank, member.label, member.zone, member.state
        );
        text.push_str(&render::plain(line.trim_end()));
        text.push_str(&format!("\n      {}\n", devices.join("\n      ")));
    }
    text
}

fn status(lease: &LeaseView) -> String {
    match &lease.end_reason {
        Some(reason) => format!("{} ({})", lease.status, word(reason)),
        None => lease.status.clone(),
    }
}

fn asked(lease: &LeaseView) -> String {
    let models: Vec<&str> = lease.models.iter().map(Name::as_str).collect();
    let models = if models.is_empty() {
        "any".to_owned()
    } else {
        models.join("|")
    };
    let share = lease.share_milli.map(|milli| format!(":{}", percent(milli)));
    format!("{}x{models}{}", lease.devices_min, share.unwrap_or_default())
}

fn places(lease: &LeaseView) -> String {
    let mut labels: Vec<&str> = lease.members.iter().map(|member| member.label.as_str()).collect();
    labels.dedup();
    labels.join(",")
}
