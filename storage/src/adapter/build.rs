//! Building a snapshot beside the apply path: the state is captured in constant time and written in the background.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use openraft::AsyncRuntime;
use openraft::storage::{RaftSnapshotBuilder, Snapshot};

use super::{Adapter, StateSnapshot, fatal, held};
use crate::event_log::EventLog;
use crate::journal::WriteError;
use crate::machine::State;
use crate::snapshot::{Header, Pause, SnapshotError, SnapshotFile, SnapshotStore};
use crate::types::stored::EntryId;
use crate::types::{LogId, StoredMembership, Types};

/// Why a snapshot could not be built.
#[derive(Debug, thiserror::Error)]
enum BuildError {
    #[error("make events durable before the snapshot that covers them")]
    Events(#[from] WriteError),
    #[error("save the snapshot")]
    Save(#[from] SnapshotError),
}

/// A state that was captured and waits to be written.
pub struct SnapshotBuilder<RT> {
    work: Work,
    current: Arc<Mutex<Option<SnapshotFile>>>,
    building: Arc<AtomicBool>,
    runtime: PhantomData<fn() -> RT>,
}

#[derive(Clone)]
struct Work {
    state: State,
    last: Option<LogId>,
    members: StoredMembership,
    events: EventLog,
    snapshots: SnapshotStore,
    pause: Option<Pause>,
}

impl<RT> SnapshotBuilder<RT> {
    pub(super) fn capture(adapter: &Adapter<RT>) -> Self {
        let work = Work {
            state: adapter.machine.state().clone(),
            last: adapter.last,
            members: adapter.members.clone(),
            events: adapter.events.clone(),
            snapshots: adapter.snapshots.clone(),
            pause: adapter.pause.clone(),
        };
        let (current, building) = (adapter.current.clone(), adapter.building.clone());
        Self {
            work,
            current,
            building,
            runtime: PhantomData,
        }
    }
}

impl Work {
    fn run(self) -> Result<SnapshotFile, BuildError> {
        self.events.sync()?;
        let header = Header {
            last: self.last.map(EntryId::from),
            members: (&self.members).into(),
            state_hash: self.state.hash().0,
            body_hash: [0; 32],
            body_bytes: 0,
        };
        let pause = self.pause.as_ref();
        let written = self
            .snapshots
            .write(header, pause, |body| self.state.encode_into(|frame| body.put(frame)));
        Ok(written?)
    }
}

impl<RT: AsyncRuntime> RaftSnapshotBuilder<Types<RT>> for SnapshotBuilder<RT> {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<StateSnapshot> {
        let work = self.work.clone();
        let file = RT::spawn_blocking(move || work.run())
            .await?
            .map_err(|error| fatal(&error))?;
        let meta = file.header.meta().map_err(|error| fatal(&error))?;
        let mut current = held(&self.current);
        // A newer one may have been installed meanwhile.
        if current
            .as_ref()
            .is_none_or(|newest| newest.header.last <= file.header.last)
        {
            *current = Some(file.clone());
        }
        Ok(Snapshot { meta, snapshot: file })
    }
}

impl<RT> Drop for SnapshotBuilder<RT> {
    fn drop(&mut self) {
        self.building.store(false, Ordering::Release);
    }
}
