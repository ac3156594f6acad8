//! Each rule's counterexample as a small story: clean with all rules, caught by a checker when its rule is missing.

use holdfast_proto::node::NodeStatus;

use crate::machine::{Command, ModelRules, NODES, VOTERS};
use crate::world::{Letter, STEP_MS, Work, World};
use holdfast_node::nodelease::Rules;
use holdfast_node::nodelease::wire::Reply;

type Story = fn(&mut World);

fn play(rules: Rules, model: ModelRules, gang: bool, rates: [u64; 6], story: Story) -> World {
    let mut world = World::new(rules, model, gang, rates);
    world.advance(1_000);
    story(&mut world);
    world
}

const EVEN: [u64; VOTERS + NODES] = [1_000; 6];
/// Fast voters, slow nodes: the least margin.
const SLOW_NODES: [u64; VOTERS + NODES] = [1_100, 1_100, 1_100, 900, 900, 900];

/// Clean with the rule, a violation of that kind without it.
fn needs(off: impl Fn(&mut Rules), rates: [u64; 6], gang: bool, kind: &str, story: Story) {
    let clean = play(Rules::ALL, ModelRules::ALL, gang, rates, story);
    assert_eq!(clean.violations, Vec::<String>::new(), "with all rules");
    let mut rules = Rules::ALL;
    off(&mut rules);
    caught(&play(rules, ModelRules::ALL, gang, rates, story), kind);
}

fn needs_model(off: impl Fn(&mut ModelRules), gang: bool, kind: &str, story: Story) {
    let clean = play(Rules::ALL, ModelRules::ALL, gang, EVEN, story);
    assert_eq!(clean.violations, Vec::<String>::new(), "with all rules");
    let mut model = ModelRules::ALL;
    off(&mut model);
    caught(&play(Rules::ALL, model, gang, EVEN, story), kind);
}

fn caught(world: &World, kind: &str) {
    let hit = world
        .violations
        .iter()
        .any(|violation| kind.split(' ').any(|kind| violation.starts_with(kind)));
    assert!(
        hit,
        "nothing of {kind} was caught: {:?}, counts {:?}",
        world.violations, world.counts
    );
}

fn lost(node: usize) -> impl Fn(&World) -> bool {
    move |world| world.truth().nodes[node].status == NodeStatus::Lost
}

#[test]
fn an_old_leader_without_a_quorum_answers_nobody() {
    needs(
        |rules| rules.quorum_round = false,
        SLOW_NODES,
        false,
        "L P6",
        |world| {
            // Node 0 hears only voter 0, which does not know that voter 1 was elected.
            world.hears[0] = [true, false, false];
            world.tells[0] = [true, false, false];
            world.nodes[0].follows = false;
            world.isolate(0);
            world.elect(1, 2);
            world.advance(12_000);
            assert_eq!(world.truth().nodes[0].status, NodeStatus::Lost);
        },
    );
}

#[test]
fn a_deadline_counts_from_the_asking() {
    needs(
        |rules| rules.deadline_from_asking = false,
        SLOW_NODES,
        false,
        "L P6",
        |world| {
            world.nodes[0].follows = false;
            world.tells[0] = [false; VOTERS];
            world.advance(1_000);
            world.cut(0);
            // The last answer lies in the network almost until its question is forgotten.
            world.advance(3_100);
            let newest = world.held.iter().rposition(|letter| {
                matches!(
                    letter,
                    Letter::Reply {
                        node: 0,
                        reply: Reply::Renewed(_),
                        ..
                    }
                )
            });
            world.release_one(newest.unwrap(), false);
            world.advance_until(lost(0));
        },
    );
}

#[test]
fn an_answer_to_a_forgotten_question_counts_for_nothing() {
    needs(
        |rules| rules.only_remembered = false,
        SLOW_NODES,
        false,
        "L P6",
        |world| {
            world.nodes[0].follows = false;
            world.tells[0] = [false; VOTERS];
            world.advance(500);
            world.cut(0);
            world.advance_until(lost(0));
            world.release(|letter| matches!(letter, Letter::Reply { node: 0, .. }));
            world.advance(500);
        },
    );
}

