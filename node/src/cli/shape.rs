//! What a lease consists of, as `lease` and `plan` take it.

use clap::Args;
use holdfast_proto::id::Name;
use holdfast_proto::lease::Spread;

use super::amount;
use super::resource::Devices;
use crate::wire::lease::{CPU_MILLI_DEFAULT, LeaseOrder, MEMORY_MIB_DEFAULT, PRIORITY_DEFAULT};

/// What is wanted, and where.
#[derive(Debug, Args)]
pub struct ShapeArgs {
    /// Devices: 8xh100, '4x(a100|h100)' (best first), 2xany, or a part of one: 1xa100:40%.
    pub devices: Devices,
    /// Only in this zone; may be repeated.
    #[arg(long)]
    pub zone: Vec<Name>,
    /// CPU for each device, such as 4, 0.5 or 500m [default: 1].
    #[arg(long, value_parser = amount::cpu)]
    pub cpu: Option<u32>,
    /// Memory for each device, such as 16GiB [default: 1GiB].
    #[arg(long, value_parser = amount::memory)]
    pub memory: Option<u32>,
    /// All devices of one model.
    #[arg(long)]
    pub same_model: bool,
    /// All devices on one node.
    #[arg(long)]
    pub single_node: bool,
    /// Spread over zones instead of packing.
    #[arg(long)]
    pub spread: bool,
    /// Place in the queue; higher first.
    #[arg(long, default_value_t = PRIORITY_DEFAULT)]
    pub priority: u8,
    /// Who pays.
    #[arg(long)]
    pub tenant: Option<Name>,
}

impl ShapeArgs {
    /// An order of this shape for `command`, over `length_ms`.
    pub fn order(self, length_ms: u64, command: Vec<String>) -> LeaseOrder {
        let mut order = LeaseOrder::new(self.devices.count, length_ms, command);
        order.tenant = self.tenant;
        order.models = self.devices.models;
        order.share_milli = self.devices.share_milli;
        order.same_model = self.same_model;
        order.single_node = self.single_node;
        order.zones = self.zone;
        order.cpu_milli_per_device = self.cpu.unwrap_or(CPU_MILLI_DEFAULT);
        order.memory_mib_per_device = self.memory.unwrap_or(MEMORY_MIB_DEFAULT);
        order.spread = if self.spread { Spread::Zones } else { Spread::Pack };
        order.priority = self.priority;
        order
    }
}
