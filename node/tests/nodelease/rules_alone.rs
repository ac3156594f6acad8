//! Rules that the answerer keeps by itself, each with and without its switch.

use std::collections::BTreeMap;

use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId, Nonce};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;

use super::asker_alone::{question_of, standing_asker};
use holdfast_node::nodelease::answerer::{Answerer, ClusterView, NodeView, Now, Output, Quiet, Verdict};
use holdfast_node::nodelease::wire::{Refusal, Renew, Reply};
use holdfast_node::nodelease::{Rules, Timing};

const T: Timing = Timing::METRO;

#[derive(Default)]
struct View {
    nodes: BTreeMap<NodeId, NodeView>,
    limits: Vec<(LeaseId, Timestamp)>,
}

impl View {
    fn of(count: u64) -> Self {
        let node = |id| NodeView {
            node: NodeId(id),
            incarnation: Some(Incarnation(1)),
            generation: Generation(1),
            status: NodeStatus::Ready,
            quiet: None,
        };
        Self {
            nodes: (1..=count).map(|id| (NodeId(id), node(id))).collect(),
            limits: Vec::new(),
        }
    }

    fn edit(&mut self, id: u64) -> &mut NodeView {
        self.nodes.get_mut(&NodeId(id)).unwrap()
    }
}

impl ClusterView for View {
    fn for_each_node(&self, visit: &mut dyn FnMut(NodeView)) {
        self.nodes.values().copied().for_each(visit);
    }
    fn node(&self, node: NodeId) -> Option<NodeView> {
        self.nodes.get(&node).copied()
    }
    fn for_each_limit(&self, _: NodeId, visit: &mut dyn FnMut(LeaseId, Timestamp)) {
        self.limits.iter().for_each(|(lease, until)| visit(*lease, *until));
    }
}

/// A ready leader whose rounds end within their tick.
struct Leader {
    answerer: Answerer,
    now_ms: u64,
    open: Vec<u64>,
    said: Vec<(NodeId, Reply)>,
    verdicts: Vec<Verdict>,
}

impl Leader {
    fn new(rules: Rules, view: &View) -> Self {
        let mut answerer = Answerer::with_rules(T, rules);
        answerer.applied(0, view);
        answerer.lead(0, 9);
        answerer.own_term_applied(0);
        Self {
            answerer,
            now_ms: 0,
            open: Vec::new(),
            said: Vec::new(),
            verdicts: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        Now {
            boot_ms: self.now_ms,
            stamp: Timestamp(1_000_000 + self.now_ms),
        }
    }

    fn take(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::BeginRound(number) => self.open.push(number),
                Output::Reply { to, reply } => self.said.push((to, reply)),
                Output::Propose(verdict) => self.verdicts.push(verdict),
            }
        }
    }

    fn finish(&mut self, view: &View) {
        for number in std::mem::take(&mut self.open) {
            let outputs = self.answerer.round_finished(self.now(), number, 7, view);
            self.take(outputs);
        }
    }

    /// The round for what waits begins as soon as it may.
    fn take_round(&mut self) {
        if let Some(at_ms) = self.answerer.wake_ms() {
            self.now_ms = self.now_ms.max(at_ms);
            let begun = self.answerer.poll(self.now_ms);
            self.take(begun.into_iter().collect());
        }
    }

    fn tick(&mut self, view: &View) {
        self.now_ms += T.tick_ms;
        let outputs = self.answerer.tick(self.now(), true, view);
        self.take(outputs);
    }

    /// So much time passes in good ticks.
    fn pass(&mut self, ms: u64, view: &View) {
        self.ticks(ms / T.tick_ms, view);
    }

    fn ticks(&mut self, count: u64, view: &View) {
        for _ in 0..count {
            self.tick(view);
            self.finish(view);
        }
    }

    fn ask(&mut self, id: u64, nonce: u64, in_force: bool, view: &View) {
        let renew = Renew {
            node: NodeId(id),
            incarnation: Incarnation(1),
            generation: Generation(1),
            nonce: Nonce(nonce),
            in_force,
        };
        let outputs = self.answerer.question(self.now(), NodeId(id), renew, view);
        self.take(outputs);
    }

    fn given_up(&self) -> usize {
        let count = |verdict: &Verdict| {
            if let Verdict::Unreachable(pairs) = verdict {
                pairs.len()
            } else {
                0
            }
        };
        self.verdicts.iter().map(count).sum()
    }

    fn lost(&self) -> usize {
        let count = |verdict: &Verdict| {
            if let Verdict::Lost(pairs) = verdict {
                pairs.len()
            } else {
                0
            }
        };
        self.verdicts.iter().map(count).sum()
    }
}

