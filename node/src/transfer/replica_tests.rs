#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use holdfast_proto::event::LeaseRequested;
use holdfast_proto::id::{Epoch, Era, FencingToken};
use holdfast_proto::lease::{EndReason, Isolation, LeaseKind, LeaseStatus, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::node::{NodeAddress, NodeSpec};
use holdfast_proto::placement::Allocation;
use holdfast_proto::time::Span;
use holdfast_proto::workload::Workload;
use holdfast_storage::machine::state::{Member, Meter, Node, Placement, Run};

use super::*;
use crate::transfer::test_wire::{LEASE, fence};

/// A state with nodes 1 (zone a), 2 (zone b) and 3 (zone c), and a lease whose only member runs on node 1.
pub(in crate::transfer) fn state() -> State {
    let mut state = State::default();
    state.applied.index = 100;
    for (id, zone) in [(1, "a"), (2, "b"), (3, "c")] {
        state.nodes.insert(NodeId(id), Arc::new(node(id, zone)));
    }
    state.leases.insert(LEASE, Arc::new(lease()));
    state
}

fn node(id: u64, zone: &str) -> Node {
    let address = NodeAddress {
        host: "127.0.0.1".into(),
        main_port: 1,
        lease_port: 2,
        bulk_port: 3,
    };
    let spec = NodeSpec {
        node: NodeId(id),
        label: format!("n{id}").parse().unwrap(),
        zone: zone.parse().unwrap(),
        role: NodeRole::Replica,
        address,
        key: Digest::default(),
    };
    Node {
        spec,
        status: NodeStatus::Ready,
        since: Timestamp(0),
        joined: Timestamp(0),
        incarnation: None,
        boot: None,
        generation: Default::default(),
        inventory: None,
        inventory_by: None,
        cordoned: None,
        quiet_until: None,
        launch_failures: 0,
        clock_offset_ms: None,
        devices: Default::default(),
    }
}

fn lease() -> Lease {
    let request = ResourceRequest {
        devices_min: 1,
        devices_max: 1,
        models: Vec::new(),
        same_model: false,
        single_node: false,
        cpu_milli_per_device: 0,
        memory_mib_per_device: 0,
        zones: Vec::new(),
        spread: Spread::Pack,
    };
    let terms = Terms {
        duration: Span::seconds(60),
        plan: Plan::OnDemand,
        cap_micros: None,
        isolation: Isolation::Freeze,
        priority: 0,
        grace: Span(1000),
    };
    let workload = Workload {
        command: vec!["true".into()],
        environment: Vec::new(),
        folder: None,
        image: None,
        checkpoints: true,
    };
    let requested = LeaseRequested {
        lease: LEASE,
        tenant: "blue".parse().unwrap(),
        project: None,
        kind: LeaseKind::Job,
        label: None,
        request,
        terms,
        workload,
        tariff: 1,
    };
    Lease {
        requested: Arc::new(requested),
        requested_at: Timestamp(0),
        status: LeaseStatus::Active,
        since: Timestamp(0),
        epoch: Epoch(1),
        placement: Some(placement()),
        earlier: Vec::new(),
        devices: 1,
        duration: Span::seconds(60),
        expires: None,
        renewal: 12,
        failed_attempts: 0,
        failed_on: Vec::new(),
        checkpoints: Vec::new(),
        reason: None,
        meter: Meter::default(),
        exit_code: None,
    }
}

fn placement() -> Placement {
    let allocation = Allocation {
        node: NodeId(1),
        rank: 0,
        devices: Vec::new(),
        cpu_milli: 1000,
        memory_mib: 64,
    };
    let member = Member {
        allocation,
        prepared: None,
        run: Run::Started(Default::default()),
        lost: None,
        released: false,
    };
    Placement {
        epoch: Epoch(1),
        token: FencingToken { era: Era(0), index: 42 },
        granted: Timestamp(0),
        micros_per_hour: 0,
        restore: None,
        members: vec![member],
        attempt: Attempt(1),
        activated: true,
        over: false,
        given_up: false,
    }
}

pub(in crate::transfer) fn change(state: &mut State, with: impl FnOnce(&mut Lease)) {
    let mut lease = Lease::clone(state.leases.get(&LEASE).unwrap());
    with(&mut lease);
    state.leases.insert(LEASE, Arc::new(lease));
}

fn set_status(state: &mut State, id: u64, status: NodeStatus) {
    let mut node = Node::clone(state.nodes.get(&NodeId(id)).unwrap());
    node.status = status;
    state.nodes.insert(NodeId(id), Arc::new(node));
}

pub(in crate::transfer) fn checkpoint(step: u64, holders: &[u64]) -> Checkpoint {
    Checkpoint {
        step,
        rank: 0,
        manifest: Digest([step as u8; 32]),
        bytes: 1,
        holders: holders.iter().copied().map(NodeId).collect(),
    }
}

/// Remembers what was proposed, and says that it was applied.
#[derive(Default)]
pub(in crate::transfer) struct Log(pub(in crate::transfer) Mutex<Vec<Envelope>>);

impl Propose for Log {
    fn propose(&self, envelope: Envelope) -> BoxFuture<'_, Outcome> {
        self.0.lock().unwrap().push(envelope);
        Box::pin(std::future::ready(Outcome::Applied {
            index: 101,
            events: Vec::new(),
        }))
    }
}

