//! What happened, in words: one sentence for each event.
//!
//! A pure function from an event to a sentence, used by `holdfast why`, `holdfast events` and the HTTP interface. The one rule: a
//! sentence says what is in the event and nothing that it does not prove.

use holdfast_proto::condition::Condition;
use holdfast_proto::event::Event;
use holdfast_proto::id::NodeId;
use holdfast_proto::lease::{EndReason, Plan};
use holdfast_proto::placement::{Allocation, Exit};
use holdfast_proto::tenant::Limit;

/// Gives a node's label; `None` when it is not known any more.
pub type NodeLabel<'a> = &'a dyn Fn(NodeId) -> Option<String>;

/// The sentence of an event. `currency` is that of the lease's prices; empty where it is not known.
pub fn sentence(event: &Event, label: NodeLabel<'_>, currency: &str) -> String {
    let named = |node: NodeId| label(node).unwrap_or_else(|| node.to_string());
    let price = |amount: u64| format!("{} {currency}", micros(amount)).trim_end().to_owned();
    lease_sentence(event, &named, &price)
        .or_else(|| placement_sentence(event, &named, &price))
        .or_else(|| node_sentence(event, &named))
        .unwrap_or_else(|| cluster_sentence(event, &named))
}

type Named<'a> = &'a dyn Fn(NodeId) -> String;
type Priced<'a> = &'a dyn Fn(u64) -> String;

fn lease_sentence(event: &Event, named: Named<'_>, price: Priced<'_>) -> Option<String> {
    Some(match event {
        Event::LeaseRequested(requested) => {
            let request = &requested.request;
            let models = match request.models.as_slice() {
                [] => "any model".to_owned(),
                models => models.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
            };
            format!(
                "tenant {} asked for {} of {models} for {}, {}",
                requested.tenant,
                devices(request.devices_min as usize),
                requested.terms.duration,
                plan_word(requested.terms.plan)
            )
        }
        Event::LeaseConditioned { conditions, .. } => {
            let said = conditions.iter().map(|condition| match condition {
                Condition::Share(share) => format!(
                    "{}.{} % of the device is enough; others may have the rest",
                    share.milli / 10,
                    share.milli % 10
                ),
                Condition::Prefer(prefer) => {
                    let weights = prefer.models.iter().chain(&prefer.zones);
                    let weights = weights.map(|weight| format!("{} ({})", weight.name, weight.weight));
                    format!("preferred: {}", weights.collect::<Vec<_>>().join(", "))
                }
            });
            said.collect::<Vec<_>>().join("; ")
        }
        Event::PlacementDeferred { reason, .. } => format!("it waits: {reason}"),
        Event::LeaseActivated { attempt, .. } if attempt.0 > 1 => "it runs again, and is charged for it".to_owned(),
        Event::LeaseActivated { .. } => "it runs, and is charged for it".to_owned(),
        Event::LeaseFrozen { node, .. } => {
            format!(
                "{} cannot be heard; the work counts as frozen, and nothing is charged",
                named(*node)
            )
        }
        Event::LeaseThawed { node, .. } => {
            format!("{} is heard again; the work goes on, and is charged", named(*node))
        }
        Event::LeaseMigrating { reason, .. } => format!("it waits for another place: {reason}"),
        Event::LeaseEnding { reason, .. } => ending(*reason).to_owned(),
        Event::LeaseEnded { reason, exit_code, .. } => match exit_code {
            Some(code) => format!("it has ended: {}, exit code {code}", end_sentence(*reason)),
            None => format!("it has ended: {}", end_sentence(*reason)),
        },
        Event::LeaseRenewed { duration, .. } => {
            format!("more time was granted: it is {duration} long from its first start")
        }
        Event::LeaseCharged(line) => {
            let charged = holdfast_proto::time::Span(line.until.since(line.from).0.saturating_sub(line.unpaid.0));
            format!(
                "{} charged for {charged} at {} an hour",
                price(line.amount_micros),
                price(line.micros_per_hour)
            )
        }
        Event::CheckpointCommitted { checkpoint, .. } => {
            let holders: Vec<String> = checkpoint.holders.iter().map(|node| named(*node)).collect();
            format!(
                "its state at step {} is saved, held by {}",
                checkpoint.step,
                list(&holders)
            )
        }
        _ => return None,
    })
}

