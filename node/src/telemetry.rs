//! Telemetry: what a node knows of its cards, and the little of it that goes into the log.
//!
//! Samples come in once a second and stay here, in a ring; digests of a minute and changes of health go out as
//! commands; `/metrics` shows the newest sample. The rule kept here: nothing is made up. A card that does not answer
//! has a rollup with no samples, and a field that it does not have is absent, never zero.
//!
//! Sans-io: [`Telemetry`] takes samples and the time and returns what is due; [`task`] moves them.

pub mod dcgm;
pub mod exposition;
pub mod health;
mod ring;
mod rollup;
pub mod task;
pub mod xid;

use std::collections::BTreeMap;

use holdfast_proto::device::{Device, Grade};
use holdfast_proto::id::DeviceId;
use holdfast_proto::telemetry::{HealthEdge, Rollup};

use self::health::Watch;
use self::ring::Ring;
use self::rollup::Digest;
use crate::device::{DeviceEvent, DeviceFault, DeviceSample, Sample};

/// Time between samples.
pub const SAMPLE_PERIOD_MS: u64 = 1000;
/// Time that one rollup covers.
pub const ROLLUP_PERIOD_MS: u64 = 60_000;
/// A round of samples that is this late did not come. Longer than a period, because a busy machine is not a fault.
const SILENCE_MS: u64 = 3 * SAMPLE_PERIOD_MS;
/// An edge that the log does not show is proposed again after this time.
const EDGE_RETRY_MS: u64 = 5000;
/// Edges a node may propose at once, and how often one more is allowed after that: a card that flaps, or a machine
/// that loses all its cards, must not fill the log.
const EDGE_BURST: u64 = 50;
const EDGE_EVERY_MS: u64 = 100;

/// Everything known of one card.
#[derive(Debug)]
struct Track {
    identity: Device,
    ring: Ring,
    digest: Digest,
    watch: Watch,
    /// Faults announced, by code; codes beyond the known ones count as one.
    xids: BTreeMap<Option<u32>, u64>,
    last_xid: u32,
    proposed: Option<(Grade, u64)>,
}

/// A node's telemetry.
#[derive(Debug, Default)]
pub struct Telemetry {
    tracks: BTreeMap<DeviceId, Track>,
    rolled_ms: Option<u64>,
    /// When the last round of samples came in, or was counted as silent.
    observed_ms: Option<u64>,
    /// When the allowance for edges is whole again.
    edges_full_ms: u64,
}

impl Telemetry {
    /// Takes in the cards that are here. A card that is gone is kept: its silence is a fact about it.
    pub fn set_inventory(&mut self, devices: &[Device]) {
        for device in devices {
            let track = self
                .tracks
                .entry(device.id)
                .or_insert_with(|| Track::new(device.clone()));
            track.identity = device.clone();
        }
    }

    /// Takes in one round of samples, and the faults announced since the last one.
    pub fn observe(&mut self, now_ms: u64, samples: Vec<DeviceSample>, events: &[DeviceEvent]) {
        self.rolled_ms.get_or_insert(now_ms);
        self.observed_ms = Some(now_ms);
        for event in events {
            if let Some(track) = self.tracks.get_mut(&event.device) {
                let known = xid::is_known(event.xid).then_some(event.xid);
                *track.xids.entry(known).or_default() += 1;
                track.last_xid = event.xid;
                track.watch.announce(event.xid);
            }
        }
        for DeviceSample { device, sample } in samples {
            let Some(track) = self.tracks.get_mut(&device) else {
                continue;
            };
            track.watch.observe(now_ms, &sample);
            if let Ok(sample) = sample {
                track.digest.add(&sample);
                track.ring.push(now_ms, sample);
            }
        }
    }

    /// Counts a period without a round of samples as silence of every card: the probe itself hangs in a driver call.
    pub fn note_silence(&mut self, now_ms: u64) {
        let newest_ms = self.observed_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(*newest_ms) < SILENCE_MS {
            return;
        }
        *newest_ms = now_ms - SILENCE_MS + SAMPLE_PERIOD_MS;
        for track in self.tracks.values_mut() {
            track.watch.observe(now_ms, &Err(DeviceFault::TimedOut));
        }
    }

    /// The digests of the span that has ended, once it has; a card that did not answer has one too.
    pub fn due_rollups(&mut self, now_ms: u64) -> Option<Vec<Rollup>> {
        let began_ms = self.rolled_ms?;
        let elapsed_ms = now_ms.saturating_sub(began_ms);
        if elapsed_ms < ROLLUP_PERIOD_MS || self.tracks.is_empty() {
            return None;
        }
        self.rolled_ms = Some(now_ms);
        Some(
            self.tracks
                .iter_mut()
                .map(|(id, track)| track.digest.close(*id, elapsed_ms))
                .collect(),
        )
    }

    /// The changes of health that the log does not show yet. `applied` is the grade of a card in the applied state;
    /// a card that is not there yet is passed over.
    pub fn due_edges(&mut self, now_ms: u64, applied: impl Fn(DeviceId) -> Option<Grade>) -> Vec<HealthEdge> {
        let mut edges = Vec::new();
        for (id, track) in &mut self.tracks {
            let Some(applied) = applied(*id) else { continue };
            let Some(edge) = track.watch.wanted_edge(now_ms, *id, applied) else {
                track.proposed = None;
                continue;
            };
            let waits = |(grade, at_ms)| grade == edge.grade && now_ms < at_ms + EDGE_RETRY_MS;
            if track.proposed.is_some_and(waits) || !allow(&mut self.edges_full_ms, now_ms) {
                continue;
            }
            track.proposed = Some((edge.grade, now_ms));
            edges.push(edge);
        }
        edges
    }

    /// The samples of a card that are still kept, oldest first, each with its time on the boot clock.
    pub fn recent(&self, device: DeviceId) -> impl Iterator<Item = (u64, &Sample)> {
        self.tracks.get(&device).into_iter().flat_map(|track| track.ring.iter())
    }

    /// The newest sample of a card, if it ever answered.
    pub fn newest(&self, device: DeviceId) -> Option<(u64, &Sample)> {
        self.tracks.get(&device)?.ring.newest()
    }

    /// How far this node itself trusts a card now, with the reason; the log may not show it yet.
    pub fn grade(&self, device: DeviceId) -> Option<(Grade, String)> {
        self.tracks.get(&device).map(|track| track.watch.verdict())
    }
}

impl Track {
    fn new(identity: Device) -> Self {
        let watch = Watch::new(&identity);
        Self {
            identity,
            ring: Ring::default(),
            digest: Digest::default(),
            watch,
            xids: BTreeMap::new(),
            last_xid: 0,
            proposed: None,
        }
    }
}

/// Takes one from the allowance, if there is one. The allowance is kept as the time at which it is whole again.
fn allow(full_ms: &mut u64, now_ms: u64) -> bool {
    let from_ms = (*full_ms).max(now_ms);
    if from_ms - now_ms > (EDGE_BURST - 1) * EDGE_EVERY_MS {
        return false;
    }
    *full_ms = from_ms + EDGE_EVERY_MS;
    true
}

#[cfg(test)]
#[path = "telemetry_tests.rs"]
mod tests;
