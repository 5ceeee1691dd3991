// SPDX-License-Identifier: AGPL-3.0-only
//! What was begun is brought to its end: repeated while the broker is away, waited for by flush and
//! close, and bounded while it waits to be sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila::{Backoff, Client, EnqueueMessage, ErrorKind, Nack, ReceiveOptions};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Status;

use crate::broker::{Broker, PATIENCE, frame, leased, settled, stored};
use crate::log::Log;
use crate::proto;

const QUICK: Backoff =
    Backoff { initial: Duration::from_millis(5), maximum: Duration::from_millis(20) };

async fn quick(broker: &Broker) -> Client {
    let builder = Client::builder().target(broker.target()).timeout(PATIENCE);
    builder.backoff(QUICK).connect().await.unwrap()
}

/// What each request of a method meets, one after the other: away, or the same reason for all of
/// its items. Afterwards all is well.
fn meets(broker: &Broker, method: &str, fates: &[Option<proto::ErrorReason>]) {
    let fates: Arc<Mutex<VecDeque<_>>> = Arc::new(Mutex::new(fates.iter().copied().collect()));
    let is_extension = method == "ExtendLease";
    broker.on(method, move |seen, out| {
        let fate = fates.lock().unwrap().pop_front();
        async move {
            let count = settled(&seen).results.len();
            let reason = match fate {
                Some(None) => return out.fail(Status::unavailable("away")),
                Some(reason) => reason,
                None => None,
            };
            let error = reason
                .map(|reason| proto::ItemError { reason: reason.into(), message: "no".to_owned() });
            if is_extension {
                let end = prost_types::Timestamp { seconds: 1_900_000_000, nanos: 0 };
                let lease_expires_at = error.is_none().then_some(end);
                let result = proto::ExtendLeaseResult { error, lease_expires_at };
                out.send(&proto::ExtendLeaseResponse { results: vec![result; count] });
            } else {
                let results = vec![proto::ItemResult { error }; count];
                out.send(&proto::AckBatchResponse { results });
            }
        }
    });
}

const AWAY: Option<proto::ErrorReason> = None;
const GONE: Option<proto::ErrorReason> = Some(proto::ErrorReason::MessageNotFound);
const EXPIRED: Option<proto::ErrorReason> = Some(proto::ErrorReason::LeaseExpired);

async fn ack(client: &Client, token: Option<&str>) -> Result<(), ErrorKind> {
    client.ack("orders", "m", token).await.map_err(|error| error.kind())
}

async fn nack(client: &Client, token: Option<&str>) -> Result<(), ErrorKind> {
    client.nack("orders", "m", token, "boom").await.map_err(|error| error.kind())
}

#[tokio::test]
async fn an_ack_with_its_token_is_sent_again_while_the_broker_is_away() {
    for (fates, outcome) in [
        (vec![AWAY], Ok(())),
        (vec![AWAY, AWAY], Ok(())),
        (vec![AWAY, GONE], Ok(())),
        (vec![AWAY, EXPIRED], Err(ErrorKind::LeaseExpired)),
        (vec![GONE], Err(ErrorKind::MessageNotFound)),
    ] {
        let broker = Broker::start().without_pipelines();
        let client = quick(&broker).await;
        meets(&broker, "AckBatch", &fates);
        assert_eq!(ack(&client, Some("t")).await, outcome, "{fates:?}");
        let requests = fates.iter().filter(|fate| fate.is_none()).count() + 1;
        let calls = broker.calls("AckBatch");
        assert_eq!(calls.len(), requests);
        for call in calls {
            assert_eq!(call.request::<proto::AckBatchRequest>().acks[0].lease_token, "t");
        }
    }
}

#[tokio::test]
async fn a_nack_with_its_token_is_sent_again_while_the_broker_is_away() {
    for (fates, outcome) in [
        (vec![AWAY, GONE], Ok(())),
        (vec![AWAY, EXPIRED], Ok(())),
        (vec![AWAY], Ok(())),
        (vec![EXPIRED], Err(ErrorKind::LeaseExpired)),
        (vec![GONE], Err(ErrorKind::MessageNotFound)),
    ] {
        let broker = Broker::start().without_pipelines();
        let client = quick(&broker).await;
        meets(&broker, "NackBatch", &fates);
        assert_eq!(nack(&client, Some("t")).await, outcome, "{fates:?}");
    }
}

