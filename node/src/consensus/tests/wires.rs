//! Wires between nodes of one process: they keep order, carry every class, and can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::frame;
use holdfast_proto::id::NodeId;
use tokio::sync::mpsc;

use crate::consensus::wire::kind;
use crate::net::router::Router;
use crate::net::{Channel, Class, FrameSink, FrameSource, NetError, Transport};

/// All wires of a cluster.
#[derive(Default)]
pub(super) struct Wires(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    nodes: BTreeMap<NodeId, Arc<Router>>,
    cut: BTreeSet<NodeId>,
    pre_votes: usize,
    opened: BTreeMap<Class, usize>,
    slow: BTreeSet<Class>,
}

impl Wires {
    pub(super) fn plug(&self, node: NodeId, router: Arc<Router>) {
        self.0.lock().unwrap().nodes.insert(node, router);
    }

    pub(super) fn unplug(&self, node: NodeId) {
        self.0.lock().unwrap().nodes.remove(&node);
    }

    pub(super) fn cut(&self, node: NodeId) {
        self.0.lock().unwrap().cut.insert(node);
    }

    pub(super) fn heal(&self, node: NodeId) {
        self.0.lock().unwrap().cut.remove(&node);
    }

    /// Lets nothing of a class's channels through until [`Self::speed_up`]; the peer and its other classes are sound.
    pub(super) fn slow_down(&self, class: Class) {
        self.0.lock().unwrap().slow.insert(class);
    }

    pub(super) fn speed_up(&self, class: Class) {
        self.0.lock().unwrap().slow.remove(&class);
    }

    fn is_slow(&self, class: Class) -> bool {
        self.0.lock().unwrap().slow.contains(&class)
    }

    pub(super) fn pre_votes(&self) -> usize {
        self.0.lock().unwrap().pre_votes
    }

    pub(super) fn opened(&self, class: Class) -> usize {
        self.0.lock().unwrap().opened.get(&class).copied().unwrap_or(0)
    }

    fn is_cut(&self, one: NodeId, other: NodeId) -> bool {
        let inner = self.0.lock().unwrap();
        inner.cut.contains(&one) || inner.cut.contains(&other)
    }

    fn reach(&self, from: NodeId, to: NodeId) -> Result<Arc<Router>, NetError> {
        let missing = NetError::Unreachable {
            node: to,
            why: "cut".into(),
        };
        if self.is_cut(from, to) {
            return Err(missing);
        }
        self.0.lock().unwrap().nodes.get(&to).cloned().ok_or(missing)
    }
}

/// One node's end of the wires.
pub(super) struct Wire {
    wires: Arc<Wires>,
    me: NodeId,
}

impl Wire {
    pub(super) fn new(wires: Arc<Wires>, me: NodeId) -> Self {
        Self { wires, me }
    }
}

impl Transport for Wire {
    fn call(&self, to: NodeId, class: Class, request: Bytes) -> BoxFuture<'static, Result<Bytes, NetError>> {
        let (wires, me) = (self.wires.clone(), self.me);
        Box::pin(async move {
            if frame::open(&request).is_ok_and(|(got, _)| got == kind::PRE_VOTE) {
                wires.0.lock().unwrap().pre_votes += 1;
            }
            let refused = |why: String| NetError::Refused { node: to, why };
            let service = wires
                .reach(me, to)?
                .service(class)
                .map_err(|refusal| refused(refusal.0))?;
            let answer = service.call(me, request).await.map_err(|refusal| refused(refusal.0))?;
            // What was done there may not be heard here.
            if wires.is_cut(me, to) {
                Err(NetError::Lost {
                    node: to,
                    why: "cut".into(),
                })
            } else {
                Ok(answer)
            }
        })
    }

    fn open(&self, to: NodeId, class: Class) -> BoxFuture<'static, Result<Channel, NetError>> {
        let (wires, me) = (self.wires.clone(), self.me);
        Box::pin(async move {
            let refused = |why: String| NetError::Refused { node: to, why };
            let service = wires
                .reach(me, to)?
                .service(class)
                .map_err(|refusal| refused(refusal.0))?;
            *wires.0.lock().unwrap().opened.entry(class).or_default() += 1;
            let (there, here) = (pair(&wires, me, to, class), pair(&wires, to, me, class));
            tokio::spawn(service.channel(
                me,
                Channel {
                    sink: Box::new(here.0),
                    source: Box::new(there.1),
                },
            ));
            Ok(Channel {
                sink: Box::new(there.0),
                source: Box::new(here.1),
            })
        })
    }
}

fn pair(wires: &Arc<Wires>, from: NodeId, to: NodeId, class: Class) -> (End, Source) {
    let (send, receive) = mpsc::channel(64);
    (
        End {
            wires: wires.clone(),
            from,
            to,
            send: Some(send),
        },
        Source {
            wires: wires.clone(),
            from,
            to,
            class,
            receive,
        },
    )
}

struct End {
    wires: Arc<Wires>,
    from: NodeId,
    to: NodeId,
    send: Option<mpsc::Sender<Bytes>>,
}

impl FrameSink for End {
    fn send(&mut self, frame: Bytes) -> BoxFuture<'_, Result<(), NetError>> {
        Box::pin(async move {
            let lost = NetError::Lost {
                node: self.to,
                why: "cut".into(),
            };
            let Some(send) = self.send.as_ref().filter(|_| !self.wires.is_cut(self.from, self.to)) else {
                return Err(lost);
            };
            send.send(frame).await.map_err(|_| lost)
        })
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), NetError>> {
        self.send = None;
        Box::pin(std::future::ready(Ok(())))
    }
}

struct Source {
    wires: Arc<Wires>,
    from: NodeId,
    to: NodeId,
    class: Class,
    receive: mpsc::Receiver<Bytes>,
}

impl FrameSource for Source {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, NetError>> {
        Box::pin(async move {
            let frame = self.receive.recv().await;
            while frame.is_some() && self.wires.is_slow(self.class) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if self.wires.is_cut(self.from, self.to) {
                return Err(NetError::Lost {
                    node: self.from,
                    why: "cut".into(),
                });
            }
            Ok(frame)
        })
    }
}
