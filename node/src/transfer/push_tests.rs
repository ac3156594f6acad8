#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use bytes::Bytes;
use holdfast_proto::id::{Attempt, Digest, Epoch, Era, FencingToken, LeaseId, NodeId};

use super::*;
use crate::net::Refusal;
use crate::transfer::manifest::{MANIFEST_NAME, Manifest, ManifestFile, digest_of, step_name};
use crate::transfer::receive::{Access, Permission, Receiver};
use crate::transfer::store::Store;

struct Everyone;

impl Access for Everyone {
    fn may_push(&self, _: NodeId, _: LeaseId, _: Fence) -> Permission {
        Permission::Granted
    }

    fn may_read(&self, _: NodeId, _: LeaseId) -> Permission {
        Permission::Granted
    }
}

/// A sender's folder and a receiver's store, with a wire between them that a test may cut or bend.
struct Pair {
    place: tempfile::TempDir,
    store: Arc<Store>,
    receiver: Receiver,
    read: Arc<ReadManifest>,
    name: CheckpointName,
    /// Bytes of file content that went over the wire.
    sent: u64,
}

fn fence(index: u64, attempt: u32) -> Fence {
    Fence {
        token: FencingToken { era: Era(0), index },
        epoch: Epoch(1),
        attempt: Attempt(attempt),
    }
}

fn content(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

impl Pair {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(place.path().join("store")).unwrap());
        let receiver = Receiver::new(store.clone(), Arc::new(Everyone));
        let mut pair = Self {
            place,
            store,
            receiver,
            read: Arc::new(write(Path::new("/dev/null"), 0, &[])),
            name: name(0),
            sent: 0,
        };
        pair.source(1, files);
        pair
    }

    /// Makes the sender's checkpoint of this step; the next push sends it.
    fn source(&mut self, step: u64, files: &[(&str, Vec<u8>)]) {
        self.read = Arc::new(write(&self.folder(step), step, files));
        self.name = name(step);
    }

    fn folder(&self, step: u64) -> std::path::PathBuf {
        self.place.path().join("source").join(step_name(step))
    }

    /// The receiver's daemon starts again: memory is gone, the disk stays.
    fn restart(&mut self) {
        self.store = Arc::new(Store::open(self.place.path().join("store")).unwrap());
        self.receiver = Receiver::new(self.store.clone(), Arc::new(Everyone));
    }

    fn carry(&mut self, ask: &Ask, bend: &mut impl FnMut(&Ask, &mut Vec<u8>)) -> Result<Reply, Refusal> {
        let mut body = match ask.body {
            Body::Empty => Vec::new(),
            Body::Manifest => self.read.bytes.clone(),
            Body::Part { file, offset, bytes } => {
                let path = self
                    .folder(self.name.step)
                    .join(&self.read.manifest.files[file as usize].name);
                self.sent += u64::from(bytes);
                fs::read(path).unwrap()[offset as usize..][..bytes as usize].to_vec()
            }
        };
        bend(ask, &mut body);
        let message = ask.request.encode(&body);
        self.receiver
            .answer(NodeId(1), &message)
            .map(|answer| Reply::decode(&answer).unwrap().0)
    }

    fn run(&mut self, push: &mut Push, bend: &mut impl FnMut(&Ask, &mut Vec<u8>)) {
        while let Some(ask) = push.next_ask() {
            let reply = self.carry(&ask, bend).unwrap();
            push.reply(&reply);
        }
    }

    fn push(&mut self) -> Result<(), PushError> {
        let mut push = Push::new(self.name, self.read.clone());
        self.run(&mut push, &mut |_, _| {});
        push.outcome().unwrap().clone()
    }

    fn is_held(&self) -> bool {
        let held = self.store.find(self.name.lease, self.read.digest).unwrap();
        held.is_some_and(|held| crate::transfer::manifest::verify(&held.folder).is_ok())
    }
}

fn name(step: u64) -> CheckpointName {
    CheckpointName {
        lease: LeaseId::from_index(12),
        fence: fence(42, 1),
        rank: 0,
        step,
    }
}

