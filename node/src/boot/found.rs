//! How a node comes to its identity: founding a cluster, being admitted to one, or finding both in its data folder.
//!
//! Nothing runs yet when these return. The rule: a folder becomes a node in one write, the last one, so a crash before
//! it leaves a folder that can be used again.

use std::error::Error as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use holdfast_proto::id::{ClusterId, Name, NodeId, ParseIdError};
use holdfast_proto::node::{NodeAddress, NodeRole};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::time::{Span, Timestamp};

use super::kept::{Kept, unwritten};
use super::sockets::{Sockets, open_sockets, usage};
use crate::bearer::Bearer;
use crate::cli::daemon::DaemonError;
use crate::cli::error::{chain, code};
use crate::config::Config;
use crate::device::sim::SimSpec;
use crate::env::{Clock, Entropy, OsClock, OsEntropy};
use crate::identity::authority::NodeKey;
use crate::identity::folder::{DataFolder, FolderError, NodeFile, write_durably};
use crate::identity::{Identity, IdentityError};
use crate::join::{JoinAnswer, JoinRequest, JoinToken, Peer, TokenError};
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

/// Why no cluster was founded.
#[derive(Debug, thiserror::Error)]
pub(super) enum FoundError {
    /// The folder refused.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Another step failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

impl FoundError {
    /// The error of the command.
    pub(super) fn told(self) -> DaemonError {
        match self {
            Self::Folder(error) => DaemonError::refused(&error),
            Self::Daemon(error) => error,
        }
    }
}

/// Founds a cluster of one. A founding that was cut short is gone on with.
pub(super) fn found(config: &Config) -> Result<Beginning, DaemonError> {
    let mut cluster = ClusterId::default();
    OsEntropy.fill(&mut cluster.0);
    match found_as(config, cluster, |_, _, _| Ok(())) {
        Err(FoundError::Folder(error @ FolderError::Occupied { .. })) => {
            unfinished(config).ok_or_else(|| DaemonError::refused(&error))?
        }
        other => other.map_err(FoundError::told),
    }
}

/// Founds a cluster of one under an id that is given; `prepare` puts what it begins with into the folder.
pub(super) fn found_as(
    config: &Config,
    cluster: ClusterId,
    prepare: impl FnOnce(&DataFolder, NodeId, &NodeAddress) -> Result<(), IdentityError>,
) -> Result<Beginning, FoundError> {
    let (label, zone, simulate) = names(config)?;
    let sockets = open_sockets(config, None)?;
    let folder = DataFolder::create(&config.data, None)?;
    let kept = kept(config, &sockets, zone.clone(), NodeRole::Replica, true, Vec::new());
    kept.write(&folder)?;
    let hosts = [sockets.address.host.clone()];
    let founded = Identity::found_as(&folder, cluster, label.as_str(), &hosts, OsClock.wall_ms(), |node| {
        prepare(&folder, node, &sockets.address)
    });
    let (identity, file) = founded.map_err(|error| DaemonError::failed(&error))?;
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

/// The founding that the data folder holds, when it did not get as far as a cluster.
fn unfinished(config: &Config) -> Option<Result<Beginning, DaemonError>> {
    let (folder, file) = DataFolder::open(&config.data).ok()?;
    let founds = Kept::read(&folder).is_ok_and(|kept| kept.founds) && !file.established;
    // It is opened again: the lock goes with the value.
    drop(folder);
    founds.then(|| resume(config))
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
    let kept = kept(config, &sockets, zone.clone(), token.role, false, answer.nodes.clone());
    kept.write(&folder)?;
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
        let peers = self.peers.clone();
        let mut kept = kept(config, &self.sockets, self.zone.clone(), self.role, self.founds, peers);
        kept.simulate = kept.simulate.or_else(|| Kept::read(&self.folder).ok()?.simulate);
        kept.write(&self.folder)
    }

    /// The operator's token that the founding draws: one and the same however often it is begun, because the log may have
    /// taken it already. The file is there until its owner has it.
    pub(super) fn operator(&self) -> Result<Bearer, DaemonError> {
        if let Some(drawn) = self.undelivered_operator() {
            return Ok(drawn);
        }
        let (path, operator) = (self.operator_path(), Bearer::draw(&OsEntropy));
        let text = operator.reveal();
        write_durably(&path, text.expose().as_bytes(), 0o600).map_err(|error| unwritten(&path, &error))?;
        Ok(operator)
    }

    /// The operator's token, while nobody was told it.
    pub(super) fn undelivered_operator(&self) -> Option<Bearer> {
        let text = std::fs::read_to_string(self.operator_path()).ok()?;
        text.parse().ok()
    }

    /// Forgets the operator's token: its owner has it.
    pub(super) fn operator_delivered(&self) {
        // Without it, there is nothing to forget.
        let _ = std::fs::remove_file(self.operator_path());
    }

    fn operator_path(&self) -> PathBuf {
        self.folder.part("identity").join("operator.token")
    }
}

fn kept(config: &Config, sockets: &Sockets, zone: Name, role: NodeRole, founds: bool, peers: Vec<Peer>) -> Kept {
    Kept {
        zone,
        role,
        founds,
        simulate: config.devices.simulate.clone(),
        bind: sockets.listen.ip.to_string(),
        address: sockets.address.clone(),
        peers,
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

/// Why nobody was asked: most often the token is of another cluster, and then the error says so.
fn unanswered(address: &str, error: &reqwest::Error) -> DaemonError {
    if is_another_authority(error) {
        return DaemonError::refused(&TokenError::Foreign {
            address: address.to_owned(),
        });
    }
    DaemonError {
        reason: format!(
            "no node answers at {address}; is one running there, and may this machine reach its TCP port? ({})",
            chain(error.source().unwrap_or(error))
        ),
        exit_code: code::UNAVAILABLE,
    }
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
            reason: aged(problem, OsClock.wall_ms()),
            exit_code: code::REFUSED,
        }),
        Err(_) => Err(DaemonError {
            reason: format!("the node at {address} answered {status}"),
            exit_code: code::UNAVAILABLE,
        }),
    }
}

/// What a node said, and how long ago a token that is too old has expired.
fn aged(problem: Problem, now_ms: u64) -> String {
    match problem.rejection {
        Some(Rejection::TokenExpired { expired, .. }) => {
            let ago = Span::seconds(Timestamp(now_ms).since(expired).0 / 1_000);
            format!("{} (that was {ago} ago)", problem.detail)
        }
        _ => problem.detail,
    }
}

/// Longest wait for an admission: a log entry and a signature.
const JOIN_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

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
