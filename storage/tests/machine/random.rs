//! Writes random lines of scripts: mostly what nodes, scheduler and tenants would say in the present state, sometimes
//! what was true a while ago, sometimes nonsense.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use holdfast_proto::lease::{LeaseStatus, Plan};
use holdfast_proto::node::NodeStatus;
use holdfast_storage::machine::state::{Lease, Node, Run};
use holdfast_storage::machine::view::Want;

use crate::world::World;

pub const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];
const ZONES: [&str; 5] = ["a", "b", "c", "a", "b"];

/// Lines that make the cluster. `n1` votes and is never lost, so that somebody can speak.
pub fn cluster() -> Vec<String> {
    let mut lines = vec!["init-cluster node=a/n1 prices=a100:12,h100:24".to_owned()];
    for (at, (label, zone)) in NODES.iter().zip(ZONES).enumerate() {
        if at > 0 {
            lines.push(format!("create-join-token token={}", 100 + at));
            lines.push(format!("admit-node node={zone}/{label} token={}", 100 + at));
        }
        let model = if at == 2 { "a100" } else { "h100" };
        lines.push(format!("register-node node={label} incarnation=1"));
        lines.push(format!("report-inventory node={label} devices=4x{model} cpu=8000"));
    }
    for tenant in ["blue", "green"] {
        lines.push(format!("set-tenant tenant={tenant} devices=24"));
        let token = crate::world::tenant_token(tenant).0;
        lines.push(format!("create-access-token token={token} tenant={tenant}"));
    }
    lines.push("raise-machine-level level=2".to_owned());
    lines.push("raise-machine-level level=3".to_owned());
    lines
}

pub struct Author {
    seed: u64,
    now_ms: u64,
    /// Lines of some time ago, for late copies.
    said: Vec<String>,
    incarnation: u64,
}

impl Author {
    pub fn new(seed: u64) -> Self {
        Self {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1),
            now_ms: 1000,
            said: Vec::new(),
            incarnation: 1,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % bound.max(1)
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let at = self.below(all.len());
        all.get(at)
    }

    /// Writes the next line.
    pub fn line(&mut self, world: &World) -> String {
        let steps = [0, 0, 1, 20, 500, 3000, 40_000];
        self.now_ms += *self.pick(&steps).unwrap();
        if self.below(12) == 0 {
            // A late copy, as the network makes them.
            if let Some(late) = self
                .said
                .get(self.said.len().saturating_sub(1 + self.seed as usize % 60))
                .cloned()
            {
                return format!("{late} t={}.{:03}", self.now_ms / 1000, self.now_ms % 1000);
            }
        }
        let text = loop {
            let tried = match self.below(21) {
                0..=8 => self.member(world),
                9..=10 => self.place(world),
                11..=13 => self.node(world),
                14..=15 => Some(self.request()),
                16 => self.due(world),
                17 => self.device(world),
                18 => self.tenant(world),
                19 => Some(self.subscription(world)),
                _ => Some(self.nonsense(world)),
            };
            if let Some(text) = tried {
                break text;
            }
        };
        self.said.push(text.clone());
        format!("{text} t={}.{:03}", self.now_ms / 1000, self.now_ms % 1000)
    }

    fn label(world: &World, node: holdfast_proto::id::NodeId) -> String {
        world.labels[node.0 as usize - 1].clone()
    }

