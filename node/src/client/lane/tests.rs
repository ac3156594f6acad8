//! The lane, both ends of it, over channels in memory and a machine without a log.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use holdfast_proto::frame;
use holdfast_proto::id::NodeId;
use holdfast_proto::tenant::Role;

use super::*;
use crate::api::Limits;
use crate::api::lane::LaneService;
use crate::api::tests::world::World;
use crate::bearer::Bearer;
use crate::env::{OsClock, OsEntropy};
use crate::net::router::Door;
use crate::net::{Channel, FrameSink, FrameSource, NetError};
use crate::wire::lane::{Answered, kind};

/// One direction of a channel in memory.
struct Ends(mpsc::Sender<Bytes>, mpsc::Receiver<Bytes>);

struct Sending(Option<mpsc::Sender<Bytes>>);

impl FrameSink for Sending {
    fn send(&mut self, frame: Bytes) -> BoxFuture<'_, Result<(), NetError>> {
        Box::pin(async move {
            let sent = self.0.as_ref().unwrap().send(frame).await;
            sent.map_err(|_| cut())
        })
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), NetError>> {
        self.0 = None;
        Box::pin(std::future::ready(Ok(())))
    }
}

struct Receiving(mpsc::Receiver<Bytes>);

impl FrameSource for Receiving {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, NetError>> {
        Box::pin(async move { Ok(self.0.recv().await) })
    }
}

fn cut() -> NetError {
    NetError::Lost {
        node: NodeId(0),
        why: "cut".to_owned(),
    }
}

/// Both ends of a channel in memory, which holds 64 frames each way.
pub(crate) fn pair() -> (Channel, Channel) {
    pair_of(64)
}

/// The same, which holds so many frames.
pub(crate) fn pair_of(frames: usize) -> (Channel, Channel) {
    let [Ends(a_in, a_out), Ends(b_in, b_out)] = [(), ()].map(|()| mpsc::channel(frames)).map(|(i, o)| Ends(i, o));
    let channel = |into, from| Channel {
        sink: Box::new(Sending(Some(into))),
        source: Box::new(Receiving(from)),
    };
    (channel(a_in, b_out), channel(b_in, a_out))
}

/// Dials a world at `leader`, and a node that only says where the leader is at `follower`. The first `cuts` channels to the leader take
/// one frame of commands to the world and never bring an outcome back.
struct Wires {
    world: Arc<World>,
    cuts: AtomicUsize,
    dials: Arc<AtomicUsize>,
}

impl Dial for Wires {
    async fn dial(&self, address: &str) -> Result<Channel, String> {
        self.dials.fetch_add(1, Ordering::SeqCst);
        let (ours, theirs) = pair();
        match address {
            "leader" => {
                let cut = self
                    .cuts
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                tokio::spawn(serve(self.world.clone(), theirs, cut.is_ok()));
                Ok(ours)
            }
            "follower" => {
                tokio::spawn(point_to_leader(theirs));
                Ok(ours)
            }
            other => Err(format!("nobody listens at {other}")),
        }
    }
}

async fn serve(world: Arc<World>, theirs: Channel, cut: bool) {
    let service = Arc::new(LaneService::new(&world.api()));
    if !cut {
        return Door::serve(service, theirs).await;
    }
    let Channel { mut sink, mut source } = theirs;
    let (mut near, far) = pair();
    let serving = tokio::spawn(Door::serve(service, far));
    for _ in 0..2 {
        near.sink.send(source.next().await.unwrap().unwrap()).await.unwrap();
        let answer = near.source.next().await.unwrap().unwrap();
        if frame::open(&answer).unwrap().0 == kind::ANSWERED {
            sink.send(answer).await.unwrap();
        }
    }
    serving.abort();
}

async fn point_to_leader(mut theirs: Channel) {
    let _hello = theirs.source.next().await;
    let welcome = Answered::Welcome {
        node: NodeId(9),
        leader: Some("leader".to_owned()),
        nodes: vec!["leader".to_owned(), "follower".to_owned()],
    };
    theirs.sink.send(frame::encode(kind::ANSWERED, &welcome)).await.unwrap();
    // It answers nothing else.
    while let Ok(Some(_)) = theirs.source.next().await {}
}

struct Setup {
    world: Arc<World>,
    dials: Arc<AtomicUsize>,
}

impl Setup {
    async fn new(limits: Limits) -> Self {
        Self {
            world: World::start_with(limits).await,
            dials: Arc::default(),
        }
    }

