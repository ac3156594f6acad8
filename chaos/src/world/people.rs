//! Everybody who deals with a simulated cluster: clients with requests, the agents of its nodes, and subscribers.
//!
//! Clients live on hosts of their own and reach a replica over the network, as over HTTP; agents live and die with
//! their node. The one rule: a client that heard no answer asks again under the same request id, and tells the judge
//! what it knows in the end, which may be nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_node::consensus::leadership::Lead;
use holdfast_node::consensus::{Outcome, Propose};
use holdfast_node::env::Clock;
use holdfast_node::net::{Class, Refusal, Service, Transport};
use holdfast_proto::command::Envelope;
use holdfast_proto::id::{Cursor, NodeId};
use serde::{Deserialize, Serialize};

use super::assembly::Live;
use super::clock::true_wall_ms;
use super::cluster::Cluster;
use super::planted;
use super::reads::{self, Calls};
use crate::check::registers::{Ended, Register};
use crate::check::{Knowledge, Observation};
use crate::mutant::Mutant;
use crate::runtime::{self, Host};
use crate::trace::{Kind, digest};
use crate::workload::client::Client;
use crate::workload::duty::Agent;
use crate::workload::setup;

/// Stands for the HTTP port of a node.
const DOOR: Class = Class::Transfer;

/// Hosts of clients and subscribers: those of one kind count from here.
pub const CLIENTS: u64 = 1_000;
/// See [`CLIENTS`].
pub const SUBSCRIBERS: u64 = 2_000;

/// How long a client goes on asking.
const PATIENCE: Duration = Duration::from_secs(6);

/// How long it waits for one answer.
const ANSWER_WAIT: Duration = Duration::from_millis(2_500);

/// After how many of 1,000 requests a client reads something.
const READS_PER_1000: u64 = 600;

/// How long a door waits with [`Mutant::UnknownToldAsDone`].
const IMPATIENCE: Duration = Duration::from_millis(300);

/// A request of a client.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is encoded at once")]
enum Asked {
    /// A command.
    Command(Envelope),
    /// A fresh value.
    Read(Register),
}

impl Asked {
    /// The request as it goes over the wire: a byte that says what it is, and the thing itself.
    fn encode(&self) -> Bytes {
        let (what, bytes) = match self {
            Self::Command(envelope) => (0, envelope.encode()),
            Self::Read(register) => (1, serde_json::to_vec(register).expect("plain data serialises").into()),
        };
        [&[what], bytes.as_ref()].concat().into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        match bytes {
            [0, envelope @ ..] => Envelope::decode(envelope)
                .map(Self::Command)
                .map_err(|error| error.to_string()),
            [1, register @ ..] => serde_json::from_slice(register)
                .map(Self::Read)
                .map_err(|error| error.to_string()),
            _ => Err("neither a command nor a read".to_owned()),
        }
    }
}

/// A replica's answer to a client, as it goes over the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Told {
    Applied(u64),
    Refused,
    Unknown,
    Value(u64),
}

/// Takes requests in, as a node's API does.
pub struct Door {
    live: Live,
    mutant: Option<Mutant>,
}

impl Service for Door {
    fn call(self: Arc<Self>, _: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        Box::pin(async move {
            let told = match Asked::decode(&request).map_err(Refusal)? {
                Asked::Command(envelope) => self.command(envelope).await,
                Asked::Read(register) => {
                    let value = reads::fresh(&self.live, self.mutant, register).await;
                    value.map_or(Told::Unknown, Told::Value)
                }
            };
            let bytes = serde_json::to_vec(&told).map_err(|error| Refusal(error.to_string()))?;
            Ok(bytes.into())
        })
    }
}

impl Door {
    async fn command(&self, mut envelope: Envelope) -> Told {
        if self.mutant == Some(Mutant::RetryServedTwice)
            && let Some(request) = &mut envelope.request
        {
            request.random ^= runtime::true_now_ns() << 20;
        }
        let proposed = self.live.replica.propose(envelope);
        let outcome = if self.mutant == Some(Mutant::UnknownToldAsDone) {
            runtime::timeout(IMPATIENCE, proposed).await.ok()
        } else {
            Some(proposed.await)
        };
        match outcome {
            Some(Outcome::Applied { index, .. }) if self.hides(index) => Told::Refused,
            Some(Outcome::Applied { index, .. }) => Told::Applied(index),
            Some(Outcome::Refused { .. }) => Told::Refused,
            Some(Outcome::Unknown { .. }) => Told::Unknown,
            None => Told::Applied(self.live.state().applied.index),
        }
    }

