//! What a node's certificate says, and how it is read back.
//!
//! Owns the names inside certificates: a node's certificate names the node id and the cluster id in one DNS name, so that ordinary name
//! verification already ties a connection to one node of one cluster. Called by the authority when it issues, and by the TLS
//! verifiers on every handshake. The one rule: a certificate whose public key does not hash to the node id that it names is no
//! certificate of ours, whoever signed it.

use holdfast_proto::id::{ClusterId, NodeId};
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The last label of every name inside our certificates; it is in no public DNS zone.
const SUFFIX: &str = "holdfast";

/// Why a certificate is not one of a node of ours.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CertificateError {
    /// Not a certificate at all.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// No name of the form `<node>.<cluster>.holdfast`.
    #[error("the certificate names no node")]
    NamesNoNode,
    /// The key belongs to another node id.
    #[error("the certificate names node {named} but its key is that of node {key}")]
    KeyMismatch {
        /// The node id in the name.
        named: String,
        /// The node id that the key hashes to.
        key: String,
    },
}

/// The identity that a certificate states, once its key has been checked against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The node.
    pub node: NodeId,
    /// The cluster whose member it is.
    pub cluster: ClusterId,
    /// Valid from, in seconds of UTC since 1970.
    pub not_before_s: i64,
    /// Valid until, in seconds of UTC since 1970.
    pub not_after_s: i64,
}

impl Subject {
    /// Reads the subject of `certificate`. The signature is not checked here: that is the verifier's part.
    pub fn read(certificate: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::Unreadable)?;
        let (node, cluster) = dns_names(&parsed)
            .into_iter()
            .find_map(|name| parse_node_name(&name))
            .ok_or(CertificateError::NamesNoNode)?;

        let key = node_id_of(parsed.public_key().raw);
        if key != node {
            return Err(CertificateError::KeyMismatch {
                named: hex_id(node),
                key: hex_id(key),
            });
        }
        let validity = parsed.validity();
        Ok(Self {
            node,
            cluster,
            not_before_s: validity.not_before.timestamp(),
            not_after_s: validity.not_after.timestamp(),
        })
    }
}

/// The node id that belongs to a public key: the first eight bytes, big endian, of the BLAKE3 hash of its SubjectPublicKeyInfo.
pub fn node_id_of(spki_der: &[u8]) -> NodeId {
    let hash = blake3::hash(spki_der);
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    NodeId(u64::from_be_bytes(first))
}

/// The public key (SubjectPublicKeyInfo, DER) inside a certificate.
pub fn spki_of(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, CertificateError> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::Unreadable)?;
    Ok(parsed.public_key().raw.to_vec())
}

/// The cluster that an authority's certificate names.
pub fn cluster_of_authority(certificate: &CertificateDer<'_>) -> Result<ClusterId, CertificateError> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::Unreadable)?;
    let mut names = parsed
        .subject()
        .iter_common_name()
        .filter_map(|name| name.as_str().ok());
    let cluster = names.find_map(|name| name.strip_prefix("Holdfast cluster ")?.parse().ok());
    cluster.ok_or(CertificateError::NamesNoNode)
}

/// The DNS name under which a node is verified by its peers.
pub fn node_name(node: NodeId, cluster: ClusterId) -> String {
    format!("{}.{cluster}.{SUFFIX}", hex_id(node))
}

/// The DNS name that every node's certificate carries for clients of the HTTP interface, which do not care which node answers.
pub fn cluster_name(cluster: ClusterId) -> String {
    format!("any.{cluster}.{SUFFIX}")
}

/// A node id as sixteen hexadecimal digits.
pub fn hex_id(node: NodeId) -> String {
    format!("{:016x}", node.0)
}

fn parse_node_name(name: &str) -> Option<(NodeId, ClusterId)> {
    let mut labels = name.split('.');
    let (node, cluster, suffix) = (labels.next()?, labels.next()?, labels.next()?);
    if suffix != SUFFIX || labels.next().is_some() || node.len() != 16 {
        return None;
    }
    let node = u64::from_str_radix(node, 16).ok()?;
    Some((NodeId(node), cluster.parse().ok()?))
}

fn dns_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let mut names = Vec::new();
    for extension in certificate.extensions() {
        if let ParsedExtension::SubjectAlternativeName(alternative) = extension.parsed_extension() {
            for name in &alternative.general_names {
                if let GeneralName::DNSName(dns) = name {
                    names.push((*dns).to_owned());
                }
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_reads_back() {
        let cluster = ClusterId([0xab; 16]);
        let name = node_name(NodeId(7), cluster);
        assert_eq!(name, format!("0000000000000007.{}.holdfast", "ab".repeat(16)));
        assert_eq!(parse_node_name(&name), Some((NodeId(7), cluster)));
    }

    #[test]
    fn names_of_another_shape_name_no_node() {
        for name in [
            "",
            "localhost",
            "any.00.holdfast",
            "7.abababababababababababababababab.holdfast",
            &format!("x.{}", node_name(NodeId(7), ClusterId([1; 16]))),
        ] {
            assert_eq!(parse_node_name(name), None, "{name}");
        }
    }

    #[test]
    fn rubbish_is_unreadable() {
        assert_eq!(
            Subject::read(&CertificateDer::from(vec![1, 2, 3])),
            Err(CertificateError::Unreadable)
        );
    }
}