#[tokio::test]
async fn an_extension_with_its_token_is_sent_again_and_needs_its_message() {
    for (fates, kind) in [
        (vec![AWAY], None),
        (vec![AWAY, GONE], Some(ErrorKind::MessageNotFound)),
        (vec![AWAY, EXPIRED], Some(ErrorKind::LeaseExpired)),
    ] {
        let broker = Broker::start().without_pipelines();
        let client = quick(&broker).await;
        meets(&broker, "ExtendLease", &fates);
        let outcome = client.extend("orders", "m", Some("t"), None).await;
        assert_eq!(outcome.err().map(|error| error.kind()), kind);
        assert_eq!(broker.calls("ExtendLease").len(), 2);
    }
}

#[tokio::test]
async fn without_a_token_nothing_is_sent_twice() {
    let broker = Broker::start().without_pipelines();
    let client = quick(&broker).await;
    for method in ["AckBatch", "NackBatch", "ExtendLease"] {
        meets(&broker, method, &[AWAY]);
    }
    assert_eq!(ack(&client, None).await, Err(ErrorKind::Unavailable));
    assert_eq!(nack(&client, Some("")).await, Err(ErrorKind::Unavailable));
    let error = client.extend("orders", "m", None, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for method in ["AckBatch", "NackBatch", "ExtendLease"] {
        assert_eq!(broker.calls(method).len(), 1);
    }
}

#[tokio::test]
async fn a_settlement_is_given_up_at_its_deadline() {
    let broker = Broker::start().without_pipelines();
    let client = quick(&broker).await.with_timeout(Duration::from_millis(100));
    broker.on("AckBatch", |_, out| async move { out.fail(Status::unavailable("away")) });
    let kind = ack(&client, Some("t")).await.unwrap_err();
    assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::DeadlineExceeded), "{kind:?}");
}

