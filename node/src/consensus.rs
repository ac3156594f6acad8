//! Proposing and reading: what the parts of a node ask of the replicated log.
//!
//! Owns the seams [`Propose`] and [`Linearize`] and what comes of them. The HTTP interface, the executor, the scheduler and the node
//! lease call them on any node; whether this replica leads is not their concern. The one rule: an outcome that is not known is never
//! told as a failure, because only a refusal proves that nothing happened.

pub mod agreement;
pub mod clock;
pub mod compaction;
pub mod config;
pub mod forward;
pub mod leadership;
pub mod membership;
pub mod network;
pub mod promise;
pub mod proposer;
pub mod replica;
mod rounds;
pub mod stamp;
pub mod start;
pub mod ticker;
pub mod voters;
pub mod walls;
pub mod wire;

use futures_util::future::BoxFuture;
use holdfast_proto::command::Envelope;
use holdfast_proto::event::Event;
use holdfast_proto::rejection::Rejection;

/// What became of a proposed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect, and is durable on a quorum.
    Applied {
        /// Log index of its entry; for a repeated request, of the first one.
        index: u64,
        /// What it was decided into.
        events: Vec<Event>,
    },
    /// It was decided against; it has no effect and never will.
    Refused {
        /// Why.
        rejection: Rejection,
        /// Log index of its entry.
        index: u64,
    },
    /// It may or may not take effect. A retry with the same request id is safe.
    Unknown {
        /// What stood in the way, for a person.
        reason: String,
    },
}

/// Puts commands into the log, from any node.
pub trait Propose: Send + Sync + 'static {
    /// Proposes `envelope`, whose stamp is 0: the leader sets it. A follower passes it on; the leader checks that the origin in it is
    /// the node that it came from.
    fn propose(&self, envelope: Envelope) -> BoxFuture<'_, Outcome>;

    /// Proposes several that are ready together, and gives their outcomes in the same order. On the leader they enter the log as one
    /// batch. `bytes` is about what they take when encoded. The default proposes one after the other.
    fn propose_many(&self, envelopes: Vec<Envelope>, bytes: usize) -> BoxFuture<'_, Vec<Outcome>> {
        let _ = bytes;
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(envelopes.len());
            for envelope in envelopes {
                outcomes.push(self.propose(envelope).await);
            }
            outcomes
        })
    }
}

/// Why a read could not be made sure to be fresh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot confirm that this read is fresh: {reason}")]
pub struct ReadError {
    /// What stood in the way, for a person.
    pub reason: String,
}

/// Makes reads of the local state linearizable, on any node.
pub trait Linearize: Send + Sync + 'static {
    /// Waits until the local state includes everything acknowledged before the call; gives the read index.
    fn linearize(&self) -> BoxFuture<'_, Result<u64, ReadError>>;
}

#[cfg(test)]
mod tests;
