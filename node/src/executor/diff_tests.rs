//! Each rule of the diff as one row: a duty, what runs, the steps.

use std::sync::Arc;

use holdfast_proto::event::LeaseRequested;
use holdfast_proto::id::{FencingToken, NodeId};
use holdfast_proto::lease::{Isolation, LeaseKind, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::placement::Allocation;
use holdfast_proto::time::Span;
use holdfast_proto::workload::Workload;

use super::*;
use crate::executor::duty::Work;

const ME: Incarnation = Incarnation(7);
const BEFORE: Incarnation = Incarnation(6);
const LEASE: LeaseId = LeaseId { cell: 0, index: 42 };
const GRACE: u64 = 30_000;

pub(in crate::executor) fn work() -> Arc<Work> {
    let requested = LeaseRequested {
        lease: LEASE,
        tenant: "blue".parse().expect("a plain name"),
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
            grace: Span(GRACE),
        },
        workload: Workload {
            command: vec!["true".into()],
            environment: Vec::new(),
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
        cpu_milli: 1_000,
        memory_mib: 64,
    };
    Arc::new(Work {
        requested: Arc::new(requested),
        allocation,
        members: vec![NodeId(1)],
        leader_host: "a".into(),
        restore: None,
        part: None,
    })
}

fn run(epoch: u32, attempt: u32) -> RunKey {
    RunKey {
        lease: LEASE,
        epoch: Epoch(epoch),
        attempt: Attempt(attempt),
    }
}

fn running() -> Actual {
    Actual::Running {
        frozen: false,
        adopted: true,
        ending: false,
    }
}

fn frozen() -> Actual {
    Actual::Running {
        frozen: true,
        adopted: true,
        ending: false,
    }
}

fn stray() -> Actual {
    Actual::Running {
        frozen: false,
        adopted: false,
        ending: false,
    }
}

fn ending() -> Actual {
    Actual::Running {
        frozen: false,
        adopted: true,
        ending: true,
    }
}

fn ended() -> Actual {
    Actual::Ended(Exit::Code(0))
}

/// A scene: one placement, epoch 3 and attempt 2 unless said otherwise, and what runs.
struct Scene {
    permitted: bool,
    duties: Duties,
    actual: BTreeMap<RunKey, Actual>,
    unknown: Vec<String>,
    preparing: BTreeSet<RunKey>,
    ready: BTreeSet<RunKey>,
    ran: BTreeSet<RunKey>,
}

impl Scene {
    fn empty() -> Self {
        Self {
            permitted: true,
            duties: Duties::default(),
            actual: BTreeMap::new(),
            unknown: Vec::new(),
            preparing: BTreeSet::new(),
            ready: BTreeSet::new(),
            ran: BTreeSet::new(),
        }
    }

    fn new(standing: Standing, member: MemberRun) -> Self {
        let duty = Duty {
            token: FencingToken::default(),
            standing,
            attempt: Attempt(2),
            run: member,
            prepared: None,
            lost: false,
            work: work(),
        };
        let mut scene = Self::empty();
        scene.duties.members.insert((LEASE, Epoch(3)), duty);
        scene.duties.remembered.insert(LEASE);
        scene
    }

    fn duty(mut self, change: impl FnOnce(&mut Duty)) -> Self {
        change(
            self.duties
                .members
                .get_mut(&(LEASE, Epoch(3)))
                .expect("the scene has it"),
        );
        self
    }

    fn with(mut self, run: RunKey, actual: Actual) -> Self {
        self.actual.insert(run, actual);
        self
    }

    fn ran(mut self, run: RunKey) -> Self {
        self.ran.insert(run);
        self
    }

    fn without_permit(mut self) -> Self {
        self.permitted = false;
        self
    }

    fn check(self, rule: &str, expected: &[Step]) {
        let picture = Picture {
            incarnation: ME,
            permitted: self.permitted,
            duties: &self.duties,
            actual: &self.actual,
            unknown: &self.unknown,
            preparing: &self.preparing,
            ready: &self.ready,
            ran: &self.ran,
        };
        assert_eq!(diff(&picture), expected, "{rule}");
    }
}

use MemberRun::{Accepted, Exited, Idle, Started};
use ReportedExit::{NotStarted, Recorded, Vanished};
use Standing::{Current, Ending, Replaced, Waiting};

#[test]
fn an_attempt_is_prepared_once_and_by_this_daemon_start() {
    Scene::new(Waiting, Idle).check(
        "a waiting member prepares the next attempt",
        &[Step::Prepare(run(3, 3))],
    );
    Scene::new(Waiting, Exited)
        .with(run(3, 2), ended())
        .check("also after an attempt", &[Step::Prepare(run(3, 3))]);
    Scene::new(Waiting, Idle)
        .without_permit()
        .check("V2: not without a renewal in force", &[]);
    Scene::new(Waiting, Idle)
        .duty(|duty| duty.prepared = Some(ME))
        .check("V4: once", &[]);
    Scene::new(Waiting, Idle)
        .duty(|duty| duty.prepared = Some(BEFORE))
        .check(
            "V5: what another start prepared does not count",
            &[Step::Prepare(run(3, 3))],
        );
    Scene::new(Waiting, Idle)
        .duty(|duty| duty.lost = true)
        .check("V7: not while the generation is lost", &[]);
    let mut busy = Scene::new(Waiting, Idle);
    busy.preparing.insert(run(3, 3));
    busy.check("not twice at a time", &[]);
    let mut ready = Scene::new(Waiting, Idle);
    ready.ready.insert(run(3, 3));
    ready.check(
        "V8: it is reported when the gates have acknowledged",
        &[Step::ReportPrepared(run(3, 3))],
    );
    let mut ready = Scene::new(Waiting, Idle).without_permit();
    ready.ready.insert(run(3, 3));
    ready.check("V2: nor reported without a renewal", &[]);
    Scene::new(Waiting, Idle)
        .with(run(2, 1), ending())
        .check("not while an earlier run still ends here", &[]);
    Scene::new(Waiting, Started).with(run(3, 2), ended()).check(
        "not before the log knows the end of the last attempt",
        &[Step::ReportExited(run(3, 2), Recorded)],
    );
    Scene::new(Waiting, Idle)
        .with(run(3, 3), Actual::Ended(Exit::LaunchFailed("no driver".into())))
        .check(
            "a preparation that failed uses up its attempt",
            &[Step::ReportExited(run(3, 3), Recorded)],
        );
    for standing in [Ending, Replaced] {
        Scene::new(standing, Idle).check("nothing is prepared for a placement that must end", &[]);
    }
}

#[test]
fn an_accepted_attempt_is_spawned_by_the_start_that_prepared_it_and_by_no_other() {
    Scene::new(Current, Accepted(ME)).check("accepted, mine, absent: spawn", &[Step::Spawn(run(3, 2))]);
    Scene::new(Current, Accepted(ME))
        .without_permit()
        .check("V2: no spawn without a renewal in force", &[]);
    Scene::new(Current, Accepted(BEFORE)).check(
        "V5: another start's is never spawned; that it will not start is said",
        &[Step::ReportExited(run(3, 2), NotStarted)],
    );
    Scene::new(Current, Accepted(BEFORE))
        .without_permit()
        .check("V5: said with a fresh state only", &[]);
    Scene::new(Current, Accepted(BEFORE)).with(run(3, 2), stray()).check(
        "V5: another start's is adopted when it runs here",
        &[Step::Adopt(run(3, 2))],
    );
    Scene::new(Current, Accepted(BEFORE))
        .with(run(3, 2), stray())
        .without_permit()
        .check("V2: no adoption", &[]);
    for standing in [Waiting, Ending, Replaced] {
        Scene::new(standing, Accepted(ME)).check(
            "V5: accepted, never started, over: said",
            &[Step::ReportExited(run(3, 2), NotStarted)],
        );
    }
    Scene::new(Current, Accepted(ME)).with(run(3, 2), ended()).check(
        "an attempt that was spawned is never spawned again",
        &[Step::ReportExited(run(3, 2), Recorded)],
    );
    Scene::new(Current, Accepted(ME))
        .with(run(3, 2), Actual::Silent)
        .check("nor while its supervisor is silent", &[]);
}

#[test]
fn facts_are_reported_until_the_log_has_them_renewal_or_not() {
    for permitted in [true, false] {
        let mut scene = Scene::new(Current, Accepted(ME)).with(run(3, 2), running());
        scene.permitted = permitted;
        scene.check("a start", &[Step::ReportStarted(run(3, 2))]);
        let mut scene = Scene::new(Current, Started).with(run(3, 2), ended());
        scene.permitted = permitted;
        scene.check("an end", &[Step::ReportExited(run(3, 2), Recorded)]);
        let mut scene = Scene::new(Replaced, Started).with(run(3, 2), ended());
        scene.permitted = permitted;
        scene.check(
            "an end in a replaced placement",
            &[Step::ReportExited(run(3, 2), Recorded)],
        );
        let mut scene = Scene::new(Current, Started).with(run(3, 2), running());
        scene.permitted = permitted;
        scene.check("a start that the log has is not reported again", &[]);
        let mut scene = Scene::new(Current, Exited).with(run(3, 2), ended());
        scene.permitted = permitted;
        scene.check("nor an end", &[]);
    }
    Scene::new(Current, Started).check("vanished work is reported", &[Step::ReportExited(run(3, 2), Vanished)]);
    Scene::new(Current, Started)
        .without_permit()
        .check("with a fresh state only", &[]);
    Scene::new(Replaced, Started).check("also where it was replaced", &[Step::ReportExited(run(3, 2), Vanished)]);
}

#[test]
fn the_log_hears_of_a_start_before_it_hears_of_its_end() {
    let last = run(3, 2);
    let start = [Step::ReportStarted(last)];
    let exit = [Step::ReportExited(last, Recorded)];
    for how in [Exit::Code(0), Exit::Code(3), Exit::Signal(9), Exit::OutOfMemory] {
        let scene = |member| {
            Scene::new(Current, member)
                .with(last, Actual::Ended(how.clone()))
                .ran(last)
        };
        scene(Accepted(ME)).check("first the start", &start);
        scene(Accepted(BEFORE)).check("also one of the daemon start before", &start);
        scene(Accepted(ME))
            .without_permit()
            .check("facts need no renewal", &start);
        scene(Started).check("then the end", &exit);
        let over = Scene::new(Ending, Accepted(ME))
            .with(last, Actual::Ended(how.clone()))
            .ran(last);
        over.check("nothing is waited for once the lease must end", &exit);
        let unknown = Scene::new(Current, Accepted(ME)).with(last, Actual::Ended(how));
        unknown.check("what never ran has not started", &exit);
    }
    for how in [Exit::LaunchFailed("no driver".into()), Exit::Vanished, Exit::Stopped] {
        let scene = Scene::new(Current, Accepted(ME))
            .with(last, Actual::Ended(how))
            .ran(last);
        scene.check("an end that was forced on it is told at once", &exit);
    }
}

#[test]
fn frozen_work_is_thawed_only_with_a_renewal_and_only_while_its_allocation_is_current() {
    Scene::new(Current, Started)
        .with(run(3, 2), frozen())
        .check("current: thaw", &[Step::Thaw(run(3, 2))]);
    Scene::new(Current, Started)
        .with(run(3, 2), frozen())
        .without_permit()
        .check("V2: no renewal, no thaw", &[]);
    Scene::new(Current, Started)
        .duty(|duty| duty.lost = true)
        .with(run(3, 2), frozen())
        .check("V7: lost and not taken back yet: neither thawed nor ended", &[]);
    for (standing, grace) in [(Ending, GRACE), (Replaced, 0), (Waiting, OVER_GRACE_MS)] {
        Scene::new(standing, Started).with(run(3, 2), frozen()).check(
            "not current: ended, and the supervisor kills what is frozen",
            &[Step::Stop(run(3, 2), grace)],
        );
    }
    let stray_frozen = Actual::Running {
        frozen: true,
        adopted: false,
        ending: false,
    };
    Scene::new(Current, Started).with(run(3, 2), stray_frozen).check(
        "after a restart: adopted, then thawed",
        &[Step::Adopt(run(3, 2)), Step::Thaw(run(3, 2))],
    );
}

#[test]
fn a_member_is_ended_by_a_newer_epoch_or_attempt_or_by_its_end_in_the_log_and_by_nothing_else() {
    Scene::new(Current, Started)
        .with(run(3, 2), running())
        .check("V7: otherwise it is left alone", &[]);
    Scene::new(Ending, Started)
        .with(run(3, 2), running())
        .check("the lease ends", &[Step::Stop(run(3, 2), GRACE)]);
    Scene::new(Replaced, Started)
        .with(run(3, 2), running())
        .check("a newer epoch", &[Step::Stop(run(3, 2), 0)]);
    Scene::new(Waiting, Started).with(run(3, 2), running()).check(
        "V4: the attempt is over for all when one member has ended",
        &[Step::Stop(run(3, 2), OVER_GRACE_MS)],
    );
    Scene::new(Current, Accepted(ME)).with(run(3, 1), running()).check(
        "V4: a newer attempt, which is started when the older one is gone",
        &[Step::Stop(run(3, 1), 0)],
    );
    Scene::new(Current, Accepted(ME))
        .with(run(3, 1), ended())
        .check("now", &[Step::Spawn(run(3, 2))]);
    Scene::new(Ending, Started)
        .with(run(3, 2), ending())
        .check("once told, it is waited for", &[]);
    Scene::new(Ending, Started)
        .with(run(3, 2), Actual::Silent)
        .check("a silent supervisor is ended too", &[Step::Stop(run(3, 2), 0)]);
    for standing in [Ending, Replaced, Waiting] {
        Scene::new(standing, Started)
            .with(run(3, 2), running())
            .without_permit()
            .check("an old state must not end what is current: no renewal, no end", &[]);
    }
    Scene::new(Current, Exited).with(run(3, 2), running()).check(
        "what the log believes to have ended may not run",
        &[Step::Stop(run(3, 2), 0)],
    );
}

#[test]
fn work_of_which_the_log_knows_nothing_here_is_ended_and_its_folder_removed_when_nobody_reads_it_any_more() {
    Scene::empty()
        .with(run(3, 2), running())
        .check("no duty: ended", &[Step::Stop(run(3, 2), 0)]);
    Scene::empty()
        .with(run(3, 2), running())
        .without_permit()
        .check("with a fresh state only", &[]);
    Scene::empty()
        .with(run(3, 2), ended())
        .check("forgotten: collected", &[Step::Collect(run(3, 2))]);
    Scene::empty()
        .with(run(3, 2), ended())
        .without_permit()
        .check("with a fresh state only", &[]);
    let mut scene = Scene::empty().with(run(3, 2), ended());
    scene.duties.remembered.insert(LEASE);
    scene.check("its output may still be read", &[]);
    let mut scene = Scene::new(Current, Started);
    scene.unknown.push("0-42-e3-a2".into());
    scene.check(
        "a process without a record is ended before its lease learns that its work vanished",
        &[Step::EndUnknown("0-42-e3-a2".into())],
    );
    let mut scene = Scene::empty().without_permit();
    scene.unknown.push("x".into());
    scene.check("with a fresh state only", &[]);
}

#[test]
fn nothing_is_spawned_beside_an_older_run_of_its_lease() {
    let moved_back = || Scene::new(Current, Accepted(ME));
    moved_back()
        .with(run(2, 1), frozen())
        .check("the older epoch is ended first", &[Step::Stop(run(2, 1), 0)]);
    moved_back().with(run(2, 1), ending()).check("and waited for", &[]);
    moved_back()
        .with(run(2, 1), ended())
        .check("then", &[Step::Spawn(run(3, 2))]);
    let mut scene = moved_back();
    scene.unknown.push("0-42-e2-a1".into());
    scene.check("also when it has no record", &[Step::EndUnknown("0-42-e2-a1".into())]);
    let mut scene = moved_back();
    scene.unknown.push("0-41-e2-a1".into());
    let steps = [Step::EndUnknown("0-41-e2-a1".into()), Step::Spawn(run(3, 2))];
    scene.check("another lease's does not stand in the way", &steps);
}