fn write(folder: &Path, step: u64, files: &[(&str, Vec<u8>)]) -> ReadManifest {
    let mut manifest = Manifest {
        step,
        files: Vec::new(),
    };
    for (name, content) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let digest = digest_of(content);
        manifest.files.push(ManifestFile {
            name: (*name).into(),
            bytes: content.len() as u64,
            blake3: digest,
        });
    }
    let bytes = manifest.to_bytes();
    if !files.is_empty() {
        fs::write(folder.join(MANIFEST_NAME), &bytes).unwrap();
    }
    let digest = digest_of(&bytes);
    ReadManifest {
        manifest,
        bytes,
        digest,
    }
}

const PIECE: usize = PIECE_BYTES as usize;

#[test]
fn files_of_every_interesting_size_arrive_whole() {
    for bytes in [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1] {
        let mut pair = Pair::new(&[("w", content(1, bytes))]);
        assert_eq!(pair.push(), Ok(()), "{bytes}");
        assert!(pair.is_held(), "{bytes}");
        assert_eq!(pair.sent, bytes as u64);
    }
}

#[test]
fn many_files_and_folders_arrive_and_a_second_push_sends_nothing() {
    let files: Vec<(String, Vec<u8>)> = (0..20)
        .map(|n| (format!("a/{}/{n}", n % 3), content(n, 1000)))
        .collect();
    let files: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    let mut pair = Pair::new(&files);
    assert_eq!(pair.push(), Ok(()));
    assert!(pair.is_held());
    assert_eq!(pair.sent, 20_000);
    assert_eq!(pair.push(), Ok(()));
    assert_eq!(pair.sent, 20_000);
}

#[test]
fn what_the_store_has_already_is_not_sent_again() {
    let mut pair = Pair::new(&[("frozen", content(1, PIECE + 5)), ("head", content(2, 100))]);
    pair.push().unwrap();
    pair.source(
        2,
        &[("frozen-renamed", content(1, PIECE + 5)), ("head", content(3, 100))],
    );
    pair.sent = 0;
    pair.push().unwrap();
    assert!(pair.is_held());
    assert_eq!(pair.sent, 100);
}

#[test]
fn a_damaged_file_in_the_store_is_sent_and_not_linked() {
    let mut pair = Pair::new(&[("frozen", content(1, 5000))]);
    pair.push().unwrap();
    let held = pair.store.find(pair.name.lease, pair.read.digest).unwrap().unwrap();
    fs::write(held.folder.join("frozen"), content(9, 5000)).unwrap();
    pair.source(2, &[("frozen", content(1, 5000))]);
    pair.sent = 0;
    pair.push().unwrap();
    assert!(pair.is_held());
    assert_eq!(pair.sent, 5000);
}

#[test]
fn a_transfer_goes_on_where_it_was_after_both_sides_restarted() {
    let mut pair = Pair::new(&[("a", content(1, 3 * PIECE)), ("b", content(2, 10))]);
    let mut push = Push::new(pair.name, pair.read.clone());
    for _ in 0..4 {
        let ask = push.next_ask().unwrap();
        let reply = pair.carry(&ask, &mut |_, _| {}).unwrap();
        push.reply(&reply);
    }
    let before = pair.sent;
    assert!(before > 0);
    assert!(
        pair.store.held(pair.name.lease).unwrap().is_empty(),
        "nothing is visible before the commit"
    );

    pair.restart();
    assert!(pair.store.held(pair.name.lease).unwrap().is_empty());
    pair.push().unwrap();

    assert!(pair.is_held());
    assert_eq!(pair.sent, (3 * PIECE + 10) as u64, "no byte was sent twice");
}

#[test]
fn an_answer_that_was_lost_is_found_out_by_asking_again() {
    let mut pair = Pair::new(&[("a", content(1, 2 * PIECE))]);
    let mut push = Push::new(pair.name, pair.read.clone());
    let mut asked = 0;
    while let Some(ask) = push.next_ask() {
        asked += 1;
        let reply = pair.carry(&ask, &mut |_, _| {}).unwrap();
        if asked % 2 == 0 {
            push.lost()
        } else {
            push.reply(&reply)
        }
        assert!(asked < 50, "it does not come to an end");
    }
    assert_eq!(push.outcome(), Some(&Ok(())));
    assert!(pair.is_held());
    assert_eq!(pair.sent, 2 * u64::from(PIECE_BYTES));
}

