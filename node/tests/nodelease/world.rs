//! Three voters, three nodes, one lease: the production asker and answerer over a model of everything around them.
//!
//! A step is 50 ms of true time; every process has its own clock rate. A letter whose way is open arrives within the step; else it is held, and the test
//! may let it through later, twice, or never. Raft exchanges between voters are whole, but happen only where the way is open.
//!
//! The checks: P1 two attempts execute, L work of a lost or ended member executes, P2 an old effect is accepted after a newer start, P5 current work is
//! killed, Q5 work is killed though nothing replaced it, P6 a start or a thaw that the log has already overruled, A an answer after the giving up.

use std::collections::{BTreeMap, VecDeque};

use holdfast_proto::id::{Generation, Incarnation, NodeId, Nonce};
use holdfast_proto::node::NodeStatus;
use holdfast_proto::time::Timestamp;

use crate::machine::{Command, Machine, ModelRules, NODES, VOTERS, node_id, voter_id};
use holdfast_node::nodelease::answerer::{self, Answerer, Now, Verdict};
use holdfast_node::nodelease::asker::{self, Applied, Asker, AskerSetup, Standing};
use holdfast_node::nodelease::wire::{Renew, Reply};
use holdfast_node::nodelease::{Rules, Timing};

use crate::mix;

pub(crate) const STEP_MS: u64 = 50;
const HELD_MAX: usize = 200;

/// Clock rates of up to ten per cent off, ten times worse than production allows for: margins show sooner.
pub(crate) const TIMING: Timing = Timing {
    rho_permille: 100,
    // A leader of this model ticks at each step.
    tick_ms: 2 * STEP_MS,
    silence_ticks: 15,
    losses_per_minute_min: 1_000,
    ..Timing::METRO
};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Letter {
    Question {
        node: usize,
        voter: usize,
        renew: Renew,
    },
    Reply {
        voter: usize,
        node: usize,
        reply: Reply,
    },
    Proposal {
        node: usize,
        command: Command,
        shows: Option<(Generation, Nonce)>,
    },
    Effect {
        epoch: u32,
        attempt: u32,
    },
}

pub(crate) struct Voter {
    pub(crate) term: u64,
    pub(crate) leads: bool,
    pub(crate) log: Vec<(u64, Command)>,
    pub(crate) commit: usize,
    pub(crate) applied: usize,
    pub(crate) machine: Machine,
    pub(crate) rate: u64,
    pub(crate) answerer: Answerer,
    /// Length of the log up to the first entry of its own term.
    own: usize,
    rounds: Vec<(u64, u64)>,
    given_up: Vec<(usize, u64)>,
    /// The renewal thread does not run; its queue fills.
    pub(crate) asleep: bool,
    /// It applies what is committed.
    pub(crate) applies: bool,
    queue: Vec<Letter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) epoch: u32,
    pub(crate) attempt: u32,
    pub(crate) runs: bool,
}

pub(crate) struct Node {
    pub(crate) asker: Option<Asker>,
    pub(crate) incarnation: u64,
    pub(crate) rate: u64,
    born_ms: u64,
    pub(crate) applied: usize,
    pub(crate) machine: Machine,
    pub(crate) deadline_ms: u64,
    pub(crate) work: Option<Work>,
    /// The executor's journal: the newest attempt that was ever spawned here.
    pub(crate) journal: (u32, u32),
    outbox: Vec<Command>,
    /// What was reported last, and when.
    reported: Vec<Command>,
    reported_ms: u64,
    prepared_ms: u64,
    /// Its replica follows the log.
    pub(crate) follows: bool,
    /// Its executor takes the steps that it may take.
    pub(crate) acts: bool,
}

pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) model: ModelRules,
    pub(crate) now_ms: u64,
    pub(crate) voters: Vec<Voter>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) held: VecDeque<Letter>,
    /// Questions and proposals from node to voter pass.
    pub(crate) hears: [[bool; VOTERS]; NODES],
    /// Replies from voter to node pass.
    pub(crate) tells: [[bool; VOTERS]; NODES],
    pub(crate) peers: [[bool; VOTERS]; VOTERS],
    /// Effects (uploads) reach the store at once.
    pub(crate) store_open: bool,
    /// Leaders place and start.
    pub(crate) schedules: bool,
    truth: Machine,
    truth_applied: usize,
    store: (u32, u32),
    started: (u32, u32),
    gang: bool,
    seed: u64,
    pub(crate) violations: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Voter {
    fn new(rules: Rules, machine: &Machine, rate: u64, leads: bool) -> Self {
        let mut answerer = Answerer::with_rules(TIMING, rules);
        if leads {
            answerer.lead(0, 1);
            answerer.own_term_applied(0);
        }
        Self {
            term: 1,
            leads,
            log: vec![(1, Command::Blank)],
            commit: 1,
            applied: 1,
            machine: machine.clone(),
            rate,
            answerer,
            own: 1,
            rounds: Vec::new(),
            given_up: Vec::new(),
            asleep: false,
            applies: true,
            queue: Vec::new(),
        }
    }
}

impl Node {
    fn new(machine: &Machine, rate: u64, place: usize) -> Self {
        let runs = machine.members.iter().any(|member| member.node == place);
        Self {
            asker: None,
            incarnation: 1,
            rate,
            born_ms: 0,
            applied: 1,
            machine: machine.clone(),
            deadline_ms: TIMING.node_ttl_ms,
            work: runs.then_some(Work {
                epoch: 1,
                attempt: 1,
                runs: true,
            }),
            journal: if runs { (1, 1) } else { (0, 0) },
            outbox: Vec::new(),
            reported: Vec::new(),
            reported_ms: 0,
            prepared_ms: 0,
            follows: true,
            acts: true,
        }
    }
}

impl World {
    pub(crate) fn new(rules: Rules, model: ModelRules, gang: bool, rates: [u64; VOTERS + NODES]) -> Self {
        let machine = Machine::new(gang);
        let mut world = Self {
            rules,
            model,
            now_ms: 0,
            voters: (0..VOTERS)
                .map(|place| Voter::new(rules, &machine, rates[place], place == 0))
                .collect(),
            nodes: (0..NODES)
                .map(|place| Node::new(&machine, rates[VOTERS + place], place))
                .collect(),
            held: VecDeque::new(),
            hears: [[true; VOTERS]; NODES],
            tells: [[true; VOTERS]; NODES],
            peers: [[true; VOTERS]; VOTERS],
            store_open: true,
            schedules: true,
            truth: machine,
            truth_applied: 1,
            store: (0, 0),
            started: (1, 1),
            gang,
            seed: 1,
            violations: Vec::new(),
            counts: BTreeMap::new(),
        };
        (0..NODES).for_each(|place| world.start_asker(place, false));
        world
    }

    // ---- what a test does to the world ----

    /// Lets time pass, in steps.
    pub(crate) fn advance(&mut self, ms: u64) {
        for _ in 0..ms / STEP_MS {
            self.pass_time();
            self.ask();
            self.tick_voters();
            self.exchange();
        }
    }

    /// Lets time pass until the condition holds; panics when it does not within a minute.
    pub(crate) fn advance_until(&mut self, condition: impl Fn(&World) -> bool) {
        for _ in 0..60_000 / STEP_MS {
            if condition(self) {
                return;
            }
            self.advance(STEP_MS);
        }
        panic!("the world never came to the point that the scenario waits for");
    }

    pub(crate) fn cut(&mut self, node: usize) {
        self.hears[node] = [false; VOTERS];
        self.tells[node] = [false; VOTERS];
    }

    pub(crate) fn heal(&mut self, node: usize) {
        self.hears[node] = [true; VOTERS];
        self.tells[node] = [true; VOTERS];
    }

    /// Cuts a voter off from the other voters.
    pub(crate) fn isolate(&mut self, voter: usize) {
        for other in 0..VOTERS {
            self.peers[voter][other] = false;
            self.peers[other][voter] = false;
        }
    }

