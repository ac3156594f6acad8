//! Checkpoints over the real transport: QUIC with mutual TLS on the bulk socket, real stores, real files.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use holdfast_node::env::{Clock as _, OsClock};
use holdfast_node::identity::Identity;
use holdfast_node::identity::authority::{Authority, NodeKey};
use holdfast_node::net::book::{AddressBook, Admission};
use holdfast_node::net::quic::{Listen, Quic, QuicSetup};
use holdfast_node::net::router::Router;
use holdfast_node::net::{Class, Lane};
use holdfast_node::transfer::courier::{Courier, CourierError};
use holdfast_node::transfer::manifest::{MANIFEST_NAME, Manifest, ManifestFile, digest_of, newest_verified};
use holdfast_node::transfer::receive::{Access, Permission, Receiver};
use holdfast_node::transfer::store::Store;
use holdfast_node::transfer::wire::CheckpointName;
use holdfast_proto::id::{Attempt, ClusterId, Epoch, Era, Fence, FencingToken, LeaseId, NodeId};
use holdfast_proto::node::NodeAddress;
use tokio::runtime::Handle;

const CLUSTER: ClusterId = ClusterId([3; 16]);
const LEASE: LeaseId = LeaseId { cell: 0, index: 12 };

fn fence(index: u64) -> Fence {
    Fence {
        token: FencingToken { era: Era(0), index },
        epoch: Epoch(1),
        attempt: Attempt(1),
    }
}

/// Lets one node push; all may read.
struct OnlyFrom(NodeId);

impl Access for OnlyFrom {
    fn may_push(&self, from: NodeId, _: LeaseId, _: Fence) -> Permission {
        if from == self.0 {
            Permission::Granted
        } else {
            Permission::Denied
        }
    }

    fn may_read(&self, _: NodeId, _: LeaseId) -> Permission {
        Permission::Granted
    }
}

struct Node {
    id: NodeId,
    quic: Arc<Quic>,
    book: Arc<AddressBook>,
    courier: Courier,
}

fn start(identity: &Identity, pusher: NodeId, place: &Path) -> Node {
    let (book, router) = (Arc::new(AddressBook::default()), Arc::new(Router::new()));
    let store = Arc::new(Store::open(place.join(identity.node.to_string())).unwrap());
    let receiver = Receiver::new(store.clone(), Arc::new(OnlyFrom(pusher)));
    assert!(router.register(Class::Transfer, Arc::new(receiver)));
    let setup = QuicSetup {
        identity,
        listen: Listen {
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            main_port: 0,
            lease_port: 0,
            bulk_port: 0,
        },
        book: book.clone(),
        admission: Arc::new(Admission::default()),
        router,
        runtime: Handle::current(),
        lease_runtime: Handle::current(),
        bulk_runtime: Handle::current(),
    };
    let quic = Arc::new(Quic::bind(&setup).unwrap());
    let courier = Courier::new(identity.node, store, quic.clone(), Arc::new(OsClock), u64::MAX);
    Node {
        id: identity.node,
        quic,
        book,
        courier,
    }
}

/// Three nodes that know each other; the first may push.
fn town(place: &Path) -> [Node; 3] {
    let authority = Authority::found(CLUSTER, OsClock.wall_ms()).unwrap();
    let identity = || {
        let key = NodeKey::generate().unwrap();
        let certificate = authority.issue(&key.spki(), CLUSTER, &[], OsClock.wall_ms()).unwrap();
        Identity::assemble(&key, certificate, authority.certificate().clone()).unwrap()
    };
    let identities = [identity(), identity(), identity()];
    let pusher = identities[0].node;
    let nodes = identities.each_ref().map(|identity| start(identity, pusher, place));
    for node in &nodes {
        for other in &nodes {
            let port = |lane| other.quic.port(lane).unwrap();
            let address = NodeAddress {
                host: "127.0.0.1".into(),
                main_port: port(Lane::Main),
                lease_port: port(Lane::Lease),
                bulk_port: port(Lane::Bulk),
            };
            node.book.commit(other.id, &address);
        }
    }
    nodes
}

fn checkpoint(folder: &Path, step: u64, files: &[(&str, Vec<u8>)]) {
    std::fs::create_dir_all(folder).unwrap();
    let mut manifest = Manifest {
        step,
        files: Vec::new(),
    };
    for (name, content) in files {
        std::fs::write(folder.join(name), content).unwrap();
        let blake3 = digest_of(content);
        manifest.files.push(ManifestFile {
            name: (*name).into(),
            bytes: content.len() as u64,
            blake3,
        });
    }
    std::fs::write(folder.join(MANIFEST_NAME), manifest.to_bytes()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_goes_to_another_node_and_from_there_to_a_third() {
    let place = tempfile::tempdir().unwrap();
    let [maker, holder, heir] = town(place.path());
    let large: Vec<u8> = (0..20_000_000_u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let folder = place.path().join("work/step-40");
    checkpoint(
        &folder,
        40,
        &[
            ("large", large.clone()),
            ("b", large[..5_000_001].to_vec()),
            ("empty", Vec::new()),
        ],
    );

    let name = CheckpointName {
        lease: LEASE,
        fence: fence(42),
        rank: 0,
        step: 40,
    };
    let began = std::time::Instant::now();
    let saved = maker.courier.save(name, folder, &[holder.id]).await.unwrap();
    println!("25 MB saved in {:?}", began.elapsed());
    assert!(saved.holders.contains(&holder.id));

    maker.quic.close().await;
    let into = place.path().join("heir");
    let began = std::time::Instant::now();
    heir.courier.restore(LEASE, fence(50), &saved, &into).await.unwrap();
    println!("25 MB restored in {:?}", began.elapsed());
    let (folder, read) = newest_verified(&into).unwrap().unwrap();
    assert_eq!(read.digest, saved.manifest);
    assert_eq!(std::fs::read(folder.join("large")).unwrap(), large);

    // The holder lets nobody but the lease's member push, whatever the message says.
    let stranger = CheckpointName {
        step: 41,
        fence: fence(60),
        ..name
    };
    checkpoint(&place.path().join("other/step-41"), 41, &[("a", vec![1])]);
    let refused = heir
        .courier
        .save(stranger, place.path().join("other/step-41"), &[holder.id])
        .await;
    assert!(matches!(refused, Err(CourierError::Nobody(Some(_)))), "{refused:?}");
    assert_eq!(holder.courier.store().held(LEASE).unwrap().len(), 1);
}
