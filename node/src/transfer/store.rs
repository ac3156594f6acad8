//! A node's store of checkpoints: whole, verified, durable, and fenced.
//!
//! `<root>/lease-N/` holds the newest token shown (`fence.json`), complete checkpoints
//! (`t<era>.<index>-e<epoch>-a<attempt>-r<rank>/step-N/`) and, under `incoming/`, those that are still arriving. The
//! receiver, the watcher of local work and the fetcher write it; restores read it. All calls block. The rules kept
//! here: a checkpoint gets its place by one rename after everything in it was verified and synced; nothing older
//! than the newest token shown gets a place; files in place are never written again, so they may be linked.

mod durable;
mod staging;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_proto::id::{Digest, Fence, LeaseId};

use super::manifest::{self, MANIFEST_NAME, Manifest, ManifestError, ManifestFile, ReadManifest};
use super::wire::{CheckpointName, Need, PIECE_BYTES};

const FENCE_NAME: &str = "fence.json";
const INCOMING_NAME: &str = "incoming";

/// Why the store did not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A newer token was shown; nothing of this one is taken any more.
    #[error("the store was shown a newer token, {}.{}", shown.token, shown.attempt)]
    Stale {
        /// The newest token shown.
        shown: Fence,
    },
    /// The manifest or what it names is not sound.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The manifest is of another step than its name.
    #[error("the manifest of step {manifest} was offered as step {named}")]
    OtherStep {
        /// From the name.
        named: u64,
        /// From the manifest.
        manifest: u64,
    },
    /// The same start saved the same step twice with different content.
    #[error("step {step} of this start is held with other content")]
    Conflict {
        /// The step.
        step: u64,
    },
    /// No offer of this checkpoint is open.
    #[error("this checkpoint was not offered")]
    NotOffered,
    /// A file that the manifest does not have.
    #[error("the manifest has no file {0}")]
    NoSuchFile(u32),
    /// More bytes than the manifest gives the file.
    #[error("file {file} would get longer than the manifest says")]
    TooLong {
        /// Place in the manifest.
        file: u32,
    },
    /// The checkpoint is not in this store.
    #[error("this store does not hold the checkpoint")]
    NotHeld,
    /// The file system failed.
    #[error("cannot {action} {path}")]
    Disk {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What an offer was answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offered {
    /// It is here already, whole.
    Held,
    /// These files are missing or not whole.
    Needed(Vec<Need>),
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// Written; the file ends here now.
    Took(u64),
    /// Not written; the file ends here.
    At(u64),
}

/// What a commit was answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    /// In its place, verified and durable.
    Held,
    /// These files did not match; they were removed and must be sent again.
    Corrupt(Vec<u32>),
}

/// A complete checkpoint in the store.
#[derive(Debug, Clone)]
pub struct Held {
    /// Where it lies.
    pub folder: PathBuf,
    /// Its manifest.
    pub read: ReadManifest,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    /// Tokens shown, as on disk. Held while a token is written or a checkpoint gets its place, so that no place is
    /// given to a token that has just become old.
    fences: Mutex<BTreeMap<LeaseId, Fence>>,
    /// Manifests of open offers, so that a piece does not read one from disk.
    open: Mutex<BTreeMap<CheckpointName, Arc<ReadManifest>>>,
}

