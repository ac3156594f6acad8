//! Decides durable subscriptions: their making, how far their readers have come, their end.
//!
//! Whose they are is the table of origins' business. The one rule: an acknowledged position never goes back, and never
//! lies behind the last event.

use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::event::Event;
use holdfast_proto::id::Cursor;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::subscription::{EventFilter, LEVEL, SUBSCRIPTIONS_MAX, Subscription, SubscriptionKey, TYPES_MAX};

use super::super::draft::Draft;
use super::super::state::Subscribed;
use super::shape;

pub(super) fn decide(draft: &mut Draft, command: &Command) -> Result<(), Rejection> {
    shape::level(draft.state().cluster.level, LEVEL, "subscriptions")?;
    match command {
        Command::CreateSubscription(asked) => create(draft, asked),
        Command::AcknowledgeEvents { key, through } => acknowledge(draft, key, *through),
        Command::RemoveSubscription { key } => {
            found(draft, key)?;
            draft.emit_last(Event::SubscriptionRemoved { key: key.clone() });
            Ok(())
        }
        _ => unreachable!("decide.rs routes subscription commands only"),
    }
}

fn create(draft: &mut Draft, asked: &Subscription) -> Result<(), Rejection> {
    let Subscription { key, filter, after } = asked;
    shape::name("subscription", &key.subscription)?;
    if let Some(tenant) = &key.tenant {
        draft.tenant(tenant)?;
    }
    check(filter)?;
    happened(draft, *after)?;
    let state = draft.state();
    if state.subscriptions.contains_key(key) {
        return Err(Rejection::SubscriptionExists {
            subscription: key.subscription.clone(),
        });
    }
    let own = state.subscriptions.keys().filter(|other| other.tenant == key.tenant);
    if own.count() >= SUBSCRIPTIONS_MAX {
        return Err(Rejection::SubscriptionsFull {
            most: SUBSCRIPTIONS_MAX as u32,
        });
    }
    draft.emit_last(Event::SubscriptionCreated(Box::new(asked.clone())));
    Ok(())
}

/// Saying the same position again changes nothing, so a retry needs no request id.
fn acknowledge(draft: &mut Draft, key: &SubscriptionKey, through: Cursor) -> Result<(), Rejection> {
    let acknowledged = found(draft, key)?.acknowledged;
    happened(draft, through)?;
    if through < acknowledged {
        return Err(Rejection::AcknowledgedBeyond {
            given: through,
            acknowledged,
        });
    }
    if through > acknowledged {
        draft.emit_last(Event::EventsAcknowledged {
            key: key.clone(),
            through,
        });
    }
    Ok(())
}

fn found(draft: &Draft, key: &SubscriptionKey) -> Result<Arc<Subscribed>, Rejection> {
    let unknown = || Rejection::SubscriptionUnknown {
        subscription: key.subscription.clone(),
    };
    draft.state().subscriptions.get(key).cloned().ok_or_else(unknown)
}

/// Checks that a position is not behind the last event.
fn happened(draft: &Draft, position: Cursor) -> Result<(), Rejection> {
    let last = draft.state().cluster.cursor;
    match position > last {
        true => Err(shape::out_of_range("position", position, &format!("at most {last}"))),
        false => Ok(()),
    }
}

/// Checks a filter on its own. Whether there is such a type, lease or node is not asked: there may be one later.
fn check(filter: &EventFilter) -> Result<(), Rejection> {
    if !filter.topics.is_sorted_by(|a, b| a < b) {
        return Err(shape::out_of_range(
            "topics",
            filter.topics.len(),
            "in order, each once",
        ));
    }
    shape::within("number of types", filter.types.len(), 0..=TYPES_MAX)?;
    filter.types.iter().try_for_each(|kind| shape::name("type", kind))?;
    if !filter.types.is_sorted_by(|a, b| a < b) {
        return Err(shape::out_of_range("types", filter.types.len(), "in order, each once"));
    }
    filter
        .tenant
        .iter()
        .try_for_each(|tenant| shape::name("tenant", tenant))
}
