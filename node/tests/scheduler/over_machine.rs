//! The scheduler's loop against the real machine: what it proposes is applied, and the log has the last word.

use holdfast_node::scheduler::{Scheduler, explain};
use holdfast_proto::command::{Command, CreateLease, CreateLeaseWith, Envelope, InitCluster};
use holdfast_proto::condition::{Condition, Share};
use holdfast_proto::device::{Device, DeviceKind};
use holdfast_proto::event::Event;
use holdfast_proto::id::{
    Attempt, BootId, ClusterId, DeviceId, Digest, Epoch, Era, Generation, Incarnation, LeaseId, Name, NodeId, TokenId,
};
use holdfast_proto::lease::{EndReason, Isolation, LeaseKind, LeaseStatus, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::node::{BootProof, Inventory, IsolationLevel, NodeAddress, NodeRole, NodeSpec};
use holdfast_proto::placement::Exit;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tariff::{Price, Tariff};
use holdfast_proto::tenant::{AccessToken, Principal, Quota, Role};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_proto::workload::Workload;
use holdfast_storage::machine::{LEVEL_MAX, Machine, State};

#[path = "over_machine/rights.rs"]
mod rights;

/// A cluster of the real machine, and the clock of its leader.
struct Cluster {
    machine: Machine,
    index: u64,
    now_ms: u64,
    nodes: Vec<NodeId>,
    /// Length of the leases that are requested.
    duration: Span,
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn spec(id: u64, zone: &str) -> NodeSpec {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&id.to_be_bytes());
    NodeSpec {
        node: NodeId(id),
        label: name(&format!("node-{id}")),
        zone: name(zone),
        role: NodeRole::Replica,
        address: address(),
        key: Digest(key),
    }
}

fn address() -> NodeAddress {
    NodeAddress {
        host: "127.0.0.1".to_owned(),
        main_port: 1,
        lease_port: 2,
        bulk_port: 3,
    }
}

fn operator() -> Principal {
    Principal::Bearer {
        token: TokenId(1),
        role: Role::Operator,
        tenant: None,
    }
}

impl Cluster {
    /// Nodes with so many devices of a model each, in zones a, b, c in turn.
    fn new(nodes: &[(u32, &str)]) -> Self {
        let ids: Vec<NodeId> = (1..=nodes.len() as u64).map(NodeId).collect();
        let mut cluster = Self {
            machine: Machine::default(),
            index: 0,
            now_ms: 1_000,
            nodes: ids,
            duration: Span::seconds(60),
        };
        let price = |model: &str, plan, micros_per_device_hour| Price {
            model: name(model),
            plan,
            micros_per_device_hour,
        };
        let init = InitCluster {
            cluster: ClusterId([7; 16]),
            era: Era(0),
            node: spec(1, "a"),
            operator: AccessToken {
                token: TokenId(1),
                secret: Digest([1; 32]),
                role: Role::Operator,
                tenant: None,
                project: None,
                note: String::new(),
                expires: None,
            },
            tariff: Tariff {
                version: 1,
                currency: "USD".to_owned(),
                prices: vec![
                    price("a100", Plan::OnDemand, 2_000_000),
                    price("a100", Plan::Spot, 500_000),
                    price("h100", Plan::OnDemand, 4_000_000),
                ],
            },
        };
        let first = Principal::Node(NodeId(1));
        cluster
            .apply(first.clone(), Command::InitCluster(Box::new(init)))
            .unwrap();
        let voters = Command::RecordVoters {
            voters: vec![NodeId(1)],
        };
        // The first node may be a voter by its own entry already; the record says it in any case.
        let _ = cluster.apply(first, voters);
        cluster
            .apply(
                operator(),
                Command::SetTenant {
                    tenant: name("blue"),
                    quota: Quota { devices_max: 10_000 },
                },
            )
            .unwrap();
        for (place, (count, model)) in nodes.iter().enumerate() {
            cluster.join(place as u64 + 1, ["a", "b", "c"][place % 3], *count, model);
        }
        cluster
    }

    fn state(&self) -> &State {
        self.machine.state()
    }

    fn apply(&mut self, principal: Principal, command: Command) -> Result<Vec<Event>, Rejection> {
        self.index += 1;
        let origin = match &principal {
            Principal::Node(node) => *node,
            Principal::Bearer { .. } => NodeId(1),
        };
        let stamp = Timestamp(self.now_ms);
        let envelope = Envelope {
            stamp,
            principal,
            project: None,
            origin,
            request: None,
            command,
        };
        self.machine.apply(self.index, &envelope).outcome
    }

    fn join(&mut self, id: u64, zone: &str, count: u32, model: &str) {
        if id > 1 {
            let (token, secret) = (TokenId(100 + id), Digest([9; 32]));
            let life = Span::seconds(600);
            self.apply(
                operator(),
                Command::CreateJoinToken {
                    token,
                    secret,
                    role: NodeRole::Replica,
                    life,
                },
            )
            .unwrap();
            let admit = Command::AdmitNode {
                token,
                secret,
                spec: spec(id, zone),
            };
            self.apply(Principal::Node(NodeId(1)), admit).unwrap();
        }
        let (node, incarnation) = (NodeId(id), Incarnation(id));
        let boot = BootProof {
            boot: BootId([1; 16]),
            boot_ms: 1,
        };
        let register = Command::RegisterNode {
            node,
            incarnation,
            replaces: None,
            boot,
            address: address(),
        };
        self.apply(Principal::Node(node), register).unwrap();
        let device = |number: u32| Device {
            id: DeviceId((u128::from(id) << 32 | u128::from(number)).to_be_bytes()),
            kind: DeviceKind::Gpu,
            model: name(model),
            memory_mib: 80_000,
            compute_capability: 80,
            island: 0,
            numa: None,
        };
        let inventory = Inventory {
            devices: (0..count).map(device).collect(),
            cpu_milli: 1_000_000,
            memory_mib: 1_000_000,
            isolation: IsolationLevel::Descendants,
            version: "0.1.0".to_owned(),
            simulated: true,
        };
        self.apply(
            Principal::Node(node),
            Command::ReportInventory {
                node,
                incarnation,
                inventory,
            },
        )
        .unwrap();
    }

    fn request(&mut self, devices: u32, cap_micros: Option<u64>) -> LeaseId {
        let create = self.order(devices, cap_micros);
        self.create(create)
    }

    fn create(&mut self, create: CreateLease) -> LeaseId {
        self.apply(operator(), Command::CreateLease(Box::new(create))).unwrap();
        LeaseId::from_index(self.index)
    }

    fn order(&self, devices: u32, cap_micros: Option<u64>) -> CreateLease {
        CreateLease {
            tenant: name("blue"),
            kind: LeaseKind::Job,
            label: None,
            request: ResourceRequest {
                devices_min: devices,
                devices_max: devices,
                models: Vec::new(),
                same_model: true,
                single_node: false,
                cpu_milli_per_device: 1_000,
                memory_mib_per_device: 1_000,
                zones: Vec::new(),
                spread: Spread::Pack,
            },
            terms: Terms {
                duration: self.duration,
                plan: Plan::OnDemand,
                cap_micros,
                isolation: Isolation::Freeze,
                priority: 0,
                grace: Span::seconds(1),
            },
            workload: Workload {
                command: vec!["true".to_owned()],
                environment: Vec::new(),
                folder: None,
                image: None,
                checkpoints: false,
            },
        }
    }

    /// Every node says that its build knows the rules of a level.
    fn know(&mut self, level: u32) {
        for node in self.nodes.clone() {
            let known = self.state().nodes.get(&node).unwrap().clone();
            let mut inventory = known.inventory.clone().unwrap();
            inventory.version = format!("0.1.0+rules.{level}.simulate");
            let incarnation = known.incarnation.unwrap();
            let report = Command::ReportInventory {
                node,
                incarnation,
                inventory,
            };
            self.apply(Principal::Node(node), report).unwrap();
        }
    }

    /// Requests a part of one device.
    fn request_part(&mut self, milli: u16) -> LeaseId {
        let whole = self.request(1, None);
        let requested = self.state().leases.get(&whole).unwrap().requested.clone();
        self.apply(operator(), Command::ReleaseLease { lease: whole }).unwrap();
        let create = CreateLeaseWith {
            lease: CreateLease {
                tenant: requested.tenant.clone(),
                kind: requested.kind,
                label: None,
                request: requested.request.clone(),
                terms: requested.terms.clone(),
                workload: requested.workload.clone(),
            },
            conditions: vec![Condition::Share(Box::new(Share { milli }))],
        };
        self.apply(operator(), Command::CreateLeaseWith(Box::new(create)))
            .unwrap();
        LeaseId::from_index(self.index)
    }

    /// The members of a lease that must stop prove that they have.
    fn stop(&mut self, lease: LeaseId) {
        let found = self.state().leases.get(&lease).unwrap().clone();
        let attempt = found.placement.as_ref().unwrap().attempt;
        for node in found.nodes().collect::<Vec<_>>() {
            let exited = Command::ReportExited {
                lease,
                epoch: found.epoch,
                attempt,
                node,
                exit: Exit::Stopped,
            };
            self.apply(Principal::Node(node), exited).unwrap();
        }
    }

    /// One second passes: what is placed starts, what is to end ends.
    fn second(&mut self, scheduler: &mut Scheduler) {
        self.now_ms += 1_000;
        self.settle(scheduler);
        let live: Vec<_> = self
            .state()
            .live_leases()
            .map(|lease| (lease.id(), lease.status))
            .collect();
        for (lease, status) in live {
            match status {
                LeaseStatus::Placed => self.start(lease),
                LeaseStatus::Ending(_) => self.stop(lease),
                _ => {}
            }
        }
        self.settle(scheduler);
    }

    /// Steps the scheduler and applies what it proposes until it has nothing left to say; returns all of it.
    fn settle(&mut self, scheduler: &mut Scheduler) -> Vec<Command> {
        let mut said = Vec::new();
        loop {
            let commands = scheduler.step(self.now_ms, Timestamp(self.now_ms), self.state());
            if commands.is_empty() {
                return said;
            }
            for command in &commands {
                self.apply(Principal::Node(NodeId(1)), command.clone()).unwrap();
            }
            said.extend(commands);
        }
    }

    /// The members of the lease's placement prepare and start it.
    fn start(&mut self, lease: LeaseId) {
        let found = self.state().leases.get(&lease).unwrap().clone();
        let (epoch, follows) = (found.epoch, found.placement.as_ref().unwrap().attempt);
        for node in found.nodes().collect::<Vec<_>>() {
            let incarnation = self.state().nodes.get(&node).unwrap().incarnation.unwrap();
            let prepared = Command::ReportPrepared {
                lease,
                epoch,
                follows,
                node,
                incarnation,
            };
            self.apply(Principal::Node(node), prepared).unwrap();
        }
        for node in found.nodes().collect::<Vec<_>>() {
            let started = Command::ReportStarted {
                lease,
                epoch,
                attempt: follows.next(),
                node,
            };
            self.apply(Principal::Node(node), started).unwrap();
        }
        assert_eq!(self.status(lease), LeaseStatus::Active);
    }

    fn lose(&mut self, node: NodeId) {
        let leader = Principal::Node(self.nodes.iter().copied().find(|other| *other != node).unwrap_or(node));
        let leader = if node == NodeId(1) {
            leader
        } else {
            Principal::Node(NodeId(1))
        };
        let generation = self.state().nodes.get(&node).unwrap().generation;
        self.apply(leader.clone(), Command::MarkNodeUnreachable { node, generation })
            .unwrap();
        self.apply(leader, Command::MarkNodeLost { node, generation }).unwrap();
    }

    fn status(&self, lease: LeaseId) -> LeaseStatus {
        self.state().leases.get(&lease).unwrap().status
    }

    fn reason(&self, lease: LeaseId) -> Option<String> {
        self.state().leases.get(&lease).unwrap().reason.clone()
    }

    fn nodes_of(&self, lease: LeaseId) -> Vec<u64> {
        self.state()
            .leases
            .get(&lease)
            .unwrap()
            .nodes()
            .map(|node| node.0)
            .collect()
    }
}

fn ends(commands: &[Command]) -> Vec<(LeaseId, EndReason)> {
    let end = |command: &Command| match command {
        Command::EndLease { lease, reason, .. } => Some((*lease, *reason)),
        _ => None,
    };
    commands.iter().filter_map(end).collect()
}

#[test]
fn a_lease_is_placed_on_the_cheapest_model_and_the_next_ones_beside_it() {
    let mut cluster = Cluster::new(&[(8, "h100"), (4, "a100"), (4, "a100")]);
    let mut scheduler = Scheduler::new();
    let (first, second, third) = (
        cluster.request(3, None),
        cluster.request(4, None),
        cluster.request(2, None),
    );
    let said = cluster.settle(&mut scheduler);
    assert_eq!(said.len(), 3);
    assert_eq!(cluster.nodes_of(first), [2]);
    assert_eq!(cluster.nodes_of(second), [3]);
    assert_eq!(
        cluster.nodes_of(third),
        [1],
        "one a100 is left, two h100 are of one model"
    );
    assert!(
        said.iter()
            .all(|command| matches!(command, Command::CommitPlacement { .. }))
    );
}

#[test]
fn of_two_gangs_that_want_everything_one_runs_and_the_other_holds_nothing() {
    let nodes = vec![(1, "a100"); 20];
    let mut cluster = Cluster::new(&nodes);
    let mut scheduler = Scheduler::new();
    let (first, second) = (cluster.request(20, None), cluster.request(20, None));
    cluster.settle(&mut scheduler);
    assert_eq!(cluster.status(first), LeaseStatus::Placed);
    assert_eq!(cluster.status(second), LeaseStatus::Pending);
    assert_eq!(cluster.reason(second).unwrap(), "busy: 0 of 20 devices free, 20 asked");
    let holders: std::collections::BTreeSet<LeaseId> = cluster
        .state()
        .devices
        .values()
        .filter_map(|slot| slot.holder)
        .map(|holder| holder.lease)
        .collect();
    assert_eq!(holders, [first].into());
}

#[test]
fn a_small_lease_passes_a_large_one_that_waits() {
    let mut cluster = Cluster::new(&[(8, "a100"), (8, "a100")]);
    let mut scheduler = Scheduler::new();
    let first = cluster.request(10, None);
    cluster.settle(&mut scheduler);
    let (large, small) = (cluster.request(12, None), cluster.request(4, None));
    cluster.settle(&mut scheduler);
    assert_eq!(cluster.status(first), LeaseStatus::Placed);
    assert_eq!(cluster.status(large), LeaseStatus::Pending);
    assert_eq!(cluster.status(small), LeaseStatus::Placed);
}

#[test]
fn a_proposal_on_its_way_is_not_made_twice_and_one_that_was_lost_is_made_again() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    cluster.request(3, None);
    let stamp = Timestamp(cluster.now_ms);
    let first = scheduler.step(0, stamp, cluster.state());
    assert_eq!(first.len(), 1);
    // Another lease comes while the first proposal is under way: it gets other devices.
    cluster.request(5, None);
    let second = scheduler.step(10, stamp, cluster.state());
    let devices = |commands: &[Command]| match &commands[0] {
        Command::CommitPlacement { allocations, .. } => allocations[0].devices.clone(),
        other => panic!("{other:?}"),
    };
    assert!(devices(&first).iter().all(|device| !devices(&second).contains(device)));
    assert!(scheduler.step(20, stamp, cluster.state()).is_empty());
    let again = scheduler.step(2_500, stamp, cluster.state());
    assert_eq!(again.len(), 2, "neither has shown in the state");
}

