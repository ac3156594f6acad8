//! What a replica costs to open, to write down and to keep: one line of JSON for each figure.
//!
//! `cargo bench -p holdfast-storage --bench durability -- [scan] [bytes] [start] [pause] [memory]`; all of them when none is
//! named. Wall times depend on the machine, so the CPU time behind each is printed too.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/support/commands.rs"]
#[allow(dead_code, reason = "each user takes its own part")]
mod commands;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use holdfast_proto::event::{Event, EventRecord, LeaseRequested, RequestKey};
use holdfast_proto::id::{Cursor, LeaseId, RequestId};
use holdfast_proto::lease::{EndReason, Isolation, LeaseKind, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_proto::workload::Workload;
use holdfast_storage::adapter::{Adapter, Folders};
use holdfast_storage::disk::{Disk, RealDisk};
use holdfast_storage::event_log;
use holdfast_storage::machine::{Machine, State};
use holdfast_storage::raft_log::{Opened, Options, RaftLog};
use holdfast_storage::snapshot::{Header, SnapshotStore};
use holdfast_storage::types::stored::{EntryId, MembersAt};
use holdfast_storage::types::{Entry, LeaderId, LogId, Payload, Proposal, Types};
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine};
use openraft_rt_tokio::TokioRuntime;
use serde_json::json;

/// Bytes of a proposal in the log; a small command's.
const PROPOSAL_BYTES: usize = 256;
const GROUP: u64 = 1_000;

fn main() {
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let wanted = |name: &str| asked.is_empty() || asked.iter().any(|word| word == name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        if wanted("scan") {
            scan(1_000_000).await;
        }
        if wanted("bytes") {
            bytes(100_000, 64).await;
        }
        if wanted("start") {
            start(100_000, 200_000).await;
        }
        if wanted("pause") {
            pause(1_000_000).await;
        }
        if wanted("memory") {
            memory(1_000_000, 1_000);
        }
    });
}

/// CPU time of this process, all threads.
fn cpu() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec as u64, usage.tv_nsec as u32)
}

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(usage.tv_sec as u64, usage.tv_nsec as u32)
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn id(index: u64) -> LogId {
    LogId {
        leader_id: LeaderId { term: 1, node_id: 1 },
        index,
    }
}

fn normal(index: u64, bytes: bytes::Bytes) -> Entry {
    Entry {
        log_id: id(index),
        payload: Payload::Normal(Proposal(bytes)),
    }
}

async fn fill(log: &mut RaftLog<TokioRuntime>, range: std::ops::Range<u64>, bytes: impl Fn(u64) -> bytes::Bytes) {
    let mut next = range.start;
    while next < range.end {
        let end = (next + GROUP).min(range.end);
        let entries: Vec<Entry> = (next..end).map(|index| normal(index, bytes(index))).collect();
        log.append(entries, IOFlushed::<Types<TokioRuntime>>::noop())
            .await
            .unwrap();
        next = end;
    }
    log.settle().await.unwrap();
}

fn open_log(dir: &Path) -> (RaftLog<TokioRuntime>, holdfast_storage::raft_log::LogThread) {
    let opened = Opened::open(Arc::new(RealDisk), dir, Options::default()).unwrap();
    opened.start_thread(None).unwrap()
}

/// Opening a log reads and checks every record.
async fn scan(entries: u64) {
    let data = tempfile::tempdir().unwrap();
    let (mut log, thread) = open_log(data.path());
    let payload = bytes::Bytes::from(vec![7; PROPOSAL_BYTES]);
    fill(&mut log, 0..entries, |_| payload.clone()).await;
    drop(log);
    thread.join();
    let mut best = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        let (began, cpu_began) = (Instant::now(), cpu());
        let (log, thread) = open_log(data.path());
        best = best.min((cpu() - cpu_began, began.elapsed()));
        drop(log);
        thread.join();
    }
    println!(
        "{}",
        json!({"bench": "scan", "entries": entries, "cpu_ms": ms(best.0), "wall_ms": ms(best.1)})
    );
}

/// What the log writes for each byte of proposals that come in batches: frames, checksums, alignment, votes.
async fn bytes(entries: u64, batch: u64) {
    let data = tempfile::tempdir().unwrap();
    let (mut log, thread) = open_log(data.path());
    let payload = bytes::Bytes::from(vec![7; PROPOSAL_BYTES]);
    let mut next = 0;
    while next < entries {
        let end = (next + batch).min(entries);
        let batch = (next..end).map(|index| normal(index, payload.clone()));
        log.append(batch, IOFlushed::<Types<TokioRuntime>>::noop())
            .await
            .unwrap();
        log.settle().await.unwrap();
        next = end;
    }
    drop(log);
    thread.join();
    let written = |file: std::fs::DirEntry| {
        let bytes = std::fs::read(file.path()).unwrap();
        bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
    };
    let files = std::fs::read_dir(data.path()).unwrap();
    let on_disk: usize = files.map(|file| written(file.unwrap())).sum();
    let payload_bytes = entries as usize * PROPOSAL_BYTES;
    println!(
        "{}",
        json!({"bench": "bytes", "entries": entries, "batch": batch, "payload_bytes": payload_bytes, "log_bytes": on_disk,
            "ratio": (on_disk as f64 / payload_bytes as f64 * 1e3).round() / 1e3})
    );
}

