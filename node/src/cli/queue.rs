//! `holdfast queue`: who waits, in which order, and what tenants have had.

use holdfast_proto::id::Name;

use super::console::Console;
use super::error::CliError;
use super::render::{self, word};
use crate::client::Client;
use crate::wire::queue::{QueueLease, QueueTenant, QueueView};

/// How the order comes about, for `--help`.
pub const QUEUE_HELP: &str = "\
Spot leases go after all others. Then priority decides (`holdfast lease --priority`). Within one priority, work that has lost
its place goes first; then whoever has waited for an hour, oldest first; then the tenant that has had least of the cluster:
what it had six hours ago counts half, and each device that it has now counts as if it had had it for an hour already.

A lease that does not fit does not stop those behind it: they go ahead when they do not delay it.";

/// Shows the queue.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn queue(client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let queue: QueueView = client.get("/v1/queue").await?.body;
    console.show(&queue, |console, queue| {
        let mut text = match queue.leases.is_empty() {
            true => String::new(),
            false => {
                let head = [
                    "place",
                    "lease",
                    "tenant",
                    "devices",
                    "plan",
                    "priority",
                    "since",
                    "waits because",
                ];
                let row = |lease: &QueueLease| row(lease, console);
                render::table(console.width, &head, queue.leases.iter().map(row))
            }
        };
        text.push_str(&format!("{} leases wait\n", queue.waiting));
        if !queue.tenants.is_empty() {
            let head = ["tenant", "waiting", "has", "has had"];
            text.push_str(&render::table(console.width, &head, queue.tenants.iter().map(share)));
        }
        text
    })
}

fn row(lease: &QueueLease, console: &Console<'_>) -> Vec<String> {
    let models: Vec<&str> = lease.models.iter().map(Name::as_str).collect();
    let models = if models.is_empty() {
        "any".to_owned()
    } else {
        models.join("|")
    };
    vec![
        lease.place.to_string(),
        lease.lease.to_string(),
        lease.tenant.to_string(),
        format!("{}x{models}", lease.devices),
        word(&lease.plan),
        lease.priority.to_string(),
        render::when(lease.requested_ms, &console.zone),
        lease.waits_because.clone().unwrap_or_default(),
    ]
}

fn share(tenant: &QueueTenant) -> Vec<String> {
    vec![
        tenant.tenant.to_string(),
        tenant.waiting.to_string(),
        format!("{} devices", tenant.devices),
        hours(tenant.had_device_ms),
    ]
}

/// Device milliseconds as device hours, to a hundredth.
fn hours(device_ms: u64) -> String {
    let hundredths = device_ms / 36_000;
    format!("{}.{:02} device hours", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_had_reads_in_device_hours() {
        for (device_ms, text) in [(0, "0.00"), (3_600_000, "1.00"), (95_000_000, "26.38")] {
            assert_eq!(hours(device_ms), format!("{text} device hours"));
        }
    }
}
