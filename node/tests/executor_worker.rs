//! The executor's thread with real processes: a lease from its placement to its end, restarts, a lost record.
//!
//! The log is a table in the test: it applies what the executor proposes, as the rules of the machine would. Waits are
//! on conditions only.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_node::env::{Clock, OsClock};
use holdfast_node::executor::attach::{Found, attach, unknown};
use holdfast_node::executor::core::{Authority, Core, PrepareOrder};
use holdfast_node::executor::duty::{Duties, Duty, MemberRun, RunKey, Standing, Work};
use holdfast_node::executor::journal::Journal;
use holdfast_node::executor::launch::Launcher;
use holdfast_node::executor::outfit::Outfit;
use holdfast_node::executor::supervised::Supervised;
use holdfast_node::executor::supervisor::course::Phase;
use holdfast_node::executor::supervisor::output::read_output;
use holdfast_node::executor::worker::{Prepared, Surroundings, Worker};
use holdfast_proto::command::Command;
use holdfast_proto::event::LeaseRequested;
use holdfast_proto::id::{Attempt, Epoch, FencingToken, Incarnation, LeaseId, NodeId};
use holdfast_proto::lease::{Isolation, LeaseKind, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::placement::{Allocation, Exit};
use holdfast_proto::time::Span;
use holdfast_proto::workload::Workload;
use holdfast_storage::disk::RealDisk;

const HANG: Duration = Duration::from_secs(120);
const TTL_MS: u64 = 3_600_000;

fn wait_until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < HANG, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn work(script: &str, folder: &Path) -> Arc<Work> {
    let requested = LeaseRequested {
        lease: LeaseId { cell: 0, index: 42 },
        tenant: "blue".parse().unwrap(),
        project: None,
        kind: LeaseKind::Job,
        label: None,
        request: ResourceRequest {
            devices_min: 1,
            devices_max: 1,
            models: Vec::new(),
            same_model: false,
            single_node: false,
            cpu_milli_per_device: 0,
            memory_mib_per_device: 0,
            zones: Vec::new(),
            spread: Spread::Pack,
        },
        terms: Terms {
            duration: Span::seconds(60),
            plan: Plan::OnDemand,
            cap_micros: None,
            isolation: Isolation::Freeze,
            priority: 0,
            grace: Span(200),
        },
        workload: Workload {
            command: vec!["sh".into(), "-c".into(), script.into()],
            environment: vec![("DIR".into(), folder.display().to_string())],
            folder: None,
            image: None,
            checkpoints: false,
        },
        tariff: 1,
    };
    let allocation = Allocation {
        node: NodeId(1),
        rank: 0,
        devices: Vec::new(),
        cpu_milli: 0,
        memory_mib: 0,
    };
    Arc::new(Work {
        requested: Arc::new(requested),
        allocation,
        members: vec![NodeId(1)],
        leader_host: "localhost".into(),
        restore: None,
        part: None,
    })
}

/// What the log has applied, and the node lease.
#[derive(Default)]
struct Log {
    duties: Duties,
    renewed: bool,
    turns: u64,
    exits: Vec<(RunKey, Exit)>,
    started: Vec<RunKey>,
}

#[derive(Clone)]
struct Around(Arc<Mutex<Log>>);

impl Surroundings for Around {
    fn authority(&mut self, now_ms: u64) -> Authority {
        let until = self.0.lock().unwrap().renewed.then_some(now_ms + TTL_MS);
        Authority {
            permit_until_ms: until,
            deadline_ms: until,
            run_until_ms: BTreeMap::new(),
        }
    }

    fn duties(&mut self, _: &[RunKey]) -> Arc<Duties> {
        let mut log = self.0.lock().unwrap();
        log.turns += 1;
        Arc::new(log.duties.clone())
    }

    fn propose(&mut self, command: Command) {
        let mut log = self.0.lock().unwrap();
        match command {
            Command::ReportPrepared {
                lease,
                epoch,
                follows,
                incarnation,
                ..
            } => {
                let duty = log.duties.members.get_mut(&(lease, epoch)).unwrap();
                assert_eq!(duty.attempt, follows);
                duty.attempt = Attempt(follows.0 + 1);
                (duty.standing, duty.run) = (Standing::Current, MemberRun::Accepted(incarnation));
            }
            Command::ReportStarted {
                lease, epoch, attempt, ..
            } => {
                log.duties.members.get_mut(&(lease, epoch)).unwrap().run = MemberRun::Started;
                log.started.push(RunKey { lease, epoch, attempt });
            }
            Command::ReportExited {
                lease,
                epoch,
                attempt,
                exit,
                ..
            } => {
                let duty = log.duties.members.get_mut(&(lease, epoch)).unwrap();
                (duty.run, duty.standing) = (MemberRun::Exited, Standing::Ending);
                duty.attempt = duty.attempt.max(attempt);
                log.exits.push((RunKey { lease, epoch, attempt }, exit));
            }
            other => panic!("an executor does not propose {other:?}"),
        }
    }

    fn prepare(&mut self, _: PrepareOrder, done: Prepared) {
        thread::spawn(move || done.done(Ok(())));
    }
}

struct Node {
    folder: tempfile::TempDir,
    root: String,
    log: Arc<Mutex<Log>>,
    worker: Option<Worker>,
}

impl Node {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = format!("hftest-{}-{name}", std::process::id());
        let log = Arc::new(Mutex::new(Log {
            renewed: true,
            ..Log::default()
        }));
        Self {
            folder,
            root,
            log,
            worker: None,
        }
    }

    fn start(&mut self, incarnation: u64) {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_holdfast"));
        let launcher = Launcher::new(program, self.folder.path()).unwrap();
        let folder = launcher.folder().to_owned();
        let outfit = Outfit {
            node: NodeId(1),
            group_root: self.root.clone(),
            path: "/usr/local/bin:/usr/bin:/bin".into(),
        };
        let journal = Journal::open(Arc::new(RealDisk), &folder).unwrap();
        let supervised = Supervised::new(launcher, self.root.clone());
        let core = Core::new(outfit, Incarnation(incarnation), &folder, supervised, journal).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(OsClock);
        self.worker = Some(Worker::start(core, clock, Around(Arc::clone(&self.log))).unwrap());
    }

    fn stop(&mut self) {
        self.worker.take().unwrap().stop().unwrap();
    }

    fn place(&self, script: &str) {
        let duty = Duty {
            token: FencingToken::default(),
            standing: Standing::Waiting,
            attempt: Attempt(0),
            run: MemberRun::Idle,
            prepared: None,
            lost: false,
            work: work(script, self.folder.path()),
        };
        let mut log = self.log.lock().unwrap();
        log.duties.members.insert((duty.work.requested.lease, Epoch(1)), duty);
        log.duties.remembered.insert(LeaseId { cell: 0, index: 42 });
        drop(log);
        self.wake();
    }

    fn change(&self, change: impl FnOnce(&mut Duty)) {
        change(self.log.lock().unwrap().duties.members.values_mut().next().unwrap());
        self.wake();
    }

    fn wake(&self) {
        if let Some(worker) = &self.worker {
            worker.waker().wake();
        }
    }

    fn folder_of(&self, run: RunKey) -> PathBuf {
        self.folder.path().join(format!("lease-{run}"))
    }

    fn wait_started(&self, count: usize) {
        wait_until("a start", || {
            (self.log.lock().unwrap().started.len() == count).then_some(())
        });
    }

    fn wait_exit(&self) -> (RunKey, Exit) {
        wait_until("an exit", || self.log.lock().unwrap().exits.first().cloned())
    }

    fn strays(&self) -> usize {
        let folder = std::fs::canonicalize(self.folder.path()).unwrap();
        unknown(&folder, &self.root, &BTreeSet::new()).len()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.worker.take();
        let folder = std::fs::canonicalize(self.folder.path()).unwrap();
        for one in unknown(&folder, &self.root, &BTreeSet::new()) {
            let _ = one.end();
        }
    }
}

