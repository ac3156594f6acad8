//! `holdfast plan`: where a lease would go now, or what keeps it from anywhere. Nothing is leased.

use holdfast_proto::id::Name;

use super::console::Console;
use super::error::CliError;
use super::render;
use super::shape::ShapeArgs;
use crate::client::Client;
use crate::wire::preview::Preview;

/// Length of the order that is planned: it is not asked for, and does not matter.
const LENGTH_MS: u64 = 3_600_000;

/// Plans without leasing.
///
/// # Errors
/// When the cluster cannot be asked, or says that it can never be placed.
pub async fn plan(args: ShapeArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let order = args.order(LENGTH_MS, vec!["true".to_owned()]);
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
