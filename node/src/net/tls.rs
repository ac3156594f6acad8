//! TLS of the cluster: who is let in, on both sides of every connection.
//!
//! Owns the rustls configurations: node to node (mutual, QUIC), the HTTPS server, its clients, and a joining machine. Called by
//! [`super::quic`], the HTTP interface and the command line. The one rule: between nodes, a certificate counts only when the cluster's
//! authority signed it, its key hashes to the node id in its name, and the cluster id is ours; a dialled node must also be the one meant.
//!
//! A certificate that is not valid *yet* is accepted between nodes: only a clock that stepped back sees one, and cutting such a node
//! off would make a wall clock matter. Sessions are never resumed, because a resumed one would skip these checks.

use std::sync::Arc;

use holdfast_proto::id::{ClusterId, NodeId};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::Class;
use super::book::Admission;
use crate::identity::Identity;
use crate::identity::authority::fingerprint;
use crate::identity::certificate::{Subject, cluster_name, node_name};
use crate::identity::secret::same;
use crate::wire::lane;

/// Why a configuration could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The TLS stack refused a part.
    #[error("cannot set up TLS")]
    Setup(#[source] Error),
    /// The authority cannot be used as a root.
    #[error("cannot use the cluster's authority as a root of trust")]
    Verifier(#[source] rustls::client::VerifierBuilderError),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots(authority: &CertificateDer<'static>) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).map_err(TlsError::Setup)?;
    Ok(Arc::new(roots))
}

/// The server side of node-to-node connections, for the classes of one socket.
///
/// A socket that also serves `clients` lets them in without a certificate, under their own protocol name. A connection that speaks for
/// a node shows one under every other name, or is dropped before anything is read from it (see `quic/serve.rs`).
pub fn peer_server(
    identity: &Identity,
    admission: Arc<Admission>,
    classes: &[Class],
    clients: bool,
) -> Result<ServerConfig, TlsError> {
    let inner = WebPkiClientVerifier::builder_with_provider(roots(identity.authority())?, provider())
        .build()
        .map_err(TlsError::Verifier)?;
    let verifier = PeerVerifier {
        members: Members {
            cluster: identity.cluster,
            admission,
        },
        client: Some(inner),
        server: None,
        clients,
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Setup)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(identity.chain(), identity.private_key())
        .map_err(TlsError::Setup)?;
    let names = classes.iter().map(|class| class.alpn());
    config.alpn_protocols = names.chain(clients.then_some(lane::ALPN)).map(<[u8]>::to_vec).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The client side of node-to-node connections of one class.
pub fn peer_client(identity: &Identity, admission: Arc<Admission>, class: Class) -> Result<ClientConfig, TlsError> {
    let inner = server_verifier(identity.authority())?;
    let verifier = PeerVerifier {
        members: Members {
            cluster: identity.cluster,
            admission,
        },
        client: None,
        server: Some(inner),
        clients: false,
    };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Setup)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(identity.chain(), identity.private_key())
        .map_err(TlsError::Setup)?;
    config.alpn_protocols = vec![class.alpn().to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The HTTPS server. Clients prove themselves by bearer tokens, not by certificates.
pub fn https_server(identity: &Identity) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_no_client_auth()
        .with_single_cert(identity.chain(), identity.private_key())
        .map_err(TlsError::Setup)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// An HTTPS client of a known cluster: any node of it will do, wherever it is reached.
pub fn https_client(authority: &CertificateDer<'static>, cluster: ClusterId) -> Result<ClientConfig, TlsError> {
    let verifier = ClusterVerifier {
        inner: server_verifier(authority)?,
        name: name_of(&cluster_name(cluster))?,
    };
    client_without_certificate(Arc::new(verifier))
}

/// A client of the client lane of a known cluster, under the same rule; it proves itself by its bearer token.
pub fn lane_client(authority: &CertificateDer<'static>, cluster: ClusterId) -> Result<ClientConfig, TlsError> {
    let verifier = ClusterVerifier {
        inner: server_verifier(authority)?,
        name: name_of(&cluster_name(cluster))?,
    };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Setup)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![lane::ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// An HTTPS client that knows no more than the fingerprint in a join token. The authority that the other side shows must have it.
pub fn joining_client(authority_fingerprint: [u8; 32]) -> Result<ClientConfig, TlsError> {
    client_without_certificate(Arc::new(PinnedVerifier {
        authority_fingerprint,
        provider: provider(),
    }))
}

/// Whether an error, or one of its causes, is that the other side showed another authority than the one expected: a join token of
/// another cluster, or a man in the middle.
pub fn is_another_authority(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<Error>() {
        return matches!(error, Error::InvalidCertificate(CertificateError::UnknownIssuer));
    }
    // The source of an I/O error is that of the error inside it, so what is inside must be looked at by itself.
    let inside = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    inside.is_some_and(|inside| is_another_authority(inside)) || error.source().is_some_and(is_another_authority)
}

/// The name under which `node` is dialled.
pub fn dialled_name(node: NodeId, cluster: ClusterId) -> String {
    node_name(node, cluster)
}

fn client_without_certificate(verifier: Arc<dyn ServerCertVerifier>) -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn server_verifier(authority: &CertificateDer<'static>) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    WebPkiServerVerifier::builder_with_provider(roots(authority)?, provider())
        .build()
        .map_err(TlsError::Verifier)
}

fn name_of(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Setup(Error::General("not a DNS name".into())))
}

/// What every peer must be, whichever side it is on.
#[derive(Debug)]
struct Members {
    cluster: ClusterId,
    admission: Arc<Admission>,
}

impl Members {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<Subject, Error> {
        let subject = Subject::read(certificate).map_err(|error| Error::General(error.to_string()))?;
        if subject.cluster != self.cluster {
            let text = format!(
                "node {} is of cluster {}, not of {}",
                subject.node, subject.cluster, self.cluster
            );
            tracing::warn!(peer = %subject.node, theirs = %subject.cluster, ours = %self.cluster, "refused a node of another cluster");
            return Err(Error::General(text));
        }
        if self.admission.is_removed(subject.node) {
            tracing::warn!(peer = %subject.node, "refused a removed node");
            return Err(Error::InvalidCertificate(CertificateError::Revoked));
        }
        Ok(subject)
    }

    /// The time at which a certificate is judged: never before it begins.
    fn judged_at(subject: &Subject, now: UnixTime) -> UnixTime {
        let begins = u64::try_from(subject.not_before_s).unwrap_or(0);
        if now.as_secs() < begins {
            UnixTime::since_unix_epoch(std::time::Duration::from_secs(begins))
        } else {
            now
        }
    }
}

#[derive(Debug)]
struct PeerVerifier {
    members: Members,
    client: Option<Arc<dyn ClientCertVerifier>>,
    server: Option<Arc<WebPkiServerVerifier>>,
    /// Whether the socket also serves clients, who show none.
    clients: bool,
}

/// Node-to-node connections speak TLS 1.3 only.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2 is not spoken between nodes".into()))
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        !self.clients
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let subject = self.members.check(end_entity)?;
        let inner = self.client.as_ref().ok_or(Error::General("not a server".into()))?;
        inner.verify_client_cert(end_entity, intermediates, Members::judged_at(&subject, now))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let subject = self.members.check(end_entity)?;
        let inner = self.server.as_ref().ok_or(Error::General("not a client".into()))?;
        // The name holds node id and cluster id, so this also proves that the dialled node is the one meant.
        inner.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp,
            Members::judged_at(&subject, now),
        )
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Verifies any node of one cluster, under whatever host name it was dialled.
#[derive(Debug)]
struct ClusterVerifier {
    inner: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
}

impl ServerCertVerifier for ClusterVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.inner
            .verify_server_cert(end_entity, intermediates, &self.name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Verifies a server by the fingerprint of the authority in its chain. The validity in time is not judged here: a machine whose clock is
/// wrong learns so from the answer, which names both times.
#[derive(Debug)]
struct PinnedVerifier {
    authority_fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned = |shown: &&CertificateDer<'_>| {
            fingerprint(shown).is_ok_and(|found| same(&found, &self.authority_fingerprint))
        };
        let Some(authority) = intermediates.iter().find(pinned) else {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        };
        let general = |error: &dyn std::error::Error| Error::General(error.to_string());
        let subject = Subject::read(end_entity).map_err(|error| general(&error))?;
        let inner = server_verifier(&authority.clone().into_owned()).map_err(|error| general(&error))?;
        let name = name_of(&cluster_name(subject.cluster)).map_err(|error| general(&error))?;
        inner.verify_server_cert(
            end_entity,
            intermediates,
            &name,
            ocsp,
            Members::judged_at(&subject, now),
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::env::{Clock, OsClock};
    use crate::identity::authority::{Authority, NodeKey};

    const CLUSTER: ClusterId = ClusterId([3; 16]);

    fn member(authority: &Authority) -> Identity {
        let key = NodeKey::generate().unwrap();
        let certificate = authority.issue(&key.spki(), CLUSTER, &[], OsClock.wall_ms()).unwrap();
        Identity::assemble(&key, certificate, authority.certificate().clone()).unwrap()
    }

    fn authority() -> Authority {
        Authority::found(CLUSTER, OsClock.wall_ms()).unwrap()
    }

    /// Sends one secret byte over HTTPS sockets; gives what the server read, or the client's error.
    fn send_secret(server: ServerConfig, client: ClientConfig) -> (Option<u8>, std::io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut session = rustls::ServerConnection::new(Arc::new(server)).unwrap();
            let mut byte = [0];
            rustls::Stream::new(&mut session, &mut socket)
                .read_exact(&mut byte)
                .ok()
                .map(|()| byte[0])
        });
        let mut socket = TcpStream::connect(at).unwrap();
        let mut session = rustls::ClientConnection::new(Arc::new(client), "127.0.0.1".try_into().unwrap()).unwrap();
        let sent = rustls::Stream::new(&mut session, &mut socket).write_all(b"s");
        drop(socket);
        (serving.join().unwrap(), sent)
    }

    #[test]
    fn a_joining_machine_talks_only_to_the_cluster_of_its_token() {
        let ours = authority();
        let pinned = fingerprint(ours.certificate()).unwrap();
        let (read, sent) = send_secret(https_server(&member(&ours)).unwrap(), joining_client(pinned).unwrap());
        assert!(sent.is_ok());
        assert_eq!(read, Some(b's'));

        let (read, sent) = send_secret(
            https_server(&member(&authority())).unwrap(),
            joining_client(pinned).unwrap(),
        );
        assert!(is_another_authority(&sent.unwrap_err()));
        assert_eq!(read, None, "nothing was sent to a stranger");
    }

    #[test]
    fn a_stranger_that_shows_our_authority_without_its_signature_is_refused() {
        let (ours, theirs) = (authority(), authority());
        let key = NodeKey::generate().unwrap();
        let certificate = theirs.issue(&key.spki(), CLUSTER, &[], OsClock.wall_ms()).unwrap();
        // Its own certificate, with our authority's beside it.
        let stranger = Identity::assemble(&key, certificate, ours.certificate().clone()).unwrap();
        let pinned = fingerprint(ours.certificate()).unwrap();
        let (read, sent) = send_secret(https_server(&stranger).unwrap(), joining_client(pinned).unwrap());
        assert!(sent.is_err());
        assert_eq!(read, None);
    }

    #[test]
    fn any_node_of_the_cluster_serves_https_under_any_address() {
        let ours = authority();
        let client = || https_client(ours.certificate(), CLUSTER).unwrap();
        assert!(send_secret(https_server(&member(&ours)).unwrap(), client()).1.is_ok());
        assert!(
            send_secret(https_server(&member(&authority())).unwrap(), client())
                .1
                .is_err()
        );
        assert!(
            send_secret(
                https_server(&member(&ours)).unwrap(),
                https_client(ours.certificate(), ClusterId([4; 16])).unwrap()
            )
            .1
            .is_err()
        );
    }
}
