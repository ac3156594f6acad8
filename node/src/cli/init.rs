//! `holdfast init`: a cluster of one, running.

use std::path::PathBuf;

use clap::Args;
use holdfast_proto::id::Name;
use holdfast_proto::node::NodeRole;
use serde_json::json;

use super::console::Console;
use super::daemon::{Daemon, Serving};
use super::error::CliError;
use crate::client::credentials::Credentials;
use crate::config::Config;

/// What a join line leaves open, because only whoever types it knows.
pub const JOIN_HINT: &str =
    "add --zone NAME in another failure domain, and --simulate 8xh100, say, for devices: no real cards are read yet";

/// What `init` is given.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// How the node is set up.
    #[command(flatten)]
    pub node: NodeFlags,
}

/// How a node is set up; each flag overrides the configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct NodeFlags {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder of everything that the node remembers [default: /var/lib/holdfast, or ~/.local/share/holdfast without root].
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Label for people [default: the host's name].
    #[arg(long)]
    pub name: Option<Name>,
    /// Failure domain, such as a power feed or a data centre: replicas and restarts are spread over zones [default: a].
    #[arg(long)]
    pub zone: Option<Name>,
    /// Simulate devices, such as 8xh100 or 4xa100,4xt4.
    #[arg(long, value_name = "DEVICES")]
    pub simulate: Option<String>,
    /// Address to listen on [default: 0.0.0.0].
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<String>,
    /// Host name or address under which others reach this node [default: found out].
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// TCP port of HTTPS, and UDP port of Raft; 0 for a free one [default: 7400].
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// UDP port of node-lease renewals [default: 7401].
    #[arg(long, value_name = "PORT")]
    pub lease_port: Option<u16>,
    /// UDP port of bulk transfers [default: 7402].
    #[arg(long, value_name = "PORT")]
    pub bulk_port: Option<u16>,
}

impl NodeFlags {
    /// The configuration with the flags on top.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub fn config(self, env: &dyn Fn(&str) -> Option<String>, is_root: bool) -> Result<Config, CliError> {
        let mut config = Config::read(self.config.as_deref())?;
        let default = Config::default().data;
        if let Some(data) = self.data.or_else(|| env("HOLDFAST_FOLDER").map(PathBuf::from)) {
            config.data = data;
        } else if config.data == default
            && !is_root
            && let Some(home) = env("HOME")
        {
            config.data = PathBuf::from(home).join(".local/share/holdfast");
        }
        let node = &mut config.node;
        node.label = self.name.map(|name| name.to_string()).or(node.label.take());
        node.host = self.host.or(node.host.take());
        node.zone = self
            .zone
            .map_or_else(|| std::mem::take(&mut node.zone), |zone| zone.to_string());
        node.bind = self.bind.unwrap_or_else(|| std::mem::take(&mut node.bind));
        node.port = self.port.unwrap_or(node.port);
        node.lease_port = self.lease_port.unwrap_or(node.lease_port);
        node.bulk_port = self.bulk_port.unwrap_or(node.bulk_port);
        config.devices.simulate = self.simulate.or(config.devices.simulate);
        Ok(config)
    }
}

/// Founds a cluster and runs its first node until it is stopped.
///
/// # Errors
/// When it cannot be founded, or the node fails.
pub fn init(args: InitArgs, daemon: &dyn Daemon, console: &mut Console<'_>) -> Result<(), CliError> {
    let config = args.node.config(console.env, nix::unistd::geteuid().is_root())?;
    Ok(daemon.init(config, &mut |serving| announce(serving, console))?)
}

/// Says where the node is and what to type next, and keeps the credentials.
///
/// # Errors
/// When the credentials cannot be written.
pub fn announce(serving: &Serving, console: &mut Console<'_>) -> Result<(), CliError> {
    let path = console.credentials_path()?;
    let known = Credentials::read(&path).ok().flatten();
    let same = known.as_ref().filter(|known| known.cluster == serving.cluster);
    let known_bearer = same.and_then(|known| known.bearer.clone());
    // This node first, because it is near; the others stay known for when it is down.
    let mut addresses = vec![serving.address.clone()];
    let others = same.into_iter().flat_map(|known| &known.addresses);
    addresses.extend(others.filter(|address| **address != serving.address).cloned());
    if let Some(other) = known.as_ref().filter(|known| known.cluster != serving.cluster) {
        let kept = path.with_file_name(format!("credentials-{}.toml", other.cluster));
        std::fs::rename(&path, &kept).map_err(CliError::Io)?;
        console.tell(&format!(
            "the credentials of cluster {} are kept in {}",
            other.cluster,
            kept.display()
        ));
    }
    let credentials = Credentials {
        addresses,
        bearer: serving.operator.clone().or(known_bearer),
        authority: serving.authority.clone(),
        cluster: serving.cluster,
    };
    credentials.write(&path)?;
    let said = json!({
        "cluster": serving.cluster,
        "node": serving.node,
        "address": serving.address,
        "credentials": path.display().to_string(),
        "join": serving.join_line,
    });
    if serving.devices == 0 && serving.role != NodeRole::Witness {
        console.tell(
            "this node has no devices, because no real cards are read yet: stop it and give --simulate 8xh100, say, for work to run here",
        );
    }
    console.show(&said, |_, _| {
        let mut text = format!("cluster {} serves at {}\n", serving.cluster, serving.address);
        if let Some(line) = &serving.join_line {
            text.push_str(&format!("on the next machine:\n  {line}\n  # {JOIN_HINT}\n"));
        }
        match &serving.operator {
            Some(_) => text.push_str(&format!(
                "the operator's token is in {}; commands here need no flags\n",
                path.display()
            )),
            None => text.push_str(&format!("where the cluster is was written to {}\n", path.display())),
        }
        text
    })
}
