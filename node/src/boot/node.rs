//! Runs one node from its beginning to its end.
//!
//! The order is that of need: storage, sockets, consensus, the node lease, the executor and its devices, and the
//! interface last. What fails while it runs (a disk, a superseded start) is told once, and stops the node.

use std::sync::{Arc, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

use holdfast_proto::command::Command;
use holdfast_proto::id::{Incarnation, NodeId};
use holdfast_proto::limits::NODE_QUIET_MS_MAX;
use holdfast_proto::time::Span;
use holdfast_storage::adapter::Adapter;
use holdfast_storage::source::CommittedSource;
use openraft_rt_tokio::TokioRuntime;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

use super::envelope::by_node;
use super::found::Beginning;
use super::lease::NodeSurroundings;
use super::link::{Link, NodeConsensus, keep_authority_key};
use super::storage::Storage;
use super::{ReadState, api, device, genesis, recover, scheduler, work};
use crate::cli::daemon::{DaemonError, Ready};
use crate::config::Config;
use crate::consensus::leadership::Lead;
use crate::consensus::replica::Replica;
use crate::consensus::{Outcome, Propose};
use crate::env::{Clock, Entropy, OsClock, OsEntropy};
use crate::executor::worker::Worker;
use crate::identity::draw_incarnation;
use crate::net::{Class, Transport};
use crate::nodelease::thread::{Keeper, LeaseRuntime};

/// Longest wait for the log to take a planned silence; without a quorum nobody would be told anyway.
const QUIET_WITHIN: Duration = Duration::from_secs(3);
/// How often a node without a leader says what it waits for, in the time after its start.
const WAITING_EVERY: Duration = Duration::from_secs(3);
/// Silence up to which a leader counts as there.
const HEARD_WITHIN_MS: u64 = 2_000;
/// Threads for requests, the scheduler and transfers: the rest of a large machine belongs to its tenants.
const WORKERS_MAX: usize = 8;

pub(super) type NodeReplica = Replica<TokioRuntime, Adapter<TokioRuntime>>;
pub(super) type NodeKeeper = Keeper<NodeSurroundings>;

/// Why the node stops by itself.
#[derive(Debug, Clone)]
pub(super) struct Fatal(pub(super) String);

/// Stops the node from anywhere; the first reason is the one that is told.
#[derive(Debug, Clone)]
pub(super) struct Stopper(Arc<watch::Sender<Option<Fatal>>>);

impl Stopper {
    /// Says why the node cannot go on.
    pub(super) fn stop(&self, why: impl Into<String>) {
        self.0.send_if_modified(|reason| {
            let is_first = reason.is_none();
            if is_first {
                *reason = Some(Fatal(why.into()));
            }
            is_first
        });
    }
}

/// What the parts of a running node share.
pub(super) struct Shared {
    pub(super) me: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) state: ReadState,
    pub(super) source: Arc<dyn CommittedSource>,
    pub(super) replica: Arc<NodeReplica>,
    pub(super) propose: Arc<dyn Propose>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) stopper: Stopper,
}

/// Runs the node until it is told to stop, or cannot go on.
pub(super) fn run(config: Config, beginning: Beginning, ready: Ready<'_>) -> Result<(), DaemonError> {
    beginning.keep(&config)?;
    tell_log(&config);
    let consensus = runtime("raft", 1)?;
    let rest = runtime("work", WORKERS_MAX.min(available_parallelism().map_or(1, usize::from)))?;
    let result = consensus.block_on(live(config, beginning, ready, rest.handle()));
    rest.shutdown_timeout(Duration::from_secs(2));
    consensus.shutdown_timeout(Duration::from_secs(2));
    result
}

/// Consensus and its connections have one thread of their own: a message passes through half a dozen tasks, and waking
/// another thread for each costs more than the message (an idle node took a third more). Requests, the scheduler and
/// transfers are kept off it.
fn runtime(name: &str, workers: usize) -> Result<Runtime, DaemonError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(workers).thread_name(name).enable_all().build();
    built.map_err(|error| DaemonError::failed(&error))
}

/// Writes what the parts have to say to the standard error, as the configuration or `RUST_LOG` asks.
fn tell_log(config: &Config) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(&config.log.filter));
    let told = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second node in one process keeps the first one's.
    let _ = if config.log.json {
        told.json().try_init()
    } else {
        told.with_ansi(false).try_init()
    };
}

