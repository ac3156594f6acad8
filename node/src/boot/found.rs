//! How a node comes to its identity: founding a cluster, being admitted to one, or finding both in its data folder.
//!
//! Nothing runs yet when these return. The rule: a folder becomes a node in one write, the last one, so a crash before
//! it leaves a folder that can be used again.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use holdfast_proto::id::{Name, ParseIdError};
use holdfast_proto::node::{NodeAddress, NodeRole};

use crate::cli::daemon::DaemonError;
use crate::config::Config;
use crate::device::sim::SimSpec;
use crate::env::{Clock, OsClock, OsEntropy};
use crate::identity::Identity;
use crate::identity::authority::NodeKey;
use crate::identity::folder::{DataFolder, NodeFile, write_durably};
use crate::join::{JoinAnswer, JoinRequest, JoinToken, Peer, TokenError};
use crate::net::quic::Listen;
use crate::net::tls::{is_another_authority, joining_client};
use crate::wire::problem::Problem;

/// A node that knows who it is.
pub(super) struct Beginning {
    pub(super) folder: DataFolder,
    pub(super) file: NodeFile,
    pub(super) identity: Arc<Identity>,
    pub(super) label: Name,
    pub(super) zone: Name,
    pub(super) role: NodeRole,
    pub(super) sockets: Sockets,
    /// This node founds the cluster: it writes the first entry.
    pub(super) founds: bool,
    /// Nodes to begin with.
    pub(super) peers: Vec<Peer>,
    pub(super) simulate: Option<SimSpec>,
}

/// Where the node listens, and where it says that it does.
pub(super) struct Sockets {
    pub(super) https: TcpListener,
    pub(super) listen: Listen,
    pub(super) address: NodeAddress,
}

/// Founds a cluster of one.
pub(super) fn found(config: &Config) -> Result<Beginning, DaemonError> {
    let (label, zone, simulate) = names(config)?;
    let sockets = open_sockets(config, None)?;
    let folder = DataFolder::create(&config.data, None).map_err(|error| DaemonError::refused(&error))?;
    let hosts = [sockets.address.host.clone()];
    let (identity, file) = Identity::found(&folder, label.as_str(), &hosts, OsClock.wall_ms(), &OsEntropy)
        .map_err(|error| DaemonError::failed(&error))?;
    Ok(Beginning {
        folder,
        file,
        identity: Arc::new(identity),
        label,
        zone,
        role: NodeRole::Replica,
        sockets,
        founds: true,
        peers: Vec::new(),
        simulate,
    })
}

/// Has this machine admitted to the cluster behind `address`.
pub(super) fn join(config: &Config, address: &str, token: &JoinToken) -> Result<Beginning, DaemonError> {
    let (label, zone, simulate) = names(config)?;
    let toward = address.parse::<SocketAddr>().ok().map(|address| address.ip());
    let sockets = open_sockets(config, toward)?;
    let folder = DataFolder::create(&config.data, None).map_err(|error| DaemonError::refused(&error))?;
    let key = NodeKey::generate().map_err(|error| DaemonError::failed(&error))?;
    let request = JoinRequest::new(token, &key, label.clone(), zone.clone(), sockets.address.clone());
    let answer = super::briefly(ask(address, token, &request))??;
    let (certificate, authority) = answer
        .verify(token, &key, OsClock.wall_ms())
        .map_err(|error| DaemonError::refused(&error))?;
    let (identity, file) = Identity::settle(&folder, label.as_str(), &key, certificate, authority)
        .map_err(|error| DaemonError::failed(&error))?;
    Ok(Beginning {
        folder,
        file,
        identity: Arc::new(identity),
        label,
        zone,
        role: token.role,
        sockets,
        founds: false,
        peers: answer.nodes,
        simulate,
    })
}

/// Finds the node in its data folder. What was said when it was made holds until something else is said.
pub(super) fn resume(config: &Config) -> Result<Beginning, DaemonError> {
    let (folder, file) = DataFolder::open(&config.data).map_err(|error| DaemonError::refused(&error))?;
    let identity = Identity::load(&folder, &file).map_err(|error| DaemonError::failed(&error))?;
    let kept = Kept::read(&folder)?;
    let config = kept.under(config);
    let (_, zone, simulate) = names(&config)?;
    let label = file.label.parse().map_err(|error| DaemonError::failed(&error))?;
    let sockets = open_sockets(&config, None)?;
    Ok(Beginning {
        label,
        zone,
        role: kept.role,
        sockets,
        founds: kept.founds && !file.established,
        peers: kept.peers,
        simulate,
        folder,
        file,
        identity: Arc::new(identity),
    })
}

