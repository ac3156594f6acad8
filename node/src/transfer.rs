//! Checkpoints: how saved work leaves the node that made it before that node can die with it.
//!
//! The work writes a checkpoint as a folder whose manifest comes last. Once the folder is complete, the node
//! copies it into its own store, pushes it to the store of a node in another zone, and only then proposes it as
//! committed: a restore point is one that another zone has proven to hold. The rule kept here: bytes that do
//! not match their manifest never become visible, on any path.
//!
//! Not here: when to take a checkpoint (the work decides), where a lease goes next (the scheduler), and which
//! checkpoint a new epoch starts from (the machine decides when the placement is applied).

pub mod budget;
pub mod courier;
pub mod manifest;
pub mod push;
pub mod receive;
pub mod replica;
pub mod starts;
pub mod store;
pub mod target;
#[cfg(test)]
mod test_wire;
pub mod watch;
pub mod wire;
