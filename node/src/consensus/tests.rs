//! Clusters of real replicas: openraft, the real Raft log and snapshots, in one process, over wires that can be cut.

#![allow(clippy::unwrap_used)]

mod machine;
mod wires;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::id::{ClusterId, Cursor, Digest, NodeId};
use holdfast_proto::node::NodeRole;
use holdfast_proto::tenant::Principal;
use holdfast_proto::time::Timestamp;
use holdfast_storage::adapter::StateClaim;
use holdfast_storage::disk::memory::MemoryDisk;
use holdfast_storage::promise::PromiseFile;
use holdfast_storage::raft_log::{LogThread, Opened, Options};
use holdfast_storage::snapshot::SnapshotStore;
use holdfast_storage::types::Peer;
use openraft::{Config, SnapshotPolicy};
use openraft_rt::Instant as _;
use openraft_rt::watch::WatchReceiver;

use self::machine::Tape;
use self::wires::{Wire, Wires};
use super::agreement::Hashes;
use super::compaction;
use super::config::{Profile, config};
use super::leadership::Lead;
use super::membership::{Known, Picture};
use super::network::files::StoredSnapshots;
use super::start::{Parts, Started, start};
use super::{Linearize, Outcome, Propose};
use crate::env::{Clock, OsClock};
use crate::net::router::{KindRouter, Router};
use crate::net::{Class, Transport};

type Rt = openraft_rt_tokio::TokioRuntime;

/// Far beyond what any of this takes, for machines that are very busy.
const PATIENCE: Duration = Duration::from_secs(120);

fn name(text: &str) -> holdfast_proto::id::Name {
    text.parse().unwrap()
}

/// A machine's clocks, of which the one on the wall can be stepped.
#[derive(Default)]
struct SteppedClock(AtomicI64);

impl Clock for SteppedClock {
    fn boot_ms(&self) -> u64 {
        OsClock.boot_ms()
    }
    fn wall_ms(&self) -> u64 {
        OsClock.wall_ms().saturating_add_signed(self.0.load(Ordering::SeqCst))
    }
}

struct Node {
    started: Started<Rt, Tape>,
    clock: Arc<SteppedClock>,
    tape: Tape,
    _log: LogThread,
}

/// What a sound state hashes to, everywhere.
const SOUND: Digest = Digest([7; 32]);

/// What some nodes' states hash to instead.
type OtherHashes = Arc<Mutex<BTreeMap<u64, Digest>>>;

/// One hash at every position.
struct FixedHash {
    node: u64,
    other: OtherHashes,
    claim: Arc<Mutex<Option<StateClaim>>>,
}

impl Hashes for FixedHash {
    fn claimed(&self) -> Option<StateClaim> {
        *self.claim.lock().unwrap()
    }

    fn hash_at(&self, _: Cursor) -> Option<Digest> {
        let other = self.other.lock().unwrap().get(&self.node).copied();
        Some(other.unwrap_or(SOUND))
    }
}

/// A cluster, with what all of its nodes would read from applied state.
struct Cluster {
    wires: Arc<Wires>,
    picture: Arc<Mutex<Picture>>,
    disks: BTreeMap<u64, Arc<MemoryDisk>>,
    nodes: BTreeMap<u64, Node>,
    config: Config,
    /// What nodes' states hash to, where it is not what the others have.
    hashes: OtherHashes,
    /// The last hash that came through the log.
    claim: Arc<Mutex<Option<StateClaim>>>,
    /// Who was told that its state is not the others'.
    diverged: Arc<Mutex<Vec<(u64, String)>>>,
}

impl Cluster {
    /// Starts `nodes` nodes, of which the first founds the cluster.
    async fn of(nodes: u64, adjust: impl FnOnce(&mut Config)) -> Self {
        let mut options = (*config(ClusterId([1; 16]), Profile::Metro).unwrap()).clone();
        adjust(&mut options);
        let mut cluster = Self {
            wires: Arc::default(),
            picture: Arc::default(),
            disks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            config: options,
            hashes: Arc::default(),
            claim: Arc::default(),
            diverged: Arc::default(),
        };
        cluster.join(1);
        cluster.start(1).await;
        let founders = BTreeMap::from([(1, Peer { address: "h1:1".into() })]);
        cluster.nodes[&1]
            .started
            .replica
            .raft()
            .initialize(founders)
            .await
            .unwrap();
        for node in 2..=nodes {
            cluster.join(node);
            cluster.start(node).await;
        }
        cluster
    }

