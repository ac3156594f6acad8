//! True losses of power: a file system on a loop image that is shut down in the middle of writes, as when the plug is
//! pulled, and mounted again.
//!
//! `EXT4_IOC_SHUTDOWN` without flushing its journal drops whatever was not synced. It needs root, a loop device and
//! `mkfs.ext4`; without one of them the test says so and passes. `HOLDFAST_POWER_LOSSES=200` does more of them.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_storage::disk::RealDisk;
use holdfast_storage::raft_log::{Opened, Options, RaftLog};
use holdfast_storage::types::{Entry, LeaderId, LogId, Payload, Proposal, Types};
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft_rt_tokio::TokioRuntime;

type Log = RaftLog<TokioRuntime>;

/// Small segments, so that the power also goes while one is closed and the next one made.
const OPTIONS: Options = Options {
    segment_bytes: 1 << 20,
    tail_bytes_max: 1 << 20,
    read_bytes_max: 1 << 20,
};

/// A file system of its own, gone when this is dropped.
struct Volume {
    scratch: tempfile::TempDir,
    /// The disk as it is now; another file after each loss of power.
    image: PathBuf,
    at: PathBuf,
    losses: u64,
}

/// Enough for the log, and quick to copy.
const IMAGE_BYTES: u64 = 96 << 20;

fn done(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Volume {
    fn make() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can mount a loop image".into());
        }
        let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (image, at) = (scratch.path().join("image"), scratch.path().join("at"));
        fs::create_dir(&at).unwrap();
        File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
        let volume = Self {
            scratch,
            image,
            at,
            losses: 0,
        };
        done("mkfs.ext4", &["-q", "-F", volume.image.to_str().unwrap()])?;
        volume.mount()?;
        Ok(volume)
    }

    fn mount(&self) -> Result<(), String> {
        done(
            "mount",
            &["-o", "loop", self.image.to_str().unwrap(), self.at.to_str().unwrap()],
        )
    }

    fn unmount(&self) -> Result<(), String> {
        done("umount", &["-l", self.at.to_str().unwrap()])
    }

    /// Turns the power on. What came to the disk is copied first, because another process's namespace may hold the old
    /// mount, and then the kernel would give the dead file system again.
    fn power_on(&mut self) -> Result<(), String> {
        self.unmount()?;
        self.losses += 1;
        let next = self.scratch.path().join(format!("image-{}", self.losses));
        fs::copy(&self.image, &next).map_err(|error| error.to_string())?;
        fs::remove_file(&self.image).map_err(|error| error.to_string())?;
        self.image = next;
        self.mount()
    }

    /// Pulls the plug: nothing that was not synced comes to the image any more.
    fn lose_power(&self) -> Result<(), String> {
        const SHUTDOWN: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(b'X', 125);
        /// The journal is not flushed either.
        const NO_LOG_FLUSH: u32 = 2;
        let root = File::open(&self.at).map_err(|error| error.to_string())?;
        // SAFETY: the call reads one u32, as its opcode says.
        let shut = unsafe { rustix::ioctl::ioctl(&root, rustix::ioctl::Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH)) };
        shut.map_err(|error| format!("EXT4_IOC_SHUTDOWN: {error}"))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // It may not be mounted any more.
        let _ = self.unmount();
    }
}

fn entry(index: u64) -> Entry {
    let payload = vec![index as u8; 40 + (index % 600) as usize];
    Entry {
        log_id: id(index),
        payload: Payload::Normal(Proposal(payload.into())),
    }
}

fn id(index: u64) -> LogId {
    LogId {
        leader_id: LeaderId { term: 1, node_id: 1 },
        index,
    }
}

/// Appends until the disk refuses; `acked` follows what was reported durable.
async fn write(log: &mut Log, mut next: u64, acked: &AtomicU64) {
    loop {
        let end = next + 1 + next % 20;
        let (done, flushed) = Types::<TokioRuntime>::oneshot();
        if log
            .append((next..end).map(entry), IOFlushed::signal(done))
            .await
            .is_err()
        {
            return;
        }
        match flushed.await {
            Ok(Ok(())) => acked.store(end, Ordering::SeqCst),
            _ => return,
        }
        next = end;
    }
}

