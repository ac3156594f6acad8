//! Starts what this node does: the node lease, the executor, and the duties between them and the log.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_proto::id::BootId;
use holdfast_proto::node::BootProof;
use holdfast_storage::disk::Disk;
use tokio::sync::mpsc;

use super::device::Devices;
use super::executor::ExecutorSurroundings;
use super::found::Beginning;
use super::lease::{DutyTask, NodeSurroundings};
use super::node::{NodeKeeper, Shared};
use crate::cli::daemon::DaemonError;
use crate::consensus::leadership::Lead;
use crate::env::Clock;
use crate::executor::core::Core;
use crate::executor::journal::Journal;
use crate::executor::launch::Launcher;
use crate::executor::outfit::Outfit;
use crate::executor::procfs;
use crate::executor::supervised::Supervised;
use crate::executor::worker::Worker;
use crate::net::Class;
use crate::net::router::Router;
use crate::nodelease::thread::{Duty, Keeper, KeeperSetup, Leadership, LeaseRuntime};
use crate::nodelease::{AskerSetup, Timing};
use crate::transfer::courier::Courier;
use crate::transfer::receive::Receiver;
use crate::transfer::replica::Replica;
use crate::transfer::starts::Starts;
use crate::transfer::store::Store;

/// Bytes a second that checkpoints may take; they back off further when Raft's round trips grow.
const BULK_BYTES_PER_S: u64 = 1 << 30;

/// Starts the node lease, asking and answering.
pub(super) fn start_keeper(
    parts: &Shared,
    lease_runtime: &LeaseRuntime,
) -> (Arc<NodeKeeper>, mpsc::UnboundedReceiver<Duty>) {
    let (duties, received) = mpsc::unbounded_channel();
    let (replica, state) = (parts.replica.clone(), parts.state.clone());
    let leadership = Arc::new(move || {
        let now = replica.leadership();
        Leadership {
            term: now.term,
            leads: now.is_self,
            leader: now.leader,
            voters: state().cluster.voters.clone(),
            own_term_applied: now.own_term_applied,
        }
    });
    let replica = parts.replica.clone();
    let confirm = Arc::new(move || {
        let replica = replica.clone();
        let round: BoxFuture<'static, Option<u64>> =
            Box::pin(async move { replica.confirm().await.ok().map(|confirmed| confirmed.index) });
        round
    });
    let cluster_clock = parts.replica.clock().clone();
    let surroundings = NodeSurroundings {
        me: parts.me,
        state: parts.state.clone(),
        leadership,
        confirm,
        time: Arc::new(move || cluster_clock.time()),
        duties,
    };
    let boot = boot_proof(&*parts.clock);
    let last_boot = (parts.state)().nodes.get(&parts.me).and_then(|node| node.boot);
    let keeper = Keeper::start(KeeperSetup {
        timing: Timing::METRO,
        asker: AskerSetup {
            node: parts.me,
            incarnation: parts.incarnation,
            nonce_seed: parts.entropy.random_u64(),
            rebooted: last_boot.is_some_and(|last| last.boot != boot.boot),
        },
        surroundings: Arc::new(surroundings),
        transport: parts.transport.clone(),
        clock: parts.clock.clone(),
        entropy: parts.entropy.clone(),
        runtime: lease_runtime.handle().clone(),
    });
    let (replica, told) = (parts.replica.clone(), Arc::downgrade(&keeper));
    tokio::spawn(async move {
        let mut seen = replica.leadership();
        while let Some(keeper) = told.upgrade() {
            keeper.look();
            drop(keeper);
            seen = replica.changed(seen).await;
        }
    });
    (keeper, received)
}

fn boot_proof(clock: &dyn Clock) -> BootProof {
    let text: String = procfs::boot_id().chars().filter(char::is_ascii_hexdigit).collect();
    BootProof {
        boot: text.parse().unwrap_or(BootId::default()),
        boot_ms: clock.boot_ms(),
    }
}

