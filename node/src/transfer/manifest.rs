//! The manifest of a checkpoint: the contract between the work and the node.
//!
//! The work makes `step-N.tmp/`, writes its files there, syncs them, writes `manifest.json` last, and renames
//! the folder to `step-N/`. The manifest names every file with its size and BLAKE3 digest, so a folder that was
//! cut short by a crash is recognised and passed over. The trainer writes manifests with this module; the node
//! reads them with it. The rule kept here: a tenant's folder is untrusted, so names cannot leave it, links are
//! not followed, and sizes are bounded before anything is read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use holdfast_proto::id::Digest;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};

/// The manifest's own file name; it is written last.
pub const MANIFEST_NAME: &str = "manifest.json";

/// Most bytes of one manifest: 15,000 files at about 200 bytes each, and within one frame of the transport.
pub const MANIFEST_BYTES_MAX: u64 = 3 << 20;

/// Most files in one checkpoint.
pub const FILES_MAX: usize = 15_000;

/// Most bytes of one file's name, path separators included.
pub const NAME_BYTES_MAX: usize = 512;

/// Bytes read at a time while hashing.
const READ_BYTES: usize = 128 << 10;

/// The BLAKE3 digest of these bytes.
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Path below the checkpoint's folder, `/` between its parts.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the content.
    pub blake3: Digest,
}

/// What a complete checkpoint consists of. Unknown keys are the work's own business and are kept in the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The step after which the work saved itself; the folder is named after it.
    pub step: u64,
    /// Every file, in the order in which the work wrote them.
    pub files: Vec<ManifestFile>,
}

/// A manifest that was read and found sound, with the bytes that its digest covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadManifest {
    /// What it says.
    pub manifest: Manifest,
    /// The file as it was written.
    pub bytes: Vec<u8>,
    /// BLAKE3 of `bytes`: the checkpoint's identity.
    pub digest: Digest,
}

/// Why a folder is not a complete checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The manifest or a file could not be opened or read.
    #[error("cannot read {name} of the checkpoint")]
    Read {
        /// Which file.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The manifest is larger than the bound.
    #[error("the manifest is larger than {MANIFEST_BYTES_MAX} bytes")]
    TooLarge,
    /// The manifest is not JSON of the expected form.
    #[error("the manifest is not well-formed")]
    Malformed(#[source] serde_json::Error),
    /// Too many files.
    #[error("the manifest names {0} files; at most {FILES_MAX} are taken")]
    TooManyFiles(usize),
    /// A name that is absolute, climbs out, repeats, or holds control characters.
    #[error("the manifest names a file {name:?}, which {reason}")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The folder's name and the manifest disagree.
    #[error("the folder is of step {folder}, its manifest of step {manifest}")]
    OtherStep {
        /// From the folder's name.
        folder: u64,
        /// From the manifest.
        manifest: u64,
    },
    /// A file does not have the size that the manifest gives.
    #[error("{name} has {found} bytes, the manifest says {expected}")]
    OtherSize {
        /// Which file.
        name: String,
        /// Size found.
        found: u64,
        /// Size expected.
        expected: u64,
    },
    /// A file does not have the content that the manifest gives.
    #[error("{name} does not match its digest in the manifest")]
    OtherContent {
        /// Which file.
        name: String,
    },
}

impl Manifest {
    /// Reads and checks a manifest from its bytes.
    ///
    /// # Errors
    /// When it is too large, malformed, or names what no checkpoint may hold.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLarge);
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(ManifestError::Malformed)?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), ManifestError> {
        if self.files.len() > FILES_MAX {
            return Err(ManifestError::TooManyFiles(self.files.len()));
        }
        let mut seen = BTreeSet::new();
        for file in &self.files {
            let reason = bad_name(&file.name).or_else(|| (!seen.insert(&file.name)).then_some("is there twice"));
            if let Some(reason) = reason {
                return Err(ManifestError::BadName {
                    name: file.name.clone(),
                    reason,
                });
            }
        }
        let total = self
            .files
            .iter()
            .try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
        total.map(|_| ()).ok_or(ManifestError::TooLarge)
    }

    /// The manifest's file content.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("strings and integers always serialise")
    }

    /// Size of all files together; `parse` has made sure that it fits.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Why a name is not taken, if it is not.
fn bad_name(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Some("is empty or too long");
    }
    if name == MANIFEST_NAME {
        return Some("is the manifest itself");
    }
    if name.chars().any(char::is_control) {
        return Some("holds control characters");
    }
    let mut parts = name.split('/');
    if parts.any(|part| part.is_empty() || part == "." || part == "..") {
        return Some("is not a plain relative path");
    }
    None
}

