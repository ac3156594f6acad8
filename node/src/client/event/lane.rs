//! Asks nodes for events over the client lane.
//!
//! Owns the socket, which is opened with the first subscription, and the opening words of a channel. Used by [`super::EventStream`].
//! The one rule: a node that does not answer soon is passed over, because HTTPS may come through where UDP does not.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_proto::frame;
use holdfast_proto::id::ClusterId;

use super::Frames;
use crate::bearer::Bearer;
use crate::client::credentials::Credentials;
use crate::client::stream::OPEN_TIMEOUT;
use crate::identity::secret::Secret;
use crate::net::Channel;
use crate::net::quic::client::ClientSocket;
use crate::net::tls::{TlsError, lane_client};
use crate::wire::deliver::{Subscribe, kind};
use crate::wire::lane::{Answered, Refused, kind as lane_kind};

/// Time for a node to take a connection: three round trips around the world, and no more than a person waits gladly.
const DIAL_WAIT: Duration = Duration::from_secs(1);

/// Why a node does not serve a subscription.
pub(crate) enum Unserved {
    /// It was not reached, or said nothing that is understood.
    Unreached,
    /// It says why.
    Refused(Refused),
}

/// Opens a channel to the node at an address; `None` when nobody answers there.
type Dial = Box<dyn Fn(String) -> BoxFuture<'static, Option<Channel>> + Send + Sync>;

/// A way to events over the client lane.
pub struct EventLane {
    pub(super) cluster: ClusterId,
    token: Secret<String>,
    dial: Dial,
}

impl EventLane {
    /// The lane of the credentials' cluster, with a token.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new(credentials: &Credentials, bearer: &Bearer) -> Result<Self, TlsError> {
        let tls = lane_client(&credentials.authority, credentials.cluster)?;
        // A command that reads no events opens no socket.
        let socket: Arc<OnceLock<Option<ClientSocket>>> = Arc::default();
        let dial = move |address: String| -> BoxFuture<'static, Option<Channel>> {
            let (socket, tls) = (socket.clone(), tls.clone());
            Box::pin(async move {
                let socket = socket.get_or_init(|| ClientSocket::open(tls).ok()).as_ref()?;
                let dialled = tokio::time::timeout(DIAL_WAIT, socket.dial(&address)).await;
                dialled.ok()?.ok()
            })
        };
        Ok(Self::over(credentials.cluster, bearer, Box::new(dial)))
    }

    pub(super) fn over(cluster: ClusterId, bearer: &Bearer, dial: Dial) -> Self {
        Self {
            cluster,
            token: bearer.reveal(),
            dial,
        }
    }

    /// Subscribes at a node, in the words of `GET /v1/events?…`. Gives the frames, and where the voters are.
    pub(crate) async fn subscribe(&self, address: &str, query: &str) -> Result<(Frames, Vec<String>), Unserved> {
        let mut channel = (self.dial)(address.to_owned()).await.ok_or(Unserved::Unreached)?;
        let ask = Subscribe {
            token: self.token.expose().clone(),
            query: query.to_owned(),
        };
        let asking = async {
            channel.sink.send(frame::encode(kind::SUBSCRIBE, &ask)).await.ok()?;
            let answer = channel.source.next().await.ok()??;
            frame::decode::<Answered>(lane_kind::ANSWERED, &answer).ok()
        };
        match tokio::time::timeout(OPEN_TIMEOUT, asking).await {
            Ok(Some(Answered::Welcome { nodes, .. })) => Ok((Frames::new(address.to_owned(), channel), nodes)),
            Ok(Some(Answered::Refused(refused))) => Err(Unserved::Refused(refused)),
            Ok(None) | Err(_) => Err(Unserved::Unreached),
        }
    }
}
