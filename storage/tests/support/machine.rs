//! A state machine that remembers only what openraft's suite asks of one.

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, TryStreamExt};
use holdfast_storage::Reply;
use holdfast_storage::types::{LogId, Payload, SnapshotMeta, StoredMembership, Types};
use openraft::OptionalSend;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};

use super::Runtime;

#[derive(Clone, Default)]
pub(crate) struct TestMachine {
    state: (Option<LogId>, StoredMembership),
    snapshot: Arc<Mutex<Option<SnapshotMeta>>>,
}

type TestSnapshot = Snapshot<holdfast_storage::types::LeaderId, u64, holdfast_storage::types::Peer, ()>;

impl RaftSnapshotBuilder<Types<Runtime>> for TestMachine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<TestSnapshot> {
        let meta = SnapshotMeta {
            last_log_id: self.state.0,
            last_membership: self.state.1.clone(),
        };
        *self.snapshot.lock().unwrap() = Some(meta.clone());
        Ok(Snapshot { meta, snapshot: () })
    }
}

impl RaftStateMachine<Types<Runtime>> for TestMachine {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok(self.state.clone())
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types<Runtime>>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            self.state.0 = Some(entry.log_id);
            if let Payload::Membership(members) = entry.payload {
                self.state.1 = StoredMembership::new(Some(entry.log_id), members);
            }
            if let Some(responder) = responder {
                responder.send(Reply {
                    index: entry.log_id.index,
                    outcome: Ok(vec![]),
                });
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, (): ()) -> io::Result<()> {
        self.state = (meta.last_log_id, meta.last_membership.clone());
        *self.snapshot.lock().unwrap() = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<TestSnapshot>> {
        let meta = self.snapshot.lock().unwrap().clone();
        Ok(meta.map(|meta| Snapshot { meta, snapshot: () }))
    }
}
