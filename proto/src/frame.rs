//! Frames: a value of the vocabulary as bytes with a version, a kind, a length and a checksum.
//!
//! Layout, all integers little-endian: `magic u16 | version u8 | reserved u8 | kind u16 | reserved u16 | length u32 |
//! crc32c u32`, then the payload, which starts at a multiple of 16 so that it can be read in place. The checksum
//! covers the header before it and the payload. Size and checksum are checked before the archive is looked at.

use bytes::Bytes;
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error as ArchiveError;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;

use crate::limits::FRAME_BYTES_MAX;

/// Version of the archived layouts. Readers of version N read N-1 too.
pub const VERSION: u8 = 1;

/// Length of the header.
pub const HEADER_BYTES: usize = 16;

/// Alignment of archives in memory.
const ALIGNMENT: usize = 16;

/// Room that a frame begins with: most commands and events fit.
const ENCODE_BYTES: usize = 512;

const MAGIC: u16 = 0x4648;

/// Why bytes are not the frame they were taken for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter or longer than its header says.
    #[error("frame of {got} bytes, {expected} expected")]
    Length {
        /// Bytes given.
        got: usize,
        /// Bytes that the header announces, or the least that a frame has.
        expected: usize,
    },
    /// Larger than any frame may be.
    #[error("frame of {got} bytes is over the limit of {FRAME_BYTES_MAX}")]
    TooLarge {
        /// Bytes announced.
        got: usize,
    },
    /// Not a frame at all.
    #[error("not a frame: it starts with {got:#06x}")]
    Magic {
        /// The first two bytes.
        got: u16,
    },
    /// Written by a version that this build does not read.
    #[error("frame version {got}; this build reads up to {VERSION}, so it needs an upgrade")]
    Version {
        /// The version.
        got: u8,
    },
    /// A frame of another kind.
    #[error("frame kind {got}, {expected} expected")]
    Kind {
        /// The kind.
        got: u16,
        /// The kind that was expected.
        expected: u16,
    },
    /// The bytes changed on their way.
    #[error("frame checksum is {got:#010x}, {expected:#010x} expected")]
    Checksum {
        /// Computed.
        got: u32,
        /// Announced.
        expected: u32,
    },
    /// The payload is not a valid archive.
    #[error("frame payload does not hold the announced type: {reason}")]
    Payload {
        /// What the validator says.
        reason: String,
    },
}

/// Encodes `value` as a frame of `kind`.
///
/// # Panics
/// Only when memory cannot be allocated: the vocabulary has no type whose serialisation fails.
#[must_use]
pub fn encode<T>(kind: u16, value: &T) -> Bytes
where
    T: for<'a> rkyv::Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, ArchiveError>>,
{
    encode_sized(kind, value, ENCODE_BYTES)
}

/// Encodes `value`, which takes about so many `bytes`: a large frame is then not moved while it grows.
///
/// # Panics
/// As [`encode`].
#[must_use]
pub fn encode_sized<T>(kind: u16, value: &T, bytes: usize) -> Bytes
where
    T: for<'a> rkyv::Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, ArchiveError>>,
{
    // The archive is written behind room for its header: one allocation, no copy. Its alignments hold, because the header's length is
    // a multiple of all of them.
    let mut out = AlignedVec::with_capacity(HEADER_BYTES + bytes);
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let mut out = rkyv::api::high::to_bytes_in::<_, ArchiveError>(value, out).expect("plain values always serialise");
    let (head, payload) = out.split_at_mut(HEADER_BYTES);
    write_header(head, kind, payload);
    Bytes::from_owner(out)
}

/// Makes a frame of `bytes`, whose first [`HEADER_BYTES`] are room for its header and whose rest is its payload.
///
/// # Panics
/// When there is no such room.
#[must_use]
pub fn seal(kind: u16, mut bytes: Vec<u8>) -> Bytes {
    let (head, payload) = bytes.split_at_mut(HEADER_BYTES);
    write_header(head, kind, payload);
    bytes.into()
}

/// Puts a frame's header in front of `payload`.
#[must_use]
pub fn encode_payload(kind: u16, payload: &[u8]) -> Bytes {
    let mut out = vec![0; HEADER_BYTES + payload.len()];
    out[HEADER_BYTES..].copy_from_slice(payload);
    seal(kind, out)
}