    fn some_node<'a>(&mut self, world: &'a World, with: impl Fn(&Node) -> bool) -> Option<&'a Node> {
        let all: Vec<&Node> = world
            .machine
            .state()
            .present_nodes()
            .map(|node| &**node)
            .filter(|node| with(node))
            .collect();
        self.pick(&all).copied()
    }

    fn some_lease<'a>(&mut self, world: &'a World, with: impl Fn(&Lease) -> bool) -> Option<&'a Lease> {
        let all: Vec<&Lease> = world
            .machine
            .state()
            .live_leases()
            .map(|lease| &**lease)
            .filter(|lease| with(lease))
            .collect();
        self.pick(&all).copied()
    }

    /// What an executor would say.
    fn member(&mut self, world: &World) -> Option<String> {
        let node = self.some_node(world, |_| true)?;
        let state = world.machine.state();
        let all = state.assignments(node.spec.node);
        let one = self.pick(&all)?.clone();
        let (lease, epoch, attempt) = (one.lease.id(), one.placement.epoch, one.placement.attempt);
        let label = Self::label(world, node.spec.node);
        let incarnation = node.incarnation?.0;
        let head = format!("lease={lease} epoch={epoch} node={label}");
        let exits = ["code:0", "code:0", "code:1", "signal:9", "out-of-memory", "vanished"];
        Some(match one.want {
            Want::Prepare { follows } if self.below(12) == 0 => {
                format!("report-exited {head} attempt={} exit=launch-failed:no", follows.next())
            }
            Want::Prepare { follows } => format!("report-prepared {head} follows={follows} incarnation={incarnation}"),
            Want::Start { incarnation: by } if by.0 != incarnation => {
                format!("report-exited {head} attempt={attempt} exit=not-started")
            }
            Want::Start { .. } => match self.below(10) {
                0 => format!("report-exited {head} attempt={attempt} exit=launch-failed:no"),
                1 => format!("report-exited {head} attempt={attempt} exit=code:0"),
                _ => format!("report-started {head} attempt={attempt}"),
            },
            Want::Run => match self.below(4) {
                0 => format!("report-exited {head} attempt={attempt} exit={}", self.pick(&exits)?),
                1 => {
                    let holder = self.pick(&NODES)?;
                    let step = one.lease.checkpoints.last().map_or(0, |last| last.step) + 10;
                    format!("commit-checkpoint {head} attempt={attempt} step={step} holders={holder}")
                }
                _ => return None,
            },
            Want::Stop { .. } => format!("report-exited {head} attempt={attempt} exit=stopped"),
            Want::Wait => return None,
        })
    }

    /// What a scheduler would say: it takes the first devices that look free, and does not always look.
    fn place(&mut self, world: &World) -> Option<String> {
        let state = world.machine.state();
        let lease = self.some_lease(world, |lease| lease.queue_key().is_some())?;
        let blind = self.below(8) == 0;
        let mut missing = lease.requested.request.devices_min as usize;
        let mut parts = Vec::new();
        let start = self.below(NODES.len());
        for node in (0..NODES.len()).map(|at| NODES[(start + at) % NODES.len()]) {
            let id = holdfast_proto::id::NodeId(world.labels.iter().position(|label| label == node)? as u64 + 1);
            let mine = |slot: &holdfast_storage::machine::state::Slot| {
                slot.holder.is_some_and(|holder| holder.lease == lease.id())
            };
            let milli = state.milli_of(lease.id());
            let free: Vec<String> = state
                .devices_of(id)
                .filter(|slot| blind || mine(slot) || state.milli_free(slot, lease.id()) >= milli)
                .take(missing)
                .map(|slot| slot.device.id.0[15].to_string())
                .collect();
            let takes = state.nodes.get(&id).is_some_and(|node| node.takes_work());
            if free.is_empty() || !(takes || blind) {
                continue;
            }
            missing -= free.len();
            parts.push(format!("{node}:{}", free.join(",")));
            if missing == 0 {
                break;
            }
        }
        let (id, epoch) = (lease.id(), lease.epoch.next());
        Some(match missing {
            0 => format!("commit-placement lease={id} epoch={epoch} on={}", parts.join("/")),
            _ => format!("defer-placement lease={id} reason=\"{missing} devices are missing\""),
        })
    }

    /// What the leader and the nodes' daemons would say about nodes.
    fn node(&mut self, world: &World) -> Option<String> {
        let node = self.some_node(world, |node| node.spec.node.0 != 1)?;
        let label = Self::label(world, node.spec.node);
        let generation = node.generation;
        let incarnation = node.incarnation?.0;
        if !node.inventory_known() {
            let model = if label == "n3" { "a100" } else { "h100" };
            return Some(format!(
                "report-inventory node={label} incarnation={incarnation} devices=4x{model} cpu=8000"
            ));
        }
        if let Some(drain) = world.machine.state().drains.get(&node.spec.node) {
            let leases = world.machine.state().leases_on(node.spec.node);
            let some = self.pick(&leases).copied();
            return Some(match (some.filter(|_| drain.drained.is_none()), self.below(4)) {
                (_, 0) => format!("cordon-node node={label} cordoned=false"),
                (Some(lease), _) => {
                    let epoch = world.machine.state().leases.get(&lease)?.epoch;
                    format!("evict-lease node={label} lease={lease} epoch={epoch}")
                }
                (None, _) => format!("finish-drain node={label}"),
            });
        }
        if node.cordoned.is_some() {
            return Some(format!("cordon-node node={label} cordoned=false"));
        }
        if self.below(12) == 0 {
            return Some(format!("drain-node node={label} for={}", self.below(100)));
        }
        Some(match node.status {
            NodeStatus::Ready if self.below(3) == 0 => {
                format!("mark-node-unreachable node={label} generation={generation}")
            }
            NodeStatus::Ready if self.below(6) == 0 => {
                self.incarnation += 1;
                format!(
                    "register-node node={label} incarnation={} replaces={incarnation}",
                    self.incarnation
                )
            }
            NodeStatus::Unreachable if self.below(2) == 0 => {
                format!("mark-node-lost node={label} generation={generation}")
            }
            NodeStatus::Unreachable | NodeStatus::Lost => {
                let head = format!("return-node node={label} generation={generation} incarnation={incarnation}");
                let state = world.machine.state();
                let runs = state.assignments(node.spec.node);
                let work: Vec<String> = runs
                    .iter()
                    .filter(|one| matches!(one.member.run, Run::Started(_)))
                    .map(|one| {
                        let placement = one.placement;
                        format!("{}:{}:{}:1.5", one.lease.id(), placement.epoch, placement.attempt)
                    })
                    .collect();
                format!("{head} work={}", work.join(","))
            }
            _ => return None,
        })
    }

    fn request(&mut self) -> String {
        let devices = 1 + self.below(9);
        let tenant = ["blue", "green"][self.below(2)];
        let shape = [
            "",
            " same-model=yes",
            " single-node=yes",
            " models=h100",
            " zones=a,b",
            " cap=40000",
        ][self.below(6)];
        let request = self.below(40);
        let length = [60, 3600, 86_400][self.below(3)];
        if self.below(3) == 0 {
            let share = [100, 190, 400, 500, 810][self.below(5)];
            return format!(
                "create-lease-with tenant={tenant} devices=1 share={share} for={length} request={request}{shape}"
            );
        }
        format!(
            "create-lease tenant={tenant} devices={devices} for={length} request={request}{shape} priority={} plan={}",
            self.below(3),
            ["on-demand", "spot"][self.below(2)],
        )
    }

    fn due(&mut self, world: &World) -> Option<String> {
        let due = world.machine.state().due(holdfast_proto::time::Timestamp(self.now_ms));
        let one = self.pick(&due)?;
        let reason = match one.reason {
            holdfast_proto::lease::EndReason::Capped => "capped",
            _ => "expired",
        };
        Some(format!(
            "end-lease lease={} reason={reason} renewal={}",
            one.lease, one.renewal
        ))
    }

    fn device(&mut self, world: &World) -> Option<String> {
        let node = self.some_node(world, |_| true)?;
        let label = Self::label(world, node.spec.node);
        let number = self.below(4);
        Some(match self.below(6) {
            0 => format!("report-health node={label} edges={label}.{number}:missing:79"),
            1 => format!("report-health node={label} edges={label}.{number}:quarantined"),
            _ => format!("grade-device node={label} edge={label}.{number}:healthy"),
        })
    }

    fn tenant(&mut self, world: &World) -> Option<String> {
        let lease = self.some_lease(world, |lease| !matches!(lease.status, LeaseStatus::Ending(_)))?;
        if lease.requested.terms.plan == Plan::Spot && lease.stays() && self.below(2) == 0 {
            let by = self.some_lease(world, |lease| lease.queue_key().is_some())?.id();
            return Some(format!(
                "preempt-lease lease={} epoch={} by={by}",
                lease.id(),
                lease.epoch
            ));
        }
        Some(match self.below(4) {
            0 => format!("renew-lease lease={} more=60", lease.id()),
            1 => format!("release-lease lease={}", lease.id()),
            _ => return None,
        })
    }

    /// Something that nobody in his right mind says now.
    /// What readers of the event stream say, in and out of turn.
    fn subscription(&mut self, world: &World) -> String {
        let tenant = ["blue", "green"][self.below(2)];
        let head = format!("subscription=s{} tenant={tenant}", self.below(3));
        let last = world.machine.state().cluster.cursor;
        let position = format!(
            "{}.{}",
            (last.index + 1).saturating_sub(self.below(60) as u64),
            self.below(3)
        );
        match self.below(8) {
            0 => format!("remove-subscription {head}"),
            1..=3 => format!("create-subscription {head} topics=lease after={position}"),
            _ => format!("acknowledge-events {head} through={position}"),
        }
    }

    fn nonsense(&mut self, world: &World) -> String {
        let node = *self.pick(&NODES).unwrap();
        let leases: Vec<_> = world.machine.state().leases.keys().copied().collect();
        let lease = self.pick(&leases).map_or("lease-1".to_owned(), ToString::to_string);
        let (epoch, attempt) = (self.below(4), self.below(4));
        match self.below(10) {
            0 => format!("report-started lease={lease} epoch={epoch} attempt={attempt} node={node}"),
            1 => format!("report-exited lease={lease} epoch={epoch} attempt={attempt} node={node} exit=code:0"),
            2 => format!("report-prepared lease={lease} epoch={epoch} follows={attempt} node={node} incarnation=1"),
            3 => format!("mark-node-lost node={node} generation={epoch}"),
            4 => format!("end-lease lease={lease} renewal={epoch}"),
            5 => format!("commit-placement lease={lease} epoch={epoch} on={node}:0-2"),
            6 => format!("release-lease lease={lease}"),
            7 => "record-state-hash at=present hash=own".to_owned(),
            8 => {
                let most = ["any", "0", "4", "12"][self.below(4)];
                format!(
                    "set-limits tenant=blue limits=a100:{most},spend:{}",
                    24 * (1 + self.below(40))
                )
            }
            _ => format!("set-tenant tenant=blue devices={}", 8 + self.below(30)),
        }
    }
}
