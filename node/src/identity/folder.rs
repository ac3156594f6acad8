//! The data folder: what it holds, who may use it, and the lock that keeps a second process out.
//!
//! Owns creating and opening the folder, its lock, its modes (0700 for folders, 0600 for keys) and `node.toml`. Called first thing by
//! `init`, `join` and `serve`. The one rule: a folder is either empty, or holds exactly one node of one cluster, for ever; anything
//! else is refused with the command that mends it. `node.toml` is written last, so a folder without it was never a node.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use holdfast_proto::id::{ClusterId, NodeId};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

/// What `node.toml` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFile {
    /// The cluster that the node belongs to.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Its label when it was born; the log knows later ones.
    pub label: String,
    /// Whether the node has had Raft data. Once it has, an empty `raft/` means a lost disk, not a new node.
    pub established: bool,
}

/// Why a data folder cannot be used. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The path cannot be reached or made.
    #[error("cannot use {path:?} as data folder")]
    Unusable {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The path is a file.
    #[error("data folder {path:?} is not a folder: choose another with --data")]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The folder is another user's.
    #[error(
        "data folder {path:?} belongs to user {owner}, but holdfast runs as user {user}: run it as user {owner}, or choose another folder with --data"
    )]
    AnotherUser {
        /// The path.
        path: PathBuf,
        /// Owner of the folder.
        owner: u32,
        /// User of this process.
        user: u32,
    },
    /// A running process holds the lock.
    #[error(
        "data folder {path:?} is in use by process {process}: stop that one first, or choose another folder with --data"
    )]
    InUse {
        /// The path.
        path: PathBuf,
        /// What the lock file says of its holder.
        process: String,
    },
    /// `init` or `join` in a folder that holds a node of the same cluster, or when no cluster was named.
    #[error(
        "data folder {path:?} already holds node {node} of cluster {cluster}: run `holdfast serve`, or choose another folder with --data"
    )]
    Occupied {
        /// The path.
        path: PathBuf,
        /// The node that lives there.
        node: NodeId,
        /// Its cluster.
        cluster: ClusterId,
    },
    /// The folder holds a node of another cluster than the one meant.
    #[error(
        "data folder {path:?} holds node {node} of another cluster ({theirs}), not of {ours}: choose another folder with --data"
    )]
    AnotherCluster {
        /// The path.
        path: PathBuf,
        /// The node that lives there.
        node: NodeId,
        /// Its cluster.
        theirs: ClusterId,
        /// The cluster that was meant.
        ours: ClusterId,
    },
    /// The folder has Raft data but no identity.
    #[error(
        "data folder {path:?} holds the remains of a node without its identity: move it away, and join again with an empty folder"
    )]
    Remains {
        /// The path.
        path: PathBuf,
    },
    /// `serve` in an empty folder.
    #[error(
        "data folder {path:?} holds no node yet: run `holdfast init` for a new cluster, or `holdfast join HOST:PORT --token TOKEN`"
    )]
    NoNode {
        /// The path.
        path: PathBuf,
    },
    /// The identity is there but what the node had promised to remember is gone.
    #[error(
        "node {node} has its identity but no data in {path:?}: an old identity without data must not vote again. Run `holdfast node remove {node}` on a healthy node, then `holdfast join` here with an empty folder"
    )]
    Wiped {
        /// The path.
        path: PathBuf,
        /// The node that lived there.
        node: NodeId,
    },
    /// `node.toml` cannot be understood.
    #[error("cannot understand {path:?}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        #[source]
        source: toml::de::Error,
    },
}

/// A data folder, locked for this process for as long as the value lives.
#[derive(Debug)]
pub struct DataFolder {
    root: PathBuf,
    _lock: File,
}

