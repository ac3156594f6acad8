//! Questions of other nodes to this one: commands to propose, read indexes, the wall clock, the authority's key.
//!
//! Owns the answering side of the control class for consensus. The one rule: a command is proposed only for the node that sent it. Its origin
//! must be that node, a node's principal must be that node, and a bearer's command is not taken from a node whose role never votes: such
//! a node authenticates nobody for the cluster.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::command::Envelope;
use holdfast_proto::frame;
use holdfast_proto::id::NodeId;
use holdfast_proto::tenant::Principal;
use holdfast_storage::types::Types;
use openraft::AsyncRuntime;
use openraft::storage::RaftStateMachine;
use openraft_rt::watch::WatchReceiver;

use super::Outcome;
use super::agreement::Compared;
use super::leadership::Lead;
use super::network::serve::MayVote;
use super::promise::Promises;
use super::proposer::Submitted;
use super::replica::{Replica, outcome, oversize};
use super::wire::{Answer, Question, kind};
use crate::identity::secret::Secret;
use crate::net::{Refusal, Service};

/// Gives the authority's key, on a node that holds it.
pub type AuthorityKey = Arc<dyn Fn() -> Option<Secret<String>> + Send + Sync>;

/// What to do when this node's disk was found to have forgotten; told which leader found it.
pub type OnForgot = Arc<dyn Fn(NodeId) + Send + Sync>;

/// Answers questions of kind [`kind::QUESTION`].
pub struct QuestionService<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    /// The replica.
    pub replica: Arc<Replica<RT, SM>>,
    /// Whose role votes.
    pub may_vote: MayVote,
    /// The authority's key.
    pub authority_key: AuthorityKey,
    /// What replicas have promised, as far as it is known here.
    pub promises: Arc<Promises>,
    /// This replica's hashes of its state.
    pub hashes: Arc<Compared>,
    /// Called when a leader found that this node's disk remembers less than it promised. The node must stop.
    pub on_forgot: OnForgot,
}

impl<RT, SM> QuestionService<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    async fn answer(&self, from: NodeId, question: Question) -> Result<Answer, Refusal> {
        match question {
            Question::Propose(bytes) => self.propose(from, &bytes).await,
            Question::ReadIndex => Ok(match self.replica.confirm().await {
                Ok(confirmed) => Answer::ReadIndex(confirmed.index),
                Err(_) => self.not_leader(),
            }),
            Question::Wall => Ok(Answer::Wall(self.replica.clock.wall_ms())),
            Question::AuthorityKey => self.give_key(from),
            Question::Promised(promised) => {
                self.only_voters(from)?;
                self.promises.note(promised);
                Ok(Answer::Noted)
            }
            // A node that never votes compares its state too.
            Question::StateHash(at) => {
                let hashes = self.hashes.clone();
                let hash = RT::spawn_blocking(move || hashes.asked(at))
                    .await
                    .map_err(|error| Refusal(error.to_string()))?;
                Ok(Answer::StateHash(hash))
            }
            Question::Forgot => {
                self.only_voters(from)?;
                (self.on_forgot)(from);
                Ok(Answer::Noted)
            }
        }
    }

    async fn propose(&self, from: NodeId, bytes: &Bytes) -> Result<Answer, Refusal> {
        let envelope = Envelope::decode(bytes).map_err(|error| Refusal(error.to_string()))?;
        speaks_for_itself(from, &envelope, &self.may_vote)?;
        self.replica.admits(&envelope).map_err(Refusal)?;
        Ok(match self.replica.submit(envelope, bytes.len()).await {
            Submitted::Decided(reply) => told(outcome(reply)),
            Submitted::TooLarge(bytes) => told(oversize(bytes)),
            Submitted::NotLeader(leader) => Answer::NotLeader {
                leader: leader.map(|leader| leader.0),
            },
            Submitted::Unknown(reason) => Answer::Unknown { reason },
        })
    }

    /// Voters hold the authority's key, so that a machine can join while any of them is up.
    fn give_key(&self, from: NodeId) -> Result<Answer, Refusal> {
        self.only_voters(from)?;
        match (self.authority_key)() {
            Some(key) => Ok(Answer::AuthorityKey(key.expose().clone())),
            None => Err(Refusal("this node does not hold the authority's key".into())),
        }
    }

    fn only_voters(&self, from: NodeId) -> Result<(), Refusal> {
        let metrics = self.replica.raft.metrics();
        let votes = metrics
            .borrow_watched()
            .committed_membership_config
            .voter_ids()
            .any(|voter| voter == from.0);
        if votes && (self.may_vote)(from) {
            return Ok(());
        }
        tracing::warn!(%from, "refused a question that only voters may ask");
        Err(Refusal("only voters may ask this".into()))
    }

    fn not_leader(&self) -> Answer {
        Answer::NotLeader {
            leader: self.replica.leadership().leader.map(|leader| leader.0),
        }
    }
}

fn told(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Applied { index, events } => Answer::Applied { index, events },
        Outcome::Refused { rejection, index } => Answer::Refused { rejection, index },
        Outcome::Unknown { reason } => Answer::Unknown { reason },
    }
}

/// Refuses a command that its sender may not bring.
fn speaks_for_itself(from: NodeId, envelope: &Envelope, may_vote: &MayVote) -> Result<(), Refusal> {
    let refuse = |text: String| {
        tracing::warn!(%from, "refused a command: {text}");
        Err(Refusal(text))
    };
    if envelope.origin != from {
        return refuse(format!(
            "node {from} brings a command in the name of node {}",
            envelope.origin
        ));
    }
    match &envelope.principal {
        Principal::Node(node) if *node != from => refuse(format!("node {from} brings a command of node {node}")),
        Principal::Bearer { .. } if !may_vote(from) => refuse(format!(
            "node {from} is a worker and brings a bearer's command; ask a voter instead"
        )),
        _ => Ok(()),
    }
}

impl<RT, SM> Service for QuestionService<RT, SM>
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    fn call(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        Box::pin(async move {
            let question = frame::decode(kind::QUESTION, &request).map_err(|error| Refusal(error.to_string()))?;
            Ok(frame::encode(kind::ANSWER, &self.answer(from, question).await?))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::command::Command;
    use holdfast_proto::id::TokenId;
    use holdfast_proto::tenant::Role;
    use holdfast_proto::time::Timestamp;

    use super::*;

    const HERE: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);

    fn check(origin: NodeId, principal: Principal, worker: bool) -> bool {
        let envelope = Envelope {
            stamp: Timestamp(0),
            principal,
            project: None,
            origin,
            request: None,
            command: Command::RevokeToken { token: TokenId(1) },
        };
        let may_vote: MayVote = Arc::new(move |_| !worker);
        speaks_for_itself(HERE, &envelope, &may_vote).is_ok()
    }

    #[test]
    fn a_node_brings_its_own_commands_only() {
        let operator = || Principal::Bearer {
            token: TokenId(1),
            role: Role::Operator,
            tenant: None,
        };
        assert!(check(HERE, Principal::Node(HERE), false));
        assert!(check(HERE, Principal::Node(HERE), true));
        assert!(check(HERE, operator(), false));
        assert!(!check(OTHER, Principal::Node(HERE), false));
        assert!(!check(OTHER, operator(), false));
        assert!(!check(HERE, Principal::Node(OTHER), false));
        assert!(
            !check(HERE, operator(), true),
            "a worker's certificate brings an operator's command"
        );
    }
}