async fn live(config: Config, beginning: Beginning, ready: Ready<'_>, rest: &Handle) -> Result<(), DaemonError> {
    let (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>) = (Arc::new(OsClock), Arc::new(OsEntropy));
    let (fatal, mut stopped) = watch::channel(None::<Fatal>);
    let stopper = Stopper(Arc::new(fatal));
    let lease_runtime = LeaseRuntime::start().map_err(|error| DaemonError::failed(&error))?;
    let mut storage = Storage::open(&beginning)?;
    tracing::info!(
        applied = (storage.state)().applied.index,
        "the snapshot and the log are read"
    );
    let link = Link::bind(&beginning, &lease_runtime, rest)?;
    let consensus = link
        .start_consensus(&config, &beginning, &mut storage, &clock, &stopper)
        .await?;
    let shared = Shared {
        me: beginning.identity.node,
        incarnation: draw_incarnation(&*entropy),
        state: storage.state.clone(),
        source: storage.source.clone(),
        propose: consensus.replica.clone(),
        replica: consensus.replica.clone(),
        transport: link.quic.clone(),
        clock,
        entropy,
        stopper,
    };
    link.follow_members(&shared);
    tracing::info!("consensus runs; trying which isolation holds on this machine, and finding work that runs here");
    let operator = match beginning.founds {
        true => Some(genesis::found_cluster(&shared, &beginning).await?),
        false => recover::begin_anew(&shared, &beginning)
            .await?
            .or_else(|| beginning.undelivered_operator()),
    };
    beginning.establish()?;
    let running = {
        let _on_rest = rest.enter();
        Running::start(&config, &beginning, &shared, &storage, &link, &lease_runtime)?
    };
    genesis::wait_member(&shared, &beginning, &mut stopped).await?;
    let serving = genesis::serving(&shared, &beginning, operator).await?;
    match ready(&serving) {
        Ok(()) => beginning.operator_delivered(),
        Err(error) => tracing::error!(error = %error.told(), "cannot tell that the node is ready"),
    }
    rest.spawn(tell_waiting(shared.state.clone(), Arc::downgrade(&shared.replica)));
    let why = wait_stop(&mut stopped).await;
    if why.is_none() {
        take_quiet(&shared, &running).await;
    }
    stop(running, link, consensus, shared, storage).await;
    match why {
        None => Ok(()),
        Some(Fatal(reason)) => Err(DaemonError { reason, exit_code: 70 }),
    }
}

/// Says what a node that serves still waits for: without a leader it answers nothing fresh and starts no work, and a
/// person who has just started it is told why.
async fn tell_waiting(state: ReadState, replica: Weak<NodeReplica>) {
    let mut told = false;
    loop {
        tokio::time::sleep(WAITING_EVERY).await;
        let Some(replica) = replica.upgrade() else { return };
        let leads = replica.leadership().leader.is_some();
        if leads && replica.heard_ms_ago().is_some_and(|silent| silent < HEARD_WITHIN_MS) {
            if told {
                tracing::info!("a leader is there: this node takes part");
            }
            return;
        }
        let now = state();
        let voters = now.cluster.voters.iter().filter_map(|voter| now.nodes.get(voter));
        let voters: Vec<String> = voters
            .map(|voter| format!("{} at {}", voter.spec.label, voter.spec.address))
            .collect();
        tracing::info!(
            "waiting for a leader: a majority of the voters must run and reach each other ({})",
            voters.join(", ")
        );
        told = true;
    }
}

/// What runs once the node is founded or admitted.
struct Running {
    keeper: Arc<NodeKeeper>,
    worker: Arc<Worker>,
    /// Sampling ends when this is dropped, and with it the inventory.
    _devices: device::Devices,
    stop_api: watch::Sender<bool>,
}

impl Running {
    fn start(
        config: &Config,
        beginning: &Beginning,
        shared: &Shared,
        storage: &Storage,
        link: &Link,
        lease_runtime: &LeaseRuntime,
    ) -> Result<Self, DaemonError> {
        let devices =
            device::start(beginning.simulate.as_ref(), shared).map_err(|error| DaemonError::failed(&error))?;
        let (keeper, duties) = work::start_keeper(shared, lease_runtime);
        link.router.register(Class::Lease, keeper.clone());
        let gate = keeper.clone();
        shared
            .replica
            .set_gate(Arc::new(move |envelope| gate.admits(&envelope.command)));
        let worker = work::start_executor(shared, beginning, &storage.disk, &keeper, &devices, &link.router)?;
        work::start_duties(shared, beginning, duties, &worker);
        device::report(config, &devices, shared);
        scheduler::start(shared);
        keep_authority_key(shared, beginning);
        storage.keep_events(&config.events);
        let stop_api = api::start(config, beginning, shared, storage, &devices, &link.router)?;
        Ok(Self {
            keeper,
            worker,
            _devices: devices,
            stop_api,
        })
    }
}

/// Stops in the opposite order. The work of leases goes on under its supervisors.
async fn stop(running: Running, link: Link, consensus: NodeConsensus, shared: Shared, storage: Storage) {
    // Nobody listens when the interface has stopped before.
    let _ = running.stop_api.send(true);
    drop(running);
    // openraft says why it had stopped before; it is being stopped now.
    let _ = shared.replica.raft().shutdown().await;
    link.quic.close().await;
    drop((consensus, shared));
    let Storage { log, log_thread, .. } = storage;
    drop((log, log_thread));
}

async fn wait_stop(stopped: &mut watch::Receiver<Option<Fatal>>) -> Option<Fatal> {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return stopped
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|fatal| fatal.clone());
    };
    tokio::select! {
        fatal = stopped.wait_for(Option::is_some) => fatal.ok().and_then(|fatal| fatal.clone()),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    }
}

/// A planned stop goes through the log first, so that nobody is frozen or moved by it.
async fn take_quiet(shared: &Shared, running: &Running) {
    if running.worker.work().is_empty() {
        return;
    }
    let asked_ms = shared.clock.boot_ms();
    let command = Command::QuietNode {
        node: shared.me,
        incarnation: shared.incarnation,
        span: Span(NODE_QUIET_MS_MAX),
    };
    let told = shared.propose.propose(by_node(shared.me, command));
    if matches!(
        tokio::time::timeout(QUIET_WITHIN, told).await,
        Ok(Outcome::Applied { .. })
    ) {
        running.keeper.quiet(asked_ms, NODE_QUIET_MS_MAX);
        running.worker.waker().wake();
        // One turn of the executor tells the supervisors; it is given the time of two.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
