//! Connects checkpoints with the log: who may push, where to, and how a saved state is committed.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::id::{Fence, LeaseId, NodeId};
use holdfast_proto::tenant::Principal;
use holdfast_proto::time::Timestamp;
use holdfast_proto::workload::Checkpoint;

use super::{ReadState, view};
use crate::consensus::{Outcome, Propose};
use crate::transfer::receive::{Access, Permission};
use crate::transfer::watch::Commits;

/// A duty of this node as a command: the leader stamps it, and its content makes it safe to repeat.
pub(super) fn by_node(me: NodeId, command: Command) -> Envelope {
    Envelope {
        stamp: Timestamp(0),
        principal: Principal::Node(me),
        project: None,
        origin: me,
        request: None,
        command,
    }
}

/// What the watcher needs of the cluster.
pub(super) struct CheckpointCommits {
    pub(super) me: NodeId,
    pub(super) state: ReadState,
    pub(super) propose: Arc<dyn Propose>,
}

impl Commits for CheckpointCommits {
    fn targets(&self, lease: LeaseId) -> Vec<NodeId> {
        view::stores(&(self.state)(), self.me, lease)
    }

    fn commit(&self, lease: LeaseId, fence: Fence, checkpoint: Checkpoint) -> BoxFuture<'_, Outcome> {
        self.propose.propose(by_node(self.me, Command::CommitCheckpoint { lease, fence, checkpoint }))
    }
}

/// Who may do what with this node's store.
pub(super) struct StoreAccess(pub(super) ReadState);

impl Access for StoreAccess {
    fn may_push(&self, from: NodeId, lease: LeaseId, fence: Fence) -> Permission {
        view::may_push(&(self.0)(), from, lease, fence)
    }

    fn may_read(&self, from: NodeId, lease: LeaseId) -> Permission {
        view::may_read(&(self.0)(), from, lease)
    }
}
