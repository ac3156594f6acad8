//! Connects the devices: the probe that the configuration asks for, its telemetry, and the inventory in the log.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::command::Command;
use holdfast_proto::device::Device;
use holdfast_proto::id::NodeId;
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::node::{Inventory, IsolationLevel};
use holdfast_storage::machine::LEVEL_MAX;
use tokio::sync::watch;

use super::ReadState;
use super::envelope::by_node;
use super::node::Shared;
use crate::config::Config;
use crate::device::sim::{SimDevices, SimSpec};
use crate::executor::isolation;
use crate::executor::outfit::Outfit;
use crate::executor::supervisor::record::Namespace;
use crate::telemetry::task::{Sampler, SharedTelemetry, report as report_telemetry};

/// Wait before an inventory that was not taken is reported again.
const AGAIN: Duration = Duration::from_millis(500);
/// Share of a machine's memory that is kept for the node itself and the system: one eighth.
const MEMORY_KEPT: u64 = 8;

/// The devices of this node.
pub(super) struct Devices {
    telemetry: SharedTelemetry,
    sampler: Sampler,
    simulated: bool,
}

impl Devices {
    /// The devices that are here now.
    pub(super) fn inventory(&self) -> watch::Receiver<Vec<Device>> {
        self.sampler.inventory.clone()
    }

    /// Their readings.
    pub(super) fn telemetry(&self) -> SharedTelemetry {
        self.telemetry.clone()
    }
}

/// Starts sampling. Without simulated devices this version finds none: the node takes part without devices.
pub(super) fn start(simulate: Option<&SimSpec>, shared: &Shared) -> io::Result<Devices> {
    let telemetry = SharedTelemetry::new(shared.clock.clone());
    let none = SimSpec { groups: Vec::new() };
    let script = "".parse().map_err(|error| io::Error::other(format!("{error}")))?;
    let probe = SimDevices::new(shared.me, simulate.unwrap_or(&none), script);
    follow_load(&probe, &shared.state);
    let sampler = Sampler::start(Box::new(probe), telemetry.clone())?;
    Ok(Devices {
        telemetry,
        sampler,
        simulated: simulate.is_some(),
    })
}

/// A simulated card is at work while the lease that holds it is active.
fn follow_load(probe: &SimDevices, state: &ReadState) {
    let state = state.clone();
    probe.follow(move |device| {
        let now = state();
        let holders = now.holders(device);
        let mut leases = holders.iter().filter_map(|holder| now.leases.get(&holder.lease));
        leases.any(|lease| lease.status == LeaseStatus::Active)
    });
}

/// Reports telemetry, and the inventory whenever it is not what the state shows for this start.
pub(super) fn report(config: &Config, devices: &Devices, shared: &Shared) {
    let (me, incarnation, state) = (shared.me, shared.incarnation, &shared.state);
    let (source, propose) = (&shared.source, &shared.propose);
    let graded = state.clone();
    let applied = Arc::new(move |device| graded().devices.get(&device).map(|slot| slot.grade));
    tokio::spawn(report_telemetry(me, devices.telemetry(), applied, propose.clone()));

    let (state, propose, mut here, mut applied) =
        (state.clone(), propose.clone(), devices.inventory(), source.applied());
    let measured = measure(config, me, devices.simulated);
    tokio::spawn(async move {
        loop {
            let mut inventory = measured.clone();
            inventory.devices.clone_from(&here.borrow_and_update());
            inventory.devices.sort_by_key(|device| device.id);
            let now = state();
            let shown = now.nodes.get(&me);
            let registered = shown.is_some_and(|node| node.incarnation == Some(incarnation));
            let told = shown.is_some_and(|node| node.inventory_known() && node.inventory.as_ref() == Some(&inventory));
            if registered && !told {
                let command = Command::ReportInventory {
                    node: me,
                    incarnation,
                    inventory,
                };
                let outcome = propose.propose(by_node(me, command)).await;
                tracing::debug!(?outcome, "inventory report");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            tokio::select! {
                changed = here.changed() => if changed.is_err() { return },
                advanced = applied.changed(), if !registered => if advanced.is_none() { return },
            }
        }
    });
}

/// What the machine has besides devices.
fn measure(config: &Config, me: NodeId, simulated: bool) -> Inventory {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let all_mib = nix::sys::sysinfo::sysinfo().map_or(0, |machine| machine.ram_total() / (1 << 20));
    let level = match std::env::current_exe().map(|program| isolation::report(&program, &Outfit::group_root_of(me))) {
        Ok(Ok(found)) => level_of(&found),
        Ok(Err(error)) | Err(error) => {
            tracing::warn!(%error, "which isolation holds here could not be tried");
            IsolationLevel::Descendants
        }
    };
    let memory = u32::try_from(all_mib - all_mib / MEMORY_KEPT).unwrap_or(u32::MAX);
    tracing::info!(?level, "measured this machine");
    Inventory {
        devices: Vec::new(),
        cpu_milli: config
            .devices
            .cpu_milli
            .unwrap_or_else(|| simulated_cpu(cores, simulated)),
        memory_mib: config.devices.memory_mib.unwrap_or(memory),
        isolation: level,
        version: format!(
            "{}+rules.{LEVEL_MAX}{}",
            env!("CARGO_PKG_VERSION"),
            if simulated { ".simulate" } else { "" }
        ),
        simulated,
    }
}

/// A machine that plays eight cards plays the host of eight cards too; limits that follow from it are set high.
fn simulated_cpu(cores: usize, simulated: bool) -> u32 {
    let real = u32::try_from(cores).unwrap_or(u32::MAX).saturating_mul(1000);
    if simulated { real.max(SIMULATED_CPU_MILLI) } else { real }
}

/// CPU that a simulated host claims at least: 128 cores, as hosts of eight cards have.
const SIMULATED_CPU_MILLI: u32 = 128_000;

fn level_of(found: &isolation::Isolation) -> IsolationLevel {
    match (found.namespace, found.freezer) {
        (Namespace::Pid | Namespace::UserPid, Some(_)) => IsolationLevel::Cgroup,
        (Namespace::Pid | Namespace::UserPid, None) => IsolationLevel::PidNamespace,
        (Namespace::None, _) => IsolationLevel::Descendants,
    }
}
