//! What replicas have acknowledged, and who is found to have forgotten it.
//!
//! Owns two kinds of promises. Within one leadership a follower's log never shrinks below what it acknowledged to that
//! leader. And what a replica acknowledged of the *committed* log it keeps for ever, whoever leads: leaders tell all
//! replicas of it, each keeps it in a file, and it is compared with the replica's own log when it starts, with every
//! vote that it asks for or gives, and with every append that it refuses. A replica that broke a promise takes no further
//! part: its votes and its acknowledgements count for nothing, and it is told to stop.
//!
//! The one rule: an answer is judged by what was promised *before its question left*. Messages overtake each other, and
//! promises come by other ways than the answer does, so a sound replica may have promised more since it answered. For
//! the same reason a request, of which nobody knows when it left, is refused when it falls short, and proves nothing.
//!
//! What was acknowledged in the last second before a leader died may be known to that leader alone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_proto::id::NodeId;
use holdfast_storage::promise::{PromiseFile, Promised};
use holdfast_storage::types::{LeaderId, LogId, Types};
use openraft::AsyncRuntime;
use openraft::raft::{StreamAppendError, StreamAppendResult};

/// How often promises are told to the others, and written down when there are new ones.
pub(super) const TOLD_EVERY: Duration = Duration::from_secs(1);

/// What a person is told.
pub const FORGOT: &str = "this disk remembers less than it promised";

/// See the module.
#[derive(Debug, Default)]
pub struct Promises {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// To the present leadership, by node; empty on a replica that does not lead.
    led: std::collections::BTreeMap<u64, Led>,
    /// For ever.
    lasting: Promised,
    broken: BTreeSet<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Led {
    leader: LeaderId,
    index: u64,
}

impl Promises {
    /// Goes on from what was kept.
    pub fn from_kept(lasting: Promised) -> Self {
        let inner = Inner {
            lasting,
            ..Inner::default()
        };
        Self {
            inner: Mutex::new(inner),
        }
    }

