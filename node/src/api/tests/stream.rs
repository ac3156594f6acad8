//! Streams: events and output of work.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use holdfast_proto::command::Command;
use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::Cursor;
use holdfast_proto::tenant::Role;
use holdfast_proto::time::Timestamp;
use reqwest::Method;

use super::world::{World, name, shown};
use crate::api::Limits;
use crate::client::event::Item;
use crate::wire::event::{CloudEvent, CloudEventRef, EventPage};
use crate::wire::lease::{LeaseAccepted, LeaseOrder};

fn note(world: &World, text: &str) {
    world.operate(Command::Annotate {
        subject: name("tests"),
        text: text.to_owned(),
    });
}

/// Reads a stream until it ends or a text was seen.
async fn read_until(response: reqwest::Response, seen: &str) -> String {
    let mut text = String::new();
    let mut bytes = response.bytes_stream();
    while let Some(chunk) = bytes.next().await {
        text.push_str(&String::from_utf8_lossy(&chunk.unwrap()));
        if text.contains(seen) {
            break;
        }
    }
    text
}

#[tokio::test]
async fn a_stream_resumes_strictly_behind_its_last_event_on_a_node_without_a_leader() {
    let world = World::start().await;
    for at in 0..5 {
        note(&world, &format!("note {at}"));
    }
    world.leaderless.store(true, Ordering::SeqCst);
    let http = world.http();
    let open = || {
        http.get(world.url("/v1/events?after=0"))
            .header("authorization", shown(&world.operator))
    };
    let whole = read_until(open().send().await.unwrap(), "note 4").await;
    let ids: Vec<&str> = whole.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    let place = ids.iter().position(|_| true).unwrap();
    assert_eq!(place, 0);
    // The event that carries `note 2`, and what follows it.
    let (before, _) = whole.split_once("note 2").unwrap();
    let last = before.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap();
    let rest = read_until(open().header("last-event-id", last).send().await.unwrap(), "note 4").await;
    assert!(!rest.contains("note 2") && rest.contains("note 3"), "{rest}");
    assert!(whole.contains("event: bookmark") && rest.contains("\"specversion\":\"1.0\""));
}

#[tokio::test]
async fn every_event_is_given_once_and_in_order_across_pages_and_streams() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let mut stream = client.events("", Some(Cursor::default()));
    let mut streamed = Vec::new();
    for round in 0..30 {
        note(&world, &format!("round {round}"));
    }
    while !streamed
        .last()
        .is_some_and(|(_, text): &(Cursor, String)| text.contains("round 29"))
    {
        if let Item::Event(event) = stream.next().await.unwrap() {
            streamed.push((event.id, serde_json::to_string(&event.data).unwrap()));
        }
    }
    let mut paged = Vec::new();
    let mut after = Cursor::default();
    loop {
        let page: EventPage = client
            .get(&format!("/v1/events?limit=7&after={after}"))
            .await
            .unwrap()
            .body;
        paged.extend(
            page.events
                .iter()
                .map(|event| (event.id, serde_json::to_string(&event.data).unwrap())),
        );
        after = page.next;
        if page.end {
            break;
        }
    }
    assert!(streamed.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert_eq!(streamed, paged);
}

/// One event of every kind, as it was written down when its kind was released.
fn one_of_each(from: u64) -> Vec<EventRecord> {
    let golden = include_str!("../../../../proto/tests/golden/events.txt");
    let bytes = golden.lines().filter_map(|line| line.rsplit(' ').next());
    let records = bytes.map(|bytes| EventRecord::decode(&hex::decode(bytes).unwrap()).unwrap());
    (from..)
        .zip(records)
        .map(|(index, record)| EventRecord {
            cursor: Cursor { index, sub: 0 },
            ..record
        })
        .collect()
}

#[tokio::test]
async fn every_kind_of_event_is_in_the_stream_in_full_and_under_its_topic() {
    let world = World::start().await;
    let first = world.state_cursor().index + 1;
    let written = one_of_each(first);
    let kinds: BTreeSet<&str> = written.iter().map(|record| record.event.name()).collect();
    let all: BTreeSet<&str> = Event::TABLE.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(kinds, all, "the sample has every kind");
    world.tell(written.clone());

    let client = world.client(Some(&world.operator));
    let before = Cursor {
        index: first - 1,
        sub: u32::MAX,
    };
    let mut stream = client.events("", Some(before));
    for record in &written {
        let event = loop {
            match stream.next().await.unwrap() {
                Item::Event(event) => break event,
                Item::Bookmark(_) => {}
                other @ Item::Compacted(_) => panic!("{other:?}"),
            }
        };
        assert_eq!(event.id, record.cursor, "{} is left out", record.event.name());
        let event = CloudEvent::from(*event);
        // A page is made of the one form, a stream of the other.
        let source = event.source.clone();
        let line = serde_json::to_string(&CloudEventRef::of(&source, record)).unwrap();
        assert_eq!(
            line,
            serde_json::to_string(&CloudEvent::of(event.cluster(), record)).unwrap()
        );
        assert_eq!(event.kind, format!("holdfast.{}", record.event.name()));
        assert_eq!(event.data, record.event);
        assert_eq!(event.request, record.request.map(|key| key.id));
        let sentence = crate::history::sentence(&record.event, &|_| None, "USD");
        assert!(!sentence.trim().is_empty(), "{} has no words", record.event.name());
    }
    for record in &written {
        let topic = record.event.topic().name();
        let path = format!("/v1/events?limit=1000&after={before}&topic={topic}");
        let page: EventPage = client.get(&path).await.unwrap().body;
        assert!(page.events.iter().any(|event| event.id == record.cursor), "{topic}");
    }
}

