//! Folds what happens to durable subscriptions: made, acknowledged, removed.

use std::sync::Arc;

use holdfast_proto::event::{Event, EventRecord};

use super::super::state::{State, Subscribed};

pub(super) fn fold(state: &mut State, record: &EventRecord) {
    match &record.event {
        Event::SubscriptionCreated(made) => {
            let subscribed = Subscribed {
                filter: made.filter.clone(),
                created: record.at,
                acknowledged: made.after,
                acknowledged_at: record.at,
            };
            state.subscriptions.insert(made.key.clone(), Arc::new(subscribed));
        }
        Event::EventsAcknowledged { key, through } => {
            if let Some(subscribed) = state.subscriptions.get_mut(key).map(Arc::make_mut) {
                subscribed.acknowledged = *through;
                subscribed.acknowledged_at = record.at;
            }
        }
        Event::SubscriptionRemoved { key } => {
            state.subscriptions.remove(key);
        }
        _ => {}
    }
}
