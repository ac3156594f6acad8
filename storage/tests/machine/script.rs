//! Plays a script: applies its lines and writes what they were decided into under them.
//!
//! Lines are `[t=SECONDS] command key=value …`. Besides the commands by their names there are: `cluster` (a ready
//! cluster; `shown` shows its events), `run lease=L1` (prepares and starts all members), `twin key=value` (the last
//! refused command again, with one value changed; it must be accepted), `fresh` (an empty machine), `again` (the last
//! line's envelope once more), `free` and `show lease=L1` (what the views say), `subscribe-many`
//! (subscriptions until an owner has so many).

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;

use holdfast_proto::command::Envelope;
use holdfast_proto::event::Event;
use holdfast_proto::id::Incarnation;
use holdfast_storage::machine::state::Run;
use holdfast_storage::machine::view::Want;
use holdfast_storage::machine::{Applied, Machine, State, invariant};
use serde_json::Value;

use crate::words::{Words, millis};
use crate::world::{World, tenant_token};

/// What the scripts have spoken of.
#[derive(Default)]
pub struct Coverage {
    pub commands: BTreeSet<String>,
    pub events: BTreeSet<String>,
    pub rejections: BTreeSet<String>,
    /// Codes whose refused command was accepted with one value changed.
    pub twins: BTreeSet<String>,
}

struct Player<'a> {
    world: World,
    coverage: &'a mut Coverage,
    refused: Option<(Words, String)>,
    last: Option<Envelope>,
    out: String,
    stream: blake3::Hasher,
}

/// Plays a script. Returns it as it should read, and a digest of the bytes of its events.
pub fn play(text: &str, coverage: &mut Coverage) -> Result<(String, String), String> {
    let mut player = Player {
        world: World::default(),
        coverage,
        refused: None,
        last: None,
        out: String::new(),
        stream: blake3::Hasher::new(),
    };
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("  ") {
            continue; // An expectation, written anew below its command.
        }
        player.out.push_str(line);
        player.out.push('\n');
        if !line.is_empty() && !line.starts_with('#') {
            player.line(line).map_err(|error| format!("line {}: {error}", at + 1))?;
        }
    }
    verify(&player.world)?;
    Ok((player.out, player.stream.finalize().to_hex().to_string()))
}

