//! What replicas say to each other: the bytes of votes, appends, snapshots and questions to the leader.
//!
//! Owns the wire forms and their conversion from and to openraft's types, which never go over the wire themselves: theirs change from
//! release to release, these do not. Kinds are written down here and never reused. The one rule: what cannot be decoded is refused, and
//! nothing in a message says who sent it; that is the transport's to say.

// The archived twins that rkyv derives have no texts of their own.
#![allow(missing_docs)]

use bytes::Bytes;
use holdfast_proto::event::Event;
use holdfast_proto::frame::{self, FrameError};
use holdfast_proto::id::{Cursor, Digest};
use holdfast_proto::rejection::Rejection;
use holdfast_storage::types::stored::{EntryId, Members, MembersAt, MembersError};
use holdfast_storage::types::{Entry, LeaderId, LogId, Payload, Proposal, SnapshotMeta, Types, Vote};
use openraft::AsyncRuntime;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};

/// Kinds of frames between nodes; 0x20 and above belong to other files.
pub mod kind {
    use holdfast_proto::frame::kind::NODE;

    /// [`super::VoteAsked`].
    pub const VOTE: u16 = NODE + 0x01;
    /// [`super::VoteAsked`], for a vote that is only considered.
    pub const PRE_VOTE: u16 = NODE + 0x02;
    /// [`super::VoteGiven`].
    pub const VOTED: u16 = NODE + 0x03;
    /// [`super::Append`].
    pub const APPEND: u16 = NODE + 0x04;
    /// [`super::Appended`].
    pub const APPENDED: u16 = NODE + 0x05;
    /// [`super::Transfer`].
    pub const TRANSFER: u16 = NODE + 0x06;
    /// [`super::Transferred`].
    pub const TRANSFERRED: u16 = NODE + 0x07;
    /// [`super::SnapshotOffer`].
    pub const SNAPSHOT_OFFER: u16 = NODE + 0x08;
    /// [`super::SnapshotWanted`].
    pub const SNAPSHOT_WANTED: u16 = NODE + 0x09;
    /// [`super::SnapshotChunk`].
    pub const SNAPSHOT_CHUNK: u16 = NODE + 0x0a;
    /// [`super::SnapshotTaken`].
    pub const SNAPSHOT_TAKEN: u16 = NODE + 0x0b;
    /// [`super::Question`].
    pub const QUESTION: u16 = NODE + 0x10;
    /// [`super::Answer`].
    pub const ANSWER: u16 = NODE + 0x11;
}

/// Why a message was not understood.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Not a frame of the kind expected.
    #[error("a message between replicas cannot be decoded")]
    Frame(#[from] FrameError),
    /// A membership that is none.
    #[error("a message between replicas carries an invalid membership")]
    Members(#[from] MembersError),
}

/// A vote, granted by a quorum or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct WireVote {
    /// Term.
    pub term: u64,
    /// Candidate or leader.
    pub node: u64,
    /// Whether a quorum granted it.
    pub committed: bool,
}

impl From<&Vote> for WireVote {
    fn from(vote: &Vote) -> Self {
        Self {
            term: vote.leader_id.term,
            node: vote.leader_id.node_id,
            committed: vote.committed,
        }
    }
}

impl From<WireVote> for Vote {
    fn from(vote: WireVote) -> Self {
        Self {
            leader_id: LeaderId {
                term: vote.term,
                node_id: vote.node,
            },
            committed: vote.committed,
        }
    }
}

/// Asks for a vote.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct VoteAsked {
    /// The vote wanted.
    pub vote: WireVote,
    /// End of the candidate's log.
    pub last: Option<EntryId>,
    /// Whether the present leader asked the candidate to stand.
    pub transfer: bool,
}

/// Answers a request for a vote.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct VoteGiven {
    /// The voter's present vote.
    pub vote: WireVote,
    /// Whether it was granted.
    pub granted: bool,
    /// End of the voter's log.
    pub last: Option<EntryId>,
}

