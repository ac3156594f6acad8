//! A cluster that begins with a backup: founded like any other, with a state in its folder instead of none.
//!
//! The state lies there as a snapshot of an entry that its one member is the only voter of, so that the log goes on
//! after the backup's last index: ids that were given are not given again. The rule: nothing of the old cluster's
//! machines or voters comes along, and no key does.

use std::sync::Arc;

use holdfast_proto::id::{ClusterId, NodeId};
use holdfast_proto::node::NodeAddress;
use holdfast_storage::backup::Backup;
use holdfast_storage::disk::RealDisk;
use holdfast_storage::machine::State;
use holdfast_storage::snapshot::{Header, SnapshotError, SnapshotStore};
use holdfast_storage::types::stored::{EntryId, Members, MembersAt};

use super::found::{self, Beginning};
use crate::cli::daemon::DaemonError;
use crate::config::Config;
use crate::env::{Entropy, OsEntropy};
use crate::identity::IdentityError;

/// Founds a cluster that goes on from a backup.
pub(super) fn found(config: &Config, backup: &Backup, adopt: bool) -> Result<Beginning, DaemonError> {
    let mut cluster = backup.header.cluster;
    if !adopt {
        cluster = ClusterId::default();
        OsEntropy.fill(&mut cluster.0);
    }
    let state = backup.state.restored();
    let founded = found::found_as(config, cluster, |folder, me, address| {
        let path = folder.part("snapshots");
        put(&state, &path, me, address).map_err(|error| IdentityError::Prepare {
            path,
            source: Box::new(error),
        })
    });
    founded.map_err(found::FoundError::told)
}

/// Writes the state as the snapshot that the node starts from.
fn put(state: &State, folder: &std::path::Path, me: NodeId, address: &NodeAddress) -> Result<(), SnapshotError> {
    let last = EntryId {
        term: 0,
        node: me.0,
        index: state.applied.index,
    };
    let header = Header {
        last: Some(last),
        members: MembersAt {
            set_by: Some(last),
            members: Members {
                voters: vec![vec![me.0]],
                peers: vec![(me.0, address.to_string())],
            },
        },
        state_hash: state.hash().0,
        body_hash: [0; 32],
        body_bytes: 0,
    };
    let snapshots = SnapshotStore::open(Arc::new(RealDisk), folder)?;
    snapshots.write(header, None, |body| state.encode_into(|frame| body.put(frame)))?;
    Ok(())
}
