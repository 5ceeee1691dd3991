// SPDX-License-Identifier: AGPL-3.0-only
//! Encryption: who is trusted, who is not, and what is said of a bad file.

use fila::{Client, EnqueueMessage, ErrorKind, Pem, TlsOptions};

use crate::broker::{Broker, PATIENCE, cert_path};

fn trusting(ca: &str) -> TlsOptions {
    TlsOptions { ca: Some(cert_path(ca).into()), ..TlsOptions::default() }
}

fn proving(ca: &str) -> TlsOptions {
    let (cert, key) = (cert_path("client.pem"), cert_path("client.key"));
    TlsOptions { cert: Some(cert.into()), key: Some(key.into()), ..trusting(ca) }
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
    assert!(error.to_string().starts_with("cannot read tls ca \""), "{error}");
    assert!(error.to_string().ends_with("missing.pem\": entity not found"), "{error}");

    // A file that is surely there and surely no certificate.
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let tls = TlsOptions { key: Some(manifest.into()), ..proving("ca.pem") };
    let error = enqueue("127.0.0.1:1".to_owned(), tls).await.unwrap_err();
    assert!(error.to_string().starts_with("tls key \""), "{error}");
    assert!(error.to_string().ends_with("Cargo.toml\" is not PEM"), "{error}");

    // PEM, but a certificate where a key should be.
    let tls = TlsOptions { key: Some(cert_path("ca.pem").into()), ..proving("ca.pem") };
    let error = enqueue("127.0.0.1:1".to_owned(), tls).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().ends_with("ca.pem\" holds no private key"), "{error}");

    let tls = TlsOptions { key: None, ..proving("ca.pem") };
    let error = enqueue("127.0.0.1:1".to_owned(), tls).await.unwrap_err();
    let text = "tls cert is given alone; cert and key go together";
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn certificates_and_keys_may_be_in_memory() {
    let broker = Broker::with_tls(true);
    let pem = |name: &str| Some(Pem::from(std::fs::read_to_string(cert_path(name)).unwrap()));
    let tls = TlsOptions {
        ca: pem("ca.pem"),
        cert: pem("client.pem"),
        key: pem("client.key"),
        server_name: None,
    };
    assert!(matches!(tls.key, Some(Pem::Memory(_))));
    let shown = format!("{tls:?}");
    assert!(!shown.contains("BEGIN"), "{shown}");
    enqueue(broker.target(), tls).await.unwrap();

    let ca = Some(Pem::Memory("no such thing".into()));
    let error =
        enqueue(broker.target(), TlsOptions { ca, ..Default::default() }).await.unwrap_err();
    assert_eq!(error.to_string(), "tls ca is not PEM");
}

#[tokio::test]
async fn files_are_read_again_for_every_connection() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str, from: &str| {
        let path = folder.path().join(name);
        std::fs::copy(cert_path(from), &path).unwrap();
        Some(Pem::from(path))
    };
    let mut broker = Broker::with_tls(true);
    let tls = TlsOptions {
        ca: place("ca.pem", "other_ca.pem"),
        cert: place("own.pem", "client.pem"),
        key: place("own.key", "client.key"),
        server_name: None,
    };
    let client = Client::builder().target(broker.target()).tls(tls).connect_lazy().unwrap();
    let send = || client.enqueue(EnqueueMessage::new("orders", "x"));
    let error = send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");

    place("ca.pem", "ca.pem");
    send().await.unwrap();

    // What is connected is not concerned, and the next connection is.
    std::fs::remove_file(folder.path().join("own.key")).unwrap();
    send().await.unwrap();
    broker.stop();
    let _broker = Broker::with_tls_on(broker.port, true);
    let refused = async {
        loop {
            // The first call may find the old connection before anybody noticed that it is gone.
            let error = send().await.unwrap_err();
            if error.to_string().contains("own.key") {
                break error;
            }
        }
    };
    let error = tokio::time::timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    place("own.key", "client.key");
    send().await.unwrap();
}

#[tokio::test]
async fn each_of_several_addresses_is_held_to_its_own_name() {
    // Its certificate is for 127.0.0.1 and localhost, and the loopback has other addresses.
    let broker = Broker::with_tls(false);
    let other = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let upstream = broker.target();
    std::thread::spawn(move || {
        for client in other.incoming().flatten() {
            relay(client, std::net::TcpStream::connect(&upstream).unwrap());
        }
    });
    let wrong = format!("127.0.0.2:{port}");
    let error = enqueue(wrong.clone(), trusting("ca.pem")).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let both = format!("{wrong},{}", broker.target());
    enqueue(both, trusting("ca.pem")).await.unwrap();
    let tls = TlsOptions { server_name: Some("localhost".to_owned()), ..trusting("ca.pem") };
    enqueue(wrong, tls).await.unwrap();
}

/// Copies bytes both ways, each by a thread of its own.
fn relay(one: std::net::TcpStream, other: std::net::TcpStream) {
    for (from, into) in [(one.try_clone(), other.try_clone()), (Ok(other), Ok(one))] {
        let (mut from, mut into) = (from.unwrap(), into.unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut into);
            let _ = into.shutdown(std::net::Shutdown::Both);
        });
    }
}
