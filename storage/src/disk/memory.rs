//! A disk in memory that behaves as badly as a real one may: for crash tests and for the simulator.
//!
//! Writes sit in a cache until they are synced. [`MemoryDisk::crash`] turns the power off and on: of the unsynced
//! writes a seeded choice survives, each whole, in part (cut at a sector) or not at all; unsynced names come and go the
//! same way. [`Faults`] makes chosen calls fail. Readers see the cache, as they do on a real machine.
//!
//! The rule: everything random comes from the seed, in the order of the calls, so one seed gives one history, and
//! [`MemoryDisk::trace`] folds every call into one number that two runs can compare.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Disk, DiskFile, DiskLock, Open};

/// Writes are torn at multiples of this size: the unit that drives write in one piece.
const SECTOR: usize = 512;

/// What goes wrong, and when. Counted in calls that change the disk (writes, syncs, names), from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// After this many changing calls the power is off: every call fails until [`MemoryDisk::crash`].
    pub power_off_after: Option<u64>,
    /// The changing call with this number fails with an input/output error; a failed sync drops its writes.
    pub fail_call: Option<u64>,
    /// Syncs fail from now on, and drop their writes, as a dying drive does.
    pub fail_syncs: bool,
    /// The disk holds this many bytes in files; growing beyond fails with "no space left on device".
    pub capacity_bytes: Option<u64>,
}

/// A disk in memory; clones share it.
#[derive(Debug, Clone)]
pub struct MemoryDisk {
    shared: Arc<Mutex<Shared>>,
}

/// What a disk held; see [`MemoryDisk::image`].
#[derive(Debug, Clone)]
pub struct Image {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    /// This image with the chosen files of another one.
    #[must_use]
    pub fn with(&self, other: &Self, chosen: impl Fn(&Path) -> bool) -> Self {
        let ours = self.files.iter().filter(|(path, _)| !chosen(path));
        let theirs = other.files.iter().filter(|(path, _)| chosen(path));
        let copy = |(path, bytes): (&PathBuf, &Vec<u8>)| (path.clone(), bytes.clone());
        Self {
            files: ours.chain(theirs).map(copy).collect(),
        }
    }
}

#[derive(Debug)]
struct Shared {
    /// What names point at, as running programs see it.
    names: BTreeMap<PathBuf, Inode>,
    /// The names that survive a crash for certain.
    durable_names: BTreeMap<PathBuf, Inode>,
    dirs: BTreeSet<PathBuf>,
    locks: BTreeSet<PathBuf>,
    faults: Faults,
    /// Changing calls since the faults were set.
    calls: u64,
    syncs: u64,
    random: u64,
    trace: u64,
    /// Rises at each crash; handles of an earlier life are dead.
    life: u64,
}

type Inode = Arc<Mutex<Content>>;

#[derive(Debug, Default)]
struct Content {
    cached: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug)]
struct MemoryFile {
    shared: Arc<Mutex<Shared>>,
    path: PathBuf,
    content: Inode,
    writable: bool,
    life: u64,
}

#[derive(Debug)]
struct MemoryLock {
    shared: Arc<Mutex<Shared>>,
    path: PathBuf,
    life: u64,
}

impl DiskLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        let mut shared = held(&self.shared);
        if shared.life == self.life {
            shared.locks.remove(&self.path);
        }
    }
}

