//! The lane's one task: connects, sends what waits, and hands outcomes to whoever asked.
//!
//! Owns what is in flight. Run by [`super::Lane`]. The one rule: whatever was sent and not answered is sent again on the next
//! connection, under its own request id, until its patience ends; then it is told as unknown, and as unreachable only when it was
//! never sent at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::frame;
use tokio::sync::{mpsc, oneshot};

use super::{Landed, LaneError, Sent};
use crate::env::Clock;
use crate::identity::secret::Secret;
use crate::net::quic::client::ClientSocket;
use crate::net::{Channel, FrameSink, FrameSource};
use crate::wire::lane::{Answered, Ask, Asked, End, Hello, Outcome, Told, kind};
use crate::wire::problem::code;

/// Commands that go into one frame.
const FRAME_ASKS_MAX: usize = 1_024;
/// A frame larger than this is sent in parts: one command is far smaller.
const FRAME_BYTES: usize = 2 * 1_024 * 1_024;
/// Wait before the nodes are tried again, or a busy one is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// Time for a node to answer the hello.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// How long a leader that could not be reached is left to the others.
const AVOID_MS: u64 = 5_000;
/// Nodes that are remembered.
const NODES_MAX: usize = 16;

/// One command in flight.
struct Waiting {
    ask: Ask,
    give_up_ms: u64,
    /// It is with a node that has not answered.
    sent: bool,
    /// Why an earlier try may have had an effect.
    doubt: Option<String>,
    tell: oneshot::Sender<Result<Landed, LaneError>>,
}

/// What the sender and the receiver of a connection share.
#[derive(Default)]
struct InFlight {
    waiting: BTreeMap<u64, Waiting>,
    /// Asked again after a pause: the node was busy, or did not know.
    again: Vec<u64>,
    /// The leader is elsewhere.
    moved: Option<String>,
}

fn held(in_flight: &Mutex<InFlight>) -> MutexGuard<'_, InFlight> {
    in_flight.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a connection is left.
enum Left {
    /// It broke.
    Lost(String),
    /// Another node leads.
    Moved(String),
    /// Nobody uses the lane any more.
    Done,
}

/// Dials nodes; a test hands over one of its own.
pub(super) trait Dial: Send + Sync + 'static {
    /// Opens a channel to the node at `address`.
    fn dial(&self, address: &str) -> impl Future<Output = Result<Channel, String>> + Send;
}

impl Dial for ClientSocket {
    fn dial(&self, address: &str) -> impl Future<Output = Result<Channel, String>> + Send {
        Self::dial(self, address)
    }
}

/// The lane's task.
pub(super) struct Driver<D> {
    dial: D,
    token: Secret<String>,
    addresses: Vec<String>,
    /// Nodes that could not be reached, and until when they are not tried as the leader.
    avoided: BTreeMap<String, u64>,
    clock: Arc<dyn Clock>,
    patience_ms: u64,
    in_flight: Arc<Mutex<InFlight>>,
    next_number: u64,
}

impl<D: Dial> Driver<D> {
    pub(super) fn new(
        dial: D,
        token: Secret<String>,
        addresses: Vec<String>,
        clock: Arc<dyn Clock>,
        patience: Duration,
    ) -> Self {
        Self {
            dial,
            token,
            addresses,
            avoided: BTreeMap::new(),
            clock,
            patience_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
            in_flight: Arc::default(),
            next_number: 0,
        }
    }

