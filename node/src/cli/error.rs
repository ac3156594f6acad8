//! Why a command failed, and the exit code of each kind of failure.

use std::error::Error;
use std::io;

use holdfast_storage::backup::BackupError;
use serde_json::{Value, json};

use super::daemon::DaemonError;
use crate::client::ClientError;
use crate::client::credentials::CredentialsError;
use crate::config::ConfigError;

/// Exit codes, from the range of `sysexits.h` and with its numbers where one fits: `holdfast lease` passes on the exit
/// code of the work, and work seldom ends with one of these.
pub mod code {
    /// Done.
    pub const DONE: u8 = 0;
    /// The rules or the cluster said no.
    pub const REFUSED: u8 = 65;
    /// The lease ended before its work did.
    pub const LEASE_ENDED: u8 = 66;
    /// The command line is wrong.
    pub const USAGE: u8 = 64;
    /// No node answers.
    pub const UNAVAILABLE: u8 = 69;
    /// The node failed.
    pub const FAILED: u8 = 70;
    /// Reading or writing here failed.
    pub const IO: u8 = 74;
    /// The outcome is not known.
    pub const UNKNOWN: u8 = 75;
    /// The answer is not understood.
    pub const PROTOCOL: u8 = 76;
    /// The token does not allow this.
    pub const NO_RIGHTS: u8 = 77;
    /// The configuration or the credentials cannot be used.
    pub const CONFIG: u8 = 78;
    /// Interrupted.
    pub const INTERRUPTED: u8 = 130;
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// Help was asked for: no failure, but the end of the command.
    #[error("{0}")]
    Help(String),
    /// The cluster cannot be asked, or said no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Where the cluster is, or as whom to ask, is not known.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Reading or writing here failed.
    #[error("cannot read or write here")]
    Io(#[source] io::Error),
    /// No node has this label or id.
    #[error("there is no node `{0}`; `holdfast nodes` lists them")]
    NodeUnknown(String),
    /// A label names no lease, or several.
    #[error("{0}")]
    LeaseUnknown(String),
    /// A backup cannot be restored from.
    #[error("{file} cannot be restored from")]
    Backup {
        /// The file.
        file: String,
        /// What is wrong with it.
        #[source]
        source: BackupError,
    },
    /// The person said no.
    #[error("not leased")]
    Declined,
    /// A signal came: the person pressed Ctrl-C, or the terminal is gone.
    #[error("{told}")]
    Interrupted {
        /// What goes on, and what to type next.
        told: String,
        /// The exit code, 128 and the signal's number.
        exit_code: u8,
    },
    /// Whoever read the output is gone.
    #[error("nobody reads the output any more; {told}")]
    Unread {
        /// What goes on, and what to type next.
        told: String,
        /// What the write came to.
        #[source]
        source: io::Error,
    },
    /// A program that belongs to this one is not here.
    #[error(
        "cannot run {program}; build it with `cargo build --release --bin {program}`, or put it beside this program or into PATH"
    )]
    Absent {
        /// The program.
        program: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl CliError {
    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => code::USAGE,
            Self::Help(_) => code::DONE,
            Self::Client(ClientError::Refused { problem }) if matches!(problem.status, 401 | 403) => code::NO_RIGHTS,
            Self::Client(ClientError::Refused { problem }) if problem.status == 503 => code::UNAVAILABLE,
            Self::Client(ClientError::Refused { .. }) => code::REFUSED,
            Self::NodeUnknown(_) | Self::LeaseUnknown(_) | Self::Declined | Self::Backup { .. } => code::REFUSED,
            Self::Client(ClientError::Unreachable { .. }) => code::UNAVAILABLE,
            Self::Client(ClientError::Unknown { .. }) => code::UNKNOWN,
            Self::Client(ClientError::Garbled { .. }) => code::PROTOCOL,
            Self::Client(ClientError::Setup(_)) => code::FAILED,
            Self::Credentials(_) | Self::Config(_) => code::CONFIG,
            Self::Daemon(error) => error.exit_code,
            Self::Io(_) | Self::Unread { .. } | Self::Absent { .. } => code::IO,
            Self::Interrupted { exit_code, .. } => *exit_code,
        }
    }

    /// The stable word of the failure, for programs.
    pub fn word(&self) -> String {
        match self {
            Self::Usage(_) => "usage",
            Self::Help(_) => "help",
            Self::Client(ClientError::Refused { problem }) => &problem.code,
            Self::Client(ClientError::Unreachable { .. }) => "unreachable",
            Self::Client(ClientError::Unknown { .. }) => "outcome-unknown",
            Self::Client(ClientError::Garbled { .. }) => "not-understood",
            Self::Client(ClientError::Setup(_)) => "setup",
            Self::Credentials(_) => "credentials",
            Self::Config(_) => "configuration",
            Self::Daemon(_) => "node-failed",
            Self::Io(_) => "io",
            Self::NodeUnknown(_) => "node-unknown",
            Self::LeaseUnknown(_) => "lease-unknown",
            Self::Backup { .. } => "backup",
            Self::Declined => "declined",
            Self::Interrupted { .. } => "interrupted",
            Self::Unread { .. } => "output-unread",
            Self::Absent { .. } => "program-absent",
        }
        .to_owned()
    }

    /// The failure with its causes, for a person.
    pub fn told(&self) -> String {
        chain(self)
    }

    /// The failure, for a program.
    pub fn json(&self) -> Value {
        let mut error = json!({ "code": self.word(), "message": self.told(), "exit_code": self.exit_code() });
        match self {
            Self::Client(ClientError::Unknown { request, .. }) => error["request"] = json!(request),
            Self::Client(ClientError::Refused { problem }) => error["problem"] = json!(problem),
            _ => {}
        }
        json!({ "error": error })
    }
}

/// An error and its causes, from the outside in.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut said = Vec::new();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !said.last().unwrap_or(&text).ends_with(&words) {
            said.push(words);
        }
        cause = inner.source();
    }
    let causes = said.join(": ");
    match (causes.is_empty(), text.ends_with('?')) {
        (true, _) => {}
        (false, true) => text.push_str(&format!(" ({causes})")),
        (false, false) => text.push_str(&format!(": {causes}")),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Step(&'static str, #[source] Option<Box<Step>>);

    #[test]
    fn causes_follow_each_other_and_no_colon_follows_a_question() {
        let of = |texts: &[&'static str]| {
            let step = texts
                .iter()
                .rev()
                .fold(None, |inner, text| Some(Box::new(Step(text, inner))));
            step.map(|step| chain(&step)).unwrap_or_default()
        };
        assert_eq!(of(&["cannot read", "no such file"]), "cannot read: no such file");
        assert_eq!(
            of(&["is one running?", "refused", "os error"]),
            "is one running? (refused: os error)"
        );
        assert_eq!(of(&["it failed: refused", "refused"]), "it failed: refused");
        assert_eq!(of(&["alone?"]), "alone?");
    }
}
