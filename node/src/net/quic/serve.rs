//! The answering side of a socket: accepts connections and hands their streams to services.
//!
//! Owns the accept loop of one lane. Started once per lane. The one rule: the speaker of every stream is the node in the connection's
//! verified certificate; when that node is removed, its connections are closed at once. A client speaks for no node: whatever it sends
//! goes to the door, and nowhere else.

use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::id::NodeId;
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::wire::{CALL, CHANNEL, CLIENT, StreamSink, StreamSource, read_frame, take_end, write_answer};
use crate::identity::certificate::Subject;
use crate::net::book::{AddressBook, Admission};
use crate::net::router::Router;
use crate::net::{Channel, Class, Lane};
use crate::wire::lane;

/// A peer that has opened a stream must have said what it wants by then.
const REQUEST_WAIT: Duration = Duration::from_secs(30);
/// Channels that one client connection may have open.
const CLIENT_CHANNELS_MAX: usize = 16;
/// What may be on its way to a client unacknowledged: what a subscriber that says nothing can cost.
const CLIENT_SEND_BYTES: u64 = 2 * 1_024 * 1_024;
/// Application code with which connections of a node's protocols that show no certificate are closed.
const STRANGER: VarInt = VarInt::from_u32(3);
/// Application code with which a removed node's connections are closed.
const REMOVED: VarInt = VarInt::from_u32(2);

/// What the accept loop of one lane works with.
pub(super) struct Serving {
    pub(super) lane: Lane,
    pub(super) book: Arc<AddressBook>,
    pub(super) admission: Arc<Admission>,
    pub(super) router: Arc<Router>,
    pub(super) runtime: Handle,
}

impl Serving {
    /// Accepts until the endpoint is closed.
    pub(super) async fn run(self: Arc<Self>, endpoint: Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            let serving = self.clone();
            self.runtime.spawn(async move {
                match incoming.await {
                    Ok(connection) => serving.serve(connection).await,
                    // Strangers are expected on an open port; the verifier has logged why a node was refused.
                    Err(error) => tracing::debug!(%error, "a connection was not accepted"),
                }
            });
        }
    }

    async fn serve(self: Arc<Self>, connection: Connection) {
        if protocol(&connection).as_deref() == Some(lane::ALPN) {
            return self.serve_client(connection).await;
        }
        let Some((peer, class)) = identify(&connection) else {
            connection.close(STRANGER, b"only nodes speak this, and they show a certificate");
            return;
        };
        if class.lane() != self.lane || self.admission.is_removed(peer) {
            connection.close(REMOVED, b"");
            return;
        }
        self.book.hear(peer, self.lane, connection.remote_address());
        let accept = async {
            while let Ok((send, recv)) = connection.accept_bi().await {
                self.runtime.spawn(self.clone().serve_stream(peer, class, send, recv));
            }
        };
        tokio::select! {
            () = accept => {}
            () = self.admission.until_removed(peer) => connection.close(REMOVED, b"removed from the cluster"),
        }
    }

    /// A client that opens no channel, or none any more, is let go: it costs memory, and has shown nothing.
    async fn serve_client(self: Arc<Self>, connection: Connection) {
        connection.set_send_window(CLIENT_SEND_BYTES);
        let mut channels = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = tokio::time::timeout(REQUEST_WAIT, connection.accept_bi()),
                    if channels.len() < CLIENT_CHANNELS_MAX => accepted,
                Some(_) = channels.join_next() => continue,
            };
            match accepted {
                Ok(Ok((send, recv))) => {
                    channels.spawn_on(self.clone().serve_client_channel(send, recv), &self.runtime);
                }
                Ok(Err(_)) => break,
                Err(_) if channels.is_empty() => break,
                Err(_) => {}
            }
        }
        connection.close(VarInt::from_u32(0), b"");
        // Each ends by itself once its stream has.
        channels.detach_all();
    }

    async fn serve_client_channel(self: Arc<Self>, send: SendStream, mut recv: RecvStream) {
        let mut kind = [0];
        let begun = tokio::time::timeout(REQUEST_WAIT, recv.read_exact(&mut kind)).await;
        let (Ok(Ok(())), Some(door), CHANNEL) = (begun, self.router.door(), kind[0]) else {
            return;
        };
        let sink = Box::new(StreamSink {
            send,
            peer: CLIENT,
            class: Class::Control,
            finished: false,
        });
        let source = Box::new(StreamSource {
            recv,
            peer: CLIENT,
            class: Class::Control,
        });
        door.serve(Channel { sink, source }).await;
    }

    async fn serve_stream(self: Arc<Self>, peer: NodeId, class: Class, mut send: SendStream, mut recv: RecvStream) {
        let mut kind = [0];
        if !matches!(
            tokio::time::timeout(REQUEST_WAIT, recv.read_exact(&mut kind)).await,
            Ok(Ok(()))
        ) {
            return;
        }
        let service = self.router.service(class);
        match kind[0] {
            CALL => {
                let request = tokio::time::timeout(REQUEST_WAIT, read_frame(&mut recv, peer, class)).await;
                let Ok(Ok(Some(request))) = request else { return };
                take_end(&mut recv);
                let answer = match service {
                    Ok(service) => service.call(peer, request).await,
                    Err(refusal) => Err(refusal),
                };
                if let Err(error) = write_answer(&mut send, peer, class, answer).await {
                    tracing::trace!(%peer, %error, "an answer was not taken");
                }
            }
            CHANNEL => {
                let Ok(service) = service else { return };
                let sink = Box::new(StreamSink {
                    send,
                    peer,
                    class,
                    finished: false,
                });
                let source = Box::new(StreamSource { recv, peer, class });
                service.channel(peer, Channel { sink, source }).await;
            }
            other => tracing::debug!(%peer, kind = other, "a stream of an unknown kind"),
        }
    }
}

/// The node and the class of a connection, from its handshake.
pub(super) fn identify(connection: &Connection) -> Option<(NodeId, Class)> {
    let chain = connection
        .peer_identity()?
        .downcast::<Vec<CertificateDer<'static>>>()
        .ok()?;
    let subject = Subject::read(chain.first()?).ok()?;
    Some((subject.node, Class::from_alpn(&protocol(connection)?)?))
}

/// The protocol name that a handshake agreed on.
fn protocol(connection: &Connection) -> Option<Vec<u8>> {
    connection.handshake_data()?.downcast::<HandshakeData>().ok()?.protocol
}
