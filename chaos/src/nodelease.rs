//! The node lease under faults: the product's askers and answerers over production replicas and the replicated state.
//!
//! Each machine is a node that asks and a voter that answers. Leaders are killed, cut off and stopped, clocks run as
//! unequal as the design allows, and nodes are declared lost through the log; the checkers know the true time. What the
//! renewals' thread does around the protocol is done here in its order. The one rule: a supervisor outlives its daemon,
//! so a deadline holds when the node that earned it is dead.

use std::sync::Arc;
use std::time::Duration;

use holdfast_node::boot::view::{LeaseView, standing};
use holdfast_node::consensus::Propose;
use holdfast_node::consensus::leadership::Lead;
use holdfast_node::nodelease::asker::{self, Asker, AskerSetup};
use holdfast_node::nodelease::wire::Reply;
use holdfast_node::nodelease::{Rules, Timing, Verdict};
use holdfast_proto::command::Command;
use holdfast_proto::id::NodeId;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::check::{Observation, Violation};
use crate::fault::{Fault, Plan, Step, Target, Way};
use crate::mutant::Mutant;
use crate::random::Stream;
use crate::renewals::voter::{self, Ground};
use crate::renewals::{Replies, question};
use crate::runtime::{self, Host, Simulated};
use crate::workload::setup;
use crate::world::assembly::Live;
use crate::world::cluster::Cluster;
use crate::world::inject;
use crate::world::judge::Judge;

/// What came of one seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What broke.
    pub violations: Vec<Violation>,
    /// Renewals that came in.
    pub renewals: u64,
    /// Nodes that were declared lost.
    pub losses: u64,
    /// Changes of the leader.
    pub leader_changes: u64,
    /// Hash over everything that happened.
    pub trace: String,
}

/// How long faults go on.
const SPAN_MS: u64 = 40_000;
/// How long a healed cluster may take until every node is renewed again.
const HEAL: Duration = Duration::from_secs(30);
/// How long one proposal may take.
const PROPOSAL_WAIT: Duration = Duration::from_secs(2);
/// How often the world looks whether a machine has begun a new life.
const LOOK: Duration = Duration::from_millis(5);
/// Furthest that a sound clock's rate is from true.
const RATE_PPM: std::ops::RangeInclusive<u64> = 990_000..=1_010_000;
/// What [`Mutant::ClockBeyondRho`] makes of the clocks of nodes 1 and 2.
const SLOW_PPM: u64 = 800_000;

/// The rules without the one that a bug breaks.
pub fn rules(mutant: Option<Mutant>) -> Rules {
    let mut rules = Rules::ALL;
    match mutant {
        Some(Mutant::RenewalWithoutRound) => rules.quorum_round = false,
        Some(Mutant::RenewalAfterGivingUp) => rules.refuse_after_unreachable = false,
        Some(Mutant::LossWithoutWait) => rules.lost_wait = false,
        _ => {}
    }
    rules
}

/// The faults of a seed: whoever leads is hit as often as all others together.
fn plan(draws: &mut Stream) -> Plan {
    let mut plan = Plan::calm(3, SPAN_MS);
    let mut at_ms = 1_000;
    while at_ms < SPAN_MS {
        let target = match draws.below(2) {
            0 => Target::Leader,
            _ => Target::Replica(u8::try_from(draws.below(3)).unwrap_or(0)),
        };
        let span_ms = draws.between(300, 7_000);
        let fault = match draws.below(8) {
            0 | 1 => Fault::Kill {
                target,
                down_ms: span_ms,
            },
            2 | 3 => Fault::Pause { target, span_ms },
            _ => {
                let ways = [Way::Both, Way::Both, Way::Inward, Way::Outward];
                let way = *draws.pick(&ways).expect("there are ways");
                Fault::Isolate { target, way, span_ms }
            }
        };
        plan.steps.push(Step { at_ms, fault });
        at_ms += draws.between(500, 6_000);
    }
    plan
}

/// What voters and nodes of a world share.
struct Log {
    mutant: Option<Mutant>,
}

impl Ground for Log {
    type View = LeaseView;

    fn view(&self, live: &Live) -> LeaseView {
        LeaseView(live.state())
    }

    fn rules(&self) -> Rules {
        rules(self.mutant)
    }

