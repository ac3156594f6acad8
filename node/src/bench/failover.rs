//! From the loss of a node to the lease's work running elsewhere, thirty times over, and whether it ever ran twice.
//!
//! The first third of the faults kills only the daemon, the second cuts the node's network (both ways, or one), the last
//! kills daemon, supervisor and work. Half of them hit the leader's node. Where the old copy is alive, its control group
//! must be seen frozen before the new copy's first step: both are read from the machine, not from the cluster. A build
//! with the feature `planted`, told by `HOLDFAST_PLANTED=deadline-ignored` to let the work run on, must be found out in
//! every run of the first two thirds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::{BenchError, percentile};
use crate::demo::{ready, three_zones, until};
use crate::env::OsClock;
use crate::executor::cgroup;
use crate::executor::outfit::Outfit;
use crate::executor::supervisor::output::read_output;
use crate::executor::supervisor::spec::GroupChoice;
use crate::local::lab::{Cut, Lab};
use crate::local::{LocalCluster, LocalError};

/// Flags of `holdfast bench failover`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct FailoverFlags {
    /// Nodes to lose, one after the other.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
}

/// Longest wait for a replacement, and for the cluster to be whole again.
const WITHIN: Duration = Duration::from_secs(120);
/// How often the machine is looked at: far below any time that is measured.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Daemon,
    Network(Cut),
    Everything,
}

impl Fault {
    fn of_run(run: u64, runs: u64) -> Self {
        match run * 3 / runs {
            0 => Self::Daemon,
            1 => Self::Network([Cut::Both, Cut::Outbound, Cut::Inbound][(run % 3) as usize]),
            _ => Self::Everything,
        }
    }
}

/// What one run showed.
struct Seen {
    failover_us: u64,
    doubled: bool,
}

pub(super) async fn measure(program: &Path, flags: &FailoverFlags, json: bool) -> Result<Value, BenchError> {
    let specs = three_zones();
    let lab = Lab::create(specs.len())?;
    let mut cluster = LocalCluster::start_in(program, &specs, Some(lab)).await?;
    let (mut took_us, mut doubles) = (Vec::new(), 0_u64);
    for run in 0..flags.runs {
        ready(&cluster).await?;
        let fault = Fault::of_run(run, flags.runs);
        let seen = one(&mut cluster, run, fault).await?;
        if !json {
            let double = if seen.doubled { "  RAN TWICE" } else { "" };
            println!("{run:3}  {fault:?}  {:.2} s{double}", seen.failover_us as f64 / 1e6);
        }
        took_us.push(seen.failover_us);
        doubles += u64::from(seen.doubled);
    }
    took_us.sort_unstable();
    let seconds = |permille: usize| (percentile(&took_us, permille) as f64 / 10_000.0).round() / 100.0;
    Ok(json!({ "double_runs": doubles, "runs": flags.runs,
               "failover_s": { "p50": seconds(500), "p99": seconds(990), "max": seconds(1000) } }))
}

