//! Time as the log knows it: integer milliseconds, stamped by the leader, never decreasing.
//!
//! Nothing here reads a clock. Arithmetic saturates, because a time that wraps would expire every lease at once.

use std::fmt;

/// Milliseconds since 1970-01-01 UTC, as stamped into an entry.
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
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// A length of time in milliseconds.
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
    fn spans_print_in_their_shortest_exact_form() {
        for (span, text) in [(0, "0s"), (250, "250ms"), (90_000, "1m30s"), (7_200_000, "2h")] {
            assert_eq!(Span(span).to_string(), text);
        }
    }
}
