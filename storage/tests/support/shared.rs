//! What several storage tests share: the runtime, openraft's suite, a disk whose syncs wait for the test.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used)]

pub(crate) mod gate;
mod machine;

use std::path::Path;
use std::sync::Arc;

use holdfast_storage::disk::memory::MemoryDisk;
use holdfast_storage::raft_log::{Opened, Options, RaftLog};
use holdfast_storage::types::{Entry, Payload, Types};
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};

use machine::TestMachine;

/// tokio, as in production.
#[allow(deprecated, reason = "the crate that it moved to is no dependency of ours")]
pub(crate) type Runtime = openraft::TokioRuntime;

/// The bytes of an entry's proposal.
pub(crate) fn unscripted(entry: &Entry) -> &[u8] {
    match &entry.payload {
        Payload::Normal(proposal) => &proposal.0,
        _ => &[],
    }
}

struct Builder;

impl StoreBuilder<Types<Runtime>, RaftLog<Runtime>, TestMachine> for Builder {
    async fn build(&self) -> Result<((), RaftLog<Runtime>, TestMachine), StorageError<Types<Runtime>>> {
        let options = Options {
            segment_bytes: 4096,
            tail_bytes_max: 500,
            read_bytes_max: 500,
        };
        let opened = Opened::open(Arc::new(MemoryDisk::new(1)), Path::new("/raft"), options).unwrap();
        let (log, _thread) = opened.start_thread(None).unwrap();
        Ok(((), log, TestMachine::default()))
    }
}

/// Runs openraft's storage suite.
pub(crate) async fn suite() {
    Suite::test_all(Builder).await.unwrap();
}
