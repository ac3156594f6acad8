//! Appends in flight: requests go out as they come, answers come back in order.
//!
//! Owns one session of the append stream to one peer. The one rule: while something is in flight, either an answer comes within the
//! progress time or the session ends with an error; a session never hangs, and never says that it ended well when it did not.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use holdfast_proto::id::NodeId;
use holdfast_storage::types::{LeaderId, Payload, Types};
use openraft::AsyncRuntime;
use openraft::errors::RPCError;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};

use super::super::promise::Promises;
use super::super::wire;
use super::{checked, last_of, late, rpc_error, unreadable};
use crate::net::{Channel, FrameSink, NetError};

/// How long an answer may take while something is in flight. A disk that stalls for seconds is slow, not dead; a dead peer is noticed
/// by the transport long before.
const PROGRESS_WAIT: Duration = Duration::from_secs(10);

/// An append is sent in pieces of about this many bytes, so that no frame comes near the limit of its class.
const PIECE_BYTES: usize = 4 * 1024 * 1024;

/// Sends `input` to `peer` and gives its answers, until both have ended or something fails.
pub(super) fn run<RT, S>(
    peer: NodeId,
    channel: Channel,
    input: S,
    promises: Arc<Promises>,
) -> impl Stream<Item = Result<StreamAppendResult<Types<RT>>, RPCError<Types<RT>>>> + Send
where
    RT: AsyncRuntime,
    S: Stream<Item = AppendEntriesRequest<Types<RT>>> + Send + Unpin + 'static,
{
    let in_flight = Arc::new(InFlight::default());
    let Channel { sink, source } = channel;
    let reader = stream::unfold(Some(source), |source| async {
        let mut source = source?;
        let next = source.next().await.transpose()?;
        let rest = next.is_ok().then_some(source);
        Some((next, rest))
    });
    Session::<RT> {
        peer,
        writer: Some(Box::pin(write::<RT, S>(sink, input, in_flight.clone()))),
        reader: Box::pin(reader),
        in_flight,
        watchdog: None,
        promised: promises.of(peer),
        promises,
        ended: false,
    }
}

/// What was sent and is not yet answered.
#[derive(Default)]
struct InFlight {
    count: AtomicUsize,
    leader: std::sync::Mutex<Option<LeaderId>>,
}

async fn write<RT, S>(mut sink: Box<dyn FrameSink>, mut input: S, in_flight: Arc<InFlight>) -> Result<(), NetError>
where
    RT: AsyncRuntime,
    S: Stream<Item = AppendEntriesRequest<Types<RT>>> + Send + Unpin + 'static,
{
    while let Some(request) = input.next().await {
        *in_flight
            .leader
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(request.vote.leader_id);
        for piece in pieces::<RT>(request) {
            in_flight.count.fetch_add(1, Ordering::SeqCst);
            sink.send(wire::append(&piece)).await?;
        }
    }
    sink.finish().await
}

/// Cuts an append into several that follow each other, none much above the piece size.
fn pieces<RT: AsyncRuntime>(request: AppendEntriesRequest<Types<RT>>) -> Vec<AppendEntriesRequest<Types<RT>>> {
    let AppendEntriesRequest {
        vote,
        prev_log_id,
        leader_commit,
        entries,
    } = request;
    let begin = |prev_log_id| AppendEntriesRequest {
        vote,
        prev_log_id,
        leader_commit,
        entries: Vec::new(),
    };
    let mut pieces = Vec::new();
    let (mut piece, mut bytes) = (begin(prev_log_id), 0);
    for entry in entries {
        if bytes >= PIECE_BYTES {
            let next = begin(last_of::<RT>(&piece));
            pieces.push(std::mem::replace(&mut piece, next));
            bytes = 0;
        }
        if let Payload::Normal(proposal) = &entry.payload {
            bytes += proposal.0.len();
        }
        piece.entries.push(entry);
    }
    pieces.push(piece);
    pieces
}

struct Session<RT: AsyncRuntime> {
    peer: NodeId,
    writer: Option<BoxFuture<'static, Result<(), NetError>>>,
    reader: BoxStream<'static, Result<Bytes, NetError>>,
    in_flight: Arc<InFlight>,
    watchdog: Option<Pin<Box<RT::Sleep>>>,
    promises: Arc<Promises>,
    /// What the peer had promised when the session began: before any of its questions left.
    promised: Option<u64>,
    ended: bool,
}