impl DataFolder {
    /// Takes an empty folder for a new node; makes it when it is missing. `cluster` is the one to be joined, when it is known.
    pub fn create(root: &Path, cluster: Option<ClusterId>) -> Result<Self, FolderError> {
        make_folder(root).map_err(unusable(root))?;
        let folder = Self::lock(root)?;
        if let Some(there) = folder.read_node_file()? {
            let path = root.to_owned();
            return Err(match cluster {
                Some(ours) if ours != there.cluster => FolderError::AnotherCluster {
                    path,
                    node: there.node,
                    theirs: there.cluster,
                    ours,
                },
                _ => FolderError::Occupied {
                    path,
                    node: there.node,
                    cluster: there.cluster,
                },
            });
        }
        if folder.has_raft_data()? {
            return Err(FolderError::Remains { path: root.to_owned() });
        }
        for part in [
            "identity",
            "raft",
            "events",
            "snapshots",
            "index",
            "executor",
            "checkpoints",
        ] {
            make_folder(&root.join(part)).map_err(unusable(root))?;
        }
        Ok(folder)
    }

    /// Opens the folder of an existing node.
    pub fn open(root: &Path) -> Result<(Self, NodeFile), FolderError> {
        if !root.exists() {
            return Err(FolderError::NoNode { path: root.to_owned() });
        }
        let folder = Self::lock(root)?;
        let Some(node) = folder.read_node_file()? else {
            let path = root.to_owned();
            return Err(if folder.has_raft_data()? {
                FolderError::Remains { path }
            } else {
                FolderError::NoNode { path }
            });
        };
        if node.established && !folder.has_raft_data()? {
            return Err(FolderError::Wiped {
                path: root.to_owned(),
                node: node.node,
            });
        }
        Ok((folder, node))
    }

    /// The folder's path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of one part, such as `raft`.
    pub fn part(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Writes `node.toml`: from now on the folder holds this node.
    pub fn write_node_file(&self, node: &NodeFile) -> Result<(), FolderError> {
        let text = toml_text(node);
        write_durably(&self.root.join("node.toml"), text.as_bytes(), 0o644).map_err(unusable(&self.root))
    }

    /// Notes that the node now has Raft data, which it must never be without again.
    pub fn mark_established(&self, node: &NodeFile) -> Result<(), FolderError> {
        self.write_node_file(&NodeFile {
            established: true,
            ..node.clone()
        })
    }

    fn lock(root: &Path) -> Result<Self, FolderError> {
        let found = fs::metadata(root).map_err(unusable(root))?;
        if !found.is_dir() {
            return Err(FolderError::NotAFolder { path: root.to_owned() });
        }
        let user = rustix::process::geteuid().as_raw();
        if found.uid() != user {
            return Err(FolderError::AnotherUser {
                path: root.to_owned(),
                owner: found.uid(),
                user,
            });
        }
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(root.join("lock"))
            .map_err(unusable(root))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            // The text is for a person only; a holder that has not written it yet is still a holder.
            let _ = lock.read_to_string(&mut holder);
            let process = if holder.trim().is_empty() {
                "another".to_owned()
            } else {
                holder.trim().to_owned()
            };
            return Err(FolderError::InUse {
                path: root.to_owned(),
                process,
            });
        }
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(unusable(root))?;
        Ok(Self {
            root: root.to_owned(),
            _lock: lock,
        })
    }

    fn read_node_file(&self) -> Result<Option<NodeFile>, FolderError> {
        let path = self.root.join("node.toml");
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text)
                .map(Some)
                .map_err(|source| FolderError::Damaged { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(&self.root)(error)),
        }
    }

    fn has_raft_data(&self) -> Result<bool, FolderError> {
        match fs::read_dir(self.root.join("raft")) {
            Ok(mut entries) => Ok(entries.next().is_some()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unusable(&self.root)(error)),
        }
    }
}

/// Writes a whole file so that after a power loss either the old or the new content is there, never a part.
pub fn write_durably(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)?;
    // An old temporary file keeps its own mode.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Unusable { path, source }
}

