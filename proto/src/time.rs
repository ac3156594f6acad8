//! Time as the log knows it: integer milliseconds, stamped by the leader, never decreasing.
//!
//! Nothing here reads a clock. Arithmetic saturates, because a time that wraps would expire every lease at once.

use std::fmt;

/// Milliseconds since 1970-01-01 UTC, as stamped into an entry.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the time `span` later.
    #[must_use]
    pub fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns how long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    /// Writes `2027-01-15T08:00:00Z`, with milliseconds where there are any: texts of refusals are read by people.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.0 / 86_400_000);
        let (hour, minute) = (self.0 / 3_600_000 % 24, self.0 / 60_000 % 60);
        let (second, millis) = (self.0 / 1000 % 60, self.0 % 1000);
        write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match millis {
            0 => out.write_str("Z"),
            millis => write!(out, ".{millis:03}Z"),
        }
    }
}

/// Returns year, month and day of a day counted from 1970-01-01, in the Gregorian calendar: 400 years are 146,097 days.
/// The year is counted from March, so that the leap day is its last (Howard Hinnant, `civil_from_days`).
fn date(days: u64) -> (u64, u64, u64) {
    let from_march = days + 719_468;
    let (era, day_of_era) = (from_march / 146_097, from_march % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// A length of time in milliseconds.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct Span(pub u64);

impl Span {
    /// A span of whole seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }
}

impl fmt::Display for Span {
    /// Writes `2h`, `90s`, `1m30s` or `250ms`: the shortest exact form.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hours, minutes) = (self.0 / 3_600_000, self.0 / 60_000 % 60);
        let (seconds, millis) = (self.0 / 1000 % 60, self.0 % 1000);
        for (amount, unit) in [(hours, "h"), (minutes, "m"), (seconds, "s"), (millis, "ms")] {
            if amount > 0 {
                write!(out, "{amount}{unit}")?;
            }
        }
        if self.0 == 0 { out.write_str("0s") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Timestamp(u64::MAX).plus(Span(1)), Timestamp(u64::MAX));
        assert_eq!(Timestamp(1).since(Timestamp(2)), Span(0));
    }

    #[test]
    fn stamps_print_as_dates() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_800_000_000_000, "2027-01-15T08:00:00Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (253_402_300_799_000, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(Timestamp(ms).to_string(), text);
        }
        assert!(Timestamp(u64::MAX).to_string().ends_with('Z'));
    }

    #[test]
    fn spans_print_in_their_shortest_exact_form() {
        for (span, text) in [(0, "0s"), (250, "250ms"), (90_000, "1m30s"), (7_200_000, "2h")] {
            assert_eq!(Span(span).to_string(), text);
        }
    }
}
