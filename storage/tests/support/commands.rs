//! Commands for tests that only need something to apply.

use holdfast_proto::command::{Command, Envelope, InitCluster};
use holdfast_proto::id::{ClusterId, Digest, Era, NodeId, TokenId};
use holdfast_proto::lease::Plan;
use holdfast_proto::node::{NodeAddress, NodeRole, NodeSpec};
use holdfast_proto::tariff::{Price, Tariff};
use holdfast_proto::tenant::{AccessToken, Principal, Role};
use holdfast_proto::time::Timestamp;

const NODE: NodeId = NodeId(1);
const TOKEN: TokenId = TokenId(1);

/// The first command of a cluster.
pub(crate) fn init() -> Envelope {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&NODE.0.to_be_bytes());
    let node = NodeSpec {
        node: NODE,
        label: "n1".parse().unwrap(),
        zone: "a".parse().unwrap(),
        role: NodeRole::Replica,
        address: NodeAddress {
            host: "n1".into(),
            main_port: 7400,
            lease_port: 7401,
            bulk_port: 7402,
        },
        key: Digest(key),
    };
    let operator = AccessToken {
        token: TOKEN,
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
        micros_per_device_hour: 1,
    };
    let tariff = Tariff {
        version: 1,
        currency: "USD".into(),
        prices: vec![price],
    };
    let init = InitCluster {
        cluster: ClusterId([9; 16]),
        era: Era(0),
        node,
        operator,
        tariff,
    };
    envelope(Principal::Node(NODE), 1, Command::InitCluster(Box::new(init)))
}

/// A note in the log: one event.
pub(crate) fn note(text: &str, stamp: u64) -> Envelope {
    let operator = Principal::Bearer {
        token: TOKEN,
        role: Role::Operator,
        tenant: None,
    };
    let command = Command::Annotate {
        subject: "test".parse().unwrap(),
        text: text.into(),
    };
    envelope(operator, stamp, command)
}

fn envelope(principal: Principal, stamp: u64, command: Command) -> Envelope {
    Envelope {
        stamp: Timestamp(stamp),
        principal,
        project: None,
        origin: NODE,
        request: None,
        command,
    }
}