    fn verdict(&self, live: &Live, node: NodeId, verdict: Verdict) {
        let commands: Vec<Command> = match verdict {
            Verdict::Unreachable(nodes) => {
                let mark = |(node, generation)| Command::MarkNodeUnreachable { node, generation };
                nodes.into_iter().map(mark).collect()
            }
            Verdict::Lost(nodes) => {
                let mark = |(node, generation)| Command::MarkNodeLost { node, generation };
                nodes.into_iter().map(mark).collect()
            }
        };
        commands.into_iter().for_each(|command| propose(live, node, command));
    }
}

/// Proposes what a node says on its own account; whatever comes of it is seen in the state.
fn propose(live: &Live, node: NodeId, command: Command) {
    let replica = live.replica.clone();
    runtime::spawn_on(Host(node.0), async move {
        let proposing = replica.propose(setup::of_node(node, command));
        let _ = runtime::timeout(PROPOSAL_WAIT, proposing).await;
    });
}

/// Runs one seed, with a planted bug or without.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Outcome {
    let judge = Judge::default();
    let plan = plan(&mut Stream::seeded(seed).child("node lease"));
    let world = live(judge.clone(), plan, mutant);
    let ((), finished) = Simulated::seeded(seed).simulate(world);
    let judged = judge.finish();
    Outcome {
        seed,
        violations: judged.violations,
        renewals: judged.counts.renewals,
        losses: judged.counts.losses,
        leader_changes: judged.counts.leader_changes,
        trace: format!("{:016x}", finished.trace.hash()),
    }
}

async fn live(judge: Judge, plan: Plan, mutant: Option<Mutant>) {
    let cluster = Cluster::new(3, judge, None);
    // Nobody but the node lease says who is heard.
    cluster.quieten();
    crate::world::found(&cluster).await;
    let mut draws = runtime::stream("rates", &[]);
    for (place, machine) in cluster.machines.iter().enumerate() {
        let rate = draws.between(*RATE_PPM.start(), *RATE_PPM.end());
        let slow = mutant == Some(Mutant::ClockBeyondRho) && place > 0;
        let rate_ppm = if slow { SLOW_PPM } else { rate };
        runtime::set_rate(machine.host, rate_ppm);
        let ground = Arc::new(Log { mutant });
        runtime::spawn_on(Host::WORLD, voter::serve(ground, cluster.clone(), place));
        runtime::spawn_on(Host::WORLD, nodes(cluster.clone(), place, rate_ppm, mutant));
    }
    // Every node registers and is renewed before anything strikes.
    renewed(&cluster).await;
    inject::run(cluster.clone(), plan).await;
    if cluster.judge.violations() > 0 {
        return;
    }
    cluster.heal();
    renewed(&cluster).await;
    for panic in runtime::panics() {
        let text = format!("on host {}: {}", panic.host.0, panic.text);
        cluster.judge.violate("panic", text);
    }
}

/// Demands that every node is renewed in a generation that its log holds for ready.
async fn renewed(cluster: &Cluster) {
    let before = cluster.judge.counts().renewals;
    let wanted = before + 4 * cluster.machines.len() as u64;
    let stands = || {
        let ready = |state: &holdfast_storage::machine::State| {
            let nodes = state.nodes.values();
            nodes
                .filter(|node| node.status == holdfast_proto::node::NodeStatus::Ready)
                .count()
        };
        let live = cluster.leader().and_then(|place| cluster.machines[place].live());
        let all = live.is_some_and(|live| ready(&live.state()) == cluster.machines.len());
        all && cluster.judge.counts().renewals >= wanted
    };
    let give_up_ns = runtime::true_now_ns() + u64::try_from(HEAL.as_nanos()).unwrap_or(u64::MAX);
    while !stands() {
        if runtime::true_now_ns() > give_up_ns {
            return cluster
                .judge
                .violate("liveness", "the nodes of a sound cluster are not renewed".to_owned());
        }
        runtime::sleep(Duration::from_millis(50)).await;
    }
}

/// Starts the asking side of each life of a machine.
async fn nodes(cluster: Cluster, place: usize, rate_ppm: u64, mutant: Option<Mutant>) {
    let mut begun = None;
    loop {
        let machine = &cluster.machines[place];
        let (life, _) = machine.life();
        if let Some(live) = machine.live()
            && begun != Some(life)
        {
            begun = Some(life);
            let node = Node {
                id: machine.id,
                life,
                rate_ppm,
                live,
                cluster: cluster.clone(),
            };
            runtime::spawn_on(machine.host, node.run(mutant));
        }
        runtime::sleep(LOOK).await;
    }
}

