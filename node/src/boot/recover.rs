//! Going on alone: a survivor becomes the only voter after a majority of the voters was lost for ever.
//!
//! Done offline, in two steps. [`recover`] writes one entry to the end of the survivor's log, which makes it the only
//! voter; everything before it in that log counts as committed from then on. [`begin_anew`] begins a new era at the
//! next start, before anybody is served, so that tokens which the lost voters may have given out are fenced.
//!
//! The rule: the log is only added to. What is lost is what only the lost voters had.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::command::Command;
use holdfast_proto::id::{Era, NodeId};
use holdfast_storage::adapter::{Adapter, Folders};
use holdfast_storage::disk::{Disk, RealDisk};
use holdfast_storage::types::{Entry, LeaderId, LogId, Membership, Payload, Peer, Vote};
use holdfast_storage::{event_log, raft_log};
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage, RaftStateMachine};
use openraft_rt_tokio::TokioRuntime;

use super::envelope::by_node;
use super::found::Beginning;
use super::genesis::{effected, first_entry};
use super::node::Shared;
use crate::bearer::Bearer;
use crate::cli::daemon::{DaemonError, Recovery};
use crate::config::Config;
use crate::consensus::Linearize;
use crate::identity::folder::{DataFolder, NodeFile, write_durably};

/// Lies in the data folder from the recovery until the new era has begun.
const MARK: &str = "recovered";

/// Longest wait for the only voter to lead: it may have much to apply.
const ALONE_WITHIN: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

type Log = raft_log::RaftLog<TokioRuntime>;

/// Makes the folder's node the only voter; with `dry_run` only looks.
pub(super) fn recover(config: &Config, dry_run: bool) -> Result<Recovery, DaemonError> {
    let (folder, file) = DataFolder::open(&config.data).map_err(|error| DaemonError::refused(&error))?;
    super::briefly(recover_in(&folder, &file, dry_run))?
}

async fn recover_in(folder: &DataFolder, file: &NodeFile, dry_run: bool) -> Result<Recovery, DaemonError> {
    let failed = |error: &dyn std::error::Error| DaemonError::failed(error);
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let folders = Folders::in_data(folder.root());
    let adapter = Adapter::<TokioRuntime>::open(&disk, &folders, event_log::Options::default());
    let (mut machine, _) = adapter.map_err(|error| failed(&error))?;
    let opened = raft_log::Opened::open(disk, &folder.part("raft"), raft_log::Options::default());
    let started = opened.map_err(|error| failed(&error))?.start_thread(None);
    let (mut log, thread) = started.map_err(|error| failed(&error))?;
    let found = look(&mut log, &mut machine).await.map_err(|error| failed(&error))?;
    let me = file.node;
    if !found.members.voter_ids().any(|voter| voter == me.0) {
        return Err(refused(format!(
            "node {me} does not vote where its log ends; go on with a voter"
        )));
    }
    let without: BTreeSet<u64> = found.members.voter_ids().filter(|voter| *voter != me.0).collect();
    if without.is_empty() {
        return Err(refused(format!(
            "node {me} is the only voter already; run `holdfast serve`"
        )));
    }
    if !dry_run {
        // The mark first: a crash after it only begins an era too many.
        write_durably(&folder.part(MARK), b"", 0o600).map_err(|error| failed(&error))?;
        go_on_alone(&mut log, me, &found, &without)
            .await
            .map_err(|error| failed(&error))?;
    }
    drop((log, machine));
    thread.join();
    Ok(Recovery {
        cluster: file.cluster,
        node: me,
        last_term: found.last.map_or(0, |last| last.leader_id.term),
        last_index: found.last.map_or(0, |last| last.index),
        committed_index: found.committed.map_or(0, |committed| committed.index),
        without: without.into_iter().map(NodeId).collect(),
        done: !dry_run,
    })
}

fn refused(reason: String) -> DaemonError {
    DaemonError { reason, exit_code: 1 }
}

/// What the folder says.
struct Found {
    last: Option<LogId>,
    committed: Option<LogId>,
    vote: Option<Vote>,
    members: Membership,
}

async fn look(log: &mut Log, machine: &mut Adapter<TokioRuntime>) -> std::io::Result<Found> {
    let state = log.get_log_state().await?;
    let (applied, in_state) = machine.applied_state().await?;
    let mut members = in_state.membership().clone();
    let last = state.last_log_id.max(applied);
    let mut next = state.last_purged_log_id.map_or(0, |purged| purged.index + 1);
    let end = last.map_or(0, |last| last.index + 1);
    while next < end {
        let entries = log.limited_get_log_entries(next, end).await?;
        let Some(read) = entries.last().map(|entry| entry.log_id.index) else {
            break;
        };
        for entry in entries {
            if let Payload::Membership(changed) = entry.payload {
                members = changed;
            }
        }
        next = read + 1;
    }
    Ok(Found {
        last,
        committed: log.read_committed().await?.max(applied),
        vote: log.read_vote().await?,
        members,
    })
}

/// Ends the log with an entry that makes this node the only voter, under a term that nobody has seen.
async fn go_on_alone(log: &mut Log, me: NodeId, found: &Found, without: &BTreeSet<u64>) -> std::io::Result<()> {
    let voted = found.vote.map_or(0, |vote| vote.leader_id.term);
    let term = voted.max(found.last.map_or(0, |last| last.leader_id.term)) + 1;
    let leader_id = LeaderId { term, node_id: me.0 };
    let nodes: BTreeMap<u64, Peer> = found
        .members
        .nodes()
        .filter(|(node, _)| !without.contains(node))
        .map(|(node, peer)| (*node, peer.clone()))
        .collect();
    let alone = Membership::new(vec![BTreeSet::from([me.0])], nodes).map_err(std::io::Error::other)?;
    let log_id = LogId {
        leader_id,
        index: found.last.map_or(0, |last| last.index + 1),
    };
    log.save_vote(&Vote {
        leader_id,
        committed: false,
    })
    .await?;
    if log.get_log_state().await?.last_log_id < found.last
        && let Some(last) = found.last
    {
        // The newest snapshot is ahead of the log; the log goes on after it.
        log.purge(last).await?;
    }
    let payload = Payload::Membership(alone);
    log.append([Entry { log_id, payload }], IOFlushed::noop()).await?;
    log.settle().await
}

/// Begins a new era, if this node goes on alone since its last start; gives the operator's new token.
pub(super) async fn begin_anew(parts: &Shared, beginning: &Beginning) -> Result<Option<Bearer>, DaemonError> {
    let mark: PathBuf = beginning.folder.part(MARK);
    if !mark.exists() {
        return Ok(None);
    }
    // The state is complete once a fresh read is served; the duty towards the members records that this node votes.
    let alone = async {
        while parts.replica.linearize().await.is_err() || !(parts.state)().cluster.voters.contains(&parts.me) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    if tokio::time::timeout(ALONE_WITHIN, alone).await.is_err() {
        return Err(DaemonError {
            reason: format!("this node does not lead alone within {ALONE_WITHIN:?}; look at its log"),
            exit_code: 70,
        });
    }
    let era = Era((parts.state)().cluster.era.0 + 1);
    let operator = beginning.operator()?;
    let init = first_entry(parts, beginning, &operator, era)?;
    let begun = parts
        .propose
        .propose(by_node(parts.me, Command::InitCluster(Box::new(init))))
        .await;
    effected(begun, "the first entry of the new era")?;
    std::fs::remove_file(&mark).map_err(|error| DaemonError::failed(&error))?;
    tracing::warn!(era = era.0, "this node goes on alone; a new era has begun");
    Ok(Some(operator))
}
