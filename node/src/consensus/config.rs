//! How openraft is set, and why: the one place that names its options.
//!
//! Called by whoever starts a replica: `boot.rs`, and the simulator. The one rule: three defaults of openraft are unsafe or unfit here and
//! are set whatever the profile: leader restore is off (a leader that lost unsynced entries would go on without a vote), pre-vote is on,
//! and log reversion stays off.

use std::sync::Arc;

use holdfast_proto::id::ClusterId;
use openraft::{Config, ConfigError, SnapshotPolicy};

/// How far apart the voters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// One metro: a leader is missed after a quarter of a second.
    #[default]
    Metro,
    /// Voters over a wide area.
    Wan,
}

/// Entries between two snapshots.
const SNAPSHOT_EVERY: u64 = 100_000;

/// Makes the configuration of one replica.
///
/// # Errors
/// Never for these values; a test says so. The type is openraft's.
pub fn config(cluster: ClusterId, profile: Profile) -> Result<Arc<Config>, ConfigError> {
    // An election begins `max + random(min..max)` after the last heartbeat: 0.7 to 0.9 s in one metro. The quorum
    // rounds of the node lease are heartbeats too, never farther apart than 0.4 s: while they go on openraft's ticker
    // sleeps (see [`super::ticker`]). Awake, its loop turns every fifth of the first time, and a heartbeat is left out when
    // a follower has acknowledged anything within the fourth.
    let (heartbeat_interval, election_timeout_min, election_timeout_max, heartbeat_min_interval) = match profile {
        Profile::Metro => (120, 250, 450, 105),
        Profile::Wan => (400, 1_200, 2_400, 600),
    };
    let config = Config {
        cluster_name: cluster.to_string(),
        heartbeat_interval,
        heartbeat_min_interval: Some(heartbeat_min_interval),
        election_timeout_min,
        election_timeout_max,
        // The default of 300 caps what one fsync can take with it.
        max_payload_entries: 4_096,
        max_append_entries: Some(4_096),
        api_batch_capacity: 4_096,
        // The transfer watches its own progress; this bounds nothing but a stuck installation. The default is 200 ms.
        install_snapshot_timeout: 600_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_EVERY),
        // Must exceed what lies between two snapshots, or a snapshot would not help a laggard.
        replication_lag_threshold: 2 * SNAPSHOT_EVERY,
        // openraft's own policy looks at the newest snapshot only; [`super::compaction`] decides what may go.
        max_in_snapshot_log_to_keep: u64::MAX,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        allow_log_reversion: Some(false),
        ..Config::default()
    };
    config.validate().map(Arc::new)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_profiles_are_valid_and_keep_the_three_rules() {
        for profile in [Profile::Metro, Profile::Wan] {
            let config = config(ClusterId([1; 16]), profile).unwrap();
            assert_eq!(config.enable_leader_restore, Some(false));
            assert_eq!(config.enable_pre_vote, Some(true));
            assert_eq!(config.allow_log_reversion, Some(false));
        }
    }
}
