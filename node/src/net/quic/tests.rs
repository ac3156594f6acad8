#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use holdfast_proto::id::ClusterId;
use holdfast_proto::node::NodeAddress;
use rustls::pki_types::CertificateDer;

use super::*;
use crate::env::{Clock, OsClock};
use crate::identity::authority::{Authority, NodeKey};
use crate::identity::certificate::node_name;
use crate::net::{Refusal, Service};

const CLUSTER: ClusterId = ClusterId([3; 16]);
/// Far beyond what any of this takes, for machines that are very busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers with the asker's id and the request, and counts.
#[derive(Default)]
struct Echo {
    served: AtomicUsize,
}

impl Service for Echo {
    fn call(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        self.served.fetch_add(1, Ordering::SeqCst);
        let answer = if request == "refuse" {
            Err(Refusal("not today".into()))
        } else {
            Ok(Bytes::from(format!("{from} {request:?}")))
        };
        Box::pin(std::future::ready(answer))
    }

    fn channel(self: Arc<Self>, _: NodeId, mut channel: Channel) -> BoxFuture<'static, ()> {
        self.served.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            loop {
                let sent = match channel.source.next().await {
                    Ok(Some(frame)) => channel.sink.send(frame).await,
                    Ok(None) => break,
                    Err(_) => return,
                };
                if sent.is_err() {
                    return;
                }
            }
            let _ = channel.sink.finish().await;
        })
    }
}

/// The TLS stack reads the real clock, so the certificates must be of today.
fn now_ms() -> u64 {
    OsClock.wall_ms()
}

struct Node {
    id: NodeId,
    quic: Quic,
    echo: Arc<Echo>,
    book: Arc<AddressBook>,
    admission: Arc<Admission>,
    router: Arc<Router>,
}

fn start(identity: &Identity, listen: Listen, runtime: &Handle) -> Node {
    let (book, admission, router) = (
        Arc::new(AddressBook::default()),
        Arc::new(Admission::default()),
        Arc::new(Router::new()),
    );
    let echo = Arc::new(Echo::default());
    for class in Class::ALL {
        assert!(router.register(class, echo.clone()));
    }
    let setup = QuicSetup {
        identity,
        listen,
        book: book.clone(),
        admission: admission.clone(),
        router: router.clone(),
        runtime: runtime.clone(),
        lease_runtime: runtime.clone(),
        bulk_runtime: runtime.clone(),
    };
    Node {
        id: identity.node,
        quic: Quic::bind(&setup).unwrap(),
        echo,
        book,
        admission,
        router,
    }
}

const ANYWHERE: Listen = Listen {
    ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
    main_port: 0,
    lease_port: 0,
    bulk_port: 0,
};

impl Node {
    fn address(&self) -> NodeAddress {
        let port = |lane| self.quic.port(lane).unwrap();
        NodeAddress {
            host: "127.0.0.1".into(),
            main_port: port(Lane::Main),
            lease_port: port(Lane::Lease),
            bulk_port: port(Lane::Bulk),
        }
    }

    fn listen(&self) -> Listen {
        let at = self.address();
        Listen {
            ip: ANYWHERE.ip,
            main_port: at.main_port,
            lease_port: at.lease_port,
            bulk_port: at.bulk_port,
        }
    }

    fn knows(&self, other: &Self) {
        self.book.commit(other.id, &other.address());
    }

    fn served(&self) -> usize {
        self.echo.served.load(Ordering::SeqCst)
    }

    async fn ask(&self, to: NodeId, class: Class) -> Result<Bytes, NetError> {
        tokio::time::timeout(PATIENCE, self.quic.call(to, class, Bytes::from_static(b"ping")))
            .await
            .unwrap()
    }

    /// Asks until it is answered.
    async fn insist(&self, to: NodeId, class: Class) {
        tokio::time::timeout(PATIENCE, async { while self.ask(to, class).await.is_err() {} })
            .await
            .unwrap();
    }
}

