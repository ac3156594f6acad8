//! A machine under test with the names that scripts use for nodes, devices, leases and tokens, and the commands that
//! lines of a script stand for.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use holdfast_proto::command::{Command, CreateLease, CreateLeaseWith, Envelope, InitCluster};
use holdfast_proto::condition::{Condition, Prefer, Share, Weight};
use holdfast_proto::device::{Device, DeviceKind, Grade};
use holdfast_proto::event::{EventRecord, NodeWork, Topic};
use holdfast_proto::id::{
    Attempt, BootId, ClusterId, Cursor, DeviceId, Digest, Epoch, Era, Fence, FencingToken, Generation, Incarnation,
    LeaseId, Name, NodeId, Nonce, RequestId, TokenId,
};
use holdfast_proto::lease::{EndReason, Isolation, LeaseKind, Plan, ResourceRequest, Spread, Terms};
use holdfast_proto::node::{BootProof, Inventory, IsolationLevel, NodeAddress, NodeRole, NodeSpec};
use holdfast_proto::placement::{Allocation, Exit};
use holdfast_proto::subscription::{EventFilter, Subscription, SubscriptionKey};
use holdfast_proto::tariff::{Price, Tariff};
use holdfast_proto::telemetry::{HealthEdge, Rollup};
use holdfast_proto::tenant::{AccessToken, Limit, ModelLimit, Principal, Quota, Role, SpendLimit};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_proto::workload::{Checkpoint, Workload};
use holdfast_storage::machine::{Applied, Machine};

use crate::words::{Words, millis};

/// The operator's token in every script.
pub const OPERATOR: TokenId = TokenId(1);

#[derive(Default)]
pub struct World {
    pub machine: Machine,
    pub index: u64,
    pub now_ms: u64,
    /// Labels of nodes, in the order of their first mention. The place is the number that ids are made of.
    pub labels: Vec<String>,
    pub leases: Vec<LeaseId>,
    pub log: Vec<(u64, Envelope)>,
    pub records: Vec<EventRecord>,
}

type Made<T> = Result<T, String>;

pub fn name(text: &str) -> Made<Name> {
    text.parse().map_err(|error| format!("{error}"))
}

