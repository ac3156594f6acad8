//! Random walks: elections, crashes, cuts, sleeping leaders, lagging replicas, letters held, doubled and late. Nothing may be violated, and when the
//! faults stop the lease must run again.

use crate::machine::{ModelRules, NODES, VOTERS};
use crate::world::{Letter, World};
use holdfast_node::nodelease::Rules;

use crate::mix;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn place(&mut self) -> usize {
        self.below(3) as usize
    }
}

/// One hostile act, or a little time.
fn act(world: &mut World, random: &mut Random) {
    let (node, voter, other) = (random.place(), random.place(), random.place());
    match random.below(26) {
        0 => world.hears[node][voter] ^= true,
        1 => world.tells[node][voter] ^= true,
        2 => world.cut(node),
        3 | 4 => world.heal(node),
        5 => world.isolate(voter),
        6 | 7 => world.peers = [[true; VOTERS]; VOTERS],
        8 if voter != other && random.chance(50) => world.elect(voter, other),
        9 => world.voters[voter].asleep = random.chance(30),
        10 => world.voters[voter].applies = random.chance(60),
        11 => world.nodes[node].follows = random.chance(60),
        12 if random.chance(30) => world.kill_daemon(node),
        13 if world.nodes[node].asker.is_none() => world.start_daemon(node),
        14 if random.chance(10) => world.reboot(node),
        15 if random.chance(20) => world.exit(node),
        16 => world.store_open = random.chance(70),
        17 => world.upload(node),
        18 | 19 => {
            for _ in 0..random.below(8) {
                let count = world.held.len() as u64;
                if count > 0 {
                    let place = random.below(count) as usize;
                    world.release_one(place, random.chance(30));
                }
            }
        }
        20 => world.held.retain(|letter| !matches!(letter, Letter::Question { .. })),
        _ => {
            let ms = [50, 100, 500, 1_000, 2_000, 5_000][random.below(6) as usize];
            world.advance(ms);
        }
    }
    // A leaderless minute teaches nothing: mostly somebody is soon elected.
    if world.voters.iter().all(|voter| !voter.leads) && random.chance(60) {
        let by_log = |&voter: &usize| {
            world.voters[voter]
                .log
                .last()
                .map(|entry| (entry.0, world.voters[voter].log.len()))
        };
        let best = (0..VOTERS).max_by_key(by_log).unwrap();
        world.elect(best, (best + 1) % VOTERS);
    }
}

fn walk(rules: Rules, model: ModelRules, seed: u64, acts: usize) -> World {
    let mut random = Random(seed);
    let mut rates = [1_000; VOTERS + NODES];
    rates
        .iter_mut()
        .for_each(|rate| *rate = [900, 1_000, 1_100][random.place()]);
    let mut world = World::new(rules, model, random.chance(50), rates);
    for _ in 0..acts {
        act(&mut world, &mut random);
        if !world.violations.is_empty() {
            break;
        }
    }
    world
}

/// The faults stop; `dead` stays dead.
fn settle(world: &mut World, dead: Option<usize>) {
    world.peers = [[true; VOTERS]; VOTERS];
    world
        .voters
        .iter_mut()
        .for_each(|voter| (voter.asleep, voter.applies) = (false, true));
    world.store_open = true;
    for node in 0..NODES {
        world.heal(node);
        (world.nodes[node].follows, world.nodes[node].acts) = (true, true);
        if Some(node) == dead {
            world.reboot(node);
        } else if world.nodes[node].asker.is_none() {
            world.start_daemon(node);
        }
    }
    let best = (0..VOTERS)
        .max_by_key(|&voter| {
            (
                world.voters[voter].log.last().map(|entry| entry.0),
                world.voters[voter].log.len(),
            )
        })
        .unwrap();
    let highest = world.voters.iter().map(|voter| voter.term).max().unwrap();
    world.voters[best].term = highest;
    world.elect(best, (best + 1) % VOTERS);
    world.advance(30_000);
}

/// Enough for every kind of event to show many times; the wide sweep belongs to the simulator.
const WALKS: u64 = 160;

#[test]
fn nothing_is_violated_on_random_walks_and_the_lease_runs_again_when_the_faults_stop() {
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    for seed in 0..WALKS {
        let mut world = walk(Rules::ALL, ModelRules::ALL, seed, 120);
        let dead = [None, Some(0), Some(1), None][(seed % 4) as usize];
        settle(&mut world, dead);
        assert_eq!(world.violations, Vec::<String>::new(), "seed {seed}");
        assert!(
            world.whole(),
            "seed {seed}: the lease does not run: {:?} {:?}",
            world.truth(),
            world.nodes.iter().map(|n| n.work).collect::<Vec<_>>()
        );
        world
            .counts
            .iter()
            .for_each(|(what, count)| *counts.entry(what).or_default() += count);
    }
    // A walk in which nothing happens proves nothing.
    for (what, least) in [
        ("election", 160),
        ("unreachable", 160),
        ("lost", 40),
        ("freeze", 40),
        ("thaw", 20),
        ("spawn in a later epoch", 40),
        ("daemon start", 40),
    ] {
        assert!(counts.get(what).copied().unwrap_or(0) >= least, "{what}: {counts:?}");
    }
}

#[test]
fn walks_find_the_rules_that_break_often() {
    let broken: [(&str, Rules, ModelRules); 4] = [
        (
            "the wait",
            Rules {
                lost_wait: false,
                ..Rules::ALL
            },
            ModelRules::ALL,
        ),
        (
            "the renewal in force",
            Rules {
                step_in_force: false,
                ..Rules::ALL
            },
            ModelRules::ALL,
        ),
        (
            "only remembered questions",
            Rules {
                only_remembered: false,
                ..Rules::ALL
            },
            ModelRules::ALL,
        ),
        (
            "the supervisor",
            Rules::ALL,
            ModelRules {
                supervisor: false,
                ..ModelRules::ALL
            },
        ),
    ];
    for (name, rules, model) in broken {
        let caught = (0..WALKS).any(|seed| !walk(rules, model, seed, 120).violations.is_empty());
        assert!(caught, "{name} can be taken away unseen");
    }
}
