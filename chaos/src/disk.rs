//! The simulated disk of one host: storage's memory disk, with every write and sync in the trace.
//!
//! Adds what a world needs around it: an alarm when the power went in the middle of a call, counters, and a switch by
//! which syncs lie, to prove that the checkers notice. The one rule: nothing here decides what survives a crash; that
//! is the memory disk's, from its own seed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_storage::disk::memory::{Faults, Image, MemoryDisk};
use holdfast_storage::disk::{Disk, DiskFile, DiskLock, Open};
use tokio::sync::mpsc::UnboundedSender;

use crate::random::Stream;
use crate::runtime::{self, Host};
use crate::trace::{Kind, digest};

/// One host's disk; clones share it.
#[derive(Debug, Clone)]
pub struct SimulatedDisk {
    shared: Arc<Shared>,
    memory: MemoryDisk,
}

#[derive(Debug)]
struct Shared {
    host: Host,
    syncs_lie: AtomicBool,
    syncs_late: AtomicBool,
    /// Armed while the power is to go off in the middle of some call.
    armed: AtomicBool,
    /// It goes in a sync, once as many calls have passed.
    at_sync: AtomicBool,
    calls_left: AtomicU64,
    /// The power has gone in a call, and everybody still has to learn of it.
    off: AtomicBool,
    power_lost: UnboundedSender<Host>,
    writes: AtomicU64,
    syncs: AtomicU64,
    sync_us_max: AtomicU64,
    /// Writes to each file since its last sync.
    unsynced: Mutex<BTreeMap<PathBuf, u64>>,
    /// Writes that were dropped by a sync in which the power went.
    dropped: AtomicU64,
}

/// Least and most that a sync takes on a healthy disk.
const SYNC_US: (u64, u64) = (100, 600);

impl SimulatedDisk {
    /// An empty disk; `power_lost` hears of the call that the power went in.
    pub fn new(host: Host, power_lost: UnboundedSender<Host>) -> Self {
        let seed = runtime::stream("disk", &[host.0]).next();
        let shared = Shared {
            host,
            syncs_lie: AtomicBool::new(false),
            syncs_late: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            at_sync: AtomicBool::new(false),
            calls_left: AtomicU64::new(0),
            off: AtomicBool::new(false),
            power_lost,
            writes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            sync_us_max: AtomicU64::new(SYNC_US.1),
            unsynced: Mutex::default(),
            dropped: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
            memory: MemoryDisk::new(seed),
        }
    }

    /// Makes every sync claim to be done and do nothing: the planted bug "acknowledged before it was durable".
    pub fn let_syncs_lie(&self) {
        self.shared.syncs_lie.store(true, SeqCst);
    }

    /// Lets the power go after this many more changing calls, or in the first sync after them.
    pub fn arm_power_loss(&self, calls: u64, at_sync: bool) {
        self.shared.armed.store(true, SeqCst);
        self.shared.at_sync.store(at_sync, SeqCst);
        let power_off_after = (!at_sync).then_some(calls);
        self.memory.set_faults(Faults {
            power_off_after,
            ..Faults::default()
        });
        self.shared.calls_left.store(calls, SeqCst);
    }

    /// Makes syncs claim to be done before they are: the writes that they cover become durable only when the next ones
    /// come. The planted bug "acknowledged before fsync", which no reader of the file can see.
    pub fn let_syncs_be_late(&self) {
        self.shared.syncs_late.store(true, SeqCst);
    }

    /// Takes an armed loss of power back, if it has not struck yet.
    pub fn disarm(&self) {
        if self.shared.armed.swap(false, SeqCst) {
            self.memory.set_faults(Faults::default());
        }
    }

    /// Reports whether the power has gone in a call and is not back yet.
    pub fn is_off(&self) -> bool {
        self.shared.off.load(SeqCst)
    }

    /// Turns the power off and on; returns how many unsynced writes were lost or torn.
    pub fn lose_power(&self) -> usize {
        self.shared.armed.store(false, SeqCst);
        self.shared.off.store(false, SeqCst);
        self.shared.unsynced().clear();
        let dropped = usize::try_from(self.shared.dropped.swap(0, SeqCst)).unwrap_or(usize::MAX);
        let lost = self.memory.crash().saturating_add(dropped);
        runtime::note(self.shared.host, Kind::Lose, [lost as u64, self.memory.trace(), 0]);
        lost
    }