fn requested(index: u64) -> EventRecord {
    let event = Event::LeaseRequested(Box::new(LeaseRequested {
        lease: LeaseId::from_index(index),
        tenant: "blue".parse().unwrap(),
        project: None,
        kind: LeaseKind::Job,
        label: None,
        request: ResourceRequest {
            devices_min: 1,
            devices_max: 1,
            models: vec![],
            same_model: false,
            single_node: false,
            cpu_milli_per_device: 0,
            memory_mib_per_device: 0,
            zones: vec![],
            spread: Spread::Pack,
        },
        terms: Terms {
            duration: Span::seconds(3_600),
            plan: Plan::OnDemand,
            cap_micros: None,
            isolation: Isolation::Freeze,
            priority: 0,
            grace: Span(0),
        },
        workload: Workload {
            command: vec!["python".into(), "train.py".into()],
            environment: vec![],
            folder: None,
            image: None,
            checkpoints: false,
        },
        tariff: 1,
    }));
    record(index, event, true)
}

fn record(index: u64, event: Event, requested: bool) -> EventRecord {
    let key = RequestKey {
        principal: 1,
        id: RequestId {
            client_ms: index,
            random: index,
        },
    };
    EventRecord {
        cursor: Cursor { index, sub: 0 },
        at: Timestamp(index),
        request: requested.then_some(key),
        event,
    }
}

/// A cluster with leases of which the newest `live` are live.
fn state(leases: u64, live: u64) -> State {
    let mut machine = Machine::default();
    machine.apply(1, &commands::init());
    let mut state = machine.state().clone();
    for index in 2..leases + 2 {
        state.fold(&requested(index));
        state.applied.index = index;
    }
    for (next, lease) in (leases + 2..).zip(2..leases + 2 - live) {
        let ended = Event::LeaseEnded {
            lease: LeaseId::from_index(lease),
            reason: EndReason::Released,
            exit_code: Some(0),
        };
        state.fold(&record(next, ended, false));
        state.applied.index = next;
    }
    state
}

fn header(state: &State) -> Header {
    Header {
        last: Some(EntryId {
            term: 1,
            node: 1,
            index: state.applied.index,
        }),
        members: MembersAt::default(),
        state_hash: state.hash().0,
        body_hash: [0; 32],
        body_bytes: 0,
    }
}

fn put(state: &State, data: &Path) -> u64 {
    let store = SnapshotStore::open(Arc::new(RealDisk), &data.join("snapshots")).unwrap();
    let file = store
        .write(header(state), None, |body| state.encode_into(|frame| body.put(frame)))
        .unwrap();
    file.size()
}

fn open_adapter(data: &Path) -> Adapter<TokioRuntime> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let (adapter, _) = Adapter::open(&disk, &Folders::in_data(data), event_log::Options::default()).unwrap();
    adapter
}

fn note(index: u64) -> bytes::Bytes {
    commands::note("a note of about the length that one has", 1_000_000 + index).encode()
}

/// From opening the files of a replica to its state being complete: what a start costs beside the process itself.
async fn start(live: u64, behind: u64) {
    let data = tempfile::tempdir().unwrap();
    let state = state(live, live);
    let first = state.applied.index + 1;
    let snapshot_bytes = put(&state, data.path());
    let (mut log, thread) = open_log(&data.path().join("raft"));
    log.purge(id(first - 1)).await.unwrap();
    fill(&mut log, first..first + behind, note).await;
    drop(log);
    thread.join();
    drop(state);

    let mut best = (Duration::MAX, Duration::MAX, Duration::ZERO, Duration::ZERO);
    for _ in 0..3 {
        let (began, cpu_began) = (Instant::now(), cpu());
        let (mut log, thread) = open_log(&data.path().join("raft"));
        let log_at = began.elapsed();
        let mut adapter = open_adapter(data.path());
        let state_at = began.elapsed();
        let entries = log.entries_stream(first..first + behind).await;
        let entries = futures_util::StreamExt::map(entries, |entry| entry.map(|entry| (entry, None)));
        adapter.apply(Box::pin(entries)).await.unwrap();
        best = best.min((began.elapsed(), cpu() - cpu_began, log_at, state_at));
        drop((log, adapter));
        thread.join();
        // What was applied lies in the event log now; the next round writes it anew.
        std::fs::remove_dir_all(data.path().join("events")).unwrap();
    }
    println!(
        "{}",
        json!({
            "bench": "start", "live_leases": live, "entries_after_snapshot": behind, "snapshot_mib": snapshot_bytes >> 20,
            "wall_ms": ms(best.0), "cpu_ms": ms(best.1), "log_open_ms": ms(best.2), "state_open_ms": ms(best.3 - best.2),
            "apply_ms": ms(best.0 - best.3),
        })
    );
}

