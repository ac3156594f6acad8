#![allow(clippy::unwrap_used)]
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use holdfast_node::net::Refusal;

use super::*;
use crate::runtime::Simulated;

const ONE: Host = Host(1);
const TWO: Host = Host(2);

/// Answers with what it was asked, and counts how often.
#[derive(Default)]
struct Echo {
    calls: AtomicU64,
}

impl Service for Echo {
    fn call(self: Arc<Self>, from: NodeId, request: Bytes) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        assert_eq!(from, NodeId(1));
        self.calls.fetch_add(1, SeqCst);
        Box::pin(async move {
            if request.is_empty() {
                Err(Refusal("empty".to_owned()))
            } else {
                Ok(request)
            }
        })
    }

    fn channel(self: Arc<Self>, _from: NodeId, mut channel: Channel) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            while let Ok(Some(frame)) = channel.source.next().await {
                if channel.sink.send(frame).await.is_err() {
                    return;
                }
            }
            let _ = channel.sink.finish().await;
        })
    }
}

fn with_echo(weather: Weather) -> (Network, Arc<Echo>, SimulatedTransport) {
    let network = Network::new(weather);
    let echo = Arc::new(Echo::default());
    network.serve(TWO, Class::Control, echo.clone());
    let transport = network.transport(ONE);
    (network, echo, transport)
}

async fn ask(transport: &SimulatedTransport, text: &'static str) -> Result<Bytes, NetError> {
    transport
        .call(NodeId(2), Class::Control, Bytes::from_static(text.as_bytes()))
        .await
}

#[test]
fn request_is_answered_after_two_delays() {
    Simulated::seeded(1).simulate(async {
        let (network, _, transport) = with_echo(Weather::FAIR);
        let before = runtime::true_now_ns();
        assert_eq!(ask(&transport, "hello").await.unwrap(), "hello");
        assert!(runtime::true_now_ns() - before >= 200_000);
        assert!(matches!(ask(&transport, "").await, Err(NetError::Refused { .. })));
        assert_eq!(network.traffic().delivered, 4);
    });
}

#[test]
fn cut_works_one_way_and_heals() {
    Simulated::seeded(1).simulate(async {
        let (network, echo, transport) = with_echo(Weather::FAIR);
        network.cut(TWO, ONE);
        assert!(matches!(ask(&transport, "x").await, Err(NetError::Lost { .. })));
        assert_eq!(echo.calls.load(SeqCst), 1, "the request arrived, its answer did not");
        network.mend(TWO, ONE);
        network.cut(ONE, TWO);
        assert!(ask(&transport, "x").await.is_err());
        assert_eq!(echo.calls.load(SeqCst), 1);
        network.mend_all();
        assert!(ask(&transport, "x").await.is_ok());
    });
}

#[test]
fn duplicated_request_is_executed_twice_and_answered_once() {
    Simulated::seeded(1).simulate(async {
        let (_, echo, transport) = with_echo(Weather {
            duplicate_permille: 1_000,
            ..Weather::FAIR
        });
        assert!(ask(&transport, "x").await.is_ok());
        runtime::sleep(Duration::from_secs(1)).await;
        assert_eq!(echo.calls.load(SeqCst), 2);
    });
}

#[test]
fn killed_host_answers_nothing_and_its_successor_knows_no_old_request() {
    Simulated::seeded(1).simulate(async {
        let (network, _, transport) = with_echo(Weather {
            delay_min_us: 5_000,
            delay_max_us: 5_000,
            ..Weather::FAIR
        });
        let asking = runtime::spawn_on(ONE, async move { ask(&transport, "x").await });
        runtime::sleep(Duration::from_millis(1)).await;
        runtime::kill(TWO);
        network.forget(TWO);
        let second = Arc::new(Echo::default());
        network.serve(TWO, Class::Control, second.clone());
        assert!(asking.await.unwrap().is_err());
        assert_eq!(second.calls.load(SeqCst), 0);
    });
}

#[test]
fn channel_keeps_order_through_loss_and_delay() {
    Simulated::seeded(1).simulate(async {
        let (_, _, transport) = with_echo(Weather {
            loss_permille: 100,
            tail_permille: 300,
            ..Weather::FAIR
        });
        let mut channel = loop {
            if let Ok(channel) = transport.open(NodeId(2), Class::Control).await {
                break channel;
            }
        };
        for number in 0..100_u8 {
            channel.sink.send(Bytes::copy_from_slice(&[number])).await.unwrap();
        }
        channel.sink.finish().await.unwrap();
        for number in 0..100_u8 {
            assert_eq!(channel.source.next().await.unwrap().unwrap()[..], [number]);
        }
        assert_eq!(channel.source.next().await.unwrap(), None);
        assert_eq!(channel.source.next().await.unwrap(), None);
    });
}

#[test]
fn channel_survives_a_short_cut_and_breaks_at_a_long_one() {
    Simulated::seeded(1).simulate(async {
        let (network, _, transport) = with_echo(Weather::FAIR);
        let mut channel = transport.open(NodeId(2), Class::Control).await.unwrap();
        network.cut(ONE, TWO);
        channel.sink.send(Bytes::from_static(b"a")).await.unwrap();
        runtime::sleep(Duration::from_millis(300)).await;
        network.mend(ONE, TWO);
        assert_eq!(channel.source.next().await.unwrap().unwrap(), "a");
        network.cut(ONE, TWO);
        channel.sink.send(Bytes::from_static(b"b")).await.unwrap();
        runtime::sleep(Duration::from_secs(5)).await;
        assert!(channel.sink.send(Bytes::from_static(b"c")).await.is_err());
        assert!(channel.source.next().await.is_err());
    });
}

#[test]
fn peer_of_a_killed_host_learns_of_it_by_its_idle_timeout() {
    Simulated::seeded(1).simulate(async {
        let (network, _, transport) = with_echo(Weather::FAIR);
        let mut channel = transport.open(NodeId(2), Class::Control).await.unwrap();
        runtime::sleep(Duration::from_millis(10)).await;
        network.forget(TWO);
        runtime::kill(TWO);
        let before = runtime::true_now_ns();
        assert!(channel.source.next().await.is_err());
        assert!(runtime::true_now_ns() - before >= 1_000_000_000);
    });
}
