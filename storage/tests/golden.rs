//! A data folder that this version wrote, kept for all later ones to read, and what a newer version's files are told.
//!
//! `UPDATE_GOLDEN=1` writes the folder anew. That is allowed before a release only: later versions add a folder of
//! their own beside it and go on reading this one.

#![allow(clippy::unwrap_used)]

#[path = "support/shared.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_proto::id::Cursor;
use holdfast_storage::CommittedSource;
use holdfast_storage::adapter::{Adapter, Folders};
use holdfast_storage::backup;
use holdfast_storage::disk::{Disk, RealDisk};
use holdfast_storage::journal::{self, Journal, Record, Scan};
use holdfast_storage::promise::{PromiseFile, Promised};
use holdfast_storage::raft_log::{Opened, RaftLog};
use holdfast_storage::snapshot::SnapshotStore;
use holdfast_storage::types::{Entry, LeaderId, LogId, Membership, Payload, Peer, Proposal, Types, Vote};
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine};
use support::{EVENT_LOG, RAFT_LOG, Runtime, commands};

/// Entries in the log, and the last one in the snapshot.
const LAST: u64 = 60;
const IN_SNAPSHOT: u64 = 40;
const PURGED: u64 = 20;

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data-1")
}

fn id(index: u64) -> LogId {
    LogId {
        leader_id: LeaderId { term: 3, node_id: 1 },
        index,
    }
}

fn entry(index: u64) -> Entry {
    let members = || {
        let peer = Peer {
            address: "n1:7400".into(),
        };
        let peers = std::collections::BTreeMap::from([(1, peer)]);
        Membership::new(vec![[1].into()], peers).unwrap()
    };
    let payload = match index {
        0 => Payload::Membership(members()),
        1 => Payload::Normal(Proposal(commands::init().encode())),
        30 => Payload::Blank,
        _ => Payload::Normal(Proposal(
            commands::note(&format!("note {index}"), 1000 + index).encode(),
        )),
    };
    Entry {
        log_id: id(index),
        payload,
    }
}

fn open_log(data: &Path) -> (RaftLog<Runtime>, holdfast_storage::raft_log::LogThread) {
    let opened = Opened::open(Arc::new(RealDisk), &data.join("raft"), RAFT_LOG).unwrap();
    opened.start_thread(None).unwrap()
}

fn open_adapter(data: &Path) -> Adapter<Runtime> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    Adapter::open(&disk, &Folders::in_data(data), EVENT_LOG).unwrap().0
}

async fn apply(adapter: &mut Adapter<Runtime>, range: std::ops::Range<u64>) {
    let entries = range.map(|index| Ok((entry(index), None)));
    adapter.apply(futures_util::stream::iter(entries)).await.unwrap();
}

async fn write(data: &Path) {
    fs::create_dir_all(data).unwrap();
    let vote = Vote {
        leader_id: LeaderId { term: 3, node_id: 1 },
        committed: true,
    };
    let (mut log, thread) = open_log(data);
    log.save_vote(&vote).await.unwrap();
    let noop = IOFlushed::<Types<Runtime>>::noop;
    log.append((0..LAST + 5).map(entry), noop()).await.unwrap();
    log.truncate_after(Some(id(LAST - 2))).await.unwrap();
    log.append((LAST - 1..=LAST).map(entry), noop()).await.unwrap();
    log.save_committed(Some(id(LAST))).await.unwrap();
    let mut adapter = open_adapter(data);
    apply(&mut adapter, 0..IN_SNAPSHOT + 1).await;
    let mut builder = adapter.try_create_snapshot_builder(true).await.unwrap();
    builder.build_snapshot().await.unwrap();
    log.purge(id(PURGED)).await.unwrap();
    log.settle().await.unwrap();
    apply(&mut adapter, IN_SNAPSHOT + 1..LAST + 1).await;
    adapter.event_log().sync().unwrap();
    let promises = PromiseFile::in_data(Arc::new(RealDisk), data);
    promises.save(&Promised::from([(1, LAST), (2, 50)])).unwrap();
    let state = adapter.source().state();
    fs::write(data.join("backup"), backup::encode(&state, "golden").unwrap()).unwrap();
    fs::write(data.join("state-hash.txt"), state.hash().to_string()).unwrap();
    drop((log, adapter));
    thread.join();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for found in fs::read_dir(from).unwrap() {
        let found = found.unwrap();
        let target = to.join(found.file_name());
        if found.file_type().unwrap().is_dir() {
            copy(&found.path(), &target);
        } else {
            fs::copy(found.path(), target).unwrap();
        }
    }
}

/// A copy of the folder, to be opened and changed.
fn folder() -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    copy(&kept(), data.path());
    data
}

