// SPDX-License-Identifier: AGPL-3.0-only
//! A consumer hands out what it was sent, and ends when it is told to.

mod batches;
mod lost;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, UNIX_EPOCH};

use fila::{Backoff, Client, ConsumeOptions, Consumer, ErrorKind, Nack, ReceiveOptions};
use futures_core::Stream;
use tokio::time::timeout;

use crate::broker::{Broker, PATIENCE, frame, message};
use crate::proto;

const QUICK: Backoff =
    Backoff { initial: Duration::from_millis(5), maximum: Duration::from_millis(20) };

async fn quick(broker: &Broker) -> Client {
    quick_at(broker.port).await
}

async fn quick_at(port: u16) -> Client {
    let builder = Client::builder().target(format!("127.0.0.1:{port}"));
    builder.backoff(QUICK).connect_lazy().unwrap()
}

/// These frames, then an open stream; what this returns is true once the client has left.
fn frames_then_idle(broker: &Broker, frames: &[&[&str]]) -> Arc<AtomicBool> {
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&has_ended);
    let frames: Vec<_> = frames.iter().map(|ids| frame(ids)).collect();
    broker.on("Consume", move |_, out| {
        let (frames, ended) = (frames.clone(), Arc::clone(&ended));
        async move {
            for frame in &frames {
                out.send(frame);
            }
            out.idle().await;
            ended.store(true, Ordering::SeqCst);
        }
    });
    has_ended
}

async fn next_id(consumer: &Consumer) -> String {
    let next = timeout(PATIENCE, consumer.next()).await.expect("no message in time");
    next.expect("the stream ended").expect("an error").id.clone()
}

#[tokio::test]
async fn messages_arrive_in_order_across_frames() {
    let broker = Broker::start();
    frames_then_idle(&broker, &[&["a", "b"], &["c"]]);
    let client = Client::connect(broker.target()).await.unwrap();
    let options = ConsumeOptions {
        max_in_flight: 7,
        batch_size: 3,
        visibility_timeout: Some(Duration::from_millis(9)),
        extend_leases: true,
    };
    let consumer = client.consume_with("orders", options).await.unwrap();
    for id in ["a", "b", "c"] {
        assert_eq!(next_id(&consumer).await, id);
    }
    let sent: proto::ConsumeRequest = broker.calls("Consume")[0].request();
    let expected = proto::ConsumeRequest {
        queue: "orders".to_owned(),
        max_in_flight: 7,
        max_batch: 3,
        visibility_timeout_ms: 9,
    };
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn by_default_messages_come_in_frames_and_prefetch_is_bounded() {
    let broker = Broker::start();
    frames_then_idle(&broker, &[&["a"]]);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    next_id(&consumer).await;
    let sent: proto::ConsumeRequest = broker.calls("Consume")[0].request();
    assert_eq!((sent.max_in_flight, sent.max_batch, sent.visibility_timeout_ms), (64, 32, 0));
}

#[tokio::test]
async fn a_consumer_is_a_stream() {
    let broker = Broker::start();
    frames_then_idle(&broker, &[&["a"]]);
    let client = Client::connect(broker.target()).await.unwrap();
    let mut consumer = client.consume("orders").await.unwrap();
    let next = std::future::poll_fn(|context| Pin::new(&mut consumer).poll_next(context)).await;
    assert_eq!(next.unwrap().unwrap().id, "a");
}

#[tokio::test]
async fn a_stream_that_was_polled_and_left_takes_no_message_from_others() {
    let broker = Broker::start();
    let (go, gate) = tokio::sync::watch::channel(false);
    broker.on("Consume", move |_, out| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|is_open| *is_open).await.expect("the test is alive");
            out.send(&frame(&["a"]));
            out.idle().await;
        }
    });
    let client = quick(&broker).await;
    let mut consumer = client.consume("orders").await.unwrap();
    let poll = std::future::poll_fn(|context| {
        Poll::Ready(Pin::new(&mut consumer).poll_next(context).is_pending())
    });
    assert!(poll.await, "there is no message yet");
    let mut left = Box::pin(consumer.next());
    assert!(timeout(Duration::from_millis(10), left.as_mut()).await.is_err());
    let mut next = Box::pin(consumer.next());
    assert!(timeout(Duration::from_millis(10), next.as_mut()).await.is_err());
    go.send_replace(true);
    assert_eq!(timeout(PATIENCE, next).await.expect("it starves").unwrap().unwrap().id, "a");
}

