//! The executor: what this node runs for leases.
//!
//! Its core (`core`) compares what the log asks of this node (`duty`) with what really runs, and acts on the
//! difference (`diff`); `worker` is the thread around it. A supervisor process per run (`supervisor`) outlives the
//! daemon; `launch` and `attach` start and find them again, `supervised` holds them. The rule: a process is started,
//! thawed or ended for the log's reasons and with a renewal in force only, with one exception, the deadline, which
//! each supervisor enforces on its own.
//!
//! Not here: the node lease itself (`nodelease`), where leases go (`scheduler`), checkpoints on their way (`transfer`).

pub mod assigned;
pub mod attach;
pub mod cgroup;
pub mod core;
pub mod diff;
pub mod duty;
pub mod isolation;
pub mod journal;
pub mod launch;
pub mod outfit;
pub mod processes;
pub mod procfs;
pub mod supervised;
pub mod supervisor;
pub mod worker;
