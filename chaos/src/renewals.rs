//! The node lease at scale: many healthy nodes renew through changes of the leader, and none may notice.
//!
//! The voters are production replicas, so elections and quorum rounds take what they take; the askers and answerers are
//! the product's own protocol machines. Only the thread that moves their messages is simulated. Counted is what would
//! hurt a tenant: a node whose deadline passed (its work is frozen), and a node that was given up (its work may move).
//! The one rule: every node here is healthy and heard, so whatever is counted is a fault of the control plane.

pub(crate) mod voter;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_node::net::{Class, Transport};
use holdfast_node::nodelease::answerer::{ClusterView, NodeView};
use holdfast_node::nodelease::asker::{self, Applied, Asker, AskerSetup, Standing};
use holdfast_node::nodelease::wire::{self, Message, Renew, Reply};
use holdfast_node::nodelease::{Rules, Timing, Verdict};
use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;
use serde::Serialize;
use tokio::sync::mpsc;

use self::voter::Ground;
use crate::runtime::{self, Host, Simulated};
use crate::world::assembly::Live;
use crate::world::cluster::Cluster;
use crate::world::judge::Judge;

/// Ids of the asking nodes begin here; voters count from 1.
const FIRST_NODE: u64 = 10_000;

/// How long one question may wait for its answer, as in production.
const CALL_WAIT: Duration = Duration::from_secs(2);

/// How long a killed leader stays down.
const DOWN_MS: u64 = 1_000;

/// Time between two kills: long enough for a node that lost its leader to have settled, were it not healthy.
const BETWEEN: Duration = Duration::from_secs(6);

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Healthy nodes.
    pub nodes: u64,
    /// Changes of the leader.
    pub leader_changes: u64,
    /// Nodes whose deadline passed.
    pub frozen: u64,
    /// Nodes that were given up as unheard.
    pub unreachable: u64,
    /// Nodes that were declared lost, so that their leases would have moved.
    pub moved: u64,
    /// Questions that were put.
    pub questions: u64,
    /// Renewals that came in.
    pub renewals: u64,
    /// Least time that was left on any deadline when it was renewed.
    pub margin_ms_min: u64,
    /// Virtual time.
    pub simulated_ms: u64,
    /// Hash over everything that happened.
    pub trace: String,
}

/// What all parts of the scenario share.
struct Shared {
    /// Read far more often than it changes.
    nodes: Mutex<Arc<BTreeMap<NodeId, NodeView>>>,
    outcome: Mutex<Outcome>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn count(&self, change: impl FnOnce(&mut Outcome)) {
        change(&mut held(&self.outcome));
    }

    /// The log accepts what a leader proposes about a node.
    fn accept(&self, verdict: &Verdict) {
        let (generations, status) = match verdict {
            Verdict::Unreachable(generations) => (generations, NodeStatus::Unreachable),
            Verdict::Lost(generations) => (generations, NodeStatus::Lost),
        };
        for (node, generation) in generations {
            let mut nodes = held(&self.nodes);
            let Some(view) = Arc::make_mut(&mut *nodes)
                .get_mut(node)
                .filter(|view| view.generation == *generation)
            else {
                continue;
            };
            if view.status != status {
                view.status = status;
                self.count(|outcome| match status {
                    NodeStatus::Lost => outcome.moved += 1,
                    _ => outcome.unreachable += 1,
                });
            }
        }
    }
}

impl Ground for Shared {
    type View = Picture;

    fn view(&self, _: &Live) -> Picture {
        Picture(held(&self.nodes).clone())
    }

    fn rules(&self) -> Rules {
        Rules::ALL
    }

    fn verdict(&self, _: &Live, _: NodeId, verdict: Verdict) {
        self.accept(&verdict);
    }
}

/// The replicated state, as far as the node lease reads it.
struct Picture(Arc<BTreeMap<NodeId, NodeView>>);

impl ClusterView for Picture {
    fn for_each_node(&self, visit: &mut dyn FnMut(NodeView)) {
        self.0.values().for_each(|view| visit(*view));
    }

    fn node(&self, node: NodeId) -> Option<NodeView> {
        self.0.get(&node).copied()
    }

    fn for_each_limit(&self, _: NodeId, _: &mut dyn FnMut(LeaseId, Timestamp)) {}
}

fn incarnation(node: NodeId) -> Incarnation {
    Incarnation(node.0 | (1 << 63))
}

/// Lets `nodes` healthy nodes renew, and kills the leader `changes` times.
pub fn run(seed: u64, nodes: u64, changes: u64) -> Outcome {
    let shared = Arc::new(Shared {
        nodes: Mutex::default(),
        outcome: Mutex::default(),
    });
    let judge = Judge::default();
    let world = live(shared.clone(), judge.clone(), nodes, changes);
    let ((), finished) = Simulated::seeded(seed).simulate(world);
    let mut outcome = held(&shared.outcome).clone();
    outcome.nodes = nodes;
    outcome.leader_changes = judge.counts().leader_changes;
    outcome.simulated_ms = u64::try_from(finished.elapsed.as_millis()).unwrap_or(u64::MAX);
    outcome.trace = format!("{:016x}", finished.trace.hash());
    outcome
}