    fn hides(&self, index: u64) -> bool {
        self.mutant == Some(Mutant::DoneToldAsRefused) && index.is_multiple_of(50)
    }
}

/// Opens a node's door.
pub fn open_door(cluster: &Cluster, host: Host, live: Live) {
    let mutant = cluster.mutant;
    cluster.network.serve(host, DOOR, Arc::new(Door { live, mutant }));
}

/// One client, until the doors close.
pub async fn client(cluster: Cluster, number: u64) {
    let mut client = Client::new(number, runtime::stream("client", &[number]));
    let mut place = usize::try_from(number).unwrap_or(0) % cluster.machines.len();
    let mut reads = runtime::stream("reads", &[number]);
    while !cluster.is_closed() {
        let written = request(&cluster, &mut client, number, &mut place).await;
        if reads.chance(READS_PER_1000) {
            // Beside the next request, so that reads do not thin out the commands.
            let register = reads::choose(written, cluster.machines.len() as u64, &mut reads);
            let place = usize::try_from(reads.below(cluster.machines.len() as u64)).unwrap_or(0);
            runtime::spawn_on(Host(CLIENTS + number), read(cluster.clone(), number, register, place));
        }
    }
}

/// Reads a register afresh, through one replica.
async fn read(cluster: Cluster, number: u64, register: Register, place: usize) {
    let host = Host(CLIENTS + number);
    let call = cluster.judge.called(register, None);
    let transport = cluster.network.transport(host);
    let told = put(&transport, cluster.machines[place].id, &Asked::Read(register)).await;
    let ended = match told {
        Some(Told::Value(value)) => Ended::Read(value),
        _ => Ended::Nothing,
    };
    cluster.judge.returned(call, ended);
}

/// One request of a client that has not asked before.
pub async fn visitor(cluster: Cluster, number: u64) {
    let mut client = Client::new(number, runtime::stream("client", &[number]));
    request(&cluster, &mut client, number, &mut 0).await;
}

/// Sends the client's next request; gives the register that it wrote.
async fn request(cluster: &Cluster, client: &mut Client, number: u64, place: &mut usize) -> Option<Register> {
    let host = Host(CLIENTS + number);
    runtime::sleep(Duration::from_millis(client.think_ms())).await;
    let envelope = client.next(true_wall_ms());
    let calls = Calls::begin(&cluster.judge, &envelope.command);
    let knowledge = ask(cluster, client, host, place, &envelope).await;
    calls.known(knowledge);
    if let Knowledge::Acknowledged(index) = knowledge {
        client.acknowledged(&envelope.command, index);
    }
    tell(cluster, host, &envelope, knowledge);
    calls.last
}

fn tell(cluster: &Cluster, host: Host, envelope: &Envelope, knowledge: Knowledge) {
    let request = Client::key(envelope);
    let (outcome, index) = match knowledge {
        Knowledge::Acknowledged(index) => (1, index),
        Knowledge::Refused => (2, 0),
        Knowledge::Unknown => (3, 0),
    };
    runtime::note(host, Kind::Operation, [request.id.random, outcome, index]);
    cluster.judge.count(|counts| match knowledge {
        Knowledge::Acknowledged(_) => counts.acknowledged += 1,
        Knowledge::Refused => counts.refused += 1,
        Knowledge::Unknown => counts.unknown += 1,
    });
    cluster.judge.observe(&Observation::Answered { request, knowledge });
}