/// Entries to append; none in a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Append {
    /// The leader's vote.
    pub vote: WireVote,
    /// The entry before the first.
    pub prev: Option<EntryId>,
    /// What is committed.
    pub commit: Option<EntryId>,
    /// The entries.
    pub entries: Vec<WireEntry>,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct WireEntry {
    /// Its id.
    pub id: EntryId,
    /// What it holds.
    pub payload: WirePayload,
}

/// What an entry holds.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum WirePayload {
    /// Nothing: the first entry of a leader.
    Blank,
    /// An encoded envelope.
    Proposal(Bytes),
    /// Members.
    Members(Members),
}

/// Answers an append.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Appended {
    /// The log agrees up to here, durably.
    Matching(Option<EntryId>),
    /// The log does not hold the entry before the first.
    Conflict(EntryId),
    /// Another leader or candidate is known.
    HigherVote(WireVote),
}

/// Asks a node to stand for election at once.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Transfer {
    /// The leader that asks.
    pub from: WireVote,
    /// The node that is to stand.
    pub to: u64,
    /// What its log must hold first.
    pub last: Option<EntryId>,
}

/// Answers a transfer.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Transferred {
    /// It stands.
    Accepted,
    /// Its vote has changed meanwhile.
    VoteChanged {
        /// The vote expected.
        expected: WireVote,
        /// The vote found.
        actual: WireVote,
    },
    /// Its log is not durable that far.
    LogNotFlushed {
        /// The entry expected.
        expected: Option<EntryId>,
        /// The entry found.
        actual: Option<EntryId>,
    },
}

/// Offers a snapshot; chunks follow once the other side has said from where.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct SnapshotOffer {
    /// The leader's vote.
    pub vote: WireVote,
    /// The last entry that it covers.
    pub last: Option<EntryId>,
    /// Members at that entry.
    pub members: MembersAt,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of all of it.
    pub digest: [u8; 32],
}

/// Answers an offer.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum SnapshotWanted {
    /// Send from this offset: what is before it is there from an earlier try.
    From(u64),
    /// Another leader or candidate is known.
    HigherVote(WireVote),
}

/// A piece of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct SnapshotChunk {
    /// Where it belongs; checked, so that a lost piece cannot shift the rest.
    pub offset: u64,
    /// The piece.
    pub bytes: Bytes,
}

/// Ends a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum SnapshotTaken {
    /// Installed; the vote of the follower.
    Installed(WireVote),
    /// What arrived is not what was offered; the next try begins anew.
    Damaged,
}

/// A question to the leader.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Question {
    /// Propose this encoded envelope.
    Propose(Bytes),
    /// Which index must a fresh read have applied?
    ReadIndex,
    /// What does your wall clock show?
    Wall,
    /// I have become a voter; give me the authority's key.
    AuthorityKey,
    /// Your disk holds less than you acknowledged: stop.
    Forgot,
    /// These nodes have acknowledged the committed log up to these entries. Answered with [`Answer::Noted`].
    Promised(Vec<(u64, u64)>),
    /// What did your state hash to at this position? It differs between replicas, so look at yours too.
    StateHash(Cursor),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Answer {
    /// The command took effect.
    Applied {
        /// Log index.
        index: u64,
        /// What it was decided into.
        events: Vec<Event>,
    },
    /// The command was refused.
    Refused {
        /// Why.
        rejection: Rejection,
        /// Log index.
        index: u64,
    },
    /// Nothing was proposed or confirmed: this node does not lead.
    NotLeader {
        /// Who does, if known.
        leader: Option<u64>,
    },
    /// The command may or may not take effect.
    Unknown {
        /// What stood in the way.
        reason: String,
    },
    /// A fresh read must have applied this index.
    ReadIndex(u64),
    /// Milliseconds of UTC.
    Wall(u64),
    /// The authority's key in PEM form.
    AuthorityKey(String),
    /// Understood; there is nothing to say.
    Noted,
    /// What the state hashed to; `None` when it is not known any more.
    StateHash(Option<Digest>),
}

