//! Event streams over the client lane, both ends, over channels in memory and a machine without a log.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::command::Command;
use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::frame;
use holdfast_proto::id::{ClusterId, Cursor};
use holdfast_proto::tenant::Role;
use holdfast_proto::time::Timestamp;

use super::lane::EventLane;
use super::*;
use crate::api::Limits;
use crate::api::lane::LaneService;
use crate::api::tests::world::{World, name};
use crate::bearer::Bearer;
use crate::client::lane::tests::{pair, pair_of};
use crate::net::Channel;
use crate::net::router::Door;
use crate::wire::deliver::{self, Noted, Subscribe, kind};
use crate::wire::lane::{Answered, kind as lane_kind};

fn note(world: &World, text: &str) {
    world.operate(Command::Annotate {
        subject: name("tests"),
        text: text.to_owned(),
    });
}

fn at(index: u64, sub: u32) -> Cursor {
    Cursor { index, sub }
}

fn text(told: &Told) -> String {
    match &told.data {
        Event::Annotated { text, .. } => text.clone(),
        other => other.name().to_owned(),
    }
}

/// Serves the far end of a channel.
type Serve = Box<dyn FnOnce(Channel) -> BoxFuture<'static, ()> + Send>;

/// The node of the world, as it is.
fn honest(world: &Arc<World>) -> Serve {
    let service = Arc::new(LaneService::new(&world.api()));
    Box::new(|theirs| Door::serve(service, theirs))
}

/// The same, which dies after some frames.
fn dying(world: &Arc<World>, frames: usize) -> Serve {
    let serve = honest(world);
    Box::new(move |theirs| {
        Box::pin(async move {
            let (near, far) = pair();
            let serving = tokio::spawn(serve(far));
            let (Channel { mut sink, mut source }, mut from) = (theirs, near.source);
            let mut to = near.sink;
            to.send(source.next().await.unwrap().unwrap()).await.unwrap();
            for _ in 0..frames {
                let Ok(Some(piece)) = from.next().await else { break };
                if sink.send(piece).await.is_err() {
                    break;
                }
            }
            serving.abort();
        })
    })
}

/// A node that says these frames, whatever it is asked.
fn saying(frames: Vec<Bytes>) -> Serve {
    Box::new(move |mut theirs| {
        Box::pin(async move {
            let _ask = theirs.source.next().await;
            let welcome = Answered::Welcome {
                node: holdfast_proto::id::NodeId(9),
                leader: None,
                nodes: Vec::new(),
            };
            theirs
                .sink
                .send(frame::encode(lane_kind::ANSWERED, &welcome))
                .await
                .unwrap();
            for piece in frames {
                theirs.sink.send(piece).await.unwrap();
            }
            theirs.sink.finish().await.unwrap();
        })
    })
}

/// A client of the world whose dials over the lane come to these, one after the other; then to nobody.
fn client(world: &Arc<World>, bearer: &Bearer, dials: Vec<Serve>) -> Client {
    let dials = Mutex::new(VecDeque::from(dials));
    let dial = move |_| -> BoxFuture<'static, Option<Channel>> {
        let serve = dials.lock().unwrap().pop_front();
        Box::pin(async move {
            let serve = serve?;
            let (ours, theirs) = pair();
            tokio::spawn(serve(theirs));
            Some(ours)
        })
    };
    let lane = EventLane::over(ClusterId::default(), bearer, Box::new(dial));
    world.client(Some(bearer)).with_lane(lane)
}

async fn events_until(stream: &mut EventStream<'_>, last: &str) -> Vec<Told> {
    let mut told: Vec<Told> = Vec::new();
    while told.last().is_none_or(|told| text(told) != last) {
        if let Item::Event(event) = stream.next().await.unwrap() {
            told.push(*event);
        }
    }
    told
}

#[tokio::test]
async fn the_lane_tells_what_https_tells_and_each_event_once() {
    let world = World::start().await;
    let over_lane = client(&world, &world.operator, vec![honest(&world)]);
    let over_https = world.client(Some(&world.operator));
    let mut ours = over_lane.events("", Some(Cursor::default()));
    let mut theirs = over_https.events("", Some(Cursor::default()));
    for round in 0..300 {
        note(&world, &format!("round {round}"));
    }
    let mut ours_told = events_until(&mut ours, "round 299").await;
    assert!(ours.on_lane() && !theirs.on_lane());
    let theirs_told = events_until(&mut theirs, "round 299").await;
    assert!(ours_told.windows(2).all(|pair| pair[0].id < pair[1].id));
    // The lane's stream knows the cluster from the credentials, which the test made up.
    let cluster = theirs_told[0].cluster;
    ours_told.iter_mut().for_each(|told| told.cluster = cluster);
    assert_eq!(ours_told, theirs_told);
    assert_eq!(CloudEvent::from(ours_told[0].clone()).cluster(), cluster);
}