#[test]
fn a_corrupted_byte_is_found_and_its_file_is_sent_again() {
    let mut pair = Pair::new(&[("a", content(1, PIECE + 7)), ("b", content(2, 10))]);
    let mut push = Push::new(pair.name, pair.read.clone());
    let mut bent = false;
    let read = pair.read.clone();
    pair.run(&mut push, &mut |ask, body| {
        if let (Body::Part { file: 0, .. }, false) = (ask.body, bent) {
            body[3] ^= 1;
            bent = true;
        }
    });
    assert!(bent);
    assert_eq!(push.outcome(), Some(&Ok(())));
    assert!(pair.is_held());
    assert_eq!(pair.sent, read.manifest.total_bytes() + (PIECE + 7) as u64);
}

#[test]
fn bytes_that_are_wrong_every_time_never_become_visible() {
    let mut pair = Pair::new(&[("a", content(1, 100))]);
    let mut push = Push::new(pair.name, pair.read.clone());
    pair.run(&mut push, &mut |ask, body| {
        if matches!(ask.body, Body::Part { .. }) {
            body[0] ^= 1;
        }
    });
    assert_eq!(push.outcome(), Some(&Err(PushError::NoProgress)));
    assert!(pair.store.held(pair.name.lease).unwrap().is_empty());
}

#[test]
fn a_resume_at_another_offset_is_answered_with_the_right_one() {
    let mut pair = Pair::new(&[("a", content(1, 1000))]);
    let offer = Ask {
        request: Request::Offer { name: pair.name },
        body: Body::Manifest,
    };
    pair.carry(&offer, &mut |_, _| {}).unwrap();
    let piece = |offset, bytes| Ask {
        request: Request::Piece {
            name: name(1),
            file: 0,
            offset,
        },
        body: Body::Part { file: 0, offset, bytes },
    };
    let at_zero = Reply::At { file: 0, offset: 0 };
    assert_eq!(
        pair.carry(&piece(500, 500), &mut |_, _| {}).unwrap(),
        at_zero,
        "the middle is not written at 0"
    );
    assert_eq!(
        pair.carry(&piece(0, 400), &mut |_, _| {}).unwrap(),
        Reply::Took { file: 0, offset: 400 }
    );
    assert_eq!(
        pair.carry(&piece(0, 400), &mut |_, _| {}).unwrap(),
        Reply::At { file: 0, offset: 400 }
    );
    let too_long = pair.carry(&piece(400, 600), &mut |_, body| body.push(0)).unwrap_err();
    assert!(too_long.0.contains("longer than the manifest says"), "{too_long}");
}

#[test]
fn an_older_token_is_refused_at_every_step_and_the_newer_one_is_durable() {
    let mut pair = Pair::new(&[("a", content(1, 100))]);
    let lease = pair.name.lease;
    let offer = Ask {
        request: Request::Offer { name: pair.name },
        body: Body::Manifest,
    };
    assert!(matches!(
        pair.carry(&offer, &mut |_, _| {}).unwrap(),
        Reply::Needed { .. }
    ));
    let piece = Ask {
        request: Request::Piece {
            name: pair.name,
            file: 0,
            offset: 0,
        },
        body: Body::Part {
            file: 0,
            offset: 0,
            bytes: 100,
        },
    };
    pair.carry(&piece, &mut |_, _| {}).unwrap();

    let newer = fence(42, 2);
    let show = |fence| Ask {
        request: Request::Fence { lease, fence },
        body: Body::Empty,
    };
    assert_eq!(
        pair.carry(&show(newer), &mut |_, _| {}).unwrap(),
        Reply::Fenced { shown: newer }
    );
    pair.restart();

    let stale = Reply::Stale { shown: newer };
    let commit = Ask {
        request: Request::Commit {
            name: pair.name,
            manifest: pair.read.digest,
        },
        body: Body::Empty,
    };
    for ask in [&offer, &piece, &commit, &show(fence(42, 1)), &show(fence(41, 9))] {
        assert_eq!(pair.carry(ask, &mut |_, _| {}).unwrap(), stale, "{ask:?}");
    }
    assert_eq!(pair.push(), Err(PushError::Stale { shown: newer }));
    assert!(pair.store.held(lease).unwrap().is_empty());
}

