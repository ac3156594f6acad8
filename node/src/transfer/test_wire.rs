//! A transport between stores in one process, for tests: calls reach the receiver of the named node, and a test says
//! which nodes are dead and which calls lose their answer.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::id::{Attempt, Epoch, Era, Fence, FencingToken, LeaseId, NodeId};

use super::courier::Courier;
use super::manifest::{MANIFEST_NAME, Manifest, ManifestFile, digest_of, step_name};
use super::receive::{Access, Permission, Receiver};
use super::store::Store;
use super::wire::CheckpointName;
use crate::env::OsClock;
use crate::net::{Channel, Class, NetError, Service, Transport};

pub(super) const LEASE: LeaseId = LeaseId { cell: 0, index: 12 };

pub(super) fn fence(index: u64) -> Fence {
    Fence {
        token: FencingToken { era: Era(0), index },
        epoch: Epoch(1),
        attempt: Attempt(1),
    }
}

pub(super) fn name(step: u64) -> CheckpointName {
    CheckpointName {
        lease: LEASE,
        fence: fence(42),
        rank: 0,
        step,
    }
}

struct Everyone;

impl Access for Everyone {
    fn may_push(&self, _: NodeId, _: LeaseId, _: Fence) -> Permission {
        Permission::Granted
    }

    fn may_read(&self, _: NodeId, _: LeaseId) -> Permission {
        Permission::Granted
    }
}

/// A few nodes with a store each.
pub(super) struct Town {
    pub(super) place: tempfile::TempDir,
    wires: Arc<Wires>,
}

#[derive(Default)]
struct Wires {
    receivers: Mutex<BTreeMap<NodeId, Arc<Receiver>>>,
    dead: Mutex<BTreeSet<NodeId>>,
    /// Each n-th call is executed and its answer is lost.
    lossy: Mutex<Option<u32>>,
    calls: Mutex<u32>,
}

/// What one node reaches the others by.
struct Wire {
    own: NodeId,
    wires: Arc<Wires>,
}

impl Transport for Wire {
    fn call(&self, to: NodeId, class: Class, request: Bytes) -> BoxFuture<'static, Result<Bytes, NetError>> {
        assert_eq!(class, Class::Transfer);
        assert!(request.len() <= class.frame_bytes_max());
        let receiver = self.wires.receivers.lock().unwrap().get(&to).cloned();
        let is_dead = self.wires.dead.lock().unwrap().contains(&to);
        let calls = {
            let mut calls = self.wires.calls.lock().unwrap();
            *calls += 1;
            *calls
        };
        let is_lost = self
            .wires
            .lossy
            .lock()
            .unwrap()
            .is_some_and(|every| calls.is_multiple_of(every));
        let from = self.own;
        Box::pin(async move {
            let unreachable = NetError::Unreachable {
                node: to,
                why: "dead".into(),
            };
            let receiver = receiver.filter(|_| !is_dead).ok_or(unreachable)?;
            let answer = receiver.call(from, request).await;
            if is_lost {
                return Err(NetError::Lost {
                    node: to,
                    why: "cut".into(),
                });
            }
            answer.map_err(|refusal| NetError::Refused {
                node: to,
                why: refusal.0,
            })
        })
    }

    fn open(&self, to: NodeId, _: Class) -> BoxFuture<'static, Result<Channel, NetError>> {
        Box::pin(std::future::ready(Err(NetError::NoAddress { node: to })))
    }
}

impl Town {
    pub(super) fn new() -> Self {
        Self {
            place: tempfile::tempdir().unwrap(),
            wires: Arc::default(),
        }
    }

    /// A node with a store that answers, and its courier.
    pub(super) fn node(&self, id: u64) -> Courier {
        let own = NodeId(id);
        let store = Arc::new(Store::open(self.place.path().join(format!("store-{id}"))).unwrap());
        let receiver = Arc::new(Receiver::new(store.clone(), Arc::new(Everyone)));
        self.wires.receivers.lock().unwrap().insert(own, receiver);
        let wire = Arc::new(Wire {
            own,
            wires: self.wires.clone(),
        });
        Courier::new(own, store, wire, Arc::new(OsClock), u64::MAX)
    }

    pub(super) fn kill(&self, id: u64) {
        self.wires.dead.lock().unwrap().insert(NodeId(id));
    }

    pub(super) fn lose_every(&self, calls: u32) {
        *self.wires.lossy.lock().unwrap() = Some(calls);
    }

    /// The folder that work saves itself in.
    pub(super) fn work(&self) -> PathBuf {
        self.place.path().join("work")
    }

    /// Makes a complete checkpoint as work does: whole, then renamed.
    pub(super) fn checkpoint(&self, step: u64, files: &[(&str, Vec<u8>)]) -> PathBuf {
        self.checkpoint_bent(step, files, |_| {})
    }

    /// The same, with something done to the folder before it is renamed.
    pub(super) fn checkpoint_bent(&self, step: u64, files: &[(&str, Vec<u8>)], bend: impl Fn(&Path)) -> PathBuf {
        let temporary = self.work().join(format!("{}.tmp", step_name(step)));
        write(&temporary, step, files);
        bend(&temporary);
        let folder = self.work().join(step_name(step));
        fs::rename(temporary, &folder).unwrap();
        folder
    }
}

fn write(folder: &Path, step: u64, files: &[(&str, Vec<u8>)]) {
    fs::create_dir_all(folder).unwrap();
    let mut manifest = Manifest {
        step,
        files: Vec::new(),
    };
    for (name, content) in files {
        fs::write(folder.join(name), content).unwrap();
        let blake3 = digest_of(content);
        manifest.files.push(ManifestFile {
            name: (*name).into(),
            bytes: content.len() as u64,
            blake3,
        });
    }
    fs::write(folder.join(MANIFEST_NAME), manifest.to_bytes()).unwrap();
}