#[tokio::test]
async fn a_position_that_is_gone_is_told_and_the_client_goes_on_behind_it() {
    let world = World::start().await;
    for at in 0..5 {
        note(&world, &format!("note {at}"));
    }
    let through = Cursor { index: 5, sub: 0 };
    world.compact(through);
    let client = world.client(Some(&world.operator));
    let error = client.get::<EventPage>("/v1/events?limit=5&after=0").await.unwrap_err();
    assert_eq!(error.problem().unwrap().code, "compacted");
    let mut stream = client.events("", Some(Cursor::default()));
    let mut compacted = None;
    loop {
        match stream.next().await.unwrap() {
            Item::Compacted(next) => compacted = Some(next),
            Item::Event(event) => {
                assert!(event.id > through);
                break;
            }
            Item::Bookmark(_) => {}
        }
    }
    assert_eq!(compacted, Some(through));
}

#[tokio::test]
async fn a_reader_that_stands_where_retention_cut_is_told_the_next_event_and_no_gap() {
    let world = World::start().await;
    for at in 0..6 {
        note(&world, &format!("note {at}"));
    }
    let last = world.state_cursor();
    let cut = Cursor {
        index: last.index - 2,
        sub: 0,
    };
    world.compact(cut);
    let client = world.client(Some(&world.operator));
    let at_the_cut = format!("/v1/events?limit=9&after={cut}");
    let page = client.get::<EventPage>(&at_the_cut);
    let indexes: Vec<u64> = page
        .await
        .unwrap()
        .body
        .events
        .iter()
        .map(|event| event.id.index)
        .collect();
    assert_eq!(indexes, [last.index - 1, last.index]);
    let before = format!("/v1/events?limit=9&after={}.0", cut.index - 1);
    let error = client.get::<EventPage>(&before).await.unwrap_err();
    assert_eq!(error.problem().unwrap().code, "compacted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_backlog_is_joined_to_what_is_written_meanwhile_without_a_gap() {
    const BACKLOG: usize = 3_000;
    const MEANWHILE: usize = 600;
    let world = World::start().await;
    for at in 0..BACKLOG {
        note(&world, &format!("old {at}"));
    }
    let writes = world.clone();
    let writer = tokio::task::spawn_blocking(move || {
        for at in 0..MEANWHILE {
            note(&writes, &format!("new {at}"));
        }
    });
    let client = world.client(Some(&world.operator));
    let mut stream = client.events("type=annotated", Some(Cursor::default()));
    let mut told = Vec::new();
    while told.len() < BACKLOG + MEANWHILE {
        match stream.next().await.unwrap() {
            Item::Event(event) => told.push(event),
            Item::Bookmark(_) => {}
            other @ Item::Compacted(_) => panic!("{other:?}"),
        }
    }
    writer.await.unwrap();
    assert!(told.windows(2).all(|pair| pair[1].id.index == pair[0].id.index + 1));
    let Event::Annotated { text, .. } = &told[BACKLOG + MEANWHILE - 1].data else {
        panic!("{told:?}")
    };
    assert_eq!(*text, format!("new {}", MEANWHILE - 1));
}

#[tokio::test]
async fn a_cluster_without_a_leader_is_still_looked_into() {
    let world = World::start().await;
    world.leaderless.store(true, Ordering::SeqCst);
    let client = world.client(Some(&world.operator));
    assert!(
        client
            .text("/metrics")
            .await
            .unwrap()
            .contains("holdfast_applied_index")
    );
    client.text("/healthz").await.unwrap();
    client.text("/v1/cluster?consistency=stale").await.unwrap();
    client.text("/v1/events?limit=9&after=0").await.unwrap();
}

#[tokio::test]
async fn a_quiet_or_filtered_stream_tells_where_it_is() {
    let world = World::start_with(Limits {
        bookmark_every: Duration::from_millis(20),
        ..Limits::default()
    })
    .await;
    let client = world.client(Some(&world.operator));
    let mut stream = client.events(
        "topic=billing",
        Some(Cursor {
            index: 3,
            sub: u32::MAX,
        }),
    );
    for at in 0..10 {
        note(&world, &format!("note {at}"));
    }
    let last = world.state_cursor();
    loop {
        match stream.next().await.unwrap() {
            Item::Bookmark(at) if at == last => break,
            Item::Bookmark(_) => {}
            other => panic!("{other:?} is not about bills"),
        }
    }
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_is_told_and_loses_nothing() {
    let limits = Limits {
        queue_batches: 1,
        slow_after: Duration::from_millis(50),
        ..Limits::default()
    };
    let world = World::start_with(limits).await;
    let text = "x".repeat(4_000);
    for _ in 0..3_000 {
        note(&world, &text);
    }
    let http = world.http();
    let open = http
        .get(world.url("/v1/events?after=0"))
        .header("authorization", shown(&world.operator));
    let response = open.send().await.unwrap();
    // Nobody reads until the queue and the socket's buffers have been full for longer than the limit.
    let mut streams = world.open_streams();
    while streams > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        streams = world.open_streams();
    }
    let whole = read_until(response, "event: too-slow").await;
    let ids: Vec<Cursor> = whole
        .lines()
        .filter_map(|line| line.strip_prefix("id: ")?.parse().ok())
        .collect();
    let (told, given) = ids.split_last().unwrap();
    assert_eq!(
        Some(told),
        given.last(),
        "the stream says to go on behind the last event that it gave"
    );
}

#[tokio::test]
async fn a_position_that_cannot_be_meant_is_refused_and_the_refusal_says_what_to_do() {
    let world = World::start().await;
    note(&world, "one");
    let client = world.client(Some(&world.operator));
    let cases = [
        ("after=4000.0", "cursor-from-future", "the newest is"),
        (
            "after=1.0&cluster=00000000-0000-0000-0000-000000000001",
            "other-cluster",
            "from=start",
        ),
        ("after=x", "bad-request", "12.0"),
        ("after=1.0&from=now", "bad-request", "not both"),
        ("type=lease-begun", "bad-request", "lease-requested"),
        ("topic=leases", "bad-request", "lease, placement"),
    ];
    for (query, code, says) in cases {
        let error = client
            .get::<EventPage>(&format!("/v1/events?limit=5&{query}"))
            .await
            .unwrap_err();
        let problem = error.problem().unwrap();
        assert!(
            problem.code == code && problem.detail.contains(says),
            "{query}: {problem:?}"
        );
    }
}

#[tokio::test]
async fn a_stream_of_some_types_begins_at_the_first_event_that_is_kept() {
    let world = World::start().await;
    for at in 0..4 {
        note(&world, &format!("note {at}"));
    }
    world.compact(Cursor { index: 5, sub: 0 });
    let client = world.client(Some(&world.operator));
    let path = "/v1/events?limit=9&from=start&type=annotated,holdfast.token-revoked";
    let page: EventPage = client.get(path).await.unwrap().body;
    let texts: Vec<String> = page.events.iter().map(|event| format!("{:?}", event.data)).collect();
    assert!(
        texts.len() == 2 && texts[0].contains("note 2") && texts[1].contains("note 3"),
        "{texts:?}"
    );
}

#[tokio::test]
async fn a_stream_ends_as_soon_as_its_token_is_revoked() {
    let world = World::start().await;
    let reader = world.token(Role::Subscriber, None, None);
    let open = world
        .http()
        .get(world.url("/v1/events?from=now"))
        .header("authorization", shown(&reader));
    let response = open.send().await.unwrap();
    note(&world, "seen");
    world.operate(Command::RevokeToken { token: reader.id });
    note(&world, "secret");
    let whole = read_until(response, "nothing that is written").await;
    assert!(
        whole.contains("event: token-ended") && !whole.contains("secret"),
        "{whole}"
    );
}

#[tokio::test]
async fn a_stream_ends_at_the_entry_that_revokes_its_token_also_when_the_state_does_not_know_it_yet() {
    let world = World::start().await;
    let reader = world.token(Role::Subscriber, None, None);
    let before = world.state_cursor();
    let told = |ahead: u64, event: Event| EventRecord {
        cursor: Cursor {
            index: before.index + ahead,
            sub: 0,
        },
        at: Timestamp(0),
        request: None,
        event,
    };
    let noted = |text: &str| Event::Annotated {
        subject: name("tests"),
        text: text.to_owned(),
    };
    world.tell([
        told(1, noted("seen")),
        told(2, Event::TokenRevoked { token: reader.id }),
        told(3, noted("secret")),
    ]);
    let open = world
        .http()
        .get(world.url(&format!("/v1/events?after={before}")))
        .header("authorization", shown(&reader));
    let whole = read_until(open.send().await.unwrap(), "event: token-ended").await;
    assert!(whole.contains("seen") && !whole.contains("secret"), "{whole}");
    let next = format!("event: token-ended\nid: {}.0\n", before.index + 1);
    assert!(whole.contains(&next), "{whole}");
}

#[tokio::test]
async fn events_that_every_node_stepped_over_are_told_as_gone_once() {
    let world = World::start().await;
    for at in 0..5 {
        note(&world, &format!("note {at}"));
    }
    let through = Cursor { index: 5, sub: 0 };
    world.step_over(through);
    let client = world.client(Some(&world.operator));
    let error = client.get::<EventPage>("/v1/events?limit=5&after=0").await.unwrap_err();
    assert_eq!(error.problem().unwrap().code, "reset");
    let mut stream = client.events("", Some(Cursor::default()));
    let mut told = Vec::new();
    loop {
        match stream.next().await.unwrap() {
            Item::Compacted(next) => told.push(next),
            Item::Event(event) => break assert!(event.id > through),
            Item::Bookmark(_) => {}
        }
    }
    assert_eq!(told, [through]);
}

#[tokio::test]
async fn output_of_work_is_followed_to_its_end() {
    let world = World::start().await;
    let client = world.client(Some(&world.operator));
    let order = LeaseOrder::new(1, 60_000, vec!["true".to_owned()]);
    let lease = client
        .command::<LeaseAccepted>(Method::POST, "/v1/leases", &order)
        .await
        .unwrap()
        .body
        .lease;
    let mut log = client.log(lease, true);
    let reader = async {
        let mut lines = Vec::new();
        while let Some(line) = log.next().await.unwrap() {
            lines.push((line.position, line.text));
        }
        lines
    };
    let writer = async {
        let epoch = world.run(lease);
        world.write(lease, epoch, "one\ntw", false);
        world.write(lease, epoch, "o\nthree", false);
        world.finish(lease, 0);
    };
    let (lines, ()) = tokio::join!(reader, writer);
    let expected = [(4, "one\n"), (8, "two\n"), (13, "three")];
    assert_eq!(lines, expected.map(|(position, text)| (position, text.to_owned())));

    let raw = world
        .http()
        .get(world.url(&format!("/v1/leases/{lease}/logs?after=0:1:4")))
        .header("authorization", shown(&world.operator));
    assert_eq!(raw.send().await.unwrap().text().await.unwrap(), "two\nthree");
}

/// Reads a compressed stream until what it says so far has a text.
async fn unzip_until(response: reqwest::Response, seen: &str) -> (Vec<u8>, String) {
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert_eq!(response.headers()["vary"], "accept-encoding");
    let (mut zipped, mut text) = (Vec::new(), String::new());
    let mut bytes = response.bytes_stream();
    while !text.contains(seen) {
        zipped.extend_from_slice(&bytes.next().await.unwrap().unwrap());
        text = unzipped(&zipped);
    }
    (zipped, text)
}

/// What can be read of a compressed stream that may go on.
fn unzipped(zipped: &[u8]) -> String {
    let mut read = Vec::new();
    // What is not there yet ends it early.
    let _ = flate2::read::GzDecoder::new(zipped).read_to_end(&mut read);
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn whoever_takes_gzip_is_sent_each_event_at_once_and_pages_at_a_fraction() {
    let world = World::start().await;
    let open = |path: &str| {
        let request = world.http().get(world.url(path));
        request.header("authorization", shown(&world.operator))
    };
    let zip = |path: &str| open(path).header("accept-encoding", "gzip, br");
    for accept in ["text/event-stream", "application/x-ndjson"] {
        let stream = zip("/v1/events?from=now")
            .header("accept", accept)
            .send()
            .await
            .unwrap();
        let first = format!("first for {accept}");
        note(&world, &first);
        // No later write pushes it out.
        let (_, text) = unzip_until(stream, &first).await;
        assert!(text.contains("bookmark"), "{text}");
    }
    for at in 0..300 {
        note(&world, &format!("note {at}"));
    }
    let path = "/v1/events?limit=1000&after=0";
    let plain = open(path).send().await.unwrap();
    assert_eq!(plain.headers()["vary"], "accept-encoding");
    let plain = plain.bytes().await.unwrap();
    let zipped = zip(path).send().await.unwrap().bytes().await.unwrap();
    let page: EventPage = serde_json::from_str(&unzipped(&zipped)).unwrap();
    assert_eq!(serde_json::from_slice::<EventPage>(&plain).unwrap(), page);
    println!("a page of {} bytes as {}", plain.len(), zipped.len());
    assert!(zipped.len() * 5 < plain.len(), "{} of {}", zipped.len(), plain.len());
    let small = zip("/v1/cluster").send().await.unwrap();
    assert!(!small.headers().contains_key("content-encoding"));
}
