//! Which store a checkpoint goes to.
//!
//! Pure: the watcher asks with what its replica knows. The rules kept here: another zone before the same zone, a
//! store that has the lease's earlier checkpoints before one that has not (most of the bytes are there already), and
//! otherwise the choice is spread over the nodes by the lease's id, so that no single store takes everything.

use holdfast_proto::id::{LeaseId, NodeId, ZoneId};

/// A node that could hold a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Its failure domain.
    pub zone: ZoneId,
    /// It is heard and may be given things to keep.
    pub ready: bool,
}

/// The stores to try, best first; the node itself is not among them. Empty in a cluster of one node.
///
/// `before` are the holders of the lease's newest checkpoint.
pub fn choose(own: NodeId, lease: LeaseId, candidates: &[Candidate], before: &[NodeId]) -> Vec<NodeId> {
    let own_zone = candidates
        .iter()
        .find(|candidate| candidate.node == own)
        .map(|candidate| &candidate.zone);
    let mut ranked: Vec<(bool, bool, u64, NodeId)> = candidates
        .iter()
        .filter(|candidate| candidate.ready && candidate.node != own)
        .map(|candidate| {
            let is_near = Some(&candidate.zone) == own_zone;
            let is_new = !before.contains(&candidate.node);
            (is_near, is_new, weight(lease, candidate.node), candidate.node)
        })
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(.., node)| node).collect()
}

/// Spreads leases over nodes; a node that comes or goes moves only its own share (rendezvous hashing).
fn weight(lease: LeaseId, node: NodeId) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&lease.cell.to_be_bytes());
    hasher.update(&lease.index.to_be_bytes());
    hasher.update(&node.0.to_be_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn candidates(of: &[(u64, &str, bool)]) -> Vec<Candidate> {
        let one = |(node, zone, ready): &(u64, &str, bool)| Candidate {
            node: NodeId(*node),
            zone: zone.parse().unwrap(),
            ready: *ready,
        };
        of.iter().map(one).collect()
    }

    fn check(of: &[(u64, &str, bool)], before: &[u64], expected: &[u64]) {
        let before: Vec<NodeId> = before.iter().copied().map(NodeId).collect();
        let chosen = choose(NodeId(1), LeaseId::from_index(5), &candidates(of), &before);
        let chosen: Vec<u64> = chosen.iter().map(|node| node.0).collect();
        assert_eq!(chosen, expected);
    }

    #[test]
    fn another_zone_comes_first_and_a_silent_node_not_at_all() {
        check(
            &[(1, "a", true), (2, "a", true), (3, "b", true), (4, "b", false)],
            &[],
            &[3, 2],
        );
        check(&[(1, "a", true), (2, "a", true)], &[], &[2]);
        check(&[(1, "a", true)], &[], &[]);
    }

    #[test]
    fn a_store_that_holds_earlier_checkpoints_is_preferred_within_its_zone() {
        let nodes = [
            (1, "a", true),
            (2, "b", true),
            (3, "b", true),
            (4, "c", true),
            (5, "a", true),
        ];
        for holder in [2, 3, 4] {
            let chosen = choose(
                NodeId(1),
                LeaseId::from_index(5),
                &candidates(&nodes),
                &[NodeId(holder)],
            );
            assert_eq!(chosen[0], NodeId(holder));
            assert_eq!(chosen[3], NodeId(5), "the same zone comes last");
        }
        let chosen = choose(NodeId(1), LeaseId::from_index(5), &candidates(&nodes), &[NodeId(5)]);
        assert_ne!(chosen[0], NodeId(5), "the same zone comes last even if it holds one");
    }

    #[test]
    fn leases_are_spread_over_the_stores() {
        let nodes = [(1, "a", true), (2, "b", true), (3, "b", true), (4, "c", true)];
        let mut counts = std::collections::BTreeMap::new();
        for index in 0..300 {
            let chosen = choose(NodeId(1), LeaseId::from_index(index), &candidates(&nodes), &[]);
            *counts.entry(chosen[0]).or_insert(0) += 1;
        }
        assert!(
            counts.len() == 3 && counts.values().all(|count| *count > 60),
            "{counts:?}"
        );
    }
}
