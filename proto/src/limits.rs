//! Every bound that more than one crate must agree on, with what happens when it is reached.

/// Longest [`crate::id::Name`]; a longer one is not a name. 63 is also a DNS label's limit, so names can be host names.
pub const NAME_BYTES_MAX: usize = 63;

/// Largest encoded command. A bigger one is refused before it is proposed, so one entry cannot stall replication.
pub const COMMAND_BYTES_MAX: usize = 256 * 1024;

/// Largest frame of any kind that is decoded; bounds what a peer can make us allocate.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Most devices that one lease may ask for; more is `device-count-out-of-range`.
pub const LEASE_DEVICES_MAX: u32 = 1024;

/// A whole device, in the thousandths that shares of it are counted in.
pub const DEVICE_MILLI: u16 = 1000;

/// Most bounds that one tenant has beyond its number of devices.
pub const TENANT_LIMITS_MAX: usize = 256;

/// Most devices that one node may report.
pub const NODE_DEVICES_MAX: usize = 1024;

/// Longest lease, 400 days in milliseconds; a longer one is `duration-out-of-range`.
pub const LEASE_DURATION_MS_MAX: u64 = 400 * 24 * 3_600_000;

/// Shortest lease, one second in milliseconds.
pub const LEASE_DURATION_MS_MIN: u64 = 1000;

/// Largest cap on a lease's cost: one billion units of the currency, in micro-units.
pub const CAP_MICROS_MAX: u64 = 1_000_000_000 * 1_000_000;

/// Most arguments and most environment entries of a workload.
pub const WORKLOAD_WORDS_MAX: usize = 1024;

/// Most bytes over all arguments and environment entries of a workload.
pub const WORKLOAD_BYTES_MAX: usize = 128 * 1024;

/// Longest free text in a command (reasons, annotations).
pub const TEXT_BYTES_MAX: usize = 4096;

/// Most models that a request may name.
pub const REQUEST_MODELS_MAX: usize = 32;

/// How long a request id is remembered, 24 h; an older request is `request-too-old` and never executed.
pub const REQUEST_MEMORY_MS: u64 = 24 * 3_600_000;

/// How far ahead of the stamp a client's clock may be before its request is refused, 1 h.
pub const REQUEST_AHEAD_MS_MAX: u64 = 3_600_000;

/// Most request ids remembered at once; past it the oldest are forgotten early and count as too old.
pub const REQUESTS_REMEMBERED_MAX: usize = 1_000_000;

/// How long a node may act on one renewal, counted from when it asked.
pub const NODE_TTL_MS: u64 = 4000;

/// How long a supervisor may take to stop or freeze its work after the deadline.
pub const STOP_BOUND_MS: u64 = 250;

/// Greatest relative error of a machine's boot clock, in parts per thousand.
pub const CLOCK_RATE_ERROR_PERMILLE: u64 = 10;

/// Period of a node's renewal questions.
pub const RENEW_PERIOD_MS: u64 = 500;

/// Silence after which a leader stops answering a generation and proposes `NodeUnreachable`.
pub const NODE_SILENCE_MS: u64 = 1500;

/// Wait after the last answer before `NodeLost` may be proposed: (TTL + STOP_BOUND)·(1+ρ)/(1−ρ), rounded up to 10 ms.
pub const NODE_LOST_WAIT_MS: u64 = 4340;

/// Longest planned quiet time of a node (`NodeQuiet`).
pub const NODE_QUIET_MS_MAX: u64 = 120_000;

/// Longest time that a drained node's leases may go on there, 7 days.
pub const DRAIN_MS_MAX: u64 = 7 * 24 * 3_600_000;

/// Shortest time that a spot lease keeps devices that it was granted, 30 s.
pub const SPOT_RUN_MS_MIN: u64 = 30_000;

/// How long frozen work is kept before it is killed, 10 min.
pub const FREEZE_MS_MAX: u64 = 600_000;

/// Longest life of a join token, 24 h.
pub const JOIN_TOKEN_MS_MAX: u64 = 24 * 3_600_000;

/// Life of a join token when none is named, 15 min.
pub const JOIN_TOKEN_MS_DEFAULT: u64 = 15 * 60_000;

/// Launch failures of one node in a row after which it gets no more work until an operator uncordons it.
pub const NODE_LAUNCH_FAILURES_MAX: u32 = 3;

/// Starts of one lease that may fail before any step was made; then the lease ends as failed.
pub const LEASE_ATTEMPTS_MAX: u32 = 8;
