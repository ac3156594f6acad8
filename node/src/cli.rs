//! The command line `holdfast`.
//!
//! Owns the grammar, the exit codes and where texts go; each command is a file below. Commands that talk to a cluster use
//! [`crate::client`]; those that are a node (`init`, `join`, `serve`, `demo`, `bench`) are handed to a [`Daemon`], which `main.rs` gives.
//! The one rule: standard output carries what was asked for and nothing else, so that it can be piped; with `--json` also failures.

pub mod amount;
pub mod attach;
pub mod backup;
pub mod bill;
pub mod cluster;
pub mod console;
pub mod daemon;
pub mod drain;
pub mod duration;
pub mod error;
pub mod event;
pub mod init;
pub mod interrupt;
pub mod join;
pub mod lease;
pub mod log;
pub mod node;
pub mod plan;
pub mod queue;
pub mod render;
pub mod replay;
pub mod resource;
pub mod serve;
pub mod shape;
pub mod show;
pub mod subscribe;
pub mod tenant;
pub mod token;
pub mod which;
pub mod why;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::client::View;
use cluster::ClusterCommand;
use console::Console;
use daemon::Daemon;
use error::{CliError, code};

/// What the exit codes mean, for `--help`.
const EXIT_CODES: &str = "\
Exit codes:
    0  done
   64  the command line is wrong
   65  refused: the rules or the cluster said no, and nothing happened
   66  the lease ended before its work did (released, expired, preempted, capped, or it could not be started)
   69  no node answers
   70  the node failed
   74  reading or writing here failed
   75  it is not known whether the command took effect; check, then try again
   76  a node answered with something that is not understood
   77  the token does not allow this, or is not valid
   78  the configuration or the credentials cannot be used
  130  interrupted with Ctrl-C (143 by SIGTERM, 129 when the terminal is gone); what runs in the cluster goes on
`holdfast lease` without --detach ends with the exit code of the work.

Environment:
  HOLDFAST_ADDRESS  nodes to talk to (host:port, with commas)
  HOLDFAST_TOKEN    access token
  HOLDFAST_CA       certificate of the cluster's authority, a path or PEM
  HOLDFAST_CONFIG   folder of credentials.toml; ~/.config/holdfast when absent";

/// Heading of the options that every command has.
const GLOBAL: &str = "Options of every command";

/// Leases GPUs: joins machines into one cluster, runs work on them, and bills exactly what was used.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, after_help = EXIT_CODES, max_term_width = 120, disable_help_subcommand = true)]
pub struct Cli {
    /// Print JSON, also for failures.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json: bool,
    /// Nodes to talk to (host:port, with commas) instead of those in the credentials.
    #[arg(long, global = true, value_name = "HOST:PORT", help_heading = GLOBAL)]
    pub address: Option<String>,
    /// Read what one node knows, also without a leader; the answer may be out of date.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub stale: bool,
    /// Read the cluster as it was after this entry of the log.
    #[arg(id = "at_index", long = "at", global = true, value_name = "INDEX", conflicts_with = "stale", help_heading = GLOBAL)]
    pub at: Option<u64>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a cluster of one node, and run it.
    Init(init::InitArgs),
    /// Join this machine to a cluster, and run its node.
    Join(join::JoinArgs),
    /// Run this machine's node again.
    Serve(serve::ServeArgs),
    /// Make, list and revoke tokens: for machines that join, for people and for programs.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Make and list tenants.
    #[command(subcommand)]
    Tenant(tenant::TenantCommand),
    /// List nodes.
    Nodes,
    /// List devices.
    Gpus,
    /// Keep new work away from a node.
    Cordon(node::CordonArgs),
    /// Let new work in again.
    Uncordon(node::NodeArgs),
    /// Take a node out for good.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Lease devices and run a command on them: price, y/n, then attached to its output.
    Lease(lease::LeaseArgs),
    /// Say where a lease would go now, or what keeps it from anywhere. Leases nothing.
    Plan(shape::ShapeArgs),
    /// Show who waits for devices, in which order, and what tenants have had.
    #[command(after_help = queue::QUEUE_HELP)]
    Queue,
    /// List leases.
    Leases(show::LeasesArgs),
    /// Show one lease.
    Show(show::ShowArgs),
    /// Show what the work of a lease writes.
    Logs(log::LogsArgs),
    /// Give a lease back.
    Release(show::ShowArgs),
    /// Ask for more time for a lease.
    Renew(show::RenewArgs),
    /// Tell what happened to a lease, in words.
    Why(why::WhyArgs),
    /// Show what happens in the cluster.
    Events(event::EventsArgs),
    /// Read events under a name that the cluster keeps, with how far you have come: nothing is missed while you are away.
    Subscribe(subscribe::SubscribeArgs),
    /// List durable subscriptions, and how far their readers have come.
    Subscriptions,
    /// Acknowledge the events of a durable subscription by hand.
    Acknowledge(subscribe::AcknowledgeArgs),
    /// Forget a durable subscription.
    Unsubscribe(subscribe::UnsubscribeArgs),
    /// Show what a lease has cost.
    Bill(bill::BillArgs),
    /// Show how the cluster is.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Write a note into the event log, for whoever reads it.
    Note(cluster::NoteArgs),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Replay recorded requests against the nodes of a file: capacity planning, and our benchmark. Needs no cluster.
    Replay(replay::ReplayArgs),
    /// Show it all on this machine: three nodes, real work, a failure, a bill.
    #[command(disable_help_flag = true)]
    Demo(PassedOn),
    /// Measure writes, leases and failovers on this machine.
    #[command(disable_help_flag = true)]
    Bench(PassedOn),
    /// Break a cluster on purpose (runs `holdfast-chaos`).
    #[command(disable_help_flag = true)]
    Chaos(PassedOn),
}

