//! One node's interface over a machine in memory: what the log would do, without a log.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::command::{Command, Envelope, InitCluster};
use holdfast_proto::device::{Device, DeviceKind};
use holdfast_proto::event::EventRecord;
use holdfast_proto::id::{
    Attempt, BootId, ClusterId, Cursor, DeviceId, Digest, Epoch, Era, Incarnation, LeaseId, Name, NodeId,
};
use holdfast_proto::lease::Plan;
use holdfast_proto::node::{BootProof, Inventory, IsolationLevel, NodeAddress, NodeRole, NodeSpec};
use holdfast_proto::placement::{Allocation, Exit};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tariff::{Price, Tariff};
use holdfast_proto::tenant::{AccessToken, Principal, Role};
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::{Machine, State};
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use crate::api::seam::Footprint;
use crate::api::seam::{
    Admit, AdmitError, Committed, HistoryError, Leadership, LogChunk, LogError, LogRequest, Logs, Standing,
};
use crate::api::{Api, Limits, Parts, forward, server};
use crate::bearer::Bearer;
use crate::client::Client;
use crate::consensus::{Linearize, Outcome, Propose, ReadError};
use crate::env::{Clock, Entropy, OsClock, OsEntropy};
use crate::identity::Identity;
use crate::identity::authority::fingerprint;
use crate::identity::folder::DataFolder;
use crate::join::{JoinAnswer, JoinRequest};
use crate::net::tls::{https_client, https_server};
use crate::wire::cluster::Disk;

/// Devices of the one node.
pub(crate) const DEVICES: u8 = 8;

type Written = (Vec<u8>, bool);

/// A cluster of one node, behind its interface.
pub(crate) struct World {
    machine: Mutex<Machine>,
    records: Mutex<Vec<Arc<EventRecord>>>,
    compacted: Mutex<Option<Cursor>>,
    /// It was a snapshot that dropped them, not retention.
    stepped_over: AtomicBool,
    applied: watch::Sender<u64>,
    /// Nobody leads: writes end unknown, fresh reads fail.
    pub(crate) leaderless: AtomicBool,
    /// Commands take effect, but nobody is told.
    pub(crate) mute: AtomicBool,
    ahead_ms: AtomicU64,
    written: Mutex<BTreeMap<(LeaseId, Epoch), Written>>,
    wrote: watch::Sender<u64>,
    pub(crate) node: NodeId,
    pub(crate) operator: Bearer,
    pub(crate) cluster: ClusterId,
    pub(crate) authority: CertificateDer<'static>,
    pub(crate) address: String,
    pub(crate) limits: Limits,
    api: OnceLock<Api>,
    _folder: tempfile::TempDir,
}

impl Clock for World {
    fn boot_ms(&self) -> u64 {
        OsClock.boot_ms()
    }
    fn wall_ms(&self) -> u64 {
        OsClock.wall_ms() + self.ahead_ms.load(Ordering::SeqCst)
    }
}

impl Propose for World {
    fn propose(&self, envelope: Envelope) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            if self.leaderless.load(Ordering::SeqCst) {
                return Outcome::Unknown {
                    reason: "no leader".to_owned(),
                };
            }
            let outcome = self.apply(envelope);
            match self.mute.swap(false, Ordering::SeqCst) {
                true => Outcome::Unknown {
                    reason: "the leader fell silent".to_owned(),
                },
                false => outcome,
            }
        })
    }
}

impl Linearize for World {
    fn linearize(&self) -> BoxFuture<'_, Result<u64, ReadError>> {
        Box::pin(async move {
            match self.leaderless.load(Ordering::SeqCst) {
                true => Err(ReadError {
                    reason: "no leader".to_owned(),
                }),
                false => Ok(*self.applied.borrow()),
            }
        })
    }
}

impl Footprint for World {
    fn measure(&self) -> Disk {
        Disk {
            raft_log_bytes: 1 << 26,
            ..Disk::default()
        }
    }
}

impl Standing for World {
    fn leadership(&self) -> Leadership {
        let leads = !self.leaderless.load(Ordering::SeqCst);
        Leadership {
            // Without another election the last leader stays named.
            leader: Some(self.node),
            term: 1,
            heard_ms_ago: Some(if leads { 0 } else { 7_000 }),
        }
    }

    fn time(&self) -> Timestamp {
        Timestamp(self.wall_ms())
    }
}