fn first() -> RunKey {
    RunKey {
        lease: LeaseId { cell: 0, index: 42 },
        epoch: Epoch(1),
        attempt: Attempt(1),
    }
}

#[test]
fn a_lease_is_prepared_started_and_its_exit_code_reported_once() {
    let mut node = Node::new("life");
    node.start(7);
    node.place("echo rank $HOLDFAST_RANK lease $HOLDFAST_LEASE; exit 4");
    assert_eq!(node.wait_exit(), (first(), Exit::Code(4)));
    let output = read_output(&node.folder_of(first()), 0, 1_000).unwrap().bytes;
    assert_eq!(output, b"rank 0 lease lease-42\n");
    assert_eq!(node.log.lock().unwrap().exits.len(), 1);

    // The lease is forgotten: its folder goes, and nothing is left.
    node.log.lock().unwrap().duties = Duties::default();
    node.wake();
    wait_until("the folder's removal", || {
        (!node.folder_of(first()).exists()).then_some(())
    });
    assert_eq!(node.strays(), 0);
}

#[test]
fn work_lives_through_daemon_restarts_is_adopted_stopped_and_reported_once() {
    let mut node = Node::new("restart");
    node.start(7);
    node.place("exec sleep 1000");
    node.wait_started(1);
    for incarnation in 8..10 {
        node.stop();
        assert_eq!(node.strays(), 1, "the work goes on without a daemon");
        node.start(incarnation);
    }
    let worker = node.worker.as_ref().unwrap();
    assert_eq!(
        worker.work().iter().map(|work| work.lease).collect::<Vec<_>>(),
        [first().lease]
    );
    node.change(|duty| duty.standing = Standing::Ending);
    assert_eq!(node.wait_exit(), (first(), Exit::Stopped));
    wait_until("nothing left", || (node.strays() == 0).then_some(()));
    let log = node.log.lock().unwrap();
    assert_eq!((log.started.len(), log.exits.len()), (1, 1));
}