    fn join(&self, node: u64) {
        let known = Known {
            node: NodeId(node),
            zone: name(&format!("z{node}")),
            role: NodeRole::Replica,
            removed: false,
            lost: false,
            address: format!("h{node}:1"),
        };
        self.picture.lock().unwrap().nodes.push(known);
    }

    async fn start(&mut self, node: u64) {
        let disk = self
            .disks
            .entry(node)
            .or_insert_with(|| Arc::new(MemoryDisk::new(node)))
            .clone();
        let options = Options {
            segment_bytes: 1 << 20,
            ..Options::default()
        };
        let (log, thread) = Opened::open(disk.clone(), Path::new("/raft"), options)
            .unwrap()
            .start_thread::<Rt>(None)
            .unwrap();
        let store = SnapshotStore::open(disk.clone(), Path::new("/snapshots")).unwrap();
        let tape = Tape::open(store.clone());
        let (router, stamps, picture) = (Arc::new(Router::new()), tape.clone(), self.picture.clone());
        let clock = Arc::<SteppedClock>::default();
        let parts = Parts {
            me: NodeId(node),
            config: Arc::new(self.config.clone()),
            machine: tape.clone(),
            kept: Arc::new(compaction::Stored {
                snapshots: store.clone(),
                log: log.clone(),
            }),
            promises: PromiseFile::in_data(disk, Path::new("/")),
            log,
            files: Arc::new(StoredSnapshots::new(store)),
            transport: Arc::new(Wire::new(self.wires.clone(), NodeId(node))) as Arc<dyn Transport>,
            router: router.clone(),
            clock: clock.clone(),
            applied_stamp: Arc::new(move || stamps.stamp()),
            picture: Arc::new(move || picture.lock().unwrap().clone()),
            may_vote: Arc::new(|node| node != NodeId(99)),
            authority_key: Arc::new(|| None),
            on_forgot: Arc::new(|_| {}),
            hashes: Arc::new(FixedHash {
                node,
                other: self.hashes.clone(),
                claim: self.claim.clone(),
            }),
            on_diverged: {
                let diverged = self.diverged.clone();
                Arc::new(move |why| diverged.lock().unwrap().push((node, why)))
            },
        };
        let started = start(parts).await.unwrap();
        let control = KindRouter::default().with(super::wire::kind::QUESTION, started.questions.clone());
        assert!(router.register(Class::Control, Arc::new(control)));
        self.wires.plug(NodeId(node), router);
        self.nodes.insert(
            node,
            Node {
                started,
                clock,
                tape,
                _log: thread,
            },
        );
    }

    /// Stops a node as a crash would: its wires first.
    async fn stop(&mut self, node: u64) {
        self.wires.unplug(NodeId(node));
        let stopped = self.nodes.remove(&node).unwrap();
        stopped.started.replica.raft().shutdown().await.unwrap();
    }

    async fn propose(&self, through: u64, text: &str) -> Outcome {
        self.propose_as(through, through, text).await
    }

    async fn propose_as(&self, through: u64, origin: u64, text: &str) -> Outcome {
        let envelope = Envelope {
            stamp: Timestamp(0),
            principal: Principal::Node(NodeId(origin)),
            project: None,
            origin: NodeId(origin),
            request: None,
            command: Command::Annotate {
                subject: name("test"),
                text: text.into(),
            },
        };
        self.nodes[&through].started.replica.propose(envelope).await
    }

    /// Proposes until it is applied.
    async fn insist(&self, through: u64, text: &str) -> u64 {
        let applied = async {
            loop {
                if let Outcome::Applied { index, .. } = self.propose(through, text).await {
                    return index;
                }
            }
        };
        tokio::time::timeout(PATIENCE, applied).await.unwrap()
    }

    fn tape(&self, node: u64) -> Vec<String> {
        self.nodes[&node].tape.texts()
    }

