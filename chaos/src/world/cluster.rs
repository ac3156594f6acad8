//! The machines of a world: starting, killing and restarting replicas, and what outlives their lives.
//!
//! A machine keeps its disk and its clocks; a life of its replica keeps nothing. The one rule: a machine that is down
//! is started again only by the fault that brought it down, or by the healing at the end.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_node::consensus::leadership::Lead;
use holdfast_node::consensus::promise::FORGOT;
use holdfast_proto::id::NodeId;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::assembly::{self, Live, Parts};
use super::clock::SimulatedClock;
use super::judge::Judge;
use super::people;
use crate::check::Seen;
use crate::disk::SimulatedDisk;
use crate::mutant::Mutant;
use crate::net::{Network, Weather};
use crate::runtime::{self, Host, TRUE_RATE_PPM};

/// One machine.
pub struct Machine {
    /// Its node.
    pub id: NodeId,
    /// Where its tasks run.
    pub host: Host,
    /// Its disk.
    pub disk: SimulatedDisk,
    /// Its clocks.
    pub clock: SimulatedClock,
    state: Mutex<MachineState>,
}

struct MachineState {
    /// Lives begun; the present one is one less.
    lives: u32,
    /// Boots of the machine: a process that is killed shares its boot with its successor.
    boots: u32,
    up: bool,
    live: Option<Live>,
    /// How long the machine stays down when the power goes that is armed to go.
    down_ms: u64,
}

impl Machine {
    fn state(&self) -> MutexGuard<'_, MachineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The running replica, once it has started.
    pub fn live(&self) -> Option<Live> {
        self.state().live.clone()
    }

    /// The number of the present life, and of the boot that it runs on.
    pub fn life(&self) -> (u32, u32) {
        let state = self.state();
        (state.lives.saturating_sub(1), state.boots)
    }
}

/// All machines of a world; clones are the same cluster.
#[derive(Clone)]
pub struct Cluster {
    /// The machines, by place.
    pub machines: Arc<Vec<Machine>>,
    /// What they talk over.
    pub network: Network,
    /// Who judges them.
    pub judge: Judge,
    /// The bug that is planted in each replica.
    pub mutant: Option<Mutant>,
    quiet: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
}

impl Cluster {
    /// Machines with empty disks, all down. Node ids count from 1.
    pub fn new(replicas: u8, judge: Judge, mutant: Option<Mutant>) -> Self {
        let (power_lost, alarms) = mpsc::unbounded_channel();
        let machine = |place: u8| {
            let id = NodeId(u64::from(place) + 1);
            let host = Host(id.0);
            let state = MachineState {
                lives: 0,
                boots: 1,
                up: false,
                live: None,
                down_ms: 0,
            };
            Machine {
                id,
                host,
                disk: SimulatedDisk::new(host, power_lost.clone()),
                clock: SimulatedClock::new(host),
                state: Mutex::new(state),
            }
        };
        let machines = Arc::new((0..replicas).map(machine).collect());
        let cluster = Self {
            machines,
            network: Network::default(),
            judge,
            mutant,
            quiet: Arc::default(),
            closed: Arc::default(),
        };
        runtime::spawn_on(Host::WORLD, cluster.clone().watch_power(alarms));
        cluster
    }

    /// Lets the nodes' agents rest, so that the cluster can come to stand still.
    pub fn quieten(&self) {
        self.quiet.store(true, SeqCst);
    }

    /// Lets clients end with the request that they are at.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    /// Reports whether clients have ended.
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Reports whether agents rest.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(SeqCst)
    }

    /// The ids of all nodes, by place.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.machines.iter().map(|machine| machine.id).collect()
    }

    /// The machine whose replica leads, as far as those that run know: the one of the highest term.
    pub fn leader(&self) -> Option<usize> {
        let leading = self.machines.iter().enumerate().filter_map(|(place, machine)| {
            let leadership = machine.live()?.replica.leadership();
            leadership.is_self.then_some((leadership.term, machine.id, place))
        });
        leading.max().map(|(_, _, place)| place)
    }

    /// Starts the next life of a machine's replica.
    pub fn start(&self, place: usize) {
        let machine = &self.machines[place];
        let life = {
            let mut state = machine.state();
            if state.up {
                return;
            }
            (state.up, state.lives) = (true, state.lives + 1);
            state.lives - 1
        };
        runtime::spawn_on(machine.host, self.clone().live(place, life));
    }

    /// One life, from its start until it is killed.
    async fn live(self, place: usize, life: u32) {
        let machine = &self.machines[place];
        let seen = Seen {
            replica: machine.id,
            life,
        };
        let parts = Parts {
            seen,
            disk: machine.disk.clone(),
            clock: machine.clock.clone(),
            network: self.network.clone(),
            judge: self.judge.clone(),
            mutant: self.mutant,
        };
        let live = match assembly::start(parts).await {
            Ok(live) => live,
            // The power may go while it starts; the alarm brings it back.
            Err(_) if machine.disk.is_off() => return,
            Err(error) if error.contains(FORGOT) => return self.judge.forgot(machine.id, &error),
            Err(error) => return self.judge.violate("start", format!("{seen} does not start: {error}")),
        };
        machine.state().live = Some(live.clone());
        people::open_door(&self, machine.host, live.clone());
        runtime::spawn_on(machine.host, people::agent(self.clone(), place, live.clone()));
        let mut known = live.replica.leadership();
        loop {
            if known.is_self {
                self.judge.leads(known.term, machine.id);
            }
            known = live.replica.changed(known).await;
        }
    }

    /// Ends a machine's life at once, and starts the next one later. Does nothing when it is down already.
    pub fn crash(&self, place: usize, loses_power: bool, down_ms: u64) {
        let machine = &self.machines[place];
        {
            let mut state = machine.state();
            if !std::mem::take(&mut state.up) {
                return;
            }
            state.boots += u32::from(loses_power);
        }
        self.network.forget(machine.host);
        runtime::kill(machine.host);
        // Dropped outside of the lock: what it owns may look at the machine.
        let live = machine.state().live.take();
        drop(live);
        let lost = if loses_power { machine.disk.lose_power() } else { 0 };
        self.judge.count(|counts| {
            counts.crashes += 1;
            counts.lossy_crashes += u64::from(lost > 0);
        });
        let cluster = self.clone();
        runtime::spawn_on(Host::WORLD, async move {
            runtime::sleep(Duration::from_millis(down_ms)).await;
            cluster.start(place);
        });
    }

    /// Lets the power go in the middle of a write to come.
    pub fn arm_power_loss(&self, place: usize, calls: u64, at_sync: bool, down_ms: u64) {
        let machine = &self.machines[place];
        machine.state().down_ms = down_ms;
        machine.disk.arm_power_loss(calls, at_sync);
    }

    async fn watch_power(self, mut alarms: UnboundedReceiver<Host>) {
        while let Some(host) = alarms.recv().await {
            if let Some(place) = self.machines.iter().position(|machine| machine.host == host) {
                let down_ms = self.machines[place].state().down_ms;
                self.crash(place, true, down_ms);
            }
        }
    }

    /// Undoes every fault, and starts whatever is down.
    pub fn heal(&self) {
        self.network.mend_all();
        self.network.set_weather(Weather::FAIR);
        for (place, machine) in self.machines.iter().enumerate() {
            machine.disk.set_sync_us_max(None);
            machine.disk.disarm();
            machine.clock.set_right();
            runtime::set_rate(machine.host, TRUE_RATE_PPM);
            self.start(place);
        }
    }
}
