//! Streams of lines that survive the node that serves them, and the output of work, which is one.
//!
//! Owns the opening of a stream at whichever node serves it, and [`Log`]; [`super::event`] reads events from such a stream where it has
//! no better one. The one rule: after a break, reading goes on strictly behind the last item that was given out.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use holdfast_proto::id::LeaseId;
use reqwest::header::{ACCEPT, AUTHORIZATION};
use tokio::time::{Sleep, sleep};

use super::{Client, ClientError, Try, judge};
use crate::wire::lease::LogLine;

/// Longest line of a stream.
const LINE_BYTES_MAX: usize = 4 * 1_024 * 1_024;
/// Tries in a row, over all known nodes, before a stream is given up; a try lasts at least a pause.
const ROUNDS_MAX: u32 = 60;
/// Wait before a broken stream is opened again.
pub(super) const PAUSE: Duration = Duration::from_millis(250);
/// Silence after which a stream counts as broken: a node gives a sign of life every 5 s, a node that hangs gives none, and
/// its kernel answers for it.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Time for one node to begin a stream: more than an election, because reads may wait for one.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(6);

/// Why nothing more comes over a connection.
pub(crate) enum Broken {
    /// It broke, or carried what no line can be.
    Cut,
    /// The node hangs.
    Silent,
}

/// Lines of NDJSON from one connection.
pub(crate) struct Lines {
    /// The node that serves.
    pub(super) address: String,
    bytes: BoxStream<'static, Result<bytes::Bytes, reqwest::Error>>,
    rest: Vec<u8>,
    ready: VecDeque<Vec<u8>>,
    /// Over when nothing has come for too long, however often whoever waits begins to wait anew.
    silence: Pin<Box<Sleep>>,
}

impl Lines {
    fn new(address: String, response: reqwest::Response) -> Self {
        Self {
            address,
            bytes: response.bytes_stream().boxed(),
            rest: Vec::new(),
            ready: VecDeque::new(),
            silence: Box::pin(sleep(SILENCE_MAX)),
        }
    }

    /// The next line; `Ok(None)` when the other side has closed in order.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Ok(Some(line));
            }
            let came = tokio::select! {
                biased;
                came = self.bytes.next() => came,
                () = &mut self.silence => return Err(Broken::Silent),
            };
            self.silence = Box::pin(sleep(SILENCE_MAX));
            match came {
                None => return Ok(None),
                Some(Err(_)) => return Err(Broken::Cut),
                Some(Ok(chunk)) => self.take(&chunk)?,
            }
        }
    }

    fn take(&mut self, chunk: &[u8]) -> Result<(), Broken> {
        self.rest.extend_from_slice(chunk);
        let mut from = 0;
        while let Some(length) = self.rest[from..].iter().position(|byte| *byte == b'\n') {
            self.ready.push_back(self.rest[from..from + length].to_vec());
            from += length + 1;
        }
        self.rest.drain(..from);
        if self.rest.len() > LINE_BYTES_MAX {
            Err(Broken::Cut)
        } else {
            Ok(())
        }
    }
}

impl Client {
    /// Opens the output of a lease's work; `follow` reads on until the lease has ended.
    pub fn log(&self, lease: LeaseId, follow: bool) -> Log<'_> {
        Log {
            client: self,
            lease,
            follow,
            rank: None,
            places: BTreeMap::new(),
            lines: None,
            done: false,
        }
    }

    /// Opens a path as a stream of NDJSON at the first node that serves it.
    pub(crate) async fn open(&self, path: &str) -> Result<Lines, ClientError> {
        let path = self.read_path(path);
        let mut source = None;
        let mut reason = None;
        let mut later = None;
        for _ in 0..ROUNDS_MAX {
            for address in self.addresses() {
                let mut request = self
                    .http
                    .get(format!("https://{address}{path}"))
                    .header(ACCEPT, "application/x-ndjson");
                if let Some(authorization) = &self.authorization {
                    request = request.header(AUTHORIZATION, authorization.expose().clone());
                }
                // A node that hangs takes the connection and never answers; the next one may.
                let Ok(sent) = tokio::time::timeout(OPEN_TIMEOUT, request.send()).await else {
                    self.doubt(&address);
                    continue;
                };
                match sent {
                    Ok(response) if response.status().is_success() => {
                        self.learn(&address, response.headers());
                        return Ok(Lines::new(address, response));
                    }
                    Ok(response) => match judge(response).await {
                        Try::Refused(problem) => return Err(ClientError::Refused { problem }),
                        Try::Maybe(text) => reason = Some(text),
                        Try::Next(error) => source = Some(error),
                        Try::Later(problem) => later = Some(problem),
                        Try::Done(_) => {}
                    },
                    Err(error) => source = Some(error.without_url()),
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        let addresses = self.addresses();
        Err(match (reason, later) {
            (Some(reason), _) => ClientError::Garbled {
                address: addresses.join(", "),
                reason,
            },
            (None, Some(problem)) => ClientError::Refused { problem },
            (None, None) => ClientError::Unreachable { addresses, source },
        })
    }
}

/// The output of a lease's work.
pub struct Log<'a> {
    client: &'a Client,
    lease: LeaseId,
    follow: bool,
    rank: Option<u32>,
    places: BTreeMap<u32, (u32, u64)>,
    lines: Option<Lines>,
    done: bool,
}

impl Log<'_> {
    /// Only the output of one member of a gang.
    #[must_use]
    pub fn of_rank(mut self, rank: Option<u32>) -> Self {
        self.rank = rank;
        self
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// When the request is refused, or no node serves it for a long while.
    pub async fn next(&mut self) -> Result<Option<LogLine>, ClientError> {
        while !self.done {
            if self.lines.is_none() {
                self.lines = Some(self.client.open(&self.path()).await?);
            }
            let Some(lines) = &mut self.lines else { continue };
            match lines.next().await {
                Ok(Some(line)) => {
                    let Ok(line) = serde_json::from_slice::<LogLine>(&line) else {
                        continue;
                    };
                    self.places.insert(line.rank, (line.epoch, line.position));
                    return Ok(Some(line));
                }
                Ok(None) => self.done = true,
                Err(broken) => {
                    if matches!(broken, Broken::Silent) {
                        self.client.doubt(&lines.address);
                    }
                    self.lines = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Ok(None)
    }

    /// Reads on behind the last line, also after the end.
    pub fn reopen(&mut self) {
        self.lines = None;
        self.done = false;
    }

    fn path(&self) -> String {
        let places = self
            .places
            .iter()
            .map(|(rank, (epoch, position))| format!("{rank}:{epoch}:{position}"));
        let after = places.collect::<Vec<_>>().join(",");
        let after = if after.is_empty() {
            after
        } else {
            format!("&after={after}")
        };
        let rank = self.rank.map(|rank| format!("&rank={rank}")).unwrap_or_default();
        format!("/v1/leases/{}/logs?follow={}{rank}{after}", self.lease, self.follow)
    }
}
