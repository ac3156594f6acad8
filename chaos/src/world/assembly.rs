//! One life of one production replica: log, machine, consensus and network, put together as `boot.rs` does.
//!
//! The one rule: nothing here replaces a part of the product. Only the seams below it (runtime, disk, transport, clock)
//! are simulated, and only probes are put between, and a planted bug when one is wanted.

use std::path::Path;
use std::sync::Arc;

use holdfast_node::consensus::compaction::Stored;
use holdfast_node::consensus::config::{Profile, config};
use holdfast_node::consensus::membership::{Known, Picture};
use holdfast_node::consensus::network::files::StoredSnapshots;
use holdfast_node::consensus::replica::Replica;
use holdfast_node::consensus::start::{self as consensus, Started};
use holdfast_node::net::Class;
use holdfast_node::net::router::Router;
use holdfast_proto::event::EventRecord;
use holdfast_proto::id::{ClusterId, Cursor};
use holdfast_proto::node::NodeStatus;
use holdfast_storage::CommittedSource;
use holdfast_storage::adapter::{Adapter, Folders};
use holdfast_storage::disk::Disk;
use holdfast_storage::event_log;
use holdfast_storage::machine::State;
use holdfast_storage::promise::PromiseFile;
use holdfast_storage::raft_log::{self, Opened};
use openraft::{Config, SnapshotPolicy};

use super::clock::SimulatedClock;
use super::judge::{Judge, Witness};
use super::observe::{ObservedLog, ObservedMachine};
use super::planted::{PlantedLog, PlantedMachine};
use crate::check::Seen;
use crate::disk::SimulatedDisk;
use crate::mutant::Mutant;
use crate::net::Network;
use crate::runtime::{self, Host, Simulated};
use crate::trace::digest;

/// Segments of simulated logs: small, so that a run crosses many of their ends.
const SEGMENT_BYTES: u32 = 64 * 1_024;

/// Entries between two snapshots: so few that a follower that is away for a second or two needs one.
const SNAPSHOT_EVERY: u64 = 40;

/// The replica that worlds run.
pub type SimulatedReplica = Replica<Simulated, ObservedMachine<PlantedMachine<Adapter<Simulated>>>>;

/// A replica that runs.
#[derive(Clone)]
pub struct Live {
    /// The product's replica.
    pub replica: Arc<SimulatedReplica>,
    /// What it has committed and applied.
    pub source: Arc<dyn CommittedSource>,
}

impl Live {
    /// The state that the replica has reached.
    pub fn state(&self) -> Arc<State> {
        self.source.state()
    }

    /// Events strictly after a position; none while this replica cannot tell them.
    pub fn events_after(&self, after: Cursor, limit: usize) -> Vec<Arc<EventRecord>> {
        self.source.events(after, limit).unwrap_or_default()
    }
}

struct Applied(Arc<dyn CommittedSource>);

impl Witness for Applied {
    fn state_digest(&self) -> u64 {
        digest(&self.0.state_hash().hash.0)
    }

    fn events_after(&self, after: Cursor, limit: usize) -> Vec<EventRecord> {
        let events = self.0.events(after, limit).unwrap_or_default();
        events.iter().map(|record| (**record).clone()).collect()
    }
}

/// What a life is put together from.
pub struct Parts {
    /// Which life of which replica.
    pub seen: Seen,
    /// Its disk.
    pub disk: SimulatedDisk,
    /// Its clocks.
    pub clock: SimulatedClock,
    /// The network.
    pub network: Network,
    /// Who hears what passes.
    pub judge: Judge,
    /// The bug that is planted in it.
    pub mutant: Option<Mutant>,
}

