//! What clients and nodes read and write, as registers: which registers a command writes, and what a state holds.
//!
//! The judge is told when each call begins and how it ends, so that the checker of linearizability has the histories of
//! those who asked. The one rule: a call whose caller dies, or gives up, never ends; it may still take effect.

use holdfast_node::consensus::leadership::Lead;
use holdfast_node::consensus::{Linearize, Outcome};
use holdfast_proto::command::Command;
use holdfast_proto::id::{DeviceId, LeaseId, NodeId};
use holdfast_storage::machine::State;

use super::assembly::Live;
use super::judge::Judge;
use crate::check::Knowledge;
use crate::check::registers::{Ended, Register};
use crate::mutant::Mutant;
use crate::random::Stream;
use crate::trace::digest;
use crate::workload::setup;

/// The value of a text that a register holds; never that of an empty one.
fn of_text(text: &str) -> u64 {
    digest(text.as_bytes()) | 1
}

/// The value of a device that a lease holds. Log indexes of one cell tell leases apart.
fn of_lease(lease: LeaseId) -> u64 {
    lease.index
}

/// What a command writes when it takes effect.
fn writes(command: &Command) -> Vec<(Register, u64)> {
    match command {
        Command::CordonNode { node, cordoned, reason } => {
            let value = if *cordoned { of_text(reason) } else { 0 };
            vec![(Register::Cordon(*node), value)]
        }
        Command::SetTenant { quota, .. } => vec![(Register::Quota(0), quota.devices_max.into())],
        Command::CommitPlacement { lease, allocations, .. } => {
            let devices = allocations.iter().flat_map(|allocation| &allocation.devices);
            devices
                .map(|device| (Register::Device(*device), of_lease(*lease)))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// What a register holds in a state.
pub fn value(state: &State, register: Register) -> u64 {
    match register {
        Register::Cordon(node) => {
            let node = state.nodes.get(&node);
            node.and_then(|node| node.cordoned.as_deref()).map_or(0, of_text)
        }
        Register::Quota(_) => {
            let tenant = state.tenants.get(&setup::name(setup::TENANT));
            tenant.map_or(0, |tenant| tenant.quota.devices_max.into())
        }
        Register::Device(device) => {
            let holder = state.devices.get(&device).and_then(|slot| slot.holder);
            holder.map_or(0, |holder| of_lease(holder.lease))
        }
    }
}

/// Reads a register as the product's API does by default; none when the read cannot be made sure to be fresh.
pub async fn fresh(live: &Live, mutant: Option<Mutant>, register: Register) -> Option<u64> {
    let sure = match mutant {
        Some(Mutant::StaleRead) => true,
        Some(Mutant::UnconfirmedRead) if live.replica.leadership().is_self => true,
        _ => live.replica.linearize().await.is_ok(),
    };
    sure.then(|| value(&live.state(), register))
}

/// Draws what a client reads next: what it wrote last, or any register.
pub fn choose(written: Option<Register>, replicas: u64, draws: &mut Stream) -> Register {
    if let Some(register) = written.filter(|_| draws.chance(500)) {
        return register;
    }
    let node = NodeId(draws.between(1, replicas));
    match draws.below(4) {
        0 => Register::Quota(0),
        1 => Register::Cordon(node),
        _ => {
            let number = draws.below(setup::DEVICES_PER_NODE.into());
            let device: DeviceId = setup::device(node, u8::try_from(number).unwrap_or(0));
            Register::Device(device)
        }
    }
}

/// The calls that one command is.
pub struct Calls {
    judge: Judge,
    calls: Vec<u64>,
    /// The register that was written last.
    pub last: Option<Register>,
}

impl Calls {
    /// A command is about to be sent.
    pub fn begin(judge: &Judge, command: &Command) -> Self {
        let writes = writes(command);
        let call = |(register, value): &(Register, u64)| judge.called(*register, Some(*value));
        Self {
            judge: judge.clone(),
            calls: writes.iter().map(call).collect(),
            last: writes.last().map(|(register, _)| *register),
        }
    }

    fn end(&self, ended: Ended) {
        self.calls.iter().for_each(|call| self.judge.returned(*call, ended));
    }

    /// Its client knows this of it.
    pub fn known(&self, knowledge: Knowledge) {
        match knowledge {
            Knowledge::Acknowledged(_) => self.end(Ended::Wrote),
            Knowledge::Refused => self.end(Ended::Nothing),
            Knowledge::Unknown => {}
        }
    }

    /// The replica that it was proposed through says this of it.
    pub fn proposed(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Applied { .. } => self.end(Ended::Wrote),
            Outcome::Refused { .. } => self.end(Ended::Nothing),
            Outcome::Unknown { .. } => {}
        }
    }
}
