//! Who may do what: every endpoint against every kind of token.

// Tables of cases are long; cutting them would hide what they cover.
#![allow(clippy::unwrap_used, clippy::too_many_lines)]

use std::time::Duration;

use holdfast_proto::command::Command;
use holdfast_proto::tenant::{Quota, Role};
use holdfast_proto::time::Timestamp;
use reqwest::Method;
use serde_json::Value;
use utoipa::openapi::path::HttpMethod;

use super::world::{World, name, shown};
use crate::api::auth::{Needs, judge};
use crate::api::route::table;
use crate::api::seam::Committed;
use crate::bearer::Bearer;
use crate::client::ClientError;
use crate::env::{Clock, OsEntropy};
use crate::wire::event::EventPage;
use crate::wire::lease::{LeaseAccepted, LeaseList, LeaseOrder};
use crate::wire::node::GpuList;
use crate::wire::token::TenantList;

fn method(method: &HttpMethod) -> Method {
    match method {
        HttpMethod::Post => Method::POST,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Delete => Method::DELETE,
        _ => Method::GET,
    }
}

fn filled(path: &str) -> String {
    path.replace("{lease}", "lease-1")
        .replace("{node}", "n1")
        .replace("{gpu}", "GPU-01010101-0101-0101-0101-010101010101")
        .replace("{token}", "tok-0000000000000001")
        .replace("{tenant}", "blue")
        .replace("{name}", "invoices")
        .replace("{type}", "lease-ended")
}

fn order() -> LeaseOrder {
    LeaseOrder::new(1, 60_000, vec!["true".to_owned()])
}

fn status_of(error: &ClientError) -> u16 {
    error.problem().map_or(0, |problem| problem.status)
}

#[tokio::test]
async fn no_endpoint_answers_without_a_valid_token_unless_it_says_so() {
    let world = World::start().await;
    let expired = world.token(Role::Operator, None, Some(Timestamp(world.wall_ms() + 60_000)));
    let revoked = world.token(Role::Operator, None, None);
    world.operate(Command::RevokeToken { token: revoked.id });
    world.jump(Duration::from_secs(120));
    let stranger = Bearer::draw(&OsEntropy);
    let wrong_secret = shown(&stranger).replace(&stranger.id.to_string()[4..], &world.operator.id.to_string()[4..]);
    let shows = [
        None,
        Some("Basic b3BlcmF0b3I6".to_owned()),
        Some("Bearer nonsense".to_owned()),
        Some(shown(&stranger)),
        Some(wrong_secret),
        Some(shown(&expired)),
        Some(shown(&revoked)),
    ];
    let http = world.http();
    let mut details = std::collections::BTreeSet::new();
    for route in table() {
        for show in &shows {
            let mut request = http.request(method(&route.method), world.url(&filled(&route.path)));
            if let Some(show) = show {
                request = request.header("authorization", show);
            }
            let response = request.send().await.unwrap();
            if route.needs == Needs::Nothing {
                assert_ne!(response.status(), 401, "{}", route.path);
                continue;
            }
            assert_eq!(response.status(), 401, "{} with {show:?}", route.path);
            assert!(response.headers().contains_key("www-authenticate"));
            let problem: Value = response.json().await.unwrap();
            if problem["code"] == "token-expired" {
                let detail = problem["detail"].as_str().unwrap();
                assert!(
                    detail.contains("expired 1m") && detail.contains("ago, at 20"),
                    "{detail}"
                );
            }
            details.insert(problem["code"].as_str().unwrap().to_owned());
        }
    }
    let codes = [
        "token-expired",
        "token-malformed",
        "token-missing",
        "token-revoked",
        "token-unknown",
    ];
    assert_eq!(details.into_iter().collect::<Vec<_>>(), codes);
}

