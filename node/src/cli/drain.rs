//! `holdfast node drain`: empties a node and tells, lease by lease, how far that is.
//!
//! The one rule: it ends well only when the cluster says that nothing is left on the node.

use std::time::Duration;

use clap::Args;
use holdfast_proto::time::Span;
use reqwest::Method;

use super::console::Console;
use super::duration;
use super::error::CliError;
use super::render;
use crate::client::{Client, segment};
use crate::wire::cluster::Applied;
use crate::wire::node::{DrainLease, DrainOrder, DrainView};

/// Time between two looks at a drain.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What happens to leases, for `--help`.
const DRAIN_HELP: &str = "\
The node takes no new work at once. A lease with a saved state (or that has not begun) moves as soon as there is a place
for it elsewhere; any other may go on until the deadline and is then stopped, with its grace, and placed anew. It stops
first and starts then. `holdfast uncordon NODE` calls the drain off; draining again sets a new deadline.

Ctrl-C ends the watching only. Exit code 0: nothing is left on the node (with --detach: the drain has begun).";

/// A node, and until when it is to be empty.
#[derive(Debug, Args)]
#[command(after_help = DRAIN_HELP)]
pub struct DrainArgs {
    /// Its label or id.
    pub node: String,
    /// How long leases may go on there.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30m")]
    pub deadline: Span,
    /// Why, for people.
    #[arg(short = 'm', long = "reason", default_value = "")]
    pub reason: String,
    /// Do not stay to watch.
    #[arg(long, short, conflicts_with = "watch")]
    pub detach: bool,
    /// Watch a drain that goes on; change nothing.
    #[arg(long)]
    pub watch: bool,
}

/// Empties a node.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn drain(args: DrainArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let path = format!("/v1/nodes/{}/drain", segment(&args.node));
    let name = render::plain(&args.node);
    if !args.watch {
        let order = DrainOrder {
            deadline_ms: args.deadline.0,
            reason: args.reason,
        };
        let done: Applied = client.command(Method::POST, &path, &order).await?.body;
        if args.detach {
            return console.show(&done, |_, _| {
                format!("{name} is being drained; `holdfast node drain {name} --watch` shows how far it is")
            });
        }
    }
    let mut told = Vec::new();
    loop {
        let view: DrainView = client.get(&path).await?.body;
        for line in news(&mut told, &view.leases) {
            console.tell(&line);
        }
        if view.drained_ms.is_some() {
            return console.show(&view, |_, _| format!("{name} is drained: nothing is left on it"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What is new since the last look: leases in another state, and those that are gone.
fn news(told: &mut Vec<DrainLease>, now: &[DrainLease]) -> Vec<String> {
    let gone = told
        .iter()
        .filter(|old| now.iter().all(|lease| lease.lease != old.lease));
    let mut lines: Vec<String> = gone.map(|old| format!("{} has left", old.lease)).collect();
    for lease in now.iter().filter(|lease| !told.contains(lease)) {
        let how = match lease.leaves.as_str() {
            "when-placed" => "moves when there is a place elsewhere",
            "at-deadline" => "may go on until the deadline",
            _ => "is being stopped here",
        };
        let step = lease.checkpoint_step.map(|step| format!(", saved at step {step}"));
        lines.push(format!(
            "{} of {} is {}: it {how}{}",
            lease.lease,
            lease.tenant,
            lease.status,
            step.unwrap_or_default()
        ));
    }
    *told = now.to_vec();
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::id::LeaseId;

    use super::*;

    #[test]
    fn each_lease_is_told_of_when_something_is_new_and_when_it_has_left() {
        let lease = |index, leaves: &str| DrainLease {
            lease: LeaseId::from_index(index),
            tenant: "blue".parse().unwrap(),
            status: "active".to_owned(),
            leaves: leaves.to_owned(),
            checkpoint_step: (index == 2).then_some(40),
        };
        let mut told = Vec::new();
        let first = [lease(1, "at-deadline"), lease(2, "when-placed")];
        assert_eq!(
            news(&mut told, &first),
            [
                "lease-1 of blue is active: it may go on until the deadline",
                "lease-2 of blue is active: it moves when there is a place elsewhere, saved at step 40",
            ]
        );
        assert_eq!(news(&mut told, &first), [""; 0]);
        let then = [lease(1, "stops")];
        assert_eq!(
            news(&mut told, &then),
            [
                "lease-2 has left",
                "lease-1 of blue is active: it is being stopped here"
            ]
        );
    }
}
