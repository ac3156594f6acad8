//! Questions about the state: what is free, what waits, what a node must do, what a lease costs.
//!
//! Scheduler, executor, API and leader duties ask here, so that all of them mean the same by a word. Nothing is
//! changed, and nothing but the state and the arguments is looked at.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_proto::device::ModelName;
use holdfast_proto::id::{Attempt, FencingToken, Incarnation, LeaseId, NodeId, ProjectId, TenantId};
use holdfast_proto::lease::{EndReason, LeaseStatus, Plan, ResourceRequest};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::tariff::ChargeLine;
use holdfast_proto::time::Timestamp;

use super::meter;
use super::state::{Lease, Member, Node, Placement, Run, Shape, Slot, State};

/// CPU and memory of a node that are not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineLeft {
    /// CPU, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory, in MiB.
    pub memory_mib: u32,
}

/// What a node must do about one allocation of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// Get ready for the attempt after this one, and report it.
    Prepare {
        /// The attempt that it follows.
        follows: Attempt,
    },
    /// Get nothing ready and keep nothing running: it is ready, or others are awaited.
    Wait,
    /// Start the attempt, if this daemon start has prepared it; another one reports that it never will.
    Start {
        /// The only daemon start that may spawn it.
        incarnation: Incarnation,
    },
    /// Keep the attempt running.
    Run,
    /// End it, and prove the end.
    Stop {
        /// Why the lease ends; `None` when it goes on elsewhere or anew.
        reason: Option<EndReason>,
    },
}

/// One allocation of a node whose end is not proven.
#[derive(Debug, Clone)]
pub struct Assignment<'a> {
    /// The lease.
    pub lease: &'a Lease,
    /// The placement that it is part of.
    pub placement: &'a Placement,
    /// The node's part in it.
    pub member: &'a Member,
    /// What is to be done.
    pub want: Want,
}

impl Assignment<'_> {
    /// Returns the token that fences the placement.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.placement.token
    }
}

/// What a lease has cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bill {
    /// Lines so far, in order.
    pub lines: Vec<ChargeLine>,
    /// The line that would be written if the running stretch ended at the time asked about.
    pub running: Option<ChargeLine>,
    /// Sum of all of them, in micro-units.
    pub total_micros: u64,
    /// Code of the currency.
    pub currency: String,
}

/// A lease whose time or money is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The lease.
    pub lease: LeaseId,
    /// What is up.
    pub reason: EndReason,
    /// The renewal seen, to name in the command.
    pub renewal: u64,
}

impl State {
    /// Returns the leases with a part on a node whose end is not proven, in order.
    #[must_use]
    pub fn leases_on(&self, node: NodeId) -> Vec<LeaseId> {
        let first = LeaseId { cell: 0, index: 0 };
        let from = self.index.on_node.iter_from(&(node, first));
        from.map(|(key, ())| *key)
            .take_while(|key| key.0 == node)
            .map(|key| key.1)
            .collect()
    }

    /// Returns a node's devices in order, bad and missing ones too.
    pub fn devices_of(&self, node: NodeId) -> impl Iterator<Item = &Arc<Slot>> {
        let ids = self.nodes.get(&node).map_or(&[][..], |node| &node.devices);
        ids.iter().filter_map(|device| self.devices.get(device))
    }

    /// Returns the devices of a node that may be granted; none when the node takes no new work.
    pub fn free_devices(&self, node: NodeId) -> impl Iterator<Item = &Arc<Slot>> {
        let takes = self.nodes.get(&node).is_some_and(|node| node.takes_work());
        self.devices_of(node).filter(move |slot| takes && self.is_free(slot))
    }

    /// Returns the devices of a node that nobody holds and that are well, as far as can be known: none while the node
    /// cannot be heard. A node that is kept from new work shows how far it is empty.
    pub fn heard_free(&self, node: NodeId) -> impl Iterator<Item = &Arc<Slot>> {
        let heard = self
            .nodes
            .get(&node)
            .is_some_and(|node| node.status == NodeStatus::Ready);
        self.devices_of(node).filter(move |slot| heard && self.is_free(slot))
    }

