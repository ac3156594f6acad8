//! The packer against a full scan of all nodes with the same score, and its bounds.

#![allow(clippy::unwrap_used)]

use super::*;

/// Numbers from a seed, for tests: xorshift64.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 33) % u64::from(bound)).unwrap()
    }
}

fn kind(models: &[(u8, u16)], zone: u8, last: bool) -> Kind {
    let group = |(model, devices): &(u8, u16)| Group {
        model: *model,
        devices: *devices,
    };
    Kind {
        groups: models.iter().map(group).collect(),
        zone,
        last,
    }
}

fn pool(draws: &mut Draws, nodes: u32) -> Packer {
    let mut packer = Packer::new();
    for _ in 0..nodes {
        let kind = match draws.below(6) {
            0 => kind(&[(0, 2)], 1, false),
            1 => kind(&[(0, 4), (0, 4)], 1, draws.below(4) == 0),
            2 => kind(&[(1, 8)], 2, false),
            3 => kind(&[(0, 2), (1, 3)], 2, false),
            4 => kind(&[], 1, false),
            _ => kind(&[(2, 8)], 3, false),
        };
        let (cpu, memory) = (
            [16_000, 64_000, 96_000][draws.below(3) as usize],
            [32, 256][draws.below(2) as usize],
        );
        packer.add(kind, cpu, memory * 1024);
    }
    packer
}

fn request(draws: &mut Draws) -> Request {
    let devices = [0, 1, 1, 1, 1, 2, 4, 8, 3][draws.below(9) as usize];
    let milli = match devices {
        0 => 0,
        1 => [1000, 1000, 500, 330, 100, 810, 190][draws.below(7) as usize],
        _ => [1000, 1000, 1000, 400][draws.below(4) as usize],
    };
    let cpu = u32::from(devices.max(1)) * [0, 1_000, 4_000, 11_000][draws.below(4) as usize];
    let mut request = Request::of(devices, milli, cpu, [0, 1024, 65_536][draws.below(3) as usize]);
    request.models = Models([0, 0, 1, 2, 6, 3][draws.below(6) as usize]);
    request.zones = Models([0, 0, 0, 2, 12][draws.below(5) as usize]);
    request.last = draws.below(3) == 0;
    request
}

/// The best node, found by looking at all.
fn scan(packer: &mut Packer, request: &Request) -> Option<u32> {
    let parts = packer.knobs.fullness_parts;
    let mut best: Option<(Best, u32)> = None;
    for node in 0.. {
        if node as usize >= packer.pool.nodes() {
            break;
        }
        if packer.pool.memory_of(node) < request.memory_mib {
            continue;
        }
        if let Some(quote) = packer.quote(node, request) {
            let glance = packer.pool.glance(packer.pool.state_of(node).unwrap()).unwrap();
            let score = (quote.cost, glance.fullness(parts), node);
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, node));
            }
        }
    }
    best.map(|(_, node)| node)
}

#[test]
fn the_heaps_find_what_a_full_scan_finds() {
    for seed in 1..=6 {
        let mut draws = Draws(seed * 0x9e37_79b9);
        let mut packer = pool(&mut draws, 40);
        let classes: Vec<Request> = (0..30).map(|_| request(&mut draws)).collect();
        let mut live = Vec::new();
        let mut placed = 0;
        for step in 0..2_000 {
            let request = &classes[draws.below(30) as usize];
            packer.learn(request);
            let scanned = scan(&mut packer, request);
            let found = packer.find(request, &|_| true);
            assert_eq!(found, scanned, "seed {seed}, step {step}: {request:?}");
            match found {
                Some(node) => {
                    live.push(packer.take(node, request));
                    placed += 1;
                }
                None if !live.is_empty() => {
                    for _ in 0..=draws.below(8) {
                        if let Some(at) = live.len().checked_sub(1).map(|last| draws.below(last as u32 + 1)) {
                            packer.give_back(&live.swap_remove(at as usize));
                        }
                    }
                }
                None => {}
            }
        }
        assert!(placed > 200, "{placed} placed");
    }
}

