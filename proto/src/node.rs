//! Nodes: identity, addresses, roles, what they can hold, and the states of a node that can or cannot be heard.

use std::fmt;

use crate::device::Device;
use crate::id::{BootId, Digest, Name, NodeId, ZoneId};

/// What a node does for the cluster.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum NodeRole {
    /// Has devices; may become a voter.
    Replica,
    /// Has devices; never votes.
    Worker,
    /// Votes, has no devices.
    Witness,
}

/// Where a node is reached. One host, three sockets: bulk and renewals never share one with Raft.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct NodeAddress {
    /// Host name or IP address, never an unspecified one such as `0.0.0.0`.
    pub host: String,
    /// TCP port of HTTPS, and UDP port of Raft, control, snapshots and events.
    pub main_port: u16,
    /// UDP port of node-lease renewals.
    pub lease_port: u16,
    /// UDP port of bulk transfers.
    pub bulk_port: u16,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(out, "[{}]:{}", self.host, self.main_port),
            false => write!(out, "{}:{}", self.host, self.main_port),
        }
    }
}

/// A node as it joins.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct NodeSpec {
    /// Identity, born with the data folder.
    pub node: NodeId,
    /// Label for people, unique among the nodes present.
    pub label: Name,
    /// Failure domain.
    pub zone: ZoneId,
    /// What it does for the cluster.
    pub role: NodeRole,
    /// Where it is reached.
    pub address: NodeAddress,
    /// BLAKE3 digest of the public key, whose first 8 bytes are the id.
    pub key: Digest,
}

/// How well a node can keep tenants' work apart and stopped.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationLevel {
    /// PID namespace and a writable cgroup with a freezer.
    Cgroup,
    /// PID namespace; freezing by SIGSTOP to every process in it.
    PidNamespace,
    /// Neither: a subreaper and a scan of descendants.
    Descendants,
}

/// What a node can hold, as one incarnation measured it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Inventory {
    /// Devices, ordered by id.
    pub devices: Vec<Device>,
    /// CPU for tenants, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory for tenants, in MiB.
    pub memory_mib: u32,
    /// How work is kept apart here.
    pub isolation: IsolationLevel,
    /// Version and build features of the daemon, for example `0.1.0+rules.2.simulate`.
    pub version: String,
    /// Devices are simulated: they run real processes but no kernels.
    pub simulated: bool,
}

impl Inventory {
    /// Returns the highest level of the machine's rules that the node's build knows, as its version says: `+rules.2`.
    #[must_use]
    pub fn rules(&self) -> u32 {
        let said = self
            .version
            .split(['+', '.'])
            .skip_while(|word| *word != "rules")
            .nth(1);
        said.and_then(|level| level.parse().ok()).unwrap_or(1)
    }
}

/// Proof of one daemon start on one boot.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct BootProof {
    /// The kernel's boot id.
    pub boot: BootId,
    /// Boot clock at registration, in milliseconds.
    pub boot_ms: u64,
}

/// What the cluster knows of a node's lease. Unheard and failed are two states.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum NodeStatus {
    /// Admitted; no incarnation has registered yet.
    Joined,
    /// Its renewals are answered.
    Ready,
    /// Unheard for a while; its work may run until the node lease ends.
    Unreachable,
    /// Its lease has surely ended: its work is stopped or frozen, and may be placed elsewhere.
    Lost,
    /// Taken out by an operator; its certificate is refused.
    Removed,
}
