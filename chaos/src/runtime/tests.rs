#![allow(clippy::unwrap_used)]
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use openraft_rt::{Watch, WatchReceiver, WatchSender};

use super::*;

const MS: Duration = Duration::from_millis(1);

#[test]
fn passes_openrafts_runtime_suite() {
    openraft_rt::testing::Suite::<Simulated>::test_all();
}

/// A little of everything: tasks on five hosts that wait, wake each other, draw, pause, die and drift.
async fn bustle() -> Vec<u64> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (sender, receiver) = OrderedWatch::channel(0_u64);
    for host in 1..=5 {
        let (seen, mut receiver) = (seen.clone(), receiver.clone());
        spawn_on(Host(host), async move {
            let mut draws = Simulated::thread_rng();
            while receiver.changed().await.is_ok() {
                sleep(MS * draws.below(3) as u32).await;
                seen.lock().unwrap().push(host * 1_000 + *receiver.borrow_watched());
            }
        });
    }
    drop(receiver);
    for round in 0..200 {
        sleep(MS).await;
        match round {
            50 => pause(Host(2), MS * 20),
            80 => set_rate(Host(3), 1_050_000),
            120 => assert_eq!(kill(Host(4)), 1),
            _ => {}
        }
        sender.send(round).unwrap();
    }
    drop(sender);
    sleep(MS * 10).await;
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[test]
fn one_seed_gives_one_run_twice_in_a_process() {
    let (seen, first) = Simulated::seeded(7).simulate(bustle());
    let (again, second) = Simulated::seeded(7).simulate(bustle());
    let (_, other) = Simulated::seeded(8).simulate(bustle());
    assert_eq!(seen, again);
    assert!(first.trace.events() > 1_000);
    assert_eq!((first.trace.hash(), first.polls), (second.trace.hash(), second.polls));
    assert_ne!(first.trace.hash(), other.trace.hash());
}

#[test]
fn one_seed_gives_one_run_in_every_process() {
    const MARK: &str = "trace of seed 7: ";
    let (_, finished) = Simulated::seeded(7).simulate(bustle());
    let mine = format!("{MARK}{:016x}", finished.trace.hash());
    println!("{mine}");
    if std::env::var_os("HOLDFAST_CHAOS_CHILD").is_some() {
        return;
    }
    let name = "runtime::tests::one_seed_gives_one_run_in_every_process";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("HOLDFAST_CHAOS_CHILD", "1")
        .output()
        .unwrap();
    let printed = String::from_utf8(child.stdout).unwrap();
    assert!(printed.contains(&mine), "another process saw another run: {printed}");
}

#[test]
fn virtual_time_moves_only_when_nothing_can_run() {
    let (elapsed, finished) = Simulated::seeded(1).simulate(async {
        let before = true_now_ns();
        sleep(Duration::from_secs(86_400)).await;
        true_now_ns() - before
    });
    assert_eq!(elapsed, 86_400_000_000_000);
    assert_eq!(finished.elapsed, Duration::from_secs(86_400));
}

#[test]
fn fast_clock_makes_its_hosts_timers_early_even_those_that_already_run() {
    Simulated::seeded(1).simulate(async {
        let host = Host(1);
        let before = true_now_ns();
        let timer = spawn_on(host, async { sleep(MS * 100).await });
        sleep(MS * 50).await;
        set_rate(host, 2_000_000);
        timer.await.unwrap();
        assert_eq!(true_now_ns() - before, 75_000_000);
        assert_eq!(spawn_on(host, async { local_now() }).await.unwrap(), local_now_of(host));
    });
}

#[test]
fn paused_host_runs_nothing_and_finds_its_timers_late() {
    Simulated::seeded(1).simulate(async {
        let ticks = Arc::new(AtomicU64::new(0));
        let counter = ticks.clone();
        spawn_on(Host(1), async move {
            loop {
                sleep(MS).await;
                counter.fetch_add(1, SeqCst);
            }
        });
        sleep(MS * 10).await;
        let before = ticks.load(SeqCst);
        pause(Host(1), MS * 100);
        sleep(MS * 99).await;
        assert_eq!(ticks.load(SeqCst), before);
        sleep(MS * 10).await;
        assert!(ticks.load(SeqCst) > before);
    });
}

#[test]
fn longer_pause_wins_over_one_that_ends_within_it() {
    Simulated::seeded(1).simulate(async {
        let before = true_now_ns();
        let waiting = spawn_on(Host(1), async { sleep(MS).await });
        pause(Host(1), MS * 100);
        pause(Host(1), MS * 10);
        waiting.await.unwrap();
        // The task begins to wait only when the longer pause is over.
        assert_eq!(true_now_ns() - before, 101_000_000);
    });
}

#[test]
fn killed_host_drops_its_tasks_and_starts_none_from_their_destructors() {
    struct Obstinate(Arc<AtomicU64>);
    impl Drop for Obstinate {
        fn drop(&mut self) {
            let count = self.0.clone();
            count.fetch_add(1, SeqCst);
            spawn_on(current_host(), async move { count.fetch_add(100, SeqCst) });
        }
    }
    Simulated::seeded(1).simulate(async {
        let count = Arc::new(AtomicU64::new(0));
        let obstinate = Obstinate(count.clone());
        let task = spawn_on(Host(1), async move {
            sleep(Duration::from_secs(3_600)).await;
            drop(obstinate);
        });
        let peer = spawn_on(Host(2), async { sleep(MS * 5).await });
        sleep(MS).await;
        assert_eq!(kill(Host(1)), 1);
        assert_eq!(task.await, Err(JoinError::Cancelled));
        assert_eq!(peer.await, Ok(()));
        sleep(MS).await;
        assert_eq!(count.load(SeqCst), 1);
        assert_eq!(
            spawn_on(Host(1), async { 7 }).await,
            Ok(7),
            "a killed host can be started again"
        );
    });
}

#[test]
fn task_may_kill_its_own_host() {
    Simulated::seeded(1).simulate(async {
        let task = spawn_on(Host(1), async {
            kill(current_host());
            sleep(MS).await;
        });
        assert_eq!(task.await, Err(JoinError::Cancelled));
    });
}

#[test]
fn panic_ends_one_task_and_is_remembered() {
    let (outcome, finished) =
        Simulated::seeded(1).simulate(async { spawn_on(Host(3), async { assert_eq!(1, 2, "planted") }).await });
    assert_eq!(outcome, Err(JoinError::Panicked));
    assert_eq!(finished.panics.len(), 1);
    assert_eq!(finished.panics[0].host, Host(3));
    assert!(finished.panics[0].text.contains("planted"));
}

#[test]
#[should_panic(expected = "dead-lock")]
fn waiting_for_nothing_is_a_dead_lock_and_not_a_hang() {
    Simulated::seeded(1).simulate(std::future::pending::<()>());
}

#[test]
#[should_panic(expected = "woken from another thread")]
fn wake_from_another_thread_stops_the_run() {
    Simulated::seeded(1).simulate(async {
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let waiting = spawn_on(Host(1), receiver);
        sleep(MS).await;
        std::thread::spawn(move || sender.send(())).join().unwrap().unwrap();
        sleep(MS).await;
        let _ = waiting.await;
    });
}

#[test]
fn simulation_can_follow_one_that_panicked() {
    let first = std::panic::catch_unwind(|| {
        Simulated::seeded(1).simulate(async {
            spawn_on(Host(1), sleep(MS * 5));
            panic!("planted");
        })
    });
    assert!(first.is_err());
    assert_eq!(Simulated::seeded(1).simulate(async { 5 }).0, 5);
}
