//! Commands and reads: outcomes, retries, bad input.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_proto::command::Command;
use holdfast_proto::device::Grade;
use holdfast_proto::id::{DeviceId, Generation, LeaseId, RequestId};
use holdfast_proto::telemetry::HealthEdge;
use holdfast_proto::tenant::Role;
use reqwest::Method;
use serde_json::{Value, json};

use super::world::{DEVICES, World, shown};
use crate::api::Limits;
use crate::client::{Client, ClientError};
use crate::env::{Clock, OsClock};
use crate::wire::bill::Bill;
use crate::wire::cluster::{Applied, ClusterView};
use crate::wire::event::{EventPage, LeaseHistory};
use crate::wire::lease::{LeaseAccepted, LeaseList, LeaseOrder, LeaseView, Quote};
use crate::wire::node::{GpuList, NodeList};
use crate::wire::problem::code;
use crate::wire::token::{TenantList, TokenList, TokenMade};
use crate::wire::{AGE_MS, INDEX, REQUEST_ID, SERVED_BY};

fn order(devices: u32) -> LeaseOrder {
    LeaseOrder::new(devices, 3_600_000, vec!["true".to_owned()])
}

fn code_of(error: &ClientError) -> String {
    error
        .problem()
        .map(|problem| problem.code.clone())
        .unwrap_or_else(|| format!("{error:?}"))
}

#[tokio::test]
async fn a_lease_is_ordered_shown_extended_and_given_back() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let answer = client
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order(2))
        .await
        .unwrap();
    let lease = answer.body.lease;
    assert_eq!(
        (answer.index, lease.index),
        (Some(answer.body.index), answer.body.index)
    );

    let view: LeaseView = client.get(&format!("/v1/leases/{lease}")).await.unwrap().body;
    assert_eq!(
        (view.status.as_str(), view.devices_min, view.currency.as_str()),
        ("pending", 2, "USD")
    );
    world.run(lease);
    let view: LeaseView = client.get(&format!("/v1/leases/{lease}")).await.unwrap().body;
    assert_eq!(
        (view.status.as_str(), view.devices, view.members[0].state.as_str()),
        ("active", 2, "running")
    );
    let renewed: Applied = client
        .command(
            Method::POST,
            &format!("/v1/leases/{lease}/renew"),
            &json!({"more_ms": 1000}),
        )
        .await
        .unwrap()
        .body;
    assert!(renewed.index > answer.body.index);
    client
        .command::<Applied>(Method::DELETE, &format!("/v1/leases/{lease}"), &json!({}))
        .await
        .unwrap();
    let view: LeaseView = client.get(&format!("/v1/leases/{lease}")).await.unwrap().body;
    assert_eq!(view.status, "ending");

    let history: LeaseHistory = client.get(&format!("/v1/leases/{lease}/events")).await.unwrap().body;
    assert!(
        history.lines[0].text.starts_with("tenant default asked for 2 devices"),
        "{:?}",
        history.lines[0]
    );
    assert!(history.lines.iter().any(|line| line.text.contains("on n1")));
}

async fn leased(client: &Client, order: &LeaseOrder) -> Result<LeaseId, ClientError> {
    let accepted = client
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", order)
        .await?;
    Ok(accepted.body.lease)
}

/// What an order is quoted for an hour.
async fn rate(client: &Client, order: &LeaseOrder) -> u64 {
    let quote = client
        .command::<Quote>(Method::POST, "/v1/quotes", order)
        .await
        .unwrap();
    quote.body.offers[0].micros_per_hour
}

