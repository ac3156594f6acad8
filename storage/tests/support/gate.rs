//! A disk whose syncs wait until the test lets them through.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use holdfast_storage::disk::memory::MemoryDisk;
use holdfast_storage::disk::{Disk, DiskFile, DiskLock, Open};

#[derive(Debug, Default)]
struct Gate {
    closed: bool,
    /// Syncs that may pass although the gate is closed.
    passes: u32,
    waiting: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct GateDisk {
    inner: MemoryDisk,
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

#[derive(Debug)]
struct GateFile {
    inner: Arc<dyn DiskFile>,
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

impl GateDisk {
    pub(crate) fn new(inner: MemoryDisk) -> Self {
        Self {
            inner,
            gate: Arc::default(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut self.gate.0.lock().unwrap());
        self.gate.1.notify_all();
    }

    pub(crate) fn close(&self) {
        self.change(|gate| gate.closed = true);
    }

    pub(crate) fn open(&self) {
        self.change(|gate| gate.closed = false);
    }

    pub(crate) fn let_one_through(&self) {
        self.change(|gate| gate.passes += 1);
    }

    /// Blocks until a sync stands at the closed gate.
    pub(crate) fn wait_for_sync(&self) {
        let gate = self.gate.0.lock().unwrap();
        drop(
            self.gate
                .1
                .wait_while(gate, |gate| gate.waiting == 0 || gate.passes > 0)
                .unwrap(),
        );
    }
}

impl Disk for GateDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(GateFile {
            inner: Disk::open(&self.inner, path, how)?,
            gate: self.gate.clone(),
        }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        self.inner.lock(path)
    }
}

impl DiskFile for GateFile {
    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(bytes, offset)
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        self.inner.preallocate(size)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut gate = self.gate.0.lock().unwrap();
        gate.waiting += 1;
        self.gate.1.notify_all();
        let mut gate = self
            .gate
            .1
            .wait_while(gate, |gate| gate.closed && gate.passes == 0)
            .unwrap();
        gate.waiting -= 1;
        gate.passes = gate.passes.saturating_sub(1);
        self.gate.1.notify_all();
        drop(gate);
        self.inner.sync_data()
    }
}
