//! Workloads: what clients and nodes ask of a simulated cluster. Real commands of the product, made from a stream.
//!
//! [`setup`] makes the cluster, [`client`] are people with tokens; values in, values out, and the world moves them. The
//! one rule: a workload never waits and never reads a clock, so that one seed asks the same things whatever the cluster
//! answers.

pub mod client;
pub mod duty;
pub mod setup;
