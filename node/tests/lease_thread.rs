//! The node lease on its real thread: three nodes, one leader, calls that go through the transport seam.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_node::env::{OsClock, OsEntropy};
use holdfast_node::net::{Channel, Class, NetError, Service, Transport};
use holdfast_node::nodelease::asker::{Applied, AskerSetup, Standing};
use holdfast_node::nodelease::thread::{Duty, Keeper, KeeperSetup, Leadership, LeaseRuntime, Surroundings};
use holdfast_node::nodelease::{ClusterView, Message, NodeView, Refusal, Renew, Reply, Timing, Verdict, wire};
use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId, Nonce};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;

const NODES: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct View(BTreeMap<NodeId, NodeView>);

impl ClusterView for View {
    fn for_each_node(&self, visit: &mut dyn FnMut(NodeView)) {
        self.0.values().copied().for_each(visit);
    }
    fn node(&self, node: NodeId) -> Option<NodeView> {
        self.0.get(&node).copied()
    }
    fn for_each_limit(&self, node: NodeId, visit: &mut dyn FnMut(LeaseId, Timestamp)) {
        visit(LeaseId::from_index(node.0), Timestamp(61_000));
    }
}

/// State and leadership that all nodes share, as if replication took no time.
struct Cluster {
    view: Mutex<View>,
    index: Mutex<u64>,
    leader: Mutex<Option<NodeId>>,
    duties: Mutex<Vec<(NodeId, Duty)>>,
    services: Mutex<BTreeMap<NodeId, Arc<dyn Service>>>,
    cut: Mutex<Vec<NodeId>>,
}

impl Cluster {
    fn set_status(&self, node: NodeId, generation: u64, status: NodeStatus) {
        let mut view = self.view.lock().unwrap();
        let entry = view.0.get_mut(&node).unwrap();
        (entry.generation, entry.status) = (Generation(generation), status);
        *self.index.lock().unwrap() += 1;
    }

    fn saw(&self, wanted: impl Fn(&(NodeId, Duty)) -> bool) -> Option<(NodeId, Duty)> {
        self.duties.lock().unwrap().iter().find(|duty| wanted(duty)).cloned()
    }
}

struct Place {
    node: NodeId,
    cluster: Arc<Cluster>,
}

impl Surroundings for Place {
    type View = View;

    fn view(&self) -> Arc<View> {
        Arc::new(self.cluster.view.lock().unwrap().clone())
    }
    fn applied(&self) -> Applied {
        let node = self.cluster.view.lock().unwrap().node(self.node).unwrap();
        let standing = Standing {
            incarnation: node.incarnation,
            generation: node.generation,
            status: node.status,
        };
        Applied {
            index: *self.cluster.index.lock().unwrap(),
            standing: Some(standing),
        }
    }
    fn leadership(&self) -> Leadership {
        let leader = *self.cluster.leader.lock().unwrap();
        let leads = leader == Some(self.node);
        Leadership {
            term: leader.map_or(0, |leader| leader.0),
            leads,
            leader,
            voters: (1..=NODES).map(NodeId).collect(),
            own_term_applied: leads,
        }
    }
    fn stamp(&self) -> Timestamp {
        Timestamp(1_000)
    }
    fn confirm(&self) -> BoxFuture<'static, Option<u64>> {
        let barrier = self.leadership().leads.then(|| *self.cluster.index.lock().unwrap());
        Box::pin(std::future::ready(barrier))
    }
    fn duty(&self, duty: Duty) {
        self.cluster.duties.lock().unwrap().push((self.node, duty));
    }
}

struct Wire {
    node: NodeId,
    cluster: Arc<Cluster>,
}

impl Transport for Wire {
    fn call(&self, to: NodeId, class: Class, request: Bytes) -> BoxFuture<'static, Result<Bytes, NetError>> {
        assert_eq!(class, Class::Lease);
        let (from, cluster) = (self.node, self.cluster.clone());
        Box::pin(async move {
            let why = || "cut".to_owned();
            if cluster.cut.lock().unwrap().iter().any(|cut| *cut == from || *cut == to) {
                return Err(NetError::Unreachable { node: to, why: why() });
            }
            let service = cluster.services.lock().unwrap().get(&to).cloned();
            let service = service.ok_or(NetError::Unreachable { node: to, why: why() })?;
            let answer = service.call(from, request).await;
            answer.map_err(|refusal| NetError::Refused {
                node: to,
                why: refusal.to_string(),
            })
        })
    }

    fn open(&self, to: NodeId, _: Class) -> BoxFuture<'static, Result<Channel, NetError>> {
        Box::pin(std::future::ready(Err(NetError::NoAddress { node: to })))
    }
}

struct Rig {
    cluster: Arc<Cluster>,
    keepers: Vec<Arc<Keeper<Place>>>,
    // Dropped last.
    runtimes: Vec<LeaseRuntime>,
}

