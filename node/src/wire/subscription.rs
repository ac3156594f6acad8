//! Durable subscriptions as readers of the event stream order and see them.

use holdfast_proto::id::{Cursor, Name};
use holdfast_proto::subscription::EventFilter;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An order for a subscription. What is left out asks for nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubscriptionOrder {
    /// Its name; given once to each tenant.
    #[schema(value_type = String)]
    pub name: Name,
    /// Where it begins: `now`, `start` (the first event that is kept), or strictly after a position; `now` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Only these topics, with commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Only these types, with commas, such as `lease-ended`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only about this lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Only about this tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Only about this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A subscription, and how far its reader has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionView {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Name,
    /// The tenant that it belongs to; absent when it is the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub owner: Option<Name>,
    /// What it is about: `topics` and `types`, which ask for nothing when they are empty, `lease`, `tenant` and `node`.
    #[schema(value_type = Object)]
    pub filter: EventFilter,
    /// Its reader is done with all events up to this one, and is told everything after it.
    #[schema(value_type = String)]
    pub acknowledged: Cursor,
    /// Entries of the log since then, whether they have events for it or not.
    pub behind: u64,
    /// When it was made.
    pub created_ms: u64,
    /// When its reader last acknowledged anything.
    pub acknowledged_ms: u64,
}

/// A list of subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionList {
    /// Subscriptions, ordered by owner and name.
    pub subscriptions: Vec<SubscriptionView>,
}

/// How far a reader has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Acknowledgement {
    /// It is done with all events up to this one.
    #[schema(value_type = String)]
    pub through: Cursor,
}
