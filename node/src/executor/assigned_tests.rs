//! The executor's core against the real machine: both sides of the protocol between a node and the log.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use holdfast_proto::command::{Command, CreateLease, Envelope, InitCluster};
use holdfast_proto::device::{Device, DeviceKind};
use holdfast_proto::event::Event;
use holdfast_proto::id::{
    BootId, ClusterId, DeviceId, Digest, Epoch, Era, Generation, Incarnation, LeaseId, Nonce, TokenId,
};
use holdfast_proto::lease::{EndReason, Plan};
use holdfast_proto::node::{BootProof, Inventory, IsolationLevel, NodeAddress, NodeRole, NodeSpec, NodeStatus};
use holdfast_proto::placement::{Allocation, Exit};
use holdfast_proto::tariff::{Price, Tariff};
use holdfast_proto::tenant::{AccessToken, Principal, Quota, Role};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_storage::disk::memory::MemoryDisk;
use holdfast_storage::machine::Machine;

use super::*;
use crate::executor::core::tests::Model;
use crate::executor::core::{Authority, Core, Inputs};
use crate::executor::journal::Journal;
use crate::executor::outfit::Outfit;
use crate::executor::processes::Observed;

const RUNNING: Observed = Observed::Running {
    frozen: false,
    ending: false,
    frozen_ms: 0,
};
const FROZEN: Observed = Observed::Running {
    frozen: true,
    ending: false,
    frozen_ms: 70,
};

struct Node {
    disk: MemoryDisk,
    incarnation: Incarnation,
    core: Core<Model>,
}

/// A machine and the executors of its nodes; all see every entry at once.
struct Cluster {
    machine: Machine,
    index: u64,
    now_ms: u64,
    nodes: BTreeMap<NodeId, Node>,
    events: Vec<Event>,
}

fn operator() -> Principal {
    Principal::Bearer {
        token: TokenId(1),
        role: Role::Operator,
        tenant: None,
    }
}

fn spec(node: NodeId) -> NodeSpec {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&node.0.to_be_bytes());
    NodeSpec {
        node,
        label: format!("n{}", node.0).parse().unwrap(),
        zone: "a".parse().unwrap(),
        role: NodeRole::Replica,
        address: address(node),
        key: Digest(key),
    }
}

fn address(node: NodeId) -> NodeAddress {
    NodeAddress {
        host: format!("n{}", node.0),
        main_port: 7400,
        lease_port: 7401,
        bulk_port: 7402,
    }
}

fn device(node: NodeId) -> DeviceId {
    DeviceId([u8::try_from(node.0).unwrap(); 16])
}

fn start(node: NodeId, disk: &MemoryDisk, incarnation: Incarnation, model: Model) -> Core<Model> {
    let outfit = Outfit {
        node,
        group_root: "holdfast-1".into(),
        path: "/bin".into(),
    };
    let folder = Path::new("/executor");
    let journal = Journal::open(Arc::new(disk.clone()), folder).unwrap();
    Core::new(outfit, incarnation, folder, model, journal).unwrap()
}

fn init(first: NodeId) -> InitCluster {
    let operator = AccessToken {
        token: TokenId(1),
        secret: Digest([1; 32]),
        role: Role::Operator,
        tenant: None,
        project: None,
        note: "operator".into(),
        expires: None,
    };
    let price = Price {
        model: "h100".parse().unwrap(),
        plan: Plan::OnDemand,
        micros_per_device_hour: 3_600_000,
    };
    let tariff = Tariff {
        version: 1,
        currency: "USD".into(),
        prices: vec![price],
    };
    InitCluster {
        cluster: ClusterId([9; 16]),
        era: Era(0),
        node: spec(first),
        operator,
        tariff,
    }
}

impl Cluster {
    /// Three nodes with a device each.
    fn new() -> Self {
        let mut cluster = Self {
            machine: Machine::default(),
            index: 0,
            now_ms: 1_000_000,
            nodes: BTreeMap::new(),
            events: Vec::new(),
        };
        let first = NodeId(1);
        cluster.node_says(first, Command::InitCluster(Box::new(init(first))));
        let quota = Quota { devices_max: 100 };
        cluster.operator_says(Command::SetTenant {
            tenant: "blue".parse().unwrap(),
            quota,
        });
        cluster.node_says(first, Command::RecordVoters { voters: vec![first] });
        for node in [1, 2, 3].map(NodeId) {
            if node != first {
                let (token, secret) = (TokenId(node.0 + 100), Digest([7; 32]));
                let life = Span::seconds(900);
                cluster.operator_says(Command::CreateJoinToken {
                    token,
                    secret,
                    role: NodeRole::Replica,
                    life,
                });
                cluster.node_says(
                    first,
                    Command::AdmitNode {
                        token,
                        secret,
                        spec: spec(node),
                    },
                );
            }
            let disk = MemoryDisk::new(node.0);
            let core = start(node, &disk, Incarnation(0), Model::default());
            cluster.nodes.insert(
                node,
                Node {
                    disk,
                    incarnation: Incarnation(0),
                    core,
                },
            );
            cluster.restart(node, Incarnation(node.0 * 10));
        }
        cluster
    }