#[tokio::test]
async fn parts_of_one_device_are_leased_shown_and_priced_once_every_node_knows_them() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let part = |share_milli| LeaseOrder {
        share_milli: Some(share_milli),
        ..order(1)
    };
    assert_eq!(
        code_of(&leased(&client, &part(400)).await.unwrap_err()),
        code::LEVEL_TOO_LOW
    );
    world.say(Command::RaiseMachineLevel { level: 2 });
    assert_eq!(
        code_of(&leased(&client, &part(1000)).await.unwrap_err()),
        "out-of-range"
    );
    let first = leased(&client, &part(400)).await.unwrap();
    let second = leased(&client, &part(600)).await.unwrap();
    world.run(first);
    world.run(second);
    let gpus: GpuList = client.get("/v1/gpus").await.unwrap().body;
    let shared: Vec<_> = gpus.gpus.iter().filter(|gpu| gpu.leased).collect();
    assert_eq!(shared.len(), 1);
    let parts: Vec<_> = shared[0].parts.iter().map(|part| (part.milli, part.lease)).collect();
    assert_eq!(
        (shared[0].lease, parts),
        (None, vec![(400, Some(first)), (600, Some(second))])
    );

    let view: LeaseView = client.get(&format!("/v1/leases/{first}")).await.unwrap().body;
    let (whole, quoted) = (rate(&client, &order(1)).await, rate(&client, &part(400)).await);
    assert_eq!((view.share_milli, view.micros_per_hour), (Some(400), Some(quoted)));
    assert_eq!(quoted, whole * 4 / 10);
    let history: LeaseHistory = client.get(&format!("/v1/leases/{first}/events")).await.unwrap().body;
    assert!(
        history.lines[1].text.starts_with("40.0 % of the device"),
        "{:?}",
        history.lines[1]
    );
}

#[tokio::test]
async fn a_lost_card_of_a_full_node_leaves_none_free_and_never_less_than_none() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let answer = client
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order(u32::from(DEVICES)))
        .await
        .unwrap();
    world.run(answer.body.lease);
    let lost = DeviceId([1; 16]);
    world.say(Command::ReportHealth {
        node: world.node,
        edges: vec![HealthEdge {
            device: lost,
            grade: Grade::Missing,
            xid: Some(79),
            reason: "fell off the bus".to_owned(),
        }],
    });

    let node = client.get::<NodeList>("/v1/nodes").await.unwrap().body.nodes.remove(0);
    assert_eq!((node.devices, node.devices_free), (DEVICES.into(), 0));
    let cluster = client.get::<ClusterView>("/v1/cluster").await.unwrap().body;
    assert_eq!((cluster.devices, cluster.devices_free), (DEVICES.into(), 0));
    let gpus = client.get::<GpuList>("/v1/gpus").await.unwrap().body.gpus;
    let gone = gpus.iter().find(|gpu| gpu.id == lost).unwrap();
    assert_eq!(
        (gone.grade, gone.xid, gone.lease),
        (Grade::Missing, Some(79), Some(answer.body.lease))
    );
    let metrics = client.text("/metrics").await.unwrap();
    assert!(
        metrics.contains("holdfast_devices{model=\"h100\",free=\"false\"} 8") && !metrics.contains("free=\"true\""),
        "{metrics}"
    );
    let page: EventPage = client
        .get("/v1/events?limit=1000&after=0&topic=node")
        .await
        .unwrap()
        .body;
    assert!(
        page.events.iter().any(|event| event.kind == "holdfast.device-graded"),
        "{page:?}"
    );
    // What is over the count is asked for, and told what there is.
    let refused = client.ask::<Quote>("/v1/quotes", &order(u32::from(DEVICES))).await;
    assert_eq!(code_of(&refused.unwrap_err()), "cannot-fit");
    let quote = client.ask::<Quote>("/v1/quotes", &order(1)).await.unwrap().body;
    assert_eq!(quote.offers[0].free, 0);
}

