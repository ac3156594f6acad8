//! Where to find a cluster, and as whom: the credentials file and the environment that overrides it.
//!
//! `holdfast init` and `holdfast join` write `<config folder>/holdfast/credentials.toml` (mode 0600), so that the next commands need no
//! flags. The one rule: the token is readable by its owner alone, and is in no text that this file makes besides the file itself.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use holdfast_proto::id::ClusterId;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

use crate::bearer::Bearer;
use crate::identity::authority::fingerprint;
use crate::identity::certificate::cluster_of_authority;
use crate::identity::pem;
use crate::identity::secret::Secret;
use crate::net::tls::https_client;

/// Why there are no credentials to use.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Nothing says where a cluster is.
    #[error(
        "no cluster is known here: run `holdfast init` or `holdfast join`, or set HOLDFAST_ADDRESS (host:port), HOLDFAST_TOKEN (from `holdfast token create`) and HOLDFAST_CA (a copy of `identity/ca.crt` from the data folder of any node: its path, or its text)"
    )]
    Absent,
    /// There is no home folder to look in.
    #[error("neither HOLDFAST_CONFIG, XDG_CONFIG_HOME nor HOME says where the credentials are")]
    NoFolder,
    /// The file cannot be read.
    #[error("cannot read {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {path:?}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is readable by others.
    #[error("{path:?} can be read by others (mode {mode:o}): run `chmod 600` on it")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is not one.
    #[error("{path:?} is not a credentials file; `holdfast init` writes it")]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// The token is not one.
    #[error(transparent)]
    Token(#[from] crate::bearer::BearerError),
    /// The authority's certificate is not one.
    #[error(
        "{from} is not the certificate of a cluster's authority: copy `identity/ca.crt` from the data folder of a node again, and give its path or its text"
    )]
    Authority {
        /// Where it came from.
        from: String,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] crate::net::tls::TlsError),
}

/// Where a cluster is, and as whom to speak to it.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// Nodes to try, `host:port`.
    pub addresses: Vec<String>,
    /// Who the bearer is; a machine that only joined has none.
    pub bearer: Option<Bearer>,
    /// Certificate of the cluster's authority.
    pub authority: CertificateDer<'static>,
    /// The cluster.
    pub cluster: ClusterId,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: ClusterId,
    addresses: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    ca_fingerprint: String,
    ca: String,
}

/// What the environment or flags say; anything here overrides the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Nodes to try, with commas.
    pub address: Option<String>,
    /// The access token.
    pub token: Option<Secret<String>>,
    /// Path of the authority's certificate, or the certificate itself in PEM form.
    pub authority: Option<String>,
}

impl Credentials {
    /// Where the file is.
    ///
    /// # Errors
    /// When no variable says where a user's configuration is.
    pub fn path(env: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf, CredentialsError> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set("HOLDFAST_CONFIG").or_else(|| set("XDG_CONFIG_HOME").map(|folder| folder.join("holdfast")));
        let folder = folder.or_else(|| set("HOME").map(|home| home.join(".config").join("holdfast")));
        folder
            .map(|folder| folder.join("credentials.toml"))
            .ok_or(CredentialsError::NoFolder)
    }

    /// Reads the file, where there is one, and puts what overrides it on top.
    ///
    /// # Errors
    /// When what there is cannot be read, or is not enough.
    pub fn find(path: &Path, overrides: &Overrides) -> Result<Self, CredentialsError> {
        let mut found = match (Self::read(path)?, &overrides.authority, &overrides.address) {
            (Some(file), _, _) => file,
            (None, Some(authority), Some(_)) => Self::trusting(authority)?,
            (None, _, _) => return Err(CredentialsError::Absent),
        };
        if let Some(authority) = &overrides.authority {
            let given = Self::trusting(authority)?;
            (found.authority, found.cluster) = (given.authority, given.cluster);
        }
        if let Some(given) = &overrides.address {
            let addresses = given.split(',').map(|address| address.trim().to_owned());
            found.addresses = addresses.filter(|address| !address.is_empty()).collect();
        }
        if let Some(text) = &overrides.token {
            found.bearer = Some(text.expose().parse()?);
        }
        if found.addresses.is_empty() {
            return Err(CredentialsError::Absent);
        }
        Ok(found)
    }

