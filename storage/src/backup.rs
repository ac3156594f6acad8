//! A backup: one whole state as one file, made while the cluster runs and proven when it was written.
//!
//! `holdfast cluster backup` writes what a node sends, `backup-verify` and `restore` read it. The file is a header
//! frame, the state's own frames, and a seal with the digest of everything before it. It is of one entry of the log, so
//! it is consistent. What it does not hold: events of the past, work's output and saved states, private keys, and the
//! secrets of tokens (the state has their digests only).
//!
//! The rule: nothing is read from a file whose seal does not hold.

use bytes::Bytes;
use holdfast_proto::frame::{self, FrameError};
use holdfast_proto::id::{ClusterId, Cursor, Digest, Era};
use holdfast_proto::time::Timestamp;

use crate::machine::{DecodeError, LEVEL_MAX, State};
use crate::types::stored::kind;

/// What a backup is of.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct BackupHeader {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its era.
    pub era: Era,
    /// The rules in force.
    pub level: u32,
    /// The entry.
    pub index: u64,
    /// Position of the last event.
    pub cursor: Cursor,
    /// The cluster's time at the entry.
    pub stamp: Timestamp,
    /// The state's hash.
    pub state_hash: Digest,
    /// Version of the program that made it.
    pub made_by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Seal {
    bytes: u64,
    digest: [u8; 32],
}

/// A backup that was read and proven.
#[derive(Debug, Clone)]
pub struct Backup {
    /// What it is of.
    pub header: BackupHeader,
    /// The state.
    pub state: State,
    /// BLAKE3 of all that the seal covers.
    pub digest: Digest,
}

/// Why a file is no backup that can be used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The state belongs to no cluster yet.
    #[error("there is no cluster to back up yet")]
    NoCluster,
    /// It ends too early, or something follows it.
    #[error("the backup is incomplete: {what}; make another one, and keep the ones before until it is verified")]
    Incomplete {
        /// What is missing.
        what: &'static str,
    },
    /// A newer build wrote it.
    #[error("the backup was written by a newer version of holdfast: {what}")]
    Newer {
        /// What this build does not know.
        what: String,
    },
    /// Its header is none.
    #[error("this file is no backup of a holdfast cluster, or its beginning is damaged")]
    Header(#[source] FrameError),
    /// Its bytes are not those that were written.
    #[error("the backup is damaged: its content does not have the digest that its seal names")]
    Digest,
    /// The state in it cannot be read.
    #[error("decode the state in the backup")]
    State(#[from] DecodeError),
    /// The state in it is another one.
    #[error(
        "the state in the backup does not have the hash that its header names; this build folds events differently, do not restore with it"
    )]
    Hash,
}

/// Writes a state as a backup, piece by piece.
///
/// # Errors
/// The first one that `out` returns; [`BackupError::NoCluster`] when there is nothing to back up.
pub fn write<E: From<BackupError>>(
    state: &State,
    made_by: &str,
    mut out: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<BackupHeader, E> {
    let cluster = state.cluster.id.ok_or(BackupError::NoCluster)?;
    let header = BackupHeader {
        cluster,
        era: state.cluster.era,
        level: state.cluster.level,
        index: state.applied.index,
        cursor: state.cluster.cursor,
        stamp: state.applied.stamp,
        state_hash: state.hash(),
        made_by: made_by.to_owned(),
    };
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
    let mut sealed = |frame: &[u8]| {
        hasher.update(frame);
        bytes += frame.len() as u64;
        out(frame)
    };
    sealed(&frame::encode(kind::BACKUP, &header))?;
    state.encode_into(&mut sealed)?;
    let seal = Seal {
        bytes,
        digest: *hasher.finalize().as_bytes(),
    };
    out(&frame::encode(kind::BACKUP_SEAL, &seal))?;
    Ok(header)
}

/// Reads a backup and proves all of it.
///
/// # Errors
/// [`BackupError`] says what is wrong with it.
pub fn read(bytes: &[u8]) -> Result<Backup, BackupError> {
    let seal_frame = frame::encode(
        kind::BACKUP_SEAL,
        &Seal {
            bytes: 0,
            digest: [0; 32],
        },
    );
    let Some(end) = bytes.len().checked_sub(seal_frame.len()) else {
        return Err(BackupError::Incomplete {
            what: "it is too short",
        });
    };
    let head = first_frame(bytes).ok_or(BackupError::Incomplete {
        what: "it is too short",
    })?;
    let header: BackupHeader = frame::decode(kind::BACKUP, head).map_err(|error| match error {
        FrameError::Version { .. } => BackupError::Newer {
            what: error.to_string(),
        },
        error => BackupError::Header(error),
    })?;
    let seal: Seal = frame::decode(kind::BACKUP_SEAL, &bytes[end..]).map_err(|_| BackupError::Incomplete {
        what: "its seal is missing",
    })?;
    if seal.bytes != end as u64 {
        return Err(BackupError::Incomplete {
            what: "it has another length than its seal names",
        });
    }
    let digest = *blake3::hash(&bytes[..end]).as_bytes();
    if digest != seal.digest {
        return Err(BackupError::Digest);
    }
    if header.level > LEVEL_MAX {
        let what = format!("its rules are at level {}, this build knows {LEVEL_MAX}", header.level);
        return Err(BackupError::Newer { what });
    }
    let state = State::decode(&bytes[head.len()..end])?;
    if state.hash() != header.state_hash {
        return Err(BackupError::Hash);
    }
    Ok(Backup {
        header,
        state,
        digest: Digest(digest),
    })
}

/// Writes a state as a backup into memory, for tests and small clusters.
///
/// # Errors
/// [`BackupError::NoCluster`] when there is nothing to back up.
pub fn encode(state: &State, made_by: &str) -> Result<Bytes, BackupError> {
    let mut out = Vec::new();
    write(state, made_by, |piece| {
        out.extend_from_slice(piece);
        Ok::<(), BackupError>(())
    })?;
    Ok(out.into())
}

fn first_frame(bytes: &[u8]) -> Option<&[u8]> {
    let length = bytes.get(8..12)?.try_into().ok().map(u32::from_le_bytes)?;
    bytes.get(..frame::HEADER_BYTES.checked_add(length as usize)?)
}
