//! Fifty seeds, each twice: what the product promises holds under faults, and one seed is one run.

use holdfast_chaos::report::{Report, Verdict};
use holdfast_chaos::world::{self, Mutant, Options};

/// The first seed, and how many follow.
const SEEDS: std::ops::Range<u64> = 1..51;

fn passes(report: &Report) {
    let why = || format!("{}\n{report}", report.failure());
    assert_eq!(
        report.verdict(),
        Verdict::Pass,
        "{}\n{}",
        report.counts.void_reason().unwrap_or_default(),
        why()
    );
}

fn fifth(part: u64) {
    let options = Options::default();
    for seed in SEEDS.filter(|seed| seed % 5 == part) {
        let report = world::run(seed, &options);
        println!("{report}");
        passes(&report);
        let again = world::run(seed, &options);
        assert_eq!(
            (report.trace, report.events),
            (again.trace, again.events),
            "seed {seed} ran differently twice"
        );
    }
}

#[test]
fn seeds_hold_and_repeat_first_fifth() {
    fifth(0);
}

#[test]
fn seeds_hold_and_repeat_second_fifth() {
    fifth(1);
}

#[test]
fn seeds_hold_and_repeat_third_fifth() {
    fifth(2);
}

#[test]
fn seeds_hold_and_repeat_fourth_fifth() {
    fifth(3);
}

#[test]
fn seeds_hold_and_repeat_last_fifth() {
    fifth(4);
}

fn caught(mutant: Mutant) -> bool {
    let options = Options {
        mutant: Some(mutant),
        ..Options::default()
    };
    (1..=20).any(|seed| world::run(seed, &options).verdict() == Verdict::Violation)
}

#[test]
fn disk_whose_syncs_do_nothing_is_caught() {
    assert!(
        caught(Mutant::LyingSync),
        "a disk that forgets what it acknowledged went through 20 seeds"
    );
}

#[test]
fn disk_whose_syncs_come_late_is_caught() {
    assert!(
        caught(Mutant::LateSync),
        "acknowledged before it was durable went through 20 seeds"
    );
}