#[test]
fn a_refused_proposal_is_planned_anew_at_once() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    let lease = cluster.request(3, None);
    let stamp = Timestamp(cluster.now_ms);
    assert_eq!(scheduler.step(0, stamp, cluster.state()).len(), 1);
    scheduler.settled(lease);
    assert_eq!(scheduler.step(1, stamp, cluster.state()).len(), 1);
}

#[test]
fn a_reason_is_told_once_and_again_only_when_it_changes() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    cluster.request(6, None);
    cluster.settle(&mut scheduler);
    let waits = cluster.request(4, None);
    assert_eq!(cluster.settle(&mut scheduler).len(), 1);
    assert_eq!(cluster.reason(waits).unwrap(), "busy: 2 of 8 devices free, 4 asked");
    cluster.now_ms += 60_000;
    let note = Command::Annotate {
        subject: name("note"),
        text: "nothing changes".to_owned(),
    };
    cluster.apply(operator(), note.clone()).unwrap();
    let reasons = |said: Vec<Command>| {
        said.iter()
            .filter(|c| matches!(c, Command::DeferPlacement { .. }))
            .count()
    };
    let said = cluster.settle(&mut scheduler);
    assert_eq!(reasons(said), 0);
    // A number moves: it is told, but not with every move.
    cluster.now_ms += 6_000;
    let cordon = |cordoned| Command::CordonNode {
        node: NodeId(1),
        cordoned,
        reason: "fan".to_owned(),
    };
    cluster.apply(operator(), cordon(true)).unwrap();
    let said = cluster.settle(&mut scheduler);
    assert_eq!(reasons(said), 1);
    assert!(cluster.reason(waits).unwrap().contains("1 cordoned"));
    cluster.apply(operator(), cordon(false)).unwrap();
    let said = cluster.settle(&mut scheduler);
    assert_eq!(reasons(said), 0);
    cluster.now_ms += 6_000;
    let said = cluster.settle(&mut scheduler);
    assert_eq!(
        reasons(said),
        1,
        "what was held back is told in its time, though nothing was applied since"
    );
}

