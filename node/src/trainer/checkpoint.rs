//! How the trainer saves itself: the contract that any tenant's program can follow.
//!
//! `step-N.tmp/` is made, its files are written and synced, the manifest is written last, and the folder is
//! renamed to `step-N/`. The run loop saves and loads through here. The rule kept here: a folder named `step-N`
//! was complete when it got that name, and still nobody trusts it without checking the manifest.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::transfer::manifest::{self, MANIFEST_NAME, Manifest, ManifestFile, digest_of, step_name};

/// Checkpoints that are kept; older ones are removed after a newer one is complete.
const KEPT: usize = 2;

/// Why saving or loading failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    /// A file or folder could not be written.
    #[error("cannot write the checkpoint {path}")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The folder of checkpoints, or a file in it, could not be read.
    #[error("cannot read the checkpoints in {path}")]
    Read {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Saves these files as the checkpoint of a step. Durable when it returns.
pub(crate) fn save(place: &Path, step: u64, files: &[(&str, Vec<u8>)]) -> Result<(), CheckpointError> {
    let folder = place.join(step_name(step));
    write_folder(place, &folder, step, files).map_err(|source| CheckpointError::Write {
        path: folder.clone(),
        source,
    })?;
    remove_old(place).map_err(|source| CheckpointError::Write {
        path: place.to_owned(),
        source,
    })
}

fn write_folder(place: &Path, folder: &Path, step: u64, files: &[(&str, Vec<u8>)]) -> io::Result<()> {
    let temporary = place.join(format!("{}.tmp", step_name(step)));
    remove_if_there(&temporary)?;
    fs::create_dir_all(&temporary)?;
    let mut manifest = Manifest {
        step,
        files: Vec::with_capacity(files.len()),
    };
    for (name, content) in files {
        write_synced(&temporary.join(name), content)?;
        let file = ManifestFile {
            name: (*name).to_owned(),
            bytes: content.len() as u64,
            blake3: digest_of(content),
        };
        manifest.files.push(file);
    }
    write_synced(&temporary.join(MANIFEST_NAME), &manifest.to_bytes())?;
    File::open(&temporary)?.sync_all()?;
    // A folder of this step that is still there failed its check when this run began.
    remove_if_there(folder)?;
    fs::rename(&temporary, folder)?;
    File::open(place)?.sync_all()
}

fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn remove_if_there(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove_old(place: &Path) -> io::Result<()> {
    for (_, folder) in manifest::steps_in(place)?.into_iter().skip(KEPT) {
        remove_if_there(&folder)?;
    }
    Ok(())
}

/// The newest complete checkpoint: its step and where it lies.
pub(crate) fn newest(place: &Path) -> Result<Option<(u64, PathBuf)>, CheckpointError> {
    let found = manifest::newest_verified(place).map_err(|source| CheckpointError::Read {
        path: place.to_owned(),
        source,
    })?;
    Ok(found.map(|(folder, read)| (read.manifest.step, folder)))
}

/// The content of one of its files.
pub(crate) fn load(folder: &Path, name: &str) -> Result<Vec<u8>, CheckpointError> {
    let path = folder.join(name);
    fs::read(&path).map_err(|source| CheckpointError::Read { path, source })
}
