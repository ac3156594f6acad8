//! The simulator that ships: cards that behave, age and fail as told, for demos, tests and clusters without GPUs.
//!
//! `--simulate 8xa100,2xrtx4090` makes one; the executor tells it which cards are at work, a [`Script`] tells it what
//! goes wrong. The rule kept here: what it says is a function of its node, its specification, what was done to it and
//! the time it is asked at, so the same run says the same twice.

mod card;

use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_proto::device::{Device, DeviceKind};
use holdfast_proto::id::{DeviceId, NodeId};
use holdfast_proto::limits::NODE_DEVICES_MAX;

use self::card::Card;
use super::catalog::{self, Fabric, GpuModel, UnknownModel};
use super::script::{Action, Script};
use super::{DeviceEvent, DeviceProbe, DeviceSample};

/// Which cards to simulate: `8xa100`, or `8xh100,2xrtx4090`. A model alone is one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimSpec {
    /// Counts and models, in the order of the slots.
    pub groups: Vec<(u32, &'static GpuModel)>,
}

/// A specification that cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimSpecError {
    /// The model is unknown.
    #[error(transparent)]
    Model(#[from] UnknownModel),
    /// The count is zero, or no number.
    #[error("{0:?} is not a count and a model such as 8xa100")]
    Count(String),
    /// More cards than a node may report.
    #[error("{0} cards are too many; a node has at most {NODE_DEVICES_MAX}")]
    TooMany(u64),
}

impl FromStr for SimSpec {
    type Err = SimSpecError;

    fn from_str(text: &str) -> Result<Self, SimSpecError> {
        let mut groups = Vec::new();
        let mut total = 0_u64;
        for part in text.split(',').map(str::trim) {
            let (count, name) = split_count(part).ok_or_else(|| SimSpecError::Count(shown(part)))?;
            let model = catalog::find(name)?;
            total += u64::from(count);
            groups.push((count, model));
        }
        match total > NODE_DEVICES_MAX as u64 {
            true => Err(SimSpecError::TooMany(total)),
            false => Ok(Self { groups }),
        }
    }
}

/// Splits `8xa100` into 8 and `a100`; a bare model counts once.
fn split_count(part: &str) -> Option<(u32, &str)> {
    let digits = part.bytes().take_while(u8::is_ascii_digit).count();
    let (count, rest) = part.split_at(digits);
    let Some(name) = rest.strip_prefix(['x', 'X', '×']) else {
        return (!part.is_empty()).then_some((1, part));
    };
    let count = count.parse().ok().filter(|count| *count > 0)?;
    Some((count, name))
}