impl Store {
    /// Opens the store of a node, which is made when it is missing.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(root: PathBuf) -> Result<Self, StoreError> {
        durable::create_folder(&root)?;
        Ok(Self {
            root,
            fences: Mutex::default(),
            open: Mutex::default(),
        })
    }

    /// Shows a token: from now on nothing older is taken. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::Stale`] when a newer one was shown; a disk error means that the token may or may not count.
    pub fn show(&self, lease: LeaseId, fence: Fence) -> Result<(), StoreError> {
        let mut fences = self.fences();
        let shown = self.shown_in(&mut fences, lease)?;
        if fence < shown {
            return Err(StoreError::Stale { shown });
        }
        if fence > shown {
            let folder = self.lease_folder(lease);
            durable::create_folder(&folder)?;
            let text = serde_json::to_vec(&fence).expect("numbers always serialise");
            durable::write_whole(&folder, FENCE_NAME, &text)?;
            fences.insert(lease, fence);
        }
        Ok(())
    }

    /// The newest token shown for a lease.
    ///
    /// # Errors
    /// When the disk does not say.
    pub fn shown(&self, lease: LeaseId) -> Result<Fence, StoreError> {
        self.shown_in(&mut self.fences(), lease)
    }

    fn shown_in(&self, fences: &mut BTreeMap<LeaseId, Fence>, lease: LeaseId) -> Result<Fence, StoreError> {
        if let Some(fence) = fences.get(&lease) {
            return Ok(*fence);
        }
        let path = self.lease_folder(lease).join(FENCE_NAME);
        let fence = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| disk("read", &path, error.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Fence::default(),
            Err(error) => return Err(disk("read", &path, error)),
        };
        fences.insert(lease, fence);
        Ok(fence)
    }

    /// Refuses a token that is older than the newest shown.
    fn check(&self, name: &CheckpointName) -> Result<(), StoreError> {
        let shown = self.shown(name.lease)?;
        if name.fence < shown {
            Err(StoreError::Stale { shown })
        } else {
            Ok(())
        }
    }

    /// All complete checkpoints of a lease; one whose manifest cannot be read is passed over.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn held(&self, lease: LeaseId) -> Result<Vec<Held>, StoreError> {
        let folder = self.lease_folder(lease);
        let mut held = Vec::new();
        for start in durable::list(&folder)?.into_iter().filter(|path| is_start(path)) {
            for (_, folder) in manifest::steps_in(&start).map_err(|error| disk("list", &start, error))? {
                held.extend(manifest::read_manifest(&folder).ok().map(|read| Held { folder, read }));
            }
        }
        Ok(held)
    }

    /// The checkpoint with this manifest, if it is here.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn find(&self, lease: LeaseId, manifest: Digest) -> Result<Option<Held>, StoreError> {
        Ok(self.held(lease)?.into_iter().find(|held| held.read.digest == manifest))
    }

    /// Reads a part of a file of a checkpoint that is here; at most [`PIECE_BYTES`].
    ///
    /// # Errors
    /// When it is not here, or cannot be read.
    pub fn read(&self, held: &Held, file: u32, offset: u64, bytes: u32) -> Result<Vec<u8>, StoreError> {
        let wanted = file_of(&held.read.manifest, file)?;
        let (opened, size) = manifest::open_file(&held.folder, wanted)?;
        let left = size.saturating_sub(offset);
        let length = u64::from(bytes.min(PIECE_BYTES)).min(left);
        let mut buffer = vec![0; usize::try_from(length).expect("a piece fits into memory")];
        opened
            .read_exact_at(&mut buffer, offset)
            .map_err(|error| disk("read", &held.folder.join(&wanted.name), error))?;
        Ok(buffer)
    }

    /// Takes a checkpoint from a folder of local work into the store: copied, verified, synced, in its place.
    ///
    /// # Errors
    /// When the folder is not a complete checkpoint, the token is old, or the disk fails.
    pub fn take_in(&self, name: CheckpointName, folder: &Path) -> Result<ReadManifest, StoreError> {
        let read = manifest::read_manifest(folder)?;
        if let Offered::Needed(needs) = self.offer(name, &read.bytes)? {
            for need in needs {
                let file = file_of(&read.manifest, need.file)?;
                let (mut source, _) = manifest::open_file(folder, file)?;
                self.replace(&name, file, &mut source)?;
            }
            match self.commit(name, read.digest)? {
                Committed::Held => {}
                Committed::Corrupt(files) => {
                    let name = file_of(&read.manifest, files[0])?.name.clone();
                    return Err(ManifestError::OtherContent { name }.into());
                }
            }
        }
        Ok(read)
    }

    /// Copies a checkpoint out of the store into a folder of local work, checking every byte on the way. The copy
    /// appears whole, by one rename.
    ///
    /// # Errors
    /// When it is not here, does not match its manifest any more, or the disk fails.
    pub fn restore(&self, lease: LeaseId, manifest: Digest, into: &Path) -> Result<(), StoreError> {
        let held = self.find(lease, manifest)?.ok_or(StoreError::NotHeld)?;
        let step = held.read.manifest.step;
        let place = into.join(manifest::step_name(step));
        if manifest::verify(&place).is_ok_and(|there| there.digest == manifest) {
            return Ok(());
        }
        durable::create_folder(into)?;
        let temporary = into.join(format!("{}.tmp", manifest::step_name(step)));
        durable::remove_folder(&temporary)?;
        durable::create_folder(&temporary)?;
        for file in &held.read.manifest.files {
            let (mut source, _) = manifest::open_file(&held.folder, file)?;
            let digest = durable::copy_hashed(&mut source, &temporary, &file.name)?;
            if digest != file.blake3 {
                return Err(ManifestError::OtherContent {
                    name: file.name.clone(),
                }
                .into());
            }
        }
        durable::write_whole(&temporary, MANIFEST_NAME, &held.read.bytes)?;
        durable::sync_folders(&temporary, &held.read.manifest)?;
        durable::remove_folder(&place)?;
        durable::rename(&temporary, &place)?;
        durable::sync_folder(into)
    }

    /// Removes every complete checkpoint of a lease that is not to be kept, and offers of older tokens.
    ///
    /// # Errors
    /// When the disk fails; what was removed stays removed.
    pub fn retain(&self, lease: LeaseId, keep: impl Fn(&ReadManifest) -> bool) -> Result<(), StoreError> {
        for held in self.held(lease)? {
            if !keep(&held.read) {
                durable::remove_folder(&held.folder)?;
            }
        }
        let shown = self.shown(lease)?;
        let lease_folder = self.lease_folder(lease);
        for start in durable::list(&lease_folder)?.into_iter().filter(|path| is_start(path)) {
            // Fails, and should, on a folder that still holds a checkpoint.
            let _ = std::fs::remove_dir(start);
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|name, _| name.lease != lease || name.fence >= shown);
        let current: Vec<PathBuf> = open
            .keys()
            .filter(|name| name.lease == lease)
            .map(|name| self.incoming_folder(name))
            .collect();
        for folder in durable::list(&lease_folder.join(INCOMING_NAME))? {
            // An offer of the present token that a restart has forgotten is continued by the next one.
            if !current.contains(&folder) && staging::fence_of(&folder).is_none_or(|fence| fence < shown) {
                durable::remove_folder(&folder)?;
            }
        }
        Ok(())
    }

    /// Removes everything of a lease that has ended, its token too.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn forget(&self, lease: LeaseId) -> Result<(), StoreError> {
        let mut fences = self.fences();
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|name, _| name.lease != lease);
        durable::remove_folder(&self.lease_folder(lease))?;
        fences.remove(&lease);
        Ok(())
    }

    /// The leases that have a folder here.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        let paths = durable::list(&self.root)?;
        let names = paths.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
        Ok(names.collect())
    }

    fn fences(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Fence>> {
        // Entries mirror files that are written whole, so a panicking holder leaves nothing half done.
        self.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease_folder(&self, lease: LeaseId) -> PathBuf {
        self.root.join(lease.to_string())
    }
}

/// Whether this is the folder of one start's checkpoints.
fn is_start(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with('t'))
}

fn file_of(manifest: &Manifest, file: u32) -> Result<&ManifestFile, StoreError> {
    manifest.files.get(file as usize).ok_or(StoreError::NoSuchFile(file))
}

fn disk(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Disk {
        action,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