/// A panic while the lock was held leaves the disk as it was, as a dead process leaves a real one.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryDisk {
    /// Makes an empty disk whose crashes are decided by `seed`.
    pub fn new(seed: u64) -> Self {
        let shared = Shared {
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            dirs: BTreeSet::new(),
            locks: BTreeSet::new(),
            faults: Faults::default(),
            calls: 0,
            syncs: 0,
            random: seed,
            trace: 0xcbf2_9ce4_8422_2325,
            life: 0,
        };
        Self {
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    /// Sets what goes wrong from now on, and starts counting calls at zero.
    pub fn set_faults(&self, faults: Faults) {
        let mut shared = held(&self.shared);
        shared.faults = faults;
        shared.calls = 0;
    }

    /// Returns how many bytes the files take.
    pub fn used(&self) -> u64 {
        held(&self.shared).used()
    }

    /// Returns how many changing calls were made since the faults were last set.
    pub fn calls(&self) -> u64 {
        held(&self.shared).calls
    }

    /// Returns how many syncs of file bytes have succeeded.
    pub fn syncs(&self) -> u64 {
        held(&self.shared).syncs
    }

    /// Returns a digest of every changing call so far; equal histories have equal digests.
    pub fn trace(&self) -> u64 {
        held(&self.shared).trace
    }

    /// Turns the power off and on: unsynced writes and names survive by chance; faults are cleared.
    ///
    /// Handles and locks of the time before are dead. Returns how many unsynced writes were lost or torn.
    pub fn crash(&self) -> usize {
        let mut shared = held(&self.shared);
        shared.life += 1;
        shared.faults = Faults::default();
        shared.locks.clear();
        let survivors = shared.surviving_names();
        let lost = survivors
            .values()
            .map(|content| shared.lose_unsynced(&mut held(content)))
            .sum();
        shared.names = survivors.clone();
        shared.durable_names = survivors;
        lost
    }

    /// Overwrites bytes behind everyone's back, as a decaying medium does.
    pub fn corrupt(&self, path: &Path, offset: u64, change: impl FnOnce(&mut [u8])) {
        let content = held(&self.shared).names.get(path).cloned();
        if let Some(content) = content {
            let mut content = held(&content);
            let offset = offset as usize;
            change(&mut content.cached[offset..]);
            content.durable = content.cached.clone();
        }
    }

    /// Cuts a file short behind everyone's back.
    pub fn cut(&self, path: &Path, size: u64) {
        let content = held(&self.shared).names.get(path).cloned();
        if let Some(content) = content {
            let mut content = held(&content);
            content.cached.truncate(size as usize);
            content.durable = content.cached.clone();
        }
    }

    /// Copies everything that is durable now, as an image of a virtual machine does.
    pub fn image(&self) -> Image {
        let shared = held(&self.shared);
        let copy = |(path, content): (&PathBuf, &Inode)| (path.clone(), held(content).durable.clone());
        Image {
            files: shared.durable_names.iter().map(copy).collect(),
        }
    }

    /// Turns the power off, puts an image in the place of everything, and turns it on.
    pub fn put_back(&self, image: &Image) {
        let mut shared = held(&self.shared);
        shared.life += 1;
        shared.faults = Faults::default();
        shared.locks.clear();
        let copy = |(path, bytes): (&PathBuf, &Vec<u8>)| {
            let content = Content {
                cached: bytes.clone(),
                durable: bytes.clone(),
                unsynced: Vec::new(),
            };
            (path.clone(), Arc::new(Mutex::new(content)))
        };
        shared.names = image.files.iter().map(copy).collect();
        shared.durable_names = shared.names.clone();
    }

    /// Returns a file's bytes as a program would read them now.
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let content = held(&self.shared).names.get(path).cloned()?;
        let bytes = held(&content).cached.clone();
        Some(bytes)
    }
}

impl Shared {
    /// splitmix64: small, seedable, good enough to choose survivors.
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn note(&mut self, call: &str, path: &Path, offset: u64, bytes: &[u8]) {
        let mut hash = self.trace;
        let mut fold = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        fold(call.as_bytes());
        fold(path.as_os_str().as_encoded_bytes());
        fold(&offset.to_le_bytes());
        fold(&crc32c::crc32c(bytes).to_le_bytes());
        self.trace = hash;
    }

    /// Counts one changing call and says whether it must fail.
    fn admit(&mut self, call: &str, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.note(call, path, offset, bytes);
        self.calls += 1;
        self.powered()?;
        if self.faults.fail_call == Some(self.calls) {
            return Err(io::Error::other(format!(
                "injected fault in {call} of {}",
                path.display()
            )));
        }
        Ok(())
    }

