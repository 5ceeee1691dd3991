// SPDX-License-Identifier: AGPL-3.0-only
//! Whole frames: acks of all their messages travel as one, and nobody can tell by the outcome.

use std::time::{Duration, UNIX_EPOCH};

use fila::{Client, ConsumeMessage, ErrorKind, Nack, ReceiveOptions};
use tonic::Code;

use crate::broker::{Broker, message};
use crate::proto;
use crate::proto::grant_settlement::Action;

/// Receives frames of so many messages: t0-0, t0-1, ... under the token t0.
async fn receive(broker: &Broker, client: &Client, sizes: &[usize]) -> Vec<Vec<ConsumeMessage>> {
    let mut frames = Vec::new();
    for (number, size) in sizes.iter().enumerate() {
        let messages = (0..*size).map(|n| {
            let mut raw = message(&format!("t{number}-{n}"));
            raw.metadata.as_mut().unwrap().lease_token = format!("t{number}");
            raw
        });
        broker.answer("Receive", proto::ReceiveResponse { messages: messages.collect() });
        frames.push(client.receive("orders", ReceiveOptions::default()).await.unwrap());
    }
    frames
}

/// Answers settlements with what was expected, and with errors by token.
fn settle(broker: &Broker, refused: &'static [(&'static str, proto::ErrorReason)]) {
    broker.on("SettleGrants", move |call, out| async move {
        let request: proto::SettleGrantsRequest = call.request();
        let result = |item: proto::GrantSettlement| {
            let reason = refused.iter().find(|(token, _)| *token == item.lease_token);
            let error = reason.map(|(_, reason)| proto::ItemError {
                reason: (*reason).into(),
                message: "no".to_owned(),
            });
            let messages = if error.is_some() { 0 } else { item.expected_messages };
            proto::GrantResult { error, messages, lease_expires_at: None }
        };
        let results = request.settlements.into_iter().map(result).collect();
        out.send(&proto::SettleGrantsResponse { results });
    });
}

fn settlements(broker: &Broker) -> Vec<(String, u32)> {
    let calls = broker.calls("SettleGrants");
    let requests = calls.iter().map(|call| call.request::<proto::SettleGrantsRequest>());
    let items = requests.flat_map(|request| request.settlements);
    items.map(|item| (item.lease_token, item.expected_messages)).collect()
}

fn acked(broker: &Broker) -> Vec<String> {
    let calls = broker.calls("AckBatch");
    let requests = calls.iter().map(|call| call.request::<proto::AckBatchRequest>());
    requests.flat_map(|request| request.acks).map(|ack| ack.message_id).collect()
}

#[tokio::test]
async fn frames_that_are_acked_together_travel_as_one() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    settle(&broker, &[]);
    let frames = receive(&broker, &client, &[3, 2500]).await;
    let outcomes = client.ack_many(frames[1].iter().chain(&frames[0])).await.unwrap();
    assert_eq!(outcomes.len(), 2503);
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(settlements(&broker), [("t1".to_owned(), 2500), ("t0".to_owned(), 3)]);
    assert!(acked(&broker).is_empty());
}

#[tokio::test]
async fn what_is_not_whole_is_acked_one_by_one() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    settle(&broker, &[]);
    let frames = receive(&broker, &client, &[3, 1, 2]).await;
    let twice = &frames[2][0];
    let batch = [&frames[0][0], &frames[0][1], &frames[1][0], twice, twice];
    let outcomes = client.ack_many(batch).await.unwrap();
    assert!(outcomes.iter().all(Result::is_ok));
    assert!(settlements(&broker).is_empty());
    assert_eq!(acked(&broker), ["t0-0", "t0-1", "t1-0", "t2-0", "t2-0"]);
}

#[tokio::test]
async fn a_frame_that_is_refused() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    settle(
        &broker,
        &[("t0", proto::ErrorReason::LeaseExpired), ("t1", proto::ErrorReason::QueueNotFound)],
    );
    let late = proto::ItemError {
        reason: proto::ErrorReason::LeaseExpired.into(),
        message: String::new(),
    };
    let results = vec![proto::ItemResult { error: None }, proto::ItemResult { error: Some(late) }];
    broker.answer("AckBatch", proto::AckBatchResponse { results });
    let frames = receive(&broker, &client, &[2, 2, 2]).await;
    let outcomes = client.ack_many(frames.iter().flatten()).await.unwrap();
    let kinds: Vec<_> =
        outcomes.iter().map(|outcome| outcome.as_ref().err().map(|error| error.kind())).collect();
    let (expired, unknown) = (Some(ErrorKind::LeaseExpired), Some(ErrorKind::QueueNotFound));
    assert_eq!(kinds, [None, expired, unknown, unknown, None, None]);
    assert_eq!(outcomes[3].as_ref().unwrap_err().message_id(), Some("t1-1"));
    assert_eq!(acked(&broker), ["t0-0", "t0-1"]);
}

