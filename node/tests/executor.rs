//! Supervisors with real processes: what survives a killed daemon, what a deadline does, what is left behind.
//!
//! Each test uses its own folder and its own cgroup root. Waits are on conditions, with a deadline that only a hang
//! reaches. What a machine does not permit (cgroups, namespaces) is skipped with a printed reason.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_node::executor::attach::{Attached, Found, Lost, attach, attach_in, unknown};
use holdfast_node::executor::cgroup::{Group, inhabited};
use holdfast_node::executor::launch::Launcher;
use holdfast_node::executor::processes::exit_of;
use holdfast_node::executor::supervisor::control::{ControlError, Status};
use holdfast_node::executor::supervisor::course::{EndCause, Order, OrderRefused, Phase};
use holdfast_node::executor::supervisor::output::{output_end, read_output};
use holdfast_node::executor::supervisor::record::{self, ExitRecord, Identity, Namespace};
use holdfast_node::executor::supervisor::spec::{DeadlinePolicy, GroupChoice, NamespaceChoice, OutputLimits, Spec};
use holdfast_node::executor::{isolation, procfs};
use holdfast_proto::placement::Exit;
use rustix::process::Signal;

/// Longer than any of these tests takes on a machine that is ten times overloaded.
const HANG: Duration = Duration::from_secs(120);
/// A deadline that no test reaches.
const FAR_MS: u64 = 3_600_000;

fn boot_ms() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
    u64::try_from(Duration::from(now).as_millis()).unwrap()
}

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

/// One executor folder and cgroup root; ends whatever a failing test left running.
struct Bench {
    folder: tempfile::TempDir,
    launcher: Launcher,
    root: String,
}

impl Bench {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        let launcher = Launcher::new(program(), folder.path()).unwrap();
        let root = format!("hftest-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { folder, launcher, root }
    }

