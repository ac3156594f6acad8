//! The real transport: QUIC with mutual TLS, on three sockets; the main one also takes clients, who show a token instead.
//!
//! Owns the endpoints. `boot.rs` binds it once; everybody else sees [`Transport`]. The one rule: Raft, renewals and bulk never share a
//! socket, and classes never share a connection, so nothing small waits behind anything big.

pub mod client;
mod lane;
mod runtime;
mod serve;
mod tune;
mod wire;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::id::NodeId;
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint, ServerConfig, VarInt};
use tokio::runtime::Handle;

use self::lane::{Dialler, Slots};
use self::serve::Serving;
use self::wire::{CHANNEL, StreamSink, StreamSource};
use super::book::{AddressBook, Admission, Place};
use super::router::Router;
use super::tls::{TlsError, peer_client, peer_server};
use super::{Channel, Class, Lane, NetError, Transport};
use crate::identity::Identity;

/// Why the sockets could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The port is taken, or the address is not this machine's.
    #[error("cannot listen on UDP {at} for {lane:?} traffic: choose another port, or stop what uses it")]
    Listen {
        /// The address.
        at: SocketAddr,
        /// What the socket is for.
        lane: Lane,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The TLS stack lacks what QUIC needs.
    #[error("cannot set up QUIC")]
    Quic(#[from] NoInitialCipherSuite),
}

/// Where to listen. Port 0 takes a free one.
#[derive(Debug, Clone, Copy)]
pub struct Listen {
    /// The address, perhaps unspecified.
    pub ip: IpAddr,
    /// Port of Raft, control, snapshots and events.
    pub main_port: u16,
    /// Port of renewals.
    pub lease_port: u16,
    /// Port of bulk.
    pub bulk_port: u16,
}

/// What the transport is made of.
pub struct QuicSetup<'a> {
    /// Who this node is.
    pub identity: &'a Identity,
    /// Where to listen.
    pub listen: Listen,
    /// Where the others are.
    pub book: Arc<AddressBook>,
    /// Who was removed.
    pub admission: Arc<Admission>,
    /// Who answers.
    pub router: Arc<Router>,
    /// Where tasks run.
    pub runtime: Handle,
    /// Where tasks of the lease lane run: a thread of its own, so that a busy node still renews.
    pub lease_runtime: Handle,
    /// Where the tasks of bulk transfers run: their encryption must not keep heartbeats waiting.
    pub bulk_runtime: Handle,
}

/// The real transport.
pub struct Quic {
    main: Arc<Dialler>,
    lease: Arc<Dialler>,
    bulk: Arc<Dialler>,
}

impl Quic {
    /// Opens the sockets and begins to answer.
    pub fn bind(setup: &QuicSetup<'_>) -> Result<Self, BindError> {
        Ok(Self {
            main: bind_lane(setup, Lane::Main, setup.listen.main_port, &setup.runtime)?,
            lease: bind_lane(setup, Lane::Lease, setup.listen.lease_port, &setup.lease_runtime)?,
            bulk: bind_lane(setup, Lane::Bulk, setup.listen.bulk_port, &setup.bulk_runtime)?,
        })
    }

    /// The port that a lane really listens on.
    pub fn port(&self, lane: Lane) -> io::Result<u16> {
        Ok(self.lane(lane).endpoint.local_addr()?.port())
    }

    /// Finds out which node of the cluster answers at a main address, and remembers it. For nodes that all came back elsewhere.
    pub async fn meet(&self, host: &str, port: u16) -> Result<NodeId, String> {
        self.main
            .meet(&Place::Named(host.to_owned(), port), Class::Control)
            .await
    }

    /// The smoothed round-trip time of the live connection to a node: bulk backs off when that of Raft grows.
    pub fn round_trip(&self, to: NodeId, class: Class) -> Option<Duration> {
        Some(self.lane(class.lane()).live(to, class)?.rtt())
    }

    /// Closes every connection and socket, and waits until the peers know.
    pub async fn close(&self) {
        for lane in [&self.main, &self.lease, &self.bulk] {
            lane.endpoint.close(VarInt::from_u32(0), b"shutting down");
        }
        for lane in [&self.main, &self.lease, &self.bulk] {
            // A peer that is gone does not say goodbye.
            let _ = tokio::time::timeout(Duration::from_secs(1), lane.endpoint.wait_idle()).await;
        }
    }

    fn lane(&self, lane: Lane) -> &Arc<Dialler> {
        match lane {
            Lane::Main => &self.main,
            Lane::Lease => &self.lease,
            Lane::Bulk => &self.bulk,
        }
    }
}

impl Transport for Quic {
    fn call(&self, to: NodeId, class: Class, request: Bytes) -> BoxFuture<'static, Result<Bytes, NetError>> {
        Box::pin(self.lane(class.lane()).clone().call(to, class, request))
    }

    fn open(&self, to: NodeId, class: Class) -> BoxFuture<'static, Result<Channel, NetError>> {
        let lane = self.lane(class.lane()).clone();
        Box::pin(async move {
            let (send, recv) = lane.open(to, class, CHANNEL).await?;
            Ok(Channel {
                sink: Box::new(StreamSink {
                    send,
                    peer: to,
                    class,
                    finished: false,
                }),
                source: Box::new(StreamSource { recv, peer: to, class }),
            })
        })
    }
}

fn bind_lane(setup: &QuicSetup<'_>, lane: Lane, port: u16, runtime: &Handle) -> Result<Arc<Dialler>, BindError> {
    let at = SocketAddr::new(setup.listen.ip, port);
    let listen = |source| BindError::Listen { at, lane, source };
    let classes: Vec<Class> = Class::ALL.into_iter().filter(|class| class.lane() == lane).collect();

    let tls = peer_server(setup.identity, setup.admission.clone(), &classes, lane == Lane::Main)?;
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    server.transport_config(Arc::new(tune::accepting(lane)));
    let mut clients = std::collections::BTreeMap::new();
    for class in classes {
        let tls = peer_client(setup.identity, setup.admission.clone(), class)?;
        let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        client.transport_config(Arc::new(tune::dialling(class)));
        clients.insert(class, client);
    }

    let socket = tune::bind(at, lane).map_err(listen)?;
    let config = tune::endpoint_config(setup.identity, lane);
    let on = runtime::OnRuntime {
        handle: runtime.clone(),
        packet_bytes_max: usize::try_from(config.get_max_udp_payload_size()).unwrap_or(usize::MAX),
    };
    let endpoint = Endpoint::new(config, Some(server), socket, Arc::new(on)).map_err(listen)?;
    let serving = Serving {
        lane,
        book: setup.book.clone(),
        admission: setup.admission.clone(),
        router: setup.router.clone(),
        runtime: runtime.clone(),
    };
    runtime.spawn(Arc::new(serving).run(endpoint.clone()));
    Ok(Arc::new(Dialler {
        lane,
        endpoint,
        clients,
        cluster: setup.identity.cluster,
        book: setup.book.clone(),
        admission: setup.admission.clone(),
        runtime: runtime.clone(),
        slots: Slots::default(),
    }))
}
