//! `holdfast logs`: what the work of a lease writes.

use std::collections::BTreeSet;

use clap::Args;
use holdfast_proto::id::LeaseId;

use super::console::Console;
use super::error::CliError;
use super::interrupt::{Interrupts, interrupted};
use super::which::{self, Which};
use crate::client::Client;
use crate::wire::lease::{LeaseView, LogLine};

/// Which lease.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Its id, such as lease-12, or the label that it was given with `lease --name`.
    #[arg(value_parser = which::parse)]
    pub lease: Which,
    /// Go on until the lease has ended.
    #[arg(short, long)]
    pub follow: bool,
    /// Only the member of this rank; of several members, each line has its rank in front.
    #[arg(long)]
    pub rank: Option<u32>,
}

/// Shows the output.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn logs(args: LogsArgs, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    let lease = args.lease.find(client).await?;
    let mut interrupts = Interrupts::listen();
    let mut log = client.log(lease, args.follow).of_rank(args.rank);
    let mut printer = match args.rank {
        Some(_) => Printer::of_one(lease),
        None => Printer::new(lease),
    };
    loop {
        let line = tokio::select! {
            line = log.next() => line?,
            exit_code = interrupts.next() => return Err(interrupted(exit_code, format!("stopped reading; {lease} goes on"))),
        };
        match line {
            Some(line) => printer.print(&line, client, console).await?,
            None => return Ok(()),
        }
    }
}

/// Prints lines of output; of a gang with the rank in front.
pub struct Printer {
    lease: LeaseId,
    ranks: BTreeSet<u32>,
    gang: Option<bool>,
}

impl Printer {
    /// For one lease.
    pub fn new(lease: LeaseId) -> Self {
        Self {
            lease,
            ranks: BTreeSet::new(),
            gang: None,
        }
    }

    /// For one member: no line needs its rank in front.
    pub fn of_one(lease: LeaseId) -> Self {
        Self {
            gang: Some(false),
            ..Self::new(lease)
        }
    }

    /// Prints a line as the work wrote it: colours and all, for that is what was asked for.
    ///
    /// # Errors
    /// When the other end is gone.
    pub async fn print(&mut self, line: &LogLine, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
        if console.json {
            return console.print_json(line);
        }
        if let Some(note) = &line.note {
            console.tell(note);
            return Ok(());
        }
        if self.gang.is_none() {
            let view = client
                .get::<LeaseView>(&format!("/v1/leases/{}?consistency=stale", self.lease))
                .await;
            self.gang = Some(view.is_ok_and(|view| view.body.members.len() > 1));
        }
        self.ranks.insert(line.rank);
        let mut text = match self.gang == Some(true) || self.ranks.len() > 1 {
            true => format!("[{}] {}", line.rank, line.text),
            false => line.text.clone(),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        console.print(&text)
    }
}