#[test]
fn the_wait_outlasts_the_slowest_node_by_the_fastest_leader() {
    for rho_permille in 0..200 {
        for (node_ttl_ms, stop_bound_ms) in [(4_000, 250), (10_000, 250), (46, 20), (1, 1), (4_000, 3_000)] {
            let timing = Timing {
                rho_permille,
                node_ttl_ms,
                stop_bound_ms,
                ..T
            };
            // True time, in units that need no division: the leader's wait by a fast clock against the node's hold by a slow one.
            let least_waited = timing.lost_wait_ms() * (1_000 - rho_permille);
            let longest_held = (node_ttl_ms + stop_bound_ms) * (1_000 + rho_permille);
            assert!(least_waited >= longest_held);
        }
    }
    assert_eq!(T.lost_wait_ms(), 4_336);
    // The stop itself runs on the node's clock: a wait that adds it afterwards is short.
    let stop_added = (T.node_ttl_ms * (1_000 + T.rho_permille)).div_ceil(1_000 - T.rho_permille) + T.stop_bound_ms;
    assert!(stop_added * (1_000 - T.rho_permille) < (T.node_ttl_ms + T.stop_bound_ms) * (1_000 + T.rho_permille));
}

#[test]
fn a_question_is_judged_when_its_answer_leaves() {
    let answered_after_giving_up = |rules: Rules| {
        let view = View::of(1);
        let mut leader = Leader::new(rules, &view);
        // A node that does not hear asks in every tick; each question waits for the round after the one that is out.
        while leader.given_up() == 0 {
            leader.ask(1, 6, false, &view);
            let out = std::mem::take(&mut leader.open);
            leader.said.clear();
            leader.tick(&view);
            for number in out {
                let outputs = leader.answerer.round_finished(leader.now(), number, 7, &view);
                leader.take(outputs);
            }
        }
        // The tick that gave the node up came between the last question and the end of its round.
        leader.said.iter().any(|(_, reply)| matches!(reply, Reply::Renewed(_)))
    };
    assert!(!answered_after_giving_up(Rules::ALL));
    assert!(answered_after_giving_up(Rules {
        judged_at_sending: false,
        ..Rules::ALL
    }));
}

#[test]
fn losses_are_capped_per_minute() {
    let play = |rules: Rules| {
        let mut view = View::of(100);
        let mut leader = Leader::new(rules, &view);
        leader.pass(2_000, &view);
        assert_eq!(leader.given_up(), 100);
        view.nodes
            .values_mut()
            .for_each(|node| node.status = NodeStatus::Unreachable);
        leader.answerer.applied(leader.now_ms, &view);
        leader.pass(10_000, &view);
        let mut lost: Vec<NodeId> = Vec::new();
        for verdict in &leader.verdicts {
            if let Verdict::Lost(pairs) = verdict {
                lost.extend(pairs.iter().map(|(node, _)| *node));
            }
        }
        lost.sort_unstable();
        lost.dedup();
        (lost.len(), leader)
    };
    assert_eq!(play(Rules::ALL).0, 12);
    assert_eq!(
        play(Rules {
            loss_cap: false,
            ..Rules::ALL
        })
        .0,
        100
    );
}

#[test]
fn the_cap_on_losses_outlives_a_leader_change() {
    let mut view = View::of(100);
    let mut leader = Leader::new(Rules::ALL, &view);
    leader.ticks(1, &view);
    (1..=100).for_each(|id| {
        view.edit(id).status = if id <= 12 {
            NodeStatus::Lost
        } else {
            NodeStatus::Unreachable
        }
    });
    leader.answerer.applied(leader.now_ms, &view);
    leader.answerer.lead(leader.now_ms, 3);
    leader.answerer.own_term_applied(leader.now_ms);
    leader.pass(10_000, &view);
    assert_eq!(leader.lost(), 0, "another leader has used this minute's losses up");
}

