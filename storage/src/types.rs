//! openraft's type configuration, generic over the runtime, and the few types of ours that it carries.
//!
//! The Raft log, the adapter and the node's consensus name openraft through this file. In production the runtime is
//! tokio; in the simulator it is a deterministic one, and everything else is the same code.
//!
//! **Leader ids are ordered within a term** (`leader_id_adv`: term, then node id). With the standard ids two candidates
//! of one term can each hold some votes and both must wait for another election window; here a voter that granted the
//! lower id still grants the higher one, so a split vote ends in its own term. What it costs: a leader may be succeeded
//! within its term by a node with a higher id, so *a term does not name a leader, a leader id does*, and a log id is
//! (term, node, index). Anything that asks "is this my own term" must compare the whole leader id.
//!
//! The rule: no type of openraft is ever written to disk or wire; [`stored`] has our own forms.

pub mod stored;

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use holdfast_proto::event::Event;
use holdfast_proto::rejection::Rejection;
use openraft::{AsyncRuntime, OptionalSend, RaftTypeConfig};

/// The type configuration on runtime `RT`.
pub struct Types<RT>(PhantomData<fn() -> RT>);

/// Who leads or wants to: ordered by term, then by node.
pub type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>;

/// Names one entry: leader and index.
pub type LogId = openraft::LogId<LeaderId>;

/// A vote, granted by a quorum or not.
pub type Vote = openraft::Vote<LeaderId>;

/// What an entry holds.
pub type Payload = openraft::EntryPayload<Proposal, u64, Peer>;

/// One entry of the Raft log.
pub type Entry = openraft::Entry<LeaderId, Payload>;

/// Voters and learners with their addresses.
pub type Membership = openraft::Membership<u64, Peer>;

/// A membership and the entry that set it.
pub type StoredMembership = openraft::StoredMembership<LeaderId, u64, Peer>;

/// What a snapshot covers.
pub type SnapshotMeta = openraft::SnapshotMeta<LeaderId, u64, Peer>;

/// Where a member is reached: the host and port of its Raft endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// `host:port`, as in the node's registration.
    pub address: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.address)
    }
}

/// What is proposed: the encoded envelope, kept as the bytes that go to the disk and to the other voters.
#[derive(Clone, PartialEq, Eq)]
pub struct Proposal(pub Bytes);

impl fmt::Debug for Proposal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "proposal of {} bytes", self.0.len())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

/// What applying an entry answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The entry's index.
    pub index: u64,
    /// The events that it was decided into, or why it was refused. Entries of openraft's own decide nothing.
    pub outcome: Result<Vec<Event>, Rejection>,
}

impl<RT: AsyncRuntime> RaftTypeConfig for Types<RT> {
    type D = Proposal;
    type R = Reply;
    type NodeId = u64;
    type Node = Peer;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote;
    type Payload = Payload;
    type Entry = Entry;
    type AsyncRuntime = RT;
    type Responder<T>
        = openraft::impls::ProgressResponder<Self, T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

// Derives would ask the same of `RT`, which is only a name here.
impl<RT> fmt::Debug for Types<RT> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Types")
    }
}

impl<RT> Clone for Types<RT> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<RT> Copy for Types<RT> {}

impl<RT> Default for Types<RT> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<RT> PartialEq for Types<RT> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<RT> Eq for Types<RT> {}

impl<RT> PartialOrd for Types<RT> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<RT> Ord for Types<RT> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(term: u64, node_id: u64, committed: bool) -> Vote {
        Vote {
            leader_id: LeaderId { term, node_id },
            committed,
        }
    }

    #[test]
    fn within_a_term_the_higher_node_outranks_a_vote_and_even_a_leader_of_the_lower_one() {
        assert!(vote(5, 2, false) > vote(5, 1, false));
        assert!(vote(5, 2, false) > vote(5, 1, true));
        assert!(vote(6, 1, false) > vote(5, 2, true));
        assert!(vote(5, 1, true) > vote(5, 1, false));
    }

    #[test]
    fn two_leaders_of_one_term_never_share_a_log_id() {
        let id = |node_id| LogId {
            leader_id: LeaderId { term: 5, node_id },
            index: 9,
        };
        assert_ne!(id(1), id(2));
        assert!(id(2) > id(1));
    }
}