    fn lane(&self, bearer: &Bearer, addresses: &[&str], cuts: usize, patience: Duration) -> Lane {
        let wires = Wires {
            world: self.world.clone(),
            cuts: AtomicUsize::new(cuts),
            dials: self.dials.clone(),
        };
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        let driver = Driver::new(wires, bearer.reveal(), addresses, Arc::new(OsClock), patience);
        Lane::over(driver, Arc::new(OsClock), Arc::new(OsEntropy))
    }
}

fn note(text: &str) -> Command {
    Command::Annotate {
        subject: "test".parse().unwrap(),
        text: text.to_owned(),
    }
}

#[tokio::test]
async fn commands_in_flight_together_are_each_told_what_became_of_them() {
    let setup = Setup::new(Limits::default()).await;
    let lane = setup.lane(&setup.world.operator, &["leader"], 0, PATIENCE);
    let landed = join_all((0..300).map(|at| {
        let lane = lane.clone();
        async move {
            let asked = lane.draw_request();
            let landed = lane.issue_as(asked, note(&format!("note {at}")), true).await.unwrap();
            assert_eq!(landed.request, asked);
            assert!(format!("{:?}", landed.events).contains(&format!("note {at}\"")));
            landed.index
        }
    }))
    .await;
    assert_eq!(landed.into_iter().collect::<BTreeSet<_>>().len(), 300);
    assert_eq!(setup.dials.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_command_whose_connection_breaks_is_asked_again_and_executed_once() {
    let setup = Setup::new(Limits::default()).await;
    let before = setup.world.api().parts().committed.state().applied.index;
    let lane = setup.lane(&setup.world.operator, &["leader"], 1, PATIENCE);
    let landed = lane.issue(note("once")).await.unwrap();
    assert_eq!(landed.index, before + 1, "the first try took effect");
    assert_eq!(setup.dials.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_outcome_that_a_node_does_not_know_is_asked_for_again() {
    let setup = Setup::new(Limits::default()).await;
    let before = setup.world.api().parts().committed.state().applied.index;
    setup.world.mute.store(true, Ordering::SeqCst);
    let lane = setup.lane(&setup.world.operator, &["leader"], 0, PATIENCE);
    assert_eq!(lane.issue(note("once")).await.unwrap().index, before + 1);
}

#[tokio::test]
async fn a_follower_points_to_the_leader_and_the_lane_moves_there() {
    let setup = Setup::new(Limits::default()).await;
    let lane = setup.lane(&setup.world.operator, &["follower"], 0, PATIENCE);
    lane.issue(note("moved")).await.unwrap();
    assert_eq!(setup.dials.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_a_token_may_not_issue_is_refused_as_over_http() {
    let setup = Setup::new(Limits::default()).await;
    let tenant = setup.world.token(Role::Tenant, Some("default"), None);
    let refused_with = async |bearer: &Bearer| {
        let lane = setup.lane(bearer, &["leader"], 0, PATIENCE);
        match lane.issue(note("x")).await {
            Err(LaneError::Refused { refused }) => (refused.status, refused.code),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused_with(&tenant).await, (403, "not-allowed".to_owned()));
    let stranger = Bearer::draw(&OsEntropy);
    assert_eq!(refused_with(&stranger).await, (401, "token-unknown".to_owned()));
}

#[tokio::test]
async fn a_node_that_is_busy_is_asked_again() {
    let setup = Setup::new(Limits {
        in_flight_max: 2,
        ..Limits::default()
    })
    .await;
    let lane = setup.lane(&setup.world.operator, &["leader"], 0, PATIENCE);
    let landed = join_all((0..9).map(|_| lane.issue(note("x")))).await;
    assert!(landed.iter().all(Result::is_ok), "{landed:?}");
}

#[tokio::test]
async fn what_was_never_sent_is_unreachable_and_what_was_is_unknown() {
    let setup = Setup::new(Limits::default()).await;
    let short = Duration::from_millis(300);
    let nobody = setup.lane(&setup.world.operator, &["nowhere"], 0, short);
    assert!(matches!(
        nobody.issue(note("x")).await,
        Err(LaneError::Unreachable { .. })
    ));
    let lossy = setup.lane(&setup.world.operator, &["leader"], usize::MAX, short);
    assert!(matches!(lossy.issue(note("x")).await, Err(LaneError::Unknown { .. })));
}