#[tokio::test]
async fn a_stream_goes_on_strictly_behind_its_last_event_however_often_nodes_die() {
    let world = World::start().await;
    for round in 0..40 {
        note(&world, &format!("round {round}"));
    }
    let dials = (1..6)
        .map(|frames| dying(&world, frames))
        .chain([honest(&world)])
        .collect();
    let client = client(&world, &world.operator, dials);
    let mut stream = client.events("type=annotated", Some(Cursor::default()));
    let mut told = Vec::new();
    for round in 40..80 {
        note(&world, &format!("round {round}"));
        told.extend(
            events_until(&mut stream, &format!("round {round}"))
                .await
                .iter()
                .map(text),
        );
    }
    let all: Vec<String> = (0..80).map(|round| format!("round {round}")).collect();
    assert_eq!(told, all);
}

#[tokio::test]
async fn where_udp_does_not_come_through_the_stream_goes_over_https() {
    let world = World::start().await;
    note(&world, "one");
    let client = client(&world, &world.operator, vec![dying(&world, 2)]);
    let mut stream = client.events("type=annotated", Some(Cursor::default()));
    note(&world, "two");
    assert_eq!(events_until(&mut stream, "two").await.len(), 2);
    note(&world, "three");
    assert_eq!(events_until(&mut stream, "three").await.len(), 1);
    assert!(!stream.on_lane());
}

fn record(index: u64, note: &str) -> EventRecord {
    EventRecord {
        cursor: at(index, 0),
        at: Timestamp(index),
        request: None,
        event: Event::Annotated {
            subject: name("tests"),
            text: note.to_owned(),
        },
    }
}

fn delivered(records: &[EventRecord]) -> Bytes {
    let mut bytes = deliver::begin(0);
    records
        .iter()
        .for_each(|record| deliver::put(&record.encode(), &mut bytes));
    frame::seal(kind::DELIVERED, bytes)
}

