//! Whether replicas agree: each compares the hashes that come through the log with those of its own state.
//!
//! Runs on every replica. A hash that differs says that two replicas differ and not which of them is wrong, so the
//! voters are asked for theirs; whoever is asked looks at its own state too. The one rule: a replica stops only when a
//! majority of the voters has another hash than it has, so that one wrong leader does not stop its healthy followers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use holdfast_proto::id::{Cursor, Digest, NodeId};
use holdfast_storage::CommittedSource;
use holdfast_storage::adapter::StateClaim;
use holdfast_storage::types::Types;
use openraft::AsyncRuntime;
use openraft::storage::RaftStateMachine;
use openraft_rt::watch::WatchReceiver;

use super::replica::Replica;
use super::wire::{Answer, Question};

/// How often it is looked for another hash in the log.
const PERIOD: Duration = Duration::from_secs(1);

/// This replica's hashes of its state, at the positions where all replicas keep theirs.
pub trait Hashes: Send + Sync + 'static {
    /// The last hash that came through the log.
    fn claimed(&self) -> Option<StateClaim>;

    /// What the state here hashed to at a position. May take long; called off the async threads.
    fn hash_at(&self, at: Cursor) -> Option<Digest>;
}

/// The hashes of what a replica has applied.
pub struct Applied(pub Arc<dyn CommittedSource>);

impl Hashes for Applied {
    fn claimed(&self) -> Option<StateClaim> {
        self.0.claimed_hash()
    }

    fn hash_at(&self, at: Cursor) -> Option<Digest> {
        self.0.hash_at(at)
    }
}

/// What to do when this replica's state is found to differ from the others'; told in words.
pub type OnDiverged = Arc<dyn Fn(String) + Send + Sync>;

/// The hashes, and whether somebody doubts them.
pub struct Compared {
    hashes: Arc<dyn Hashes>,
    doubted: Mutex<Option<Cursor>>,
}

impl Compared {
    /// For one replica.
    pub fn new(hashes: Arc<dyn Hashes>) -> Self {
        Self {
            hashes,
            doubted: Mutex::new(None),
        }
    }

    fn doubted(&self) -> MutexGuard<'_, Option<Cursor>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers another replica, which asks because hashes differ.
    pub(super) fn asked(&self, at: Cursor) -> Option<Digest> {
        *self.doubted() = Some(at);
        self.hashes.hash_at(at)
    }
}

/// What the voters' hashes say about ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// A majority has ours.
    Sound,
    /// A majority has this one instead.
    Diverged(Digest),
    /// No majority has answered yet, or there is none.
    Open,
}

/// The duty.
pub struct Agreement<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    replica: Arc<Replica<RT, SM>>,
    compared: Arc<Compared>,
    on_diverged: OnDiverged,
    /// The position that was judged last.
    settled: Option<Cursor>,
}

