//! One socket: its connections to other nodes, dialled when needed and kept.
//!
//! Owns the endpoint of a lane and at most one live connection per node and class. Called by [`super::Quic`] for each call. The one
//! rule: a dial belongs to the lane and not to its first caller, so a caller that gives up after 100 ms does not keep a slow handshake
//! from ever finishing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::id::{ClusterId, NodeId};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, VarInt};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::serve::identify;
use super::wire::{CALL, lost, read_answer, with_causes, write_frame};
use crate::identity::certificate::cluster_name;
use crate::net::book::{AddressBook, Admission, Place};
use crate::net::tls::dialled_name;
use crate::net::{Class, NetError};

/// How long one place may take to answer a dial. In one metro a handshake takes milliseconds; the rest is for busy machines.
const DIAL_WAIT: Duration = Duration::from_secs(2);

type Dialled = Option<Result<Connection, NetError>>;

/// Where the one connection to a node and class stands.
enum Slot {
    Idle,
    Dialling(watch::Receiver<Dialled>),
    Ready(Connection),
}

/// One socket and its outgoing connections.
pub(super) struct Dialler {
    pub(super) lane: crate::net::Lane,
    pub(super) endpoint: Endpoint,
    pub(super) clients: BTreeMap<Class, ClientConfig>,
    pub(super) cluster: ClusterId,
    pub(super) book: Arc<AddressBook>,
    pub(super) admission: Arc<Admission>,
    pub(super) runtime: Handle,
    pub(super) slots: Slots,
}

/// The slots of a lane.
#[derive(Default)]
pub(super) struct Slots(Mutex<BTreeMap<(NodeId, Class), Slot>>);

impl Slots {
    fn set(&self, to: NodeId, class: Class, slot: Slot) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((to, class), slot);
    }
}

impl Dialler {
    /// Makes one call. A connection that turns out dead before anything was said is dialled again, once.
    pub(super) async fn call(self: Arc<Self>, to: NodeId, class: Class, request: Bytes) -> Result<Bytes, NetError> {
        let (mut send, mut recv) = self.open(to, class, CALL).await?;
        write_frame(&mut send, to, class, request).await?;
        send.finish().map_err(|error| lost(to, &error))?;
        read_answer(&mut recv, to, class).await
    }

    /// Opens a stream of one kind.
    pub(super) async fn open(
        self: &Arc<Self>,
        to: NodeId,
        class: Class,
        kind: u8,
    ) -> Result<(SendStream, RecvStream), NetError> {
        let first = self.connection(to, class).await?;
        match begin(&first, to, kind).await {
            Ok(streams) => Ok(streams),
            Err(_) => {
                first.close(VarInt::from_u32(0), b"");
                begin(&self.connection(to, class).await?, to, kind).await
            }
        }
    }

    /// The live connection to a node, if there is one.
    pub(super) fn live(&self, to: NodeId, class: Class) -> Option<Connection> {
        match self
            .slots
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(to, class))
        {
            Some(Slot::Ready(connection)) if connection.close_reason().is_none() => Some(connection.clone()),
            _ => None,
        }
    }

    async fn connection(self: &Arc<Self>, to: NodeId, class: Class) -> Result<Connection, NetError> {
        let mut dialled = match self.take_turn(to, class)? {
            Slot::Ready(connection) => return Ok(connection),
            Slot::Dialling(dialled) => dialled,
            Slot::Idle => return Err(ended(to)),
        };
        let result = match dialled.wait_for(Option::is_some).await {
            Ok(result) => result.clone(),
            Err(_) => None,
        };
        result.unwrap_or_else(|| Err(ended(to)))
    }

    /// Gives the live connection, or the dial under way, or begins a dial.
    fn take_turn(self: &Arc<Self>, to: NodeId, class: Class) -> Result<Slot, NetError> {
        if self.admission.is_removed(to) {
            return Err(NetError::Removed { node: to });
        }
        let mut slots = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.entry((to, class)).or_insert(Slot::Idle);
        match slot {
            Slot::Ready(connection) if connection.close_reason().is_none() => {
                return Ok(Slot::Ready(connection.clone()));
            }
            Slot::Dialling(dialled) => return Ok(Slot::Dialling(dialled.clone())),
            Slot::Ready(_) | Slot::Idle => {}
        }
        let (done, dialled) = watch::channel(None);
        *slot = Slot::Dialling(dialled.clone());
        drop(slots);
        let lane = self.clone();
        self.runtime.spawn(async move {
            let result = lane.dial(to, class).await;
            lane.slots.set(
                to,
                class,
                match &result {
                    Ok(connection) => Slot::Ready(connection.clone()),
                    Err(_) => Slot::Idle,
                },
            );
            done.send_replace(Some(result));
        });
        Ok(Slot::Dialling(dialled))
    }

    async fn dial(&self, to: NodeId, class: Class) -> Result<Connection, NetError> {
        let Some(place) = self.book.places(to, self.lane).into_iter().next() else {
            return Err(NetError::NoAddress { node: to });
        };
        let attempt = async {
            let at = resolve(&place).await?;
            self.connect(at, class, &dialled_name(to, self.cluster)).await
        };
        let result = match tokio::time::timeout(DIAL_WAIT, attempt).await {
            Ok(result) => result,
            Err(_) => Err("no answer; is UDP blocked on the way?".to_owned()),
        };
        result.map_err(|why| {
            self.book.failed(to, self.lane);
            NetError::Unreachable {
                node: to,
                why: format!("{why} (at {place:?})"),
            }
        })
    }

    async fn connect(&self, at: SocketAddr, class: Class, name: &str) -> Result<Connection, String> {
        let config = self.clients.get(&class).ok_or("not a class of this socket")?.clone();
        let connecting = self
            .endpoint
            .connect_with(config, at, name)
            .map_err(|error| error.to_string())?;
        connecting.await.map_err(|error| error.to_string())
    }

    /// Finds out which node of the cluster answers at a place, and remembers it.
    pub(super) async fn meet(&self, place: &Place, class: Class) -> Result<NodeId, String> {
        let attempt = async {
            let at = resolve(place).await?;
            let connection = self.connect(at, class, &cluster_name(self.cluster)).await?;
            let (node, _) = identify(&connection).ok_or("it names no node")?;
            connection.close(VarInt::from_u32(0), b"");
            self.book.hear(node, self.lane, at);
            Ok(node)
        };
        tokio::time::timeout(DIAL_WAIT, attempt)
            .await
            .unwrap_or_else(|_| Err("no answer; is UDP blocked on the way?".into()))
    }
}

async fn begin(connection: &Connection, peer: NodeId, kind: u8) -> Result<(SendStream, RecvStream), NetError> {
    let unreachable = |error: &dyn std::error::Error| NetError::Unreachable {
        node: peer,
        why: with_causes(error),
    };
    let (mut send, recv) = connection.open_bi().await.map_err(|error| unreachable(&error))?;
    send.write_all(&[kind]).await.map_err(|error| unreachable(&error))?;
    Ok((send, recv))
}

async fn resolve(place: &Place) -> Result<SocketAddr, String> {
    match place {
        Place::Heard(at) => Ok(*at),
        Place::Named(host, port) => {
            let found = tokio::net::lookup_host((host.as_str(), *port)).await;
            let mut found = found.map_err(|error| format!("cannot resolve {host}: {error}"))?;
            found.next().ok_or_else(|| format!("{host} has no address"))
        }
    }
}

fn ended(node: NodeId) -> NetError {
    NetError::Unreachable {
        node,
        why: "the network of this node is shutting down".into(),
    }
}