    /// Copies what is durable now.
    pub fn image(&self) -> Image {
        self.memory.image()
    }

    /// Puts an image back, while nobody runs on this disk.
    pub fn put_back(&self, image: &Image) {
        self.memory.put_back(image);
        runtime::note(self.shared.host, Kind::Lose, [0, self.memory.trace(), 1]);
    }

    /// Bytes that its files take.
    pub fn used(&self) -> u64 {
        self.memory.used()
    }

    /// Makes calls fail from now on; a restart of the machine changes nothing about it.
    pub fn set_faults(&self, faults: Faults) {
        self.memory.set_faults(faults);
    }

    /// Zeroes the newest snapshot behind its replica's back; says whether there were two.
    pub fn damage_newest_snapshot(&self) -> bool {
        let folder = Path::new("/snapshots");
        let mut names = self.memory.list(folder).unwrap_or_default();
        names.retain(|name| name.ends_with(".snap"));
        if let Some(newest) = names.last() {
            self.memory.corrupt(&folder.join(newest), 0, |bytes| bytes.fill(0));
        }
        names.len() > 1
    }

    /// Makes syncs take up to this long from now on; a healthy disk's time when none is given.
    pub fn set_sync_us_max(&self, sync_us_max: Option<u64>) {
        self.shared
            .sync_us_max
            .store(sync_us_max.unwrap_or(SYNC_US.1).max(SYNC_US.0), SeqCst);
    }

    /// How long the next sync takes. What was written before it and is not synced by then is lost with the power.
    pub fn sync_time(&self, draws: &mut Stream) -> Duration {
        Duration::from_micros(draws.between(SYNC_US.0, self.shared.sync_us_max.load(SeqCst)))
    }

    /// Writes and syncs so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.writes.load(SeqCst), self.shared.syncs.load(SeqCst))
    }
}

impl Shared {
    fn unsynced(&self) -> MutexGuard<'_, BTreeMap<PathBuf, u64>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call, and raises the alarm when it failed because the power has gone.
    fn noted<T>(&self, kind: Kind, path: &Path, second: u64, third: u64, result: io::Result<T>) -> io::Result<T> {
        runtime::note(
            self.host,
            kind,
            [digest(path.as_os_str().as_encoded_bytes()), second, third],
        );
        if result.is_err() && self.armed.swap(false, SeqCst) {
            self.off.store(true, SeqCst);
            // A world that has ended hears nothing.
            let _ = self.power_lost.send(self.host);
        }
        result
    }
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        let opened = self.memory.open(path, how);
        let file = if how == Open::Create {
            self.shared.noted(Kind::Write, path, u64::MAX, 0, opened)?
        } else {
            opened?
        };
        Ok(Arc::new(SimulatedFile {
            shared: self.shared.clone(),
            memory: self.memory.clone(),
            owes_sync: AtomicBool::new(false),
            path: path.to_owned(),
            file,
        }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.memory.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.memory.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let renamed = self.memory.rename(from, to);
        let name = digest(to.as_os_str().as_encoded_bytes());
        self.shared.noted(Kind::Write, from, u64::MAX, name, renamed)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self.memory.remove(path);
        self.shared.noted(Kind::Write, path, u64::MAX, 1, removed)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let synced = if self.shared.syncs_lie.load(SeqCst) {
            Ok(())
        } else {
            self.memory.sync_dir(path)
        };
        self.shared.noted(Kind::Sync, path, u64::MAX, 0, synced)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        self.memory.lock(path)
    }
}

#[derive(Debug)]
struct SimulatedFile {
    shared: Arc<Shared>,
    memory: MemoryDisk,
    /// The last sync was claimed to be done, and was not.
    owes_sync: AtomicBool,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

impl DiskFile for SimulatedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.shared.writes.fetch_add(1, SeqCst);
        if self.shared.syncs_late.load(SeqCst) && self.owes_sync.swap(false, SeqCst) {
            self.file.sync_data()?;
        }
        let calls_left = self.shared.calls_left.load(SeqCst);
        self.shared.calls_left.store(calls_left.saturating_sub(1), SeqCst);
        *self.shared.unsynced().entry(self.path.clone()).or_default() += 1;
        let written = self.file.write_at(bytes, offset);
        self.shared
            .noted(Kind::Write, &self.path, offset, digest(bytes), written)
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        let allocated = self.file.preallocate(size);
        self.shared.noted(Kind::Write, &self.path, size, 0, allocated)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shared.syncs.fetch_add(1, SeqCst);
        let covered = self.shared.unsynced().remove(&self.path).unwrap_or(0);
        let strikes = self.shared.armed.load(SeqCst) && self.shared.at_sync.load(SeqCst);
        if strikes && covered > 0 && self.shared.calls_left.load(SeqCst) == 0 {
            self.memory.set_faults(Faults {
                power_off_after: Some(0),
                ..Faults::default()
            });
        } else if self.shared.syncs_late.load(SeqCst) {
            self.owes_sync.store(true, SeqCst);
            return self.shared.noted(Kind::Sync, &self.path, covered, 0, Ok(()));
        }
        let synced = if self.shared.syncs_lie.load(SeqCst) {
            Ok(())
        } else {
            self.file.sync_data()
        };
        if synced.is_err() {
            self.shared.dropped.fetch_add(covered, SeqCst);
        }
        self.shared.noted(Kind::Sync, &self.path, covered, 0, synced)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::sync::mpsc;