impl Committed for World {
    fn state(&self) -> Arc<State> {
        Arc::new(self.machine.lock().unwrap().state().clone())
    }

    fn advanced(&self, index: u64) -> BoxFuture<'_, ()> {
        let mut applied = self.applied.subscribe();
        Box::pin(async move {
            let _ = applied.wait_for(|now| *now > index).await;
        })
    }

    fn events(&self, after: Cursor, limit: usize) -> BoxFuture<'_, Result<Vec<Arc<EventRecord>>, HistoryError>> {
        Box::pin(async move {
            if let Some(through) = *self.compacted.lock().unwrap()
                && after < through
            {
                return Err(match self.stepped_over.load(Ordering::SeqCst) {
                    true => HistoryError::Reset { through },
                    false => HistoryError::Compacted { through },
                });
            }
            let records = self.records.lock().unwrap();
            Ok(records
                .iter()
                .filter(|record| record.cursor > after)
                .take(limit)
                .cloned()
                .collect())
        })
    }

    fn floor(&self) -> Cursor {
        self.compacted.lock().unwrap().unwrap_or_default()
    }

    fn grown(&self, after: Cursor) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut applied = self.applied.subscribe();
            while self.state_cursor() <= after {
                let _ = applied.changed().await;
            }
        })
    }
}

impl Logs for World {
    fn read(&self, request: LogRequest) -> BoxFuture<'_, Result<LogChunk, LogError>> {
        Box::pin(async move {
            let mut wrote = self.wrote.subscribe();
            loop {
                wrote.mark_unchanged();
                let chunk = {
                    let written = self.written.lock().unwrap();
                    let absent = LogError::Absent { lease: request.lease };
                    let (bytes, ended) = written.get(&(request.lease, request.epoch)).ok_or(absent)?;
                    let from = usize::try_from(request.after).unwrap().min(bytes.len());
                    let until = bytes.len().min(from + request.bytes_max);
                    LogChunk {
                        from: request.after,
                        bytes: Bytes::copy_from_slice(&bytes[from..until]),
                        ended: *ended,
                    }
                };
                if !chunk.bytes.is_empty() || chunk.ended || !request.wait {
                    return Ok(chunk);
                }
                let _ = wrote.changed().await;
            }
        })
    }
}

impl Admit for World {
    fn admit(&self, request: JoinRequest) -> BoxFuture<'_, Result<JoinAnswer, AdmitError>> {
        Box::pin(async move {
            Err(AdmitError::Refused {
                rejection: Rejection::TokenUnknown { token: request.token },
                index: 0,
            })
        })
    }
}

impl World {
    /// Starts the world and serves its interface on a free port.
    pub(crate) async fn start() -> Arc<Self> {
        Self::start_with(Limits::default()).await
    }

