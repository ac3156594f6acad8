//! The executor's own memory on disk: which attempts it began to spawn, and which ends it still has to report.
//!
//! The executor appends before it acts and reads everything back at its start. It lies outside the replica's files, so
//! it survives the install of a snapshot and knows what the state has forgotten. The rule: an attempt that is in here
//! as spawned is never spawned again, whatever became of its processes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_proto::placement::Exit;
use holdfast_storage::disk::{Disk, DiskFile, Open};
use serde::{Deserialize, Serialize};

use super::duty::RunKey;

/// Length and checksum before each record.
const HEADER_BYTES: usize = 8;
/// Longer records do not exist; a length beyond it is damage.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// Beyond this size the file is rewritten with what still matters.
const COMPACT_BYTES: u64 = 1 << 20;
/// File names in the executor's folder.
const FILE: &str = "journal";
const REWRITTEN: &str = "journal.new";

/// What is remembered of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// It is about to be spawned.
    Spawning(RunKey),
    /// It has ended; the log may not know yet.
    Ended(RunKey, Exit),
    /// Nobody will ask for it again.
    Forgotten(RunKey),
}

/// What the journal says of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remembered {
    /// It was spawned, or was about to be.
    Spawned,
    /// It ended like this.
    Ended(Exit),
}

/// Why the journal cannot be used. The executor does nothing then: it could start something twice.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be read.
    #[error("read the executor's journal {0}")]
    Read(PathBuf, #[source] io::Error),
    /// A record in the middle is damaged.
    #[error("the executor's journal {0} is damaged at byte {1}")]
    Damaged(PathBuf, usize),
    /// A record could not be made durable. Final: a failed sync is never tried again.
    #[error("write the executor's journal {0}")]
    Write(PathBuf, #[source] io::Error),
    /// An earlier write failed.
    #[error("the executor's journal has failed before")]
    Failed,
}

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    file: Arc<dyn DiskFile>,
    end: u64,
    runs: BTreeMap<RunKey, Remembered>,
    failed: bool,
}

impl Journal {
    /// Opens the journal in a folder, or makes it. A record torn by a crash at the end of the file is dropped: its
    /// append was never acknowledged, so nothing was done on the strength of it.
    pub fn open(disk: Arc<dyn Disk>, folder: &Path) -> Result<Self, JournalError> {
        let path = folder.join(FILE);
        let failed = |error| JournalError::Read(path.clone(), error);
        disk.create_dir(folder).map_err(failed)?;
        let bytes = match disk.open(&path, Open::Read) {
            Ok(file) => read_all(file.as_ref()).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        let runs = replay(&path, &bytes)?;
        // Rewriting at each start drops the torn tail and everything forgotten.
        let (file, end) = rewrite(disk.as_ref(), folder, &runs)?;
        Ok(Self {
            disk,
            folder: folder.to_owned(),
            file,
            end,
            runs,
            failed: false,
        })
    }

    /// What is remembered.
    pub fn runs(&self) -> &BTreeMap<RunKey, Remembered> {
        &self.runs
    }

    /// Makes entries durable. What the journal says already is not written again.
    pub fn append(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        if self.failed {
            return Err(JournalError::Failed);
        }
        let new: Vec<Entry> = entries
            .iter()
            .filter(|entry| remember(&mut self.runs, entry))
            .cloned()
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let bytes = encode(&new);
        let written = self
            .file
            .write_at(&bytes, self.end)
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            self.failed = true;
            return Err(JournalError::Write(self.folder.join(FILE), error));
        }
        self.end += bytes.len() as u64;
        if self.end > COMPACT_BYTES {
            let rewritten = rewrite(self.disk.as_ref(), &self.folder, &self.runs);
            self.failed = rewritten.is_err();
            (self.file, self.end) = rewritten?;
        }
        Ok(())
    }
}

/// Takes an entry in. False when it says nothing new.
fn remember(runs: &mut BTreeMap<RunKey, Remembered>, entry: &Entry) -> bool {
    match entry {
        // An end is never undone by a late intention.
        Entry::Spawning(run) if runs.contains_key(run) => false,
        Entry::Spawning(run) => runs.insert(*run, Remembered::Spawned).is_none(),
        // The first end that was recorded is the one that was reported.
        Entry::Ended(run, _) if matches!(runs.get(run), Some(Remembered::Ended(_))) => false,
        Entry::Ended(run, exit) => {
            runs.insert(*run, Remembered::Ended(exit.clone()));
            true
        }
        Entry::Forgotten(run) => runs.remove(run).is_some(),
    }
}

/// One record for all entries of an append, so that a torn append is torn as a whole.
fn encode(entries: &[Entry]) -> Vec<u8> {
    let record = serde_json::to_vec(entries).expect("ids and texts have a JSON form");
    let length = u32::try_from(record.len()).expect("an append holds a few entries with bounded texts");
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(&crc32c::crc32c(&record).to_le_bytes());
    bytes.extend_from_slice(&record);
    bytes
}

fn replay(path: &Path, bytes: &[u8]) -> Result<BTreeMap<RunKey, Remembered>, JournalError> {
    let mut runs = BTreeMap::new();
    let mut at = 0;
    while at < bytes.len() {
        match decode(&bytes[at..]) {
            Some((entries, size)) => {
                for entry in &entries {
                    remember(&mut runs, entry);
                }
                at += size;
            }
            // Each append is synced before the next, so only the last one can be torn.
            None if is_torn_tail(&bytes[at..]) => break,
            None => return Err(JournalError::Damaged(path.to_owned(), at)),
        }
    }
    Ok(runs)
}

fn decode(bytes: &[u8]) -> Option<(Vec<Entry>, usize)> {
    let header = bytes.get(..HEADER_BYTES)?;
    let word = |at: usize| {
        header[at..at + 4]
            .iter()
            .rev()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
    };
    let length = usize::try_from(word(0))
        .ok()
        .filter(|length| (1..=RECORD_BYTES_MAX).contains(length))?;
    let record = bytes.get(HEADER_BYTES..HEADER_BYTES + length)?;
    if crc32c::crc32c(record) != word(4) {
        return None;
    }
    Some((serde_json::from_slice(record).ok()?, HEADER_BYTES + length))
}

/// Whether no whole record follows anywhere: then what is here was never acknowledged.
fn is_torn_tail(bytes: &[u8]) -> bool {
    (1..bytes.len()).all(|at| decode(&bytes[at..]).is_none())
}

/// Writes a new file with what is remembered and puts it in place of the old one.
fn rewrite(
    disk: &dyn Disk,
    folder: &Path,
    runs: &BTreeMap<RunKey, Remembered>,
) -> Result<(Arc<dyn DiskFile>, u64), JournalError> {
    let mut bytes = Vec::new();
    for (run, remembered) in runs {
        bytes.extend(encode(&[match remembered {
            Remembered::Spawned => Entry::Spawning(*run),
            Remembered::Ended(exit) => Entry::Ended(*run, exit.clone()),
        }]));
    }
    let write = || {
        let file = disk.open(&folder.join(REWRITTEN), Open::Create)?;
        file.write_at(&bytes, 0)?;
        file.sync_data()?;
        disk.rename(&folder.join(REWRITTEN), &folder.join(FILE))?;
        disk.sync_dir(folder)?;
        disk.open(&folder.join(FILE), Open::Write)
    };
    let file = write().map_err(|error| JournalError::Write(folder.join(FILE), error))?;
    Ok((file, bytes.len() as u64))
}

fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let size = usize::try_from(file.size()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; size];
    let mut filled = 0;
    while filled < size {
        match file.read_at(&mut bytes[filled..], filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
