//! Ordered channels over the simulated network.
//!
//! Each direction is a pipe: the sending half stamps a frame with its arrival, a pump on the wire hands it over then.
//! The one rule: a pipe delivers a prefix of what was sent, in order, and ends with `None` only after `finish`.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_node::net::{Channel, Class, FrameSink, FrameSource, NetError};
use holdfast_proto::id::NodeId;
use openraft_rt::{AsyncRuntime, Select2, Watch, WatchReceiver, WatchSender};
use tokio::sync::mpsc;

use super::{Network, RETRANSMIT_MS};
use crate::runtime::{self, Host, OrderedWatch, Simulated, watch};

/// Frames under way in one direction before the sender waits: the flow-control window.
const WINDOW_FRAMES: usize = 256;

/// How often a stalled pipe tries again.
const STALL_POLL: Duration = Duration::from_millis(20);

/// True nanoseconds at which a frame arrives, its serial, and the frame; no frame for the end.
type InFlight = (u64, u64, Option<Bytes>);

fn lost(node: Host, why: &str) -> NetError {
    NetError::Lost {
        node: NodeId(node.0),
        why: why.to_owned(),
    }
}

struct Sink {
    network: Network,
    from: Host,
    to: Host,
    pipe: mpsc::Sender<InFlight>,
    last_arrival_ns: u64,
}

impl Sink {
    async fn put(&mut self, frame: Option<Bytes>) -> Result<(), NetError> {
        let bytes = frame.clone().unwrap_or_default();
        let flight = self.network.launch(self.from, self.to, &bytes);
        let (least, most) = RETRANSMIT_MS;
        let delay = flight.delays.first().copied().unwrap_or_else(|| {
            // Lost packets of a channel are sent again; a cut is the pump's business.
            Duration::from_millis(self.network.draw(self.from, self.to, |link| link.between(least, most)))
        });
        let arrival_ns = runtime::true_now_ns() + u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.last_arrival_ns = self.last_arrival_ns.max(arrival_ns);
        let sent = self.pipe.send((self.last_arrival_ns, flight.serial, frame)).await;
        sent.map_err(|_| lost(self.to, "the channel ended"))
    }
}

impl FrameSink for Sink {
    fn send(&mut self, frame: Bytes) -> BoxFuture<'_, Result<(), NetError>> {
        Box::pin(self.put(Some(frame)))
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), NetError>> {
        Box::pin(self.put(None))
    }
}

struct Source {
    from: Host,
    pipe: mpsc::Receiver<Result<Option<Bytes>, NetError>>,
    ended: Option<Result<Option<Bytes>, NetError>>,
}

impl FrameSource for Source {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, NetError>> {
        Box::pin(async move {
            if let Some(ended) = &self.ended {
                return ended.clone();
            }
            let next = self
                .pipe
                .recv()
                .await
                .unwrap_or_else(|| Err(lost(self.from, "the channel ended")));
            if !matches!(next, Ok(Some(_))) {
                self.ended = Some(next.clone());
            }
            next
        })
    }
}

/// Carries the frames of one direction until it ends, breaks, or nobody listens any more.
struct Pump {
    network: Network,
    from: Host,
    to: Host,
    lives: (u64, u64),
    input: mpsc::Receiver<InFlight>,
    output: mpsc::Sender<Result<Option<Bytes>, NetError>>,
    /// Both directions are one connection: when one gives up, so does the other.
    broken: (watch::Sender<bool>, watch::Receiver<bool>),
}

/// What a pump waited for.
enum Next {
    Frame(InFlight),
    Dropped,
    Broken,
}

impl Pump {
    async fn run(mut self) {
        let end = loop {
            let (arrival_ns, serial, frame) = match self.next().await {
                Next::Frame(frame) => frame,
                Next::Dropped => break self.dropped().await,
                Next::Broken => break lost(self.from, "idle timeout"),
            };
            let wait_ns = arrival_ns.saturating_sub(runtime::true_now_ns());
            runtime::sleep(Duration::from_nanos(wait_ns)).await;
            if !self.wait_for_the_link().await {
                // Nobody else may be left to hear it.
                let _ = self.broken.0.send(true);
                break lost(self.from, "idle timeout");
            }
            let bytes = frame.clone().unwrap_or_default();
            if self.reaches_its_process() {
                let landed = self.network.lands(self.from, self.to, serial, &bytes);
                assert!(landed, "the link was mended at this very instant");
            }
            let finished = frame.is_none();
            if self.output.send(Ok(frame)).await.is_err() {
                return self.end_at_dead_receiver().await;
            }
            if finished {
                return;
            }
        };
        drop(self.output.send(Err(end)).await);
    }

