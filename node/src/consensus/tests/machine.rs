//! A state machine that writes down what is applied, with snapshots in the real store.

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, StreamExt};
use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::time::Timestamp;
use holdfast_storage::snapshot::{Header, SnapshotFile, SnapshotStore};
use holdfast_storage::types::stored::EntryId;
use holdfast_storage::types::{LeaderId, LogId, Payload, Peer, Reply, SnapshotMeta, StoredMembership, Types};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{OptionalSend, Snapshot};

use super::Rt;

#[derive(Clone)]
pub(super) struct Tape {
    inner: Arc<Mutex<Inner>>,
    store: SnapshotStore,
}

#[derive(Default)]
struct Inner {
    applied: Option<LogId>,
    members: StoredMembership,
    envelopes: Vec<Envelope>,
}

impl Tape {
    pub(super) fn open(store: SnapshotStore) -> Self {
        let tape = Self {
            inner: Arc::default(),
            store,
        };
        if let (Some(newest), _) = tape.store.newest().unwrap() {
            tape.load(&newest);
        }
        tape
    }

    fn load(&self, snapshot: &SnapshotFile) {
        let meta = snapshot.header.meta().unwrap();
        let lines: Vec<Vec<u8>> = serde_json::from_slice(&snapshot.body().unwrap()).unwrap();
        let mut inner = self.inner.lock().unwrap();
        inner.envelopes = lines.iter().map(|line| Envelope::decode(line).unwrap()).collect();
        inner.applied = meta.last_log_id;
        inner.members = meta.last_membership;
    }

    pub(super) fn stamp(&self) -> Timestamp {
        self.inner
            .lock()
            .unwrap()
            .envelopes
            .last()
            .map_or(Timestamp(0), |last| last.stamp)
    }

    pub(super) fn stamps(&self) -> Vec<Timestamp> {
        self.inner
            .lock()
            .unwrap()
            .envelopes
            .iter()
            .map(|envelope| envelope.stamp)
            .collect()
    }

    pub(super) fn texts(&self) -> Vec<String> {
        let text = |envelope: &Envelope| match &envelope.command {
            Command::Annotate { text, .. } => Some(text.clone()),
            _ => None,
        };
        self.inner.lock().unwrap().envelopes.iter().filter_map(text).collect()
    }
}

impl RaftSnapshotBuilder<Types<Rt>> for Tape {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot<LeaderId, u64, Peer, SnapshotFile>> {
        let (header, body) = {
            let inner = self.inner.lock().unwrap();
            let lines: Vec<Vec<u8>> = inner
                .envelopes
                .iter()
                .map(|envelope| envelope.encode().to_vec())
                .collect();
            let body = serde_json::to_vec(&lines).unwrap();
            let hash = *blake3::hash(&body).as_bytes();
            let header = Header {
                last: inner.applied.map(EntryId::from),
                members: (&inner.members).into(),
                state_hash: hash,
                body_hash: hash,
                body_bytes: body.len() as u64,
            };
            (header, body)
        };
        let file = self.store.save(&header, &body).map_err(io::Error::other)?;
        Ok(Snapshot {
            meta: header.meta().map_err(io::Error::other)?,
            snapshot: file,
        })
    }
}

impl RaftStateMachine<Types<Rt>> for Tape {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let inner = self.inner.lock().unwrap();
        Ok((inner.applied, inner.members.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types<Rt>>>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            {
                let mut inner = self.inner.lock().unwrap();
                inner.applied = Some(entry.log_id);
                match entry.payload {
                    Payload::Blank => {}
                    Payload::Normal(proposal) => inner
                        .envelopes
                        .push(Envelope::decode(&proposal.0).map_err(io::Error::other)?),
                    Payload::Membership(members) => inner.members = StoredMembership::new(Some(entry.log_id), members),
                }
            }
            if let Some(responder) = responder {
                responder.send(Reply {
                    index: entry.log_id.index,
                    outcome: Ok(Vec::new()),
                });
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, _: &SnapshotMeta, snapshot: SnapshotFile) -> io::Result<()> {
        self.load(&self.store.adopt(&snapshot).map_err(io::Error::other)?);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot<LeaderId, u64, Peer, SnapshotFile>>> {
        let (newest, _) = self.store.newest().map_err(io::Error::other)?;
        newest
            .map(|file| {
                Ok(Snapshot {
                    meta: file.header.meta().map_err(io::Error::other)?,
                    snapshot: file,
                })
            })
            .transpose()
    }
}
