//! Who this node is: its data folder, its key, its certificate, and the cluster's authority.
//!
//! Owns the files under `<data>/identity/` and the values read from them. Called by `init`, `join` and `serve` before anything else
//! runs; the TLS configurations of [`crate::net`] and of the HTTP interface are made from it. The one rule: identity is born with the
//! data folder (the node id is the hash of the key), so a wiped disk is a new node, and a name is only a label.

pub mod authority;
pub mod certificate;
pub mod folder;
pub mod secret;

use std::io;
use std::path::PathBuf;

use holdfast_proto::id::{ClusterId, Digest, Incarnation, NodeId};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::env::Entropy;
use authority::{Authority, AuthorityError, NodeKey, fingerprint};
use certificate::{CertificateError, Subject, node_id_of, spki_of};
use folder::{DataFolder, FolderError, NodeFile, write_durably};
use secret::Secret;

/// Why an identity could not be made or loaded.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The folder refused.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A key or certificate could not be made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A certificate is not one of ours.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A file could not be read.
    #[error("cannot read {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {path:?}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file is not PEM.
    #[error("{path:?} is not a certificate in PEM form")]
    Pem {
        /// The file.
        path: PathBuf,
    },
    /// What the node is to begin with could not be put into its folder.
    #[error("cannot put the cluster's state into {path:?}")]
    Prepare {
        /// The folder.
        path: PathBuf,
        /// What failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The parts of the identity do not belong together.
    #[error("the identity in {path:?} is damaged: {what}")]
    Mismatch {
        /// The folder.
        path: PathBuf,
        /// Which parts differ.
        what: &'static str,
    },
}

/// A node's identity, complete: it can prove who it is.
#[derive(Debug)]
pub struct Identity {
    /// The node.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    key: Secret<Vec<u8>>,
}

impl Identity {
    /// Puts an identity together and checks that its parts belong to each other.
    pub fn assemble(
        key: &NodeKey,
        certificate: CertificateDer<'static>,
        authority: CertificateDer<'static>,
    ) -> Result<Self, IdentityError> {
        let subject = Subject::read(&certificate)?;
        if subject.node != key.node_id() {
            return Err(IdentityError::Mismatch {
                path: PathBuf::from("node.crt"),
                what: "certificate and key differ",
            });
        }
        Ok(Self {
            node: subject.node,
            cluster: subject.cluster,
            certificate,
            authority,
            key: key.to_pkcs8(),
        })
    }

    /// Founds a cluster: a new authority, and this node as its first member. Nothing is a node until `node.toml` is written, last.
    pub fn found(
        folder: &DataFolder,
        label: &str,
        hosts: &[String],
        wall_ms: u64,
        entropy: &dyn Entropy,
    ) -> Result<(Self, NodeFile), IdentityError> {
        let mut cluster = ClusterId::default();
        entropy.fill(&mut cluster.0);
        Self::found_as(folder, cluster, label, hosts, wall_ms, |_| Ok(()))
    }

    /// Founds a cluster under an id that is given; `prepare` puts what the node begins with into its folder.
    pub fn found_as(
        folder: &DataFolder,
        cluster: ClusterId,
        label: &str,
        hosts: &[String],
        wall_ms: u64,
        prepare: impl FnOnce(NodeId) -> Result<(), IdentityError>,
    ) -> Result<(Self, NodeFile), IdentityError> {
        let authority = Authority::found(cluster, wall_ms)?;
        let key = NodeKey::generate()?;
        let certificate = authority.issue(&key.spki(), cluster, hosts, wall_ms)?;
        write_authority_key(folder, &authority.key_pem())?;
        prepare(key.node_id())?;
        Self::settle(folder, label, &key, certificate, authority.certificate().clone())
    }

    /// Settles a node that a cluster has admitted: writes its files, `node.toml` last.
    pub fn settle(
        folder: &DataFolder,
        label: &str,
        key: &NodeKey,
        certificate: CertificateDer<'static>,
        authority: CertificateDer<'static>,
    ) -> Result<(Self, NodeFile), IdentityError> {
        let identity = Self::assemble(key, certificate, authority)?;
        write(folder, "node.key", key.to_pem().expose(), 0o600)?;
        write(folder, "node.crt", &pem(&identity.certificate), 0o644)?;
        write(folder, "ca.crt", &pem(&identity.authority), 0o644)?;
        let node = NodeFile {
            cluster: identity.cluster,
            node: identity.node,
            label: label.to_owned(),
            established: false,
        };
        folder.write_node_file(&node)?;
        Ok((identity, node))
    }

    /// Loads the identity of an existing node.
    pub fn load(folder: &DataFolder, node: &NodeFile) -> Result<Self, IdentityError> {
        let key = NodeKey::from_pem(&Secret::new(read(folder, "node.key")?))?;
        let identity = Self::assemble(
            &key,
            read_certificate(folder, "node.crt")?,
            read_certificate(folder, "ca.crt")?,
        )?;
        if (identity.node, identity.cluster) != (node.node, node.cluster) {
            return Err(IdentityError::Mismatch {
                path: folder.root().to_owned(),
                what: "node.toml and node.crt differ",
            });
        }
        Ok(identity)
    }

