//! `holdfast cluster backup`, `backup-verify`, `restore` and `recover`.
//!
//! The one rule: a backup has its name only after it was read back and proven, so a file that is there is one that can
//! be restored.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use holdfast_storage::backup::{self, Backup};
use serde_json::{Value, json};

use super::cluster::{RecoverArgs, RestoreArgs};
use super::console::Console;
use super::daemon::{Daemon, Recovery};
use super::error::CliError;
use super::init::{NodeFlags, announce};
use super::render;
use crate::client::Client;

/// Writes a backup and verifies it.
///
/// # Errors
/// When the cluster cannot be asked, the file cannot be written, or what was written is not a whole backup.
pub async fn backup(file: &Path, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    if file.exists() {
        return Err(CliError::Usage(format!(
            "{} is there already; choose another name",
            file.display()
        )));
    }
    let unfinished = unfinished(file);
    let mut out = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)
        .map_err(CliError::Io)?;
    let fetched = client.fetch("/v1/cluster/backup", |piece| out.write_all(piece)).await;
    let verified = match fetched {
        Ok(()) => out.sync_all().map_err(CliError::Io).and_then(|()| read(&unfinished)),
        Err(error) => Err(error.into()),
    };
    let backup = verified.inspect_err(|_| {
        // What is left of it would only be in the way.
        let _ = fs::remove_file(&unfinished);
    })?;
    keep(&unfinished, file).map_err(CliError::Io)?;
    tell(file, &backup, console)
}

/// Verifies a backup and tells what it is of.
///
/// # Errors
/// When it cannot be read, or cannot be restored from.
pub fn verify(file: &Path, console: &mut Console<'_>) -> Result<(), CliError> {
    let backup = read(file)?;
    tell(file, &backup, console)
}

/// Founds a cluster from a backup and runs its first node until it is stopped.
///
/// # Errors
/// When the backup cannot be used, the cluster cannot be founded, or the node fails.
pub fn restore(args: RestoreArgs, daemon: &dyn Daemon, console: &mut Console<'_>) -> Result<(), CliError> {
    let backup = read(&args.file)?;
    let config = args.node.config(console.env, nix::unistd::geteuid().is_root())?;
    Ok(daemon.restore(config, backup, args.adopt, &mut |serving| announce(serving, console))?)
}

/// Makes this machine's node the only voter of its cluster.
///
/// # Errors
/// When it is not wanted after all, or cannot be done.
pub fn recover(args: RecoverArgs, daemon: &dyn Daemon, console: &mut Console<'_>) -> Result<(), CliError> {
    let flags = NodeFlags {
        config: args.config,
        data: args.data,
        ..NodeFlags::default()
    };
    let config = flags.config(console.env, nix::unistd::geteuid().is_root())?;
    let found = daemon.recover(config.clone(), true)?;
    if args.dry_run {
        return console.show(&found, |_, found| tell_recovery(found));
    }
    if !args.yes {
        console.tell(&tell_recovery(&found));
        if !console.ask("go on with this node alone?")? {
            return Err(CliError::Usage(
                "nothing was changed; add --yes to go on without being asked".to_owned(),
            ));
        }
    }
    let done = daemon.recover(config, false)?;
    console.show(&done, |_, done| {
        format!(
            "{}node {} is the only voter now: run `holdfast serve` here\nthen on it, for each machine that was lost: `holdfast node remove NODE`\n",
            tell_recovery(done),
            done.node
        )
    })
}

fn tell_recovery(recovery: &Recovery) -> String {
    let without: Vec<String> = recovery.without.iter().map(ToString::to_string).collect();
    render::fields(&[
        ("cluster", recovery.cluster.to_string()),
        ("node", recovery.node.to_string()),
        (
            "log ends",
            format!("entry {}, term {}", recovery.last_index, recovery.last_term),
        ),
        (
            "committed",
            format!("entry {}, as far as is known here", recovery.committed_index),
        ),
        ("goes on without", without.join(", ")),
    ])
}

fn read(file: &Path) -> Result<Backup, CliError> {
    let bytes = fs::read(file).map_err(|error| {
        // Which file is the first thing that whoever typed its name wants to know.
        CliError::Io(io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    })?;
    backup::read(&bytes).map_err(|source| CliError::Backup {
        file: file.display().to_string(),
        source,
    })
}

fn tell(file: &Path, backup: &Backup, console: &mut Console<'_>) -> Result<(), CliError> {
    let (header, state) = (&backup.header, &backup.state);
    let said: Value = json!({
        "file": file.display().to_string(),
        "cluster": header.cluster,
        "era": header.era.0,
        "index": header.index,
        "time_ms": header.stamp.0,
        "digest": backup.digest.to_string(),
        "state_hash": header.state_hash.to_string(),
        "leases": state.leases.len(),
        "tenants": state.tenants.len(),
        "made_by": header.made_by,
    });
    let text = render::fields(&[
        ("backup", file.display().to_string()),
        ("cluster", format!("{}, era {}", header.cluster, header.era)),
        (
            "index",
            format!("{} at {}", header.index, render::when(header.stamp.0, &console.zone)),
        ),
        (
            "holds",
            format!("{} leases, {} tenants", state.leases.len(), state.tenants.len()),
        ),
        ("digest", backup.digest.to_string()),
        ("verified", "it can be restored".to_owned()),
    ]);
    console.show(&said, |_, _| text)
}

fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".unfinished");
    file.with_file_name(name)
}

/// Gives the file its name, durably.
fn keep(unfinished: &Path, file: &Path) -> io::Result<()> {
    fs::rename(unfinished, file)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
