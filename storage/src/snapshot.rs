//! Snapshots: the whole state at one entry, as one file with a checksum and a state hash.
//!
//! The adapter builds and installs them; the node's consensus streams them between voters. A file is written under a
//! temporary name, synced, read back and compared, and only then renamed; the one before stays until then and a while
//! longer, so a damaged newest one has something to fall back to as long as the log reaches that far.
//!
//! The rule: whatever has a snapshot's name was proven once, and is proven again before it is used.

mod file;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::{Disk, Open};
use crate::types::SnapshotMeta;
use crate::types::stored::{EntryId, MembersAt};

pub use file::{Header, SnapshotFile};

/// Bytes are written, read and compared in pieces of this size.
const PIECE: usize = 1 << 20;

/// Proven snapshots kept: the newest, and the one before it.
const KEPT: usize = 2;

/// Why a snapshot could not be kept or used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The folder could not be made, listed or synced.
    #[error("open snapshot folder {}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// A file could not be written; the disk may be full.
    #[error("write snapshot {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// A file could not be read.
    #[error("read snapshot {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// The bytes are not the snapshot that was written.
    #[error("snapshot {} is damaged: {what}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// The folder of a replica's snapshots; clones share it.
#[derive(Debug, Clone)]
pub struct SnapshotStore {
    folder: Arc<Folder>,
}

#[derive(Debug)]
struct Folder {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Numbers temporary files, so that two at once do not meet.
    next: AtomicU64,
}

/// A snapshot that is being received; see [`SnapshotStore::receive`].
#[derive(Debug)]
pub struct Incoming {
    store: SnapshotStore,
    path: PathBuf,
    file: Arc<dyn crate::disk::DiskFile>,
}

