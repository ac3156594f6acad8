#![allow(clippy::unwrap_used)]

use holdfast_proto::id::NodeId;

use super::exposition::Exposition;
use super::*;
use crate::device::DeviceProbe;
use crate::device::script::Action;
use crate::device::sim::SimDevices;

struct Node {
    devices: SimDevices,
    telemetry: Telemetry,
    ids: Vec<DeviceId>,
}

impl Node {
    fn new(spec: &str) -> Self {
        let mut devices = SimDevices::new(NodeId(1), &spec.parse().unwrap(), "".parse().unwrap());
        let mut telemetry = Telemetry::default();
        telemetry.set_inventory(&devices.inventory(0));
        let ids = devices.sample(0).iter().map(|sample| sample.device).collect();
        Self {
            devices,
            telemetry,
            ids,
        }
    }

    fn tick(&mut self, now_ms: u64) {
        let samples = self.devices.sample(now_ms);
        let events = self.devices.events(now_ms);
        self.telemetry.observe(now_ms, samples, &events);
    }

    fn metrics(&self, now_ms: u64) -> String {
        let mut out = Exposition::default();
        self.telemetry.write_metrics(now_ms, "box-1", &mut out);
        out.into_text()
    }
}

#[test]
fn a_minute_becomes_one_rollup_for_each_card() {
    let mut node = Node::new("2xa100");
    node.devices.set_busy(0, node.ids[0], true);
    for second in 0..60 {
        node.tick(second * 1000);
        assert!(node.telemetry.due_rollups(second * 1000).is_none());
    }
    node.devices.act(59_500, 0, Action::EccSingle(4));
    node.tick(60_000);

    let rollups = node.telemetry.due_rollups(60_000).unwrap();
    assert_eq!(rollups.len(), 2);
    let busy = rollups.iter().find(|rollup| rollup.device == node.ids[0]).unwrap();
    assert_eq!(busy.span.0, 60_000);
    assert_eq!(busy.samples, 61);
    let temperature = busy.temperature_c.unwrap();
    assert!(
        temperature.min < temperature.mean && temperature.mean < temperature.max,
        "{temperature:?}"
    );
    assert!(busy.utilisation_permille.unwrap() >= 900);
    assert_eq!(busy.energy_mj, Some(60 * 358_600));
    assert_eq!(busy.ecc_single_bit, Some(4));
    assert_eq!(busy.ecc_double_bit, Some(0));
    assert_eq!(busy.coolant_decic, None);
    assert!(node.telemetry.due_rollups(60_001).is_none());
}

#[test]
fn what_a_counter_rises_by_between_two_rollups_is_not_lost() {
    let mut node = Node::new("1xa100");
    node.tick(0);
    node.tick(60_000);
    node.telemetry.due_rollups(60_000).unwrap();
    node.devices.act(60_500, 0, Action::PcieReplays(7));
    node.tick(61_000);
    node.tick(120_000);
    assert_eq!(node.telemetry.due_rollups(120_000).unwrap()[0].pcie_replays, Some(7));
    node.tick(180_000);
    assert_eq!(node.telemetry.due_rollups(180_000).unwrap()[0].pcie_replays, Some(0));
}

#[test]
fn a_card_that_does_not_answer_has_a_rollup_without_samples() {
    let mut node = Node::new("2xa100");
    node.tick(0);
    node.telemetry.due_rollups(60_000).unwrap();
    node.devices.act(60_000, 1, Action::Hang);
    for second in 61..=120 {
        node.tick(second * 1000);
    }
    let rollups = node.telemetry.due_rollups(120_000).unwrap();
    let hung = rollups.iter().find(|rollup| rollup.device == node.ids[1]).unwrap();
    assert_eq!((hung.samples, hung.temperature_c, hung.energy_mj), (0, None, None));
    assert_eq!(rollups.iter().filter(|rollup| rollup.samples == 60).count(), 1);
}

#[test]
fn samples_are_kept_in_a_bounded_ring() {
    let mut node = Node::new("1xt4");
    for second in 0..2000 {
        node.tick(second * 1000);
    }
    let times: Vec<u64> = node.telemetry.recent(node.ids[0]).map(|(at_ms, _)| at_ms).collect();
    assert_eq!(times.len(), 900);
    assert_eq!((times[0], times[899]), (1_100_000, 1_999_000));
    assert_eq!(node.telemetry.newest(node.ids[0]).unwrap().0, 1_999_000);
}

