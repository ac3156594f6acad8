//! The answering side of transfers: one node's store, asked by others.
//!
//! The transport hands every request of the transfer class to [`Receiver`]. The rules kept here: the transport's word
//! for who asks counts, never the message's; only a member of the lease may push, and only as the start it is; only
//! nodes that hold or run the lease may read.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::id::{Fence, LeaseId, NodeId};

use super::store::{Committed, Offered, Placed, Store, StoreError};
use super::wire::{Reply, Request};
use crate::net::{Refusal, Service};

/// Who may do what with a lease's checkpoints, as this node's replica knows it.
pub trait Access: Send + Sync + 'static {
    /// Whether `from` may push and fence as this start of the lease.
    fn may_push(&self, from: NodeId, lease: LeaseId, fence: Fence) -> Permission;

    /// Whether `from` may read the lease's checkpoints.
    fn may_read(&self, from: NodeId, lease: LeaseId) -> Permission;
}

/// An answer of [`Access`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Yes.
    Granted,
    /// This replica has not applied what the asker speaks of; the asker tries again.
    NotYet,
    /// No, because a newer start of the lease is in the log: this one.
    Stale(Fence),
    /// No.
    Denied,
}

/// Serves this node's store to others.
pub struct Receiver {
    store: Arc<Store>,
    access: Arc<dyn Access>,
}

impl Receiver {
    /// Serves a store.
    pub fn new(store: Arc<Store>, access: Arc<dyn Access>) -> Self {
        Self { store, access }
    }

    /// Answers one message of node `from`. Blocks on the disk.
    ///
    /// # Errors
    /// A refusal with its text, when the message is not sound, the asker is not permitted, or the disk fails.
    pub fn answer(&self, from: NodeId, message: &Bytes) -> Result<Bytes, Refusal> {
        let (request, body) = Request::decode(message).map_err(|error| Refusal(error.to_string()))?;
        if let Some(reply) = self.permit(from, &request)? {
            return Ok(reply.encode(&[]));
        }
        let answered = match request {
            Request::Fence { lease, fence } => self.store.show(lease, fence).map(|()| Reply::Fenced { shown: fence }),
            Request::Offer { name } => self.store.offer(name, &body).map(|offered| match offered {
                Offered::Held => Reply::Held,
                Offered::Needed(files) => Reply::Needed { files },
            }),
            Request::Piece { name, file, offset } => {
                self.store.place(name, file, offset, &body).map(|placed| match placed {
                    Placed::Took(offset) => Reply::Took { file, offset },
                    Placed::At(offset) => Reply::At { file, offset },
                })
            }
            Request::Commit { name, manifest } => self.store.commit(name, manifest).map(|committed| match committed {
                Committed::Held => Reply::Held,
                Committed::Corrupt(files) => Reply::Corrupt { files },
            }),
            Request::Manifest { .. } | Request::Read { .. } => return self.read(&request),
        };
        reply_or_refuse(answered).map(|reply| reply.encode(&[]))
    }

    fn read(&self, request: &Request) -> Result<Bytes, Refusal> {
        let (lease, manifest) = match request {
            Request::Manifest { lease, manifest } | Request::Read { lease, manifest, .. } => (*lease, *manifest),
            _ => return Err(Refusal("not a request to read".to_owned())),
        };
        let found = self.store.find(lease, manifest).map_err(|error| refusal(&error))?;
        let Some(held) = found else {
            return Ok(Reply::NotHeld.encode(&[]));
        };
        let Request::Read {
            file, offset, bytes, ..
        } = *request
        else {
            return Ok(Reply::Manifest.encode(&held.read.bytes));
        };
        let part = self
            .store
            .read(&held, file, offset, bytes)
            .map_err(|error| refusal(&error))?;
        Ok(Reply::Bytes { file, offset }.encode(&part))
    }

    /// Passes a request, or answers it without the store.
    fn permit(&self, from: NodeId, request: &Request) -> Result<Option<Reply>, Refusal> {
        let permission = match request {
            Request::Fence { lease, fence } => self.access.may_push(from, *lease, *fence),
            Request::Offer { name } | Request::Piece { name, .. } | Request::Commit { name, .. } => {
                self.access.may_push(from, name.lease, name.fence)
            }
            Request::Manifest { lease, .. } | Request::Read { lease, .. } => self.access.may_read(from, *lease),
        };
        match permission {
            Permission::Granted => Ok(None),
            Permission::NotYet => Ok(Some(Reply::NotYet)),
            Permission::Stale(shown) => Ok(Some(Reply::Stale { shown })),
            Permission::Denied => Err(Refusal(format!("node {from} has no part in this lease"))),
        }
    }
}

/// Answers of the protocol stay answers; everything else is a refusal with its reasons.
fn reply_or_refuse(answered: Result<Reply, StoreError>) -> Result<Reply, Refusal> {
    match answered {
        Err(StoreError::Stale { shown }) => Ok(Reply::Stale { shown }),
        Err(StoreError::NotOffered) => Ok(Reply::NotOffered),
        Err(error) => Err(refusal(&error)),
        Ok(reply) => Ok(reply),
    }
}

fn refusal(error: &StoreError) -> Refusal {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Refusal(text)
}

impl Service for Receiver {
    fn call(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        Box::pin(async move {
            let answered = tokio::task::spawn_blocking(move || self.answer(from, &request)).await;
            answered.unwrap_or_else(|_| Err(Refusal("the store failed".to_owned())))
        })
    }
}
