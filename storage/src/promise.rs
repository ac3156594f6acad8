//! What each replica has acknowledged of the committed log, kept in a file of its own.
//!
//! Every replica keeps what it knows of all of them, itself too: leaders tell the others. So a Raft log that comes back
//! shorter than it was (an image that was rolled back, a folder restored from a copy, a drive that lost what it had
//! synced) is found out by its own node when it starts, and by the others under whatever leader comes next. Called by
//! the node's consensus.
//!
//! The rule: a promise covers committed entries only, so it never ends, and nothing may truncate what it covers.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_proto::frame::{self, FrameError};

use crate::disk::{Disk, Open};
use crate::types::stored::kind;

/// Node id to the last committed entry that the node has acknowledged.
pub type Promised = BTreeMap<u64, u64>;

/// Why promises could not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum PromiseError {
    /// The file system refused.
    #[error("keep what replicas have promised in {}", file.display())]
    Files {
        /// The file.
        file: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// A newer build wrote it, or it is damaged.
    #[error("read what replicas have promised in {}", file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        #[source]
        source: FrameError,
    },
}

/// The file.
#[derive(Debug, Clone)]
pub struct PromiseFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl PromiseFile {
    /// Names the file inside a data folder.
    pub fn in_data(disk: Arc<dyn Disk>, data: &Path) -> Self {
        Self {
            disk,
            path: data.join("promises"),
        }
    }

    /// Reads it; nothing was promised when there is none.
    ///
    /// # Errors
    /// [`PromiseError`] when it is there and cannot be read.
    pub fn load(&self) -> Result<Promised, PromiseError> {
        let file = match self.disk.open(&self.path, Open::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Promised::new()),
            Err(error) => return Err(self.failed(error)),
        };
        let mut bytes = vec![0; file.size().map_err(|error| self.failed(error))? as usize];
        file.read_at(&mut bytes, 0).map_err(|error| self.failed(error))?;
        let pairs = frame::decode::<Vec<(u64, u64)>>(kind::PROMISES, &bytes);
        let pairs = pairs.map_err(|source| PromiseError::Content {
            file: self.path.clone(),
            source,
        })?;
        Ok(pairs.into_iter().collect())
    }

    /// Replaces it, durably.
    ///
    /// # Errors
    /// [`PromiseError`]; what was there before is still there then.
    pub fn save(&self, promised: &Promised) -> Result<(), PromiseError> {
        self.write(promised).map_err(|error| self.failed(error))
    }

    fn write(&self, promised: &Promised) -> io::Result<()> {
        let pairs: Vec<(u64, u64)> = promised.iter().map(|(node, index)| (*node, *index)).collect();
        let unfinished = self.path.with_extension("new");
        let file = self.disk.open(&unfinished, Open::Create)?;
        file.write_at(&frame::encode(kind::PROMISES, &pairs), 0)?;
        file.sync_data()?;
        self.disk.rename(&unfinished, &self.path)?;
        self.disk.sync_dir(self.path.parent().unwrap_or(Path::new("/")))
    }

    fn failed(&self, source: io::Error) -> PromiseError {
        PromiseError::Files {
            file: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::disk::memory::{Faults, MemoryDisk};

    #[test]
    fn a_crash_at_every_disk_call_leaves_the_old_or_the_new_promises() {
        let (old, new) = (Promised::from([(1, 5)]), Promised::from([(1, 9), (2, 7)]));
        for call in 0..6 {
            let disk = MemoryDisk::new(call);
            disk.create_dir(Path::new("/data")).unwrap();
            let file = PromiseFile::in_data(Arc::new(disk.clone()), Path::new("/data"));
            assert_eq!(file.load().unwrap(), Promised::new());
            file.save(&old).unwrap();
            disk.set_faults(Faults {
                power_off_after: Some(call),
                ..Faults::default()
            });
            let saved = file.save(&new).is_ok();
            disk.crash();
            let found = file.load().unwrap();
            assert!(found == new || (found == old && !saved), "call {call}: {found:?}");
        }
    }
}
