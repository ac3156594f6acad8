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
    /// Make a tenant, or change what it may hold.
    Set {
        /// Its name.
        tenant: Name,
        /// Most devices in all its leases together [default: any number].
        #[arg(long, value_name = "DEVICES")]
        devices: Option<u32>,
    },
    /// List tenants.
    List,
}

/// Does it.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn tenant(command: TenantCommand, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    match command {
        TenantCommand::Set { tenant, devices } => {
            let devices = devices.unwrap_or(u32::MAX);
            let order = TenantOrder { devices_max: devices };
            let done: Applied = client
                .command(Method::PUT, &format!("/v1/tenants/{tenant}"), &order)
                .await?
                .body;
            console.show(&done, |_, _| format!("tenant {tenant} may hold {}", allowance(devices)))
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
