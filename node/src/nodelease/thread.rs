//! The thread that renews: the asker and the answerer of one node, moved by a runtime of their own.
//!
//! `boot.rs` starts a [`LeaseRuntime`], binds the transport's lease lane to it, and then starts the [`Keeper`], which is also the service of the lease
//! class. The executor asks the keeper for permits and deadlines; the leader's proposing side asks it whether a return is proven. The one rule: nothing
//! here waits for Raft, for a disk or for bulk. What must be proposed is handed over as a [`Duty`], and what is needed of consensus comes as a value.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::command::Command;
use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId, Nonce};
use holdfast_proto::time::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::Timing;
use super::answerer::{self, Answerer, ClusterView, Now, Verdict};
use super::asker::{self, Applied, Asker, AskerSetup, Permit};
use super::wire::{Message, Renew, Reply, decode, encode};
use crate::env::{Clock, Entropy};
use crate::net::{Class, Refusal, Service, Transport};

/// Questions and replies that wait for the thread; beyond it questions are refused, and their nodes ask again.
const INBOX_MAX: usize = 16_384;
/// Questions of one node that wait for their answer; the oldest is dropped first.
const PENDING_MAX: usize = 4;
/// How long a call may take. A later answer would be of little use, and another voter has been asked meanwhile.
const CALL_WAIT: Duration = Duration::from_secs(2);
/// How long a quorum round may take before its questions ride on the next one.
const ROUND_WAIT: Duration = Duration::from_secs(1);

/// What consensus says of this replica at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leadership {
    /// The present term.
    pub term: u64,
    /// This replica leads it.
    pub leads: bool,
    /// Who leads, as far as is known.
    pub leader: Option<NodeId>,
    /// The voters of the last known membership.
    pub voters: Vec<NodeId>,
    /// This replica leads, and has applied an entry of its own term.
    pub own_term_applied: bool,
}

/// What the log has to be told, and whoever implements [`Surroundings`] proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Duty {
    /// `RegisterNode`.
    Register {
        /// The start that the own state shows.
        replaces: Option<Incarnation>,
    },
    /// `ReturnNode`.
    Return {
        /// The generation that was given up.
        generation: Generation,
        /// The refusal's nonce.
        nonce: Nonce,
    },
    /// This start was replaced by a later one: the daemon must stop.
    Superseded,
    /// The leader's verdicts about silent nodes.
    Verdict(Verdict),
}

/// What the thread needs of the rest of the node. None of it may block.
pub trait Surroundings: Send + Sync + 'static {
    /// The replicated state.
    type View: ClusterView;

    /// The state as applied here.
    fn view(&self) -> Arc<Self::View>;
    /// What that state says of this node.
    fn applied(&self) -> Applied;
    /// Who leads.
    fn leadership(&self) -> Leadership;
    /// The stamp that the leader would set now.
    fn stamp(&self) -> Timestamp;
    /// Begins a quorum round now; gives its commit index, or nothing when leadership was not confirmed.
    fn confirm(&self) -> BoxFuture<'static, Option<u64>>;
    /// Takes over something to propose. It may be lost: it comes again.
    fn duty(&self, duty: Duty);
}

