//! Conditions: what a request for a lease says beyond the resource request of the first version.
//!
//! A lease with conditions is requested by `create-lease-with`, and `lease-conditioned` tells of them after
//! `lease-requested`. Append only: a condition is one box, so that a new one changes the bytes of no other. The rule: a
//! cluster takes them only at [`LEVEL`], when every replica knows them.

use crate::limits::DEVICE_MILLI;

/// Level of the machine's rules from which on leases may have conditions.
pub const LEVEL: u32 = 2;

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
    let share = conditions.iter().map(|condition| match condition {
        Condition::Share(share) => share.milli,
    });
    share.min().unwrap_or(DEVICE_MILLI)
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
