//! Connects the node with the others: the address book, the sockets, consensus over them, and who was removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::id::NodeId;
use holdfast_proto::node::{NodeRole, NodeStatus};
use holdfast_storage::adapter::Adapter;
use holdfast_storage::promise::PromiseFile;
use openraft_rt_tokio::TokioRuntime;
use tokio::runtime::Handle;

use super::ReadState;
use super::found::Beginning;
use super::node::{Shared, Stopper};
use super::storage::{DIVERGED_FILE, Storage, keep_divergence};
use super::view;
use crate::cli::daemon::DaemonError;
use crate::config::Config;
use crate::consensus::agreement::Applied;
use crate::consensus::compaction::Stored;
use crate::consensus::network::files::StoredSnapshots;
use crate::consensus::network::serve::MayVote;
use crate::consensus::promise::FORGOT;
use crate::consensus::start::{self, Parts, Started};
use crate::consensus::{config as consensus_config, wire};
use crate::env::Clock;
use crate::identity::secret::Secret;
use crate::join::Peer;
use crate::net::Class;
use crate::net::book::{AddressBook, Admission};
use crate::net::quic::{Quic, QuicSetup};
use crate::net::router::{KindRouter, Router};
use crate::nodelease::thread::LeaseRuntime;

/// Consensus as this node runs it.
pub(super) type NodeConsensus = Started<TokioRuntime, Adapter<TokioRuntime>>;

/// The sockets and who is where.
pub(super) struct Link {
    pub(super) quic: Arc<Quic>,
    pub(super) router: Arc<Router>,
    book: Arc<AddressBook>,
    admission: Arc<Admission>,
}

impl Link {
    /// Opens the sockets. Requests are refused until their services are registered.
    pub(super) fn bind(
        beginning: &Beginning,
        lease_runtime: &LeaseRuntime,
        bulk_runtime: &Handle,
    ) -> Result<Self, DaemonError> {
        let (book, admission) = (Arc::new(AddressBook::default()), Arc::new(Admission::default()));
        for Peer { node, address } in &beginning.peers {
            book.commit(*node, address);
        }
        let router = Arc::new(Router::new());
        let quic = Quic::bind(&QuicSetup {
            identity: &beginning.identity,
            listen: beginning.sockets.listen,
            book: book.clone(),
            admission: admission.clone(),
            router: router.clone(),
            runtime: Handle::current(),
            lease_runtime: lease_runtime.handle().clone(),
            bulk_runtime: bulk_runtime.clone(),
        });
        let quic = Arc::new(quic.map_err(|error| DaemonError::failed(&error))?);
        Ok(Self {
            quic,
            router,
            book,
            admission,
        })
    }

    /// Starts consensus over the sockets.
    pub(super) async fn start_consensus(
        &self,
        config: &Config,
        beginning: &Beginning,
        storage: &mut Storage,
        clock: &Arc<dyn Clock>,
        stopper: &Stopper,
    ) -> Result<NodeConsensus, DaemonError> {
        let raft_config = consensus_config::config(beginning.identity.cluster, config.timing.profile())
            .map_err(|error| DaemonError::failed(&error))?;
        let key_file = beginning.folder.part("identity").join("ca.key");
        let (applied, members, stopper) = (storage.state.clone(), storage.state.clone(), stopper.clone());
        let started = start::start(Parts {
            me: beginning.identity.node,
            config: raft_config,
            log: storage.log.clone(),
            kept: Arc::new(Stored {
                snapshots: storage.snapshots.clone(),
                log: storage.log.clone(),
            }),
            promises: PromiseFile::in_data(storage.disk.clone(), beginning.folder.root()),
            machine: storage.take_machine()?,
            files: Arc::new(StoredSnapshots::new(storage.snapshots.clone())),
            transport: self.quic.clone(),
            router: self.router.clone(),
            clock: clock.clone(),
            applied_stamp: Arc::new(move || applied().applied.stamp),
            picture: Arc::new(move || view::picture(&members())),
            may_vote: may_vote(storage.state.clone()),
            authority_key: Arc::new(move || std::fs::read_to_string(&key_file).ok().map(Secret::new)),
            hashes: Arc::new(Applied(storage.source.clone())),
            on_diverged: {
                let (stopper, file) = (stopper.clone(), beginning.folder.part(DIVERGED_FILE));
                Arc::new(move |reason: String| {
                    keep_divergence(&file, &reason);
                    stopper.stop(reason);
                })
            },
            on_forgot: Arc::new(move |leader| {
                stopper.stop(format!("node {leader} found that {FORGOT}; move the data folder away and join this machine again as a new node"));
            }),
        });
        let started = started.await.map_err(|error| DaemonError::failed(&error))?;
        let questions = KindRouter::default().with(wire::kind::QUESTION, started.questions.clone());
        self.router.register(Class::Control, Arc::new(questions));
        Ok(started)
    }

    /// Keeps the address book and the set of removed nodes at the applied state.
    pub(super) fn follow_members(&self, shared: &Shared) {
        let (book, admission) = (self.book.clone(), self.admission.clone());
        let (state, me, stopper) = (shared.state.clone(), shared.me, shared.stopper.clone());
        let mut applied = shared.source.applied();
        tokio::spawn(async move {
            loop {
                let now = state();
                for node in now.nodes.values() {
                    book.commit(node.spec.node, &node.spec.address);
                }
                let removed = now.nodes.values().filter(|node| node.status == NodeStatus::Removed);
                let removed: BTreeSet<NodeId> = removed.map(|node| node.spec.node).collect();
                if removed.contains(&me) {
                    stopper.stop("this node was removed from the cluster; move its data folder away before the machine joins again");
                }
                admission.set_removed(removed);
                if applied.changed().await.is_none() {
                    stopper.stop("the replica has stopped: its log or its state could not be written or read; see the errors above");
                    return;
                }
            }
        });
    }
}

/// A node that is not known yet may vote: its entry may be what it brings.
fn may_vote(state: ReadState) -> MayVote {
    Arc::new(move |node| {
        state()
            .nodes
            .get(&node)
            .is_none_or(|node| node.spec.role != NodeRole::Worker)
    })
}

/// A voter holds the authority's key, so that machines can join while any voter is up.
pub(super) fn keep_authority_key(parts: &Shared, beginning: &Beginning) {
    let path = beginning.folder.part("identity").join("ca.key");
    let (state, me, replica) = (parts.state.clone(), parts.me, parts.replica.clone());
    tokio::spawn(async move {
        while !path.exists() {
            if state().cluster.voters.contains(&me)
                && let Some(key) = replica.fetch_authority_key().await
                && let Err(error) = crate::identity::folder::write_durably(&path, key.expose().as_bytes(), 0o600)
            {
                tracing::warn!(%error, "cannot keep the authority's key");
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
}
