//! Values that samples are made of. Every optional field is filled somewhere, every number differs from its neighbours.

#![allow(dead_code, unreachable_pub)]

use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::device::{Device, DeviceKind, Grade};
use holdfast_proto::event::{Event, EventRecord, NodeWork, RequestKey, Topic};
use holdfast_proto::id::{
    Attempt, BootId, Cursor, DeviceId, Digest, Epoch, Era, Fence, FencingToken, LeaseId, Name, NodeId, RequestId,
    TokenId,
};
use holdfast_proto::lease::{Isolation, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::node::{BootProof, Inventory, IsolationLevel, NodeAddress, NodeRole, NodeSpec};
use holdfast_proto::placement::Allocation;
use holdfast_proto::subscription::{EventFilter, Subscription, SubscriptionKey};
use holdfast_proto::tariff::{ChargeLine, Price, Tariff};
use holdfast_proto::telemetry::{HealthEdge, Range, Rollup};
use holdfast_proto::tenant::{AccessToken, Limit, ModelLimit, Principal, Role, SpendLimit};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_proto::workload::{Checkpoint, Workload};

pub const NODE: NodeId = NodeId(0x0102_0304_0506_0708);
pub const LEASE: LeaseId = LeaseId { cell: 3, index: 4097 };
pub const TOKEN: TokenId = TokenId(0x1112_1314_1516_1718);

pub fn name(text: &str) -> Name {
    text.parse().expect("samples use good names")
}

pub fn subscription() -> Subscription {
    Subscription {
        key: SubscriptionKey {
            tenant: Some(name("blue")),
            subscription: name("invoices"),
        },
        filter: EventFilter {
            topics: vec![Topic::Lease, Topic::Billing],
            types: vec![name("lease-charged"), name("lease-ended")],
            lease: Some(LEASE),
            tenant: Some(name("blue")),
            node: Some(NODE),
        },
        after: Cursor { index: 98, sub: 3 },
    }
}

pub fn digest(byte: u8) -> Digest {
    Digest([byte; 32])
}

pub fn device(byte: u8) -> DeviceId {
    DeviceId([byte; 16])
}

/// Commands come from all kinds of speakers, with and without a request.
pub fn envelope(command: Command) -> Envelope {
    let bearer = Principal::Bearer {
        token: TOKEN,
        role: Role::Tenant,
        tenant: Some(name("blue")),
    };
    let odd = command.tag() % 2 == 1;
    Envelope {
        stamp: Timestamp(1_700_000_000_000 + u64::from(command.tag())),
        principal: if odd { bearer } else { Principal::Node(NODE) },
        project: odd.then(|| name("vision")),
        origin: NODE,
        request: odd.then_some(RequestId {
            client_ms: 1_700_000_000_001,
            random: 0x2122_2324_2526_2728,
        }),
        command,
    }
}

pub fn record(event: Event) -> EventRecord {
    let odd = event.tag() % 2 == 1;
    EventRecord {
        cursor: Cursor {
            index: 5000,
            sub: u32::from(event.tag()),
        },
        at: Timestamp(1_700_000_000_123),
        request: odd.then_some(RequestKey {
            principal: TOKEN.0,
            id: RequestId {
                client_ms: 1_700_000_000_001,
                random: 77,
            },
        }),
        event,
    }
}

pub fn address() -> NodeAddress {
    NodeAddress {
        host: "gpu-1.example".to_owned(),
        main_port: 7400,
        lease_port: 7401,
        bulk_port: 7402,
    }
}

pub fn spec() -> NodeSpec {
    NodeSpec {
        node: NODE,
        label: name("gpu-1"),
        zone: name("zone-a"),
        role: NodeRole::Worker,
        address: address(),
        key: digest(0x31),
    }
}

pub fn boot() -> BootProof {
    BootProof {
        boot: BootId([0x32; 16]),
        boot_ms: 12_345,
    }
}

pub fn inventory() -> Inventory {
    Inventory {
        devices: vec![Device {
            id: device(0x33),
            kind: DeviceKind::Gpu,
            model: name("h100"),
            memory_mib: 81_559,
            compute_capability: 90,
            island: 2,
            numa: Some(1),
        }],
        cpu_milli: 64_000,
        memory_mib: 512_000,
        isolation: IsolationLevel::PidNamespace,
        version: "0.1.0+simulate".to_owned(),
        simulated: true,
    }
}

pub fn access_token() -> AccessToken {
    AccessToken {
        token: TOKEN,
        secret: digest(0x34),
        role: Role::Subscriber,
        tenant: Some(name("blue")),
        project: Some(name("vision")),
        note: "alerts".to_owned(),
        expires: Some(Timestamp(1_800_000_000_000)),
    }
}

pub fn tariff() -> Tariff {
    let price = |plan, micros_per_device_hour| Price {
        model: name("h100"),
        plan,
        micros_per_device_hour,
    };
    Tariff {
        version: 7,
        currency: "USD".to_owned(),
        prices: vec![price(Plan::OnDemand, 2_400_000), price(Plan::Spot, 900_000)],
    }
}

pub fn limits() -> Vec<Limit> {
    vec![
        Limit::Model(Box::new(ModelLimit {
            model: name("h100"),
            devices_max: 8,
        })),
        Limit::Spend(Box::new(SpendLimit {
            micros_per_hour_max: Some(60_000_000),
        })),
    ]
}

pub fn request() -> ResourceRequest {
    ResourceRequest {
        devices_min: 8,
        devices_max: 16,
        models: vec![name("h100"), name("a100")],
        same_model: true,
        single_node: false,
        cpu_milli_per_device: 4000,
        memory_mib_per_device: 16_000,
        zones: vec![name("zone-a"), name("zone-b")],
        spread: Spread::Zones,
    }
}

pub fn terms() -> Terms {
    Terms {
        duration: Span(7_200_000),
        plan: Plan::Reserved,
        cap_micros: Some(60_000_000),
        isolation: Isolation::Stop,
        priority: 9,
        grace: Span(30_000),
    }
}

pub fn workload() -> Workload {
    Workload {
        command: vec!["python".to_owned(), "train.py".to_owned()],
        environment: vec![("SEED".to_owned(), "7".to_owned())],
        folder: Some("/srv/work".to_owned()),
        image: Some(name("torch")),
        checkpoints: true,
    }
}

pub fn allocation() -> Allocation {
    Allocation {
        node: NODE,
        rank: 1,
        devices: vec![device(0x35), device(0x36)],
        cpu_milli: 8000,
        memory_mib: 32_000,
    }
}

pub fn fence() -> Fence {
    Fence {
        token: FencingToken {
            era: Era(2),
            index: 4100,
        },
        epoch: Epoch(5),
        attempt: Attempt(6),
    }
}

pub fn checkpoint() -> Checkpoint {
    Checkpoint {
        step: 1200,
        rank: 1,
        manifest: digest(0x37),
        bytes: 51_020_000,
        holders: vec![NODE, NodeId(9)],
    }
}

pub fn work() -> NodeWork {
    NodeWork {
        lease: LEASE,
        epoch: Epoch(5),
        attempt: Attempt(6),
        frozen: Span(250),
    }
}

pub fn edge() -> HealthEdge {
    HealthEdge {
        device: device(0x38),
        grade: Grade::Quarantined,
        xid: Some(79),
        reason: "fell off the bus".to_owned(),
    }
}

pub fn rollup() -> Rollup {
    let range = |min| {
        Some(Range {
            min,
            mean: min + 1,
            max: min + 2,
        })
    };
    Rollup {
        device: device(0x39),
        span: Span(60_000),
        samples: 60,
        temperature_c: range(40),
        memory_temperature_c: range(50),
        power_mw: range(250_000),
        energy_mj: Some(15_000_000),
        utilisation_permille: Some(987),
        memory_used_mib: Some(70_000),
        ecc_single_bit: Some(1),
        ecc_double_bit: Some(2),
        remapped_rows: Some(3),
        remap_pending: Some(true),
        remap_failed: Some(false),
        pcie_replays: Some(4),
        nvlink_crc_errors: Some(5),
        throttle_reasons: Some(6),
        coolant_decic: Some(310),
        optical_rx_centidbm: Some(-250),
    }
}

pub fn charge_line() -> ChargeLine {
    ChargeLine {
        lease: LEASE,
        epoch: Epoch(5),
        meter: name("device-time"),
        from: Timestamp(1_700_000_000_000),
        until: Timestamp(1_700_003_600_000),
        unpaid: Span(250),
        micros_per_hour: 19_200_000,
        amount_micros: 19_198_667,
        opened_at: Cursor { index: 4200, sub: 1 },
    }
}
