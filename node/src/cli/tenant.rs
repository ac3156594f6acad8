//! `holdfast tenant`: makes and lists tenants.

use clap::Subcommand;
use holdfast_proto::id::Name;
use reqwest::Method;

use super::console::Console;
use super::error::CliError;
use super::render;
use crate::client::Client;
use crate::history::allowance;
use crate::wire::cluster::Applied;
use crate::wire::token::{TenantList, TenantOrder};

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
    /// List tenants.
    List,
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
        TenantCommand::List => {
            let list: TenantList = client.get("/v1/tenants").await?.body;
            console.show(&list, |console, list| {
                let rows = list.tenants.iter().map(|tenant| {
                    vec![
                        tenant.tenant.to_string(),
                        allowance(tenant.devices_max),
                        tenant.devices_held.to_string(),
                    ]
                });
                render::table(console.width, &["tenant", "may hold", "holds"], rows)
            })
        }
    }
}
