//! Talks to a cluster: the CLI's and the demo's way in, and an example for programs.
//!
//! Owns one HTTPS connection pool, pinned to the cluster's authority, and the list of nodes to try. It does not care who leads: any node
//! will do, and the next one is tried when one does not answer. The one rule: a command is sent again only with the id that it was first
//! sent with, and ends as applied, refused or unknown; nothing else is told to the caller.

pub mod credentials;
pub mod event;
pub mod lane;
pub mod stream;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_proto::id::RequestId;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use rustls::ClientConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::event::lane::EventLane;
use crate::bearer::Bearer;
use crate::env::{Clock, Entropy};
use crate::identity::secret::Secret;
use crate::wire::problem::{Problem, code};
use crate::wire::{INDEX, NODES, REQUEST_ID};

/// Time to connect to one node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Probes of a silent connection, after which a stream counts as broken and is opened elsewhere.
const PROBES_MAX: u32 = 3;
/// Time for one node to answer the first try of a request, while there are others to ask: one that hangs is passed over.
const FIRST_TRY_TIMEOUT: Duration = Duration::from_secs(4);
/// Time for one node to answer any later try.
const TRY_TIMEOUT: Duration = Duration::from_secs(15);
/// Time over all tries of one request: longer than an election, shorter than a person's patience.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time over all tries of a read, once a node has said that nobody confirms its answer: an election is over by then.
const READ_PATIENCE: Duration = Duration::from_secs(6);
/// Time for a node to show that it is there.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Wait before the nodes are tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No node answers.
    #[error("no node answers at {}; is one running there (`holdfast serve`)?", addresses.join(", "))]
    Unreachable {
        /// The nodes that were tried.
        addresses: Vec<String>,
        /// What the last one's connection said.
        #[source]
        source: Option<reqwest::Error>,
    },
    /// A node refused it. It has no effect.
    #[error("{}", problem.detail)]
    Refused {
        /// How.
        problem: Box<Problem>,
    },
    /// It may or may not have taken effect.
    #[error("it is not known whether request {request} took effect ({reason}); check before you try again")]
    Unknown {
        /// The request.
        request: RequestId,
        /// What the last try came to.
        reason: String,
    },
    /// A node answered with something else than was asked for.
    #[error("the node at {address} answers with something that this program does not understand: {reason}")]
    Garbled {
        /// The node.
        address: String,
        /// What is odd.
        reason: String,
    },
    /// The client cannot be set up.
    #[error("cannot set up an HTTPS client")]
    Setup(#[source] reqwest::Error),
}

impl ClientError {
    /// The problem document of a refusal.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused { problem } => Some(problem),
            _ => None,
        }
    }
}

/// An answer and what it reflects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// The body.
    pub body: T,
    /// Log index of the command, or that a read reflects.
    pub index: Option<u64>,
    /// The request's id.
    pub request: Option<RequestId>,
}

/// Which state reads are answered from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum View {
    /// One that holds everything that was acknowledged before the read.
    #[default]
    Fresh,
    /// What the node that answers knows, confirmed by a leader or not.
    Stale,
    /// The one after this entry of the log.
    At(u64),
}

/// A connection to a cluster.
pub struct Client {
    http: reqwest::Client,
    addresses: Mutex<Vec<String>>,
    authorization: Option<Secret<HeaderValue>>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    patience: Duration,
    view: View,
    lane: Option<EventLane>,
}

/// One request, before it is sent.
struct Call<'a> {
    method: Method,
    path: &'a str,
    body: Option<Vec<u8>>,
    request: Option<RequestId>,
}

/// What one try came to.
enum Try {
    /// The answer.
    Done(reqwest::Response),
    /// Nothing happened there; another node may do.
    Next(reqwest::Error),
    /// Nothing happened there, and the node says why; later or elsewhere it may.
    Later(Box<Problem>),
    /// Something may have happened; only the same request may be sent again.
    Maybe(String),
    /// It was refused for good.
    Refused(Box<Problem>),
}

impl Client {
    /// Connects to the nodes at `addresses` (`host:port`), in this order of preference.
    ///
    /// # Errors
    /// When the TLS configuration is not one that the HTTP client can use.
    pub fn new(
        addresses: Vec<String>,
        tls: ClientConfig,
        bearer: Option<&Bearer>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(CONNECT_TIMEOUT)
            .tcp_keepalive_interval(CONNECT_TIMEOUT)
            .tcp_keepalive_retries(PROBES_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(ClientError::Setup)?;
        let authorization = bearer.and_then(|bearer| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", bearer.reveal().expose())).ok()?;
            value.set_sensitive(true);
            Some(Secret::new(value))
        });
        Ok(Self {
            http,
            addresses: Mutex::new(addresses),
            authorization,
            clock,
            entropy,
            patience: PATIENCE,
            view: View::Fresh,
            lane: None,
        })
    }