#[tokio::test]
async fn what_runs_is_priced_up_to_now_and_not_past_its_time_or_its_cap() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let mut capped = order(2);
    capped.cap_micros = Some(1_000_000);
    let mut leases = Vec::new();
    for order in [order(2), capped] {
        let accepted: LeaseAccepted = client.command(Method::POST, "/v1/leases", &order).await.unwrap().body;
        world.run(accepted.lease);
        leases.push(accepted.lease);
    }
    let seen = async |lease| {
        let view: LeaseView = client.get(&format!("/v1/leases/{lease}")).await.unwrap().body;
        let bill: Bill = client.get(&format!("/v1/leases/{lease}/bill")).await.unwrap().body;
        assert_eq!(
            (view.charged_micros, bill.total_micros),
            (0, 0),
            "no entry has charged it yet"
        );
        let open = bill.open.unwrap();
        // The two answers are a moment apart.
        let slack = (bill.as_of_ms - view.as_of_ms) * open.micros_per_hour / 3_600_000 + 1;
        assert!(
            view.so_far_micros.abs_diff(open.so_far_micros) <= slack,
            "{view:?} {open:?}"
        );
        (view.so_far_micros, view.as_of_ms - view.since_ms)
    };
    // A tenth of an hour of two devices at 2.50 each.
    world.jump(Duration::from_secs(360));
    for lease in &leases {
        let (so_far, ran_ms) = seen(*lease).await;
        assert!(
            ran_ms >= 360_000 && so_far.abs_diff(ran_ms * 5_000_000 / 3_600_000) <= 1,
            "{so_far} after {ran_ms}"
        );
    }
    // Nobody has ended them, but neither costs more than it can.
    world.jump(Duration::from_secs(36_000));
    assert_eq!(seen(leases[0]).await.0, 5_000_000);
    assert_eq!(seen(leases[1]).await.0, 1_000_000);
    let list = client.get::<LeaseList>("/v1/leases").await.unwrap().body.leases;
    assert_eq!(list.iter().map(|lease| lease.so_far_micros).sum::<u64>(), 6_000_000);
    // Without a leader nobody knows what still runs: what is told is as of what was last heard.
    world.leaderless.store(true, Ordering::SeqCst);
    let view: LeaseView = client
        .get(&format!("/v1/leases/{}?consistency=stale", leases[0]))
        .await
        .unwrap()
        .body;
    assert!(
        view.as_of_ms < view.expires_ms.unwrap() && view.so_far_micros < 1_000_000,
        "{view:?}"
    );
}

#[tokio::test]
async fn devices_of_a_node_that_cannot_be_heard_are_not_free() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let free = async || {
        let node = client.get::<NodeList>("/v1/nodes").await.unwrap().body.nodes.remove(0);
        let cluster = client.get::<ClusterView>("/v1/cluster").await.unwrap().body;
        let quote = client.ask::<Quote>("/v1/quotes", &order(1)).await.unwrap().body;
        let metrics = client.text("/metrics").await.unwrap();
        let shown = metrics.contains("holdfast_devices{model=\"h100\",free=\"true\"} 8");
        (node.devices_free, cluster.devices_free, quote.offers[0].free, shown)
    };
    assert_eq!(free().await, (8, 8, 8, true));
    world.say(Command::MarkNodeUnreachable {
        node: world.node,
        generation: Generation(1),
    });
    assert_eq!(free().await, (0, 0, 0, false));
    assert_eq!(
        client.get::<NodeList>("/v1/nodes").await.unwrap().body.nodes[0].devices,
        8
    );
}

#[tokio::test]
async fn what_can_never_fit_is_told_with_the_limit_that_keeps_it() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let mut zone = order(2);
    zone.zones = vec!["elsewhere".parse().unwrap()];
    let mut memory = order(2);
    memory.memory_mib_per_device = 512_001;
    let mut cpu = order(8);
    cpu.cpu_milli_per_device = 64_000;
    for (order, told) in [
        (zone, "without \"zone elsewhere\" 8"),
        (memory, "without \"512001 MiB of memory for each device\" 8"),
        (cpu, "without \"64000m CPU for each device\" 8"),
    ] {
        for path in ["/v1/leases", "/v1/quotes", "/v1/previews"] {
            let refused = match path {
                "/v1/leases" => client.command::<Value>(Method::POST, path, &order).await,
                path => client.ask::<Value>(path, &order).await,
            };
            let refused = refused.unwrap_err();
            assert_eq!(code_of(&refused), "cannot-fit", "{path}");
            assert!(refused.to_string().contains(told), "{path}: {refused}");
        }
    }
}