/// An OS thread with a runtime of its own, for the lease lane and nothing else: a node that is busy still renews.
#[derive(Debug)]
pub struct LeaseRuntime {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LeaseRuntime {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread or no event queue.
    pub fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            // Ends when the sender is dropped, too.
            let _ = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name("lease".to_owned()).spawn(run)?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where tasks of the lease lane run.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for LeaseRuntime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of that thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

/// What a keeper is made of.
pub struct KeeperSetup<S> {
    /// Durations, the same on all nodes.
    pub timing: Timing,
    /// Who asks.
    pub asker: AskerSetup,
    /// The rest of the node.
    pub surroundings: Arc<S>,
    /// The way to the other nodes.
    pub transport: Arc<dyn Transport>,
    /// The boot clock.
    pub clock: Arc<dyn Clock>,
    /// For the nonces of refusals.
    pub entropy: Arc<dyn Entropy>,
    /// Where to run: a [`LeaseRuntime`]'s.
    pub runtime: Handle,
}

enum Input {
    Question {
        from: NodeId,
        renew: Renew,
        answer: oneshot::Sender<Bytes>,
    },
    Reply {
        from: NodeId,
        reply: Reply,
    },
    RoundOver {
        number: u64,
        barrier: Option<u64>,
    },
    Look,
}

/// The two machines, and who waits for the answerer's word.
struct Core {
    asker: Asker,
    answerer: Answerer,
    pending: BTreeMap<NodeId, VecDeque<(Nonce, oneshot::Sender<Bytes>)>>,
}

/// The node lease of one node, running. Cheap to ask from any thread.
pub struct Keeper<S> {
    node: NodeId,
    core: Mutex<Core>,
    inbox: mpsc::Sender<Input>,
    surroundings: Arc<S>,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    runtime: Handle,
    timing: Timing,
}

impl<S: Surroundings> Keeper<S> {
    /// Starts asking and answering.
    pub fn start(setup: KeeperSetup<S>) -> Arc<Self> {
        let (inbox, received) = mpsc::channel(INBOX_MAX);
        let leadership = setup.surroundings.leadership();
        let node = setup.asker.node;
        let core = Core {
            asker: Asker::new(setup.timing, setup.asker, leadership.voters),
            answerer: Answerer::new(setup.timing),
            pending: BTreeMap::new(),
        };
        let keeper = Arc::new(Self {
            node,
            core: Mutex::new(core),
            inbox,
            surroundings: setup.surroundings,
            transport: setup.transport,
            clock: setup.clock,
            entropy: setup.entropy,
            runtime: setup.runtime.clone(),
            timing: setup.timing,
        });
        // The task holds no share of its own: it ends when the last user lets the keeper go.
        setup.runtime.spawn(run(Arc::downgrade(&keeper), received));
        keeper
    }

    /// Permission to take a step now, judged by the newest applied state.
    pub fn permit(&self) -> Option<Permit> {
        let applied = self.surroundings.applied();
        let mut core = self.lock();
        let outputs = core.asker.applied(applied);
        let permit = core.asker.permit(self.clock.boot_ms());
        self.asker_outputs(outputs);
        permit
    }

    /// The supervisors' deadline on the boot clock. None before the first renewal of this start.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.lock().asker.deadline_ms()
    }

    /// Reports whether any renewal holds now.
    pub fn in_force(&self) -> bool {
        self.lock().asker.in_force(self.clock.boot_ms())
    }

    /// When each lease must end here, on the boot clock, whatever its isolation policy.
    pub fn run_until(&self) -> Vec<(LeaseId, u64)> {
        self.lock().asker.run_until().collect()
    }

    /// Forgets the limits of leases that have nothing here any more.
    pub fn keep_leases(&self, keep: impl Fn(LeaseId) -> bool) {
        self.lock().asker.keep_leases(keep);
    }

    /// Consensus says something else of leadership than before: the thread looks at once, not at its next tick.
    pub fn look(&self) {
        // A full inbox wakes it as well.
        let _ = self.inbox.try_send(Input::Look);
    }

    /// A reply to `RegisterNode` or `ReturnNode` named this generation: the node may ask with it ahead of its replica.
    pub fn learnt(&self, generation: Generation) {
        self.lock().asker.learnt(generation);
    }

    /// `QuietNode`, asked for at `asked_ms`, was applied.
    pub fn quiet(&self, asked_ms: u64, for_ms: u64) {
        self.lock().asker.quiet(asked_ms, for_ms);
    }

    /// Reports whether this leader may propose `ReturnNode` with that nonce: it gave the nonce itself, in its present term.
    pub fn admits_return(&self, node: NodeId, generation: Generation, nonce: Nonce) -> bool {
        self.lock().answerer.admits_return(node, generation, nonce)
    }