    use super::*;
    use crate::runtime::Simulated;

    const FILE: &str = "/raft/log";

    fn in_simulation(body: impl FnOnce(SimulatedDisk, mpsc::UnboundedReceiver<Host>)) {
        Simulated::seeded(3).simulate(async {
            let (sender, receiver) = mpsc::unbounded_channel();
            body(SimulatedDisk::new(Host(1), sender), receiver);
        });
    }

    fn synced_file(disk: &SimulatedDisk) -> Arc<dyn DiskFile> {
        disk.create_dir(Path::new("/raft")).unwrap();
        let file = disk.open(Path::new(FILE), Open::Create).unwrap();
        file.write_at(b"first", 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new("/raft")).unwrap();
        file
    }

    fn content(disk: &SimulatedDisk) -> Vec<u8> {
        let file = disk.open(Path::new(FILE), Open::Read).unwrap();
        let mut bytes = vec![0; file.size().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn synced_bytes_survive_the_loss_of_power() {
        in_simulation(|disk, _| {
            synced_file(&disk);
            assert_eq!(disk.lose_power(), 0);
            assert_eq!(content(&disk), b"first");
            assert_eq!(disk.counts(), (1, 1));
        });
    }

    #[test]
    fn lying_sync_loses_what_it_claimed() {
        in_simulation(|disk, _| {
            let file = synced_file(&disk);
            disk.let_syncs_lie();
            for _ in 0..20 {
                file.write_at(b"other", 0).unwrap();
                file.sync_data().unwrap();
            }
            assert!(disk.lose_power() > 0);
        });
    }

    #[test]
    fn late_sync_loses_only_the_last_writes_that_it_claimed() {
        in_simulation(|disk, _| {
            let file = synced_file(&disk);
            disk.let_syncs_be_late();
            for bytes in [b"other", b"third"] {
                file.write_at(bytes, 0).unwrap();
                file.sync_data().unwrap();
            }
            let lost = disk.lose_power();
            assert_eq!(content(&disk), if lost == 0 { b"third" } else { b"other" });
        });
    }

    #[test]
    fn power_that_waits_for_a_sync_surely_takes_something_with_it() {
        in_simulation(|disk, mut alarm| {
            let file = synced_file(&disk);
            disk.arm_power_loss(1, true);
            file.sync_data().unwrap();
            file.write_at(b"last", 0).unwrap();
            assert!(file.sync_data().is_err());
            assert_eq!(alarm.try_recv(), Ok(Host(1)));
            assert_eq!(disk.lose_power(), 1);
        });
    }

    #[test]
    fn power_that_goes_in_a_call_raises_the_alarm_once() {
        in_simulation(|disk, mut alarm| {
            let file = synced_file(&disk);
            disk.arm_power_loss(1, false);
            file.write_at(b"last", 0).unwrap();
            assert!(alarm.try_recv().is_err());
            assert!(file.sync_data().is_err());
            assert!(file.sync_data().is_err());
            assert_eq!(alarm.try_recv(), Ok(Host(1)));
            assert!(alarm.try_recv().is_err());
            assert_eq!(disk.lose_power(), 1, "the write that the sync was for");
            assert!(file.sync_data().is_err(), "a handle of the time before is dead");
            assert_eq!(content(&disk).len(), 5);
        });
    }
}