#[tokio::test]
async fn every_field_of_a_message_arrives() {
    let broker = Broker::start();
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let mut raw = message("m-1");
    raw.headers.insert("tenant".to_owned(), "acme".to_owned());
    raw.payload = "hello".into();
    raw.metadata = raw.metadata.map(|metadata| proto::MessageMetadata {
        weight: 3,
        throttle_keys: vec!["mail".to_owned()],
        attempt_count: 2,
        last_error: "boom".to_owned(),
        failures: vec![proto::Failure {
            failed_at: at(500),
            cause: proto::FailureCause::Nack.into(),
            error: "boom".to_owned(),
        }],
        ..metadata
    });
    raw.timestamps = Some(proto::MessageTimestamps {
        enqueued_at: at(1_000),
        lease_expires_at: at(2_000),
        ..Default::default()
    });
    let messages = vec![raw, proto::Message { id: "bare".to_owned(), ..Default::default() }];
    broker.answer("Receive", proto::ReceiveResponse { messages });
    let client = Client::connect(broker.target()).await.unwrap();
    let messages = client.receive("orders", ReceiveOptions::default()).await.unwrap();
    let expected = fila::Message {
        id: "m-1".to_owned(),
        queue: "orders".to_owned(),
        headers: [("tenant".to_owned(), "acme".to_owned())].into(),
        payload: "hello".into(),
        fairness_key: "default".to_owned(),
        weight: 3,
        throttle_keys: vec!["mail".to_owned()],
        attempt_count: 2,
        lease_token: "token-of-m-1".to_owned(),
        last_error: "boom".to_owned(),
        failures: vec![fila::Failure {
            failed_at: Some(UNIX_EPOCH + Duration::from_secs(500)),
            cause: Some(fila::FailureCause::Nack),
            error: "boom".to_owned(),
        }],
        enqueued_at: Some(UNIX_EPOCH + Duration::from_secs(1_000)),
        lease_expires_at: Some(UNIX_EPOCH + Duration::from_secs(2_000)),
    };
    assert_eq!(*messages[0], expected);
    let bare = fila::Message { id: "bare".to_owned(), ..Default::default() };
    assert_eq!(messages[1].clone().into_message(), bare);
}

#[tokio::test]
async fn settling_a_message_names_its_delivery() {
    let broker = Broker::start();
    let end = prost_types::Timestamp { seconds: 1_900_000_000, nanos: 0 };
    let result = proto::ExtendLeaseResult { error: None, lease_expires_at: Some(end) };
    broker.answer("ExtendLease", proto::ExtendLeaseResponse { results: vec![result] });
    frames_then_idle(&broker, &[&["a", "b"]]);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    let first = consumer.next().await.unwrap().unwrap();
    let second = consumer.next().await.unwrap().unwrap();
    let extended = first.extend(Some(Duration::from_secs(5))).await.unwrap();
    assert_eq!(extended, UNIX_EPOCH + Duration::from_secs(1_900_000_000));
    first.ack().await.unwrap();
    let nack = Nack {
        error: "boom".to_owned(),
        retry_after: Some(Duration::from_millis(10)),
        throttle_key: Some("mail".to_owned()),
        dead_letter: false,
    };
    second.nack(nack).await.unwrap();

    let sent: proto::ExtendLeaseRequest = broker.calls("ExtendLease")[0].request();
    let extension = &sent.extensions[0];
    assert_eq!((extension.queue.as_str(), extension.extend_ms), ("orders", 5_000));
    assert_eq!(extension.lease_token, "token-of-a");
    let sent: proto::AckBatchRequest = broker.calls("AckBatch")[0].request();
    let expected = proto::AckRequest {
        queue: "orders".to_owned(),
        message_id: "a".to_owned(),
        lease_token: "token-of-a".to_owned(),
    };
    assert_eq!(sent.acks, [expected]);
    let sent: proto::NackBatchRequest = broker.calls("NackBatch")[0].request();
    let expected = proto::NackRequest {
        queue: "orders".to_owned(),
        message_id: "b".to_owned(),
        error: "boom".to_owned(),
        lease_token: "token-of-b".to_owned(),
        retry_after_ms: Some(10),
        throttle_key: "mail".to_owned(),
        dead_letter: false,
    };
    assert_eq!(sent.nacks, [expected]);
}

#[tokio::test]
async fn many_messages_are_settled_with_one_outcome_each() {
    let broker = Broker::start();
    let error = proto::ItemError {
        reason: proto::ErrorReason::LeaseExpired.into(),
        message: "too late".to_owned(),
    };
    let done = proto::ItemResult::default();
    let results = vec![done.clone(), proto::ItemResult { error: Some(error) }, done];
    broker.answer("AckBatch", proto::AckBatchResponse { results });
    let messages = frame(&["a", "b", "c"]).messages;
    broker.answer("Receive", proto::ReceiveResponse { messages });
    let client = Client::connect(broker.target()).await.unwrap();
    let options = ReceiveOptions { max_messages: 3, ..Default::default() };
    let messages = client.receive("orders", options).await.unwrap();
    let outcomes = client.ack_many(&messages).await.unwrap();
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok());
    let error = outcomes[1].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.message_id()), (ErrorKind::LeaseExpired, Some("b")));
    let outcomes = client.nack_many(&messages, "boom").await.unwrap();
    assert!(outcomes.iter().all(Result::is_ok));
    let sent: proto::NackBatchRequest = broker.calls("NackBatch")[0].request();
    assert!(sent.nacks.iter().all(|nack| nack.error == "boom" && nack.retry_after_ms.is_none()));
    assert_eq!(sent.nacks[2].lease_token, "token-of-c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_share_a_consumer_and_each_message_goes_to_one_of_them() {
    const TASKS: usize = 8;
    const MESSAGES: usize = 1_000;
    let broker = Broker::start();
    broker.on("Consume", |_, out| async move {
        for n in 0..MESSAGES / 4 {
            let ids = [0, 1, 2, 3].map(|place| (n * 4 + place).to_string());
            out.send(&frame(&ids.each_ref().map(String::as_str)));
            if n % 10 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        out.idle().await;
    });
    let client = quick(&broker).await;
    let consumer = Arc::new(client.consume("orders").await.unwrap());
    let (found, mut all) = tokio::sync::mpsc::unbounded_channel();
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| {
            let (consumer, found) = (Arc::clone(&consumer), found.clone());
            tokio::spawn(async move {
                loop {
                    let next = consumer.next();
                    // Some of them lose patience all the time, which must cost nobody a message.
                    let next = match n % 2 {
                        0 => next.await,
                        _ => match timeout(Duration::from_micros(300), next).await {
                            Ok(next) => next,
                            Err(_) => continue,
                        },
                    };
                    let Some(message) = next else { return };
                    found.send(message.unwrap().id.parse::<usize>().unwrap()).unwrap();
                }
            })
        })
        .collect();
    let mut ids = Vec::new();
    for _ in 0..MESSAGES {
        ids.push(timeout(PATIENCE, all.recv()).await.expect("a message is lost").unwrap());
    }
    consumer.close().await;
    for task in tasks {
        timeout(PATIENCE, task).await.expect("it goes on").unwrap();
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..MESSAGES).collect::<Vec<_>>());
    assert!(broker.calls("NackBatch").is_empty());
}