/// Starts the executor, with the checkpoints of what it runs.
pub(super) fn start_executor(
    parts: &Shared,
    beginning: &Beginning,
    disk: &Arc<dyn Disk>,
    keeper: &Arc<NodeKeeper>,
    devices: &Devices,
    router: &Arc<Router>,
) -> Result<Arc<Worker>, DaemonError> {
    let failed = |error: &dyn std::error::Error| DaemonError::failed(error);
    let folder = beginning.folder.part("executor");
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let launcher = Launcher::new(program, &folder).map_err(|error| failed(&error))?;
    let folder = launcher.folder().to_owned();
    let group_root = Outfit::group_root_of(parts.me);
    let outfit = Outfit {
        node: parts.me,
        group_root: group_root.clone(),
        path: std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned()),
    };
    let journal = Journal::open(disk.clone(), &folder).map_err(|error| failed(&error))?;
    let core = Core::new(
        outfit,
        parts.incarnation,
        &folder,
        Supervised::new(launcher, group_root),
        journal,
    )
    .map_err(|error| failed(&error))?;
    let store = Arc::new(Store::open(beginning.folder.part("checkpoints")).map_err(|error| failed(&error))?);
    let courier = Courier::new(
        parts.me,
        store.clone(),
        parts.transport.clone(),
        parts.clock.clone(),
        BULK_BYTES_PER_S,
    );
    let known = Arc::new(Replica::new(parts.me, parts.state.clone(), parts.propose.clone()));
    router.register(Class::Transfer, Arc::new(Receiver::new(store, known.clone())));
    tokio::spawn(Starts::keep_house(courier.clone(), known.clone()));
    let surroundings = ExecutorSurroundings {
        me: parts.me,
        state: parts.state.clone(),
        keeper: keeper.clone(),
        propose: parts.propose.clone(),
        starts: Starts::new(courier, known, tokio::runtime::Handle::current()),
        devices: devices.inventory(),
        folder,
        runtime: tokio::runtime::Handle::current(),
    };
    let worker = Worker::start(core, parts.clock.clone(), surroundings).map_err(|error| failed(&error))?;
    let worker = Arc::new(worker);
    watch_executor(parts, &worker);
    Ok(worker)
}

/// Wakes the executor at each applied entry, and stops the node when the executor has stopped.
fn watch_executor(parts: &Shared, worker: &Arc<Worker>) {
    let (waker, mut applied) = (worker.waker(), parts.source.applied());
    let (worker, stopper) = (Arc::downgrade(worker), parts.stopper.clone());
    tokio::spawn(async move {
        loop {
            let advanced = tokio::time::timeout(Duration::from_secs(1), applied.changed()).await;
            if advanced.is_ok() {
                waker.wake();
            }
            let Some(worker) = worker.upgrade() else { return };
            if worker.has_failed() {
                stopper.stop(
                    "the executor's journal cannot be written; free space or mend the disk, then start the node again",
                );
            }
            if matches!(advanced, Ok(None)) {
                return;
            }
        }
    });
}

/// Proposes what the node lease asks for.
pub(super) fn start_duties(
    parts: &Shared,
    beginning: &Beginning,
    duties: mpsc::UnboundedReceiver<Duty>,
    worker: &Arc<Worker>,
) {
    let stopper = parts.stopper.clone();
    let worker = Arc::downgrade(worker);
    let task = DutyTask {
        me: parts.me,
        incarnation: parts.incarnation,
        boot: boot_proof(&*parts.clock),
        address: beginning.sockets.address.clone(),
        propose: parts.propose.clone(),
        work: Arc::new(move || worker.upgrade().map(|worker| worker.work()).unwrap_or_default()),
        superseded: Arc::new(move || {
            stopper.stop("another start of this node has taken over; two daemons must not share one identity");
        }),
        runtime: tokio::runtime::Handle::current(),
    };
    tokio::spawn(task.run(duties));
}