#[tokio::test]
async fn a_quota_that_is_not_named_stays_as_it_is() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let holds = async |order: Value| {
        client
            .command::<Applied>(Method::PUT, "/v1/tenants/blue", &order)
            .await
            .unwrap();
        let tenants = client.get::<TenantList>("/v1/tenants").await.unwrap().body.tenants;
        tenants
            .iter()
            .find(|tenant| tenant.tenant.as_str() == "blue")
            .unwrap()
            .devices_max
    };
    assert_eq!(holds(json!({})).await, None, "a new tenant may hold any number");
    assert_eq!(holds(json!({ "devices_max": 4 })).await, Some(4));
    assert_eq!(holds(json!({})).await, Some(4));
    assert_eq!(holds(json!({ "devices_max": null })).await, None);
    let page: EventPage = client
        .get("/v1/events?limit=1000&after=0&topic=security")
        .await
        .unwrap()
        .body;
    let text = serde_json::to_string(&page).unwrap();
    assert!(
        text.contains("tenant-set") && !text.contains(&u32::MAX.to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn a_retry_with_the_same_request_id_makes_no_second_lease() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let request = RequestId {
        client_ms: OsClock.wall_ms(),
        random: 7,
    };
    let first: LeaseAccepted = client
        .command_as(request, Method::POST, "/v1/leases", &order(1))
        .await
        .unwrap()
        .body;
    let second: LeaseAccepted = client
        .command_as(request, Method::POST, "/v1/leases", &order(1))
        .await
        .unwrap()
        .body;
    assert_eq!(first, second);
    assert_eq!(
        client.get::<LeaseList>("/v1/leases").await.unwrap().body.leases.len(),
        1
    );
}

#[tokio::test]
async fn a_command_whose_answer_was_lost_is_sent_again_and_executed_once() {
    let world = World::start().await;
    world.mute.store(true, Ordering::SeqCst);
    let client = world.client(Some(&world.operator));
    let accepted = client
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order(1))
        .await
        .unwrap()
        .body;
    let leases = client.get::<LeaseList>("/v1/leases").await.unwrap().body.leases;
    assert_eq!(
        leases.iter().map(|lease| lease.id).collect::<Vec<_>>(),
        [accepted.lease]
    );
}

#[tokio::test]
async fn without_a_leader_a_write_ends_unknown_with_the_id_to_retry_and_stale_reads_go_on() {
    let world = World::start().await;
    world.leaderless.store(true, Ordering::SeqCst);
    let client = world
        .client(Some(&world.operator))
        .with_patience(Duration::from_millis(1));
    let request = client.draw_request();
    let error = client
        .command_as::<LeaseAccepted>(request, Method::POST, "/v1/leases", &order(1))
        .await
        .unwrap_err();
    assert!(
        matches!(error, ClientError::Unknown { request: told, .. } if told == request),
        "{error:?}"
    );

    let http = world.http();
    let get = |path: &str| {
        http.get(world.url(path))
            .header("authorization", shown(&world.operator))
            .send()
    };
    let fresh = get("/v1/cluster").await.unwrap();
    assert_eq!(fresh.status(), 503);
    assert_eq!(fresh.json::<Value>().await.unwrap()["code"], "not-fresh");
    let stale = get("/v1/cluster?consistency=stale").await.unwrap();
    assert_eq!(stale.status(), 200);
    assert_eq!(stale.headers()[AGE_MS], "7000");
    assert_eq!(stale.headers()[SERVED_BY], world.node.to_string());
    assert!(stale.headers().contains_key(INDEX));
    assert_eq!(get("/readyz").await.unwrap().status(), 503);
    assert_eq!(get("/healthz").await.unwrap().status(), 200);

    world.leaderless.store(false, Ordering::SeqCst);
    let accepted: LeaseAccepted = client
        .command_as(request, Method::POST, "/v1/leases", &order(1))
        .await
        .unwrap()
        .body;
    assert_eq!(client.get::<ClusterView>("/v1/cluster").await.unwrap().body.leases, 1);
    assert_eq!(accepted.lease.index, accepted.index);
}