fn digest(number: u64) -> Digest {
    let mut bytes = [0xdd; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Digest(bytes)
}

/// The token of a tenant: a number made of its name.
pub fn tenant_token(tenant: &str) -> TokenId {
    TokenId(tenant.bytes().fold(0x7e_0000, |sum, byte| sum * 31 + u64::from(byte)) & 0xff_ffff)
}

impl World {
    /// Applies a command as the next entry.
    pub fn apply(&mut self, envelope: &Envelope) -> Applied {
        self.index += 1;
        let applied = self.machine.apply(self.index, envelope);
        self.log.push((self.index, envelope.clone()));
        self.records.extend(applied.records.iter().cloned());
        applied
    }

    pub fn node(&mut self, label: &str) -> NodeId {
        if let Some(number) = label.strip_prefix('#') {
            return NodeId(number.parse().unwrap());
        }
        let at = self.labels.iter().position(|known| known == label).unwrap_or_else(|| {
            self.labels.push(label.to_owned());
            self.labels.len() - 1
        });
        NodeId(at as u64 + 1)
    }

    pub fn device(&mut self, text: &str) -> Made<DeviceId> {
        let (label, number) = text
            .rsplit_once('.')
            .ok_or(format!("{text} is not a device such as n1.0"))?;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.node(label).0.to_be_bytes());
        bytes[15] = number.parse().map_err(|_| format!("{text} is not a device"))?;
        Ok(DeviceId(bytes))
    }

    fn devices(&mut self, words: &Words, key: &str) -> Made<Vec<DeviceId>> {
        words.list(key).into_iter().map(|text| self.device(text)).collect()
    }

    /// Reads `L1`, the first lease of the script, or a full id.
    pub fn lease(&self, words: &Words) -> Made<LeaseId> {
        let text = words.get("lease")?;
        match text.strip_prefix('L').and_then(|number| number.parse::<usize>().ok()) {
            Some(at) => self
                .leases
                .get(at - 1)
                .copied()
                .ok_or(format!("there is no {text} yet")),
            None => text.parse().map_err(|error| format!("{error}")),
        }
    }

    /// Makes the envelope that a line stands for.
    pub fn envelope(&mut self, words: &Words) -> Made<Envelope> {
        if let Some(at) = words.opt("t") {
            self.now_ms = millis(at).ok_or(format!("t={at} is not a time"))?;
        }
        let command = self.command(words)?;
        let (principal, origin) = self.speaker(words, &command)?;
        let request = match words.opt("request") {
            Some(text) => {
                let (number, at) = text.split_once('@').unwrap_or((text, ""));
                Some(RequestId {
                    client_ms: if at.is_empty() {
                        self.now_ms
                    } else {
                        millis(at).ok_or("request time")?
                    },
                    random: number.parse().map_err(|_| "request=NUMBER[@SECONDS]")?,
                })
            }
            None => None,
        };
        Ok(Envelope {
            stamp: Timestamp(self.now_ms),
            principal,
            project: words.opt("project").map(name).transpose()?,
            origin,
            request,
            command,
        })
    }

    fn speaker(&mut self, words: &Words, command: &Command) -> Made<(Principal, NodeId)> {
        let about = words
            .opt("node")
            .map(|text| text.rsplit('/').next().unwrap_or(text).to_owned());
        let default = match holdfast_proto::origin::allowed(command) {
            holdfast_proto::origin::Allowed::Operator => "operator".to_owned(),
            holdfast_proto::origin::Allowed::TenantOf(tenant) => tenant.to_string(),
            holdfast_proto::origin::Allowed::LeaseOwner if words.opt("node").is_none() => self.owner(words),
            holdfast_proto::origin::Allowed::SubscriberOf(tenant) => {
                tenant.map_or("operator".to_owned(), ToString::to_string)
            }
            holdfast_proto::origin::Allowed::Voter => "n1".to_owned(),
            _ => about.unwrap_or_else(|| "n1".to_owned()),
        };
        let who = words.opt("as").unwrap_or(&default).to_owned();
        let first = self.node("n1");
        let bearer = |token, role, tenant| Principal::Bearer { token, role, tenant };
        let principal = match who.as_str() {
            "operator" => bearer(OPERATOR, Role::Operator, None),
            who if self.labels.iter().any(|label| label == who) => Principal::Node(self.node(who)),
            who => match who.strip_prefix("token-") {
                Some(text) => {
                    let (number, tenant) = text.split_once('/').unwrap_or((text, ""));
                    let token = TokenId(number.parse().map_err(|_| "as=token-N")?);
                    match tenant {
                        "" => bearer(token, Role::Operator, None),
                        tenant => bearer(token, Role::Tenant, Some(name(tenant)?)),
                    }
                }
                None => bearer(tenant_token(who), Role::Tenant, Some(name(who)?)),
            },
        };
        let origin = match (words.opt("via"), &principal) {
            (Some(label), _) => self.node(label),
            (None, Principal::Node(node)) => *node,
            (None, Principal::Bearer { .. }) => first,
        };
        Ok((principal, origin))
    }

    fn owner(&self, words: &Words) -> String {
        let lease = self
            .lease(words)
            .ok()
            .and_then(|lease| self.machine.state().leases.get(&lease));
        lease.map_or("blue".to_owned(), |lease| lease.requested.tenant.to_string())
    }

    fn command(&mut self, words: &Words) -> Made<Command> {
        match words.verb.as_str() {
            "init-cluster"
            | "record-voters"
            | "record-state-hash"
            | "raise-machine-level"
            | "set-time"
            | "annotate" => self.cluster_command(words),
            "admit-node"
            | "register-node"
            | "mark-node-unreachable"
            | "mark-node-lost"
            | "return-node"
            | "cordon-node"
            | "remove-node"
            | "drain-node"
            | "evict-lease"
            | "finish-drain"
            | "quiet-node"
            | "report-clock-suspect" => self.node_command(words),
            "report-inventory" | "report-health" | "report-rollup" | "grade-device" => self.device_command(words),
            "create-join-token"
            | "create-access-token"
            | "revoke-token"
            | "set-tenant"
            | "set-limits"
            | "set-tariff" => tenant_command(words),
            "create-lease" | "create-lease-with" | "release-lease" | "renew-lease" | "end-lease" | "preempt-lease"
            | "commit-checkpoint" => self.lease_command(words),
            "commit-placement" | "defer-placement" | "report-prepared" | "report-started" | "report-exited" => {
                self.placement_command(words)
            }
            "create-subscription" | "acknowledge-events" | "remove-subscription" => {
                subscription_command(words, &self.machine)
            }
            other => Err(format!("unknown command `{other}`")),
        }
    }

    fn cluster_command(&mut self, words: &Words) -> Made<Command> {
        Ok(match words.verb.as_str() {
            "init-cluster" => Command::InitCluster(Box::new(InitCluster {
                cluster: ClusterId([0xc1; 16]),
                era: Era(words.number_or("era", 0)? as u32),
                node: self.spec(words)?,
                operator: AccessToken {
                    token: OPERATOR,
                    secret: digest(1),
                    role: if words.opt("role-of-token") == Some("tenant") {
                        Role::Tenant
                    } else {
                        Role::Operator
                    },
                    tenant: words.opt("tenant").map(name).transpose()?,
                    project: None,
                    note: "first".to_owned(),
                    expires: None,
                },
                tariff: tariff(words, 1)?,
            })),
            "record-voters" => Command::RecordVoters {
                voters: words.list("voters").into_iter().map(|label| self.node(label)).collect(),
            },
            "record-state-hash" => {
                let state = self.machine.state();
                Command::RecordStateHash {
                    at: match words.get("at")? {
                        "present" => state.cluster.cursor,
                        text => text.parse::<Cursor>().map_err(|error| error.to_string())?,
                    },
                    hash: match words.get("hash")? {
                        "own" => state.hash(),
                        text => digest(text.parse().map_err(|_| "hash=own or a number")?),
                    },
                }
            }
            "raise-machine-level" => Command::RaiseMachineLevel {
                level: words.number("level")? as u32,
            },
            "set-time" => Command::SetTime {
                time: Timestamp(words.seconds("time")?),
            },
            _ => Command::Annotate {
                subject: name(words.get("subject")?)?,
                text: words.get("text")?.to_owned(),
            },
        })
    }

    fn spec(&mut self, words: &Words) -> Made<NodeSpec> {
        let (zone, label) = words.get("node")?.split_once('/').ok_or("node=ZONE/LABEL")?;
        let node = self.node(words.opt("id").unwrap_or(label));
        let key = words.opt("key").map_or(node, |label| self.node(label));
        Ok(NodeSpec {
            node,
            label: name(words.opt("label").unwrap_or(label))?,
            zone: name(zone)?,
            role: role(words.opt("role").unwrap_or("replica"))?,
            address: address(words, label),
            key: digest(key.0),
        })
    }

    fn node_command(&mut self, words: &Words) -> Made<Command> {
        if words.verb == "admit-node" {
            return Ok(Command::AdmitNode {
                token: TokenId(words.number("token")?),
                secret: digest(words.number_or("secret", words.number("token")?)?),
                spec: self.spec(words)?,
            });
        }
        let label = words.get("node")?;
        let node = self.node(label);
        let incarnation = Incarnation(words.number_or("incarnation", 1)?);
        let generation = Generation(words.number_or("generation", 1)?);
        Ok(match words.verb.as_str() {
            "register-node" => Command::RegisterNode {
                node,
                incarnation,
                replaces: words
                    .opt("replaces")
                    .map(|_| words.number("replaces"))
                    .transpose()?
                    .map(Incarnation),
                boot: BootProof {
                    boot: BootId([words.number_or("boot", 1)? as u8; 16]),
                    boot_ms: 1000,
                },
                address: address(words, label),
            },
            "mark-node-unreachable" => Command::MarkNodeUnreachable { node, generation },
            "mark-node-lost" => Command::MarkNodeLost { node, generation },
            "return-node" => Command::ReturnNode {
                node,
                incarnation,
                generation,
                nonce: Nonce(1),
                work: words
                    .list("work")
                    .into_iter()
                    .map(|text| self.work(text))
                    .collect::<Made<_>>()?,
            },
            "cordon-node" => Command::CordonNode {
                node,
                cordoned: words.opt("cordoned") != Some("false"),
                reason: words.opt("reason").unwrap_or("maintenance").to_owned(),
            },
            "remove-node" => Command::RemoveNode { node },
            "drain-node" => Command::DrainNode {
                node,
                span: Span(words.seconds("for")?),
                reason: words.opt("reason").unwrap_or("maintenance").to_owned(),
            },
            "evict-lease" => Command::EvictLease {
                lease: self.lease(words)?,
                epoch: Epoch(words.number_or("epoch", 1)? as u32),
                node,
            },
            "finish-drain" => Command::FinishDrain { node },
            "quiet-node" => Command::QuietNode {
                node,
                incarnation,
                span: Span(words.seconds("span")?),
            },
            _ => Command::ReportClockSuspect {
                node,
                offset_ms: words.get("offset")?.parse().map_err(|_| "offset=MILLISECONDS")?,
            },
        })
    }

    /// Reads `L1:EPOCH:ATTEMPT:FROZEN_SECONDS`.
    fn work(&self, text: &str) -> Made<NodeWork> {
        let parts: Vec<&str> = text.split(':').collect();
        let [lease, epoch, attempt, frozen] = parts[..] else {
            return Err(format!("work={text}"));
        };
        let words = Words::parse(&format!("work lease={lease}"))?;
        Ok(NodeWork {
            lease: self.lease(&words)?,
            epoch: Epoch(epoch.parse().map_err(|_| "epoch")?),
            attempt: Attempt(attempt.parse().map_err(|_| "attempt")?),
            frozen: Span(millis(frozen).ok_or("frozen")?),
        })
    }

    fn device_command(&mut self, words: &Words) -> Made<Command> {
        let label = words.get("node")?.to_owned();
        let node = self.node(&label);
        Ok(match words.verb.as_str() {
            "report-inventory" => Command::ReportInventory {
                node,
                incarnation: Incarnation(words.number_or("incarnation", 1)?),
                inventory: self.inventory(words, &label)?,
            },
            "report-health" => Command::ReportHealth {
                node,
                edges: words
                    .list("edges")
                    .into_iter()
                    .map(|text| self.edge(text))
                    .collect::<Made<_>>()?,
            },
            "report-rollup" => Command::ReportRollup {
                node,
                rollups: self.devices(words, "devices")?.into_iter().map(rollup).collect(),
            },
            _ => Command::GradeDevice {
                node,
                edge: self.edge(words.get("edge")?)?,
            },
        })
    }

    /// Reads `devices=8xh100[+4xa100]`, numbered from 0 (or from=N); `without=n1.3` leaves some out, `of=n2` takes
    /// another node's.
    fn inventory(&mut self, words: &Words, label: &str) -> Made<Inventory> {
        let without = self.devices(words, "without")?;
        let of = words.opt("of").unwrap_or(label).to_owned();
        let mut devices = Vec::new();
        for group in words.get("devices")?.split('+').filter(|group| *group != "none") {
            let (count, model) = group.split_once('x').ok_or("devices=COUNTxMODEL")?;
            for _ in 0..count.parse::<usize>().map_err(|_| "devices=COUNTxMODEL")? {
                let id = self.device(&format!("{of}.{}", devices.len()))?;
                devices.push(Device {
                    id,
                    kind: DeviceKind::Gpu,
                    model: name(model)?,
                    memory_mib: 81_920,
                    compute_capability: 90,
                    island: 0,
                    numa: None,
                });
            }
        }
        devices.retain(|device| !without.contains(&device.id));
        if words.opt("order") == Some("reversed") {
            devices.reverse();
        }
        Ok(Inventory {
            devices,
            cpu_milli: words.number_or("cpu", 64_000)? as u32,
            memory_mib: words.number_or("memory", 512_000)? as u32,
            isolation: IsolationLevel::Cgroup,
            version: words.opt("version").unwrap_or("0.1.0").to_owned(),
            simulated: true,
        })
    }

    /// Reads `n1.3:GRADE[:XID][:REASON]`.
    fn edge(&mut self, text: &str) -> Made<HealthEdge> {
        let mut parts = text.splitn(4, ':');
        let device = self.device(parts.next().ok_or("edge")?)?;
        let grade = match parts.next().ok_or("edge=DEVICE:GRADE")? {
            "healthy" => Grade::Healthy,
            "suspect" => Grade::Suspect,
            "dirty" => Grade::Dirty,
            "quarantined" => Grade::Quarantined,
            "missing" => Grade::Missing,
            other => return Err(format!("unknown grade {other}")),
        };
        let xid = parts
            .next()
            .filter(|xid| !xid.is_empty())
            .map(|xid| xid.parse().map_err(|_| "xid"))
            .transpose()?;
        let reason = parts.next().unwrap_or("seen by its node").to_owned();
        Ok(HealthEdge {
            device,
            grade,
            xid,
            reason,
        })
    }

    fn lease_command(&mut self, words: &Words) -> Made<Command> {
        if words.verb == "create-lease" {
            return Ok(Command::CreateLease(Box::new(create_lease(words)?)));
        }
        if words.verb == "create-lease-with" {
            let share = |text: &str| text.parse().map(|milli| Condition::Share(Box::new(Share { milli })));
            let shares: Result<Vec<_>, _> = words.list("share").into_iter().map(share).collect();
            let mut conditions = shares.map_err(|_| "share=MILLI")?;
            if words.opt("prefer").is_some() {
                conditions.push(prefer(words)?);
            }
            return Ok(Command::CreateLeaseWith(Box::new(CreateLeaseWith {
                lease: create_lease(words)?,
                conditions,
            })));
        }
        let lease = self.lease(words)?;
        let state = self.machine.state();
        Ok(match words.verb.as_str() {
            "release-lease" => Command::ReleaseLease { lease },
            "preempt-lease" => Command::PreemptLease {
                lease,
                epoch: Epoch(words.number_or("epoch", 1)? as u32),
                by: self.lease(&Words::parse(&format!("by lease={}", words.get("by")?))?)?,
            },
            "renew-lease" => Command::RenewLease {
                lease,
                more: Span(words.seconds("more")?),
            },
            "end-lease" => Command::EndLease {
                lease,
                reason: match words.opt("reason").unwrap_or("expired") {
                    "expired" => EndReason::Expired,
                    "capped" => EndReason::Capped,
                    _ => EndReason::Completed,
                },
                renewal: match words.opt("renewal").unwrap_or("present") {
                    "present" => state.leases.get(&lease).map_or(0, |lease| lease.renewal),
                    text => text.parse().map_err(|_| "renewal=INDEX")?,
                },
            },
            _ => {
                let placement = state.leases.get(&lease).and_then(|lease| lease.placement.as_ref());
                let token = placement.map_or(FencingToken::default(), |placement| placement.token);
                let holders: Vec<String> = words.list("holders").into_iter().map(str::to_owned).collect();
                Command::CommitCheckpoint {
                    lease,
                    fence: Fence {
                        token: FencingToken {
                            era: Era(words.number_or("era", 0)? as u32),
                            ..token
                        },
                        epoch: Epoch(words.number("epoch")? as u32),
                        attempt: Attempt(words.number_or("attempt", 1)? as u32),
                    },
                    checkpoint: Checkpoint {
                        step: words.number("step")?,
                        rank: 0,
                        manifest: digest(words.number("step")?),
                        bytes: 1_000_000,
                        holders: holders.iter().map(|label| self.node(label)).collect(),
                    },
                }
            }
        })
    }

    fn placement_command(&mut self, words: &Words) -> Made<Command> {
        let lease = self.lease(words)?;
        if words.verb == "defer-placement" {
            let reason = words.get("reason")?.to_owned();
            return Ok(Command::DeferPlacement { lease, reason });
        }
        let epoch = Epoch(words.number_or("epoch", 1)? as u32);
        if words.verb == "commit-placement" {
            return Ok(Command::CommitPlacement {
                lease,
                epoch,
                allocations: self.allocations(words)?,
            });
        }
        let node = self.node(words.get("node")?);
        let attempt = Attempt(words.number_or("attempt", 1)? as u32);
        Ok(match words.verb.as_str() {
            "report-prepared" => Command::ReportPrepared {
                lease,
                epoch,
                follows: Attempt(words.number_or("follows", 0)? as u32),
                node,
                incarnation: Incarnation(words.number_or("incarnation", 1)?),
            },
            "report-started" => Command::ReportStarted {
                lease,
                epoch,
                attempt,
                node,
            },
            _ => Command::ReportExited {
                lease,
                epoch,
                attempt,
                node,
                exit: exit(words.get("exit")?)?,
            },
        })
    }

    /// Reads `on=n1:0-3,6/n2:0`, with `cpu=` and `memory=` for each member.
    fn allocations(&mut self, words: &Words) -> Made<Vec<Allocation>> {
        let mut all = Vec::new();
        for (rank, part) in words.get("on")?.split('/').filter(|part| !part.is_empty()).enumerate() {
            let (label, numbers) = part.split_once(':').ok_or("on=NODE:NUMBERS")?;
            let mut devices = Vec::new();
            for range in numbers.split(',').filter(|range| !range.is_empty()) {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let bound = |text: &str| {
                    text.parse::<u8>()
                        .map_err(|_| format!("{range} is not a range of devices"))
                };
                for number in bound(first)?..=bound(last)? {
                    devices.push(self.device(&format!("{label}.{number}"))?);
                }
            }
            all.push(Allocation {
                node: self.node(label),
                rank: words.number_or("rank", rank as u64)? as u32,
                cpu_milli: words.number_or("cpu", 1000 * devices.len() as u64)? as u32,
                memory_mib: words.number_or("memory", 1000 * devices.len() as u64)? as u32,
                devices,
            });
        }
        Ok(all)
    }
}

