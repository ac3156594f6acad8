//! The served document against the served answers.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::id::{Cursor, LeaseId};
use holdfast_proto::subscription::{EventFilter, Subscription, SubscriptionKey};
use holdfast_proto::time::Span;
use holdfast_storage::machine::LEVEL_MAX;
use reqwest::Method;
use serde_json::{Value, json};

use super::world::{World, name, shown};
use crate::api::openapi::openapi;
use crate::api::route::table;
use crate::api::seam::Committed;
use crate::wire::lease::{LeaseAccepted, LeaseOrder};

/// Checks a value against a schema of the document; gives every mismatch.
fn mismatches(document: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or(&Value::Null);
        assert!(!target.is_null(), "{reference} is not in the document");
        return mismatches(document, target, value, place);
    }
    for word in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[word].as_array() {
            let fits = choices
                .iter()
                .any(|choice| mismatches(document, choice, value, place).is_empty());
            return if fits {
                Vec::new()
            } else {
                vec![format!("{place}: {value} fits none of {word}")]
            };
        }
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{place}: the document uses the type {other}"),
    };
    let mut wrong = Vec::new();
    if !kinds.is_empty() && !kinds.iter().any(|kind| is(kind)) {
        wrong.push(format!("{place}: {value} is not {kinds:?}"));
    }
    if let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_object()) {
        for required in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !object.contains_key(required) {
                wrong.push(format!("{place}: {required} is missing"));
            }
        }
        for (name, member) in object {
            match properties.get(name) {
                Some(schema) => wrong.extend(mismatches(document, schema, member, &format!("{place}.{name}"))),
                None => wrong.push(format!("{place}: {name} is not documented")),
            }
        }
    }
    if let Some(members) = value.as_array() {
        for (at, member) in members.iter().enumerate() {
            wrong.extend(mismatches(
                document,
                &schema["items"],
                member,
                &format!("{place}[{at}]"),
            ));
        }
    }
    wrong
}

/// What each operation is called with: the path filled in, and the body.
fn call(method: &str, path: &str, lease: LeaseId, ending: LeaseId) -> (String, Option<Value>) {
    let order = serde_json::to_value(LeaseOrder::new(1, 60_000, vec!["true".to_owned()])).unwrap();
    let body = match (method, path) {
        ("post", "/v1/leases" | "/v1/quotes" | "/v1/previews") => Some(order),
        ("post", "/v1/leases/{lease}/renew") => Some(json!({ "more_ms": 1_000 })),
        ("post", "/v1/nodes/{node}/cordon") => Some(json!({ "reason": "fan" })),
        ("post", "/v1/nodes/{node}/drain") => Some(json!({ "deadline_ms": 60_000 })),
        ("post", "/v1/gpus/{gpu}/grade") => Some(json!({ "grade": "quarantined", "reason": "smells" })),
        ("post", "/v1/notes") => Some(json!({ "subject": "tests", "text": "a note" })),
        ("put", "/v1/tariff") => Some(json!({ "tariff": { "version": 2, "currency": "EUR", "prices": [
            { "model": "h100", "plan": "on-demand", "micros_per_device_hour": 1 } ] } })),
        ("post", "/v1/tokens") => Some(json!({ "kind": "access", "role": "read-only" })),
        ("put", "/v1/tenants/{tenant}/limits") => Some(json!({ "models": { "h100": 4 }, "micros_per_hour_max": null })),
        ("put", "/v1/tenants/{tenant}") => Some(json!({ "devices_max": 4 })),
        ("post", "/v1/subscriptions") => Some(json!({ "name": "new", "topic": "lease" })),
        ("put", "/v1/subscriptions/{name}/cursor") => Some(json!({ "through": "2.0" })),
        ("post", "/v1/join") => Some(
            json!({ "token": "tok-0000000000000001", "secret": "00", "public_key": "00",
            "label": "n2", "zone": "a", "role": "replica",
            "address": { "host": "10.0.0.2", "main_port": 1, "lease_port": 2, "bulk_port": 3 } }),
        ),
        _ => None,
    };
    let lease = if method == "delete" { ending } else { lease };
    let filled = path
        .replace("{lease}", &lease.to_string())
        .replace("{node}", "n1")
        .replace("{gpu}", "GPU-08080808-0808-0808-0808-080808080808")
        .replace("{token}", "tok-00000000000000ff")
        .replace("{name}", if method == "delete" { "gone" } else { "kept" })
        .replace("{type}", "lease-ended")
        .replace("{tenant}", "blue");
    let filled = if path == "/v1/events" {
        filled + "?limit=5&after=0"
    } else {
        filled
    };
    (filled, body)
}

