//! The control socket of a supervisor: one JSON line in, one out.
//!
//! The daemon sends renewals and orders, the supervisor answers with where the run stands. The rule: every request
//! shows the nonce of the identity record, so nothing that merely finds the socket can give orders, and a client
//! never waits longer than its timeout for a supervisor that does not run.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::course::{Order, OrderRefused, Phase};
use super::record::SOCKET_FILE;

/// Longest request line.
const REQUEST_MAX: usize = 4 << 10;
/// Longest answer that a client reads.
const ANSWER_MAX: u64 = 64 << 10;
/// Connections held at a time: the daemon needs one, a person with a tool another.
const CONNECTIONS_MAX: usize = 8;

/// What a client sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// From the identity record.
    pub nonce: String,
    /// What to do; `None` only asks.
    pub order: Option<Order>,
}

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The run of the spec.
    pub run: String,
    /// Launching, running, frozen, stopping, killing.
    #[serde(flatten)]
    pub phase: Phase,
    /// The deadline in force, boot clock.
    pub deadline_boot_ms: u64,
    /// The end of the lease's own time, boot clock.
    pub run_until_boot_ms: Option<u64>,
    /// Time spent frozen so far.
    pub frozen_ms: u64,
    /// Output bytes that could not be written.
    pub output_lost_bytes: u64,
    /// What of the isolation or the limits could not be had, in words.
    pub missing: Vec<String>,
}

/// What a supervisor answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Done (or only asked).
    Ok(Status),
    /// Not done, and why.
    Refused(OrderRefused, Status),
    /// The request was not understood, or its nonce is wrong.
    Invalid(String),
}

/// The listening side, polled by the supervisor's loop.
#[derive(Debug)]
pub(super) struct ControlServer {
    listener: UnixListener,
    connections: Vec<Connection>,
    next_id: u64,
    nonce: String,
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    stream: UnixStream,
    received: Vec<u8>,
}

impl ControlServer {
    /// Binds the socket in the folder. Through `/proc/self/fd`, because a socket path holds at most 107 bytes.
    pub(super) fn bind(folder: &Path, nonce: String) -> io::Result<Self> {
        let dir = std::fs::File::open(folder)?;
        let listener = UnixListener::bind(short_path(&dir))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            connections: Vec::new(),
            next_id: 0,
            nonce,
        })
    }

    /// The descriptors to wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let streams = self.connections.iter().map(|connection| connection.stream.as_fd());
        std::iter::once(self.listener.as_fd()).chain(streams)
    }

    /// Takes what has arrived: whole requests, each with the connection to answer on. A request that is not
    /// understood, or shows the wrong nonce, is answered and its connection closed.
    pub(super) fn requests(&mut self) -> Vec<(ConnectionId, Option<Order>)> {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                if self.connections.len() == CONNECTIONS_MAX {
                    self.connections.remove(0); // The oldest: a client that is alive connects again.
                }
                self.next_id += 1;
                self.connections.push(Connection {
                    id: ConnectionId(self.next_id),
                    stream,
                    received: Vec::new(),
                });
            }
        }
        let mut found = Vec::new();
        let nonce = &self.nonce;
        self.connections
            .retain_mut(|connection| connection.receive(nonce, &mut found));
        found
    }

    /// Answers; a client that does not read its answers loses its connection.
    pub(super) fn answer(&mut self, to: ConnectionId, answer: &Answer) {
        self.connections
            .retain_mut(|connection| connection.id != to || connection.send(answer));
    }
}

/// Names a connection for as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionId(u64);

impl Connection {
    /// False when the connection is over.
    fn receive(&mut self, nonce: &str, found: &mut Vec<(ConnectionId, Option<Order>)>) -> bool {
        let mut buffer = [0; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
            while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let reason = match serde_json::from_slice::<Request>(&line) {
                    Ok(request) if request.nonce == nonce => {
                        found.push((self.id, request.order));
                        continue;
                    }
                    Ok(_) => "wrong nonce".to_owned(),
                    Err(error) => error.to_string(),
                };
                self.send(&Answer::Invalid(reason));
                return false;
            }
            if self.received.len() > REQUEST_MAX {
                return false;
            }
        }
    }

    fn send(&mut self, answer: &Answer) -> bool {
        let Ok(mut text) = serde_json::to_vec(answer) else {
            return false;
        };
        text.push(b'\n');
        self.stream.write_all(&text).is_ok()
    }
}

/// The daemon's side of one control connection.
#[derive(Debug)]
pub struct ControlClient {
    stream: BufReader<UnixStream>,
    nonce: String,
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens: the supervisor is gone.
    #[error("could not connect to the supervisor")]
    Connect(#[source] io::Error),
    /// It did not answer in time, or broke off.
    #[error("the supervisor did not answer")]
    Exchange(#[source] io::Error),
    /// It answered with a refusal.
    #[error("the supervisor refused the order: {0}")]
    Refused(OrderRefused),
    /// It did not understand the request, or is not the one we know.
    #[error("the supervisor did not accept the request: {0}")]
    Invalid(String),
}

impl ControlClient {
    /// Connects to the socket in a folder.
    pub fn connect(folder: &Path, nonce: &str, timeout: Duration) -> Result<Self, ControlError> {
        let open = || {
            let dir = std::fs::File::open(folder)?;
            let stream = UnixStream::connect(short_path(&dir))?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok(stream)
        };
        let stream = open().map_err(ControlError::Connect)?;
        Ok(Self {
            stream: BufReader::new(stream),
            nonce: nonce.to_owned(),
        })
    }

    /// Sends an order, or only asks, and returns where the run stands afterwards.
    pub fn send(&mut self, order: Option<Order>) -> Result<Status, ControlError> {
        match self.exchange(order).map_err(ControlError::Exchange)? {
            Answer::Ok(status) => Ok(status),
            Answer::Refused(reason, _) => Err(ControlError::Refused(reason)),
            Answer::Invalid(reason) => Err(ControlError::Invalid(reason)),
        }
    }

    fn exchange(&mut self, order: Option<Order>) -> io::Result<Answer> {
        let request = Request {
            nonce: self.nonce.clone(),
            order,
        };
        let mut text = serde_json::to_vec(&request).map_err(io::Error::other)?;
        text.push(b'\n');
        self.stream.get_mut().write_all(&text)?;
        let mut line = String::new();
        (&mut self.stream).take(ANSWER_MAX).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}

fn short_path(dir: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}/{SOCKET_FILE}", dir.as_raw_fd())
}
