//! The planner, line by line: a picture, a request, and what comes of it.

use std::collections::BTreeMap;

use holdfast_node::scheduler::picture::{DevicePicture, Hold, Machine, NodePicture, Picture, Takes};
use holdfast_node::scheduler::plan::{Ask, plan};
use holdfast_proto::condition::{Prefer, Weight};
use holdfast_proto::device::ModelName;
use holdfast_proto::id::{DeviceId, LeaseId, NodeId};
use holdfast_proto::lease::{ResourceRequest, Spread};

const ME: LeaseId = LeaseId { cell: 0, index: 1 };
const OTHER: LeaseId = LeaseId { cell: 0, index: 2 };

/// One node: `n1 a 3/8xa100 2/4xh100` has 3 of 8 a100 and 2 of 4 h100 free. Words after it: `votes`, `cordoned`,
/// `unheard`, `untold`, `out=N` (of the free ones, out of order), `mine=N` (held by the asking lease's earlier epoch),
/// `cpu=N` and `mem=N` (left; plenty by default), `islands=N` (of so many devices each).
fn node(line: &str) -> (NodeId, NodePicture) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let id = words[0][1..].parse::<u64>().unwrap();
    let named = |key: &str| {
        let value = words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        value.map(|value| value.parse::<u32>().unwrap())
    };
    let mut devices = Vec::new();
    for word in words.iter().filter(|word| word.contains('/')) {
        let (free, rest) = word.split_once('/').unwrap();
        let (all, model) = rest.split_once('x').unwrap();
        let (free, all): (u32, u32) = (free.parse().unwrap(), all.parse().unwrap());
        let (out, mine) = (named("out").unwrap_or(0), named("mine").unwrap_or(0));
        for place in 0..all {
            let number = devices.len() as u32;
            let hold = match place {
                place if place < out => Hold::Out,
                0 if named("part").is_some() => Hold::Parts(vec![(OTHER, named("part").unwrap() as u16)]),
                place if place < free => Hold::Free,
                place if place < free + mine => Hold::By(ME),
                _ => Hold::By(OTHER),
            };
            devices.push(DevicePicture {
                id: DeviceId((u128::from(id) << 32 | u128::from(number)).to_be_bytes()),
                model: model.parse().unwrap(),
                island: (number / named("islands").unwrap_or(1_000)) as u16,
                hold,
            });
        }
    }
    let takes = match () {
        () if words.contains(&"unheard") => Takes::Unheard,
        () if words.contains(&"cordoned") => Takes::Cordoned,
        () if words.contains(&"untold") => Takes::Untold,
        () => Takes::Work,
    };
    let others = Machine {
        cpu_milli: 100_000,
        memory_mib: 100_000,
    };
    let picture = NodePicture {
        label: words[0].parse().unwrap(),
        zone: words[1].parse().unwrap(),
        votes: words.contains(&"votes"),
        takes,
        cpu_milli: 100_000 + named("cpu").unwrap_or(1_000_000),
        memory_mib: 100_000 + named("mem").unwrap_or(1_000_000),
        devices,
        grants: BTreeMap::from([(OTHER, others)]),
    };
    (NodeId(id), picture)
}

fn picture(nodes: &[&str]) -> Picture {
    Picture {
        nodes: nodes.iter().map(|line| node(line)).collect(),
    }
}

/// A request: `4 a100|h100`, then `one-node`, `same`, `zones` (spread), `in=a` (zone), `cpu=N`, `mem=N` (per device),
/// `failed=n2`, `prefer=a100:3,b:2` (models and zones). `2..8 any` is elastic.
fn ask(line: &str, picture: &Picture) -> (ResourceRequest, Vec<ModelName>, Vec<NodeId>) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (least, most) = words[0].split_once("..").unwrap_or((words[0], words[0]));
    let models: Vec<ModelName> = match words[1] {
        "any" => Vec::new(),
        models => models.split('|').map(|model| model.parse().unwrap()).collect(),
    };
    let named = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let request = ResourceRequest {
        devices_min: least.parse().unwrap(),
        devices_max: most.parse().unwrap(),
        models: models.clone(),
        same_model: words.contains(&"same"),
        single_node: words.contains(&"one-node"),
        cpu_milli_per_device: named("cpu").map_or(0, |cpu| cpu.parse().unwrap()),
        memory_mib_per_device: named("mem").map_or(0, |memory| memory.parse().unwrap()),
        zones: named("in").map(|zone| zone.parse().unwrap()).into_iter().collect(),
        spread: if words.contains(&"zones") {
            Spread::Zones
        } else {
            Spread::Pack
        },
    };
    let failed = named("failed")
        .map(|node| NodeId(node[1..].parse().unwrap()))
        .into_iter()
        .collect();
    let models = if models.is_empty() { picture.models() } else { models };
    (request, models, failed)
}

