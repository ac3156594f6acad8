//! How nodes reach each other: the transport seam, the classes of traffic, and who is where.
//!
//! Owns [`Transport`] (the asking side) and [`Service`] (the answering side), both free of any runtime, so that the simulator carries
//! the same traffic over its own wires; [`quic`] is the real one. Called by consensus, the node lease, the event stream and transfers.
//! The one rule: a service is always told which node speaks, as the transport has proven it, and never takes that from a message.
//!
//! A request or frame is opaque here. Order is kept within one [`Channel`] and nowhere else. A failed call may have been executed.

pub mod book;
pub mod quic;
pub mod router;
pub mod tls;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::id::NodeId;

/// A kind of traffic. Each has its own connections, so that none waits behind another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Votes, appends, heartbeats.
    Raft,
    /// Forwarded commands, read indexes, questions to the leader.
    Control,
    /// Raft snapshots.
    Snapshot,
    /// Events and event segments.
    Events,
    /// Node-lease renewals.
    Lease,
    /// Checkpoints and other bulk.
    Transfer,
}

/// A socket of a node. Renewals and bulk share none with Raft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Raft, control, snapshots, events.
    Main,
    /// Renewals only.
    Lease,
    /// Bulk only.
    Bulk,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 6] = [
        Self::Raft,
        Self::Control,
        Self::Snapshot,
        Self::Events,
        Self::Lease,
        Self::Transfer,
    ];

    /// The protocol name that both sides must offer; its number rises when the bytes change meaning.
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::Raft => b"holdfast/raft/1",
            Self::Control => b"holdfast/control/1",
            Self::Snapshot => b"holdfast/snapshot/1",
            Self::Events => b"holdfast/events/1",
            Self::Lease => b"holdfast/lease/1",
            Self::Transfer => b"holdfast/transfer/1",
        }
    }

    /// The class that a protocol name stands for.
    pub fn from_alpn(alpn: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.alpn() == alpn)
    }

    /// The socket that carries it.
    pub fn lane(self) -> Lane {
        match self {
            Self::Raft | Self::Control | Self::Snapshot | Self::Events => Lane::Main,
            Self::Lease => Lane::Lease,
            Self::Transfer => Lane::Bulk,
        }
    }

    /// Largest frame that is read; a larger one ends the stream before any of it is stored.
    pub fn frame_bytes_max(self) -> usize {
        match self {
            // An append carries up to 4,096 entries; bytes are bounded where it is built.
            Self::Raft => 64 * 1024 * 1024,
            Self::Control | Self::Events => 8 * 1024 * 1024,
            Self::Snapshot | Self::Transfer => 4 * 1024 * 1024,
            Self::Lease => 64 * 1024,
        }
    }
}

/// Why something could not be said to a node, or was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// No address is known.
    #[error("no address is known for node {node}")]
    NoAddress {
        /// The node.
        node: NodeId,
    },
    /// No connection, so nothing was said.
    #[error("cannot reach node {node}: {why}")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// What went wrong.
        why: String,
    },
    /// The node was removed from the cluster; nothing is said to it.
    #[error("node {node} was removed from the cluster")]
    Removed {
        /// The node.
        node: NodeId,
    },
    /// The connection ended in the middle: the call may or may not have been executed.
    #[error("the connection to node {node} ended: {why}")]
    Lost {
        /// The node.
        node: NodeId,
        /// What went wrong.
        why: String,
    },
    /// The other side answered that it will not do it.
    #[error("node {node} refused: {why}")]
    Refused {
        /// The node.
        node: NodeId,
        /// Its reason.
        why: String,
    },
    /// A frame exceeds its class's limit.
    #[error("a frame of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: usize,
    },
}

impl NetError {
    /// Whether the call certainly had no effect on the other side.
    pub fn is_unsent(&self) -> bool {
        matches!(
            self,
            Self::NoAddress { .. } | Self::Unreachable { .. } | Self::Removed { .. }
        )
    }
}

/// A service's reason not to answer; its text travels to the asker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// The asking side. Cheap to share; every method may be called from any task.
pub trait Transport: Send + Sync + 'static {
    /// Sends one request and waits for its answer. Deadlines are the caller's: it drops the future.
    fn call(&self, to: NodeId, class: Class, request: Bytes) -> BoxFuture<'static, Result<Bytes, NetError>>;

    /// Opens an ordered stream of frames in both directions.
    fn open(&self, to: NodeId, class: Class) -> BoxFuture<'static, Result<Channel, NetError>>;
}

/// An ordered stream of frames in both directions. Dropping a half ends it abruptly.
pub struct Channel {
    /// Frames to the other side.
    pub sink: Box<dyn FrameSink>,
    /// Frames from the other side.
    pub source: Box<dyn FrameSource>,
}

/// The sending half of a channel.
pub trait FrameSink: Send {
    /// Sends one frame; waits while the other side does not keep up.
    fn send(&mut self, frame: Bytes) -> BoxFuture<'_, Result<(), NetError>>;

    /// Says that no more frames come.
    fn finish(&mut self) -> BoxFuture<'_, Result<(), NetError>>;
}

/// The receiving half of a channel.
pub trait FrameSource: Send {
    /// The next frame, or `None` once the other side has finished. Not cancel-safe: a dropped future may lose part of a frame.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, NetError>>;
}

/// The answering side of one class.
pub trait Service: Send + Sync + 'static {
    /// Answers one request of node `from`.
    fn call(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>>;

    /// Serves one channel that node `from` opened, until it ends. A class without channels keeps this default.
    fn channel(self: Arc<Self>, from: NodeId, channel: Channel) -> BoxFuture<'static, ()> {
        let _ = from;
        drop(channel);
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_found_by_its_protocol_name() {
        for class in Class::ALL {
            assert_eq!(Class::from_alpn(class.alpn()), Some(class));
        }
        assert_eq!(Class::from_alpn(b"h2"), None);
    }
}
