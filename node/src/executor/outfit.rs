//! What a run is given: the spec of its supervisor, made from a duty. Pure.
//!
//! The rule: what the cluster says (`HOLDFAST_*`, the visible devices) wins over what the tenant set, because gates
//! and drivers rely on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use holdfast_proto::id::NodeId;
use holdfast_proto::lease::Isolation;
use holdfast_proto::limits::{self, DEVICE_MILLI};

use super::duty::{Duty, Part, RunKey};
use super::supervisor::spec::{DeadlinePolicy, GroupLimits, Spec};

/// Where checkpoints of an attempt are saved, below its folder. A path of its own for each attempt: what a late
/// writer of an older one leaves there is visible to nobody.
pub const CHECKPOINTS_DIR: &str = "checkpoints";

/// What is the same for all runs of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outfit {
    /// This node.
    pub node: NodeId,
    /// The cgroup under which this node keeps its leases.
    pub group_root: String,
    /// Where programs are looked up.
    pub path: String,
}

/// What differs with the moment of the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// The deadline of the node lease, boot clock.
    pub deadline_ms: u64,
    /// The end of the lease's own time, boot clock.
    pub run_until_ms: Option<u64>,
}

impl Outfit {
    /// The group root of a node: several nodes may share a machine.
    pub fn group_root_of(node: NodeId) -> String {
        format!("holdfast-{:016x}", node.0)
    }

    /// The spec of a run, whose folder will be `folder`.
    pub fn spec(&self, run: RunKey, duty: &Duty, folder: &Path, until: Until) -> Spec {
        let work = &duty.work;
        let workload = &work.requested.workload;
        let terms = &work.requested.terms;
        let mut spec = Spec::new(
            run.to_string(),
            self.group_root.clone(),
            workload.command.clone(),
            until.deadline_ms,
        );
        spec.env = self.environment(run, duty, folder);
        spec.cwd = workload.folder.as_ref().map(PathBuf::from);
        spec.policy = match terms.isolation {
            Isolation::Freeze => DeadlinePolicy::Freeze,
            Isolation::Stop => DeadlinePolicy::Stop,
            Isolation::Keep => DeadlinePolicy::Keep,
        };
        spec.run_until_boot_ms = until.run_until_ms;
        spec.freeze_max_ms = limits::FREEZE_MS_MAX;
        spec.freeze_bound_ms = limits::STOP_BOUND_MS;
        spec.grace_ms = terms.grace.0;
        spec.limits = GroupLimits {
            memory_bytes: nonzero(u64::from(work.allocation.memory_mib) << 20),
            cpu_millis: nonzero(u64::from(work.allocation.cpu_milli)),
            pids_max: None,
        };
        spec
    }

    fn environment(&self, run: RunKey, duty: &Duty, folder: &Path) -> BTreeMap<String, String> {
        let work = &duty.work;
        let home = folder.join(super::supervisor::record::WORK_DIR).display().to_string();
        let devices: Vec<String> = work.allocation.devices.iter().map(ToString::to_string).collect();
        let devices = devices.join(",");
        let mut environment = BTreeMap::from([
            ("PATH".to_owned(), self.path.clone()),
            ("HOME".to_owned(), home),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ]);
        environment.extend(work.requested.workload.environment.iter().cloned());
        let ours = [
            // By UUID: indexes change when a card falls off the bus.
            ("CUDA_VISIBLE_DEVICES", devices.clone()),
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
            ("HOLDFAST_LEASE", run.lease.to_string()),
            ("HOLDFAST_EPOCH", run.epoch.0.to_string()),
            ("HOLDFAST_ATTEMPT", run.attempt.0.to_string()),
            ("HOLDFAST_FENCING_TOKEN", duty.token.to_string()),
            ("HOLDFAST_NODE", self.node.to_string()),
            ("HOLDFAST_TENANT", work.requested.tenant.to_string()),
            ("HOLDFAST_RANK", work.allocation.rank.to_string()),
            ("HOLDFAST_WORLD_SIZE", work.members.len().to_string()),
            ("HOLDFAST_LEADER_HOST", work.leader_host.clone()),
            ("HOLDFAST_DEVICES", devices),
            ("HOLDFAST_GRACE_MS", work.requested.terms.grace.0.to_string()),
            (
                "HOLDFAST_CHECKPOINT_DIR",
                folder.join(CHECKPOINTS_DIR).display().to_string(),
            ),
        ];
        environment.extend(ours.map(|(name, value)| (name.to_owned(), value)));
        environment.extend(part(work.part).map(|(name, value)| (name.to_owned(), value)));
        environment
    }
}

