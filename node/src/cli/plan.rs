//! `holdfast plan`: where a lease would go now, or what keeps it from anywhere. Nothing is leased.

use clap::Args;
use holdfast_proto::id::Name;
use holdfast_proto::lease::Spread;

use super::console::Console;
use super::error::CliError;
use super::resource::Devices;
use super::{amount, render};
use crate::client::Client;
use crate::wire::lease::{CPU_MILLI_DEFAULT, LeaseOrder, MEMORY_MIB_DEFAULT, PRIORITY_DEFAULT};
use crate::wire::preview::Preview;

/// What would be leased.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Devices: 8xh100, '4x(a100|h100)' (best first) or 2xany.
    pub devices: Devices,
    /// Only in this zone; may be repeated.
    #[arg(long)]
    pub zone: Vec<Name>,
    /// CPU for each device, such as 4, 0.5 or 500m [default: 1].
    #[arg(long, value_parser = amount::cpu)]
    pub cpu: Option<u32>,
    /// Memory for each device, such as 16GiB [default: 1GiB].
    #[arg(long, value_parser = amount::memory)]
    pub memory: Option<u32>,
    /// All devices of one model.
    #[arg(long)]
    pub same_model: bool,
    /// All devices on one node.
    #[arg(long)]
    pub single_node: bool,
    /// Spread over zones instead of packing.
    #[arg(long)]
    pub spread: bool,
    /// Place in the queue; higher first.
    #[arg(long, default_value_t = PRIORITY_DEFAULT)]
    pub priority: u8,
    /// Who would pay.
    #[arg(long)]
    pub tenant: Option<Name>,
}

/// Length of the order that is planned: it is not asked for, and does not matter.
const LENGTH_MS: u64 = 3_600_000;

/// Plans without leasing.
///
/// # Errors
/// When the cluster cannot be asked, or says that it can never be placed.
pub async fn plan(args: PlanArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let mut order = LeaseOrder::new(args.devices.count, LENGTH_MS, vec!["true".to_owned()]);
    order.tenant = args.tenant;
    order.models = args.devices.models;
    order.same_model = args.same_model;
    order.single_node = args.single_node;
    order.zones = args.zone;
    order.cpu_milli_per_device = args.cpu.unwrap_or(CPU_MILLI_DEFAULT);
    order.memory_mib_per_device = args.memory.unwrap_or(MEMORY_MIB_DEFAULT);
    order.spread = if args.spread { Spread::Zones } else { Spread::Pack };
    order.priority = args.priority;
    let preview: Preview = client.ask("/v1/previews", &order).await?.body;
    console.show(&preview, |console, preview| told(console, preview))
}

/// A preview in words.
pub fn told(console: &Console<'_>, preview: &Preview) -> String {
    let mut text = String::new();
    if preview.fits {
        text.push_str("would be placed now on\n");
        let row = |member: &crate::wire::preview::PreviewMember| {
            let models: Vec<&str> = member.models.iter().map(Name::as_str).collect();
            vec![
                member.node.clone(),
                member.zone.to_string(),
                format!("{}x{}", member.devices, models.join("+")),
            ]
        };
        text.push_str(&render::table(
            console.width,
            &["node", "zone", "devices"],
            preview.members.iter().map(row),
        ));
        return text;
    }
    if let Some(reason) = &preview.reason {
        text.push_str(&format!("has to wait: {}\n", render::plain(reason)));
    }
    let left = preview
        .removed
        .iter()
        .fold(preview.nodes, |left, one| left.saturating_sub(one.nodes));
    text.push_str(&format!("of {} nodes with devices\n", preview.nodes));
    for removed in &preview.removed {
        text.push_str(&format!("  {:>5}  {}\n", removed.nodes, render::plain(&removed.what)));
    }
    text.push_str(&format!("  {left:>5}  are left\n"));
    text.push_str(&format!("largest that fits now: {} devices\n", preview.largest));
    if let Some(ms) = preview.earliest_ms {
        text.push_str(&format!(
            "could start at {}, if other leases end as they say\n",
            render::when(ms, &console.zone)
        ));
    }
    if preview.before > 0 {
        text.push_str(&format!("{} leases wait before it\n", preview.before));
    }
    text
}
