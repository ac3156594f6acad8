//! Where this machine mounts its cgroup hierarchies, and where in them this process is.
//!
//! Called by `cgroup` only. The rule: a lease's group is made below the group of the process that makes it, so that
//! limits set on the daemon from outside (systemd, a container) also bind its leases.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::executor::supervisor::spec::GroupChoice;

/// Which cgroup interface a directory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// Version 1: mount options, among them the controllers. Version 2: the contents of `cgroup.controllers`.
    controllers: Vec<String>,
    /// The group of this process in it.
    own: PathBuf,
}

/// All hierarchies of this machine, version 1 and 2.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hierarchies(Vec<Hierarchy>);

/// With systemd's `DelegateSubgroup=daemon` the daemon sits in a leaf of its unit's group, because the unified
/// hierarchy gives controllers only to groups without processes. Leases are then its siblings.
const DAEMON_LEAF: &str = "daemon";

impl Hierarchies {
    /// Reads them from `/proc`. Empty when there are none.
    pub fn read() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let read = |dir: &Path, file: &str| fs::read_to_string(dir.join(file)).ok();
        Self::parse(&mounts, &own, read, |dir| dir.join("cgroup.procs").exists())
    }

    /// `mounts` as in `/proc/self/mountinfo`, `own` as in `/proc/self/cgroup`.
    fn parse(
        mounts: &str,
        own: &str,
        read: impl Fn(&Path, &str) -> Option<String>,
        exists: impl Fn(&Path) -> bool,
    ) -> Self {
        let mut found = Vec::new();
        for line in mounts.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let left: Vec<&str> = left.split(' ').collect();
            let right: Vec<&str> = right.split(' ').collect();
            let (Some(root), Some(mount), Some(kind)) = (left.get(3), left.get(4), right.first()) else {
                continue;
            };
            let version = match *kind {
                "cgroup" => Version::V1,
                "cgroup2" => Version::V2,
                _ => continue,
            };
            let options = right.get(2).copied().unwrap_or_default();
            let mount = Path::new(mount);
            let controllers: Vec<String> = match version {
                Version::V1 => options.split(',').map(str::to_owned).collect(),
                Version::V2 => read(mount, "cgroup.controllers")
                    .unwrap_or_default()
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect(),
            };
            let own = own_path(own, version, &controllers).unwrap_or("/");
            let own = locate(mount, root, own, &exists);
            found.push(Hierarchy {
                version,
                controllers,
                own,
            });
        }
        Self(found)
    }

    /// The directory below which a group with this controller is to be made, and its interface.
    pub fn base(&self, controller: &str, choice: GroupChoice) -> Option<(Version, PathBuf)> {
        let has = |hierarchy: &&Hierarchy| match hierarchy.version {
            Version::V1 => choice != GroupChoice::V2 && hierarchy.controllers.iter().any(|name| name == controller),
            // Freezing needs no controller in the unified hierarchy.
            Version::V2 => {
                choice != GroupChoice::V1
                    && (controller == "freezer" || hierarchy.controllers.iter().any(|name| name == controller))
            }
        };
        if choice == GroupChoice::Off {
            return None;
        }
        // On a mixed machine the version 1 freezer is listed first or not at all; prefer it, beside its controllers.
        let mut candidates: Vec<&Hierarchy> = self.0.iter().filter(has).collect();
        candidates.sort_by_key(|hierarchy| hierarchy.version == Version::V2);
        let hierarchy = candidates.first()?;
        let own = &hierarchy.own;
        let delegated = hierarchy.version == Version::V2 && own.file_name().is_some_and(|name| name == DAEMON_LEAF);
        let base = if delegated {
            own.parent().unwrap_or(own).to_owned()
        } else {
            own.clone()
        };
        Some((hierarchy.version, base))
    }
}

/// The path of this process in a hierarchy, from lines such as `6:freezer:/a/b` and `0::/a/b`.
fn own_path<'a>(own: &'a str, version: Version, controllers: &[String]) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, names, path) = (parts.next()?, parts.next()?, parts.next()?);
        let here = match version {
            Version::V1 => !names.is_empty() && names.split(',').all(|name| controllers.iter().any(|c| c == name)),
            Version::V2 => names.is_empty(),
        };
        here.then_some(path)
    })
}

/// Turns a path in the hierarchy into a directory. Inside a container the mount shows only a part of it, or the
/// path names a place that the mount does not show at all; then the mount itself is the best base there is.
fn locate(mount: &Path, root: &str, own: &str, exists: impl Fn(&Path) -> bool) -> PathBuf {
    let inside = if root == "/" { Some(own) } else { own.strip_prefix(root) };
    let dir = inside.map(|path| mount.join(path.trim_start_matches('/')));
    dir.filter(|dir| exists(dir)).unwrap_or_else(|| mount.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = "\
36 32 0:30 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
37 32 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
38 32 0:32 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const PURE: &str = "30 20 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";

    fn parse(mounts: &str, own: &str) -> Hierarchies {
        Hierarchies::parse(mounts, own, |_, _| Some("cpu memory pids".into()), |_| true)
    }

    #[test]
    fn a_mixed_machine_freezes_in_version_1_unless_told_otherwise() {
        let found = parse(MIXED, "6:freezer:/a\n3:cpu,cpuacct:/b\n0::/c\n");
        let base = |controller, choice| found.base(controller, choice).map(|(_, dir)| dir.display().to_string());
        assert_eq!(
            base("freezer", GroupChoice::Auto).as_deref(),
            Some("/sys/fs/cgroup/freezer/a")
        );
        assert_eq!(
            base("freezer", GroupChoice::V2).as_deref(),
            Some("/sys/fs/cgroup/unified/c")
        );
        assert_eq!(
            base("cpu", GroupChoice::Auto).as_deref(),
            Some("/sys/fs/cgroup/cpu,cpuacct/b")
        );
        assert_eq!(base("memory", GroupChoice::V1), None);
        assert_eq!(base("freezer", GroupChoice::Off), None);
    }

    #[test]
    fn a_daemon_in_its_delegated_leaf_gets_siblings() {
        let own = "0::/system.slice/holdfast.service/daemon\n";
        let base = parse(PURE, own).base("memory", GroupChoice::Auto);
        assert_eq!(
            base,
            Some((Version::V2, "/sys/fs/cgroup/system.slice/holdfast.service".into()))
        );
    }

    #[test]
    fn a_path_that_the_mount_does_not_show_falls_back_to_the_mount() {
        let mount = Path::new("/cg");
        assert_eq!(locate(mount, "/", "/gone", |_| false), Path::new("/cg"));
        assert_eq!(locate(mount, "/docker/7", "/docker/7/x", |_| true), Path::new("/cg/x"));
        assert_eq!(locate(mount, "/docker/7", "/other", |_| true), Path::new("/cg"));
    }
}
