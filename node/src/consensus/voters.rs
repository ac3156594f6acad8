//! Who should vote.
//!
//! Owns the choice of voters: a pure function from a picture of the nodes to the set that should vote, or to no change. Called by the
//! leader's membership duty. The one rule: a set never gets worse. A node becomes a voter only after it has caught up; a voter leaves only
//! for one that is better placed, because it is lost and another can stand in, or because it was removed.
//!
//! One voter up to two nodes (two voters would stop when either does), then three, five from five on, and seven only where there are
//! seven zones or more to gain from it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_proto::id::{NodeId, ZoneId};

/// What the choice needs to know of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Its failure domain.
    pub zone: ZoneId,
    /// Whether its role lets it vote.
    pub may_vote: bool,
    /// Whether it was taken out by an operator.
    pub removed: bool,
    /// Whether it is heard.
    pub alive: bool,
    /// Whether its log has caught up with the leader's.
    pub caught_up: bool,
    /// A node without devices: preferred, because voters get tenant work last.
    pub witness: bool,
}

/// Gives the voters that there should be, or `None` when those that there are will do.
pub fn plan(candidates: &[Candidate], voters: &BTreeSet<NodeId>) -> Option<BTreeSet<NodeId>> {
    let known: BTreeMap<NodeId, &Candidate> = candidates.iter().map(|candidate| (candidate.node, candidate)).collect();
    let fit =
        |candidate: &&Candidate| candidate.may_vote && !candidate.removed && candidate.alive && candidate.caught_up;
    let ready: Vec<&Candidate> = candidates.iter().filter(fit).collect();

    // Voters that cannot be replaced stay, even unheard: fewer voters would not make the rest any safer.
    let staying: BTreeSet<NodeId> = voters
        .iter()
        .copied()
        .filter(|node| {
            known
                .get(node)
                .is_some_and(|candidate| candidate.may_vote && !candidate.removed)
        })
        .collect();
    let size = wanted(&ready, &staying);

    let chosen = choose(&ready, &staying, &known, size);
    if chosen.is_empty() || chosen == *voters {
        return None;
    }
    let forced = staying.len() != voters.len();
    let better = score(&chosen, &known) < score(&staying, &known);
    (forced || better).then_some(chosen)
}

/// How many voters there should be.
fn wanted(ready: &[&Candidate], staying: &BTreeSet<NodeId>) -> usize {
    let able = ready
        .iter()
        .map(|candidate| candidate.node)
        .chain(staying.iter().copied())
        .collect::<BTreeSet<_>>()
        .len();
    let zones = ready
        .iter()
        .map(|candidate| &candidate.zone)
        .collect::<BTreeSet<_>>()
        .len();
    let grown = match able {
        0..=2 => 1,
        3..=4 => 3,
        5..=6 => 5,
        _ if zones >= 7 => 7,
        _ => 5,
    };
    // Voting nodes are not dismissed because others went away; an even set from a removal waits for its replacement.
    grown.max(staying.len())
}

/// Picks `size` voters: each from the zone that has the fewest so far; heard ones first, then present voters, then witnesses.
fn choose(
    ready: &[&Candidate],
    staying: &BTreeSet<NodeId>,
    known: &BTreeMap<NodeId, &Candidate>,
    size: usize,
) -> BTreeSet<NodeId> {
    let mut pool: BTreeMap<NodeId, &Candidate> = ready.iter().map(|candidate| (candidate.node, *candidate)).collect();
    for node in staying {
        if let Some(candidate) = known.get(node) {
            pool.entry(*node).or_insert(candidate);
        }
    }
    let mut chosen = BTreeSet::new();
    let mut in_zone: BTreeMap<&ZoneId, usize> = BTreeMap::new();
    while chosen.len() < size {
        let best = pool.values().min_by_key(|candidate| {
            let stays = staying.contains(&candidate.node);
            // A present voter that lags for a moment is no worse than others; one that is not heard is.
            let heard = candidate.alive;
            (
                !heard,
                in_zone.get(&candidate.zone).copied().unwrap_or(0),
                !stays,
                !candidate.witness,
                candidate.node,
            )
        });
        let Some(best) = best.copied() else { break };
        pool.remove(&best.node);
        chosen.insert(best.node);
        *in_zone.entry(&best.zone).or_default() += 1;
    }
    chosen
}

