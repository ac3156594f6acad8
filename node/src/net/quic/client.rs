//! A client's socket: connects to any node of a known cluster, without being one.
//!
//! Owns one endpoint and the configuration of the client lane. [`crate::client::lane`] dials with it. The one rule: the server is
//! verified by the cluster's authority, whatever host it was dialled at; the client's token goes to nobody else.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, TokioRuntime};

use super::tune;
use super::wire::{CHANNEL, CLIENT, StreamSink, StreamSource, with_causes};
use crate::net::{Channel, Class};

/// How long a node may take to answer a dial.
const DIAL_WAIT: Duration = Duration::from_secs(3);
/// The name in the handshake; any node of the cluster will do, and the certificate is checked for that.
const ANY_NODE: &str = "node.holdfast";

/// A socket that dials nodes.
pub struct ClientSocket {
    endpoint: Endpoint,
    config: ClientConfig,
}

impl ClientSocket {
    /// Opens a socket; must be called inside a tokio runtime. `tls` is that of [`crate::net::tls::lane_client`].
    ///
    /// # Errors
    /// When no socket can be had, or the TLS configuration lacks what QUIC needs.
    pub fn open(tls: rustls::ClientConfig) -> io::Result<Self> {
        let crypto = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(tune::client()));
        let (endpoint, socket) = tune::client_socket()?;
        let endpoint = Endpoint::new(endpoint, None, socket, Arc::new(TokioRuntime))?;
        Ok(Self { endpoint, config })
    }

    /// Opens a channel to the node at `address` (`host:port`). The error is a text for a person.
    ///
    /// # Errors
    /// When nobody answers there, or it is no node of the cluster.
    pub async fn dial(&self, address: &str) -> Result<Channel, String> {
        let dialled = tokio::time::timeout(DIAL_WAIT, self.connect(address)).await;
        dialled.unwrap_or_else(|_| Err(format!("no answer from {address}; is UDP blocked on the way?")))
    }

    async fn connect(&self, address: &str) -> Result<Channel, String> {
        let found = tokio::net::lookup_host(address).await;
        let mut found = found.map_err(|error| format!("cannot resolve {address}: {error}"))?;
        let at: SocketAddr = found.next().ok_or_else(|| format!("{address} has no address"))?;
        let text = |error: &dyn std::error::Error| format!("at {address}: {}", with_causes(error));
        let connecting = self.endpoint.connect_with(self.config.clone(), at, ANY_NODE);
        let connection = connecting
            .map_err(|error| text(&error))?
            .await
            .map_err(|error| text(&error))?;
        let (mut send, recv) = connection.open_bi().await.map_err(|error| text(&error))?;
        send.write_all(&[CHANNEL]).await.map_err(|error| text(&error))?;
        let class = Class::Control;
        Ok(Channel {
            sink: Box::new(StreamSink {
                send,
                peer: CLIENT,
                class,
                finished: false,
            }),
            source: Box::new(StreamSource {
                recv,
                peer: CLIENT,
                class,
            }),
        })
    }
}