    /// Reads events over the client lane from now on, where UDP comes through; over HTTPS elsewhere.
    #[must_use]
    pub fn with_lane(mut self, lane: EventLane) -> Self {
        self.lane = Some(lane);
        self
    }

    /// Sets how long one request is tried for.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets which state reads are answered from.
    #[must_use]
    pub fn with_view(mut self, view: View) -> Self {
        self.view = view;
        self
    }

    /// Whether a node is there: it answers anything at all, soon.
    pub async fn answers(&self, address: &str) -> bool {
        let asked = self
            .http
            .get(format!("https://{address}/healthz"))
            .timeout(PROBE_TIMEOUT);
        asked.send().await.is_ok()
    }

    /// A path to read, with what was said about the state that it is answered from.
    fn read_path<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let said = match self.view {
            View::Stale => "consistency=stale".to_owned(),
            View::At(index) => format!("at={index}"),
            View::Fresh => return Cow::Borrowed(path),
        };
        if path.contains("consistency=") {
            return Cow::Borrowed(path);
        }
        let joint = if path.contains('?') { '&' } else { '?' };
        Cow::Owned(format!("{path}{joint}{said}"))
    }

    /// The nodes that are tried, with those that answers have named since.
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Draws a request id.
    pub fn draw_request(&self) -> RequestId {
        RequestId {
            client_ms: self.clock.wall_ms(),
            random: self.entropy.random_u64(),
        }
    }

    /// Reads.
    ///
    /// # Errors
    /// Any [`ClientError`] but `Unknown`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, ClientError> {
        self.call(Call {
            method: Method::GET,
            path: &self.read_path(path),
            body: None,
            request: None,
        })
        .await
    }

    /// Reads something that is not JSON, such as `/metrics`.
    ///
    /// # Errors
    /// Any [`ClientError`] but `Unknown`.
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let (address, response) = self
            .send(&Call {
                method: Method::GET,
                path,
                body: None,
                request: None,
            })
            .await?;
        response.text().await.map_err(|error| ClientError::Garbled {
            address,
            reason: error.to_string(),
        })
    }

    /// Fetches bytes, however many, and hands them on as they come.
    ///
    /// # Errors
    /// Any [`ClientError`] but `Unknown`; what `take` refuses is told as garbled.
    pub async fn fetch(
        &self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), ClientError> {
        let call = Call {
            method: Method::GET,
            path,
            body: None,
            request: None,
        };
        let (address, mut response) = self.send(&call).await?;
        let garbled = |reason: String| ClientError::Garbled {
            address: address.clone(),
            reason,
        };
        while let Some(piece) = response.chunk().await.map_err(|error| garbled(error.to_string()))? {
            take(&piece).map_err(|error| garbled(error.to_string()))?;
        }
        Ok(())
    }

    /// Asks something that changes nothing, such as a quote.
    ///
    /// # Errors
    /// Any [`ClientError`] but `Unknown`.
    pub async fn ask<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<Answer<T>, ClientError> {
        self.call(Call {
            method: Method::POST,
            path,
            body: Some(json(body)),
            request: None,
        })
        .await
    }

    /// Issues a command under a new request id.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn command<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer<T>, ClientError> {
        self.command_as(self.draw_request(), method, path, body).await
    }

    /// Issues a command under a request id that the caller keeps, to send it again after a crash of its own.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn command_as<T: DeserializeOwned>(
        &self,
        request: RequestId,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer<T>, ClientError> {
        self.call(Call {
            method,
            path,
            body: Some(json(body)),
            request: Some(request),
        })
        .await
    }

    async fn call<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<Answer<T>, ClientError> {
        let (address, response) = self.send(&call).await?;
        let index = header(response.headers(), INDEX);
        let garbled = |reason: String| ClientError::Garbled {
            address: address.clone(),
            reason,
        };
        let bytes = match (response.bytes().await, call.request) {
            (Ok(bytes), _) => bytes,
            (Err(error), Some(request)) => {
                return Err(ClientError::Unknown {
                    request,
                    reason: error.to_string(),
                });
            }
            (Err(error), None) => return Err(garbled(error.to_string())),
        };
        let body = serde_json::from_slice(&bytes).map_err(|error| garbled(error.to_string()))?;
        Ok(Answer {
            body,
            index,
            request: call.request,
        })
    }

    /// Tries the nodes in turn until one answers, it is refused, or patience ends.
    async fn send(&self, call: &Call<'_>) -> Result<(String, reqwest::Response), ClientError> {
        let begun = self.clock.boot_ms();
        let mut source = None;
        let mut maybe = None;
        let mut later = None;
        let mut limit = FIRST_TRY_TIMEOUT;
        loop {
            let addresses = self.addresses();
            if addresses.len() == 1 {
                limit = TRY_TIMEOUT;
            }
            for address in &addresses {
                match self.attempt(address, call, limit).await {
                    Try::Done(response) => {
                        self.learn(address, response.headers());
                        return Ok((address.clone(), response));
                    }
                    Try::Refused(problem) => return Err(ClientError::Refused { problem }),
                    Try::Next(error) => source = Some(error),
                    Try::Later(problem) => later = Some(problem),
                    Try::Maybe(reason) => maybe = Some(reason),
                }
            }
            let patience = match (call.request, &later) {
                (None, Some(problem)) if problem.code == code::NOT_FRESH => self.patience.min(READ_PATIENCE),
                _ => self.patience,
            };
            if self.clock.boot_ms().saturating_sub(begun) >= patience.as_millis().try_into().unwrap_or(u64::MAX) {
                return Err(match (maybe, call.request, later) {
                    (Some(reason), Some(request), _) => ClientError::Unknown { request, reason },
                    (Some(reason), None, _) => ClientError::Garbled {
                        address: addresses.join(", "),
                        reason,
                    },
                    // A node that says why it cannot knows more than the ones that are silent.
                    (None, _, Some(problem)) => ClientError::Refused { problem },
                    (None, _, None) => ClientError::Unreachable { addresses, source },
                });
            }
            // Nobody listens where the only known nodes were: an answer now is better than half a minute of silence.
            if maybe.is_none() && source.as_ref().is_some_and(reqwest::Error::is_connect) && addresses.len() == 1 {
                return Err(ClientError::Unreachable { addresses, source });
            }
            tokio::time::sleep(PAUSE).await;
            limit = TRY_TIMEOUT;
        }
    }

    async fn attempt(&self, address: &str, call: &Call<'_>, limit: Duration) -> Try {
        let mut request = self
            .http
            .request(call.method.clone(), format!("https://{address}{}", call.path))
            .timeout(limit);
        request = request.header(ACCEPT, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.expose().clone());
        }
        if let Some(id) = call.request {
            request = request.header(REQUEST_ID, id.to_string());
        }
        if let Some(body) = &call.body {
            request = request
                .header(reqwest::header::CONTENT_TYPE, "application/json")
                .body(body.clone());
        }
        match request.send().await {
            Ok(response) if response.status().is_success() => Try::Done(response),
            Ok(response) => judge(response).await,
            Err(error) if error.is_connect() || call.request.is_none() => Try::Next(error.without_url()),
            Err(error) => Try::Maybe(error.without_url().to_string()),
        }
    }

    /// Asks a node last from now on: it takes connections and answers nothing.
    fn doubt(&self, address: &str) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let (doubted, mut others): (Vec<_>, Vec<_>) = addresses.drain(..).partition(|known| known == address);
        others.extend(doubted);
        *addresses = others;
    }

    /// Takes over the nodes that an answer names, behind the one that gave it.
    fn learn(&self, answered: &str, headers: &HeaderMap) {
        if let Some(named) = headers.get(NODES).and_then(|value| value.to_str().ok()) {
            self.meet(answered, named.split(',').map(str::to_owned));
        }
    }

    /// Takes over nodes, behind the one that named them.
    fn meet(&self, answered: &str, named: impl Iterator<Item = String>) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = vec![answered.to_owned()];
        for address in named.chain(addresses.drain(..)) {
            if !address.is_empty() && !known.contains(&address) {
                known.push(address);
            }
        }
        known.truncate(16);
        *addresses = known;
    }
}

