// SPDX-License-Identifier: AGPL-3.0-only
//! Encryption of a connection: whom to trust, what to prove, and where that is read.
//!
//! Files are read for every connection, so that a certificate is rotated by replacing files. They
//! are also read when a client is made, so that a wrong one is an error of its maker.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::BoxError;
use crate::connection::chain;
use crate::error::{Error, Result};

const HTTP2: &[u8] = b"h2";
// What every PEM file has, and no path does.
const PEM_MARK: &str = "-----BEGIN ";

/// A certificate or a key in PEM: a file that holds it, or the PEM itself.
///
/// A text is the PEM itself if it holds `-----BEGIN `, and else the path of a file.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// Read for every connection that is made, so it is rotated by replacing the file.
    File(PathBuf),
    /// The PEM itself.
    Memory(Bytes),
}

impl From<PathBuf> for Pem {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&Path> for Pem {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<String> for Pem {
    fn from(text: String) -> Self {
        if text.contains(PEM_MARK) { Self::Memory(text.into()) } else { Self::File(text.into()) }
    }
}

impl From<&str> for Pem {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => out.debug_tuple("File").field(path).finish(),
            // It may be a private key.
            Self::Memory(_) => out.debug_tuple("Memory").finish_non_exhaustive(),
        }
    }
}

/// Encrypts the connection; with a certificate and its key the client proves itself too (mTLS).
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// The certificates to trust; `None` trusts the system's roots, as they are when the client is
    /// made.
    pub ca: Option<Pem>,
    /// The client's own certificate, and those between it and its CA. Goes with `key`.
    pub cert: Option<Pem>,
    /// The private key of `cert`.
    pub key: Option<Pem>,
    /// The name to expect in the broker's certificate if it is not the target's host.
    pub server_name: Option<String>,
}

/// What makes encrypted connections.
pub(crate) struct Tls {
    options: TlsOptions,
    server_name: Option<ServerName<'static>>,
    system: Option<Arc<RootCertStore>>,
}

impl Tls {
    /// Fails, naming the option, when a connection could not be made of them.
    pub(crate) fn new(options: TlsOptions) -> Result<Arc<Self>> {
        if options.cert.is_some() != options.key.is_some() {
            let given = if options.cert.is_some() { "cert" } else { "key" };
            return Err(Error::invalid(&format!(
                "tls {given} is given alone; cert and key go together"
            )));
        }
        let server_name = options.server_name.as_deref().map(server_name).transpose()?;
        let system = match options.ca {
            Some(_) => None,
            None => Some(Arc::new(system_roots()?)),
        };
        let tls = Self { options, server_name, system };
        tls.config()?;
        Ok(Arc::new(tls))
    }

    /// Shakes hands with what `host` names, unless the options name another.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        host: &str,
        tcp: TcpStream,
    ) -> Result<TlsStream<TcpStream>, BoxError> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => server_name(host)?,
        };
        let tls = Arc::clone(self);
        let config = tokio::task::spawn_blocking(move || tls.config()).await??;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
            return Err("the peer does not speak HTTP/2".into());
        }
        Ok(stream)
    }

    fn config(&self) -> Result<ClientConfig> {
        let refused = |error: &dyn std::error::Error| Error::invalid(&format!("tls: {error}"));
        let provider = CryptoProvider::get_default()
            .map_or_else(|| Arc::new(ring::default_provider()), Arc::clone);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(&error))?
            .with_root_certificates(self.roots()?);
        let mut config = match (&self.options.cert, &self.options.key) {
            (Some(cert), Some(key)) => {
                let (certs, key) = (certificates("cert", cert)?, private_key("key", key)?);
                builder.with_client_auth_cert(certs, key).map_err(|error| refused(&error))?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols.push(HTTP2.to_vec());
        Ok(config)
    }

    fn roots(&self) -> Result<Arc<RootCertStore>> {
        if let Some(system) = &self.system {
            return Ok(Arc::clone(system));
        }
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.options.ca {
            let (added, _) = roots.add_parsable_certificates(certificates("ca", ca)?);
            if added == 0 {
                return Err(wrong("ca", ca, "holds no certificate that can be trusted"));
            }
        }
        Ok(Arc::new(roots))
    }
}

fn system_roots() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added > 0 {
        return Ok(roots);
    }
    let why = found.errors.first().map(|error| format!(": {}", chain(error))).unwrap_or_default();
    Err(Error::invalid(&format!("tls: the system has no root certificates, give a ca{why}")))
}

fn server_name(name: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| Error::invalid(&format!("tls server_name \"{name}\" is no host's name")))
}

fn certificates(option: &str, pem: &Pem) -> Result<Vec<CertificateDer<'static>>> {
    let content = content(option, pem)?;
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    match certs {
        Ok(certs) if !certs.is_empty() => Ok(certs),
        Ok(_) => Err(wrong(option, pem, "holds no certificate")),
        Err(error) => Err(wrong(option, pem, &format!("is malformed: {error}"))),
    }
}

fn private_key(option: &str, pem: &Pem) -> Result<PrivateKeyDer<'static>> {
    // The error would say no more, and must not say what is there.
    PrivateKeyDer::from_pem_slice(&content(option, pem)?)
        .map_err(|_| wrong(option, pem, "holds no private key"))
}

fn content(option: &str, pem: &Pem) -> Result<Bytes> {
    let content = match pem {
        Pem::Memory(content) => content.clone(),
        Pem::File(path) => std::fs::read(path).map(Bytes::from).map_err(|error| {
            let (shown, why) = (path.display(), error.kind().to_string());
            Error::invalid(&format!("cannot read tls {option} \"{shown}\": {why}"))
        })?,
    };
    // A file of another kind holds no certificate at all, and no error would say so.
    if content.windows(PEM_MARK.len()).any(|window| window == PEM_MARK.as_bytes()) {
        Ok(content)
    } else {
        Err(wrong(option, pem, "is not PEM"))
    }
}

fn wrong(option: &str, pem: &Pem, what: &str) -> Error {
    match pem {
        Pem::File(path) => Error::invalid(&format!("tls {option} \"{}\" {what}", path.display())),
        Pem::Memory(_) => Error::invalid(&format!("tls {option} {what}")),
    }
}
