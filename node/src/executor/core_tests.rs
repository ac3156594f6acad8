//! The core with a model of processes: what it orders, what it reports, what it remembers.
#![allow(clippy::unwrap_used)]

use holdfast_proto::id::{Epoch, FencingToken, NodeId};
use holdfast_storage::disk::memory::{Faults, MemoryDisk};

use super::*;
use crate::executor::diff::tests::work;
use crate::executor::duty::MemberRun;
use crate::executor::supervisor::spec::Spec;

const ME: Incarnation = Incarnation(7);
const LEASE: LeaseId = LeaseId { cell: 0, index: 42 };
const FOLDER: &str = "/executor";

fn run(epoch: u32, attempt: u32) -> RunKey {
    RunKey {
        lease: LEASE,
        epoch: Epoch(epoch),
        attempt: Attempt(attempt),
    }
}

const RUNNING: Observed = Observed::Running {
    frozen: false,
    ending: false,
    frozen_ms: 0,
};
const FROZEN: Observed = Observed::Running {
    frozen: true,
    ending: false,
    frozen_ms: 70,
};
const ENDING: Observed = Observed::Running {
    frozen: false,
    ending: true,
    frozen_ms: 0,
};

/// Processes that do as they are told, and that tests can change.
#[derive(Debug, Clone, Default)]
pub(in crate::executor) struct Model {
    pub(in crate::executor) runs: BTreeMap<RunKey, Observed>,
    pub(in crate::executor) changed: Vec<RunKey>,
    pub(in crate::executor) unknown: Vec<String>,
    pub(in crate::executor) calls: Vec<String>,
}

impl Model {
    pub(in crate::executor) fn set(&mut self, run: RunKey, observed: Observed) {
        self.runs.insert(run, observed);
        self.changed.push(run);
    }

    pub(in crate::executor) fn calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls)
    }
}

impl Processes for Model {
    fn recover(&mut self) -> BTreeMap<RunKey, Observed> {
        self.runs.clone()
    }

    fn launch(&mut self, run: RunKey, spec: &Spec) -> Observed {
        assert_eq!(spec.validate(), Ok(()));
        self.calls.push(format!("launch {run} until {}", spec.deadline_boot_ms));
        self.runs.entry(run).or_insert(RUNNING).clone()
    }

    fn order(&mut self, run: RunKey, order: Order) -> Observed {
        self.calls.push(match order {
            Order::Deadline { until_boot_ms, .. } => format!("deadline {run} {until_boot_ms}"),
            Order::Thaw { until_boot_ms } => format!("thaw {run} {until_boot_ms}"),
            Order::Stop { grace_ms } => format!("stop {run} {grace_ms}"),
            Order::Freeze => format!("freeze {run}"),
            Order::Kill => format!("kill {run}"),
        });
        let observed = self.runs.get_mut(&run).unwrap();
        match (order, &observed) {
            (Order::Thaw { .. }, Observed::Running { frozen: true, .. }) => *observed = RUNNING,
            (Order::Stop { .. } | Order::Kill, Observed::Running { .. }) => *observed = ENDING,
            _ => {}
        }
        observed.clone()
    }

    fn poll(&mut self, _: u64) -> Vec<(RunKey, Observed)> {
        std::mem::take(&mut self.changed)
            .into_iter()
            .map(|run| (run, self.runs[&run].clone()))
            .collect()
    }

    fn unknown(&mut self, _: &BTreeSet<RunKey>) -> Vec<String> {
        self.unknown.clone()
    }

    fn end_unknown(&mut self, name: &str) -> bool {
        self.calls.push(format!("end {name}"));
        self.unknown.retain(|other| other != name);
        true
    }

    fn discard(&mut self, run: RunKey) {
        self.calls.push(format!("discard {run}"));
        self.runs.remove(&run);
    }
}

struct World {
    disk: MemoryDisk,
    core: Core<Model>,
    duties: Duties,
    authority: Authority,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        let disk = MemoryDisk::new(1);
        let core = start(&disk, ME, Model::default());
        let authority = Authority {
            permit_until_ms: Some(4_000),
            deadline_ms: Some(4_000),
            ..Default::default()
        };
        Self {
            disk,
            core,
            duties: Duties::default(),
            authority,
            now_ms: 1_000,
        }
    }

    fn duty(&mut self, standing: Standing, attempt: u32, member: MemberRun) -> &mut Duty {
        let duty = Duty {
            token: FencingToken::default(),
            standing,
            attempt: Attempt(attempt),
            run: member,
            prepared: None,
            lost: false,
            work: work(),
        };
        self.duties.remembered.insert(LEASE);
        self.duties.members.insert((LEASE, Epoch(3)), duty);
        self.duties.members.get_mut(&(LEASE, Epoch(3))).unwrap()
    }

    fn turn(&mut self) -> Turn {
        self.turn_with(Vec::new())
    }

    fn turn_with(&mut self, prepared: Vec<(RunKey, Result<(), String>)>) -> Turn {
        let (authority, duties) = (&self.authority, &self.duties);
        self.core
            .turn(Inputs {
                now_ms: self.now_ms,
                authority,
                duties,
                prepared,
            })
            .unwrap()
    }

    fn calls(&mut self) -> Vec<String> {
        self.core.processes().calls()
    }

    /// The daemon is killed and started again: the disk and the processes stay.
    fn restart(&mut self, incarnation: Incarnation) {
        self.disk.crash();
        let mut model = self.core.processes().clone();
        model.changed.clear();
        model.calls.clear();
        self.core = start(&self.disk, incarnation, model);
    }
}

