//! Connects the executor with the node lease, the applied state, the log and the checkpoint stores.
//!
//! The executor's thread calls in; whatever takes time (proposals, preparations) goes to a task. The rule: the permit is
//! read before the duties, which the executor's own thread keeps by calling in that order.

use std::path::PathBuf;
use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::device::Device;
use holdfast_proto::id::{DeviceId, NodeId};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::ReadState;
use super::envelope::by_node;
use super::node::NodeKeeper;
use crate::consensus::Propose;
use crate::executor::assigned::duties;
use crate::executor::core::{Authority, PrepareOrder};
use crate::executor::duty::{Duties, RunKey};
use crate::executor::outfit::CHECKPOINTS_DIR;
use crate::executor::worker::{Prepared, Surroundings};
use crate::transfer::starts::{LocalRun, Preparing, Starts};

/// What the executor of this node looks at and speaks to.
pub(super) struct ExecutorSurroundings {
    pub(super) me: NodeId,
    pub(super) state: ReadState,
    pub(super) keeper: Arc<NodeKeeper>,
    pub(super) propose: Arc<dyn Propose>,
    pub(super) starts: Starts,
    /// Devices that are here now.
    pub(super) devices: watch::Receiver<Vec<Device>>,
    pub(super) folder: PathBuf,
    pub(super) runtime: Handle,
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
        let duties = duties(&state, self.me, runs);
        let local = |run: &RunKey| LocalRun {
            lease: run.lease,
            epoch: run.epoch,
            attempt: run.attempt,
            folder: self.folder.join(format!("lease-{run}")).join(CHECKPOINTS_DIR),
        };
        let local: Vec<LocalRun> = runs.iter().map(local).collect();
        self.starts.follow(&state, &local);
        let has_work = |lease| duties.members.keys().any(|(of, _)| *of == lease);
        self.keeper
            .keep_leases(|lease| has_work(lease) || runs.iter().any(|run| run.lease == lease));
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
        let preparing = self.starts.preparing();
        self.runtime
            .spawn(async move { done.done(prepare(&preparing, &order, &here).await) });
    }
}

/// Checks the devices, shows the coming fence to every gate, and brings the saved state.
async fn prepare(preparing: &Preparing, order: &PrepareOrder, here: &[DeviceId]) -> Result<(), String> {
    if let Some(missing) = order
        .work
        .allocation
        .devices
        .iter()
        .find(|device| !here.contains(device))
    {
        return Err(format!("device {missing} is not here any more"));
    }
    let folder = order.folder.join(CHECKPOINTS_DIR);
    tokio::fs::create_dir_all(&folder)
        .await
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    preparing
        .prepare(order.run.lease, order.fence, &folder)
        .await
        .map_err(|error| chain(&error))
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