#[tokio::test]
async fn what_a_node_tells_twice_or_out_of_order_is_given_out_once() {
    let world = World::start().await;
    let first = [
        record(1_001, "a"),
        record(1_002, "b"),
        record(1_002, "b"),
        record(1_001, "a"),
    ];
    let back = Noted {
        note: Note::Bookmark,
        next: at(1_000, 0),
    };
    let second = [record(1_001, "a"), record(1_002, "b"), record(1_003, "c")];
    let dials = vec![
        saying(vec![delivered(&first), frame::encode(kind::NOTED, &back)]),
        saying(vec![delivered(&second)]),
    ];
    let client = client(&world, &world.operator, dials);
    let mut stream = client.events("", Some(at(1_000, 0)));
    let told = events_until(&mut stream, "c").await;
    assert_eq!(told.iter().map(text).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(stream.position(), Some(at(1_003, 0)));
}

#[tokio::test]
async fn an_interruption_is_told_with_where_to_go_on_and_rubbish_is_read_elsewhere() {
    let world = World::start().await;
    for at in 0..5 {
        note(&world, &format!("note {at}"));
    }
    let through = world.state_cursor();
    world.compact(through);
    note(&world, "after");
    let garbled = saying(vec![Bytes::from_static(b"rubbish")]);
    let honest = || honest(&world);
    let client = client(&world, &world.operator, vec![garbled, honest(), honest()]);
    let mut stream = client.events("", Some(Cursor::default()));
    let compacted = loop {
        match stream.next().await.unwrap() {
            Item::Compacted(next) => break next,
            Item::Bookmark(_) => {}
            Item::Event(event) => panic!("{event:?}"),
        }
    };
    assert_eq!(compacted, through);
    assert_eq!(events_until(&mut stream, "after").await.len(), 1);
    assert!(stream.on_lane());
}

#[tokio::test]
async fn a_tenant_sees_its_own_and_a_revoked_token_ends_the_stream_at_its_revocation() {
    let world = World::start().await;
    let bearer = world.token(Role::Subscriber, None, None);
    let dials = vec![honest(&world), honest(&world)];
    let all = client(&world, &bearer, dials);
    let tenant = world.token(Role::Subscriber, Some("default"), None);
    let own = client(&world, &tenant, vec![honest(&world), honest(&world)]);
    let mut stream = all.events("type=annotated,token-revoked", Some(Cursor::default()));
    let mut few = own.events("", Some(Cursor::default()));
    few.next().await.unwrap();
    note(&world, "before");
    events_until(&mut stream, "before").await;
    world.operate(Command::RevokeToken { token: bearer.id });
    note(&world, "after");
    let refused = loop {
        match stream.next().await {
            Ok(Item::Event(event)) => panic!("{event:?}"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(refused.problem().unwrap().code, "token-revoked");
    // The tenant is told of no note, and its stream goes on.
    world.operate(Command::RevokeToken { token: tenant.id });
    let refused = loop {
        match few.next().await {
            Ok(Item::Event(event)) => assert!(event.data.topic().name() != "cluster", "{event:?}"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(refused.problem().unwrap().code, "token-revoked");
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused_as_over_https() {
    let world = World::start().await;
    let newest = world.state_cursor();
    let future = format!("after={}", at(newest.index + 100, 0));
    for (query, code, said) in [
        ("topic=weather", "bad-request", "topics are lease, placement"),
        ("type=rain", "bad-request", "there is no event type"),
        ("after=one", "bad-request", ""),
        ("limit=7", "bad-request", "no pages"),
        ("a b", "bad-request", "cannot be read"),
        (future.as_str(), "cursor-from-future", "was not given out yet"),
        (
            "cluster=00000000000000000000000000000000",
            "other-cluster",
            "from=start",
        ),
        ("subscription=absent", "subscription-unknown", "absent"),
        (
            "subscription=absent&topic=lease",
            "bad-request",
            "leave the filters out",
        ),
    ] {
        let client = client(&world, &world.operator, vec![honest(&world)]);
        let refused = client.events(query, None).next().await.unwrap_err();
        let problem = refused.problem().unwrap_or_else(|| panic!("{query}: {refused}"));
        assert!(
            problem.code == code && problem.detail.contains(said),
            "{query}: {problem:?}"
        );
    }
    let stranger = Bearer::draw(&crate::env::OsEntropy);
    let client = client(&world, &stranger, vec![honest(&world)]);
    let refused = client.events("", None).next().await.unwrap_err();
    assert_eq!(refused.problem().unwrap().code, "token-unknown");
}

#[tokio::test]
async fn whoever_never_reads_is_told_where_it_ended_and_costs_a_queue() {
    const NOTES: u32 = 12_000;
    let limits = Limits {
        slow_after: Duration::from_millis(100),
        ..Limits::default()
    };
    let world = World::start_with(limits).await;
    // More than the channel in memory, the queue and the batch on its way hold.
    for at in 0..NOTES {
        note(&world, &format!("note {at}"));
    }
    let (mut ours, theirs) = pair_of(1);
    let serving = tokio::spawn(honest(&world)(theirs));
    let ask = Subscribe {
        token: world.operator.reveal().expose().clone(),
        query: "type=annotated&from=start".to_owned(),
    };
    ours.sink.send(frame::encode(kind::SUBSCRIBE, &ask)).await.unwrap();
    while world.open_streams() == 0 {
        tokio::task::yield_now().await;
    }
    while world.open_streams() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (mut events, mut last, mut said) = (0, Cursor::default(), None);
    while let Some(bytes) = ours.source.next().await.unwrap() {
        match frame::open(&bytes).unwrap() {
            (kind::DELIVERED, payload) => {
                let mut rest = bytes.slice_ref(payload);
                while let Some(record) = deliver::take(&mut rest).unwrap() {
                    assert!(record.cursor > last);
                    (events, last) = (events + 1, record.cursor);
                }
            }
            (kind::NOTED, payload) => said = Some(frame::decode_payload::<Noted>(payload).unwrap()),
            (other, _) => assert_eq!(other, lane_kind::ANSWERED),
        }
    }
    serving.await.unwrap();
    let next = last;
    assert_eq!(
        said,
        Some(Noted {
            note: Note::TooSlow,
            next
        })
    );
    assert!(events > 0 && events < NOTES, "{events}");
}
