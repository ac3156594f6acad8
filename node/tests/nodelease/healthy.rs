//! A thousand healthy nodes and a control plane that changes its leader five times: nobody is given up, nobody is frozen.

use std::collections::BTreeMap;

use holdfast_proto::id::{Generation, Incarnation, LeaseId, NodeId};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;

use holdfast_node::nodelease::Timing;
use holdfast_node::nodelease::answerer::{self, Answerer, ClusterView, NodeView, Now, Verdict};
use holdfast_node::nodelease::asker::{self, Applied, Asker, AskerSetup, Standing};
use holdfast_node::nodelease::wire::{Message, decode, encode};

use crate::mix;

const NODES: u64 = 1_000;
const VOTERS: usize = 3;
const STEP_MS: u64 = 10;
/// Longest leaderless time of one change: two split votes in a row.
const GAP_MS: u64 = 1_600;

struct Healthy;

impl ClusterView for Healthy {
    fn for_each_node(&self, visit: &mut dyn FnMut(NodeView)) {
        (0..NODES).filter_map(|id| self.node(NodeId(100 + id))).for_each(visit);
    }
    fn node(&self, node: NodeId) -> Option<NodeView> {
        let view = NodeView {
            node,
            incarnation: Some(Incarnation(1)),
            generation: Generation(1),
            status: NodeStatus::Ready,
            quiet: None,
        };
        (100..100 + NODES).contains(&node.0).then_some(view)
    }
    fn for_each_limit(&self, _: NodeId, _: &mut dyn FnMut(LeaseId, Timestamp)) {}
}

#[derive(Debug, Clone)]
enum Event {
    Question {
        voter: usize,
        frame: bytes::Bytes,
        from: NodeId,
    },
    Reply {
        frame: bytes::Bytes,
        from: NodeId,
        to: NodeId,
    },
    RoundOver {
        voter: usize,
        number: u64,
        term: u64,
    },
}

/// One question in thirty and one reply in thirty is lost; the others take 1 to 8 ms.
struct Wire {
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    seed: u64,
}

impl Wire {
    fn random(&mut self, below: u64) -> u64 {
        self.seed = mix(self.seed);
        self.seed % below
    }

    fn send(&mut self, now_ms: u64, event: Event) {
        if matches!(event, Event::RoundOver { .. }) || self.random(30) > 0 {
            let at = now_ms + 1 + self.random(8);
            self.count += 1;
            self.events.insert((at, self.count), event);
        }
    }
}

