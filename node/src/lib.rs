//! Holdfast.

/// Checkpoints and their way to another zone.
pub mod trainer;
pub mod transfer;
