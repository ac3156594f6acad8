//! Worlds: simulated clusters of production replicas, and everything around them.
//!
//! [`run`] is one run: found the cluster, let a plan of faults befall it under load, heal it, and demand that it
//! converges and serves. [`observe`] lets the checkers see what passes a replica's storage, [`judge`] tells them. The
//! one rule: what is inside a replica is the product's code, and what is outside of it is simulated.

pub mod assembly;
pub mod clock;
pub mod cluster;
pub mod inject;
pub mod judge;
pub mod observe;
pub mod people;
pub mod planted;
pub mod reads;

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_storage::types::Peer;

use self::cluster::Cluster;
use self::judge::{Judge, Judged};
use crate::fault::Plan;
use crate::mutant::Mutant;
use crate::random::Stream;
use crate::report::{LEADER_CHANGES_MIN, LOSSY_CRASHES_MIN, Report};
use crate::runtime::{self, Finished, Host, Simulated};
use crate::trace::digest;
use crate::workload::setup;

/// How a run is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Replicas, all of which vote.
    pub replicas: u8,
    /// Clients that send requests.
    pub clients: u64,
    /// How long faults go on.
    pub span_ms: u64,
    /// The plan; the seed's own when there is none.
    pub plan: Option<Plan>,
    /// After the plan, bring about the lossy crash or the change of the leader that a run needs to count.
    pub make_up: bool,
    /// A planted bug, to prove that it is caught.
    pub mutant: Option<Mutant>,
    /// Keep every event of the trace.
    pub complete_trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replicas: 3,
            clients: 4,
            span_ms: 10_000,
            plan: None,
            make_up: true,
            mutant: None,
            complete_trace: false,
        }
    }
}

/// How long the nodes of a new cluster may take to become voters.
const FOUND_MS: u64 = 30_000;

/// How long a run may make up for what it lacks.
const MAKE_UP_SECS: u64 = 20;

/// How long a healed cluster may take to converge and serve.
const HEAL_MS: u64 = 20_000;

/// The client that asks a healed cluster.
const VISITOR: u64 = 99;

/// Subscribers, and how long the slowest of each waits between two reads.
const SUBSCRIBERS: [(u64, u64); 2] = [(1, 40), (2, 900)];

/// Runs one seed.
pub fn run(seed: u64, options: &Options) -> Report {
    let plan = options.plan.clone();
    let plan = plan.unwrap_or_else(|| Plan::swarm(&Stream::seeded(seed), options.replicas, options.span_ms));
    let runtime = Simulated::seeded(seed);
    let world = live(options.clone(), plan.clone(), Judge::default());
    let (ended, finished) = if options.complete_trace {
        runtime.simulate_complete(world)
    } else {
        runtime.simulate(world)
    };
    report(seed, options, plan, ended, &finished)
}

fn report(seed: u64, options: &Options, plan: Plan, ended: Ended, finished: &Finished) -> Report {
    let Judged {
        counts,
        violations,
        undecided,
        mut recent,
    } = ended.judged;
    if recent.is_empty() {
        recent = finished.trace.recent().copied().collect();
    }
    Report {
        seed,
        trace: finished.trace.hash(),
        events: finished.trace.events(),
        simulated_ms: u64::try_from(finished.elapsed.as_millis()).unwrap_or(u64::MAX),
        counts,
        traffic: ended.traffic,
        violations,
        undecided,
        plan,
        replay: replay(seed, options),
        replicas: ended.replicas,
        recent,
    }
}

fn replay(seed: u64, options: &Options) -> String {
    let Options {
        replicas,
        span_ms,
        mutant,
        ..
    } = options;
    let mut line = format!("holdfast-chaos run --seed {seed}");
    if (*replicas, *span_ms) != (Options::default().replicas, Options::default().span_ms) {
        line.push_str(&format!(" --nodes {replicas} --secs {}", span_ms / 1_000));
    }
    if let Some(value) = mutant.and_then(|mutant| clap::ValueEnum::to_possible_value(&mutant)) {
        line.push_str(&format!(" --mutant {}", value.get_name()));
    }
    line
}

/// What is left of a world besides its trace.
struct Ended {
    judged: Judged,
    traffic: crate::net::Traffic,
    replicas: Vec<String>,
}