#[tokio::test]
async fn a_role_reaches_the_endpoints_of_its_role_and_no_others() {
    let world = World::start().await;
    let tokens = [
        (Role::Tenant, world.token(Role::Tenant, Some("default"), None)),
        (Role::Subscriber, world.token(Role::Subscriber, Some("default"), None)),
        (Role::ReadOnly, world.token(Role::ReadOnly, None, None)),
    ];
    let http = world.http();
    for route in table() {
        // Streams and logs would stay open; their rights are those of other routes of their kind.
        if route.path == "/v1/events" {
            continue;
        }
        for (role, bearer) in &tokens {
            let allowed = match route.needs {
                Needs::Nothing | Needs::AnyToken => true,
                Needs::Reads => *role != Role::Subscriber,
                Needs::Leases => *role == Role::Tenant,
                Needs::Subscribes => *role != Role::ReadOnly,
                Needs::Operator => false,
                Needs::Everything => *role == Role::ReadOnly,
            };
            let request = http.request(method(&route.method), world.url(&filled(&route.path)));
            let response = request.header("authorization", shown(bearer)).send().await.unwrap();
            let status = response.status().as_u16();
            assert_eq!(status != 403, allowed, "{:?} {role:?}: {status}", route.path);
        }
    }
}

#[tokio::test]
async fn a_tenant_sees_and_touches_only_what_is_its_own() {
    let world = World::start().await;
    for tenant in ["red", "blue"] {
        world.operate(Command::SetTenant {
            tenant: name(tenant),
            quota: Quota { devices_max: 4 },
        });
    }
    let (red, blue) = (
        world.token(Role::Tenant, Some("red"), None),
        world.token(Role::Tenant, Some("blue"), None),
    );
    let (red, blue) = (world.client(Some(&red)), world.client(Some(&blue)));
    let lease = red
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order())
        .await
        .unwrap()
        .body
        .lease;
    let epoch = world.run(lease);
    world.write(lease, epoch, "secret of red\n", true);

    assert_eq!(red.get::<LeaseList>("/v1/leases").await.unwrap().body.leases.len(), 1);
    assert!(
        blue.get::<LeaseList>("/v1/leases")
            .await
            .unwrap()
            .body
            .leases
            .is_empty()
    );
    assert!(
        blue.get::<LeaseList>("/v1/leases?tenant=red")
            .await
            .unwrap()
            .body
            .leases
            .is_empty()
    );
    for path in ["", "/events", "/bill", "/logs"] {
        let error = blue
            .get::<Value>(&format!("/v1/leases/{lease}{path}"))
            .await
            .unwrap_err();
        assert_eq!(status_of(&error), 404, "{path}");
        let absent = blue
            .get::<Value>(&format!("/v1/leases/lease-99999{path}"))
            .await
            .unwrap_err();
        assert_eq!(absent.problem().unwrap().code, error.problem().unwrap().code);
    }
    let error = blue
        .command::<Value>(Method::DELETE, &format!("/v1/leases/{lease}"), &())
        .await
        .unwrap_err();
    assert!(matches!(status_of(&error), 403 | 404), "{error}");
    let gpus = blue.get::<GpuList>("/v1/gpus").await.unwrap().body.gpus;
    assert_eq!(gpus.iter().filter(|gpu| gpu.leased).count(), 1);
    assert!(gpus.iter().all(|gpu| gpu.lease.is_none()));
    let tenants = blue.get::<TenantList>("/v1/tenants").await.unwrap().body.tenants;
    assert_eq!(
        tenants.iter().map(|tenant| tenant.tenant.as_str()).collect::<Vec<_>>(),
        ["blue"]
    );

    let mut for_red = order();
    for_red.tenant = Some(name("red"));
    assert_eq!(
        status_of(
            &blue
                .command::<Value>(Method::POST, "/v1/leases", &for_red)
                .await
                .unwrap_err()
        ),
        403
    );
}

