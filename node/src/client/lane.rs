//! Issues commands over the client lane: rkyv over QUIC, many in flight on one connection, for programs that write a lot.
//!
//! Owns one connection, to the leader where it can be reached, and what waits for an outcome on it. Used by `holdfast bench log` and by
//! programs; people's commands go over HTTPS. The one rule is that of [`super::Client`]: a command is sent again only with the id that
//! it was first sent with, and ends as applied, refused or unknown; nothing else is told to the caller.

mod session;

#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::command::Command;
use holdfast_proto::event::Event;
use holdfast_proto::id::RequestId;
use tokio::sync::{mpsc, oneshot};

use self::session::{Dial, Driver};
use super::credentials::Credentials;
use crate::env::{Clock, Entropy};
use crate::net::quic::client::ClientSocket;
use crate::net::tls::{TlsError, lane_client};
use crate::wire::lane::Refused;

/// Commands that wait to be sent; then callers wait.
const QUEUE: usize = 8_192;
/// Time over all tries of one command: longer than an election, shorter than a person's patience.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landed {
    /// The request's id.
    pub request: RequestId,
    /// Log index of its entry; for a repeated request, of the first one.
    pub index: u64,
    /// What it was decided into, when that was asked for.
    pub events: Vec<Event>,
}

/// Why a command is not known to have taken effect.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// It was refused, and has no effect.
    #[error("{}", refused.detail)]
    Refused {
        /// How.
        refused: Box<Refused>,
    },
    /// It may or may not have taken effect.
    #[error("it is not known whether request {request} took effect ({reason}); check before you try again")]
    Unknown {
        /// The request.
        request: RequestId,
        /// What the last try came to.
        reason: String,
    },
    /// It was never sent: no node answers.
    #[error("no node answers at {}: {reason}", addresses.join(", "))]
    Unreachable {
        /// The nodes that were tried.
        addresses: Vec<String>,
        /// What the last one said.
        reason: String,
    },
}

/// Why a lane could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no token to show.
    #[error("the client lane needs an access token: set HOLDFAST_TOKEN, or run `holdfast init`")]
    NoToken,
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No socket can be had.
    #[error("cannot open a UDP socket")]
    Socket(#[source] io::Error),
}

/// A command on its way, and who waits for it.
struct Sent {
    request: RequestId,
    events: bool,
    command: Command,
    tell: oneshot::Sender<Result<Landed, LaneError>>,
}

/// A lane to a cluster. Any number of callers share it; it closes when the last one has dropped it.
#[derive(Clone)]
pub struct Lane {
    queue: mpsc::Sender<Sent>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl Lane {
    /// Opens a lane; must be called inside a tokio runtime. Connecting goes on in the background, and again whenever it breaks.
    ///
    /// # Errors
    /// [`OpenError`] when this machine cannot speak to anybody in this way; whether a node answers is seen later.
    pub fn open(
        credentials: &Credentials,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, OpenError> {
        let bearer = credentials.bearer.as_ref().ok_or(OpenError::NoToken)?;
        let tls = lane_client(&credentials.authority, credentials.cluster)?;
        let socket = ClientSocket::open(tls).map_err(OpenError::Socket)?;
        let driver = Driver::new(
            socket,
            bearer.reveal(),
            credentials.addresses.clone(),
            clock.clone(),
            PATIENCE,
        );
        Ok(Self::over(driver, clock, entropy))
    }

    fn over<D: Dial>(driver: Driver<D>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(driver.run(waiting));
        Self { queue, clock, entropy }
    }

    /// Draws a request id.
    pub fn draw_request(&self) -> RequestId {
        RequestId {
            client_ms: self.clock.wall_ms(),
            random: self.entropy.random_u64(),
        }
    }

    /// Issues a command under a new request id, and asks for no more than its index.
    ///
    /// # Errors
    /// [`LaneError`] when it is not known to have taken effect.
    pub async fn issue(&self, command: Command) -> Result<Landed, LaneError> {
        self.issue_as(self.draw_request(), command, false).await
    }

    /// Issues a command under a request id that the caller keeps, to send it again after a crash of its own; `events` asks for what it
    /// was decided into.
    ///
    /// # Errors
    /// [`LaneError`] when it is not known to have taken effect.
    pub async fn issue_as(&self, request: RequestId, command: Command, events: bool) -> Result<Landed, LaneError> {
        let (tell, told) = oneshot::channel();
        let sent = Sent {
            request,
            events,
            command,
            tell,
        };
        let closed = || LaneError::Unknown {
            request,
            reason: "this program is shutting down".to_owned(),
        };
        self.queue.send(sent).await.map_err(|_| closed())?;
        told.await.map_err(|_| closed())?
    }
}