async fn accepted(world: &World) -> LeaseId {
    let order = LeaseOrder::new(1, 3_600_000, vec!["true".to_owned()]);
    let client = world.client(Some(&world.operator));
    client
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order)
        .await
        .unwrap()
        .body
        .lease
}

/// A world in which each operation has something to answer, with a lease that runs and one to end.
async fn furnished() -> (Arc<World>, LeaseId, LeaseId) {
    let world = World::start().await;
    for level in world.state().cluster.level + 1..=LEVEL_MAX {
        world.say(Command::RaiseMachineLevel { level });
    }
    let (lease, ending) = (accepted(&world).await, accepted(&world).await);
    let epoch = world.run(lease);
    world.operate(Command::DrainNode {
        node: world.node,
        span: Span(3_600_000),
        reason: "fan".to_owned(),
    });
    world.write(lease, epoch, "hello\n", true);
    for subscription in ["kept", "gone"] {
        world.operate(Command::CreateSubscription(Box::new(Subscription {
            key: SubscriptionKey {
                tenant: None,
                subscription: name(subscription),
            },
            filter: EventFilter::default(),
            after: Cursor::default(),
        })));
    }
    (world, lease, ending)
}

#[tokio::test]
async fn every_documented_operation_answers_as_it_is_documented() {
    let (world, lease, ending) = furnished().await;
    let http = world.http();
    let document: Value = http
        .get(world.url("/openapi.json"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();

    let mut called = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let (filled, body) = call(method, path, lease, ending);
            let verb = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let mut request = http
                .request(verb, world.url(&filled))
                .header("authorization", shown(&world.operator));
            if let Some(body) = body {
                request = request.json(&body);
            }
            let response = request.send().await.unwrap();
            let (status, kind) = (
                response.status(),
                response.headers()["content-type"].to_str().unwrap().to_owned(),
            );
            let kind = kind.split(';').next().unwrap();
            let bytes = response.bytes().await.unwrap();
            // A token that does not exist cannot be revoked, and this world admits nobody.
            let fails = matches!(
                (method.as_str(), path.as_str()),
                ("delete", "/v1/tokens/{token}" | "/v1/nodes/{node}") | ("post", "/v1/join")
                    // It runs, so there is nothing to plan.
                    | ("get", "/v1/leases/{lease}/preview")
            );
            assert_eq!(
                status.is_success(),
                !fails,
                "{method} {path}: {status} {}",
                String::from_utf8_lossy(&bytes)
            );
            let answers = &operation["responses"];
            let answer = answers.get(status.as_str()).unwrap_or(&answers["default"]);
            let schema = &answer["content"][kind]["schema"];
            assert!(!schema.is_null(), "{method} {path}: {status} {kind} is not documented");
            if kind.ends_with("json") {
                let value: Value = serde_json::from_slice(&bytes).unwrap();
                assert_eq!(
                    mismatches(&document, schema, &value, path),
                    Vec::<String>::new(),
                    "{method} {path}"
                );
            }
            called += 1;
        }
    }
    assert_eq!(called, table().len());
}

#[test]
fn every_reference_of_the_document_resolves_and_operations_have_their_own_ids() {
    fn walk(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref") {
                    found.insert(reference.clone());
                }
                object.values().for_each(|value| walk(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| walk(value, found)),
            _ => {}
        }
    }
    let document = serde_json::to_value(openapi()).unwrap();
    let mut references = BTreeSet::new();
    walk(&document, &mut references);
    assert!(references.len() > 10);
    for reference in references {
        assert!(
            document.pointer(reference.trim_start_matches('#')).is_some(),
            "{reference}"
        );
    }
    let operations = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|path| path.as_object().unwrap().values());
    let ids: Vec<&str> = operations
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
}

#[tokio::test]
async fn what_is_no_endpoint_is_answered_as_a_problem() {
    let world = World::start().await;
    let http = world.http();
    for (method, path, status) in [
        (Method::GET, "/v1/nothing", 404),
        (Method::GET, "/", 404),
        (Method::PATCH, "/v1/leases", 405),
    ] {
        let response = http
            .request(method, world.url(path))
            .header("authorization", shown(&world.operator))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
    }
}
