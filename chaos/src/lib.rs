//! The simulator: the production replica under a seed, with every fault that the seed asks for.
//!
//! `holdfast-chaos` is its program. A run is a pure function of its seed: the [`runtime`] draws the order of tasks and
//! owns time, and every message, timer and disk write goes into one [`trace`] hash. Product code knows nothing of this
//! crate; it takes its runtime, transport, disk, clock and randomness through seams.
//!
//! Not here: the product's own tests, real processes and real disks, timing measurements.

pub mod case;
pub mod check;
pub mod damage;
pub mod disk;
pub mod fault;
pub mod mutant;
pub mod net;
pub mod nodelease;
pub mod page;
pub mod random;
pub mod renewals;
pub mod report;
pub mod runtime;
pub mod shrink;
pub mod sweep;
pub mod trace;
pub mod workload;
pub mod world;
