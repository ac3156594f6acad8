//! Disks that go wrong behind their replica's back: rolled back, damaged, slow, failing, full.
//!
//! Each scenario is one cluster under load, one kind of damage to one machine, and what must come of it. Beside what
//! every world's checkers demand, each has a claim of its own. The one rule: the damage is done to the disk below the
//! product's own file seam, and the product is not told.

use std::time::Duration;

use holdfast_storage::disk::memory::Faults;
use openraft::async_runtime::watch::WatchReceiver;

use crate::check::Violation;
use crate::runtime::{self, Host, Simulated};
use crate::world::cluster::Cluster;
use crate::world::judge::Judge;
use crate::world::{found, people};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Damage {
    /// The newest snapshot reads as zeros when the replica starts.
    Snapshot,
    /// A follower's disk is put back to an earlier image, and the leader that knew best dies in the same moment.
    RolledBack,
    /// A follower's Raft log alone is put back, and everything else is as it was.
    LogRolledBack,
    /// Syncs of the leader take up to four seconds, for half a minute.
    Stalled,
    /// The leader's disk fails its syncs.
    Failing,
    /// The leader's disk is full, and has room again later.
    Full,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What broke.
    pub violations: Vec<Violation>,
    /// Changes of the leader after the damage.
    pub elections: u64,
    /// Commands that were committed.
    pub commands: u64,
    /// Longest time after the damage in which no command was committed.
    pub silence_ms: u64,
}

/// How long the cluster runs before and after.
const RUN: Duration = Duration::from_secs(5);
/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// A machine that is down until it is started again.
const DOWN_MS: u64 = 3_600_000;

/// Runs one scenario under one seed.
pub fn run(seed: u64, damage: Damage) -> Outcome {
    Simulated::seeded(seed).simulate(live(damage)).0
}

async fn live(damage: Damage) -> Outcome {
    let cluster = Cluster::new(3, Judge::default(), None);
    found(&cluster).await;
    let clients: Vec<_> = (1..=4)
        .map(|number| runtime::spawn_on(Host(1_000 + number), people::client(cluster.clone(), number)))
        .collect();
    runtime::sleep(RUN).await;
    let leaders = cluster.judge.counts().leader_changes;
    let silence = runtime::spawn_on(Host::WORLD, longest_silence(cluster.clone()));
    match damage {
        Damage::Snapshot => snapshot(&cluster).await,
        Damage::RolledBack => rolled_back(&cluster).await,
        Damage::LogRolledBack => log_rolled_back(&cluster).await,
        Damage::Stalled => stalled(&cluster).await,
        Damage::Failing => {
            broken(&cluster, |_| Faults {
                fail_syncs: true,
                ..Faults::default()
            })
            .await
        }
        Damage::Full => {
            broken(&cluster, |used| Faults {
                capacity_bytes: Some(used),
                ..Faults::default()
            })
            .await
        }
    }
    runtime::sleep(RUN).await;
    let elections = cluster.judge.counts().leader_changes - leaders;
    cluster.close();
    for client in clients {
        // A client has no reason to die; its panic is noted by the runtime.
        let _ = client.await;
    }
    cluster.quieten();
    converge(&cluster).await;
    for panic in runtime::panics() {
        let text = format!("on host {}: {}", panic.host.0, panic.text);
        cluster.judge.violate("panic", text);
    }
    let silence_ms = silence.await.unwrap_or(u64::MAX);
    let mut judged = cluster.judge.finish();
    judged
        .violations
        .extend(judged.undecided.into_iter().map(|text| Violation {
            checker: "undecided",
            text,
        }));
    let (counts, violations) = (judged.counts, judged.violations);
    Outcome {
        violations,
        elections,
        commands: counts.commands,
        silence_ms,
    }
}

/// Waits for something that must come.
async fn wait(cluster: &Cluster, what: &'static str, mut come: impl FnMut() -> bool) {
    let give_up_ns = runtime::true_now_ns() + u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
    while !come() {
        if runtime::true_now_ns() > give_up_ns {
            return cluster
                .judge
                .violate("damage", format!("in vain was waited until {what}"));
        }
        runtime::sleep(LOOK).await;
    }
}

