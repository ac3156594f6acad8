//! The output of the work on disk: a byte stream cut into segments, the oldest dropped.
//!
//! The supervisor writes it, log followers read it by offset. A segment is named by the offset of its first byte, so
//! an offset means the same byte for ever and a gap left by dropped segments is visible. The rule: the work is never
//! blocked by its log; what cannot be written is counted as lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::spec::OutputLimits;

/// Segments are `out.<offset>.log`, the offset in 20 digits.
const PREFIX: &str = "out.";
const SUFFIX: &str = ".log";

/// Writes the stream.
#[derive(Debug)]
pub struct OutputWriter {
    folder: PathBuf,
    limits: OutputLimits,
    open: Option<File>,
    open_bytes: u64,
    end: u64,
    lost: u64,
}

impl OutputWriter {
    /// A writer that begins at offset 0 of an empty folder.
    pub fn new(folder: &Path, limits: OutputLimits) -> Self {
        Self {
            folder: folder.to_owned(),
            limits,
            open: None,
            open_bytes: 0,
            end: 0,
            lost: 0,
        }
    }

    /// Appends; never fails. Bytes that the disk refuses keep their offsets, so that readers see the gap.
    pub fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.limits.segment_bytes.max(1).saturating_sub(self.open_bytes);
            if self.open.is_none() || room == 0 {
                if self.next_segment().is_err() {
                    return self.lose(bytes.len());
                }
                continue;
            }
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            let written = self.open.as_mut().map(|file| file.write_all(now));
            if !matches!(written, Some(Ok(()))) {
                // Part of it may have been written. The next segment begins at the right offset again.
                self.open = None;
                return self.lose(bytes.len());
            }
            self.open_bytes += now.len() as u64;
            self.end += now.len() as u64;
            bytes = later;
        }
    }

    /// Bytes that were not written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn lose(&mut self, bytes: usize) {
        self.lost += bytes as u64;
        self.end += bytes as u64;
    }

    fn next_segment(&mut self) -> io::Result<()> {
        // Dropped before the new one is made: on a full disk this is what makes room.
        let segments = segments(&self.folder)?;
        let keep = (self.limits.segments.max(1) - 1) as usize;
        for (_, path) in segments.iter().take(segments.len().saturating_sub(keep)) {
            let _ = fs::remove_file(path);
        }
        let path = self.folder.join(format!("{PREFIX}{:020}{SUFFIX}", self.end));
        self.open = Some(OpenOptions::new().create(true).append(true).open(path)?);
        self.open_bytes = 0;
        Ok(())
    }
}

/// A piece of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputChunk {
    /// Offset of the first byte; larger than asked when earlier bytes are gone.
    pub offset: u64,
    /// The bytes; empty at the end of what there is.
    pub bytes: Vec<u8>,
}

/// Reads up to `max` bytes from `offset` on.
pub fn read_output(folder: &Path, offset: u64, max: usize) -> io::Result<OutputChunk> {
    let segments = segments(folder)?;
    let at = segments.iter().rposition(|(start, _)| *start <= offset).unwrap_or(0);
    for (start, path) in segments.iter().skip(at) {
        let Ok(mut file) = File::open(path) else { continue }; // Dropped since the listing.
        let skip = offset.saturating_sub(*start);
        file.seek(SeekFrom::Start(skip))?;
        let mut bytes = Vec::new();
        file.take(max as u64).read_to_end(&mut bytes)?;
        if !bytes.is_empty() {
            return Ok(OutputChunk {
                offset: start + skip,
                bytes,
            });
        }
    }
    Ok(OutputChunk {
        offset,
        bytes: Vec::new(),
    })
}

/// The offset after the last byte that there is.
pub fn output_end(folder: &Path) -> io::Result<u64> {
    match segments(folder)?.last() {
        Some((start, path)) => Ok(start + fs::metadata(path)?.len()),
        None => Ok(0),
    }
}

fn segments(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let start = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok());
        if let Some(start) = start {
            found.push((start, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn writer(folder: &Path, segment_bytes: u64, segments: u32) -> OutputWriter {
        OutputWriter::new(
            folder,
            OutputLimits {
                segment_bytes,
                segments,
            },
        )
    }

    #[test]
    fn offsets_stay_true_across_segments_and_dropped_ones_show_as_a_gap() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = writer(folder.path(), 10, 3);
        for round in 0..10u8 {
            output.append(&[b'0' + round; 7]);
        }
        assert_eq!(output_end(folder.path()).unwrap(), 70);
        let first = read_output(folder.path(), 0, 100).unwrap();
        assert_eq!((first.offset, first.bytes.len()), (40, 10));
        let inside = read_output(folder.path(), 65, 100).unwrap();
        assert_eq!((inside.offset, inside.bytes), (65, b"99999".to_vec()));
        assert!(read_output(folder.path(), 70, 100).unwrap().bytes.is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn one_large_write_is_cut_and_disk_use_stays_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = writer(folder.path(), 100, 2);
        output.append(&vec![b'x'; 100_000]);
        let used: u64 = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert_eq!(
            (used, output_end(folder.path()).unwrap(), output.lost()),
            (200, 100_000, 0)
        );
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_the_stream_goes_on_at_the_right_offset() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("gone");
        let mut output = writer(&inner, 10, 2);
        output.append(b"lost!");
        assert_eq!(output.lost(), 5);
        fs::create_dir(&inner).unwrap();
        output.append(b"kept");
        assert_eq!(
            read_output(&inner, 0, 10).unwrap(),
            OutputChunk {
                offset: 5,
                bytes: b"kept".to_vec()
            }
        );
    }
}
