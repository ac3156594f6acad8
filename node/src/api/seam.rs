//! What the HTTP interface needs from the rest of the node.
//!
//! Owns the traits that `boot.rs` connects: committed state and events, leadership, logs of work, admission of nodes, and further
//! metrics. The one rule: whatever is asked here answers from this node alone; going to another node is the interface's own business.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::event::EventRecord;
use holdfast_proto::id::{Cursor, Epoch, LeaseId, NodeId, TenantId};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::time::Timestamp;
use holdfast_storage::event_log::RawEvent;
use holdfast_storage::index::EndedLease;
use holdfast_storage::machine::state::State;

use crate::join::{JoinAnswer, JoinRequest};
use crate::wire::cluster::Disk;

/// Committed state and history of this replica.
pub trait Committed: Send + Sync + 'static {
    /// The newest applied state; cheap.
    fn state(&self) -> Arc<State>;

    /// Waits until an entry after `index` has been applied here.
    fn advanced(&self, index: u64) -> BoxFuture<'_, ()>;

    /// Events strictly after a position, in log order, at most `limit`. An empty answer says that there are none yet.
    fn events(&self, after: Cursor, limit: usize) -> BoxFuture<'_, Result<Vec<Arc<EventRecord>>, HistoryError>>;

    /// Events strictly after a position as they lie on disk, about `bytes` of them, for whoever is far behind. `None` where they are in
    /// memory or the log ends; the default knows them in no such form.
    fn raw_events(&self, _after: Cursor, _bytes: usize) -> BoxFuture<'_, Result<Option<Vec<RawEvent>>, HistoryError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The last position whose events are gone from here.
    fn floor(&self) -> Cursor;

    /// Waits until there may be an event after the position.
    fn grown(&self, after: Cursor) -> BoxFuture<'_, ()>;

    /// Events of one lease strictly after a position; the default reads through all events of its time.
    fn lease_events(
        &self,
        lease: LeaseId,
        after: Cursor,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<EventRecord>>, HistoryError>> {
        Box::pin(async move {
            let born = Cursor {
                index: lease.index.saturating_sub(1),
                sub: u32::MAX,
            };
            let mut after = after.max(born);
            let mut found = Vec::new();
            loop {
                let page = self.events(after, SCAN_EVENTS).await?;
                let Some(last) = page.last() else { return Ok(found) };
                after = last.cursor;
                found.extend(page.into_iter().filter(|record| record.event.lease() == Some(lease)));
                if found.len() >= limit {
                    found.truncate(limit);
                    return Ok(found);
                }
            }
        })
    }

    /// Leases that have ended and that the state may have forgotten, newest end first. The default remembers none.
    fn ended(
        &self,
        _tenant: Option<TenantId>,
        _before: Option<Cursor>,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<EndedLease>, HistoryError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// A lease that has ended and that the state may have forgotten. The default remembers none.
    fn ended_lease(&self, _lease: LeaseId) -> BoxFuture<'_, Result<Option<EndedLease>, HistoryError>> {
        Box::pin(async { Ok(None) })
    }
}

/// Events read at once when a history is searched.
const SCAN_EVENTS: usize = 1_024;

/// Why events cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// They are older than what is kept here.
    #[error("events up to {through} are no longer kept; read on after it")]
    Compacted {
        /// The last position that is gone: the first one left is strictly after it.
        through: Cursor,
    },
    /// A snapshot took this replica over them.
    #[error("this node was behind and stepped over the events up to {through}; ask another node, or read on after it")]
    Reset {
        /// The last position that was stepped over.
        through: Cursor,
    },
    /// The event log could not be read.
    #[error("cannot read the event log: {reason}")]
    Failed {
        /// What the log said.
        reason: String,
    },
}

/// What this replica knows of the leadership.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Who leads.
    pub leader: Option<NodeId>,
    /// In which term.
    pub term: u64,
    /// Milliseconds since this node last heard the leader, or on the leader itself since a quorum last answered it; absent
    /// when neither has happened since the start.
    pub heard_ms_ago: Option<u64>,
}

/// Tells who leads, and what time it is in the cluster.
pub trait Standing: Send + Sync + 'static {
    /// The leadership now.
    fn leadership(&self) -> Leadership;

    /// The cluster's time, as this replica believes it: between two entries it goes on.
    fn time(&self) -> Timestamp;
}

/// Which part of a log is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRequest {
    /// The lease.
    pub lease: LeaseId,
    /// The placement; its attempts write one log.
    pub epoch: Epoch,
    /// Bytes of the log that are known already.
    pub after: u64,
    /// Most bytes to give.
    pub bytes_max: usize,
    /// Wait a moment for more when there is nothing yet and the work runs.
    pub wait: bool,
}

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunk {
    /// Position of the first byte; beyond what was asked for when older bytes were rotated away.
    pub from: u64,
    /// What the work wrote, both streams in the order that they arrived.
    pub bytes: Bytes,
    /// The work does not run, and nothing is behind these bytes.
    pub ended: bool,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The lease has not written on this node.
    #[error("this node has no output of {lease}")]
    Absent {
        /// The lease.
        lease: LeaseId,
    },
    /// The file could not be read.
    #[error("cannot read the output of {lease}")]
    Read {
        /// The lease.
        lease: LeaseId,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// What the work of leases wrote on this node.
pub trait Logs: Send + Sync + 'static {
    /// Reads a part of a log.
    fn read(&self, request: LogRequest) -> BoxFuture<'_, Result<LogChunk, LogError>>;
}

/// Why a machine was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// The request is not one.
    #[error("{reason}")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
    /// The log refused it.
    #[error("{rejection}")]
    Refused {
        /// Why.
        rejection: Rejection,
        /// Log index of the refusal.
        index: u64,
    },
    /// This node does not hold the authority's key.
    #[error("this node cannot sign certificates; join at one of the voters")]
    NotHere,
    /// It may or may not have been admitted.
    #[error("{reason}")]
    Unknown {
        /// What stood in the way.
        reason: String,
    },
}

/// Admits machines that show a join token.
pub trait Admit: Send + Sync + 'static {
    /// Proposes the admission and signs the certificate.
    fn admit(&self, request: JoinRequest) -> BoxFuture<'_, Result<JoinAnswer, AdmitError>>;
}

/// Adds series to `/metrics`.
pub trait MetricSource: Send + Sync + 'static {
    /// Writes whole families in the OpenMetrics text form, without the end mark.
    fn write(&self, out: &mut String);
}

/// What this node's memory of the cluster takes on its disk. May block; called off the async threads.
pub trait Footprint: Send + Sync + 'static {
    /// Bytes by part, and what is left on the disk.
    fn measure(&self) -> Disk;
}