/// One life of one node's asking side.
struct Node {
    id: NodeId,
    life: u32,
    rate_ppm: u64,
    live: Live,
    cluster: Cluster,
}

impl Node {
    async fn run(self, mutant: Option<Mutant>) {
        let setup = AskerSetup {
            node: self.id,
            incarnation: setup::incarnation(self.id, self.life),
            nonce_seed: runtime::stream("nonces", &[self.id.0, self.life.into()]).next(),
            rebooted: false,
        };
        let voters = self.cluster.nodes();
        let mut asker = Asker::with_rules(Timing::METRO, rules(mutant), setup, voters.clone());
        let (sender, mut replies) = mpsc::unbounded_channel();
        loop {
            let now_ms = boot_ms();
            asker.cluster(voters.clone(), self.live.replica.leadership().leader);
            let mut outputs = asker.applied(standing(&self.live.state(), self.id));
            outputs.extend(asker.tick(now_ms));
            self.carry_out(outputs, &sender);
            let wait_ms = asker.wake_ms(now_ms).saturating_sub(now_ms).clamp(1, 50);
            let arrived = runtime::timeout(Duration::from_millis(wait_ms), replies.recv()).await;
            if let Ok(Some((from, reply))) = arrived {
                let before = asker.deadline_ms();
                let outputs = asker.reply(boot_ms(), from, &reply);
                self.note(before, asker.deadline_ms(), &reply);
                self.carry_out(outputs, &sender);
            }
        }
    }

    /// Tells the judge until when work may run here.
    fn note(&self, before: Option<u64>, after: Option<u64>, reply: &Reply) {
        let (Some(deadline_ms), Reply::Renewed(renewed)) = (after.filter(|_| after > before), reply) else {
            return;
        };
        let left_ns = (deadline_ms * 1_000_000).saturating_sub(runtime::local_now().since_boot_ns());
        let left_true_ns = u128::from(left_ns) * 1_000_000 / u128::from(self.rate_ppm);
        let until_ns = runtime::true_now_ns() + u64::try_from(left_true_ns).unwrap_or(u64::MAX);
        self.cluster.judge.count(|counts| counts.renewals += 1);
        self.cluster.judge.observe(&Observation::Renewed {
            node: self.id,
            generation: renewed.generation,
            until_ns,
        });
    }

    fn carry_out(&self, outputs: Vec<asker::Output>, replies: &Replies) {
        let (node, incarnation) = (self.id, setup::incarnation(self.id, self.life));
        for output in outputs {
            match output {
                asker::Output::Send { to, renew } => {
                    runtime::spawn_on(
                        Host(node.0),
                        question(self.cluster.clone(), node, to, renew, replies.clone()),
                    );
                }
                asker::Output::RegisterNeeded { replaces } => {
                    let (_, boots) = self.cluster.machines[place(node)].life();
                    let register = Command::RegisterNode {
                        node,
                        incarnation,
                        replaces,
                        boot: setup::boot(node, boots, boot_ms()),
                        address: setup::address(node),
                    };
                    propose(&self.live, node, register);
                }
                asker::Output::ReturnNeeded { generation, nonce } => {
                    let back = Command::ReturnNode {
                        node,
                        incarnation,
                        generation,
                        nonce,
                        work: Vec::new(),
                    };
                    propose(&self.live, node, back);
                }
                // The next life has registered; this one's tasks are gone.
                asker::Output::Superseded => {}
            }
        }
    }
}

/// Node ids count from 1.
fn place(node: NodeId) -> usize {
    usize::try_from(node.0 - 1).unwrap_or(0)
}

fn boot_ms() -> u64 {
    runtime::local_now().since_boot_ns() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_declared_lost_only_when_their_work_has_stopped() {
        let outcomes: Vec<Outcome> = (1..=4).map(|seed| run(seed, None)).collect();
        for outcome in &outcomes {
            assert_eq!(outcome.violations, [], "{outcome:?}");
        }
        assert!(
            outcomes.iter().map(|outcome| outcome.losses).sum::<u64>() > 0,
            "{outcomes:?}"
        );
    }

    #[test]
    fn one_seed_gives_one_outcome() {
        assert_eq!(run(2, None), run(2, None));
    }
}
