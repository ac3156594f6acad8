#![allow(clippy::unwrap_used)]

use holdfast_proto::id::NodeId;

use super::*;
use crate::device::DeviceProbe;
use crate::device::script::Action;
use crate::device::sim::SimDevices;

/// One simulated card under watch, sampled each second, and the grade that the log shows.
struct Ward {
    devices: SimDevices,
    watch: Watch,
    id: DeviceId,
    applied: Grade,
    now_ms: u64,
}

impl Ward {
    fn new() -> Self {
        let mut devices = SimDevices::new(NodeId(1), &"1xa100".parse().unwrap(), "".parse().unwrap());
        let device = devices.inventory(0).remove(0);
        Self {
            watch: Watch::new(&device),
            id: device.id,
            devices,
            applied: Grade::Healthy,
            now_ms: 0,
        }
    }

    fn act(&mut self, action: Action) {
        self.devices.act(self.now_ms, 0, action);
    }

    /// Lets seconds pass; each wanted edge is applied at once. Returns them.
    fn pass(&mut self, seconds: u64) -> Vec<HealthEdge> {
        let mut edges = Vec::new();
        for _ in 0..seconds {
            self.now_ms += 1000;
            for event in self.devices.events(self.now_ms) {
                self.watch.announce(event.xid);
            }
            let sample = self.devices.sample(self.now_ms).remove(0).sample;
            self.watch.observe(self.now_ms, &sample);
            if let Some(edge) = self.watch.wanted_edge(self.now_ms, self.id, self.applied) {
                self.applied = edge.grade;
                edges.push(edge);
            }
        }
        edges
    }
}

fn grades(edges: &[HealthEdge]) -> Vec<Grade> {
    edges.iter().map(|edge| edge.grade).collect()
}

#[test]
fn a_good_card_gives_no_edges() {
    assert!(Ward::new().pass(300).is_empty());
}

#[test]
fn a_hot_card_is_suspect_until_it_has_been_cool_for_a_while() {
    let mut ward = Ward::new();
    ward.pass(5);
    ward.act(Action::Temperature(95));
    assert!(ward.pass(9).is_empty());
    let edges = ward.pass(100);
    assert_eq!(grades(&edges), [Grade::Suspect]);
    assert!(edges[0].reason.contains("95 °C"), "{}", edges[0].reason);
    ward.act(Action::Temperature(90));
    assert!(ward.pass(100).is_empty(), "just below the limit is not cool");
    ward.act(Action::Cool);
    assert!(ward.pass(59).is_empty());
    assert_eq!(grades(&ward.pass(5)), [Grade::Healthy]);
}

#[test]
fn a_card_that_does_not_answer_is_suspect_after_three_periods() {
    let mut ward = Ward::new();
    ward.pass(5);
    ward.act(Action::Hang);
    assert!(ward.pass(2).is_empty());
    assert_eq!(grades(&ward.pass(50)), [Grade::Suspect]);
    ward.act(Action::Mend);
    assert_eq!(grades(&ward.pass(70)), [Grade::Healthy]);
}

#[test]
fn an_application_fault_changes_nothing_and_a_grave_one_stays() {
    let mut ward = Ward::new();
    ward.act(Action::Xid(13));
    assert!(ward.pass(5).is_empty());
    ward.act(Action::Xid(119));
    let edges = ward.pass(500);
    assert_eq!(grades(&edges), [Grade::Quarantined]);
    assert_eq!(edges[0].xid, Some(119));
}

#[test]
fn a_lost_card_is_missing_and_quarantined_when_it_is_back() {
    let mut ward = Ward::new();
    ward.pass(5);
    ward.act(Action::Lose);
    let edges = ward.pass(100);
    assert_eq!(grades(&edges), [Grade::Missing]);
    assert_eq!(edges[0].xid, Some(79));
    ward.act(Action::Mend);
    assert_eq!(grades(&ward.pass(500)), [Grade::Quarantined]);
}

#[test]
fn an_operator_clears_a_card_for_good_unless_the_fault_is_still_there() {
    let mut ward = Ward::new();
    ward.act(Action::Xid(119));
    ward.pass(5);
    ward.applied = Grade::Healthy;
    assert!(ward.pass(500).is_empty());

    ward.act(Action::RemapFailed);
    assert_eq!(grades(&ward.pass(5)), [Grade::Quarantined]);
    ward.applied = Grade::Healthy;
    assert_eq!(grades(&ward.pass(5)), [Grade::Quarantined]);
}

#[test]
fn what_others_decided_is_not_lifted() {
    let mut ward = Ward::new();
    ward.pass(5);
    for grade in [Grade::Dirty, Grade::Quarantined] {
        ward.applied = grade;
        assert!(ward.pass(200).is_empty(), "{grade:?}");
    }
    ward.act(Action::Lose);
    assert_eq!(grades(&ward.pass(5)), [Grade::Missing], "worse news still goes out");
}

#[test]
fn a_later_daemon_lifts_suspicion_only_after_good_readings_of_its_own() {
    let mut ward = Ward::new();
    ward.applied = Grade::Suspect;
    assert!(ward.pass(59).is_empty());
    assert_eq!(grades(&ward.pass(5)), [Grade::Healthy]);
}

#[test]
fn uncorrected_errors_from_before_the_daemon_are_not_counted_again() {
    let mut ward = Ward::new();
    ward.act(Action::EccDouble(3));
    assert!(ward.pass(5).is_empty());
    ward.act(Action::EccDouble(1));
    let edges = ward.pass(5);
    assert_eq!(grades(&edges), [Grade::Quarantined]);
    assert!(edges[0].reason.starts_with("1 uncorrected"), "{}", edges[0].reason);
}

#[test]
fn a_pending_remap_is_suspect_until_the_reset() {
    let mut ward = Ward::new();
    ward.act(Action::RemapPending);
    assert_eq!(grades(&ward.pass(200)), [Grade::Suspect]);
    ward.act(Action::Mend);
    assert_eq!(grades(&ward.pass(70)), [Grade::Healthy]);
}
