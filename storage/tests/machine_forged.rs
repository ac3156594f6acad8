//! Forged commands: whatever can be decoded can be applied. Real envelopes are damaged under a right checksum; those
//! that the decoder still believes are applied to the state that they were made for, and to one that they were not.

#![allow(clippy::unwrap_used)]

#[path = "machine/random.rs"]
mod random;
#[path = "machine/words.rs"]
mod words;
#[path = "machine/world.rs"]
mod world;

use holdfast_proto::command::Envelope;
use holdfast_proto::frame;
use holdfast_proto::time::Timestamp;
use holdfast_storage::machine::{Machine, invariant};

use random::Author;
use words::Words;
use world::World;

fn step(seed: &mut u64) -> usize {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*seed >> 33).unwrap()
}

/// Damages a few bytes of an envelope's archive and returns what the decoder makes of it.
fn forge(envelope: &Envelope, seed: &mut u64) -> Option<Envelope> {
    let frame = envelope.encode();
    let (kind, payload) = frame::open(&frame).unwrap();
    let mut payload = payload.to_vec();
    for _ in 0..=step(seed) % 4 {
        let at = step(seed) % payload.len();
        payload[at] = match step(seed) % 4 {
            0 => 0,
            1 => 0xff,
            2 => payload[at] ^ (1 << (step(seed) % 8)),
            _ => payload[step(seed) % payload.len()],
        };
    }
    Envelope::decode(&frame::encode_payload(kind, &payload)).ok()
}

#[test]
fn a_forged_command_is_decided_and_never_panics_or_breaks_an_invariant() {
    let (mut seed, mut applied, mut accepted) = (7, 0, 0);
    for history in 0..6 {
        let mut author = Author::new(1000 + history);
        let mut world = World::default();
        for text in random::cluster() {
            let envelope = world.envelope(&Words::parse(&text).unwrap()).unwrap();
            world.apply(&envelope);
        }
        for _ in 0..300 {
            let text = author.line(&world);
            let envelope = world.envelope(&Words::parse(&text).unwrap()).unwrap();
            for _ in 0..6 {
                let Some(mut forged) = forge(&envelope, &mut seed) else {
                    continue;
                };
                if forged.stamp > Timestamp(1 << 50) {
                    forged.stamp = envelope.stamp; // The leader sets it; a forged one would end every lease at once.
                }
                let mut machine = Machine::new(world.machine.state().clone());
                applied += 1;
                accepted += usize::from(machine.apply(world.index + 1, &forged).outcome.is_ok());
                let broken = invariant::check(machine.state());
                assert!(broken.is_empty(), "{forged:?}: {broken:?}");
                let _ = Machine::default().apply(1, &forged);
            }
            world.apply(&envelope);
        }
    }
    assert!(
        applied > 2000 && accepted > 200,
        "{applied} applied, {accepted} accepted: too few to prove anything"
    );
}
