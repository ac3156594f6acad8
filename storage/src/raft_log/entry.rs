//! What the Raft log writes into its journal: one kind of record per fact, in the order that openraft made them.
//!
//! Used by the log's writer and its readers. The rule: kinds are written down here and never reused, and a record is
//! our own form, so that a new openraft reads what an older one left.

use bytes::Bytes;

use crate::journal::{Record, RecordRef};
use crate::types::stored::{MembersError, decode_membership, encode_membership};
use crate::types::{Entry, LeaderId, LogId, Payload, Proposal, Vote};

/// A vote; the payload is one byte, 1 when a quorum granted it.
pub(super) const VOTE: u8 = 1;
/// An entry without content, which a new leader begins with.
pub(super) const BLANK: u8 = 2;
/// An entry with a proposal.
pub(super) const PROPOSAL: u8 = 3;
/// An entry with a membership.
pub(super) const MEMBERSHIP: u8 = 4;
/// Entries after this one were removed; the payload is one byte, 0 when all were.
pub(super) const TRUNCATE: u8 = 5;
/// Entries up to this one were removed.
pub(super) const PURGE: u8 = 6;
/// Entries up to this one are known to be committed.
pub(super) const COMMITTED: u8 = 7;

fn with_id(kind: u8, id: LogId, payload: Bytes) -> Record {
    Record {
        kind,
        term: id.leader_id.term,
        node: id.leader_id.node_id,
        index: id.index,
        payload,
    }
}

pub(super) fn from_vote(vote: &Vote) -> Record {
    let granted = Bytes::copy_from_slice(&[u8::from(vote.committed)]);
    Record {
        kind: VOTE,
        term: vote.leader_id.term,
        node: vote.leader_id.node_id,
        index: 0,
        payload: granted,
    }
}

pub(super) fn to_vote(record: RecordRef<'_>) -> Vote {
    let leader_id = LeaderId {
        term: record.term,
        node_id: record.node,
    };
    Vote {
        leader_id,
        committed: record.payload == [1],
    }
}

pub(super) fn from_entry(entry: &Entry) -> Record {
    match &entry.payload {
        Payload::Blank => with_id(BLANK, entry.log_id, Bytes::new()),
        Payload::Normal(proposal) => with_id(PROPOSAL, entry.log_id, proposal.0.clone()),
        Payload::Membership(members) => with_id(MEMBERSHIP, entry.log_id, encode_membership(members)),
    }
}

/// Why a record of the log is no entry.
#[derive(Debug, thiserror::Error)]
pub(super) enum EntryError {
    #[error("record kind {kind} is no entry of the raft log")]
    Kind { kind: u8 },
    #[error("entry {index} of the raft log")]
    Members {
        index: u64,
        #[source]
        source: MembersError,
    },
}

pub(super) fn to_entry(record: Record) -> Result<Entry, EntryError> {
    let leader_id = LeaderId {
        term: record.term,
        node_id: record.node,
    };
    let log_id = LogId {
        leader_id,
        index: record.index,
    };
    let payload = match record.kind {
        BLANK => Payload::Blank,
        PROPOSAL => Payload::Normal(Proposal(record.payload)),
        MEMBERSHIP => {
            let index = record.index;
            let members = decode_membership(&record.payload);
            Payload::Membership(members.map_err(|source| EntryError::Members { index, source })?)
        }
        kind => return Err(EntryError::Kind { kind }),
    };
    Ok(Entry { log_id, payload })
}

pub(super) fn from_truncate(after: Option<LogId>) -> Record {
    match after {
        Some(id) => with_id(TRUNCATE, id, Bytes::from_static(&[1])),
        None => Record {
            kind: TRUNCATE,
            term: 0,
            node: 0,
            index: 0,
            payload: Bytes::from_static(&[0]),
        },
    }
}

pub(super) fn to_truncate(record: RecordRef<'_>) -> Option<LogId> {
    (record.payload == [1]).then(|| to_id(record))
}

pub(super) fn from_purge(upto: LogId) -> Record {
    with_id(PURGE, upto, Bytes::new())
}

pub(super) fn from_committed(id: LogId) -> Record {
    with_id(COMMITTED, id, Bytes::new())
}

pub(super) fn to_id(record: RecordRef<'_>) -> LogId {
    LogId {
        leader_id: LeaderId {
            term: record.term,
            node_id: record.node,
        },
        index: record.index,
    }
}

/// Returns how much memory an entry takes, about.
pub(super) fn weight(entry: &Entry) -> usize {
    let payload = match &entry.payload {
        Payload::Blank => 0,
        Payload::Normal(proposal) => proposal.0.len(),
        Payload::Membership(members) => members.nodes().map(|(_, peer)| 64 + peer.address.len()).sum(),
    };
    payload + size_of::<Entry>()
}
