//! One sample of every event.

#![allow(dead_code, unreachable_pub)]

use holdfast_proto::condition::{Condition, Share};
use holdfast_proto::event::{Event, LeaseRequested};
use holdfast_proto::id::{Attempt, ClusterId, Cursor, Epoch, Era, Generation, Incarnation, LeaseId, NodeId};
use holdfast_proto::lease::{EndReason, LeaseKind};
use holdfast_proto::node::NodeRole;
use holdfast_proto::placement::Exit;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tenant::{JoinToken, Quota};
use holdfast_proto::time::{Span, Timestamp};

use crate::values::{
    LEASE, NODE, TOKEN, access_token, address, allocation, boot, charge_line, checkpoint, digest, edge, fence,
    inventory, limits, name, request, rollup, spec, subscription, tariff, terms, work, workload,
};

pub fn all() -> Vec<Event> {
    let mut all = cluster();
    all.extend(nodes());
    all.extend(leases());
    all.extend(placements());
    all.extend(subscriptions());
    all.sort_by_key(Event::tag);
    all
}

fn cluster() -> Vec<Event> {
    vec![
        Event::ClusterInitialized {
            cluster: ClusterId([0x51; 16]),
            era: Era(1),
        },
        Event::VotersChanged {
            voters: vec![NodeId(1), NODE],
        },
        Event::JoinTokenCreated(JoinToken {
            token: TOKEN,
            secret: digest(0x52),
            role: NodeRole::Replica,
            expires: Timestamp(1_700_000_900_000),
        }),
        Event::AccessTokenCreated(access_token()),
        Event::TokenRevoked { token: TOKEN },
        Event::TenantSet {
            tenant: name("blue"),
            quota: Quota { devices_max: 64 },
        },
        Event::LimitsSet {
            tenant: name("blue"),
            limits: limits(),
        },
        Event::TariffSet(tariff()),
        Event::StateHashRecorded {
            at: Cursor { index: 88, sub: 3 },
            hash: digest(0x53),
        },
        Event::MachineLevelRaised { level: 2 },
        Event::TimeSet {
            time: Timestamp(1_700_000_009_000),
        },
        Event::Annotated {
            subject: name("upgrade"),
            text: "begins now".to_owned(),
        },
        Event::RequestRefused {
            rejection: Rejection::QuotaExceeded {
                tenant: name("blue"),
                asked: 9,
                left: 8,
            },
        },
    ]
}

fn nodes() -> Vec<Event> {
    let (node, generation) = (NODE, Generation(4));
    vec![
        Event::NodeJoined {
            spec: spec(),
            token: Some(TOKEN),
        },
        Event::NodeRegistered {
            node,
            incarnation: Incarnation(0x54),
            boot: boot(),
            address: address(),
        },
        Event::InventoryReported {
            node,
            inventory: inventory(),
        },
        Event::NodeUnreachable { node, generation },
        Event::NodeLost { node, generation },
        Event::NodeReturned {
            node,
            generation,
            work: vec![work()],
        },
        Event::NodeCordoned {
            node,
            cordoned: true,
            reason: "fan".to_owned(),
        },
        Event::NodeRemoved { node },
        Event::NodeQuieted {
            node,
            until: Timestamp(1_700_000_060_000),
        },
        Event::DeviceGraded { node, edge: edge() },
        Event::RollupReported {
            node,
            rollups: vec![rollup()],
        },
        Event::ClockSuspected {
            node,
            offset_ms: -3_600_000,
        },
    ]
}

fn leases() -> Vec<Event> {
    let (lease, epoch, attempt, node) = (LEASE, Epoch(5), Attempt(6), NODE);
    vec![
        Event::LeaseRequested(Box::new(LeaseRequested {
            lease,
            tenant: name("blue"),
            project: Some(name("vision")),
            kind: LeaseKind::Service,
            label: Some(name("serve-7b")),
            request: request(),
            terms: terms(),
            workload: workload(),
            tariff: 7,
        })),
        Event::NodeDraining {
            node: NODE,
            until: Timestamp(1_700_000_900_000),
        },
        Event::LeaseEvicted {
            lease,
            epoch: Epoch(5),
            node: NODE,
        },
        Event::NodeDrained { node: NODE },
        Event::LeasePreempted {
            lease,
            epoch: Epoch(5),
            by: LeaseId::from_index(99),
        },
        Event::LeaseConditioned {
            lease,
            conditions: vec![Condition::Share(Box::new(Share { milli: 400 }))],
        },
        Event::PlacementDeferred {
            lease,
            reason: "2 h100 are free".to_owned(),
        },
        Event::LeaseActivated {
            lease,
            epoch,
            attempt,
            expires: Timestamp(1_700_007_200_000),
        },
        Event::LeaseFrozen { lease, node },
        Event::LeaseThawed { lease, node },
        Event::LeaseMigrating {
            lease,
            epoch,
            reason: "node gpu-1 is lost".to_owned(),
        },
        Event::LeaseEnding {
            lease,
            reason: EndReason::Preempted,
        },
        Event::LeaseEnded {
            lease,
            reason: EndReason::Failed,
            exit_code: Some(137),
        },
        Event::LeaseRenewed {
            lease,
            duration: Span(10_800_000),
            expires: Some(Timestamp(1_700_010_800_000)),
        },
        Event::LeaseCharged(charge_line()),
        Event::CheckpointCommitted {
            lease,
            fence: fence(),
            checkpoint: checkpoint(),
        },
    ]
}

fn subscriptions() -> Vec<Event> {
    let key = subscription().key;
    vec![
        Event::SubscriptionCreated(Box::new(subscription())),
        Event::EventsAcknowledged {
            key: key.clone(),
            through: Cursor { index: 99, sub: 4 },
        },
        Event::SubscriptionRemoved { key },
    ]
}

fn placements() -> Vec<Event> {
    let (lease, epoch, attempt, node) = (LEASE, Epoch(5), Attempt(6), NODE);
    vec![
        Event::PlacementCommitted {
            lease,
            epoch,
            token: fence().token,
            allocations: vec![allocation()],
            micros_per_hour: 19_200_000,
            restore: Some(checkpoint()),
        },
        Event::AllocationPrepared {
            lease,
            epoch,
            follows: attempt,
            node,
            incarnation: Incarnation(0x55),
        },
        Event::StartAccepted { lease, epoch, attempt },
        Event::AllocationStarted {
            lease,
            epoch,
            attempt,
            node,
        },
        Event::AllocationExited {
            lease,
            epoch,
            attempt,
            node,
            exit: Exit::Signal(9),
        },
        Event::AttemptEnded { lease, epoch, attempt },
        Event::AllocationEnded { lease, epoch, node },
    ]
}