#[test]
fn what_is_remembered_is_bounded_by_the_nodes() {
    let mut draws = Draws(77);
    let mut packer = pool(&mut draws, 30);
    let mut live = Vec::new();
    for _ in 0..5_000 {
        let request = Request::of(
            1,
            u16::try_from(draws.below(999) + 1).unwrap(),
            draws.below(9_000),
            draws.below(64),
        );
        live.extend(packer.place(&request));
        if live.len() > 40 {
            packer.give_back(&live.swap_remove(draws.below(40) as usize));
        }
    }
    assert!(packer.states() <= 30);
    assert!(packer.classes.len() <= CLASSES_MAX && packer.pool.log_len() <= 4097 + 2 * 31);
    assert!(packer.families.iter().all(|family| family.len() <= 64 + 5 * 31));
}

#[test]
fn all_that_was_granted_comes_back() {
    let mut draws = Draws(5);
    let mut packer = pool(&mut draws, 20);
    let fresh: Vec<_> = (0..20).map(|node| packer.pool.free_of(node)).collect();
    let mut live = Vec::new();
    for _ in 0..500 {
        let request = request(&mut draws);
        live.extend(packer.place(&request));
    }
    assert!((0..20).any(|node| packer.pool.free_of(node) != fresh[node as usize]));
    live.iter().for_each(|grant| packer.give_back(grant));
    assert!((0..20).all(|node| packer.pool.free_of(node) == fresh[node as usize]));
}

#[test]
fn the_same_requests_get_the_same_grants() {
    let run = || {
        let mut draws = Draws(9);
        let mut packer = pool(&mut draws, 25);
        (0..800).map(|_| packer.place(&request(&mut draws))).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_small_share_goes_where_it_fills_a_gap() {
    let mut packer = Packer::new();
    let node = |packer: &mut Packer| packer.add(kind(&[(0, 2)], 0, false), 64_000, 65_536);
    let (first, second) = (node(&mut packer), node(&mut packer));
    let share = |milli| Request::of(1, milli, 1_000, 0);
    for _ in 0..20 {
        packer.learn(&share(600));
        packer.learn(&share(400));
    }
    let began = packer.place(&share(600)).unwrap();
    assert_eq!((began.node, began.devices), (first, vec![0]));
    let filled = packer.place(&share(400)).unwrap();
    assert_eq!((filled.node, filled.devices), (first, vec![0]));
    // Two whole devices are left together on the other node only.
    assert_eq!(packer.place(&Request::of(2, 1000, 1_000, 0)).unwrap().node, second);
    assert_eq!(packer.place(&Request::of(2, 1000, 1_000, 0)), None);
}

#[test]
fn a_scarce_model_is_kept_for_those_who_can_use_no_other() {
    let mut packer = Packer::new();
    let scarce = packer.add(kind(&[(0, 4)], 0, false), 64_000, 65_536);
    let plenty = packer.add(kind(&[(1, 4)], 0, false), 64_000, 65_536);
    let only = Request {
        models: Models(1),
        ..Request::of(1, 1000, 1_000, 0)
    };
    (0..30).for_each(|_| packer.learn(&only));
    assert_eq!(packer.place(&Request::of(1, 1000, 1_000, 0)).unwrap().node, plenty);
    assert_eq!(packer.place(&only).unwrap().node, scarce);
}

#[test]
fn work_without_devices_takes_cpu_that_no_device_needs() {
    let mut packer = Packer::new();
    let tight = packer.add(kind(&[(0, 8)], 0, false), 96_000, 65_536);
    let rich = packer.add(kind(&[(0, 2)], 0, false), 104_000, 65_536);
    (0..30).for_each(|_| packer.learn(&Request::of(1, 1000, 12_000, 0)));
    let grant = packer.place(&Request::of(0, 0, 32_000, 0)).unwrap();
    assert!(grant.node == rich && grant.node != tight && grant.devices.is_empty());
}
