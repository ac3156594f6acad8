//! `holdfast bill`: what a lease has cost, line by line.

use clap::Args;
use holdfast_proto::time::Span;

use super::console::Console;
use super::error::CliError;
use super::render;
use super::show::money;
use super::which::{self, Which};
use crate::client::Client;
use crate::wire::bill::{Bill, BillLine};

/// Which lease, and how much to tell.
#[derive(Debug, Args)]
pub struct BillArgs {
    /// Its id, such as lease-12, or the label that it was given with `lease --name`.
    #[arg(value_parser = which::parse)]
    pub lease: Which,
    /// Name the events behind each line.
    #[arg(long)]
    pub explain: bool,
}

/// Shows the bill.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn bill(args: BillArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let lease = args.lease.find(client).await?;
    let bill: Bill = client
        .get(&format!("/v1/leases/{lease}/bill?explain={}", args.explain))
        .await?
        .body;
    console.show(&bill, |console, bill| told(console, bill, args.explain))
}

fn told(console: &Console<'_>, bill: &Bill, explain: bool) -> String {
    let (an_hour, amount) = (
        format!("{} an hour", bill.currency),
        format!("amount {}", bill.currency),
    );
    let mut head = vec!["what", "from", "for", "free", an_hour.trim(), amount.trim()];
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
    let mut so_far = bill.total_micros;
    if let Some(open) = &bill.open {
        so_far = so_far.saturating_add(open.so_far_micros);
        text.push_str(&format!(
            "running since {}: {}",
            render::when(open.from_ms, &console.zone),
            money(open.so_far_micros, &bill.currency)
        ));
        if explain {
            text.push_str(&format!(", opened at {}", open.opened_at));
        }
        text.push('\n');
    }
    text.push_str(&match bill.is_final {
        true => format!("total {}\n", money(bill.total_micros, &bill.currency)),
        false => format!(
            "so far {}, as of {}\n",
            money(so_far, &bill.currency),
            render::when(bill.as_of_ms, &console.zone)
        ),
    });
    text
}