#[test]
fn a_plan_that_the_log_keeps_refusing_is_proposed_ever_more_rarely() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    let lease = cluster.request(3, None);
    let stamp = Timestamp(cluster.now_ms);
    let mut proposed = Vec::new();
    for now_ms in 0..60_000 {
        if !scheduler.step(now_ms, stamp, cluster.state()).is_empty() {
            proposed.push(now_ms);
            scheduler.settled(lease);
        }
    }
    assert_eq!(proposed[..5], [0, 1, 202, 603, 1_404]);
    assert!(proposed.len() < 15, "{proposed:?}");
}

#[test]
fn a_leader_that_follows_tells_no_reason_again() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    cluster.request(6, None);
    cluster.request(4, None);
    cluster.settle(&mut scheduler);
    assert!(cluster.settle(&mut Scheduler::new()).is_empty());
}

#[test]
fn a_lease_of_a_lost_node_is_placed_elsewhere() {
    let mut cluster = Cluster::new(&[(8, "a100"), (8, "a100"), (8, "a100")]);
    let mut scheduler = Scheduler::new();
    let lease = cluster.request(8, None);
    cluster.settle(&mut scheduler);
    cluster.start(lease);
    let node = NodeId(cluster.nodes_of(lease)[0]);
    assert_ne!(node, NodeId(1), "the voter gets work last");
    cluster.lose(node);
    assert_eq!(cluster.status(lease), LeaseStatus::Migrating);
    cluster.settle(&mut scheduler);
    assert_eq!(cluster.status(lease), LeaseStatus::Placed);
    assert_eq!(cluster.state().leases.get(&lease).unwrap().epoch, Epoch(2));
    assert_ne!(cluster.nodes_of(lease)[0], node.0);
}