/// Encodes entries to append.
pub fn append<RT: AsyncRuntime>(request: &AppendEntriesRequest<Types<RT>>) -> Bytes {
    let append = Append {
        vote: (&request.vote).into(),
        prev: request.prev_log_id.map(EntryId::from),
        commit: request.leader_commit.map(EntryId::from),
        entries: request.entries.iter().map(wire_entry).collect(),
    };
    let bytes = |entry: &WireEntry| match &entry.payload {
        WirePayload::Proposal(bytes) => bytes.len() + APPEND_ENTRY_BYTES,
        _ => 2 * APPEND_ENTRY_BYTES,
    };
    let bytes = append.entries.iter().map(bytes).sum::<usize>() + APPEND_ENTRY_BYTES;
    frame::encode_sized(kind::APPEND, &append, bytes)
}

/// What an entry takes in an append beside its proposal, about.
const APPEND_ENTRY_BYTES: usize = 128;

/// Decodes entries to append.
pub fn read_append<RT: AsyncRuntime>(bytes: &[u8]) -> Result<AppendEntriesRequest<Types<RT>>, WireError> {
    let append: Append = frame::decode(kind::APPEND, bytes)?;
    Ok(AppendEntriesRequest {
        vote: append.vote.into(),
        prev_log_id: append.prev.map(LogId::from),
        leader_commit: append.commit.map(LogId::from),
        entries: append.entries.into_iter().map(entry).collect::<Result<_, _>>()?,
    })
}

fn wire_entry(entry: &Entry) -> WireEntry {
    let payload = match &entry.payload {
        Payload::Blank => WirePayload::Blank,
        Payload::Normal(proposal) => WirePayload::Proposal(proposal.0.clone()),
        Payload::Membership(members) => WirePayload::Members(members.into()),
    };
    WireEntry {
        id: entry.log_id.into(),
        payload,
    }
}

fn entry(wire: WireEntry) -> Result<Entry, WireError> {
    let payload = match wire.payload {
        WirePayload::Blank => Payload::Blank,
        WirePayload::Proposal(bytes) => Payload::Normal(Proposal(bytes)),
        WirePayload::Members(members) => Payload::Membership(members.try_into()?),
    };
    Ok(Entry {
        log_id: wire.id.into(),
        payload,
    })
}

/// Encodes the answer to an append.
pub fn appended<RT: AsyncRuntime>(result: &StreamAppendResult<Types<RT>>) -> Bytes {
    let appended = match result {
        Ok(matching) => Appended::Matching(matching.map(EntryId::from)),
        Err(StreamAppendError::Conflict(at)) => Appended::Conflict((*at).into()),
        Err(StreamAppendError::HigherVote(vote)) => Appended::HigherVote(vote.into()),
    };
    frame::encode(kind::APPENDED, &appended)
}

/// Decodes the answer to an append.
pub fn read_appended<RT: AsyncRuntime>(bytes: &[u8]) -> Result<StreamAppendResult<Types<RT>>, WireError> {
    Ok(match frame::decode(kind::APPENDED, bytes)? {
        Appended::Matching(matching) => Ok(matching.map(LogId::from)),
        Appended::Conflict(at) => Err(StreamAppendError::Conflict(at.into())),
        Appended::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.into())),
    })
}

/// Encodes a request for a vote, or for one that is only considered.
pub fn vote<RT: AsyncRuntime>(request: &VoteRequest<Types<RT>>, kind: u16) -> Bytes {
    let asked = VoteAsked {
        vote: (&request.vote).into(),
        last: request.last_log_id.map(EntryId::from),
        transfer: request.leadership_transfer,
    };
    frame::encode(kind, &asked)
}

