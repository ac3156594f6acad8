//! Each check is tried on a state that was broken by hand: one that finds nothing would prove nothing.

use std::sync::Arc;

use holdfast_proto::event::LeaseRequested;
use holdfast_proto::id::{Attempt, Epoch, FencingToken, Generation, Incarnation, LeaseId, NodeId};
use holdfast_proto::lease::{EndReason, Isolation, LeaseKind, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::placement::Allocation;
use holdfast_proto::tariff::ChargeLine;
use holdfast_proto::time::Timestamp;
use holdfast_proto::workload::Workload;

use super::super::state::{Member, Meter, Stretch};
use super::*;

fn lease(index: u64) -> Lease {
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
        duration: Span(60_000),
        plan: Plan::OnDemand,
        cap_micros: Some(1000),
        isolation: Isolation::Freeze,
        priority: 0,
        grace: Span(0),
    };
    let workload = Workload {
        command: vec!["train".to_owned()],
        environment: Vec::new(),
        folder: None,
        image: None,
        checkpoints: false,
    };
    let requested = LeaseRequested {
        lease: LeaseId::from_index(index),
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
        status: LeaseStatus::Pending,
        since: Timestamp(0),
        epoch: Epoch(0),
        placement: None,
        earlier: Vec::new(),
        devices: 1,
        duration: Span(60_000),
        expires: None,
        renewal: index,
        failed_attempts: 0,
        failed_on: Vec::new(),
        checkpoints: Vec::new(),
        reason: None,
        meter: Meter::default(),
        exit_code: None,
    }
}

fn placement(epoch: u32, run: Run) -> Placement {
    let allocation = Allocation {
        node: NodeId(1),
        rank: 0,
        devices: vec![DeviceId([7; 16])],
        cpu_milli: 0,
        memory_mib: 0,
    };
    let member = Member {
        allocation,
        prepared: None,
        run,
        lost: None,
        released: false,
    };
    Placement {
        epoch: Epoch(epoch),
        token: FencingToken::default(),
        granted: Timestamp(0),
        micros_per_hour: 3_600_000,
        restore: None,
        members: vec![member],
        attempt: Attempt(1),
        activated: false,
        over: false,
        given_up: false,
    }
}

fn starting(index: u64) -> Lease {
    let mut lease = lease(index);
    lease.status = LeaseStatus::Starting;
    lease.epoch = Epoch(1);
    lease.placement = Some(placement(1, Run::Accepted(Incarnation(1))));
    lease
}

/// Makes a lease whose one member runs.
pub(in super::super) fn active(micros_per_hour: u64, cap_micros: Option<u64>) -> Lease {
    let mut lease = starting(1);
    let mut requested = (*lease.requested).clone();
    requested.terms.cap_micros = cap_micros;
    lease.requested = Arc::new(requested);
    lease.status = LeaseStatus::Active;
    if let Some(placement) = &mut lease.placement {
        placement.micros_per_hour = micros_per_hour;
        placement.activated = true;
    }
    lease
}

/// Returns the numbers of the invariants that a state with these leases breaks.
fn broken(leases: impl IntoIterator<Item = Lease>) -> Vec<u8> {
    let mut state = State::default();
    for lease in leases {
        state.leases.insert(lease.id(), Arc::new(lease));
    }
    state.reindex();
    let mut numbers: Vec<u8> = check(&state).iter().map(|violation| violation.invariant).collect();
    numbers.dedup();
    numbers
}

#[test]
fn a_sound_state_breaks_nothing() {
    assert_eq!(broken([lease(1), starting(2)]), [0; 0]);
}

#[test]
fn a_device_in_two_leases_is_found() {
    assert_eq!(broken([starting(1), starting(2)]), [1]);
}

#[test]
fn two_epochs_that_may_run_are_found() {
    let mut lease = starting(1);
    lease.earlier.push(placement(0, Run::Started(Incarnation(1))));
    assert_eq!(broken([lease]), [2]);
}

#[test]
fn half_a_gang_is_found() {
    let mut lease = starting(1);
    let mut requested = (*lease.requested).clone();
    (requested.request.devices_min, requested.request.devices_max) = (2, 2);
    lease.requested = Arc::new(requested);
    assert_eq!(broken([lease]), [3]);
}

#[test]
fn an_index_that_is_out_of_step_is_found() {
    let mut state = State::default();
    state.index.waiting.insert((0, LeaseId::from_index(9)), ());
    assert_eq!(check(&state)[0].invariant, 5);
}

#[test]
fn a_line_that_does_not_follow_and_a_sum_that_is_off_are_found() {
    let mut lease = lease(1);
    let mut line = ChargeLine {
        lease: lease.id(),
        epoch: Epoch(1),
        meter: "device-time".parse().unwrap(),
        from: Timestamp(0),
        until: Timestamp(3_600_000),
        unpaid: Span(0),
        micros_per_hour: 100,
        amount_micros: 100,
        opened_at: holdfast_proto::id::Cursor::default(),
    };
    lease.meter.lines = vec![line.clone()];
    lease.meter.charged_micros = 100;
    assert_eq!(broken([lease.clone()]), [0; 0]);
    lease.meter.charged_micros = 99;
    assert_eq!(broken([lease.clone()]), [7]);
    line.amount_micros = 101;
    lease.meter.lines = vec![line];
    lease.meter.charged_micros = 101;
    assert_eq!(broken([lease]), [7]);
}

#[test]
fn a_cap_that_is_overrun_and_a_bill_after_the_end_are_found() {
    let mut lease = lease(1);
    lease.meter.lines = vec![ChargeLine {
        lease: lease.id(),
        epoch: Epoch(1),
        meter: "device-time".parse().unwrap(),
        from: Timestamp(0),
        until: Timestamp(3_600_000),
        unpaid: Span(0),
        micros_per_hour: 1001,
        amount_micros: 1001,
        opened_at: holdfast_proto::id::Cursor::default(),
    }];
    lease.meter.charged_micros = 1001;
    assert_eq!(broken([lease.clone()]), [8]);
    lease.meter = Meter::default();
    lease.status = LeaseStatus::Ended(EndReason::Completed);
    assert_eq!(broken([lease.clone()]), [0; 0]);
    lease.meter.open = Some(Stretch {
        epoch: Epoch(1),
        from: Timestamp(0),
        unpaid: Span(0),
        suspended: None,
        frozen: None,
        micros_per_hour: 1,
        opened_at: holdfast_proto::id::Cursor::default(),
    });
    assert_eq!(broken([lease]), [8]);
}

#[test]
fn an_end_that_is_not_proven_is_found() {
    let mut lease = starting(1);
    lease.status = LeaseStatus::Ended(EndReason::Released);
    assert_eq!(broken([lease]), [9]);
}

#[test]
fn a_loss_that_nobody_declared_is_found() {
    let mut lease = starting(1);
    lease.status = LeaseStatus::Migrating;
    if let Some(placement) = &mut lease.placement {
        placement.members[0].lost = Some(Generation(1));
    }
    assert_eq!(broken([lease]), [10]);
}