struct Run {
    now_ms: u64,
    askers: Vec<Asker>,
    answerers: Vec<Answerer>,
    leader: Option<usize>,
    term: u64,
    wire: Wire,
    given_up: Vec<(u64, NodeId)>,
    least_left_ms: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let asker = |id: u64| {
            let setup = AskerSetup {
                node: NodeId(100 + id),
                incarnation: Incarnation(1),
                nonce_seed: mix(seed ^ id),
                rebooted: false,
            };
            let mut asker = Asker::new(Timing::METRO, setup, (0..VOTERS as u64).map(NodeId).collect());
            let standing = Standing {
                incarnation: Some(Incarnation(1)),
                generation: Generation(1),
                status: NodeStatus::Ready,
            };
            asker.applied(Applied {
                index: 1,
                standing: Some(standing),
            });
            asker
        };
        Self {
            now_ms: 0,
            askers: (0..NODES).map(asker).collect(),
            answerers: (0..VOTERS).map(|_| Answerer::new(Timing::METRO)).collect(),
            leader: None,
            term: 0,
            wire: Wire {
                events: BTreeMap::new(),
                count: 0,
                seed,
            },
            given_up: Vec::new(),
            least_left_ms: u64::MAX,
        }
    }

    fn elect(&mut self, voter: usize) {
        self.answerers
            .iter_mut()
            .for_each(|answerer| answerer.follow(Some(NodeId(voter as u64))));
        (self.leader, self.term) = (Some(voter), self.term + 1);
        self.answerers[voter].lead(self.now_ms, self.term);
        self.answerers[voter].own_term_applied(self.now_ms);
    }

    /// The leader dies: what is on its way from and to it is lost.
    fn kill(&mut self) {
        if let Some(dead) = self.leader.take() {
            self.answerers.iter_mut().for_each(|answerer| answerer.follow(None));
            self.wire.events.retain(|_, event| match event {
                Event::Question { voter, .. } | Event::RoundOver { voter, .. } => *voter != dead,
                Event::Reply { from, .. } => from.0 != dead as u64,
            });
        }
    }

    fn outputs(&mut self, voter: usize, outputs: Vec<answerer::Output>) {
        for output in outputs {
            match output {
                answerer::Output::BeginRound(number) => self.wire.send(
                    self.now_ms,
                    Event::RoundOver {
                        voter,
                        number,
                        term: self.term,
                    },
                ),
                answerer::Output::Reply { to, reply } => {
                    let frame = encode(&Message::Reply(reply));
                    self.wire.send(
                        self.now_ms,
                        Event::Reply {
                            frame,
                            from: NodeId(voter as u64),
                            to,
                        },
                    );
                }
                answerer::Output::Propose(Verdict::Unreachable(pairs) | Verdict::Lost(pairs)) => {
                    self.given_up.extend(pairs.iter().map(|(node, _)| (self.now_ms, *node)));
                }
            }
        }
    }

    fn ask(&mut self, outputs: Vec<asker::Output>, from: NodeId) {
        for output in outputs {
            let asker::Output::Send { to, renew } = output else {
                panic!("a healthy node has only questions: {output:?}")
            };
            self.wire.send(
                self.now_ms,
                Event::Question {
                    voter: to.0 as usize,
                    frame: encode(&Message::Question(renew)),
                    from,
                },
            );
        }
    }

    fn arrive(&mut self, event: Event) {
        let now = Now {
            boot_ms: self.now_ms,
            stamp: Timestamp(self.now_ms),
        };
        match event {
            Event::Question { voter, frame, from } => {
                let Message::Question(renew) = decode(&frame).unwrap() else {
                    panic!("a question")
                };
                let outputs = self.answerers[voter].question(now, from, renew, &Healthy);
                self.outputs(voter, outputs);
            }
            Event::Reply { frame, from, to } => {
                let Message::Reply(reply) = decode(&frame).unwrap() else {
                    panic!("a reply")
                };
                let outputs = self.askers[(to.0 - 100) as usize].reply(self.now_ms, from, &reply);
                self.ask(outputs, to);
            }
            Event::RoundOver { voter, number, term } => {
                if (self.leader, self.term) == (Some(voter), term) {
                    let outputs = self.answerers[voter].round_finished(now, number, 1, &Healthy);
                    self.outputs(voter, outputs);
                }
            }
        }
    }

    fn advance(&mut self, ms: u64) {
        for _ in 0..ms / STEP_MS {
            self.now_ms += STEP_MS;
            while let Some(entry) = self
                .wire
                .events
                .first_entry()
                .filter(|entry| entry.key().0 <= self.now_ms)
            {
                let event = entry.remove();
                self.arrive(event);
            }
            if let Some(leader) = self.leader {
                let now = Now {
                    boot_ms: self.now_ms,
                    stamp: Timestamp(self.now_ms),
                };
                let mut outputs = self.answerers[leader].poll(self.now_ms).into_iter().collect::<Vec<_>>();
                if self.now_ms.is_multiple_of(Timing::METRO.tick_ms) {
                    outputs.extend(self.answerers[leader].tick(now, true, &Healthy));
                }
                self.outputs(leader, outputs);
            }
            for place in 0..self.askers.len() {
                let now_ms = self.now_ms;
                let outputs = self.askers[place].tick(now_ms);
                self.ask(outputs, NodeId(100 + place as u64));
                if let Some(deadline_ms) = self.askers[place].deadline_ms() {
                    self.least_left_ms = self.least_left_ms.min(deadline_ms.saturating_sub(now_ms));
                }
            }
        }
    }
}

#[test]
fn a_thousand_healthy_nodes_outlive_five_leader_changes() {
    let mut run = Run::new(20_261_130);
    run.elect(0);
    run.advance(2_000);
    for change in 1..=5 {
        run.kill();
        run.advance(GAP_MS);
        run.elect(change % VOTERS);
        run.advance(3_000);
    }
    assert_eq!(run.given_up, []);
    assert!(run.askers.iter().all(|asker| asker.in_force(run.now_ms)));
    assert!(run.least_left_ms > 0, "somebody's renewal ran out");
}
