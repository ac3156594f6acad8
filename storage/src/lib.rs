//! What a replica remembers: the Raft log, the event log, snapshots, and the machine that folds one into the other.
//!
//! - [`disk`] is the file seam; everything below writes through it.
//! - [`journal`] is the append-only file format that both logs use, and the only thing that makes them durable.
//! - [`event_log`] keeps what the machine decided, for subscribers; [`snapshot`] keeps whole states.
//! - [`index`] holds projections over the event log that can be made again at any time.
//! - [`machine`] is the pure function from the committed log to the state and its events.
//! - [`promise`] keeps what each replica has acknowledged, to find a disk out that forgot it.
//! - [`backup`] is a whole state as one file, to restore a cluster from.
//! - [`adapter`] drives it for openraft; [`source`] is how everyone else reads what it did.
//! - [`planted`] names the rules that a test build can be told to break.
//! - [`raft_log`] is openraft's log storage on a journal; [`types`] is its type configuration.
//!
//! Not here: the network, clocks, processes, and who is allowed to do what. The node crate has those.

pub mod adapter;
pub mod backup;
pub mod disk;
pub mod event_log;
pub mod index;
pub mod journal;
pub mod machine;
pub mod planted;
pub mod promise;
pub mod raft_log;
pub mod snapshot;
pub mod source;
pub mod types;

pub use source::CommittedSource;
pub use types::Reply;