async fn ask(cluster: &Cluster, client: &mut Client, host: Host, place: &mut usize, envelope: &Envelope) -> Knowledge {
    let give_up_ns = runtime::true_now_ns() + u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
    let transport = cluster.network.transport(host);
    while runtime::true_now_ns() < give_up_ns {
        let node = cluster.machines[*place].id;
        // The request enters through this node, so it is this node's to vouch for.
        let request = Envelope {
            origin: node,
            ..envelope.clone()
        };
        match put(&transport, node, &Asked::Command(request)).await {
            Some(Told::Applied(index)) => return Knowledge::Acknowledged(index),
            Some(Told::Refused) => return Knowledge::Refused,
            Some(Told::Unknown | Told::Value(_)) | None => {
                let (wait_ms, next) = client.retry(cluster.machines.len());
                runtime::sleep(Duration::from_millis(wait_ms)).await;
                *place = next;
            }
        }
    }
    Knowledge::Unknown
}

/// Puts a request to a node's door; none when no answer comes.
async fn put(transport: &impl Transport, node: NodeId, asked: &Asked) -> Option<Told> {
    let answer = runtime::timeout(ANSWER_WAIT, transport.call(node, DOOR, asked.encode())).await;
    let bytes = answer.ok()?.ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The agent of one life of a node. It is dropped with the node's other tasks.
pub async fn agent(cluster: Cluster, place: usize, live: Live) {
    let machine = &cluster.machines[place];
    let (node, (life, boots)) = (machine.id, machine.life());
    let boot = setup::boot(node, boots, machine.clock.boot_ms());
    let draws = runtime::stream("agent", &[node.0, u64::from(life)]);
    let mut agent = Agent::new(node, setup::incarnation(node, life), boot, draws);
    while !cluster.is_quiet() {
        runtime::sleep(Duration::from_millis(agent.pause_ms())).await;
        let leads = live.replica.leadership().own_term_applied;
        let time = live.replica.clock().time();
        if let Some(command) = agent.next(&live.state(), leads, time) {
            // Whatever comes of it is seen in the state.
            let calls = Calls::begin(&cluster.judge, &command);
            let proposing = live.replica.propose(setup::of_node(node, command));
            if let Ok(outcome) = runtime::timeout(ANSWER_WAIT, proposing).await {
                calls.proposed(&outcome);
            }
        }
    }
}

/// Proposes the first commands of the cluster through its first node, again and again until each has an outcome.
pub async fn propose_setup(cluster: &Cluster) {
    for envelope in setup::commands(&cluster.nodes()) {
        while !propose_there(cluster, &envelope).await {
            runtime::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn propose_there(cluster: &Cluster, envelope: &Envelope) -> bool {
    let machine = cluster.machines.iter().find(|machine| machine.id == envelope.origin);
    let Some(live) = machine.and_then(super::cluster::Machine::live) else {
        return false;
    };
    let calls = Calls::begin(&cluster.judge, &envelope.command);
    let outcome = live.replica.propose(envelope.clone()).await;
    calls.proposed(&outcome);
    !matches!(outcome, Outcome::Unknown { .. })
}

/// A subscriber: reads the events of one replica or another, from where it stands.
pub async fn subscriber(cluster: Cluster, number: u64, speed_ms: u64) {
    let mut draws = runtime::stream("subscriber", &[number]);
    let mut at = Cursor::default();
    let mut place = 0;
    loop {
        // In the end even a slow one reads all that there is.
        let (pause_ms, limit_max) = if cluster.is_quiet() {
            (10, 1_000)
        } else {
            (speed_ms, 40)
        };
        runtime::sleep(Duration::from_millis(draws.between(1, pause_ms))).await;
        if draws.chance(100) || cluster.machines[place].live().is_none() {
            place = usize::try_from(draws.below(cluster.machines.len() as u64)).unwrap_or(0);
        }
        let limit = usize::try_from(draws.between(1, limit_max)).unwrap_or(1);
        let Some(live) = cluster.machines[place].live() else {
            continue;
        };
        let decided = cluster.judge.decided();
        let from = cluster.machines[place].id;
        let events = planted::events(live.events_after(at, limit), cluster.mutant, &mut draws);
        for record in events {
            // What is being applied right now is judged in a moment.
            if record.cursor.index > decided {
                break;
            }
            at = record.cursor;
            let content = digest(&record.encode());
            let cursor = record.cursor;
            cluster.judge.observe(&Observation::Received {
                subscriber: number,
                from,
                cursor,
                content,
            });
        }
    }
}
