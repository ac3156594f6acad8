//! What a replica noted of every node while it applied the log, leading or not. It outlives terms.
//!
//! The answerer owns one. A leader that never answered a node counts its wait from here, and the cap on losses holds across leaders because every
//! replica sees the losses of all. The one rule: a note is taken when the entry is applied or later, never earlier.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::id::{Generation, NodeId};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;

use super::Timing;
use super::answerer::ClusterView;

/// The window of the cap on losses.
const MINUTE_MS: u64 = 60_000;

#[derive(Debug, Default)]
struct Noted {
    unreachable: Option<(Generation, u64)>,
    quiet: Option<(Timestamp, QuietNote)>,
    lost: Option<Generation>,
}

/// The bounds of a quiet time on this replica's boot clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuietNote {
    /// No silence is counted before.
    pub(super) over_ms: u64,
    /// No loss is declared before.
    pub(super) stopped_ms: u64,
}

impl QuietNote {
    fn end_early((until, note): (Timestamp, Self)) -> (Timestamp, Self) {
        (until, Self { over_ms: 0, ..note })
    }
}

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Notes {
    nodes: BTreeMap<NodeId, Noted>,
    /// Generations declared lost within the last minute, by this leader or any other, and when this replica learnt of it.
    losses: BTreeMap<(NodeId, Generation), u64>,
}

impl Notes {
    /// Compares the state as it is applied now with what was noted before.
    pub(super) fn take(&mut self, now_ms: u64, timing: &Timing, view: &impl ClusterView) {
        let mut present = BTreeSet::new();
        let (nodes, losses) = (&mut self.nodes, &mut self.losses);
        view.for_each_node(&mut |node| {
            present.insert(node.node);
            let note = nodes.entry(node.node).or_default();
            let unreachable = matches!(node.status, NodeStatus::Unreachable | NodeStatus::Lost);
            if unreachable
                && note
                    .unreachable
                    .is_none_or(|(generation, _)| generation != node.generation)
            {
                note.unreachable = Some((node.generation, now_ms));
            }
            if node.status == NodeStatus::Lost && note.lost != Some(node.generation) {
                note.lost = Some(node.generation);
                losses.insert((node.node, node.generation), now_ms);
            }
            match node.quiet {
                // It ended early for the count of silence. Its supervisors may still hold out to its end, so no loss is declared before.
                None => {
                    note.quiet = note
                        .quiet
                        .take()
                        .map(QuietNote::end_early)
                        .filter(|quiet| now_ms < quiet.1.stopped_ms)
                }
                Some(quiet) if note.quiet.is_none_or(|(until, _)| until != quiet.until) => {
                    let over_ms = now_ms + timing.outlast_ms(quiet.left_ms);
                    let before = note.quiet.map_or(0, |(_, quiet)| quiet.stopped_ms);
                    let stopped_ms = before.max(now_ms + timing.outlast_ms(quiet.left_ms + timing.stop_bound_ms));
                    note.quiet = Some((quiet.until, QuietNote { over_ms, stopped_ms }));
                }
                Some(_) => {}
            }
        });
        self.nodes.retain(|node, _| present.contains(node));
    }

    /// Reports whether the state has the node.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// When this replica applied the end of that generation's answers.
    pub(super) fn unreachable_ms(&self, node: NodeId, generation: Generation) -> Option<u64> {
        let (noted, at) = self.nodes.get(&node)?.unreachable?;
        (noted == generation).then_some(at)
    }

    /// The node's quiet time, if one stands.
    pub(super) fn quiet(&self, node: NodeId) -> Option<QuietNote> {
        self.nodes.get(&node)?.quiet.map(|(_, note)| note)
    }

    /// Drops the losses that are older than the window of the cap.
    pub(super) fn forget_losses(&mut self, now_ms: u64) {
        self.losses.retain(|_, at| now_ms < *at + MINUTE_MS);
    }

    /// Losses within the window.
    pub(super) fn losses(&self) -> usize {
        self.losses.len()
    }

    /// Reports whether this loss has its place under the cap already.
    pub(super) fn has_lost(&self, loss: (NodeId, Generation)) -> bool {
        self.losses.contains_key(&loss)
    }

    /// Counts a loss that this leader declares now.
    pub(super) fn declare_lost(&mut self, loss: (NodeId, Generation), now_ms: u64) {
        self.losses.entry(loss).or_insert(now_ms);
    }
}
