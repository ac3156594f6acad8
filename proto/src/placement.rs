//! Placements: which devices of which nodes a lease has, and how the starts and ends of its members are told.

use crate::id::{DeviceId, NodeId};

/// The devices of one node granted to one lease.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Allocation {
    /// The node.
    pub node: NodeId,
    /// Place in the gang, from 0.
    pub rank: u32,
    /// Devices, ordered.
    pub devices: Vec<DeviceId>,
    /// CPU granted, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory granted, in MiB.
    pub memory_mib: u32,
}

/// How a member of an attempt ended. Each is proof that nothing of it runs any more.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// The main process ended by itself.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// The memory limit ended it; from the cgroup's counter, not from the exit code.
    OutOfMemory,
    /// It could not be started; the text says which step failed, on what.
    LaunchFailed(String),
    /// It was prepared and accepted, but never started here and never will be.
    NotStarted,
    /// The node stopped it because the log said so (release, expiry, newer epoch, a peer's end).
    Stopped,
    /// The machine rebooted or the processes vanished; nothing of it is left.
    Vanished,
}

impl Exit {
    /// Reports whether the member did all its work.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// Reports whether a process must have run to end like this.
    #[must_use]
    pub fn needs_a_start(&self) -> bool {
        matches!(self, Self::Code(_) | Self::Signal(_) | Self::OutOfMemory)
    }
}
