//! The node's disk: what the parts take on it, and room held back for the day when it is full.
//!
//! A journal that finds no room for its next segment stops its node. The next start needs room too: for a segment, for
//! the snapshot that lets old entries go. So a file of that size lies in the data folder from the first start, and is
//! given up by a start that finds the disk full. The rule: the reserve is made only where there is plenty.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use holdfast_storage::event_log::EventLog;
use holdfast_storage::raft_log::RaftLog;
use holdfast_storage::snapshot::SnapshotStore;
use openraft_rt_tokio::TokioRuntime;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::api::seam::Footprint;
use crate::wire::cluster::Disk;

/// Two segments of either log, and a snapshot.
const RESERVE_BYTES: u64 = 192 << 20;
/// The reserve is made while at least so much more is free.
const PLENTY_BYTES: u64 = 4 * RESERVE_BYTES;

fn reserve(data: &Path) -> PathBuf {
    data.join("reserve")
}

fn free_bytes(data: &Path) -> io::Result<u64> {
    let found = statvfs(data)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Gives the reserve up when the disk is full; called before anything is opened.
pub(super) fn make_room(data: &Path) {
    let reserve = reserve(data);
    match free_bytes(data) {
        Ok(free) if free < RESERVE_BYTES && reserve.exists() => {
            let given = fs::remove_file(&reserve);
            tracing::warn!(
                free,
                ?given,
                "the disk is full: the reserve was given up so that this node can start; free space on this disk soon"
            );
        }
        Ok(free) if free < RESERVE_BYTES => {
            tracing::warn!(
                free,
                "the disk is nearly full and there is no reserve any more; free space on this disk now"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "it is not known how much of the disk is free"),
    }
}

/// Makes the reserve where it is missing and there is plenty of room.
pub(super) fn hold_reserve(data: &Path) {
    let reserve = reserve(data);
    if reserve.exists() || !free_bytes(data).is_ok_and(|free| free > PLENTY_BYTES) {
        return;
    }
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&reserve)
        .and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?));
    if let Err(error) = made {
        tracing::debug!(%error, "no reserve is held on this disk");
        // A part of one would only be in the way.
        let _ = fs::remove_file(&reserve);
    }
}

/// Measures the parts of this node's data folder.
pub(super) struct DiskHere {
    pub(super) data: PathBuf,
    pub(super) log: RaftLog<TokioRuntime>,
    pub(super) events: EventLog,
    pub(super) snapshots: SnapshotStore,
}

impl Footprint for DiskHere {
    fn measure(&self) -> Disk {
        Disk {
            raft_log_bytes: self.log.disk_bytes(),
            event_log_bytes: self.events.disk_bytes(),
            snapshot_bytes: self.snapshots.disk_bytes().unwrap_or(0),
            index_bytes: folder_bytes(&self.data.join("index")),
            reserve_bytes: fs::metadata(reserve(&self.data)).map_or(0, |found| found.len()),
            free_bytes: free_bytes(&self.data).unwrap_or(0),
        }
    }
}

fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => folder_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_reserve_is_made_once_and_counts_as_taken() {
        let data = tempfile::tempdir().unwrap();
        if !free_bytes(data.path()).is_ok_and(|free| free > 2 * PLENTY_BYTES) {
            eprintln!("skipped: this disk has no room for a reserve");
            return;
        }
        hold_reserve(data.path());
        let made = fs::metadata(reserve(data.path()));
        if let Ok(made) = made {
            assert_eq!(made.len(), RESERVE_BYTES);
        }
        hold_reserve(data.path());
        make_room(data.path());
        assert_eq!(folder_bytes(data.path()) % RESERVE_BYTES, 0);
    }
}
