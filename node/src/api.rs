//! The HTTP interface: JSON under `/v1` on every node.
//!
//! Owns the router, the seams it is built over, and the order in which a request passes: limits, authentication, the endpoint, common
//! headers. `boot.rs` builds an [`Api`] and hands it to [`server::serve`]. Writes become commands and go through
//! [`crate::consensus::Propose`], reads are made fresh by [`crate::consensus::Linearize`]; which replica leads is nobody's concern
//! here. The one rule: an endpoint exists only as a line of [`route::table`], which also makes the OpenAPI document and says whose token
//! it takes.

pub mod archive;
pub mod auth;
pub mod backup;
pub mod bill;
pub mod body;
pub mod cluster;
pub mod command;
pub mod drain;
pub mod edge;
pub mod event;
pub mod forward;
pub mod gpu;
pub mod gzip;
pub mod health;
pub mod join;
pub mod lane;
pub mod lease;
pub mod log;
pub mod metrics;
pub mod node;
pub mod openapi;
pub mod past;
pub mod preview;
pub mod problem;
pub mod queue;
pub mod quote;
pub mod read;
pub mod route;
pub mod schema;
pub mod seam;
pub mod server;
pub mod source;
pub mod state;
pub mod subscription;
pub mod tenant;
pub mod token;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use holdfast_proto::id::NodeId;
use tokio::sync::Semaphore;

use crate::consensus::{Linearize, Propose};
use crate::env::{Clock, Entropy};
use event::ring::Ring;
use gzip::Compressors;
use metrics::Requests;
use past::Past;
use seam::{Admit, Committed, Footprint, Logs, MetricSource, Standing};

/// How much the interface takes on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests served at once; more are told to come back.
    pub in_flight_max: usize,
    /// Event and log streams open at once.
    pub streams_max: usize,
    /// Largest body, in bytes.
    pub body_bytes_max: usize,
    /// Time for a client to send its request's head.
    pub header_timeout: Duration,
    /// Time for a request to be answered, streams apart.
    pub request_timeout: Duration,
    /// Time for a command to be applied before its outcome is called unknown.
    pub propose_timeout: Duration,
    /// Time for a read to be confirmed before it is refused: as long as an election may take, and no person waits longer.
    pub read_timeout: Duration,
    /// Time without an event after which a stream says where it is.
    pub bookmark_every: Duration,
    /// Time that a subscriber may leave its queue full.
    pub slow_after: Duration,
    /// Event batches that wait for one subscriber; each has some tens of kilobytes.
    pub queue_batches: usize,
    /// Beat at which subscribers of a busy stream are written to: events that come closely are written together, and all subscribers
    /// are woken at once.
    pub gather: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight_max: 1_024,
            streams_max: 4_096,
            body_bytes_max: 512 * 1_024,
            header_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            propose_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(3),
            bookmark_every: Duration::from_secs(5),
            slow_after: Duration::from_secs(30),
            queue_batches: 2,
            gather: Duration::from_millis(50),
        }
    }
}

/// What the interface is built over.
pub struct Parts {
    /// This node.
    pub node: NodeId,
    /// Fingerprint of the cluster's authority, which join tokens carry.
    pub authority: [u8; 32],
    /// Puts commands into the log.
    pub propose: Arc<dyn Propose>,
    /// Makes reads fresh.
    pub linearize: Arc<dyn Linearize>,
    /// State and events of this replica.
    pub committed: Arc<dyn Committed>,
    /// Who leads.
    pub standing: Arc<dyn Standing>,
    /// What this node's memory takes on its disk.
    pub footprint: Arc<dyn Footprint>,
    /// Output of work on this node.
    pub logs: Arc<dyn Logs>,
    /// Admits machines.
    pub admit: Arc<dyn Admit>,
    /// Series beyond the interface's own.
    pub metrics: Vec<Arc<dyn MetricSource>>,
    /// Reaches other nodes of the cluster, for output of work that runs there.
    pub peers: reqwest::Client,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Draws tokens and request ids.
    pub entropy: Arc<dyn Entropy>,
    /// How much is taken on.
    pub limits: Limits,
}

/// The interface of one node; cheap to clone.
#[derive(Clone)]
pub struct Api {
    parts: Arc<Parts>,
    in_flight: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Places of large pieces of events, for readers that are far behind.
    pieces: Arc<Semaphore>,
    ring: Arc<Ring>,
    past: Arc<Past>,
    requests: Arc<Requests>,
    compressors: Arc<Compressors>,
}

impl Api {
    /// Builds the interface.
    pub fn new(parts: Parts) -> Self {
        Self {
            in_flight: Arc::new(Semaphore::new(parts.limits.in_flight_max)),
            streams: Arc::new(Semaphore::new(parts.limits.streams_max)),
            pieces: Arc::new(Semaphore::new(event::stream::PIECES_MAX)),
            ring: Arc::default(),
            past: Arc::default(),
            requests: Arc::default(),
            compressors: Arc::default(),
            parts: Arc::new(parts),
        }
    }

    /// The router with every endpoint.
    pub fn router(&self) -> Router {
        route::router(self)
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    fn limits(&self) -> &Limits {
        &self.parts.limits
    }
}