impl SnapshotStore {
    /// Opens the folder, makes it when it is missing, and clears away what was never finished.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<Self, SnapshotError> {
        let folder = Folder {
            disk,
            dir: dir.to_owned(),
            next: AtomicU64::new(0),
        };
        let failed = |source| SnapshotError::Folder {
            dir: dir.to_owned(),
            source,
        };
        folder.disk.create_dir(dir).map_err(failed)?;
        for name in folder.disk.list(dir).map_err(failed)? {
            if name.ends_with(".tmp") {
                folder.disk.remove(&dir.join(name)).map_err(failed)?;
            }
        }
        if let Some(parent) = dir.parent() {
            folder.disk.sync_dir(parent).map_err(failed)?;
        }
        Ok(Self {
            folder: Arc::new(folder),
        })
    }

    /// Returns the newest snapshot that is whole, and the damaged ones that were passed over to find it.
    pub fn newest(&self) -> Result<(Option<SnapshotFile>, Vec<SnapshotError>), SnapshotError> {
        let mut damaged = Vec::new();
        for name in self.names()?.into_iter().rev() {
            match self.read(&self.folder.dir.join(name)) {
                Ok(file) => return Ok((Some(file), damaged)),
                Err(error @ SnapshotError::Damaged { .. }) => damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok((None, damaged))
    }

    /// Writes a snapshot, proves it and gives it its name.
    pub fn save(&self, header: &Header, body: &[u8]) -> Result<SnapshotFile, SnapshotError> {
        let incoming = self.receive()?;
        if let Err(error) = fill(&incoming, header, body) {
            incoming.discard();
            return Err(error);
        }
        self.adopt(&incoming.finish()?)
    }

    /// Begins to receive a snapshot: the caller writes its bytes at any offsets, and finishes.
    pub fn receive(&self) -> Result<Incoming, SnapshotError> {
        let number = self.folder.next.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.dir.join(format!("incoming-{number}.tmp"));
        let opened = self.folder.disk.open(&path, Open::Create);
        let file = opened.map_err(|source| SnapshotError::Write {
            file: path.clone(),
            source,
        })?;
        Ok(Incoming {
            store: self.clone(),
            path,
            file,
        })
    }

    /// Takes a proven snapshot into this folder under its own name, durably, and lets go of old ones.
    ///
    /// One that lies in another folder is copied; that is how replicas in one process hand them over.
    pub fn adopt(&self, snapshot: &SnapshotFile) -> Result<SnapshotFile, SnapshotError> {
        let Folder { disk, dir, .. } = &*self.folder;
        let path = dir.join(name(snapshot.header.last));
        if snapshot.path == path && snapshot.folder_is(&self.folder) {
            return Ok(snapshot.clone());
        }
        if !snapshot.folder_is(&self.folder) {
            let incoming = self.receive()?;
            snapshot.read_pieces(|offset, piece| incoming.write_at(piece, offset))?;
            return self.adopt(&incoming.finish()?);
        }
        let failed = |source| SnapshotError::Write {
            file: path.clone(),
            source,
        };
        disk.rename(&snapshot.path, &path).map_err(failed)?;
        disk.sync_dir(dir).map_err(failed)?;
        self.remove_old()?;
        Ok(snapshot.renamed(path))
    }

    fn names(&self) -> Result<Vec<String>, SnapshotError> {
        let Folder { disk, dir, .. } = &*self.folder;
        let names = disk.list(dir).map_err(|source| SnapshotError::Folder {
            dir: dir.clone(),
            source,
        })?;
        Ok(names.into_iter().filter(|name| name.ends_with(".snap")).collect())
    }

    fn read(&self, path: &Path) -> Result<SnapshotFile, SnapshotError> {
        let opened = self.folder.disk.open(path, Open::Read);
        let file = opened.map_err(|source| SnapshotError::Read {
            file: path.to_owned(),
            source,
        })?;
        SnapshotFile::prove(self.folder.clone(), path.to_owned(), file)
    }

    fn remove_old(&self) -> Result<(), SnapshotError> {
        let Folder { disk, dir, .. } = &*self.folder;
        let failed = |source| SnapshotError::Folder {
            dir: dir.clone(),
            source,
        };
        let names = self.names()?;
        for old in names.iter().rev().skip(KEPT) {
            disk.remove(&dir.join(old)).map_err(failed)?;
        }
        disk.sync_dir(dir).map_err(failed)
    }
}

impl Incoming {
    /// Writes a piece at its offset.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), SnapshotError> {
        let written = self.file.write_at(bytes, offset);
        written.map_err(|source| SnapshotError::Write {
            file: self.path.clone(),
            source,
        })
    }

    /// Syncs what was received and proves that it is a whole snapshot. It has no name yet; see [`SnapshotStore::adopt`].
    pub fn finish(self) -> Result<SnapshotFile, SnapshotError> {
        let (folder, path) = (self.store.folder.clone(), self.path.clone());
        let synced = self.file.sync_data();
        let proven = synced
            .map_err(|source| SnapshotError::Write {
                file: path.clone(),
                source,
            })
            .and_then(|()| SnapshotFile::prove(folder, path, self.file.clone()));
        if proven.is_err() {
            self.discard();
        }
        proven
    }

    /// Gives up, and the space back.
    pub fn discard(self) {
        // What cannot be removed now is removed when the folder is opened next.
        let _ = self.store.folder.disk.remove(&self.path);
    }
}

fn fill(incoming: &Incoming, header: &Header, body: &[u8]) -> Result<(), SnapshotError> {
    let head = file::encode_header(header);
    incoming.write_at(&head, 0)?;
    for (at, piece) in body.chunks(PIECE).enumerate() {
        incoming.write_at(piece, (head.len() + at * PIECE) as u64)?;
    }
    Ok(())
}

/// Names sort by index, so the last one is the newest.
fn name(last: Option<EntryId>) -> String {
    let EntryId { term, node, index } = last.unwrap_or(EntryId {
        term: 0,
        node: 0,
        index: 0,
    });
    format!("{index:020}-{term:020}-{node:016x}.snap")
}

impl Header {
    /// Returns what the snapshot covers, as openraft puts it.
    pub fn meta(&self) -> Result<SnapshotMeta, crate::types::stored::MembersError> {
        Ok(SnapshotMeta {
            last_log_id: self.last.map(Into::into),
            last_membership: MembersAt::try_into(self.members.clone())?,
        })
    }
}