/// Judges an answer that is not a success.
async fn judge(response: reqwest::Response) -> Try {
    let status = response.status();
    let bytes = response.bytes().await.unwrap_or_default();
    let problem: Problem = match serde_json::from_slice(&bytes) {
        Ok(problem) => problem,
        Err(_) if status.is_server_error() => return Try::Maybe(format!("status {status}")),
        Err(_) => bare(status),
    };
    match problem.code.as_str() {
        // The node's own words tell whoever speaks HTTP to send it again, which the caller here has done.
        code::OUTCOME_UNKNOWN => Try::Maybe("no leader confirmed it in time".to_owned()),
        code::TIMED_OUT => Try::Maybe(problem.detail),
        code::BUSY | code::NOT_FRESH | code::NOT_HERE => Try::Later(Box::new(problem)),
        _ => Try::Refused(Box::new(problem)),
    }
}

/// A problem for an answer that carries none, such as a proxy's.
fn bare(status: StatusCode) -> Problem {
    Problem {
        kind: "about:blank".to_owned(),
        title: status.canonical_reason().unwrap_or("refused").to_owned(),
        status: status.as_u16(),
        detail: format!("the node answers with status {status} and no reason"),
        code: code::BAD_REQUEST.to_owned(),
        request: None,
        index: None,
        rejection: None,
    }
}

fn header<T: std::str::FromStr>(headers: &HeaderMap, name: &str) -> Option<T> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("the interface's types have text keys only")
}

/// A text as one segment of a path or one value of a query.
pub fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
