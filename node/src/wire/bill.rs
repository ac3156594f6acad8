//! The bill of a lease.

use holdfast_proto::id::{Cursor, LeaseId, Name};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The bill of a lease: closed lines, and the stretch that is still running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Bill {
    /// The lease.
    #[schema(value_type = String)]
    pub lease: LeaseId,
    /// ISO 4217 code of the currency.
    pub currency: String,
    /// Version of the prices that the lease was requested under.
    pub tariff: u32,
    /// Closed lines, in log order.
    pub lines: Vec<BillLine>,
    /// Sum of the lines.
    pub total_micros: u64,
    /// The stretch that is running and not charged yet.
    pub open: Option<OpenStretch>,
    /// The cluster's time that `open` is counted to.
    #[serde(default)]
    pub as_of_ms: u64,
    /// The lease is over: the total is final.
    pub is_final: bool,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BillLine {
    /// What was metered.
    #[schema(value_type = String)]
    pub meter: Name,
    /// The placement that ran.
    pub epoch: u32,
    /// First moment charged.
    pub from_ms: u64,
    /// First moment not charged any more.
    pub until_ms: u64,
    /// Time in between that is free: frozen, or not proven to have run.
    pub unpaid_ms: u64,
    /// Rate of all devices together.
    pub micros_per_hour: u64,
    /// The amount, rounded half up once.
    pub amount_micros: u64,
    /// Position of the event that opened the stretch.
    #[schema(value_type = String)]
    pub opened_at: Cursor,
    /// Position of the event that charged it; given when the bill is to be explained.
    #[schema(value_type = Option<String>)]
    pub charged_at: Option<Cursor>,
}

/// A stretch that is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenStretch {
    /// First moment charged.
    pub from_ms: u64,
    /// Time in it that is free so far.
    pub unpaid_ms: u64,
    /// Rate of all devices together.
    pub micros_per_hour: u64,
    /// What it comes to at `as_of_ms`: what would be charged if it ended then.
    pub so_far_micros: u64,
    /// Position of the event that opened it.
    #[schema(value_type = String)]
    pub opened_at: Cursor,
}
