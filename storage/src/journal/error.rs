//! What can go wrong with a journal, one enum per operation, and what a person can do about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

const NEXT_STEP: &str = "this replica's copy cannot be trusted: move its data folder away and join the \
     machine again as a new node, the other voters hold the log";

/// Why a journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder could not be made, listed or synced.
    #[error("open journal folder {}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// There is no room for a segment.
    #[error("no space left for a journal segment of {bytes} bytes in {}: free space on this disk and start the node again", dir.display())]
    NoSpace {
        /// The folder.
        dir: PathBuf,
        /// What the segment needs.
        bytes: u32,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// A segment could not be read.
    #[error("read journal segment {}", file.display())]
    Read {
        /// The segment.
        file: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// A segment could not be made, or its torn end not repaired.
    #[error("write journal segment {}", file.display())]
    Write {
        /// The segment.
        file: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// A newer build wrote it. Nothing is wrong with the data.
    #[error("journal segment {} was written by a newer version of holdfast: {what}; upgrade this node and start it again", file.display())]
    Newer {
        /// The segment.
        file: PathBuf,
        /// What this build does not know.
        what: String,
    },
    /// What was durable once is damaged or missing.
    #[error("journal segment {} is corrupt at byte {offset}: {what}; {NEXT_STEP}", file.display())]
    Corrupt {
        /// The segment.
        file: PathBuf,
        /// Where.
        offset: u32,
        /// What is wrong.
        what: String,
    },
}

/// Why records could not be made durable. Every variant is final for this journal.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is no room for the next segment.
    #[error(
        "no space left for the next journal segment of {bytes} bytes in {}: free space on this disk, then start the node again; nothing acknowledged is lost", dir.display()
    )]
    NoSpace {
        /// The journal's folder.
        dir: PathBuf,
        /// What the segment needs.
        bytes: u32,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// The next segment could not be made.
    #[error("prepare the next journal segment {}", file.display())]
    Prepare {
        /// The segment.
        file: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// Bytes could not be written.
    #[error("write journal segment {} at byte {offset}", file.display())]
    Write {
        /// The segment.
        file: PathBuf,
        /// Where the write began.
        offset: u32,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// Bytes could not be made durable; they are not tried again.
    #[error("sync journal segment {}; a failed sync is not retried, start the node again once the disk is sound", file.display())]
    Sync {
        /// The segment.
        file: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// An old segment could not be removed.
    #[error("remove journal segment {}", file.display())]
    Remove {
        /// The segment.
        file: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// The record is larger than a segment.
    #[error("a record of {size} bytes does not fit into a journal segment, which holds {room}")]
    TooLarge {
        /// The record's bytes.
        size: u64,
        /// What an empty segment takes.
        room: u32,
    },
    /// An earlier call has failed.
    #[error("the journal in {} has stopped after an earlier failure: {first}", dir.display())]
    Stopped {
        /// The journal's folder.
        dir: PathBuf,
        /// The first failure, in words.
        first: Arc<str>,
    },
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The record's segment has been removed since the position was taken.
    #[error("journal segment {segment} has been removed")]
    Removed {
        /// The segment's number.
        segment: u32,
    },
    /// The file system refused.
    #[error("read journal segment {} at byte {offset}", file.display())]
    Read {
        /// The segment.
        file: PathBuf,
        /// The record's offset.
        offset: u32,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// The bytes are not the record that was written there.
    #[error("journal segment {} is corrupt at byte {offset}: {what}; {}", file.display(), NEXT_STEP)]
    Corrupt {
        /// The segment.
        file: PathBuf,
        /// The record's offset.
        offset: u32,
        /// What is wrong.
        what: &'static str,
    },
}

/// Joins an error and its causes into one line, for places that keep only text.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