async fn live(options: Options, plan: Plan, judge: Judge) -> Ended {
    let cluster = Cluster::new(options.replicas, judge, options.mutant);
    for machine in cluster.machines.iter() {
        match options.mutant {
            Some(Mutant::LyingSync) => machine.disk.let_syncs_lie(),
            Some(Mutant::LateSync) => machine.disk.let_syncs_be_late(),
            // The others are planted in each life.
            _ => {}
        }
    }
    found(&cluster).await;

    let clients: Vec<_> = (1..=options.clients)
        .map(|number| runtime::spawn_on(Host(people::CLIENTS + number), people::client(cluster.clone(), number)))
        .collect();
    for (number, speed_ms) in SUBSCRIBERS {
        runtime::spawn_on(
            Host(people::SUBSCRIBERS + number),
            people::subscriber(cluster.clone(), number, speed_ms),
        );
    }
    inject::run(cluster.clone(), plan).await;
    cluster.heal();
    // What comes after a violation tells nothing more, and takes most of the time.
    let sound = cluster.judge.violations() == 0;
    if sound {
        make_up(&cluster, options.make_up).await;
    }
    cluster.close();
    for client in clients {
        // A client has no reason to die; its panic is noted by the runtime.
        let _ = client.await;
    }
    if sound {
        converge(&cluster).await;
    }
    for panic in runtime::panics() {
        cluster
            .judge
            .violate("panic", format!("on host {}: {}", panic.host.0, panic.text));
    }
    Ended {
        judged: cluster.judge.finish(),
        traffic: cluster.network.traffic(),
        replicas: describe(&cluster),
    }
}

/// Starts all machines and makes one cluster of them, as operators do: the first node begins alone, the others join
/// it, and the product's own membership duty makes voters of them.
pub(crate) async fn found(cluster: &Cluster) {
    (0..cluster.machines.len()).for_each(|place| cluster.start(place));
    while cluster.machines.iter().any(|machine| machine.live().is_none()) {
        runtime::sleep(Duration::from_millis(20)).await;
    }
    let machine = &cluster.machines[0];
    let first = machine.live().expect("all machines run");
    let peer = Peer {
        address: setup::address(machine.id).to_string(),
    };
    let alone = BTreeMap::from([(machine.id.0, peer)]);
    if let Err(error) = first.replica.raft().initialize(alone).await {
        cluster
            .judge
            .violate("found", format!("the cluster cannot be made: {error}"));
    }
    people::propose_setup(cluster).await;
    let give_up_ns = runtime::true_now_ns() + FOUND_MS * 1_000_000;
    while first.state().cluster.voters.len() < cluster.machines.len() {
        if runtime::true_now_ns() > give_up_ns {
            return cluster
                .judge
                .violate("found", "the nodes do not become voters".to_owned());
        }
        runtime::sleep(Duration::from_millis(20)).await;
    }
}

/// Makes up, on the healed cluster, for what the plan did not bring and a run needs to count: more commands and, if
/// wanted, a lossy crash or a change of the leader. A cut may have stood where power was to go.
async fn make_up(cluster: &Cluster, with_faults: bool) {
    for _ in 0..MAKE_UP_SECS {
        let counts = cluster.judge.counts();
        if counts.void_reason().is_none() {
            break;
        }
        if let Some(place) = cluster.leader().filter(|_| with_faults) {
            if counts.lossy_crashes < LOSSY_CRASHES_MIN {
                cluster.arm_power_loss(place, 0, true, 300);
            } else if counts.leader_changes < LEADER_CHANGES_MIN {
                cluster.crash(place, false, 500);
            }
        }
        runtime::sleep(Duration::from_secs(1)).await;
    }
    cluster.heal();
}

/// Demands that a healed cluster serves a fresh request, and that its replicas come to stand at one index.
async fn converge(cluster: &Cluster) {
    let give_up_ns = runtime::true_now_ns() + HEAL_MS * 1_000_000;
    let served = runtime::spawn_on(
        Host(people::CLIENTS + VISITOR),
        people::visitor(cluster.clone(), VISITOR),
    );
    if runtime::timeout(Duration::from_millis(HEAL_MS), served).await.is_err() {
        cluster
            .judge
            .violate("liveness", "a healed cluster serves no request".to_owned());
    }
    cluster.quieten();
    while runtime::true_now_ns() < give_up_ns {
        runtime::sleep(Duration::from_millis(100)).await;
        let applied: Vec<Option<u64>> = cluster
            .machines
            .iter()
            .map(|machine| Some(machine.live()?.state().applied.index))
            .collect();
        let decided = cluster.judge.decided();
        if applied.iter().all(|index| *index == Some(decided)) {
            // Subscribers read on to the end.
            runtime::sleep(Duration::from_secs(3)).await;
            return;
        }
    }
    cluster
        .judge
        .violate("liveness", "healed replicas do not converge".to_owned());
}

fn describe(cluster: &Cluster) -> Vec<String> {
    let describe = |machine: &cluster::Machine| {
        let (life, boots) = machine.life();
        let (writes, syncs) = machine.disk.counts();
        let stands = machine.live().map_or("down".to_owned(), |live| {
            let state = live.state();
            format!("index {} state {:016x}", state.applied.index, digest(&state.hash().0))
        });
        format!(
            "{}: life {life}, boot {boots}, {stands}, {writes} writes, {syncs} syncs",
            machine.id
        )
    };
    cluster.machines.iter().map(describe).collect()
}
