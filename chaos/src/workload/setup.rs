//! The first commands of a simulated cluster: its identity, its nodes, its tenant.
//!
//! The one rule: everything here is a function of the node's place, so that a restarted world names things as before.

use holdfast_proto::command::{Command, Envelope, InitCluster};
use holdfast_proto::device::{Device, DeviceKind};
use holdfast_proto::id::{BootId, ClusterId, DeviceId, Digest, Era, Incarnation, Name, NodeId, TokenId};
use holdfast_proto::lease::Plan;
use holdfast_proto::node::{BootProof, Inventory, IsolationLevel, NodeAddress, NodeRole, NodeSpec};
use holdfast_proto::tariff::{Price, Tariff};
use holdfast_proto::tenant::{AccessToken, Principal, Quota, Role};
use holdfast_proto::time::{Span, Timestamp};

/// Devices of each simulated node.
pub const DEVICES_PER_NODE: u8 = 8;

/// The one tenant.
pub const TENANT: &str = "blue";

/// The operator's token, which [`InitCluster`] makes.
pub const OPERATOR: TokenId = TokenId(1);

/// A name that is known to be one.
///
/// # Panics
/// When it is none.
pub fn name(text: &str) -> Name {
    text.parse().expect("a name written down here is a name")
}

/// The join token that admits a node.
pub fn join_token(node: NodeId) -> (TokenId, Digest) {
    (TokenId(1_000 + node.0), Digest([7; 32]))
}

/// A node as it joins.
pub fn spec(node: NodeId) -> NodeSpec {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&node.0.to_be_bytes());
    let zone = ["a", "b", "c"][usize::try_from(node.0 % 3).unwrap_or(0)];
    NodeSpec {
        node,
        label: name(&format!("n{}", node.0)),
        zone: name(zone),
        role: NodeRole::Replica,
        address: address(node),
        key: Digest(key),
    }
}

/// Where a node is reached; the simulated network knows it by its id alone.
pub fn address(node: NodeId) -> NodeAddress {
    NodeAddress {
        host: format!("n{}", node.0),
        main_port: 7400,
        lease_port: 7401,
        bulk_port: 7402,
    }
}

/// What every node can hold.
pub fn inventory(node: NodeId) -> Inventory {
    let devices = (0..DEVICES_PER_NODE).map(|number| Device {
        id: device(node, number),
        kind: DeviceKind::Gpu,
        model: name("h100"),
        memory_mib: 80 * 1_024,
        compute_capability: 90,
        island: 0,
        numa: None,
    });
    Inventory {
        devices: devices.collect(),
        cpu_milli: 64_000,
        memory_mib: 512 * 1_024,
        isolation: IsolationLevel::Cgroup,
        version: "0.1.0".to_owned(),
        simulated: true,
    }
}

/// The n-th device of a node.
pub fn device(node: NodeId, number: u8) -> DeviceId {
    let mut id = [number; 16];
    id[..8].copy_from_slice(&node.0.to_be_bytes());
    DeviceId(id)
}

/// Proof of the boot that a life of a node runs on. Lives of one machine share a boot; a loss of power makes a new one.
pub fn boot(node: NodeId, boots: u32, boot_ms: u64) -> BootProof {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&node.0.to_be_bytes());
    id[8..12].copy_from_slice(&boots.to_be_bytes());
    BootProof {
        boot: BootId(id),
        boot_ms,
    }
}

/// The daemon start of one life of a node.
pub fn incarnation(node: NodeId, life: u32) -> Incarnation {
    Incarnation((node.0 << 32) | u64::from(life) | (1 << 63))
}

/// The operator.
pub fn operator() -> Principal {
    Principal::Bearer {
        token: OPERATOR,
        role: Role::Operator,
        tenant: None,
    }
}

/// An envelope of the operator, without a request id.
fn of_operator(origin: NodeId, command: Command) -> Envelope {
    Envelope {
        stamp: Timestamp(0),
        principal: operator(),
        project: None,
        origin,
        request: None,
        command,
    }
}

/// What a node says on its own account.
pub fn of_node(node: NodeId, command: Command) -> Envelope {
    let principal = Principal::Node(node);
    Envelope {
        stamp: Timestamp(0),
        principal,
        project: None,
        origin: node,
        request: None,
        command,
    }
}

/// The commands that make the cluster, in order; the first node of `nodes` is its first. Each may be repeated.
pub fn commands(nodes: &[NodeId]) -> Vec<Envelope> {
    let first = *nodes.first().expect("a cluster has a node");
    let operator_token = AccessToken {
        token: OPERATOR,
        secret: Digest([1; 32]),
        role: Role::Operator,
        tenant: None,
        project: None,
        note: "operator".to_owned(),
        expires: None,
    };
    let init = InitCluster {
        cluster: ClusterId([9; 16]),
        era: Era(0),
        node: spec(first),
        operator: operator_token,
        tariff: tariff(1),
    };
    let mut commands = vec![of_node(first, Command::InitCluster(Box::new(init)))];
    let quota = Quota { devices_max: 1_000 };
    commands.push(of_operator(
        first,
        Command::SetTenant {
            tenant: name(TENANT),
            quota,
        },
    ));
    for node in &nodes[1..] {
        let (token, secret) = join_token(*node);
        let life = Span::seconds(900);
        let create = Command::CreateJoinToken {
            token,
            secret,
            role: NodeRole::Replica,
            life,
        };
        commands.push(of_operator(first, create));
        commands.push(of_node(
            first,
            Command::AdmitNode {
                token,
                secret,
                spec: spec(*node),
            },
        ));
    }
    commands
}

/// The prices of a version.
pub fn tariff(version: u32) -> Tariff {
    let price = |plan, micros_per_device_hour| Price {
        model: name("h100"),
        plan,
        micros_per_device_hour,
    };
    Tariff {
        version,
        currency: "USD".to_owned(),
        prices: vec![
            price(Plan::OnDemand, 3_600_000),
            price(Plan::Reserved, 2_000_000),
            price(Plan::Spot, 1_000_000),
        ],
    }
}