fn toml_text(node: &NodeFile) -> String {
    // Written by hand: the parser is all that we carry of the toml crate. A JSON string is a TOML basic string.
    let label = serde_json::Value::from(node.label.as_str());
    format!(
        "cluster = \"{}\"\nnode = \"{}\"\nlabel = {label}\nestablished = {}\n",
        node.cluster, node.node, node.established
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn node(established: bool) -> NodeFile {
        NodeFile {
            cluster: ClusterId([1; 16]),
            node: NodeId(7),
            label: "gpu \"1\"".into(),
            established,
        }
    }

    fn text(error: &FolderError) -> String {
        error.to_string()
    }

    #[test]
    fn a_second_init_in_one_folder_is_refused_whether_the_first_runs_or_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataFolder::create(folder.path(), None).unwrap();
        let refused = DataFolder::create(folder.path(), None).unwrap_err();
        assert!(
            text(&refused).contains(&format!("in use by process {}", std::process::id())),
            "{refused}"
        );

        first.write_node_file(&node(false)).unwrap();
        drop(first);
        let refused = DataFolder::create(folder.path(), None).unwrap_err();
        assert!(text(&refused).contains("run `holdfast serve`"), "{refused}");
    }

    #[test]
    fn an_init_that_did_not_finish_can_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        drop(DataFolder::create(folder.path(), None).unwrap());
        DataFolder::create(folder.path(), None).unwrap();
    }

    #[test]
    fn the_folder_of_another_cluster_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        DataFolder::create(folder.path(), None)
            .unwrap()
            .write_node_file(&node(true))
            .unwrap();
        let refused = DataFolder::create(folder.path(), Some(ClusterId([2; 16]))).unwrap_err();
        assert!(text(&refused).contains("another cluster"), "{refused}");
    }

    #[test]
    fn serving_an_empty_or_missing_folder_says_how_to_begin() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("missing")] {
            let refused = DataFolder::open(&path).unwrap_err();
            assert!(text(&refused).contains("holdfast init"), "{refused}");
        }
        assert!(!folder.path().join("missing").exists(), "a refused open makes nothing");
    }

    #[test]
    fn a_node_file_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        DataFolder::create(folder.path(), None)
            .unwrap()
            .write_node_file(&node(false))
            .unwrap();
        let (_held, read) = DataFolder::open(folder.path()).unwrap();
        assert_eq!(read, node(false));
    }

    #[test]
    fn an_old_identity_without_data_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let created = DataFolder::create(folder.path(), None).unwrap();
        created.write_node_file(&node(false)).unwrap();
        fs::write(created.part("raft").join("0.seg"), b"x").unwrap();
        created.mark_established(&node(false)).unwrap();
        drop(created);
        drop(DataFolder::open(folder.path()).unwrap());

        fs::remove_dir_all(folder.path().join("raft")).unwrap();
        let refused = DataFolder::open(folder.path()).unwrap_err();
        assert!(
            text(&refused).contains("holdfast node remove n-0000000000000007"),
            "{refused}"
        );
    }

    #[test]
    fn raft_data_without_an_identity_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let created = DataFolder::create(folder.path(), None).unwrap();
        fs::write(created.part("raft").join("0.seg"), b"x").unwrap();
        drop(created);
        assert!(matches!(
            DataFolder::create(folder.path(), None),
            Err(FolderError::Remains { .. })
        ));
        assert!(matches!(
            DataFolder::open(folder.path()),
            Err(FolderError::Remains { .. })
        ));
    }

    #[test]
    fn a_file_is_not_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"").unwrap();
        assert!(DataFolder::create(&path, None).is_err());
        assert!(matches!(DataFolder::open(&path), Err(FolderError::NotAFolder { .. })));
    }

    #[test]
    fn another_users_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can make a folder of another user");
            return;
        }
        std::os::unix::fs::chown(folder.path(), Some(12_345), None).unwrap();
        let refused = DataFolder::create(folder.path(), None).unwrap_err();
        assert!(text(&refused).contains("belongs to user 12345"), "{refused}");
    }

    #[test]
    fn keys_are_readable_by_their_owner_alone_even_over_an_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.key");
        fs::write(path.with_extension("tmp"), b"old").unwrap();
        fs::set_permissions(path.with_extension("tmp"), Permissions::from_mode(0o644)).unwrap();
        write_durably(&path, b"key", 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_node_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let created = DataFolder::create(folder.path(), None).unwrap();
        fs::write(folder.path().join("node.toml"), b"cluster = 1").unwrap();
        drop(created);
        assert!(matches!(
            DataFolder::open(folder.path()),
            Err(FolderError::Damaged { .. })
        ));
    }
}