/// What a node was told when it was made, so that `serve` needs no flags.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Kept {
    zone: Name,
    role: NodeRole,
    founds: bool,
    simulate: Option<String>,
    bind: String,
    address: NodeAddress,
    peers: Vec<Peer>,
}

const KEPT_FILE: &str = "settings.json";

impl Kept {
    fn read(folder: &DataFolder) -> Result<Self, DaemonError> {
        let path = folder.part(KEPT_FILE);
        let damaged = |why: String| DaemonError {
            reason: format!(
                "cannot read {}: {why}; move the data folder away and join again as a new node",
                path.display()
            ),
            exit_code: 1,
        };
        let bytes = std::fs::read(&path).map_err(|error| damaged(error.to_string()))?;
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))
    }

    /// The configuration, with what was kept in every place that says nothing of its own.
    fn under(&self, config: &Config) -> Config {
        let (mut config, silent) = (config.clone(), Config::default());
        let node = &mut config.node;
        let kept = [self.address.main_port, self.address.lease_port, self.address.bulk_port];
        let spoken = [
            (&mut node.port, silent.node.port),
            (&mut node.lease_port, silent.node.lease_port),
            (&mut node.bulk_port, silent.node.bulk_port),
        ];
        for ((port, default), kept) in spoken.into_iter().zip(kept) {
            if *port == default {
                *port = kept;
            }
        }
        if node.bind == silent.node.bind {
            node.bind.clone_from(&self.bind);
        }
        node.zone = self.zone.to_string();
        node.host = node.host.take().or_else(|| Some(self.address.host.clone()));
        config.devices.simulate = config.devices.simulate.take().or_else(|| self.simulate.clone());
        config
    }
}

impl Beginning {
    /// Notes that the node has Raft data from now on, which it must never be without again.
    pub(super) fn establish(&self) -> Result<(), DaemonError> {
        if self.file.established {
            return Ok(());
        }
        self.folder
            .mark_established(&self.file)
            .map_err(|error| DaemonError::failed(&error))
    }

    /// Keeps what the node was told, and where it listens now.
    pub(super) fn keep(&self, config: &Config) -> Result<(), DaemonError> {
        let kept = Kept {
            zone: self.zone.clone(),
            role: self.role,
            founds: self.founds,
            simulate: config
                .devices
                .simulate
                .clone()
                .or_else(|| Kept::read(&self.folder).ok()?.simulate),
            bind: self.sockets.listen.ip.to_string(),
            address: self.sockets.address.clone(),
            peers: self.peers.clone(),
        };
        let text = serde_json::to_vec_pretty(&kept).map_err(|error| DaemonError::failed(&error))?;
        write_durably(&self.folder.part(KEPT_FILE), &text, 0o600).map_err(|error| DaemonError::failed(&error))
    }
}

/// The label, the zone and the devices that the configuration names, checked.
fn names(config: &Config) -> Result<(Name, Name, Option<SimSpec>), DaemonError> {
    let host = || {
        nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .unwrap_or_default()
    };
    let label = config
        .node
        .label
        .clone()
        .unwrap_or_else(|| host().to_lowercase().replace('.', "-"));
    let label = label
        .parse()
        .map_err(|error: ParseIdError| usage(format!("--name: {error}")))?;
    let zone = config
        .node
        .zone
        .parse()
        .map_err(|error: ParseIdError| usage(format!("--zone: {error}")))?;
    let simulate = config
        .devices
        .simulate
        .as_deref()
        .map(str::parse::<SimSpec>)
        .transpose();
    Ok((
        label,
        zone,
        simulate.map_err(|error| usage(format!("--simulate: {error}")))?,
    ))
}

fn usage(reason: String) -> DaemonError {
    DaemonError { reason, exit_code: 64 }
}

