//! The vocabulary of Holdfast and its bytes: what nodes, clients and logs say to each other.
//!
//! Every other crate speaks in these types. A *command* asks for something (imperative), an *event* is a fact
//! (past tense), a *rejection* is a deterministic refusal with a stable code. [`frame`] turns a value into
//! versioned, checksummed bytes and back; no bytes from outside are believed before its checks passed.
//!
//! # Versioning
//! The archived layout of a type is fixed by `tests/golden.rs`. Tags of commands, events and rejections are written
//! down beside the variants and never reused. A changed layout raises [`frame::VERSION`].
//!
//! # Not here
//! No IO, no clock, no randomness, no async: rules live in `holdfast-storage`, processes and sockets in `holdfast-node`.

#[macro_use]
mod macros;

pub mod command;
pub mod condition;
pub mod device;
pub mod event;
pub mod frame;
pub mod id;
pub mod lease;
pub mod limits;
pub mod node;
pub mod origin;
pub mod placement;
pub mod rejection;
pub mod subscription;
pub mod tariff;
pub mod telemetry;
pub mod tenant;
pub mod time;
pub mod workload;