/// Decodes a request for a vote.
pub fn read_vote<RT: AsyncRuntime>(bytes: &[u8], kind: u16) -> Result<VoteRequest<Types<RT>>, WireError> {
    let asked: VoteAsked = frame::decode(kind, bytes)?;
    let mut request = VoteRequest::new(asked.vote.into(), asked.last.map(LogId::from));
    request.leadership_transfer = asked.transfer;
    Ok(request)
}

/// Encodes the answer to a request for a vote.
pub fn voted<RT: AsyncRuntime>(response: &VoteResponse<Types<RT>>) -> Bytes {
    let given = VoteGiven {
        vote: (&response.vote).into(),
        granted: response.vote_granted,
        last: response.last_log_id.map(EntryId::from),
    };
    frame::encode(kind::VOTED, &given)
}

/// Decodes the answer to a request for a vote.
pub fn read_voted<RT: AsyncRuntime>(bytes: &[u8]) -> Result<VoteResponse<Types<RT>>, WireError> {
    let given: VoteGiven = frame::decode(kind::VOTED, bytes)?;
    Ok(VoteResponse::new(
        Vote::from(given.vote),
        given.last.map(LogId::from),
        given.granted,
    ))
}

/// Encodes a transfer of leadership.
pub fn transfer<RT: AsyncRuntime>(request: &TransferLeaderRequest<Types<RT>>) -> Bytes {
    let transfer = Transfer {
        from: request.from_leader().into(),
        to: *request.to_node_id(),
        last: request.last_log_id().copied().map(EntryId::from),
    };
    frame::encode(kind::TRANSFER, &transfer)
}

/// Decodes a transfer of leadership.
pub fn read_transfer<RT: AsyncRuntime>(bytes: &[u8]) -> Result<TransferLeaderRequest<Types<RT>>, WireError> {
    let transfer: Transfer = frame::decode(kind::TRANSFER, bytes)?;
    Ok(TransferLeaderRequest::new(
        transfer.from.into(),
        transfer.to,
        transfer.last.map(LogId::from),
    ))
}

/// Encodes the answer to a transfer.
pub fn transferred<RT: AsyncRuntime>(response: &TransferLeaderResponse<Types<RT>>) -> Bytes {
    let transferred = match response {
        Ok(()) => Transferred::Accepted,
        Err(TransferLeaderError::VoteChanged { expected, actual }) => Transferred::VoteChanged {
            expected: expected.into(),
            actual: actual.into(),
        },
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => Transferred::LogNotFlushed {
            expected: expected.map(EntryId::from),
            actual: actual.map(EntryId::from),
        },
    };
    frame::encode(kind::TRANSFERRED, &transferred)
}

/// Decodes the answer to a transfer.
pub fn read_transferred<RT: AsyncRuntime>(bytes: &[u8]) -> Result<TransferLeaderResponse<Types<RT>>, WireError> {
    Ok(match frame::decode(kind::TRANSFERRED, bytes)? {
        Transferred::Accepted => Ok(()),
        Transferred::VoteChanged { expected, actual } => Err(TransferLeaderError::VoteChanged {
            expected: expected.into(),
            actual: actual.into(),
        }),
        Transferred::LogNotFlushed { expected, actual } => Err(TransferLeaderError::LogNotFlushed {
            expected: expected.map(LogId::from),
            actual: actual.map(LogId::from),
        }),
    })
}

/// Puts an offer of a snapshot together.
pub fn snapshot_offer(vote: &Vote, meta: &SnapshotMeta, bytes: u64, digest: [u8; 32]) -> SnapshotOffer {
    SnapshotOffer {
        vote: vote.into(),
        last: meta.last_log_id.map(EntryId::from),
        members: (&meta.last_membership).into(),
        bytes,
        digest,
    }
}

