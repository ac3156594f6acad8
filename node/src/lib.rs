//! One Holdfast node.

/// Cards, real or simulated.
pub mod device;
/// The node lease: who may let work run, and until when.
pub mod nodelease;
/// Who gets which devices, decided by the leader.
pub mod scheduler;
/// What a node knows of its cards.
pub mod telemetry;
/// The work that the demo runs.
pub mod trainer;
/// Checkpoints and their way to another zone.
pub mod transfer;

/// Proposing to the log and reading from it.
pub mod consensus;
/// Clocks and randomness.
pub mod env;
/// What this node runs for leases.
pub mod executor;
/// Who this node is.
pub mod identity;
/// How a machine becomes a node.
pub mod join;
/// How nodes reach each other.
pub mod net;

/// The HTTP interface.
pub mod api;
/// Access tokens.
pub mod bearer;
/// The command line.
pub mod cli;
/// Talking to a cluster.
pub mod client;
/// The node's configuration.
pub mod config;
/// Events in words.
pub mod history;
/// The JSON of the HTTP interface.
pub mod wire;