#[tokio::test]
async fn the_event_stream_shows_a_tenant_nothing_of_another() {
    let world = World::start().await;
    for tenant in ["red", "blue"] {
        world.operate(Command::SetTenant {
            tenant: name(tenant),
            quota: Quota { devices_max: 4 },
        });
    }
    let red = world.client(Some(&world.token(Role::Tenant, Some("red"), None)));
    let blue = world.client(Some(&world.token(Role::Subscriber, Some("blue"), None)));
    let lease = red
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order())
        .await
        .unwrap()
        .body
        .lease;
    world.run(lease);
    world.finish(lease, 0);

    let mine = red
        .get::<EventPage>("/v1/events?limit=1000&after=0")
        .await
        .unwrap()
        .body
        .events;
    let about = |event: &crate::wire::event::CloudEvent| event.subject.clone().unwrap_or_default();
    assert!(mine.iter().any(|event| about(event) == lease.to_string()));
    assert!(
        mine.iter()
            .all(|event| [lease.to_string(), "red".to_owned(), String::new()].contains(&about(event)))
    );
    for query in ["", "&topic=lease,placement,billing", &format!("&lease={lease}")] {
        let page = blue
            .get::<EventPage>(&format!("/v1/events?limit=1000&after=0{query}"))
            .await
            .unwrap()
            .body;
        assert!(page.end);
        let text = serde_json::to_string(&page.events).unwrap();
        assert!(!text.contains("red") && !text.contains(&lease.to_string()), "{text}");
    }
    let error = blue
        .get::<EventPage>("/v1/events?limit=10&after=0&tenant=red")
        .await
        .unwrap_err();
    assert_eq!(status_of(&error), 403);
}

#[tokio::test]
async fn no_text_of_the_interface_shows_a_secret() {
    let world = World::start().await;
    let marker = shown(&world.operator).rsplit('.').next().unwrap().to_owned();
    let http = world.http();
    let mut texts = String::new();
    for route in table().into_iter().filter(|route| route.path != "/v1/events") {
        let request = http.request(method(&route.method), world.url(&filled(&route.path)));
        let response = request
            .header("authorization", shown(&world.operator))
            .send()
            .await
            .unwrap();
        texts.push_str(&format!("{:?}", response.headers()));
        texts.push_str(&response.text().await.unwrap());
    }
    // A body that is not one, with the secret in every wrong place.
    for path in ["/v1/join", "/v1/leases", "/v1/tokens"] {
        for body in [
            format!("{{\"secret\": {{\"a\": \"{marker}\"}}}}"),
            format!("\"{marker}\""),
            format!("{{\"kind\": \"{marker}\"}}"),
        ] {
            let request = http
                .post(world.url(path))
                .header("authorization", shown(&world.operator))
                .body(body);
            texts.push_str(&request.send().await.unwrap().text().await.unwrap());
        }
    }
    let client = world.client(Some(&world.operator));
    let page = client
        .get::<EventPage>("/v1/events?limit=1000&after=0")
        .await
        .unwrap()
        .body;
    texts.push_str(&serde_json::to_string(&page).unwrap());
    texts.push_str(&format!("{:?} {:?}", world.operator, world.state()));
    assert!(!texts.contains(&marker), "a text shows the operator's secret");
    // Nor do the bytes that snapshots are made of.
    let written = hex::encode(world.state().encode());
    assert!(!written.contains(&marker) && !written.contains(&hex::encode(&marker)));
}

#[tokio::test]
async fn an_unknown_token_and_a_wrong_secret_are_told_the_same() {
    let world = World::start().await;
    let now = Timestamp(world.wall_ms());
    let stranger = Bearer::draw(&OsEntropy);
    let text = shown(&stranger).replace(
        &format!("{:016x}", stranger.id.0),
        &format!("{:016x}", world.operator.id.0),
    );
    let wrong: Bearer = text.trim_start_matches("Bearer ").parse().unwrap();
    let state = holdfast_storage::machine::State::clone(&world.state());
    let told = |bearer: &Bearer| {
        judge(&state, bearer, now)
            .unwrap_err()
            .problem()
            .detail
            .replace(&bearer.id.to_string(), "ID")
    };
    assert_eq!(told(&stranger), told(&wrong));
    assert!(judge(&state, &world.operator, now).is_ok());
}