fn replica(own: u64, state: State) -> Replica {
    let state = Arc::new(state);
    Replica::new(NodeId(own), Arc::new(move || state.clone()), Arc::new(Log::default()))
}

fn attempt(index: u64, attempt: u32) -> Fence {
    Fence {
        attempt: Attempt(attempt),
        ..fence(index)
    }
}

#[test]
fn only_the_present_start_of_a_member_may_push() {
    let replica = replica(2, state());
    let may = |from, fence| replica.may_push(NodeId(from), LEASE, fence);
    let newest = attempt(42, 1);
    assert_eq!(may(1, newest), Permission::Granted);
    assert_eq!(
        may(1, attempt(42, 2)),
        Permission::Granted,
        "the coming attempt is shown before it is accepted"
    );
    assert_eq!(may(3, newest), Permission::Denied);
    assert_eq!(may(1, attempt(41, 9)), Permission::Stale(newest));
    assert_eq!(may(1, attempt(42, 0)), Permission::Stale(newest));
    assert_eq!(
        may(1, attempt(101, 1)),
        Permission::NotYet,
        "a token that this replica has not applied"
    );
    assert_eq!(
        may(1, attempt(43, 1)),
        Permission::Denied,
        "a token that nobody was granted"
    );
}

#[test]
fn a_lease_that_is_not_applied_yet_is_told_from_one_that_is_gone() {
    let replica = replica(2, state());
    let gone = LeaseId::from_index(13);
    let coming = LeaseId::from_index(101);
    assert_eq!(replica.may_push(NodeId(1), gone, fence(42)), Permission::Denied);
    assert_eq!(replica.may_push(NodeId(1), coming, fence(42)), Permission::NotYet);
    assert_eq!(replica.may_read(NodeId(1), gone), Permission::Denied);
    assert_eq!(replica.may_read(NodeId(1), coming), Permission::NotYet);
}

#[test]
fn members_and_holders_may_read_and_strangers_may_not() {
    let mut state = state();
    change(&mut state, |lease| lease.checkpoints.push(checkpoint(1, &[1, 2])));
    let replica = replica(2, state);
    assert_eq!(replica.may_read(NodeId(1), LEASE), Permission::Granted);
    assert_eq!(replica.may_read(NodeId(2), LEASE), Permission::Granted);
    assert_eq!(
        replica.may_read(NodeId(3), LEASE),
        Permission::NotYet,
        "it may be a member that is not applied here"
    );
    assert_eq!(replica.may_read(NodeId(9), LEASE), Permission::Denied);
}

#[test]
fn a_checkpoint_goes_to_another_zone_and_waits_when_all_others_are_silent() {
    let mut state = state();
    change(&mut state, |lease| lease.checkpoints.push(checkpoint(1, &[1, 3])));
    assert_eq!(replica(1, state.clone()).targets(LEASE), [NodeId(3), NodeId(2)]);
    set_status(&mut state, 3, NodeStatus::Unreachable);
    assert_eq!(replica(1, state.clone()).targets(LEASE), [NodeId(2)]);
    set_status(&mut state, 2, NodeStatus::Lost);
    assert_eq!(replica(1, state.clone()).targets(LEASE).len(), 2, "silent is not alone");
    set_status(&mut state, 2, NodeStatus::Removed);
    set_status(&mut state, 3, NodeStatus::Removed);
    assert!(replica(1, state).targets(LEASE).is_empty());
}