#[tokio::test]
async fn bad_orders_are_refused_with_what_would_be_right_and_have_no_effect() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let mut unknown = order(1);
    unknown.models = vec!["h900".parse().unwrap()];
    let mut zero_time = order(1);
    zero_time.duration_ms = 0;
    let mut hostile = order(1);
    hostile.command = vec!["a\0b".to_owned()];
    let mut endless = order(1);
    endless.duration_ms = u64::MAX;
    for (order, code, says) in [
        (order(0), "out-of-range", "1"),
        (order(u32::MAX), "out-of-range", "1024"),
        (order(u32::from(DEVICES) + 1), "cannot-fit", "8"),
        (unknown, "model-unknown", "h100"),
        (zero_time, "out-of-range", "1"),
        (endless, "out-of-range", "9600h"),
        (hostile, "out-of-range", ""),
    ] {
        let error = client
            .command::<Value>(Method::POST, "/v1/leases", &order)
            .await
            .unwrap_err();
        assert_eq!(code_of(&error), code, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains(['\0', '\u{1b}', '\n']), "{error:?}");
    }
    let http = world.http();
    for body in [
        r#"{"devices": 4294967296, "duration_ms": 1000, "command": []}"#,
        r#"{"devices": -1, "duration_ms": 1000, "command": []}"#,
        r#"{"devices": 1.5, "duration_ms": 1000, "command": []}"#,
        r#"{"devices": 1, "duration_ms": 1000, "command": [], "colour": "red"}"#,
        r#"{"devices": 1"#,
        r#"{"devices": 1, "duration_ms": 1000, "command": [], "label": "\u001b[2J"}"#,
        "",
        "\u{feff}",
    ] {
        let response = http
            .post(world.url("/v1/leases"))
            .header("authorization", shown(&world.operator))
            .body(body)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 400, "{body}");
        let detail = response.json::<Value>().await.unwrap()["detail"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(!detail.contains('\u{1b}'), "{detail:?}");
    }
    assert!(
        client
            .get::<LeaseList>("/v1/leases")
            .await
            .unwrap()
            .body
            .leases
            .is_empty()
    );
}

#[tokio::test]
async fn bodies_that_are_too_large_are_refused() {
    let world = World::start().await;
    let http = world.http();
    let mut big = order(1);
    big.command = vec!["x".repeat(300 * 1_024)];
    let client = world.client(Some(&world.operator));
    assert_eq!(
        code_of(
            &client
                .command::<Value>(Method::POST, "/v1/leases", &big)
                .await
                .unwrap_err()
        ),
        "too-large"
    );
    let huge = vec![b' '; world.limits.body_bytes_max + 1];
    let response = http
        .post(world.url("/v1/leases"))
        .header("authorization", shown(&world.operator))
        .body(huge)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 413);
}

#[tokio::test]
async fn a_request_id_that_is_none_is_refused_and_one_that_is_drawn_is_told() {
    let world = World::start().await;
    let http = world.http();
    let post = || {
        let body = json!({"subject": "tests", "text": "x"});
        http.post(world.url("/v1/notes"))
            .header("authorization", shown(&world.operator))
            .json(&body)
    };
    for wrong in ["x", "1", "1-zz", "-", "99999999999999999999-0000000000000001"] {
        assert_eq!(
            post().header(REQUEST_ID, wrong).send().await.unwrap().status(),
            400,
            "{wrong}"
        );
    }
    let answer = post().send().await.unwrap();
    assert!(
        answer.headers()[REQUEST_ID]
            .to_str()
            .unwrap()
            .parse::<RequestId>()
            .is_ok()
    );
    let ancient = post().header(REQUEST_ID, "1000-0000000000000001").send().await.unwrap();
    assert_eq!(ancient.json::<Value>().await.unwrap()["code"], "request-too-old");
}

#[tokio::test]
async fn the_quote_is_what_the_bill_charges() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let mut order = order(4);
    order.cap_micros = Some(5_000_000);
    let quote: Quote = client.ask("/v1/quotes", &order).await.unwrap().body;
    let offer = &quote.offers[0];
    assert_eq!(
        (offer.micros_per_hour, offer.total_micros, offer.free),
        (10_000_000, 10_000_000, 8)
    );
    assert_eq!((quote.most_micros, offer.capped_after_ms), (5_000_000, Some(1_800_000)));

    let lease = client
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order)
        .await
        .unwrap()
        .body
        .lease;
    world.run(lease);
    world.jump(Duration::from_secs(360));
    world.finish(lease, 0);
    let bill: Bill = client
        .get(&format!("/v1/leases/{lease}/bill?explain=true"))
        .await
        .unwrap()
        .body;
    assert!(bill.is_final && bill.open.is_none());
    assert_eq!(bill.lines.len(), 1);
    let line = &bill.lines[0];
    assert_eq!(line.micros_per_hour, offer.micros_per_hour);
    assert_eq!(line.amount_micros, bill.total_micros);
    assert!(
        line.amount_micros >= 1_000_000 && line.charged_at.is_some_and(|at| at > line.opened_at),
        "{line:?}"
    );

    let mut unknown = order.clone();
    unknown.models = vec!["h900".parse().unwrap()];
    assert_eq!(
        code_of(&client.ask::<Quote>("/v1/quotes", &unknown).await.unwrap_err()),
        "model-unknown"
    );
    unknown.models.clear();
    unknown.devices = u32::from(DEVICES) + 1;
    assert_eq!(
        code_of(&client.ask::<Quote>("/v1/quotes", &unknown).await.unwrap_err()),
        "cannot-fit"
    );
}