fn member(authority: &Authority, cluster: ClusterId) -> Identity {
    let key = NodeKey::generate().unwrap();
    let certificate = authority.issue(&key.spki(), cluster, &[], now_ms()).unwrap();
    Identity::assemble(&key, certificate, authority.certificate().clone()).unwrap()
}

fn authority() -> Authority {
    Authority::found(CLUSTER, now_ms()).unwrap()
}

fn pair(authority: &Authority) -> (Node, Node) {
    let runtime = Handle::current();
    let (a, b) = (
        start(&member(authority, CLUSTER), ANYWHERE, &runtime),
        start(&member(authority, CLUSTER), ANYWHERE, &runtime),
    );
    a.knows(&b);
    b.knows(&a);
    (a, b)
}

#[tokio::test]
async fn members_talk_on_every_class_and_know_who_speaks() {
    let (a, b) = pair(&authority());
    for class in Class::ALL {
        assert_eq!(
            a.ask(b.id, class).await.unwrap(),
            format!("{} b\"ping\"", a.id),
            "{class:?}"
        );
    }
    let refused = a
        .quic
        .call(b.id, Class::Control, Bytes::from_static(b"refuse"))
        .await
        .unwrap_err();
    assert_eq!(
        refused,
        NetError::Refused {
            node: b.id,
            why: "not today".into()
        }
    );
}

#[tokio::test]
async fn a_call_takes_the_ends_of_its_stream_and_asks_nobody_to_stop() {
    let (a, b) = pair(&authority());
    for _ in 0..20 {
        a.ask(b.id, Class::Control).await.unwrap();
    }
    let stats = a.quic.lane(Lane::Main).live(b.id, Class::Control).unwrap().stats();
    assert_eq!((stats.frame_tx.stop_sending, stats.frame_rx.stop_sending), (0, 0));
}

#[tokio::test]
async fn a_channel_keeps_order_both_ways_and_ends_in_order() {
    let (a, b) = pair(&authority());
    let Channel { mut sink, mut source } = a.quic.open(b.id, Class::Raft).await.unwrap();
    let sender = tokio::spawn(async move {
        for number in 0..500_u32 {
            // Sizes around the segment and the window: empty, small, large.
            let mut frame = vec![0; [0, 1, 1_300, 70_000][number as usize % 4]];
            frame.extend_from_slice(&number.to_be_bytes());
            sink.send(Bytes::from(frame)).await.unwrap();
        }
        sink.finish().await.unwrap();
    });
    let mut expected = 0_u32;
    while let Some(frame) = source.next().await.unwrap() {
        assert_eq!(frame[frame.len() - 4..], expected.to_be_bytes());
        expected += 1;
    }
    assert_eq!(expected, 500);
    sender.await.unwrap();
}

#[tokio::test]
async fn an_abandoned_channel_is_an_error_and_not_an_end() {
    let (a, b) = pair(&authority());
    let Channel { mut sink, mut source } = a.quic.open(b.id, Class::Raft).await.unwrap();
    sink.send(Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(source.next().await.unwrap().unwrap(), "x");
    drop(sink);
    // The other side saw an abrupt end, and so ends its own half abruptly.
    assert!(source.next().await.is_err());
}

#[tokio::test]
async fn a_frame_over_the_limit_is_refused_by_the_sender() {
    let (a, b) = pair(&authority());
    let huge = Bytes::from(vec![0; Class::Lease.frame_bytes_max() + 1]);
    assert!(matches!(
        a.quic.call(b.id, Class::Lease, huge).await,
        Err(NetError::TooLarge { .. })
    ));
}

#[tokio::test]
async fn an_announced_length_over_the_limit_ends_the_stream() {
    let (a, b) = pair(&authority());
    let (mut send, mut recv) = a
        .quic
        .lane(Lane::Main)
        .open(b.id, Class::Control, wire::CALL)
        .await
        .unwrap();
    send.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
    assert!(
        tokio::time::timeout(PATIENCE, recv.read_exact(&mut [0]))
            .await
            .unwrap()
            .is_err()
    );
    assert_eq!(b.served(), 0);
}

/// Dials `to` with a hand-made TLS client and asks; the error, if any, is the text.
async fn ask_as_stranger(to: &Node, class: Class, tls: rustls::ClientConfig, name: &str) -> Result<(), String> {
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, to.quic.port(class.lane()).unwrap()));
    let ask = async {
        let connection = endpoint
            .connect_with(config, at, name)
            .unwrap()
            .await
            .map_err(|error| wire::with_causes(&error))?;
        let (mut send, mut recv) = connection.open_bi().await.map_err(|error| wire::with_causes(&error))?;
        send.write_all(&[wire::CALL, 0, 0, 0, 1, b'x'])
            .await
            .map_err(|error| wire::with_causes(&error))?;
        recv.read_exact(&mut [0])
            .await
            .map_err(|error| wire::with_causes(&error))
    };
    tokio::time::timeout(PATIENCE, ask).await.unwrap()
}

