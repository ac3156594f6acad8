//! Checkpoints that are still arriving: offers, pieces, and the commit that gives them their place.
//!
//! What has arrived lies under `incoming/` with its manifest, so a transfer goes on after a crash of either side.
//! The length of a file is how far it has come; after a power loss its content may still be wrong, which is why the
//! commit reads everything again. The rule kept here: the content is judged by the manifest alone, never by what the
//! sender says of a piece.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use holdfast_proto::id::{Digest, Fence, FencingToken};

use super::{Committed, Held, INCOMING_NAME, Offered, Placed, Store, StoreError, disk, durable, file_of};
use crate::transfer::manifest::{self, MANIFEST_NAME, Manifest, ManifestFile, ReadManifest};
use crate::transfer::wire::{CheckpointName, Need};

impl Store {
    /// Takes an offer: shows its token, and says what is missing. Files that another checkpoint of the lease has are
    /// linked, not asked for.
    ///
    /// # Errors
    /// When the token is old, the manifest is not sound, or the disk fails.
    pub fn offer(&self, name: CheckpointName, manifest_bytes: &[u8]) -> Result<Offered, StoreError> {
        let manifest = Manifest::parse(manifest_bytes)?;
        if manifest.step != name.step {
            return Err(StoreError::OtherStep {
                named: name.step,
                manifest: manifest.step,
            });
        }
        self.show(name.lease, name.fence)?;
        let digest = manifest::digest_of(manifest_bytes);
        if let Ok(there) = manifest::read_manifest(&self.place_of(&name)) {
            return if there.digest == digest {
                Ok(Offered::Held)
            } else {
                Err(StoreError::Conflict { step: name.step })
            };
        }
        let folder = self.incoming_folder(&name);
        if manifest::read_manifest(&folder).is_ok_and(|before| before.digest != digest) {
            durable::remove_folder(&folder)?;
        }
        durable::create_folder(&folder)?;
        durable::write_whole(&folder, MANIFEST_NAME, manifest_bytes)?;
        let needs = self.stage_files(&name, &folder, &manifest)?;
        let read = Arc::new(ReadManifest {
            manifest,
            bytes: manifest_bytes.to_vec(),
            digest,
        });
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name, read);
        Ok(Offered::Needed(needs))
    }

    fn stage_files(&self, name: &CheckpointName, folder: &Path, manifest: &Manifest) -> Result<Vec<Need>, StoreError> {
        let held = self.held(name.lease)?;
        let mut needs = Vec::new();
        for (index, file) in manifest.files.iter().enumerate() {
            let path = folder.join(&file.name);
            durable::create_parent(&path)?;
            let there = fs::symlink_metadata(&path).ok().map(|metadata| metadata.len());
            let offset = match there {
                Some(length) if length <= file.bytes => length,
                Some(_) => {
                    fs::remove_file(&path).map_err(|error| disk("remove", &path, error))?;
                    0
                }
                None if link_from(&held, file, folder) => file.bytes,
                None => 0,
            };
            if offset < file.bytes {
                let file = u32::try_from(index).expect("a manifest's files are bounded");
                needs.push(Need { file, offset });
            } else if file.bytes == 0 {
                durable::open_end(&path)?;
            }
        }
        Ok(needs)
    }

    /// Writes a piece where the file ends; anywhere else it is refused with where that is.
    ///
    /// # Errors
    /// When the token is old, there is no open offer, the file would get too long, or the disk fails.
    pub fn place(&self, name: CheckpointName, file: u32, offset: u64, bytes: &[u8]) -> Result<Placed, StoreError> {
        self.check(&name)?;
        let read = self.open_offer(&name)?;
        let expected = file_of(&read.manifest, file)?;
        let path = self.incoming_folder(&name).join(&expected.name);
        let target = durable::open_end(&path)?;
        let end = target.metadata().map_err(|error| disk("read", &path, error))?.len();
        if end != offset {
            return Ok(Placed::At(end));
        }
        let after = offset.saturating_add(bytes.len() as u64);
        if after > expected.bytes {
            return Err(StoreError::TooLong { file });
        }
        target
            .write_all_at(bytes, offset)
            .map_err(|error| disk("write", &path, error))?;
        Ok(Placed::Took(after))
    }

    /// Writes a whole file of an open offer from a source.
    pub(super) fn replace(
        &self,
        name: &CheckpointName,
        file: &ManifestFile,
        source: &mut impl Read,
    ) -> Result<(), StoreError> {
        // The source may have grown since its size was checked; what is beyond is not the checkpoint's.
        let mut bounded = source.take(file.bytes);
        durable::copy_hashed(&mut bounded, &self.incoming_folder(name), &file.name).map(|_| ())
    }

    /// Reads everything again, and gives the checkpoint its place when all of it matches the manifest. Durable when
    /// it returns `Held`.
    ///
    /// # Errors
    /// When the token is old, there is no open offer of this manifest, or the disk fails.
    pub fn commit(&self, name: CheckpointName, manifest: Digest) -> Result<Committed, StoreError> {
        self.check(&name)?;
        let place = self.place_of(&name);
        if manifest::read_manifest(&place).is_ok_and(|there| there.digest == manifest) {
            return Ok(Committed::Held);
        }
        let read = self.open_offer(&name)?;
        if read.digest != manifest {
            return Err(StoreError::NotOffered);
        }
        let folder = self.incoming_folder(&name);
        let corrupt = remove_corrupt(&folder, &read.manifest)?;
        if !corrupt.is_empty() {
            return Ok(Committed::Corrupt(corrupt));
        }
        for file in &read.manifest.files {
            durable::sync_file(&folder.join(&file.name))?;
        }
        durable::sync_folders(&folder, &read.manifest)?;
        self.give_place(&name, &folder, &place)?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        Ok(Committed::Held)
    }

    fn give_place(&self, name: &CheckpointName, folder: &Path, place: &Path) -> Result<(), StoreError> {
        let mut fences = self.fences();
        let shown = self.shown_in(&mut fences, name.lease)?;
        if name.fence < shown {
            return Err(StoreError::Stale { shown });
        }
        let lease = self.lease_folder(name.lease);
        let start = lease.join(start_name(name));
        durable::create_folder(&start)?;
        durable::rename(folder, place)?;
        durable::sync_folder(&start)?;
        durable::sync_folder(&lease)?;
        durable::sync_folder(&self.root)
    }

    fn open_offer(&self, name: &CheckpointName) -> Result<Arc<ReadManifest>, StoreError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = open.get(name) {
            return Ok(read.clone());
        }
        let read = manifest::read_manifest(&self.incoming_folder(name)).map_err(|_| StoreError::NotOffered)?;
        Ok(open.entry(*name).or_insert(Arc::new(read)).clone())
    }

    pub(super) fn incoming_folder(&self, name: &CheckpointName) -> PathBuf {
        let folder = format!("{}-{}", start_name(name), manifest::step_name(name.step));
        self.lease_folder(name.lease).join(INCOMING_NAME).join(folder)
    }

    fn place_of(&self, name: &CheckpointName) -> PathBuf {
        self.lease_folder(name.lease)
            .join(start_name(name))
            .join(manifest::step_name(name.step))
    }
}