/// Arguments that another part reads.
#[derive(Debug, Clone, clap::Args)]
pub struct PassedOn {
    /// What it is given.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// Runs the command line of this process.
pub fn main(daemon: &dyn Daemon) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    ExitCode::from(Console::of_process(|console| run(arguments, daemon, console)))
}

/// Runs one command line; gives the exit code.
pub fn run(arguments: Vec<OsString>, daemon: &dyn Daemon, console: &mut Console<'_>) -> u8 {
    // A misspelt command line is answered as JSON too when that was asked for.
    console.json = arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .any(|argument| argument == "--json");
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            return console.print(&error.to_string()).map_or(code::IO, |()| code::DONE);
        }
        Err(error) => return console.fail(&CliError::Usage(error.to_string().trim_end().to_owned())),
    };
    console.json = cli.json;
    console.address = cli.address;
    console.view = match (cli.stale, cli.at) {
        (true, _) => View::Stale,
        (false, Some(index)) => View::At(index),
        (false, None) => View::Fresh,
    };
    match perform(cli.command, daemon, console) {
        Ok(code) => code,
        Err(CliError::Help(text)) => console.print(&text).map_or(code::IO, |()| code::DONE),
        Err(error) => console.fail(&error),
    }
}

fn perform(command: Command, daemon: &dyn Daemon, console: &mut Console<'_>) -> Result<u8, CliError> {
    let done = |result: Result<(), CliError>| result.map(|()| code::DONE);
    match command {
        Command::Init(args) => done(init::init(args, daemon, console)),
        Command::Join(args) => done(join::join(args, daemon, console)),
        Command::Serve(args) => done(serve::serve(args, daemon, console)),
        Command::Cluster(ClusterCommand::Restore(args)) => done(backup::restore(args, daemon, console)),
        Command::Cluster(ClusterCommand::Recover(args)) => done(backup::recover(args, daemon, console)),
        Command::Cluster(ClusterCommand::BackupVerify { file }) => done(backup::verify(&file, console)),
        Command::Replay(args) => done(replay::replay(args, console)),
        Command::Demo(args) => daemon.demo(&args.arguments, console.json),
        Command::Bench(args) => daemon.bench(&args.arguments, console.json),
        Command::Chaos(args) => Err(daemon::become_chaos(&args.arguments, console.json)),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut text);
            done(console.print(&String::from_utf8_lossy(&text)))
        }
        remote => talk(remote, console),
    }
}

/// Runs a command that talks to a cluster.
fn talk(command: Command, console: &mut Console<'_>) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::Io)?;
    runtime.block_on(async {
        let client = console.client()?;
        let result = speak(command, &client, console).await;
        console.keep_addresses(&client);
        result
    })
}

async fn speak(command: Command, client: &crate::client::Client, console: &mut Console<'_>) -> Result<u8, CliError> {
    match command {
        Command::Lease(args) => return lease::lease(args, client, console).await,
        Command::Token(command) => token::token(command, client, console).await?,
        Command::Tenant(command) => tenant::tenant(command, client, console).await?,
        Command::Nodes => node::nodes(client, console).await?,
        Command::Gpus => node::gpus(client, console).await?,
        Command::Cordon(args) => node::cordon(args, client, console).await?,
        Command::Uncordon(args) => node::uncordon(args, client, console).await?,
        Command::Node(command) => node::node(command, client, console).await?,
        Command::Plan(args) => plan::plan(args, client, console).await?,
        Command::Queue => queue::queue(client, console).await?,
        Command::Leases(args) => show::leases(args, client, console).await?,
        Command::Show(args) => show::show(args, client, console).await?,
        Command::Logs(args) => log::logs(args, client, console).await?,
        Command::Release(args) => show::release(args, client, console).await?,
        Command::Renew(args) => show::renew(args, client, console).await?,
        Command::Why(args) => why::why(args, client, console).await?,
        Command::Events(args) => event::events(args, client, console).await?,
        Command::Subscribe(args) => subscribe::subscribe(args, client, console).await?,
        Command::Subscriptions => subscribe::subscriptions(client, console).await?,
        Command::Acknowledge(args) => subscribe::acknowledge(args, client, console).await?,
        Command::Unsubscribe(args) => subscribe::unsubscribe(args, client, console).await?,
        Command::Bill(args) => bill::bill(args, client, console).await?,
        Command::Cluster(command) => cluster::cluster(command, client, console).await?,
        Command::Note(args) => cluster::note(args, client, console).await?,
        other => unreachable!("{other:?} does not talk to a cluster"),
    }
    Ok(code::DONE)
}