#[tokio::test]
async fn nobody_without_a_certificate_is_served_on_any_protocol() {
    let authority = authority();
    let (a, _b) = pair(&authority);
    for class in Class::ALL {
        let mut tls = crate::net::tls::https_client(authority.certificate(), CLUSTER).unwrap();
        tls.alpn_protocols = vec![class.alpn().to_vec()];
        let refused = ask_as_stranger(&a, class, tls, "any").await.unwrap_err();
        assert!(refused.contains("certificate"), "{class:?}: {refused}");
    }
    assert_eq!(a.served(), 0);
}

#[tokio::test]
async fn nobody_of_another_authority_is_served_on_any_protocol() {
    // The other authority even claims the same cluster id.
    let (ours, other) = (authority(), authority());
    let (a, _b) = pair(&ours);
    let stranger = start(&member(&other, CLUSTER), ANYWHERE, &Handle::current());
    stranger.knows(&a);
    for class in Class::ALL {
        assert!(stranger.ask(a.id, class).await.is_err(), "{class:?}");
        // Even when it does not care whom it talks to, it is turned away by the other side.
        let key = NodeKey::generate().unwrap();
        let theirs = other.issue(&key.spki(), CLUSTER, &[], now_ms()).unwrap();
        let tls = hand_made(&ours, theirs, &key, class);
        assert!(
            ask_as_stranger(&a, class, tls, &node_name(a.id, CLUSTER))
                .await
                .is_err(),
            "{class:?}"
        );
    }
    assert_eq!(a.served(), 0);
}

/// A client that trusts `roots` and shows `certificate`.
fn hand_made(
    roots: &Authority,
    certificate: CertificateDer<'static>,
    key: &NodeKey,
    class: Class,
) -> rustls::ClientConfig {
    let mut store = rustls::RootCertStore::empty();
    store.add(roots.certificate().clone()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.to_pkcs8().expose().clone().into());
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(store)
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    tls.alpn_protocols = vec![class.alpn().to_vec()];
    tls
}

#[tokio::test]
async fn a_cluster_of_the_same_authority_but_another_id_is_refused_on_every_protocol() {
    let authority = authority();
    let (a, _b) = pair(&authority);
    let stranger = start(&member(&authority, ClusterId([4; 16])), ANYWHERE, &Handle::current());
    stranger.knows(&a);
    a.knows(&stranger);
    for class in Class::ALL {
        assert!(stranger.ask(a.id, class).await.is_err(), "{class:?}");
        assert!(a.ask(stranger.id, class).await.is_err(), "{class:?}");
    }
    assert_eq!((a.served(), stranger.served()), (0, 0));
}

