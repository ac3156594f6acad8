//! Connects the node lease with consensus, the applied state and the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use holdfast_proto::command::Command;
use holdfast_proto::id::{Incarnation, NodeId};
use holdfast_proto::node::{BootProof, NodeAddress};
use holdfast_proto::time::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::ReadState;
use super::envelope::by_node;
use super::view::{self, LeaseView};
use crate::consensus::{Outcome, Propose};
use crate::nodelease::Applied;
use crate::nodelease::answerer::Verdict;
use crate::nodelease::thread::{Duty, Leadership, Surroundings};

/// Asks consensus, without waiting, who leads.
pub(super) type ReadLeadership = Arc<dyn Fn() -> Leadership + Send + Sync>;
/// Begins a quorum round; gives its commit index when leadership was confirmed.
pub(super) type Confirm = Arc<dyn Fn() -> BoxFuture<'static, Option<u64>> + Send + Sync>;

/// What the node lease of this node looks at and speaks to.
pub(super) struct NodeSurroundings {
    pub(super) me: NodeId,
    pub(super) state: ReadState,
    pub(super) leadership: ReadLeadership,
    pub(super) confirm: Confirm,
    pub(super) time: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(super) duties: mpsc::UnboundedSender<Duty>,
}

impl Surroundings for NodeSurroundings {
    type View = LeaseView;

    fn view(&self) -> Arc<LeaseView> {
        Arc::new(LeaseView((self.state)()))
    }

    fn applied(&self) -> Applied {
        view::standing(&(self.state)(), self.me)
    }

    fn leadership(&self) -> Leadership {
        (self.leadership)()
    }

    fn stamp(&self) -> Timestamp {
        (self.time)()
    }

    fn confirm(&self) -> BoxFuture<'static, Option<u64>> {
        (self.confirm)()
    }

    fn duty(&self, duty: Duty) {
        // Nobody listens any more when the node is stopping.
        let _ = self.duties.send(duty);
    }
}

/// Proposes what the node lease asks for.
pub(super) struct DutyTask {
    pub(super) me: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) boot: BootProof,
    pub(super) address: NodeAddress,
    pub(super) propose: Arc<dyn Propose>,
    /// What runs here and how long it was frozen.
    pub(super) work: Arc<dyn Fn() -> Vec<holdfast_proto::event::NodeWork> + Send + Sync>,
    /// Called when a later start of this daemon has taken over.
    pub(super) superseded: Arc<dyn Fn() + Send + Sync>,
    pub(super) runtime: Handle,
}

impl DutyTask {
    /// Runs until the node lease ends. One registration or return is in flight at a time; verdicts are not awaited.
    pub(super) async fn run(self, mut duties: mpsc::UnboundedReceiver<Duty>) {
        let busy = Arc::new(AtomicBool::new(false));
        while let Some(duty) = duties.recv().await {
            match duty {
                Duty::Register { replaces } => self.alone(&busy, self.register(replaces)),
                Duty::Return { generation, nonce } => self.alone(
                    &busy,
                    Command::ReturnNode {
                        node: self.me,
                        incarnation: self.incarnation,
                        generation,
                        nonce,
                        work: (self.work)(),
                    },
                ),
                Duty::Superseded => (self.superseded)(),
                Duty::Verdict(verdict) => self.verdict(verdict),
            }
        }
    }

    fn register(&self, replaces: Option<Incarnation>) -> Command {
        Command::RegisterNode {
            node: self.me,
            incarnation: self.incarnation,
            replaces,
            boot: self.boot,
            address: self.address.clone(),
        }
    }

    /// Proposes a command of which one at a time is enough: the node lease asks again until its state shows it.
    fn alone(&self, busy: &Arc<AtomicBool>, command: Command) {
        if busy.swap(true, Ordering::SeqCst) {
            return;
        }
        let (propose, envelope, busy) = (self.propose.clone(), by_node(self.me, command), busy.clone());
        self.runtime.spawn(async move {
            log(propose.propose(envelope).await);
            busy.store(false, Ordering::SeqCst);
        });
    }

    fn verdict(&self, verdict: Verdict) {
        let commands: Vec<Command> = match verdict {
            Verdict::Unreachable(nodes) => {
                let mark = |(node, generation)| Command::MarkNodeUnreachable { node, generation };
                nodes.into_iter().map(mark).collect()
            }
            Verdict::Lost(nodes) => nodes
                .into_iter()
                .map(|(node, generation)| Command::MarkNodeLost { node, generation })
                .collect(),
        };
        for command in commands {
            let (propose, envelope) = (self.propose.clone(), by_node(self.me, command));
            self.runtime.spawn(async move { log(propose.propose(envelope).await) });
        }
    }
}

fn log(outcome: Outcome) {
    match outcome {
        Outcome::Applied { .. } => {}
        Outcome::Refused { rejection, .. } => tracing::info!(%rejection, "a node lease duty was refused"),
        Outcome::Unknown { reason } => tracing::debug!(reason, "whether a node lease duty was applied is not known"),
    }
}
