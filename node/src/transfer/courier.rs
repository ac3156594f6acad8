//! Carries checkpoints between this node's store and those of others.
//!
//! The executor calls it before a start (`fence`, `restore`) and the watcher calls it for each new checkpoint
//! (`save`). It moves the sans-io [`Push`] and the pieces of a fetch over the transport, at the pace that the budget
//! allows. The rule kept here: what it reports as held was verified and synced by the store that said so.

mod fetch;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use holdfast_proto::id::{Fence, LeaseId, NodeId};
use holdfast_proto::workload::Checkpoint;

use super::budget::Budget;
use super::manifest::ReadManifest;
use super::push::{Ask, Body, FILES_IN_FLIGHT, Push, PushError};
use super::store::{Held, Store, StoreError};
use super::wire::{CheckpointName, Reply, Request, WireError};
use crate::env::Clock;
use crate::net::{Class, NetError, Transport};

/// Longest wait for an answer that takes the other side no more than one write.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Longest wait for a commit, in which the other side reads and syncs everything.
const COMMIT_WAIT: Duration = Duration::from_secs(300);
/// Longest wait for a gate to acknowledge a token: a dead one must not hold up the start of the work.
const FENCE_WAIT: Duration = Duration::from_millis(1000);
/// Losses in a row before a push or a fetch gives this store up for now.
const LOSSES_MAX: u32 = 5;
/// The same for a store that has not answered at all: it is probably dead, and there may be another.
const LOSSES_MAX_UNHEARD: u32 = 1;
/// Wait after a lost connection, times the number of losses in a row.
const LOSS_WAIT: Duration = Duration::from_millis(100);