fn rig() -> Rig {
    let node = |id| NodeView {
        node: NodeId(id),
        incarnation: Some(Incarnation(1)),
        generation: Generation(1),
        status: NodeStatus::Ready,
        quiet: None,
    };
    let cluster = Arc::new(Cluster {
        view: Mutex::new(View((1..=NODES).map(|id| (NodeId(id), node(id))).collect())),
        index: Mutex::new(5),
        leader: Mutex::new(Some(NodeId(1))),
        duties: Mutex::new(Vec::new()),
        services: Mutex::new(BTreeMap::new()),
        cut: Mutex::new(Vec::new()),
    });
    let (mut keepers, mut runtimes) = (Vec::new(), Vec::new());
    for id in 1..=NODES {
        let runtime = LeaseRuntime::start().unwrap();
        let (node, cluster) = (NodeId(id), cluster.clone());
        let keeper = Keeper::start(KeeperSetup {
            timing: Timing::METRO,
            asker: AskerSetup {
                node,
                incarnation: Incarnation(1),
                nonce_seed: id << 32,
                rebooted: false,
            },
            surroundings: Arc::new(Place {
                node,
                cluster: cluster.clone(),
            }),
            transport: Arc::new(Wire {
                node,
                cluster: cluster.clone(),
            }),
            clock: Arc::new(OsClock),
            entropy: Arc::new(OsEntropy),
            runtime: runtime.handle().clone(),
        });
        cluster.services.lock().unwrap().insert(node, keeper.clone());
        keepers.push(keeper);
        runtimes.push(runtime);
    }
    Rig {
        cluster,
        keepers,
        runtimes,
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_node_is_renewed_the_leaders_own_too_and_a_cut_one_is_given_up_and_returns() {
    let rig = rig();
    until("a permit on every node", || {
        rig.keepers.iter().all(|keeper| keeper.permit().is_some())
    });
    for (id, keeper) in (1..).zip(&rig.keepers) {
        let limits = keeper.run_until();
        assert!(
            matches!(limits[..], [(lease, until_ms)] if lease.index == id && until_ms > 60_000),
            "{limits:?}"
        );
    }

    let lone = NodeId(3);
    rig.cluster.cut.lock().unwrap().push(lone);
    // On a very busy machine others may fall silent in the same tick.
    let given_up = |duty: &(NodeId, Duty)| matches!(&duty.1, Duty::Verdict(Verdict::Unreachable(nodes)) if nodes.contains(&(lone, Generation(1))));
    until("the giving up", || rig.cluster.saw(given_up).is_some());
    rig.cluster.set_status(lone, 1, NodeStatus::Unreachable);
    rig.cluster.cut.lock().unwrap().clear();
    let returns = |duty: &(NodeId, Duty)| duty.0 == lone && matches!(duty.1, Duty::Return { .. });
    until("the wish to return", || rig.cluster.saw(returns).is_some());
    let Some((_, Duty::Return { generation, nonce })) = rig.cluster.saw(returns) else {
        panic!("seen above")
    };
    assert!(rig.keepers[0].admits_return(lone, generation, nonce));
    assert!(!rig.keepers[0].admits_return(lone, generation, Nonce(nonce.0 ^ 1)));
    assert!(
        !rig.keepers[1].admits_return(lone, generation, nonce),
        "a follower admits nobody"
    );

    rig.cluster.set_status(lone, 2, NodeStatus::Ready);
    rig.keepers[2].learnt(Generation(2));
    until("a permit of the new generation", || {
        rig.keepers[2]
            .permit()
            .is_some_and(|permit| permit.generation == Generation(2))
    });
}

#[test]
fn a_new_leader_is_found_and_a_false_name_is_refused() {
    let rig = rig();
    until("a permit on every node", || {
        rig.keepers.iter().all(|keeper| keeper.permit().is_some())
    });
    *rig.cluster.leader.lock().unwrap() = Some(NodeId(2));
    let before = rig.keepers[2].deadline_ms();
    until("renewals by the new leader", || {
        rig.keepers[2].deadline_ms() > before.map(|before| before + 2_000)
    });

    let question = |node| Renew {
        node,
        incarnation: Incarnation(1),
        generation: Generation(1),
        nonce: Nonce(1),
        in_force: true,
    };
    let ask = |to: usize, from: u64, renew: Renew| {
        let frame = wire::encode(&Message::Question(renew));
        let service: Arc<Keeper<Place>> = rig.keepers[to].clone();
        rig.runtimes[to].handle().block_on(service.call(NodeId(from), frame))
    };
    assert!(ask(1, 3, question(NodeId(1))).is_err(), "another node's renewal");
    let told = wire::decode(&ask(0, 3, question(NodeId(3))).unwrap()).unwrap();
    let refusal = Refusal::NotLeader {
        leader: Some(NodeId(2)),
    };
    assert_eq!(
        told,
        Message::Reply(Reply::Refused {
            nonce: Nonce(1),
            refusal
        })
    );
    let service: Arc<Keeper<Place>> = rig.keepers[0].clone();
    assert!(
        rig.runtimes[0]
            .handle()
            .block_on(service.call(NodeId(3), Bytes::from_static(b"rubbish")))
            .is_err()
    );
}
