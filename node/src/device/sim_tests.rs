#![allow(clippy::unwrap_used)]

use super::*;
use crate::device::{DeviceFault, Sample, Unread};

fn devices(spec: &str, script: &str) -> SimDevices {
    SimDevices::new(NodeId(7), &spec.parse().unwrap(), script.parse().unwrap())
}

fn sample_of(devices: &mut SimDevices, now_ms: u64, slot: usize) -> Result<Sample, DeviceFault> {
    devices.sample(now_ms)[slot].sample.clone()
}

#[test]
fn specifications_read_as_counts_and_models() {
    let counts = |text: &str| -> Vec<(u32, &str)> {
        let spec: SimSpec = text.parse().unwrap();
        spec.groups.iter().map(|(count, model)| (*count, model.name)).collect()
    };
    assert_eq!(counts("8xa100"), [(8, "a100")]);
    assert_eq!(counts("8xh100,2xRTX4090"), [(8, "h100"), (2, "rtx4090")]);
    assert_eq!(counts("h200"), [(1, "h200")]);
    assert_eq!(counts("4090"), [(1, "rtx4090")]);
    assert_eq!(counts("2×4090"), [(2, "rtx4090")]);
}

#[test]
fn specifications_that_make_no_sense_are_refused() {
    let error = |text: &str| text.parse::<SimSpec>().unwrap_err();
    assert!(matches!(error("8xwarp9"), SimSpecError::Model(_)));
    assert!(matches!(error("0xa100"), SimSpecError::Count(_)));
    assert!(matches!(error("xa100"), SimSpecError::Count(_)));
    assert!(matches!(error("99999999999xa100"), SimSpecError::Count(_)));
    assert!(matches!(error(""), SimSpecError::Count(_)));
    assert!(matches!(error("8xa100,"), SimSpecError::Count(_)));
    assert!(matches!(error("1024xa100,1xt4"), SimSpecError::TooMany(1025)));
    assert!("1024xa100".parse::<SimSpec>().is_ok());
}

#[test]
fn a_restart_finds_the_same_cards_and_another_node_has_others() {
    let ids = |node| -> Vec<DeviceId> {
        let mut devices = SimDevices::new(NodeId(node), &"8xa100".parse().unwrap(), Script::default());
        devices.inventory(0).iter().map(|device| device.id).collect()
    };
    assert_eq!(ids(1), ids(1));
    assert_eq!(ids(1).len(), 8);
    assert!(ids(1).iter().all(|id| !ids(2).contains(id)));
    assert!(ids(1).is_sorted());
}

#[test]
fn cards_with_nvlink_share_an_island_and_others_are_alone() {
    let mut devices = devices("2xh100,2xrtx4090", "");
    let mut islands: Vec<(String, u16)> = devices
        .inventory(0)
        .iter()
        .map(|device| (device.model.to_string(), device.island))
        .collect();
    islands.sort();
    let expected = [("h100", 0), ("h100", 0), ("rtx4090", 2), ("rtx4090", 3)];
    assert_eq!(islands, expected.map(|(model, island)| (model.to_owned(), island)));
}

#[test]
fn work_heats_a_card_and_fills_its_memory_and_its_end_empties_it() {
    let mut devices = devices("1xa100", "");
    let id = devices.inventory(0)[0].id;
    let idle = sample_of(&mut devices, 1000, 0).unwrap();
    devices.set_busy(1000, id, true);
    for now in 2..=60 {
        devices.sample(now * 1000);
    }
    let busy = sample_of(&mut devices, 61_000, 0).unwrap();
    assert!(busy.temperature_c.unwrap() > idle.temperature_c.unwrap() + 20);
    assert!(busy.power_mw.unwrap() > 300_000);
    assert!(busy.utilisation_percent.unwrap() >= 90);
    assert!(busy.memory_used_mib.unwrap() > 40_000);
    // 60 s at 358.6 W.
    assert_eq!(busy.energy_mj.clone().unwrap() - idle.energy_mj.unwrap(), 60 * 358_600);

    devices.set_busy(61_000, id, false);
    let after = sample_of(&mut devices, 62_000, 0).unwrap();
    assert_eq!(after.memory_used_mib, Ok(0));
    assert_eq!(after.utilisation_percent, Ok(0));
    assert!(after.energy_mj.unwrap() > busy.energy_mj.unwrap());
}

#[test]
fn a_consumer_card_does_not_report_what_it_does_not_have() {
    let mut devices = devices("1xrtx4090", "");
    let sample = sample_of(&mut devices, 0, 0).unwrap();
    assert_eq!(sample.ecc_double_bit, Err(Unread::NotSupported));
    assert_eq!(sample.remap_failed, Err(Unread::NotSupported));
    assert_eq!(sample.nvlink_crc_errors, Err(Unread::NotSupported));
    assert_eq!(sample.memory_temperature_c, Err(Unread::NotSupported));
    assert!(sample.temperature_c.is_ok());
}

#[test]
fn a_script_plays_in_order_and_one_bad_card_hides_no_other() {
    let script = "1s gpu0 temperature 96\n2s gpu1 xid 48\n2s gpu1 ecc-double 2\n3s gpu2 hang\n4s gpu3 lose";
    let mut devices = devices("4xa100", script);
    let ids: Vec<DeviceId> = devices.sample(10_000).iter().map(|sample| sample.device).collect();

    let hot = sample_of(&mut devices, 11_000, 0).unwrap();
    assert_eq!(hot.temperature_c, Ok(96));
    assert_eq!(hot.throttle_reasons, Ok(0x40));
    assert!(devices.events(11_999).is_empty());

    assert_eq!(sample_of(&mut devices, 12_000, 1).unwrap().ecc_double_bit, Ok(2));
    assert_eq!(
        devices.events(12_000),
        [DeviceEvent {
            device: ids[1],
            xid: 48
        }]
    );
    assert!(devices.events(12_000).is_empty());

    let last: Vec<bool> = devices
        .sample(20_000)
        .iter()
        .map(|sample| sample.sample.is_ok())
        .collect();
    assert_eq!(last, [true, true, false, false]);
    assert_eq!(sample_of(&mut devices, 20_000, 2), Err(DeviceFault::TimedOut));
    assert_eq!(sample_of(&mut devices, 20_000, 3), Err(DeviceFault::Lost));
    assert_eq!(
        devices.events(20_000),
        [DeviceEvent {
            device: ids[3],
            xid: 79
        }]
    );
    assert_eq!(devices.inventory(20_000).len(), 3);

    devices.act(21_000, 3, Action::Mend);
    assert_eq!(devices.inventory(21_000).len(), 4);
    devices.act(21_000, 99, Action::Lose);
}

#[test]
fn leaked_memory_stays_after_the_work_has_ended() {
    let mut devices = devices("1xt4", "0s gpu0 leak 512");
    assert_eq!(sample_of(&mut devices, 0, 0).unwrap().memory_used_mib, Ok(512));
}

#[test]
fn the_load_follows_what_is_said_at_each_sample() {
    let mut devices = devices("2xa100", "");
    let busy: Vec<DeviceId> = vec![devices.sample(0)[1].device];
    devices.follow(move |device| busy.contains(&device));
    assert_eq!(sample_of(&mut devices, 1000, 0).unwrap().utilisation_percent, Ok(0));
    assert!(sample_of(&mut devices, 1000, 1).unwrap().utilisation_percent.unwrap() >= 90);
}
