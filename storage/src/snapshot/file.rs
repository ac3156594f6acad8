//! One snapshot file: a header frame, then the state's bytes.
//!
//! The header is a checksummed frame of its own form; the body's digest is in it. Reading one proves both.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_proto::frame::{self, FrameError};

use super::{Folder, PIECE, SnapshotError};
use crate::disk::DiskFile;
use crate::types::stored::{EntryId, MembersAt, kind};

/// A header is this long at most: members of ten thousand nodes with their addresses take less than a tenth.
const HEADER_BYTES_MAX: usize = 16 << 20;

/// What a snapshot covers and how to tell that it is whole.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Header {
    /// The last entry in the state; `None` before there was one.
    pub last: Option<EntryId>,
    /// The members at that entry.
    pub members: MembersAt,
    /// The state's hash; compared after decoding.
    pub state_hash: [u8; 32],
    /// BLAKE3 of the body.
    pub body_hash: [u8; 32],
    /// Length of the body.
    pub body_bytes: u64,
}

/// A proven snapshot file, open for reading; clones share the handle.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    /// What it covers.
    pub header: Header,
    pub(super) path: PathBuf,
    file: Arc<dyn DiskFile>,
    folder: Arc<Folder>,
    body_at: u64,
}

pub(super) fn encode_header(header: &Header) -> Bytes {
    frame::encode(kind::SNAPSHOT, header)
}

/// Says whether a header's checksum holds: a version that is not ours is then a newer build's and no flipped bit.
fn is_sealed(head: &[u8]) -> bool {
    let (sealed, payload) = (&head[..12], &head[frame::HEADER_BYTES..]);
    let sum = crc32c::crc32c_append(crc32c::crc32c(sealed), payload);
    head[12..frame::HEADER_BYTES] == sum.to_le_bytes()
}

impl SnapshotFile {
    /// Reads a file from end to end and returns it when it is a whole snapshot.
    pub(super) fn prove(folder: Arc<Folder>, path: PathBuf, file: Arc<dyn DiskFile>) -> Result<Self, SnapshotError> {
        let damaged = |what: String| SnapshotError::Damaged {
            file: path.clone(),
            what,
        };
        let failed = |source| SnapshotError::Read {
            file: path.clone(),
            source,
        };
        let size = file.size().map_err(failed)?;
        let mut head = vec![0; frame::HEADER_BYTES];
        let got = file.read_at(&mut head, 0).map_err(failed)?;
        let Some(length) = head.get(8..12).filter(|_| got == head.len()) else {
            return Err(damaged("the file is too short".into()));
        };
        let mut payload = [0; 4];
        payload.copy_from_slice(length);
        let body_at = frame::HEADER_BYTES + u32::from_le_bytes(payload) as usize;
        if body_at > HEADER_BYTES_MAX || body_at as u64 > size {
            return Err(damaged("the header names an impossible length".into()));
        }
        head.resize(body_at, 0);
        file.read_at(&mut head, 0).map_err(failed)?;
        let header: Header = frame::decode(kind::SNAPSHOT, &head).map_err(|error| match error {
            FrameError::Version { got: 1.. } if is_sealed(&head) => SnapshotError::Newer {
                file: path.clone(),
                what: error.to_string(),
            },
            error => damaged(format!("header: {error}")),
        })?;
        let wanted = body_at as u64 + header.body_bytes;
        if size != wanted {
            return Err(damaged(format!("the file has {size} bytes instead of {wanted}")));
        }
        let body_at = body_at as u64;
        let proven = Self {
            header,
            path,
            file,
            folder,
            body_at,
        };
        let mut hasher = blake3::Hasher::new();
        proven.pieces(body_at, |_, piece| {
            hasher.update(piece);
            Ok(())
        })?;
        if hasher.finalize() != proven.header.body_hash {
            let what = "its content does not have the digest that its header names".into();
            return Err(SnapshotError::Damaged {
                file: proven.path,
                what,
            });
        }
        Ok(proven)
    }

    /// Returns the whole file's length, for whoever sends it.
    pub fn size(&self) -> u64 {
        self.body_at + self.header.body_bytes
    }

    /// Reads a piece of the whole file, for whoever sends it; shorter only at the end.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, SnapshotError> {
        let read = self.file.read_at(buffer, offset);
        read.map_err(|source| SnapshotError::Read {
            file: self.path.clone(),
            source,
        })
    }

    /// Returns the state's bytes.
    pub fn body(&self) -> Result<Vec<u8>, SnapshotError> {
        let mut body = Vec::with_capacity(self.header.body_bytes as usize);
        self.pieces(self.body_at, |_, piece| {
            body.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(body)
    }

    pub(super) fn read_pieces(
        &self,
        take: impl FnMut(u64, &[u8]) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        self.pieces(0, take)
    }

    /// The same file under its new name.
    pub(super) fn renamed(&self, path: PathBuf) -> Self {
        Self { path, ..self.clone() }
    }

    pub(super) fn folder_is(&self, folder: &Arc<Folder>) -> bool {
        Arc::ptr_eq(&self.folder, folder)
    }

    fn pieces(
        &self,
        from: u64,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        let mut piece = vec![0; PIECE.min(self.size() as usize).max(1)];
        let mut offset = from;
        loop {
            let got = self.read_at(&mut piece, offset)?;
            if got == 0 {
                return Ok(());
            }
            take(offset, &piece[..got])?;
            offset += got as u64;
        }
    }
}