impl Player<'_> {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words = Words::parse(line)?;
        if let Some(at) = words.opt("t") {
            self.world.now_ms = millis(at).ok_or(format!("t={at} is not a time"))?;
        }
        match words.verb.as_str() {
            "cluster" => return self.cluster(&words),
            "fresh" => {
                verify(&self.world)?;
                self.world = World::default();
                return Ok(());
            }
            "run" => return self.run(&words),
            "free" => return self.free(),
            "subscribe-many" => return self.subscribe_many(&words),
            "show" => return self.show(&words),
            "again" => {
                let envelope = self.last.clone().ok_or("nothing to repeat")?;
                self.apply(&envelope)?;
                return Ok(());
            }
            "twin" => {
                let (refused, code) = self.refused.clone().ok_or("nothing was refused before this twin")?;
                if words.values.len() > 1 {
                    return Err("a twin changes one value".to_owned());
                }
                let changed = std::mem::replace(&mut words, refused);
                words.values.extend(changed.values);
                let applied = self.command(&words)?;
                if let Err(rejection) = applied.outcome {
                    return Err(format!("the twin was refused too: {rejection}"));
                }
                self.coverage.twins.insert(code);
                return Ok(());
            }
            _ => {}
        }
        let applied = self.command(&words)?;
        if let Err(rejection) = applied.outcome {
            self.refused = Some((words, rejection.code().to_owned()));
        }
        Ok(())
    }

    fn command(&mut self, words: &Words) -> Result<Applied, String> {
        let envelope = self.world.envelope(words)?;
        self.apply(&envelope)
    }

    fn apply(&mut self, envelope: &Envelope) -> Result<Applied, String> {
        let applied = self.world.apply(envelope);
        self.last = Some(envelope.clone());
        self.coverage.commands.insert(envelope.command.name().to_owned());
        for record in &applied.records {
            self.stream.update(&record.encode());
            self.coverage.events.insert(record.event.name().to_owned());
            if let Event::LeaseRequested(requested) = &record.event {
                self.world.leases.push(requested.lease);
            }
        }
        let broken = invariant::check(self.world.machine.state());
        if !broken.is_empty() {
            return Err(format!("{broken:?}"));
        }
        match &applied.outcome {
            Err(rejection) => {
                self.coverage.rejections.insert(rejection.code().to_owned());
                self.say(&format!("! {}: {rejection}", rejection.code()));
            }
            Ok(events) if events.is_empty() => self.say("nothing new"),
            Ok(events) if applied.records.is_empty() => {
                self.say(&format!("answered as entry {} was", applied.index));
                events.iter().for_each(|event| self.say(&render(event)));
            }
            Ok(events) => events.iter().for_each(|event| self.say(&render(event))),
        }
        Ok(applied)
    }

    /// Writes an expectation, with the script's names instead of ids.
    fn say(&mut self, text: &str) {
        let mut text = text.to_owned();
        for (at, lease) in self.world.leases.iter().enumerate().rev() {
            text = text.replace(&lease.to_string(), &format!("L{}", at + 1));
        }
        for (at, label) in self.world.labels.iter().enumerate() {
            let node = holdfast_proto::id::NodeId(at as u64 + 1);
            text = text.replace(&node.to_string(), label);
            for number in 0..16 {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&node.0.to_be_bytes());
                bytes[15] = number;
                let device = holdfast_proto::id::DeviceId(bytes);
                text = text.replace(&device.to_string(), &format!("{label}.{number}"));
            }
        }
        writeln!(self.out, "  {text}").unwrap();
    }

    /// `cluster a/n1:8xh100 b/n2:8xh100 tenant=blue:16,green:8 prices=h100:24 voters=n1`
    fn cluster(&mut self, words: &Words) -> Result<(), String> {
        let shown = words.values.contains_key("shown");
        let length = self.out.len();
        let prices = words.opt("prices").unwrap_or("a100:12,h100:24,rtx4090:1");
        for (at, text) in words.bare.iter().enumerate() {
            let (place, devices) = text.split_once(':').ok_or("cluster ZONE/LABEL:DEVICES …")?;
            let label = place.split_once('/').ok_or("cluster ZONE/LABEL:DEVICES …")?.1;
            if at == 0 {
                self.accept(&format!("init-cluster node={place} prices={prices}"))?;
            } else {
                self.accept(&format!("create-join-token token={}", 100 + at))?;
                self.accept(&format!("admit-node node={place} token={}", 100 + at))?;
            }
            self.accept(&format!("register-node node={label} incarnation=1"))?;
            self.accept(&format!("report-inventory node={label} devices={devices}"))?;
        }
        for tenant in words.opt("tenants").unwrap_or("blue:64,green:64").split(',') {
            let (tenant, quota) = tenant.split_once(':').ok_or("tenants=NAME:QUOTA")?;
            self.accept(&format!("set-tenant tenant={tenant} devices={quota}"))?;
            let token = tenant_token(tenant).0;
            self.accept(&format!("create-access-token token={token} tenant={tenant}"))?;
        }
        if !shown {
            self.out.truncate(length);
        }
        Ok(())
    }

    /// Makes subscriptions until an owner has so many.
    fn subscribe_many(&mut self, words: &Words) -> Result<(), String> {
        let (tenant, until) = (words.get("tenant")?, words.number("until")?);
        let length = self.out.len();
        let owned = self.world.machine.state().subscriptions.keys();
        let owned = owned
            .filter(|key| key.tenant.as_ref().is_some_and(|owner| owner.as_str() == tenant))
            .count() as u64;
        for at in owned..until {
            self.accept(&format!("create-subscription subscription=many-{at} tenant={tenant}"))?;
        }
        self.out.truncate(length);
        Ok(())
    }

    fn accept(&mut self, line: &str) -> Result<(), String> {
        let applied = self.command(&Words::parse(line)?)?;
        applied
            .outcome
            .map(drop)
            .map_err(|rejection| format!("`{line}` was refused: {rejection}"))
    }

    /// Prepares and starts every member of a lease's placement, with its node's present daemon.
    fn run(&mut self, words: &Words) -> Result<(), String> {
        let id = self.world.lease(words)?;
        let t = words.opt("t").map(|t| format!("t={t} ")).unwrap_or_default();
        for step in ["prepare", "start"] {
            let lease = self
                .world
                .machine
                .state()
                .leases
                .get(&id)
                .cloned()
                .ok_or("no such lease")?;
            let placement = lease.placement.clone().ok_or("the lease is not placed")?;
            let (name, epoch, attempt) = (words.get("lease")?, placement.epoch, placement.attempt);
            for member in &placement.members {
                let label = self.world.labels[usize::try_from(member.allocation.node.0).unwrap() - 1].clone();
                let node = self.world.machine.state().nodes.get(&member.allocation.node).cloned();
                let Incarnation(incarnation) = node.and_then(|node| node.incarnation).unwrap_or_default();
                let line = match (step, &member.run) {
                    ("prepare", _) => format!(
                        "{t}report-prepared lease={name} epoch={epoch} follows={attempt} node={label} incarnation={incarnation}"
                    ),
                    (_, Run::Accepted(_)) => {
                        format!("{t}report-started lease={name} epoch={epoch} attempt={attempt} node={label}")
                    }
                    _ => continue,
                };
                self.accept(&line)?;
            }
        }
        Ok(())
    }

    fn free(&mut self) -> Result<(), String> {
        let state = self.world.machine.state().clone();
        for node in state.present_nodes() {
            let free = state.free_devices(node.spec.node).count();
            let left = state.machine_left(node, None);
            let label = &node.spec.label;
            self.say(&format!(
                "{label} free={free} cpu={} memory={}",
                left.cpu_milli, left.memory_mib
            ));
        }
        Ok(())
    }

    fn show(&mut self, words: &Words) -> Result<(), String> {
        let id = self.world.lease(words)?;
        let state = self.world.machine.state().clone();
        let Some(lease) = state.leases.get(&id) else {
            self.say("gone");
            return Ok(());
        };
        let bill = state.bill(lease, holdfast_proto::time::Timestamp(self.world.now_ms));
        let status = serde_json::to_string(&lease.status).map_err(|error| error.to_string())?;
        self.say(&format!(
            "status={} epoch={} cost={}",
            status.replace('"', ""),
            lease.epoch,
            bill.total_micros
        ));
        for node in state.present_nodes() {
            for assignment in state
                .assignments(node.spec.node)
                .iter()
                .filter(|assignment| assignment.lease.id() == id)
            {
                let want = match &assignment.want {
                    Want::Prepare { follows } => format!("prepare after {follows}"),
                    Want::Wait => "wait".to_owned(),
                    Want::Start { incarnation } => format!("start by {}", incarnation.0),
                    Want::Run => "run".to_owned(),
                    Want::Stop { .. } => "stop".to_owned(),
                };
                self.say(&format!(
                    "{} epoch={} wants: {want}",
                    node.spec.label, assignment.placement.epoch
                ));
            }
        }
        Ok(())
    }
}