    /// Runs until the queue is closed and everything in it is told.
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Sent>) {
        let mut reason = String::from("it was not tried yet");
        loop {
            for address in self.addresses.clone() {
                match self.connect(&address).await {
                    Ok(channel) => match self.converse(channel, &mut queue).await {
                        Left::Done => return,
                        Left::Lost(why) => {
                            self.doubt(&why);
                            reason = why;
                        }
                        Left::Moved(leader) => {
                            self.doubt("another node leads now");
                            self.prefer(leader);
                            break;
                        }
                    },
                    Err(why) => {
                        let until = self.clock.boot_ms().saturating_add(AVOID_MS);
                        self.avoided.insert(address, until);
                        reason = why;
                    }
                }
                self.expire(&reason);
            }
            // What waits must learn in time that nobody answers.
            while let Ok(sent) = queue.try_recv() {
                self.note(sent);
            }
            self.expire(&reason);
            if queue.is_closed() && queue.is_empty() && held(&self.in_flight).waiting.is_empty() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connect(&mut self, address: &str) -> Result<Channel, String> {
        let mut channel = self.dial.dial(address).await?;
        let hello = Hello {
            token: self.token.expose().clone(),
        };
        let greeting = async {
            let sent = channel.sink.send(frame::encode(kind::HELLO, &hello)).await;
            sent.map_err(|error| error.to_string())?;
            let answer = channel.source.next().await.map_err(|error| error.to_string())?;
            let answer = answer.ok_or("it ended the channel")?;
            frame::decode::<Answered>(kind::ANSWERED, &answer).map_err(|error| error.to_string())
        };
        match tokio::time::timeout(HELLO_WAIT, greeting).await {
            Err(_) => Err(format!("{address} did not answer in time")),
            Ok(Err(why)) => Err(format!("at {address}: {why}")),
            Ok(Ok(Answered::Refused(refused))) if refused.code == code::BUSY => Err(refused.detail),
            Ok(Ok(Answered::Refused(refused))) => {
                // Another node would say the same of this token.
                for (_, waiting) in std::mem::take(&mut held(&self.in_flight).waiting) {
                    let refused = Box::new(refused.clone());
                    let _ = waiting.tell.send(Err(LaneError::Refused { refused }));
                }
                Err(refused.detail)
            }
            Ok(Ok(Answered::Welcome { leader, nodes, .. })) => {
                for node in nodes {
                    if !self.addresses.contains(&node) && self.addresses.len() < NODES_MAX {
                        self.addresses.push(node);
                    }
                }
                let mut in_flight = held(&self.in_flight);
                in_flight.moved = leader;
                in_flight.again = in_flight.waiting.keys().copied().collect();
                drop(in_flight);
                Ok(channel)
            }
        }
    }

    /// Sends what comes and what is left over, until the connection is left.
    async fn converse(&mut self, channel: Channel, queue: &mut mpsc::Receiver<Sent>) -> Left {
        let Channel { mut sink, source } = channel;
        let mut reading = tokio::spawn(read(source, self.in_flight.clone()));
        let mut pause = tokio::time::interval(PAUSE);
        pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut came = Vec::new();
        let left = loop {
            let sent = tokio::select! {
                count = queue.recv_many(&mut came, FRAME_ASKS_MAX), if !queue.is_closed() || !queue.is_empty() => {
                    match count {
                        0 => Ok(()),
                        _ => self.send_new(&mut *sink, &mut came).await,
                    }
                }
                _ = pause.tick() => self.send_again(&mut *sink).await,
                why = &mut reading => {
                    break Left::Lost(why.unwrap_or_else(|_| "its reader has died".to_owned()));
                }
            };
            if let Err(why) = sent {
                break Left::Lost(why);
            }
            let mut in_flight = held(&self.in_flight);
            let moved = in_flight.moved.take();
            if let Some(leader) = moved.filter(|leader| !self.avoids(leader)) {
                break Left::Moved(leader);
            }
            if in_flight.waiting.is_empty() && queue.is_closed() && queue.is_empty() {
                break Left::Done;
            }
        };
        reading.abort();
        left
    }

    fn note(&mut self, sent: Sent) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let waiting = Waiting {
            ask: Ask {
                number,
                request: sent.request,
                events: sent.events,
                command: sent.command,
            },
            give_up_ms: self.clock.boot_ms().saturating_add(self.patience_ms),
            sent: false,
            doubt: None,
            tell: sent.tell,
        };
        held(&self.in_flight).waiting.insert(number, waiting);
        number
    }

    async fn send_new(&mut self, sink: &mut dyn FrameSink, came: &mut Vec<Sent>) -> Result<(), String> {
        let numbers = came.drain(..).map(|sent| self.note(sent)).collect();
        self.send(sink, numbers).await
    }

    async fn send_again(&mut self, sink: &mut dyn FrameSink) -> Result<(), String> {
        self.expire("it was not answered in time");
        let numbers = std::mem::take(&mut held(&self.in_flight).again);
        self.send(sink, numbers).await
    }

    async fn send(&self, sink: &mut dyn FrameSink, numbers: Vec<u64>) -> Result<(), String> {
        for part in numbers.chunks(FRAME_ASKS_MAX) {
            for bytes in self.frames(part) {
                sink.send(bytes).await.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// The commands of these numbers that still wait, as one frame, or as several when one would be too large.
    fn frames(&self, numbers: &[u64]) -> Vec<Bytes> {
        let asks: Vec<Ask> = {
            let mut in_flight = held(&self.in_flight);
            let mut send = |number: &u64| {
                let waiting = in_flight.waiting.get_mut(number)?;
                waiting.sent = true;
                Some(waiting.ask.clone())
            };
            numbers.iter().filter_map(&mut send).collect()
        };
        if asks.is_empty() {
            return Vec::new();
        }
        let one = frame::encode(kind::ASKED, &Asked { asks });
        match numbers.len() {
            2.. if one.len() > FRAME_BYTES => {
                let (left, right) = numbers.split_at(numbers.len() / 2);
                [self.frames(left), self.frames(right)].concat()
            }
            _ => vec![one],
        }
    }

    /// What was in flight on a connection that broke may have had an effect.
    fn doubt(&self, why: &str) {
        for waiting in held(&self.in_flight).waiting.values_mut() {
            if std::mem::take(&mut waiting.sent) {
                waiting.doubt = Some(why.to_owned());
            }
        }
    }

    /// Tells those whose patience has ended.
    fn expire(&self, reason: &str) {
        let now = self.clock.boot_ms();
        let mut in_flight = held(&self.in_flight);
        let late: Vec<u64> = (in_flight.waiting.iter())
            .filter(|(_, waiting)| waiting.give_up_ms <= now)
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            let Some(waiting) = in_flight.waiting.remove(&number) else {
                continue;
            };
            let unanswered = waiting.sent.then(|| "it was not answered in time".to_owned());
            let _ = waiting.tell.send(Err(match waiting.doubt.or(unanswered) {
                Some(reason) => LaneError::Unknown {
                    request: waiting.ask.request,
                    reason,
                },
                None => LaneError::Unreachable {
                    addresses: self.addresses.clone(),
                    reason: reason.to_owned(),
                },
            }));
        }
    }

    /// Whether a node could not be reached a moment ago; the one that names it the leader forwards to it.
    fn avoids(&self, address: &str) -> bool {
        let until = self.avoided.get(address);
        until.is_some_and(|until| *until > self.clock.boot_ms())
    }

    /// Tries `address` first from now on.
    fn prefer(&mut self, address: String) {
        self.addresses.retain(|known| *known != address);
        self.addresses.insert(0, address);
        self.addresses.truncate(NODES_MAX);
    }
}

/// Hands out outcomes until the connection ends; returns why it did.
async fn read(mut source: Box<dyn FrameSource>, in_flight: Arc<Mutex<InFlight>>) -> String {
    loop {
        let bytes = match source.next().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return "the node ended the channel".to_owned(),
            Err(error) => return error.to_string(),
        };
        match frame::decode::<Told>(kind::TOLD, &bytes) {
            Ok(told) => take(told, &in_flight),
            Err(error) => return error.to_string(),
        }
    }
}

fn take(told: Told, in_flight: &Mutex<InFlight>) {
    let mut in_flight = held(in_flight);
    in_flight.moved = told.leader;
    for End { number, outcome } in told.ends {
        let again = match &outcome {
            Outcome::Unknown { reason } => Some(Some(reason.clone())),
            Outcome::Refused(refused) if refused.code == code::BUSY => Some(None),
            _ => None,
        };
        if let Some(doubt) = again {
            if let Some(waiting) = in_flight.waiting.get_mut(&number) {
                waiting.sent = false;
                waiting.doubt = doubt.or(waiting.doubt.take());
                in_flight.again.push(number);
            }
            continue;
        }
        let Some(waiting) = in_flight.waiting.remove(&number) else {
            continue;
        };
        // Whoever asked may have given up.
        let _ = waiting.tell.send(match outcome {
            Outcome::Applied { index, events } => Ok(Landed {
                request: waiting.ask.request,
                index,
                events,
            }),
            Outcome::Refused(refused) => Err(LaneError::Refused {
                refused: Box::new(refused),
            }),
            Outcome::Unknown { .. } => continue,
        });
    }
}
