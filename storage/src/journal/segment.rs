//! One segment file: a header, records, zeros, and at the very end a seal once it is full.
//!
//! The journal makes segments with [`prepare`], always under a temporary name first, so a file that has a segment's
//! name has a valid header and its whole length. The seal lies at a fixed place and names where the records end, so a
//! full segment can be judged without reading it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::{u32_at, u64_at};
use crate::disk::{Disk, DiskFile, Open};

/// Records start here.
pub(super) const HEADER_BYTES: u32 = 64;

/// The seal takes this many bytes at the end of the file.
pub(super) const SEAL_BYTES: u32 = 40;

const MAGIC: &[u8; 7] = b"HFJRNL\x00";

/// Version of the segment's and the records' layout. Readers of version N read N-1 too.
pub(super) const VERSION: u8 = 1;
const SEAL_MAGIC: u64 = u64::from_le_bytes(*b"HFSEALED");

/// What a segment holds, from its seal or from a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// The segment's number; the first one is 1.
    pub segment: u32,
    /// The index of its first record; zero when it has none.
    pub first_index: u64,
    /// The index of its last record; zero when it has none.
    pub last_index: u64,
    /// The term of its last record.
    pub last_term: u64,
    /// Where its records end.
    pub end: u32,
    /// How many records it holds.
    pub records: u64,
}

/// Returns where a segment lies.
pub(super) fn path(dir: &Path, segment: u32) -> PathBuf {
    dir.join(format!("{segment:010}.seg"))
}

/// Returns the number in a segment's file name.
pub(super) fn number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".seg")?;
    (digits.len() == 10).then(|| digits.parse().ok())?
}

/// Says whether a file is what [`prepare`] leaves behind when it is cut short.
pub(super) fn is_unfinished(name: &str) -> bool {
    name.ends_with(".new")
}

/// Makes a segment: zeros, header, sync, rename, sync of the folder.
pub(super) fn prepare(
    disk: &dyn Disk,
    dir: &Path,
    segment: u32,
    bytes: u32,
    purpose: &str,
) -> io::Result<Arc<dyn DiskFile>> {
    let unfinished = dir.join(format!("{segment:010}.new"));
    let made = fill(disk, &unfinished, segment, bytes, purpose).and_then(|file| {
        disk.rename(&unfinished, &path(dir, segment))?;
        disk.sync_dir(dir)?;
        Ok(file)
    });
    if made.is_err() {
        // Give back the space; when even this fails, the next start removes it.
        let _ = disk.remove(&unfinished);
    }
    made
}

fn fill(disk: &dyn Disk, path: &Path, segment: u32, bytes: u32, purpose: &str) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.open(path, Open::Create)?;
    file.preallocate(u64::from(bytes))?;
    write_header(&*file, segment, bytes, purpose)?;
    file.sync_data()?;
    Ok(file)
}

/// Writes a segment's header; the caller syncs it.
pub(super) fn write_header(file: &dyn DiskFile, segment: u32, bytes: u32, purpose: &str) -> io::Result<()> {
    file.write_at(&encode_header(segment, bytes, purpose), 0)
}

fn encode_header(segment: u32, bytes: u32, purpose: &str) -> Vec<u8> {
    assert!(purpose.len() <= 16, "a purpose is at most 16 bytes");
    let mut out = Vec::with_capacity(HEADER_BYTES as usize);
    out.extend_from_slice(MAGIC);
    out.push(VERSION);
    out.extend_from_slice(&segment.to_le_bytes());
    out.extend_from_slice(&bytes.to_le_bytes());
    out.extend_from_slice(purpose.as_bytes());
    out.resize(60, 0);
    let sum = crc32c::crc32c(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// Why a header is not that of the segment it was taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// It is damaged, or of another segment.
    Wrong(&'static str),
    /// A newer build wrote it, in this version.
    Newer(u8),
}

/// Checks a header; returns the segment's length in bytes.
pub(super) fn decode_header(header: &[u8], segment: u32, purpose: &str) -> Result<u32, HeaderError> {
    let wrong = |what| Err(HeaderError::Wrong(what));
    if header.len() < HEADER_BYTES as usize || u32_at(header, 60) != crc32c::crc32c(&header[..60]) {
        return wrong("the segment header is damaged");
    }
    if &header[..7] != MAGIC || header[7] == 0 {
        return wrong("this is no segment of a journal");
    }
    // Everything after the version may mean something else there.
    if header[7] > VERSION {
        return Err(HeaderError::Newer(header[7]));
    }
    if u32_at(header, 8) != segment {
        return wrong("the segment header names another segment");
    }
    let named = &header[16..32];
    if &named[..purpose.len()] != purpose.as_bytes() || named[purpose.len()..].iter().any(|byte| *byte != 0) {
        return wrong("the segment belongs to another journal");
    }
    Ok(u32_at(header, 12))
}

pub(super) fn encode_seal(summary: &Summary) -> Vec<u8> {
    let mut out = Vec::with_capacity(SEAL_BYTES as usize);
    out.extend_from_slice(&SEAL_MAGIC.to_le_bytes());
    out.extend_from_slice(&summary.end.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&summary.records.to_le_bytes());
    out.extend_from_slice(&summary.last_index.to_le_bytes());
    out.extend_from_slice(&summary.last_term.to_le_bytes());
    let sum = seal_checksum(&out, summary.segment);
    out[12..16].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Reads a seal; `None` when there is none or it is damaged.
pub(super) fn decode_seal(seal: &[u8], segment: u32) -> Option<Summary> {
    if seal.len() < SEAL_BYTES as usize || u64_at(seal, 0) != SEAL_MAGIC {
        return None;
    }
    if u32_at(seal, 12) != seal_checksum(seal, segment) {
        return None;
    }
    Some(Summary {
        segment,
        first_index: 0,
        last_index: u64_at(seal, 24),
        last_term: u64_at(seal, 32),
        end: u32_at(seal, 8),
        records: u64_at(seal, 16),
    })
}

fn seal_checksum(seal: &[u8], segment: u32) -> u32 {
    let sum = crc32c::crc32c(&segment.to_le_bytes());
    let sum = crc32c::crc32c_append(sum, &seal[..12]);
    crc32c::crc32c_append(sum, &seal[16..SEAL_BYTES as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_and_a_seal_read_back_and_every_flipped_bit_is_noticed() {
        let header = encode_header(3, 4096, "raft");
        assert_eq!(decode_header(&header, 3, "raft"), Ok(4096));
        assert!(decode_header(&header, 3, "rafts").is_err() && decode_header(&header, 3, "raf").is_err());
        let summary = Summary {
            segment: 3,
            first_index: 0,
            last_index: 9,
            last_term: 2,
            end: 640,
            records: 8,
        };
        let seal = encode_seal(&summary);
        assert_eq!(decode_seal(&seal, 3), Some(summary));
        for bit in 0..header.len() * 8 {
            let mut changed = header.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_header(&changed, 3, "raft").is_err(), "header bit {bit}");
        }
        for bit in 0..seal.len() * 8 {
            let mut changed = seal.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_seal(&changed, 3), None, "seal bit {bit}");
        }
    }

    #[test]
    fn file_names_sort_like_their_numbers_and_foreign_names_are_none() {
        assert_eq!(number("0000000012.seg"), Some(12));
        assert_eq!(number("12.seg"), None);
        assert_eq!(number("0000000012.new"), None);
        assert_eq!(path(Path::new("/d"), 12), PathBuf::from("/d/0000000012.seg"));
    }
}