/// Starts one life. Runs on the host that it is for.
///
/// # Errors
/// The text of what did not start.
pub async fn start(parts: Parts) -> Result<Live, String> {
    let Parts {
        seen,
        disk,
        clock,
        network,
        judge,
        mutant,
    } = parts;
    let (id, host) = (seen.replica, Host(seen.replica.0));
    let stream = |name| runtime::stream(name, &[id.0, u64::from(seen.life)]);

    let (times, mut draws) = (disk.clone(), stream("sync"));
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let options = raft_log::Options {
        segment_bytes: SEGMENT_BYTES,
        ..raft_log::Options::default()
    };
    let opened = Opened::open(disk.clone(), Path::new("/raft"), options).map_err(|error| text(&error))?;
    let (log, serving) = opened.start_task::<Simulated>(move || times.sync_time(&mut draws));
    runtime::spawn_on(host, serving);

    let options = event_log::Options {
        segment_bytes: SEGMENT_BYTES,
        ..event_log::Options::default()
    };
    let opened = Adapter::<Simulated>::open(&disk, &Folders::in_data(Path::new("/")), options);
    let (adapter, _) = opened.map_err(|error| text(&error))?;
    let (source, snapshots) = (adapter.source(), adapter.snapshots());
    judge.call(seen, Arc::new(Applied(source.clone())));

    let router = Arc::new(Router::new());
    let (stamps, members) = (source.clone(), source.clone());
    let (forgotten, diverged) = (judge.clone(), judge.clone());
    let machine = PlantedMachine::new(adapter, mutant, id, stream("planted"));
    let parts = consensus::Parts {
        me: id,
        config: settings(mutant)?,
        kept: Arc::new(Stored {
            snapshots: snapshots.clone(),
            log: log.clone(),
        }),
        promises: PromiseFile::in_data(disk, Path::new("/")),
        log: ObservedLog::new(PlantedLog::new(log, mutant), seen, Arc::new(judge.clone())),
        machine: ObservedMachine::new(machine, seen, Arc::new(judge), stream("batches")),
        files: Arc::new(StoredSnapshots::new(snapshots)),
        transport: Arc::new(network.transport(host)),
        router: router.clone(),
        clock: Arc::new(clock),
        applied_stamp: Arc::new(move || stamps.state().applied.stamp),
        picture: Arc::new(move || picture(&members.state())),
        may_vote: Arc::new(|_| true),
        authority_key: Arc::new(|| None),
        hashes: Arc::new(holdfast_node::consensus::agreement::Applied(source.clone())),
        on_diverged: Arc::new(move |reason| diverged.violate("agreement", format!("{seen} was told: {reason}"))),
        on_forgot: Arc::new(move |by| {
            forgotten.forgot(id, &format!("{by} found it out in {seen}"));
        }),
    };
    let Started { replica, questions, .. } = consensus::start(parts).await.map_err(|error| text(&error))?;
    for class in [Class::Raft, Class::Snapshot] {
        let service = router.service(class).map_err(|error| text(&error))?;
        network.serve(host, class, service);
    }
    network.serve(host, Class::Control, questions);
    Ok(Live { replica, source })
}

/// What the membership duty reads of the state.
fn picture(state: &State) -> Picture {
    let known = |node: &holdfast_storage::machine::state::Node| Known {
        node: node.spec.node,
        zone: node.spec.zone.clone(),
        role: node.spec.role,
        removed: node.status == NodeStatus::Removed,
        lost: node.status == NodeStatus::Lost,
        address: node.spec.address.to_string(),
    };
    let nodes = state.nodes.values().map(|node| known(node)).collect();
    Picture {
        nodes,
        voters: state.cluster.voters.clone(),
    }
}

/// The product's settings, but for the sizes that a short run would never reach: snapshots are taken often, so that
/// followers that were away need one.
fn settings(mutant: Option<Mutant>) -> Result<Arc<Config>, String> {
    let product = config(ClusterId([9; 16]), Profile::Metro).map_err(|error| text(&error))?;
    let config = Config {
        snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_EVERY),
        replication_lag_threshold: 2 * SNAPSHOT_EVERY,
        enable_leader_restore: match mutant {
            Some(Mutant::LeaderRestored) => Some(true),
            _ => product.enable_leader_restore,
        },
        ..(*product).clone()
    };
    config.validate().map(Arc::new).map_err(|error| text(&error))
}

/// An error and its causes in one line.
fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