/// The folder of one start's checkpoints. A start has a folder of its own, so that not even a store that forgot a
/// token would mix two of them.
fn start_name(name: &CheckpointName) -> String {
    let Fence { token, epoch, attempt } = name.fence;
    format!("t{token}-e{epoch}-a{attempt}-r{}", name.rank)
}

/// The token in the name of an incoming folder, as far as its order needs it.
pub(super) fn fence_of(folder: &Path) -> Option<Fence> {
    let mut parts = folder.file_name()?.to_str()?.split('-');
    let token: FencingToken = parts.next()?.strip_prefix('t')?.parse().ok()?;
    let epoch = parts.next()?.strip_prefix('e')?.parse().ok()?;
    let attempt = parts.next()?.strip_prefix('a')?.parse().ok()?;
    Some(Fence {
        token,
        epoch: holdfast_proto::id::Epoch(epoch),
        attempt: holdfast_proto::id::Attempt(attempt),
    })
}

/// Links a file from a checkpoint that is in its place, if its bytes there are still good: a link to a damaged file
/// would be found out only after everything else was sent.
fn link_from(held: &[Held], wanted: &ManifestFile, folder: &Path) -> bool {
    let source = held.iter().find_map(|held| {
        let file = held
            .read
            .manifest
            .files
            .iter()
            .find(|file| file.blake3 == wanted.blake3 && file.bytes > 0)?;
        Some(held.folder.join(&file.name))
    });
    let path = folder.join(&wanted.name);
    let linked = source.is_some_and(|source| fs::hard_link(source, &path).is_ok());
    if linked && manifest::verify_file(folder, wanted).is_err() {
        let _ = fs::remove_file(&path);
        return false;
    }
    linked
}

/// Removes the files that do not match, so that they are asked for again, and names them.
fn remove_corrupt(folder: &Path, manifest: &Manifest) -> Result<Vec<u32>, StoreError> {
    let mut corrupt = Vec::new();
    for (index, file) in manifest.files.iter().enumerate() {
        if manifest::verify_file(folder, file).is_err() {
            let path = folder.join(&file.name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(disk("remove", &path, error)),
                _ => corrupt.push(u32::try_from(index).expect("a manifest's files are bounded")),
            }
        }
    }
    Ok(corrupt)
}
