//! The node lease as bytes: one frame for a question, one for its reply.
//!
//! Only the socket thread encodes and decodes. The one rule: a frame that is damaged, of another version or too long is an error value, never a panic
//! and never half a message.

// rkyv's derive gives the fields of archived struct variants no documentation of their own.
#![allow(missing_docs)]

use bytes::Bytes;
use holdfast_proto::frame;
use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId, Nonce};

/// Kind of the frames of the node lease, among those of the messages between nodes.
const KIND: u16 = frame::kind::NODE + 0x20;
/// Longest frame: the limits of as many leases as a node can have devices, and room to spare.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// A node asks for its lease.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct Renew {
    /// Who asks.
    pub node: NodeId,
    /// Which start of its daemon.
    pub incarnation: Incarnation,
    /// The generation that it believes to hold.
    pub generation: Generation,
    /// Ties the answer to this question.
    pub nonce: Nonce,
    /// The sender holds a renewal of this generation, so answers do reach it.
    pub in_force: bool,
}

/// How long one lease may still run on the node.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct RunFor {
    /// The lease.
    pub lease: LeaseId,
    /// Milliseconds, counted from the asking.
    pub ms: u64,
}

/// The leader's yes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Renewed {
    /// Of the question.
    pub nonce: Nonce,
    /// Of the question.
    pub node: NodeId,
    /// Of the question.
    pub incarnation: Incarnation,
    /// Of the question.
    pub generation: Generation,
    /// Commit index of the quorum round behind this answer: the node takes no step by it before it has applied so far.
    pub barrier: u64,
    /// Milliseconds after which the node is to ask again: then its question shares a quorum round with others. Advice, which the node
    /// keeps within bounds of its own.
    pub again_ms: u64,
    /// Limits of the leases placed on the node; each holds a device, so there are at most `NODE_DEVICES_MAX`.
    pub run_for: Vec<RunFor>,
}

/// A voter's no.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub enum Refusal {
    /// This voter does not lead.
    NotLeader {
        /// Who does, as far as it knows.
        leader: Option<NodeId>,
    },
    /// The generation was given up: the node must return under a new one.
    GivenUp {
        /// The generation that is over.
        generation: Generation,
        /// To be shown by `NodeReturned`, as proof that refusals reach the node.
        challenge: Nonce,
    },
    /// The incarnation or the generation of the question is not the one in the state.
    Moved {
        /// The generation in the leader's state.
        generation: Generation,
    },
    /// The state knows no such node.
    Unknown,
}

/// What a voter says to a question.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Reply {
    /// Yes.
    Renewed(Renewed),
    /// No.
    Refused {
        /// Of the question.
        nonce: Nonce,
        /// Why not.
        refusal: Refusal,
    },
}

/// What travels.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Message {
    /// From a node to a voter.
    Question(Renew),
    /// From a voter to a node.
    Reply(Reply),
}

/// Bytes that are not a message of the node lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// More bytes than a question or a reply can have.
    #[error("a lease frame of {0} bytes")]
    Length(usize),
    /// Not a whole, unchanged frame.
    #[error("reading a lease frame")]
    Frame(#[source] frame::FrameError),
}

/// Writes a message as one frame.
///
/// # Panics
/// When the message is longer than a frame, which the bound on a node's devices rules out.
#[must_use]
pub fn encode(message: &Message) -> Bytes {
    let bytes = frame::encode(KIND, message);
    assert!(bytes.len() <= FRAME_BYTES_MAX);
    bytes
}

/// Reads one frame.
///
/// # Errors
/// When the bytes are not exactly one message of this version.
pub fn decode(bytes: &[u8]) -> Result<Message, WireError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(WireError::Length(bytes.len()));
    }
    frame::decode(KIND, bytes).map_err(WireError::Frame)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::limits;

    use super::*;

    fn renewed(leases: usize) -> Message {
        Message::Reply(Reply::Renewed(Renewed {
            nonce: Nonce(1),
            node: NodeId(2),
            incarnation: Incarnation(3),
            generation: Generation(4),
            barrier: 5,
            again_ms: 500,
            run_for: (0..leases as u64)
                .map(|index| RunFor {
                    lease: LeaseId::from_index(index),
                    ms: 9,
                })
                .collect(),
        }))
    }

    #[test]
    fn every_message_reads_back_and_the_longest_fits_a_frame() {
        let question = Renew {
            node: NodeId(1),
            incarnation: Incarnation(2),
            generation: Generation(3),
            nonce: Nonce(4),
            in_force: true,
        };
        let refused = |refusal| {
            Message::Reply(Reply::Refused {
                nonce: Nonce(7),
                refusal,
            })
        };
        for message in [
            Message::Question(question),
            renewed(0),
            renewed(limits::NODE_DEVICES_MAX),
            refused(Refusal::NotLeader {
                leader: Some(NodeId(9)),
            }),
            refused(Refusal::GivenUp {
                generation: Generation(1),
                challenge: Nonce(2),
            }),
            refused(Refusal::Moved {
                generation: Generation(1),
            }),
            refused(Refusal::Unknown),
        ] {
            assert_eq!(decode(&encode(&message)).unwrap(), message);
        }
    }

    #[test]
    fn no_damaged_frame_is_a_message() {
        let frame = encode(&renewed(3));
        for at in 0..frame.len() {
            for bit in [1, 0x80] {
                let mut bad = frame.to_vec();
                bad[at] ^= bit;
                assert!(decode(&bad).is_err(), "byte {at}");
            }
            assert!(decode(&frame[..at]).is_err());
        }
        assert_eq!(
            decode(&vec![0; FRAME_BYTES_MAX + 1]),
            Err(WireError::Length(FRAME_BYTES_MAX + 1))
        );
    }

    #[test]
    fn bodies_that_are_not_messages_never_panic_even_with_a_right_checksum() {
        let mut state = 7_u64;
        for length in 0..200 {
            let mut next = || {
                state = super::super::mix(state);
                state.to_le_bytes()[0]
            };
            let body: Vec<u8> = (0..length).map(|_| next()).collect();
            let _ = decode(&frame::encode_payload(KIND, &body));
        }
    }
}