#[test]
fn the_gates_are_the_stores_that_hold_something_or_will() {
    let mut state = state();
    assert_eq!(replica(1, state.clone()).gates(LEASE).len(), 1);
    change(&mut state, |lease| {
        lease.checkpoints = vec![checkpoint(1, &[1, 2]), checkpoint(2, &[1, 3])]
    });
    assert_eq!(replica(1, state.clone()).gates(LEASE), [NodeId(2), NodeId(3)]);
    set_status(&mut state, 3, NodeStatus::Lost);
    assert_eq!(replica(1, state).gates(LEASE), [NodeId(2)]);
}

#[test]
fn a_first_attempt_resumes_where_the_log_said_and_a_later_one_from_what_was_saved_since() {
    let mut state = state();
    let point = |state: &State, number| {
        replica(1, state.clone())
            .restore_point(LEASE, attempt(42, number))
            .map(|checkpoint| checkpoint.step)
    };
    assert_eq!(point(&state, 1), None);
    change(&mut state, |lease| {
        lease.checkpoints = vec![checkpoint(10, &[2]), checkpoint(20, &[1, 2]), checkpoint(30, &[3])];
        lease.placement.as_mut().unwrap().restore = Some(checkpoint(10, &[2]));
    });
    assert_eq!(point(&state, 1), Some(10));
    assert_eq!(point(&state, 2), Some(30));
    set_status(&mut state, 3, NodeStatus::Lost);
    assert_eq!(point(&state, 2), Some(20));
    assert_eq!(
        replica(1, state).restore_point(LEASE, attempt(41, 2)),
        None,
        "an older placement restores nothing"
    );
}

#[test]
fn holders_that_can_be_heard_are_asked_first() {
    let mut state = state();
    change(&mut state, |lease| {
        lease.placement.as_mut().unwrap().restore = Some(checkpoint(10, &[2, 3]))
    });
    set_status(&mut state, 2, NodeStatus::Lost);
    let point = replica(1, state).restore_point(LEASE, attempt(42, 1)).unwrap();
    assert_eq!(point.holders, [NodeId(3), NodeId(2)]);
}

#[test]
fn the_newest_two_are_kept_with_what_is_pinned_and_what_is_on_its_way() {
    let mut state = state();
    change(&mut state, |lease| {
        lease.checkpoints = (1..=5).map(|step| checkpoint(step, &[1])).collect();
        lease.placement.as_mut().unwrap().restore = Some(checkpoint(2, &[1]));
    });
    let keep = Keep::of(state.leases.get(&LEASE).unwrap());
    let kept: Vec<u64> = (1..=7)
        .filter(|step| keep.wants(*step, Digest([*step as u8; 32])))
        .collect();
    assert_eq!(kept, [2, 4, 5, 6, 7]);
    assert!(
        !keep.wants(5, Digest([99; 32])),
        "another checkpoint of a committed step"
    );
}

#[test]
fn the_store_forgets_leases_that_have_ended_and_none_that_are_still_coming() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path().join("store")).unwrap();
    let coming = LeaseId::from_index(101);
    let gone = LeaseId::from_index(13);
    for lease in [LEASE, coming, gone] {
        store.show(lease, fence(42)).unwrap();
    }
    let mut state = state();
    replica(1, state.clone()).keep_house(&store).unwrap();
    assert_eq!(store.leases().unwrap(), [coming, LEASE]);
    change(&mut state, |lease| {
        lease.status = LeaseStatus::Ended(EndReason::Completed)
    });
    replica(1, state).keep_house(&store).unwrap();
    assert_eq!(store.leases().unwrap(), [coming]);
}

#[tokio::test]
async fn a_commit_is_proposed_as_the_node_itself() {
    let log = Arc::new(Log::default());
    let state = Arc::new(state());
    let replica = Replica::new(NodeId(1), Arc::new(move || state.clone()), log.clone());
    replica.commit(LEASE, fence(42), checkpoint(1, &[1, 2])).await;
    let envelope = log.0.lock().unwrap().remove(0);
    assert_eq!(
        (envelope.principal, envelope.origin),
        (Principal::Node(NodeId(1)), NodeId(1))
    );
    assert!(matches!(
        envelope.command,
        Command::CommitCheckpoint { lease: LEASE, .. }
    ));
}