#[test]
fn expiry_names_the_renewal_that_was_seen_so_a_stalled_leader_ends_nothing() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let (mut stalled, mut awake) = (Scheduler::new(), Scheduler::new());
    let lease = cluster.request(2, None);
    cluster.settle(&mut awake);
    cluster.start(lease);
    cluster.now_ms += 59_000;
    let old_state = cluster.state().clone();
    cluster
        .apply(
            operator(),
            Command::RenewLease {
                lease,
                more: Span::seconds(60),
            },
        )
        .unwrap();
    cluster.now_ms += 2_000;
    // The stalled leader still looks at the state before the renewal.
    let late = stalled.step(0, Timestamp(cluster.now_ms), &old_state);
    assert_eq!(ends(&late), [(lease, EndReason::Expired)]);
    let refused = cluster.apply(Principal::Node(NodeId(1)), late[0].clone()).unwrap_err();
    assert!(matches!(refused, Rejection::RenewalStale { .. }), "{refused}");
    assert!(ends(&cluster.settle(&mut awake)).is_empty());
    assert_eq!(cluster.status(lease), LeaseStatus::Active);
}

#[test]
fn a_lease_ends_in_its_time_however_often_the_leader_changes() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let lease = cluster.request(2, None);
    cluster.settle(&mut Scheduler::new());
    cluster.start(lease);
    let began = cluster.now_ms;
    let mut ended = None;
    while ended.is_none() && cluster.now_ms < began + 120_000 {
        // A new leader every 20 s remembers nothing; the deadline is in the log.
        let mut leader = Scheduler::new();
        for _ in 0..200 {
            cluster.now_ms += 100;
            let said = cluster.settle(&mut leader);
            if ended.is_none() && !ends(&said).is_empty() {
                ended = Some(cluster.now_ms - began);
            }
        }
    }
    assert_eq!(ended, Some(60_000));
    assert_eq!(cluster.status(lease), LeaseStatus::Ending(EndReason::Expired));
}