#[test]
fn a_lapsed_renewal_permits_no_step() {
    needs(
        |rules| rules.step_in_force = false,
        EVEN,
        false,
        "L P6",
        |world| {
            world.nodes[0].follows = false;
            world.cut(0);
            world.advance_until(lost(0));
            world.advance(500);
        },
    );
}

#[test]
fn a_restarted_daemon_with_an_old_replica_waits_for_the_barrier() {
    needs(
        |rules| rules.step_barrier = false,
        EVEN,
        false,
        "P5",
        |world| {
            world.exit(0);
            world.advance_until(|world| world.nodes[0].work.is_some_and(|work| work.attempt == 2));
            world.kill_daemon(0);
            world.start_daemon(0);
            world.nodes[0].follows = false;
            world.advance(2_000);
            assert_eq!(world.truth().nodes[0].incarnation, 2);
            world.nodes[0].follows = true;
            world.advance(1_000);
            world.advance_until(World::whole);
        },
    );
}

#[test]
fn a_new_leader_answers_only_after_its_own_entry_is_applied() {
    needs(
        |rules| rules.own_term = false,
        EVEN,
        false,
        "L P6",
        |world| {
            // Node 0 is lost by the word of voter 0; voter 1 holds that entry, but does not know that it is committed.
            world.schedules = false;
            world.voters[1].applies = false;
            world.cut(0);
            let loss = Command::Lost { node: 0, generation: 1 };
            while !world.ordered(&loss) {
                world.exchange();
                world.pass_time();
                world.ask();
                world.tick_voters();
            }
            world.nodes[0].follows = false;
            world.replicate(0, 1);
            assert!(lost(0)(world));
            world.isolate(0);
            world.elect(1, 2);
            // The question is covered by the new leader's first round, whose commit index is older than the loss.
            world.tells[0] = [false, true, false];
            let newest = world
                .held
                .iter()
                .rposition(|letter| matches!(letter, Letter::Question { node: 0, voter: 1, .. }));
            world.release_one(newest.unwrap(), false);
            world.exchange();
            world.advance(200);
        },
    );
}

/// Node 0's question arrives in the moment after its loss was proposed.
fn question_and_loss_cross(world: &mut World) {
    world.nodes[0].follows = false;
    world.cut(0);
    let loss = Command::Lost { node: 0, generation: 1 };
    while !world.ordered(&loss) {
        world.pass_time();
        world.ask();
        world.tick_voters();
        if world.ordered(&loss) {
            world.heal(0);
            let newest = world
                .held
                .iter()
                .rposition(|letter| matches!(letter, Letter::Question { node: 0, voter: 0, .. }));
            world.release_one(newest.unwrap(), false);
        }
        world.exchange();
    }
    world.advance(1_000);
}

#[test]
fn a_generation_given_up_is_never_answered_again() {
    needs(
        |rules| rules.refuse_after_unreachable = false,
        EVEN,
        false,
        "A L P6",
        question_and_loss_cross,
    );
}

#[test]
fn an_answer_is_for_the_generation_in_the_state() {
    needs(
        |rules| rules.generation = false,
        EVEN,
        false,
        "A L P6",
        question_and_loss_cross,
    );
}

#[test]
fn a_loss_waits_until_every_renewal_has_run_out() {
    needs(
        |rules| rules.lost_wait = false,
        EVEN,
        false,
        "L",
        |world| {
            world.nodes[0].follows = false;
            world.cut(0);
            world.advance(3_000);
        },
    );
}

#[test]
fn a_leaders_memory_begins_empty_with_its_term() {
    needs(
        |rules| rules.empty_with_term = false,
        EVEN,
        false,
        "L",
        |world| {
            // Voter 0 answered long ago, voter 1 until just now: voter 0, elected again, must not count from its own old answer.
            world.nodes[0].follows = false;
            world.elect(1, 2);
            world.advance(6_000);
            assert_eq!(world.counted("unreachable"), 0);
            world.cut(0);
            world.elect(0, 1);
            world.advance(3_000);
        },
    );
}