    fn apply(&mut self, principal: Principal, origin: NodeId, command: Command) {
        self.index += 1;
        self.now_ms += 1;
        let stamp = Timestamp(self.now_ms);
        let envelope = Envelope {
            stamp,
            principal,
            project: None,
            origin,
            request: None,
            command,
        };
        match self.machine.apply(self.index, &envelope).outcome {
            Ok(events) => self.events.extend(events),
            Err(rejection) => panic!("{:?}: {rejection:?}", envelope.command),
        }
    }

    fn operator_says(&mut self, command: Command) {
        self.apply(operator(), NodeId(1), command);
    }

    fn node_says(&mut self, node: NodeId, command: Command) {
        self.apply(Principal::Node(node), node, command);
    }

    /// Starts a node's daemon (again): same disk, same processes, another incarnation.
    fn restart(&mut self, node: NodeId, incarnation: Incarnation) {
        let before = self.machine.state().nodes.get(&node).unwrap().incarnation;
        let boot = BootProof {
            boot: BootId([3; 16]),
            boot_ms: self.now_ms,
        };
        let address = address(node);
        self.node_says(
            node,
            Command::RegisterNode {
                node,
                incarnation,
                replaces: before,
                boot,
                address,
            },
        );
        let device = Device {
            id: device(node),
            kind: DeviceKind::Gpu,
            model: "h100".parse().unwrap(),
            memory_mib: 80_000,
            compute_capability: 90,
            island: 0,
            numa: None,
        };
        let inventory = Inventory {
            devices: vec![device],
            cpu_milli: 64_000,
            memory_mib: 512_000,
            isolation: IsolationLevel::Cgroup,
            version: "0.1.0".into(),
            simulated: true,
        };
        self.node_says(
            node,
            Command::ReportInventory {
                node,
                incarnation,
                inventory,
            },
        );
        let held = self.nodes.get_mut(&node).unwrap();
        held.disk.crash();
        let model = held.core.processes().clone();
        held.incarnation = incarnation;
        held.core = start(node, &held.disk, incarnation, model);
    }

    fn lease(&mut self, devices: u32) -> LeaseId {
        let base = crate::executor::diff::tests::work();
        let mut requested = base.requested.as_ref().clone();
        (requested.request.devices_min, requested.request.devices_max) = (devices, devices);
        let create = CreateLease {
            tenant: requested.tenant,
            kind: requested.kind,
            label: None,
            request: requested.request,
            terms: requested.terms,
            workload: requested.workload,
        };
        self.operator_says(Command::CreateLease(Box::new(create)));
        LeaseId::from_index(self.index)
    }

    fn place(&mut self, lease: LeaseId, epoch: u32, nodes: &[u64]) {
        let allocation = |(rank, node): (u32, &u64)| Allocation {
            node: NodeId(*node),
            rank,
            devices: vec![device(NodeId(*node))],
            cpu_milli: 0,
            memory_mib: 0,
        };
        let allocations = (0..).zip(nodes).map(allocation).collect();
        self.node_says(
            NodeId(1),
            Command::CommitPlacement {
                lease,
                epoch: Epoch(epoch),
                allocations,
            },
        );
    }

    /// One turn of one node; what it proposes is applied at once.
    fn turn(&mut self, node: NodeId) -> bool {
        let state = self.machine.state().clone();
        let held = self.nodes.get_mut(&node).unwrap();
        let known = state.nodes.get(&node).unwrap();
        let permitted = known.status == NodeStatus::Ready && known.incarnation == Some(held.incarnation);
        let until = permitted.then_some(self.now_ms + 4_000);
        let authority = Authority {
            permit_until_ms: until,
            deadline_ms: until,
            ..Authority::default()
        };
        let runs: Vec<RunKey> = held.core.actual().keys().copied().collect();
        let duties = duties(&state, node, &runs);
        let inputs = Inputs {
            now_ms: self.now_ms,
            authority: &authority,
            duties: &duties,
            prepared: Vec::new(),
        };
        let mut turn = held.core.turn(inputs).unwrap();
        if !turn.prepare.is_empty() {
            let prepared = turn.prepare.iter().map(|order| (order.run, Ok(()))).collect();
            let inputs = Inputs {
                now_ms: self.now_ms,
                authority: &authority,
                duties: &duties,
                prepared,
            };
            turn.commands.extend(held.core.turn(inputs).unwrap().commands);
        }
        let busy = !turn.commands.is_empty();
        for command in turn.commands {
            self.node_says(node, command);
        }
        busy
    }

