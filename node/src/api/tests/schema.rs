//! Schemas of events: that real events adhere to them, and that what is no such event does not.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use holdfast_proto::event::{Event, EventRecord};
use serde_json::{Value, json};

use super::world::World;
use crate::api::event::present;
use crate::api::seam::Committed;
use crate::wire::event::{EventPage, SchemaList};

/// Judges a value by the words of JSON Schema that ours use; any other word fails, so that none is overlooked.
fn adheres(value: &Value, schema: &Value, whole: &Value) -> Result<(), String> {
    let Some(words) = schema.as_object() else {
        return if *schema == true {
            Ok(())
        } else {
            Err(format!("{value} is one too many"))
        };
    };
    for (word, said) in words {
        let all = || said.as_array().unwrap().iter();
        let fits = |schema: &&Value| adheres(value, schema, whole).is_ok();
        match word.as_str() {
            "$ref" => {
                let place = said.as_str().unwrap().strip_prefix('#').unwrap();
                adheres(
                    value,
                    whole.pointer(place).ok_or(format!("{said} leads nowhere"))?,
                    whole,
                )?;
            }
            "type" => {
                let kinds = said.as_array().cloned().unwrap_or(vec![said.clone()]);
                if !kinds.iter().any(|kind| is_a(value, kind.as_str().unwrap())) {
                    return Err(format!("{value} is no {said}"));
                }
            }
            "enum" if !all().any(|one| one == value) => return Err(format!("{value} is none of {said}")),
            "allOf" => all().try_for_each(|part| adheres(value, part, whole))?,
            "oneOf" if all().filter(fits).count() != 1 => return Err(format!("{value} is not one of {said}")),
            "anyOf" if !all().any(|part| fits(&part)) => return Err(format!("{value} is not any of {said}")),
            "required" => {
                if let Some(missing) = all().find(|name| value.get(name.as_str().unwrap()).is_none()) {
                    return Err(format!("{value} has no {missing}"));
                }
            }
            "properties" => {
                let fields = said.as_object().unwrap().iter();
                let present = fields.filter_map(|(name, schema)| Some((name, value.get(name)?, schema)));
                for (name, value, schema) in present {
                    adheres(value, schema, whole).map_err(|error| format!("{name}: {error}"))?;
                }
            }
            "items" => {
                let before = schema["prefixItems"].as_array().map_or(0, Vec::len);
                for item in value.as_array().into_iter().flatten().skip(before) {
                    adheres(item, said, whole)?;
                }
            }
            "prefixItems" => {
                for (item, schema) in value.as_array().into_iter().flatten().zip(all()) {
                    adheres(item, schema, whole)?;
                }
            }
            "minimum" if value.as_f64().is_some_and(|value| value < said.as_f64().unwrap()) => {
                return Err(format!("{value} is below {said}"));
            }
            "enum" | "oneOf" | "anyOf" | "minimum" | "maximum" | "format" | "description" | "title" | "$schema"
            | "$id" | "$defs" => {}
            other => return Err(format!("the schema says {other}: {said}")),
        }
    }
    Ok(())
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

async fn schemas(world: &World) -> BTreeMap<String, Value> {
    let http = world.http();
    // Nobody needs a token to learn what events look like.
    let list = http.get(world.url("/v1/schemas")).send().await.unwrap();
    let list: SchemaList = list.json().await.unwrap();
    let mut found = BTreeMap::new();
    for (name, path) in list.schemas {
        let response = http.get(world.url(&path)).send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/schema+json");
        found.insert(name, response.json().await.unwrap());
    }
    found
}

fn samples() -> impl Iterator<Item = EventRecord> {
    let golden = include_str!("../../../../proto/tests/golden/events.txt");
    let bytes = golden.lines().filter_map(|line| line.rsplit(' ').next());
    bytes.map(|bytes| EventRecord::decode(&hex::decode(bytes).unwrap()).unwrap())
}

#[tokio::test]
async fn every_event_adheres_to_the_schema_that_it_names() {
    let world = World::start().await;
    let schemas = schemas(&world).await;
    let names: Vec<&str> = Event::TABLE.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(schemas.len(), names.len());
    let client = world.client(Some(&world.operator));
    let real: EventPage = client.get("/v1/events?limit=1000&after=0").await.unwrap().body;
    let state = world.state();
    let sampled = samples().map(|record| present(&state, &record));
    for event in real.events.into_iter().chain(sampled) {
        let name = event.data.name();
        assert_eq!(
            event.dataschema.as_deref(),
            Some(format!("/v1/schemas/{name}").as_str())
        );
        let data = serde_json::to_value(&event.data).unwrap();
        let schema = &schemas[name];
        adheres(&data, schema, schema).unwrap_or_else(|error| panic!("{name}: {error}\n{schema}"));
    }
}

#[tokio::test]
async fn a_schema_tells_what_is_no_such_event() {
    let world = World::start().await;
    let schemas = schemas(&world).await;
    for record in samples() {
        let schema = &schemas[record.event.name()];
        let data = serde_json::to_value(&record.event).unwrap();
        for (field, value) in data.as_object().unwrap() {
            let mut wrong = data.clone();
            wrong[field] = if value.is_boolean() { json!(7) } else { json!(true) };
            assert!(
                adheres(&wrong, schema, schema).is_err(),
                "{field} of {} may be anything",
                record.event.name()
            );
        }
    }
    let unknown = world
        .http()
        .get(world.url("/v1/schemas/lease-over"))
        .send()
        .await
        .unwrap();
    assert_eq!(unknown.status(), 404);
}
