#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use holdfast_proto::command::Command;
use holdfast_proto::placement::Exit;

use super::*;
use crate::transfer::manifest::newest_verified;
use crate::transfer::replica::tests::{Log, change, state};
use crate::transfer::test_wire::{LEASE, Town, fence};

/// Three nodes of which the first runs the lease; its replica's state can be changed.
struct Scene {
    town: Town,
    state: Arc<Mutex<Arc<State>>>,
    log: Arc<Log>,
    starts: Starts,
    holder: Courier,
    stranger: Courier,
}

impl Scene {
    fn new() -> Self {
        let town = Town::new();
        let (own, holder, stranger) = (town.node(1), town.node(2), town.node(3));
        let shared = Arc::new(Mutex::new(Arc::new(state())));
        let view = shared.clone();
        let log = Arc::new(Log::default());
        let replica = Replica::new(NodeId(1), Arc::new(move || view.lock().unwrap().clone()), log.clone());
        let starts = Starts::new(own, Arc::new(replica), Handle::current());
        Self {
            town,
            state: shared,
            log,
            starts,
            holder,
            stranger,
        }
    }

    fn change(&self, with: impl FnOnce(&mut holdfast_storage::machine::state::Lease)) {
        let mut state = State::clone(&self.state.lock().unwrap());
        change(&mut state, with);
        *self.state.lock().unwrap() = Arc::new(state);
    }

    fn follow(&mut self, runs: &[LocalRun]) {
        let state = self.state.lock().unwrap().clone();
        self.starts.follow(&state, runs);
    }

    fn run(&self) -> LocalRun {
        LocalRun {
            lease: LEASE,
            epoch: Epoch(1),
            attempt: Attempt(1),
            folder: self.town.work(),
        }
    }

    fn committed(&self) -> Vec<u64> {
        let log = self.log.0.lock().unwrap();
        let step = |command: &Command| match command {
            Command::CommitCheckpoint { checkpoint, .. } => Some(checkpoint.step),
            _ => None,
        };
        log.iter().filter_map(|envelope| step(&envelope.command)).collect()
    }

    /// Waits until no watcher is left.
    async fn settle(&mut self, runs: &[LocalRun]) {
        while !self.starts.watching.is_empty() {
            self.follow(runs);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_start_is_watched_until_the_log_says_that_it_is_over() {
    let mut scene = Scene::new();
    let run = scene.run();
    scene.follow(std::slice::from_ref(&run));
    scene.follow(std::slice::from_ref(&run));
    assert_eq!(scene.starts.watching.len(), 1);

    scene.town.checkpoint(10, &[("w", vec![1, 2, 3])]);
    scene.change(|lease| lease.placement.as_mut().unwrap().members[0].run = Run::Exited(Exit::Code(0)));
    scene.settle(&[run]).await;
    assert_eq!(
        scene.committed(),
        [10],
        "what was saved just before the end is not missed"
    );
}

#[tokio::test]
async fn a_start_whose_folder_is_gone_or_that_has_not_begun_is_not_watched() {
    let mut scene = Scene::new();
    let mut run = scene.run();
    run.attempt = Attempt(2);
    scene.follow(std::slice::from_ref(&run));
    assert!(scene.starts.watching.is_empty());
    run.attempt = Attempt(0);
    scene.follow(std::slice::from_ref(&run));
    assert!(scene.starts.watching.is_empty());

    run.attempt = Attempt(1);
    scene.follow(&[run]);
    assert_eq!(scene.starts.watching.len(), 1);
    scene.settle(&[]).await;
}

#[tokio::test]
async fn a_start_is_prepared_by_the_token_first_and_the_saved_state_second() {
    let scene = Scene::new();
    let folder = scene.town.checkpoint(10, &[("w", vec![1, 2, 3])]);
    let old = crate::transfer::wire::CheckpointName {
        lease: LEASE,
        fence: fence(40),
        rank: 0,
        step: 10,
    };
    let saved = scene.stranger.save(old, folder, &[NodeId(2)]).await.unwrap();
    scene.town.kill(3);
    scene.change(|lease| {
        lease.checkpoints.push(saved.clone());
        lease.placement.as_mut().unwrap().restore = Some(saved.clone());
    });

    let into = scene.town.place.path().join("into");
    scene.starts.preparing().prepare(LEASE, fence(42), &into).await.unwrap();

    assert_eq!(newest_verified(&into).unwrap().unwrap().1.manifest.step, 10);
    assert_eq!(scene.holder.store().shown(LEASE).unwrap(), fence(42));
    let late = scene.starts.preparing().prepare(LEASE, fence(41), &into).await;
    assert!(matches!(late, Err(CourierError::Stale { .. })));
}