#[test]
fn an_exit_without_a_daemon_is_reported_by_the_next_one() {
    let mut node = Node::new("absent");
    node.start(7);
    node.place("while [ ! -e $DIR/go ]; do sleep 0.02; done; exit 9");
    node.wait_started(1);
    node.stop();
    std::fs::write(node.folder.path().join("go"), "").unwrap();
    wait_until("its end", || {
        matches!(attach(&node.folder_of(first())).unwrap(), Found::Ended(_)).then_some(())
    });
    node.start(8);
    assert_eq!(node.wait_exit(), (first(), Exit::Code(9)));
}

#[test]
fn without_a_renewal_nothing_starts_and_with_one_it_does() {
    let mut node = Node::new("permit");
    node.log.lock().unwrap().renewed = false;
    node.start(7);
    node.place("exec sleep 1000");
    let turns = node.log.lock().unwrap().turns;
    wait_until("three more turns", || {
        (node.log.lock().unwrap().turns > turns + 3).then_some(())
    });
    assert!(!node.folder_of(first()).exists());
    node.log.lock().unwrap().renewed = true;
    node.wake();
    node.wait_started(1);
    let phase = match attach(&node.folder_of(first())).unwrap() {
        Found::Running(_, status) => status.phase,
        other => panic!("{other:?}"),
    };
    assert_eq!(phase, Phase::Running);
}

#[test]
fn a_running_lease_without_its_records_is_ended_and_its_lease_told() {
    let mut node = Node::new("record");
    node.start(7);
    node.place("exec sleep 1000");
    node.wait_started(1);
    node.stop();
    std::fs::remove_dir_all(node.folder.path().join(format!("lease-{}", first()))).unwrap();
    std::fs::remove_file(node.folder.path().join("journal")).unwrap();
    node.start(8);
    assert_eq!(node.wait_exit(), (first(), Exit::Vanished));
    assert_eq!(node.strays(), 0);
}

#[test]
fn a_command_that_does_not_exist_ends_the_work_with_the_shells_code_for_that() {
    let mut node = Node::new("missing");
    let mut broken = Work::clone(&work("", node.folder.path()));
    let mut requested = LeaseRequested::clone(&broken.requested);
    requested.workload.command = vec!["no-such-program".into()];
    broken.requested = Arc::new(requested);
    node.start(7);
    node.place("true");
    drop(node.wait_exit());
    node.log.lock().unwrap().exits.clear();
    node.change(|duty| {
        (duty.work, duty.standing) = (Arc::new(broken), Standing::Waiting);
    });
    let (run, exit) = node.wait_exit();
    assert_eq!(run.attempt, Attempt(2));
    assert_eq!(exit, Exit::Code(127));
}

#[test]
fn what_was_only_prepared_when_the_daemon_died_is_prepared_anew() {
    let mut node = Node::new("prepared");
    std::fs::create_dir_all(node.folder_of(first()).join("checkpoints/half-restored")).unwrap();
    node.start(7);
    assert!(!node.folder_of(first()).exists());
    node.place("ls $HOLDFAST_CHECKPOINT_DIR | wc -l; exit 0");
    assert_eq!(node.wait_exit(), (first(), Exit::Code(0)));
}
