//! Transfers as bytes: what one node asks another's store, and the answers.
//!
//! Parties: the node where work runs pushes; the store of a node in another zone receives; a node that will start
//! the work fetches. Every request stands alone and may be repeated: what was received lies on the receiver's disk,
//! so a lost answer, a new connection or a restart of either side continues where the disk says. Not a goal: hiding
//! bytes from the nodes themselves (the transport encrypts between them), or deltas within a file.
//!
//! Layout: the length of the head as four bytes, big-endian; the head, a checksummed frame; then the body, which the
//! head describes. The rule kept here: an answer about bytes echoes their file and offset, and both sides check it.

// rkyv derives archived copies of the enums, whose fields it leaves undocumented; every field here is documented.
#![allow(missing_docs)]

use bytes::{BufMut, Bytes, BytesMut};
use holdfast_proto::frame::{self, FrameError};
use holdfast_proto::id::{Digest, Fence, LeaseId};

/// Kind of a request's head among the frames between nodes.
const KIND_REQUEST: u16 = frame::kind::NODE + 0x60;
/// Kind of a reply's head.
const KIND_REPLY: u16 = frame::kind::NODE + 0x61;

/// Bytes of one piece. A round trip moves one piece of each file in flight; 2 MiB keeps a 1 ms path busy at more than
/// 10 Gb/s and stays within one frame of the transport.
pub const PIECE_BYTES: u32 = 2 << 20;

/// One checkpoint of one start of one lease.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct CheckpointName {
    /// The lease.
    pub lease: LeaseId,
    /// The start that saved it; a store refuses one that is older than any it was shown.
    pub fence: Fence,
    /// The member of the gang that saved it.
    pub rank: u32,
    /// The step after which it was saved.
    pub step: u64,
}

/// A file that is not there yet, and how much of it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Need {
    /// Place in the manifest.
    pub file: u32,
    /// Bytes that are there.
    pub offset: u64,
}

/// What is asked of a store.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Request {
    /// Take nothing older than this any more. Answered by `Fenced` or `Stale`, durable either way.
    Fence {
        /// The lease.
        lease: LeaseId,
        /// The coming token.
        fence: Fence,
    },
    /// Here is a manifest (the body): what of it is missing? Answered by `Held`, `Needed` or `Stale`.
    Offer {
        /// The checkpoint.
        name: CheckpointName,
    },
    /// Bytes of a file (the body). Answered by `Took`, `At`, `NotOffered` or `Stale`.
    Piece {
        /// The checkpoint.
        name: CheckpointName,
        /// Place in the manifest.
        file: u32,
        /// Where the bytes belong.
        offset: u64,
    },
    /// Everything was sent: check it against the manifest and keep it. Answered by `Held`, `Corrupt`, `NotOffered` or
    /// `Stale`.
    Commit {
        /// The checkpoint.
        name: CheckpointName,
        /// Digest of its manifest.
        manifest: Digest,
    },
    /// The manifest of a checkpoint that is held. Answered by `Manifest` or `NotHeld`.
    Manifest {
        /// The lease.
        lease: LeaseId,
        /// Digest of the manifest.
        manifest: Digest,
    },
    /// Bytes of a checkpoint that is held. Answered by `Bytes` or `NotHeld`.
    Read {
        /// The lease.
        lease: LeaseId,
        /// Digest of the manifest.
        manifest: Digest,
        /// Place in the manifest.
        file: u32,
        /// First byte wanted.
        offset: u64,
        /// Most bytes wanted.
        bytes: u32,
    },
}