/// `n1:2 n3:4` for a placement by rank, else the words of the reason.
fn outcome(nodes: &[&str], request: &str) -> String {
    let picture = picture(nodes);
    let share = request.split_whitespace().find_map(|word| word.strip_prefix("share="));
    let preferred = request.split_whitespace().find_map(|word| word.strip_prefix("prefer="));
    let (request, models, failed_on) = ask(request, &picture);
    let devices_max = request.devices_max;
    let milli = share.map_or(1000, |share| share.parse().unwrap());
    let prefer = preferred.map(|words| {
        let weight = |word: &str| {
            let (name, weight) = word.split_once(':').unwrap();
            Weight {
                name: name.parse().unwrap(),
                weight: weight.parse().unwrap(),
            }
        };
        let zone = |word: &&str| word.len() < 4;
        Prefer {
            models: words.split(',').filter(|word| !zone(word)).map(weight).collect(),
            zones: words.split(',').filter(zone).map(weight).collect(),
        }
    });
    let ask = Ask {
        lease: ME,
        request: &request,
        models,
        devices_max,
        milli,
        failed_on: &failed_on,
        prefer: prefer.as_ref(),
    };
    match plan(&picture, &ask) {
        Ok(allocations) => {
            for allocation in &allocations {
                check_whole(&picture, &request, milli, allocation);
            }
            let member = |one: &holdfast_proto::placement::Allocation| format!("n{}:{}", one.node.0, one.devices.len());
            allocations.iter().map(member).collect::<Vec<_>>().join(" ")
        }
        Err(reason) => reason.to_string(),
    }
}

fn check_whole(picture: &Picture, request: &ResourceRequest, milli: u16, one: &holdfast_proto::placement::Allocation) {
    assert!(
        one.devices.windows(2).all(|pair| pair[0] < pair[1]),
        "ordered, each once"
    );
    let node = &picture.nodes[&one.node];
    for device in &one.devices {
        let device = node.devices.iter().find(|here| here.id == *device).unwrap();
        assert!(device.left(ME) >= milli);
    }
    assert_eq!(
        u64::from(one.cpu_milli),
        u64::from(request.cpu_milli_per_device) * one.devices.len() as u64
    );
    assert!(one.cpu_milli <= node.left(ME).cpu_milli && one.memory_mib <= node.left(ME).memory_mib);
}

fn check(nodes: &[&str], table: &[(&str, &str)]) {
    for (request, expected) in table {
        assert_eq!(outcome(nodes, request), *expected, "{request} on {nodes:?}");
    }
}

#[test]
fn the_tightest_fit_is_taken_and_a_gang_stays_together() {
    check(
        &["n1 a 8/8xa100", "n2 a 3/8xa100", "n3 b 5/8xa100"],
        &[
            ("1 a100", "n2:1"),
            ("3 any", "n2:3"),
            ("4 a100", "n3:4"),
            ("8 a100", "n1:8"),
            ("10 a100", "n1:8 n2:2"),
            ("16 a100", "n1:8 n2:3 n3:5"),
            ("8 a100 zones", "n1:4 n3:4"),
            ("4 a100 in=b", "n3:4"),
            ("2..64 a100", "n1:8 n2:3 n3:5"),
            ("17 a100", "busy: 16 of 24 devices free, 17 asked"),
            ("6 a100 in=b", "busy: 5 of 8 devices free, 6 asked"),
        ],
    );
}

#[test]
fn any_two_devices_may_be_of_two_models_unless_one_model_is_asked() {
    check(
        &["n1 a 1/1xa100 1/1xrtx4090"],
        &[
            ("2 any", "n1:2"),
            ("2 any same", "2 devices asked, max 1 possible"),
            ("1 any same", "n1:1"),
        ],
    );
    check(
        &["n1 a 1/2xa100 1/2xrtx4090"],
        &[("2 any same", "2 devices are free, but at most 1 of one model, 2 asked")],
    );
}

