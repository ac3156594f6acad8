//! The client lane: the same commands as over HTTP, as rkyv frames over QUIC, many in flight on one channel.
//!
//! Owns the answering side of [`crate::wire::lane`]; the transport hands it the channels that clients open. Who asks is judged by
//! [`super::auth`], what they may by [`super::command`], how much at once by the limits of [`Api`]: nothing is decided here that is not
//! decided for HTTP too. The one rule: an outcome is told for every command that was read, and the token is judged again for every frame,
//! so that a revoked one ends with the next.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use holdfast_proto::frame;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Api;
use super::auth::{Caller, identify};
use super::command::{Done, issue_many};
use super::edge::{busy, voters};
use super::event;
use super::problem::Failure;
use crate::bearer::Bearer;
use crate::net::router::Door;
use crate::net::{Channel, FrameSink, FrameSource};
use crate::wire::deliver::{self, Subscribe};
use crate::wire::lane::{Answered, Ask, Asked, End, Hello, Outcome, Refused, Told, kind};
use crate::wire::problem::code;

/// A client that has opened a channel must have said who it is by then.
const HELLO_WAIT: Duration = Duration::from_secs(10);
/// Frames of one channel whose commands are in flight; the next one waits, unread.
const GROUPS_MAX: usize = 256;
/// The name under which answers are counted.
const PATH: &str = "client-lane";

/// Serves the channels of clients.
#[derive(Clone)]
pub struct LaneService {
    api: Api,
    runtime: Handle,
}

impl LaneService {
    /// Serves `api` on the lane, on the runtime of the caller: requests are kept off the thread of consensus.
    pub fn new(api: &Api) -> Self {
        Self {
            api: api.clone(),
            runtime: Handle::current(),
        }
    }

    async fn serve(self, mut channel: Channel) {
        let greeting = match tokio::time::timeout(HELLO_WAIT, greeted(&mut *channel.source)).await {
            Ok(Some(Ok(greeting))) => greeting,
            Ok(Some(Err(failure))) => return turn_away(&mut channel, &failure).await,
            Ok(None) | Err(_) => return,
        };
        // Who has shown no valid token takes no place from those who have.
        let caller = match identify(&self.api, &greeting.bearer).await {
            Err(failure) => return turn_away(&mut channel, &failure).await,
            Ok(caller) => caller,
        };
        match greeting.events {
            Some(query) => self.subscribe(caller, &query, channel).await,
            None => {
                let Ok(_place) = self.api.streams.clone().try_acquire_owned() else {
                    return turn_away(&mut channel, &busy()).await;
                };
                if channel.sink.send(self.welcome()).await.is_ok() {
                    self.converse(greeting.bearer, channel).await;
                }
            }
        }
    }

    async fn subscribe(self, caller: Caller, query: &str, mut channel: Channel) {
        match event::channel::open(&self.api, caller, query).await {
            Err(failure) => turn_away(&mut channel, &failure).await,
            Ok(pieces) => {
                if channel.sink.send(self.welcome()).await.is_ok() {
                    event::channel::carry(channel, pieces).await;
                }
            }
        }
    }

    fn welcome(&self) -> bytes::Bytes {
        let parts = self.api.parts();
        let welcome = Answered::Welcome {
            node: parts.node,
            leader: self.leader_elsewhere(),
            nodes: voters(&parts.committed.state()).collect(),
        };
        frame::encode(kind::ANSWERED, &welcome)
    }

    /// Where the leader is reached, when that is another node.
    fn leader_elsewhere(&self) -> Option<String> {
        let parts = self.api.parts();
        let leader = parts
            .standing
            .leadership()
            .leader
            .filter(|leader| *leader != parts.node)?;
        let state = parts.committed.state();
        state.nodes.get(&leader).map(|node| node.spec.address.to_string())
    }

    /// Reads commands and tells outcomes until either side ends.
    async fn converse(self, bearer: Bearer, channel: Channel) {
        let Channel { sink, source } = channel;
        let (tell, told) = mpsc::channel(GROUPS_MAX);
        let reading = self.read(&bearer, source, tell);
        tokio::pin!(reading);
        let writing = self.write(sink, told);
        tokio::pin!(writing);
        tokio::select! {
            // What is in flight is still told.
            () = &mut reading => writing.await,
            // Nobody listens any more; what was proposed goes on.
            () = &mut writing => {}
        }
    }

    async fn read(&self, bearer: &Bearer, mut source: Box<dyn FrameSource>, tell: mpsc::Sender<Vec<End>>) {
        let places = Arc::new(Semaphore::new(GROUPS_MAX));
        while let Ok(place) = places.clone().acquire_owned().await {
            let Ok(Some(bytes)) = source.next().await else { return };
            let asked: Asked = match frame::decode(kind::ASKED, &bytes) {
                Ok(asked) => asked,
                Err(error) => {
                    tracing::debug!(%error, "a client sent what is no frame of the lane");
                    return;
                }
            };
            let caller = identify(&self.api, bearer).await;
            let answered = self.clone().answer(caller, asked.asks, bytes.len());
            let tell = tell.clone();
            tokio::spawn(async move {
                // The writer is gone when the client is.
                let _ = tell.send(answered.await).await;
                drop(place);
            });
        }
    }

