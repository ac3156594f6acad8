//! Connects the executor with the node lease, the applied state, the log and the checkpoint stores.
//!
//! The executor's thread calls in; whatever takes time (proposals, preparations) goes to a task. The rule: the permit is
//! read before the duties, which the executor's own thread keeps by calling in that order.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::id::{DeviceId, NodeId};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::lease::NodeSurroundings;
use super::transfer::{CheckpointCommits, by_node};
use super::{ReadState, view};
use crate::consensus::Propose;
use crate::executor::core::{Authority, PrepareOrder};
use crate::executor::duty::{Duties, MemberRun, RunKey, Standing};
use crate::executor::outfit::CHECKPOINTS_DIR;
use crate::executor::worker::{Prepared, Surroundings};
use crate::nodelease::thread::Keeper;
use crate::transfer::courier::Courier;
use crate::transfer::watch::{Watched, Watcher};

/// What the executor of this node looks at and speaks to.
pub(super) struct ExecutorSurroundings {
    pub(super) me: NodeId,
    pub(super) state: ReadState,
    pub(super) keeper: Arc<Keeper<NodeSurroundings>>,
    pub(super) propose: Arc<dyn Propose>,
    pub(super) courier: Courier,
    /// Devices that are here now.
    pub(super) devices: watch::Receiver<Vec<holdfast_proto::device::Device>>,
    pub(super) executor_folder: std::path::PathBuf,
    pub(super) runtime: Handle,
    pub(super) works: view::Works,
    /// A watcher for each run that saves checkpoints; dropping the sender says that the run has ended.
    pub(super) watchers: BTreeMap<RunKey, watch::Sender<bool>>,
}

impl ExecutorSurroundings {
    /// Watches the checkpoints of what runs here, and lets go of what does not any more.
    fn watch_checkpoints(&mut self, duties: &Duties, runs: &[RunKey]) {
        for ((lease, epoch), duty) in &duties.members {
            let run = RunKey { lease: *lease, epoch: *epoch, attempt: duty.attempt };
            let saves = duty.work.requested.workload.checkpoints;
            let goes = duty.standing == Standing::Current && duty.run == MemberRun::Started;
            if !saves || !goes || !runs.contains(&run) || self.watchers.contains_key(&run) {
                continue;
            }
            let watched = Watched {
                lease: run.lease,
                fence: duty.fence(run.epoch, run.attempt),
                rank: duty.work.allocation.rank,
                folder: self.folder_of(run).join(CHECKPOINTS_DIR),
                restored: duty.work.restore.as_ref().map(|checkpoint| checkpoint.step),
            };
            let commits = CheckpointCommits { me: self.me, state: self.state.clone(), propose: self.propose.clone() };
            let (ended, has_ended) = watch::channel(false);
            let watcher = Watcher::new(self.courier.clone(), Arc::new(commits), watched);
            self.runtime.spawn(watcher.run(has_ended));
            self.watchers.insert(run, ended);
        }
        let goes_on = |run: &RunKey| {
            let duty = duties.members.get(&(run.lease, run.epoch));
            duty.is_some_and(|duty| duty.attempt == run.attempt && duty.run == MemberRun::Started)
        };
        self.watchers.retain(|run, ended| goes_on(run) || ended.send(true).is_err() && false);
    }

    fn folder_of(&self, run: RunKey) -> std::path::PathBuf {
        self.executor_folder.join(format!("lease-{run}"))
    }
}

impl Surroundings for ExecutorSurroundings {
    fn authority(&mut self, _now_ms: u64) -> Authority {
        Authority {
            permit_until_ms: self.keeper.permit().map(|permit| permit.until_ms),
            deadline_ms: self.keeper.deadline_ms(),
            run_until_ms: self.keeper.run_until().into_iter().collect(),
        }
    }

    fn duties(&mut self, runs: &[RunKey]) -> Arc<Duties> {
        let state = (self.state)();
        let duties = self.works.duties(&state, self.me, runs);
        self.watch_checkpoints(&duties, runs);
        let has_work = |lease| duties.members.keys().any(|(of, _)| *of == lease);
        self.keeper.keep_leases(|lease| has_work(lease) || runs.iter().any(|run| run.lease == lease));
        Arc::new(duties)
    }

    fn propose(&mut self, command: Command) {
        let (propose, envelope) = (self.propose.clone(), by_node(self.me, command));
        self.runtime.spawn(async move {
            // The applied state is the answer; what is lost is reported again.
            let outcome = propose.propose(envelope).await;
            tracing::debug!(?outcome, "executor report");
        });
    }

    fn prepare(&mut self, order: PrepareOrder, done: Prepared) {
        let here: Vec<DeviceId> = self.devices.borrow().iter().map(|device| device.id).collect();
        let gates = view::holders(&(self.state)(), order.run.lease);
        let courier = self.courier.clone();
        self.runtime.spawn(async move { done.done(prepare(&courier, &order, &here, &gates).await) });
    }
}

/// Checks the devices, brings the saved state, and shows the coming fence to every gate.
async fn prepare(courier: &Courier, order: &PrepareOrder, here: &[DeviceId], gates: &[NodeId]) -> Result<(), String> {
    if let Some(missing) = order.work.allocation.devices.iter().find(|device| !here.contains(device)) {
        return Err(format!("device {missing} is not here any more"));
    }
    let lease = order.run.lease;
    courier.fence(lease, order.fence, gates).await.map_err(|error| chain(&error))?;
    if !order.work.requested.workload.checkpoints {
        return Ok(());
    }
    let folder = order.folder.join(CHECKPOINTS_DIR);
    tokio::fs::create_dir_all(&folder).await.map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    match &order.work.restore {
        Some(saved) => courier.restore(lease, order.fence, saved, &folder).await.map_err(|error| chain(&error)),
        None => Ok(()),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
