//! Our own forms, on disk and on the wire, of what openraft hands us.
//!
//! The Raft log, the snapshots and the node's Raft transport use them. openraft is an alpha whose serialised layouts
//! change; these do not: kinds are written down here and never reused, and readers of one version read the one before.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use holdfast_proto::frame::{self, FrameError};

use super::{LeaderId, LogId, Membership, Peer, StoredMembership};

/// Kinds of frames; see `holdfast_proto::frame::kind::DISK`.
pub mod kind {
    use holdfast_proto::frame::kind::DISK;

    /// A [`super::Members`].
    pub const MEMBERS: u16 = DISK + 1;
    /// A snapshot's header.
    pub const SNAPSHOT: u16 = DISK + 2;
    /// What replicas have promised. 3 is the index's.
    pub const PROMISES: u16 = DISK + 4;
    /// A backup's header.
    pub const BACKUP: u16 = DISK + 5;
    /// A backup's end.
    pub const BACKUP_SEAL: u16 = DISK + 6;
}

/// A log id.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct EntryId {
    /// The leader's term.
    pub term: u64,
    /// The leader.
    pub node: u64,
    /// The entry's place.
    pub index: u64,
}

impl From<LogId> for EntryId {
    fn from(id: LogId) -> Self {
        Self {
            term: id.leader_id.term,
            node: id.leader_id.node_id,
            index: id.index,
        }
    }
}

impl From<EntryId> for LogId {
    fn from(id: EntryId) -> Self {
        Self {
            leader_id: LeaderId {
                term: id.term,
                node_id: id.node,
            },
            index: id.index,
        }
    }
}

/// A membership: one set of voters, or two while it changes, and every member's address.
#[derive(Debug, Clone, Default, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Members {
    /// Sets of voters, each ordered.
    pub voters: Vec<Vec<u64>>,
    /// Voters and learners, ordered by id.
    pub peers: Vec<(u64, String)>,
}

/// Why stored members are none.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// The bytes are no such frame.
    #[error("decode a membership")]
    Frame(#[from] FrameError),
    /// They do not make a membership.
    #[error("the stored membership is not a valid one: {reason}")]
    Invalid {
        /// What openraft says.
        reason: String,
    },
}

impl From<&Membership> for Members {
    fn from(membership: &Membership) -> Self {
        let voters = membership
            .get_joint_config()
            .iter()
            .map(|set| set.iter().copied().collect())
            .collect();
        let peers = membership
            .nodes()
            .map(|(id, peer)| (*id, peer.address.clone()))
            .collect();
        Self { voters, peers }
    }
}

impl TryFrom<Members> for Membership {
    type Error = MembersError;

    fn try_from(members: Members) -> Result<Self, MembersError> {
        let voters: Vec<BTreeSet<u64>> = members
            .voters
            .into_iter()
            .map(|set| set.into_iter().collect())
            .collect();
        let peers: BTreeMap<u64, Peer> = members
            .peers
            .into_iter()
            .map(|(id, address)| (id, Peer { address }))
            .collect();
        Self::new(voters, peers).map_err(|error| MembersError::Invalid {
            reason: error.to_string(),
        })
    }
}

/// Encodes a membership.
pub fn encode_membership(membership: &Membership) -> Bytes {
    frame::encode(kind::MEMBERS, &Members::from(membership))
}

/// Decodes a membership.
///
/// # Errors
/// [`MembersError`] when the bytes are not one.
pub fn decode_membership(bytes: &[u8]) -> Result<Membership, MembersError> {
    frame::decode::<Members>(kind::MEMBERS, bytes)?.try_into()
}

/// A membership with the entry that set it, as snapshots carry it.
#[derive(Debug, Clone, Default, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct MembersAt {
    /// The entry; `None` before there was one.
    pub set_by: Option<EntryId>,
    /// The members.
    pub members: Members,
}

impl From<&StoredMembership> for MembersAt {
    fn from(stored: &StoredMembership) -> Self {
        Self {
            set_by: stored.log_id().map(EntryId::from),
            members: stored.membership().into(),
        }
    }
}

impl TryFrom<MembersAt> for StoredMembership {
    type Error = MembersError;

    fn try_from(at: MembersAt) -> Result<Self, MembersError> {
        Ok(Self::new(at.set_by.map(LogId::from), at.members.try_into()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joint_membership_with_a_learner_reads_back_and_so_does_the_empty_one() {
        let peers: BTreeMap<u64, Peer> = (1..=4)
            .map(|id| {
                (
                    id,
                    Peer {
                        address: format!("h{id}:7400"),
                    },
                )
            })
            .collect();
        let joint = Membership::new(vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])], peers).unwrap();
        for membership in [joint, Membership::default()] {
            assert_eq!(decode_membership(&encode_membership(&membership)).unwrap(), membership);
        }
    }

    #[test]
    fn a_voter_without_an_address_is_not_a_membership() {
        let members = Members {
            voters: vec![vec![1]],
            peers: vec![],
        };
        let bytes = frame::encode(kind::MEMBERS, &members);
        assert!(matches!(decode_membership(&bytes), Err(MembersError::Invalid { .. })));
    }
}
