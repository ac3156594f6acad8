//! How a replica is put together.
//!
//! Owns the order in which openraft, its network, its services and its duties are made. `boot.rs` calls it with real parts, the
//! simulator with its own. The one rule: what differs between the two comes in as a part; nothing here asks which world it is in.

use std::sync::Arc;

use holdfast_proto::id::NodeId;
use holdfast_storage::types::Types;
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::{AsyncRuntime, Config, Raft};

use super::clock::{AppliedStamp, ClusterClock};
use super::forward::{AuthorityKey, OnForgot, QuestionService};
use super::membership::{Membership, ReadPicture};
use super::network::serve::{MayVote, RaftService, SnapshotService};
use super::network::snapshot::SnapshotFiles;
use super::network::{Network, Promises};
use super::replica::Replica;
use crate::env::Clock;
use crate::net::router::Router;
use crate::net::{Class, Transport};

/// What a replica is made of.
pub struct Parts<RT, SM, LS>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// This node.
    pub me: NodeId,
    /// openraft's options; see [`super::config`].
    pub config: Arc<Config>,
    /// The Raft log.
    pub log: LS,
    /// The state machine.
    pub machine: SM,
    /// Where snapshots are read and received.
    pub files: Arc<dyn SnapshotFiles<SM::SnapshotData>>,
    /// How others are reached.
    pub transport: Arc<dyn Transport>,
    /// Where this replica's Raft and snapshot services are registered.
    pub router: Arc<Router>,
    /// This machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// Tells the stamp of the last applied entry.
    pub applied_stamp: AppliedStamp,
    /// Tells what applied state says of the members.
    pub picture: ReadPicture,
    /// Tells whose role votes.
    pub may_vote: MayVote,
    /// Gives the authority's key, where it is held.
    pub authority_key: AuthorityKey,
    /// Called when this node's disk has forgotten what it promised.
    pub on_forgot: OnForgot,
}

/// A replica that runs.
pub struct Started<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// The replica.
    pub replica: Arc<Replica<RT, SM>>,
    /// Answers frames of kind [`super::wire::kind::QUESTION`]; to be registered in the control class, among others.
    pub questions: Arc<QuestionService<RT, SM>>,
    /// What followers have acknowledged.
    pub promises: Arc<Promises>,
}

/// Why a replica could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The Raft log cannot be read.
    #[error("cannot read the end of the raft log")]
    Log(#[source] std::io::Error),
    /// openraft refused its parts.
    #[error("cannot start consensus: {reason}")]
    Raft {
        /// What openraft says.
        reason: String,
    },
}

/// Starts a replica. A new cluster is made by `replica.raft().initialize(…)`, once, on one node, and never by itself.
///
/// # Errors
/// [`StartError`] when the log cannot be read or openraft refuses a part.
pub async fn start<RT, SM, LS>(mut parts: Parts<RT, SM, LS>) -> Result<Started<RT, SM>, StartError>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
    SM::SnapshotData: Clone + Send + Sync,
    LS: RaftLogStorage<Types<RT>>,
{
    // What the disk held at this moment says nothing about the present time.
    let replayed_to = parts
        .log
        .get_log_state()
        .await
        .map_err(StartError::Log)?
        .last_log_id
        .map_or(0, |last| last.index);
    let promises = Arc::new(Promises::default());
    let network = Network::<RT, SM::SnapshotData>::new(parts.transport.clone(), parts.files.clone(), promises.clone());
    let raft = Raft::new(parts.me.0, parts.config, network, parts.log, parts.machine).await;
    let raft = raft.map_err(|error| StartError::Raft {
        reason: error.to_string(),
    })?;
    let clock = Arc::new(ClusterClock::new(parts.clock, parts.applied_stamp, replayed_to));
    let replica = Replica::start(raft.clone(), parts.me, parts.transport, clock);

    let (pulse, beats) = (replica.pulse.clone(), replica.clock.clone());
    let raft_service = RaftService {
        raft: raft.clone(),
        may_vote: parts.may_vote.clone(),
        heard: Arc::new(move || pulse.beat(beats.boot_ms())),
    };
    let snapshot_service = SnapshotService {
        raft,
        files: parts.files,
        may_vote: parts.may_vote.clone(),
    };
    let fresh = parts.router.register(Class::Raft, Arc::new(raft_service))
        && parts.router.register(Class::Snapshot, Arc::new(snapshot_service));
    debug_assert!(fresh, "a router serves one replica");

    super::membership::start(Membership::new(replica.clone(), parts.picture, promises.clone()));
    let questions = Arc::new(QuestionService {
        replica: replica.clone(),
        may_vote: parts.may_vote,
        authority_key: parts.authority_key,
        on_forgot: parts.on_forgot,
    });
    Ok(Started {
        replica,
        questions,
        promises,
    })
}
