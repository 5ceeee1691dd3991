// SPDX-License-Identifier: AGPL-3.0-only
//! A consumer outlives its connection, and says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fila::{Backoff, Client, ErrorKind};
use tokio::time::timeout;
use tonic::Code;

use super::{frames_then_idle, next_id, quick, quick_at};
use crate::broker::{Broker, PATIENCE, frame, free_port, refusal};
use crate::log::Log;

/// Has one message, and then an open stream.
fn sending(port: u16, id: &str) -> Broker {
    Broker::on_port(port, |broker| {
        frames_then_idle(broker, &[&[id]]);
    })
}

#[tokio::test]
async fn an_error_in_the_middle_comes_after_the_messages_before_it_and_is_final() {
    let broker = Broker::start();
    broker.on("Consume", |_, out| async move {
        out.send(&frame(&["a", "b"]));
        out.fail(refusal(Code::PermissionDenied, "revoked", Some("PERMISSION_DENIED")));
    });
    let client = quick(&broker).await;
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "a");
    assert_eq!(next_id(&consumer).await, "b");
    let error = consumer.next().await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.queue()), (ErrorKind::PermissionDenied, Some("orders")));
    assert!(consumer.next().await.is_none());
    assert_eq!(broker.seen().len(), 1);
}

#[tokio::test]
async fn a_stream_that_ends_is_opened_again() {
    for ending in [None, Some(None), Some(Some("SHUTTING_DOWN"))] {
        let broker = Broker::start();
        let calls = Arc::new(AtomicUsize::new(0));
        broker.on("Consume", move |_, out| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            async move {
                out.send(&frame(&[&format!("m-{call}")]));
                match ending {
                    _ if call == 2 => out.idle().await,
                    None => {}
                    Some(reason) => out.fail(refusal(Code::Unavailable, "reset", reason)),
                }
            }
        });
        let client = quick(&broker).await;
        let consumer = client.consume("orders").await.unwrap();
        for id in ["m-0", "m-1", "m-2"] {
            assert_eq!(next_id(&consumer).await, id);
        }
    }
}

#[tokio::test]
async fn a_consumer_survives_a_broker_restart_and_may_be_opened_before_the_broker() {
    let port = free_port();
    let client = quick_at(port).await;
    let consumer = client.consume("orders").await.unwrap();
    let early = timeout(Duration::from_millis(100), consumer.next()).await;
    assert!(early.is_err(), "there is nobody to send a message");

    let mut first = sending(port, "before");
    assert_eq!(next_id(&consumer).await, "before");
    first.stop();
    let _second = sending(port, "after");
    assert_eq!(next_id(&consumer).await, "after");
}

#[tokio::test]
async fn the_log_says_once_that_a_stream_was_lost_and_once_that_it_is_back() {
    let (log, _guard) = Log::here();
    let (lost, back) = ("WARN consume stream was lost", "INFO consume stream is there again");
    let port = free_port();
    let client = quick_at(port).await;
    let consumer = client.consume("orders").await.unwrap();
    log.until(lost).await;
    let early = timeout(Duration::from_millis(100), consumer.next()).await;
    assert!(early.is_err(), "there is nobody to send a message");
    let mut first = sending(port, "a");
    assert_eq!(next_id(&consumer).await, "a");
    assert_eq!((log.lines(lost).len(), log.lines(back).len()), (1, 1));
    assert!(log.lines(lost)[0].contains("refused"), "{:?}", log.lines(lost));
    first.stop();
    let _second = sending(port, "b");
    assert_eq!(next_id(&consumer).await, "b");
    assert_eq!((log.lines(lost).len(), log.lines(back).len()), (2, 2));
}

#[tokio::test]
async fn what_was_read_before_the_stream_was_lost_is_kept() {
    let mut first = Broker::on_port(free_port(), |broker| {
        frames_then_idle(broker, &[&["a", "b"], &["c"]]);
    });
    let client = quick(&first).await;
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "a");
    first.until(|broker| broker.taken() == 2).await;
    first.stop();
    let second = sending(first.port, "d");
    second.until(|broker| broker.taken() == 1).await;
    let mut ids = vec![next_id(&consumer).await, next_id(&consumer).await];
    if ids[1] != "d" {
        ids.push(next_id(&consumer).await);
    }
    // The second frame may have been on its way when the broker died.
    assert!(ids == ["b", "c", "d"] || ids == ["b", "d"], "{ids:?}");
}

#[tokio::test]
async fn attempts_are_spread_and_never_hot() {
    let broker = Broker::start();
    broker.refuse("Consume", Code::Unavailable, "away", None);
    let wide = Backoff { initial: Duration::from_millis(50), maximum: Duration::from_secs(5) };
    let builder = Client::builder().target(broker.target()).backoff(wide);
    let client = builder.connect().await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    let waited = timeout(Duration::from_millis(300), consumer.next()).await;
    assert!(waited.is_err());
    let attempts = broker.calls("Consume").len();
    assert!(attempts <= 60, "{attempts} attempts in 0.3 s");
}

#[tokio::test]
async fn closing_the_client_ends_a_consumer_that_waits_to_reconnect() {
    let forever = Duration::from_secs(600);
    let backoff = Backoff { initial: forever, maximum: forever };
    let builder = Client::builder().target(format!("127.0.0.1:{}", free_port())).backoff(backoff);
    let client = builder.connect_lazy().unwrap();
    let consumer = client.consume("orders").await.unwrap();
    let waiting = tokio::spawn(async move { consumer.next().await.is_none() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.close().await;
    assert!(timeout(PATIENCE, waiting).await.expect("it goes on").unwrap());
}