    /// The leader's gate for commands: a return must show the nonce of a refusal, which only the leader that refused can judge.
    ///
    /// # Errors
    /// What is wrong with the command, for the node that sent it.
    pub fn admits(&self, command: &Command) -> Result<(), String> {
        match command {
            Command::ReturnNode {
                node,
                generation,
                nonce,
                ..
            } if !self.admits_return(*node, *generation, *nonce) => Err(format!(
                "node {node} shows no nonce of this leader's for generation {generation}: ask again"
            )),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        Now {
            boot_ms: self.clock.boot_ms(),
            stamp: self.surroundings.stamp(),
        }
    }

    fn take(self: &Arc<Self>, input: Input) {
        let view = self.surroundings.view();
        let now = self.now();
        let mut core = self.lock();
        match input {
            Input::Question { from, renew, answer } => {
                let pending = core.pending.entry(from).or_default();
                if pending.len() == PENDING_MAX {
                    pending.pop_front();
                }
                pending.push_back((renew.nonce, answer));
                let outputs = core.answerer.question(now, from, renew, &*view);
                self.answerer_outputs(&mut core, outputs);
            }
            Input::Reply { from, reply } => {
                let outputs = core.asker.reply(now.boot_ms, from, &reply);
                drop(core);
                self.ask(outputs);
            }
            Input::RoundOver { number, barrier } => match barrier {
                Some(barrier) => {
                    let outputs = core.answerer.round_finished(now, number, barrier, &*view);
                    self.answerer_outputs(&mut core, outputs);
                }
                None => core.answerer.round_failed(number),
            },
            // The loop looks at leadership before every input.
            Input::Look => {}
        }
    }

    /// What the clock brings. `ticks`: a tick of the answerer is due. `drained`: the inbox was read to its end. Gives the next time to wake.
    fn turn(self: &Arc<Self>, ticks: bool, drained: bool) -> u64 {
        let view = self.surroundings.view();
        let now = self.now();
        let mut core = self.lock();
        if ticks {
            core.answerer.applied(now.boot_ms, &*view);
            let outputs = core.answerer.tick(now, drained, &*view);
            self.answerer_outputs(&mut core, outputs);
        }
        let polled = core.answerer.poll(now.boot_ms);
        self.answerer_outputs(&mut core, polled.into_iter().collect());
        let mut outputs = core.asker.applied(self.surroundings.applied());
        outputs.extend(core.asker.tick(now.boot_ms));
        let wake = core.asker.wake_ms(now.boot_ms);
        let wake = core.answerer.wake_ms().map_or(wake, |other| wake.min(other));
        drop(core);
        self.ask(outputs);
        wake
    }

    /// Follows what consensus says of leadership.
    fn follow(&self, before: &Leadership, after: &Leadership) {
        let now_ms = self.clock.boot_ms();
        let mut core = self.lock();
        if (before.leader, &before.voters) != (after.leader, &after.voters) {
            core.asker.cluster(after.voters.clone(), after.leader);
        }
        if after.leads && (!before.leads || before.term != after.term) {
            core.pending.clear();
            core.answerer.lead(now_ms, self.entropy.random_u64());
        }
        if after.own_term_applied {
            core.answerer.own_term_applied(now_ms);
        }
        if !after.leads {
            if before.leads {
                core.pending.clear();
            }
            core.answerer.follow(after.leader);
        }
    }

    fn answerer_outputs(self: &Arc<Self>, core: &mut Core, outputs: Vec<answerer::Output>) {
        for output in outputs {
            match output {
                answerer::Output::BeginRound(number) => self.round(number),
                answerer::Output::Reply { to, reply } => {
                    let nonce = nonce_of(&reply);
                    let pending = core.pending.entry(to).or_default();
                    if let Some(place) = pending.iter().position(|(waiting, _)| *waiting == nonce)
                        && let Some((_, answer)) = pending.remove(place)
                    {
                        // A caller that has hung up asks again.
                        let _ = answer.send(encode(&Message::Reply(reply)));
                    }
                }
                answerer::Output::Propose(verdict) => self.surroundings.duty(Duty::Verdict(verdict)),
            }
        }
    }

    fn round(self: &Arc<Self>, number: u64) {
        let confirm = self.surroundings.confirm();
        let inbox = self.inbox.clone();
        self.runtime.spawn(async move {
            let barrier = tokio::time::timeout(ROUND_WAIT, confirm).await.ok().flatten();
            // The keeper is gone when nobody receives.
            let _ = inbox.send(Input::RoundOver { number, barrier }).await;
        });
    }

    fn ask(self: &Arc<Self>, outputs: Vec<asker::Output>) {
        let rest = outputs.into_iter().filter_map(|output| match output {
            asker::Output::Send { to, renew } => {
                self.send(to, renew);
                None
            }
            other => Some(other),
        });
        self.asker_outputs(rest.collect());
    }

    fn asker_outputs(&self, outputs: Vec<asker::Output>) {
        for output in outputs {
            self.surroundings.duty(match output {
                asker::Output::RegisterNeeded { replaces } => Duty::Register { replaces },
                asker::Output::ReturnNeeded { generation, nonce } => Duty::Return { generation, nonce },
                asker::Output::Superseded => Duty::Superseded,
                asker::Output::Send { .. } => continue,
            });
        }
    }

    fn send(self: &Arc<Self>, to: NodeId, renew: Renew) {
        let frame = encode(&Message::Question(renew));
        let inbox = self.inbox.clone();
        let own = (to == self.node).then(|| self.clone().answer(to, frame.clone()));
        let transport = self.transport.clone();
        self.runtime.spawn(async move {
            let call = async {
                match own {
                    // The leader's own node asks the same way, only not over a wire.
                    Some(own) => own.await.ok(),
                    None => transport.call(to, Class::Lease, frame).await.ok(),
                }
            };
            let answer = tokio::time::timeout(CALL_WAIT, call).await.ok().flatten();
            if let Some(Ok(Message::Reply(reply))) = answer.map(|frame| decode(&frame)) {
                let _ = inbox.send(Input::Reply { from: to, reply }).await;
            }
        });
    }

    fn answer(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        let refuse = |why: String| Refusal(why);
        Box::pin(async move {
            let Message::Question(renew) = decode(&request).map_err(|error| refuse(error.to_string()))? else {
                return Err(refuse("a reply is no question".to_owned()));
            };
            if renew.node != from {
                return Err(refuse(format!("node {from} asks with the name of node {}", renew.node)));
            }
            let (answer, answered) = oneshot::channel();
            let question = Input::Question { from, renew, answer };
            self.inbox
                .try_send(question)
                .map_err(|_| refuse("too many questions wait".to_owned()))?;
            drop(self);
            answered
                .await
                .map_err(|_| refuse("the question was dropped: ask again".to_owned()))
        })
    }
}

impl<S: Surroundings> Service for Keeper<S> {
    fn call(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        self.answer(from, request)
    }
}

fn nonce_of(reply: &Reply) -> Nonce {
    match reply {
        Reply::Renewed(renewed) => renewed.nonce,
        Reply::Refused { nonce, .. } => *nonce,
    }
}

/// The thread's loop: reads the inbox to its end, follows leadership, and lets the clock in.
async fn run<S: Surroundings>(keeper: std::sync::Weak<Keeper<S>>, mut inbox: mpsc::Receiver<Input>) {
    let mut leadership = Leadership::default();
    let mut tick_ms = 0;
    let mut wait = Duration::ZERO;
    loop {
        let first = tokio::time::timeout(wait, inbox.recv()).await;
        let Some(keeper) = keeper.upgrade() else { return };
        let now = keeper.surroundings.leadership();
        if now != leadership {
            keeper.follow(&leadership, &now);
            leadership = now;
        }
        if let Ok(Some(input)) = first {
            keeper.take(input);
        }
        // Bounded, so that a flood cannot keep the clock out.
        for _ in 0..INBOX_MAX {
            let Ok(input) = inbox.try_recv() else { break };
            keeper.take(input);
        }
        let now_ms = keeper.clock.boot_ms();
        let ticks = now_ms >= tick_ms;
        if ticks {
            // On a grid while on time; after a stall the grid starts anew.
            let next = tick_ms + keeper.timing.tick_ms;
            tick_ms = if next > now_ms {
                next
            } else {
                now_ms + keeper.timing.tick_ms
            };
        }
        let wake = keeper.turn(ticks, inbox.is_empty());
        wait = Duration::from_millis(wake.min(tick_ms).saturating_sub(keeper.clock.boot_ms()));
    }
}