fn placement_sentence(event: &Event, named: Named<'_>, price: Priced<'_>) -> Option<String> {
    Some(match event {
        Event::PlacementCommitted {
            epoch,
            token,
            allocations,
            restore,
            micros_per_hour,
            ..
        } => {
            let resumed = restore
                .as_ref()
                .map_or(String::new(), |saved| format!(", to resume from step {}", saved.step));
            format!(
                "it was given {} at {} an hour (epoch {epoch}, token {token}){resumed}",
                list(
                    &allocations
                        .iter()
                        .map(|member| place(member, named))
                        .collect::<Vec<_>>()
                ),
                price(*micros_per_hour)
            )
        }
        Event::AllocationPrepared { node, .. } => format!("{} is ready to start it", named(*node)),
        Event::StartAccepted { attempt, .. } => format!("every node of it is ready: attempt {attempt} starts"),
        Event::AllocationStarted { node, attempt, .. } => format!("it runs on {} (attempt {attempt})", named(*node)),
        Event::AllocationExited { node, exit, .. } => format!("on {} it {}", named(*node), ended_how(exit)),
        Event::AttemptEnded { attempt, .. } => {
            format!("attempt {attempt} is over; the next one starts in the same place")
        }
        Event::LeasePreempted { by, .. } => format!("it is spot and gives its devices up to {by}"),
        Event::LeaseEvicted { node, .. } => format!("it has to leave {}, which is drained", named(*node)),
        Event::AllocationEnded { node, epoch, .. } => {
            format!(
                "nothing of it (epoch {epoch}) is left on {}; its devices are free",
                named(*node)
            )
        }
        _ => return None,
    })
}

fn node_sentence(event: &Event, named: Named<'_>) -> Option<String> {
    Some(match event {
        Event::NodeJoined { spec, .. } => {
            format!("node {} joined zone {} from {}", spec.label, spec.zone, spec.address)
        }
        Event::NodeRegistered { node, .. } => format!("the daemon of {} has started", named(*node)),
        Event::InventoryReported { node, inventory } => {
            format!("{} reported {}", named(*node), devices(inventory.devices.len()))
        }
        Event::NodeUnreachable { node, .. } => format!("{} cannot be heard", named(*node)),
        Event::NodeLost { node, .. } => format!(
            "the lease of {} has run out: its work is stopped or frozen",
            named(*node)
        ),
        Event::NodeReturned { node, work, .. } => {
            format!("{} is heard again, with {} of its leases", named(*node), work.len())
        }
        Event::NodeCordoned {
            node,
            cordoned: true,
            reason,
        } => match reason.is_empty() {
            true => format!("{} takes no new work", named(*node)),
            false => format!("{} takes no new work: {reason}", named(*node)),
        },
        Event::NodeCordoned { node, .. } => format!("{} takes work again", named(*node)),
        Event::NodeDraining { node, until } => {
            format!("{} is drained: leases may go on there until {until}", named(*node))
        }
        Event::NodeDrained { node } => format!("{} is drained: nothing is left on it", named(*node)),
        Event::NodeRemoved { node } => format!("{} was removed", named(*node)),
        Event::NodeQuieted { node, .. } => format!("{} announced that it will be silent for a while", named(*node)),
        Event::DeviceGraded { node, edge } => {
            let grade = format!("{:?}", edge.grade).to_lowercase();
            format!("device {} of {} is {grade}: {}", edge.device, named(*node), edge.reason)
        }
        Event::RollupReported { node, rollups } => {
            format!("{} reported a minute of {}", named(*node), devices(rollups.len()))
        }
        Event::ClockSuspected { node, offset_ms } => {
            format!("the clock of {} is {offset_ms} ms off the others'", named(*node))
        }
        _ => return None,
    })
}

fn cluster_sentence(event: &Event, named: Named<'_>) -> String {
    match event {
        Event::ClusterInitialized { cluster, era } => format!("cluster {cluster} began, era {era}"),
        Event::VotersChanged { voters } => {
            format!(
                "voters are {}",
                list(&voters.iter().map(|node| named(*node)).collect::<Vec<_>>())
            )
        }
        Event::JoinTokenCreated(token) => format!("join token {} was made", token.token),
        Event::AccessTokenCreated(token) => format!("access token {} was made", token.token),
        Event::TokenRevoked { token } => format!("token {token} was revoked"),
        Event::TenantSet { tenant, quota } => {
            format!("tenant {tenant} may hold {}", allowance(Some(quota.devices_max)))
        }
        Event::LimitsSet { tenant, limits } => format!("limits of tenant {tenant}: {}", limited(limits)),
        Event::TariffSet(tariff) => format!("prices of version {} are in force", tariff.version),
        Event::StateHashRecorded { at, .. } => format!("the state up to {at} was hashed"),
        Event::MachineLevelRaised { level } => format!("rules of level {level} are in force"),
        Event::TimeSet { time } => format!("the cluster's time was set to {time}"),
        Event::Annotated { subject, text } => format!("note on {subject}: {text}"),
        Event::SubscriptionCreated(made) => {
            format!("subscription {} reads on after {}", made.key.subscription, made.after)
        }
        Event::EventsAcknowledged { key, through } => {
            format!("subscription {} is done up to {through}", key.subscription)
        }
        Event::SubscriptionRemoved { key } => format!("subscription {} was removed", key.subscription),
        Event::RequestRefused { rejection } => format!("a request was refused: {rejection}"),
        other => other.name().replace('-', " "),
    }
}

