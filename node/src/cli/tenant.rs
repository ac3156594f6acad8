//! `holdfast tenant`: makes and lists tenants.

use clap::{Args, Subcommand};
use holdfast_proto::id::Name;
use reqwest::Method;

use super::amount;
use super::console::Console;
use super::error::CliError;
use super::render;
use crate::client::Client;
use crate::history::{allowance, micros};
use crate::wire::cluster::Applied;
use crate::wire::token::{LimitsOrder, TenantList, TenantOrder, TenantView};

/// What to do with tenants.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Make a tenant, or change what it may hold; what is not named stays as it is.
    Set {
        /// Its name.
        tenant: Name,
        /// Most devices in all its leases together, or `any` [a new tenant: any].
        #[arg(long, value_name = "DEVICES", value_parser = most)]
        devices: Option<Most>,
    },
    /// Bound what a tenant may have of single models, and spend in an hour; what is not named stays as it is.
    #[command(after_help = LIMIT_HELP)]
    Limit(LimitArgs),
    /// List tenants.
    List,
}

/// How limits count, for `--help`.
const LIMIT_HELP: &str = "\
A lease that waits counts with the model that it names alone and with the least that it can cost; one that has devices with
what it was granted. A request is refused when nothing that it accepts is left; one that was accepted and finds too little
left when its turn comes waits. A limit that is lowered stops no work.

Example: holdfast tenant limit blue --model h100=8 --model a100=any --per-hour 60";

/// A tenant and its limits.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Its name.
    pub tenant: Name,
    /// Most devices of a model, or `any`; may be repeated.
    #[arg(long = "model", value_name = "MODEL=DEVICES", value_parser = model_limit, required_unless_present = "per_hour")]
    pub models: Vec<(Name, Most)>,
    /// Most that its leases may cost together in an hour, in units of the currency, or `any`.
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true, value_parser = spend)]
    pub per_hour: Option<Spend>,
}

/// A bound on money, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spend(Option<u64>);

fn spend(text: &str) -> Result<Spend, String> {
    match text {
        "any" => Ok(Spend(None)),
        amount => amount::money(amount).map(|micros| Spend(Some(micros))),
    }
}

fn model_limit(text: &str) -> Result<(Name, Most), String> {
    let wrong = || "write a model and how many devices of it, such as h100=8 or h100=any".to_owned();
    let (model, count) = text.split_once('=').ok_or_else(wrong)?;
    let model: Name = model
        .to_ascii_lowercase()
        .parse()
        .map_err(|error| format!("{error}; {}", wrong()))?;
    Ok((model, most(count).map_err(|_| wrong())?))
}

/// A bound on devices, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most(Option<u32>);

fn most(text: &str) -> Result<Most, String> {
    match text {
        "any" => Ok(Most(None)),
        count => count
            .parse()
            .map(|count| Most(Some(count)))
            .map_err(|_| "write how many devices, or `any`".to_owned()),
    }
}

/// Does it.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn tenant(command: TenantCommand, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    match command {
        TenantCommand::Set { tenant, devices } => {
            let order = TenantOrder {
                devices_max: devices.map(|Most(most)| most),
            };
            let done: Applied = client
                .command(Method::PUT, &format!("/v1/tenants/{tenant}"), &order)
                .await?
                .body;
            console.show(&done, |_, _| match devices {
                Some(Most(most)) => format!("tenant {tenant} may hold {}", allowance(most)),
                None => format!("tenant {tenant} is there; what it may hold is as it was (`--devices` changes it)"),
            })
        }
        TenantCommand::Limit(args) => limit(args, client, console).await,
        TenantCommand::List => {
            let list: TenantList = client.get("/v1/tenants").await?.body;
            console.show(&list, |console, list| {
                let rows = list.tenants.iter().map(|tenant| {
                    vec![
                        tenant.tenant.to_string(),
                        allowance(tenant.devices_max),
                        tenant.devices_held.to_string(),
                        limits(tenant),
                    ]
                });
                render::table(console.width, &["tenant", "may hold", "holds", "limits"], rows)
            })
        }
    }
}

async fn limit(args: LimitArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let tenant = args.tenant;
    let order = LimitsOrder {
        models: args
            .models
            .into_iter()
            .map(|(model, Most(most))| (model, most))
            .collect(),
        micros_per_hour_max: args.per_hour.map(|Spend(most)| most),
    };
    let done: Applied = client
        .command(Method::PUT, &format!("/v1/tenants/{tenant}/limits"), &order)
        .await?
        .body;
    console.show(&done, |_, _| {
        format!("the limits of tenant {tenant} are in force; `holdfast tenant list` shows them")
    })
}

/// What bounds a tenant beyond its number of devices, and what it has of that.
fn limits(tenant: &TenantView) -> String {
    let models = tenant
        .models
        .iter()
        .map(|limit| format!("{} of {} {}", limit.devices_held, limit.devices_max, limit.model));
    let money = tenant
        .micros_per_hour_max
        .map(|most| format!("{} of {} an hour", micros(tenant.micros_per_hour), micros(most)));
    models.chain(money).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn limits_read_as_they_are_written() {
        for (text, model, count) in [
            ("h100=8", "h100", Some(8)),
            ("H100=any", "h100", None),
            ("t4=0", "t4", Some(0)),
        ] {
            assert_eq!(model_limit(text), Ok((model.parse().unwrap(), Most(count))), "{text}");
        }
        for text in ["h100", "h100=", "=8", "h100=-1", "h_100=8", "h100=8.5"] {
            assert!(model_limit(text).unwrap_err().contains("such as h100=8"), "{text}");
        }
        assert_eq!(
            (spend("60"), spend("any")),
            (Ok(Spend(Some(60_000_000))), Ok(Spend(None)))
        );
        assert!(spend("-1").is_err());
    }
}