/// Reads what an offered snapshot covers.
pub fn snapshot_meta(offer: &SnapshotOffer) -> Result<SnapshotMeta, WireError> {
    Ok(SnapshotMeta {
        last_log_id: offer.last.map(LogId::from),
        last_membership: offer.members.clone().try_into()?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    type Rt = openraft_rt_tokio::TokioRuntime;

    fn id(index: u64) -> LogId {
        LogId {
            leader_id: LeaderId { term: 3, node_id: 7 },
            index,
        }
    }

    fn leader() -> Vote {
        Vote {
            leader_id: LeaderId { term: 3, node_id: 7 },
            committed: true,
        }
    }

    #[test]
    fn an_append_of_every_kind_of_entry_reads_back() {
        let members = Members {
            voters: vec![vec![1, 2], vec![2, 3]],
            peers: (1..=4).map(|id| (id, format!("h{id}:1"))).collect(),
        };
        let entries = vec![
            Entry {
                log_id: id(5),
                payload: Payload::Blank,
            },
            Entry {
                log_id: id(6),
                payload: Payload::Normal(Proposal(Bytes::from_static(b"x"))),
            },
            Entry {
                log_id: id(7),
                payload: Payload::Membership(members.try_into().unwrap()),
            },
        ];
        for entries in [Vec::new(), entries] {
            let request = AppendEntriesRequest::<Types<Rt>> {
                vote: leader(),
                prev_log_id: Some(id(4)),
                leader_commit: None,
                entries: entries.clone(),
            };
            let read = read_append::<Rt>(&append(&request)).unwrap();
            assert_eq!(
                (read.vote, read.prev_log_id, read.leader_commit),
                (leader(), Some(id(4)), None)
            );
            assert_eq!(read.entries, entries);
        }
    }

    #[test]
    fn answers_read_back() {
        for result in [
            Ok(None),
            Ok(Some(id(1))),
            Err(StreamAppendError::Conflict(id(2))),
            Err(StreamAppendError::HigherVote(leader())),
        ] {
            assert_eq!(read_appended::<Rt>(&appended::<Rt>(&result)).unwrap(), result);
        }
        for response in [
            Ok(()),
            Err(TransferLeaderError::VoteChanged {
                expected: leader(),
                actual: leader(),
            }),
            Err(TransferLeaderError::LogNotFlushed {
                expected: Some(id(1)),
                actual: None,
            }),
        ] {
            assert_eq!(read_transferred::<Rt>(&transferred::<Rt>(&response)).unwrap(), response);
        }
        let request = TransferLeaderRequest::<Types<Rt>>::new(leader(), 9, Some(id(8)));
        assert_eq!(read_transfer::<Rt>(&transfer(&request)).unwrap(), request);
    }

    #[test]
    fn a_pre_vote_is_not_taken_for_a_vote() {
        let mut request = VoteRequest::<Types<Rt>>::new(leader(), Some(id(1)));
        request.leadership_transfer = true;
        let bytes = vote(&request, kind::PRE_VOTE);
        assert_eq!(read_vote::<Rt>(&bytes, kind::PRE_VOTE).unwrap(), request);
        assert!(read_vote::<Rt>(&bytes, kind::VOTE).is_err());
        let response = VoteResponse::<Types<Rt>>::new(leader(), None, false);
        assert_eq!(read_voted::<Rt>(&voted(&response)).unwrap(), response);
    }

    #[test]
    fn changed_bytes_are_refused_and_never_panic() {
        let request = AppendEntriesRequest::<Types<Rt>> {
            vote: leader(),
            prev_log_id: None,
            leader_commit: None,
            entries: vec![Entry {
                log_id: id(6),
                payload: Payload::Normal(Proposal(Bytes::from_static(b"xyz"))),
            }],
        };
        let bytes = append(&request);
        for place in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[place] ^= 0x41;
            // The reserved bytes of the header are covered by the checksum too.
            assert!(read_append::<Rt>(&changed).is_err(), "byte {place}");
            assert!(read_append::<Rt>(&bytes[..place]).is_err(), "cut at {place}");
        }
    }
}