fn address(words: &Words, label: &str) -> NodeAddress {
    NodeAddress {
        host: words.opt("host").unwrap_or(label).to_owned(),
        main_port: 7400,
        lease_port: 7401,
        bulk_port: 7402,
    }
}

fn role(text: &str) -> Made<NodeRole> {
    match text {
        "replica" => Ok(NodeRole::Replica),
        "worker" => Ok(NodeRole::Worker),
        "witness" => Ok(NodeRole::Witness),
        other => Err(format!("unknown role {other}")),
    }
}

fn exit(text: &str) -> Made<Exit> {
    let (kind, value) = text.split_once(':').unwrap_or((text, ""));
    Ok(match kind {
        "code" => Exit::Code(value.parse().map_err(|_| "exit=code:N")?),
        "signal" => Exit::Signal(value.parse().map_err(|_| "exit=signal:N")?),
        "out-of-memory" => Exit::OutOfMemory,
        "launch-failed" => Exit::LaunchFailed(value.to_owned()),
        "not-started" => Exit::NotStarted,
        "stopped" => Exit::Stopped,
        "vanished" => Exit::Vanished,
        other => return Err(format!("unknown exit {other}")),
    })
}

fn rollup(device: DeviceId) -> Rollup {
    Rollup {
        device,
        span: Span(60_000),
        samples: 60,
        temperature_c: None,
        memory_temperature_c: None,
        power_mw: None,
        energy_mj: None,
        utilisation_permille: None,
        memory_used_mib: None,
        ecc_single_bit: None,
        ecc_double_bit: None,
        remapped_rows: None,
        remap_pending: None,
        remap_failed: None,
        pcie_replays: None,
        nvlink_crc_errors: None,
        throttle_reasons: None,
        coolant_decic: None,
        optical_rx_centidbm: None,
    }
}