/// What a store answers.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Reply {
    /// The newest token that this store was shown.
    Fenced {
        /// The token.
        shown: Fence,
    },
    /// The whole checkpoint is here: verified and durable.
    Held,
    /// These files are missing or not whole.
    Needed {
        /// Which, and from where.
        files: Vec<Need>,
    },
    /// The piece was written.
    Took {
        /// Place in the manifest.
        file: u32,
        /// Where the file ends now.
        offset: u64,
    },
    /// The piece was not written: the file ends elsewhere.
    At {
        /// Place in the manifest.
        file: u32,
        /// Where it ends.
        offset: u64,
    },
    /// These files did not match the manifest and were removed.
    Corrupt {
        /// Places in the manifest.
        files: Vec<u32>,
    },
    /// The store was shown a newer token; it takes nothing of this one any more.
    Stale {
        /// The newer token.
        shown: Fence,
    },
    /// No offer of this checkpoint is open here: offer it again.
    NotOffered,
    /// The manifest is the body.
    Manifest,
    /// The bytes are the body.
    Bytes {
        /// Place in the manifest.
        file: u32,
        /// Where they belong.
        offset: u64,
    },
    /// This store does not have it.
    NotHeld,
    /// This node's replica has not applied what the asker speaks of: ask again.
    NotYet,
}

/// Why bytes are not a message of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than its head says.
    #[error("a transfer message was cut short")]
    Short,
    /// The head is not sound.
    #[error("the head of a transfer message is not sound")]
    Head(#[from] FrameError),
}

impl Request {
    /// The message with its body.
    pub fn encode(&self, body: &[u8]) -> Bytes {
        join(&frame::encode(KIND_REQUEST, self), body)
    }

    /// Splits a message into the request and its body.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(message: &Bytes) -> Result<(Self, Bytes), WireError> {
        let (head, body) = split(message)?;
        Ok((frame::decode(KIND_REQUEST, &head)?, body))
    }
}

impl Reply {
    /// The message with its body.
    pub fn encode(&self, body: &[u8]) -> Bytes {
        join(&frame::encode(KIND_REPLY, self), body)
    }

    /// Splits a message into the reply and its body.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(message: &Bytes) -> Result<(Self, Bytes), WireError> {
        let (head, body) = split(message)?;
        Ok((frame::decode(KIND_REPLY, &head)?, body))
    }
}

fn join(head: &[u8], body: &[u8]) -> Bytes {
    let length = u32::try_from(head.len()).expect("heads are small");
    let mut out = BytesMut::with_capacity(4 + head.len() + body.len());
    out.put_u32(length);
    out.put_slice(head);
    out.put_slice(body);
    out.freeze()
}

fn split(message: &Bytes) -> Result<(Bytes, Bytes), WireError> {
    let (length, rest) = message.split_first_chunk::<4>().ok_or(WireError::Short)?;
    let length = u32::from_be_bytes(*length) as usize;
    if rest.len() < length {
        return Err(WireError::Short);
    }
    Ok((message.slice(4..4 + length), message.slice(4 + length..)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_message_reads_back_with_its_body() {
        let request = Request::Fence {
            lease: LeaseId::from_index(7),
            fence: Fence::default(),
        };
        assert_eq!(
            Request::decode(&request.encode(b"body")),
            Ok((request, Bytes::from_static(b"body")))
        );
        let reply = Reply::Needed {
            files: vec![Need { file: 1, offset: 2 }],
        };
        assert_eq!(Reply::decode(&reply.encode(b"")), Ok((reply, Bytes::new())));
    }

    #[test]
    fn mutated_heads_are_errors_and_never_panic() {
        let good = Reply::Corrupt { files: vec![1, 2, 3] }.encode(b"xyz");
        let head = 4 + u32::from_be_bytes(good[..4].try_into().unwrap()) as usize;
        for index in 0..head {
            let mut bad = good.to_vec();
            bad[index] ^= 0x41;
            assert!(Reply::decode(&Bytes::from(bad)).is_err(), "byte {index}");
        }
        for length in 0..head {
            assert!(Reply::decode(&good.slice(..length)).is_err());
        }
        assert!(Request::decode(&good).is_err(), "a reply is no request");
    }
}
