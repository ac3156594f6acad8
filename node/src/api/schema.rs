//! `/v1/schemas`: the JSON Schema of each type of event, made from the types themselves.
//!
//! An event's `dataschema` names the one that its `data` adheres to. The one rule: nothing here is written by hand; a schema says what
//! the code would accept, and fields are added, never changed or removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use holdfast_proto::event::Event;
use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, ToSchema};

use super::problem::Failure;
use crate::wire::event::{SchemaList, schema_path as path};
use crate::wire::problem::code;

/// What references between schemas begin with where they are made, and in the documents served.
const MADE: &str = "#/components/schemas/";
const SERVED: &str = "#/$defs/";

/// Every document; they are the same for as long as the program runs.
static DOCUMENTS: LazyLock<BTreeMap<&'static str, Bytes>> = LazyLock::new(|| {
    let parts = Parts::of_event();
    let names = Event::TABLE.iter().map(|(_, name, _)| *name);
    names
        .filter_map(|name| Some((name, parts.document(name)?.to_string().into())))
        .collect()
});

/// Lists the types of events, and where the schema of each one's `data` is.
#[utoipa::path(get, path = "/v1/schemas", tag = "events",
    responses((status = 200, description = "Types of events, with their schemas' paths", body = SchemaList)))]
pub async fn list() -> Response {
    let schemas = DOCUMENTS.keys().map(|name| ((*name).to_owned(), path(name))).collect();
    axum::Json(SchemaList { schemas }).into_response()
}

/// The JSON Schema (2020-12) of the `data` of one type of event.
#[utoipa::path(get, path = "/v1/schemas/{type}", tag = "events",
    params(("type" = String, Path, description = "The type, such as `lease-ended`")),
    responses((status = 200, description = "The schema", content_type = "application/schema+json", body = Object)))]
pub async fn show(Path(name): Path<String>) -> Result<Response, Failure> {
    let name = name.strip_prefix("holdfast.").unwrap_or(&name);
    let document = DOCUMENTS.get(name).cloned().ok_or_else(|| {
        let detail = "there is no such type of event; /v1/schemas lists them";
        Failure::new(StatusCode::NOT_FOUND, code::NO_SUCH_PATH, detail)
    })?;
    Ok(([(CONTENT_TYPE, "application/schema+json")], document).into_response())
}

/// What the types say of themselves.
struct Parts {
    /// One for each type of event.
    events: Vec<Value>,
    /// The types that these are made of, by name.
    named: BTreeMap<String, Value>,
}

impl Parts {
    fn of_event() -> Self {
        let mut named = Vec::new();
        Event::schemas(&mut named);
        let read = |(name, schema)| (name, served(serde_json::to_value(schema).unwrap_or_default()));
        let whole = served(serde_json::to_value(Event::schema()).unwrap_or_default());
        Self {
            events: whole["oneOf"].as_array().cloned().unwrap_or_default(),
            named: named.into_iter().map(read).collect(),
        }
    }

    fn document(&self, name: &str) -> Option<Value> {
        let mut document = self.events.iter().find(|event| is_type(event, name))?.clone();
        let mut needed = BTreeSet::new();
        self.follow(&document, &mut needed);
        let named = needed
            .into_iter()
            .filter_map(|name| Some((name.clone(), self.named.get(&name)?.clone())));
        let definitions: Map<String, Value> = named.collect();
        document["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        document["$id"] = json!(path(name));
        document["title"] = json!(name);
        document["$defs"] = Value::Object(definitions);
        Some(document)
    }

    /// Collects what a schema refers to, and what that refers to.
    fn follow(&self, schema: &Value, needed: &mut BTreeSet<String>) {
        match schema {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match value.as_str().and_then(|text| text.strip_prefix(SERVED)) {
                        Some(name) if key == "$ref" => {
                            if needed.insert(name.to_owned())
                                && let Some(named) = self.named.get(name)
                            {
                                self.follow(named, needed);
                            }
                        }
                        _ => self.follow(value, needed),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.follow(item, needed)),
            _ => {}
        }
    }
}

/// Whether a schema is that of the type: itself, or a part that it adds to others, holds the type's name.
fn is_type(schema: &Value, name: &str) -> bool {
    let own = schema.pointer("/properties/type/enum/0");
    let parts = schema["allOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    own.is_some_and(|own| own == name) || parts.iter().any(|part| is_type(part, name))
}

/// The same with references as they are in the documents served.
fn served(schema: Value) -> Value {
    match schema {
        Value::Object(fields) => Value::Object(fields.into_iter().map(|(key, value)| (key, served(value))).collect()),
        Value::Array(items) => Value::Array(items.into_iter().map(served).collect()),
        Value::String(text) => Value::String(match text.strip_prefix(MADE) {
            Some(name) => format!("{SERVED}{name}"),
            None => text,
        }),
        other => other,
    }
}
