//! What one supervisor is asked to run: the spec file of one attempt.
//!
//! The daemon writes it into the attempt's folder before it launches the supervisor; nobody changes it afterwards.
//! Deadlines move through the control socket. The rule: a spec names exactly one attempt, and a folder is claimed by
//! one supervisor only, so the same attempt is never started twice here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What happens to the work when the node lease has run out (DESIGN section 5, isolation policies).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadlinePolicy {
    /// Stop it from executing, keep its memory. The default for work with state.
    Freeze,
    /// Kill it at the deadline, without grace: a grace would run past the moment another node may start it.
    Stop,
    /// Let it run on. For stateless instances that may exist twice.
    Keep,
}

/// Which cgroup interface to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupChoice {
    /// The version that carries the controllers on this machine.
    #[default]
    Auto,
    /// Only version 1 hierarchies.
    V1,
    /// Only the unified hierarchy.
    V2,
    /// No cgroup: stop signals and descendant scans do the work.
    Off,
}

/// Whether the work gets its own PID namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamespaceChoice {
    /// Directly when permitted, else inside a user namespace, else none.
    #[default]
    Auto,
    /// None: the supervisor is a subreaper and scans its descendants.
    Off,
}

/// Resource limits of the work; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimits {
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU in thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    pub pids_max: Option<u64>,
}

/// How much of the work's output is kept. Disk use is bounded by `segment_bytes` × `segments`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputLimits {
    /// A segment file is closed when the next write would pass this size.
    pub segment_bytes: u64,
    /// Files kept, the open one included. At least 1.
    pub segments: u32,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
            segments: 4,
        }
    }
}

/// One attempt of one lease on this node, as the supervisor needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Version of this file's form.
    pub version: u32,
    /// Names the attempt, for example `1-42-e3-a1`. Also the name of its cgroup: letters, digits, `-`, `_` and `.`.
    pub run: String,
    /// The cgroup under which this node keeps its leases, one path component.
    pub group_root: String,
    /// The program and its arguments; never empty.
    pub argv: Vec<String>,
    /// The whole environment of the work. Nothing is inherited from the daemon.
    pub env: BTreeMap<String, String>,
    /// Where the work starts. The attempt's own `work` folder when absent.
    pub cwd: Option<PathBuf>,
    /// What happens at the deadline.
    pub policy: DeadlinePolicy,
    /// The node lease's deadline at the time of writing, on the boot clock.
    pub deadline_boot_ms: u64,
    /// When the lease itself ends (the lesser of expiry and cap), on the boot clock. Binds under every policy.
    pub run_until_boot_ms: Option<u64>,
    /// A freeze that lasts longer ends in a kill.
    pub freeze_max_ms: u64,
    /// A freeze that has not taken hold after this time becomes a kill (STOP_BOUND).
    pub freeze_bound_ms: u64,
    /// Time between SIGTERM and SIGKILL when the lease's time is over.
    pub grace_ms: u64,
    /// How much output is kept.
    pub output: OutputLimits,
    /// Resource limits.
    pub limits: GroupLimits,
    /// Which cgroup interface to use.
    pub group: GroupChoice,
    /// Whether to use a PID namespace.
    pub namespace: NamespaceChoice,
}

/// Why a spec is refused before anything is started.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A supervisor of another version wrote or reads the file.
    #[error("spec has version {0}, this supervisor reads version {SPEC_VERSION}")]
    Version(u32),
    /// The name would leave the cgroup root or the executor's folder.
    #[error("name {0:?} is empty, too long or holds characters other than letters, digits, '-', '_' and '.'")]
    Name(String),
    /// There is nothing to run.
    #[error("the command is empty")]
    EmptyCommand,
    /// The kernel would cut an argument at a NUL byte.
    #[error("{0} holds a NUL byte")]
    Nul(&'static str),
    /// An environment variable's name is empty or holds `=`.
    #[error("environment variable name {0:?} is not valid")]
    EnvName(String),
}

/// The form of the spec that this build writes and reads.
pub const SPEC_VERSION: u32 = 1;

/// Longest run or root name, well below NAME_MAX and leaving room for suffixes.
const NAME_MAX: usize = 120;

impl Spec {
    /// A spec with this crate's defaults: freeze, 10 minutes of freeze, STOP_BOUND 250 ms, 30 s of grace.
    pub fn new(
        run: impl Into<String>,
        group_root: impl Into<String>,
        argv: Vec<String>,
        deadline_boot_ms: u64,
    ) -> Self {
        Self {
            version: SPEC_VERSION,
            run: run.into(),
            group_root: group_root.into(),
            argv,
            env: BTreeMap::new(),
            cwd: None,
            policy: DeadlinePolicy::Freeze,
            deadline_boot_ms,
            run_until_boot_ms: None,
            freeze_max_ms: 600_000,
            freeze_bound_ms: 250,
            grace_ms: 30_000,
            output: OutputLimits::default(),
            limits: GroupLimits::default(),
            group: GroupChoice::Auto,
            namespace: NamespaceChoice::Auto,
        }
    }

    /// Refuses what could not be started, or would be started as something else.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.version != SPEC_VERSION {
            return Err(SpecError::Version(self.version));
        }
        for name in [&self.run, &self.group_root] {
            if !is_plain_name(name) {
                return Err(SpecError::Name(name.clone()));
            }
        }
        if self.argv.first().is_none_or(String::is_empty) {
            return Err(SpecError::EmptyCommand);
        }
        if self.argv.iter().any(|argument| argument.contains('\0')) {
            return Err(SpecError::Nul("the command"));
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains('=') || name.contains('\0') {
                return Err(SpecError::EnvName(name.clone()));
            }
            if value.contains('\0') {
                return Err(SpecError::Nul("the environment"));
            }
        }
        Ok(())
    }
}

/// Whether a name is one harmless path component.
fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_and_real_commands_pass() {
        let good = Spec::new("1-42-e3-a1", "holdfast-7f", vec!["true".into()], 1);
        assert_eq!(good.validate(), Ok(()));
        let check = |change: fn(&mut Spec), expected: SpecError| {
            let mut spec = good.clone();
            change(&mut spec);
            assert_eq!(spec.validate(), Err(expected));
        };
        check(|spec| spec.version = 2, SpecError::Version(2));
        check(|spec| spec.run = "../x".into(), SpecError::Name("../x".into()));
        check(|spec| spec.run = String::new(), SpecError::Name(String::new()));
        check(|spec| spec.group_root = "..".into(), SpecError::Name("..".into()));
        check(|spec| spec.argv.clear(), SpecError::EmptyCommand);
        check(|spec| spec.argv = vec![String::new()], SpecError::EmptyCommand);
        check(|spec| spec.argv.push("a\0b".into()), SpecError::Nul("the command"));
        check(
            |spec| drop(spec.env.insert("A=B".into(), "1".into())),
            SpecError::EnvName("A=B".into()),
        );
        check(
            |spec| drop(spec.env.insert("A".into(), "\0".into())),
            SpecError::Nul("the environment"),
        );
    }

    #[test]
    fn a_spec_survives_its_file_form_and_refuses_unknown_keys() {
        let spec = Spec::new("1-42-e3-a1", "holdfast-7f", vec!["true".into()], 1);
        let text = serde_json::to_string(&spec).expect("a spec is plain data");
        assert_eq!(
            serde_json::from_str::<Spec>(&text).expect("own output is read back"),
            spec
        );
        assert!(serde_json::from_str::<Spec>(&text.replacen("version", "versiom", 1)).is_err());
    }
}