/// What work is told of its part of a device. CUDA's multi-process service keeps to its two variables when the node runs
/// it; without it they are a request to the work.
fn part(part: Option<Part>) -> impl Iterator<Item = (&'static str, String)> {
    let percent = |milli: u16| match milli % 10 {
        0 => format!("{}", milli / 10),
        rest => format!("{}.{rest}", milli / 10),
    };
    let share = percent(part.map_or(DEVICE_MILLI, |part| part.milli));
    let limits = part.into_iter().flat_map(|part| {
        [
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent_up(part.milli)),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={}M", part.memory_mib)),
            ("HOLDFAST_GPU_MEMORY_MIB", part.memory_mib.to_string()),
        ]
    });
    std::iter::once(("HOLDFAST_GPU_SHARE", share)).chain(limits)
}

/// Whole per cent, rounded up: work that has a part is never told that it has none.
fn percent_up(milli: u16) -> String {
    milli.div_ceil(10).to_string()
}

fn nonzero(value: u64) -> Option<u64> {
    (value > 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_proto::event::LeaseRequested;
    use holdfast_proto::id::{Attempt, DeviceId, Epoch, Era, FencingToken, LeaseId};

    use super::*;
    use crate::executor::duty::{MemberRun, Standing, Work};

    #[test]
    fn the_clusters_words_win_over_the_tenants_and_devices_are_named_by_uuid() {
        let base = crate::executor::diff::tests::work();
        let mut requested = LeaseRequested::clone(&base.requested);
        requested.workload.environment = vec![
            ("HOLDFAST_FENCING_TOKEN".into(), "9.9".into()),
            ("PATH".into(), "/opt".into()),
            ("A".into(), "1".into()),
        ];
        let mut allocation = base.allocation.clone();
        allocation.devices = vec![DeviceId([1; 16]), DeviceId([2; 16])];
        let work = Work {
            requested: Arc::new(requested),
            allocation,
            ..Work::clone(&base)
        };
        let duty = Duty {
            token: FencingToken { era: Era(1), index: 77 },
            standing: Standing::Current,
            attempt: Attempt(2),
            run: MemberRun::Idle,
            prepared: None,
            lost: false,
            work: Arc::new(work),
        };
        let outfit = Outfit {
            node: NodeId(1),
            group_root: Outfit::group_root_of(NodeId(1)),
            path: "/usr/bin:/bin".into(),
        };
        let run = RunKey {
            lease: LeaseId { cell: 0, index: 42 },
            epoch: Epoch(3),
            attempt: Attempt(2),
        };
        let until = Until {
            deadline_ms: 5,
            run_until_ms: Some(9),
        };
        let spec = outfit.spec(run, &duty, Path::new("/x/lease-0-42-e3-a2"), until);
        assert_eq!(spec.validate(), Ok(()));
        let get = |name: &str| spec.env.get(name).map(String::as_str);
        assert_eq!(get("HOLDFAST_FENCING_TOKEN"), Some("1.77"));
        assert_eq!((get("A"), get("PATH")), (Some("1"), Some("/opt")));
        assert_eq!(get("HOLDFAST_CHECKPOINT_DIR"), Some("/x/lease-0-42-e3-a2/checkpoints"));
        let devices = "GPU-01010101-0101-0101-0101-010101010101,GPU-02020202-0202-0202-0202-020202020202";
        assert_eq!(get("CUDA_VISIBLE_DEVICES"), Some(devices));
        assert_eq!(
            (spec.limits.memory_bytes, spec.limits.cpu_millis),
            (Some(64 << 20), Some(1_000))
        );
        assert_eq!((spec.deadline_boot_ms, spec.run_until_boot_ms), (5, Some(9)));
        let mps = get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
        assert_eq!((get("HOLDFAST_GPU_SHARE"), mps), (Some("100"), None));
    }

    #[test]
    fn work_with_a_part_of_a_device_is_told_which() {
        let told = |milli| {
            part(Some(Part {
                milli,
                memory_mib: 32_768,
            }))
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
        };
        assert_eq!(
            told(400),
            [
                "HOLDFAST_GPU_SHARE=40",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=32768M",
                "HOLDFAST_GPU_MEMORY_MIB=32768",
            ]
        );
        assert_eq!(
            told(125)[..2],
            ["HOLDFAST_GPU_SHARE=12.5", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=13"]
        );
    }
}