/// Reads `prices=h100:24,a100:12`, in units for one device and one hour, under all three plans at the same price.
fn tariff(words: &Words, version: u32) -> Made<Tariff> {
    let mut prices = Vec::new();
    for text in words.list("prices") {
        let (model, units) = text.split_once(':').ok_or("prices=MODEL:UNITS")?;
        for plan in [Plan::OnDemand, Plan::Reserved, Plan::Spot] {
            prices.push(Price {
                model: name(model)?,
                plan,
                micros_per_device_hour: units.parse::<u64>().map_err(|_| "price")? * 1_000_000,
            });
        }
    }
    prices.sort_by(|a, b| (&a.model, a.plan).cmp(&(&b.model, b.plan)));
    Ok(Tariff {
        version: words.number_or("version", u64::from(version))? as u32,
        currency: words.opt("currency").unwrap_or("USD").to_owned(),
        prices,
    })
}

/// Reads `subscription=NAME [tenant=OWNER]`; without an owner it is the cluster's.
fn subscription_command(words: &Words, machine: &Machine) -> Made<Command> {
    let key = SubscriptionKey {
        tenant: words.opt("tenant").map(name).transpose()?,
        subscription: name(words.get("subscription")?)?,
    };
    let position = |key: &str| {
        words
            .opt(key)
            .map(|text| text.parse::<Cursor>().map_err(|error| error.to_string()))
    };
    let topic = |text: &str| {
        let found = Topic::ALL.into_iter().find(|topic| topic.name() == text);
        found.ok_or(format!("there is no topic {text}"))
    };
    Ok(match words.verb.as_str() {
        "create-subscription" => Command::CreateSubscription(Box::new(Subscription {
            key,
            filter: EventFilter {
                topics: words.list("topics").into_iter().map(topic).collect::<Made<_>>()?,
                types: words.list("types").into_iter().map(name).collect::<Made<_>>()?,
                tenant: words.opt("of-tenant").map(name).transpose()?,
                ..EventFilter::default()
            },
            after: position("after").unwrap_or(Ok(machine.state().cluster.cursor))?,
        })),
        "remove-subscription" => Command::RemoveSubscription { key },
        _ => Command::AcknowledgeEvents {
            key,
            through: position("through").ok_or("through=POSITION")??,
        },
    })
}