/// Why one store did not come to hold a checkpoint, or did not give one.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// The other node could not be reached, or was lost too often.
    #[error("cannot carry the checkpoint")]
    Net(#[source] NetError),
    /// It did not answer in time.
    #[error("node {0} did not answer in time")]
    Silent(NodeId),
    /// Its replica is behind.
    #[error("node {0} has not heard of this start yet")]
    Behind(NodeId),
    /// Its answer is not one of the protocol.
    #[error("the answer of node {node} makes no sense")]
    Answer {
        /// The node.
        node: NodeId,
        /// What is wrong with it, when it is its form.
        #[source]
        source: Option<WireError>,
    },
    /// The protocol ended without success.
    #[error(transparent)]
    Push(#[from] PushError),
    /// The own store failed.
    #[error("the own store failed")]
    Store(#[from] StoreError),
    /// The other store does not have it.
    #[error("node {0} does not hold the checkpoint")]
    NotHeld(NodeId),
}

/// Why a checkpoint was not saved, restored or fenced.
#[derive(Debug, thiserror::Error)]
pub enum CourierError {
    /// A newer start of the lease exists: this one must not run or save any more.
    #[error("a newer start of the lease was shown to a store")]
    Stale {
        /// The newer token.
        shown: Fence,
    },
    /// The own store failed, or the work's folder is not a checkpoint.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Not one other store took it, or had it; the last reason.
    #[error("no store of another node took or had the checkpoint")]
    Nobody(#[source] Option<Box<CarryError>>),
}

/// What became of showing a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Stores that did not acknowledge it in time. What an old start pushes there lies on a path of its own, and only
    /// the log could make it visible, which compares the token itself.
    pub silent: Vec<NodeId>,
}

/// Carries checkpoints for one node. Cheap to clone.
#[derive(Clone)]
pub struct Courier {
    own: NodeId,
    store: Arc<Store>,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    budget: Arc<Mutex<Budget>>,
}

impl Courier {
    /// Carries for node `own`, whose store this is, at no more than this rate.
    pub fn new(
        own: NodeId,
        store: Arc<Store>,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
        max_bytes_per_s: u64,
    ) -> Self {
        let budget = Arc::new(Mutex::new(Budget::new(max_bytes_per_s)));
        Self {
            own,
            store,
            transport,
            clock,
            budget,
        }
    }

    /// The own store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Takes in a round trip of Raft's traffic: bulk gives way when they grow.
    pub fn observe_round_trip(&self, round_trip_us: u64) {
        let now_ms = self.clock.boot_ms();
        self.budget
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .observe_round_trip(now_ms, round_trip_us);
    }

    /// Shows the coming token to the own store and to the gates, before anything of that start runs.
    ///
    /// # Errors
    /// [`CourierError::Stale`] when a store was shown a newer one; a store error when the own disk fails.
    pub async fn fence(&self, lease: LeaseId, fence: Fence, gates: &[NodeId]) -> Result<Shown, CourierError> {
        let store = self.store.clone();
        blocking(move || store.show(lease, fence)).await.map_err(stale)?;
        let others = gates.iter().copied().filter(|gate| *gate != self.own);
        let asks: FuturesUnordered<_> = others
            .map(|gate| async move {
                let request = Request::Fence { lease, fence };
                let answer = self.ask(gate, &request, &[], FENCE_WAIT).await;
                (gate, answer)
            })
            .collect();
        let answers: Vec<_> = asks.collect().await;
        let mut silent = Vec::new();
        for (gate, answer) in answers {
            match answer {
                Ok((Reply::Fenced { .. }, _)) => {}
                Ok((Reply::Stale { shown }, _)) => return Err(CourierError::Stale { shown }),
                _ => silent.push(gate),
            }
        }
        Ok(Shown { silent })
    }

    /// Saves a complete checkpoint of local work: into the own store, then into the first of the targets that takes
    /// it. Without targets (a cluster of one) the own store is all there is.
    ///
    /// # Errors
    /// When the folder is not a complete checkpoint, the start is over, or no target took it.
    pub async fn save(
        &self,
        name: CheckpointName,
        folder: PathBuf,
        targets: &[NodeId],
    ) -> Result<Checkpoint, CourierError> {
        let store = self.store.clone();
        let read = blocking(move || store.take_in(name, &folder)).await.map_err(stale)?;
        let read = Arc::new(read);
        let mut checkpoint = Checkpoint {
            step: name.step,
            rank: name.rank,
            manifest: read.digest,
            bytes: read.manifest.total_bytes(),
            holders: vec![self.own],
        };
        let mut last = None;
        for target in targets {
            match self.push(*target, name, read.clone()).await {
                Ok(()) => {
                    checkpoint.holders.push(*target);
                    checkpoint.holders.sort_unstable();
                    return Ok(checkpoint);
                }
                Err(CarryError::Push(PushError::Stale { shown })) => return Err(CourierError::Stale { shown }),
                Err(error) => last = Some(Box::new(error)),
            }
        }
        if targets.is_empty() {
            Ok(checkpoint)
        } else {
            Err(CourierError::Nobody(last))
        }
    }

    /// Brings a checkpoint into a folder of local work, as the start `fence`: from the own store when it is there,
    /// else from a holder, through the own store. The folder shows it whole or not at all.
    ///
    /// # Errors
    /// When no holder gave it, the start is over, or the own disk fails.
    pub async fn restore(
        &self,
        lease: LeaseId,
        fence: Fence,
        checkpoint: &Checkpoint,
        into: &Path,
    ) -> Result<(), CourierError> {
        let manifest = checkpoint.manifest;
        let store = self.store.clone();
        if blocking(move || store.find(lease, manifest)).await?.is_none() {
            let name = CheckpointName {
                lease,
                fence,
                rank: checkpoint.rank,
                step: checkpoint.step,
            };
            self.fetch_from_any(name, checkpoint).await?;
        }
        let (store, into) = (self.store.clone(), into.to_owned());
        blocking(move || store.restore(lease, manifest, &into))
            .await
            .map_err(stale)
    }

    async fn fetch_from_any(&self, name: CheckpointName, checkpoint: &Checkpoint) -> Result<(), CourierError> {
        let mut last = None;
        for holder in checkpoint.holders.iter().filter(|holder| **holder != self.own) {
            match self.fetch(*holder, name, checkpoint.manifest).await {
                Ok(()) => return Ok(()),
                Err(CarryError::Store(error)) => return Err(stale(error)),
                Err(error) => last = Some(Box::new(error)),
            }
        }
        Err(CourierError::Nobody(last))
    }

    /// Pushes a checkpoint of the own store to another.
    async fn push(&self, to: NodeId, name: CheckpointName, read: Arc<ReadManifest>) -> Result<(), CarryError> {
        let (store, digest) = (self.store.clone(), read.digest);
        let found = blocking(move || store.find(name.lease, digest)).await?;
        let held = Arc::new(found.ok_or(StoreError::NotHeld)?);
        let mut push = Push::new(name, read);
        let mut flying = FuturesUnordered::new();
        let mut losses = 0;
        let mut heard = false;
        loop {
            if let Some(outcome) = push.outcome() {
                return outcome.clone().map_err(CarryError::from);
            }
            while flying.len() < FILES_IN_FLIGHT
                && let Some(ask) = push.next_ask()
            {
                let round = push.round();
                let answer = self.carry(to, held.clone(), ask);
                flying.push(async move { (round, answer.await) });
            }
            let Some((round, answer)) = flying.next().await else {
                return Err(CarryError::Push(PushError::NoProgress));
            };
            if round != push.round() {
                continue;
            }
            match answer {
                Ok(reply) => {
                    losses = 0;
                    heard = true;
                    push.reply(&reply);
                }
                Err(error) if losses < losses_max(&error, heard) => {
                    losses += 1;
                    // What is still under way belongs to the lost round; the next one must not wait for it.
                    flying.clear();
                    push.lost();
                    tokio::time::sleep(LOSS_WAIT * losses).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Carries one ask of a push and brings back its answer.
    async fn carry(&self, to: NodeId, held: Arc<Held>, ask: Ask) -> Result<Reply, CarryError> {
        let body = match ask.body {
            Body::Empty => Vec::new(),
            Body::Manifest => held.read.bytes.clone(),
            Body::Part { file, offset, bytes } => {
                let store = self.store.clone();
                let part = blocking(move || store.read(&held, file, offset, bytes)).await?;
                self.pace(u64::from(bytes)).await;
                part
            }
        };
        let wait = if matches!(ask.request, Request::Commit { .. }) {
            COMMIT_WAIT
        } else {
            ANSWER_WAIT
        };
        self.ask(to, &ask.request, &body, wait).await.map(|(reply, _)| reply)
    }

    /// Waits until the budget allows so many bytes.
    async fn pace(&self, bytes: u64) {
        let now_ms = self.clock.boot_ms();
        let wait_ms = self
            .budget
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(now_ms, bytes);
        if wait_ms > 0 {
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        }
    }

    async fn ask(
        &self,
        to: NodeId,
        request: &Request,
        body: &[u8],
        wait: Duration,
    ) -> Result<(Reply, Bytes), CarryError> {
        let call = self.transport.call(to, Class::Transfer, request.encode(body));
        let answer = tokio::time::timeout(wait, call)
            .await
            .map_err(|_| CarryError::Silent(to))?;
        let message = answer.map_err(CarryError::Net)?;
        match Reply::decode(&message) {
            Ok((Reply::NotYet, _)) => Err(CarryError::Behind(to)),
            Ok(answer) => Ok(answer),
            Err(source) => Err(CarryError::Answer {
                node: to,
                source: Some(source),
            }),
        }
    }
}

/// How often in a row the same node is asked again after this error; 0 when asking again cannot help.
fn losses_max(error: &CarryError, heard: bool) -> u32 {
    match error {
        CarryError::Behind(_) => LOSSES_MAX,
        CarryError::Silent(_) | CarryError::Net(NetError::Lost { .. } | NetError::Unreachable { .. }) => {
            if heard {
                LOSSES_MAX
            } else {
                LOSSES_MAX_UNHEARD
            }
        }
        _ => 0,
    }
}

fn stale(error: StoreError) -> CourierError {
    match error {
        StoreError::Stale { shown } => CourierError::Stale { shown },
        error => CourierError::Store(error),
    }
}

/// Runs work on the disk away from the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // Only when the runtime shuts down or the work panicked; a panic goes on here.
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(StoreError::NotHeld),
        },
    }
}

#[cfg(test)]
#[path = "courier_tests.rs"]
mod tests;
