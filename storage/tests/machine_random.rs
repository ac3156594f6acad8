//! Random histories: seeded sequences of commands, sensible and senseless, on a cluster of five nodes.
//!
//! After every entry the invariants are checked and a witness that sees only the public stream checks the gravest of
//! them on its own: no attempt starts while an earlier one may run, no device is granted twice, nothing is charged
//! after its end. At the end the log is replayed, the stream folded, the state encoded and decoded.

#![allow(clippy::unwrap_used)]

#[path = "machine/random.rs"]
mod random;
#[path = "machine/witness.rs"]
mod witness;
#[path = "machine/words.rs"]
mod words;
#[path = "machine/world.rs"]
mod world;

use std::collections::BTreeMap;

use holdfast_storage::machine::{Machine, State, invariant};

use random::Author;
use words::Words;
use world::World;

/// Seeds of an ordinary run; `MACHINE_SEEDS=N` plays more.
const SEEDS: u64 = 20;
const ENTRIES: usize = 600;

fn line(world: &mut World, text: &str) -> bool {
    let words = Words::parse(text).unwrap();
    let envelope = world.envelope(&words).unwrap_or_else(|error| panic!("{text}: {error}"));
    world.apply(&envelope).outcome.is_ok()
}

fn play(seed: u64, seen: &mut BTreeMap<&'static str, u64>) {
    let mut author = Author::new(seed);
    let mut world = World::default();
    for text in random::cluster() {
        assert!(line(&mut world, &text), "{text}");
    }
    let mut witness = witness::Witness::default();
    let mut told = 0;
    let mut history = Vec::new();
    for entry in 0..ENTRIES {
        let text = author.line(&world);
        line(&mut world, &text);
        history.push(text);
        let told_before = std::mem::replace(&mut told, world.records.len());
        for record in &world.records[told_before..] {
            *seen.entry(record.event.name()).or_default() += 1;
            if let Err(wrong) = witness.see(record) {
                panic!("seed {seed}, entry {entry}: {wrong}\n{}", history.join("\n"));
            }
        }
        if entry % 50 == 0 {
            let restored = world.machine.state().restored();
            let broken = invariant::check(&restored);
            assert!(
                broken.is_empty(),
                "seed {seed}, restored after entry {entry}: {broken:?}"
            );
            assert_eq!(State::decode(&restored.encode()).unwrap(), restored);
        }
        let broken = invariant::check(world.machine.state());
        assert!(
            broken.is_empty(),
            "seed {seed}, entry {entry}: {broken:?}\n{}",
            history.join("\n")
        );
    }
    let state = world.machine.state();
    let mut replayed = Machine::default();
    world
        .log
        .iter()
        .for_each(|(index, envelope)| drop(replayed.apply(*index, envelope)));
    assert_eq!(replayed.state(), state, "seed {seed}: replay");
    let mut folded = State::default();
    world.records.iter().for_each(|record| folded.fold(record));
    assert_eq!(folded.hash(), state.hash(), "seed {seed}: fold of the public stream");
    let decoded = State::decode(&state.encode()).unwrap();
    assert!(
        decoded == *state && decoded.hash() == state.hash(),
        "seed {seed}: encode and decode"
    );
    assert_eq!(
        decoded.encode(),
        state.encode(),
        "seed {seed}: the bytes depend on the state alone"
    );
}

#[test]
fn random_histories_keep_every_invariant_and_replay_to_the_same_state() {
    let mut seen = BTreeMap::new();
    let asked = std::env::var("MACHINE_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..asked.unwrap_or(SEEDS) {
        play(seed, &mut seen);
    }
    // Histories that never reach the hard parts would prove nothing.
    for (event, least) in [
        ("lease-activated", 150),
        ("lease-migrating", 60),
        ("lease-thawed", 30),
        ("attempt-ended", 60),
        ("lease-charged", 150),
        ("lease-ended", 150),
        ("checkpoint-committed", 15),
        ("node-lost", 60),
        ("node-returned", 60),
    ] {
        let count = seen.get(event).copied().unwrap_or(0);
        assert!(count >= least, "{event}: {count} of at least {least}; all: {seen:?}");
    }
}
