//! `holdfast bill`: what a lease has cost, line by line.

use clap::Args;
use holdfast_proto::id::LeaseId;
use holdfast_proto::time::Span;

use super::console::Console;
use super::error::CliError;
use super::render;
use super::show::money;
use crate::client::Client;
use crate::wire::bill::{Bill, BillLine};

/// Which lease, and how much to tell.
#[derive(Debug, Args)]
pub struct BillArgs {
    /// Its id, such as lease-12.
    pub lease: LeaseId,
    /// Name the events behind each line.
    #[arg(long)]
    pub explain: bool,
}

/// Shows the bill.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn bill(args: BillArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let bill: Bill = client
        .get(&format!("/v1/leases/{}/bill?explain={}", args.lease, args.explain))
        .await?
        .body;
    console.show(&bill, |console, bill| told(console, bill, args.explain))
}

fn told(console: &Console<'_>, bill: &Bill, explain: bool) -> String {
    let mut head = vec!["what", "from", "for", "free", "an hour", "amount"];
    if explain {
        head.extend(["opened at", "charged at"]);
    }
    let row = |line: &BillLine| {
        let span = line.until_ms.saturating_sub(line.from_ms);
        let mut cells = vec![
            format!("{} (epoch {})", line.meter, line.epoch),
            render::when(line.from_ms, &console.zone),
            Span(span).to_string(),
            Span(line.unpaid_ms).to_string(),
            money(line.micros_per_hour, ""),
            money(line.amount_micros, ""),
        ];
        if explain {
            cells.push(line.opened_at.to_string());
            cells.push(line.charged_at.map(|at| at.to_string()).unwrap_or_default());
        }
        cells
    };
    let mut text = match bill.lines.is_empty() {
        true => String::new(),
        false => render::table(console.width, &head, bill.lines.iter().map(row)),
    };
    if let Some(open) = &bill.open {
        let so_far = money(open.so_far_micros, &bill.currency);
        text.push_str(&format!(
            "running since {}: {so_far} so far",
            render::when(open.from_ms, &console.zone)
        ));
        if explain {
            text.push_str(&format!(", opened at {}", open.opened_at));
        }
        text.push('\n');
    }
    let word = if bill.is_final { "total" } else { "charged so far" };
    text.push_str(&format!("{word} {}\n", money(bill.total_micros, &bill.currency)));
    text
}