fn shown(text: &str) -> String {
    text.chars()
        .take(64)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A node's simulated cards. Clones are the same cards: telemetry probes one, the executor loads another.
#[derive(Clone)]
pub struct SimDevices {
    state: Arc<Mutex<SimState>>,
}

/// Says whether work runs on a card now.
type Load = Box<dyn Fn(DeviceId) -> bool + Send>;

struct SimState {
    cards: Vec<Card>,
    /// Asked at each sample, when somebody has set it.
    load: Option<Load>,
    /// When the script's time began; the first call of any kind sets it.
    started_ms: Option<u64>,
    script: Script,
    /// Cues that have happened.
    done: usize,
    announced: Vec<DeviceEvent>,
}

impl SimDevices {
    /// Makes the cards of a node. The same node and specification give the same UUIDs, so a restart finds its cards
    /// again.
    pub fn new(node: NodeId, spec: &SimSpec, script: Script) -> Self {
        let models = spec
            .groups
            .iter()
            .flat_map(|(count, model)| (0..*count).map(move |_| *model));
        let models: Vec<&'static GpuModel> = models.collect();
        let cards = models.iter().enumerate().map(|(slot, model)| {
            let identity = describe(node, slot, model, models.len(), first_of(&models, slot));
            Card::new(identity, model)
        });
        let state = SimState {
            cards: cards.collect(),
            load: None,
            started_ms: None,
            script,
            done: 0,
            announced: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// From now on the cards' load follows this at each sample.
    pub fn follow(&self, load: impl Fn(DeviceId) -> bool + Send + 'static) {
        self.locked().load = Some(Box::new(load));
    }

    /// Tells that work runs on a card, or that it has ended: memory, load, heat and power follow.
    pub fn set_busy(&self, now_ms: u64, device: DeviceId, busy: bool) {
        let mut state = self.at(now_ms);
        if let Some(card) = state.cards.iter_mut().find(|card| card.identity.id == device) {
            card.set_busy(now_ms, busy);
        }
    }

    /// Does something to a card now, as a cue would. A slot that does not exist is passed over.
    pub fn act(&self, now_ms: u64, slot: u32, action: Action) {
        self.at(now_ms).act(now_ms, slot, action);
    }

    /// The state with everything done that was due by now.
    fn at(&self, now_ms: u64) -> MutexGuard<'_, SimState> {
        let mut state = self.locked();
        state.run_script(now_ms);
        state
    }

    fn locked(&self) -> MutexGuard<'_, SimState> {
        // No call leaves a card half changed, so what a panicking holder left is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimState {
    fn run_script(&mut self, now_ms: u64) {
        let started_ms = *self.started_ms.get_or_insert(now_ms);
        while let Some(cue) = self.script.cues.get(self.done).copied() {
            let due_ms = started_ms.saturating_add(cue.at_ms);
            if due_ms > now_ms {
                break;
            }
            self.done += 1;
            self.act(due_ms, cue.slot, cue.action);
        }
    }

    fn act(&mut self, now_ms: u64, slot: u32, action: Action) {
        let Some(card) = self.cards.get_mut(slot as usize) else {
            return;
        };
        let xid = card.act(now_ms, action);
        let device = card.identity.id;
        self.announced.extend(xid.map(|xid| DeviceEvent { device, xid }));
    }
}

impl DeviceProbe for SimDevices {
    fn inventory(&mut self, now_ms: u64) -> Vec<Device> {
        let state = self.at(now_ms);
        let here = state.cards.iter().filter(|card| !card.is_lost());
        let mut devices: Vec<Device> = here.map(|card| card.identity.clone()).collect();
        devices.sort_by_key(|device| device.id);
        devices
    }

    fn sample(&mut self, now_ms: u64) -> Vec<DeviceSample> {
        let mut guard = self.at(now_ms);
        let SimState { cards, load, .. } = &mut *guard;
        let sample = |card: &mut Card| {
            let device = card.identity.id;
            if let Some(load) = load {
                card.set_busy(now_ms, load(device));
            }
            DeviceSample {
                device,
                sample: card.sample(now_ms),
            }
        };
        cards.iter_mut().map(sample).collect()
    }

    fn events(&mut self, now_ms: u64) -> Vec<DeviceEvent> {
        std::mem::take(&mut self.at(now_ms).announced)
    }
}

/// The first slot of the same model: where its island begins.
fn first_of(models: &[&'static GpuModel], slot: usize) -> usize {
    models.iter().position(|model| *model == models[slot]).unwrap_or(slot)
}

fn describe(node: NodeId, slot: usize, model: &GpuModel, slots: usize, first: usize) -> Device {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"holdfast simulated device");
    hasher.update(&node.0.to_be_bytes());
    hasher.update(&(slot as u64).to_be_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    let island = match model.fabric {
        Fabric::NvLink => first,
        Fabric::Pcie => slot,
    };
    Device {
        id: DeviceId(id),
        kind: DeviceKind::Gpu,
        model: model.model_name(),
        memory_mib: model.memory_mib,
        compute_capability: model.compute_capability,
        island: u16::try_from(island).unwrap_or(u16::MAX),
        // Two sockets, the cards shared out between them, as eight-card machines are built.
        numa: Some(u16::from(slot * 2 >= slots && slots > 1)),
    }
}

#[cfg(test)]
#[path = "sim_tests.rs"]
mod tests;