#[test]
fn a_lease_ends_when_its_money_is_up() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    // Two devices at 2 an hour each cost a little over 1,111 micro-units a second.
    let lease = cluster.request(2, Some(11_111));
    cluster.settle(&mut scheduler);
    cluster.start(lease);
    let began = cluster.now_ms;
    while cluster.status(lease) == LeaseStatus::Active {
        cluster.now_ms += 100;
        cluster.settle(&mut scheduler);
    }
    assert_eq!(cluster.status(lease), LeaseStatus::Ending(EndReason::Capped));
    let ran_ms = cluster.now_ms - began;
    assert!((9_900..=10_100).contains(&ran_ms), "{ran_ms} ms");
    let _ = (Attempt(0), Generation(0));
}

#[test]
fn a_stream_of_small_leases_does_not_starve_a_large_one() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    for _ in 0..8 {
        cluster.request(1, None);
    }
    cluster.second(&mut scheduler);
    let large = cluster.request(8, None);
    let mut waited = 0;
    while cluster.status(large) == LeaseStatus::Pending {
        cluster.request(1, None);
        cluster.second(&mut scheduler);
        waited += 1;
        assert!(waited <= 70, "60 s after all devices were taken they are free again");
    }
    let small = cluster.state().waiting().count();
    assert!(small > 30, "{small} small leases wait behind it");
}

