//! What a lease consists of, as `lease` and `plan` take it.

use clap::Args;
use holdfast_proto::condition::WEIGHT_MAX;
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
    /// What is better, and how much: `MODEL=WEIGHT` or `zone:ZONE=WEIGHT`, weights 1 to 1000; may be repeated. It rules
    /// nothing out; weights of model and zone add up.
    #[arg(long, value_name = "WHAT=WEIGHT", value_parser = prefer)]
    pub prefer: Vec<Preference>,
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
        for Preference { zone, name, weight } in self.prefer {
            let weights = match zone {
                true => &mut order.prefer_zones,
                false => &mut order.prefer_models,
            };
            weights.insert(name, weight);
        }
        order
    }
}

/// A model or a zone, and how much it is preferred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    zone: bool,
    name: Name,
    weight: u16,
}

fn prefer(text: &str) -> Result<Preference, String> {
    let wrong = || "write what is better and how much, such as a100=3 or zone:a=2, weights 1 to 1000".to_owned();
    let (what, weight) = text.split_once('=').ok_or_else(wrong)?;
    let (zone, name) = match what.strip_prefix("zone:") {
        Some(zone) => (true, zone.to_owned()),
        None => (false, what.to_ascii_lowercase()),
    };
    let weight = weight.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
    Ok(Preference {
        zone,
        name: name.parse().map_err(|error| format!("{error}; {}", wrong()))?,
        weight: weight.ok_or_else(wrong)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn preferences_read_as_they_are_written() {
        for (text, zone, name, weight) in [("A100=3", false, "a100", 3), ("zone:a=1000", true, "a", 1000)] {
            let name = name.parse().unwrap();
            assert_eq!(prefer(text), Ok(Preference { zone, name, weight }), "{text}");
        }
        for text in [
            "a100",
            "a100=",
            "a100=0",
            "a100=1001",
            "=3",
            "zone:=3",
            "a100=-1",
            "a_100=3",
        ] {
            assert!(prefer(text).unwrap_err().contains("such as a100=3"), "{text}");
        }
    }
}
