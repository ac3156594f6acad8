//! What a lease costs: stretches of running time, from which invoice lines are made.
//!
//! A stretch opens when all members run, stands while one of them is not heard, and is closed by exactly one line.
//! Silence is priced from proof: what a returning node says it did, clamped to the stamped gap. A line is rounded
//! once, never reaches past the lease's time, and is cut so that the sum of all lines stays within the cap.

use holdfast_proto::id::Cursor;
use holdfast_proto::lease::{EndReason, LeaseStatus};
use holdfast_proto::tariff::{ChargeLine, Meter as MeterName, affordable, amount_micros};
use holdfast_proto::time::{Span, Timestamp};

use super::state::{Lease, Stretch};

/// Opens a stretch for the present placement.
pub(super) fn open(lease: &mut Lease, at: Timestamp, opened_at: Cursor) {
    let Some(placement) = &lease.placement else { return };
    lease.meter.open = Some(Stretch {
        epoch: placement.epoch,
        from: at,
        unpaid: Span(0),
        suspended: None,
        frozen: None,
        micros_per_hour: placement.micros_per_hour,
        opened_at,
    });
}

/// Stops charging: a member is not heard.
pub(super) fn suspend(lease: &mut Lease, at: Timestamp) {
    if let Some(open) = &mut lease.meter.open {
        open.suspended.get_or_insert(at);
        open.frozen = None;
    }
}

/// Goes on charging: all members are heard again. A lease on one node pays for the part of the gap in which its node
/// proves that it ran; a gang pays nothing for it, because members that wait for each other do no work.
pub(super) fn resume(lease: &mut Lease, at: Timestamp, opened_at: Cursor) {
    let alone = lease
        .placement
        .as_ref()
        .is_some_and(|placement| placement.members.len() == 1);
    let Some(stretch) = &mut lease.meter.open else {
        return open(lease, at, opened_at);
    };
    let Some(since) = stretch.suspended.take() else { return };
    let gap = at.since(since);
    let proven = stretch.frozen.take().filter(|_| alone);
    let unpaid = proven.map_or(gap, |frozen| frozen.min(gap));
    stretch.unpaid = Span(stretch.unpaid.0.saturating_add(unpaid.0));
}

/// Returns the line that closes the open stretch at `at`; `None` when there is nothing to charge.
pub(super) fn line(lease: &Lease, at: Timestamp) -> Option<ChargeLine> {
    let open = lease.meter.open.as_ref()?;
    let mut until = open.suspended.unwrap_or(at).max(open.from);
    if let Some(expires) = lease.expires {
        until = until.min(expires.max(open.from));
    }
    let length = until.since(open.from);
    let mut charged = Span(length.0.saturating_sub(open.unpaid.0));
    if let Some(left) = span_left(lease, open.micros_per_hour) {
        charged = charged.min(left);
    }
    if charged == Span(0) {
        return None;
    }
    Some(ChargeLine {
        lease: lease.id(),
        epoch: open.epoch,
        meter: device_time(),
        from: open.from,
        until,
        unpaid: Span(length.0 - charged.0),
        micros_per_hour: open.micros_per_hour,
        // Limits on prices, devices and durations keep this far below the top of the range.
        amount_micros: amount_micros(charged, open.micros_per_hour).unwrap_or(u64::MAX),
        opened_at: open.opened_at,
    })
}

/// Returns how much longer the lease can run at a rate before its cost reaches the cap; `None` without a bound.
fn span_left(lease: &Lease, micros_per_hour: u64) -> Option<Span> {
    let cap = lease.requested.terms.cap_micros?;
    affordable(cap.saturating_sub(lease.meter.charged_micros), micros_per_hour)
}

/// Returns when the lease's time or money is up, and which of them; `None` while nothing bounds it.
#[must_use]
pub fn due(lease: &Lease) -> Option<(Timestamp, EndReason)> {
    if matches!(lease.status, LeaseStatus::Ending(_) | LeaseStatus::Ended(_)) {
        return None;
    }
    let expired = lease.expires.map(|at| (at, EndReason::Expired));
    let capped = capped_at(lease).map(|at| (at, EndReason::Capped));
    match (expired, capped) {
        (Some(expired), Some(capped)) => Some(if capped.0 < expired.0 { capped } else { expired }),
        (expired, capped) => expired.or(capped),
    }
}