#[tokio::test]
async fn nothing_is_acked_after_grants_that_could_not_be_settled() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    // Not "unavailable", which is tried again until the deadline and may end with that.
    broker.refuse("SettleGrants", Code::Internal, "broken", None);
    let frames = receive(&broker, &client, &[2, 2]).await;
    let batch = [&frames[0][0], &frames[0][1], &frames[1][0]];
    for outcome in client.ack_many(batch).await.unwrap() {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Internal);
    }
    assert!(acked(&broker).is_empty());
}

#[tokio::test]
async fn a_broker_that_knows_no_grants_is_asked_once() {
    let broker = Broker::start().without_pipelines();
    let client = Client::connect(broker.target()).await.unwrap();
    broker.refuse("SettleGrants", Code::Unimplemented, "what?", None);
    for frame in receive(&broker, &client, &[2, 2]).await {
        let outcomes = client.ack_many(&frame).await.unwrap();
        assert!(outcomes.iter().all(Result::is_ok));
    }
    assert_eq!(broker.calls("SettleGrants").len(), 1);
    assert_eq!(acked(&broker), ["t0-0", "t0-1", "t1-0", "t1-1"]);
}

#[tokio::test]
async fn concurrent_acks_of_a_frame_are_one() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    settle(&broker, &[]);
    let frames = receive(&broker, &client, &[3]).await;
    let (first, second, third) =
        tokio::join!(frames[0][0].ack(), frames[0][1].ack(), frames[0][2].ack());
    for outcome in [first, second, third] {
        outcome.unwrap();
    }
    // On one thread no slot is served before all three wait.
    assert_eq!(settlements(&broker), [("t0".to_owned(), 3)]);
    assert!(acked(&broker).is_empty());
}

#[tokio::test]
async fn a_grant_is_settled_by_its_token() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let result = proto::GrantResult {
        error: None,
        messages: 7,
        lease_expires_at: Some(prost_types::Timestamp { seconds: 1_900_000_000, nanos: 0 }),
    };
    broker.answer("SettleGrants", proto::SettleGrantsResponse { results: vec![result] });
    let except = ["a".to_owned(), "b".to_owned()];
    assert_eq!(client.ack_grant("orders", "t", &except).await.unwrap(), 7);
    let nack = Nack {
        error: "no".to_owned(),
        retry_after: Some(Duration::ZERO),
        throttle_key: Some("k".to_owned()),
        dead_letter: false,
    };
    assert_eq!(client.nack_grant("orders", "t", nack, &[]).await.unwrap(), 7);
    let half = Some(Duration::from_millis(500));
    let end = client.extend_grant("orders", "t", half, &[]).await.unwrap();
    assert_eq!(end, UNIX_EPOCH + Duration::from_secs(1_900_000_000));
    let sent: Vec<_> = broker
        .calls("SettleGrants")
        .iter()
        .map(|call| call.request::<proto::SettleGrantsRequest>().settlements.remove(0))
        .collect();
    assert_eq!(sent[0].except_message_ids, except);
    assert_eq!(sent[0].action, Some(Action::Ack(proto::GrantAck {})));
    let nack = proto::GrantNack {
        error: "no".to_owned(),
        retry_after_ms: Some(0),
        throttle_key: "k".to_owned(),
        dead_letter: false,
    };
    assert_eq!(sent[1].action, Some(Action::Nack(nack)));
    assert_eq!(sent[2].action, Some(Action::Extend(proto::GrantExtension { extend_ms: 500 })));
    settle(&broker, &[("t", proto::ErrorReason::LeaseExpired)]);
    let error = client.ack_grant("orders", "t", &[]).await.unwrap_err();
    assert_eq!((error.kind(), error.queue()), (ErrorKind::LeaseExpired, Some("orders")));
}
