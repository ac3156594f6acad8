//! A client: somebody with a token who asks for leases, renews and releases them, and often asks for nonsense.
//!
//! Every request has an id, so that a client that heard no answer asks again and is answered, not served twice. The one
//! rule: a client uses only what it was told; it never looks into a replica.

use std::collections::BTreeMap;

use holdfast_proto::command::{Command, CreateLease, Envelope};
use holdfast_proto::event::RequestKey;
use holdfast_proto::id::{LeaseId, NodeId, RequestId};
use holdfast_proto::lease::{Isolation, LeaseKind, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::tenant::{Principal, Quota, Role};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_proto::workload::Workload;

use super::setup;
use crate::random::Stream;

/// See the module.
#[derive(Debug)]
pub struct Client {
    number: u64,
    draws: Stream,
    serial: u64,
    leases: BTreeMap<LeaseId, ()>,
}

/// What a client learns from an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learnt {
    /// A lease of its own exists from now on.
    Lease(LeaseId),
    /// A lease of its own is released.
    Released(LeaseId),
    /// Nothing that it remembers.
    Nothing,
}

impl Client {
    /// The client of a number.
    pub fn new(number: u64, draws: Stream) -> Self {
        Self {
            number,
            draws,
            serial: 0,
            leases: BTreeMap::new(),
        }
    }

    fn principal(&self) -> Principal {
        // Clients of even numbers are tenants, the others operators who act for the tenant.
        let tenant = self.number.is_multiple_of(2);
        let token = holdfast_proto::id::TokenId(if tenant { 100 + self.number } else { setup::OPERATOR.0 });
        let role = if tenant { Role::Tenant } else { Role::Operator };
        Principal::Bearer {
            token,
            role,
            tenant: tenant.then(|| setup::name(setup::TENANT)),
        }
    }

    /// How long the client thinks before its next request.
    pub fn think_ms(&mut self) -> u64 {
        self.draws.between(5, 120)
    }

    /// How long it waits before it asks again, and the place of the replica that it asks then.
    pub fn retry(&mut self, replicas: usize) -> (u64, usize) {
        let wait_ms = self.draws.between(10, 150);
        let place = self.draws.below(replicas as u64);
        (wait_ms, usize::try_from(place).unwrap_or(0))
    }

    /// The next request. `client_ms` is the client's own wall clock.
    pub fn next(&mut self, client_ms: u64) -> Envelope {
        self.serial += 1;
        let random = (self.number << 32) | self.serial;
        let command = self.command();
        Envelope {
            stamp: Timestamp(0),
            principal: self.principal(),
            project: None,
            // Set when the request is sent: the node that it enters through.
            origin: NodeId(0),
            request: Some(RequestId { client_ms, random }),
            command,
        }
    }

    /// Names a request as the log does.
    pub fn key(envelope: &Envelope) -> RequestKey {
        RequestKey::new(
            &envelope.principal,
            envelope.request.expect("a client's request has an id"),
        )
    }

    /// A request was acknowledged: its command took effect at this index.
    pub fn acknowledged(&mut self, command: &Command, index: u64) -> Learnt {
        match command {
            Command::CreateLease(_) => {
                let lease = LeaseId::from_index(index);
                self.leases.insert(lease, ());
                Learnt::Lease(lease)
            }
            Command::ReleaseLease { lease } => {
                self.leases.remove(lease);
                Learnt::Released(*lease)
            }
            _ => Learnt::Nothing,
        }
    }