fn tenant_command(words: &Words) -> Made<Command> {
    let token = || words.number("token").map(TokenId);
    Ok(match words.verb.as_str() {
        "create-join-token" => Command::CreateJoinToken {
            token: token()?,
            secret: digest(token()?.0),
            role: role(words.opt("role").unwrap_or("replica"))?,
            life: Span(words.opt("life").map_or(Ok(900_000), |_| words.seconds("life"))?),
        },
        "create-access-token" => Command::CreateAccessToken(AccessToken {
            token: token()?,
            secret: digest(token()?.0),
            role: match words.opt("role").unwrap_or("tenant") {
                "tenant" => Role::Tenant,
                "operator" => Role::Operator,
                "subscriber" => Role::Subscriber,
                _ => Role::ReadOnly,
            },
            tenant: words.opt("tenant").map(name).transpose()?,
            project: words.opt("of-project").map(name).transpose()?,
            note: words.opt("note").unwrap_or("test").to_owned(),
            expires: words
                .opt("expires")
                .map(|_| words.seconds("expires"))
                .transpose()?
                .map(Timestamp),
        }),
        "revoke-token" => Command::RevokeToken { token: token()? },
        "set-tenant" => Command::SetTenant {
            tenant: name(words.get("tenant")?)?,
            quota: Quota {
                devices_max: words.number("devices")? as u32,
            },
        },
        "set-limits" => Command::SetLimits {
            tenant: name(words.get("tenant")?)?,
            limits: words.list("limits").into_iter().map(limit).collect::<Made<_>>()?,
        },
        _ => Command::SetTariff(tariff(words, 2)?),
    })
}

