//! The cluster's certificate authority and the nodes' keys.
//!
//! Owns making and loading the authority (born once, at `init`), issuing node certificates, and generating node keys. Called when a
//! cluster is founded, when a node joins, and when a certificate is renewed. The one rule: only a public key is ever signed; a
//! node's private key never leaves its data folder.

use std::net::IpAddr;
use std::time::Duration;

use holdfast_proto::id::{ClusterId, NodeId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, SubjectPublicKeyInfo,
};
use rustls::pki_types::CertificateDer;

use super::certificate::{cluster_name, node_id_of, node_name, spki_of};
use super::secret::Secret;
use super::sha256;

/// Certificates begin this long before they are issued, so that a peer whose clock is behind accepts them.
const BACKDATE: Duration = Duration::from_secs(3_600);
/// How long a node's certificate lasts.
const NODE_VALIDITY: Duration = Duration::from_secs(365 * 86_400);
/// How long the authority lasts.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(20 * 365 * 86_400);

/// Why a key or certificate could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// No key pair could be generated.
    #[error("cannot generate a key")]
    Generate(#[source] rcgen::Error),
    /// The text is no private key in PEM form.
    #[error("cannot read the private key")]
    ReadKey(#[source] rcgen::Error),
    /// The authority's certificate is damaged.
    #[error("cannot read the certificate of the cluster's authority")]
    ReadAuthority(#[source] rcgen::Error),
    /// The bytes that ask for a certificate are no public key of a kind that we sign.
    #[error("cannot read the public key to be signed")]
    ReadPublicKey(#[source] rcgen::Error),
    /// A host name that no certificate can carry.
    #[error("host name {host:?} cannot stand in a certificate")]
    HostName {
        /// The name.
        host: String,
    },
    /// Signing failed.
    #[error("cannot sign a certificate")]
    Sign(#[source] rcgen::Error),
}

/// A node's key pair (ECDSA P-256).
pub struct NodeKey {
    pair: KeyPair,
}

impl NodeKey {
    /// Makes a new key, and with it a new node id.
    pub fn generate() -> Result<Self, AuthorityError> {
        Ok(Self {
            pair: KeyPair::generate().map_err(AuthorityError::Generate)?,
        })
    }

    /// Reads a key from its PEM form.
    pub fn from_pem(pem: &Secret<String>) -> Result<Self, AuthorityError> {
        Ok(Self {
            pair: KeyPair::from_pem(pem.expose()).map_err(AuthorityError::ReadKey)?,
        })
    }

    /// The PEM form, for the data folder only.
    pub fn to_pem(&self) -> Secret<String> {
        Secret::new(self.pair.serialize_pem())
    }

    /// The PKCS #8 form, for the TLS stack only.
    pub fn to_pkcs8(&self) -> Secret<Vec<u8>> {
        Secret::new(self.pair.serialize_der())
    }

    /// The public half: SubjectPublicKeyInfo, DER.
    pub fn spki(&self) -> Vec<u8> {
        rcgen::PublicKeyData::subject_public_key_info(&self.pair)
    }

    /// The node id that this key gives.
    pub fn node_id(&self) -> NodeId {
        node_id_of(&self.spki())
    }
}

/// The key that signs the certificates of one cluster. It lives on voters.
pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Founds an authority for `cluster`.
    pub fn found(cluster: ClusterId, wall_ms: u64) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate().map_err(AuthorityError::Generate)?;
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Holdfast cluster {cluster}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid(&mut params, wall_ms, AUTHORITY_VALIDITY);
        let certificate = params.self_signed(&key).map_err(AuthorityError::Sign)?.der().clone();
        Ok(Self {
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    /// Loads an authority from its certificate and its key.
    pub fn load(certificate: CertificateDer<'static>, key: &Secret<String>) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key.expose()).map_err(AuthorityError::ReadKey)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(AuthorityError::ReadAuthority)?;
        Ok(Self { certificate, issuer })
    }

    /// The authority's own certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The signing key in PEM form, for the data folder of a voter only.
    pub fn key_pem(&self) -> Secret<String> {
        Secret::new(self.issuer.key().serialize_pem())
    }

    /// Signs the certificate of the node whose public key is `spki`. Besides the node's own name it carries the cluster's name, the
    /// loopback addresses and `hosts`, so that ordinary HTTPS clients that trust the authority can connect.
    pub fn issue(
        &self,
        spki: &[u8],
        cluster: ClusterId,
        hosts: &[String],
        wall_ms: u64,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let public = SubjectPublicKeyInfo::from_der(spki).map_err(AuthorityError::ReadPublicKey)?;
        let node = node_id_of(spki);
        let own_name = node_name(node, cluster);

        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, own_name.clone());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let fixed = [
            own_name,
            cluster_name(cluster),
            "localhost".into(),
            "127.0.0.1".into(),
            "::1".into(),
        ];
        for host in fixed.iter().chain(hosts) {
            let name = alternative_name(host)?;
            if !params.subject_alt_names.contains(&name) {
                params.subject_alt_names.push(name);
            }
        }
        valid(&mut params, wall_ms, NODE_VALIDITY);
        Ok(params
            .signed_by(&public, &self.issuer)
            .map_err(AuthorityError::Sign)?
            .der()
            .clone())
    }
}

/// The fingerprint of an authority: SHA-256 of its public key, as `openssl` prints it too. Join tokens carry it.
pub fn fingerprint(authority: &CertificateDer<'_>) -> Result<[u8; 32], super::certificate::CertificateError> {
    Ok(sha256(&spki_of(authority)?))
}

fn alternative_name(host: &str) -> Result<SanType, AuthorityError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(ip));
    }
    let name = host
        .to_owned()
        .try_into()
        .map_err(|_| AuthorityError::HostName { host: host.to_owned() })?;
    Ok(SanType::DnsName(name))
}

fn valid(params: &mut CertificateParams, wall_ms: u64, validity: Duration) {
    // The only way to an `OffsetDateTime` without naming the time crate.
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = Duration::from_millis(wall_ms);
    params.not_before = epoch + now.saturating_sub(BACKDATE);
    params.not_after = epoch + now + validity;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::certificate::Subject;
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn an_issued_certificate_names_its_node_and_cluster_and_began_an_hour_ago() {
        let cluster = ClusterId([5; 16]);
        let authority = Authority::found(cluster, NOW_MS).unwrap();
        let key = NodeKey::generate().unwrap();
        let subject = Subject::read(
            &authority
                .issue(&key.spki(), cluster, &["gpu-1.example".into()], NOW_MS)
                .unwrap(),
        )
        .unwrap();
        assert_eq!((subject.node, subject.cluster), (key.node_id(), cluster));
        assert_eq!(subject.not_before_s, 1_800_000_000 - 3_600);
    }

    #[test]
    fn a_loaded_authority_has_the_same_fingerprint_and_goes_on_signing() {
        let cluster = ClusterId([5; 16]);
        let first = Authority::found(cluster, NOW_MS).unwrap();
        let again = Authority::load(first.certificate().clone(), &first.key_pem()).unwrap();
        assert_eq!(
            fingerprint(first.certificate()).unwrap(),
            fingerprint(again.certificate()).unwrap()
        );
        let key = NodeKey::generate().unwrap();
        again.issue(&key.spki(), cluster, &[], NOW_MS).unwrap();
    }

    #[test]
    fn rubbish_is_not_signed() {
        let authority = Authority::found(ClusterId([5; 16]), NOW_MS).unwrap();
        assert!(matches!(
            authority.issue(b"rubbish", ClusterId([5; 16]), &[], NOW_MS),
            Err(AuthorityError::ReadPublicKey(_))
        ));
    }

    #[test]
    fn a_key_reads_back_from_its_pem_form() {
        let key = NodeKey::generate().unwrap();
        assert_eq!(NodeKey::from_pem(&key.to_pem()).unwrap().node_id(), key.node_id());
    }
}
