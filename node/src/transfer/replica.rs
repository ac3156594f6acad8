//! What transfers know of the cluster: this node's replica of the state, and the way to propose.
//!
//! One [`Replica`] answers for the receiver (who may push, who may read), for the watcher (where to, and the commit)
//! and for the store (what to keep). The rule kept here: a replica that is behind says so. It refuses for good only
//! what its own state contradicts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::id::{Attempt, Digest, Fence, LeaseId, NodeId};
use holdfast_proto::node::{NodeRole, NodeStatus};
use holdfast_proto::tenant::Principal;
use holdfast_proto::time::Timestamp;
use holdfast_proto::workload::Checkpoint;
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::Lease;

use super::receive::{Access, Permission};
use super::store::{Store, StoreError};
use super::target::{self, Candidate};
use super::watch::Commits;
use crate::consensus::{Outcome, Propose};

/// Committed checkpoints of each member that a store keeps: the newest, and one more in case it turns out damaged.
const KEPT: usize = 2;

/// Gives the state after the last applied entry.
pub type StateView = Arc<dyn Fn() -> Arc<State> + Send + Sync>;

/// This node's knowledge of the cluster.
pub struct Replica {
    own: NodeId,
    state: StateView,
    propose: Arc<dyn Propose>,
}

impl Replica {
    /// The knowledge of node `own`.
    pub fn new(own: NodeId, state: StateView, propose: Arc<dyn Propose>) -> Self {
        Self { own, state, propose }
    }

    /// This node.
    pub fn own(&self) -> NodeId {
        self.own
    }

    /// The state now.
    pub fn state(&self) -> Arc<State> {
        (self.state)()
    }

    /// The stores that keep a token for this lease: those that hold something of it, and the one that its next
    /// checkpoint will go to. Only those that are heard; a silent one cannot be asked, and the log compares as well.
    pub fn gates(&self, lease: LeaseId) -> Vec<NodeId> {
        let state = self.state();
        let checkpoints = state
            .leases
            .get(&lease)
            .map(|lease| lease.checkpoints.as_slice())
            .unwrap_or_default();
        let mut gates: BTreeSet<NodeId> = checkpoints
            .iter()
            .flat_map(|checkpoint| checkpoint.holders.iter().copied())
            .collect();
        gates.extend(targets(&state, self.own, lease).first());
        gates
            .into_iter()
            .filter(|node| *node != self.own && is_ready(&state, *node))
            .collect()
    }

    /// The saved state that this start resumes from. The first attempt of a placement takes what the log gave it; a
    /// later one takes the newest that was committed since, this member's own before that of rank 0, as long as
    /// somebody who holds it can be heard.
    pub fn restore_point(&self, lease: LeaseId, fence: Fence) -> Option<Checkpoint> {
        let state = self.state();
        let lease = state.leases.get(&lease)?;
        let placement = lease
            .placement
            .as_ref()
            .filter(|placement| placement.token == fence.token)?;
        let given = placement.restore.as_ref();
        let rank = placement.member(self.own)?.allocation.rank;
        if fence.attempt <= Attempt(1) {
            return given.map(|checkpoint| self.nearest_first(&state, checkpoint));
        }
        let is_held = |holder: &NodeId| *holder == self.own || is_ready(&state, *holder);
        let held: Vec<&Checkpoint> = lease
            .checkpoints
            .iter()
            .filter(|checkpoint| checkpoint.holders.iter().any(is_held))
            .collect();
        let newest = |rank| {
            held.iter()
                .copied()
                .filter(|checkpoint| checkpoint.rank == rank)
                .max_by_key(|c| c.step)
        };
        newest(rank)
            .or_else(|| newest(0))
            .or(given)
            .map(|checkpoint| self.nearest_first(&state, checkpoint))
    }

    /// The same checkpoint with the holders that can be heard in front: asking a dead one costs seconds of a failover.
    fn nearest_first(&self, state: &State, checkpoint: &Checkpoint) -> Checkpoint {
        let mut checkpoint = checkpoint.clone();
        checkpoint
            .holders
            .sort_by_key(|holder| (*holder != self.own, !is_ready(state, *holder)));
        checkpoint
    }

    /// Removes from the store what no lease will resume from. Blocks on the disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn keep_house(&self, store: &Store) -> Result<(), StoreError> {
        for id in store.leases()? {
            let state = self.state();
            match state.leases.get(&id) {
                None if id.index > state.applied.index => {}
                None => store.forget(id)?,
                Some(lease) if lease.status.is_ended() => store.forget(id)?,
                Some(lease) => {
                    let keep = Keep::of(lease);
                    store.retain(id, |read| keep.wants(read.manifest.step, read.digest))?;
                }
            }
        }
        Ok(())
    }
}

