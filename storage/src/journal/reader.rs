//! Reads a journal's records while it is being written.
//!
//! Handed to whoever keeps positions: the Raft log's index and the event log. The rule: each read checks the record's
//! checksum again, so damage that came after the start is noticed when it matters.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use super::error::ReadError;
use super::record::{self, RecordRef};
use super::scan::{PIECE, Scanner, Step};
use super::{Files, Position, Record, segment};
use crate::disk::DiskFile;

/// Reads records by position. Cheap to clone; reads while the journal is written.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) dir: PathBuf,
    pub(super) files: Files,
}

impl Reader {
    /// Reads the record at a position that the journal gave out, once it has been written.
    pub fn read(&self, position: Position) -> Result<Record, ReadError> {
        let file = self.file(position.segment)?;
        let mut bytes = vec![0; position.size as usize];
        let failed = |source| ReadError::Read {
            file: self.path(position.segment),
            offset: position.offset,
            source,
        };
        let got = file.read_at(&mut bytes, u64::from(position.offset)).map_err(failed)?;
        match record::decode(&bytes[..got], position.segment) {
            record::Decoded::Record(record) => Ok(record.to_record()),
            record::Decoded::Bad(what) => Err(self.corrupt(position.segment, position.offset, what)),
            _ => Err(self.corrupt(position.segment, position.offset, "the record is gone")),
        }
    }

    /// Shows `visit` the records of a segment from `offset` (the header's end when 0) to `end`, until it returns false.
    pub fn scan(
        &self,
        segment: u32,
        offset: u32,
        end: u32,
        visit: impl FnMut(Position, RecordRef<'_>) -> bool,
    ) -> Result<(), ReadError> {
        self.scan_in_pieces(PIECE, segment, offset, end, visit)
    }

    /// The same, with so many bytes read at once: less than usual for a visit that ends soon.
    pub fn scan_in_pieces(
        &self,
        piece: usize,
        segment: u32,
        offset: u32,
        end: u32,
        mut visit: impl FnMut(Position, RecordRef<'_>) -> bool,
    ) -> Result<(), ReadError> {
        let file = self.file(segment)?;
        let begin = offset.max(segment::HEADER_BYTES);
        let mut scanner = Scanner::new(&*file, segment, begin, end).in_pieces_of(piece);
        while scanner.offset() < end {
            let at = scanner.offset();
            let failed = |source| ReadError::Read {
                file: self.path(segment),
                offset: at,
                source,
            };
            match scanner.step().map_err(failed)? {
                Step::Record(position, record) => {
                    if !visit(position, record) {
                        return Ok(());
                    }
                }
                Step::End => return Err(self.corrupt(segment, at, "the record is gone")),
                Step::Bad(what) => return Err(self.corrupt(segment, at, what)),
            }
        }
        Ok(())
    }

    fn file(&self, segment: u32) -> Result<Arc<dyn DiskFile>, ReadError> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(&segment).cloned().ok_or(ReadError::Removed { segment })
    }

    fn path(&self, segment: u32) -> PathBuf {
        segment::path(&self.dir, segment)
    }

    fn corrupt(&self, segment: u32, offset: u32, what: &'static str) -> ReadError {
        ReadError::Corrupt {
            file: self.path(segment),
            offset,
            what,
        }
    }
}
