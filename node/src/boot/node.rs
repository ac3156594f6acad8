//! Runs one node from its beginning to its end.
//!
//! The order is that of need: storage, sockets, consensus, the node lease, the executor and its devices, and the
//! interface last. What fails while it runs (a disk, a superseded start) is told once, and stops the node.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_proto::command::{Command, Envelope, InitCluster};
use holdfast_proto::id::{BootId, Era, Incarnation, NodeId};
use holdfast_proto::limits::NODE_QUIET_MS_MAX;
use holdfast_proto::node::{BootProof, NodeRole, NodeSpec, NodeStatus};
use holdfast_proto::tenant::{AccessToken, Principal, Quota, Role};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_storage::adapter::{Adapter, Folders};
use holdfast_storage::disk::{Disk, RealDisk};
use holdfast_storage::source::CommittedSource;
use holdfast_storage::types::Peer;
use holdfast_storage::{event_log, raft_log};
use openraft_rt_tokio::TokioRuntime;
use tokio::sync::{mpsc, watch};

use super::envelope::by_node;
use super::found::Beginning;
use super::lease::{DutyTask, NodeSurroundings};
use super::{ReadState, api, device, scheduler, view};
use crate::bearer::Bearer;
use crate::cli::daemon::{DaemonError, Ready, Serving};
use crate::config::Config;
use crate::consensus::leadership::Lead;
use crate::consensus::network::files::StoredSnapshots;
use crate::consensus::network::serve::MayVote;
use crate::consensus::replica::Replica;
use crate::consensus::start::{self, Parts, Started};
use crate::consensus::{Outcome, Propose, config as consensus_config, wire};
use crate::device::catalog;
use crate::env::{Clock, Entropy, OsClock, OsEntropy};
use crate::executor::core::Core;
use crate::executor::journal::Journal;
use crate::executor::launch::Launcher;
use crate::executor::outfit::Outfit;
use crate::executor::procfs;
use crate::executor::supervised::Supervised;
use crate::executor::worker::Worker;
use crate::identity::draw_incarnation;
use crate::join::{JoinToken, Peer as KnownPeer};
use crate::net::book::{AddressBook, Admission};
use crate::net::quic::{Quic, QuicSetup};
use crate::net::router::{KindRouter, Router};
use crate::net::{Class, Transport};
use crate::nodelease::thread::{Keeper, KeeperSetup, Leadership, LeaseRuntime};
use crate::nodelease::{AskerSetup, Timing};
use crate::transfer;
use crate::transfer::courier::Courier;
use crate::transfer::receive::Receiver;
use crate::transfer::starts::Starts;
use crate::transfer::store::Store;

/// Bytes a second that checkpoints may take; they back off further when Raft's round trips grow.
const BULK_BYTES_PER_S: u64 = 1 << 30;
/// The tenant that an operator's lease is for when it names none.
const DEFAULT_TENANT: &str = "default";
/// Time between two looks at what the event log may let go.
const RETAIN_EVERY: Duration = Duration::from_secs(60);
/// Longest wait for a new node to be part of the cluster: it may have a snapshot to fetch.
const MEMBER_WITHIN: Duration = Duration::from_secs(120);
/// Longest wait for the log to take a planned silence; without a quorum nobody would be told anyway.
const QUIET_WITHIN: Duration = Duration::from_secs(3);

pub(super) type NodeReplica = Replica<TokioRuntime, Adapter<TokioRuntime>>;
pub(super) type NodeKeeper = Keeper<NodeSurroundings>;

/// Why the node stops by itself.
#[derive(Debug, Clone)]
struct Fatal(String);