/// Reads `prefer=h100:3,zone/a:2`.
fn prefer(words: &Words) -> Made<Condition> {
    let mut prefer = Prefer {
        models: Vec::new(),
        zones: Vec::new(),
    };
    for text in words.list("prefer") {
        let (what, weight) = text.split_once(':').ok_or("prefer=NAME:WEIGHT")?;
        let weights = match what.starts_with("zone/") {
            true => &mut prefer.zones,
            false => &mut prefer.models,
        };
        weights.push(Weight {
            name: name(what.trim_start_matches("zone/"))?,
            weight: weight.parse().map_err(|_| "prefer=NAME:WEIGHT")?,
        });
    }
    Ok(Condition::Prefer(Box::new(prefer)))
}

/// Reads `h100:8`, or `spend:60` in units an hour; `any` for no bound.
fn limit(text: &str) -> Made<Limit> {
    let (what, most) = text.split_once(':').ok_or("limits=MODEL:COUNT")?;
    let most = (most != "any")
        .then(|| most.parse::<u64>().map_err(|_| format!("limits={text}")))
        .transpose()?;
    Ok(match what {
        "spend" => Limit::Spend(Box::new(SpendLimit {
            micros_per_hour_max: most.map(|units| units * 1_000_000),
        })),
        model => Limit::Model(Box::new(ModelLimit {
            model: name(model)?,
            devices_max: most.map_or(u32::MAX, |most| most as u32),
        })),
    })
}

