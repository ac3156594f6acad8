//! Events in the JSON form of CloudEvents 1.0.

use std::collections::BTreeMap;

use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::{ClusterId, Cursor, RequestId};
use holdfast_proto::time::Timestamp;
use jiff::Timestamp as Instant;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

/// What the source of an event begins with.
const SOURCE: &str = "/clusters/";

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

impl CloudEvent {
    /// The public form of an event of a cluster.
    pub fn of(cluster: Option<ClusterId>, record: &EventRecord) -> Self {
        Self::from_parts(
            cluster,
            record.cursor,
            record.at,
            record.request.map(|key| key.id),
            record.event.clone(),
        )
    }

    /// The same, of its parts.
    pub fn from_parts(
        cluster: Option<ClusterId>,
        id: Cursor,
        at: Timestamp,
        request: Option<RequestId>,
        data: Event,
    ) -> Self {
        Self {
            specversion: "1.0".to_owned(),
            id,
            source: source(cluster),
            kind: format!("holdfast.{}", data.name()),
            subject: subject(&data),
            time: rfc3339(at.0),
            datacontenttype: "application/json".to_owned(),
            dataschema: Some(schema_path(data.name())),
            topic: data.topic().name().to_owned(),
            time_ms: at.0,
            request,
            data,
        }
    }

    /// The cluster that it is of.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.source.strip_prefix(SOURCE)?.parse().ok()
    }
}

/// The same, of an event that is only looked at: what every subscriber's line is made of, so nothing is copied for it.
#[derive(Debug, Serialize)]
pub struct CloudEventRef<'a> {
    specversion: &'static str,
    id: Cursor,
    source: &'a str,
    #[serde(rename = "type", serialize_with = "as_kind")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    time: String,
    datacontenttype: &'static str,
    #[serde(serialize_with = "as_schema_path")]
    dataschema: &'static str,
    topic: &'static str,
    #[serde(rename = "timems")]
    time_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<RequestId>,
    data: &'a Event,
}

impl<'a> CloudEventRef<'a> {
    /// The public form of an event; `source` is that of its cluster.
    pub fn of(source: &'a str, record: &'a EventRecord) -> Self {
        let name = record.event.name();
        Self {
            specversion: "1.0",
            id: record.cursor,
            source,
            kind: name,
            subject: subject(&record.event),
            time: rfc3339(record.at.0),
            datacontenttype: "application/json",
            dataschema: name,
            topic: record.event.topic().name(),
            time_ms: record.at.0,
            request: record.request.map(|key| key.id),
            data: &record.event,
        }
    }
}

fn as_kind<S: Serializer>(name: &&'static str, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("holdfast.{name}"))
}

fn as_schema_path<S: Serializer>(name: &&'static str, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("/v1/schemas/{name}"))
}

/// What stands for a cluster as the source of its events.
pub fn source(cluster: Option<ClusterId>) -> String {
    let cluster = cluster.map(|id| id.to_string()).unwrap_or_default();
    format!("{SOURCE}{cluster}")
}

/// Where the schema of a type of event is served.
pub fn schema_path(name: &str) -> String {
    format!("/v1/schemas/{name}")
}

/// Milliseconds since 1970 as RFC 3339 in UTC; the furthest time that can be written when it is beyond that.
fn rfc3339(ms: u64) -> String {
    let instant = i64::try_from(ms).ok().and_then(|ms| Instant::from_millisecond(ms).ok());
    format!("{:.3}", instant.unwrap_or(Instant::MAX))
}

fn subject(event: &Event) -> Option<String> {
    if let Some(lease) = event.lease() {
        return Some(lease.to_string());
    }
    match event {
        Event::NodeJoined { spec, .. } => Some(spec.node.to_string()),
        Event::NodeRegistered { node, .. }
        | Event::InventoryReported { node, .. }
        | Event::NodeUnreachable { node, .. }
        | Event::NodeLost { node, .. }
        | Event::NodeReturned { node, .. }
        | Event::NodeCordoned { node, .. }
        | Event::NodeRemoved { node }
        | Event::NodeQuieted { node, .. }
        | Event::NodeDraining { node, .. }
        | Event::NodeDrained { node }
        | Event::RollupReported { node, .. }
        | Event::ClockSuspected { node, .. } => Some(node.to_string()),
        Event::DeviceGraded { edge, .. } => Some(edge.device.to_string()),
        Event::JoinTokenCreated(token) => Some(token.token.to_string()),
        Event::AccessTokenCreated(token) => Some(token.token.to_string()),
        Event::TokenRevoked { token } => Some(token.to_string()),
        Event::TenantSet { tenant, .. } | Event::LimitsSet { tenant, .. } => Some(tenant.to_string()),
        Event::Annotated { subject, .. } => Some(subject.to_string()),
        event => event.subscription().map(|key| key.subscription.to_string()),
    }
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
