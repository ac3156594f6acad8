//! What must come of a disk that goes wrong behind its replica's back; each in a world of its own, under two seeds.

use holdfast_chaos::damage::{self, Damage, Outcome};

fn holds(damage: Damage) -> Vec<Outcome> {
    let run = |seed| {
        let outcome = damage::run(seed, damage);
        println!("seed {seed}, {damage:?}: {outcome:?}");
        assert!(
            outcome.violations.is_empty(),
            "seed {seed}, {damage:?}: {:#?}",
            outcome.violations
        );
        outcome
    };
    (1..=2).map(run).collect()
}

#[test]
fn damaged_newest_snapshot_is_passed_over_and_the_log_replayed_from_the_one_before() {
    holds(Damage::Snapshot);
}

#[test]
fn disk_that_was_rolled_back_is_found_out_when_the_leader_that_knew_is_gone() {
    holds(Damage::RolledBack);
}

#[test]
fn log_that_was_rolled_back_is_found_out_when_the_replica_starts() {
    holds(Damage::LogRolledBack);
}

#[test]
fn leader_whose_disk_stalls_for_seconds_costs_one_election_at_most() {
    for outcome in holds(Damage::Stalled) {
        assert!(outcome.elections <= 1, "{outcome:?}");
        assert!(outcome.silence_ms < 10_000, "{outcome:?}");
    }
}

#[test]
fn leader_whose_disk_fails_steps_down_and_the_others_go_on() {
    for outcome in holds(Damage::Failing) {
        assert!(outcome.silence_ms < 10_000, "{outcome:?}");
    }
}

#[test]
fn leader_whose_disk_is_full_steps_down_and_comes_back_once_there_is_room() {
    for outcome in holds(Damage::Full) {
        assert!(outcome.silence_ms < 10_000, "{outcome:?}");
    }
}
