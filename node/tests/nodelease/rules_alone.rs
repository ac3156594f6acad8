//! Rules that one machine keeps by itself, each with and without its switch.

use std::collections::BTreeMap;

use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId, Nonce};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;

use holdfast_node::nodelease::answerer::{Answerer, ClusterView, NodeView, Now, Output, Quiet, Verdict};
use holdfast_node::nodelease::asker::{self, Applied, Asker, AskerSetup, Standing};
use holdfast_node::nodelease::wire::{Refusal, Renew, Renewed, Reply, RunFor};
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

fn standing_asker(rules: Rules, rebooted: bool) -> Asker {
    let setup = AskerSetup {
        node: NodeId(1),
        incarnation: Incarnation(1),
        nonce_seed: 3,
        rebooted,
    };
    let mut asker = Asker::with_rules(T, rules, setup, vec![NodeId(7), NodeId(8), NodeId(9)]);
    asker.applied(applied(10, 1));
    asker
}

fn applied(index: u64, generation: u64) -> Applied {
    let standing = Standing {
        incarnation: Some(Incarnation(1)),
        generation: Generation(generation),
        status: NodeStatus::Ready,
    };
    Applied {
        index,
        standing: Some(standing),
    }
}

fn question_of(outputs: &[asker::Output]) -> Renew {
    outputs
        .iter()
        .find_map(|output| {
            if let asker::Output::Send { renew, .. } = output {
                Some(*renew)
            } else {
                None
            }
        })
        .unwrap()
}

fn target_of(outputs: &[asker::Output]) -> Option<NodeId> {
    outputs.iter().find_map(|output| {
        if let asker::Output::Send { to, .. } = output {
            Some(*to)
        } else {
            None
        }
    })
}

fn yes(renew: Renew, barrier: u64, run_for: Vec<RunFor>) -> Reply {
    let Renew {
        node,
        incarnation,
        generation,
        nonce,
        ..
    } = renew;
    Reply::Renewed(Renewed {
        nonce,
        node,
        incarnation,
        generation,
        barrier,
        again_ms: T.renew_every_ms,
        run_for,
    })
}

#[test]
fn a_renewal_of_another_generation_permits_nothing() {
    let play = |rules: Rules| {
        let mut asker = standing_asker(rules, false);
        let question = question_of(&asker.tick(0));
        asker.reply(1, NodeId(7), &yes(question, 5, Vec::new()));
        assert!(asker.permit(1).is_some());
        asker.applied(applied(11, 2));
        asker.permit(2).is_some()
    };
    assert!(!play(Rules::ALL));
    assert!(play(Rules {
        step_generation: false,
        ..Rules::ALL
    }));
}

#[test]
fn any_renewal_in_force_will_do_so_that_a_lagging_replica_is_not_starved() {
    let mut asker = standing_asker(Rules::ALL, false);
    for (now_ms, barrier) in [(0, 9), (500, 11), (1_000, 12)] {
        let question = question_of(&asker.tick(now_ms));
        asker.reply(now_ms, NodeId(7), &yes(question, barrier, Vec::new()));
    }
    assert_eq!(asker.permit(1_001).map(|permit| permit.until_ms), Some(T.node_ttl_ms));
    assert_eq!(asker.deadline_ms(), Some(1_000 + T.node_ttl_ms));
    assert_eq!(
        asker.permit(T.node_ttl_ms),
        None,
        "the barrier of the later ones is not applied"
    );
    asker.applied(applied(11, 1));
    assert!(asker.permit(T.node_ttl_ms).is_some());
}

#[test]
fn an_unanswered_question_goes_to_each_voter_in_turn() {
    let mut asker = standing_asker(Rules::ALL, false);
    asker.cluster(vec![NodeId(7), NodeId(8), NodeId(9)], Some(NodeId(8)));
    let asked: Vec<(u64, NodeId)> = (0..700)
        .step_by(10)
        .filter_map(|now_ms| Some((now_ms, target_of(&asker.tick(now_ms))?)))
        .collect();
    assert_eq!(
        asked.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
        [0, 150, 300, 450, 600]
    );
    let voters: std::collections::BTreeSet<NodeId> = asked.iter().map(|(_, to)| *to).collect();
    assert_eq!((asked[0].1, voters.len()), (NodeId(8), 3));
}