#[test]
fn a_lease_that_is_over_in_time_passes_on_what_is_kept() {
    let mut cluster = Cluster::new(&[(8, "a100")]);
    let mut scheduler = Scheduler::new();
    let running = cluster.request(6, None);
    cluster.second(&mut scheduler);
    let large = cluster.request(8, None);
    cluster.second(&mut scheduler);
    cluster.duration = Span::seconds(30);
    let short = cluster.request(1, None);
    cluster.duration = Span::seconds(3_600);
    let long = cluster.request(1, None);
    cluster.second(&mut scheduler);
    assert_eq!(cluster.status(short), LeaseStatus::Active);
    assert_eq!(cluster.status(long), LeaseStatus::Pending);
    let told = cluster.reason(long).unwrap();
    assert!(told.contains(&format!("kept for {large}")), "{told}");
    (0..70).for_each(|_| cluster.second(&mut scheduler));
    assert!(cluster.status(running).is_ended() && cluster.status(short).is_ended());
    assert_eq!(cluster.status(large), LeaseStatus::Active);
}

#[test]
fn nothing_is_kept_for_a_lease_that_no_end_of_others_helps() {
    let mut cluster = Cluster::new(&[(8, "a100"), (8, "a100")]);
    let mut scheduler = Scheduler::new();
    let large = cluster.request(16, None);
    cluster.lose(NodeId(2));
    let small = cluster.request(4, None);
    cluster.settle(&mut scheduler);
    assert_eq!(cluster.status(large), LeaseStatus::Pending);
    assert_eq!(cluster.status(small), LeaseStatus::Placed);
}