fn start(disk: &MemoryDisk, incarnation: Incarnation, model: Model) -> Core<Model> {
    let outfit = Outfit {
        node: NodeId(1),
        group_root: "holdfast-1".into(),
        path: "/bin".into(),
    };
    let journal = Journal::open(Arc::new(disk.clone()), Path::new(FOLDER)).unwrap();
    Core::new(outfit, incarnation, Path::new(FOLDER), model, journal).unwrap()
}

fn exited(exit: Exit) -> Command {
    let RunKey { lease, epoch, attempt } = run(3, 1);
    Command::ReportExited {
        lease,
        epoch,
        attempt,
        node: NodeId(1),
        exit,
    }
}

fn started() -> Command {
    let RunKey { lease, epoch, attempt } = run(3, 1);
    Command::ReportStarted {
        lease,
        epoch,
        attempt,
        node: NodeId(1),
    }
}

#[test]
fn a_lease_from_its_placement_to_its_end() {
    let mut world = World::new();
    world.duty(Standing::Waiting, 0, MemberRun::Idle);
    let turn = world.turn();
    assert_eq!(
        (turn.prepare.len(), turn.prepare[0].run, turn.commands),
        (1, run(3, 1), Vec::new())
    );
    assert_eq!(world.turn(), Turn::default(), "it is prepared once");

    let turn = world.turn_with(vec![(run(3, 1), Ok(()))]);
    let prepared = Command::ReportPrepared {
        lease: LEASE,
        epoch: Epoch(3),
        follows: Attempt(0),
        node: NodeId(1),
        incarnation: ME,
    };
    assert_eq!(turn.commands, [prepared]);
    world.duty(Standing::Waiting, 0, MemberRun::Idle).prepared = Some(ME);
    assert_eq!(world.turn(), Turn::default());

    world.duty(Standing::Current, 1, MemberRun::Accepted(ME));
    assert_eq!(world.turn().commands, [started()]);
    assert_eq!(world.calls(), ["launch 0-42-e3-a1 until 4000"]);
    world.duty(Standing::Current, 1, MemberRun::Started);
    assert_eq!(world.turn(), Turn::default());

    world.authority.deadline_ms = Some(4_500);
    world.turn();
    assert_eq!(world.calls(), ["deadline 0-42-e3-a1 4500"]);

    world.duty(Standing::Ending, 1, MemberRun::Started);
    world.turn();
    assert_eq!(world.calls(), ["stop 0-42-e3-a1 30000"]);
    assert_eq!(
        (world.turn(), world.calls()),
        (Turn::default(), Vec::new()),
        "it is told once"
    );
    world.core.processes().set(run(3, 1), Observed::Ended(Exit::Stopped));
    assert_eq!(world.turn().commands, [exited(Exit::Stopped)]);

    world.duties.members.clear();
    assert_eq!(
        (world.turn(), world.calls()),
        (Turn::default(), Vec::new()),
        "its output may still be read"
    );
    world.duties.remembered.clear();
    world.turn();
    assert_eq!(world.calls(), ["discard 0-42-e3-a1"]);
    assert!(world.core.actual().is_empty());
}