/// Runs the node until it is told to stop, or cannot go on.
pub(super) fn run(config: Config, beginning: Beginning, ready: Ready<'_>) -> Result<(), DaemonError> {
    beginning.keep(&config)?;
    tell_log(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| DaemonError::failed(&error))?;
    let result = runtime.block_on(live(config, beginning, ready));
    runtime.shutdown_timeout(Duration::from_secs(2));
    result
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

/// What the parts of a running node share.
struct Shared {
    me: NodeId,
    state: ReadState,
    source: Arc<dyn CommittedSource>,
    replica: Arc<NodeReplica>,
    propose: Arc<dyn Propose>,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    fatal: Arc<watch::Sender<Option<Fatal>>>,
}

async fn live(config: Config, beginning: Beginning, ready: Ready<'_>) -> Result<(), DaemonError> {
    let (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>) = (Arc::new(OsClock), Arc::new(OsEntropy));
    let me = beginning.identity.node;
    let incarnation = draw_incarnation(&*entropy);
    let (fatal, mut stopped) = watch::channel(None::<Fatal>);
    let fatal = Arc::new(fatal);
    let lease_runtime = LeaseRuntime::start().map_err(|error| DaemonError::failed(&error))?;

    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let opened = raft_log::Opened::open(
        disk.clone(),
        &beginning.folder.part("raft"),
        raft_log::Options::default(),
    )
    .map_err(|error| DaemonError::failed(&error))?;
    let (log, log_thread) = opened
        .start_thread::<TokioRuntime>(None)
        .map_err(|error| DaemonError::failed(&error))?;
    let (adapter, opening) = Adapter::<TokioRuntime>::open(
        &disk,
        &Folders::in_data(beginning.folder.root()),
        event_log::Options::default(),
    )
    .map_err(|error| DaemonError::failed(&error))?;
    for damaged in &opening.damaged {
        tracing::warn!(%damaged, "a snapshot is damaged and was passed over");
    }
    let (source, snapshots, events) = (adapter.source(), adapter.snapshots(), adapter.event_log());
    let state: ReadState = {
        let source = source.clone();
        Arc::new(move || source.state())
    };

    let (book, admission, router) = (
        Arc::new(AddressBook::default()),
        Arc::new(Admission::default()),
        Arc::new(Router::new()),
    );
    for KnownPeer { node, address } in &beginning.peers {
        book.commit(*node, address);
    }
    let quic = Quic::bind(&QuicSetup {
        identity: &beginning.identity,
        listen: beginning.sockets.listen,
        book: book.clone(),
        admission: admission.clone(),
        router: router.clone(),
        runtime: tokio::runtime::Handle::current(),
        lease_runtime: lease_runtime.handle().clone(),
    })
    .map_err(|error| DaemonError::failed(&error))?;
    let quic = Arc::new(quic);
    let transport: Arc<dyn Transport> = quic.clone();

    let started = start_consensus(
        &config,
        &beginning,
        log.clone(),
        adapter,
        snapshots,
        &state,
        &transport,
        &router,
        &clock,
        &fatal,
    )
    .await?;
    let replica = started.replica.clone();
    router.register(
        Class::Control,
        Arc::new(KindRouter::default().with(wire::kind::QUESTION, started.questions.clone())),
    );
    let parts = Shared {
        me,
        state: state.clone(),
        source: source.clone(),
        propose: replica.clone(),
        replica: replica.clone(),
        transport: transport.clone(),
        clock: clock.clone(),
        entropy: entropy.clone(),
        fatal: fatal.clone(),
    };
    follow_members(&parts, book, admission);
    let operator = if beginning.founds {
        Some(found_cluster(&parts, &beginning).await?)
    } else {
        None
    };
    let mut file = beginning.file.clone();
    if !file.established {
        file.established = true;
        beginning
            .folder
            .mark_established(&file)
            .map_err(|error| DaemonError::failed(&error))?;
    }

    let devices =
        device::start(&config, beginning.simulate.as_ref(), me, &clock).map_err(|error| DaemonError::failed(&error))?;
    let (keeper, duties) = start_keeper(&parts, incarnation, &lease_runtime);
    router.register(Class::Lease, keeper.clone());
    let gate = keeper.clone();
    replica.set_gate(Arc::new(move |envelope| gate.admits(&envelope.command)));
    let worker = start_executor(&parts, &beginning, &disk, incarnation, &keeper, &devices, &router)?;
    start_duties(&parts, &beginning, incarnation, duties, worker.clone());
    device::report(
        &config,
        me,
        incarnation,
        &devices,
        &state,
        &source,
        &parts.propose,
        beginning.folder.root(),
        &clock,
    );
    scheduler::start(me, &state, &source, replica.clone(), &clock);
    keep_authority_key(&parts, &beginning);

    let stop = serve_api(&config, &beginning, &parts, &devices, &log, events)?;
    if !wait_member(&parts, &beginning, incarnation, &mut stopped).await {
        let why = stopped
            .borrow()
            .clone()
            .map_or_else(|| "it was not registered in time".to_owned(), |fatal| fatal.0);
        return Err(DaemonError {
            reason: format!("the node could not become a member: {why}"),
            exit_code: 70,
        });
    }
    let serving = serving(&parts, &beginning, operator).await?;
    if let Err(error) = ready(&serving) {
        tracing::error!(%error, "cannot tell that the node is ready");
    }
    let why = wait_stop(&mut stopped).await;
    if why.is_none() {
        take_quiet(&parts, incarnation, &keeper, &worker).await;
    }
    let _ = stop.send(true);
    drop(worker);
    // openraft says why it had stopped before; it is being stopped now.
    let _ = replica.raft().shutdown().await;
    quic.close().await;
    drop((log, keeper, replica, parts, started));
    drop(log_thread);
    match why {
        None => Ok(()),
        Some(Fatal(reason)) => Err(DaemonError { reason, exit_code: 70 }),
    }
}

#[allow(clippy::too_many_arguments)]
async fn start_consensus(
    config: &Config,
    beginning: &Beginning,
    log: raft_log::RaftLog<TokioRuntime>,
    adapter: Adapter<TokioRuntime>,
    snapshots: holdfast_storage::snapshot::SnapshotStore,
    state: &ReadState,
    transport: &Arc<dyn Transport>,
    router: &Arc<Router>,
    clock: &Arc<dyn Clock>,
    fatal: &Arc<watch::Sender<Option<Fatal>>>,
) -> Result<Started<TokioRuntime, Adapter<TokioRuntime>>, DaemonError> {
    let raft_config = consensus_config::config(beginning.identity.cluster, config.timing.profile())
        .map_err(|error| DaemonError::failed(&error))?;
    let may_vote: MayVote = {
        let state = state.clone();
        Arc::new(move |node| {
            state()
                .nodes
                .get(&node)
                .is_none_or(|node| node.spec.role != NodeRole::Worker)
        })
    };
    let key_file = beginning.folder.part("identity").join("ca.key");
    let (applied, members) = (state.clone(), state.clone());
    let fatal = fatal.clone();
    start::start(Parts {
        me: beginning.identity.node,
        config: raft_config,
        log,
        machine: adapter,
        files: Arc::new(StoredSnapshots::new(snapshots)),
        transport: transport.clone(),
        router: router.clone(),
        clock: clock.clone(),
        applied_stamp: Arc::new(move || applied().applied.stamp),
        picture: Arc::new(move || view::picture(&members())),
        may_vote,
        authority_key: Arc::new(move || std::fs::read_to_string(&key_file).ok().map(crate::identity::secret::Secret::new)),
        on_forgot: Arc::new(move |leader| {
            let text = format!(
                "node {leader} found that this disk remembers less than it promised; move the data folder away and join this machine again as a new node"
            );
            fatal.send_replace(Some(Fatal(text)));
        }),
    })
    .await
    .map_err(|error| DaemonError::failed(&error))
}

/// Keeps the address book and the set of removed nodes at the applied state.
fn follow_members(parts: &Shared, book: Arc<AddressBook>, admission: Arc<Admission>) {
    let (state, me, fatal) = (parts.state.clone(), parts.me, parts.fatal.clone());
    let mut applied = parts.source.applied();
    tokio::spawn(async move {
        loop {
            let now = state();
            for node in now.nodes.values() {
                book.commit(node.spec.node, &node.spec.address);
            }
            let removed = now.nodes.values().filter(|node| node.status == NodeStatus::Removed);
            let removed: std::collections::BTreeSet<NodeId> = removed.map(|node| node.spec.node).collect();
            if removed.contains(&me) {
                let text =
                    "this node was removed from the cluster; move its data folder away before the machine joins again";
                fatal.send_replace(Some(Fatal(text.to_owned())));
            }
            admission.set_removed(removed);
            if applied.changed().await.is_none() {
                let text =
                    "the replica has stopped: its log or its state could not be written or read; see the errors above";
                fatal.send_replace(Some(Fatal(text.to_owned())));
                return;
            }
        }
    });
}

/// Makes the cluster: one voter, and the first entry with its identity, its prices and the operator's token.
async fn found_cluster(parts: &Shared, beginning: &Beginning) -> Result<Bearer, DaemonError> {
    let address = beginning.sockets.address.to_string();
    let members = std::collections::BTreeMap::from([(parts.me.0, Peer { address })]);
    if let Err(error) = parts.replica.raft().initialize(members).await {
        // A founding that was interrupted goes on here: the log has its first member already.
        tracing::info!(%error, "the log has members already");
    }
    let operator = Bearer::draw(&*parts.entropy);
    let key = beginning
        .identity
        .key_digest()
        .map_err(|error| DaemonError::failed(&error))?;
    let init = InitCluster {
        cluster: beginning.identity.cluster,
        era: Era(0),
        node: NodeSpec {
            node: parts.me,
            label: beginning.label.clone(),
            zone: beginning.zone.clone(),
            role: beginning.role,
            address: beginning.sockets.address.clone(),
            key,
        },
        operator: AccessToken {
            token: operator.id,
            secret: operator.digest(),
            role: Role::Operator,
            tenant: None,
            project: None,
            note: "made by init".to_owned(),
            expires: None,
        },
        tariff: catalog::first_tariff(),
    };
    let first = parts
        .propose
        .propose(by_node(parts.me, Command::InitCluster(Box::new(init))))
        .await;
    effected(first, "the first entry")?;
    // Somebody to pay: an operator's lease without a tenant is for this one.
    let tenant = DEFAULT_TENANT.parse().map_err(|error| DaemonError::failed(&error))?;
    let quota = Quota { devices_max: u32::MAX };
    let set = by_operator(parts.me, &operator, Command::SetTenant { tenant, quota });
    effected(parts.propose.propose(set).await, "the first tenant")?;
    Ok(operator)
}

fn effected(outcome: Outcome, what: &str) -> Result<(), DaemonError> {
    match outcome {
        Outcome::Applied { .. } => Ok(()),
        Outcome::Refused { rejection, .. } => Err(DaemonError::refused(&rejection)),
        Outcome::Unknown { reason } => Err(DaemonError {
            reason: format!("{what} was not written: {reason}"),
            exit_code: 70,
        }),
    }
}

/// A command of the operator, on the node that has just made the operator's token.
fn by_operator(me: NodeId, operator: &Bearer, command: Command) -> Envelope {
    let principal = Principal::Bearer {
        token: operator.id,
        role: Role::Operator,
        tenant: None,
    };
    Envelope {
        principal,
        ..by_node(me, command)
    }
}

fn start_keeper(
    parts: &Shared,
    incarnation: Incarnation,
    lease_runtime: &LeaseRuntime,
) -> (Arc<NodeKeeper>, mpsc::UnboundedReceiver<crate::nodelease::thread::Duty>) {
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
            incarnation,
            nonce_seed: parts.entropy.random_u64(),
            rebooted: last_boot.is_some_and(|last| last.boot != boot.boot),
        },
        surroundings: Arc::new(surroundings),
        transport: parts.transport.clone(),
        clock: parts.clock.clone(),
        entropy: parts.entropy.clone(),
        runtime: lease_runtime.handle().clone(),
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

#[allow(clippy::too_many_arguments)]
fn start_executor(
    parts: &Shared,
    beginning: &Beginning,
    disk: &Arc<dyn Disk>,
    incarnation: Incarnation,
    keeper: &Arc<NodeKeeper>,
    devices: &device::Devices,
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
        incarnation,
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
    let known = Arc::new(transfer::replica::Replica::new(
        parts.me,
        parts.state.clone(),
        parts.propose.clone(),
    ));
    router.register(Class::Transfer, Arc::new(Receiver::new(store, known.clone())));
    tokio::spawn(Starts::keep_house(courier.clone(), known.clone()));
    let surroundings = super::executor::ExecutorSurroundings {
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
    let (worker, fatal) = (Arc::downgrade(worker), parts.fatal.clone());
    tokio::spawn(async move {
        loop {
            let advanced = tokio::time::timeout(Duration::from_secs(1), applied.changed()).await;
            waker.wake();
            let Some(worker) = worker.upgrade() else { return };
            if worker.has_failed() {
                let text =
                    "the executor's journal cannot be written; free space or mend the disk, then start the node again";
                fatal.send_replace(Some(Fatal(text.to_owned())));
            }
            if matches!(advanced, Ok(None)) {
                return;
            }
        }
    });
}

fn start_duties(
    parts: &Shared,
    beginning: &Beginning,
    incarnation: Incarnation,
    duties: mpsc::UnboundedReceiver<crate::nodelease::thread::Duty>,
    worker: Arc<Worker>,
) {
    let fatal = parts.fatal.clone();
    let worker = Arc::downgrade(&worker);
    let task = DutyTask {
        me: parts.me,
        incarnation,
        boot: boot_proof(&*parts.clock),
        address: beginning.sockets.address.clone(),
        propose: parts.propose.clone(),
        work: Arc::new(move || worker.upgrade().map(|worker| worker.work()).unwrap_or_default()),
        superseded: Arc::new(move || {
            let text = "another start of this node has taken over; two daemons must not share one identity";
            fatal.send_replace(Some(Fatal(text.to_owned())));
        }),
        runtime: tokio::runtime::Handle::current(),
    };
    tokio::spawn(task.run(duties));
}

/// A voter holds the authority's key, so that machines can join while any voter is up.
fn keep_authority_key(parts: &Shared, beginning: &Beginning) {
    let path = beginning.folder.part("identity").join("ca.key");
    let (state, me, replica) = (parts.state.clone(), parts.me, parts.replica.clone());
    tokio::spawn(async move {
        while !path.exists() {
            if state().cluster.voters.contains(&me)
                && let Some(key) = replica.fetch_authority_key().await
                && let Err(error) = crate::identity::folder::write_durably(&path, key.expose().as_bytes(), 0o600)
            {
                tracing::warn!(%error, "cannot keep the authority's key");
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
}

fn serve_api(
    config: &Config,
    beginning: &Beginning,
    parts: &Shared,
    devices: &device::Devices,
    log: &raft_log::RaftLog<TokioRuntime>,
    events: event_log::EventLog,
) -> Result<watch::Sender<bool>, DaemonError> {
    let built = api::build(&api::Built {
        config,
        beginning,
        me: parts.me,
        state: &parts.state,
        source: &parts.source,
        events: &events,
        replica: &parts.replica,
        devices,
        log,
        clock: &parts.clock,
        entropy: &parts.entropy,
    })?;
    keep_events(config, parts, events);
    let listener = beginning
        .sockets
        .https
        .try_clone()
        .map_err(|error| DaemonError::failed(&error))?;
    let tls = crate::net::tls::https_server(&beginning.identity).map_err(|error| DaemonError::failed(&error))?;
    let (stop, mut stopping) = watch::channel(false);
    let fatal = parts.fatal.clone();
    tokio::spawn(async move {
        let stopped = async move {
            // A dropped sender stops it too.
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        if let Err(error) = crate::api::server::serve(&built, listener, tls, stopped).await {
            fatal.send_replace(Some(Fatal(format!("the HTTPS interface has stopped: {error}"))));
        }
    });
    Ok(stop)
}

/// Lets events go that are older, or more, than the configuration keeps; whole segments at a time.
fn keep_events(config: &Config, parts: &Shared, events: event_log::EventLog) {
    let (state, kept) = (parts.state.clone(), config.events.clone());
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(RETAIN_EVERY).await;
            let age_ms = u64::from(kept.retention_days) * 24 * 3_600_000;
            let retention = event_log::Retention {
                bytes_max: kept.retention_mib << 20,
                since: Timestamp(state().applied.stamp.0.saturating_sub(age_ms)),
            };
            let events = events.clone();
            let retained = tokio::task::spawn_blocking(move || events.retain(retention)).await;
            if let Ok(Err(error)) = retained {
                tracing::warn!(%error, "old events could not be let go");
            }
        }
    });
}

/// Waits until the applied state shows this start. A node that only resumes does not wait: its cluster may still be down.
async fn wait_member(
    parts: &Shared,
    beginning: &Beginning,
    incarnation: Incarnation,
    stopped: &mut watch::Receiver<Option<Fatal>>,
) -> bool {
    if !beginning.founds && beginning.file.established {
        return true;
    }
    let mut applied = parts.source.applied();
    let registered = async {
        loop {
            let shown = (parts.state)().nodes.get(&parts.me).and_then(|node| node.incarnation);
            if shown == Some(incarnation) || applied.changed().await.is_none() {
                return shown == Some(incarnation);
            }
        }
    };
    tokio::select! {
        registered = tokio::time::timeout(MEMBER_WITHIN, registered) => registered.unwrap_or(false),
        _ = stopped.wait_for(Option::is_some) => false,
    }
}

/// What the command tells about the node that now serves. A founder also makes the first join token.
async fn serving(parts: &Shared, beginning: &Beginning, operator: Option<Bearer>) -> Result<Serving, DaemonError> {
    let address = beginning.sockets.address.to_string();
    let join_line = match &operator {
        None => None,
        Some(operator) => {
            let authority = beginning
                .identity
                .authority_fingerprint()
                .map_err(|error| DaemonError::failed(&error))?;
            let token = JoinToken::draw(NodeRole::Replica, authority, &*parts.entropy);
            let command = Command::CreateJoinToken {
                token: token.id,
                secret: token.digest(),
                role: NodeRole::Replica,
                life: Span(holdfast_proto::limits::JOIN_TOKEN_MS_DEFAULT),
            };
            let envelope = by_operator(parts.me, operator, command);
            match parts.propose.propose(envelope).await {
                Outcome::Applied { .. } => Some(format!("holdfast join {address} --token {}", token.reveal())),
                other => {
                    tracing::warn!(?other, "no first join token was made");
                    None
                }
            }
        }
    };
    Ok(Serving {
        cluster: beginning.identity.cluster,
        node: parts.me,
        authority: beginning.identity.authority().clone(),
        address,
        operator,
        join_line,
    })
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
async fn take_quiet(parts: &Shared, incarnation: Incarnation, keeper: &Arc<NodeKeeper>, worker: &Arc<Worker>) {
    if worker.work().is_empty() {
        return;
    }
    let asked_ms = parts.clock.boot_ms();
    let command = Command::QuietNode {
        node: parts.me,
        incarnation,
        span: Span(NODE_QUIET_MS_MAX),
    };
    let told = tokio::time::timeout(QUIET_WITHIN, parts.propose.propose(by_node(parts.me, command))).await;
    if matches!(told, Ok(Outcome::Applied { .. })) {
        keeper.quiet(asked_ms, NODE_QUIET_MS_MAX);
        worker.waker().wake();
        // One turn of the executor tells the supervisors; it is given the time of two.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