/// The longest that one entry waits to be applied while a snapshot of a large state is written.
async fn pause(leases: u64) {
    let data = tempfile::tempdir().unwrap();
    let state = state(leases, leases - leases / 10);
    let first = state.applied.index + 1;
    put(&state, data.path());
    drop(state);
    let mut adapter = open_adapter(data.path());
    adapter.pace_snapshots(Arc::new(|bytes| {
        std::thread::sleep(Duration::from_nanos(bytes as u64 * 1_000_000_000 / (64 << 20)))
    }));
    let mut index = first;
    // Warm: the maps of a state that was just loaded are hashed for the first time.
    apply_one(&mut adapter, &mut index).await;
    let (quiet_wall, quiet_cpu) = longest(&mut adapter, &mut index, Duration::from_secs(3), None).await;

    let captured = (Instant::now(), thread_cpu());
    let mut builder = adapter.try_create_snapshot_builder(true).await.unwrap();
    let capture = (captured.0.elapsed(), thread_cpu() - captured.1);
    let done = Arc::new(AtomicBool::new(false));
    let finished = done.clone();
    let began = Instant::now();
    let building = tokio::spawn(async move {
        builder.build_snapshot().await.unwrap();
        finished.store(true, Ordering::SeqCst);
    });
    let (wall, cpu) = longest(&mut adapter, &mut index, Duration::from_secs(600), Some(&done)).await;
    let built = began.elapsed();
    building.await.unwrap();
    println!(
        "{}",
        json!({
            "bench": "pause", "leases": leases, "capture_us": capture.0.as_micros() as u64, "capture_cpu_us": capture.1.as_micros() as u64,
            "apply_max_ms": ms(wall), "apply_max_cpu_ms": ms(cpu), "quiet_apply_max_ms": ms(quiet_wall),
            "quiet_apply_max_cpu_ms": ms(quiet_cpu), "snapshot_ms": ms(built), "applied": index - first,
        })
    );
}

async fn apply_one(adapter: &mut Adapter<TokioRuntime>, index: &mut u64) {
    let entry = normal(*index, note(*index));
    *index += 1;
    adapter
        .apply(futures_util::stream::iter([Ok((entry, None))]))
        .await
        .unwrap();
}

/// Applies entries one by one; gives the longest wall and CPU time that one took.
async fn longest(
    adapter: &mut Adapter<TokioRuntime>,
    index: &mut u64,
    most: Duration,
    until: Option<&AtomicBool>,
) -> (Duration, Duration) {
    let began = Instant::now();
    let mut longest = (Duration::ZERO, Duration::ZERO);
    while began.elapsed() < most && !until.is_some_and(|done| done.load(Ordering::SeqCst)) {
        let (wall, cpu) = (Instant::now(), thread_cpu());
        apply_one(adapter, index).await;
        longest = (longest.0.max(wall.elapsed()), longest.1.max(thread_cpu() - cpu));
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    longest
}

/// Memory of a replica's state after many leases, of which never more than `live` lived at a time.
fn memory(leases: u64, live: u64) {
    let before = resident_mib();
    let mut machine = Machine::default();
    machine.apply(1, &commands::init());
    let mut state = machine.state().clone();
    drop(machine);
    let mut living = std::collections::VecDeque::new();
    let mut index = 2;
    for _ in 0..leases {
        state.fold(&requested(index));
        living.push_back(index);
        index += 1;
        if living.len() as u64 > live {
            let ended = Event::LeaseEnded {
                lease: LeaseId::from_index(living.pop_front().unwrap()),
                reason: EndReason::Released,
                exit_code: Some(0),
            };
            state.fold(&record(index, ended, false));
            index += 1;
        }
        state.applied.index = index;
    }
    let after = resident_mib();
    println!(
        "{}",
        json!({
            "bench": "memory", "leases": leases, "live": live, "resident_mib": after, "state_mib": after.saturating_sub(before),
            "leases_in_state": state.leases.len(), "requests_remembered": state.requests.len(),
        })
    );
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}