#[test]
fn a_quiet_time_is_respected_and_ends() {
    let play = |rules: Rules| {
        let mut view = View::of(1);
        let mut leader = Leader::new(rules, &view);
        view.edit(1).quiet = Some(Quiet {
            until: Timestamp(1_120_000),
            left_ms: 60_000,
        });
        leader.answerer.applied(0, &view);
        leader.pass(60_000, &view);
        let during = leader.given_up();
        leader.pass(4_000, &view);
        (during, leader.given_up())
    };
    let (during, after) = play(Rules::ALL);
    assert!(during == 0 && after > 0);
    assert!(
        play(Rules {
            quiet: false,
            ..Rules::ALL
        })
        .0 > 0
    );
}

#[test]
fn a_quiet_time_that_ends_early_counts_silence_again_but_no_loss_before_its_end() {
    let mut view = View::of(1);
    let mut leader = Leader::new(Rules::ALL, &view);
    view.edit(1).quiet = Some(Quiet {
        until: Timestamp(1_120_000),
        left_ms: 30_000,
    });
    leader.answerer.applied(0, &view);
    leader.pass(5_000, &view);
    view.edit(1).quiet = None;
    leader.answerer.applied(leader.now_ms, &view);
    leader.pass(2_000, &view);
    assert_eq!(leader.given_up(), 1);
    view.edit(1).status = NodeStatus::Unreachable;
    leader.answerer.applied(leader.now_ms, &view);
    leader.pass(23_000, &view);
    assert_eq!(
        (leader.now_ms, leader.lost()),
        (30_000, 0),
        "its supervisors hold out so long"
    );
    leader.pass(1_500, &view);
    assert_eq!(leader.lost(), 1);
}

#[test]
fn a_verdict_that_never_shows_is_proposed_again() {
    let view = View::of(1);
    let mut leader = Leader::new(Rules::ALL, &view);
    leader.ticks(19, &view);
    assert_eq!(
        leader.given_up(),
        4,
        "after six good ticks, and every four ticks from then on"
    );
}

#[test]
fn ticks_without_a_round_count_for_nothing() {
    let view = View::of(1);
    let mut leader = Leader::new(Rules::ALL, &view);
    for _ in 0..100 {
        leader.tick(&view);
        leader.open.clear();
    }
    assert_eq!(leader.given_up(), 0);
}

#[test]
fn a_failed_round_answers_nobody_and_its_questions_ride_on_the_next() {
    let view = View::of(2);
    let mut leader = Leader::new(Rules::ALL, &view);
    leader.now_ms = 50;
    leader.ask(1, 5, true, &view);
    let failed = leader.open.pop().unwrap();
    leader.answerer.round_failed(failed);
    assert!(leader.said.is_empty());
    leader.now_ms += T.round_gap_ms;
    assert!(leader.answerer.wake_ms().unwrap() <= leader.now_ms);
    let begun = leader.answerer.poll(leader.now_ms);
    leader.take(begun.into_iter().collect());
    leader.finish(&view);
    assert!(matches!(leader.said[..], [(NodeId(1), Reply::Renewed(_))]));
}

#[test]
fn questions_that_come_together_share_one_round() {
    let view = View::of(1_000);
    let mut leader = Leader::new(Rules::ALL, &view);
    leader.now_ms = 50;
    (1..=1_000).for_each(|id| leader.ask(id, id, true, &view));
    assert_eq!(leader.open.len(), 1);
    leader.finish(&view);
    assert_eq!(leader.said.len(), 1, "the round began with the first question alone");
    leader.now_ms += T.round_gap_ms;
    let begun = leader.answerer.poll(leader.now_ms);
    leader.take(begun.into_iter().collect());
    leader.finish(&view);
    assert_eq!(leader.said.len(), 1_000);
}