    /// `voter` is elected with the vote of `elector`, if that one's log is not ahead.
    pub(crate) fn elect(&mut self, voter: usize, elector: usize) {
        let last = |voter: &Voter| (voter.log.last().map(|entry| entry.0), voter.log.len());
        if last(&self.voters[voter]) < last(&self.voters[elector]) {
            return;
        }
        let term = self.voters[voter].term.max(self.voters[elector].term) + 1;
        self.voters[elector].term = term;
        self.step_down(elector, Some(voter));
        let now_ms = self.voter_ms(voter);
        self.seed += 1;
        let seed = mix(self.seed);
        let winner = &mut self.voters[voter];
        winner.term = term;
        winner.leads = true;
        winner.log.push((term, Command::Blank));
        winner.own = winner.log.len();
        winner.rounds.clear();
        winner.given_up.clear();
        winner.answerer.lead(now_ms, seed);
        self.count("election");
    }

    pub(crate) fn kill_daemon(&mut self, node: usize) {
        self.nodes[node].asker = None;
    }

    /// A new daemon starts with an old replica: it remembers nothing of the log but its beginning.
    pub(crate) fn start_daemon(&mut self, node: usize) {
        self.seed += 1;
        let fresh = Machine::new(self.gang);
        let place = &mut self.nodes[node];
        place.incarnation += 1;
        (place.applied, place.machine) = (1, fresh);
        let (epoch, attempt) = place.journal;
        if attempt > 0 && place.work.is_none() && place.outbox.is_empty() {
            place.outbox.push(Command::Exited { node, epoch, attempt });
        }
        self.start_asker(node, false);
        self.count("daemon start");
    }

    /// Machine reboot: the boot clock starts anew, no process is left.
    pub(crate) fn reboot(&mut self, node: usize) {
        let now_ms = self.now_ms;
        let place = &mut self.nodes[node];
        (place.asker, place.work, place.born_ms, place.deadline_ms) = (None, None, now_ms, 0);
    }

    /// The work on a node ends by itself.
    pub(crate) fn exit(&mut self, node: usize) {
        if let Some(work) = self.nodes[node].work.take() {
            self.nodes[node].outbox.push(Command::Exited {
                node,
                epoch: work.epoch,
                attempt: work.attempt,
            });
        }
    }

    /// The running work on a node sends an effect to the store.
    pub(crate) fn upload(&mut self, node: usize) {
        if let Some(work) = self.nodes[node].work.filter(|work| work.runs) {
            self.post(Letter::Effect {
                epoch: work.epoch,
                attempt: work.attempt,
            });
        }
    }