/// Reads the manifest of a folder; the files are not looked at.
///
/// # Errors
/// When there is none, or it is not sound.
pub fn read_manifest(folder: &Path) -> Result<ReadManifest, ManifestError> {
    let (file, bytes) = open_beneath(folder, MANIFEST_NAME)?;
    if bytes > MANIFEST_BYTES_MAX {
        return Err(ManifestError::TooLarge);
    }
    let mut content = Vec::new();
    file.take(MANIFEST_BYTES_MAX + 1)
        .read_to_end(&mut content)
        .map_err(read_error(MANIFEST_NAME))?;
    let manifest = Manifest::parse(&content)?;
    let digest = digest_of(&content);
    Ok(ReadManifest {
        manifest,
        bytes: content,
        digest,
    })
}

/// Reads the manifest and checks every file against it: the folder is a complete checkpoint, or the error says
/// why not.
///
/// # Errors
/// When anything is missing, short, or different.
pub fn verify(folder: &Path) -> Result<ReadManifest, ManifestError> {
    let read = read_manifest(folder)?;
    if let Some(step) = folder.file_name().and_then(|name| name.to_str()).and_then(step_of)
        && step != read.manifest.step
    {
        return Err(ManifestError::OtherStep {
            folder: step,
            manifest: read.manifest.step,
        });
    }
    for file in &read.manifest.files {
        verify_file(folder, file)?;
    }
    Ok(read)
}

pub(super) fn verify_file(folder: &Path, expected: &ManifestFile) -> Result<(), ManifestError> {
    let (mut file, _) = open_file(folder, expected)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = file.read(&mut buffer).map_err(read_error(&expected.name))?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    if hasher.finalize().as_bytes() != &expected.blake3.0 {
        return Err(ManifestError::OtherContent {
            name: expected.name.clone(),
        });
    }
    Ok(())
}

/// Opens a file of a checkpoint for reading and checks its size. The path is resolved below the folder, without
/// links: the folder is the tenant's, the reader may be root.
///
/// # Errors
/// When it is missing, not a regular file, behind a link, or of another size.
pub fn open_file(folder: &Path, expected: &ManifestFile) -> Result<(File, u64), ManifestError> {
    let (file, found) = open_beneath(folder, &expected.name)?;
    if found != expected.bytes {
        return Err(ManifestError::OtherSize {
            name: expected.name.clone(),
            found,
            expected: expected.bytes,
        });
    }
    Ok((file, found))
}

fn open_beneath(folder: &Path, name: &str) -> Result<(File, u64), ManifestError> {
    let opened = open_beneath_fd(folder, name)
        .map(File::from)
        .map_err(read_error(name))?;
    let metadata = opened.metadata().map_err(read_error(name))?;
    if !metadata.is_file() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        return Err(ManifestError::Read {
            name: name.to_owned(),
            source,
        });
    }
    Ok((opened, metadata.len()))
}

fn open_beneath_fd(folder: &Path, name: &str) -> io::Result<OwnedFd> {
    let folder_flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let folder = rustix::fs::open(folder, folder_flags, Mode::empty())?;
    // A FIFO would block the open without NONBLOCK; regular files ignore it.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(&folder, name, flags, Mode::empty(), resolve)?)
}

fn read_error(name: &str) -> impl Fn(io::Error) -> ManifestError + '_ {
    move |source| ManifestError::Read {
        name: name.to_owned(),
        source,
    }
}

/// The step of a complete checkpoint's folder name (`step-40` → 40). Only the canonical form counts, so no two
/// names mean one step.
pub fn step_of(folder_name: &str) -> Option<u64> {
    let step = folder_name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == folder_name).then_some(step)
}

/// The folder name of a step.
pub fn step_name(step: u64) -> String {
    format!("step-{step}")
}

/// The steps that have a folder in this place, newest first, complete or not.
///
/// # Errors
/// When the place cannot be listed; one that does not exist has no steps.
pub fn steps_in(place: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match std::fs::read_dir(place) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut steps = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some(step) = entry.file_name().to_str().and_then(step_of) {
            steps.push((step, entry.path()));
        }
    }
    steps.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
    Ok(steps)
}

/// The newest checkpoint in this place that is complete and matches its manifest. One that was cut short is
/// passed over for the one before it.
///
/// # Errors
/// When the place cannot be listed.
pub fn newest_verified(place: &Path) -> io::Result<Option<(PathBuf, ReadManifest)>> {
    let steps = steps_in(place)?;
    Ok(steps
        .into_iter()
        .find_map(|(_, folder)| verify(&folder).ok().map(|read| (folder, read))))
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
