//! Files that are there or not there, never half there: the few steps that the store is made of.
//!
//! Only the store calls this. The rule kept here: a function whose name says that something is written or synced
//! returns after the disk has it.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use holdfast_proto::id::Digest;

use super::{StoreError, disk};
use crate::transfer::manifest::Manifest;

/// Tenants' saved work is nobody else's to read.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const COPY_BYTES: usize = 256 << 10;

/// Makes a folder and its missing parents.
pub(super) fn create_folder(path: &Path) -> Result<(), StoreError> {
    let made = fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path);
    made.map_err(|error| disk("make the folder", path, error))
}

/// The paths in a folder; none when it does not exist.
pub(super) fn list(path: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(disk("list", path, error)),
    };
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(|error| disk("list", path, error))?;
    paths.sort();
    Ok(paths)
}

/// Removes a folder and all in it, if it is there.
pub(super) fn remove_folder(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk("remove", path, error)),
        _ => Ok(()),
    }
}

/// Writes a small file by a temporary name and a rename, and syncs both.
pub(super) fn write_whole(folder: &Path, name: &str, content: &[u8]) -> Result<(), StoreError> {
    let temporary = folder.join(format!("{name}.tmp"));
    let written = open_new(&temporary).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written.map_err(|error| disk("write", &temporary, error))?;
    rename(&temporary, &folder.join(name))?;
    sync_folder(folder)
}

/// A file for writing, emptied when it is there.
fn open_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(path)
}

/// A file for writing at its end, made when it is missing.
pub(super) fn open_end(path: &Path) -> Result<File, StoreError> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(path);
    opened.map_err(|error| disk("open", path, error))
}

/// Copies to a file below a folder, syncs it, and returns the digest of what was copied.
pub(super) fn copy_hashed(source: &mut impl Read, folder: &Path, name: &str) -> Result<Digest, StoreError> {
    let path = folder.join(name);
    create_parent(&path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; COPY_BYTES];
    let copied = (|| {
        let mut target = open_new(&path)?;
        loop {
            let read = source.read(&mut buffer)?;
            if read == 0 {
                return target.sync_all();
            }
            hasher.update(&buffer[..read]);
            target.write_all(&buffer[..read])?;
        }
    })();
    copied.map_err(|error| disk("copy to", &path, error))?;
    Ok(Digest(*hasher.finalize().as_bytes()))
}

/// Makes the folder that a file lies in.
pub(super) fn create_parent(path: &Path) -> Result<(), StoreError> {
    path.parent().map_or(Ok(()), create_folder)
}

/// Renames; durable after the folder is synced.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::rename(from, to).map_err(|error| disk("rename to", to, error))
}

/// Makes a file's bytes durable.
pub(super) fn sync_file(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|error| disk("sync", path, error))
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    sync_file(path)
}

/// Makes the names of all of a checkpoint's files durable, those in folders of their own too.
pub(super) fn sync_folders(folder: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    let mut folders = BTreeSet::from([folder.to_owned()]);
    for file in &manifest.files {
        let mut parent = Path::new(&file.name).parent();
        while let Some(part) = parent.filter(|part| !part.as_os_str().is_empty()) {
            folders.insert(folder.join(part));
            parent = part.parent();
        }
    }
    folders.iter().try_for_each(|folder| sync_folder(folder))
}
