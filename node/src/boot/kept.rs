//! What a node was told when it was made, kept in its data folder.
//!
//! `init` and `join` write it before the folder becomes a node, `serve` reads it. The rule: what is said now wins over
//! what was kept, and what was kept wins over the defaults.

use std::path::Path;

use holdfast_proto::id::Name;
use holdfast_proto::node::{NodeAddress, NodeRole};

use crate::cli::daemon::DaemonError;
use crate::cli::error::code;
use crate::config::Config;
use crate::identity::folder::{DataFolder, write_durably};
use crate::join::Peer;

/// What a node was told when it was made, so that `serve` needs no flags.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Kept {
    pub(super) zone: Name,
    pub(super) role: NodeRole,
    pub(super) founds: bool,
    pub(super) simulate: Option<String>,
    pub(super) bind: String,
    pub(super) address: NodeAddress,
    pub(super) peers: Vec<Peer>,
}

const KEPT_FILE: &str = "settings.json";

impl Kept {
    pub(super) fn read(folder: &DataFolder) -> Result<Self, DaemonError> {
        let path = folder.part(KEPT_FILE);
        let damaged = |why: String| DaemonError {
            reason: format!(
                "cannot read {}: {why}; move the data folder away and join again as a new node",
                path.display()
            ),
            exit_code: code::REFUSED,
        };
        let bytes = std::fs::read(&path).map_err(|error| damaged(error.to_string()))?;
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))
    }

    /// Writes it for the next start.
    pub(super) fn write(&self, folder: &DataFolder) -> Result<(), DaemonError> {
        let path = folder.part(KEPT_FILE);
        let text = serde_json::to_vec_pretty(self).map_err(|error| DaemonError::failed(&error))?;
        write_durably(&path, &text, 0o600).map_err(|error| unwritten(&path, &error))
    }

    /// The configuration, with what was kept in every place that says nothing of its own.
    pub(super) fn under(&self, config: &Config) -> Config {
        let (mut config, silent) = (config.clone(), Config::default());
        let node = &mut config.node;
        let kept = [self.address.main_port, self.address.lease_port, self.address.bulk_port];
        let spoken = [
            (&mut node.port, silent.node.port),
            (&mut node.lease_port, silent.node.lease_port),
            (&mut node.bulk_port, silent.node.bulk_port),
        ];
        for ((port, default), kept) in spoken.into_iter().zip(kept) {
            if *port == default {
                *port = kept;
            }
        }
        if node.bind == silent.node.bind {
            node.bind.clone_from(&self.bind);
        }
        node.zone = self.zone.to_string();
        node.host = node.host.take().or_else(|| Some(self.address.host.clone()));
        config.devices.simulate = config.devices.simulate.take().or_else(|| self.simulate.clone());
        config
    }
}

/// Why a file of the data folder is not there, and what to do.
pub(super) fn unwritten(path: &Path, error: &std::io::Error) -> DaemonError {
    DaemonError {
        reason: format!(
            "cannot write {}: {error}; free space or mend the disk, then say the same again",
            path.display()
        ),
        exit_code: code::FAILED,
    }
}
