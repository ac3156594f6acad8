//! Holdfast.

/// Checkpoints and their way to another zone.
pub mod trainer;
pub mod transfer;

/// Clocks and randomness.
pub mod env;
/// Who this node is.
pub mod identity;
/// How a machine becomes a node.
pub mod join;
/// How nodes reach each other.
pub mod net;
