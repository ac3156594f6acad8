//! How a replica is put together.
//!
//! Owns the order in which openraft, its network, its services and its duties are made. `boot.rs` calls it with real parts, the
//! simulator with its own. The one rule: what differs between the two comes in as a part; nothing here asks which world it is in.

use std::sync::Arc;

use holdfast_proto::id::NodeId;
use holdfast_storage::promise::{PromiseError, PromiseFile};
use holdfast_storage::types::{LogId, Types};
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::{AsyncRuntime, Config, Raft};

use super::agreement::{self, Agreement, Compared, Hashes, OnDiverged};
use super::clock::{AppliedStamp, ClusterClock};
use super::compaction::{self, Compaction, Departures, Kept};
use super::forward::{AuthorityKey, OnForgot, QuestionService};
use super::membership::{Membership, ReadPicture};
use super::network::Network;
use super::network::serve::{MayVote, RaftService, SnapshotService};
use super::network::snapshot::SnapshotFiles;
use super::promise::{self, FORGOT, Promises};
use super::replica::Replica;
use super::ticker::{self, Signs};
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
    /// What the storage says about its own size and reach.
    pub kept: Arc<dyn Kept>,
    /// Where it is written down what replicas have promised.
    pub promises: PromiseFile,
    /// This replica's hashes of its state.
    pub hashes: Arc<dyn Hashes>,
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
    /// Called when this node's state was found to differ from that of the other voters.
    pub on_diverged: OnDiverged,
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
    /// The state cannot be told.
    #[error("cannot read how far the state is")]
    State(#[source] std::io::Error),
    /// The promises cannot be read.
    #[error("cannot read what this node has promised")]
    Promises(#[source] PromiseError),
    /// The log ends before what this node has acknowledged.
    #[error(
        "{FORGOT}: its raft log ends with entry {end}, but this node has acknowledged entry {promised}; move the data folder away and join this machine again as a new node, or put the folder back that was here"
    )]
    Forgot {
        /// The last entry of the log.
        end: u64,
        /// The last entry that was acknowledged.
        promised: u64,
    },
    /// No snapshot reaches the beginning of the log.
    #[error(
        "the raft log begins after entry {purged}, but the newest whole snapshot ends with entry {state}: entries between them are gone from this disk; move the data folder away and join this machine again as a new node, the other voters hold them"
    )]
    Unreached {
        /// The last entry that is gone from the log.
        purged: u64,
        /// The last entry in the state.
        state: u64,
    },
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
    let promises = parts.promises.load().map_err(StartError::Promises)?;
    let promises = Arc::new(Promises::from_kept(promises));
    // What the disk held at this moment says nothing about the present time.
    let replayed_to = check_log(&mut parts, &promises).await?;
    let departures = Arc::new(Departures::default());
    let network = Network::<RT, SM::SnapshotData>::new(
        parts.transport.clone(),
        parts.files.clone(),
        promises.clone(),
        departures.clone(),
    );
    let (signs, election_ms) = (Arc::new(Signs::default()), parts.config.election_timeout_max);
    let raft = Raft::new(parts.me.0, parts.config, network, parts.log, parts.machine).await;
    let raft = raft.map_err(|error| StartError::Raft {
        reason: error.to_string(),
    })?;
    let clock = Arc::new(ClusterClock::new(parts.clock, parts.applied_stamp, replayed_to));
    let replica = Replica::start(raft.clone(), parts.me, parts.transport, clock, signs.clone());
    // It ends with openraft.
    drop(RT::spawn(ticker::keep(raft.clone(), signs.clone(), election_ms)));

    let (pulse, beats) = (replica.pulse.clone(), replica.clock.clone());
    let raft_service = RaftService {
        raft: raft.clone(),
        may_vote: parts.may_vote.clone(),
        heard: Arc::new(move || pulse.beat(beats.boot_ms())),
        promises: promises.clone(),
        signs,
    };
    compaction::start(Compaction::new(raft.clone(), parts.kept, departures));
    promise::start::<RT>(&promises, parts.promises);
    let snapshot_service = SnapshotService {
        raft,
        files: parts.files,
        may_vote: parts.may_vote.clone(),
    };
    let fresh = parts.router.register(Class::Raft, Arc::new(raft_service))
        && parts.router.register(Class::Snapshot, Arc::new(snapshot_service));
    debug_assert!(fresh, "a router serves one replica");

    let compared = Arc::new(Compared::new(parts.hashes));
    agreement::start(Agreement::new(replica.clone(), compared.clone(), parts.on_diverged));
    super::membership::start(Membership::new(replica.clone(), parts.picture, promises.clone()));
    let questions = Arc::new(QuestionService {
        replica: replica.clone(),
        may_vote: parts.may_vote,
        authority_key: parts.authority_key,
        promises: promises.clone(),
        hashes: compared,
        on_forgot: parts.on_forgot,
    });
    Ok(Started {
        replica,
        questions,
        promises,
    })
}

/// Refuses a disk that lacks what the node has acknowledged, or entries between its state and its log. Gives the end of
/// the log.
async fn check_log<RT, SM, LS>(parts: &mut Parts<RT, SM, LS>, promises: &Promises) -> Result<u64, StartError>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
    LS: RaftLogStorage<Types<RT>>,
{
    let log = parts.log.get_log_state().await.map_err(StartError::Log)?;
    let (applied, _) = parts.machine.applied_state().await.map_err(StartError::State)?;
    if log.last_purged_log_id > applied {
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        return Err(StartError::Unreached {
            purged: index(log.last_purged_log_id),
            state: index(applied),
        });
    }
    // A snapshot that was taken in may be ahead of the log.
    let end = log.last_log_id.max(applied).map_or(0, |last| last.index);
    match promises.of(parts.me).filter(|promised| *promised > end) {
        Some(promised) => Err(StartError::Forgot { end, promised }),
        None => Ok(log.last_log_id.map_or(0, |last| last.index)),
    }
}