    fn command(&mut self) -> Command {
        let own: Vec<LeaseId> = self.leases.keys().copied().collect();
        match self.draws.below(20) {
            0..=6 => self.create(),
            7..=11 if !own.is_empty() => Command::ReleaseLease {
                lease: self.one_of(&own),
            },
            12..=14 if !own.is_empty() => {
                let more = Span::seconds(self.draws.between(1, 600));
                Command::RenewLease {
                    lease: self.one_of(&own),
                    more,
                }
            }
            // Nobody's lease: a refusal, remembered like any answer.
            15 => Command::ReleaseLease {
                lease: LeaseId::from_index(self.draws.below(1 << 40)),
            },
            16 => {
                let quota = Quota {
                    devices_max: u32::try_from(self.draws.between(900, 1_100)).unwrap_or(1_000),
                };
                Command::SetTenant {
                    tenant: setup::name(setup::TENANT),
                    quota,
                }
            }
            17 => {
                // No two alike, so that a reader can tell whose it sees.
                let reason = format!("chaos {} {}", self.number, self.serial);
                let cordoned = self.draws.chance(300);
                Command::CordonNode {
                    node: NodeId(self.draws.between(1, 3)),
                    cordoned,
                    reason,
                }
            }
            _ => Command::Annotate {
                subject: setup::name("chaos"),
                text: format!("{}", self.draws.below(1_000)),
            },
        }
    }

    fn one_of(&mut self, leases: &[LeaseId]) -> LeaseId {
        *self.draws.pick(leases).expect("there is one")
    }

    fn create(&mut self) -> Command {
        // One in ten asks for more than there will ever be.
        let most = if self.draws.chance(100) { 5_000 } else { 4 };
        let devices = u32::try_from(self.draws.between(1, most)).unwrap_or(1);
        let request = ResourceRequest {
            devices_min: devices,
            devices_max: devices,
            models: vec![setup::name("h100")],
            same_model: true,
            single_node: false,
            cpu_milli_per_device: 1_000,
            memory_mib_per_device: 1_024,
            zones: Vec::new(),
            spread: if self.draws.chance(500) {
                Spread::Pack
            } else {
                Spread::Zones
            },
        };
        let plans = [Plan::OnDemand, Plan::Reserved, Plan::Spot];
        let terms = Terms {
            duration: Span::seconds(self.draws.between(1, 30)),
            plan: *self.draws.pick(&plans).expect("there are plans"),
            cap_micros: self.draws.chance(300).then_some(20_000),
            isolation: Isolation::Freeze,
            priority: u8::try_from(self.draws.below(4)).unwrap_or(0),
            grace: Span::seconds(1),
        };
        let workload = Workload {
            command: vec!["train".to_owned()],
            environment: Vec::new(),
            folder: None,
            image: None,
            checkpoints: false,
        };
        let tenant = setup::name(setup::TENANT);
        Command::CreateLease(Box::new(CreateLease {
            tenant,
            kind: LeaseKind::Job,
            label: None,
            request,
            terms,
            workload,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn client(number: u64) -> Client {
        Client::new(number, Stream::seeded(number))
    }

    #[test]
    fn one_stream_asks_the_same_things() {
        let (mut first, mut second) = (client(2), client(2));
        for client_ms in 0..100 {
            assert_eq!(first.next(client_ms), second.next(client_ms));
        }
    }

    #[test]
    fn requests_never_share_an_id_and_reach_every_kind_of_command() {
        let (mut keys, mut tags) = (BTreeSet::new(), BTreeSet::new());
        for number in 1..=4 {
            let mut client = client(number);
            for round in 0..200 {
                let envelope = client.next(5);
                assert!(keys.insert(Client::key(&envelope)));
                tags.insert(envelope.command.tag());
                client.acknowledged(&envelope.command, 10 + round);
            }
        }
        assert_eq!(tags.into_iter().collect::<Vec<_>>(), [8, 15, 17, 23, 24, 34]);
    }

    #[test]
    fn client_forgets_a_lease_that_it_released() {
        let mut client = client(1);
        let create = client.create();
        let lease = LeaseId::from_index(9);
        assert_eq!(client.acknowledged(&create, 9), Learnt::Lease(lease));
        let released = client.acknowledged(&Command::ReleaseLease { lease }, 10);
        assert_eq!((released, client.leases.len()), (Learnt::Released(lease), 0));
    }
}
