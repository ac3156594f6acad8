//! Every constant of the packing policy, in one place.
//!
//! Read by the prices and the mix. The one rule: they were fixed before other request mixes were looked at, and nothing
//! else in the policy is a number.

/// The constants of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knobs {
    /// Requests that a device is expected to be offered before it stays as it is.
    pub horizon: u32,
    /// Weight of stranded milli: this many thousandths of their square, by thousand milli.
    pub stranded_permille: i64,
    /// CPU that free devices need, as a share of the mean CPU for what can be used of them.
    pub need_permille: i64,
    /// Weight of a model's scarcity.
    pub scarcity_permille: i64,
    /// Scarcity counts up to so many thousandths.
    pub scarcity_max_permille: i64,
    /// Counts of the mix are halved when so many requests are remembered: old ones fade.
    pub remembered_max: u64,
    /// Requests before the first prices are made of the mix.
    pub learned_min: u64,
    /// Prices are made anew each time so many thousandths more requests have come.
    pub relearn_permille: u64,
    /// Of equal costs, nodes are told apart by the share of their devices that is free, in so many parts; with 0 by how
    /// many devices are free.
    pub fullness_parts: u16,
    /// New prices are taken only if some residual's waste has moved by so many milli.
    pub moved_min_milli: i64,
}

/// The constants in force.
pub const KNOBS: Knobs = Knobs {
    horizon: 60,
    stranded_permille: 300,
    need_permille: 1000,
    scarcity_permille: 250,
    scarcity_max_permille: 2000,
    remembered_max: 65_536,
    learned_min: 8,
    relearn_permille: 125,
    fullness_parts: 10,
    moved_min_milli: 4,
};

/// The constants for leases of whole devices: of equal nodes the smaller gap is filled, so that large ones stay large.
pub const LEASES: Knobs = Knobs {
    fullness_parts: 0,
    ..KNOBS
};
