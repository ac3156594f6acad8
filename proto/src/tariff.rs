//! Prices and charges: integers only, micro-units of one currency, one rounding per invoice line.

use crate::device::ModelName;
use crate::id::{Cursor, Epoch, LeaseId, Name};
use crate::lease::Plan;
use crate::time::{Span, Timestamp};

/// What is metered: an open set, so that a new meter needs no new wire format. `device-time` is the one of this version.
pub type Meter = Name;

/// List price of one device model under one plan.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Price {
    /// Device model.
    pub model: ModelName,
    /// Price class.
    pub plan: Plan,
    /// Micro-units for one device and one hour.
    pub micros_per_device_hour: u64,
}

/// The prices in force. A lease freezes its own at placement; a later tariff never changes it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Tariff {
    /// Rises with each change.
    pub version: u32,
    /// ISO 4217 code of the currency.
    pub currency: String,
    /// Prices, ordered by model and plan.
    pub prices: Vec<Price>,
}

/// One line of an invoice: one stretch of running time at one rate.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct ChargeLine {
    /// The lease that pays.
    pub lease: LeaseId,
    /// Placement that ran.
    pub epoch: Epoch,
    /// What was metered.
    pub meter: Meter,
    /// First moment charged.
    pub from: Timestamp,
    /// First moment not charged any more.
    pub until: Timestamp,
    /// Time inside the stretch that is not charged: frozen, or not proven to have run.
    pub unpaid: Span,
    /// Rate of all devices together, micro-units for one hour.
    pub micros_per_hour: u64,
    /// `(until - from - unpaid) · micros_per_hour / 3,600,000`, rounded half up once.
    pub amount_micros: u64,
    /// Position of the event that opened the stretch.
    pub opened_at: Cursor,
}

/// Returns the price of `charged` at `micros_per_hour`, rounded half up once. `None` when it overflows.
#[must_use]
pub fn amount_micros(charged: Span, micros_per_hour: u64) -> Option<u64> {
    const HOUR_MS: u128 = 3_600_000;
    let exact = u128::from(charged.0).checked_mul(u128::from(micros_per_hour))?;
    u64::try_from((exact + HOUR_MS / 2) / HOUR_MS).ok()
}

/// Returns the longest time that costs at most `cap_micros` at `micros_per_hour`; `None` when time is free.
#[must_use]
pub fn affordable(cap_micros: u64, micros_per_hour: u64) -> Option<Span> {
    const HOUR_MS: u128 = 3_600_000;
    if micros_per_hour == 0 {
        return None;
    }
    let span = u128::from(cap_micros) * HOUR_MS / u128::from(micros_per_hour);
    Some(Span(u64::try_from(span).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_rounded_half_up_once() {
        for (ms, rate, amount) in [
            (0, 9, 0),
            (3_600_000, 7, 7),
            (1_800_000, 1, 1),
            (1_799_999, 1, 0),
            (1, 3_600_000, 1),
        ] {
            assert_eq!(amount_micros(Span(ms), rate), Some(amount), "{ms} ms at {rate}");
        }
        assert_eq!(amount_micros(Span(u64::MAX), u64::MAX), None);
    }

    #[test]
    fn what_is_affordable_never_costs_more_than_the_cap() {
        for (cap, rate) in [(60_000_000, 24_000_000), (1, 7), (999_999, 1_000_003), (0, 5)] {
            let span = affordable(cap, rate).unwrap();
            assert!(u128::from(span.0) * u128::from(rate) <= u128::from(cap) * 3_600_000);
            assert!(amount_micros(span, rate).unwrap() <= cap);
        }
        assert_eq!(affordable(5, 0), None);
    }
}
