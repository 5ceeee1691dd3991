// SPDX-License-Identifier: AGPL-3.0-only
//! Encryption: who is trusted, who is not, and what is said of a bad file.

use fila::{Client, EnqueueMessage, ErrorKind, TlsOptions};

use crate::broker::{Broker, cert_path};

fn trusting(ca: &str) -> TlsOptions {
    TlsOptions { ca_file: Some(cert_path(ca)), ..TlsOptions::default() }
}

fn proving(ca: &str) -> TlsOptions {
    let (cert, key) = (cert_path("client.pem"), cert_path("client.key"));
    TlsOptions { cert_file: Some(cert), key_file: Some(key), ..trusting(ca) }
}

async fn enqueue(target: String, tls: TlsOptions) -> fila::Result<String> {
    let client = Client::builder().target(target).tls(tls).api_key("key").connect().await?;
    client.enqueue(EnqueueMessage::new("orders", "x")).await
}

#[tokio::test]
async fn a_private_ca_is_verified() {
    let broker = Broker::with_tls(false);
    assert_eq!(enqueue(broker.target(), trusting("ca.pem")).await.unwrap(), "id-x");
    assert_eq!(broker.seen()[0].metadata["authorization"], "Bearer key");
}

#[tokio::test]
async fn a_certificate_that_does_not_prove_the_broker_is_refused() {
    let broker = Broker::with_tls(false);
    let elsewhere = TlsOptions { server_name: Some("elsewhere".to_owned()), ..trusting("ca.pem") };
    for tls in [trusting("other_ca.pem"), elsewhere] {
        let error = enqueue(broker.target(), tls).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    assert!(broker.seen().is_empty());
}

#[tokio::test]
async fn without_a_ca_file_the_systems_roots_decide() {
    let broker = Broker::with_tls(false);
    let error = enqueue(broker.target(), TlsOptions::default()).await.unwrap_err();
    // A machine without any roots says so when the client is made.
    let is_expected = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::InvalidArgument);
    assert!(is_expected, "{error:?}");
    assert!(broker.seen().is_empty());
}

#[tokio::test]
async fn a_server_name_stands_in_for_the_target() {
    let broker = Broker::with_tls(false);
    let tls = TlsOptions { server_name: Some("localhost".to_owned()), ..trusting("ca.pem") };
    enqueue(broker.target(), tls).await.unwrap();
}

#[tokio::test]
async fn plain_text_to_a_tls_port_and_the_other_way_round_are_unavailable() {
    let broker = Broker::with_tls(false);
    let client = Client::connect(broker.target()).await.unwrap();
    let error = client.enqueue(EnqueueMessage::new("orders", "x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");

    let error = enqueue(Broker::start().target(), trusting("ca.pem")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn mutual_tls_needs_the_clients_certificate() {
    let broker = Broker::with_tls(true);
    let error = enqueue(broker.target(), trusting("ca.pem")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(broker.seen().is_empty());
    enqueue(broker.target(), proving("ca.pem")).await.unwrap();
}

#[tokio::test]
async fn a_bad_tls_file_is_named() {
    let missing = trusting("missing.pem");
    let error = enqueue("127.0.0.1:1".to_owned(), missing).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().starts_with("cannot read tls ca_file \""), "{error}");
    assert!(error.to_string().ends_with("missing.pem\": entity not found"), "{error}");

    // A file that is surely there and surely no certificate.
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let tls = TlsOptions { key_file: Some(manifest.into()), ..proving("ca.pem") };
    let error = enqueue("127.0.0.1:1".to_owned(), tls).await.unwrap_err();
    assert!(error.to_string().starts_with("tls key_file \""), "{error}");
    assert!(error.to_string().ends_with("Cargo.toml\" is not a PEM file"), "{error}");

    // PEM, but a certificate where a key should be.
    let tls = TlsOptions { key_file: Some(cert_path("ca.pem")), ..proving("ca.pem") };
    let error = enqueue("127.0.0.1:1".to_owned(), tls).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().starts_with("tls: "), "{error}");

    let tls = TlsOptions { key_file: None, ..proving("ca.pem") };
    let error = enqueue("127.0.0.1:1".to_owned(), tls).await.unwrap_err();
    let text = "tls cert_file and key_file go together; give both or neither";
    assert_eq!(error.to_string(), text);
}