#[tokio::test]
async fn grants_of_the_user_are_not_settled_twice() {
    let broker = Broker::start().without_pipelines();
    let client = quick(&broker).await;
    broker.on("SettleGrants", |_, out| async move { out.fail(Status::unavailable("away")) });
    let error = client.ack_grant("orders", "t", &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = client.nack_grant("orders", "t", "boom", &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(broker.calls("SettleGrants").len(), 2);
}

/// A broker that did what the first request for a grant said, and could not say so.
fn settles_unheard(broker: &Broker) {
    let calls = Arc::new(Mutex::new(0));
    broker.on("SettleGrants", move |_, out| {
        let call = {
            let mut calls = calls.lock().unwrap();
            *calls += 1;
            *calls
        };
        async move {
            if call == 1 {
                return out.fail(Status::unavailable("away"));
            }
            let error = proto::ItemError {
                reason: proto::ErrorReason::LeaseExpired.into(),
                message: "none is left".to_owned(),
            };
            let result = proto::GrantResult { error: Some(error), ..Default::default() };
            out.send(&proto::SettleGrantsResponse { results: vec![result] });
        }
    });
    meets(broker, "AckBatch", &[GONE]);
}

#[tokio::test]
async fn acks_of_a_whole_frame_that_were_done_unheard_are_a_success() {
    for is_one_call in [true, false] {
        let broker = Broker::start().without_pipelines();
        let client = quick(&broker).await;
        settles_unheard(&broker);
        let messages = leased("t", &["a", "b"], PATIENCE).messages;
        broker.answer("Receive", proto::ReceiveResponse { messages });
        let frame = client.receive("orders", ReceiveOptions::default()).await.unwrap();
        if is_one_call {
            let outcomes = client.ack_many(&frame).await.unwrap();
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        } else {
            // The two may or may not meet again; whichever way, they are gone.
            meets(&broker, "AckBatch", &[GONE, GONE]);
            let (first, second) = tokio::join!(frame[0].ack(), frame[1].ack());
            first.unwrap();
            second.unwrap();
        }
    }
}

#[tokio::test]
async fn many_settlements_are_sent_again_request_by_request() {
    let broker = Broker::start().without_pipelines();
    let client = quick(&broker).await;
    meets(&broker, "AckBatch", &[AWAY, GONE]);
    meets(&broker, "NackBatch", &[AWAY, EXPIRED]);
    let messages = frame(&["a", "b"]).messages;
    broker.answer("Receive", proto::ReceiveResponse { messages });
    let messages = client.receive("orders", ReceiveOptions::default()).await.unwrap();
    let outcomes = client.ack_many(&messages).await.unwrap();
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let outcomes = client.nack_many(&messages, "boom").await.unwrap();
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[tokio::test]
async fn a_nack_may_say_that_trying_again_would_not_help() {
    let broker = Broker::start();
    let client = quick(&broker).await;
    let hopeless = Nack { dead_letter: true, ..Nack::from("no such order") };
    client.nack("orders", "m", Some("t"), hopeless.clone()).await.unwrap();
    let sent: proto::NackBatchRequest = broker.calls("NackBatch")[0].request();
    assert!(sent.nacks[0].dead_letter);
    assert_eq!(sent.nacks[0].error, "no such order");
    let result = proto::GrantResult { messages: 3, ..Default::default() };
    broker.answer("SettleGrants", proto::SettleGrantsResponse { results: vec![result] });
    assert_eq!(client.nack_grant("orders", "t", hopeless, &[]).await.unwrap(), 3);
    let mut sent: proto::SettleGrantsRequest = broker.calls("SettleGrants")[0].request();
    let action = sent.settlements.remove(0).action;
    let nack = proto::GrantNack {
        error: "no such order".to_owned(),
        dead_letter: true,
        ..Default::default()
    };
    assert_eq!(action, Some(proto::grant_settlement::Action::Nack(nack)));
}

// --- Flush and close -----------------------------------------------------------------------------

fn gated(broker: &Broker) -> Arc<Semaphore> {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    broker.on("EnqueueBatch", move |seen, out| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await.expect("an open gate").forget();
            out.send(&stored(&seen));
        }
    });
    gate
}

fn enqueue(client: &Client, payload: &str) -> JoinHandle<fila::Result<String>> {
    let (client, message) = (client.clone(), EnqueueMessage::text("orders", payload));
    tokio::spawn(async move { client.enqueue(message).await })
}

/// Lets spawned calls reach the place where they wait.
async fn settle_down() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn flush_waits_for_what_has_begun_whatever_the_answer() {
    let broker = Broker::start();
    let client = quick(&broker).await;
    client.flush().await.unwrap();
    let gate = gated(&broker);
    meets(&broker, "AckBatch", &[EXPIRED]);
    let early = enqueue(&client, "early");
    broker.until(|broker| broker.calls("EnqueueBatch").len() == 1).await;
    let refused = client.ack("orders", "m", Some("t"));
    let (flusher, other) = (client.clone(), client.clone());
    let flushing = tokio::spawn(async move { flusher.flush().await });
    let hasty = other.with_timeout(Duration::from_millis(20)).flush().await.unwrap_err();
    assert_eq!(hasty.kind(), ErrorKind::DeadlineExceeded);
    refused.await.unwrap_err();
    assert!(!flushing.is_finished());
    // What begins later is not waited for.
    let late = enqueue(&client, "late");
    broker.until(|broker| broker.calls("EnqueueBatch").len() == 2).await;
    gate.add_permits(1);
    early.await.unwrap().unwrap();
    timeout(PATIENCE, flushing).await.expect("it goes on").unwrap().unwrap();
    assert!(!late.is_finished());
    gate.add_permits(1);
    late.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_caller_that_gave_up_is_not_waited_for() {
    let broker = Broker::start();
    let client = quick(&broker).await;
    let _gate = gated(&broker);
    let call = enqueue(&client, "dropped");
    broker.until(|broker| broker.calls("EnqueueBatch").len() == 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    client.flush().await.unwrap();
}

#[tokio::test]
async fn close_refuses_new_calls_and_lets_the_others_be_answered() {
    let broker = Broker::start();
    let client = quick(&broker).await;
    let gate = gated(&broker);
    let calls: Vec<_> = (0..10).map(|n| enqueue(&client, &n.to_string())).collect();
    broker.until(|broker| !broker.calls("EnqueueBatch").is_empty()).await;
    settle_down().await;
    let closer = client.clone();
    let closing = tokio::spawn(async move { closer.close().await });
    settle_down().await;
    let error = client.enqueue(EnqueueMessage::new("orders", "late")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ClientClosed);
    assert!(!closing.is_finished());
    gate.add_permits(10);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    timeout(PATIENCE, closing).await.expect("it goes on").unwrap();
}

#[tokio::test]
async fn close_cuts_off_what_takes_longer_than_it_may() {
    let broker = Broker::start();
    let builder = Client::builder().target(broker.target()).timeout(PATIENCE * 2);
    let builder = builder.close_timeout(Duration::from_millis(50));
    let client = builder.connect().await.unwrap();
    let _gate = gated(&broker);
    let calls: Vec<_> = (0..5).map(|n| enqueue(&client, &n.to_string())).collect();
    broker.until(|broker| !broker.calls("EnqueueBatch").is_empty()).await;
    client.close().await;
    for call in calls {
        let outcome = timeout(PATIENCE, call).await.expect("it goes on").unwrap();
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ClientClosed);
    }
}

#[tokio::test]
async fn close_ends_consumers_all_at_once() {
    const CONSUMERS: usize = 5;
    let (log, _guard) = Log::here();
    let broker = Broker::start();
    broker.on("Consume", |_, out| async move {
        out.send(&frame(&["a"]));
        out.idle().await;
    });
    // Nothing is taken back before everybody has asked.
    let gate = Arc::new(tokio::sync::Barrier::new(CONSUMERS));
    broker.on("NackBatch", move |seen, out| {
        let gate = Arc::clone(&gate);
        async move {
            gate.wait().await;
            out.send(&settled(&seen));
        }
    });
    let client = quick(&broker).await;
    let mut consumers = Vec::new();
    for _ in 0..CONSUMERS {
        consumers.push(client.consume("orders").await.unwrap());
    }
    broker.arrived(&client, CONSUMERS).await;
    client.close().await;
    broker.until(|broker| broker.calls("NackBatch").len() == CONSUMERS).await;
    assert_eq!(log.lines("not given back"), [""; 0]);
    for consumer in consumers {
        assert!(consumer.next().await.is_none());
    }
}

// --- What waits to be sent -----------------------------------------------------------------------

#[tokio::test]
async fn what_waits_to_be_sent_is_bounded_in_bytes() {
    let broker = Broker::start();
    let builder = Client::builder().target(broker.target()).timeout(PATIENCE);
    let client = builder.max_buffered_bytes(1_000).connect().await.unwrap();
    let gate = gated(&broker);
    let mut calls = Vec::new();
    for count in 1..=2 {
        calls.push(enqueue(&client, "busy"));
        broker.until(|broker| broker.calls("EnqueueBatch").len() == count).await;
    }
    let payload = "x".repeat(600);
    calls.push(enqueue(&client, &payload));
    settle_down().await;
    let hasty = client.with_timeout(Duration::from_millis(50));
    let error = hasty.enqueue(EnqueueMessage::text("orders", payload.as_str())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("was not sent"), "{error}");
    // It waits with the others, and has its turn; so has one that is larger than all of the room.
    calls.push(enqueue(&client, &payload));
    calls.push(enqueue(&client, &"y".repeat(5_000)));
    settle_down().await;
    gate.add_permits(10);
    for call in calls {
        timeout(PATIENCE, call).await.expect("it waits for ever").unwrap().unwrap();
    }
    let sent = broker.calls("EnqueueBatch").into_iter();
    let sent = sent.flat_map(|call| call.request::<proto::EnqueueBatchRequest>().messages);
    assert_eq!(sent.count(), 5);
}

#[tokio::test]
async fn closing_ends_those_who_wait_for_room() {
    let broker = Broker::start();
    let builder = Client::builder().target(broker.target()).timeout(PATIENCE * 2);
    let builder = builder.max_buffered_bytes(10).close_timeout(Duration::ZERO);
    let client = builder.connect().await.unwrap();
    let _gate = gated(&broker);
    let calls: Vec<_> = (0..10).map(|n| enqueue(&client, &n.to_string())).collect();
    broker.until(|broker| !broker.calls("EnqueueBatch").is_empty()).await;
    client.close().await;
    for call in calls {
        let outcome = timeout(PATIENCE, call).await.expect("it goes on").unwrap();
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ClientClosed);
    }
}

#[tokio::test]
async fn no_room_at_all_is_refused() {
    let error = Client::builder().max_buffered_bytes(0).connect().await.unwrap_err();
    assert_eq!(error.to_string(), "max_buffered_bytes must be positive, got 0");
}