#[test]
fn what_keeps_a_lease_is_told_node_by_node_and_what_would_fit_is_placed() {
    let mut cluster = Cluster::new(&[(8, "a100"), (8, "a100"), (4, "h100")]);
    let mut scheduler = Scheduler::new();
    let running = cluster.request(8, None);
    cluster.second(&mut scheduler);
    let cordon = Command::CordonNode {
        node: NodeId(3),
        cordoned: true,
        reason: "fan".to_owned(),
    };
    cluster.apply(operator(), cordon).unwrap();
    let waits = cluster.request(10, None);
    cluster.settle(&mut scheduler);
    let lease = cluster.state().leases.get(&waits).unwrap();
    let told = explain::lease(cluster.state(), lease);
    assert_eq!(told.nodes, 3);
    assert_eq!(
        told.removed,
        [("are cordoned", 1), ("have no such device free", 1)],
        "the lease that runs has all of one node"
    );
    assert_eq!((told.largest, told.allocations.len()), (8, 0));
    assert!(told.reason.is_some());
    let ends = cluster.state().leases.get(&running).unwrap().expires;
    assert_eq!(told.earliest, ends);

    let mut request = lease.requested.request.clone();
    (request.devices_min, request.devices_max) = (8, 8);
    let tenant = name("blue");
    let fits = explain::order(cluster.state(), &tenant, &request, &[], Plan::OnDemand);
    assert_eq!((fits.reason, fits.allocations.len()), (None, 1));
    assert_eq!(fits.allocations[0].node, NodeId(1));
}

#[test]
fn work_of_a_lost_node_takes_even_a_place_that_is_kept() {
    let mut cluster = Cluster::new(&[(8, "a100"), (8, "a100")]);
    let mut scheduler = Scheduler::new();
    cluster.duration = Span::seconds(3_600);
    let running = cluster.request(6, None);
    cluster.second(&mut scheduler);
    let lost = NodeId(cluster.nodes_of(running)[0]);
    // More than is free, and for the place of which the first has to end.
    let large = cluster.request(12, None);
    cluster.second(&mut scheduler);
    assert_eq!(cluster.status(large), LeaseStatus::Pending);
    cluster.lose(lost);
    cluster.settle(&mut scheduler);
    assert_eq!(cluster.status(running), LeaseStatus::Placed);
    assert_ne!(cluster.nodes_of(running)[0], lost.0);
}