/// How bad a set is; less is better. Compared in order: votes missing or unheard, then the most votes in one zone.
fn score(set: &BTreeSet<NodeId>, known: &BTreeMap<NodeId, &Candidate>) -> (usize, usize) {
    let members = || set.iter().filter_map(|node| known.get(node).copied());
    let heard = members().filter(|candidate| candidate.alive).count();
    let mut in_zone: BTreeMap<&ZoneId, usize> = BTreeMap::new();
    for candidate in members() {
        *in_zone.entry(&candidate.zone).or_default() += 1;
    }
    let unheard = set.len() - heard;
    // More heard voters first, then fewer that only count against the majority.
    (
        usize::MAX - heard + unheard,
        in_zone.values().copied().max().unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Reads `1a 2b* 3c! 4d- 5ew 6ft 7gx`: node and zone, then `*` votes, `!` unheard, `-` not caught up, `w` witness, `t` worker
    /// (never votes), `x` removed. Expects the voters in the same short form, or `same`.
    fn check(picture: &str, expected: &str) {
        let mut voters = BTreeSet::new();
        let mut candidates = Vec::new();
        for word in picture.split_whitespace() {
            let mut chars = word.chars();
            let node = NodeId(u64::from(chars.next().unwrap().to_digit(10).unwrap()));
            let zone = chars.next().unwrap().to_string().parse().unwrap();
            let marks: String = chars.collect();
            let has = |mark| marks.contains(mark);
            if has('*') {
                voters.insert(node);
            }
            candidates.push(Candidate {
                node,
                zone,
                may_vote: !has('t'),
                removed: has('x'),
                alive: !has('!'),
                caught_up: !has('-') && !has('!'),
                witness: has('w'),
            });
        }
        let planned = plan(&candidates, &voters).map_or("same".to_owned(), |voters| {
            voters
                .iter()
                .map(|node| node.0.to_string())
                .collect::<Vec<_>>()
                .join(" ")
        });
        assert_eq!(planned, expected, "{picture}");
    }

    #[test]
    fn voters_grow_with_the_cluster_and_stay_odd() {
        check("1a*", "same");
        check("1a* 2b", "same");
        check("1a* 2b 3c", "1 2 3");
        check("1a* 2b* 3c* 4a", "same");
        check("1a* 2b* 3c* 4a 5b", "1 2 3 4 5");
        check("1a* 2b* 3c* 4a* 5b* 6c 7a", "same");
        check("1a* 2b* 3c* 4d* 5e* 6f 7g", "1 2 3 4 5 6 7");
    }

    #[test]
    fn a_node_that_has_not_caught_up_or_cannot_be_reached_is_not_made_a_voter() {
        check("1a* 2b 3c-", "same");
        check("1a* 2b 3c!", "same");
        check("1a* 2b* 3c* 4a! 5b!", "same");
    }

    #[test]
    fn workers_never_vote() {
        check("1a* 2bt 3ct", "same");
        check("1a* 2b 3ct 4ct", "same");
    }

    #[test]
    fn voters_are_spread_over_zones() {
        check("1a* 2a 3a 4b 5c!", "1 2 4");
        check("1a* 2a 3b 4b 5c", "1 2 3 4 5");
        check("1a* 2a 3b 4c", "1 3 4");
    }

    #[test]
    fn voters_move_when_a_zone_that_had_none_gets_a_node() {
        check("1a* 2a* 3b* 4c", "1 3 4");
        check("1a* 2b* 3c* 4d", "same");
    }

    #[test]
    fn an_unheard_voter_is_replaced_as_soon_as_another_can_stand_in() {
        check("1a* 2b* 3c*!", "same");
        check("1a* 2b* 3c*! 4c-", "same");
        check("1a* 2b* 3c*! 4c", "1 2 4");
        check("1a* 2b* 3c*! 4a", "1 2 4");
    }

    #[test]
    fn a_voter_that_lags_for_a_moment_keeps_its_vote() {
        check("1a* 2b* 3c*- 4c", "same");
    }

    #[test]
    fn a_removed_voter_leaves_at_once_and_two_go_on_until_a_third_comes() {
        check("1a* 2b* 3c*x", "1 2");
        check("1a* 2b* 3c*x 4c", "1 2 4");
        check("1a* 2b*", "same");
        check("1a* 2b* 4c", "1 2 4");
    }

    #[test]
    fn witnesses_are_preferred_within_a_zone() {
        check("1a* 2b 3bw 4c 5cw-", "1 3 4");
    }

    #[test]
    fn the_last_voter_is_never_dismissed() {
        check("1a*x", "same");
        check("1a*!", "same");
    }
}
