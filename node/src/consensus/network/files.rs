//! Snapshots of the storage crate as strings of bytes to be sent and received.
//!
//! Owns what has arrived of an interrupted transfer, so that the next one goes on from there. The storage proves that a received file is a
//! whole snapshot; here it is made sure that it is the one that was offered. One transfer at a time: a second offer replaces the first.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use holdfast_storage::snapshot::{Incoming, SnapshotError, SnapshotFile, SnapshotStore};

use super::snapshot::{Described, SnapshotFiles};

/// Bytes that are hashed at once.
const PIECE_BYTES: usize = 1024 * 1024;

/// The snapshots of one replica.
pub struct StoredSnapshots {
    store: SnapshotStore,
    partial: Mutex<Option<Partial>>,
}

struct Partial {
    described: Described,
    incoming: Incoming,
    arrived: u64,
}

impl StoredSnapshots {
    /// Over the replica's folder of snapshots.
    pub fn new(store: SnapshotStore) -> Self {
        Self {
            store,
            partial: Mutex::new(None),
        }
    }

    fn partial(&self) -> MutexGuard<'_, Option<Partial>> {
        self.partial.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SnapshotFiles<SnapshotFile> for StoredSnapshots {
    fn describe(&self, snapshot: &SnapshotFile) -> io::Result<Described> {
        let mut hasher = blake3::Hasher::new();
        let mut offset = 0;
        while offset < snapshot.size() {
            let piece = self.read(snapshot, offset, PIECE_BYTES)?;
            if piece.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the snapshot file is shorter than it was",
                ));
            }
            hasher.update(&piece);
            offset += piece.len() as u64;
        }
        Ok(Described {
            bytes: snapshot.size(),
            digest: *hasher.finalize().as_bytes(),
        })
    }

    fn read(&self, snapshot: &SnapshotFile, offset: u64, most: usize) -> io::Result<Bytes> {
        let mut piece = vec![0; most];
        let mut filled = 0;
        while filled < most {
            let got = snapshot
                .read_at(&mut piece[filled..], offset + filled as u64)
                .map_err(io::Error::other)?;
            if got == 0 {
                break;
            }
            filled += got;
        }
        piece.truncate(filled);
        Ok(piece.into())
    }

    fn begin(&self, described: &Described) -> io::Result<u64> {
        let mut partial = self.partial();
        if let Some(there) = partial.as_ref().filter(|there| there.described == *described) {
            return Ok(there.arrived);
        }
        if let Some(old) = partial.take() {
            old.incoming.discard();
        }
        let incoming = self.store.receive().map_err(io::Error::other)?;
        *partial = Some(Partial {
            described: *described,
            incoming,
            arrived: 0,
        });
        Ok(0)
    }

    fn write(&self, described: &Described, offset: u64, piece: &Bytes) -> io::Result<()> {
        let mut partial = self.partial();
        let there = partial
            .as_mut()
            .filter(|there| there.described == *described && there.arrived == offset);
        let there = there.ok_or_else(replaced)?;
        there.incoming.write_at(piece, offset).map_err(io::Error::other)?;
        there.arrived += piece.len() as u64;
        Ok(())
    }

    fn finish(&self, described: &Described) -> io::Result<Option<SnapshotFile>> {
        let whole = self
            .partial()
            .take_if(|there| there.described == *described && there.arrived == described.bytes);
        match whole.ok_or_else(replaced)?.incoming.finish() {
            Ok(file) if self.describe(&file)? == *described => Ok(Some(file)),
            Ok(_) | Err(SnapshotError::Damaged { .. }) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

fn replaced() -> io::Error {
    io::Error::other("another snapshot is being received")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;
    use std::sync::Arc;

    use holdfast_storage::disk::memory::MemoryDisk;
    use holdfast_storage::snapshot::Header;
    use holdfast_storage::types::stored::MembersAt;

    use super::*;

    fn snapshots(seed: u64) -> StoredSnapshots {
        StoredSnapshots::new(SnapshotStore::open(Arc::new(MemoryDisk::new(seed)), Path::new("/s")).unwrap())
    }

    fn saved(at: &StoredSnapshots, body: &[u8]) -> SnapshotFile {
        let header = Header {
            last: None,
            members: MembersAt::default(),
            state_hash: [0; 32],
            body_hash: *blake3::hash(body).as_bytes(),
            body_bytes: body.len() as u64,
        };
        at.store.save(&header, body).unwrap()
    }

    #[test]
    fn a_snapshot_arrives_whole_and_goes_on_where_it_stopped() {
        let (from, to) = (snapshots(1), snapshots(2));
        for bytes in [0, 1, PIECE_BYTES - 1, 3 * PIECE_BYTES + 5] {
            let file = saved(&from, &vec![7; bytes]);
            let described = from.describe(&file).unwrap();
            let mut offset = to.begin(&described).unwrap();
            assert_eq!(offset, 0);
            while offset < described.bytes {
                let piece = from.read(&file, offset, 999_983).unwrap();
                to.write(&described, offset, &piece).unwrap();
                offset += piece.len() as u64;
                // The transfer breaks off after every piece.
                assert_eq!(to.begin(&described).unwrap(), offset);
            }
            let taken = to.finish(&described).unwrap().unwrap();
            assert_eq!(taken.body().unwrap(), vec![7; bytes]);
        }
    }

    #[test]
    fn what_is_not_what_was_offered_is_thrown_away() {
        let (from, to) = (snapshots(1), snapshots(2));
        let file = saved(&from, b"state");
        let mut described = from.describe(&file).unwrap();
        let whole = from.read(&file, 0, 1_000).unwrap();
        described.digest[0] ^= 1;
        to.begin(&described).unwrap();
        to.write(&described, 0, &whole).unwrap();
        assert!(to.finish(&described).unwrap().is_none());

        let described = from.describe(&file).unwrap();
        let mut damaged = whole.to_vec();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(to.begin(&described).unwrap(), 0);
        to.write(&described, 0, &damaged.into()).unwrap();
        assert!(to.finish(&described).unwrap().is_none());
    }

    #[test]
    fn a_piece_at_the_wrong_place_or_of_a_replaced_transfer_is_refused() {
        let (from, to) = (snapshots(1), snapshots(2));
        let described = from.describe(&saved(&from, b"state")).unwrap();
        to.begin(&described).unwrap();
        assert!(to.write(&described, 1, &Bytes::from_static(b"x")).is_err());
        to.begin(&Described { bytes: 1, ..described }).unwrap();
        assert!(to.write(&described, 0, &Bytes::from_static(b"x")).is_err());
        assert!(to.finish(&described).is_err());
    }
}