    fn held(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an acknowledgement, or finds that an earlier one no longer holds; says whether the node keeps its word.
    /// `before` is what the node had promised for ever when it was asked.
    pub(super) fn judge<RT: AsyncRuntime>(
        &self,
        node: u64,
        leader: LeaderId,
        before: Option<u64>,
        result: &StreamAppendResult<Types<RT>>,
    ) -> bool {
        let mut inner = self.held();
        let fresh = Led { leader, index: 0 };
        let led = inner.led.entry(node).or_insert(fresh);
        if led.leader != leader {
            *led = fresh;
        }
        match result {
            Ok(Some(matching)) => led.index = led.index.max(matching.index),
            // Answers of one leadership to one node are read in their order, so what was acknowledged to it counts too.
            Err(StreamAppendError::Conflict(at)) if at.index <= led.index.max(before.unwrap_or(0)) => {
                inner.broken.insert(node);
            }
            _ => {}
        }
        !inner.broken.contains(&node)
    }

    /// Compares where a node's log ends, by its answer, with what it had promised when it was asked; says whether the
    /// node keeps its word.
    pub(super) fn judge_end(&self, node: u64, before: Option<u64>, end: Option<LogId>) -> bool {
        let mut inner = self.held();
        if end.map(|end| end.index) < before {
            inner.broken.insert(node);
        }
        !inner.broken.contains(&node)
    }

    /// Reports whether a log that ends there has all that the node has promised by now.
    pub(super) fn suffices(&self, node: u64, end: Option<LogId>) -> bool {
        let inner = self.held();
        !inner.broken.contains(&node) && end.map(|end| end.index) >= inner.lasting.get(&node).copied()
    }

    /// Takes in what is known of committed entries that nodes have acknowledged. Promises only grow.
    pub fn note(&self, promised: impl IntoIterator<Item = (u64, u64)>) {
        let mut inner = self.held();
        for (node, index) in promised {
            let known = inner.lasting.entry(node).or_default();
            *known = index.max(*known);
        }
    }

    /// All promises that last.
    pub fn lasting(&self) -> Promised {
        self.held().lasting.clone()
    }

    /// What one node has promised for ever.
    pub fn of(&self, node: NodeId) -> Option<u64> {
        self.held().lasting.get(&node.0).copied()
    }

    /// Nodes whose disk remembers less than they promised.
    pub fn broken(&self) -> Vec<NodeId> {
        self.held().broken.iter().copied().map(NodeId).collect()
    }
}

/// Writes promises down whenever there are new ones.
async fn keep<RT: AsyncRuntime>(promises: std::sync::Weak<Promises>, file: PromiseFile) {
    let mut kept = Promised::new();
    loop {
        RT::sleep(TOLD_EVERY).await;
        let Some(promises) = promises.upgrade() else { return };
        let now = promises.lasting();
        if now == kept {
            continue;
        }
        let (file, saving) = (file.clone(), now.clone());
        match RT::spawn_blocking(move || file.save(&saving)).await {
            Ok(Ok(())) => kept = now,
            Ok(Err(error)) => tracing::warn!(%error, "what was promised is not kept yet"),
            Err(error) => tracing::warn!(%error, "what was promised is not kept yet"),
        }
    }
}

/// Starts to write promises down; ends with the replica.
pub(super) fn start<RT: AsyncRuntime>(promises: &Arc<Promises>, file: PromiseFile) {
    let run: BoxFuture<'static, ()> = Box::pin(keep::<RT>(Arc::downgrade(promises), file));
    drop(RT::spawn(run));
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rt = openraft_rt_tokio::TokioRuntime;

    fn leader(term: u64) -> LeaderId {
        LeaderId { term, node_id: 1 }
    }

    fn id(index: u64) -> LogId {
        LogId {
            leader_id: leader(1),
            index,
        }
    }

    fn conflict(index: u64) -> StreamAppendResult<Types<Rt>> {
        Err(StreamAppendError::Conflict(id(index)))
    }

    #[test]
    fn a_follower_that_lost_what_it_acknowledged_is_found_out() {
        let promises = Promises::default();
        assert!(promises.judge::<Rt>(2, leader(1), None, &Ok(Some(id(10)))));
        assert!(promises.judge::<Rt>(2, leader(1), None, &conflict(11)));
        assert!(!promises.judge::<Rt>(2, leader(1), None, &conflict(10)));
        assert_eq!(promises.broken(), [NodeId(2)]);
        // It stays cut off, whatever it says next.
        assert!(!promises.judge::<Rt>(2, leader(1), None, &Ok(Some(id(3)))));
        assert!(promises.judge::<Rt>(3, leader(1), None, &Ok(Some(id(3)))));
    }

    #[test]
    fn a_log_that_a_new_leader_shortens_breaks_no_promise() {
        let promises = Promises::default();
        assert!(promises.judge::<Rt>(2, leader(1), None, &Ok(Some(id(10)))));
        assert!(promises.judge::<Rt>(2, leader(2), None, &conflict(9)));
    }

    #[test]
    fn what_is_committed_stays_promised_under_every_leader() {
        let promises = Promises::default();
        promises.note([(2, 8)]);
        promises.note([(2, 5)]);
        let before = promises.of(NodeId(2));
        assert_eq!(before, Some(8));
        assert!(promises.judge::<Rt>(2, leader(7), before, &conflict(9)));
        assert!(!promises.judge::<Rt>(2, leader(7), before, &conflict(8)));
    }

    #[test]
    fn a_vote_of_a_log_that_ends_too_early_counts_for_nothing() {
        let promises = Promises::from_kept(Promised::from([(2, 8)]));
        assert!(promises.judge_end(2, Some(8), Some(id(8))));
        assert!(promises.judge_end(3, None, None));
        assert!(!promises.judge_end(2, Some(8), Some(id(7))));
        assert!(!promises.judge_end(2, Some(8), Some(id(9))), "it stays cut off");
        assert_eq!(promises.broken(), [NodeId(2)]);
    }

    #[test]
    fn an_answer_that_a_promise_overtook_breaks_nothing() {
        let promises = Promises::from_kept(Promised::from([(2, 8)]));
        let before = promises.of(NodeId(2));
        // While the answer is under way, the node acknowledges more to somebody else, who tells it here first.
        promises.note([(2, 12)]);
        assert!(promises.judge_end(2, before, Some(id(9))));
        assert!(promises.judge::<Rt>(2, leader(7), before, &conflict(11)));
        assert!(promises.broken().is_empty());
    }

    #[test]
    fn a_request_that_comes_late_is_refused_and_proves_nothing() {
        let promises = Promises::from_kept(Promised::from([(2, 12)]));
        assert!(!promises.suffices(2, Some(id(9))));
        assert!(promises.suffices(2, Some(id(12))));
        assert!(promises.suffices(3, None));
        assert!(promises.broken().is_empty());
    }
}
