//! The node lease: by asking twice a second a node earns the right to let its work run on, and by the silence of a node the leader learns that it may be gone.
//!
//! Two protocol machines without IO share one exchange: `asker` runs on every node, `answerer` on every voter (it speaks only while that voter leads).
//! `wire` is the exchange as bytes; `thread` moves both in production, on a thread and a socket of its own. The simulator and the
//! tests drive the very same machines with their own clocks and networks.
//!
//! The one rule: whoever executes must be able to show a renewal that is still in force, counted from the moment of its own asking, and the leader gives
//! a node up only when every renewal that anyone can have handed out has certainly run out, by any clock within `rho`.
//!
//! Not here: what a node does with a renewal (the executor), and what the log makes of the verdicts (the machine).

use holdfast_proto::limits;

pub mod answerer;
pub mod asker;
pub mod thread;
pub mod wire;

mod notes;
mod phase;
mod rules;

pub use answerer::{Answerer, ClusterView, NodeView, Verdict};
pub use asker::{Applied, Asker, AskerSetup, Permit, Standing};
#[doc(hidden)]
pub use rules::Rules;
pub use wire::{Message, Refusal, Renew, Renewed, Reply, RunFor};

/// Every duration of the node lease, in milliseconds of a boot clock unless named otherwise. All nodes of a cluster must use the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long a renewal holds, counted from the asking of its question.
    pub node_ttl_ms: u64,
    /// How often a node asks.
    pub renew_every_ms: u64,
    /// After this long without an answer the question is put again, to the next voter.
    pub reask_after_ms: u64,
    /// How often a node asks while it knows no leader.
    pub leaderless_every_ms: u64,
    /// Grain of the answerer's clock: silence is counted in ticks of this length.
    pub tick_ms: u64,
    /// So many good ticks of silence make a node unreachable.
    pub silence_ticks: u32,
    /// Longest time between a passed deadline and the work standing still.
    pub stop_bound_ms: u64,
    /// How far any boot clock's rate may be from true, in thousandths.
    pub rho_permille: u64,
    /// Shortest time between the beginnings of two quorum rounds: questions that come in between share one.
    pub round_gap_ms: u64,
    /// Losses that may be declared per minute whatever the size of the cluster.
    pub losses_per_minute_min: usize,
    /// Beyond that floor, one in so many nodes may be declared lost per minute.
    pub losses_per_minute_share: usize,
}

impl Timing {
    /// One metro: a killed node's work is elsewhere within six seconds, a clean leader change freezes nobody.
    pub const METRO: Timing = Timing {
        node_ttl_ms: limits::NODE_TTL_MS,
        renew_every_ms: limits::RENEW_PERIOD_MS,
        reask_after_ms: 150,
        leaderless_every_ms: 100,
        tick_ms: 250,
        silence_ticks: 6,
        stop_bound_ms: limits::STOP_BOUND_MS,
        rho_permille: limits::CLOCK_RATE_ERROR_PERMILLE,
        round_gap_ms: 40,
        losses_per_minute_min: 8,
        losses_per_minute_share: 8,
    };

    /// Voters far apart: elections take up to five seconds there, so everything that must outlast one is longer.
    pub const WAN: Timing = Timing {
        node_ttl_ms: 10_000,
        renew_every_ms: 1_000,
        reask_after_ms: 400,
        leaderless_every_ms: 250,
        silence_ticks: 16,
        round_gap_ms: 20,
        ..Timing::METRO
    };

    /// How long a leader waits after its last answer before it may call a node lost: `(ttl + stop)·(1+rho)/(1-rho)`, rounded up.
    /// The node's clock may be slow and the leader's fast, and the stop itself takes time on the node's clock.
    pub const fn lost_wait_ms(&self) -> u64 {
        self.outlast_ms(self.node_ttl_ms + self.stop_bound_ms)
    }

    /// The time on this clock within which `span_ms` has certainly passed on any other clock within rho.
    pub const fn outlast_ms(&self, span_ms: u64) -> u64 {
        (span_ms * (1_000 + self.rho_permille)).div_ceil(1_000 - self.rho_permille)
    }

    /// How many of `nodes` may be declared lost in one minute: a fault of the control plane must not empty a zone.
    pub fn losses_per_minute(&self, nodes: usize) -> usize {
        self.losses_per_minute_min
            .max(nodes / self.losses_per_minute_share.max(1))
    }
}

const _: () = assert!(Timing::METRO.tick_ms * Timing::METRO.silence_ticks as u64 == limits::NODE_SILENCE_MS);
const _: () = assert!(Timing::METRO.lost_wait_ms() <= limits::NODE_LOST_WAIT_MS);

/// Turns a counter into values that do not repeat and do not look alike (splitmix64's finisher); not a cipher.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
