//! Snapshots: the whole state at one entry, as one file with a checksum and a state hash.
//!
//! The adapter builds and installs them; the node's consensus streams them between voters. A file is written under a
//! temporary name, synced, read back and compared, and only then renamed; the one before stays until then and a while
//! longer, so a damaged newest one has something to fall back to as long as the log reaches that far.
//!
//! The rule: whatever has a snapshot's name was proven once, and is proven again before it is used.

mod body;
mod file;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::{Disk, Open};
use crate::types::SnapshotMeta;
use crate::types::stored::{EntryId, MembersAt};

pub use body::{Body, Pause};
pub use file::{Header, SnapshotFile};

/// Bytes are written, read and compared in pieces of this size.
const PIECE: usize = 1 << 20;

/// Proven snapshots kept: the newest, and the one before it.
const KEPT: usize = 2;

/// Where the last damaged snapshot lies.
const DAMAGED: &str = "last.damaged";

/// A name begins with the index in this many digits.
const INDEX_DIGITS: usize = 20;

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
    /// A newer build wrote it.
    #[error("snapshot {} was written by a newer version of holdfast: {what}; upgrade this node and start it again", file.display())]
    Newer {
        /// The file.
        file: PathBuf,
        /// What this build does not know.
        what: String,
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
    ///
    /// A damaged one loses its name, so that it is not counted among those that can be fallen back to.
    pub fn newest(&self) -> Result<(Option<SnapshotFile>, Vec<SnapshotError>), SnapshotError> {
        let mut damaged = Vec::new();
        for name in self.names()?.into_iter().rev() {
            match self.read(&self.folder.dir.join(&name)) {
                Ok(file) => return Ok((Some(file), damaged)),
                Err(error @ SnapshotError::Damaged { .. }) => {
                    self.set_aside(&name)?;
                    damaged.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok((None, damaged))
    }

    /// Returns the last entry that even the oldest kept snapshot covers: entries up to it are needed by no restart,
    /// whichever snapshot is found damaged. `None` while there is nothing to fall back to.
    pub fn covered(&self) -> Result<Option<u64>, SnapshotError> {
        let names = self.names()?;
        if names.len() < KEPT {
            return Ok(None);
        }
        let oldest = &names[names.len() - KEPT];
        Ok(oldest.get(..INDEX_DIGITS).and_then(|digits| digits.parse().ok()))
    }

    /// Returns how many bytes the folder takes.
    pub fn disk_bytes(&self) -> Result<u64, SnapshotError> {
        let Folder { disk, dir, .. } = &*self.folder;
        let failed = |source| SnapshotError::Folder {
            dir: dir.clone(),
            source,
        };
        let mut bytes = 0;
        for name in disk.list(dir).map_err(failed)? {
            // One that is replaced just now is not counted.
            if let Ok(file) = disk.open(&dir.join(name), Open::Read) {
                bytes += file.size().map_err(failed)?;
            }
        }
        Ok(bytes)
    }

    /// Keeps the last damaged file beside, for whoever wants to look into it.
    fn set_aside(&self, name: &str) -> Result<(), SnapshotError> {
        let Folder { disk, dir, .. } = &*self.folder;
        let failed = |source| SnapshotError::Folder {
            dir: dir.clone(),
            source,
        };
        disk.rename(&dir.join(name), &dir.join(DAMAGED)).map_err(failed)?;
        disk.sync_dir(dir).map_err(failed)
    }

    /// Writes a snapshot, proves it and gives it its name.
    pub fn save(&self, header: &Header, body: &[u8]) -> Result<SnapshotFile, SnapshotError> {
        self.write(header.clone(), None, |out| out.put(body))
    }

    /// Writes a snapshot whose body comes piece by piece, proves it and gives it its name. What the header says of the
    /// body is found out; `pause` is called after each piece and may hold the writing up.
    pub fn write(
        &self,
        header: Header,
        pause: Option<&Pause>,
        fill: impl FnOnce(&mut Body<'_>) -> Result<(), SnapshotError>,
    ) -> Result<SnapshotFile, SnapshotError> {
        let incoming = self.receive()?;
        let mut body = Body::new(&incoming, &header, pause);
        match fill(&mut body).and_then(|()| body.close(header)) {
            Ok(()) => self.adopt(&incoming.finish()?),
            Err(error) => {
                incoming.discard();
                Err(error)
            }
        }
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
