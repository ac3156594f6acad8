//! The node lease against a hostile world: three voters, three nodes, one lease, and every clock, wire and daemon as unreliable as the design allows.
//!
//! `world` drives the production asker and answerer over a model of Raft, of the machine and of the executor, and checks after every step what must
//! always hold. `scenarios` replays each rule's counterexample, with the rule (clean) and without it (caught). `walk` plays at random.

#![allow(clippy::unwrap_used)]

mod asker_alone;
mod healthy;
mod machine;
mod rules_alone;
mod scenarios;
mod walk;
mod world;

/// Turns a counter into values that do not look alike (splitmix64's finisher): the seeds of everything here.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
