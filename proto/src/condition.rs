//! Conditions: what a request for a lease says beyond the resource request of the first version.
//!
//! A lease with conditions is requested by `create-lease-with`, and `lease-conditioned` tells of them after
//! `lease-requested`. Append only: a condition is one box, so that a new one changes the bytes of no other. The rule: a
//! cluster takes them only at [`LEVEL`], when every replica knows them.

use crate::id::Name;
use crate::limits::DEVICE_MILLI;

/// Level of the machine's rules from which on leases may have conditions.
pub const LEVEL: u32 = 2;

/// Most models, and most zones, that one lease prefers.
pub const PREFERRED_MAX: usize = 32;

/// Greatest weight of a preference.
pub const WEIGHT_MAX: u16 = 1_000;

/// Most conditions of one lease.
pub const CONDITIONS_MAX: usize = 16;

/// One condition.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
#[serde(tag = "condition", rename_all = "kebab-case")]
pub enum Condition {
    /// A part of one device is enough; others may have the rest.
    Share(Box<Share>),
    /// Some models or zones are better than others; none is ruled out by it.
    Prefer(Box<Prefer>),
}

/// What is better than what.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Prefer {
    /// Models; those that are not named have no weight.
    pub models: Vec<Weight>,
    /// Zones; those that are not named have no weight.
    pub zones: Vec<Weight>,
}

/// How much something is preferred.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Weight {
    /// What.
    pub name: Name,
    /// How much; weights of model and zone add up.
    pub weight: u16,
}

impl Prefer {
    /// Returns the weight of a model.
    #[must_use]
    pub fn of_model(&self, model: &Name) -> u16 {
        weight(&self.models, model)
    }

    /// Returns the weight of a zone.
    #[must_use]
    pub fn of_zone(&self, zone: &Name) -> u16 {
        weight(&self.zones, zone)
    }
}

fn weight(weights: &[Weight], name: &Name) -> u16 {
    let found = weights.iter().find(|weight| weight.name == *name);
    found.map_or(0, |weight| weight.weight)
}

/// A part of a device.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Share {
    /// In thousandths of the device: 1 to 999.
    pub milli: u16,
}

/// Returns how much of each device a lease with these conditions holds, in thousandths.
#[must_use]
pub fn milli(conditions: &[Condition]) -> u16 {
    let share = conditions.iter().filter_map(|condition| match condition {
        Condition::Share(share) => Some(share.milli),
        Condition::Prefer(_) => None,
    });
    share.min().unwrap_or(DEVICE_MILLI)
}

/// Returns what a lease with these conditions prefers.
#[must_use]
pub fn preferred(conditions: &[Condition]) -> Option<&Prefer> {
    conditions.iter().find_map(|condition| match condition {
        Condition::Prefer(prefer) => Some(&**prefer),
        Condition::Share(_) => None,
    })
}

/// Returns the price of a share of what costs `micros` as a whole, rounded half up once.
#[must_use]
pub fn share_of(micros: u64, milli: u16) -> u64 {
    let exact = u128::from(micros) * u128::from(milli);
    let whole = u128::from(DEVICE_MILLI);
    u64::try_from((exact + whole / 2) / whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_costs_its_part_rounded_half_up() {
        for (micros, milli, part) in [
            (2_400_000, 400, 960_000),
            (1, 500, 1),
            (1, 499, 0),
            (u64::MAX, 1000, u64::MAX),
            (7, 1000, 7),
            (0, 333, 0),
        ] {
            assert_eq!(share_of(micros, milli), part, "{milli} of {micros}");
        }
    }

    #[test]
    fn a_lease_without_a_share_holds_whole_devices() {
        assert_eq!(milli(&[]), 1000);
        assert_eq!(milli(&[Condition::Share(Box::new(Share { milli: 400 }))]), 400);
    }
}