    /// Turns of all nodes until nobody has anything to say.
    fn settle(&mut self) {
        self.events.clear();
        while self
            .nodes
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .fold(false, |busy, n| self.turn(n) | busy)
        {}
    }

    fn model(&mut self, node: u64) -> &mut Model {
        self.nodes.get_mut(&NodeId(node)).unwrap().core.processes()
    }

    fn status(&self, lease: LeaseId) -> LeaseStatus {
        self.machine.state().leases.get(&lease).unwrap().status
    }

    fn lose(&mut self, node: u64) {
        let (node, generation) = (NodeId(node), Generation(1));
        let generation = self
            .machine
            .state()
            .nodes
            .get(&node)
            .map_or(generation, |known| known.generation);
        self.node_says(NodeId(1), Command::MarkNodeUnreachable { node, generation });
        self.node_says(NodeId(1), Command::MarkNodeLost { node, generation });
    }

    fn bring_back(&mut self, node: u64) {
        let node = NodeId(node);
        let generation = self.machine.state().nodes.get(&node).unwrap().generation;
        let held = self.nodes.get_mut(&node).unwrap();
        let (incarnation, work) = (held.incarnation, held.core.work());
        self.node_says(
            node,
            Command::ReturnNode {
                node,
                incarnation,
                generation,
                nonce: Nonce(1),
                work,
            },
        );
    }
}

fn run(lease: LeaseId, epoch: u32, attempt: u32) -> RunKey {
    use holdfast_proto::id::Attempt;
    RunKey {
        lease,
        epoch: Epoch(epoch),
        attempt: Attempt(attempt),
    }
}

#[test]
fn a_gang_starts_together_and_ends_when_one_member_fails() {
    let mut cluster = Cluster::new();
    let lease = cluster.lease(2);
    cluster.place(lease, 1, &[2, 3]);
    cluster.settle();
    assert_eq!(cluster.status(lease), LeaseStatus::Active);
    for node in [2, 3] {
        assert_eq!(cluster.model(node).runs, BTreeMap::from([(run(lease, 1, 1), RUNNING)]));
    }
    cluster.model(2).set(run(lease, 1, 1), Observed::Ended(Exit::Code(3)));
    cluster.settle();
    assert_eq!(
        cluster.status(lease),
        LeaseStatus::Ending(EndReason::Failed),
        "the other member must end first"
    );
    cluster.model(3).set(run(lease, 1, 1), Observed::Ended(Exit::Stopped));
    cluster.settle();
    assert_eq!(cluster.status(lease), LeaseStatus::Ended(EndReason::Failed));
    assert!(cluster.machine.state().free_devices(NodeId(2)).count() == 1);
}

#[test]
fn a_job_ends_completed_when_all_members_have() {
    let mut cluster = Cluster::new();
    let lease = cluster.lease(2);
    cluster.place(lease, 1, &[2, 3]);
    cluster.settle();
    cluster.model(2).set(run(lease, 1, 1), Observed::Ended(Exit::Code(0)));
    cluster.settle();
    assert_eq!(
        cluster.model(3).runs[&run(lease, 1, 1)],
        RUNNING,
        "a clean end leaves the others alone"
    );
    cluster.model(3).set(run(lease, 1, 1), Observed::Ended(Exit::Code(0)));
    cluster.settle();
    assert_eq!(cluster.status(lease), LeaseStatus::Ended(EndReason::Completed));
}

#[test]
fn a_released_lease_is_stopped_everywhere_and_ends_when_that_is_proven() {
    let mut cluster = Cluster::new();
    let lease = cluster.lease(1);
    cluster.place(lease, 1, &[2]);
    cluster.settle();
    cluster.operator_says(Command::ReleaseLease { lease });
    cluster.settle();
    assert_eq!(cluster.status(lease), LeaseStatus::Ending(EndReason::Released));
    cluster.model(2).set(run(lease, 1, 1), Observed::Ended(Exit::Stopped));
    cluster.settle();
    assert_eq!(cluster.status(lease), LeaseStatus::Ended(EndReason::Released));
}

