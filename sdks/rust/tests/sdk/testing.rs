// SPDX-License-Identifier: AGPL-3.0-only
//! Real brokers for tests. `fila-server` has to be on the `PATH`, or named by `FILA_SERVER`.

use std::net::TcpStream;

use fila::testing::Broker;
use fila::{Client, EnqueueMessage, ErrorKind, QueueSettings, ReceiveOptions};

#[tokio::test]
async fn a_real_broker_is_ready_when_start_returns_and_gone_when_it_is_dropped() {
    let broker = Broker::start().unwrap();
    let client = Client::connect(broker.address()).await.unwrap();
    client.ping().await.unwrap();
    let letters = client.ensure_queue("orders", QueueSettings::default()).await.unwrap();
    assert_eq!(letters, "orders.dlq");
    assert_eq!(client.ensure_queue("orders", QueueSettings::default()).await.unwrap(), letters);
    let wanted = QueueSettings { max_attempts: Some(3), ..Default::default() };
    let error = client.ensure_queue("orders", wanted).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueAlreadyExists);
    assert!(error.to_string().contains("max_attempts is 0, not 3"), "{error}");

    client.enqueue(EnqueueMessage::text("orders", "hello")).await.unwrap();
    let messages = client.receive("orders", ReceiveOptions::default()).await.unwrap();
    assert_eq!(messages[0].text().unwrap(), "hello");
    assert!(client.extend_many(&messages, None).await.unwrap()[0].is_ok());
    messages[0].ack().await.unwrap();
    client.close().await;

    let address = broker.address().to_owned();
    drop(broker);
    assert!(TcpStream::connect(address).is_err());
}

#[tokio::test]
async fn a_broker_takes_more_of_its_configuration_file() {
    let configuration = "[auth]\nbootstrap_apikey = \"a-key-for-tests-that-is-long-enough\"\n";
    let broker = Broker::start_with(configuration).unwrap();
    let client = Client::connect(broker.address()).await.unwrap();
    client.ping().await.unwrap();
    let error = client.list_queues().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
}

#[test]
fn a_broker_that_does_not_start_says_why() {
    let error = Broker::start_with("[no_such_section]\nkey = 1\n").unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("the broker did not become ready; it printed:\n"), "{text}");
    assert!(text.contains("no_such_section"), "{text}");
}