#[tokio::test]
async fn a_token_is_made_works_at_once_and_is_listed_without_its_secret() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let order = json!({"kind": "access", "role": "read-only", "note": "dashboard"});
    let made: TokenMade = client.command(Method::POST, "/v1/tokens", &order).await.unwrap().body;
    let reader = world.client(Some(&made.token.parse().unwrap()));
    assert!(reader.get::<ClusterView>("/v1/cluster").await.is_ok());
    let join: TokenMade = client
        .command(Method::POST, "/v1/tokens", &json!({"kind": "join", "role": "worker"}))
        .await
        .unwrap()
        .body;
    assert_eq!(
        join.join_line.unwrap(),
        format!("holdfast join {} --token {}", world.address, join.token)
    );
    assert!(join.token.parse::<crate::join::JoinToken>().is_ok());

    let list = client.get::<TokenList>("/v1/tokens").await.unwrap().body;
    assert_eq!(list.tokens.len(), 3);
    assert!(
        !serde_json::to_string(&list)
            .unwrap()
            .contains(made.token.rsplit('.').next().unwrap())
    );
    client
        .command::<Applied>(Method::DELETE, &format!("/v1/tokens/{}", made.id), &json!({}))
        .await
        .unwrap();
    assert_eq!(
        code_of(&reader.get::<ClusterView>("/v1/cluster").await.unwrap_err()),
        "token-revoked"
    );
}

#[tokio::test]
async fn a_token_whose_answer_was_lost_is_said_to_be_lost() {
    let world = World::start().await;
    world.mute.store(true, Ordering::SeqCst);
    let client = world.client(Some(&world.operator));
    let error = client
        .command::<TokenMade>(Method::POST, "/v1/tokens", &json!({"kind": "join", "role": "worker"}))
        .await
        .unwrap_err();
    assert_eq!(code_of(&error), "secret-lost");
}

#[tokio::test]
async fn more_requests_than_the_limit_are_told_to_come_back() {
    let world = World::start_with(Limits {
        in_flight_max: 0,
        ..Limits::default()
    })
    .await;
    let response = world.http().get(world.url("/healthz")).send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    let busy = world
        .client(Some(&world.operator))
        .with_patience(Duration::from_millis(1));
    // It is told why, and not that nobody answers.
    assert!(matches!(
        busy.get::<Value>("/v1/cluster").await,
        Err(ClientError::Refused { problem }) if problem.code == code::BUSY
    ));
}

#[tokio::test]
async fn metrics_count_the_requests_and_name_no_lease() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let lease = client
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order(1))
        .await
        .unwrap()
        .body
        .lease;
    client.get::<LeaseView>(&format!("/v1/leases/{lease}")).await.unwrap();
    let reader = world.token(Role::ReadOnly, None, None);
    let response = world
        .http()
        .get(world.url("/metrics"))
        .header("authorization", shown(&reader))
        .send()
        .await
        .unwrap();
    let text = response.text().await.unwrap();
    assert!(
        text.contains("holdfast_http_requests_total{method=\"GET\",path=\"/v1/leases/{lease}\",status=\"200\"} 1"),
        "{text}"
    );
    assert!(text.contains("holdfast_leases{status=\"pending\"} 1"), "{text}");
    assert!(!text.contains(&lease.to_string()));
    let mut families: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let count = families.len();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), count);
}