#[test]
fn models_are_taken_as_the_tenant_prefers_them() {
    let nodes = ["n1 a 4/4xa100", "n2 a 4/4xh100", "n3 a 2/2xh100"];
    check(
        &nodes,
        &[
            ("4 a100|h100", "n1:4"),
            ("4 h100|a100", "n2:4"),
            ("6 h100|a100", "n2:4 n3:2"),
            ("8 h100|a100", "n1:4 n2:4"),
            ("8 h100|a100 same", "8 devices asked, max 6 possible"),
            ("2 h200|h100", "n3:2"),
            ("2 h200", "no node has model h200; there are a100, h100"),
            ("2 h200|b200", "no node has model h200, b200; there are a100, h100"),
        ],
    );
    check(&[], &[("1 any", "no node has model none; there are none")]);
}

#[test]
fn scattered_devices_are_called_fragmented() {
    let nodes = ["n1 a 1/8xa100", "n2 a 2/8xa100", "n3 a 1/8xa100"];
    check(
        &nodes,
        &[
            (
                "4 a100 one-node",
                "fragmented: 4 free on 3 nodes, 4 asked on one, at most 2 there",
            ),
            ("2 a100 one-node", "n2:2"),
            ("4 a100", "n2:2 n1:1 n3:1"),
        ],
    );
}

#[test]
fn what_can_never_fit_names_the_most_that_could() {
    let ten: Vec<String> = (1..=10).map(|id| format!("n{id} a 6/6xa100 cpu=5900")).collect();
    let ten: Vec<&str> = ten.iter().map(String::as_str).collect();
    // The machines' whole CPU counts here, also what others hold now.
    check(
        &ten,
        &[
            ("61 a100", "61 devices asked, max 60 possible"),
            ("7 a100 one-node", "7 devices asked, max 6 possible"),
        ],
    );
    check(
        &["n1 a 8/8xa100 cpu=0", "n2 a 0/8xa100 unheard cpu=0"],
        &[("16 a100 cpu=20000", "16 devices asked, max 10 possible")],
    );
}

#[test]
fn huge_requests_are_answered_and_never_wrap() {
    let nodes = ["n1 a 8/8xa100"];
    for count in [1_u32 << 31, u32::MAX] {
        let expected = format!("{count} devices asked, max 8 possible");
        assert_eq!(outcome(&nodes, &format!("{count} a100")), expected);
        assert_eq!(outcome(&nodes, &format!("{count} a100 zones")), expected);
    }
    check(&nodes, &[("2 a100 cpu=4294967295", "2 devices asked, max 0 possible")]);
    check(&nodes, &[("2 a100 mem=4294967295", "2 devices asked, max 0 possible")]);
    check(&nodes, &[("1..4294967295 a100", "n1:8")]);
}

#[test]
fn cpu_and_memory_are_hard_limits() {
    let nodes = ["n1 a 8/8xa100 cpu=16000 mem=64000", "n2 a 8/8xa100 cpu=4000"];
    check(
        &nodes,
        &[
            ("4 a100 cpu=4000", "n1:4"),
            ("5 a100 cpu=4000", "n1:4 n2:1"),
            (
                "6 a100 cpu=4000",
                "16 devices are free, 6 asked, but CPU and memory are left for 5",
            ),
            ("8 a100 mem=8000", "n1:8"),
            ("8 a100 mem=9000", "n2:8"),
        ],
    );
}

#[test]
fn nodes_that_take_no_work_and_bad_devices_are_left_out_and_named() {
    let nodes = [
        "n1 a 4/4xa100 out=2",
        "n2 a 4/4xa100 cordoned",
        "n3 a 4/4xa100 unheard",
        "n4 b 4/4xa100 untold",
    ];
    check(
        &nodes,
        &[
            ("2 a100", "n1:2"),
            (
                "4 a100",
                "busy: 2 of 16 devices free, 4 asked; 2 out of order; 12 on nodes that take no work (1 not heard, \
                 1 cordoned, 1 starting)",
            ),
            ("15 a100", "15 devices asked, max 14 possible"),
        ],
    );
    // Every device granted, and one gone: nothing is below zero.
    check(
        &["n1 a 1/8xa100 out=1"],
        &[("1 a100", "busy: 0 of 8 devices free, 1 asked; 1 out of order")],
    );
}

#[test]
fn voters_get_work_last() {
    let nodes = ["n1 a 1/1xa100 votes", "n2 a 8/8xa100", "n3 a 2/2xh100 votes"];
    check(
        &nodes,
        &[
            ("1 a100", "n2:1"),
            ("9 a100", "n2:8 n1:1"),
            ("1 h100", "n3:1"),
            ("1 h100|a100", "n3:1"),
        ],
    );
}

