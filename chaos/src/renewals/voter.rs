//! One voter's answering side, with the loop of its thread: questions, quorum rounds, ticks.
//!
//! It follows its machine from life to life; each life begins with an answerer that remembers nothing. The one rule: the
//! replies of a round leave in the step that judged them, as the protocol demands of its caller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_node::consensus::leadership::{Lead, Leadership};
use holdfast_node::net::{Class, Refusal, Service};
use holdfast_node::nodelease::answerer::{Answerer, ClusterView, Now, Output, Verdict};
use holdfast_node::nodelease::wire::{self, Message, Renew, Reply};
use holdfast_node::nodelease::{Rules, Timing};
use holdfast_proto::id::{NodeId, Nonce};
use tokio::sync::{mpsc, oneshot};

use super::boot_ms;
use crate::runtime::{self, Host};
use crate::world::assembly::Live;
use crate::world::cluster::Cluster;

/// How long a quorum round may take, as in production.
const ROUND_WAIT: Duration = Duration::from_secs(1);

/// How often the world looks whether a machine has begun a new life.
const LOOK: Duration = Duration::from_millis(5);

/// What a voter's answering side stands on: where it reads the state, and what becomes of its verdicts.
pub(crate) trait Ground: Send + Sync + 'static {
    /// The state as the protocol reads it.
    type View: ClusterView + Send + Sync;

    /// The state that this replica has reached.
    fn view(&self, live: &Live) -> Self::View;

    /// The rules that are kept.
    fn rules(&self) -> Rules;

    /// A voter proposes this.
    fn verdict(&self, live: &Live, voter: NodeId, verdict: Verdict);
}

enum Input {
    Question(NodeId, Renew, oneshot::Sender<Bytes>),
    RoundOver(u64, Option<u64>),
}

/// Takes questions in.
struct Inbox(mpsc::UnboundedSender<Input>);

impl Service for Inbox {
    fn call(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        Box::pin(async move {
            let Ok(Message::Question(renew)) = wire::decode(&request) else {
                return Err(Refusal("not a question".to_owned()));
            };
            let (answer, answered) = oneshot::channel();
            let _ = self.0.send(Input::Question(from, renew, answer));
            answered
                .await
                .map_err(|_| Refusal("the question was dropped".to_owned()))
        })
    }
}

/// Starts the answering side of each life of a machine.
pub(crate) async fn serve<G: Ground>(ground: Arc<G>, cluster: Cluster, place: usize) {
    let mut served = None;
    loop {
        let machine = &cluster.machines[place];
        let (life, _) = machine.life();
        if let Some(live) = machine.live()
            && served != Some(life)
        {
            served = Some(life);
            let (sender, inbox) = mpsc::unbounded_channel();
            cluster
                .network
                .serve(machine.host, Class::Lease, Arc::new(Inbox(sender.clone())));
            let voter = Voter {
                host: machine.host,
                answerer: Answerer::with_rules(Timing::METRO, ground.rules()),
                ground: ground.clone(),
                live,
                leadership: Leadership::default(),
                pending: BTreeMap::new(),
                sender,
            };
            runtime::spawn_on(machine.host, voter.run(inbox));
        }
        runtime::sleep(LOOK).await;
    }
}

struct Voter<G> {
    host: Host,
    ground: Arc<G>,
    live: Live,
    answerer: Answerer,
    leadership: Leadership,
    pending: BTreeMap<(NodeId, Nonce), oneshot::Sender<Bytes>>,
    sender: mpsc::UnboundedSender<Input>,
}

impl<G: Ground> Voter<G> {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Input>) {
        let mut tick_ms = boot_ms();
        loop {
            let until_ms = self.answerer.wake_ms().map_or(tick_ms, |wake| wake.min(tick_ms));
            let wait = Duration::from_millis(until_ms.saturating_sub(boot_ms()));
            let first = runtime::timeout(wait, inbox.recv()).await.ok().flatten();
            self.follow();
            let picture = self.ground.view(&self.live);
            if let Some(first) = first {
                self.take(first, &picture);
            }
            while let Ok(next) = inbox.try_recv() {
                self.take(next, &picture);
            }
            let now = self.now();
            let mut outputs = Vec::new();
            if now.boot_ms >= tick_ms {
                tick_ms = now.boot_ms + Timing::METRO.tick_ms;
                self.answerer.applied(now.boot_ms, &picture);
                outputs.extend(self.answerer.tick(now, true, &picture));
            }
            outputs.extend(self.answerer.poll(now.boot_ms));
            self.carry_out(outputs);
        }
    }

    fn now(&self) -> Now {
        Now {
            boot_ms: boot_ms(),
            stamp: self.live.replica.clock().time(),
        }
    }

    fn follow(&mut self) {
        let (before, after) = (self.leadership, self.live.replica.leadership());
        self.leadership = after;
        if !after.is_self {
            self.pending.clear();
            return self.answerer.follow(after.leader);
        }
        if !before.is_self || before.term != after.term {
            self.pending.clear();
            self.answerer.lead(boot_ms(), self.host.0 ^ after.term);
        }
        if after.own_term_applied {
            self.answerer.own_term_applied(boot_ms());
        }
    }

    fn take(&mut self, input: Input, picture: &G::View) {
        let now = self.now();
        let outputs = match input {
            Input::Question(from, renew, answer) => {
                self.pending.insert((from, renew.nonce), answer);
                self.answerer.question(now, from, renew, picture)
            }
            Input::RoundOver(number, Some(barrier)) => self.answerer.round_finished(now, number, barrier, picture),
            Input::RoundOver(number, None) => {
                self.answerer.round_failed(number);
                Vec::new()
            }
        };
        self.carry_out(outputs);
    }

    fn carry_out(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::BeginRound(number) => self.begin_round(number),
                Output::Propose(verdict) => self.ground.verdict(&self.live, NodeId(self.host.0), verdict),
                Output::Reply { to, reply } => {
                    let nonce = match &reply {
                        Reply::Renewed(renewed) => renewed.nonce,
                        Reply::Refused { nonce, .. } => *nonce,
                    };
                    if let Some(answer) = self.pending.remove(&(to, nonce)) {
                        // A caller that has hung up asks again.
                        let _ = answer.send(wire::encode(&Message::Reply(reply)));
                    }
                }
            }
        }
    }

    fn begin_round(&self, number: u64) {
        let (replica, sender) = (self.live.replica.clone(), self.sender.clone());
        runtime::spawn_on(self.host, async move {
            let confirmed = runtime::timeout(ROUND_WAIT, replica.confirm()).await;
            let barrier = confirmed.ok().and_then(Result::ok).map(|confirmed| confirmed.index);
            let _ = sender.send(Input::RoundOver(number, barrier));
        });
    }
}