fn write_header(head: &mut [u8], kind: u16, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("payloads are bounded far below 4 GiB");
    head[..2].copy_from_slice(&MAGIC.to_le_bytes());
    head[2..4].copy_from_slice(&[VERSION, 0]);
    head[4..6].copy_from_slice(&kind.to_le_bytes());
    head[6..8].copy_from_slice(&[0, 0]);
    head[8..12].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(&head[..12], payload);
    head[12..].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the kind and the payload of a frame whose size and checksum hold.
///
/// # Errors
/// Any [`FrameError`] but `Kind` and `Payload`.
pub fn open(frame: &[u8]) -> Result<(u16, &[u8]), FrameError> {
    let (head, payload) = frame.split_first_chunk::<HEADER_BYTES>().ok_or(FrameError::Length {
        got: frame.len(),
        expected: HEADER_BYTES,
    })?;
    let magic = u16::from_le_bytes([head[0], head[1]]);
    if magic != MAGIC {
        return Err(FrameError::Magic { got: magic });
    }
    if head[2] == 0 || head[2] > VERSION {
        return Err(FrameError::Version { got: head[2] });
    }
    let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(FrameError::TooLarge { got: length });
    }
    if payload.len() != length {
        return Err(FrameError::Length {
            got: frame.len(),
            expected: HEADER_BYTES + length,
        });
    }
    let expected = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
    let got = checksum(&head[..12], payload);
    if got != expected {
        return Err(FrameError::Checksum { got, expected });
    }
    Ok((u16::from_le_bytes([head[4], head[5]]), payload))
}

/// Returns the kind of a frame that was checked elsewhere, or is going to be.
///
/// # Errors
/// [`FrameError::Length`] when the bytes are too short to be a frame.
pub fn peek_kind(frame: &[u8]) -> Result<u16, FrameError> {
    let head = frame.first_chunk::<HEADER_BYTES>().ok_or(FrameError::Length {
        got: frame.len(),
        expected: HEADER_BYTES,
    })?;
    Ok(u16::from_le_bytes([head[4], head[5]]))
}

/// Decodes a frame of `kind`.
///
/// # Errors
/// [`FrameError`] when the bytes are not a whole, unchanged frame of that kind and type.
pub fn decode<T>(kind: u16, frame: &[u8]) -> Result<T, FrameError>
where
    T: rkyv::Archive,
    T::Archived:
        for<'a> CheckBytes<HighValidator<'a, ArchiveError>> + rkyv::Deserialize<T, HighDeserializer<ArchiveError>>,
{
    let (got, payload) = open(frame)?;
    if got != kind {
        return Err(FrameError::Kind { got, expected: kind });
    }
    decode_payload(payload)
}

/// Decodes a payload whose frame was opened.
///
/// # Errors
/// [`FrameError::Payload`] when it is not an archive of the type.
pub fn decode_payload<T>(payload: &[u8]) -> Result<T, FrameError>
where
    T: rkyv::Archive,
    T::Archived:
        for<'a> CheckBytes<HighValidator<'a, ArchiveError>> + rkyv::Deserialize<T, HighDeserializer<ArchiveError>>,
{
    // Most allocators align what is read from the wire or the disk well enough to be read where it lies.
    let decoded = if payload.as_ptr().align_offset(ALIGNMENT) == 0 {
        rkyv::from_bytes::<T, ArchiveError>(payload)
    } else {
        let mut aligned = AlignedVec::<ALIGNMENT>::with_capacity(payload.len());
        aligned.extend_from_slice(payload);
        rkyv::from_bytes::<T, ArchiveError>(&aligned)
    };
    decoded.map_err(|error| FrameError::Payload {
        reason: error.to_string(),
    })
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), payload)
}

/// Kinds of frames. Commands and events carry their own tags; everything else has a number here, never reused.
pub mod kind {
    /// A [`crate::command::Envelope`]: this plus the command's tag.
    pub const COMMAND: u16 = 0x0000;
    /// An [`crate::event::EventRecord`]: this plus the event's tag.
    pub const EVENT: u16 = 0x4000;
    /// Messages between nodes start here; `holdfast-node` numbers them.
    pub const NODE: u16 = 0x8000;
    /// Records on disk start here; `holdfast-storage` and `holdfast-node` number them.
    pub const DISK: u16 = 0xc000;
}

impl crate::command::Envelope {
    /// Encodes the envelope; the frame's kind is the command's tag.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode(kind::COMMAND + self.command.tag(), self)
    }

    /// Decodes an envelope whose frame carries the tag of the command inside.
    ///
    /// # Errors
    /// [`FrameError`] when it is not one, or larger than a command may be.
    pub fn decode(frame: &[u8]) -> Result<Self, FrameError> {
        if frame.len() > crate::limits::COMMAND_BYTES_MAX {
            return Err(FrameError::TooLarge { got: frame.len() });
        }
        let (got, payload) = open(frame)?;
        let envelope: Self = decode_payload(payload)?;
        let expected = kind::COMMAND + envelope.command.tag();
        if got == expected {
            Ok(envelope)
        } else {
            Err(FrameError::Kind { got, expected })
        }
    }
}

impl crate::event::EventRecord {
    /// Encodes the record; the frame's kind is the event's tag.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode(kind::EVENT + self.event.tag(), self)
    }

    /// Decodes a record whose frame carries the tag of the event inside.
    ///
    /// # Errors
    /// [`FrameError`] when it is not one.
    pub fn decode(frame: &[u8]) -> Result<Self, FrameError> {
        let (got, payload) = open(frame)?;
        let record: Self = decode_payload(payload)?;
        let expected = kind::EVENT + record.event.tag();
        if got == expected {
            Ok(record)
        } else {
            Err(FrameError::Kind { got, expected })
        }
    }
}