    /// The authority, on a node that holds its key.
    pub fn load_authority(&self, folder: &DataFolder) -> Result<Option<Authority>, IdentityError> {
        if !folder.part("identity").join("ca.key").exists() {
            return Ok(None);
        }
        let key = Secret::new(read(folder, "ca.key")?);
        Ok(Some(Authority::load(self.authority.clone(), &key)?))
    }

    /// The node's certificate, then the authority's: what a TLS server presents.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone(), self.authority.clone()]
    }

    /// The authority's certificate.
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// The private key, for a TLS configuration.
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.expose().clone()))
    }

    /// Digest of the node's public key, whose first eight bytes are the node id.
    pub fn key_digest(&self) -> Result<Digest, IdentityError> {
        let spki = spki_of(&self.certificate)?;
        debug_assert_eq!(node_id_of(&spki), self.node);
        Ok(Digest(*blake3::hash(&spki).as_bytes()))
    }

    /// Fingerprint of the authority, as join tokens carry it.
    pub fn authority_fingerprint(&self) -> Result<[u8; 32], IdentityError> {
        Ok(fingerprint(&self.authority)?)
    }

    /// A key for `purpose` that only this node can derive, the same at each start.
    pub fn derive_key(&self, purpose: &str) -> Secret<[u8; 32]> {
        Secret::new(blake3::derive_key(&format!("holdfast 1 {purpose}"), self.key.expose()))
    }
}

/// Draws the incarnation of this start of the daemon.
pub fn draw_incarnation(entropy: &dyn Entropy) -> Incarnation {
    Incarnation(entropy.random_u64())
}

/// Stores the authority's signing key on a node that has become a voter.
pub fn write_authority_key(folder: &DataFolder, key: &Secret<String>) -> Result<(), IdentityError> {
    write(folder, "ca.key", key.expose(), 0o600)
}

/// A certificate in PEM form.
pub fn pem(certificate: &CertificateDer<'_>) -> String {
    const LINE: usize = 64;
    let text = base64(certificate);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(LINE) {
        out.extend(line.iter().map(|byte| char::from(*byte)));
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

/// SHA-256, from the TLS stack, so that fingerprints agree with other tools'.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let hash = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256
        .tls13()
        .expect("the suite is a TLS 1.3 suite by its name")
        .common
        .hash_provider
        .hash(bytes);
    let mut out = [0; 32];
    out.copy_from_slice(hash.as_ref());
    out
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0_u32, |word, byte| (word << 8) | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let six = (word >> (18 - 6 * place)) & 63;
            out.push(if place <= group.len() {
                char::from(ALPHABET[six as usize])
            } else {
                '='
            });
        }
    }
    out
}

fn write(folder: &DataFolder, name: &str, text: &str, mode: u32) -> Result<(), IdentityError> {
    let path = folder.part("identity").join(name);
    write_durably(&path, text.as_bytes(), mode).map_err(|source| IdentityError::Write { path, source })
}

fn read(folder: &DataFolder, name: &str) -> Result<String, IdentityError> {
    let path = folder.part("identity").join(name);
    std::fs::read_to_string(&path).map_err(|source| IdentityError::Read { path, source })
}

fn read_certificate(folder: &DataFolder, name: &str) -> Result<CertificateDer<'static>, IdentityError> {
    let text = read(folder, name)?;
    CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| IdentityError::Pem {
        path: folder.part("identity").join(name),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::env::OsEntropy;

    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn a_founded_node_is_the_same_after_a_restart() {
        let root = tempfile::tempdir().unwrap();
        let folder = DataFolder::create(root.path(), None).unwrap();
        let (founded, _) = Identity::found(&folder, "gpu-1", &[], NOW_MS, &OsEntropy).unwrap();
        drop(folder);

        let (folder, file) = DataFolder::open(root.path()).unwrap();
        let loaded = Identity::load(&folder, &file).unwrap();
        assert_eq!(
            (loaded.node, loaded.cluster, loaded.chain()),
            (founded.node, founded.cluster, founded.chain())
        );
        assert_eq!(loaded.key_digest().unwrap().0[..8], loaded.node.0.to_be_bytes());
        assert!(loaded.load_authority(&folder).unwrap().is_some());
    }

    #[test]
    fn no_private_key_can_be_read_by_others_or_printed() {
        let root = tempfile::tempdir().unwrap();
        let folder = DataFolder::create(root.path(), None).unwrap();
        let (founded, _) = Identity::found(&folder, "gpu-1", &[], NOW_MS, &OsEntropy).unwrap();
        for name in ["node.key", "ca.key"] {
            assert_eq!(
                fs::metadata(folder.part("identity").join(name)).unwrap().mode() & 0o777,
                0o600,
                "{name}"
            );
        }
        assert_eq!(fs::metadata(folder.part("identity")).unwrap().mode() & 0o777, 0o700);
        assert!(format!("{founded:?}").contains("key: [secret]"));
    }

    #[test]
    fn a_certificate_of_another_key_is_refused() {
        let cluster = ClusterId([1; 16]);
        let authority = Authority::found(cluster, NOW_MS).unwrap();
        let (ours, other) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
        let certificate = authority.issue(&other.spki(), cluster, &[], NOW_MS).unwrap();
        assert!(matches!(
            Identity::assemble(&ours, certificate, authority.certificate().clone()),
            Err(IdentityError::Mismatch { .. })
        ));
    }

    #[test]
    fn base64_agrees_with_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn sha256_agrees_with_the_standard() {
        assert_eq!(
            hex::encode(sha256(b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
