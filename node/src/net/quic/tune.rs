//! How each socket and connection is tuned, and why.
//!
//! Owns socket buffers, MTU, windows, time-outs, and the keys that must survive a restart. Called when lanes are bound. The one rule:
//! what a peer's sleeping connection needs in order to learn that this node has restarted (reset tokens and connection ids) is derived
//! from the node's key, so the first packet after a restart is answered with a reset and the peer dials again at once.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use quinn::crypto::{CryptoError, HmacKey};
use quinn::{AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;

use crate::identity::Identity;
use crate::identity::secret::{Secret, same};
use crate::net::{Class, Lane};

/// Largest packet on the main and the bulk lane, where the way carries it (loopback, jumbo frames): at 6,500 bytes QUIC costs half the
/// CPU of 1,452. Above about 6,550 a batch of ten segments passes 64 KiB, `sendmsg` fails with EMSGSIZE, and quinn-udp takes that for
/// success: silent loss.
const MTU_MAX: u16 = 6_500;
/// Socket buffers of the bulk lane; the system's default loses packets.
const BULK_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// Socket buffers of the main lane: an append of many entries arrives in one burst.
const MAIN_BUFFER_BYTES: usize = 2 * 1024 * 1024;
/// So many packets may wait for one acknowledgement (for 25 ms at most), where others send one for every second packet. Questions and
/// answers are short here and acknowledge each other; a packet that only acknowledges wakes both ends for nothing.
const UNACKNOWLEDGED_PACKETS: u32 = 10;
/// Lower than quinn's 333 ms, so that a lost first packet is sent again after 0.3 s and not 1 s.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Keys that stay the same over restarts.
pub(super) struct ResetKey(Secret<[u8; 32]>);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(blake3::keyed_hash(self.0.expose(), data).as_bytes());
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        if same(blake3::keyed_hash(self.0.expose(), data).as_bytes(), signature) {
            Ok(())
        } else {
            Err(CryptoError)
        }
    }
}

/// The endpoint's configuration: reset tokens and connection ids that a restarted node still recognises as its own.
pub(super) fn endpoint_config(identity: &Identity, lane: Lane) -> EndpointConfig {
    let reset = ResetKey(identity.derive_key("quic stateless reset"));
    let mut config = EndpointConfig::new(Arc::new(reset));
    let mut id_key = [0; 8];
    id_key.copy_from_slice(&identity.derive_key("quic connection ids").expose()[..8]);
    let id_key = u64::from_be_bytes(id_key);
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(id_key)));
    if lane != Lane::Lease {
        config
            .max_udp_payload_size(MTU_MAX)
            .expect("the limit is above the least that QUIC allows");
    }
    config
}

/// How connections of the lane's accepting side behave. Idle times here are the upper bound; the dialling side shortens them.
pub(super) fn accepting(lane: Lane) -> TransportConfig {
    let mut config = base(lane);
    config.max_idle_timeout(Some(idle(Duration::from_secs(30))));
    config
}

/// How connections of a class behave on the dialling side.
pub(super) fn dialling(class: Class) -> TransportConfig {
    let mut config = base(class.lane());
    // A dead peer that sends no reset is noticed after the idle time, as long as something keeps the connection busy.
    let (idle_ms, keep_alive_ms) = match class {
        Class::Raft => (2_000, Some(500)),
        Class::Lease => (2_000, None),
        Class::Control | Class::Snapshot | Class::Transfer => (10_000, None),
        Class::Events => (10_000, Some(3_000)),
    };
    config.max_idle_timeout(Some(idle(Duration::from_millis(idle_ms))));
    config.keep_alive_interval(keep_alive_ms.map(Duration::from_millis));
    config
}

/// A client's socket.
pub(super) fn client_socket() -> io::Result<(EndpointConfig, UdpSocket)> {
    let mut config = EndpointConfig::default();
    config
        .max_udp_payload_size(MTU_MAX)
        .expect("the limit is above the least that QUIC allows");
    // Both families on one socket; a machine without IPv6 takes the other.
    let socket =
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    Ok((config, socket))
}

/// How a client's connection behaves: it is probed while it is idle, so that a node that died is noticed.
pub(super) fn client() -> TransportConfig {
    let mut config = base(Lane::Main);
    config.max_idle_timeout(Some(idle(Duration::from_secs(10))));
    config.keep_alive_interval(Some(Duration::from_secs(3)));
    config
}

fn base(lane: Lane) -> TransportConfig {
    let mut config = TransportConfig::default();
    config.initial_rtt(INITIAL_RTT);
    config.max_concurrent_uni_streams(VarInt::from_u32(0));
    config.max_concurrent_bidi_streams(VarInt::from_u32(256));
    config.datagram_receive_buffer_size(None);
    if lane != Lane::Bulk {
        let mut acknowledge = AckFrequencyConfig::default();
        acknowledge.ack_eliciting_threshold(VarInt::from_u32(UNACKNOWLEDGED_PACKETS));
        config.ack_frequency_config(Some(acknowledge));
    }
    if lane != Lane::Lease {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(MTU_MAX);
        config.mtu_discovery_config(Some(discovery));
    }
    match lane {
        Lane::Main => {
            config.stream_receive_window(VarInt::from_u32(8 * 1024 * 1024));
            config.receive_window(VarInt::from_u32(32 * 1024 * 1024));
            config.send_window(32 * 1024 * 1024);
        }
        Lane::Lease => {
            config.mtu_discovery_config(None);
        }
        Lane::Bulk => {
            config.stream_receive_window(VarInt::from_u32(16 * 1024 * 1024));
            config.receive_window(VarInt::from_u32(32 * 1024 * 1024));
            config.send_window(32 * 1024 * 1024);
        }
    }
    config
}

fn idle(time: Duration) -> IdleTimeout {
    IdleTimeout::try_from(time).expect("seconds fit into a QUIC integer")
}

/// Binds the lane's socket.
pub(super) fn bind(at: SocketAddr, lane: Lane) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(at)?;
    let bytes = match lane {
        Lane::Main => MAIN_BUFFER_BYTES,
        Lane::Bulk => BULK_BUFFER_BYTES,
        Lane::Lease => return Ok(socket),
    };
    // Only a privileged process may pass the system's limit; the plain option then takes what is allowed.
    if setsockopt(&socket, sockopt::RcvBufForce, &bytes).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &bytes)?;
    }
    if setsockopt(&socket, sockopt::SndBufForce, &bytes).is_err() {
        setsockopt(&socket, sockopt::SndBuf, &bytes)?;
    }
    Ok(socket)
}
