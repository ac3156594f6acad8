//! What a start of a lease needs of transfers: the token shown, the saved state brought, and the watch kept.
//!
//! The executor's surroundings call `prepare` before they report a member as prepared, and `follow` at each look at
//! what runs here. The rule kept here: fence first, run second. No saved state is brought before every gate that can
//! be heard has refused the starts before this one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::id::{Attempt, Epoch, Fence, LeaseId, NodeId};
use holdfast_storage::machine::State;
use holdfast_storage::machine::state::Run;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::courier::{Courier, CourierError};
use super::replica::Replica;
use super::watch::{LOOK_EVERY, LOOK_EVERY_UNASKED, WatchEnd, Watched, Watcher};

/// Time between two looks at what the store may give up.
const HOUSE_EVERY: Duration = Duration::from_secs(10);

/// One start that has a folder on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalRun {
    /// The lease.
    pub lease: LeaseId,
    /// The placement.
    pub epoch: Epoch,
    /// The start.
    pub attempt: Attempt,
    /// Its `HOLDFAST_CHECKPOINT_DIR`.
    pub folder: PathBuf,
}

/// A watcher that runs.
struct Watching {
    ended: watch::Sender<bool>,
    task: JoinHandle<WatchEnd>,
}

/// Transfers for the starts on this node.
pub struct Starts {
    courier: Courier,
    replica: Arc<Replica>,
    runtime: Handle,
    watching: BTreeMap<(LeaseId, Epoch, Attempt), Watching>,
}

impl Starts {
    /// Transfers whose tasks run on this runtime.
    pub fn new(courier: Courier, replica: Arc<Replica>, runtime: Handle) -> Self {
        Self {
            courier,
            replica,
            runtime,
            watching: BTreeMap::new(),
        }
    }

    /// What `prepare` needs, for a task of its own.
    pub fn preparing(&self) -> Preparing {
        Preparing {
            courier: self.courier.clone(),
            replica: self.replica.clone(),
        }
    }

    /// Keeps a watcher beside each start that may save itself. A start that is over is looked at once more, and its
    /// watcher ends by itself. `runs` are those that have a folder here, over or not.
    pub fn follow(&mut self, state: &State, runs: &[LocalRun]) {
        self.watching
            .retain(|_, watching| !watching.task.is_finished() || !*watching.ended.borrow());
        for run in runs {
            let key = (run.lease, run.epoch, run.attempt);
            let standing = Standing::of(state, self.replica.own(), run);
            match (self.watching.get(&key), standing) {
                (None, Standing::Runs(watched)) => {
                    let watcher = Watcher::new(self.courier.clone(), self.replica.clone(), watched);
                    let (ended, when_ended) = watch::channel(false);
                    let task = self.runtime.spawn(watcher.run(when_ended));
                    self.watching.insert(key, Watching { ended, task });
                }
                (Some(watching), Standing::Over) => {
                    watching.ended.send_replace(true);
                }
                _ => {}
            }
        }
        let is_gone =
            |key: &(LeaseId, Epoch, Attempt)| !runs.iter().any(|run| (run.lease, run.epoch, run.attempt) == *key);
        for watching in self
            .watching
            .iter()
            .filter(|(key, _)| is_gone(key))
            .map(|(_, watching)| watching)
        {
            watching.ended.send_replace(true);
        }
    }

    /// Removes what no lease will resume from, again and again. Runs until it is dropped.
    pub async fn keep_house(courier: Courier, replica: Arc<Replica>) {
        let mut tick = tokio::time::interval(HOUSE_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let (store, replica) = (courier.store().clone(), replica.clone());
            let kept = tokio::task::spawn_blocking(move || replica.keep_house(&store)).await;
            if let Ok(Err(error)) = kept {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "old checkpoints could not be removed"
                );
            }
        }
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        for watching in self.watching.values() {
            watching.task.abort();
        }
    }
}

/// How a start stands in the log.
#[derive(Debug)]
enum Standing {
    /// It was accepted and its end is not known.
    Runs(Watched),
    /// It is being prepared.
    Before,
    /// It has ended, or a newer one exists.
    Over,
}

impl Standing {
    fn of(state: &State, own: NodeId, run: &LocalRun) -> Self {
        let lease = state.leases.get(&run.lease);
        let Some(placement) = lease.and_then(|lease| lease.placement.as_ref()) else {
            return Self::Over;
        };
        let Some(member) = placement.member(own).filter(|_| placement.epoch == run.epoch) else {
            return Self::Over;
        };
        if run.attempt > placement.attempt {
            return Self::Before;
        }
        if run.attempt < placement.attempt || !matches!(member.run, Run::Accepted(_) | Run::Started(_)) {
            return Self::Over;
        }
        let fence = Fence {
            token: placement.token,
            epoch: run.epoch,
            attempt: run.attempt,
        };
        let restored = lease.and_then(|lease| lease.checkpoints.iter().map(|checkpoint| checkpoint.step).max());
        let is_asked = lease.is_some_and(|lease| lease.requested.workload.checkpoints);
        let look_every = if is_asked { LOOK_EVERY } else { LOOK_EVERY_UNASKED };
        let folder = run.folder.clone();
        let rank = member.allocation.rank;
        Self::Runs(Watched {
            lease: run.lease,
            fence,
            rank,
            folder,
            restored,
            look_every,
        })
    }
}

/// Prepares starts.
#[derive(Clone)]
pub struct Preparing {
    courier: Courier,
    replica: Arc<Replica>,
}

impl Preparing {
    /// Shows the coming token to the gates, then brings the newest saved state into the start's own folder.
    ///
    /// # Errors
    /// When a newer start exists, or the saved state could not be brought.
    pub async fn prepare(&self, lease: LeaseId, fence: Fence, folder: &Path) -> Result<(), CourierError> {
        let shown = self.courier.fence(lease, fence, &self.replica.gates(lease)).await?;
        if !shown.silent.is_empty() {
            tracing::info!(%lease, silent = ?shown.silent, "some stores did not acknowledge the coming token");
        }
        match self.replica.restore_point(lease, fence) {
            Some(checkpoint) => self.courier.restore(lease, fence, &checkpoint, folder).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "starts_tests.rs"]
mod tests;
