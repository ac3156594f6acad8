//! One sample of every command.

#![allow(dead_code, unreachable_pub)]

use holdfast_proto::command::{Command, CreateLease, CreateLeaseWith, InitCluster};
use holdfast_proto::condition::{Condition, Share};
use holdfast_proto::id::{Attempt, ClusterId, Cursor, Epoch, Era, Generation, Incarnation, LeaseId, NodeId, Nonce};
use holdfast_proto::lease::{EndReason, LeaseKind};
use holdfast_proto::node::NodeRole;
use holdfast_proto::placement::Exit;
use holdfast_proto::tenant::Quota;
use holdfast_proto::time::{Span, Timestamp};

use crate::values::{
    LEASE, NODE, TOKEN, access_token, address, allocation, boot, checkpoint, digest, edge, fence, inventory, limits,
    name, request, rollup, spec, subscription, tariff, terms, work, workload,
};

pub fn all() -> Vec<Command> {
    let mut all = cluster();
    all.extend(nodes());
    all.extend(tenants());
    all.extend(leases());
    all.extend(subscriptions());
    all.sort_by_key(Command::tag);
    all
}

fn cluster() -> Vec<Command> {
    vec![
        Command::InitCluster(Box::new(InitCluster {
            cluster: ClusterId([0x41; 16]),
            era: Era(1),
            node: spec(),
            operator: access_token(),
            tariff: tariff(),
        })),
        Command::RecordVoters {
            voters: vec![NodeId(1), NodeId(2), NODE],
        },
        Command::RecordStateHash {
            at: Cursor { index: 88, sub: 3 },
            hash: digest(0x42),
        },
        Command::RaiseMachineLevel { level: 2 },
        Command::SetTime {
            time: Timestamp(1_700_000_009_000),
        },
        Command::ReportClockSuspect {
            node: NODE,
            offset_ms: -3_600_000,
        },
        Command::Annotate {
            subject: name("upgrade"),
            text: "begins now".to_owned(),
        },
    ]
}

fn nodes() -> Vec<Command> {
    let (node, incarnation, generation) = (NODE, Incarnation(0x43), Generation(4));
    vec![
        Command::AdmitNode {
            token: TOKEN,
            secret: digest(0x44),
            spec: spec(),
        },
        Command::RegisterNode {
            node,
            incarnation,
            replaces: Some(Incarnation(0x45)),
            boot: boot(),
            address: address(),
        },
        Command::ReportInventory {
            node,
            incarnation,
            inventory: inventory(),
        },
        Command::MarkNodeUnreachable { node, generation },
        Command::MarkNodeLost { node, generation },
        Command::ReturnNode {
            node,
            incarnation,
            generation,
            nonce: Nonce(0x46),
            work: vec![work()],
        },
        Command::CordonNode {
            node,
            cordoned: true,
            reason: "fan".to_owned(),
        },
        Command::RemoveNode { node },
        Command::QuietNode {
            node,
            incarnation,
            span: Span(60_000),
        },
        Command::ReportHealth {
            node,
            edges: vec![edge()],
        },
        Command::ReportRollup {
            node,
            rollups: vec![rollup()],
        },
        Command::GradeDevice { node, edge: edge() },
    ]
}

fn tenants() -> Vec<Command> {
    vec![
        Command::CreateJoinToken {
            token: TOKEN,
            secret: digest(0x47),
            role: NodeRole::Witness,
            life: Span(900_000),
        },
        Command::CreateAccessToken(access_token()),
        Command::RevokeToken { token: TOKEN },
        Command::SetTenant {
            tenant: name("blue"),
            quota: Quota { devices_max: 64 },
        },
        Command::SetLimits {
            tenant: name("blue"),
            limits: limits(),
        },
        Command::SetTariff(tariff()),
    ]
}

fn subscriptions() -> Vec<Command> {
    vec![
        Command::CreateSubscription(Box::new(subscription())),
        Command::AcknowledgeEvents {
            key: subscription().key,
            through: Cursor { index: 99, sub: 4 },
        },
        Command::RemoveSubscription {
            key: subscription().key,
        },
    ]
}

fn create() -> CreateLease {
    CreateLease {
        tenant: name("blue"),
        kind: LeaseKind::Session,
        label: Some(name("train-7b")),
        request: request(),
        terms: terms(),
        workload: workload(),
    }
}

fn leases() -> Vec<Command> {
    let (lease, epoch, attempt, node) = (LEASE, Epoch(5), Attempt(6), NODE);
    vec![
        Command::CreateLease(Box::new(create())),
        Command::DrainNode {
            node,
            span: Span(1_800_000),
            reason: "fan".to_owned(),
        },
        Command::EvictLease { lease, epoch, node },
        Command::PreemptLease {
            lease,
            epoch,
            by: LeaseId::from_index(99),
        },
        Command::FinishDrain { node },
        Command::CreateLeaseWith(Box::new(CreateLeaseWith {
            lease: create(),
            conditions: vec![Condition::Share(Box::new(Share { milli: 400 }))],
        })),
        Command::CommitPlacement {
            lease,
            epoch,
            allocations: vec![allocation()],
        },
        Command::DeferPlacement {
            lease,
            reason: "2 h100 are free".to_owned(),
        },
        Command::ReportPrepared {
            lease,
            epoch,
            follows: attempt,
            node,
            incarnation: Incarnation(0x48),
        },
        Command::ReportStarted {
            lease,
            epoch,
            attempt,
            node,
        },
        Command::ReportExited {
            lease,
            epoch,
            attempt,
            node,
            exit: Exit::LaunchFailed("no such program".to_owned()),
        },
        Command::ReleaseLease { lease },
        Command::RenewLease {
            lease,
            more: Span(3_600_000),
        },
        Command::EndLease {
            lease,
            reason: EndReason::Capped,
            renewal: 4097,
        },
        Command::CommitCheckpoint {
            lease,
            fence: fence(),
            checkpoint: checkpoint(),
        },
    ]
}
