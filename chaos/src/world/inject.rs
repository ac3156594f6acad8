//! The fault injector: carries out a plan, step by step.
//!
//! The one rule: a step does what the plan says and nothing else; it draws nothing.

use std::time::Duration;

use super::cluster::Cluster;
use crate::fault::{Fault, Plan, Target, Way};
use crate::net::Weather;
use crate::runtime::{self, Host};
use crate::trace::Kind;

/// Runs the plan to its end, or until something broke; faults that last may outlive it by their span.
pub async fn run(cluster: Cluster, plan: Plan) {
    let began_ns = runtime::true_now_ns();
    for (number, step) in plan.steps.iter().enumerate() {
        let at_ns = began_ns + step.at_ms * 1_000_000;
        runtime::sleep(Duration::from_nanos(at_ns.saturating_sub(runtime::true_now_ns()))).await;
        if cluster.judge.violations() > 0 {
            return;
        }
        runtime::note(Host::WORLD, Kind::Fault, [number as u64, 0, 0]);
        cluster.judge.count(|counts| counts.faults += 1);
        strike(&cluster, step.fault);
    }
    let end_ns = began_ns + plan.span_ms * 1_000_000;
    runtime::sleep(Duration::from_nanos(end_ns.saturating_sub(runtime::true_now_ns()))).await;
}

fn place(cluster: &Cluster, target: Target) -> usize {
    match target {
        Target::Leader => cluster.leader().unwrap_or(0),
        Target::Replica(place) => usize::from(place),
    }
}

fn strike(cluster: &Cluster, fault: Fault) {
    match fault {
        Fault::Kill { target, down_ms } => cluster.crash(place(cluster, target), false, down_ms),
        Fault::PowerLoss { target, down_ms } => cluster.crash(place(cluster, target), true, down_ms),
        Fault::PowerLossInWrite {
            target,
            calls,
            at_sync,
            down_ms,
        } => {
            cluster.arm_power_loss(place(cluster, target), calls, at_sync, down_ms);
        }
        Fault::Pause { target, span_ms } => {
            runtime::pause(
                cluster.machines[place(cluster, target)].host,
                Duration::from_millis(span_ms),
            );
        }
        Fault::ClockRate { target, rate_ppm } => {
            runtime::set_rate(cluster.machines[place(cluster, target)].host, rate_ppm);
        }
        Fault::ClockStep { target, by_ms } => cluster.machines[place(cluster, target)].clock.step(by_ms),
        Fault::Isolate { target, way, span_ms } => isolate(cluster, place(cluster, target), way, span_ms),
        Fault::CutLink { from, to, span_ms } => {
            let host = |place: u8| cluster.machines[usize::from(place)].host;
            cut(cluster, vec![(host(from), host(to))], span_ms);
        }
        Fault::Storm { weather, span_ms } => {
            cluster.network.set_weather(weather);
            let network = cluster.network.clone();
            later(span_ms, move || network.set_weather(Weather::FAIR));
        }
        Fault::SlowDisk {
            target,
            sync_us_max,
            span_ms,
        } => {
            let disk = cluster.machines[place(cluster, target)].disk.clone();
            disk.set_sync_us_max(Some(sync_us_max));
            later(span_ms, move || disk.set_sync_us_max(None));
        }
    }
}

fn isolate(cluster: &Cluster, place: usize, way: Way, span_ms: u64) {
    let host = cluster.machines[place].host;
    let mut links = Vec::new();
    for other in cluster
        .machines
        .iter()
        .map(|machine| machine.host)
        .filter(|other| *other != host)
    {
        if matches!(way, Way::Both | Way::Outward) {
            links.push((host, other));
        }
        if matches!(way, Way::Both | Way::Inward) {
            links.push((other, host));
        }
    }
    cut(cluster, links, span_ms);
}

fn cut(cluster: &Cluster, links: Vec<(Host, Host)>, span_ms: u64) {
    links.iter().for_each(|(from, to)| cluster.network.cut(*from, *to));
    let network = cluster.network.clone();
    later(span_ms, move || {
        links.iter().for_each(|(from, to)| network.mend(*from, *to))
    });
}

fn later(after_ms: u64, undo: impl FnOnce() + Send + 'static) {
    runtime::spawn_on(Host::WORLD, async move {
        runtime::sleep(Duration::from_millis(after_ms)).await;
        undo();
    });
}