type Step<RT> = Option<Result<StreamAppendResult<Types<RT>>, RPCError<Types<RT>>>>;

impl<RT: AsyncRuntime> Session<RT> {
    fn step(&mut self, context: &mut Context<'_>) -> Poll<Step<RT>> {
        if let Some(writer) = &mut self.writer {
            match writer.as_mut().poll(context) {
                Poll::Ready(Ok(())) => self.writer = None,
                Poll::Ready(Err(error)) => return self.fail(rpc_error(&error)),
                Poll::Pending => {}
            }
        }
        match self.reader.poll_next_unpin(context) {
            Poll::Ready(Some(Ok(frame))) => return self.answer(&frame),
            Poll::Ready(Some(Err(error))) => return self.fail(rpc_error(&error)),
            Poll::Ready(None) => return self.peer_ended(),
            Poll::Pending => {}
        }
        self.watch(context)
    }

    fn answer(&mut self, frame: &[u8]) -> Poll<Step<RT>> {
        self.watchdog = None;
        let before = self.in_flight.count.load(Ordering::SeqCst);
        let leader = *self
            .in_flight
            .leader
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (Some(leader), true) = (leader, before > 0) else {
            let unasked = NetError::Lost {
                node: self.peer,
                why: "it answered what nobody asked".into(),
            };
            return self.fail(rpc_error(&unasked));
        };
        self.in_flight.count.fetch_sub(1, Ordering::SeqCst);
        match wire::read_appended::<RT>(frame) {
            Err(error) => self.fail(unreadable(&error)),
            Ok(result) => {
                if let Err(error) = checked::<RT>(&self.promises, self.peer, leader, self.promised, &result) {
                    return self.fail(error);
                }
                self.ended = result.is_err();
                Poll::Ready(Some(Ok(result)))
            }
        }
    }

    fn peer_ended(&mut self) -> Poll<Step<RT>> {
        if self.writer.is_none() && self.in_flight.count.load(Ordering::SeqCst) == 0 {
            self.ended = true;
            return Poll::Ready(None);
        }
        let early = NetError::Lost {
            node: self.peer,
            why: "it ended the append stream".into(),
        };
        self.fail(rpc_error(&early))
    }

    fn watch(&mut self, context: &mut Context<'_>) -> Poll<Step<RT>> {
        if self.in_flight.count.load(Ordering::SeqCst) == 0 {
            self.watchdog = None;
            return Poll::Pending;
        }
        let watchdog = self.watchdog.get_or_insert_with(|| Box::pin(RT::sleep(PROGRESS_WAIT)));
        if watchdog.as_mut().poll(context).is_ready() {
            return self.fail(late(self.peer, PROGRESS_WAIT));
        }
        Poll::Pending
    }

    fn fail(&mut self, error: RPCError<Types<RT>>) -> Poll<Step<RT>> {
        self.ended = true;
        Poll::Ready(Some(Err(error)))
    }
}

