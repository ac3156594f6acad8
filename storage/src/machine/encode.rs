//! The state as bytes, for snapshots: a row of checksummed frames, each holding some entries of one map.
//!
//! Maps are written in order and read back by insertion, so that the bytes depend on the state alone. A state is read
//! whole or not at all.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use holdfast_proto::frame::{self, FrameError, HEADER_BYTES};
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;

use super::map::Map;
use super::state::{ClusterState, Position, State};

/// Kinds of the frames of a state; numbers are never reused.
mod kind {
    use holdfast_proto::frame::kind::DISK;

    pub(super) const HEAD: u16 = DISK + 0x100;
    pub(super) const NODES: u16 = DISK + 0x101;
    pub(super) const DEVICES: u16 = DISK + 0x102;
    pub(super) const LEASES: u16 = DISK + 0x103;
    pub(super) const LIMITS: u16 = DISK + 0x110;
    pub(super) const USAGE: u16 = DISK + 0x111;
    pub(super) const ENDED: u16 = DISK + 0x105;
    pub(super) const TENANTS: u16 = DISK + 0x106;
    pub(super) const ACCESS_TOKENS: u16 = DISK + 0x107;
    pub(super) const JOIN_TOKENS: u16 = DISK + 0x108;
    pub(super) const TARIFFS: u16 = DISK + 0x109;
    pub(super) const REQUESTS: u16 = DISK + 0x10a;
    pub(super) const CONDITIONS: u16 = DISK + 0x10b;
    pub(super) const DRAINS: u16 = DISK + 0x10c;
    pub(super) const SUBSCRIPTIONS: u16 = DISK + 0x10d;
    pub(super) const END: u16 = DISK + 0x10f;
}

/// Entries in one frame: with the largest command in each, a frame still stays under its limit.
const ENTRIES_PER_FRAME: usize = 128;

/// Why bytes are not a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A frame is damaged or of another version.
    #[error("frame at byte {at} of the state")]
    Frame {
        /// Where it starts.
        at: usize,
        /// What is wrong with it.
        #[source]
        source: FrameError,
    },
    /// A frame is not one that a state has.
    #[error("frame kind {kind:#06x} at byte {at} is no part of a state; this build may be too old")]
    Kind {
        /// Where it starts.
        at: usize,
        /// Its kind.
        kind: u16,
    },
    /// The bytes end before the state does.
    #[error("the state is cut off after {at} bytes")]
    Truncated {
        /// How many there are.
        at: usize,
    },
    /// Bytes follow the end of the state.
    #[error("{extra} bytes follow the state")]
    Trailing {
        /// How many.
        extra: usize,
    },
}

/// Takes a state's frames, one after the other.
trait Sink<E>: FnMut(&[u8]) -> Result<(), E> {}

impl<E, F: FnMut(&[u8]) -> Result<(), E>> Sink<E> for F {}

fn put<K, V, T, E>(out: &mut impl Sink<E>, kind: u16, map: &Map<K, V>, plain: impl Fn(&V) -> T) -> Result<(), E>
where
    K: Clone,
    Vec<(K, T)>: for<'a> rkyv::Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>,
{
    let mut entries = map.iter();
    loop {
        let some: Vec<(K, T)> = entries
            .by_ref()
            .take(ENTRIES_PER_FRAME)
            .map(|(key, value)| (key.clone(), plain(value)))
            .collect();
        if some.is_empty() {
            return Ok(());
        }
        out(&frame::encode(kind, &some))?;
    }
}

fn take<K, V, T>(map: &mut Map<K, V>, payload: &[u8], shared: impl Fn(T) -> V) -> Result<(), FrameError>
where
    K: Ord + Clone,
    V: Clone,
    Vec<(K, T)>: rkyv::Archive,
    <Vec<(K, T)> as rkyv::Archive>::Archived:
        for<'a> CheckBytes<HighValidator<'a, Error>> + rkyv::Deserialize<Vec<(K, T)>, HighDeserializer<Error>>,
{
    for (key, value) in frame::decode_payload::<Vec<(K, T)>>(payload)? {
        map.insert(key, shared(value));
    }
    Ok(())
}

