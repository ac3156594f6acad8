//! What clients send, and what they are answered: the JSON of the HTTP interface, and the frames of the client lane.
//!
//! Owns the types that [`crate::api`] serves and [`crate::client`] reads, so that the two cannot disagree; the served OpenAPI document
//! is made from them. Times are milliseconds of UTC since 1970, money is micro-units of the tariff's currency. The one rule: fields are
//! added, never changed or removed, and a field that is not known is refused in requests and ignored in answers.

pub mod bill;
pub mod cluster;
pub mod deliver;
pub mod event;
pub mod lane;
pub mod lease;
pub mod node;
pub mod preview;
pub mod problem;
pub mod queue;
pub mod state;
pub mod subscription;
pub mod token;

/// Header that names a request, so that it can be sent again without being executed twice.
pub const REQUEST_ID: &str = "holdfast-request-id";
/// Header with the log index that an answer reflects.
pub const INDEX: &str = "holdfast-index";
/// Header with the node that served an answer.
pub const SERVED_BY: &str = "holdfast-served-by";
/// Header of a stale read: milliseconds since this node last heard from a leader.
pub const AGE_MS: &str = "holdfast-age-ms";
/// Header with where the voters are reached, so that a client outlives the node that it was told of.
pub const NODES: &str = "holdfast-nodes";
/// Header that marks a request passed on by a node, which is not passed on again.
pub const FORWARDED: &str = "holdfast-forwarded";
