//! The node's configuration: one TOML file, every key with a default.
//!
//! Read once at the start by `init`, `join` and `serve`; flags and environment override it. The one rule: a key that is not known is
//! refused, so that a misspelt one cannot be silently ignored.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::consensus::config::Profile;

use crate::api::Limits;

/// Port of HTTPS (TCP) and of Raft, control, snapshots and events (UDP).
pub const MAIN_PORT: u16 = 7_400;
/// UDP port of node-lease renewals.
pub const LEASE_PORT: u16 = 7_401;
/// UDP port of bulk transfers.
pub const BULK_PORT: u16 = 7_402;

/// Everything that can be configured.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Folder of everything that the node remembers.
    pub data: PathBuf,
    /// The node itself.
    pub node: NodeConfig,
    /// Devices.
    pub devices: DeviceConfig,
    /// The HTTP interface.
    pub api: ApiConfig,
    /// The event log.
    pub events: EventConfig,
    /// What the daemon writes about itself.
    pub log: LogConfig,
    /// Timing between nodes.
    pub timing: Timing,
}

/// The node itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Label for people; the host's name when absent.
    pub label: Option<String>,
    /// Failure domain.
    pub zone: String,
    /// Address to listen on.
    pub bind: String,
    /// Host name or address under which others reach this node; found out when absent.
    pub host: Option<String>,
    /// Port of HTTPS and Raft.
    pub port: u16,
    /// Port of node-lease renewals.
    pub lease_port: u16,
    /// Port of bulk transfers.
    pub bulk_port: u16,
}

/// Devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    /// Simulate devices, such as `8xh100`; real ones are looked for when absent.
    pub simulate: Option<String>,
    /// CPU for tenants, in thousandths of a core; all of it when absent.
    pub cpu_milli: Option<u32>,
    /// Memory for tenants, in MiB; all but a reserve when absent.
    pub memory_mib: Option<u32>,
}

/// The HTTP interface.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// Requests served at once.
    pub in_flight_max: usize,
    /// Event and log streams open at once.
    pub streams_max: usize,
    /// Time for a client to send its request's head, in milliseconds.
    pub header_timeout_ms: u64,
    /// Time for a request to be answered, in milliseconds.
    pub request_timeout_ms: u64,
}

/// The event log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventConfig {
    /// Days that events are kept.
    pub retention_days: u32,
    /// Most bytes of events that are kept, in MiB.
    pub retention_mib: u64,
}

/// What the daemon writes about itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Filter, as `RUST_LOG` takes it.
    pub filter: String,
    /// Write JSON instead of text.
    pub json: bool,
}

/// Timing between nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// Voters in one metro.
    #[default]
    Metro,
    /// Voters far apart.
    Wan,
}

impl Timing {
    /// The same, as consensus calls it.
    #[must_use]
    pub fn profile(self) -> Profile {
        match self {
            Self::Metro => Profile::Metro,
            Self::Wan => Profile::Wan,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: PathBuf::from("/var/lib/holdfast"),
            node: NodeConfig::default(),
            devices: DeviceConfig::default(),
            api: ApiConfig::default(),
            events: EventConfig::default(),
            log: LogConfig::default(),
            timing: Timing::default(),
        }
    }
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            label: None,
            zone: "a".to_owned(),
            bind: "0.0.0.0".to_owned(),
            host: None,
            port: MAIN_PORT,
            lease_port: LEASE_PORT,
            bulk_port: BULK_PORT,
        }
    }
}

impl Default for ApiConfig {
    fn default() -> Self {
        let limits = Limits::default();
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            in_flight_max: limits.in_flight_max,
            streams_max: limits.streams_max,
            header_timeout_ms: ms(limits.header_timeout),
            request_timeout_ms: ms(limits.request_timeout),
        }
    }
}

impl Default for EventConfig {
    fn default() -> Self {
        Self {
            retention_days: 30,
            retention_mib: 10 * 1_024,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            // At `warn` a node that is down would be told of several times a second.
            filter: "info,openraft=error".to_owned(),
            json: false,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is not a configuration.
    #[error("the configuration {path:?} is wrong")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and how.
        #[source]
        source: toml::de::Error,
    },
}

impl Config {
    /// Reads the file; `None` gives the defaults.
    ///
    /// # Errors
    /// When the file cannot be read, or holds what is not known.
    pub fn read(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source,
        })
    }

    /// Limits of the HTTP interface.
    pub fn limits(&self) -> Limits {
        Limits {
            in_flight_max: self.api.in_flight_max,
            streams_max: self.api.streams_max,
            header_timeout: Duration::from_millis(self.api.header_timeout_ms),
            request_timeout: Duration::from_millis(self.api.request_timeout_ms),
            ..Limits::default()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_empty_file_is_every_default() {
        assert_eq!(toml::from_str::<Config>("").unwrap(), Config::default());
    }

    #[test]
    fn the_sample_that_is_shipped_names_every_key_with_its_default() {
        let sample = include_str!("../../deploy/holdfast.toml");
        assert_eq!(toml::from_str::<Config>(sample).unwrap(), Config::default());
        // Keys without a default stand there behind a `#`.
        let all: String = sample
            .lines()
            .map(|line| {
                line.strip_prefix("# ")
                    .filter(|key| key.contains(" = "))
                    .unwrap_or(line)
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        let config: Config = toml::from_str(&all).unwrap();
        assert!(config.node.label.is_some() && config.node.host.is_some());
        assert!(config.devices.simulate.is_some() && config.devices.memory_mib.is_some());
    }

    #[test]
    fn a_key_that_is_not_known_is_refused_by_its_name() {
        for text in [
            "datta = \"/x\"",
            "[node]\nzome = \"b\"",
            "[apo]",
            "[log]\nfilter = 3",
            "timing = \"fast\"",
        ] {
            assert!(toml::from_str::<Config>(text).is_err(), "{text}");
        }
        let error = toml::from_str::<Config>("[node]\nzome = \"b\"")
            .unwrap_err()
            .to_string();
        assert!(error.contains("zome") && error.contains("zone"), "{error}");
    }

    #[test]
    fn what_is_set_is_taken() {
        let config: Config =
            toml::from_str("data = \"/d\"\ntiming = \"wan\"\n[node]\nport = 1\n[api]\nstreams_max = 2").unwrap();
        assert_eq!(
            (config.data.as_path(), config.timing, config.node.port),
            (Path::new("/d"), Timing::Wan, 1)
        );
        assert_eq!(config.limits().streams_max, 2);
    }
}