/// Measures the longest time between two commits, until the doors close.
async fn longest_silence(cluster: Cluster) -> u64 {
    let (mut decided, mut since_ns, mut longest_ns) = (cluster.judge.decided(), runtime::true_now_ns(), 0);
    while !cluster.is_closed() {
        runtime::sleep(LOOK).await;
        let (now, now_ns) = (cluster.judge.decided(), runtime::true_now_ns());
        longest_ns = longest_ns.max(now_ns - since_ns);
        if now > decided {
            (decided, since_ns) = (now, now_ns);
        }
    }
    longest_ns / 1_000_000
}

async fn leader(cluster: &Cluster) -> usize {
    wait(cluster, "somebody leads", || cluster.leader().is_some()).await;
    cluster.leader().unwrap_or(0)
}

async fn snapshot(cluster: &Cluster) {
    let place = (leader(cluster).await + 1) % cluster.machines.len();
    let machine = &cluster.machines[place];
    let reached = cluster.judge.decided();
    // Long enough for two snapshots, and for what lies before the older one to be let go.
    wait(cluster, "three more snapshots could be taken", || {
        cluster.judge.decided() > reached + 700
    })
    .await;
    cluster.crash(place, true, DOWN_MS);
    if !machine.disk.damage_newest_snapshot() {
        cluster
            .judge
            .violate("damage", "there was no snapshot to fall back to".to_owned());
    }
    cluster.start(place);
    wait(cluster, "the replica started from the snapshot before", || {
        machine.live().is_some()
    })
    .await;
}

async fn rolled_back(cluster: &Cluster) {
    let leader = leader(cluster).await;
    let place = (leader + 1) % cluster.machines.len();
    let machine = &cluster.machines[place];
    let image = machine.disk.image();
    runtime::sleep(RUN).await;
    cluster.judge.expect_forgetting(machine.id);
    // The leader knew what the follower had acknowledged; now the third replica must.
    cluster.crash(leader, false, 3_000);
    cluster.crash(place, true, DOWN_MS);
    machine.disk.put_back(&image);
    cluster.start(place);
    wait(cluster, "the disk that was rolled back was found out", || {
        cluster.judge.found_out(machine.id)
    })
    .await;
    cluster.crash(place, true, DOWN_MS);
}

async fn log_rolled_back(cluster: &Cluster) {
    let place = (leader(cluster).await + 1) % cluster.machines.len();
    let machine = &cluster.machines[place];
    let image = machine.disk.image();
    runtime::sleep(RUN).await;
    cluster.judge.expect_forgetting(machine.id);
    cluster.crash(place, true, DOWN_MS);
    let now = machine.disk.image();
    machine
        .disk
        .put_back(&image.with(&now, |path| !path.starts_with("/raft")));
    cluster.start(place);
    wait(cluster, "the log that was rolled back was found out", || {
        cluster.judge.found_out(machine.id)
    })
    .await;
    cluster.crash(place, true, DOWN_MS);
}

async fn stalled(cluster: &Cluster) {
    let disk = cluster.machines[leader(cluster).await].disk.clone();
    disk.set_sync_us_max(Some(4_000_000));
    runtime::sleep(Duration::from_secs(30)).await;
    disk.set_sync_us_max(None);
}

/// The leader's disk fails: its replica stops, another leads, and it starts again once the disk is sound.
async fn broken(cluster: &Cluster, faults: impl Fn(u64) -> Faults) {
    let place = leader(cluster).await;
    let machine = &cluster.machines[place];
    machine.disk.set_faults(faults(machine.disk.used()));
    let has_stopped = || {
        machine
            .live()
            .is_none_or(|live| live.replica.raft().metrics().borrow_watched().running_state.is_err())
    };
    wait(cluster, "the replica on the broken disk stopped", has_stopped).await;
    // The process ends when its replica has stopped; see `boot`.
    cluster.crash(place, false, DOWN_MS);
    wait(cluster, "another replica led", || cluster.leader().is_some()).await;
    machine.disk.set_faults(Faults::default());
    cluster.start(place);
    wait(cluster, "the replica started again", || machine.live().is_some()).await;
}

/// Demands that all replicas that may run stand at one index.
async fn converge(cluster: &Cluster) {
    wait(cluster, "the replicas converged", || {
        let decided = cluster.judge.decided();
        let stands = |machine: &crate::world::cluster::Machine| {
            cluster.judge.found_out(machine.id)
                || machine.live().is_some_and(|live| live.state().applied.index == decided)
        };
        cluster.machines.iter().all(stands)
    })
    .await;
}