    /// Returns the nodes that belong to the cluster, in order of their ids.
    pub fn present_nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values().filter(|node| node.status != NodeStatus::Removed)
    }

    /// Returns the highest level of the rules that every node's build knows: until all have told, that is the first.
    #[must_use]
    pub fn rules_known(&self) -> u32 {
        let known = |node: &Arc<Node>| node.inventory.as_ref().map_or(1, |inventory| inventory.rules());
        self.present_nodes().map(known).min().unwrap_or(1).min(super::LEVEL_MAX)
    }

    /// Returns the node with a label, or whose id is written so.
    #[must_use]
    pub fn node_named(&self, name: &str) -> Option<&Arc<Node>> {
        let by_id = name.parse().ok().and_then(|id: NodeId| self.nodes.get(&id));
        by_id.or_else(|| self.present_nodes().find(|node| node.spec.label.as_str() == name))
    }

    /// Returns a node's CPU and memory that are not granted; what `except` holds counts as free.
    #[must_use]
    pub fn machine_left(&self, node: &Node, except: Option<LeaseId>) -> MachineLeft {
        let Some(inventory) = &node.inventory else {
            return MachineLeft {
                cpu_milli: 0,
                memory_mib: 0,
            };
        };
        let mut left = MachineLeft {
            cpu_milli: inventory.cpu_milli,
            memory_mib: inventory.memory_mib,
        };
        for lease in self.leases_on(node.spec.node) {
            let Some(lease) = self.leases.get(&lease).filter(|lease| except != Some(lease.id())) else {
                continue;
            };
            // Two epochs of one lease never run at once, so the larger one counts.
            let members = lease
                .placements()
                .filter_map(|placement| placement.member(node.spec.node));
            let granted = members
                .filter(|member| !member.released)
                .map(|member| &member.allocation);
            let most = granted.fold((0, 0), |most: (u32, u32), one| {
                (most.0.max(one.cpu_milli), most.1.max(one.memory_mib))
            });
            left.cpu_milli = left.cpu_milli.saturating_sub(most.0);
            left.memory_mib = left.memory_mib.saturating_sub(most.1);
        }
        left
    }

    /// Returns the leases that wait for a placement, in the order of the queue. Only those that
    /// [`Lease::is_placeable`] may be placed yet.
    pub fn waiting(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.index
            .waiting
            .keys()
            .filter_map(|(_, lease)| self.leases.get(lease))
    }

    /// Returns the leases that are not over, in order of their ids.
    pub fn live_leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.leases.values().filter(|lease| !lease.status.is_ended())
    }

    /// Returns the leases of a tenant (of all when `None`) and, if named, of one of its projects.
    pub fn leases_of<'a>(
        &'a self,
        tenant: Option<&'a TenantId>,
        project: Option<&'a ProjectId>,
    ) -> impl Iterator<Item = &'a Arc<Lease>> {
        self.leases.values().filter(move |lease| {
            let requested = &lease.requested;
            tenant.is_none_or(|tenant| *tenant == requested.tenant)
                && project.is_none_or(|project| Some(project) == requested.project.as_ref())
        })
    }

    /// Returns what a node must do, one line for each allocation whose end is not proven.
    #[must_use]
    pub fn assignments(&self, node: NodeId) -> Vec<Assignment<'_>> {
        let leases = self
            .leases_on(node)
            .into_iter()
            .filter_map(|lease| self.leases.get(&lease));
        let mut all = Vec::new();
        for lease in leases {
            for placement in lease.placements() {
                if let Some(member) = placement.member(node).filter(|member| !member.released) {
                    let want = want(lease, placement, member);
                    all.push(Assignment {
                        lease,
                        placement,
                        member,
                        want,
                    });
                }
            }
        }
        all
    }

    /// Returns the leases whose time or money is up at `now`.
    #[must_use]
    pub fn due(&self, now: Timestamp) -> Vec<Due> {
        let due = |lease: &Arc<Lease>| {
            let (at, reason) = meter::due(lease)?;
            (at <= now).then_some(Due {
                lease: lease.id(),
                reason,
                renewal: lease.renewal,
            })
        };
        self.live_leases().filter_map(due).collect()
    }

    /// Returns what a lease has cost at `now`.
    #[must_use]
    pub fn bill(&self, lease: &Lease, now: Timestamp) -> Bill {
        let running = meter::line(lease, now);
        let more = running.as_ref().map_or(0, |line| line.amount_micros);
        let tariff = self.tariffs.get(&lease.requested.tariff);
        Bill {
            lines: lease.meter.lines.clone(),
            running,
            total_micros: lease.meter.charged_micros.saturating_add(more),
            currency: tariff.map(|tariff| tariff.currency.clone()).unwrap_or_default(),
        }
    }

    /// Returns the price of one device for an hour.
    #[must_use]
    pub fn price(&self, tariff: u32, model: &ModelName, plan: Plan) -> Option<u64> {
        let prices = &self.tariffs.get(&tariff)?.prices;
        let at = prices
            .binary_search_by(|price| (&price.model, price.plan).cmp(&(model, plan)))
            .ok()?;
        Some(prices[at].micros_per_device_hour)
    }

    /// Returns the models that the cluster has, in order.
    #[must_use]
    pub fn models(&self) -> Vec<ModelName> {
        let shapes = self.index.shapes.keys();
        let mut models: Vec<_> = shapes
            .flat_map(|shape| shape.devices.iter().map(|(model, _)| model))
            .collect();
        models.sort_unstable();
        models.dedup();
        models.into_iter().cloned().collect()
    }

    /// Returns how many devices a request could get if the cluster were empty and all its nodes were heard.
    #[must_use]
    pub fn most_that_fits(&self, request: &ResourceRequest) -> u32 {
        let mut by_model: BTreeMap<&ModelName, u64> = BTreeMap::new();
        let (mut total, mut one_node) = (0_u64, 0_u64);
        for (shape, nodes) in &self.index.shapes {
            let Some(machine) = machine_bound(shape, request) else {
                continue;
            };
            let accepted = shape.devices.iter().filter(|(model, _)| accepts(request, model));
            let mut all = 0_u64;
            let mut largest = 0_u64;
            for (model, count) in accepted {
                let usable = u64::from(*count).min(machine);
                *by_model.entry(model).or_default() += usable * u64::from(*nodes);
                all += u64::from(*count);
                largest = largest.max(usable);
            }
            total += all.min(machine) * u64::from(*nodes);
            one_node = one_node.max(if request.same_model { largest } else { all.min(machine) });
        }
        let most = match (request.single_node, request.same_model) {
            (true, _) => one_node,
            (false, true) => by_model.values().copied().max().unwrap_or(0),
            (false, false) => total,
        };
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

fn accepts(request: &ResourceRequest, model: &ModelName) -> bool {
    request.models.is_empty() || request.models.contains(model)
}

/// Returns how many devices a node's CPU and memory carry; `None` when its zone is not accepted.
fn machine_bound(shape: &Shape, request: &ResourceRequest) -> Option<u64> {
    if !request.zones.is_empty() && !request.zones.contains(&shape.zone) {
        return None;
    }
    let bound = |has: u32, each: u32| has.checked_div(each).map_or(u64::MAX, u64::from);
    let cpu = bound(shape.cpu_milli, request.cpu_milli_per_device);
    Some(cpu.min(bound(shape.memory_mib, request.memory_mib_per_device)))
}

/// Returns what one member must do.
fn want(lease: &Lease, placement: &Placement, member: &Member) -> Want {
    let current = placement.epoch == lease.epoch;
    let ends = lease.end_reason();
    let over = ends.is_some() || !current || placement.over || placement.given_up;
    match &member.run {
        Run::Accepted(_) | Run::Started(_) if over => Want::Stop { reason: ends },
        Run::Accepted(incarnation) => Want::Start {
            incarnation: *incarnation,
        },
        Run::Started(_) => Want::Run,
        Run::Idle | Run::Exited(_) => match lease.status == LeaseStatus::Placed && current && !placement.given_up {
            true => Want::Prepare {
                follows: placement.attempt,
            },
            false => Want::Wait,
        },
    }
}

impl Lease {
    /// Returns until when the lease may run as things stand: the lesser of its time and its money.
    #[must_use]
    pub fn run_until(&self) -> Option<Timestamp> {
        meter::due(self).map(|(at, _)| at)
    }

    /// Returns the nodes of the present placement, by rank.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let members = self.placement.iter().flat_map(|placement| &placement.members);
        members.map(|member| member.allocation.node)
    }
}
