//! Attached to a lease: its output on standard output, what happens to it beside that, its exit code at the end.

use holdfast_proto::event::Event;
use holdfast_proto::id::{Cursor, LeaseId};
use holdfast_proto::lease::EndReason;
use serde_json::json;

use super::console::Console;
use super::error::{CliError, code};
use super::event::Labels;
use super::interrupt::{Interrupts, interrupted};
use super::log::Printer;
use crate::client::event::Item;
use crate::client::{Client, ClientError};
use crate::wire::lease::LeaseView;

/// Follows a lease to its end; gives the exit code of its work.
///
/// # Errors
/// When the cluster cannot be asked for a long while, a signal came, or nobody reads the output; the lease goes on in all
/// cases, and the error says so.
pub async fn attach(
    lease: LeaseId,
    client: &Client,
    console: &mut Console<'_>,
    interrupts: &mut Interrupts,
) -> Result<u8, CliError> {
    let goes_on =
        format!("{lease} goes on: `holdfast logs -f {lease}` shows its output, `holdfast release {lease}` ends it");
    let followed = tokio::select! {
        followed = follow(lease, client, console) => followed,
        exit_code = interrupts.next() => return Err(interrupted(exit_code, goes_on)),
    };
    followed.map_err(|error| match error {
        CliError::Io(source) => CliError::Unread { told: goes_on, source },
        CliError::Client(error @ (ClientError::Unreachable { .. } | ClientError::Garbled { .. })) => {
            console.tell(&goes_on);
            CliError::Client(error)
        }
        other => other,
    })
}

async fn follow(lease: LeaseId, client: &Client, console: &mut Console<'_>) -> Result<u8, CliError> {
    let labels = Labels::fetch(client).await;
    let born = Cursor {
        index: lease.index.saturating_sub(1),
        sub: u32::MAX,
    };
    let mut events = client.events(&format!("lease={lease}"), Some(born));
    let mut log = client.log(lease, true);
    let mut printer = Printer::new(lease);
    let (mut ended, mut silent) = (false, false);
    while !ended || !silent {
        tokio::select! {
            line = log.next(), if !silent => match line? {
                Some(line) => printer.print(&line, client, console).await?,
                None => silent = true,
            },
            item = events.next(), if !ended => if let Item::Event(event) = item? {
                console.tell(&format!("{lease}: {}", labels.told(&event.data)));
                if matches!(event.data, Event::LeaseEnded { .. }) {
                    ended = true;
                    // What was written after the output seemed to end is read now.
                    if silent {
                        log.reopen();
                        silent = false;
                    }
                }
            },
        }
    }
    let view: LeaseView = client.get(&format!("/v1/leases/{lease}")).await?.body;
    if console.json {
        console.print_json(&json!({ "lease": lease, "status": view.status, "end_reason": view.end_reason, "exit_code": view.exit_code }))?;
    }
    Ok(exit_code(&view))
}

/// The exit code of the command: the work's own where it has one.
fn exit_code(view: &LeaseView) -> u8 {
    match (view.exit_code, view.end_reason) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        (None, Some(EndReason::Completed)) => code::DONE,
        (None, _) => code::LEASE_ENDED,
    }
}
