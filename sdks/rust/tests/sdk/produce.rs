// SPDX-License-Identifier: AGPL-3.0-only
//! What a producer says arrives, in order, and is sent again only where that is harmless.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fila::{Backoff, Client, EnqueueMessage, ErrorKind, ReceiveOptions};
use tonic::Code;

use crate::broker::{Broker, PATIENCE, refusal, settled, stored};
use crate::proto;

const QUICK: Backoff =
    Backoff { initial: Duration::from_millis(5), maximum: Duration::from_millis(20) };

async fn quick(broker: &Broker) -> Client {
    let builder = Client::builder().target(broker.target()).backoff(QUICK).timeout(PATIENCE);
    builder.connect().await.unwrap()
}

/// Fails the first calls of a method with UNAVAILABLE.
fn away_at_first(broker: &Broker, method: &str, failures: usize) {
    let calls = Arc::new(AtomicUsize::new(0));
    broker.on(method, move |seen, out| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            match seen.method.as_str() {
                _ if call < failures => out.fail(refusal(Code::Unavailable, "away", None)),
                "EnqueueBatch" => out.send(&stored(&seen)),
                "AckBatch" => out.send(&settled(&seen)),
                // Answers without fields look the same in every call.
                _ => out.send(&proto::SetConfigResponse {}),
            }
        }
    });
}

#[tokio::test]
async fn every_option_arrives() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let message = EnqueueMessage::new("orders", vec![0, 159, 146, 150])
        .header("tenant", "acme")
        .header("", "empty key")
        .fairness_key("acme")
        .weight(7)
        .throttle_key("mail")
        .throttle_key("sms")
        .throttle_cost(2)
        .delay(Duration::from_millis(1500))
        .ttl(Duration::from_secs(60))
        .idempotency_key("once");
    client.enqueue(message).await.unwrap();
    let at = UNIX_EPOCH + Duration::from_millis(1_900_000_000_250);
    client.enqueue(EnqueueMessage::new("orders", "").deliver_at(at)).await.unwrap();

    let sent = |index: usize| {
        broker.calls("EnqueueBatch")[index].request::<proto::EnqueueBatchRequest>().messages
    };
    let headers = [("tenant", "acme"), ("", "empty key")];
    let expected = proto::EnqueueRequest {
        queue: "orders".to_owned(),
        headers: headers.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        payload: vec![0, 159, 146, 150].into(),
        fairness_key: "acme".to_owned(),
        weight: 7,
        throttle_keys: vec!["mail".to_owned(), "sms".to_owned()],
        throttle_cost: 2,
        delay_ms: 1500,
        deliver_at: None,
        ttl_ms: 60_000,
        idempotency_key: "once".to_owned(),
    };
    assert_eq!(sent(0), [expected]);
    let deliver_at = prost_types::Timestamp { seconds: 1_900_000_000, nanos: 250_000_000 };
    let expected = proto::EnqueueRequest {
        queue: "orders".to_owned(),
        deliver_at: Some(deliver_at),
        ..Default::default()
    };
    assert_eq!(sent(1), [expected]);
}

#[tokio::test]
async fn many_messages_keep_their_order_and_get_a_result_each() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let messages = (0..2_500).map(|n| EnqueueMessage::new("orders", n.to_string()));
    let results = client.enqueue_many(messages).await.unwrap();
    let ids: Vec<_> = results.into_iter().map(|result| result.unwrap().message_id).collect();
    assert_eq!(ids, (0..2_500).map(|n| format!("id-{n}")).collect::<Vec<_>>());
    let sizes = broker.calls("EnqueueBatch").into_iter();
    let sizes = sizes.map(|call| call.request::<proto::EnqueueBatchRequest>().messages.len());
    assert_eq!(sizes.collect::<Vec<_>>(), [1_000, 1_000, 500]);
}

#[tokio::test]
async fn no_messages_send_nothing() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    assert!(client.enqueue_many([]).await.unwrap().is_empty());
    assert!(client.ack_many([]).await.unwrap().is_empty());
    assert!(broker.seen().is_empty());
}