#[test]
fn a_commit_that_races_with_a_newer_token_loses() {
    let pair = Pair::new(&[("a", Vec::new())]);
    assert!(pair.store.offer(pair.name, &pair.read.bytes).is_ok());
    pair.store.show(pair.name.lease, fence(43, 1)).unwrap();
    let late = pair.store.commit(pair.name, pair.read.digest);
    assert!(matches!(late, Err(crate::transfer::store::StoreError::Stale { .. })));
}

#[test]
fn a_receiver_that_asks_for_bytes_that_do_not_exist_ends_the_push() {
    let pair = Pair::new(&[("a", content(1, 10))]);
    for nonsense in [
        Reply::Needed {
            files: vec![Need { file: 1, offset: 0 }],
        },
        Reply::Needed {
            files: vec![Need { file: 0, offset: 10 }],
        },
        Reply::Needed {
            files: vec![Need { file: 0, offset: 0 }, Need { file: 0, offset: 1 }],
        },
        Reply::Manifest,
        Reply::Corrupt { files: vec![0] },
    ] {
        let mut push = Push::new(pair.name, pair.read.clone());
        push.next_ask().unwrap();
        push.reply(&nonsense);
        assert_eq!(push.outcome(), Some(&Err(PushError::Nonsense)), "{nonsense:?}");
    }
}

#[test]
fn a_manifest_that_leaves_the_store_or_is_of_another_step_is_refused() {
    let mut pair = Pair::new(&[("a", content(1, 10))]);
    let offer = Ask {
        request: Request::Offer { name: name(2) },
        body: Body::Manifest,
    };
    assert!(
        pair.carry(&offer, &mut |_, _| {})
            .unwrap_err()
            .0
            .contains("offered as step 2")
    );
    let offer = Ask {
        request: Request::Offer { name: name(1) },
        body: Body::Manifest,
    };
    let evil = Manifest {
        step: 1,
        files: vec![ManifestFile {
            name: "../../x".into(),
            bytes: 1,
            blake3: Digest::default(),
        }],
    };
    let refused = pair.carry(&offer, &mut |_, body| *body = evil.to_bytes()).unwrap_err();
    assert!(refused.0.contains("not a plain relative path"), "{refused}");
}

#[test]
fn a_node_without_a_part_in_the_lease_is_refused() {
    struct Nobody(Permission);
    impl Access for Nobody {
        fn may_push(&self, _: NodeId, _: LeaseId, _: Fence) -> Permission {
            self.0
        }
        fn may_read(&self, _: NodeId, _: LeaseId) -> Permission {
            self.0
        }
    }
    let pair = Pair::new(&[("a", content(1, 10))]);
    let read = Request::Read {
        lease: pair.name.lease,
        manifest: pair.read.digest,
        file: 0,
        offset: 0,
        bytes: 1,
    };
    let push = Request::Offer { name: pair.name };
    let answer = |permission, request: &Request| {
        let receiver = Receiver::new(pair.store.clone(), Arc::new(Nobody(permission)));
        let answer = receiver.answer(NodeId(9), &request.encode(&pair.read.bytes));
        answer.map(|answer| Reply::decode(&answer).unwrap().0)
    };
    for request in [&read, &push] {
        let refused = answer(Permission::Denied, request).unwrap_err();
        assert!(refused.0.contains("has no part in this lease"), "{refused}");
        assert_eq!(answer(Permission::NotYet, request), Ok(Reply::NotYet));
        let newer = fence(50, 1);
        assert_eq!(
            answer(Permission::Stale(newer), request),
            Ok(Reply::Stale { shown: newer })
        );
    }
    assert!(
        pair.receiver
            .answer(NodeId(9), &Bytes::from_static(b"rubbish"))
            .is_err()
    );
}