    fn spec(&self, run: &str, script: &str) -> Spec {
        let mut spec = Spec::new(
            run,
            &self.root,
            vec!["sh".into(), "-c".into(), script.into()],
            boot_ms() + FAR_MS,
        );
        spec.env.insert("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into());
        spec.env.insert("DIR".into(), self.folder.path().display().to_string());
        // An overloaded machine may take longer than STOP_BOUND to stop a task; that rule is tested without processes.
        spec.freeze_bound_ms = 30_000;
        spec
    }

    fn launch(&self, spec: &Spec) -> Box<Attached> {
        match self.launcher.launch(spec).unwrap() {
            Found::Running(attached, _) => attached,
            other => panic!("not running: {other:?}"),
        }
    }

    /// Launches work that ticks, under a deadline near enough to wait for and far enough that it has ticked before.
    /// On an overloaded machine the first try may find its deadline passed; each further try gets twice the time.
    fn launch_before_deadline(&self, spec: &mut Spec, first_ms: u64) {
        for attempt in 1..8 {
            spec.run = format!("1-1-e1-a{attempt}");
            spec.deadline_boot_ms = boot_ms() + (first_ms << attempt);
            let folder = self.launcher.folder_of(&spec.run);
            self.launcher.launch(spec).unwrap();
            let ticked = wait_until("a tick or the deadline", || {
                let passed = boot_ms() >= spec.deadline_boot_ms;
                (passed || self.file("ticks").exists()).then_some(!passed)
            });
            if ticked {
                return;
            }
            if let Found::Running(mut attached, _) = attach(&folder).unwrap() {
                attached.send(Some(Order::Kill)).unwrap();
            }
            self.exit(&spec.run);
            let _ = fs::remove_file(self.file("ticks"));
        }
        panic!("work never ticked before its deadline");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn exit(&self, run: &str) -> ExitRecord {
        let folder = self.launcher.folder_of(run);
        wait_until("an exit record", || record::read(&folder, record::EXIT_FILE).unwrap())
    }

    fn leftovers(&self) -> Vec<String> {
        let unknown = unknown(self.launcher.folder(), &self.root, &BTreeSet::new());
        let groups = [GroupChoice::V1, GroupChoice::V2].map(|choice| inhabited(choice, &self.root));
        let groups = groups.into_iter().flatten().map(|(name, _)| format!("cgroup {name}"));
        unknown
            .into_iter()
            .map(|one| format!("process {}", one.run))
            .chain(groups)
            .collect()
    }

    fn wait_for_nothing_left(&self) {
        wait_until("nothing left", || self.leftovers().is_empty().then_some(()));
    }

    fn wait_for(&self, name: &str) {
        wait_until(name, || self.file(name).exists().then_some(()));
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for one in unknown(self.launcher.folder(), &self.root, &BTreeSet::new()) {
            let _ = one.end();
        }
    }
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_holdfast"))
}

/// Whether a file grows: the only thing that tells work that executes from work that does not.
fn grows(file: &Path) -> bool {
    let size = || fs::metadata(file).map_or(0, |meta| meta.len());
    let before = size();
    thread::sleep(Duration::from_millis(300));
    size() != before
}

const TICKER: &str = "while :; do echo tick >> $DIR/ticks; sleep 0.02; done";

/// A ticker in a session of its own, below a main process that does nothing.
fn detached_ticker() -> String {
    format!("setsid sh -c '{TICKER}' & exec sleep 1000")
}

/// All ways of keeping work together that this machine has.
fn ways() -> Vec<(GroupChoice, NamespaceChoice)> {
    let mut ways = vec![
        (GroupChoice::Off, NamespaceChoice::Auto),
        (GroupChoice::Off, NamespaceChoice::Off),
    ];
    for choice in [GroupChoice::V1, GroupChoice::V2] {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let root = format!("hfways-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let group = Group::create(choice, &root, "trial", &Default::default());
        if group.can_freeze() {
            ways.extend([(choice, NamespaceChoice::Auto), (choice, NamespaceChoice::Off)]);
        } else {
            println!("skipped {choice:?}: {:?}", group.missing);
        }
        group.remove();
    }
    ways
}

/// Runs a test in every way, each with its own bench, and names the way that fails.
fn in_every_way(run: &str, script: &str, test: impl Fn(&Bench, Spec)) {
    for (group, namespace) in ways() {
        println!("way: {group:?} {namespace:?}");
        let bench = Bench::new();
        let mut spec = bench.spec(run, script);
        (spec.group, spec.namespace) = (group, namespace);
        test(&bench, spec);
    }
}

#[test]
fn the_exit_code_and_the_output_are_kept_and_nothing_is_left_behind() {
    let bench = Bench::new();
    let spec = bench.spec("1-1-e1-a1", "echo out; echo err >&2; exit 7");
    bench.launcher.launch(&spec).unwrap();
    let exit = bench.exit(&spec.run);
    assert_eq!((exit.cause, exit.code, exit.signal), (EndCause::Exited, Some(7), None));
    assert!(
        exit.started_boot_ms
            .is_some_and(|started| started <= exit.ended_boot_ms)
    );
    let output = read_output(&bench.launcher.folder_of(&spec.run), 0, 1_000).unwrap();
    assert_eq!(output.bytes, b"out\nerr\n");
    bench.wait_for_nothing_left();
}

#[test]
fn a_command_that_cannot_be_run_is_the_works_own_exit_with_a_clear_text() {
    let bench = Bench::new();
    let script = bench.file("no-interpreter");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let long = format!("/{}", "x".repeat(300));
    let cases = [
        (
            "no-such-program",
            None,
            127,
            "command not found: no-such-program (searched in PATH=",
        ),
        (
            "/no/such/program",
            None,
            127,
            "command not found: /no/such/program does not exist",
        ),
        (
            &script.to_string_lossy(),
            None,
            127,
            "names an interpreter that does not exist",
        ),
        ("/etc/passwd", None, 126, "command /etc/passwd may not be executed"),
        ("/etc/passwd/x", None, 126, "may not be executed"),
        ("/etc", None, 126, "command /etc may not be executed"),
        (&long, None, 126, "may not be executed"),
        (
            "true",
            Some("/no/such"),
            126,
            "the working folder /no/such cannot be entered",
        ),
        (
            "true",
            Some("/etc/passwd"),
            126,
            "the working folder /etc/passwd cannot be entered",
        ),
    ];
    for (number, (program, cwd, code, expected)) in cases.into_iter().enumerate() {
        let mut spec = bench.spec(&format!("1-{number}-e1-a1"), "");
        spec.argv = vec![program.into()];
        spec.cwd = cwd.map(PathBuf::from);
        let Found::Ended(exit) = bench.launcher.launch(&spec).unwrap() else {
            panic!("it should have ended")
        };
        let text = exit.launch_error.clone().unwrap();
        assert_eq!((exit.cause, exit.started_boot_ms), (EndCause::LaunchFailed, None));
        assert!(text.contains(expected), "{text}");
        // Another node would refuse it too: the lease ends, and this node is not counted as broken.
        assert_eq!(exit_of(&exit), Exit::Code(code), "{text}");
        let output = read_output(&bench.launcher.folder_of(&spec.run), 0, 1_000).unwrap();
        assert_eq!(output.bytes, format!("holdfast: {text}\n").as_bytes());
    }
    bench.wait_for_nothing_left();
}

#[test]
fn the_same_attempt_launched_twice_runs_once_and_the_second_gets_the_first_result() {
    let bench = Bench::new();
    let script = "echo started >> $DIR/starts; while [ ! -e $DIR/go ]; do sleep 0.02; done; exit 3";
    let spec = bench.spec("1-1-e1-a1", script);
    let first = bench.launch(&spec).identity().clone();
    let second = bench.launch(&spec).identity().clone();
    assert_eq!(first, second);
    fs::write(bench.file("go"), "").unwrap();
    let exit = bench.exit(&spec.run);
    let Found::Ended(again) = bench.launcher.launch(&spec).unwrap() else {
        panic!("it should have ended")
    };
    assert_eq!((again.code, again), (Some(3), exit));
    assert_eq!(fs::read_to_string(bench.file("starts")).unwrap(), "started\n");
}

#[test]
fn a_failing_launch_returns_what_it_took_every_time() {
    let bench = Bench::new();
    for number in 0..20 {
        let mut spec = bench.spec(&format!("1-{number}-e1-a1"), "");
        spec.argv = vec!["/no/such/program".into()];
        assert!(matches!(bench.launcher.launch(&spec).unwrap(), Found::Ended(_)));
    }
    let good = bench.spec("1-20-e1-a1", "exit 0");
    bench.launcher.launch(&good).unwrap();
    assert_eq!(bench.exit(&good.run).code, Some(0));
    bench.wait_for_nothing_left();
}

#[test]
fn a_setsid_grandchild_that_ignores_sigterm_is_gone_before_the_stop_is_reported() {
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo x > $DIR/up; exec sleep 1000' & exec sleep 1000";
    in_every_way("1-1-e1-a1", script, |bench, spec| {
        let mut attached = bench.launch(&spec);
        bench.wait_for("up");
        let members = procfs::descendants(attached.identity().pid).unwrap();
        attached.send(Some(Order::Stop { grace_ms: 50 })).unwrap();
        let exit = bench.exit(&spec.run);
        for (pid, stat) in members {
            assert!(procfs::open(pid, stat.start_ticks).is_none(), "{pid} lives");
        }
        assert_eq!(exit.cause, EndCause::Stopped);
        bench.wait_for_nothing_left();
    });
}

#[test]
fn a_stop_lets_work_leave_within_its_grace() {
    let bench = Bench::new();
    let script = "trap 'echo saved; exit 85' TERM; echo x > $DIR/up; while :; do sleep 0.02; done";
    let spec = bench.spec("1-1-e1-a1", script);
    let mut attached = bench.launch(&spec);
    bench.wait_for("up");
    attached.send(Some(Order::Stop { grace_ms: FAR_MS })).unwrap();
    let exit = bench.exit(&spec.run);
    assert_eq!((exit.cause, exit.code), (EndCause::Stopped, Some(85)));
    assert_eq!(read_output(attached.folder(), 0, 100).unwrap().bytes, b"saved\n");
}

#[test]
fn at_the_deadline_work_is_frozen_though_no_daemon_lives_and_a_thaw_needs_a_renewal_in_force() {
    in_every_way("1-1-e1-a1", &detached_ticker(), |bench, mut spec| {
        let mut other = bench.spec("1-2-e1-a1", "while :; do echo tick >> $DIR/other; sleep 0.02; done");
        other.group = spec.group;
        bench.launch(&other);
        bench.launch_before_deadline(&mut spec, 500);
        let folder = bench.launcher.folder_of(&spec.run);
        // No daemon stands behind this test: nobody renews.
        let mut attached = wait_until("frozen", || match attach(&folder).unwrap() {
            Found::Running(attached, status) => matches!(status.phase, Phase::Frozen { .. }).then_some(attached),
            other => panic!("{other:?}"),
        });
        if spec.group != GroupChoice::Off {
            assert!(attached.identity().group.is_frozen(), "the kernel must say so");
        }
        assert!(!grows(&bench.file("ticks")), "it executes though frozen");
        wait_until("another lease goes on", || grows(&bench.file("other")).then_some(()));

        let lapsed = attached.send(Some(Order::Thaw {
            until_boot_ms: boot_ms(),
        }));
        assert!(
            matches!(lapsed, Err(ControlError::Refused(OrderRefused::Lapsed))),
            "{lapsed:?}"
        );
        let renewal = Order::Deadline {
            until_boot_ms: boot_ms() + FAR_MS,
            run_until_boot_ms: None,
        };
        let status = attached.send(Some(renewal)).unwrap();
        assert!(
            matches!(status.phase, Phase::Frozen { .. }),
            "a renewal alone does not thaw"
        );
        let status = attached
            .send(Some(Order::Thaw {
                until_boot_ms: boot_ms() + FAR_MS,
            }))
            .unwrap();
        assert_eq!(status.phase, Phase::Running);
        wait_until("it runs again", || grows(&bench.file("ticks")).then_some(()));
        attached.send(Some(Order::Kill)).unwrap();
        let exit = bench.exit(&spec.run);
        assert_eq!((exit.cause, exit.frozen_ms > 0), (EndCause::Killed, true));
    });
}

#[test]
fn frozen_work_that_is_killed_does_not_run_in_between() {
    in_every_way("1-1-e1-a1", TICKER, |bench, spec| {
        let mut attached = bench.launch(&spec);
        bench.wait_for("ticks");
        let status = attached.send(Some(Order::Freeze)).unwrap();
        assert!(matches!(status.phase, Phase::Frozen { .. }), "{status:?}");
        let ticks = fs::metadata(bench.file("ticks")).unwrap().len();
        attached.send(Some(Order::Kill)).unwrap();
        bench.exit(&spec.run);
        assert_eq!(fs::metadata(bench.file("ticks")).unwrap().len(), ticks);
        bench.wait_for_nothing_left();
    });
}

#[test]
fn the_stop_policy_kills_at_the_deadline_and_keep_runs_on_until_the_lease_is_over() {
    let bench = Bench::new();
    let mut stop = bench.spec("1-1-e1-a1", TICKER);
    stop.policy = DeadlinePolicy::Stop;
    let mut keep = bench.spec("1-2-e1-a1", "exec sleep 1000");
    (keep.policy, keep.deadline_boot_ms, keep.grace_ms) = (DeadlinePolicy::Keep, boot_ms() + 10, 60_000);
    bench.launch_before_deadline(&mut stop, 250);
    let mut kept = bench.launch(&keep);
    let exit = bench.exit(&stop.run);
    assert_eq!((exit.cause, exit.code), (EndCause::Deadline, None));
    assert!(exit.ended_boot_ms >= stop.deadline_boot_ms);
    assert_eq!(kept.send(None).unwrap().phase, Phase::Running);
    kept.send(Some(Order::Deadline {
        until_boot_ms: 0,
        run_until_boot_ms: Some(boot_ms()),
    }))
    .unwrap();
    let exit = bench.exit(&keep.run);
    assert_eq!((exit.cause, exit.signal), (EndCause::RunUntil, Some(15)));
}

#[test]
fn a_spec_whose_deadline_has_passed_starts_nothing() {
    let bench = Bench::new();
    let mut spec = bench.spec("1-1-e1-a1", "touch $DIR/ran");
    spec.deadline_boot_ms = boot_ms();
    let Found::Ended(exit) = bench.launcher.launch(&spec).unwrap() else {
        panic!("it should have ended")
    };
    assert_eq!((exit.cause, exit.started_boot_ms), (EndCause::LaunchFailed, None));
    assert!(!bench.file("ran").exists());
}

#[test]
fn the_guard_freezes_in_place_of_a_supervisor_that_was_stopped() {
    in_every_way("1-1-e1-a1", TICKER, |bench, mut spec| {
        bench.launch_before_deadline(&mut spec, 500);
        let folder = bench.launcher.folder_of(&spec.run);
        let stopped: Identity = record::read(&folder, record::IDENTITY_FILE).unwrap().unwrap();
        procfs::signal(stopped.pid, stopped.start_ticks, Signal::STOP);
        wait_until("its last tick", || {
            (boot_ms() > spec.deadline_boot_ms && !grows(&bench.file("ticks"))).then_some(())
        });
        assert!(!grows(&bench.file("ticks")), "it executes past its deadline");
        procfs::signal(stopped.pid, stopped.start_ticks, Signal::CONT);
        wait_until("frozen", || match attach(&folder).unwrap() {
            Found::Running(
                _,
                Status {
                    phase: Phase::Frozen { .. },
                    ..
                },
            ) => Some(()),
            _ => None,
        });
    });
}

#[test]
fn work_ends_with_its_supervisor_because_nobody_would_enforce_its_deadline() {
    in_every_way("1-1-e1-a1", &detached_ticker(), |bench, spec| {
        let attached = bench.launch(&spec);
        let identity = attached.identity().clone();
        bench.wait_for("ticks");
        procfs::signal(identity.pid, identity.start_ticks, Signal::KILL);
        let lost = wait_until("lost", || match attach(attached.folder()).unwrap() {
            Found::Lost(lost) => Some(lost),
            _ => None,
        });
        assert_eq!(lost, Lost::SupervisorGone);
        wait_until("its end", || (!grows(&bench.file("ticks"))).then_some(()));
        bench.wait_for_nothing_left();
    });
}

#[test]
fn a_killed_guard_takes_the_work_along_and_the_supervisor_records_it() {
    in_every_way("1-1-e1-a1", &detached_ticker(), |bench, spec| {
        let attached = bench.launch(&spec);
        bench.wait_for("ticks");
        let identity = attached.identity();
        procfs::signal(identity.guard_pid, identity.guard_start_ticks, Signal::KILL);
        assert_eq!(bench.exit(&spec.run).cause, EndCause::GuardLost);
        assert!(!grows(&bench.file("ticks")));
        bench.wait_for_nothing_left();
    });
}

#[test]
fn a_restarted_daemon_attaches_stops_the_work_and_the_exit_is_recorded_once() {
    let bench = Bench::new();
    let spec = bench.spec("1-1-e1-a1", "exec sleep 1000");
    let folder = bench.launcher.folder_of(&spec.run);
    fs::create_dir(&folder).unwrap();
    record::write_atomic(&folder, record::SPEC_FILE, &spec).unwrap();
    // The daemon that launched it is another process, and is killed.
    let line = format!(
        "'{}' supervise '{}' && exec sleep 1000",
        program().display(),
        folder.display()
    );
    let mut daemon = Command::new("sh")
        .args(["-c", &line])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the work", || {
        matches!(attach(&folder).unwrap(), Found::Running(..)).then_some(())
    });
    daemon.kill().unwrap();
    assert_eq!(daemon.wait().unwrap().signal(), Some(9));

    let mut attached = wait_until("running", || match attach(&folder).unwrap() {
        Found::Running(attached, status) => (status.phase == Phase::Running).then_some(attached),
        other => panic!("it should run on: {other:?}"),
    });
    attached.send(Some(Order::Stop { grace_ms: 60_000 })).unwrap();
    let exit = bench.exit(&spec.run);
    assert_eq!((exit.cause, exit.signal), (EndCause::Stopped, Some(15)));
    for _ in 0..2 {
        let Found::Ended(again) = attach(&folder).unwrap() else {
            panic!("it has ended")
        };
        assert_eq!(again, exit);
    }
    bench.wait_for_nothing_left();
}

#[test]
fn an_exit_while_no_daemon_lives_is_found_by_the_next_one() {
    let bench = Bench::new();
    let spec = bench.spec("1-1-e1-a1", "exit 5");
    drop(bench.launcher.launch(&spec).unwrap());
    let exit = bench.exit(&spec.run);
    let Found::Ended(found) = attach(&bench.launcher.folder_of(&spec.run)).unwrap() else {
        panic!("it has ended")
    };
    assert_eq!((found.code, found), (Some(5), exit));
}

#[test]
fn a_bystander_with_the_recorded_pid_is_not_touched() {
    let bench = Bench::new();
    let spec = bench.spec("1-1-e1-a1", "exec sleep 1000");
    let attached = bench.launch(&spec);
    let folder = attached.folder().to_owned();
    let identity = attached.identity().clone();
    drop(attached);
    procfs::signal(identity.pid, identity.start_ticks, Signal::KILL);
    wait_until("lost", || {
        matches!(attach(&folder).unwrap(), Found::Lost(_)).then_some(())
    });

    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = bystander.id().cast_signed();
    let start = procfs::stat(pid).unwrap().start_ticks;
    let check = |start: u64, boot: &str, expected: Lost| {
        let mut forged = identity.clone();
        (forged.pid, forged.guard_pid) = (pid, pid);
        (forged.start_ticks, forged.guard_start_ticks) = (start, start);
        record::write_atomic(&folder, record::IDENTITY_FILE, &forged).unwrap();
        let found = attach_in(&folder, boot, HANG).unwrap();
        assert!(matches!(found, Found::Lost(lost) if lost == expected), "{found:?}");
    };
    check(start + 1, &identity.boot_id, Lost::SupervisorGone);
    // Even the right start time does not help after a reboot.
    check(start, "another-boot", Lost::Reboot);
    assert!(bystander.try_wait().unwrap().is_none(), "the bystander was ended");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn a_record_that_names_another_groups_cgroup_is_refused() {
    let bench = Bench::new();
    let first = bench.launch(&bench.spec("1-1-e1-a1", "exec sleep 1000"));
    let second = bench.launch(&bench.spec("1-2-e1-a1", "exec sleep 1000"));
    if !first.identity().group.can_freeze() {
        println!("skipped: no cgroup may be made here");
        return;
    }
    let mut forged = first.identity().clone();
    forged.group = second.identity().group.clone();
    forged.start_ticks += 1;
    record::write_atomic(first.folder(), record::IDENTITY_FILE, &forged).unwrap();
    assert!(attach(first.folder()).is_err());
    assert!(matches!(attach(second.folder()).unwrap(), Found::Running(..)));
}

#[test]
fn work_without_a_record_is_found_and_ended() {
    in_every_way("1-1-e1-a1", &detached_ticker(), |bench, spec| {
        let attached = bench.launch(&spec);
        let kept = bench.spec("1-2-e1-a1", "exec sleep 1000");
        let kept_attached = bench.launch(&kept);
        bench.wait_for("ticks");
        fs::remove_dir_all(attached.folder()).unwrap();
        let known = BTreeSet::from([kept.run.clone()]);
        let found = unknown(bench.launcher.folder(), &bench.root, &known);
        assert_eq!(
            found.iter().map(|one| one.run.as_str()).collect::<Vec<_>>(),
            [spec.run.as_str()]
        );
        found[0].end().unwrap();
        assert!(!grows(&bench.file("ticks")));
        assert!(unknown(bench.launcher.folder(), &bench.root, &known).is_empty());
        assert!(matches!(attach(kept_attached.folder()).unwrap(), Found::Running(..)));
    });
}

#[test]
fn a_flood_of_output_is_bounded_on_disk_and_does_not_block_the_work() {
    let bench = Bench::new();
    let mut spec = bench.spec("1-1-e1-a1", "head -c 20000000 /dev/zero; echo end");
    spec.output = OutputLimits {
        segment_bytes: 64 << 10,
        segments: 4,
    };
    bench.launcher.launch(&spec).unwrap();
    assert_eq!(bench.exit(&spec.run).code, Some(0));
    let folder = bench.launcher.folder_of(&spec.run);
    assert_eq!(output_end(&folder).unwrap(), 20_000_004);
    assert_eq!(read_output(&folder, 20_000_000, 100).unwrap().bytes, b"end\n");
    let logs = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let logs = logs.filter(|entry| entry.file_name().to_str().unwrap().starts_with("out."));
    assert!(logs.map(|entry| entry.metadata().unwrap().len()).sum::<u64>() <= 4 * (64 << 10));
}

#[test]
fn the_environment_is_the_specs_own_and_the_work_leads_a_session() {
    let bench = Bench::new();
    // The last program replaces the shell: a shell's own mask changes while it starts others.
    let script = "env; echo session $(cut -d' ' -f1,6 /proc/$$/stat); exec cat /proc/self/status";
    let mut spec = bench.spec("1-1-e1-a1", script);
    spec.env.insert("HOLDFAST_FENCING_TOKEN".into(), "1.42".into());
    bench.launcher.launch(&spec).unwrap();
    bench.exit(&spec.run);
    let output = read_output(&bench.launcher.folder_of(&spec.run), 0, 100_000)
        .unwrap()
        .bytes;
    let output = String::from_utf8(output).unwrap();
    assert!(output.contains("HOLDFAST_FENCING_TOKEN=1.42\n"), "{output}");
    assert!(!output.contains("CARGO"), "the daemon's environment leaks: {output}");
    assert!(output.contains("NoNewPrivs:\t1"), "{output}");
    assert!(output.contains("SigBlk:\t0000000000000000"), "{output}");
    let line = output.lines().find_map(|line| line.strip_prefix("session ")).unwrap();
    let (pid, session) = line.split_once(' ').unwrap();
    assert_eq!(pid, session, "{output}");
}

#[test]
fn a_memory_limit_holds_and_the_kill_is_counted_though_the_shell_exits_cleanly() {
    let isolation = isolation::report(&program(), &Bench::new().root).unwrap();
    if !isolation.memory {
        println!("skipped: no memory limit holds here: {:?}", isolation.missing);
        return;
    }
    let bench = Bench::new();
    let mut spec = bench.spec("1-1-e1-a1", "head -c 400000000 /dev/zero | tail >/dev/null; exit 0");
    spec.limits.memory_bytes = Some(64 << 20);
    bench.launcher.launch(&spec).unwrap();
    let exit = bench.exit(&spec.run);
    assert_eq!((exit.code, exit.oom_kills > 0), (Some(0), true), "{exit:?}");
}

#[test]
fn the_report_says_what_was_tried_and_the_trial_leaves_nothing() {
    let bench = Bench::new();
    let found = isolation::report(&program(), &bench.root).unwrap();
    println!("{}", found.summary());
    assert!(inhabited(GroupChoice::Auto, &bench.root).is_empty());
    let attached = bench.launch(&bench.spec("1-1-e1-a1", "exec sleep 1000"));
    assert_eq!(attached.identity().namespace, found.namespace);
    assert_eq!(attached.identity().group.can_freeze(), found.freezer.is_some());
    if found.namespace == Namespace::None {
        println!("no PID namespace is permitted here");
    }
}