impl<RT, SM> Agreement<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// For one replica.
    pub fn new(replica: Arc<Replica<RT, SM>>, compared: Arc<Compared>, on_diverged: OnDiverged) -> Self {
        Self {
            replica,
            compared,
            on_diverged,
            settled: None,
        }
    }

    /// Runs until openraft stops, or this replica has to.
    pub async fn run(mut self) {
        loop {
            RT::sleep(PERIOD).await;
            if self.replica.raft.metrics().borrow_watched().running_state.is_err() {
                return;
            }
            let Some(claim) = self.compared.hashes.claimed() else {
                continue;
            };
            let doubted = *self.compared.doubted() == Some(claim.at);
            if self.settled == Some(claim.at) && !doubted {
                continue;
            }
            if let Some(reason) = self.compare(claim, doubted).await {
                tracing::error!("{reason}");
                (self.on_diverged)(reason);
                return;
            }
        }
    }

    /// Compares; gives the reason to stop, if there is one.
    async fn compare(&mut self, claim: StateClaim, doubted: bool) -> Option<String> {
        let at = claim.at;
        let hashes = self.compared.hashes.clone();
        let ours = RT::spawn_blocking(move || hashes.hash_at(at)).await.ok().flatten();
        let Some(ours) = ours.filter(|ours| doubted || *ours != claim.hash) else {
            self.settled = Some(at);
            return None;
        };
        match judge(self.replica.me, ours, &self.ask_voters(at).await) {
            Judgement::Sound => {
                if !doubted {
                    tracing::error!(%at, "a state hash in the log is not that of most voters; the replica that proposed it is wrong and will stop");
                }
                *self.compared.doubted() = None;
                self.settled = Some(at);
                None
            }
            Judgement::Diverged(theirs) => Some(format!(
                "this replica's state at position {at} hashes to {ours}, and that of most voters to {theirs}: its copy cannot be trusted, and it was stopped before it could do harm; \
                 keep a copy of the data folder for an inquiry, move it away and join this machine again as a new node"
            )),
            Judgement::Open => {
                tracing::warn!(%at, "state hashes differ between replicas, and no majority has told its own yet");
                None
            }
        }
    }

    /// The hashes of all voters at a position; our own is not among them.
    async fn ask_voters(&self, at: Cursor) -> BTreeMap<NodeId, Option<Digest>> {
        let metrics = self.replica.raft.metrics().borrow_watched().clone();
        let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().map(NodeId).collect();
        let asked = voters.into_iter().map(|voter| async move {
            if voter == self.replica.me {
                return (voter, None);
            }
            match self.replica.ask(voter, &Question::StateHash(at)).await {
                Ok(Answer::StateHash(hash)) => (voter, hash),
                _ => (voter, None),
            }
        });
        join_all(asked).await.into_iter().collect()
    }
}

/// Judges our hash by those of the voters, ours among them if we vote.
fn judge(me: NodeId, ours: Digest, voters: &BTreeMap<NodeId, Option<Digest>>) -> Judgement {
    let mut votes: BTreeMap<Digest, usize> = BTreeMap::new();
    for (voter, hash) in voters {
        let hash = if *voter == me { Some(ours) } else { *hash };
        if let Some(hash) = hash {
            *votes.entry(hash).or_default() += 1;
        }
    }
    let majority = votes.into_iter().find(|(_, count)| *count > voters.len() / 2);
    match majority {
        Some((hash, _)) if hash == ours => Judgement::Sound,
        Some((hash, _)) => Judgement::Diverged(hash),
        None => Judgement::Open,
    }
}

/// Starts the duty on the runtime.
pub fn start<RT, SM>(agreement: Agreement<RT, SM>)
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    let run: BoxFuture<'static, ()> = Box::pin(agreement.run());
    drop(RT::spawn(run));
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Digest = Digest([1; 32]);
    const THEIRS: Digest = Digest([2; 32]);

    fn check(me: u64, others: &[(u64, Option<Digest>)]) -> Judgement {
        let voters = others.iter().map(|(node, hash)| (NodeId(*node), *hash)).collect();
        judge(NodeId(me), OURS, &voters)
    }

    #[test]
    fn a_replica_stops_only_when_most_voters_have_another_hash() {
        let (ours, theirs) = (Some(OURS), Some(THEIRS));
        assert_eq!(
            check(1, &[(1, None), (2, theirs), (3, theirs)]),
            Judgement::Diverged(THEIRS)
        );
        assert_eq!(check(1, &[(1, None), (2, ours), (3, theirs)]), Judgement::Sound);
        assert_eq!(check(1, &[(1, None), (2, theirs), (3, None)]), Judgement::Open);
        // A learner has no voice.
        assert_eq!(
            check(9, &[(1, theirs), (2, theirs), (3, None)]),
            Judgement::Diverged(THEIRS)
        );
        assert_eq!(check(9, &[(1, theirs), (2, ours), (3, None)]), Judgement::Open);
    }
}
