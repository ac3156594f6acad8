//! The machine's own file system behind the [`Disk`] seam.
//!
//! Opened by `boot` and by command-line tools; everything else sees the trait. One rule: `sync_data` is fdatasync,
//! never sync_file_range, because only fdatasync also empties the drive's volatile cache.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use super::{Disk, DiskFile, DiskLock, Open};

/// Zeros are written in pieces of this size, from one place: a buffer of one's own would stay in the heap.
const ZERO_PIECE: usize = 64 << 10;
static ZEROS: [u8; ZERO_PIECE] = [0; ZERO_PIECE];

/// The machine's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

#[derive(Debug)]
struct RealFile(File);

#[derive(Debug)]
struct RealLock(#[allow(dead_code, reason = "closing the file drops the lock")] File);

impl DiskLock for RealLock {}

impl Disk for RealDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(how != Open::Read);
        if how == Open::Create {
            options.create(true).truncate(true);
        }
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            // A name that is no text is not ours; ours are digits and letters.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(RealLock(file)))
    }
}

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        let mut offset = self.size()?;
        while offset < size {
            let piece = (size - offset).min(ZERO_PIECE as u64);
            self.0.write_all_at(&ZEROS[..piece as usize], offset)?;
            offset += piece;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_on_the_same_file_is_refused_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = RealDisk.lock(&path).unwrap();
        assert_eq!(RealDisk.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        RealDisk.lock(&path).unwrap();
    }

    #[test]
    fn a_preallocated_file_reads_as_zeros_and_keeps_its_size_when_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk.open(&dir.path().join("f"), Open::Create).unwrap();
        file.preallocate(3 * ZERO_PIECE as u64 / 2).unwrap();
        file.write_at(b"abc", 10).unwrap();
        assert_eq!(file.size().unwrap(), 3 * ZERO_PIECE as u64 / 2);
        let mut bytes = [7; 6];
        assert_eq!(file.read_at(&mut bytes, 8).unwrap(), 6);
        assert_eq!(&bytes, b"\0\0abc\0");
    }
}