#[tokio::test]
async fn frames_are_read_as_they_come() {
    let broker = Broker::start();
    frames_then_idle(&broker, &[&["a"], &["b"], &["c"]]);
    let client = quick(&broker).await;
    let consumer = client.consume("orders").await.unwrap();
    broker.arrived(&client, 3).await;
    consumer.close().await;
    broker.until(|broker| broker.released() == ["a", "b", "c"]).await;
    consumer.close().await;
    assert!(consumer.next().await.is_none());
}

#[tokio::test]
async fn dropping_one_next_loses_neither_stream_nor_message() {
    let broker = Broker::start();
    let (go, gate) = tokio::sync::watch::channel(false);
    broker.on("Consume", move |_, out| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|is_open| *is_open).await.expect("the test is alive");
            out.send(&frame(&["a", "b"]));
            out.idle().await;
        }
    });
    let client = quick(&broker).await;
    let consumer = client.consume("orders").await.unwrap();
    for _ in 0..5 {
        assert!(timeout(Duration::from_millis(10), consumer.next()).await.is_err());
    }
    go.send_replace(true);
    assert_eq!(next_id(&consumer).await, "a");
    assert_eq!(next_id(&consumer).await, "b");
    assert_eq!(broker.calls("Consume").len(), 1);
}

#[tokio::test]
async fn close_ends_the_stream_and_gives_back_what_was_not_handed_out() {
    let broker = Broker::start();
    let has_ended = frames_then_idle(&broker, &[&["a", "b"], &["c"]]);
    let client = quick(&broker).await;
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "a");
    broker.arrived(&client, 2).await;
    consumer.close().await;
    // Of frames that were not read yet, too.
    broker.until(|broker| broker.released() == ["b", "c"]).await;
    broker.until(|_| has_ended.load(Ordering::SeqCst)).await;
    client.list_queues().await.unwrap_err();
}

#[tokio::test]
async fn dropping_a_consumer_ends_its_stream_and_gives_back_in_the_background() {
    let broker = Broker::start();
    let has_ended = frames_then_idle(&broker, &[&["a", "b", "c"]]);
    let client = quick(&broker).await;
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "a");
    drop(consumer);
    broker.until(|broker| broker.released() == ["b", "c"]).await;
    broker.until(|_| has_ended.load(Ordering::SeqCst)).await;
}

#[tokio::test]
async fn closing_the_client_ends_its_consumers_without_an_error() {
    let broker = Broker::start();
    frames_then_idle(&broker, &[&["a", "b"]]);
    let client = quick(&broker).await;
    let reader = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&reader).await, "a");
    let idle = client.consume("orders").await.unwrap();
    let waiting = tokio::spawn(async move {
        while let Some(message) = idle.next().await {
            message.unwrap();
        }
    });
    let unread = client.consume("orders").await.unwrap();
    broker.until(|broker| broker.calls("Consume").len() == 3).await;
    client.close().await;
    timeout(PATIENCE, waiting).await.expect("it goes on").unwrap();
    assert!(reader.next().await.is_none());
    assert!(unread.next().await.is_none());
    broker.until(|broker| broker.released().contains(&"b".to_owned())).await;
}

#[tokio::test]
async fn messages_that_cannot_be_given_back_do_not_hold_up_the_close() {
    let broker = Broker::start();
    frames_then_idle(&broker, &[&["a", "b"]]);
    broker.on("NackBatch", |_, out| async move { out.idle().await });
    let client = quick(&broker).await;
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "a");
    timeout(PATIENCE, consumer.close()).await.expect("close hangs");
    assert_eq!(broker.calls("NackBatch").len(), 1);
}