fn create_lease(words: &Words) -> Made<CreateLease> {
    let devices = words.get("devices")?;
    let (least, most) = devices.split_once('-').unwrap_or((devices, devices));
    let count = |text: &str| text.parse::<u32>().map_err(|_| format!("devices={devices}"));
    let names = |key| words.list(key).into_iter().map(name).collect::<Made<Vec<Name>>>();
    Ok(CreateLease {
        tenant: name(words.opt("tenant").unwrap_or("blue"))?,
        kind: LeaseKind::Job,
        label: words.opt("label").map(name).transpose()?,
        request: ResourceRequest {
            devices_min: count(least)?,
            devices_max: count(most)?,
            models: names("models")?,
            same_model: words.opt("same-model").is_some(),
            single_node: words.opt("single-node").is_some(),
            cpu_milli_per_device: words.number_or("cpu", 1000)? as u32,
            memory_mib_per_device: words.number_or("memory", 1000)? as u32,
            zones: names("zones")?,
            spread: Spread::Pack,
        },
        terms: Terms {
            duration: Span(words.opt("for").map_or(Ok(3_600_000), |_| words.seconds("for"))?),
            plan: match words.opt("plan") {
                Some("spot") => Plan::Spot,
                Some("reserved") => Plan::Reserved,
                _ => Plan::OnDemand,
            },
            cap_micros: words.opt("cap").map(|_| words.number("cap")).transpose()?,
            isolation: Isolation::Freeze,
            priority: words.number_or("priority", 0)? as u8,
            grace: Span(words.opt("grace").map_or(Ok(10_000), |_| words.seconds("grace"))?),
        },
        workload: Workload {
            command: match words.opt("run") {
                Some("") => Vec::new(),
                Some(text) => text.split(' ').map(str::to_owned).collect(),
                None => vec!["train".to_owned()],
            },
            environment: words
                .opt("env")
                .map(|text| text.split_once('=').unwrap_or((text, "")))
                .map_or_else(Vec::new, |(key, value)| vec![(key.to_owned(), value.to_owned())]),
            folder: words.opt("folder").map(str::to_owned),
            image: words.opt("image").map(name).transpose()?,
            checkpoints: true,
        },
    })
}
