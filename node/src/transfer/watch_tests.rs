#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::fs;
use std::sync::Mutex;

use holdfast_proto::rejection::Rejection;

use super::*;
use crate::transfer::test_wire::{LEASE, Town, fence};

/// Answers in the order that a test gives, then with yes; remembers what was proposed.
#[derive(Default)]
struct Log {
    answers: Mutex<VecDeque<Outcome>>,
    proposed: Mutex<Vec<Checkpoint>>,
    count: watch::Sender<usize>,
}

impl Commits for Log {
    fn targets(&self, _: LeaseId) -> Vec<NodeId> {
        vec![NodeId(2)]
    }

    fn commit(&self, lease: LeaseId, with: Fence, checkpoint: Checkpoint) -> BoxFuture<'_, Outcome> {
        assert_eq!((lease, with), (LEASE, fence(42)));
        self.proposed.lock().unwrap().push(checkpoint);
        self.count.send_modify(|count| *count += 1);
        let applied = Outcome::Applied {
            index: 1,
            events: Vec::new(),
        };
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or(applied);
        Box::pin(std::future::ready(answer))
    }
}

impl Log {
    fn steps(&self) -> Vec<u64> {
        self.proposed
            .lock()
            .unwrap()
            .iter()
            .map(|checkpoint| checkpoint.step)
            .collect()
    }

    async fn wait_for(&self, count: usize) {
        self.count.subscribe().wait_for(|seen| *seen >= count).await.unwrap();
    }
}

struct Scene {
    town: Town,
    log: Arc<Log>,
    holder: Courier,
    ended: watch::Sender<bool>,
    running: tokio::task::JoinHandle<WatchEnd>,
}

impl Scene {
    /// A watcher over a folder in which these steps are complete already.
    fn new(before: &[u64], restored: Option<u64>, answers: Vec<Outcome>) -> Self {
        let town = Town::new();
        for step in before {
            town.checkpoint(*step, &content(*step));
        }
        let (maker, holder) = (town.node(1), town.node(2));
        let log = Arc::new(Log {
            answers: Mutex::new(answers.into()),
            ..Log::default()
        });
        let watched = Watched {
            lease: LEASE,
            fence: fence(42),
            rank: 0,
            folder: town.work(),
            restored,
            look_every: Duration::from_millis(20),
        };
        let (ended, when_ended) = watch::channel(false);
        let running = tokio::spawn(Watcher::new(maker, log.clone(), watched).run(when_ended));
        Self {
            town,
            log,
            holder,
            ended,
            running,
        }
    }

    async fn end(self) -> (Vec<u64>, WatchEnd) {
        self.ended.send_replace(true);
        let end = self.running.await.unwrap();
        (self.log.steps(), end)
    }
}

fn content(step: u64) -> Vec<(&'static str, Vec<u8>)> {
    vec![("w", step.to_be_bytes().to_vec())]
}

#[tokio::test]
async fn a_new_checkpoint_is_held_elsewhere_before_it_is_proposed() {
    let scene = Scene::new(&[], None, Vec::new());
    scene.town.checkpoint(10, &content(10));
    scene.log.wait_for(1).await;
    let proposed = scene.log.proposed.lock().unwrap()[0].clone();
    assert_eq!(proposed.holders, [NodeId(1), NodeId(2)]);
    assert!(scene.holder.store().find(LEASE, proposed.manifest).unwrap().is_some());
    assert_eq!(scene.end().await, (vec![10], WatchEnd::Finished));
}

#[tokio::test]
async fn the_last_checkpoint_before_the_end_is_not_missed() {
    let scene = Scene::new(&[], None, Vec::new());
    scene.town.checkpoint(10, &content(10));
    assert_eq!(scene.end().await, (vec![10], WatchEnd::Finished));
}

#[tokio::test]
async fn the_newest_comes_first_and_what_was_restored_is_not_saved_again() {
    let scene = Scene::new(&[10, 20, 30], Some(10), Vec::new());
    assert_eq!(scene.end().await, (vec![30], WatchEnd::Finished));
    let scene = Scene::new(&[10], Some(10), Vec::new());
    assert_eq!(scene.end().await, (vec![], WatchEnd::Finished));
}

#[tokio::test]
async fn an_unknown_outcome_is_proposed_again_and_a_refused_one_is_not() {
    let unknown = Outcome::Unknown {
        reason: "no leader".into(),
    };
    let refused = Outcome::Refused {
        rejection: Rejection::CheckpointStale {
            lease: LEASE,
            given: 10,
            committed: 10,
        },
        index: 5,
    };
    let scene = Scene::new(&[10], None, vec![unknown.clone(), unknown, refused]);
    assert_eq!(scene.end().await, (vec![10, 10, 10], WatchEnd::Finished));
}

#[tokio::test]
async fn an_unsound_folder_is_passed_over_for_the_one_before_and_does_not_block_the_next() {
    let scene = Scene::new(&[10], None, Vec::new());
    scene.log.wait_for(1).await;
    let bend = |folder: &Path| fs::write(folder.join("w"), b"unsound!").unwrap();
    scene.town.checkpoint_bent(20, &content(20), bend);
    scene.town.checkpoint(15, &content(15));
    scene.log.wait_for(2).await;
    scene.town.checkpoint(30, &content(30));
    scene.log.wait_for(3).await;
    let (steps, end) = scene.end().await;
    assert_eq!((steps[0], steps[2], end), (10, 30, WatchEnd::Finished));
    assert!(steps[1] == 15, "{steps:?}");
}

#[tokio::test]
async fn a_start_that_is_over_saves_nothing_more() {
    let scene = Scene::new(&[], None, Vec::new());
    scene.holder.store().show(LEASE, fence(50)).unwrap();
    scene.town.checkpoint(10, &content(10));
    assert_eq!(scene.running.await.unwrap(), WatchEnd::Stale);
    assert!(scene.log.steps().is_empty());
}

#[tokio::test]
async fn folders_that_are_not_complete_are_not_looked_at() {
    let scene = Scene::new(&[10], None, Vec::new());
    fs::create_dir_all(scene.town.work().join("step-11")).unwrap();
    fs::create_dir_all(scene.town.work().join("step-12.tmp")).unwrap();
    fs::write(scene.town.work().join("step-13"), b"a file").unwrap();
    assert_eq!(scene.end().await, (vec![10], WatchEnd::Finished));
}