/// How a member ended, as the end of a sentence.
pub fn ended_how(exit: &Exit) -> String {
    match exit {
        Exit::Code(0) => "finished".to_owned(),
        Exit::Code(code) => format!("exited with code {code}"),
        Exit::Signal(signal) => format!("was ended by signal {signal}"),
        Exit::OutOfMemory => "ran out of its memory limit".to_owned(),
        Exit::LaunchFailed(reason) => format!("could not be started: {reason}"),
        Exit::NotStarted => "never started".to_owned(),
        Exit::Stopped => "was stopped".to_owned(),
        Exit::Vanished => "is gone: the machine restarted or its processes vanished".to_owned(),
    }
}

/// What comes of the reason for which a lease has to end.
fn ending(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Completed => "the work is done",
        EndReason::Failed => "the work has failed",
        EndReason::Released => "it was given back: what still runs is stopped",
        EndReason::Expired => {
            "its time is up: what still runs is stopped (`holdfast renew` gives more time while it runs)"
        }
        EndReason::Preempted => "a lease with a better right takes its devices: what still runs is stopped",
        EndReason::Capped => "its cost has reached the cap: what still runs is stopped",
    }
}

/// Why a lease is over, in words.
pub fn end_sentence(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Completed => "completed",
        EndReason::Failed => "failed",
        EndReason::Released => "released",
        EndReason::Expired => "its time was up",
        EndReason::Preempted => "a lease with a better right took its devices",
        EndReason::Capped => "its cost reached the cap",
    }
}

/// A price class, in words.
pub fn plan_word(plan: Plan) -> &'static str {
    match plan {
        Plan::OnDemand => "on-demand",
        Plan::Reserved => "reserved",
        Plan::Spot => "spot",
    }
}

/// An amount of micro-units with its point, at least two decimals and no rounding.
pub fn micros(amount: u64) -> String {
    let fraction = format!("{:06}", amount % 1_000_000);
    let kept = fraction.trim_end_matches('0').len().max(2);
    format!("{}.{}", amount / 1_000_000, &fraction[..kept])
}

fn place(member: &Allocation, named: Named<'_>) -> String {
    format!("{} on {}", devices(member.devices.len()), named(member.node))
}

fn devices(count: usize) -> String {
    match count {
        1 => "1 device".to_owned(),
        count => format!("{count} devices"),
    }
}

/// How many devices a quota allows, in words.
pub fn allowance(devices_max: Option<u32>) -> String {
    match devices_max {
        None | Some(u32::MAX) => "any number of devices".to_owned(),
        Some(0) => "no devices".to_owned(),
        Some(count) => devices(count as usize),
    }
}

/// A tenant's limits, in words.
fn limited(limits: &[Limit]) -> String {
    let words = limits.iter().map(|limit| match limit {
        Limit::Model(limit) => format!("{} of {}", allowance(Some(limit.devices_max)), limit.model),
        Limit::Spend(limit) => match limit.micros_per_hour_max {
            Some(most) => format!("{} an hour", micros(most)),
            None => "any amount an hour".to_owned(),
        },
    });
    match words.collect::<Vec<_>>() {
        words if words.is_empty() => "none".to_owned(),
        words => words.join(", "),
    }
}

fn list(items: &[String]) -> String {
    match items {
        [] => "nobody".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::id::{Attempt, Epoch, LeaseId};

    use super::*;

    fn told(event: Event) -> String {
        sentence(&event, &|node| (node == NodeId(1)).then(|| "n1".to_owned()), "USD")
    }

    #[test]
    fn sentences_name_nodes_by_their_labels_and_strangers_by_their_ids() {
        let started = |node| Event::AllocationStarted {
            lease: LeaseId::from_index(3),
            epoch: Epoch(1),
            attempt: Attempt(1),
            node,
        };
        assert_eq!(told(started(NodeId(1))), "it runs on n1 (attempt 1)");
        assert_eq!(told(started(NodeId(2))), "it runs on n-0000000000000002 (attempt 1)");
    }

    #[test]
    fn an_end_tells_its_reason_and_its_code() {
        let ended = |exit_code| Event::LeaseEnded {
            lease: LeaseId::from_index(3),
            reason: EndReason::Failed,
            exit_code,
        };
        assert_eq!(told(ended(Some(3))), "it has ended: failed, exit code 3");
        assert_eq!(told(ended(None)), "it has ended: failed");
    }

    #[test]
    fn amounts_keep_every_digit_that_counts() {
        for (amount, text) in [
            (0, "0.00"),
            (1, "0.000001"),
            (2_500_000, "2.50"),
            (60_000_000, "60.00"),
            (123_456, "0.123456"),
        ] {
            assert_eq!(micros(amount), text);
        }
        assert_eq!(micros(u64::MAX), "18446744073709.551615");
    }
}
