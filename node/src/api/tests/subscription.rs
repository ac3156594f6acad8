//! Durable subscriptions: what their readers are told, whose they are, and what they cost the cluster.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use holdfast_proto::command::Command;
use holdfast_proto::event::Event;
use holdfast_proto::id::Cursor;
use holdfast_proto::tenant::{Quota, Role};
use reqwest::Method;
use serde_json::{Value, json};

use super::world::{World, name};
use crate::api::seam::Committed;
use crate::client::event::Item;
use crate::client::{Client, ClientError};
use crate::wire::cluster::Applied;
use crate::wire::event::{CloudEvent, EventPage};
use crate::wire::subscription::{SubscriptionList, SubscriptionView};

/// A world with the rules for subscriptions in force, and its operator.
async fn world() -> (Arc<World>, Client) {
    let world = World::start().await;
    for level in [2, 3] {
        world.say(Command::RaiseMachineLevel { level });
    }
    let client = world.client(Some(&world.operator));
    (world, client)
}

fn note(world: &World, text: &str) {
    world.operate(Command::Annotate {
        subject: name("tests"),
        text: text.to_owned(),
    });
}

fn text(event: &CloudEvent) -> String {
    match &event.data {
        Event::Annotated { text, .. } => text.clone(),
        other => other.name().to_owned(),
    }
}

async fn make(client: &Client, order: Value) -> Result<Applied, ClientError> {
    let made = client.command::<Applied>(Method::POST, "/v1/subscriptions", &order);
    Ok(made.await?.body)
}

async fn acknowledge(client: &Client, name: &str, through: impl ToString) -> Result<u64, ClientError> {
    let said = json!({ "through": through.to_string() });
    let path = format!("/v1/subscriptions/{name}/cursor");
    Ok(client.command::<Applied>(Method::PUT, &path, &said).await?.body.index)
}

/// What a subscription is told now, and where that ends.
async fn page(client: &Client, name: &str) -> EventPage {
    let page = format!("/v1/events?limit=1000&subscription={name}");
    client.get::<EventPage>(&page).await.unwrap().body
}

fn code_of(error: &ClientError) -> &str {
    &error.problem().unwrap().code
}

#[tokio::test]
async fn a_reader_goes_on_behind_what_it_acknowledged_and_is_told_the_rest_again() {
    let (world, client) = world().await;
    make(&client, json!({ "name": "notes", "type": "annotated" }))
        .await
        .unwrap();
    for at in 0..5 {
        note(&world, &format!("note {at}"));
    }
    let told = page(&client, "notes").await;
    let texts: Vec<String> = told.events.iter().map(text).collect();
    assert_eq!(texts, ["note 0", "note 1", "note 2", "note 3", "note 4"]);
    acknowledge(&client, "notes", told.events[2].id).await.unwrap();

    let mut stream = client.events("subscription=notes", None);
    let mut again = Vec::new();
    while again.len() < 2 {
        if let Item::Event(event) = stream.next().await.unwrap() {
            again.push(text(&CloudEvent::from(*event)));
        }
    }
    assert_eq!(again, ["note 3", "note 4"]);
    let refused = acknowledge(&client, "notes", told.events[1].id).await.unwrap_err();
    assert_eq!(code_of(&refused), "acknowledged-beyond");
    let later = world.state_cursor();
    let future = Cursor {
        index: later.index + 50,
        sub: 0,
    };
    assert_eq!(
        code_of(&acknowledge(&client, "notes", future).await.unwrap_err()),
        "out-of-range"
    );
}

#[tokio::test]
async fn a_reader_is_served_without_a_leader_from_what_the_node_knows() {
    let (world, client) = world().await;
    make(&client, json!({ "name": "notes", "type": "annotated" }))
        .await
        .unwrap();
    note(&world, "one");
    world.leaderless.store(true, Ordering::SeqCst);
    let mut stream = client.events("subscription=notes", None);
    let event = loop {
        if let Item::Event(event) = stream.next().await.unwrap() {
            break CloudEvent::from(*event);
        }
    };
    assert_eq!(text(&event), "one");
}

#[tokio::test]
async fn acknowledgements_are_told_to_whoever_asks_for_them_and_to_no_reader_of_everything() {
    let (world, client) = world().await;
    make(&client, json!({ "name": "all", "from": "start" })).await.unwrap();
    make(&client, json!({ "name": "acks", "type": "events-acknowledged" }))
        .await
        .unwrap();
    let remembered = world.state().requests.len();
    for at in 0..10 {
        note(&world, &format!("note {at}"));
        acknowledge(&client, "all", world.state_cursor()).await.unwrap();
    }
    assert_eq!(
        world.state().requests.len(),
        remembered,
        "no acknowledgement pushes a request out of the cluster's memory"
    );
    let rest = page(&client, "all").await;
    assert!(rest.events.is_empty(), "{:?}", rest.events);
    assert_eq!(page(&client, "acks").await.events.len(), 10);
    let same = world.state_cursor();
    acknowledge(&client, "all", rest.next).await.unwrap();
    let before = world.state_cursor();
    acknowledge(&client, "all", rest.next).await.unwrap();
    assert!(
        same < before && before == world.state_cursor(),
        "said twice is said once"
    );
}

