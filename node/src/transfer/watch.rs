//! Watches one start of a lease for new checkpoints, saves them, and has them committed.
//!
//! The executor spawns one [`Watcher`] beside the work and tells it when the work has ended. The rules kept here: a
//! checkpoint is proposed only after another store has acknowledged it as durable; the newest comes first, and one
//! that was overtaken while it was on its way is not missed; a folder that is not sound is tried once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_proto::id::{Digest, Fence, LeaseId, NodeId};
use holdfast_proto::workload::Checkpoint;
use tokio::sync::watch;

use super::courier::{Courier, CourierError};
use super::manifest;
use super::store::StoreError;
use super::wire::CheckpointName;
use crate::consensus::Outcome;

/// Time between two looks at the folder of work that said it saves itself. A look lists one folder.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time between two looks for work that did not say so, and may do it still.
pub const LOOK_EVERY_UNASKED: Duration = Duration::from_secs(1);
/// Wait after a save or a proposal that failed for a reason that may pass, doubled with each failure.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// What the watcher needs of the cluster.
pub trait Commits: Send + Sync + 'static {
    /// The stores to try for this lease, best first, by what this replica knows now.
    fn targets(&self, lease: LeaseId) -> Vec<NodeId>;

    /// Proposes the checkpoint as committed.
    fn commit(&self, lease: LeaseId, fence: Fence, checkpoint: Checkpoint) -> BoxFuture<'_, Outcome>;
}

/// What is watched.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The lease.
    pub lease: LeaseId,
    /// The start.
    pub fence: Fence,
    /// The member of the gang.
    pub rank: u32,
    /// The work's `HOLDFAST_CHECKPOINT_DIR`.
    pub folder: PathBuf,
    /// The newest step that is committed already, such as the one that the start resumed from.
    pub restored: Option<u64>,
    /// Time between two looks.
    pub look_every: Duration,
}

/// How watching ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnd {
    /// The work has ended and its last checkpoint is committed, or there was none, or it was given up.
    Finished,
    /// A newer start of the lease exists: nothing of this one is taken any more.
    Stale,
}

/// What may be saved next, judged from one look at the folder. Sans-io.
#[derive(Debug, Default)]
pub struct Course {
    /// The newest step that is done with: committed, refused, or restored from.
    done: Option<u64>,
    /// A folder that is not a checkpoint, and is not looked at again while its manifest stays the same.
    unsound: Option<(u64, Digest)>,
}

impl Course {
    /// A course that begins after the step that the start resumed from.
    pub fn new(restored: Option<u64>) -> Self {
        Self {
            done: restored,
            unsound: None,
        }
    }

    /// The newest checkpoint in the folder that is not done with yet. Blocks on the disk.
    pub fn look(&self, folder: &Path) -> Option<(u64, PathBuf, Digest)> {
        // A folder that cannot be listed now is listed again at the next look.
        let steps = manifest::steps_in(folder).ok()?;
        let newer = steps
            .into_iter()
            .take_while(|(step, _)| self.done.is_none_or(|done| *step > done));
        newer
            .filter_map(|(step, path)| manifest::read_manifest(&path).ok().map(|read| (step, path, read)))
            .find(|(step, _, read)| read.manifest.step == *step && self.unsound != Some((*step, read.digest)))
            .map(|(step, path, read)| (step, path, read.digest))
    }

    /// Nothing up to this step is looked at again.
    pub fn finish(&mut self, step: u64) {
        self.done = self.done.max(Some(step));
    }

    /// This folder is not a checkpoint.
    pub fn reject(&mut self, step: u64, manifest: Digest) {
        self.unsound = Some((step, manifest));
    }
}

/// Watches one start.
pub struct Watcher {
    courier: Courier,
    commits: Arc<dyn Commits>,
    watched: Watched,
}

/// What became of one try.
enum Try {
    /// There was nothing to do.
    Idle,
    /// A checkpoint is done with.
    Done,
    /// It may work later.
    Later,
    /// The start is over.
    Stale,
}

impl Watcher {
    /// A watcher that has not looked yet.
    pub fn new(courier: Courier, commits: Arc<dyn Commits>, watched: Watched) -> Self {
        Self {
            courier,
            commits,
            watched,
        }
    }

    /// Watches until `ended` is true and the last checkpoint is dealt with, or the start is over. A caller that does
    /// not want to wait for the last one drops the future: every step may be cut off.
    pub async fn run(self, mut ended: watch::Receiver<bool>) -> WatchEnd {
        let mut course = Course::new(self.watched.restored);
        let mut retry = RETRY_FIRST;
        loop {
            // Read before the look: a checkpoint made before the end is seen by a look after it.
            let has_ended = *ended.borrow_and_update();
            let tried;
            (course, tried) = self.turn(course).await;
            let wait = match tried {
                Try::Stale => return WatchEnd::Stale,
                Try::Idle if has_ended => return WatchEnd::Finished,
                Try::Done => {
                    retry = RETRY_FIRST;
                    continue;
                }
                Try::Idle => self.watched.look_every,
                Try::Later => {
                    retry = (retry * 2).min(RETRY_MAX);
                    retry / 2
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                changed = ended.changed(), if !has_ended => {
                    // Without anyone who could say that the work has ended, it has.
                    if changed.is_err() { return WatchEnd::Finished }
                }
            }
        }
    }

    async fn turn(&self, mut course: Course) -> (Course, Try) {
        let folder = self.watched.folder.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let found = course.look(&folder);
            (course, found)
        });
        let found;
        (course, found) = match looked.await {
            Ok(looked) => looked,
            // The runtime shuts down.
            Err(_) => return (Course::new(self.watched.restored), Try::Later),
        };
        let Some((step, path, manifest)) = found else {
            return (course, Try::Idle);
        };
        let Watched { lease, fence, rank, .. } = self.watched;
        let name = CheckpointName {
            lease,
            fence,
            rank,
            step,
        };
        let targets = self.commits.targets(lease);
        let checkpoint = match self.courier.save(name, path, &targets).await {
            Ok(checkpoint) => checkpoint,
            Err(CourierError::Stale { shown }) => {
                tracing::warn!(%lease, step, token = %shown.token, "a newer start of the lease exists; nothing more is saved");
                return (course, Try::Stale);
            }
            Err(CourierError::Store(
                StoreError::Manifest(_) | StoreError::Conflict { .. } | StoreError::OtherStep { .. },
            )) => {
                tracing::warn!(%lease, step, "a folder is not a sound checkpoint and is passed over");
                course.reject(step, manifest);
                return (course, Try::Done);
            }
            Err(error) => {
                tracing::warn!(%lease, step, error = &error as &dyn std::error::Error, "a checkpoint could not be saved yet");
                return (course, Try::Later);
            }
        };
        let tried = self.propose(step, checkpoint, &mut course).await;
        (course, tried)
    }

    async fn propose(&self, step: u64, checkpoint: Checkpoint, course: &mut Course) -> Try {
        let Watched { lease, fence, .. } = self.watched;
        match self.commits.commit(lease, fence, checkpoint).await {
            Outcome::Applied { .. } => {
                tracing::info!(%lease, step, "checkpoint committed");
                course.finish(step);
                Try::Done
            }
            // Refused for good: it is older than a committed one, or this start is over, which the executor learns
            // from the log itself.
            Outcome::Refused { rejection, .. } => {
                tracing::info!(%lease, step, %rejection, "checkpoint refused");
                course.finish(step);
                Try::Done
            }
            Outcome::Unknown { reason } => {
                tracing::warn!(%lease, step, reason, "whether the checkpoint is committed is not known; asking again");
                Try::Later
            }
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