    async fn next(&mut self) -> Next {
        let broken = self.broken.1.wait_until(|broken| *broken);
        match Simulated::select2(broken, self.input.recv()).await {
            Select2::First(_) => Next::Broken,
            Select2::Second(Some(frame)) => Next::Frame(frame),
            Select2::Second(None) => Next::Dropped,
        }
    }

    /// Dropped without `finish`: a living process resets the channel, a dead one leaves its peer to time out.
    async fn dropped(&self) -> NetError {
        if self.network.life(self.from) != self.lives.0 {
            runtime::sleep(self.network.give_up_after(self.from, self.to)).await;
        }
        lost(self.from, "reset by the other side")
    }

    fn reaches_its_process(&self) -> bool {
        self.network.life(self.to) == self.lives.1
    }

    /// Waits while the link is cut; false when that outlasts the idle timeout.
    async fn wait_for_the_link(&self) -> bool {
        if !self.network.is_cut(self.from, self.to) {
            return true;
        }
        let give_up = self.network.give_up_after(self.from, self.to);
        let began_ns = runtime::true_now_ns();
        while self.network.is_cut(self.from, self.to) {
            runtime::sleep(STALL_POLL).await;
            if u128::from(runtime::true_now_ns() - began_ns) > give_up.as_nanos() {
                return false;
            }
        }
        true
    }

    /// The receiver is gone. Its sender learns of a reset at once, and of a dead process only in time.
    async fn end_at_dead_receiver(&mut self) {
        if self.reaches_its_process() {
            return;
        }
        let give_up = self.network.give_up_after(self.from, self.to);
        let swallow = async { while self.input.recv().await.is_some() {} };
        // Frames to a dead process vanish until the connection is given up.
        let _ = runtime::timeout(give_up, swallow).await;
    }
}

fn pipe(network: &Network, from: Host, to: Host, broken: watch::Sender<bool>) -> (Sink, Source) {
    let (send, input) = mpsc::channel(WINDOW_FRAMES);
    let (output, receive) = mpsc::channel(WINDOW_FRAMES);
    let lives = (network.life(from), network.life(to));
    let heard = broken.subscribe();
    let pump = Pump {
        network: network.clone(),
        from,
        to,
        lives,
        input,
        output,
        broken: (broken, heard),
    };
    runtime::spawn_on(Host::WORLD, pump.run());
    let sink = Sink {
        network: network.clone(),
        from,
        to,
        pipe: send,
        last_arrival_ns: 0,
    };
    (
        sink,
        Source {
            from,
            pipe: receive,
            ended: None,
        },
    )
}

/// Opens a channel: a round trip, then both ends.
pub(super) async fn open(network: Network, from: Host, to: Host, class: Class) -> Result<Channel, NetError> {
    let node = NodeId(to.0);
    for (sender, receiver) in [(from, to), (to, from)] {
        let flight = network.launch(sender, receiver, class.alpn());
        let delay = flight.delays.first().copied();
        runtime::sleep(delay.unwrap_or_else(|| network.give_up_after(from, to))).await;
        if delay.is_none() || !network.lands(sender, receiver, flight.serial, class.alpn()) {
            return Err(NetError::Unreachable {
                node,
                why: "the handshake timed out".to_owned(),
            });
        }
    }
    let service = network.service(to, class);
    let service = service.ok_or(NetError::Unreachable {
        node,
        why: "nobody listens".to_owned(),
    })?;
    let (broken, _) = OrderedWatch::channel(false);
    let (near_sink, far_source) = pipe(&network, from, to, broken.clone());
    let (far_sink, near_source) = pipe(&network, to, from, broken);
    let far = Channel {
        sink: Box::new(far_sink),
        source: Box::new(far_source),
    };
    runtime::spawn_on(to, service.channel(NodeId(from.0), far));
    Ok(Channel {
        sink: Box::new(near_sink),
        source: Box::new(near_source),
    })
}
