//! The simulated network: every node's transport, with delay, loss, duplication, reordering, one-way cuts and splits.
//!
//! It implements the production [`Transport`] seam, so what runs on it is the product's own network code. A lost
//! request is one that is never answered, and in the end the connection is given up; frames of one channel arrive in
//! order, late when a packet was lost, and the channel breaks when a cut outlasts its idle timeout.
//! The one rule: each direction of each link draws from a stream of its own, so that one fault more or less changes
//! only what it touches.

mod channel;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_node::net::{Channel, Class, NetError, Service, Transport};
use holdfast_proto::id::NodeId;
use tokio::sync::oneshot;

use crate::random::Stream;
use crate::runtime::{self, Host};
use crate::trace::{Kind, digest};

/// Least and most silence after which a connection is given up; QUIC's idle timeout, drawn for each.
const GIVE_UP_MS: (u64, u64) = (1_000, 3_000);

/// Most that a packet which was lost delays the frames behind it.
const RETRANSMIT_MS: (u64, u64) = (20, 300);

/// How the links behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Weather {
    /// Least one-way delay.
    pub delay_min_us: u64,
    /// Most one-way delay of a packet without bad luck.
    pub delay_max_us: u64,
    /// Packets of 1,000 that have bad luck.
    pub tail_permille: u64,
    /// Most further delay of those.
    pub tail_us: u64,
    /// Packets of 1,000 that are lost.
    pub loss_permille: u64,
    /// Requests of 1,000 that arrive twice.
    pub duplicate_permille: u64,
}

impl Weather {
    /// One metro on a good day.
    pub const FAIR: Self = Self {
        delay_min_us: 100,
        delay_max_us: 900,
        tail_permille: 5,
        tail_us: 8_000,
        loss_permille: 0,
        duplicate_permille: 0,
    };
}

/// What became of the packets so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    /// Requests, answers and frames that were sent.
    pub sent: u64,
    /// Those that arrived.
    pub delivered: u64,
    /// Those lost by bad luck.
    pub lost: u64,
    /// Those that a cut swallowed.
    pub cut: u64,
    /// Requests that arrived a second time.
    pub duplicated: u64,
}

struct Wires {
    weather: Weather,
    cuts: BTreeSet<(Host, Host)>,
    links: BTreeMap<(Host, Host), Stream>,
    services: BTreeMap<(Host, Class), Arc<dyn Service>>,
    lives: BTreeMap<Host, u64>,
    serials: u64,
    traffic: Traffic,
}

/// The network that all hosts of a world share; clones are the same network.
#[derive(Clone)]
pub struct Network {
    wires: Arc<Mutex<Wires>>,
}

/// A packet under way: when it arrives, if it does.
struct Flight {
    serial: u64,
    /// One arrival, two when it is duplicated, none when it is lost.
    delays: Vec<Duration>,
}

impl Default for Network {
    fn default() -> Self {
        Self::new(Weather::FAIR)
    }
}

impl Network {
    /// A network without hosts.
    pub fn new(weather: Weather) -> Self {
        let wires = Wires {
            weather,
            cuts: BTreeSet::new(),
            links: BTreeMap::new(),
            services: BTreeMap::new(),
            lives: BTreeMap::new(),
            serials: 0,
            traffic: Traffic::default(),
        };
        Self {
            wires: Arc::new(Mutex::new(wires)),
        }
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a host its service of one class.
    pub fn serve(&self, host: Host, class: Class, service: Arc<dyn Service>) {
        self.wires().services.insert((host, class), service);
    }

    /// A host's process has ended: its services are gone, and so is every connection that it had.
    pub fn forget(&self, host: Host) {
        let dropped = {
            let mut wires = self.wires();
            *wires.lives.entry(host).or_default() += 1;
            let (gone, kept) = std::mem::take(&mut wires.services)
                .into_iter()
                .partition(|((of, _), _)| *of == host);
            wires.services = kept;
            let gone: BTreeMap<(Host, Class), Arc<dyn Service>> = gone;
            gone
        };
        drop(dropped);
    }

    /// The transport of one host.
    pub fn transport(&self, host: Host) -> SimulatedTransport {
        SimulatedTransport {
            network: self.clone(),
            from: host,
        }
    }

    /// Changes how all links behave from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.wires().weather = weather;
    }

    /// Stops everything that `from` says to `to`; the other direction is another cut.
    pub fn cut(&self, from: Host, to: Host) {
        self.wires().cuts.insert((from, to));
    }

    /// Undoes a cut.
    pub fn mend(&self, from: Host, to: Host) {
        self.wires().cuts.remove(&(from, to));
    }

    /// Undoes every cut.
    pub fn mend_all(&self) {
        self.wires().cuts.clear();
    }

    /// What became of the packets so far.
    pub fn traffic(&self) -> Traffic {
        self.wires().traffic
    }

    fn is_cut(&self, from: Host, to: Host) -> bool {
        self.wires().cuts.contains(&(from, to))
    }

    fn life(&self, host: Host) -> u64 {
        self.wires().lives.get(&host).copied().unwrap_or(0)
    }

    fn service(&self, host: Host, class: Class) -> Option<Arc<dyn Service>> {
        self.wires().services.get(&(host, class)).cloned()
    }

    fn draw<T>(&self, from: Host, to: Host, draw: impl FnOnce(&mut Stream) -> T) -> T {
        let mut wires = self.wires();
        let link = wires.links.entry((from, to));
        draw(link.or_insert_with(|| runtime::stream("link", &[from.0, to.0])))
    }

