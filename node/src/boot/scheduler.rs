//! Runs the scheduler while this replica leads, and records the state's hash for all to compare.

use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::command::Command;
use holdfast_proto::id::{Cursor, LeaseId, NodeId};
use holdfast_storage::machine::State;
use holdfast_storage::source::CommittedSource;
use tokio::sync::mpsc;

use super::envelope::by_node;
use super::node::{NodeReplica, Shared};
use crate::consensus::leadership::Lead;
use crate::consensus::{Outcome, Propose};
use crate::scheduler::Scheduler;

/// Longest time between two looks: leases expire by the clock, not by an entry.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same while no lease lives.
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two state hashes in the log, on the boot clock.
const HASH_EVERY_MS: u64 = 60_000;

/// Starts the leader's duty; it works only while this replica leads and has applied an entry of its own term.
pub(super) fn start(shared: &Shared) {
    let (me, state, replica) = (shared.me, shared.state.clone(), shared.replica.clone());
    let source = shared.source.clone();
    let (mut applied, clock) = (shared.source.applied(), shared.clock.clone());
    tokio::spawn(async move {
        let mut scheduler = Scheduler::new();
        let (mut term, mut hashed_ms, mut hashed_at) = (None, clock.boot_ms(), Cursor::default());
        let (settled, mut unplaced) = mpsc::unbounded_channel();
        loop {
            let leadership = replica.leadership();
            if !leadership.own_term_applied {
                term = None;
                // Nothing to look at until it leads.
                tokio::select! {
                    _ = replica.changed(leadership) => continue,
                    more = applied.changed() => if more.is_some() { continue } else { return },
                }
            }
            if term != Some(leadership.term) {
                // All of a leader's memory begins empty with its term.
                scheduler = Scheduler::new();
                term = Some(leadership.term);
            }
            while let Ok(lease) = unplaced.try_recv() {
                scheduler.settled(lease);
            }
            let now = state();
            let idle = now.live_leases().next().is_none();
            for command in scheduler.step(clock.boot_ms(), replica.clock().time(), &now) {
                propose(me, &replica, command, settled.clone());
            }
            if clock.boot_ms().saturating_sub(hashed_ms) >= HASH_EVERY_MS && now.cluster.cursor > hashed_at {
                (hashed_ms, hashed_at) = (clock.boot_ms(), now.cluster.cursor);
                record_hash(me, &replica, &source, now, settled.clone());
            }
            let wait = if idle { IDLE_LOOK_EVERY } else { LOOK_EVERY };
            if let Ok(None) = tokio::time::timeout(wait, applied.changed()).await {
                return;
            }
        }
    });
}

/// Proposes the hash of a state that all replicas keep, or of the present one when nothing has changed for long.
fn record_hash(
    me: NodeId,
    replica: &Arc<NodeReplica>,
    source: &Arc<dyn CommittedSource>,
    now: Arc<State>,
    settled: mpsc::UnboundedSender<LeaseId>,
) {
    let (replica, source) = (replica.clone(), source.clone());
    tokio::spawn(async move {
        let hashed = tokio::task::spawn_blocking(move || {
            let recorded = now.cluster.hashed.map(|recorded| recorded.at);
            let point = source.hash_point().filter(|point| Some(*point) > recorded);
            let at_point = point.and_then(|at| Some((at, source.hash_at(at)?)));
            at_point.unwrap_or_else(|| (now.cluster.cursor, now.hash()))
        });
        if let Ok((at, hash)) = hashed.await {
            propose(me, &replica, Command::RecordStateHash { at, hash }, settled);
        }
    });
}

/// Proposes without waiting; the scheduler is told of a lease whose proposal did not take effect.
fn propose(me: NodeId, replica: &Arc<NodeReplica>, command: Command, settled: mpsc::UnboundedSender<LeaseId>) {
    let lease = match &command {
        Command::CommitPlacement { lease, .. } | Command::EndLease { lease, .. } => Some(*lease),
        _ => None,
    };
    let (replica, envelope) = (replica.clone(), by_node(me, command));
    tokio::spawn(async move {
        let outcome = replica.propose(envelope).await;
        if !matches!(outcome, Outcome::Applied { .. }) {
            tracing::info!(?outcome, "a proposal of the scheduler did not take effect");
            if let Some(lease) = lease {
                // Nobody listens any more when the node is stopping.
                let _ = settled.send(lease);
            }
        }
    });
}