    pub(crate) async fn start_with(limits: Limits) -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::create(&folder.path().join("data"), None).unwrap();
        let hosts = ["127.0.0.1".to_owned()];
        let (identity, _) = Identity::found(&data, "n1", &hosts, OsClock.wall_ms(), &OsEntropy).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let world = Arc::new(Self {
            machine: Mutex::default(),
            records: Mutex::default(),
            compacted: Mutex::default(),
            stepped_over: AtomicBool::new(false),
            applied: watch::Sender::new(0),
            leaderless: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            ahead_ms: AtomicU64::new(0),
            written: Mutex::default(),
            wrote: watch::Sender::new(0),
            node: identity.node,
            operator: Bearer::draw(&OsEntropy),
            cluster: identity.cluster,
            authority: identity.authority().clone(),
            address: address.to_string(),
            limits,
            api: OnceLock::new(),
            _folder: folder,
        });
        world.found(address.port());
        let api = world.interface();
        assert!(world.api.set(api.clone()).is_ok());
        let tls = https_server(&identity).unwrap();
        tokio::spawn(async move { server::serve(&api, listener, tls, std::future::pending()).await });
        world
    }

    /// The interface, for whoever serves it in another way.
    pub(crate) fn api(&self) -> Api {
        self.api.get().unwrap().clone()
    }

    fn interface(self: &Arc<Self>) -> Api {
        let tls = https_client(&self.authority, self.cluster).unwrap();
        Api::new(Parts {
            node: self.node,
            authority: fingerprint(&self.authority).unwrap(),
            propose: self.clone(),
            linearize: self.clone(),
            committed: self.clone(),
            standing: self.clone(),
            footprint: self.clone(),
            logs: self.clone(),
            admit: self.clone(),
            metrics: Vec::new(),
            peers: forward::peers(tls).unwrap(),
            clock: self.clone(),
            entropy: Arc::new(OsEntropy),
            limits: self.limits,
        })
    }

    /// Applies a command as the log would; the stamp is the time.
    pub(crate) fn apply(&self, mut envelope: Envelope) -> Outcome {
        envelope.stamp = Timestamp(self.wall_ms());
        let mut machine = self.machine.lock().unwrap();
        let index = machine.state().applied.index + 1;
        let applied = machine.apply(index, &envelope);
        self.records
            .lock()
            .unwrap()
            .extend(applied.records.into_iter().map(Arc::new));
        drop(machine);
        self.applied.send_replace(index);
        match applied.outcome {
            Ok(events) => Outcome::Applied {
                index: applied.index,
                events,
            },
            Err(rejection) => Outcome::Refused {
                rejection,
                index: applied.index,
            },
        }
    }

    /// Applies what the node itself says.
    pub(crate) fn say(&self, command: Command) -> u64 {
        let envelope = Envelope {
            stamp: Timestamp(0),
            principal: Principal::Node(self.node),
            project: None,
            origin: self.node,
            request: None,
            command,
        };
        match self.apply(envelope) {
            Outcome::Applied { index, .. } => index,
            other => panic!("the world's own command came to {other:?}"),
        }
    }

    /// Makes the cluster and its one node.
    fn found(&self, port: u16) {
        let address = NodeAddress {
            host: "127.0.0.1".to_owned(),
            main_port: port,
            lease_port: 1,
            bulk_port: 2,
        };
        let init = InitCluster {
            cluster: self.cluster,
            era: Era(0),
            node: self.spec(address.clone()),
            operator: self.operator_token(),
            tariff: tariff(),
        };
        self.say(Command::InitCluster(Box::new(init)));

        let (node, incarnation) = (self.node, Incarnation(1));
        self.say(Command::RegisterNode {
            node,
            incarnation,
            replaces: None,
            boot: BootProof {
                boot: BootId([1; 16]),
                boot_ms: 5,
            },
            address,
        });
        self.say(Command::ReportInventory {
            node,
            incarnation,
            inventory: inventory(),
        });
    }

    fn spec(&self, address: NodeAddress) -> NodeSpec {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.node.0.to_be_bytes());
        NodeSpec {
            node: self.node,
            label: name("n1"),
            zone: name("a"),
            role: NodeRole::Replica,
            address,
            key: Digest(key),
        }
    }

    fn operator_token(&self) -> AccessToken {
        AccessToken {
            token: self.operator.id,
            secret: self.operator.digest(),
            role: Role::Operator,
            tenant: Some(name("default")),
            project: None,
            note: "the first".to_owned(),
            expires: None,
        }
    }

    /// Places a lease on the one node and runs it.
    pub(crate) fn run(&self, lease: LeaseId) -> Epoch {
        let state = self.state();
        let requested = state.leases.get(&lease).unwrap().requested.clone();
        let free = state
            .devices
            .values()
            .filter(|slot| state.milli_free(slot, lease) >= state.milli_of(lease))
            .map(|slot| slot.device.id);
        let count = requested.request.devices_min;
        let allocation = Allocation {
            node: self.node,
            rank: 0,
            devices: free.take(count as usize).collect(),
            cpu_milli: requested.request.cpu_milli_per_device * count,
            memory_mib: requested.request.memory_mib_per_device * count,
        };
        let (node, incarnation, epoch, attempt) = (self.node, Incarnation(1), Epoch(1), Attempt(1));
        self.say(Command::CommitPlacement {
            lease,
            epoch,
            allocations: vec![allocation],
        });
        self.say(Command::ReportPrepared {
            lease,
            epoch,
            follows: Attempt(0),
            node,
            incarnation,
        });
        self.say(Command::ReportStarted {
            lease,
            epoch,
            attempt,
            node,
        });
        self.write(lease, epoch, "", false);
        epoch
    }

    /// Ends a running lease's work by itself.
    pub(crate) fn finish(&self, lease: LeaseId, code: i32) {
        let (node, epoch, attempt) = (self.node, Epoch(1), Attempt(1));
        self.write(lease, epoch, "", true);
        self.say(Command::ReportExited {
            lease,
            epoch,
            attempt,
            node,
            exit: Exit::Code(code),
        });
    }

    /// Writes output of a lease's work.
    pub(crate) fn write(&self, lease: LeaseId, epoch: Epoch, text: &str, ended: bool) {
        let mut written = self.written.lock().unwrap();
        let entry = written.entry((lease, epoch)).or_default();
        entry.0.extend_from_slice(text.as_bytes());
        entry.1 = ended;
        drop(written);
        self.wrote.send_modify(|count| *count += 1);
    }

    /// Makes a token as an operator would.
    pub(crate) fn token(&self, role: Role, tenant: Option<&str>, expires: Option<Timestamp>) -> Bearer {
        let bearer = Bearer::draw(&OsEntropy);
        let token = AccessToken {
            token: bearer.id,
            secret: bearer.digest(),
            role,
            tenant: tenant.map(name),
            project: None,
            note: String::new(),
            expires,
        };
        self.operate(Command::CreateAccessToken(token));
        bearer
    }

    /// Applies what the operator says.
    pub(crate) fn operate(&self, command: Command) {
        let principal = Principal::Bearer {
            token: self.operator.id,
            role: Role::Operator,
            tenant: Some(name("default")),
        };
        let envelope = Envelope {
            stamp: Timestamp(0),
            principal,
            project: None,
            origin: self.node,
            request: None,
            command,
        };
        assert!(matches!(self.apply(envelope), Outcome::Applied { .. }));
    }

    /// Puts events into the history as they are, whatever the machine would have said.
    pub(crate) fn tell(&self, records: impl IntoIterator<Item = EventRecord>) {
        self.records.lock().unwrap().extend(records.into_iter().map(Arc::new));
    }

    /// Drops events up to a position.
    pub(crate) fn compact(&self, through: Cursor) {
        *self.compacted.lock().unwrap() = Some(through);
        self.records.lock().unwrap().retain(|record| record.cursor > through);
    }

    /// Drops events up to a position as a snapshot would.
    pub(crate) fn step_over(&self, through: Cursor) {
        self.stepped_over.store(true, Ordering::SeqCst);
        self.compact(through);
    }

    /// Position of the last event.
    pub(crate) fn state_cursor(&self) -> Cursor {
        self.state().cluster.cursor
    }

    /// Streams that are open.
    pub(crate) fn open_streams(&self) -> usize {
        let api = self.api.get().unwrap();
        self.limits.streams_max - api.streams.available_permits()
    }

    /// Sets the wall clock ahead.
    pub(crate) fn jump(&self, span: Duration) {
        self.ahead_ms
            .fetch_add(u64::try_from(span.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// A client with a token.
    pub(crate) fn client(&self, bearer: Option<&Bearer>) -> Client {
        let tls = https_client(&self.authority, self.cluster).unwrap();
        Client::new(
            vec![self.address.clone()],
            tls,
            bearer,
            Arc::new(OsClock),
            Arc::new(OsEntropy) as Arc<dyn Entropy>,
        )
        .unwrap()
    }

    /// A bare HTTPS client.
    pub(crate) fn http(&self) -> reqwest::Client {
        forward::peers(https_client(&self.authority, self.cluster).unwrap()).unwrap()
    }

    /// The address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }
}

/// A name.
pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// The header of a token.
pub(crate) fn shown(bearer: &Bearer) -> String {
    format!("Bearer {}", bearer.reveal().expose())
}

fn tariff() -> Tariff {
    let price = |model: &str, micros_per_device_hour| Price {
        model: name(model),
        plan: Plan::OnDemand,
        micros_per_device_hour,
    };
    Tariff {
        version: 1,
        currency: "USD".to_owned(),
        prices: vec![price("a100", 1_500_000), price("h100", 2_500_000)],
    }
}

fn inventory() -> Inventory {
    let device = |at: u8| Device {
        id: DeviceId([at; 16]),
        kind: DeviceKind::Gpu,
        model: name("h100"),
        memory_mib: 81_559,
        compute_capability: 90,
        island: 0,
        numa: None,
    };
    Inventory {
        devices: (1..=DEVICES).map(device).collect(),
        cpu_milli: 64_000,
        memory_mib: 512_000,
        isolation: IsolationLevel::Descendants,
        version: "test".to_owned(),
        simulated: true,
    }
}