#[tokio::test]
async fn the_folder_of_version_1_opens_with_everything_that_it_held() {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        // There is none the first time.
        let _ = fs::remove_dir_all(kept());
        write(&kept()).await;
    }
    let data = folder();
    let (mut log, thread) = open_log(data.path());
    let state = log.get_log_state().await.unwrap();
    assert_eq!(
        (state.last_purged_log_id, state.last_log_id),
        (Some(id(PURGED)), Some(id(LAST)))
    );
    let vote = log.read_vote().await.unwrap().unwrap();
    assert_eq!((vote.leader_id.term, vote.committed), (3, true));
    assert_eq!(log.read_committed().await.unwrap(), Some(id(LAST)));
    let entries = log.try_get_log_entries(PURGED + 1..=LAST).await.unwrap();
    assert_eq!(entries, (PURGED + 1..=LAST).map(entry).collect::<Vec<_>>());

    let mut adapter = open_adapter(data.path());
    assert_eq!(adapter.applied_state().await.unwrap().0, Some(id(IN_SNAPSHOT)));
    apply(&mut adapter, IN_SNAPSHOT + 1..LAST + 1).await;
    let source = adapter.source();
    let hash = fs::read_to_string(data.path().join("state-hash.txt")).unwrap();
    assert_eq!(source.state().hash().to_string(), hash);
    let blank = tempfile::tempdir().unwrap();
    let mut replayed = open_adapter(blank.path());
    apply(&mut replayed, 0..LAST + 1).await;
    let events = |source: &dyn CommittedSource| source.events(Cursor::default(), 1_000).unwrap();
    assert_eq!(events(&*source), events(&*replayed.source()));

    let promises = PromiseFile::in_data(Arc::new(RealDisk), data.path()).load().unwrap();
    assert_eq!(promises, Promised::from([(1, LAST), (2, 50)]));
    let backup = backup::read(&fs::read(data.path().join("backup")).unwrap()).unwrap();
    assert_eq!((backup.header.index, backup.state.hash().to_string()), (LAST, hash));
    drop((log, adapter));
    thread.join();
}

fn says_upgrade(error: &dyn std::error::Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    assert!(
        text.contains("newer version") || text.contains("needs an upgrade"),
        "{text}"
    );
    assert!(!text.contains("cannot be trusted"), "{text}");
}

fn first_file(folder: &Path, ending: &str) -> PathBuf {
    let names = fs::read_dir(folder).unwrap().map(|found| found.unwrap().path());
    names
        .filter(|path| path.extension().is_some_and(|it| it == ending))
        .min()
        .unwrap()
}

#[tokio::test]
async fn segments_of_a_newer_version_are_refused_and_called_sound() {
    for part in ["raft", "events"] {
        let data = folder();
        let file = first_file(&data.path().join(part), "seg");
        let mut bytes = fs::read(&file).unwrap();
        bytes[7] += 1;
        let sum = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&sum.to_le_bytes());
        fs::write(&file, bytes).unwrap();
        match part {
            "raft" => says_upgrade(&Opened::open(Arc::new(RealDisk), &data.path().join("raft"), RAFT_LOG).unwrap_err()),
            _ => {
                let disk: Arc<dyn Disk> = Arc::new(RealDisk);
                let opened = Adapter::<Runtime>::open(&disk, &Folders::in_data(data.path()), EVENT_LOG);
                says_upgrade(&opened.unwrap_err());
            }
        }
    }
}

#[tokio::test]
async fn records_of_a_kind_that_a_newer_version_has_added_are_refused_and_called_sound() {
    let data = folder();
    let layout = journal::Options {
        purpose: "raft",
        segment_bytes: RAFT_LOG.segment_bytes,
    };
    let dir = data.path().join("raft");
    let (mut journal, _) = Journal::open(Arc::new(RealDisk), &dir, layout, Scan::All, |_, _| Ok(())).unwrap();
    let record = Record {
        kind: 15,
        term: 3,
        node: 1,
        index: LAST + 1,
        payload: bytes::Bytes::from_static(b"of the future"),
    };
    if !journal.fits(record.payload.len()) {
        journal.rotate().unwrap();
    }
    journal.stage(&record);
    journal.sync().unwrap();
    drop(journal);
    says_upgrade(&Opened::open(Arc::new(RealDisk), &dir, RAFT_LOG).unwrap_err());
}

#[tokio::test]
async fn a_snapshot_and_a_backup_of_a_newer_version_are_refused_and_called_sound() {
    let data = folder();
    let reseal = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[2] += 1;
        let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..16 + length]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        fs::write(path, bytes).unwrap();
    };
    reseal(&first_file(&data.path().join("snapshots"), "snap"));
    let store = SnapshotStore::open(Arc::new(RealDisk), &data.path().join("snapshots")).unwrap();
    says_upgrade(&store.newest().unwrap_err());
    reseal(&data.path().join("backup"));
    says_upgrade(&backup::read(&fs::read(data.path().join("backup")).unwrap()).unwrap_err());
}

#[tokio::test]
async fn a_flipped_bit_in_a_version_is_damage_and_no_newer_version() {
    let data = folder();
    let snapshot = first_file(&data.path().join("snapshots"), "snap");
    let mut bytes = fs::read(&snapshot).unwrap();
    bytes[2] ^= 2;
    fs::write(&snapshot, bytes).unwrap();
    let store = SnapshotStore::open(Arc::new(RealDisk), &data.path().join("snapshots")).unwrap();
    let (found, damaged) = store.newest().unwrap();
    assert!(found.is_none() && damaged.len() == 1, "{damaged:?}");
}
