//! The replay over the recorded trace, when it is at hand, and over a small one of our own.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use super::arrival::{endless, orders};
use super::*;

/// The folder of recorded data; a clone of the project has none.
fn openb() -> Option<PathBuf> {
    let named = std::env::var_os("HOLDFAST_DATA").map(PathBuf::from);
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let folder = named.unwrap_or(beside).join("openb");
    if !folder.is_dir() {
        println!(
            "skipped: there is no {}; HOLDFAST_DATA names the folder above it",
            folder.display()
        );
        return None;
    }
    Some(folder)
}

#[test]
fn the_recorded_trace_is_packed_as_well_as_is_claimed() {
    let Some(folder) = openb() else { return };
    let mut inventory = Inventory::read(&folder.join("openb_node_list_gpu_node.csv")).unwrap();
    assert_eq!((inventory.nodes.len(), inventory.milli()), (1_213, 6_212_000));
    for (list, least, fgd) in [("default", 95.6, 95.23), ("gpuspec33", 92.5, 87.84)] {
        let trace = Trace::read(&folder.join(format!("openb_pod_list_{list}.csv")), &mut inventory).unwrap();
        let order = folder.join(format!("arrival_order/{list}.s42-46.txt"));
        let order = orders(&order, Some(42), trace.requests.len()).unwrap().remove(0);
        let outcome = run(
            &inventory,
            &trace,
            &order.rows,
            PolicyName::Waste,
            MixKnowledge::Online,
            42,
        );
        assert_eq!(outcome.found, [""; 0]);
        assert!(
            outcome.allocated_at_100 >= least,
            "{list}: {}",
            outcome.allocated_at_100
        );
        assert!(
            outcome.allocated_at_100 >= fgd + 0.2,
            "{list}: {}",
            outcome.allocated_at_100
        );
        assert!(outcome.allocated_at_130 >= outcome.allocated_at_100);
    }
}

#[test]
fn every_policy_keeps_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let (nodes, pods) = (folder.path().join("n.csv"), folder.path().join("p.csv"));
    let mut text = "sn,cpu_milli,memory_mib,gpu,model\n".to_owned();
    for node in 0..12 {
        let model = ["A", "B", "C"][node % 3];
        text += &format!(
            "n{node:02},{},262144,{},{model}\n",
            32_000 * (1 + node % 3),
            [2, 4, 8, 0][node % 4]
        );
    }
    std::fs::write(&nodes, text).unwrap();
    let mut text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n".to_owned();
    for pod in 0..60 {
        let (gpus, milli) = [(1, 1000), (1, 460), (0, 0), (2, 1000), (1, 190), (4, 1000)][pod % 6];
        let spec = ["", "", "A", "B|C"][pod % 4];
        text += &format!(
            "p{pod},{},{},{gpus},{milli},{spec}\n",
            1_000 * (1 + pod % 7),
            4_096 * (pod % 5)
        );
    }
    std::fs::write(&pods, text).unwrap();
    let mut inventory = Inventory::read(&nodes).unwrap();
    let trace = Trace::read(&pods, &mut inventory).unwrap();
    let order = endless(&inventory, &trace, Some(5)).rows;
    for policy in [
        PolicyName::Waste,
        PolicyName::BestFit,
        PolicyName::Fgd,
        PolicyName::Dot,
        PolicyName::Random,
    ] {
        for mix in [MixKnowledge::Online, MixKnowledge::Known] {
            let outcome = run(&inventory, &trace, &order, policy, mix, 5);
            assert_eq!(outcome.found, [""; 0], "{policy:?}");
            assert!(
                outcome.allocated_at_130 > 60.0 && outcome.unplaced > 0,
                "{policy:?}: {outcome:?}"
            );
        }
    }
}

#[test]
fn a_device_of_a_model_that_no_node_has_is_refused_and_not_misplaced() {
    let mut inventory = Inventory::default();
    inventory.models.push("A".to_owned());
    let request = crate::scheduler::pack::Request {
        models: crate::scheduler::pack::Models(2),
        ..crate::scheduler::pack::Request::of(1, 1000, 1, 1)
    };
    let trace = Trace {
        requests: vec![request],
    };
    let outcome = run(&inventory, &trace, &[0], PolicyName::Waste, MixKnowledge::Online, 0);
    assert_eq!((outcome.violations, outcome.allocated_at_130), (0, 0.0));
}