#[tokio::test]
async fn another_node_at_the_dialled_address_is_refused_on_every_protocol() {
    let (a, b) = pair(&authority());
    let meant = NodeId(b.id.0 ^ 1);
    a.book.commit(meant, &b.address());
    for class in Class::ALL {
        let refused = a.ask(meant, class).await.unwrap_err();
        assert!(refused.is_unsent(), "{class:?}: {refused}");
    }
    assert_eq!(b.served(), 0);
}

#[tokio::test]
async fn a_certificate_that_names_another_node_than_its_key_is_refused_on_every_protocol() {
    let authority = authority();
    let (a, b) = pair(&authority);
    // Signed by the right authority, but for node b's name over a key of its own.
    let key = NodeKey::generate().unwrap();
    let forged = forge(&authority, &key, b.id);
    for class in Class::ALL {
        let tls = hand_made(&authority, forged.clone(), &key, class);
        assert!(
            ask_as_stranger(&a, class, tls, &node_name(a.id, CLUSTER))
                .await
                .is_err(),
            "{class:?}"
        );
    }
    assert_eq!(a.served(), 0);
}

fn forge(authority: &Authority, key: &NodeKey, claimed: NodeId) -> CertificateDer<'static> {
    let signer = rcgen::KeyPair::from_pem(authority.key_pem().expose()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(authority.certificate(), signer).unwrap();
    let public = rcgen::SubjectPublicKeyInfo::from_der(&key.spki()).unwrap();
    rcgen::CertificateParams::new(vec![node_name(claimed, CLUSTER)])
        .unwrap()
        .signed_by(&public, &issuer)
        .unwrap()
        .der()
        .clone()
}

#[tokio::test]
async fn a_removed_node_is_refused_on_every_protocol_and_its_connections_end() {
    let (a, b) = pair(&authority());
    for class in Class::ALL {
        b.ask(a.id, class).await.unwrap();
    }
    let mut open = b.quic.open(a.id, Class::Raft).await.unwrap();
    a.admission.set_removed(BTreeSet::from([b.id]));
    assert!(
        tokio::time::timeout(PATIENCE, open.source.next())
            .await
            .unwrap()
            .is_err()
    );
    // From here on every connection of b's was closed or will be refused; one that still lives is closed by the same signal.
    for class in Class::ALL {
        tokio::time::timeout(PATIENCE, async { while b.ask(a.id, class).await.is_ok() {} })
            .await
            .unwrap();
    }
    let before = a.served();
    for class in Class::ALL {
        assert!(b.ask(a.id, class).await.is_err(), "{class:?}");
        assert_eq!(
            a.ask(b.id, class).await,
            Err(NetError::Removed { node: b.id }),
            "{class:?}"
        );
    }
    assert_eq!(a.served(), before);
}

#[test]
fn a_peer_that_restarted_on_the_same_address_is_reached_by_the_second_call() {
    let authority = authority();
    let (one, other) = (member(&authority, CLUSTER), member(&authority, CLUSTER));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let a = start(&one, ANYWHERE, runtime.handle());
    let first_life = tokio::runtime::Runtime::new().unwrap();
    let b = start(&other, ANYWHERE, first_life.handle());
    a.knows(&b);
    runtime.block_on(a.ask(b.id, Class::Raft)).unwrap();

    // Its sockets vanish without a word, as with kill -9.
    let listen = b.listen();
    drop(b);
    first_life.shutdown_timeout(PATIENCE);
    let second_life = tokio::runtime::Runtime::new().unwrap();
    let b = start(&other, listen, second_life.handle());

    // The first may be lost on the old connection: the restarted node answers it with a reset, long before the idle time.
    let first = runtime.block_on(a.ask(b.id, Class::Raft));
    if let Err(NetError::Lost { why, .. }) = &first {
        assert!(why.contains("reset"), "{why}");
    }
    runtime.block_on(a.ask(b.id, Class::Raft)).unwrap();
    drop((a, b));
}

