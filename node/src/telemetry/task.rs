//! Moves samples in and reports out: the thread that asks the probe, and the task that proposes what is due.
//!
//! `boot.rs` starts both. A probe may hang in a driver call, so it has a thread of its own, and the task counts its
//! silence. The rule kept here: a report goes through the log as any command does; an edge whose outcome is not known
//! is proposed again because the applied state does not show it, a lost minute of telemetry stays lost.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::device::{Device, Grade};
use holdfast_proto::id::{DeviceId, NodeId};
use holdfast_proto::tenant::Principal;
use holdfast_proto::time::Timestamp;
use tokio::sync::watch;

use super::exposition::Exposition;
use super::{SAMPLE_PERIOD_MS, Telemetry};
use crate::consensus::{Outcome, Propose};
use crate::device::DeviceProbe;
use crate::env::Clock;

/// Samples between two looks at the inventory.
const INVENTORY_EVERY: u32 = 60;

/// A node's telemetry, shared by the sampling thread, the reporting task and the API.
#[derive(Clone)]
pub struct SharedTelemetry {
    telemetry: Arc<Mutex<Telemetry>>,
    clock: Arc<dyn Clock>,
}

impl SharedTelemetry {
    /// Telemetry that knows no cards yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            telemetry: Arc::default(),
            clock,
        }
    }

    /// The telemetry, for as long as the guard lives; keep it short.
    pub fn lock(&self) -> MutexGuard<'_, Telemetry> {
        // Telemetry is readings; a panicking holder leaves at worst a round half taken in.
        self.telemetry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the cards' series for `/metrics`.
    pub fn write_metrics(&self, hostname: &str, out: &mut Exposition) {
        let now_ms = self.clock.boot_ms();
        self.lock().write_metrics(now_ms, hostname, out);
    }
}

/// The running sampling thread. It ends when this is dropped, after the driver call that it is in.
pub struct Sampler {
    /// The cards that are here, as the last look found them; the executor reports changes.
    pub inventory: watch::Receiver<Vec<Device>>,
    _stop: mpsc::Sender<()>,
}

impl Sampler {
    /// Starts the thread. The first inventory is taken before it returns, so a node never reports none by mistake.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(mut probe: Box<dyn DeviceProbe>, shared: SharedTelemetry) -> io::Result<Self> {
        let first = probe.inventory(shared.clock.boot_ms());
        shared.lock().set_inventory(&first);
        let (found, inventory) = watch::channel(first);
        let (stop, stopped) = mpsc::channel();
        std::thread::Builder::new()
            .name("devices".to_owned())
            .spawn(move || sample_until(&stopped, probe.as_mut(), &shared, &found))?;
        Ok(Self { inventory, _stop: stop })
    }
}

fn sample_until(
    stopped: &mpsc::Receiver<()>,
    probe: &mut dyn DeviceProbe,
    shared: &SharedTelemetry,
    found: &watch::Sender<Vec<Device>>,
) {
    let mut round = 0_u32;
    loop {
        let now_ms = shared.clock.boot_ms();
        let samples = probe.sample(now_ms);
        let events = probe.events(now_ms);
        round = round.wrapping_add(1);
        // A fault may have taken a card away, so a look follows it at once.
        if round.is_multiple_of(INVENTORY_EVERY) || !events.is_empty() {
            let here = probe.inventory(now_ms);
            shared.lock().set_inventory(&here);
            found.send_if_modified(|before| {
                let is_other = *before != here;
                *before = here;
                is_other
            });
        }
        shared.lock().observe(now_ms, samples, &events);
        match stopped.recv_timeout(Duration::from_millis(SAMPLE_PERIOD_MS)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The grade of a card in this replica's applied state; `None` while it is not in it.
pub type AppliedGrade = Arc<dyn Fn(DeviceId) -> Option<Grade> + Send + Sync>;

/// Proposes rollups and edges as they come due. Runs until it is dropped.
pub async fn report(node: NodeId, shared: SharedTelemetry, applied: AppliedGrade, propose: Arc<dyn Propose>) {
    let mut tick = tokio::time::interval(Duration::from_millis(SAMPLE_PERIOD_MS));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        for command in due(node, &shared, &applied) {
            let what = if matches!(command, Command::ReportHealth { .. }) {
                "health"
            } else {
                "rollup"
            };
            match propose.propose(by_node(node, command)).await {
                Outcome::Applied { .. } => {}
                Outcome::Refused { rejection, .. } => tracing::warn!(%rejection, what, "a device report was refused"),
                Outcome::Unknown { reason } => tracing::debug!(reason, what, "a device report may be lost"),
            }
        }
    }
}

fn due(node: NodeId, shared: &SharedTelemetry, applied: &AppliedGrade) -> Vec<Command> {
    let now_ms = shared.clock.boot_ms();
    let mut telemetry = shared.lock();
    telemetry.note_silence(now_ms);
    let edges = telemetry.due_edges(now_ms, |device| applied(device));
    let health = (!edges.is_empty()).then_some(Command::ReportHealth { node, edges });
    let rollup = telemetry
        .due_rollups(now_ms)
        .map(|rollups| Command::ReportRollup { node, rollups });
    health.into_iter().chain(rollup).collect()
}

/// A duty of a node as a command: the leader stamps it, and its content makes it idempotent.
fn by_node(node: NodeId, command: Command) -> Envelope {
    Envelope {
        stamp: Timestamp(0),
        principal: Principal::Node(node),
        project: None,
        origin: node,
        request: None,
        command,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::future::BoxFuture;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;
    use crate::device::script::Action;
    use crate::device::sim::SimDevices;
    use crate::env::OsClock;

    struct Log(UnboundedSender<Envelope>);

    impl Propose for Log {
        fn propose(&self, envelope: Envelope) -> BoxFuture<'_, Outcome> {
            self.0.send(envelope).unwrap();
            Box::pin(std::future::ready(Outcome::Applied {
                index: 1,
                events: Vec::new(),
            }))
        }
    }

    async fn next_edge(proposed: &mut UnboundedReceiver<Envelope>) -> (NodeId, Grade) {
        loop {
            if let Command::ReportHealth { node, edges } = proposed.recv().await.unwrap().command {
                return (node, edges[0].grade);
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_card_that_falls_off_the_bus_is_reported_and_leaves_the_inventory() {
        let node = NodeId(7);
        let devices = SimDevices::new(node, &"2xa100".parse().unwrap(), "".parse().unwrap());
        let shared = SharedTelemetry::new(Arc::new(OsClock));
        let mut sampler = Sampler::start(Box::new(devices.clone()), shared.clone()).unwrap();
        assert_eq!(sampler.inventory.borrow_and_update().len(), 2);
        let (log, mut proposed) = unbounded_channel();
        let applied: AppliedGrade = Arc::new(|_| Some(Grade::Healthy));
        let task = tokio::spawn(report(node, shared.clone(), applied, Arc::new(Log(log))));

        devices.act(OsClock.boot_ms(), 0, Action::Lose);

        assert_eq!(next_edge(&mut proposed).await, (node, Grade::Missing));
        sampler.inventory.wait_for(|here| here.len() == 1).await.unwrap();
        let mut text = Exposition::default();
        shared.write_metrics("box", &mut text);
        assert!(text.into_text().contains("grade=\"missing\"} 1"));
        task.abort();
    }
}
