//! What several storage tests share: the runtime, replicas on a disk in memory, first commands, a gated disk.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used)]

pub(crate) mod commands;
pub(crate) mod gate;
pub(crate) mod single;

use std::path::Path;
use std::sync::Arc;

use holdfast_storage::adapter::{Adapter, Folders, OpenError, Opening};
use holdfast_storage::disk::Disk;
use holdfast_storage::event_log;
use holdfast_storage::raft_log;
use holdfast_storage::types::{Entry, Payload};

/// tokio, as in production.
pub(crate) type Runtime = openraft_rt_tokio::TokioRuntime;

/// Small segments and almost no memory, so that every path is taken.
pub(crate) const RAFT_LOG: raft_log::Options = raft_log::Options {
    segment_bytes: 4096,
    tail_bytes_max: 600,
    read_bytes_max: 1000,
};

/// As [`RAFT_LOG`].
pub(crate) const EVENT_LOG: event_log::Options = event_log::Options {
    segment_bytes: 4096,
    recent_max: 20,
};

/// The bytes of an entry's proposal.
pub(crate) fn proposal(entry: &Entry) -> &[u8] {
    match &entry.payload {
        Payload::Normal(proposal) => &proposal.0,
        _ => &[],
    }
}

/// Opens an adapter on a disk.
pub(crate) fn try_open_adapter(disk: impl Disk) -> Result<(Adapter<Runtime>, Opening), OpenError> {
    let disk: Arc<dyn Disk> = Arc::new(disk);
    Adapter::open(&disk, &Folders::in_data(Path::new("/data")), EVENT_LOG)
}

/// Opens an adapter on a sound disk.
pub(crate) fn open_adapter(disk: impl Disk) -> (Adapter<Runtime>, Opening) {
    try_open_adapter(disk).unwrap()
}