#[test]
fn work_that_ends_at_once_is_told_as_started_before_it_is_told_as_ended() {
    for (how, told_started) in [(0, true), (7, true), (127, false), (126, false)] {
        let mut world = World::new();
        world
            .core
            .processes()
            .runs
            .insert(run(3, 1), Observed::Ended(Exit::Code(how)));
        world.duty(Standing::Current, 1, MemberRun::Accepted(ME));
        let first = if told_started {
            started()
        } else {
            exited(Exit::Code(how))
        };
        assert_eq!(world.turn().commands, std::slice::from_ref(&first));
        world.now_ms += 100;
        assert_eq!(
            world.turn(),
            Turn::default(),
            "the end waits until the log has the start"
        );

        world.restart(Incarnation(8));
        assert_eq!(world.turn().commands, [first], "also over a restart");
        if told_started {
            world.duty(Standing::Current, 1, MemberRun::Started);
            assert_eq!(world.turn().commands, [exited(Exit::Code(how))]);
        }
    }
    // It was seen running: then even the shell's code for a missing program is an end of something that started.
    let mut world = World::new();
    world.duty(Standing::Current, 1, MemberRun::Accepted(ME));
    assert_eq!(world.turn().commands, [started()]);
    world.core.processes().set(run(3, 1), Observed::Ended(Exit::Code(127)));
    assert_eq!(world.turn(), Turn::default());
    world.duty(Standing::Current, 1, MemberRun::Started);
    assert_eq!(world.turn().commands, [exited(Exit::Code(127))]);
}

#[test]
fn a_report_is_made_until_the_state_shows_it_ever_more_rarely() {
    let mut world = World::new();
    world.duty(Standing::Current, 1, MemberRun::Accepted(ME));
    let mut at = Vec::new();
    for _ in 0..3_000 {
        if !world.turn().commands.is_empty() {
            at.push(world.now_ms - 1_000);
        }
        world.now_ms += 20;
    }
    assert_eq!(at[..5], [0, 500, 1_500, 3_500, 7_500]);
    assert!(at.len() < 9, "{at:?}");
}

#[test]
fn a_failed_preparation_is_reported_and_the_next_attempt_is_another_one() {
    let mut world = World::new();
    world.duty(Standing::Waiting, 0, MemberRun::Idle);
    world.turn();
    let turn = world.turn_with(vec![(run(3, 1), Err("driver 470 is too old".into()))]);
    assert_eq!(
        turn.commands,
        [exited(Exit::LaunchFailed("driver 470 is too old".into()))]
    );
    world.duty(Standing::Waiting, 1, MemberRun::Exited);
    assert_eq!(world.turn().prepare[0].run, run(3, 2));
}

#[test]
fn a_preparation_that_nobody_waits_for_any_more_is_dropped() {
    let mut world = World::new();
    world.duty(Standing::Waiting, 0, MemberRun::Idle);
    world.turn();
    world.duty(Standing::Ending, 0, MemberRun::Idle);
    assert_eq!(world.turn_with(vec![(run(3, 1), Err("late".into()))]), Turn::default());
    assert!(world.core.actual().is_empty());
}

#[test]
fn a_restarted_daemon_adopts_what_runs_and_spawns_nothing_that_another_start_prepared() {
    let mut world = World::new();
    world.duty(Standing::Current, 1, MemberRun::Accepted(ME));
    world.turn();
    world.restart(Incarnation(8));
    world.authority.permit_until_ms = None;
    world.authority.deadline_ms = None;
    assert_eq!(world.turn(), Turn::default(), "without a renewal nothing is adopted");
    world.authority = Authority {
        permit_until_ms: Some(4_000),
        deadline_ms: Some(4_000),
        ..Default::default()
    };
    assert_eq!(world.turn().commands, [started()]);
    assert_eq!(world.calls(), ["deadline 0-42-e3-a1 4000"]);

    // Killed between the journal and the launch: nothing runs, and it is said.
    let mut world = World::new();
    world.duty(Standing::Current, 1, MemberRun::Accepted(ME));
    world.turn();
    world.core.processes().runs.clear();
    world.restart(Incarnation(8));
    assert_eq!(world.turn().commands, [exited(Exit::Vanished)]);
    assert!(world.calls().is_empty());
}

#[test]
fn an_end_that_was_recorded_is_reported_after_every_restart_and_stays_the_same() {
    let mut world = World::new();
    world.duty(Standing::Current, 1, MemberRun::Started);
    world.core.processes().set(run(3, 1), Observed::Ended(Exit::Code(5)));
    assert_eq!(world.turn().commands, [exited(Exit::Code(5))]);
    for incarnation in 8..11 {
        // The folder is lost; the journal is not.
        world.core.processes().runs.clear();
        world.restart(Incarnation(incarnation));
        world.authority.permit_until_ms = None;
        assert_eq!(
            world.turn().commands,
            [exited(Exit::Code(5))],
            "an obligation survives, renewal or not"
        );
    }
}

#[test]
fn frozen_work_is_thawed_by_a_renewal_and_its_time_is_known() {
    let mut world = World::new();
    world.duty(Standing::Current, 1, MemberRun::Accepted(ME));
    world.turn();
    world.duty(Standing::Current, 1, MemberRun::Started);
    world.calls();
    world.core.processes().set(run(3, 1), FROZEN);
    world.now_ms = 4_000;
    assert_eq!(
        (world.turn(), world.calls()),
        (Turn::default(), Vec::new()),
        "the permit has run out"
    );
    assert_eq!(world.core.work()[0].frozen, Span(70));
    world.authority = Authority {
        permit_until_ms: Some(8_000),
        deadline_ms: Some(8_000),
        ..Default::default()
    };
    world.turn();
    assert_eq!(world.calls(), ["deadline 0-42-e3-a1 8000", "thaw 0-42-e3-a1 8000"]);
}

