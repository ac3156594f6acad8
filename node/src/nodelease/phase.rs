//! When in their period nodes ask.
//!
//! The answerer says it with each answer. The one rule: it is advice, which costs or saves quorum rounds and is nothing to
//! safety; the asker keeps it within bounds of its own.

use holdfast_proto::id::NodeId;

use super::Timing;

/// So many nodes ask at one moment: their questions fit into the smallest receive buffer that Linux gives a socket.
const TOGETHER: usize = 32;

/// How long a node is to wait with its next question. `ticks` are the leader's so far and the time of the last one; `nodes` is
/// how many ask it.
///
/// All ask at one moment, shortly before a tick, which then need not begin a round of its own: a quorum round wakes each voter
/// several times. Many nodes are spread over the period in groups: one burst of questions would overflow the socket.
pub(super) fn again_ms(timing: &Timing, now_ms: u64, ticks: Option<(u64, u64)>, node: NodeId, nodes: usize) -> u64 {
    let (period, tick) = (timing.renew_every_ms, timing.tick_ms);
    let Some((ticks, ticked_ms)) = ticks else {
        return period;
    };
    let groups = (nodes / TOGETHER + 1) as u64;
    let offset = period * (node.0 % groups) / groups;
    let since_shared_tick = ticks % (period / tick).max(1) * tick;
    // Some moment at which this group asks; those a whole number of periods away are the others.
    let aim = ticked_ms + 2 * period + offset - since_shared_tick - tick / 4;
    let least = now_ms + period / 4;
    period / 4 + (aim + (least / period + 1) * period - least) % period
}