    fn give_up_after(&self, from: Host, to: Host) -> Duration {
        let (least, most) = GIVE_UP_MS;
        Duration::from_millis(self.draw(from, to, |link| link.between(least, most)))
    }

    /// Sends a packet. All of its draws are made here, whatever befalls it, so that later draws stay where they were.
    fn launch(&self, from: Host, to: Host, bytes: &[u8]) -> Flight {
        let weather = self.wires().weather;
        let (delay_us, lost, twice, again_us) = self.draw(from, to, |link| {
            let base = link.between(weather.delay_min_us, weather.delay_max_us);
            let tail = if link.chance(weather.tail_permille) {
                link.below(weather.tail_us + 1)
            } else {
                0
            };
            let (lost, twice) = (
                link.chance(weather.loss_permille),
                link.chance(weather.duplicate_permille),
            );
            (
                base + tail,
                lost,
                twice,
                link.between(weather.delay_min_us, weather.delay_max_us * 100),
            )
        });
        let (serial, cut) = {
            let mut wires = self.wires();
            wires.serials += 1;
            let cut = wires.cuts.contains(&(from, to));
            wires.traffic.sent += 1;
            wires.traffic.cut += u64::from(cut);
            wires.traffic.lost += u64::from(lost && !cut);
            wires.traffic.duplicated += u64::from(twice && !lost && !cut);
            (wires.serials, cut)
        };
        runtime::note(from, Kind::Send, [to.0, serial, digest(bytes)]);
        let mut delays = Vec::new();
        if lost || cut {
            runtime::note(from, Kind::Drop, [to.0, serial, u64::from(cut)]);
        } else {
            delays.push(Duration::from_micros(delay_us));
            if twice {
                delays.push(Duration::from_micros(delay_us + again_us));
            }
        }
        Flight { serial, delays }
    }

    /// Reports whether a packet that has flown its time arrives: not when the link was cut meanwhile.
    fn lands(&self, from: Host, to: Host, serial: u64, bytes: &[u8]) -> bool {
        if self.is_cut(from, to) {
            self.wires().traffic.cut += 1;
            runtime::note(from, Kind::Drop, [to.0, serial, 1]);
            return false;
        }
        self.wires().traffic.delivered += 1;
        runtime::note(to, Kind::Deliver, [from.0, serial, digest(bytes)]);
        true
    }
}

/// One host's side of the network.
#[derive(Clone)]
pub struct SimulatedTransport {
    network: Network,
    from: Host,
}

/// One request on its way to one host.
struct Call {
    network: Network,
    from: Host,
    to: Host,
    class: Class,
    request: Bytes,
    /// The life of the receiver that the connection leads to: a restarted process knows no old connection.
    life: u64,
}

impl Call {
    /// Flies, is answered, and brings the answer back; nothing when either way is lost.
    async fn travel(self, delay: Duration, serial: u64) -> Option<Result<Bytes, NetError>> {
        let (from, to) = (self.from, self.to);
        runtime::sleep(delay).await;
        if !self.network.lands(from, to, serial, &self.request) {
            return None;
        }
        let node = NodeId(to.0);
        let service = self
            .network
            .service(to, self.class)
            .filter(|_| self.network.life(to) == self.life);
        let answer = match service {
            None => Err(NetError::Unreachable {
                node,
                why: "nobody listens".to_owned(),
            }),
            Some(service) => {
                let answer = runtime::spawn_on(to, service.call(NodeId(from.0), self.request)).await;
                // A host that dies over a request answers nothing.
                answer.ok()?.map_err(|refusal| NetError::Refused {
                    node,
                    why: refusal.to_string(),
                })
            }
        };
        let bytes = answer.as_ref().map_or(Bytes::new(), Bytes::clone);
        let flight = self.network.launch(to, from, &bytes);
        runtime::sleep(*flight.delays.first()?).await;
        self.network.lands(to, from, flight.serial, &bytes).then_some(answer)
    }
}

impl Transport for SimulatedTransport {
    fn call(&self, to: NodeId, class: Class, request: Bytes) -> BoxFuture<'static, Result<Bytes, NetError>> {
        let Self { network, from } = self.clone();
        Box::pin(async move {
            let to = Host(to.0);
            let flight = network.launch(from, to, &request);
            let give_up = network.give_up_after(from, to);
            let (sender, receiver) = oneshot::channel();
            let mut sender = Some(sender);
            for delay in flight.delays {
                let life = network.life(to);
                let call = Call {
                    network: network.clone(),
                    from,
                    to,
                    class,
                    request: request.clone(),
                    life,
                };
                let (sender, serial) = (sender.take(), flight.serial);
                // The wire is nobody's: a request goes on when its sender dies.
                runtime::spawn_on(Host::WORLD, async move {
                    let answer = call.travel(delay, serial).await;
                    match (sender, answer) {
                        (Some(sender), Some(answer)) => drop(sender.send(answer)),
                        // Kept until the connection is given up: silence looks the same whichever way was lost.
                        (Some(sender), None) => {
                            runtime::sleep(give_up).await;
                            drop(sender);
                        }
                        (None, _) => {}
                    }
                });
            }
            if let Some(lost) = sender {
                runtime::sleep(give_up).await;
                drop(lost);
            }
            let silence = || NetError::Lost {
                node: NodeId(to.0),
                why: "no answer before the idle timeout".to_owned(),
            };
            receiver.await.unwrap_or_else(|_| Err(silence()))
        })
    }

    fn open(&self, to: NodeId, class: Class) -> BoxFuture<'static, Result<Channel, NetError>> {
        let Self { network, from } = self.clone();
        Box::pin(channel::open(network, from, Host(to.0), class))
    }
}

#[cfg(test)]
mod tests;
