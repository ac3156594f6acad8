//! Who leads, as this replica sees it.
//!
//! Owns the reading of openraft's metrics. The scheduler, the node lease and the membership duty work only while they lead. The one rule:
//! leaders are compared whole, term and node: here a leader may be succeeded within its term, so a term alone names nobody.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use holdfast_proto::id::NodeId;
use holdfast_storage::types::{LeaderId, Types};
use openraft::{AsyncRuntime, RaftMetrics};

use super::ReadError;

/// Who leads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader, if one is known.
    pub leader: Option<NodeId>,
    /// The present term. Two leaders may share it; compare it together with `leader`.
    pub term: u64,
    /// Whether this replica leads.
    pub is_self: bool,
    /// Whether this replica leads and has applied an entry of this leadership: from then on its state is the cluster's.
    pub own_term_applied: bool,
}

impl Leadership {
    /// Reads it from openraft's metrics.
    pub fn of<RT: AsyncRuntime>(metrics: &RaftMetrics<Types<RT>>) -> Self {
        let leading = leading(metrics);
        Self {
            leader: metrics.current_leader.map(NodeId),
            term: metrics.current_term,
            is_self: leading.is_some(),
            own_term_applied: leading.is_some() && metrics.last_applied.map(|applied| applied.leader_id) == leading,
        }
    }
}

/// The leadership that this replica holds, if it does.
pub fn leading<RT: AsyncRuntime>(metrics: &RaftMetrics<Types<RT>>) -> Option<LeaderId> {
    let own = metrics.state.is_leader() && metrics.vote.committed && metrics.vote.leader_id.node_id == metrics.id;
    own.then_some(metrics.vote.leader_id)
}

/// When this replica last heard its leader, on the boot clock. openraft names the last leader until another is elected,
/// which without a majority is for ever; this tells how much the name is worth.
#[derive(Debug, Default)]
pub struct Pulse(AtomicU64);

impl Pulse {
    /// Notes that the leader was heard.
    pub fn beat(&self, boot_ms: u64) {
        self.0.store(boot_ms.max(1), Ordering::Relaxed);
    }

    /// How long ago that was; `None` when it has never been.
    pub fn silent_ms(&self, boot_ms: u64) -> Option<u64> {
        let last = self.0.load(Ordering::Relaxed);
        (last > 0).then(|| boot_ms.saturating_sub(last))
    }
}

/// A leadership that a quorum has confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// What was committed when the round began: a barrier for whoever acts on the answer.
    pub index: u64,
    /// The leadership.
    pub leadership: Leadership,
}

/// Tells who leads, and proves it.
pub trait Lead: Send + Sync + 'static {
    /// Who leads, as this replica knows now.
    fn leadership(&self) -> Leadership;

    /// Waits until it differs from `seen`.
    fn changed(&self, seen: Leadership) -> BoxFuture<'_, Leadership>;

    /// Asks a quorum, in a round that begins after the call, whether this replica still leads. Fails on any other node, and on a
    /// leader that has not applied an entry of its own leadership.
    fn confirm(&self) -> BoxFuture<'_, Result<Confirmed, ReadError>>;
}