#[tokio::test]
async fn one_bad_message_of_many_fails_alone_and_duplicates_are_named() {
    let broker = Broker::start();
    broker.on("EnqueueBatch", |seen, out| async move {
        let mut answer = stored(&seen);
        answer.results[0].duplicate = true;
        answer.results[1].error = Some(proto::ItemError {
            reason: proto::ErrorReason::QueueNotFound.into(),
            message: "queue \"nowhere\" does not exist".to_owned(),
        });
        out.send(&answer);
    });
    let client = Client::connect(broker.target()).await.unwrap();
    let messages = ["orders", "nowhere", "orders"].map(|queue| EnqueueMessage::new(queue, "x"));
    let results = client.enqueue_many(messages).await.unwrap();
    assert!(results[0].as_ref().unwrap().duplicate);
    let error = results[1].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.queue()), (ErrorKind::QueueNotFound, Some("nowhere")));
    assert!(!results[2].as_ref().unwrap().duplicate);
}

#[tokio::test]
async fn a_request_that_fails_fails_its_messages_and_those_behind_it() {
    let broker = Broker::start();
    let calls = Arc::new(Mutex::new(0));
    broker.on("EnqueueBatch", move |seen, out| {
        let calls = Arc::clone(&calls);
        async move {
            let mut calls = calls.lock().unwrap();
            *calls += 1;
            match *calls {
                2 => out.fail(refusal(Code::ResourceExhausted, "busy", Some("OVERLOADED"))),
                _ => out.send(&stored(&seen)),
            }
        }
    });
    let client = Client::connect(broker.target()).await.unwrap();
    let messages = (0..3_000).map(|n| EnqueueMessage::new("orders", n.to_string()));
    let results = client.enqueue_many(messages).await.unwrap();
    assert_eq!(broker.seen().len(), 2, "nothing is sent after a request that failed");
    assert!(results[..1_000].iter().all(Result::is_ok));
    for (range, text) in [(1_000..2_000, "busy"), (2_000..3_000, "not sent, because")] {
        for result in &results[range] {
            let error = result.as_ref().unwrap_err();
            assert_eq!((error.kind(), error.queue()), (ErrorKind::Overloaded, Some("orders")));
            assert!(error.to_string().starts_with(text), "{error}");
        }
    }
}