fn is_ready(state: &State, node: NodeId) -> bool {
    state
        .nodes
        .get(&node)
        .is_some_and(|node| node.status == NodeStatus::Ready)
}

/// Which checkpoints of a lease are kept.
struct Keep {
    digests: BTreeSet<Digest>,
    /// Later steps are on their way to being committed.
    newest_step: Option<u64>,
}

impl Keep {
    fn of(lease: &Lease) -> Self {
        let mut by_rank: BTreeMap<u32, Vec<&Checkpoint>> = BTreeMap::new();
        for checkpoint in &lease.checkpoints {
            by_rank.entry(checkpoint.rank).or_default().push(checkpoint);
        }
        let newest = by_rank
            .values()
            .flat_map(|checkpoints| checkpoints.iter().rev().take(KEPT));
        let pinned = lease.placements().filter_map(|placement| placement.restore.as_ref());
        Self {
            digests: newest
                .copied()
                .chain(pinned)
                .map(|checkpoint| checkpoint.manifest)
                .collect(),
            newest_step: lease.checkpoints.iter().map(|checkpoint| checkpoint.step).max(),
        }
    }

    fn wants(&self, step: u64, manifest: Digest) -> bool {
        self.digests.contains(&manifest) || self.newest_step.is_none_or(|newest| step > newest)
    }
}

impl Access for Replica {
    fn may_push(&self, from: NodeId, lease: LeaseId, fence: Fence) -> Permission {
        let state = self.state();
        if lease.index > state.applied.index || fence.token.index > state.applied.index {
            return Permission::NotYet;
        }
        let placement = state.leases.get(&lease).and_then(|lease| lease.placement.as_ref());
        let Some(placement) = placement else {
            return Permission::Denied;
        };
        let newest = Fence {
            token: placement.token,
            epoch: placement.epoch,
            attempt: placement.attempt,
        };
        match placement.member(from) {
            _ if fence < newest => Permission::Stale(newest),
            Some(_) if fence.token == placement.token && fence.epoch == placement.epoch => Permission::Granted,
            _ => Permission::Denied,
        }
    }

    fn may_read(&self, from: NodeId, lease: LeaseId) -> Permission {
        let state = self.state();
        let Some(lease) = state.leases.get(&lease) else {
            return if lease.index > state.applied.index {
                Permission::NotYet
            } else {
                Permission::Denied
            };
        };
        let is_member = lease
            .placement
            .as_ref()
            .is_some_and(|placement| placement.member(from).is_some());
        let is_holder = lease
            .checkpoints
            .iter()
            .any(|checkpoint| checkpoint.holders.contains(&from));
        // A member of a placement that is not applied here yet asks as nobody does.
        let is_known = state.nodes.contains_key(&from);
        match (is_member || is_holder, is_known) {
            (true, _) => Permission::Granted,
            (false, true) => Permission::NotYet,
            (false, false) => Permission::Denied,
        }
    }
}

impl Commits for Replica {
    fn targets(&self, lease: LeaseId) -> Vec<NodeId> {
        targets(&self.state(), self.own, lease)
    }

    fn commit(&self, lease: LeaseId, fence: Fence, checkpoint: Checkpoint) -> BoxFuture<'_, Outcome> {
        self.propose.propose(Envelope {
            stamp: Timestamp(0),
            principal: Principal::Node(self.own),
            project: None,
            origin: self.own,
            request: None,
            command: Command::CommitCheckpoint {
                lease,
                fence,
                checkpoint,
            },
        })
    }
}

fn targets(state: &State, own: NodeId, lease: LeaseId) -> Vec<NodeId> {
    let stores = state.nodes.values().filter(|node| {
        let is_store = node.spec.role != NodeRole::Witness || node.spec.node == own;
        is_store && node.status != NodeStatus::Removed && node.status != NodeStatus::Joined
    });
    let mut candidates: Vec<Candidate> = stores
        .map(|node| Candidate {
            node: node.spec.node,
            zone: node.spec.zone.clone(),
            ready: node.status == NodeStatus::Ready,
        })
        .collect();
    let others_are_silent = candidates
        .iter()
        .all(|candidate| candidate.node == own || !candidate.ready);
    if others_are_silent {
        // Silent is not alone: the checkpoint waits for one of them rather than being committed with one copy.
        candidates.iter_mut().for_each(|candidate| candidate.ready = true);
    }
    let newest = state.leases.get(&lease).and_then(|lease| lease.checkpoints.last());
    target::choose(
        own,
        lease,
        &candidates,
        newest.map_or(&[], |checkpoint| &checkpoint.holders),
    )
}

#[cfg(test)]
#[path = "replica_tests.rs"]
pub(in crate::transfer) mod tests;