/// Returns when the cost of a lease reaches its cap if it runs on as it does.
pub(super) fn capped_at(lease: &Lease) -> Option<Timestamp> {
    let placement = lease.placement.as_ref()?;
    let left = span_left(lease, placement.micros_per_hour)?;
    match &lease.meter.open {
        Some(open) if open.suspended.is_none() => Some(open.from.plus(open.unpaid).plus(left)),
        // Nothing is charged now; when nothing is left, not even a first millisecond of the next stretch is.
        _ => (left == Span(0)).then_some(lease.since),
    }
}

/// The one meter of this version.
fn device_time() -> MeterName {
    "device-time".parse().expect("a constant of the name's alphabet")
}

#[cfg(test)]
mod tests {
    use holdfast_proto::id::Epoch;

    use super::super::invariant::tests::active;
    use super::*;

    /// Rate of the samples: one micro-unit for each millisecond.
    const RATE: u64 = 3_600_000;

    #[test]
    fn a_line_charges_what_ran_within_time_and_cap() {
        // (from, unpaid, suspended, expires, cap, at) -> (until, unpaid, amount)
        for (given, expected) in [
            ((0, 0, None, 9000, 9000, 5000), Some((5000, 0, 5000))),
            ((1000, 0, None, 9000, 9000, 5000), Some((5000, 0, 4000))),
            ((0, 700, None, 9000, 9000, 5000), Some((5000, 700, 4300))),
            ((0, 0, Some(3000), 9000, 9000, 5000), Some((3000, 0, 3000))),
            ((0, 0, None, 4000, 9000, 5000), Some((4000, 0, 4000))),
            ((0, 0, None, 9000, 1234, 5000), Some((5000, 3766, 1234))),
            ((0, 5000, None, 9000, 9000, 5000), None),
            ((0, 6000, None, 9000, 9000, 5000), None),
            ((5000, 0, None, 9000, 9000, 5000), None),
        ] {
            let (from, unpaid, suspended, expires, cap, at) = given;
            let mut lease = active(RATE, Some(cap));
            lease.expires = Some(Timestamp(expires));
            lease.meter.open = Some(Stretch {
                epoch: Epoch(1),
                from: Timestamp(from),
                unpaid: Span(unpaid),
                suspended: suspended.map(Timestamp),
                frozen: None,
                micros_per_hour: RATE,
                opened_at: Cursor::default(),
            });
            let line = line(&lease, Timestamp(at)).map(|line| (line.until.0, line.unpaid.0, line.amount_micros));
            assert_eq!(line, expected, "{given:?}");
        }
    }

    #[test]
    fn a_lease_is_due_at_the_lesser_of_its_time_and_its_money() {
        for (expires, cap, expected) in [
            (Some(9000), None, Some((9000, EndReason::Expired))),
            (Some(9000), Some(500), Some((1500, EndReason::Capped))),
            (Some(1200), Some(500), Some((1200, EndReason::Expired))),
            (None, None, None),
        ] {
            let mut lease = active(RATE, cap);
            lease.expires = expires.map(Timestamp);
            open(&mut lease, Timestamp(1000), Cursor::default());
            assert_eq!(due(&lease), expected.map(|(at, reason)| (Timestamp(at), reason)));
        }
    }

    #[test]
    fn silence_pushes_the_cap_out_by_what_was_not_charged() {
        let mut lease = active(RATE, Some(500));
        open(&mut lease, Timestamp(1000), Cursor::default());
        suspend(&mut lease, Timestamp(1100));
        assert_eq!(due(&lease), None);
        if let Some(open) = &mut lease.meter.open {
            open.frozen = Some(Span(60));
        }
        resume(&mut lease, Timestamp(1200), Cursor::default());
        assert_eq!(due(&lease), Some((Timestamp(1560), EndReason::Capped)));
    }

    #[test]
    fn parts_of_a_moved_lease_are_each_rounded_once_and_add_up() {
        // 13 moves, 250 minutes in all, at a rate that does not divide.
        let mut lease = active(1_000_003, None);
        let mut at = Timestamp(0);
        for part in 1..=13 {
            open(&mut lease, at, Cursor::default());
            at = at.plus(Span(part * 7_777));
            let line = line(&lease, at).expect("time has passed");
            lease.meter.charged_micros += line.amount_micros;
            lease.meter.lines.push(line);
            at = at.plus(Span(5000));
        }
        let exact: u64 = (1..=13).map(|part| part * 7_777).sum::<u64>() * 1_000_003 / 3_600_000;
        let sum: u64 = lease.meter.lines.iter().map(|line| line.amount_micros).sum();
        assert_eq!(sum, lease.meter.charged_micros);
        assert!(
            sum.abs_diff(exact) <= 13,
            "{sum} and {exact} differ by more than one rounding each"
        );
    }
}
