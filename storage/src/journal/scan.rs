//! Walks the records of one segment file with a bounded buffer.
//!
//! Recovery and the reader use it. It judges nothing: what a bad record means depends on where it lies.

use std::io;

use super::Position;
use super::record::{self, Decoded, RecordRef};
use crate::disk::DiskFile;

/// Files are read in pieces of this size.
pub(super) const PIECE: usize = 1 << 20;

/// Walks the records of one segment with a bounded buffer.
pub(super) struct Scanner<'f> {
    file: &'f dyn DiskFile,
    segment: u32,
    /// Where the next record begins.
    offset: u32,
    limit: u32,
    buffer: Vec<u8>,
    /// Bytes that are read at once.
    piece: usize,
    /// The file offset of the buffer's first byte.
    base: u32,
}

pub(super) enum Step<'a> {
    Record(Position, RecordRef<'a>),
    End,
    Bad(&'static str),
}

impl<'f> Scanner<'f> {
    pub(super) fn new(file: &'f dyn DiskFile, segment: u32, offset: u32, limit: u32) -> Self {
        Self {
            file,
            segment,
            offset,
            limit,
            buffer: Vec::new(),
            piece: PIECE,
            base: offset,
        }
    }

    /// Reads so many bytes at once, for whoever stops soon.
    pub(super) fn in_pieces_of(mut self, piece: usize) -> Self {
        self.piece = piece;
        self
    }

    pub(super) fn offset(&self) -> u32 {
        self.offset
    }

    pub(super) fn step(&mut self) -> io::Result<Step<'_>> {
        self.fill(record::HEADER_BYTES)?;
        if let Some(header) = self.rest().get(..4) {
            let size = record::encoded_bytes(record::u32_at(header, 0) as usize);
            if size <= self.limit.saturating_sub(self.offset) as usize {
                self.fill(size)?;
            }
        }
        let start = (self.offset - self.base) as usize;
        Ok(match record::decode(&self.buffer[start..], self.segment) {
            Decoded::Record(record) => {
                let size = record::encoded_bytes(record.payload.len()) as u32;
                let position = Position {
                    segment: self.segment,
                    offset: self.offset,
                    size,
                };
                self.offset += size;
                Step::Record(position, record)
            }
            Decoded::End => Step::End,
            Decoded::Partial => Step::Bad("the record is cut off"),
            Decoded::Bad(what) => Step::Bad(what),
        })
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[(self.offset - self.base) as usize..]
    }

    /// Has `need` bytes of the record at hand, if the segment has them.
    fn fill(&mut self, need: usize) -> io::Result<()> {
        if self.rest().len() >= need {
            return Ok(());
        }
        let consumed = (self.offset - self.base) as usize;
        self.buffer.drain(..consumed);
        self.base = self.offset;
        let have = self.buffer.len();
        let room = self.limit.saturating_sub(self.base) as usize;
        let want = need.max(self.piece).min(room);
        if want > have {
            self.buffer.resize(want, 0);
            let at = u64::from(self.base) + have as u64;
            let got = self.file.read_at(&mut self.buffer[have..], at)?;
            self.buffer.truncate(have + got);
        }
        Ok(())
    }
}