#[tokio::test]
async fn a_broker_that_answers_too_few_results_is_an_error_for_all() {
    let broker = Broker::start();
    broker.answer("EnqueueBatch", proto::EnqueueBatchResponse::default());
    let client = Client::connect(broker.target()).await.unwrap();
    let error = client.enqueue(EnqueueMessage::new("orders", "a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(error.to_string(), "the broker gave 0 results for 1 items");
}

#[tokio::test]
async fn an_enqueue_that_may_have_been_stored_is_never_sent_again() {
    let broker = Broker::start();
    away_at_first(&broker, "EnqueueBatch", usize::MAX);
    let client = quick(&broker).await;
    let error = client.enqueue(EnqueueMessage::new("orders", "a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // An empty key is none.
    let message = EnqueueMessage::new("orders", "a").idempotency_key("");
    client.enqueue(message).await.unwrap_err();
    let result = &client.enqueue_many([EnqueueMessage::new("orders", "a")]).await.unwrap()[0];
    assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(broker.seen().len(), 3);
}

#[tokio::test]
async fn a_connection_that_breaks_under_an_enqueue_is_unavailable_and_sends_it_once() {
    let mut broker = Broker::start();
    broker.on("EnqueueBatch", |_, out| async move { out.idle().await });
    let client = quick(&broker).await;
    let message = EnqueueMessage::new("orders", "a");
    let call = tokio::spawn(async move { client.enqueue(message).await });
    broker.until(|broker| broker.seen().len() == 1).await;
    broker.stop();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.is_retryable());
    assert_eq!(broker.seen().len(), 1);
}

#[tokio::test]
async fn an_enqueue_with_an_idempotency_key_is_sent_until_the_broker_is_back() {
    let broker = Broker::start();
    away_at_first(&broker, "EnqueueBatch", 3);
    let client = quick(&broker).await;
    let message = EnqueueMessage::new("orders", "a").idempotency_key("once");
    assert_eq!(client.enqueue(message).await.unwrap(), "id-a");
    assert_eq!(broker.seen().len(), 4);
}

#[tokio::test]
async fn many_messages_are_sent_again_only_if_all_have_keys() {
    let broker = Broker::start();
    let keyed = |n: usize| EnqueueMessage::new("orders", "x").idempotency_key(n.to_string());
    away_at_first(&broker, "EnqueueBatch", 2);
    let client = quick(&broker).await;
    let results = client.enqueue_many((0..3).map(keyed)).await.unwrap();
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(broker.seen().len(), 3);

    away_at_first(&broker, "EnqueueBatch", 2);
    let mixed = [keyed(1), EnqueueMessage::new("orders", "x")];
    let results = client.enqueue_many(mixed).await.unwrap();
    assert!(results.iter().all(Result::is_err));
    assert_eq!(broker.seen().len(), 4);
}

#[tokio::test]
async fn retries_end_with_the_deadline() {
    let broker = Broker::start();
    away_at_first(&broker, "EnqueueBatch", usize::MAX);
    let client = quick(&broker).await.with_timeout(Duration::from_secs(2));
    let message = EnqueueMessage::new("orders", "a").idempotency_key("once");
    let error = client.enqueue(message).await.unwrap_err();
    let is_expected = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded);
    assert!(is_expected, "{error:?}");
    assert!(broker.seen().len() > 1);
}

#[tokio::test]
async fn only_unavailable_is_tried_again() {
    let broker = Broker::start();
    let client = quick(&broker).await;
    for code in [Code::Internal, Code::ResourceExhausted, Code::Aborted, Code::Unknown] {
        let before = broker.seen().len();
        broker.refuse("EnqueueBatch", code, "no", None);
        let message = EnqueueMessage::new("orders", "a").idempotency_key("once");
        client.enqueue(message).await.unwrap_err();
        assert_eq!(broker.seen().len(), before + 1, "{code:?}");
    }
}

#[tokio::test]
async fn settling_and_changes_are_never_sent_again() {
    let broker = Broker::start();
    for method in ["AckBatch", "NackBatch", "ExtendLease", "CreateQueue", "Receive", "Purge"] {
        away_at_first(&broker, method, usize::MAX);
    }
    let client = quick(&broker).await;
    client.ack("orders", "m", None).await.unwrap_err();
    client.nack("orders", "m", None, "boom").await.unwrap_err();
    client.extend("orders", "m", None, None).await.unwrap_err();
    client.create_queue("orders", Default::default()).await.unwrap_err();
    client.receive("orders", Default::default()).await.unwrap_err();
    client.purge("orders", None).await.unwrap_err();
    assert_eq!(broker.seen().len(), 6);
}

#[tokio::test]
async fn reads_and_configuration_are_sent_until_the_broker_is_back() {
    let broker = Broker::start();
    let methods = ["ListQueues", "GetStats", "Peek", "Explain", "GetConfig", "SetConfig"];
    for method in methods.iter().chain(&["ListConfig", "ListApiKeys", "GetAcl"]) {
        away_at_first(&broker, method, 2);
    }
    let client = quick(&broker).await;
    client.list_queues().await.unwrap();
    client.stats("orders", None).await.unwrap();
    client.peek("orders", Default::default()).await.unwrap();
    client.explain("orders", fila::Subject::FairnessKey("acme")).await.unwrap();
    client.get_config("key").await.unwrap();
    client.set_config("key", "value").await.unwrap();
    client.list_config("").await.unwrap();
    client.list_api_keys().await.unwrap();
    client.get_acl("key-1").await.unwrap();
    assert_eq!(broker.seen().len(), 9 * 3);
}

#[tokio::test]
async fn a_payload_is_a_part_of_the_frame_it_came_in() {
    let broker = Broker::start();
    let messages = ["a", "b"].map(|id| {
        let payload = vec![b'x'; 1 << 20].into();
        proto::Message { payload, ..crate::broker::message(id) }
    });
    broker.answer("Receive", proto::ReceiveResponse { messages: messages.into() });
    let client = Client::connect(broker.target()).await.unwrap().with_timeout(PATIENCE);
    let received = client.receive("orders", ReceiveOptions::default()).await.unwrap();
    let [first, second] = &received[..] else { panic!("{received:?}") };
    // Both lie in one buffer, with a little between them, so nobody has copied them.
    let between = second.payload.as_ptr().addr() - first.payload.as_ptr().addr();
    assert!((1 << 20..(1 << 20) + 1_000).contains(&between), "{between}");
}
