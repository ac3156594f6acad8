//! The executor: what this node runs for leases.
//!
//! A supervisor process per attempt runs the work and outlives the daemon (`supervisor`), `launch` and `attach` start
//! and find them again. The rule: a process is started, thawed or ended for the log's reasons only, with one
//! exception, the deadline, which each supervisor enforces on its own.

pub mod attach;
pub mod cgroup;
pub mod diff;
pub mod duty;
pub mod isolation;
pub mod journal;
pub mod launch;
pub mod procfs;
pub mod supervisor;