async fn live(shared: Arc<Shared>, judge: Judge, nodes: u64, changes: u64) {
    let cluster = Cluster::new(3, judge, None);
    cluster.quieten();
    crate::world::found(&cluster).await;
    for place in 0..cluster.machines.len() {
        runtime::spawn_on(Host::WORLD, voter::serve(shared.clone(), cluster.clone(), place));
    }
    let mut draws = runtime::stream("nodes", &[]);
    for number in 0..nodes {
        let node = NodeId(FIRST_NODE + number);
        let view = NodeView {
            node,
            incarnation: Some(incarnation(node)),
            generation: Generation(1),
            status: NodeStatus::Ready,
            quiet: None,
        };
        Arc::make_mut(&mut *held(&shared.nodes)).insert(node, view);
        // Clocks within rho, either way.
        runtime::set_rate(Host(node.0), draws.between(990_000, 1_010_000));
        let first = Duration::from_millis(draws.below(Timing::METRO.renew_every_ms));
        runtime::spawn_on(Host(node.0), ask(shared.clone(), cluster.clone(), node, first));
    }
    runtime::sleep(BETWEEN).await;
    for _ in 0..changes {
        while cluster.leader().is_none() {
            runtime::sleep(Duration::from_millis(10)).await;
        }
        if let Some(place) = cluster.leader() {
            cluster.crash(place, false, DOWN_MS);
        }
        runtime::sleep(BETWEEN).await;
    }
}

fn boot_ms() -> u64 {
    runtime::local_now().since_boot_ns() / 1_000_000
}

/// One node's asking side, with the loop of its thread.
async fn ask(shared: Arc<Shared>, cluster: Cluster, node: NodeId, first: Duration) {
    runtime::sleep(first).await;
    let setup = AskerSetup {
        node,
        incarnation: incarnation(node),
        nonce_seed: node.0 << 20,
        rebooted: false,
    };
    let mut asker = Asker::new(Timing::METRO, setup, cluster.nodes());
    let (sender, mut replies) = mpsc::unbounded_channel();
    let mut frozen = false;
    loop {
        let now_ms = boot_ms();
        if let Some(deadline_ms) = asker.deadline_ms() {
            let passed = now_ms >= deadline_ms;
            if passed && !frozen {
                shared.count(|outcome| outcome.frozen += 1);
            }
            frozen = passed;
        }
        let status = held(&shared.nodes)
            .get(&node)
            .map(|view| (view.generation, view.status));
        let Some((generation, status)) = status else { return };
        let standing = Standing {
            incarnation: Some(incarnation(node)),
            generation,
            status,
        };
        let mut outputs = asker.applied(Applied {
            index: u64::MAX,
            standing: Some(standing),
        });
        outputs.extend(asker.tick(now_ms));
        send(&shared, &cluster, node, outputs, &sender);
        let wait_ms = asker.wake_ms(now_ms).saturating_sub(now_ms).max(1);
        let arrived = runtime::timeout(Duration::from_millis(wait_ms), replies.recv()).await;
        if let Ok(Some((from, reply))) = arrived {
            let before = asker.deadline_ms();
            let outputs = asker.reply(boot_ms(), from, &reply);
            note_margin(&shared, before, asker.deadline_ms());
            send(&shared, &cluster, node, outputs, &sender);
        }
    }
}

fn note_margin(shared: &Shared, before: Option<u64>, after: Option<u64>) {
    if after <= before {
        return;
    }
    let left = before.map(|deadline_ms| deadline_ms.saturating_sub(boot_ms()));
    shared.count(|outcome| {
        outcome.renewals += 1;
        if let Some(left) = left {
            let least = if outcome.margin_ms_min == 0 {
                u64::MAX
            } else {
                outcome.margin_ms_min
            };
            outcome.margin_ms_min = least.min(left);
        }
    });
}

/// Where the replies to a node's questions go, each with who sent it.
pub(crate) type Replies = mpsc::UnboundedSender<(NodeId, Reply)>;

fn send(shared: &Shared, cluster: &Cluster, node: NodeId, outputs: Vec<asker::Output>, replies: &Replies) {
    for output in outputs {
        if let asker::Output::Send { to, renew } = output {
            shared.count(|outcome| outcome.questions += 1);
            runtime::spawn_on(
                Host(node.0),
                question(cluster.clone(), node, to, renew, replies.clone()),
            );
        }
    }
}

/// Asks one voter, as a node does.
pub(crate) async fn question(cluster: Cluster, node: NodeId, to: NodeId, renew: Renew, replies: Replies) {
    let transport = cluster.network.transport(Host(node.0));
    let call = transport.call(to, Class::Lease, wire::encode(&Message::Question(renew)));
    let answer = runtime::timeout(CALL_WAIT, call).await.ok().and_then(Result::ok);
    if let Some(Ok(Message::Reply(reply))) = answer.map(|frame| wire::decode(&frame)) {
        // The node may have ended.
        let _ = replies.send((to, reply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousand_healthy_nodes_notice_no_leader_change() {
        let outcome = run(1, 1_000, 5);
        assert!(outcome.leader_changes >= 5, "{outcome:?}");
        assert!(outcome.renewals >= 1_000 * 2 * 30, "{outcome:?}");
        assert_eq!(
            (outcome.moved, outcome.unreachable, outcome.frozen),
            (0, 0, 0),
            "{outcome:?}"
        );
    }

    #[test]
    fn one_seed_gives_one_outcome() {
        assert_eq!(run(2, 20, 1), run(2, 20, 1));
    }
}