/// Loses one node under a lease, waits for the replacement, and makes the cluster whole again.
async fn one(cluster: &mut LocalCluster, run: u64, fault: Fault) -> Result<Seen, BenchError> {
    let clock = OsClock;
    let victim = choose(cluster, run.is_multiple_of(2)).await?;
    let lease = request(cluster, victim).await?;
    let attempt = Attempt::of(cluster, victim, &lease)?;
    attempt.first_step(WITHIN).await?;

    let fault_us = clock.boot_us();
    match fault {
        Fault::Daemon => cluster.kill_daemon(victim).await,
        Fault::Network(cut) => cluster.cut(victim, cut)?,
        Fault::Everything => cluster.kill_all(victim).await,
    }
    let old_lives = fault != Fault::Everything;
    let others: Vec<Attempt> = (0..cluster.nodes().len())
        .filter(|node| *node != victim)
        .map(|node| Attempt::next(cluster, node, &lease))
        .collect::<Result<_, _>>()?;
    let (mut frozen_us, give_up_us) = (None, fault_us + u64::try_from(WITHIN.as_micros()).unwrap_or(u64::MAX));
    let started_us = loop {
        // The old copy first: seen frozen in the same look as the new one's first step is frozen before it.
        if frozen_us.is_none() && attempt.is_frozen_or_gone() {
            frozen_us = Some(clock.boot_us());
        }
        if others.iter().any(Attempt::has_stepped) {
            break clock.boot_us();
        }
        if clock.boot_us() > give_up_us {
            return Err(BenchError::Void(format!(
                "run {run}: no replacement within {WITHIN:?} after {fault:?}"
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let doubled = old_lives && frozen_us.is_none_or(|frozen| frozen > started_us);

    if let Fault::Network(_) = fault {
        cluster.heal(victim)?;
    } else {
        cluster.restart(victim).await?;
    }
    until(cluster, &["release", &lease], "the release", WITHIN, |_| Some(())).await?;
    until(cluster, &["show", &lease], "the end of the lease", WITHIN, |shown| {
        (shown["status"] == "ended").then_some(())
    })
    .await?;
    Ok(Seen {
        failover_us: started_us - fault_us,
        doubled,
    })
}

/// The leader's node, or one that does not lead.
async fn choose(cluster: &LocalCluster, leader: bool) -> Result<usize, BenchError> {
    let leads = until(cluster, &["cluster", "status"], "a leader", WITHIN, |status| {
        status["leader"].as_str().and_then(|id| cluster.index_of(id))
    })
    .await?;
    Ok(if leader {
        leads
    } else {
        (leads + 1) % cluster.nodes().len()
    })
}

/// Requests a lease that is placed on `victim` first: by the order in which it accepts the models.
async fn request(cluster: &LocalCluster, victim: usize) -> Result<String, BenchError> {
    let model = |node: usize| cluster.nodes()[node].spec.simulate.trim_start_matches("8x").to_owned();
    let mut models = vec![model(victim)];
    models.extend((0..cluster.nodes().len()).filter(|node| *node != victim).map(model));
    let shape = format!("1x({})", models.join("|"));
    let program = cluster.program().to_string_lossy().into_owned();
    let arguments = [
        "lease",
        &shape,
        "--for",
        "1h",
        "--yes",
        "--detach",
        "--checkpoints",
        "--",
        &program,
        "trainer",
        "--steps",
        "1000000",
        "--interval",
        "50",
        "--step-ms",
        "10",
    ];
    let answer = cluster.json(&arguments).await?;
    Ok(answer["lease"].as_str().unwrap_or_default().to_owned())
}

/// One start of the lease on one node, as the machine shows it.
struct Attempt {
    folder: PathBuf,
    group_root: String,
    run: String,
}

impl Attempt {
    fn of(cluster: &LocalCluster, node: usize, lease: &str) -> Result<Self, BenchError> {
        Self::at(cluster, node, lease, 1)
    }

    fn next(cluster: &LocalCluster, node: usize, lease: &str) -> Result<Self, BenchError> {
        Self::at(cluster, node, lease, 2)
    }

    fn at(cluster: &LocalCluster, node: usize, lease: &str, epoch: u32) -> Result<Self, BenchError> {
        let node = &cluster.nodes()[node];
        let id = node
            .id
            .parse()
            .map_err(|_| BenchError::Void(format!("`{}` is no node id", node.id)))?;
        let run = format!("0-{}-e{epoch}-a1", lease.trim_start_matches("lease-"));
        let folder = node.data.join("executor").join(format!("lease-{run}"));
        Ok(Self {
            folder,
            group_root: Outfit::group_root_of(id),
            run,
        })
    }

    fn has_stepped(&self) -> bool {
        // After the line that says where it starts from.
        read_output(&self.folder, 0, 4096).is_ok_and(|chunk| chunk.bytes.windows(6).any(|word| word == b"\nstep="))
    }

    async fn first_step(&self, within: Duration) -> Result<(), BenchError> {
        let waiting = async {
            while !self.has_stepped() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let late = || LocalError::NotReady {
            label: self.folder.display().to_string(),
            text: "no first step".to_owned(),
        };
        tokio::time::timeout(within, waiting).await.map_err(|_| late())?;
        Ok(())
    }

    /// The kernel says that the group is frozen, or that there is none any more.
    fn is_frozen_or_gone(&self) -> bool {
        let groups = cgroup::inhabited(GroupChoice::Auto, &self.group_root);
        groups.get(&self.run).is_none_or(|group| group.is_frozen())
    }
}
