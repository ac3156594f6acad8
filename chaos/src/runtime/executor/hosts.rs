//! What the executor does with whole hosts: their clocks, their pauses, and their deaths.
//!
//! The one rule: a host that dies takes all of its tasks with it at one instant, and none of them starts another on
//! its way out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::task::Task;
use super::{Due, Host, Simulation, TimerKey};
use crate::random::Stream;
use crate::runtime::clock::{HostClock, Instant, TRUE_RATE_PPM};
use crate::trace::Kind;

pub(super) struct HostState {
    pub(super) clock: HostClock,
    pub(super) draws: Stream,
    pub(super) paused_until_ns: u64,
    pub(super) parked: Vec<Arc<Task>>,
    pub(super) tasks: BTreeMap<u64, Arc<Task>>,
}

impl Simulation {
    pub(super) fn with_host<T>(&self, host: Host, body: impl FnOnce(&mut HostState) -> T) -> T {
        let mut hosts = self.hosts.borrow_mut();
        let state = hosts.entry(host).or_insert_with(|| {
            let mut draws = self.root.numbered("host", &[host.0]);
            // Hosts boot minutes to a day before the simulation starts, so that an instant of one host means nothing
            // on another, and code that mixes them up shows.
            let booted_ns = if host == Host::WORLD {
                0
            } else {
                1_000_000_000 * draws.between(600, 86_400)
            };
            HostState {
                clock: HostClock::starting_at(booted_ns),
                draws,
                paused_until_ns: 0,
                parked: Vec::new(),
                tasks: BTreeMap::new(),
            }
        });
        body(state)
    }

    pub(crate) fn local_now(&self, host: Host) -> Instant {
        let now_ns = self.now_ns();
        self.with_host(host, |state| Instant(state.clock.local(now_ns)))
    }

    pub(crate) fn draw(&self, host: Host) -> u64 {
        self.with_host(host, |state| state.draws.next())
    }

    /// Drops every task of a host, as `kill -9` does; returns how many there were.
    pub(crate) fn kill(&self, host: Host) -> usize {
        assert!(host != Host::WORLD, "the simulation cannot kill itself");
        let (tasks, parked) = self.with_host(host, |state| {
            state.paused_until_ns = 0;
            (std::mem::take(&mut state.tasks), std::mem::take(&mut state.parked))
        });
        self.note(host, Kind::Kill, [tasks.len() as u64, 0, 0]);
        drop(parked);
        self.drop_tasks(host, &tasks);
        tasks.len()
    }

    fn drop_tasks(&self, host: Host, tasks: &BTreeMap<u64, Arc<Task>>) {
        // All are dead before the first is dropped, for dropping one wakes others.
        tasks.values().for_each(|task| task.dead.store(true, SeqCst));
        let (current, dropping) = (self.current.replace(host), self.dropping.replace(true));
        tasks.values().for_each(|task| drop(task.take_body()));
        self.current.set(current);
        self.dropping.set(dropping);
    }

    /// Stops a host for a while, as SIGSTOP does: its clock goes on, and its timers are late.
    pub(crate) fn pause(&self, host: Host, duration: Duration) {
        assert!(host != Host::WORLD, "the simulation cannot pause itself");
        let pause_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = self.now_ns().saturating_add(pause_ns);
        self.with_host(host, |state| {
            state.paused_until_ns = state.paused_until_ns.max(until_ns)
        });
        let key = TimerKey {
            at_ns: until_ns,
            serial: self.next_serial(),
        };
        self.timers.borrow_mut().insert(key, Due::Resume(host));
        self.note(host, Kind::Pause, [until_ns, 0, 0]);
    }

    /// Changes the rate of a host's clock, and lets its timers count by the new one.
    pub(crate) fn set_rate(&self, host: Host, rate_ppm: u64) {
        assert!(
            host != Host::WORLD || rate_ppm == TRUE_RATE_PPM,
            "the simulation's own clock runs true"
        );
        let now_ns = self.now_ns();
        self.with_host(host, |state| state.clock.set_rate(now_ns, rate_ppm));
        self.note(host, Kind::Rate, [rate_ppm, 0, 0]);
        let mut timers = self.timers.borrow_mut();
        let (moved, kept) = std::mem::take(&mut *timers)
            .into_iter()
            .partition(|(_, due)| matches!(due, Due::Wake(of, _) if *of == host));
        *timers = kept;
        drop(timers);
        let moved: BTreeMap<TimerKey, Due> = moved;
        moved.into_values().for_each(|due| self.fire(due));
    }

    pub(super) fn park_if_paused(&self, task: &Arc<Task>) -> bool {
        if task.host == Host::WORLD {
            return false;
        }
        let now_ns = self.now_ns();
        self.with_host(task.host, |state| {
            let paused = state.paused_until_ns > now_ns;
            if paused {
                state.parked.push(task.clone());
            }
            paused
        })
    }

    pub(super) fn tear_down(&self) {
        let hosts: Vec<Host> = self.hosts.borrow().keys().copied().collect();
        for host in hosts {
            let tasks = self.with_host(host, |state| std::mem::take(&mut state.tasks));
            self.drop_tasks(host, &tasks);
        }
    }
}