    fn answer(
        self,
        caller: Result<Caller, Failure>,
        asks: Vec<Ask>,
        bytes: usize,
    ) -> impl Future<Output = Vec<End>> + Send {
        let permit = self.permit(asks.len());
        async move {
            let (numbers, mut orders): (Vec<_>, Vec<_>) = asks
                .into_iter()
                .map(|ask| ((ask.number, ask.events), (ask.request, ask.command)))
                .unzip();
            orders.truncate(permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
            let mut ends = match caller {
                Ok(caller) => issue_many(&self.api, &caller, orders, bytes).await,
                Err(failure) => vec![Err(failure); numbers.len()],
            };
            ends.resize_with(numbers.len(), || Err(busy()));
            self.count(&ends);
            let told = numbers.into_iter().zip(ends);
            told.map(|((number, events), end)| End {
                number,
                outcome: outcome(end, events),
            })
            .collect()
        }
    }

    /// Room for as many commands as may be served now, at most `wanted`; the rest is told that the node is busy.
    fn permit(&self, wanted: usize) -> Option<OwnedSemaphorePermit> {
        let in_flight = &self.api.in_flight;
        let free = u32::try_from(in_flight.available_permits().min(wanted)).unwrap_or(u32::MAX);
        in_flight.clone().try_acquire_many_owned(free).ok()
    }

    fn count(&self, ends: &[Result<Done, Failure>]) {
        let applied = ends.iter().filter(|end| end.is_ok()).count();
        self.api
            .requests
            .add(&Method::POST, PATH, StatusCode::OK, applied as u64);
        for failure in ends.iter().filter_map(|end| end.as_ref().err()) {
            let status = StatusCode::from_u16(failure.problem().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            self.api.requests.add(&Method::POST, PATH, status, 1);
        }
    }

    /// Whatever is ready goes into one frame.
    async fn write(&self, mut sink: Box<dyn FrameSink>, mut told: mpsc::Receiver<Vec<End>>) {
        while let Some(mut ends) = told.recv().await {
            while let Ok(more) = told.try_recv() {
                ends.extend(more);
            }
            let told = Told {
                leader: self.leader_elsewhere(),
                ends,
            };
            if sink.send(frame::encode(kind::TOLD, &told)).await.is_err() {
                return;
            }
        }
        // The client may be gone already.
        let _ = sink.finish().await;
    }
}

impl Door for LaneService {
    fn serve(self: Arc<Self>, channel: Channel) -> BoxFuture<'static, ()> {
        let serving = self.runtime.spawn(Self::serve((*self).clone(), channel));
        // It has ended, or the runtime has: either way the channel is gone.
        Box::pin(serving.map(drop))
    }
}

/// What a channel begins with.
struct Greeting {
    bearer: Bearer,
    /// The channel is a subscription to these events.
    events: Option<String>,
}

/// Who a client says it is, and what it wants; `None` when it says nothing that can be answered.
async fn greeted(source: &mut dyn FrameSource) -> Option<Result<Greeting, Failure>> {
    let bytes = source.next().await.ok()??;
    let (token, events) = match frame::open(&bytes).ok()? {
        (deliver::kind::SUBSCRIBE, payload) => {
            let Subscribe { token, query } = frame::decode_payload(payload).ok()?;
            (token, Some(query))
        }
        _ => (frame::decode::<Hello>(kind::HELLO, &bytes).ok()?.token, None),
    };
    let malformed = |error: crate::bearer::BearerError| {
        Failure::new(StatusCode::UNAUTHORIZED, code::TOKEN_MALFORMED, error.to_string())
    };
    let greeting = |bearer| Greeting { bearer, events };
    Some(token.parse().map(greeting).map_err(malformed))
}

async fn turn_away(channel: &mut Channel, failure: &Failure) {
    let refused = Answered::Refused(Refused::from(failure.problem()));
    // Whether it is read is the client's concern.
    if channel.sink.send(frame::encode(kind::ANSWERED, &refused)).await.is_ok() {
        let _ = channel.sink.finish().await;
    }
}

fn outcome(end: Result<Done, Failure>, events: bool) -> Outcome {
    match end {
        Ok(done) => Outcome::Applied {
            index: done.index,
            events: if events { done.events } else { Vec::new() },
        },
        Err(failure) if failure.problem().code == code::OUTCOME_UNKNOWN => Outcome::Unknown {
            reason: failure.problem().detail.clone(),
        },
        Err(failure) => Outcome::Refused(failure.problem().into()),
    }
}