/// Checks that replaying the log, folding the stream and reading the encoded state all give the same.
fn verify(world: &World) -> Result<(), String> {
    let state = world.machine.state();
    let mut replayed = Machine::default();
    for (index, envelope) in &world.log {
        let frame = envelope.encode();
        let envelope = Envelope::decode(&frame).map_err(|error| error.to_string())?;
        replayed.apply(*index, &envelope);
    }
    if replayed.state() != state || replayed.state().hash() != state.hash() {
        return Err("replaying the log gives another state".to_owned());
    }
    let mut folded = State::default();
    world.records.iter().for_each(|record| folded.fold(record));
    if folded.hash() != state.hash() {
        return Err("folding the public stream gives another state".to_owned());
    }
    let decoded = State::decode(&state.encode()).map_err(|error| error.to_string())?;
    if decoded != *state || decoded.hash() != state.hash() {
        return Err("the decoded state is another".to_owned());
    }
    Ok(())
}

/// Writes an event as its name and its fields, the bulky ones shortened.
pub fn render(event: &Event) -> String {
    let mut value = serde_json::to_value(event).unwrap();
    let fields = value.as_object_mut().unwrap();
    let name = fields.remove("type").unwrap();
    for bulky in [
        "terms",
        "workload",
        "kind",
        "label",
        "boot",
        "address",
        "secret",
        "inventory",
        "rollups",
        "hash",
    ] {
        fields.remove(bulky);
    }
    let mut out = name.as_str().unwrap().to_owned();
    for (key, value) in fields.iter() {
        match value {
            Value::Null => {}
            value => write!(out, " {key}={}", short(value)).unwrap(),
        }
    }
    out
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => format!("[{}]", all.iter().map(short).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !value.is_null());
            let parts: Vec<String> = kept.map(|(key, value)| format!("{key}={}", short(value))).collect();
            format!("{{{}}}", parts.join(" "))
        }
        value => value.to_string(),
    }
}
