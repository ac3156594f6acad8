//! Writing a snapshot's body: piece by piece, hashed on its way, no faster than it may.
//!
//! The header lies before the body and names its digest, so it is written last, into the room that was left for it: its
//! length does not depend on what it says of the body.

use std::sync::Arc;

use super::file::{Header, encode_header};
use super::{Incoming, PIECE, SnapshotError};

/// Called with the number of bytes just written, on the thread that writes; may sleep.
pub type Pause = Arc<dyn Fn(usize) + Send + Sync>;

/// A snapshot's body while it is written.
pub struct Body<'s> {
    incoming: &'s Incoming,
    pause: Option<&'s Pause>,
    /// Where the body begins.
    begin: u64,
    written: u64,
    waiting: Vec<u8>,
    hasher: blake3::Hasher,
}

impl<'s> Body<'s> {
    pub(super) fn new(incoming: &'s Incoming, header: &Header, pause: Option<&'s Pause>) -> Self {
        Self {
            incoming,
            pause,
            begin: encode_header(header).len() as u64,
            written: 0,
            waiting: Vec::new(),
            hasher: blake3::Hasher::new(),
        }
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`SnapshotError::Write`] when the disk refuses.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.hasher.update(bytes);
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= PIECE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SnapshotError> {
        for piece in self.waiting.chunks(PIECE) {
            self.incoming.write_at(piece, self.begin + self.written)?;
            self.written += piece.len() as u64;
            if let Some(pause) = self.pause {
                pause(piece.len());
            }
        }
        self.waiting.clear();
        Ok(())
    }

    pub(super) fn close(&mut self, mut header: Header) -> Result<(), SnapshotError> {
        self.flush()?;
        header.body_bytes = self.written;
        header.body_hash = *self.hasher.finalize().as_bytes();
        let head = encode_header(&header);
        assert_eq!(
            head.len() as u64,
            self.begin,
            "a header has one length, whatever it says of the body"
        );
        self.incoming.write_at(&head, 0)
    }
}
