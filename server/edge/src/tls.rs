// SPDX-License-Identifier: AGPL-3.0-only
//! Certificates: from PEM to what handshakes are made with. New ones take effect with the next
//! handshake; sessions of the old ones are not resumed, because their cache goes with them.

use std::sync::{Arc, Mutex, PoisonError};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

pub struct Pem {
    pub chain: Vec<u8>,
    pub key: Vec<u8>,
    pub ca: Option<Vec<u8>>,
}

pub struct Certificates(Mutex<Arc<ServerConfig>>);

impl Certificates {
    pub fn new(pem: &Pem) -> Result<Self, String> {
        Ok(Self(Mutex::new(configuration(pem)?)))
    }

    pub fn reload(&self, pem: &Pem) -> Result<(), String> {
        let fresh = configuration(pem)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().into()
    }
}

fn configuration(pem: &Pem) -> Result<Arc<ServerConfig>, String> {
    let chain = certificates(&pem.chain, "the certificate")?;
    let key = PrivateKeyDer::from_pem_slice(&pem.key)
        .map_err(|_| "the key holds no private key in PEM form".to_owned())?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be used: {error}"))?;
    let builder = match &pem.ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(ca, "the CA")? {
                roots
                    .add(certificate)
                    .map_err(|error| format!("the CA cannot be used: {error}"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| format!("the CA cannot be used: {error}"))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut found = builder
        .with_single_cert(chain, key)
        .map_err(|error| format!("the key and the certificate cannot be used: {error}"))?;
    found.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(found))
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| format!("{what} is not PEM"))?;
    if found.is_empty() {
        return Err(format!("{what} holds no certificate in PEM form"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/rpc/certs/");
        std::fs::read(format!("{folder}{name}")).expect("the tests have certificates")
    }

    fn pem(chain: &str, key: &str, ca: Option<&str>) -> Pem {
        Pem { chain: file(chain), key: file(key), ca: ca.map(file) }
    }

    #[test]
    fn certificates_that_fit_are_used_and_renewed() {
        let used = Certificates::new(&pem("server.pem", "server.key", None)).expect("they fit");
        assert_eq!(used.reload(&pem("stranger.pem", "stranger.key", Some("ca.pem"))), Ok(()));
    }

    #[test]
    fn what_does_not_fit_is_explained() {
        for (pem, text) in [
            (pem("server.pem", "client.key", None), "the key and the certificate cannot be used"),
            (pem("server.key", "server.key", None), "the certificate holds no certificate"),
            (pem("server.pem", "server.pem", None), "the key holds no private key"),
            (pem("server.pem", "server.key", Some("server.key")), "the CA holds no certificate"),
        ] {
            let refusal = Certificates::new(&pem).err().expect("it does not fit");
            assert!(refusal.starts_with(text), "{refusal}");
        }
    }
}
