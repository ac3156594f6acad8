//! Worlds: simulated clusters of production replicas, and everything around them.
//!
//! [`observe`] lets the checkers see what passes a replica's storage, [`judge`] tells them. The one rule: what is inside
//! a replica is the product's code, and what is outside of it is simulated.

pub mod judge;
pub mod observe;
