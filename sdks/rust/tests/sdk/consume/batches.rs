// SPDX-License-Identifier: AGPL-3.0-only
//! Messages in lists of what is there.

use std::pin::Pin;

use fila::ConsumeMessage;
use tonic::Code;

use super::*;

fn ids(batch: &[ConsumeMessage]) -> Vec<&str> {
    batch.iter().map(|message| message.id.as_str()).collect()
}

#[tokio::test]
async fn a_batch_has_what_is_there_and_no_more_than_asked_for() {
    let broker = Broker::start();
    frames_then_idle(&broker, &[&["a", "b"], &["c", "d", "e"]]);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    broker.arrived(&client, 2).await;
    let mut batches = consumer.batches(4);
    let first = timeout(PATIENCE, batches.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(ids(&first), ["a", "b", "c", "d"]);
    let poll = std::future::poll_fn(|context| Pin::new(&mut batches).poll_next(context));
    let second = timeout(PATIENCE, poll).await.unwrap().unwrap().unwrap();
    assert_eq!(ids(&second), ["e"]);
}

#[tokio::test]
async fn a_batch_waits_for_its_first_message() {
    let broker = Broker::start();
    let go = Arc::new(tokio::sync::Notify::new());
    let may_go = Arc::clone(&go);
    broker.on("Consume", move |_, out| {
        let may_go = Arc::clone(&may_go);
        async move {
            may_go.notified().await;
            out.send(&frame(&["a"]));
            out.idle().await;
        }
    });
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    let mut batches = consumer.batches(4);
    let is_pending = std::future::poll_fn(|context| {
        Poll::Ready(Pin::new(&mut batches).poll_next(context).is_pending())
    });
    assert!(is_pending.await);
    go.notify_one();
    let poll = std::future::poll_fn(|context| Pin::new(&mut batches).poll_next(context));
    let batch = timeout(PATIENCE, poll).await.unwrap().unwrap().unwrap();
    assert_eq!(ids(&batch), ["a"]);
}

#[tokio::test]
async fn batches_end_with_the_error_of_the_stream_once_what_came_before_is_handed_out() {
    let broker = Broker::start();
    broker.on("Consume", |_, out| async move {
        out.send(&frame(&["a"]));
        out.fail(crate::broker::refusal(Code::NotFound, "gone", Some("QUEUE_NOT_FOUND")));
    });
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    let batches = consumer.batches(4);
    let batch = timeout(PATIENCE, batches.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(ids(&batch), ["a"]);
    let error = timeout(PATIENCE, batches.next()).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueNotFound);
    assert!(timeout(PATIENCE, batches.next()).await.unwrap().is_none());
}

#[tokio::test]
#[should_panic(expected = "max of batches must be positive, got 0")]
async fn batches_of_nothing_are_a_mistake() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let _ = client.consume("orders").await.unwrap().batches(0);
}