#[test]
fn a_loss_of_an_older_generation_is_rejected() {
    needs_model(
        |model| model.lost_for_generation = false,
        false,
        "L",
        |world| {
            world.cut(0);
            world.advance_until(|world| world.truth().nodes[0].status == NodeStatus::Unreachable);
            world.heal(0);
            world.advance_until(|world| world.truth().nodes[0].generation == 2);
            world.advance(500);
            assert!(world.whole());
            // The old leader's verdict about generation 1 arrives at last.
            let leader = &mut world.voters[0];
            let entry = (leader.term, Command::Lost { node: 0, generation: 1 });
            leader.log.push(entry);
            world.schedules = false;
            world.advance(500);
        },
    );
}

#[test]
fn the_supervisor_keeps_the_deadline_of_a_dead_daemon() {
    needs_model(
        |model| model.supervisor = false,
        false,
        "L",
        |world| {
            world.kill_daemon(0);
            world.advance_until(lost(0));
            world.advance(500);
        },
    );
}

#[test]
fn a_gangs_next_epoch_starts_only_after_the_earlier_one_has_ended_everywhere() {
    needs_model(
        |model| (model.start_command, model.bound) = (false, false),
        true,
        "P1",
        |world| {
            // Node 0 is lost, node 1 goes on with epoch 1 because its replica lags.
            world.cut(0);
            world.nodes[1].follows = false;
            world.advance_until(|world| world.truth().epoch == 2);
            world.advance(2_000);
        },
    );
}

#[test]
fn the_store_is_fenced_before_the_work_starts() {
    needs_model(
        |model| model.fence_first = false,
        false,
        "P2",
        |world| {
            world.store_open = false;
            world.upload(0);
            world.exit(0);
            world.advance_until(|world| world.nodes[0].work.is_some_and(|work| work.attempt == 2));
            world.release(|letter| matches!(letter, Letter::Effect { .. }));
        },
    );
}

#[test]
fn a_lost_node_that_nothing_replaced_keeps_its_work() {
    needs_model(
        |model| model.revive = false,
        false,
        "P5 Q5",
        |world| {
            world.schedules = false;
            world.cut(0);
            world.advance_until(lost(0));
            world.advance(1_000);
            world.heal(0);
            world.advance(3_000);
            world.schedules = true;
            world.advance_until(World::whole);
            assert_eq!(
                world.truth().epoch,
                if world.model.revive { 1 } else { world.truth().epoch }
            );
        },
    );
}

#[test]
fn a_late_duplicate_of_prepared_starts_no_second_attempt() {
    // Both halves of the rule stand in one switch here: either alone suffices in the model.
    needs_model(
        |model| (model.attempts_follow, model.earlier_ended) = (false, false),
        true,
        "P1",
        |world| {
            let again = |node| Command::Prepared {
                node,
                epoch: 1,
                follows: 0,
                incarnation: 1,
            };
            let term = world.voters[0].term;
            world.nodes[1].follows = false;
            world.voters[0].log.push((term, again(0)));
            world.voters[0].log.push((term, again(1)));
            world.nodes[0].work = None;
            world.advance(2_000);
        },
    );
}

#[test]
fn an_accepted_attempt_is_spawned_only_by_the_start_that_prepared_it() {
    // Attempt 2 is accepted, ran and ended; the daemon restarts with a journal that forgot it, before its report is in.
    needs_model(
        |model| model.bound = false,
        false,
        "P6 P5",
        |world| {
            world.exit(0);
            world.advance_until(|world| world.nodes[0].work.is_some_and(|work| work.attempt == 2));
            world.exit(0);
            world.kill_daemon(0);
            world.nodes[0].journal = (0, 0);
            world.start_daemon(0);
            world.nodes[0].follows = false;
            world.nodes[0].acts = false;
            world.advance(1_000);
            // Its replica sees all but the newest entry, which says that attempt 2 is over.
            while world.apply_node(0) {}
            let term = world.voters[0].term;
            world.voters[0].log.push((
                term,
                Command::Exited {
                    node: 0,
                    epoch: 1,
                    attempt: 2,
                },
            ));
            world.advance(STEP_MS);
            world.nodes[0].acts = true;
            world.advance(1_000);
            world.nodes[0].follows = true;
            world.advance_until(World::whole);
        },
    );
}

