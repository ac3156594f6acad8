//! Events in the JSON form of CloudEvents 1.0.

use std::collections::BTreeMap;

use holdfast_proto::event::Event;
use holdfast_proto::id::{Cursor, RequestId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One event. Everything but `cursor`, `topic` and `request` is CloudEvents' own vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CloudEvent {
    /// Always `1.0`.
    pub specversion: String,
    /// Position in the log; with the source it names the event for ever.
    #[schema(value_type = String)]
    pub id: Cursor,
    /// `/clusters/` and the cluster's id.
    pub source: String,
    /// `holdfast.` and the event's name.
    #[serde(rename = "type")]
    pub kind: String,
    /// The lease, node, device, token or tenant that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Stamp of the entry, RFC 3339.
    pub time: String,
    /// Always `application/json`.
    pub datacontenttype: String,
    /// Where the JSON Schema of the data is served, on every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataschema: Option<String>,
    /// What it is about: one of the closed set of topics.
    pub topic: String,
    /// The same stamp, in milliseconds since 1970.
    #[serde(rename = "timems")]
    pub time_ms: u64,
    /// The request that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub request: Option<RequestId>,
    /// The fact.
    #[schema(value_type = Object)]
    pub data: Event,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// Events, in log order.
    pub events: Vec<CloudEvent>,
    /// Where to go on: read strictly after this.
    #[schema(value_type = String)]
    pub next: Cursor,
    /// Nothing was left to read when the page was made.
    pub end: bool,
}

/// Types of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SchemaList {
    /// Where the schema of each type's data is served.
    pub schemas: BTreeMap<String, String>,
}

/// What stands in a stream besides events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamNote {
    /// Where to go on: read strictly after this.
    #[schema(value_type = String)]
    pub next: Cursor,
}

/// The history of a lease in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseHistory {
    /// One line for each event, in log order.
    pub lines: Vec<HistoryLine>,
    /// Where to go on: read strictly after this.
    #[schema(value_type = String)]
    pub next: Cursor,
}

/// One event in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryLine {
    /// Its position.
    #[schema(value_type = String)]
    pub cursor: Cursor,
    /// When.
    pub at_ms: u64,
    /// The sentence.
    pub text: String,
    /// The event itself.
    pub event: CloudEvent,
}