#[test]
fn new_rules_are_turned_on_when_every_node_knows_them() {
    let mut cluster = Cluster::new(&[(1, "a100"), (1, "a100")]);
    let mut scheduler = Scheduler::new();
    assert_eq!(cluster.settle(&mut scheduler), []);
    let nodes = cluster.nodes.clone();
    cluster.nodes.truncate(1);
    cluster.know(2);
    assert_eq!(cluster.settle(&mut scheduler), []);
    cluster.nodes = nodes;
    cluster.know(99);
    let raised: Vec<Command> = (2..=LEVEL_MAX)
        .map(|level| Command::RaiseMachineLevel { level })
        .collect();
    assert_eq!(cluster.settle(&mut scheduler), raised);
    assert_eq!(cluster.state().cluster.level, LEVEL_MAX);
}

#[test]
fn parts_of_devices_are_packed_and_never_add_up_to_more_than_the_whole() {
    let mut cluster = Cluster::new(&[(1, "a100"), (2, "a100")]);
    let mut scheduler = Scheduler::new();
    cluster.know(2);
    cluster.settle(&mut scheduler);
    let parts: Vec<_> = [600, 400, 700, 300, 999, 2]
        .into_iter()
        .map(|milli| cluster.request_part(milli))
        .collect();
    cluster.settle(&mut scheduler);
    let placed: Vec<_> = parts
        .iter()
        .filter(|lease| !cluster.nodes_of(**lease).is_empty())
        .collect();
    assert_eq!(placed.len(), 5, "1,000 + 1,000 + 999 fit, and 2 do not");
    assert_eq!(cluster.reason(parts[5]).unwrap(), "busy: 0 of 3 devices free, 1 asked");
    cluster.start(parts[0]);
    cluster
        .apply(operator(), Command::ReleaseLease { lease: parts[0] })
        .unwrap();
    cluster.stop(parts[0]);
    cluster.settle(&mut scheduler);
    assert_eq!(cluster.status(parts[5]), LeaseStatus::Placed);
    assert_eq!(holdfast_storage::machine::invariant::check(cluster.state()), []);
}

#[test]
fn a_drained_node_is_left_by_all_and_called_drained_when_they_have_proven_it() {
    let mut cluster = Cluster::new(&[(2, "a100"), (2, "a100"), (2, "a100")]);
    cluster.duration = Span::seconds(600);
    let mut scheduler = Scheduler::new();
    cluster.know(2);
    cluster.settle(&mut scheduler);
    let (waits, runs) = (cluster.request(1, None), cluster.request(1, None));
    cluster.settle(&mut scheduler);
    assert_eq!((cluster.nodes_of(waits), cluster.nodes_of(runs)), (vec![2], vec![2]));
    cluster.start(runs);
    let node = NodeId(2);
    let drain = Command::DrainNode {
        node,
        span: Span::seconds(60),
        reason: "fan".to_owned(),
    };
    cluster.apply(operator(), drain).unwrap();
    // What has not begun moves at once; what runs and has saved nothing may go on until the deadline.
    cluster.settle(&mut scheduler);
    assert_eq!((cluster.nodes_of(waits), cluster.nodes_of(runs)), (vec![3], vec![2]));
    cluster.now_ms += 59_000;
    assert_eq!(cluster.settle(&mut scheduler), []);
    cluster.now_ms += 1_000;
    let epoch = Epoch(1);
    let evict = Command::EvictLease {
        lease: runs,
        epoch,
        node,
    };
    assert!(cluster.settle(&mut scheduler).contains(&evict));
    assert_eq!(cluster.status(runs), LeaseStatus::Migrating);
    let drained = |cluster: &Cluster| cluster.state().drains.get(&node).unwrap().drained.is_some();
    cluster.now_ms += 60_000;
    cluster.settle(&mut scheduler);
    assert!(!drained(&cluster), "it has been told to stop, and has not proven it");
    cluster.stop(runs);
    cluster.settle(&mut scheduler);
    assert!(drained(&cluster));
    assert_eq!(cluster.nodes_of(runs), [3]);
    let uncordon = Command::CordonNode {
        node,
        cordoned: false,
        reason: String::new(),
    };
    cluster.apply(operator(), uncordon).unwrap();
    assert!(cluster.state().drains.is_empty());
}