#[tokio::test]
async fn a_peer_that_came_back_elsewhere_is_reached_once_it_was_heard() {
    let authority = authority();
    let (one, other) = (member(&authority, CLUSTER), member(&authority, CLUSTER));
    let runtime = Handle::current();
    let a = start(&one, ANYWHERE, &runtime);
    let b = start(&other, ANYWHERE, &runtime);
    a.knows(&b);
    a.ask(b.id, Class::Raft).await.unwrap();
    b.quic.close().await;
    drop(b);

    let b = start(&other, ANYWHERE, &runtime);
    b.knows(&a);
    b.ask(a.id, Class::Control).await.unwrap();
    a.insist(b.id, Class::Raft).await;
}

#[tokio::test]
async fn a_member_is_met_by_address_alone_and_a_stranger_is_not() {
    let authority = authority();
    let (a, b) = pair(&authority);
    a.book.forget(b.id);
    assert_eq!(a.quic.meet("127.0.0.1", b.address().main_port).await, Ok(b.id));
    a.ask(b.id, Class::Raft).await.unwrap();

    let stranger = start(&member(&self::authority(), CLUSTER), ANYWHERE, &Handle::current());
    assert!(a.quic.meet("127.0.0.1", stranger.address().main_port).await.is_err());
}

#[tokio::test]
async fn a_clock_that_stepped_back_a_day_still_connects() {
    let authority = authority();
    // To a machine whose clock stepped back, certificates begin tomorrow.
    let tomorrow = now_ms() + 86_400_000;
    let of = |key: &NodeKey| {
        let certificate = authority.issue(&key.spki(), CLUSTER, &[], tomorrow).unwrap();
        Identity::assemble(key, certificate, authority.certificate().clone()).unwrap()
    };
    let runtime = Handle::current();
    let (one, other) = (of(&NodeKey::generate().unwrap()), of(&NodeKey::generate().unwrap()));
    let (a, b) = (start(&one, ANYWHERE, &runtime), start(&other, ANYWHERE, &runtime));
    a.knows(&b);
    a.ask(b.id, Class::Raft).await.unwrap();
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let authority = authority();
    let a = start(&member(&authority, CLUSTER), ANYWHERE, &Handle::current());
    let identity = member(&authority, CLUSTER);
    let setup = QuicSetup {
        identity: &identity,
        listen: a.listen(),
        book: Arc::default(),
        admission: Arc::default(),
        router: Arc::new(Router::new()),
        runtime: Handle::current(),
        lease_runtime: Handle::current(),
        bulk_runtime: Handle::current(),
    };
    let refused = Quic::bind(&setup).err().unwrap().to_string();
    assert!(
        refused.contains(&format!("127.0.0.1:{}", a.address().main_port)),
        "{refused}"
    );
}

/// Gives a client back what it sends.
struct Mirror;

impl crate::net::router::Door for Mirror {
    fn serve(self: Arc<Self>, mut channel: Channel) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            while let Ok(Some(frame)) = channel.source.next().await {
                if channel.sink.send(frame).await.is_err() {
                    return;
                }
            }
        })
    }
}

fn client_of(authority: &Authority) -> rustls::ClientConfig {
    crate::net::tls::lane_client(authority.certificate(), CLUSTER).unwrap()
}

#[tokio::test]
async fn a_client_without_a_certificate_is_served_at_the_door() {
    let authority = authority();
    let node = start(&member(&authority, CLUSTER), ANYWHERE, &Handle::current());
    assert!(node.router.open_door(Arc::new(Mirror)));
    let at = format!("127.0.0.1:{}", node.address().main_port);
    let socket = client::ClientSocket::open(client_of(&authority)).unwrap();
    let mut channel = socket.dial(&at).await.unwrap();
    channel.sink.send(Bytes::from_static(b"hello")).await.unwrap();
    assert_eq!(channel.source.next().await.unwrap(), Some(Bytes::from_static(b"hello")));

    // It shows its token to nodes of its cluster only.
    let strangers = client::ClientSocket::open(client_of(&self::authority())).unwrap();
    assert!(strangers.dial(&at).await.is_err());
}