    /// Lets the held letters through that `wanted` picks, ways open or not.
    pub(crate) fn release(&mut self, wanted: impl Fn(&Letter) -> bool) {
        let (out, kept) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|letter| wanted(letter));
        self.held = kept;
        for letter in out {
            let _: () = self.arrive(letter);
        }
    }

    /// Lets the held letter at `place` through; `again` keeps it for another time.
    pub(crate) fn release_one(&mut self, place: usize, again: bool) {
        if let Some(letter) = self.held.remove(place) {
            if again {
                self.held.push_back(letter.clone());
            }
            self.arrive(letter);
        }
    }

    // ---- what a test looks at ----

    pub(crate) fn truth(&self) -> &Machine {
        &self.truth
    }

    /// The lease's present attempt executes on all its members.
    pub(crate) fn whole(&self) -> bool {
        let machine = self.truth();
        let runs = |node: usize| {
            self.nodes[node].work
                == Some(Work {
                    epoch: machine.epoch,
                    attempt: machine.attempt,
                    runs: true,
                })
        };
        machine.attempt > 0
            && machine
                .members
                .iter()
                .filter(|member| member.epoch == machine.epoch)
                .all(|member| runs(member.node))
    }

    pub(crate) fn ordered(&self, command: &Command) -> bool {
        self.voters
            .iter()
            .any(|voter| voter.log.iter().any(|entry| entry.1 == *command))
    }

    pub(crate) fn counted(&self, what: &'static str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    // ---- one step ----

    pub(crate) fn pass_time(&mut self) {
        self.now_ms += STEP_MS;
        for place in 0..NODES {
            let clock_ms = self.node_ms(place);
            let rate = self.nodes[place].rate;
            let node = &mut self.nodes[place];
            if let Some(deadline_ms) = node.asker.as_ref().and_then(Asker::deadline_ms) {
                node.deadline_ms = node.deadline_ms.max(deadline_ms);
            }
            // As late as is allowed: the next step would be beyond the bound, on the node's own clock.
            let late = clock_ms + STEP_MS * rate / 1_000 > node.deadline_ms + TIMING.stop_bound_ms;
            let enforced = self.model.supervisor || node.asker.is_some();
            if let Some(work) = node.work.as_mut().filter(|work| work.runs && late && enforced) {
                work.runs = false;
                self.count("freeze");
            }
        }
    }

    pub(crate) fn ask(&mut self) {
        for place in 0..NODES {
            let now_ms = self.node_ms(place);
            let outputs = self.nodes[place].asker.as_mut().map(|asker| asker.tick(now_ms));
            self.asker_outputs(place, outputs.unwrap_or_default());
        }
    }

    pub(crate) fn tick_voters(&mut self) {
        for place in 0..VOTERS {
            if self.voters[place].asleep {
                continue;
            }
            let now = self.voter_now(place);
            let (voter, drained) = (&mut self.voters[place], self.now_ms);
            if drained % (2 * STEP_MS) == 0 {
                let drained = voter.queue.is_empty();
                let outputs = voter.answerer.tick(now, drained, &voter.machine);
                self.answerer_outputs(place, outputs);
            }
            let queue = std::mem::take(&mut self.voters[place].queue);
            queue.into_iter().for_each(|letter| self.arrive(letter));
            let polled = self.voters[place].answerer.poll(now.boot_ms);
            self.answerer_outputs(place, polled.into_iter().collect());
        }
    }

    /// Lets everything happen that open ways allow, until nothing moves.
    pub(crate) fn exchange(&mut self) {
        for _ in 0..12 {
            let mut moved = false;
            for leader in 0..VOTERS {
                for peer in 0..VOTERS {
                    moved |= self.peers[leader][peer] && self.replicate(leader, peer);
                }
                moved |= self.voters[leader].applies && self.apply_voter(leader);
            }
            for node in 0..NODES {
                while self.nodes[node].follows && self.apply_node(node) {
                    moved = true;
                }
                moved |= self.nodes[node].acts && self.act(node);
            }
            if self.schedules {
                self.schedule();
            }
            if !moved {
                return;
            }
        }
    }

    fn voter_ms(&self, voter: usize) -> u64 {
        self.now_ms * self.voters[voter].rate / 1_000
    }

    fn voter_now(&self, voter: usize) -> Now {
        Now {
            boot_ms: self.voter_ms(voter),
            stamp: Timestamp(self.now_ms),
        }
    }

    pub(crate) fn node_ms(&self, node: usize) -> u64 {
        (self.now_ms - self.nodes[node].born_ms) * self.nodes[node].rate / 1_000
    }

    fn start_asker(&mut self, place: usize, rebooted: bool) {
        self.seed += 1;
        let incarnation = Incarnation(self.nodes[place].incarnation);
        let setup = AskerSetup {
            node: node_id(place),
            incarnation,
            nonce_seed: mix(self.seed),
            rebooted,
        };
        let mut asker = Asker::with_rules(TIMING, self.rules, setup, (0..VOTERS).map(voter_id).collect());
        let outputs = asker.applied(seen(&self.nodes[place], place));
        self.nodes[place].asker = Some(asker);
        self.asker_outputs(place, outputs);
    }

    fn asker_outputs(&mut self, place: usize, outputs: Vec<asker::Output>) {
        let incarnation = self.nodes[place].incarnation;
        for output in outputs {
            match output {
                asker::Output::Send { to, renew } => self.post(Letter::Question {
                    node: place,
                    voter: voter_place(to),
                    renew,
                }),
                asker::Output::RegisterNeeded { .. } => {
                    // The own replica may be far behind; the register command is tried with what the leader's reply showed.
                    let replaces = self.truth.nodes[place].incarnation;
                    if replaces != incarnation {
                        let node = place;
                        self.propose(
                            place,
                            Command::Register {
                                node,
                                incarnation,
                                replaces,
                            },
                            None,
                        );
                    }
                }
                asker::Output::ReturnNeeded { generation, nonce } => {
                    let command = Command::Returned {
                        node: place,
                        generation: generation.0,
                        incarnation,
                    };
                    self.propose(place, command, Some((generation, nonce)));
                }
                asker::Output::Superseded => panic!("no second daemon of one node runs in this world"),
            }
        }
    }

    fn answerer_outputs(&mut self, place: usize, outputs: Vec<answerer::Output>) {
        for output in outputs {
            match output {
                answerer::Output::BeginRound(number) => {
                    let barrier = self.voters[place].commit as u64;
                    self.voters[place].rounds.push((number, barrier));
                }
                answerer::Output::Reply { to, reply } => self.answered(place, to, reply),
                answerer::Output::Propose(verdict) => self.verdict(place, verdict),
            }
        }
    }

    fn answered(&mut self, place: usize, to: NodeId, reply: Reply) {
        let node = node_place(to);
        if let Reply::Renewed(renewed) = &reply
            && self.voters[place].given_up.contains(&(node, renewed.generation.0))
        {
            self.violate("A an answer after the giving up");
        }
        self.post(Letter::Reply {
            voter: place,
            node,
            reply,
        });
    }

    fn verdict(&mut self, place: usize, verdict: Verdict) {
        let (pairs, unreachable) = match verdict {
            Verdict::Unreachable(pairs) => (pairs, true),
            Verdict::Lost(pairs) => (pairs, false),
        };
        for (id, Generation(generation)) in pairs {
            let node = node_place(id);
            let voter = &mut self.voters[place];
            if unreachable {
                voter.given_up.push((node, generation));
                voter.log.push((voter.term, Command::Unreachable { node, generation }));
                self.count("unreachable");
            } else {
                voter.log.push((voter.term, Command::Lost { node, generation }));
                self.count("lost");
            }
        }
    }

    fn post(&mut self, letter: Letter) {
        let open = match letter {
            Letter::Question { node, voter, .. } => self.hears[node][voter],
            Letter::Reply { voter, node, .. } => self.tells[node][voter],
            Letter::Proposal { .. } => true,
            Letter::Effect { .. } => self.store_open,
        };
        if open {
            self.arrive(letter);
        } else {
            if self.held.len() == HELD_MAX {
                self.held.pop_front();
            }
            self.held.push_back(letter);
        }
    }

    fn arrive(&mut self, letter: Letter) {
        match letter {
            Letter::Question { voter, .. } if self.voters[voter].asleep => self.voters[voter].queue.push(letter),
            Letter::Question { node, voter, renew } => {
                let now = self.voter_now(voter);
                let place = &mut self.voters[voter];
                let outputs = place.answerer.question(now, node_id(node), renew, &place.machine);
                self.answerer_outputs(voter, outputs);
            }
            Letter::Reply { voter, node, reply } => {
                let now_ms = self.node_ms(node);
                let outputs = self.nodes[node]
                    .asker
                    .as_mut()
                    .map(|asker| asker.reply(now_ms, voter_id(voter), &reply));
                self.asker_outputs(node, outputs.unwrap_or_default());
            }
            Letter::Proposal { command, shows, .. } => self.append(command, shows),
            Letter::Effect { epoch, attempt } => {
                if (epoch, attempt) >= self.store {
                    self.store = (epoch, attempt);
                    if self.store < self.started {
                        self.violate("P2 an older effect is accepted after a newer start");
                    }
                }
            }
        }
    }

    fn propose(&mut self, node: usize, command: Command, shows: Option<(Generation, Nonce)>) {
        if (0..VOTERS).any(|voter| self.voters[voter].leads && self.hears[node][voter]) {
            self.post(Letter::Proposal { node, command, shows });
        }
    }

    /// The leader with the highest term appends a node's command, unless it waits in its log already.
    fn append(&mut self, command: Command, shows: Option<(Generation, Nonce)>) {
        let Some(place) = (0..VOTERS)
            .filter(|&voter| self.voters[voter].leads)
            .max_by_key(|&voter| self.voters[voter].term)
        else {
            return;
        };
        let voter = &mut self.voters[place];
        if let (Command::Returned { node, .. }, Some((generation, nonce))) = (&command, shows)
            && !voter.answerer.admits_return(node_id(*node), generation, nonce)
        {
            return;
        }
        if voter.log[voter.applied..].iter().all(|entry| entry.1 != command) {
            voter.log.push((voter.term, command));
        }
    }

    fn step_down(&mut self, place: usize, leader: Option<usize>) {
        let voter = &mut self.voters[place];
        voter.leads = false;
        voter.rounds.clear();
        voter.answerer.follow(leader.map(voter_id));
    }

    /// One whole exchange of a leader with a peer; reports whether anything moved.
    pub(crate) fn replicate(&mut self, leader: usize, peer: usize) -> bool {
        if leader == peer || !self.voters[leader].leads {
            return false;
        }
        if self.voters[peer].term > self.voters[leader].term {
            self.voters[leader].term = self.voters[peer].term;
            self.step_down(leader, None);
            return true;
        }
        let (term, log, commit) = (
            self.voters[leader].term,
            self.voters[leader].log.clone(),
            self.voters[leader].commit,
        );
        let mut moved = false;
        let follower = &mut self.voters[peer];
        if follower.term < term || follower.log != log || follower.commit < commit {
            (follower.term, follower.log, follower.commit) = (term, log, follower.commit.max(commit));
            self.step_down(peer, Some(leader));
            moved = true;
        }
        let voter = &mut self.voters[leader];
        if voter.log.last().is_some_and(|entry| entry.0 == voter.term) && voter.commit < voter.log.len() {
            voter.commit = voter.log.len();
            moved = true;
        }
        self.learn_truth(leader);
        let now = self.voter_now(leader);
        for (number, barrier) in std::mem::take(&mut self.voters[leader].rounds) {
            let voter = &mut self.voters[leader];
            let outputs = voter.answerer.round_finished(now, number, barrier, &voter.machine);
            self.answerer_outputs(leader, outputs);
            moved = true;
        }
        moved
    }

    fn learn_truth(&mut self, place: usize) {
        let voter = &self.voters[place];
        for entry in voter.log.get(self.truth_applied..voter.commit).unwrap_or_default() {
            self.truth.apply(self.model, &entry.1);
            self.truth_applied += 1;
        }
        self.check_executing();
    }

    pub(crate) fn apply_voter(&mut self, place: usize) -> bool {
        let now_ms = self.voter_ms(place);
        let voter = &mut self.voters[place];
        let before = voter.applied;
        while voter.applied < voter.commit {
            let command = voter.log[voter.applied].1.clone();
            voter.machine.apply(self.model, &command);
            voter.applied += 1;
            voter.answerer.applied(now_ms, &voter.machine);
            if voter.leads && voter.applied == voter.own {
                voter.answerer.own_term_applied(now_ms);
            }
        }
        voter.applied > before
    }

    /// The node's replica applies one more entry of what is committed anywhere.
    pub(crate) fn apply_node(&mut self, place: usize) -> bool {
        let source = (0..VOTERS).max_by_key(|&voter| self.voters[voter].commit).unwrap();
        let next = self.nodes[place].applied;
        if self.nodes[place].asker.is_none() || next >= self.voters[source].commit {
            return false;
        }
        let command = self.voters[source].log[next].1.clone();
        let model = self.model;
        let node = &mut self.nodes[place];
        node.machine.apply(model, &command);
        node.applied += 1;
        let machine = &node.machine;
        node.outbox.retain(|report| match *report {
            Command::Exited { node, epoch, attempt } => {
                let held = |m: &crate::machine::Member| (m.node, m.epoch, m.attempt) == (node, epoch, attempt);
                machine.members.iter().any(held) || (machine.epoch, machine.attempt) < (epoch, attempt)
            }
            Command::Ended { node, epoch } => machine
                .members
                .iter()
                .any(|m| (m.node, m.epoch, m.open) == (node, epoch, true)),
            _ => false,
        });
        let view = seen(&self.nodes[place], place);
        let outputs = self.nodes[place].asker.as_mut().map(|asker| asker.applied(view));
        self.asker_outputs(place, outputs.unwrap_or_default());
        true
    }

    // ---- the executor of a node, as far as the node lease rules it ----

    /// Takes every step that the node may take; reports whether it took one.
    pub(crate) fn act(&mut self, place: usize) -> bool {
        let now_ms = self.node_ms(place);
        let truth = self.truth.nodes[place];
        let reaches_leader = (0..VOTERS).any(|v| self.voters[v].leads && self.hears[place][v] && self.tells[place][v]);
        let node = &mut self.nodes[place];
        let Some(asker) = node.asker.as_mut() else { return false };
        if reaches_leader && truth.incarnation == node.incarnation {
            asker.learnt(Generation(truth.generation));
        }
        let permitted = asker.permit(now_ms).is_some();
        // Twice a second and when there is news: a replica that lags cannot see that its reports have landed.
        let outbox = self.nodes[place].outbox.clone();
        if now_ms / 500 != self.nodes[place].reported_ms / 500 || outbox != self.nodes[place].reported {
            outbox
                .iter()
                .for_each(|report| self.propose(place, report.clone(), None));
            (self.nodes[place].reported_ms, self.nodes[place].reported) = (now_ms, outbox);
        }
        permitted
            && (self.end_superseded(place)
                || self.thaw(place)
                || self.close(place)
                || self.prepare(place)
                || self.spawn(place))
    }

    fn end_superseded(&mut self, place: usize) -> bool {
        let node = &mut self.nodes[place];
        let Some(work) = node.work else { return false };
        let machine = &node.machine;
        let unknown = (work.epoch, work.attempt) > (machine.epoch, machine.attempt);
        let unwanted = if self.model.revive {
            machine.superseded(work.epoch, work.attempt) || unknown
        } else {
            !machine.current(place, work.epoch, work.attempt)
        };
        if !unwanted {
            return false;
        }
        node.work = None;
        node.outbox.push(Command::Exited {
            node: place,
            epoch: work.epoch,
            attempt: work.attempt,
        });
        if machine.epoch > work.epoch {
            node.outbox.push(Command::Ended {
                node: place,
                epoch: work.epoch,
            });
        }
        if self.truth.current(place, work.epoch, work.attempt) {
            self.violate("P5 current work is killed");
        }
        let present = |m: &crate::machine::Member| m.epoch != work.epoch || m.attempt == work.attempt;
        if (self.truth.epoch, self.truth.attempt) == (work.epoch, work.attempt)
            && self.truth.members.iter().all(present)
        {
            self.violate("Q5 work is killed though nothing has replaced it");
        }
        true
    }

    fn thaw(&mut self, place: usize) -> bool {
        let Some(work) = self.nodes[place].work.filter(|work| !work.runs) else {
            return false;
        };
        if !self.nodes[place].machine.current(place, work.epoch, work.attempt) {
            return false;
        }
        if !self.truth.owns(place, work.epoch, work.attempt) {
            self.violate("P6 a thaw that the log has overruled");
        }
        self.nodes[place].work = Some(Work { runs: true, ..work });
        self.count("thaw");
        self.check_executing();
        true
    }

    /// Reports the end of members of which nothing runs here and nothing will.
    fn close(&mut self, place: usize) -> bool {
        let node = &mut self.nodes[place];
        if node.work.is_some() {
            return false;
        }
        let (epoch, machine) = (node.machine.epoch, &node.machine);
        let mut reports = Vec::new();
        for member in machine
            .members
            .iter()
            .filter(|member| member.node == place && member.open)
        {
            if member.epoch < epoch {
                reports.push(Command::Ended {
                    node: place,
                    epoch: member.epoch,
                });
            } else if member.attempt > 0
                && self.model.bound
                && (member.incarnation != node.incarnation || machine.superseded(epoch, member.attempt))
            {
                reports.push(Command::Exited {
                    node: place,
                    epoch,
                    attempt: member.attempt,
                });
            }
        }
        reports.retain(|report| !node.outbox.contains(report));
        let new = !reports.is_empty();
        node.outbox.extend(reports);
        new
    }

    fn prepare(&mut self, place: usize) -> bool {
        let now_ms = self.node_ms(place);
        let node = &self.nodes[place];
        let machine = &node.machine;
        let mine = machine
            .members
            .iter()
            .any(|m| (m.epoch, m.node, m.open, m.attempt) == (machine.epoch, place, true, 0));
        if !mine || machine.prepared.contains(&place) || node.work.is_some() || !node.outbox.is_empty() {
            return false;
        }
        if now_ms / 500 == self.nodes[place].prepared_ms / 500 {
            return false;
        }
        self.nodes[place].prepared_ms = now_ms;
        let node = &self.nodes[place];
        let machine = &node.machine;
        let (epoch, follows, incarnation) = (machine.epoch, machine.attempt, node.incarnation);
        if self.model.fence_first {
            self.store = self.store.max((epoch, follows + 1));
        }
        self.propose(
            place,
            Command::Prepared {
                node: place,
                epoch,
                follows,
                incarnation,
            },
            None,
        );
        false // The log decides; nothing has moved here.
    }

    fn spawn(&mut self, place: usize) -> bool {
        let node = &mut self.nodes[place];
        let (epoch, attempt) = (node.machine.epoch, node.machine.attempt);
        let bound = node
            .machine
            .members
            .iter()
            .any(|m| (m.epoch, m.node, m.incarnation) == (epoch, place, node.incarnation));
        let fresh = (epoch, attempt) > node.journal && attempt > 0 && node.work.is_none();
        if !fresh || !node.machine.current(place, epoch, attempt) || (self.model.bound && !bound) {
            return false;
        }
        node.work = Some(Work {
            epoch,
            attempt,
            runs: true,
        });
        node.journal = (epoch, attempt);
        if !self.truth.owns(place, epoch, attempt) {
            self.violate("P6 a start that the log has overruled");
        }
        self.started = self.started.max((epoch, attempt));
        self.count(if epoch > 1 {
            "spawn in a later epoch"
        } else {
            "spawn in the first epoch"
        });
        self.check_executing();
        true
    }

    /// Leaders that have applied their own term place what is lost and start what is prepared.
    fn schedule(&mut self) {
        for voter in self
            .voters
            .iter_mut()
            .filter(|voter| voter.leads && voter.applied >= voter.own)
        {
            let machine = &voter.machine;
            let command = if machine.needs_placement() {
                let free = |&place: &usize| machine.nodes[place].status == NodeStatus::Ready;
                let used = |place: &usize| {
                    machine
                        .members
                        .iter()
                        .any(|m| m.node == *place && m.epoch == machine.epoch)
                };
                let mut nodes: Vec<usize> = (0..NODES).filter(free).collect();
                nodes.sort_by_key(|place| used(place));
                nodes.truncate(1 + usize::from(self.gang));
                if nodes.len() < 1 + usize::from(self.gang) {
                    continue;
                }
                Command::Place {
                    epoch: machine.epoch + 1,
                    nodes,
                }
            } else if machine.can_start(self.model) {
                Command::Start {
                    epoch: machine.epoch,
                    attempt: machine.attempt + 1,
                }
            } else {
                continue;
            };
            if voter.log[voter.applied..].iter().all(|entry| entry.1 != command) {
                voter.log.push((voter.term, command));
            }
        }
    }

    // ---- the checks ----

    fn check_executing(&mut self) {
        let running: Vec<(usize, Work)> = (0..NODES)
            .filter_map(|place| Some((place, self.nodes[place].work.filter(|work| work.runs)?)))
            .collect();
        if running
            .windows(2)
            .any(|pair| (pair[0].1.epoch, pair[0].1.attempt) != (pair[1].1.epoch, pair[1].1.attempt))
        {
            self.violate("P1 two attempts execute");
        }
        for (place, work) in running {
            if !self
                .truth
                .members
                .iter()
                .any(|m| (m.open, m.epoch, m.node) == (true, work.epoch, place))
            {
                self.violate("L work of a lost or ended member executes");
            }
        }
    }

    fn violate(&mut self, text: &str) {
        self.violations.push(format!("{text} at {} ms", self.now_ms));
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

fn seen(node: &Node, place: usize) -> Applied {
    let state = node.machine.nodes[place];
    let standing = Standing {
        incarnation: Some(Incarnation(state.incarnation)),
        generation: Generation(state.generation),
        status: state.status,
    };
    Applied {
        index: node.applied as u64,
        standing: Some(standing),
    }
}

fn voter_place(id: NodeId) -> usize {
    id.0 as usize - 1
}

fn node_place(id: NodeId) -> usize {
    id.0 as usize - 11
}
