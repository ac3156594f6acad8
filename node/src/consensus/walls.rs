//! The voters' wall clocks, asked over the control class.
//!
//! Owns the question and the median of the answers. A leader asks when it takes over after a stop, and now and then to find clocks
//! that are wrong. The one rule: fewer than a quorum of answers is no answer.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_proto::frame;
use holdfast_proto::id::NodeId;
use holdfast_storage::types::Types;
use openraft::{AsyncRuntime, RaftMetrics};

use super::clock::ClusterClock;
use super::stamp::median;
use super::wire::{Answer, Question, kind};
use crate::net::{Class, Transport};

/// How long the answers may take: longer than this, and a clock cannot be told from the way to it.
const WAIT: Duration = Duration::from_millis(500);

/// Asks the voters.
pub struct Walls<RT> {
    me: NodeId,
    transport: Arc<dyn Transport>,
    clock: Arc<ClusterClock>,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT: AsyncRuntime> Walls<RT> {
    /// For the replica `me`.
    pub fn new(me: NodeId, transport: Arc<dyn Transport>, clock: Arc<ClusterClock>) -> Self {
        Self {
            me,
            transport,
            clock,
            runtime: PhantomData,
        }
    }

    /// Offsets of the voters' wall clocks to this machine's, in milliseconds; half of the way there and back is taken off.
    pub async fn offsets(&self, metrics: &RaftMetrics<Types<RT>>) -> Vec<(NodeId, i64)> {
        let voters: Vec<NodeId> = metrics.membership_config.voter_ids().map(NodeId).collect();
        let answers = join_all(voters.iter().map(|voter| self.offset(*voter))).await;
        voters
            .into_iter()
            .zip(answers)
            .filter_map(|(voter, offset)| Some((voter, offset?)))
            .collect()
    }

    /// The median of the voters' wall clocks now, when a quorum told it.
    pub async fn median(&self, metrics: &RaftMetrics<Types<RT>>) -> Option<u64> {
        let voters = metrics.membership_config.voter_ids().count();
        let offsets = self.offsets(metrics).await;
        (offsets.len() > voters / 2).then(|| self.median_of(&offsets)).flatten()
    }

    /// The median of some offsets, as a wall clock now.
    pub fn median_of(&self, offsets: &[(NodeId, i64)]) -> Option<u64> {
        let here = self.clock.wall_ms();
        median(
            offsets
                .iter()
                .map(|(_, offset)| here.saturating_add_signed(*offset))
                .collect(),
        )
    }

    async fn offset(&self, voter: NodeId) -> Option<i64> {
        if voter == self.me {
            return Some(0);
        }
        let asked = (self.clock.boot_ms(), self.clock.wall_ms());
        let question = frame::encode(kind::QUESTION, &Question::Wall);
        let answer = RT::timeout(WAIT, self.transport.call(voter, Class::Control, question))
            .await
            .ok()?
            .ok()?;
        let Ok(Answer::Wall(there)) = frame::decode(kind::ANSWER, &answer) else {
            return None;
        };
        let half_way = self.clock.boot_ms().saturating_sub(asked.0) / 2;
        i64::try_from(i128::from(there) - i128::from(asked.1) - i128::from(half_way)).ok()
    }
}