#[test]
fn a_lost_node_that_returns_before_a_newer_placement_thaws_its_work() {
    let mut cluster = Cluster::new();
    let lease = cluster.lease(1);
    cluster.place(lease, 1, &[2]);
    cluster.settle();
    cluster.model(2).set(run(lease, 1, 1), FROZEN);
    cluster.lose(2);
    cluster.settle();
    assert_eq!(cluster.model(2).runs[&run(lease, 1, 1)], FROZEN, "no renewal, no thaw");
    cluster.bring_back(2);
    cluster.settle();
    assert_eq!(cluster.model(2).runs[&run(lease, 1, 1)], RUNNING);
    assert_eq!(cluster.status(lease), LeaseStatus::Active);
}

#[test]
fn a_lost_node_that_returns_after_a_newer_placement_ends_its_work_without_a_thaw() {
    let mut cluster = Cluster::new();
    let lease = cluster.lease(1);
    cluster.place(lease, 1, &[2]);
    cluster.settle();
    cluster.model(2).set(run(lease, 1, 1), FROZEN);
    cluster.lose(2);
    cluster.place(lease, 2, &[3]);
    cluster.settle();
    assert_eq!(cluster.status(lease), LeaseStatus::Active);
    assert_eq!(cluster.model(3).runs[&run(lease, 2, 1)], RUNNING);
    assert_eq!(cluster.model(2).runs[&run(lease, 1, 1)], FROZEN);
    cluster.model(2).calls();
    cluster.bring_back(2);
    cluster.settle();
    let calls = cluster.model(2).calls();
    assert!(calls.contains(&format!("kill {}", run(lease, 1, 1))), "{calls:?}");
    assert!(!calls.iter().any(|call| call.starts_with("thaw")), "{calls:?}");
    cluster.model(2).set(run(lease, 1, 1), Observed::Ended(Exit::Stopped));
    cluster.settle();
    assert_eq!(
        cluster.status(lease),
        LeaseStatus::Active,
        "the newer placement is not touched"
    );
}

#[test]
fn a_daemon_that_dies_between_acceptance_and_spawn_leads_to_the_next_attempt() {
    let mut cluster = Cluster::new();
    let lease = cluster.lease(2);
    cluster.place(lease, 1, &[2, 3]);
    cluster.turn(NodeId(2));
    // Node 3 prepares: accepted. It spawns, node 2 dies before it does.
    cluster.turn(NodeId(3));
    cluster.turn(NodeId(3));
    assert_eq!(cluster.status(lease), LeaseStatus::Starting);
    assert_eq!(cluster.model(3).runs[&run(lease, 1, 1)], RUNNING);
    cluster.restart(NodeId(2), Incarnation(21));
    cluster.settle();
    assert!(
        cluster.model(2).runs.is_empty(),
        "another start's attempt is never spawned"
    );
    cluster.model(3).set(run(lease, 1, 1), Observed::Ended(Exit::Stopped));
    cluster.settle();
    assert_eq!(cluster.status(lease), LeaseStatus::Active);
    assert_eq!(cluster.model(2).runs, BTreeMap::from([(run(lease, 1, 2), RUNNING)]));
}

#[test]
fn a_restarted_daemon_goes_on_with_what_runs() {
    let mut cluster = Cluster::new();
    let lease = cluster.lease(1);
    cluster.place(lease, 1, &[2]);
    cluster.settle();
    cluster.restart(NodeId(2), Incarnation(21));
    cluster.model(2).calls();
    cluster.settle();
    assert_eq!(cluster.status(lease), LeaseStatus::Active);
    let calls = cluster.model(2).calls();
    assert!(calls.iter().all(|call| call.starts_with("deadline")), "{calls:?}");
}

#[test]
fn a_launch_that_fails_moves_the_lease_and_frees_the_node() {
    let mut cluster = Cluster::new();
    let lease = cluster.lease(1);
    cluster.place(lease, 1, &[2]);
    let failed = Exit::LaunchFailed("command not found: pyhton".into());
    cluster.model(2).runs.insert(run(lease, 1, 1), Observed::Ended(failed));
    cluster.settle();
    assert_eq!(cluster.status(lease), LeaseStatus::Migrating);
    assert_eq!(cluster.machine.state().free_devices(NodeId(2)).count(), 1);
}
