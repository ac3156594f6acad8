//! Rules that the asker keeps by itself, each with and without its switch.

use holdfast_proto::id::{Generation, Incarnation, NodeId, Nonce};
use holdfast_proto::node::NodeStatus;

use holdfast_node::nodelease::asker::{self, Applied, Asker, AskerSetup, Standing};
use holdfast_node::nodelease::wire::{Refusal, Renew, Renewed, Reply, RunFor};
use holdfast_node::nodelease::{Rules, Timing};

const T: Timing = Timing::METRO;

pub(super) fn standing_asker(rules: Rules, rebooted: bool) -> Asker {
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

pub(super) fn question_of(outputs: &[asker::Output]) -> Renew {
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