impl<RT: AsyncRuntime> Stream for Session<RT> {
    type Item = Result<StreamAppendResult<Types<RT>>, RPCError<Types<RT>>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.step(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::VecDeque;

    use holdfast_storage::types::{Entry, LogId, Proposal, Vote};
    use openraft::raft::StreamAppendError;

    use super::*;
    use crate::net::FrameSource;

    type Rt = openraft_rt_tokio::TokioRuntime;

    fn id(index: u64) -> LogId {
        LogId {
            leader_id: LeaderId { term: 1, node_id: 1 },
            index,
        }
    }

    fn request(indexes: std::ops::Range<u64>, bytes: usize) -> AppendEntriesRequest<Types<Rt>> {
        AppendEntriesRequest {
            vote: Vote {
                leader_id: LeaderId { term: 1, node_id: 1 },
                committed: true,
            },
            prev_log_id: indexes.start.checked_sub(1).map(id),
            leader_commit: None,
            entries: indexes
                .map(|index| Entry {
                    log_id: id(index),
                    payload: Payload::Normal(Proposal(vec![0; bytes].into())),
                })
                .collect(),
        }
    }

    /// A peer with prepared answers, which come only after so many requests.
    struct Scripted {
        answers: VecDeque<Option<StreamAppendResult<Types<Rt>>>>,
        sent: Arc<AtomicUsize>,
        answer_after: usize,
    }

    impl FrameSource for Scripted {
        fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, NetError>> {
            Box::pin(async move {
                while self.sent.load(Ordering::SeqCst) < self.answer_after {
                    tokio::task::yield_now().await;
                }
                match self.answers.pop_front() {
                    Some(Some(answer)) => Ok(Some(wire::appended::<Rt>(&answer))),
                    Some(None) => Err(NetError::Lost {
                        node: NodeId(2),
                        why: "cut".into(),
                    }),
                    None => Ok(None),
                }
            })
        }
    }

    struct Counting(Arc<AtomicUsize>);

    impl FrameSink for Counting {
        fn send(&mut self, _: Bytes) -> BoxFuture<'_, Result<(), NetError>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Box::pin(std::future::ready(Ok(())))
        }

        fn finish(&mut self) -> BoxFuture<'_, Result<(), NetError>> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    async fn session(
        requests: Vec<AppendEntriesRequest<Types<Rt>>>,
        answer_after: usize,
        answers: Vec<Option<StreamAppendResult<Types<Rt>>>>,
    ) -> Vec<Result<StreamAppendResult<Types<Rt>>, RPCError<Types<Rt>>>> {
        let sent = Arc::new(AtomicUsize::new(0));
        let source = Scripted {
            answers: answers.into(),
            sent: sent.clone(),
            answer_after,
        };
        let channel = Channel {
            sink: Box::new(Counting(sent)),
            source: Box::new(source),
        };
        run::<Rt, _>(NodeId(2), channel, stream::iter(requests), Arc::default())
            .collect()
            .await
    }

    #[tokio::test]
    async fn requests_are_not_held_back_by_answers() {
        // The peer answers only once all three are sent: one at a time would wait for ever.
        let requests = vec![request(1..3, 1), request(3..5, 1), request(5..6, 1)];
        let answers = [2, 4, 5].map(|index| Some(Ok(Some(id(index))))).to_vec();
        let got = session(requests, 3, answers).await;
        assert_eq!(
            got.into_iter()
                .map(|answer| answer.unwrap().unwrap())
                .collect::<Vec<_>>(),
            [2, 4, 5].map(|index| Some(id(index)))
        );
    }

    #[tokio::test]
    async fn a_conflict_ends_the_session() {
        let conflict = Err(StreamAppendError::Conflict(id(2)));
        let got = session(
            vec![request(3..5, 1), request(5..6, 1)],
            1,
            vec![Some(conflict.clone()), Some(Ok(None))],
        )
        .await;
        assert_eq!(got.len(), 1);
        assert_eq!(got.into_iter().next().unwrap().unwrap(), conflict);
    }

    #[tokio::test]
    async fn a_cut_or_an_early_end_is_an_error_and_never_the_end() {
        let cut = session(vec![request(1..2, 1)], 1, vec![None]).await;
        assert!(matches!(cut[..], [Err(_)]));
        let early = session(vec![request(1..2, 1), request(2..3, 1)], 2, vec![Some(Ok(Some(id(1))))]).await;
        assert!(matches!(early[..], [Ok(_), Err(_)]));
    }

    #[tokio::test]
    async fn answers_to_nothing_are_an_error() {
        let got = session(
            vec![request(1..2, 1)],
            1,
            vec![Some(Ok(Some(id(1)))), Some(Ok(Some(id(2))))],
        )
        .await;
        assert!(matches!(got[..], [Ok(_), Err(_)]));
    }

    #[test]
    fn a_large_append_is_cut_into_pieces_that_follow_each_other() {
        let whole = request(1..101, 256 * 1024);
        let pieces = pieces::<Rt>(whole.clone());
        assert_eq!(pieces.len(), 7);
        let mut prev = whole.prev_log_id;
        for piece in &pieces {
            assert_eq!(piece.prev_log_id, prev);
            prev = last_of::<Rt>(piece);
        }
        let joined: Vec<Entry> = pieces.into_iter().flat_map(|piece| piece.entries).collect();
        assert_eq!(joined, whole.entries);
        // A heartbeat is one piece too.
        assert_eq!(super::pieces::<Rt>(request(1..1, 1)).len(), 1);
    }
}
