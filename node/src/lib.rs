//! One Holdfast node: a replica, a scheduler while it leads, an executor, and the doors that people use.
//!
//! [`boot`] alone knows all parts and starts them in order; [`env`](mod@env) alone reads clocks and the system's random
//! source. Protocols are machines without IO ([`nodelease`], [`executor::core`], [`scheduler`], [`transfer::push`]); the
//! tasks around them only move what they say, so the simulator drives the same code.
//!
//! # Not here
//! Rules about leases and money are in `holdfast-storage`; the words are in `holdfast-proto`; faults are in
//! `holdfast-chaos`, which this crate never names.

pub mod api;
pub mod bearer;
pub mod bench;
pub mod boot;
pub mod cli;
pub mod client;
pub mod config;
pub mod consensus;
pub mod demo;
pub mod device;
pub mod env;
pub mod executor;
pub mod history;
pub mod identity;
pub mod join;
pub mod local;
pub mod net;
pub mod nodelease;
pub mod replay;
pub mod scheduler;
pub mod telemetry;
pub mod trainer;
pub mod transfer;
pub mod wire;
