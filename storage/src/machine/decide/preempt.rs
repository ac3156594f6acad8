//! Decides that a spot lease gives its devices up to one with a better right.
//!
//! The scheduler chooses whom, and when nothing else helps. The one rule: what is taken was sold as spot, has run for the
//! shortest time that spot promises, and is taken for a lease that waits and is not spot itself. In the queue that one
//! goes before all spot leases, so the two never take turns.

use holdfast_proto::condition::LEVEL;
use holdfast_proto::event::Event;
use holdfast_proto::id::{Epoch, LeaseId};
use holdfast_proto::lease::Plan;
use holdfast_proto::limits::SPOT_RUN_MS_MIN;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::time::Span;

use super::super::draft::Draft;
use super::attempt::wrong_state;
use super::settle::migrate;
use super::shape;

pub(super) fn preempt(draft: &mut Draft, id: LeaseId, epoch: Epoch, by: LeaseId) -> Result<(), Rejection> {
    shape::level(draft.state().cluster.level, LEVEL, "preemption")?;
    let (lease, better) = (draft.lease(id)?, draft.lease(by)?);
    if epoch != lease.epoch {
        return Err(Rejection::EpochStale {
            lease: id,
            given: epoch,
            present: lease.epoch,
        });
    }
    if lease.requested.terms.plan != Plan::Spot || !lease.stays() {
        return Err(wrong_state(
            &lease,
            "only a spot lease that has its devices gives them up",
        ));
    }
    if better.requested.terms.plan == Plan::Spot || better.queue_key().is_none() {
        return Err(wrong_state(
            &better,
            "only a lease that waits and is not spot has a better right",
        ));
    }
    let granted = lease.placement.as_ref().map(|placement| placement.granted);
    let due = granted.unwrap_or_default().plus(Span(SPOT_RUN_MS_MIN));
    if draft.at() < due {
        return Err(Rejection::NotDue { lease: id, due });
    }
    draft.emit(Event::LeasePreempted { lease: id, epoch, by });
    migrate(draft, id, &format!("{by} has a better right to its devices"));
    Ok(())
}