    async fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let wait = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| panic!("never: {what}"));
    }

    fn voters(&self, seen_by: u64) -> BTreeSet<u64> {
        self.nodes[&seen_by].started.replica.raft().voter_ids().collect()
    }

    /// Waits until every node knows these voters to be committed: while a membership is joint, the old voters still count.
    async fn until_voters(&self, voters: &[u64]) {
        let wanted: BTreeSet<u64> = voters.iter().copied().collect();
        let settled = |node: &Node| {
            let metrics = node.started.replica.raft().metrics();
            let members = metrics
                .borrow_watched()
                .committed_membership_config
                .membership()
                .clone();
            members.get_joint_config().len() == 1 && members.voter_ids().collect::<BTreeSet<_>>() == wanted
        };
        self.until("these voters", |cluster| cluster.nodes.values().all(settled))
            .await;
    }

    fn leader(&self) -> Option<u64> {
        self.nodes
            .iter()
            .find(|(_, node)| node.started.replica.leadership().own_term_applied)
            .map(|(id, _)| *id)
    }

    async fn until_leader(&self) -> u64 {
        self.until("a leader", |cluster| cluster.leader().is_some()).await;
        self.leader().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joined_nodes_become_voters_and_every_node_takes_commands_and_fresh_reads() {
    let cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    for node in 1..=3 {
        let index = cluster.insist(node, &format!("through {node}")).await;
        for reader in 1..=3 {
            let read = cluster.nodes[&reader].started.replica.linearize().await.unwrap();
            assert!(read >= index);
            assert!(
                cluster.tape(reader).contains(&format!("through {node}")),
                "node {reader}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_another_nodes_name_is_refused() {
    let cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    let leader = cluster.until_leader().await;
    let follower = (1..=3).find(|node| *node != leader).unwrap();
    let outcome = cluster.propose_as(follower, leader, "forged").await;
    assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
    assert!(!cluster.tape(leader).contains(&"forged".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_go_on_when_the_leader_dies_and_nothing_acknowledged_is_lost() {
    let mut cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    let leader = cluster.until_leader().await;
    cluster.insist(leader, "before").await;
    cluster.stop(leader).await;
    let left: Vec<u64> = cluster.nodes.keys().copied().collect();
    cluster.insist(left[0], "after").await;
    cluster.nodes[&left[1]].started.replica.linearize().await.unwrap();
    let tape = cluster.tape(left[1]);
    let place = |text: &str| tape.iter().position(|other| other == text).unwrap();
    assert!(place("before") < place("after"));

    cluster.start(leader).await;
    cluster
        .until("the old leader has caught up", |cluster| {
            cluster.tape(leader).contains(&"after".to_owned())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_gives_no_fresh_read_and_proposes_nothing() {
    let cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    let old = cluster.until_leader().await;
    cluster.wires.cut(NodeId(old));
    let others: Vec<u64> = (1..=3).filter(|node| *node != old).collect();
    cluster.insist(others[0], "on the other side").await;

    // It has everything that it knows of applied; that alone makes no read fresh.
    assert!(cluster.nodes[&old].started.replica.confirm().await.is_err());
    assert!(cluster.nodes[&old].started.replica.linearize().await.is_err());
    assert!(matches!(
        cluster.propose(old, "on the lost side").await,
        Outcome::Unknown { .. }
    ));
    assert!(!cluster.tape(others[0]).contains(&"on the lost side".to_owned()));

    cluster.wires.heal(NodeId(old));
    cluster
        .until("the old leader has caught up", |cluster| {
            cluster.tape(old).contains(&"on the other side".to_owned())
        })
        .await;
    cluster.nodes[&old].started.replica.linearize().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_flaps_does_not_unseat_the_leader() {
    let cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    let leader = cluster.until_leader().await;
    let follower = (1..=3).find(|node| *node != leader).unwrap();
    let term = |cluster: &Cluster| cluster.nodes[&leader].started.replica.leadership().term;
    let before = term(&cluster);
    for round in 0..3 {
        cluster.wires.cut(NodeId(follower));
        // Long enough for several elections that a node without pre-vote would begin.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        cluster.wires.heal(NodeId(follower));
        cluster.insist(leader, &format!("round {round}")).await;
        cluster
            .until("the follower is back", |cluster| {
                cluster.tape(follower).contains(&format!("round {round}"))
            })
            .await;
    }
    // On a busy machine the leader itself may have missed its heartbeats; the flapping alone raises no term.
    assert!(term(&cluster) <= before + 3, "{} to {}", before, term(&cluster));
    assert!(cluster.wires.pre_votes() > 0, "the cut follower asked first");
}

/// Three nodes whose log begins after entry 100, and their leader: whoever joins needs a snapshot.
async fn purged() -> (Cluster, u64) {
    let cluster = Cluster::of(3, |config| {
        config.snapshot_policy = SnapshotPolicy::LogsSinceLast(50);
        config.max_in_snapshot_log_to_keep = 0;
        config.replication_lag_threshold = 60;
        config.purge_batch_size = 1;
    })
    .await;
    cluster.until_voters(&[1, 2, 3]).await;
    let leader = cluster.until_leader().await;
    for number in 0..200 {
        cluster.insist(leader, &number.to_string()).await;
    }
    cluster
        .until("the log is purged", |cluster| {
            let metrics = cluster.nodes[&leader].started.replica.raft().metrics();
            metrics.borrow_watched().purged.is_some_and(|purged| purged.index > 100)
        })
        .await;
    (cluster, leader)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_node_is_brought_up_by_a_snapshot() {
    let (mut cluster, leader) = purged().await;
    cluster.join(4);
    cluster.start(4).await;
    cluster
        .until("the late node has everything", |cluster| {
            cluster.tape(4).contains(&"199".to_owned())
        })
        .await;
    assert_eq!(cluster.tape(4), cluster.tape(leader));
    assert!(cluster.wires.opened(Class::Snapshot) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_gets_nowhere_holds_up_no_heartbeat() {
    let (mut cluster, leader) = purged().await;
    cluster.wires.slow_down(Class::Snapshot);
    cluster.join(4);
    cluster.start(4).await;
    cluster
        .until("a snapshot is on its way", |cluster| {
            cluster.wires.opened(Class::Snapshot) > 0
        })
        .await;
    let begun_ms = OsClock.boot_ms();
    for number in 200..300 {
        cluster.insist(leader, &number.to_string()).await;
    }
    // Longer than any election would wait; whoever leads by then must have heard it.
    cluster
        .until("the late node is heard all the while", |cluster| {
            let Some(leader) = cluster.leader() else { return false };
            let metrics = cluster.nodes[&leader].started.replica.raft().metrics();
            let heard = metrics.borrow_watched().heartbeat.clone();
            let heard = heard.and_then(|all| all.get(&4).copied().flatten());
            let since = Duration::from_millis(OsClock.boot_ms() - begun_ms);
            heard.is_some_and(|heard| heard.elapsed() + Duration::from_secs(5) < since)
        })
        .await;
    assert!(!cluster.tape(4).contains(&"0".to_owned()));
    cluster.wires.speed_up(Class::Snapshot);
    cluster
        .until("the late node has everything", |cluster| {
            cluster.tape(4).contains(&"299".to_owned())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_disk_is_wiped_again_and_again_never_makes_the_quorum_larger() {
    let mut cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    for next in 4..9 {
        let leader = cluster.until_leader().await;
        let wiped = *cluster.voters(leader).iter().find(|node| **node != leader).unwrap();
        cluster.stop(wiped).await;
        // The same machine, with an empty folder: another node.
        for known in &mut cluster.picture.lock().unwrap().nodes {
            known.removed |= known.node == NodeId(wiped);
        }
        cluster.join(next);
        cluster.start(next).await;
        cluster
            .until("it votes in the place of what it was", |cluster| {
                let Some(leader) = cluster.leader() else { return false };
                let voters = cluster.voters(leader);
                assert!(voters.len() <= 3 || voters.contains(&wiped), "{voters:?}");
                voters.len() == 3 && voters.contains(&next) && !voters.contains(&wiped)
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stamps_never_decrease_across_leaders() {
    let mut cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    for round in 0..2 {
        let leader = cluster.until_leader().await;
        for number in 0..20 {
            cluster.insist(leader, &format!("{round} {number}")).await;
        }
        cluster.stop(leader).await;
        let left = *cluster.nodes.keys().next().unwrap();
        cluster.insist(left, "next").await;
        cluster.start(leader).await;
    }
    let node = *cluster.nodes.keys().next().unwrap();
    let stamps = cluster.nodes[&node].tape.stamps();
    assert!(stamps.windows(2).all(|pair| pair[0] <= pair[1]), "{stamps:?}");
    assert!(stamps[0].0 > 1_577_836_800_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_never_comes_up_does_not_become_a_voter() {
    let mut cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    for dead in [7, 8] {
        cluster.join(dead);
    }
    let leader = cluster.until_leader().await;
    cluster
        .until("the dead nodes are learners", |cluster| {
            cluster.nodes[&leader]
                .started
                .replica
                .raft()
                .learner_ids()
                .collect::<Vec<_>>()
                == [7, 8]
        })
        .await;
    for number in 0..20 {
        cluster.insist(leader, &number.to_string()).await;
    }
    assert_eq!(cluster.voters(leader), BTreeSet::from([1, 2, 3]));
    // Nor do they count when one that votes is gone too: the other two go on.
    let stopped = (1..=3).find(|node| *node != leader).unwrap();
    cluster.stop(stopped).await;
    let index = cluster.insist(leader, "with two of three").await;
    assert!(cluster.nodes[&leader].started.replica.linearize().await.unwrap() >= index);
    assert!(cluster.voters(leader).is_disjoint(&BTreeSet::from([7, 8])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_voter_is_replaced_and_taken_out() {
    let cluster = Cluster::of(4, |_| {}).await;
    cluster
        .until("three voters of four", |cluster| cluster.voters(1).len() == 3)
        .await;
    let leader = cluster.until_leader().await;
    let voters = cluster.voters(leader);
    let gone = *voters.iter().find(|node| **node != leader).unwrap();
    for known in &mut cluster.picture.lock().unwrap().nodes {
        known.removed |= known.node == NodeId(gone);
    }
    let left: BTreeSet<u64> = (1..=4).filter(|node| *node != gone).collect();
    cluster
        .until("the fourth votes instead", |cluster| {
            let raft = cluster.nodes[&leader].started.replica.raft();
            raft.voter_ids().collect::<BTreeSet<_>>() == left && raft.learner_ids().count() == 0
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_and_a_removal_at_once_end_in_one_configuration() {
    let mut cluster = Cluster::of(4, |_| {}).await;
    cluster
        .until("three voters of four", |cluster| cluster.voters(1).len() == 3)
        .await;
    let leader = cluster.until_leader().await;
    let gone = *cluster.voters(leader).iter().find(|node| **node != leader).unwrap();
    // Both are asked for in one breath, so that neither change has begun when the other is wanted.
    let added = Known {
        node: NodeId(5),
        zone: name("z5"),
        role: NodeRole::Replica,
        removed: false,
        lost: false,
        address: "h5:1".into(),
    };
    {
        let mut picture = cluster.picture.lock().unwrap();
        for known in &mut picture.nodes {
            known.removed |= known.node == NodeId(gone);
        }
        picture.nodes.push(added);
    }
    cluster.start(5).await;
    cluster.stop(gone).await;
    let left: BTreeSet<u64> = (1..=5).filter(|node| *node != gone).collect();
    let settled = |cluster: &Cluster| {
        cluster.nodes.values().all(|node| {
            let metrics = node.started.replica.raft().metrics();
            let members = metrics
                .borrow_watched()
                .committed_membership_config
                .membership()
                .clone();
            let all: BTreeSet<u64> = members.nodes().map(|(node, _)| *node).collect();
            members.get_joint_config().len() == 1 && members.voter_ids().count() == 3 && all == left
        })
    };
    cluster
        .until("one configuration without the removed node", settled)
        .await;
    let index = cluster.insist(5, "through the one that joined").await;
    assert!(cluster.nodes[&5].started.replica.linearize().await.unwrap() >= index);
    assert!(settled(&cluster), "it is not left half changed afterwards");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_steps_an_hour_either_way_changes_no_read_and_no_stamp() {
    const HOUR: i64 = 3_600_000;
    let cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    let leader = cluster.until_leader().await;
    let follower = (1..=3).find(|node| *node != leader).unwrap();
    cluster.insist(leader, "before").await;
    for (stepped, by) in [(leader, HOUR), (leader, -HOUR), (follower, HOUR), (follower, -HOUR)] {
        let begun = OsClock.boot_ms();
        let before = *cluster.nodes[&leader].tape.stamps().last().unwrap();
        cluster.nodes[&stepped].clock.0.store(by, Ordering::SeqCst);
        let text = format!("{stepped} by {by}");
        for (writer, reader) in [(leader, follower), (follower, leader), (stepped, stepped)] {
            let index = cluster.insist(writer, &text).await;
            let read = cluster.nodes[&reader].started.replica.linearize().await.unwrap();
            assert!(read >= index && cluster.tape(reader).contains(&text), "{text}");
        }
        let after = *cluster.nodes[&leader].tape.stamps().last().unwrap();
        // The stamps went on by what passed, give or take the slewing of both clocks; far less than the step.
        let passed = OsClock.boot_ms() - begun;
        assert!(
            before <= after && after.0 - before.0 <= passed + 2_000,
            "{text}: {before:?} to {after:?} in {passed} ms"
        );
        cluster.nodes[&stepped].clock.0.store(0, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vote_or_an_append_in_another_nodes_name_reaches_nobody() {
    let cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    let leader = cluster.until_leader().await;
    let term = cluster.nodes[&leader].started.replica.leadership().term;
    for (from, claimed) in [(2, 3), (99, 99), (99, 2)] {
        for kind in [super::wire::kind::VOTE, super::wire::kind::PRE_VOTE] {
            let asked = super::wire::VoteAsked {
                vote: super::wire::WireVote {
                    term: 1_000_000,
                    node: claimed,
                    committed: false,
                },
                last: None,
                transfer: true,
            };
            let forged = holdfast_proto::frame::encode(kind, &asked);
            let wire = Wire::new(cluster.wires.clone(), NodeId(from));
            assert!(
                wire.call(NodeId(leader), Class::Raft, forged).await.is_err(),
                "{claimed} by {from}"
            );
        }
    }
    assert!(
        cluster.nodes[&leader].started.replica.leadership().term < 1_000_000,
        "term was {term}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_vote_that_comes_late_accuses_nobody() {
    let cluster = Cluster::of(3, |_| {}).await;
    cluster.until_voters(&[1, 2, 3]).await;
    let leader = cluster.until_leader().await;
    let late = leader % 3 + 1;
    let promises = &cluster.nodes[&leader].started.promises;
    cluster
        .until("the follower has promised something", |_| {
            promises.of(NodeId(late)) > Some(1)
        })
        .await;
    // As it was sent before the first entry came, delivered only now.
    let asked = super::wire::VoteAsked {
        vote: super::wire::WireVote {
            term: 0,
            node: late,
            committed: false,
        },
        last: None,
        transfer: false,
    };
    let wire = Wire::new(cluster.wires.clone(), NodeId(late));
    for kind in [super::wire::kind::VOTE, super::wire::kind::PRE_VOTE] {
        let request = holdfast_proto::frame::encode(kind, &asked);
        assert!(wire.call(NodeId(leader), Class::Raft, request).await.is_err());
    }
    assert!(promises.broken().is_empty());
    assert_eq!(cluster.until_leader().await, leader);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_state_differs_from_most_is_told_to_stop_also_when_it_leads() {
    for wrong_leads in [false, true] {
        let cluster = Cluster::of(3, |_| {}).await;
        cluster.until_voters(&[1, 2, 3]).await;
        let leader = cluster.until_leader().await;
        let wrong = if wrong_leads { leader } else { leader % 3 + 1 };
        let other = Digest([9; 32]);
        cluster.hashes.lock().unwrap().insert(wrong, other);
        let claim = StateClaim {
            at: Cursor { index: 5, sub: 0 },
            // The leader proposes what its own state hashes to.
            hash: if wrong_leads { other } else { SOUND },
        };
        *cluster.claim.lock().unwrap() = Some(claim);
        let told = |cluster: &Cluster| {
            cluster
                .diverged
                .lock()
                .unwrap()
                .iter()
                .map(|(node, _)| *node)
                .collect::<Vec<_>>()
        };
        cluster
            .until("the wrong one was told", |cluster| !told(cluster).is_empty())
            .await;
        assert_eq!(told(&cluster), [wrong]);
        assert!(
            cluster.diverged.lock().unwrap()[0]
                .1
                .contains("join this machine again as a new node")
        );
    }
}