    /// Reads the file; `None` when there is none.
    ///
    /// # Errors
    /// When it is there and cannot be used.
    pub fn read(path: &Path) -> Result<Option<Self>, CredentialsError> {
        let failed = |source| CredentialsError::Read {
            path: path.to_owned(),
            source,
        };
        let mode = match std::fs::metadata(path) {
            Ok(metadata) => metadata.permissions().mode() & 0o777,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if mode & 0o077 != 0 {
            return Err(CredentialsError::Exposed {
                path: path.to_owned(),
                mode,
            });
        }
        let text = Secret::new(std::fs::read_to_string(path).map_err(failed)?);
        let malformed = || CredentialsError::Malformed { path: path.to_owned() };
        let file: File = toml::from_str(text.expose()).map_err(|_| malformed())?;
        let authority = CertificateDer::from_pem_slice(file.ca.as_bytes()).map_err(|_| malformed())?;
        if fingerprint(&authority).map(hex::encode).ok().as_ref() != Some(&file.ca_fingerprint) {
            return Err(malformed());
        }
        let bearer = file.token.map(|text| text.parse()).transpose()?;
        Ok(Some(Self {
            addresses: file.addresses,
            bearer,
            authority,
            cluster: file.cluster,
        }))
    }

    /// Writes the file: under another name first, so that a crash leaves the old one or the new one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), CredentialsError> {
        let failed = |source| CredentialsError::Write {
            path: path.to_owned(),
            source,
        };
        let file = File {
            cluster: self.cluster,
            addresses: self.addresses.clone(),
            token: self.bearer.as_ref().map(|bearer| bearer.reveal().expose().clone()),
            ca_fingerprint: fingerprint(&self.authority).map(hex::encode).unwrap_or_default(),
            ca: pem(&self.authority),
        };
        let text = Secret::new(rendered(&file));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let draft = path.with_extension(format!("toml.{}", std::process::id()));
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft);
        let written = opened.and_then(|mut out| out.write_all(text.expose().as_bytes()).and_then(|()| out.sync_all()));
        written.and_then(|()| std::fs::rename(&draft, path)).map_err(|error| {
            // The draft may hold the token; it must not stay behind.
            let _ = std::fs::remove_file(&draft);
            failed(error)
        })
    }

    /// The TLS configuration that trusts this cluster's nodes and nobody else.
    ///
    /// # Errors
    /// When the authority's certificate cannot be used.
    pub fn tls(&self) -> Result<ClientConfig, CredentialsError> {
        Ok(https_client(&self.authority, self.cluster)?)
    }

    /// Credentials without address and token: whom to trust.
    fn trusting(given: &str) -> Result<Self, CredentialsError> {
        let wrong = |from: &str| CredentialsError::Authority { from: from.to_owned() };
        let (from, text) = match given.contains("-----BEGIN") {
            true => ("HOLDFAST_CA", given.as_bytes().to_vec()),
            false => {
                let read = std::fs::read(given);
                (
                    given,
                    read.map_err(|source| CredentialsError::Read {
                        path: PathBuf::from(given),
                        source,
                    })?,
                )
            }
        };
        let authority = CertificateDer::from_pem_slice(&text).map_err(|_| wrong(from))?;
        let cluster = cluster_of_authority(&authority).map_err(|_| wrong(from))?;
        Ok(Self {
            addresses: Vec::new(),
            bearer: None,
            authority,
            cluster,
        })
    }
}

/// TOML of the file, written by hand: the values are hexadecimal, `host:port` and PEM.
fn rendered(file: &File) -> String {
    let addresses: Vec<String> = file.addresses.iter().map(|address| format!("{address:?}")).collect();
    let token = file
        .token
        .as_ref()
        .map(|token| format!("token = \"{token}\"\n"))
        .unwrap_or_default();
    format!(
        "# Whoever can read this file can act as its owner.\ncluster = \"{}\"\naddresses = [{}]\n{token}ca_fingerprint = \"{}\"\nca = '''\n{}'''\n",
        file.cluster,
        addresses.join(", "),
        file.ca_fingerprint,
        file.ca
    )
}
