//! What runs in a lease.

use crate::id::{Digest, Name};

/// The command line and environment of a lease's processes, the same for each member but for its rank.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Workload {
    /// Program and arguments; the program is looked up in the node's `PATH`.
    pub command: Vec<String>,
    /// Extra environment, in order.
    pub environment: Vec<(String, String)>,
    /// Working folder on the node; the lease's own folder when absent.
    pub folder: Option<String>,
    /// Catalog image; `None` runs on the node's own file system.
    pub image: Option<Name>,
    /// The work saves its state in `HOLDFAST_CHECKPOINT_DIR` and resumes from it.
    pub checkpoints: bool,
}

/// A saved state of a workload that a store has proven to hold.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Checkpoint {
    /// Step the work had reached.
    pub step: u64,
    /// Rank that saved it.
    pub rank: u32,
    /// BLAKE3 digest of the manifest, which names every file with its size and digest.
    pub manifest: Digest,
    /// Size of all files together.
    pub bytes: u64,
    /// Nodes whose stores hold every byte of it, fsynced and verified.
    pub holders: Vec<crate::id::NodeId>,
}
