//! The scheduler: the planner by check tables, the loop over the real machine.

#![allow(clippy::unwrap_used)]

mod over_machine;
mod table;