#[tokio::test]
async fn a_subscription_is_its_tenants_and_an_operator_may_speak_for_it() {
    let (world, operator) = world().await;
    world.operate(Command::SetTenant {
        tenant: name("blue"),
        quota: Quota { devices_max: 8 },
    });
    let blue = world.client(Some(&world.token(Role::Subscriber, Some("blue"), None)));
    let other = world.client(Some(&world.token(Role::Tenant, Some("default"), None)));
    let reader = world.client(Some(&world.token(Role::ReadOnly, Some("blue"), None)));
    make(&blue, json!({ "name": "mine" })).await.unwrap();
    make(&operator, json!({ "name": "bills", "topic": "billing,lease" }))
        .await
        .unwrap();

    for others in ["default", "*"] {
        let order = json!({ "name": "theirs", "tenant": others });
        let refused = make(&blue, order).await.unwrap_err();
        assert!(
            ["not-allowed", "bad-request"].contains(&code_of(&refused)),
            "{refused:?}"
        );
    }

    let names = |list: SubscriptionList| {
        let all = list.subscriptions.into_iter();
        all.map(|one| (one.owner.map(|owner| owner.to_string()), one.name.to_string()))
            .collect::<Vec<_>>()
    };
    let listed = async |client: &Client| {
        let list = client.get::<SubscriptionList>("/v1/subscriptions").await.unwrap();
        names(list.body)
    };
    let mine = (Some("blue".to_owned()), "mine".to_owned());
    assert_eq!(listed(&operator).await, [(None, "bills".to_owned()), mine.clone()]);
    assert_eq!(listed(&reader).await, [mine]);
    assert_eq!(listed(&other).await, []);

    let at = world.state_cursor();
    let unknown = acknowledge(&other, "mine", at).await.unwrap_err();
    assert_eq!(code_of(&unknown), "subscription-unknown");
    for (client, refused) in [(&other, "mine/cursor?owner=blue"), (&reader, "mine/cursor")] {
        let path = format!("/v1/subscriptions/{refused}");
        let said = json!({ "through": at.to_string() });
        let error = client.command::<Applied>(Method::PUT, &path, &said).await.unwrap_err();
        assert_eq!(code_of(&error), "not-allowed", "{refused}");
    }
    let path = "/v1/subscriptions/mine/cursor?owner=blue";
    let said = json!({ "through": at.to_string() });
    operator.command::<Applied>(Method::PUT, path, &said).await.unwrap();
    let shown = blue
        .get::<SubscriptionView>("/v1/subscriptions/mine")
        .await
        .unwrap()
        .body;
    assert_eq!(shown.acknowledged, at);
}

#[tokio::test]
async fn bad_orders_are_refused_with_what_would_do() {
    let (world, client) = world().await;
    let old = World::start().await;
    let early = make(&old.client(Some(&old.operator)), json!({ "name": "early" })).await;
    assert_eq!(code_of(&early.unwrap_err()), "level-too-low");
    for (order, code) in [
        (json!({ "name": "a", "topic": "leases" }), "bad-request"),
        (json!({ "name": "a", "type": "lease-over" }), "bad-request"),
        (json!({ "name": "a", "from": "yesterday" }), "bad-request"),
        (json!({ "name": "a", "from": "99999.0" }), "out-of-range"),
        (json!({ "name": "a", "colour": "red" }), "bad-request"),
        (json!({}), "bad-request"),
    ] {
        let refused = make(&client, order.clone()).await.unwrap_err();
        assert_eq!(code_of(&refused), code, "{order}");
    }
    make(&client, json!({ "name": "a" })).await.unwrap();
    let again = make(&client, json!({ "name": "a" })).await.unwrap_err();
    assert_eq!(code_of(&again), "subscription-exists");
    for (path, code) in [
        ("/v1/events?limit=1&subscription=b", "subscription-unknown"),
        ("/v1/events?limit=1&subscription=a&topic=lease", "bad-request"),
    ] {
        let refused = client.get::<EventPage>(path).await.unwrap_err();
        assert_eq!(code_of(&refused), code, "{path}");
    }
    let (nothing, a) = (json!({}), "/v1/subscriptions/a");
    client.command::<Applied>(Method::DELETE, a, &nothing).await.unwrap();
    assert!(world.state().subscriptions.is_empty());
}

#[tokio::test]
async fn the_lag_of_each_reader_is_a_metric() {
    let (world, client) = world().await;
    make(&client, json!({ "name": "bills", "from": "start" }))
        .await
        .unwrap();
    acknowledge(&client, "bills", world.state_cursor()).await.unwrap();
    for at in 0..7 {
        note(&world, &format!("note {at}"));
    }
    let metrics = client.text("/metrics").await.unwrap();
    // The seven notes, and the entry of the acknowledgement itself.
    let lag = "holdfast_subscription_lag_entries{owner=\"\",subscription=\"bills\"} 8\n";
    assert!(metrics.contains(lag), "{metrics}");
    let last = "holdfast_subscription_acknowledged_timestamp_seconds{owner=\"\",subscription=\"bills\"} 1";
    assert!(metrics.contains(last), "{metrics}");
}