/// Takes the ports before anything is written, so that a taken one leaves no trace.
fn open_sockets(config: &Config, toward: Option<IpAddr>) -> Result<Sockets, DaemonError> {
    let node = &config.node;
    let ip: IpAddr = node
        .bind
        .parse()
        .map_err(|_| usage(format!("--bind: `{}` is not an IP address", node.bind)))?;
    let host = advertised(node.host.as_deref(), ip, toward)?;
    let https = TcpListener::bind((ip, node.port)).map_err(|error| taken("TCP", ip, node.port, &error))?;
    let main_port = https.local_addr().map_err(|error| DaemonError::failed(&error))?.port();
    let listen = Listen {
        ip,
        main_port,
        lease_port: free_port(ip, node.lease_port)?,
        bulk_port: free_port(ip, node.bulk_port)?,
    };
    free_port(ip, main_port)?;
    let address = NodeAddress {
        host,
        main_port,
        lease_port: listen.lease_port,
        bulk_port: listen.bulk_port,
    };
    Ok(Sockets { https, listen, address })
}

/// A UDP port that can be listened on: the wanted one, or a free one for 0.
fn free_port(ip: IpAddr, wanted: u16) -> Result<u16, DaemonError> {
    let socket = UdpSocket::bind((ip, wanted)).map_err(|error| taken("UDP", ip, wanted, &error))?;
    Ok(socket.local_addr().map_err(|error| DaemonError::failed(&error))?.port())
}

fn taken(kind: &str, ip: IpAddr, port: u16, error: &std::io::Error) -> DaemonError {
    let reason = format!(
        "cannot listen on {kind} {ip}:{port}: {error}; stop what uses the port, or choose others with --port, --lease-port and --bulk-port"
    );
    DaemonError { reason, exit_code: 1 }
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

/// Why nobody was asked: most often the token is of another cluster, and then the error says so.
fn unanswered(address: &str, error: &reqwest::Error) -> DaemonError {
    if is_another_authority(error) {
        return DaemonError::refused(&TokenError::Foreign {
            address: address.to_owned(),
        });
    }
    DaemonError::unavailable(error)
}

/// Asks a node of the cluster to admit this machine. The authority is checked before the secret is sent.
async fn ask(address: &str, token: &JoinToken, request: &JoinRequest) -> Result<JoinAnswer, DaemonError> {
    let tls = joining_client(token.authority).map_err(|error| DaemonError::failed(&error))?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .https_only(true)
        .no_proxy();
    let client = client
        .timeout(JOIN_WITHIN)
        .build()
        .map_err(|error| DaemonError::failed(&error))?;
    let sent = client
        .post(format!("https://{address}/v1/join"))
        .json(request)
        .send()
        .await;
    let response = sent.map_err(|error| unanswered(address, &error))?;
    if response.status().is_success() {
        return response.json().await.map_err(|error| DaemonError::failed(&error));
    }
    let status = response.status();
    match response.json::<Problem>().await {
        Ok(problem) => Err(DaemonError {
            reason: problem.detail,
            exit_code: 1,
        }),
        Err(_) => Err(DaemonError {
            reason: format!("the node at {address} answered {status}"),
            exit_code: 69,
        }),
    }
}

/// Longest wait for an admission: a log entry and a signature.
const JOIN_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::id::ClusterId;

    use super::*;
    use crate::identity::authority::{Authority, fingerprint};
    use crate::net::tls::https_server;

    #[tokio::test]
    async fn a_token_of_another_cluster_is_told_as_such() {
        let cluster = ClusterId([3; 16]);
        let now_ms = OsClock.wall_ms();
        let (ours, theirs) = (
            Authority::found(cluster, now_ms).unwrap(),
            Authority::found(cluster, now_ms).unwrap(),
        );
        let key = NodeKey::generate().unwrap();
        let certificate = theirs.issue(&key.spki(), cluster, &[], now_ms).unwrap();
        let server = Identity::assemble(&key, certificate, theirs.certificate().clone()).unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let session = rustls::ServerConnection::new(Arc::new(https_server(&server).unwrap())).unwrap();
        let serving = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut session = session;
            // Ends with the client's refusal.
            let _ = session.complete_io(&mut socket);
        });

        let token = JoinToken::draw(NodeRole::Replica, fingerprint(ours.certificate()).unwrap(), &OsEntropy);
        let place = NodeAddress {
            host: "h".into(),
            main_port: 1,
            lease_port: 2,
            bulk_port: 3,
        };
        let request = JoinRequest::new(&token, &key, "a".parse().unwrap(), "z".parse().unwrap(), place);
        let refused = ask(&address, &token, &request).await.unwrap_err();
        assert!(refused.reason.contains("of another cluster"), "{refused}");
        serving.join().unwrap();
    }
}