#[test]
fn another_nodes_renewal_is_not_even_refused() {
    let view = View::of(2);
    let mut leader = Leader::new(Rules::ALL, &view);
    let renew = Renew {
        node: NodeId(1),
        incarnation: Incarnation(1),
        generation: Generation(1),
        nonce: Nonce(1),
        in_force: true,
    };
    assert_eq!(
        leader.answerer.question(leader.now(), NodeId(2), renew, &view),
        Vec::new()
    );
    leader.pass(2_000, &view);
    assert!(leader.said.is_empty());
    assert_eq!(leader.given_up(), 2, "it ended nobody's silence either");
}

#[test]
fn an_older_incarnation_is_refused() {
    let mut view = View::of(1);
    view.edit(1).incarnation = Some(Incarnation(2));
    let mut leader = Leader::new(Rules::ALL, &view);
    leader.ask(1, 5, true, &view);
    leader.finish(&view);
    leader.ticks(1, &view);
    assert!(matches!(
        leader.said[..],
        [(
            _,
            Reply::Refused {
                refusal: Refusal::Moved { .. },
                ..
            }
        )]
    ));
}

#[test]
fn a_node_with_many_leases_gets_every_limit() {
    let mut view = View::of(1);
    let count = 1_000;
    view.limits = (0..count)
        .map(|index| (LeaseId::from_index(index), Timestamp(1_005_000)))
        .collect();
    let mut leader = Leader::new(Rules::ALL, &view);
    let mut asker = standing_asker(Rules::ALL, false);
    let question = question_of(&asker.tick(100));
    let outputs = leader.answerer.question(leader.now(), NodeId(1), question, &view);
    leader.take(outputs);
    leader.finish(&view);
    assert_eq!(leader.said.len(), 1);
    for (_, reply) in std::mem::take(&mut leader.said) {
        asker.reply(110, NodeId(9), &reply);
    }
    assert_eq!(asker.run_until().count() as u64, count);
    assert!(asker.run_until().all(|(_, until_ms)| until_ms == 100 + 5_000));
    asker.keep_leases(|lease| lease.index < 3);
    assert_eq!(asker.run_until().count(), 3);
}

/// When each node that asks now is told to ask again, on the leader's clock.
fn told_to_ask_at(leader: &mut Leader, ids: &[u64], view: &View) -> Vec<u64> {
    ids.iter()
        .for_each(|id| leader.ask(*id, leader.now_ms + *id, true, view));
    leader.finish(view);
    leader.take_round();
    leader.finish(view);
    let again = |(_, reply): (NodeId, Reply)| match reply {
        Reply::Renewed(renewed) => Some(leader.now_ms + renewed.again_ms),
        Reply::Refused { .. } => None,
    };
    std::mem::take(&mut leader.said).into_iter().filter_map(again).collect()
}

#[test]
fn few_nodes_are_brought_to_ask_at_one_moment_before_a_tick() {
    let view = View::of(3);
    let mut leader = Leader::new(Rules::ALL, &view);
    let mut told = Vec::new();
    for id in 1..=3 {
        // At any time, also in different halves of the period.
        leader.ticks(id, &view);
        leader.now_ms += 60 * id;
        told.extend(told_to_ask_at(&mut leader, &[id], &view));
        leader.now_ms -= 60 * id;
    }
    assert_eq!(told.len(), 3);
    let moment = told[0] % T.renew_every_ms;
    assert!(told.iter().all(|at| at % T.renew_every_ms == moment), "{told:?}");
    let before_tick = T.tick_ms - told[0] % T.tick_ms;
    assert!(
        before_tick < T.tick_ms / 2,
        "{before_tick} ms before a tick: its round would not do for it"
    );
}

#[test]
fn many_nodes_are_spread_over_the_period() {
    let view = View::of(1_000);
    let mut leader = Leader::new(Rules::ALL, &view);
    leader.ticks(4, &view);
    let ids: Vec<_> = (1..=1_000).collect();
    told_to_ask_at(&mut leader, &ids, &view);
    leader.ticks(2, &view);
    let mut at_once = BTreeMap::<u64, usize>::new();
    for at in told_to_ask_at(&mut leader, &ids, &view) {
        *at_once.entry(at % T.renew_every_ms).or_default() += 1;
    }
    assert_eq!(at_once.values().sum::<usize>(), 1_000);
    assert!(at_once.values().all(|nodes| *nodes <= 64), "{at_once:?}");
}