async fn life(volume: &Volume, dir: &Path, life: u64, acked: &Arc<AtomicU64>) -> u64 {
    let opened = Opened::open(Arc::new(RealDisk), dir, OPTIONS).unwrap();
    let (mut log, thread) = opened.start_thread::<TokioRuntime>(None).unwrap();
    let state = log.get_log_state().await.unwrap();
    let next = state.last_log_id.map_or(0, |last| last.index + 1);
    let promised = acked.load(Ordering::SeqCst);
    assert!(
        next >= promised,
        "life {life}: the log ends before entry {next}, {promised} were acknowledged"
    );
    let found = log.try_get_log_entries(0..next).await.unwrap();
    assert_eq!(found, (0..next).map(entry).collect::<Vec<_>>(), "life {life}");
    // Enough for the power to go in another place each time, and now and then around the end of a segment.
    let wanted = promised + 300 + life * 611 % 4_000;
    let (following, mut writing) = (acked.clone(), log.clone());
    let writer = tokio::spawn(async move { write(&mut writing, next, &following).await });
    while acked.load(Ordering::SeqCst) < wanted {
        tokio::task::yield_now().await;
    }
    volume.lose_power().unwrap();
    writer.await.unwrap();
    drop(log);
    thread.join();
    next
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_the_power_goes_in_the_middle_of_writes() {
    let mut volume = match Volume::make() {
        Ok(volume) => volume,
        Err(why) => return eprintln!("skipped: no file system whose power can be lost: {why}"),
    };
    let losses: u64 = std::env::var("HOLDFAST_POWER_LOSSES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(5);
    let acked = Arc::new(AtomicU64::new(0));
    for number in 0..losses {
        let dir = volume.at.join("raft");
        let found = life(&volume, &dir, number, &acked).await;
        volume.power_on().unwrap();
        println!(
            "loss {number}: {found} entries were there, {} are acknowledged",
            acked.load(Ordering::SeqCst)
        );
        if acked.load(Ordering::SeqCst) > 25_000 {
            // The image is small; begin anew.
            fs::remove_dir_all(&dir).unwrap();
            acked.store(0, Ordering::SeqCst);
        }
    }
    let opened = Opened::open(Arc::new(RealDisk), &volume.at.join("raft"), OPTIONS);
    assert!(opened.is_ok(), "{:?}", opened.err());
    drop(opened);
}

/// A full disk, again and again: the log stops, and starts once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_file_system_stops_the_log_and_it_starts_once_there_is_room() {
    let volume = match Volume::make() {
        Ok(volume) => volume,
        Err(why) => return eprintln!("skipped: no file system that can be filled: {why}"),
    };
    let rounds: u64 = std::env::var("HOLDFAST_FULL_DISKS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(3);
    let dir = volume.at.join("raft");
    let acked = Arc::new(AtomicU64::new(0));
    for round in 0..rounds {
        let ballast = volume.at.join("ballast");
        let free = rustix::fs::statvfs(&volume.at).unwrap();
        let room = free.f_bavail * free.f_frsize;
        // All but a few segments of it.
        let file = File::create(&ballast).unwrap();
        let leave = (3 + round % 3) << 20;
        rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::empty(),
            0,
            room.saturating_sub(leave).max(1),
        )
        .unwrap();
        let opened = Opened::open(Arc::new(RealDisk), &dir, OPTIONS).unwrap();
        let (mut log, thread) = opened.start_thread::<TokioRuntime>(None).unwrap();
        let next = log
            .get_log_state()
            .await
            .unwrap()
            .last_log_id
            .map_or(0, |last| last.index + 1);
        write(&mut log, next, &acked).await;
        drop(log);
        thread.join();
        fs::remove_file(&ballast).unwrap();

        let opened = Opened::open(Arc::new(RealDisk), &dir, OPTIONS).unwrap();
        let (mut log, thread) = opened.start_thread::<TokioRuntime>(None).unwrap();
        let end = log
            .get_log_state()
            .await
            .unwrap()
            .last_log_id
            .map_or(0, |last| last.index + 1);
        assert!(end >= acked.load(Ordering::SeqCst), "round {round}");
        assert!(
            end > next,
            "round {round}: something was written before the disk was full"
        );
        // Give the segments back.
        log.purge(id(end - 1)).await.unwrap();
        log.settle().await.unwrap();
        drop(log);
        thread.join();
    }
}
