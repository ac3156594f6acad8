//! Where a node listens, and the address that it tells others.
//!
//! Ports are taken before anything is written to the disk, so that a start that fails for a taken port leaves no trace. The
//! rule: an address that reaches nobody is never told to anybody.

use std::net::{IpAddr, TcpListener, UdpSocket};

use holdfast_proto::node::NodeAddress;

use crate::cli::daemon::DaemonError;
use crate::cli::error::code;
use crate::config::Config;
use crate::net::quic::Listen;

/// Where the node listens, and where it says that it does.
pub(super) struct Sockets {
    pub(super) https: TcpListener,
    pub(super) listen: Listen,
    pub(super) address: NodeAddress,
}

/// Takes the ports before anything is written, so that a taken one leaves no trace. The UDP ports are given back for the
/// endpoints to take, all at once at the end: until then they also keep each other apart.
pub(super) fn open_sockets(config: &Config, toward: Option<IpAddr>) -> Result<Sockets, DaemonError> {
    let node = &config.node;
    let ip: IpAddr = node
        .bind
        .parse()
        .map_err(|_| usage(format!("--bind: `{}` is not an IP address", node.bind)))?;
    let host = advertised(node.host.as_deref(), ip, toward)?;
    let wanted = [node.port, node.lease_port, node.bulk_port];
    for (place, port) in wanted.iter().enumerate() {
        if *port != 0 && wanted[..place].contains(port) {
            return Err(usage(format!(
                "port {port} is named twice; --port, --lease-port and --bulk-port must differ"
            )));
        }
    }
    let https = TcpListener::bind((ip, node.port)).map_err(|error| taken("TCP", ip, node.port, &error))?;
    let main_port = https.local_addr().map_err(|error| DaemonError::failed(&error))?.port();
    let main = udp(ip, main_port)?;
    let (lease, bulk) = (udp(ip, node.lease_port)?, udp(ip, node.bulk_port)?);
    let port = |socket: &UdpSocket| {
        let local = socket.local_addr().map_err(|error| DaemonError::failed(&error))?;
        Ok(local.port())
    };
    let listen = Listen {
        ip,
        main_port: port(&main)?,
        lease_port: port(&lease)?,
        bulk_port: port(&bulk)?,
    };
    let address = NodeAddress {
        host,
        main_port,
        lease_port: listen.lease_port,
        bulk_port: listen.bulk_port,
    };
    Ok(Sockets { https, listen, address })
}

/// A UDP socket on the wanted port, or on a free one for 0.
fn udp(ip: IpAddr, wanted: u16) -> Result<UdpSocket, DaemonError> {
    UdpSocket::bind((ip, wanted)).map_err(|error| taken("UDP", ip, wanted, &error))
}

fn taken(kind: &str, ip: IpAddr, port: u16, error: &std::io::Error) -> DaemonError {
    let reason = format!(
        "cannot listen on {kind} {ip}:{port}: {error}; stop what uses the port, or choose others with --port, --lease-port and --bulk-port"
    );
    DaemonError {
        reason,
        exit_code: code::REFUSED,
    }
}

/// The host that others are told. An unspecified address reaches nobody, so a routable one is found, or asked for.
fn advertised(host: Option<&str>, ip: IpAddr, toward: Option<IpAddr>) -> Result<String, DaemonError> {
    match host {
        Some("0.0.0.0" | "::") => Err(usage(
            "--host: an unspecified address reaches nobody; name one that others can reach".to_owned(),
        )),
        Some(host) => Ok(host.to_owned()),
        None if !ip.is_unspecified() => Ok(ip.to_string()),
        None => {
            // Connecting a UDP socket sends nothing; it asks the kernel for the address that would be used.
            let far = toward.unwrap_or(IpAddr::from([192, 0, 2, 1]));
            let local = UdpSocket::bind((ip, 0)).and_then(|socket| {
                socket.connect((far, 9))?;
                socket.local_addr()
            });
            match local {
                Ok(address) if !address.ip().is_unspecified() => Ok(address.ip().to_string()),
                _ => Err(usage(
                    "no address of this machine was found that others could reach; name one with --host".to_owned(),
                )),
            }
        }
    }
}

pub(super) fn usage(reason: String) -> DaemonError {
    DaemonError {
        reason,
        exit_code: code::USAGE,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn config(ports: [u16; 3], host: Option<&str>, bind: &str) -> Config {
        let mut config = Config::default();
        [config.node.port, config.node.lease_port, config.node.bulk_port] = ports;
        config.node.host = host.map(str::to_owned);
        config.node.bind = bind.to_owned();
        config
    }

    fn refused(config: &Config) -> DaemonError {
        open_sockets(config, None).map(|_| ()).unwrap_err()
    }

    #[test]
    fn a_port_that_is_taken_or_named_twice_is_told_with_what_to_do() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (tcp, udp_port) = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
        for (ports, exit_code, told) in [
            ([tcp, 0, 0], code::REFUSED, format!("TCP 127.0.0.1:{tcp}")),
            ([0, udp_port, 0], code::REFUSED, format!("UDP 127.0.0.1:{udp_port}")),
            ([0, 0, udp_port], code::REFUSED, format!("UDP 127.0.0.1:{udp_port}")),
            ([7, 7, 0], code::USAGE, "port 7 is named twice".to_owned()),
            ([0, 7, 7], code::USAGE, "port 7 is named twice".to_owned()),
        ] {
            let error = refused(&config(ports, None, "127.0.0.1"));
            assert!(
                error.reason.contains(&told) && error.reason.contains("--lease-port"),
                "{error}"
            );
            assert_eq!(error.exit_code, exit_code, "{error}");
        }
        let sockets = open_sockets(&config([0, 0, 0], None, "127.0.0.1"), None).unwrap();
        let Listen {
            main_port,
            lease_port,
            bulk_port,
            ..
        } = sockets.listen;
        assert!(main_port != lease_port && lease_port != bulk_port && bulk_port != main_port);
    }

    #[test]
    fn an_address_that_reaches_nobody_is_not_told_to_others() {
        for host in ["0.0.0.0", "::"] {
            let error = refused(&config([0, 0, 0], Some(host), "127.0.0.1"));
            assert!(
                error.reason.contains("--host") && error.exit_code == code::USAGE,
                "{error}"
            );
        }
        let told = |bind, host, toward: Option<&str>| {
            let toward = toward.map(|address| address.parse().unwrap());
            open_sockets(&config([0, 0, 0], host, bind), toward).map(|sockets| sockets.address.host)
        };
        assert_eq!(told("127.0.0.1", None, None).unwrap(), "127.0.0.1");
        assert_eq!(told("127.0.0.1", Some("gpu1.example"), None).unwrap(), "gpu1.example");
        // Bound to every address, it tells the one that the other end would see.
        assert_eq!(told("0.0.0.0", None, Some("127.0.0.1")).unwrap(), "127.0.0.1");
        match told("0.0.0.0", None, None) {
            Ok(host) => assert!(!host.parse::<IpAddr>().unwrap().is_unspecified(), "{host}"),
            Err(error) => assert!(error.reason.contains("name one with --host"), "{error}"),
        }
        assert!(
            refused(&config([0, 0, 0], None, "999.1.1.1"))
                .reason
                .contains("not an IP address")
        );
    }
}
