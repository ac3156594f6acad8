//! What the command line needs from the parts that run a node.

use std::error::Error;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use holdfast_proto::id::{ClusterId, NodeId};
use holdfast_proto::node::NodeRole;
use holdfast_storage::backup::Backup;
use rustls::pki_types::CertificateDer;

use super::error::{CliError, chain, code};
use crate::bearer::Bearer;
use crate::config::Config;
use crate::join::JoinToken;

/// Why a node could not run, or had to stop.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct DaemonError {
    /// The step that failed, with its causes.
    pub reason: String,
    /// Exit code: 65 when something said no, 69 when nobody answered, 78 for a configuration, 70 otherwise.
    pub exit_code: u8,
}

impl DaemonError {
    /// A failure of the node.
    pub fn failed(error: &dyn Error) -> Self {
        Self {
            reason: chain(error),
            exit_code: code::FAILED,
        }
    }

    /// Something said no; nothing happened.
    pub fn refused(error: &dyn Error) -> Self {
        Self {
            reason: chain(error),
            exit_code: code::REFUSED,
        }
    }

    /// Nobody answers.
    pub fn unavailable(error: &dyn Error) -> Self {
        Self {
            reason: chain(error),
            exit_code: code::UNAVAILABLE,
        }
    }
}

/// A node that serves, as its command tells about it.
#[derive(Debug, Clone)]
pub struct Serving {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Certificate of the cluster's authority.
    pub authority: CertificateDer<'static>,
    /// Where this node is reached.
    pub address: String,
    /// What it may do.
    pub role: NodeRole,
    /// Devices that it has.
    pub devices: u32,
    /// The operator's first token; on the node that founded the cluster, the first time.
    pub operator: Option<Bearer>,
    /// What to type on the next machine; on the node that founded the cluster.
    pub join_line: Option<String>,
}

/// How far a node that is to go on alone has come, and without whom it goes on.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Recovery {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node that goes on.
    pub node: NodeId,
    /// Term of the last entry in its log.
    pub last_term: u64,
    /// Index of the last entry in its log.
    pub last_index: u64,
    /// The last entry that it knows to be committed.
    pub committed_index: u64,
    /// Voters that it goes on without.
    pub without: Vec<NodeId>,
    /// Whether it was done.
    pub done: bool,
}

/// Called once the node serves.
pub type Ready<'a> = &'a mut dyn FnMut(&Serving) -> Result<(), CliError>;

/// Runs nodes, and the programs that come with them. Each call returns when the node has stopped.
pub trait Daemon {
    /// Founds a cluster in the configured data folder, and runs its first node.
    ///
    /// # Errors
    /// When it cannot be founded, or the node fails.
    fn init(&self, config: Config, ready: Ready<'_>) -> Result<(), DaemonError>;

    /// Joins the cluster behind `address`, and runs the node.
    ///
    /// # Errors
    /// When it is not admitted, or the node fails.
    fn join(&self, config: Config, address: &str, token: JoinToken, ready: Ready<'_>) -> Result<(), DaemonError>;

    /// Runs the node of the configured data folder.
    ///
    /// # Errors
    /// When there is none, or it fails.
    fn serve(&self, config: Config, ready: Ready<'_>) -> Result<(), DaemonError>;

    /// Founds a cluster from a backup in the configured data folder, and runs its first node.
    ///
    /// # Errors
    /// When the backup cannot be used, the cluster cannot be founded, or the node fails.
    fn restore(&self, config: Config, backup: Backup, adopt: bool, ready: Ready<'_>) -> Result<(), DaemonError>;

    /// Makes the node of the configured data folder the only voter of its cluster; with `dry_run` only tells about it.
    ///
    /// # Errors
    /// When the folder holds no voter, or cannot be read or written.
    fn recover(&self, config: Config, dry_run: bool) -> Result<Recovery, DaemonError>;

    /// Runs the demo; gives its exit code.
    ///
    /// # Errors
    /// When its command line is wrong, or asks for help.
    fn demo(&self, arguments: &[OsString], json: bool) -> Result<u8, CliError>;

    /// Measures; gives its exit code.
    ///
    /// # Errors
    /// When its command line is wrong, or asks for help.
    fn bench(&self, arguments: &[OsString], json: bool) -> Result<u8, CliError>;
}

/// Becomes `holdfast-chaos`: the one beside this program, else the one in the path. Returns only when it cannot.
pub fn become_chaos(arguments: &[OsString], json: bool) -> CliError {
    const PROGRAM: &str = "holdfast-chaos";
    let beside = std::env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| PROGRAM.into());
    let mut command = Command::new(program);
    command.args(arguments);
    if json {
        command.arg("--json");
    }
    CliError::Absent {
        program: PROGRAM,
        source: command.exec(),
    }
}