#[test]
fn without_a_leader_a_node_asks_ten_times_a_second_and_follows_a_hint_at_once() {
    let mut asker = standing_asker(Rules::ALL, false);
    let first = question_of(&asker.tick(0));
    assert!(asker.tick(90).is_empty());
    assert!(target_of(&asker.tick(100)).is_some());
    let hint = Reply::Refused {
        nonce: first.nonce,
        refusal: Refusal::NotLeader {
            leader: Some(NodeId(9)),
        },
    };
    let next = asker.reply(105, NodeId(8), &hint);
    assert_eq!(target_of(&next), Some(NodeId(9)));
    asker.reply(110, NodeId(9), &yes(question_of(&next), 5, Vec::new()));
    assert_eq!(asker.deadline_ms(), Some(105 + T.node_ttl_ms));
    assert_eq!(asker.leader(), Some(NodeId(9)));
}

#[test]
fn an_answered_round_rests_for_as_long_as_the_answer_says() {
    let mut asker = standing_asker(Rules::ALL, false);
    let mut asked = Vec::new();
    for now_ms in (0..2_000).step_by(10) {
        let outputs = asker.tick(now_ms);
        if target_of(&outputs).is_some() {
            asked.push(now_ms);
            asker.reply(now_ms + 3, NodeId(7), &yes(question_of(&outputs), 5, Vec::new()));
            assert_eq!(asker.wake_ms(now_ms + 3), now_ms + 3 + T.renew_every_ms);
        }
    }
    assert_eq!(asked, [0, 510, 1_020, 1_530]);
}

#[test]
fn no_answer_makes_a_node_ask_in_a_storm_or_forget_to_ask() {
    for (again_ms, waits_ms) in [(0, 125), (u64::MAX, 625)] {
        let mut asker = standing_asker(Rules::ALL, false);
        let Reply::Renewed(mut renewed) = yes(question_of(&asker.tick(0)), 5, Vec::new()) else {
            panic!("a yes")
        };
        renewed.again_ms = again_ms;
        asker.reply(10, NodeId(7), &Reply::Renewed(renewed));
        assert_eq!(asker.wake_ms(10), 10 + waits_ms);
    }
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

#[test]
fn after_a_reboot_nothing_starts_until_a_copy_of_the_machine_has_surely_stopped() {
    let mut asker = standing_asker(Rules::ALL, true);
    let mut first_permit = None;
    for now_ms in (0..10_000).step_by(100) {
        let outputs = asker.tick(now_ms);
        if target_of(&outputs).is_some() {
            asker.reply(now_ms, NodeId(7), &yes(question_of(&outputs), 5, Vec::new()));
        }
        first_permit = first_permit.or(asker.permit(now_ms).map(|_| now_ms));
    }
    assert_eq!(first_permit, Some(4_400));
}

#[test]
fn a_start_that_was_replaced_stops() {
    let mut asker = standing_asker(Rules::ALL, false);
    let standing = Standing {
        incarnation: Some(Incarnation(2)),
        generation: Generation(1),
        status: NodeStatus::Ready,
    };
    assert_eq!(
        asker.applied(Applied {
            index: 11,
            standing: Some(standing)
        }),
        [asker::Output::Superseded]
    );
}

#[test]
fn registration_and_return_are_repeated_until_the_state_shows_them() {
    let setup = AskerSetup {
        node: NodeId(1),
        incarnation: Incarnation(5),
        nonce_seed: 3,
        rebooted: false,
    };
    let mut asker = Asker::new(T, setup, vec![NodeId(7)]);
    asker.applied(applied(10, 1));
    let register = [asker::Output::RegisterNeeded {
        replaces: Some(Incarnation(1)),
    }];
    assert_eq!(asker.tick(0), register);
    assert!(asker.tick(400).is_empty());
    assert_eq!(asker.tick(500), register);
    let standing = Standing {
        incarnation: Some(Incarnation(5)),
        generation: Generation(1),
        status: NodeStatus::Ready,
    };
    asker.applied(Applied {
        index: 11,
        standing: Some(standing),
    });
    let question = question_of(&asker.tick(1_000));
    let refusal = Refusal::GivenUp {
        generation: Generation(1),
        challenge: Nonce(77),
    };
    let needed = [asker::Output::ReturnNeeded {
        generation: Generation(1),
        nonce: Nonce(77),
    }];
    assert_eq!(
        asker.reply(
            1_001,
            NodeId(7),
            &Reply::Refused {
                nonce: question.nonce,
                refusal
            }
        ),
        needed
    );
    assert!(!asker.tick(1_200).contains(&needed[0]));
    assert!(asker.tick(1_501).contains(&needed[0]));
    asker.applied(Applied {
        index: 12,
        standing: Some(Standing {
            generation: Generation(2),
            ..standing
        }),
    });
    assert!(!asker.tick(2_100).contains(&needed[0]));
}