#[test]
fn work_without_a_record_is_ended_said_and_its_lease_told() {
    let mut world = World::new();
    world.duty(Standing::Current, 1, MemberRun::Started);
    world.core.processes().unknown = vec![run(3, 1).to_string()];
    let turn = world.turn();
    assert_eq!(turn.notes, ["work 0-42-e3-a1 ran here without a record and was ended"]);
    assert_eq!(
        (turn.commands, world.calls()),
        (vec![exited(Exit::Vanished)], vec!["end 0-42-e3-a1".to_owned()])
    );
}

#[test]
fn nothing_is_spawned_when_the_journal_cannot_be_written() {
    let mut world = World::new();
    world.duty(Standing::Current, 1, MemberRun::Accepted(ME));
    world.disk.set_faults(Faults {
        fail_syncs: true,
        ..Default::default()
    });
    let (authority, duties) = (&world.authority, &world.duties);
    assert!(
        world
            .core
            .turn(Inputs {
                now_ms: 1_000,
                authority,
                duties,
                prepared: Vec::new()
            })
            .is_err()
    );
    assert!(world.calls().is_empty());
}

#[test]
fn many_launches_are_spread_over_turns_so_that_renewals_get_through() {
    let mut world = World::new();
    let duty = world.duty(Standing::Current, 1, MemberRun::Accepted(ME)).clone();
    for index in 100..120 {
        world
            .duties
            .members
            .insert((LeaseId { cell: 0, index }, Epoch(1)), duty.clone());
    }
    world.turn();
    assert_eq!(world.calls().len(), LAUNCHES_PER_TURN);
    world.turn();
    world.turn();
    assert_eq!(world.core.actual().len(), 21);
}

/// A small random number generator: the walk needs no quality.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn on_any_walk_no_run_is_launched_twice_nor_without_a_permit_nor_beside_another_of_its_lease() {
    for seed in 0..400 {
        let mut world = World::new();
        let mut launched = BTreeSet::new();
        let (mut state, mut incarnation, mut attempt) = (seed, 7, 1);
        for _ in 0..120 {
            world.now_ms += random(&mut state, 900);
            let permitted = random(&mut state, 3) > 0;
            world.authority.permit_until_ms = permitted.then_some(world.now_ms + 1);
            world.authority.deadline_ms = Some(world.now_ms + random(&mut state, 4_000));
            attempt += u32::try_from(random(&mut state, 8) / 7).unwrap();
            let standing = [
                Standing::Current,
                Standing::Waiting,
                Standing::Ending,
                Standing::Replaced,
            ];
            let standing = standing[usize::try_from(random(&mut state, 8)).unwrap().saturating_sub(4)];
            let by = Incarnation(incarnation - random(&mut state, 2));
            let member = [
                MemberRun::Accepted(by),
                MemberRun::Idle,
                MemberRun::Started,
                MemberRun::Exited,
            ];
            let member = member[usize::try_from(random(&mut state, 6)).unwrap().saturating_sub(2)];
            world.duty(standing, attempt, member);
            let runs: Vec<RunKey> = world.core.processes().runs.keys().copied().collect();
            let run = runs.last().copied().filter(|_| random(&mut state, 3) == 0);
            if let Some(run) = run.filter(|run| !matches!(world.core.processes().runs[run], Observed::Ended(_))) {
                let changes = [FROZEN, RUNNING, Observed::Silent, Observed::Ended(Exit::Code(0))];
                let change = changes[usize::try_from(random(&mut state, 4)).unwrap()].clone();
                world.core.processes().set(run, change);
            }
            if random(&mut state, 10) == 0 {
                incarnation += 1;
                world.restart(Incarnation(incarnation));
            }
            let before = world.core.processes().runs.clone();
            world.turn();
            for call in world.calls().iter().filter(|call| call.starts_with("launch")) {
                assert!(permitted, "seed {seed}: {call} without a permit");
                assert_eq!(
                    (standing, member),
                    (Standing::Current, MemberRun::Accepted(Incarnation(incarnation)))
                );
                assert!(
                    launched.insert(call.split(' ').nth(1).unwrap().to_owned()),
                    "seed {seed}: {call} again"
                );
                let lives = |observed: &Observed| !matches!(observed, Observed::Ended(_));
                assert!(!before.values().any(lives), "seed {seed}: {call} beside {before:?}");
            }
        }
    }
}