#[test]
fn a_node_that_failed_to_launch_the_lease_is_tried_last() {
    let nodes = ["n1 a 2/2xa100", "n2 a 8/8xa100"];
    check(
        &nodes,
        &[
            ("2 a100", "n1:2"),
            ("2 a100 failed=n1", "n2:2"),
            ("10 a100 failed=n1", "n2:8 n1:2"),
        ],
    );
}

#[test]
fn a_lease_that_moves_may_keep_what_its_earlier_epoch_holds() {
    let nodes = ["n1 a 0/4xa100 unheard", "n2 a 1/4xa100 mine=2"];
    check(
        &nodes,
        &[
            ("3 a100", "n2:3"),
            (
                "4 a100",
                "busy: 3 of 8 devices free, 4 asked; 4 on nodes that take no work (1 not heard)",
            ),
        ],
    );
}

#[test]
fn a_part_goes_where_a_gap_is_and_a_whole_device_never_is_one_that_is_shared() {
    check(
        &["n1 a 8/8xa100", "n2 a 2/2xa100 part=400"],
        &[
            ("1 a100 share=300", "n2:1"),
            ("1 a100 share=600", "n2:1"),
            ("2 a100 one-node", "n1:2"),
            ("10 a100", "busy: 9 of 10 devices free, 10 asked"),
        ],
    );
    let full = ["n1 a 1/1xa100 part=400 cpu=1000"];
    check(
        &full,
        &[
            ("1 a100 share=600", "n1:1"),
            ("1 a100 share=601", "busy: 0 of 1 devices free, 1 asked"),
            ("1 a100", "busy: 0 of 1 devices free, 1 asked"),
            (
                "1 a100 share=100 cpu=1001",
                "1 devices are free, 1 asked, but CPU and memory are left for 0",
            ),
        ],
    );
}

#[test]
fn a_part_is_taken_of_the_device_that_is_begun() {
    let picture = picture(&["n1 a 4/4xa100 part=400"]);
    let (request, models, _) = ask("1 a100", &picture);
    let ask = Ask {
        lease: ME,
        request: &request,
        models,
        devices_max: 1,
        milli: 600,
        failed_on: &[],
        prefer: None,
    };
    let begun = picture.nodes[&NodeId(1)].devices[0].id;
    assert_eq!(plan(&picture, &ask).unwrap()[0].devices, [begun]);
}

#[test]
fn devices_of_one_island_stay_together() {
    let picture = picture(&["n1 a 8/8xa100 islands=4 out=1"]);
    let (request, models, _) = ask("4 a100", &picture);
    let ask = Ask {
        lease: ME,
        request: &request,
        models,
        devices_max: 4,
        milli: 1000,
        failed_on: &[],
        prefer: None,
    };
    let allocations = plan(&picture, &ask).unwrap();
    let node = &picture.nodes[&NodeId(1)];
    let island = |id: &DeviceId| node.devices.iter().find(|device| device.id == *id).unwrap().island;
    assert!(
        allocations[0].devices.iter().all(|id| island(id) == 1),
        "the first island has only three"
    );
}

#[test]
fn two_gangs_of_one_batch_never_share_a_device() {
    let mut picture = picture(&["n1 a 8/8xa100", "n2 a 8/8xa100"]);
    let (request, models, _) = ask("12 a100", &picture);
    let ask = |lease| Ask {
        lease,
        request: &request,
        models: models.clone(),
        devices_max: 12,
        milli: 1000,
        failed_on: &[],
        prefer: None,
    };
    let first = plan(&picture, &ask(ME)).unwrap();
    picture.grant(ME, 1000, &first);
    let reason = plan(&picture, &ask(LeaseId::from_index(3))).unwrap_err();
    assert_eq!(reason.to_string(), "busy: 4 of 16 devices free, 12 asked");
}

#[test]
fn what_is_preferred_comes_first_and_rules_nothing_out() {
    let nodes = ["n1 a 8/8xa100", "n2 b 8/8xa100", "n3 b 8/8xh100", "n4 c 2/8xh100"];
    for (request, placed) in [
        ("2 any", "n1:2"),
        ("2 any prefer=h100:1", "n4:2"),
        ("4 any prefer=h100:1", "n3:4"),
        ("2 any prefer=b:1", "n2:2"),
        ("2 any prefer=h100:1,b:1", "n3:2"),
        ("2 any prefer=h100:1,a:2", "n1:2"),
        ("2 any prefer=h100:3,a:2", "n4:2"),
        ("8 any one-node prefer=c:9,h100:1", "n3:8"),
        ("2 a100|h100 prefer=h100:1", "n4:2"),
    ] {
        assert_eq!(outcome(&nodes, request), placed, "{request}");
    }
}