    fn powered(&self) -> io::Result<()> {
        match self.faults.power_off_after {
            Some(limit) if self.calls > limit => Err(io::Error::other("the power is off")),
            _ => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .map(|content| held(content).cached.len() as u64)
            .sum()
    }

    /// Each name that differs from its durable form keeps the old or takes the new form, by chance.
    fn surviving_names(&mut self) -> BTreeMap<PathBuf, Inode> {
        let all: BTreeSet<PathBuf> = self.names.keys().chain(self.durable_names.keys()).cloned().collect();
        let mut survivors = BTreeMap::new();
        for path in all {
            let new = self.names.get(&path).cloned();
            let old = self.durable_names.get(&path).cloned();
            let same = match (&new, &old) {
                (Some(new), Some(old)) => Arc::ptr_eq(new, old),
                _ => false,
            };
            let chosen = if same || self.draw(2) == 0 { new } else { old };
            if let Some(content) = chosen {
                survivors.insert(path, content);
            }
        }
        survivors
    }

    /// Replays a seeded choice of the unsynced writes over what is durable.
    fn lose_unsynced(&mut self, content: &mut Content) -> usize {
        let mut lost = 0;
        for (offset, bytes) in std::mem::take(&mut content.unsynced) {
            let kept = match self.draw(3) {
                0 => 0,
                1 => bytes.len(),
                _ => {
                    let sectors = (offset + bytes.len()).div_ceil(SECTOR) - offset / SECTOR;
                    let cut = (offset / SECTOR + self.draw(sectors as u64 + 1) as usize) * SECTOR;
                    cut.saturating_sub(offset).min(bytes.len())
                }
            };
            lost += usize::from(kept < bytes.len());
            place(&mut content.durable, offset, &bytes[..kept]);
        }
        content.cached = content.durable.clone();
        lost
    }
}

fn place(target: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    if target.len() < offset + bytes.len() {
        target.resize(offset + bytes.len(), 0);
    }
    target[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn missing(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no such file: {}", path.display()))
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        let mut shared = held(&self.shared);
        shared.powered()?;
        let content = if how == Open::Create {
            shared.admit("create", path, 0, &[])?;
            let content = Inode::default();
            shared.names.insert(path.to_owned(), content.clone());
            content
        } else {
            shared.names.get(path).cloned().ok_or_else(|| missing(path))?
        };
        let life = shared.life;
        let writable = how != Open::Read;
        Ok(Arc::new(MemoryFile {
            shared: self.shared.clone(),
            path: path.to_owned(),
            content,
            writable,
            life,
        }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut shared = held(&self.shared);
        shared.powered()?;
        shared.dirs.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let shared = held(&self.shared);
        shared.powered()?;
        if !shared.dirs.contains(path) {
            return Err(missing(path));
        }
        let files = shared
            .names
            .keys()
            .chain(shared.dirs.iter())
            .filter(|name| name.parent() == Some(path));
        let names: BTreeSet<String> = files
            .filter_map(|name| name.file_name()?.to_str().map(str::to_owned))
            .collect();
        Ok(names.into_iter().collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut shared = held(&self.shared);
        shared.admit("rename", from, 0, to.as_os_str().as_encoded_bytes())?;
        let content = shared.names.remove(from).ok_or_else(|| missing(from))?;
        shared.names.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut shared = held(&self.shared);
        shared.admit("remove", path, 0, &[])?;
        shared.names.remove(path).map(drop).ok_or_else(|| missing(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut shared = held(&self.shared);
        shared.admit("sync_dir", path, 0, &[])?;
        let inside = |name: &&PathBuf| name.parent() == Some(path);
        let gone: Vec<PathBuf> = shared.durable_names.keys().filter(inside).cloned().collect();
        for name in gone {
            shared.durable_names.remove(&name);
        }
        let present: Vec<(PathBuf, Inode)> = shared
            .names
            .iter()
            .filter(|(name, _)| inside(name))
            .map(|(name, inode)| (name.clone(), inode.clone()))
            .collect();
        shared.durable_names.extend(present);
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let mut shared = held(&self.shared);
        shared.powered()?;
        if !shared.locks.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let life = shared.life;
        Ok(Box::new(MemoryLock {
            shared: self.shared.clone(),
            path: path.to_owned(),
            life,
        }))
    }
}

impl MemoryFile {
    fn alive(&self, shared: &Shared) -> io::Result<()> {
        if shared.life != self.life {
            return Err(io::Error::other("the machine has restarted since this file was opened"));
        }
        shared.powered()
    }

    fn put(&self, shared: &Shared, bytes: Vec<u8>, offset: usize) -> io::Result<()> {
        let mut content = held(&self.content);
        let growth = (offset + bytes.len()).saturating_sub(content.cached.len()) as u64;
        drop(content);
        if shared
            .faults
            .capacity_bytes
            .is_some_and(|capacity| shared.used() + growth > capacity)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        content = held(&self.content);
        place(&mut content.cached, offset, &bytes);
        content.unsynced.push((offset, bytes));
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn size(&self) -> io::Result<u64> {
        self.alive(&held(&self.shared))?;
        Ok(held(&self.content).cached.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.alive(&held(&self.shared))?;
        let content = held(&self.content);
        let start = (offset as usize).min(content.cached.len());
        let count = buffer.len().min(content.cached.len() - start);
        buffer[..count].copy_from_slice(&content.cached[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        assert!(self.writable, "written through a handle that was opened for reading");
        let mut shared = held(&self.shared);
        self.alive(&shared)?;
        shared.admit("write", &self.path, offset, bytes)?;
        self.put(&shared, bytes.to_vec(), offset as usize)
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        let mut shared = held(&self.shared);
        self.alive(&shared)?;
        shared.admit("preallocate", &self.path, size, &[])?;
        let now = held(&self.content).cached.len();
        self.put(&shared, vec![0; (size as usize).saturating_sub(now)], now)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut shared = held(&self.shared);
        self.alive(&shared)?;
        let admitted = shared.admit("sync", &self.path, 0, &[]);
        let mut content = held(&self.content);
        let unsynced = std::mem::take(&mut content.unsynced);
        admitted?;
        if shared.faults.fail_syncs {
            return Err(io::Error::other(format!(
                "injected fault in sync of {}",
                self.path.display()
            )));
        }
        for (offset, bytes) in unsynced {
            place(&mut content.durable, offset, &bytes);
        }
        shared.syncs += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(seed: u64) -> (MemoryDisk, Arc<dyn DiskFile>) {
        let disk = MemoryDisk::new(seed);
        disk.create_dir(Path::new("/d")).unwrap();
        let file = disk.open(Path::new("/d/f"), Open::Create).unwrap();
        file.write_at(&[1; 2000], 0).unwrap();
        (disk, file)
    }

    #[test]
    fn a_synced_file_in_a_synced_folder_survives_every_crash() {
        for seed in 0..50 {
            let (disk, file) = written(seed);
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("/d")).unwrap();
            disk.crash();
            assert_eq!(disk.bytes(Path::new("/d/f")).unwrap(), vec![1; 2000]);
        }
    }

    #[test]
    fn an_unsynced_write_is_sometimes_lost_sometimes_torn_and_sometimes_kept() {
        let mut sizes = BTreeSet::new();
        for seed in 0..60 {
            let (disk, _file) = written(seed);
            disk.sync_dir(Path::new("/d")).unwrap();
            disk.crash();
            sizes.insert(disk.bytes(Path::new("/d/f")).unwrap().len());
        }
        assert!(
            sizes.contains(&0) && sizes.contains(&2000) && sizes.len() > 2,
            "{sizes:?}"
        );
    }

    #[test]
    fn a_failed_sync_drops_its_writes_for_good() {
        let (disk, file) = written(1);
        disk.sync_dir(Path::new("/d")).unwrap();
        disk.set_faults(Faults {
            fail_syncs: true,
            ..Faults::default()
        });
        file.sync_data().unwrap_err();
        disk.set_faults(Faults::default());
        file.sync_data().unwrap();
        disk.crash();
        assert_eq!(disk.bytes(Path::new("/d/f")).unwrap(), Vec::<u8>::new());
    }

    #[test]
    fn a_handle_of_before_the_crash_is_dead() {
        let (disk, file) = written(1);
        disk.crash();
        file.write_at(&[2], 0).unwrap_err();
    }

    #[test]
    fn equal_seeds_and_calls_give_equal_histories() {
        let run = |seed| {
            let (disk, _file) = written(seed);
            disk.crash();
            (disk.trace(), disk.bytes(Path::new("/d/f")))
        };
        assert_eq!(run(7), run(7));
    }
}