#[test]
fn a_leader_that_slept_declares_nobody_dead() {
    let story: Story = |world| {
        world.voters[0].asleep = true;
        world.advance(3_050);
        world.voters[0].asleep = false;
        world.advance(2_000);
    };
    let clean = play(Rules::ALL, ModelRules::ALL, false, EVEN, story);
    assert_eq!((clean.counted("unreachable"), clean.counted("freeze")), (0, 0));
    let rules = Rules {
        good_ticks: false,
        ..Rules::ALL
    };
    assert_eq!(
        play(rules, ModelRules::ALL, false, EVEN, story).counted("unreachable"),
        NODES as u64
    );
}

/// Node 0's questions arrive, the answers to it are lost for ever.
fn deaf(world: &mut World) {
    world.tells[0] = [false; VOTERS];
    world.advance(30_000);
}

#[test]
fn a_node_that_is_heard_but_does_not_hear_loses_its_work_to_another() {
    let clean = play(Rules::ALL, ModelRules::ALL, false, EVEN, deaf);
    assert_eq!(clean.violations, Vec::<String>::new());
    assert!(clean.whole() && clean.truth().epoch == 2, "the lease runs elsewhere");
    let mute = Rules {
        deaf_is_silent: false,
        ..Rules::ALL
    };
    let hung = play(mute, ModelRules::ALL, false, EVEN, deaf);
    assert!(
        !hung.whole() && hung.truth().epoch == 1,
        "without the rule it stays frozen for ever"
    );
}

#[test]
fn a_deaf_node_cannot_return_without_the_nonce_of_a_refusal() {
    let believed = Rules {
        return_nonce: false,
        ..Rules::ALL
    };
    let hung = play(believed, ModelRules::ALL, false, EVEN, deaf);
    assert!(
        hung.truth().nodes[0].generation > 2 && hung.truth().epoch == 1,
        "without the rule it returns and freezes for ever"
    );
}

#[test]
fn a_node_that_was_cut_off_returns_thaws_and_is_renewed() {
    let world = play(Rules::ALL, ModelRules::ALL, false, EVEN, |world| {
        world.cut(0);
        world.advance(4_500);
        world.heal(0);
        world.advance(3_000);
    });
    assert_eq!(world.violations, Vec::<String>::new());
    assert_eq!(world.truth().nodes[0].generation, 2);
    assert!(world.whole(), "{:?} {:?}", world.nodes[0].work, world.truth());
    assert_eq!(
        (world.counted("freeze"), world.counted("thaw"), world.counted("lost")),
        (1, 1, 0)
    );
}

#[test]
fn a_dead_nodes_work_runs_elsewhere_within_the_failover_budget() {
    let mut world = World::new(Rules::ALL, ModelRules::ALL, false, EVEN);
    world.advance(1_000);
    world.reboot(0);
    world.advance_until(|world| world.truth().epoch == 2);
    // 5.195 s of waiting with clocks ten times worse than production's, and a tick.
    assert!(world.now_ms <= 1_000 + 5_195 + 500, "placed at {} ms", world.now_ms);
    world.advance_until(World::whole);
    assert_eq!(world.violations, Vec::<String>::new());
}

#[test]
fn a_clean_leader_change_freezes_nobody_and_gives_nobody_up() {
    let mut world = World::new(Rules::ALL, ModelRules::ALL, true, SLOW_NODES);
    world.advance(1_000);
    for change in 0..10 {
        let (old, new) = (change % VOTERS, (change + 1) % VOTERS);
        world.voters[old].asleep = true;
        world.isolate(old);
        world.advance(900);
        world.elect(new, (new + 1) % VOTERS);
        world.advance(1_500);
        world.peers = [[true; VOTERS]; VOTERS];
        world.voters[old].asleep = false;
        world.advance(1_000);
    }
    assert_eq!((world.counted("freeze"), world.counted("unreachable")), (0, 0));
    assert!(
        world.whole()
            && world.nodes[0].work
                == Some(Work {
                    epoch: 1,
                    attempt: 1,
                    runs: true
                })
    );
    assert_eq!(world.violations, Vec::<String>::new());
}
