// SPDX-License-Identifier: AGPL-3.0-only
//! The connection itself: several addresses, and what is told of changes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila::{Client, ClientBuilder, ConnectionEvent, EnqueueMessage, ErrorKind};
use tokio::time::{sleep, timeout};

use crate::broker::{Broker, PATIENCE, free_port};
use crate::log::Log;

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<ConnectionEvent>>>);

impl Told {
    /// Options with a place for what they tell.
    fn by(target: String) -> (ClientBuilder, Self) {
        let told = Self::default();
        let events = Arc::clone(&told.0);
        let builder = Client::builder().target(target).on_connection(move |event| {
            events.lock().unwrap().push(event.clone());
        });
        (builder, told)
    }

    fn now(&self) -> Vec<ConnectionEvent> {
        self.0.lock().unwrap().clone()
    }

    async fn until(&self, count: usize) -> Vec<ConnectionEvent> {
        let told = async {
            while self.now().len() < count {
                sleep(Duration::from_millis(2)).await;
            }
        };
        let outcome = timeout(PATIENCE, told).await;
        outcome.unwrap_or_else(|_| panic!("{count} events did not come: {:?}", self.now()));
        self.now()
    }
}

async fn enqueue(client: &Client) -> fila::Result<String> {
    client.enqueue(EnqueueMessage::new("orders", "a")).await
}

fn connected(broker: &Broker) -> ConnectionEvent {
    ConnectionEvent::Connected { address: broker.target() }
}

#[tokio::test]
async fn each_change_is_told_and_logged_once() {
    let (log, _guard) = Log::here();
    let mut first = Broker::on_port(free_port(), |_| {});
    let (builder, told) = Told::by(first.target());
    let client = builder.connect_lazy().unwrap();
    assert!(told.now().is_empty());
    enqueue(&client).await.unwrap();
    enqueue(&client).await.unwrap();
    assert_eq!(told.now(), [connected(&first)]);

    first.stop();
    let events = told.until(2).await;
    assert!(matches!(&events[1], ConnectionEvent::Lost { reason: Some(_) }), "{events:?}");
    for _ in 0..3 {
        enqueue(&client).await.unwrap_err();
    }
    let events = told.until(3).await;
    let ConnectionEvent::Unreachable { reason } = &events[2] else { panic!("{events:?}") };
    assert!(reason.starts_with(&first.target()), "{reason}");
    assert!(reason.contains("Connection refused"), "{reason}");

    let second = Broker::on_port(first.port, |_| {});
    enqueue(&client).await.unwrap();
    assert_eq!(told.until(4).await[3], connected(&second));
    client.close().await;
    assert_eq!(told.now().len(), 4);
    for (line, level) in [
        ("the connection was lost", "WARN"),
        ("the broker cannot be reached", "WARN"),
        ("the broker is there again", "INFO"),
    ] {
        let lines = log.lines(line);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with(level), "{lines:?}");
    }
    assert!(log.lines("there again")[0].contains("away="), "{:?}", log.lines("there again"));
}

#[tokio::test]
async fn a_client_that_is_dropped_has_lost_nothing() {
    let broker = Broker::start();
    let (builder, told) = Told::by(broker.target());
    let client = builder.connect().await.unwrap();
    enqueue(&client).await.unwrap();
    let watched = Arc::downgrade(&told.0);
    drop(client);
    // What tells of the connection goes with it.
    let events = told.now();
    drop(told);
    let gone = async {
        while watched.strong_count() > 0 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();
    assert_eq!(events, [connected(&broker)]);
}

#[tokio::test]
async fn who_is_told_may_panic() {
    let (log, _guard) = Log::here();
    let broker = Broker::start();
    let builder = Client::builder().target(broker.target());
    let builder = builder.on_connection(|event| panic!("{event:?}, as this test wants"));
    enqueue(&builder.connect().await.unwrap()).await.unwrap();
    assert_eq!(log.lines("on_connection panicked").len(), 1);
}

#[tokio::test]
async fn somebody_who_accepts_and_hangs_up_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (builder, told) = Told::by(listener.local_addr().unwrap().to_string());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream);
        }
    });
    let client = builder.connect_lazy().unwrap();
    for _ in 0..2 {
        assert_eq!(enqueue(&client).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    let events = told.until(1).await;
    assert!(matches!(&events[..], [ConnectionEvent::Unreachable { .. }]), "{events:?}");
}

#[tokio::test]
async fn the_first_address_that_answers_is_used_and_after_its_loss_another_one() {
    let mut first = Broker::on_port(free_port(), |_| {});
    let second = Broker::start();
    let nobody = free_port();
    let targets = format!("127.0.0.1:{nobody},{}, {}", first.target(), second.target());
    let (builder, told) = Told::by(targets);
    let client = builder.connect().await.unwrap();
    enqueue(&client).await.unwrap();
    assert_eq!((first.seen().len(), second.seen().len()), (1, 0));

    first.stop();
    told.until(2).await;
    enqueue(&client).await.unwrap();
    assert_eq!(second.seen().len(), 1);
    let events = told.until(3).await;
    assert!(matches!(&events[1], ConnectionEvent::Lost { .. }), "{events:?}");
    assert_eq!((&events[0], &events[2]), (&connected(&first), &connected(&second)));
}

#[tokio::test]
async fn where_no_address_answers_the_error_names_all() {
    let addresses = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let error = Client::connect(addresses.join(",")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for address in &addresses {
        assert!(error.to_string().contains(address), "{error}");
    }
}

#[tokio::test]
async fn one_bad_address_of_several_is_named() {
    let error = Client::connect("127.0.0.1:1,localhost,").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().starts_with("target \"localhost\" is not host:port"), "{error}");
}