#[test]
fn an_edge_is_proposed_again_until_the_log_shows_it() {
    let mut node = Node::new("1xa100");
    node.tick(0);
    node.devices.act(500, 0, Action::Lose);
    node.tick(1000);
    let due = |node: &mut Node, now_ms, grade| node.telemetry.due_edges(now_ms, |_| grade).len();
    assert_eq!(due(&mut node, 1000, None), 0, "the card is not in the state yet");
    assert_eq!(due(&mut node, 1000, Some(Grade::Healthy)), 1);
    assert_eq!(due(&mut node, 2000, Some(Grade::Healthy)), 0);
    assert_eq!(due(&mut node, 6000, Some(Grade::Healthy)), 1);
    assert_eq!(due(&mut node, 7000, Some(Grade::Missing)), 0);
    assert_eq!(due(&mut node, 60_000, Some(Grade::Missing)), 0);
}

#[test]
fn a_storm_of_edges_is_held_back_and_not_lost() {
    let mut node = Node::new("100xt4");
    node.tick(0);
    for slot in 0..100 {
        node.devices.act(500, slot, Action::Lose);
    }
    node.tick(1000);
    let mut shown = std::collections::BTreeSet::new();
    let mut counts = Vec::new();
    for second in 1..=10 {
        let applied = |id| {
            Some(if shown.contains(&id) {
                Grade::Missing
            } else {
                Grade::Healthy
            })
        };
        let edges = node.telemetry.due_edges(second * 1000, applied);
        counts.push(edges.len());
        shown.extend(edges.iter().map(|edge| edge.device));
    }
    assert_eq!(counts, [50, 10, 10, 10, 10, 10, 0, 0, 0, 0]);
}

#[test]
fn metrics_carry_the_names_that_dashboards_know() {
    let mut node = Node::new("1xa100,1xrtx4090");
    node.devices.act(0, 1, Action::Xid(31));
    node.tick(0);
    let text = node.metrics(1000);
    let uuid = |slot: usize| node.ids[slot].to_string();
    let has = |line: &str| assert!(text.lines().any(|l| l.starts_with(line)), "no {line} in:\n{text}");
    assert!(text.contains("# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"));
    let gpu = node.telemetry.tracks.keys().position(|id| *id == node.ids[0]).unwrap();
    has(&format!(
        "DCGM_FI_DEV_GPU_TEMP{{gpu=\"{gpu}\",UUID=\"{}\",modelName=\"NVIDIA A100-SXM4-80GB\",Hostname=\"box-1\"}} 33",
        uuid(0)
    ));
    has(&format!(
        "holdfast_device_xids_total{{UUID=\"{}\",xid=\"31\"}} 1",
        uuid(1)
    ));
    let ecc: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("DCGM_FI_DEV_ECC_DBE"))
        .collect();
    assert_eq!(ecc.len(), 1, "the consumer card has no ECC counter");
}

#[test]
fn a_stale_sample_is_not_shown() {
    let mut node = Node::new("1xa100");
    node.tick(0);
    assert!(node.metrics(5000).contains("DCGM_FI_DEV_GPU_TEMP{"));
    assert!(!node.metrics(5001).contains("DCGM_FI_DEV_GPU_TEMP{"));
}

#[test]
fn codes_from_outside_the_table_share_one_label() {
    let mut node = Node::new("1xa100");
    node.tick(0);
    for code in 1000..1500 {
        node.devices.act(0, 0, Action::Xid(code));
    }
    node.tick(1000);
    let text = node.metrics(1000);
    let series = text
        .lines()
        .filter(|line| line.starts_with("holdfast_device_xids_total{"))
        .count();
    assert_eq!(series, 1);
}

#[test]
fn a_probe_that_hangs_as_a_whole_makes_its_cards_suspect() {
    let mut node = Node::new("2xa100");
    for second in 0..10 {
        node.tick(second * 1000);
        node.telemetry.note_silence(second * 1000 + 500);
    }
    let mut suspected = None;
    for second in 10..30 {
        node.telemetry.note_silence(second * 1000);
        let edges = node.telemetry.due_edges(second * 1000, |_| Some(Grade::Healthy));
        if !edges.is_empty() && suspected.is_none() {
            assert_eq!(edges.len(), 2);
            assert!(edges.iter().all(|edge| edge.grade == Grade::Suspect));
            suspected = Some(second);
        }
    }
    assert_eq!(
        suspected,
        Some(14),
        "three periods, after the first was found to be late"
    );
}