impl State {
    /// Encodes the whole state.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        let Ok(()) = self.encode_into(|frame| {
            out.extend_from_slice(frame);
            Ok::<(), std::convert::Infallible>(())
        });
        out.freeze()
    }

    /// Encodes the whole state piece by piece, so that a large one never lies in memory twice.
    ///
    /// # Errors
    /// The first one that `out` returns.
    pub fn encode_into<E>(&self, mut out: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let out = &mut out;
        out(&frame::encode(kind::HEAD, &(self.applied, self.cluster.clone())))?;
        put(out, kind::NODES, &self.nodes, |node| (**node).clone())?;
        put(out, kind::DEVICES, &self.devices, |slot| (**slot).clone())?;
        put(out, kind::LEASES, &self.leases, |lease| (**lease).clone())?;
        put(out, kind::CONDITIONS, &self.conditions, |conditions| {
            (**conditions).clone()
        })?;
        put(out, kind::DRAINS, &self.drains, |drain| *drain)?;
        put(out, kind::ENDED, &self.ended, |lease| *lease)?;
        put(out, kind::TENANTS, &self.tenants, |tenant| *tenant)?;
        put(out, kind::LIMITS, &self.limits, |limits| (**limits).clone())?;
        put(out, kind::USAGE, &self.usage, |usage| *usage)?;
        put(out, kind::ACCESS_TOKENS, &self.access_tokens, |access| {
            (**access).clone()
        })?;
        put(out, kind::JOIN_TOKENS, &self.join_tokens, |join| (**join).clone())?;
        put(out, kind::SUBSCRIPTIONS, &self.subscriptions, |one| (**one).clone())?;
        put(out, kind::TARIFFS, &self.tariffs, |tariff| (**tariff).clone())?;
        put(out, kind::REQUESTS, &self.requests, Clone::clone)?;
        out(&frame::encode_payload(kind::END, &[]))
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are not one whole, unchanged state.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut state = Self::default();
        let mut at = 0;
        loop {
            let (start, rest) = (at, &bytes[at..]);
            let length = frame_length(rest).ok_or(DecodeError::Truncated { at: bytes.len() })?;
            let wrap = |source| DecodeError::Frame { at: start, source };
            let (kind, payload) = frame::open(&rest[..length]).map_err(wrap)?;
            at += length;
            if kind == kind::END {
                let extra = bytes.len() - at;
                state.reindex();
                return if extra == 0 {
                    Ok(state)
                } else {
                    Err(DecodeError::Trailing { extra })
                };
            }
            let known = state.take_frame(kind, payload).map_err(wrap)?;
            if !known {
                return Err(DecodeError::Kind { at: start, kind });
            }
        }
    }

    /// Takes in one frame; false when no state has its kind.
    fn take_frame(&mut self, kind: u16, payload: &[u8]) -> Result<bool, FrameError> {
        match kind {
            kind::HEAD => {
                (self.applied, self.cluster) = frame::decode_payload::<(Position, ClusterState)>(payload)?;
            }
            kind::NODES => take(&mut self.nodes, payload, Arc::new)?,
            kind::DEVICES => take(&mut self.devices, payload, Arc::new)?,
            kind::LEASES => take(&mut self.leases, payload, Arc::new)?,
            kind::CONDITIONS => take(&mut self.conditions, payload, Arc::new)?,
            kind::DRAINS => take(&mut self.drains, payload, |drain| drain)?,
            kind::ENDED => take(&mut self.ended, payload, |lease| lease)?,
            kind::TENANTS => take(&mut self.tenants, payload, |tenant| tenant)?,
            kind::LIMITS => take(&mut self.limits, payload, Arc::new)?,
            kind::USAGE => take(&mut self.usage, payload, |usage| usage)?,
            kind::ACCESS_TOKENS => take(&mut self.access_tokens, payload, Arc::new)?,
            kind::JOIN_TOKENS => take(&mut self.join_tokens, payload, Arc::new)?,
            kind::SUBSCRIPTIONS => take(&mut self.subscriptions, payload, Arc::new)?,
            kind::TARIFFS => take(&mut self.tariffs, payload, Arc::new)?,
            kind::REQUESTS => take(&mut self.requests, payload, |answer| answer)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns the length of the frame that `bytes` start with; `None` when they end before it does.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.first_chunk::<HEADER_BYTES>()?;
    let payload = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
    let length = HEADER_BYTES.checked_add(payload)?;
    (length <= bytes.len()).then_some(length)
}
