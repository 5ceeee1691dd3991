// SPDX-License-Identifier: AGPL-3.0-only
//! What is around the calls: queues that are to be there, brokers that are to be ready, many
//! leases at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use fila::{Client, ErrorKind, HookErrorPolicy, QueueSettings, ReceiveOptions};
use prost::Message;
use tonic::Code;

use crate::broker::{Broker, PATIENCE, free_port, leased};
use crate::proto;

const EXISTS: &str = "QUEUE_ALREADY_EXISTS";
const MISSING: &str = "QUEUE_NOT_FOUND";

async fn connected(broker: &Broker) -> Client {
    Client::connect(broker.target()).await.unwrap()
}

/// A broker that has the queue already.
fn with_queue(config: proto::QueueConfig) -> Broker {
    let broker = Broker::start();
    broker.refuse("CreateQueue", Code::AlreadyExists, "queue \"orders\" exists", Some(EXISTS));
    let config = Some(config);
    broker.answer("GetStats", proto::GetStatsResponse { config, ..Default::default() });
    broker
}

fn settings() -> QueueSettings {
    QueueSettings {
        visibility_timeout: Some(Duration::from_secs(60)),
        max_attempts: Some(0),
        on_failure_script: Some("return 1".to_owned()),
        on_hook_error: Some(HookErrorPolicy::Default),
        ..QueueSettings::default()
    }
}

#[tokio::test]
async fn a_queue_that_is_missing_is_created() {
    let broker = Broker::start();
    let dead_letter_queue = "orders.dlq".to_owned();
    broker.answer(
        "CreateQueue",
        proto::CreateQueueResponse { dead_letter_queue, ..Default::default() },
    );
    let client = connected(&broker).await;
    assert_eq!(client.ensure_queue("orders", settings()).await.unwrap(), "orders.dlq");
    let created = broker.calls("CreateQueue")[0].request::<proto::CreateQueueRequest>();
    assert_eq!(created.config.unwrap().visibility_timeout_ms, 60_000);
    assert_eq!(broker.seen().len(), 1);
}

#[tokio::test]
async fn a_queue_with_the_given_settings_is_left_as_it_is() {
    let broker = with_queue(proto::QueueConfig {
        visibility_timeout_ms: 60_000,
        on_failure_script: "return 1".to_owned(),
        // Nobody asked about this one.
        quantum: 7,
        ..Default::default()
    });
    let client = connected(&broker).await;
    assert_eq!(client.ensure_queue("orders", settings()).await.unwrap(), "orders.dlq");
    let asked = broker.calls("GetStats")[0].request::<proto::GetStatsRequest>();
    assert_eq!((asked.queue.as_str(), asked.max_keys), ("orders", 1));
}

#[tokio::test]
async fn settings_that_differ_are_named_with_both_values() {
    let broker = with_queue(proto::QueueConfig {
        visibility_timeout_ms: 30_000,
        max_attempts: 5,
        on_failure_script: "return 1".to_owned(),
        on_hook_error: proto::HookErrorPolicy::Reject.into(),
        ..Default::default()
    });
    let error = connected(&broker).await.ensure_queue("orders", settings()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueAlreadyExists);
    assert_eq!((error.reason(), error.queue()), (Some(EXISTS), Some("orders")));
    assert_eq!(
        error.to_string(),
        "queue \"orders\" exists with other settings: visibility_timeout_ms is 30000, not 60000, \
         max_attempts is 5, not 0, on_hook_error is reject, not default; update_queue changes them"
    );
    assert!(broker.calls("UpdateQueue").is_empty());
}

#[tokio::test]
async fn a_queue_that_is_deleted_meanwhile_is_created_again_but_once() {
    let broker = with_queue(proto::QueueConfig::default());
    broker.refuse("GetStats", Code::NotFound, "no such queue", Some(MISSING));
    let error = connected(&broker).await.ensure_queue("orders", settings()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueAlreadyExists);
    assert_eq!(broker.calls("CreateQueue").len(), 2);
    assert_eq!(broker.calls("GetStats").len(), 1);
}

#[tokio::test]
async fn another_failure_of_ensure_queue_is_its_own() {
    let broker = with_queue(proto::QueueConfig::default());
    broker.refuse("GetStats", Code::PermissionDenied, "no", Some("PERMISSION_DENIED"));
    let error = connected(&broker).await.ensure_queue("orders", settings()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn many_leases_are_extended_by_one_request() {
    let broker = Broker::start();
    let messages = leased("token", &["a", "b", "c"], Duration::from_secs(30)).messages;
    broker.answer("Receive", proto::ReceiveResponse { messages });
    broker.on("ExtendLease", |call, out| async move {
        let extensions = call.request::<proto::ExtendLeaseRequest>().extensions;
        let result = |item: proto::LeaseExtension| match item.message_id.as_str() {
            "b" => proto::ExtendLeaseResult {
                error: Some(proto::ItemError {
                    reason: proto::ErrorReason::LeaseExpired.into(),
                    message: "too late".to_owned(),
                }),
                ..Default::default()
            },
            _ => proto::ExtendLeaseResult {
                lease_expires_at: Some(prost_types::Timestamp {
                    seconds: 1_900_000_000 + (item.extend_ms / 1_000).cast_signed(),
                    nanos: 0,
                }),
                ..Default::default()
            },
        };
        let results = extensions.into_iter().map(result).collect();
        out.send(&proto::ExtendLeaseResponse { results });
    });
    let client = connected(&broker).await;
    let messages = client.receive("orders", ReceiveOptions::default()).await.unwrap();
    let ends = client.extend_many(&messages, Some(Duration::from_secs(90))).await.unwrap();
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_090);
    assert_eq!(ends[0].as_ref().unwrap(), &end);
    let error = ends[1].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.message_id()), (ErrorKind::LeaseExpired, Some("b")));
    assert_eq!(ends[2].as_ref().unwrap(), &end);
    let calls = broker.calls("ExtendLease");
    assert_eq!(calls.len(), 1);
    let items = calls[0].request::<proto::ExtendLeaseRequest>().extensions;
    assert!(items.iter().all(|item| item.lease_token == "token" && item.queue == "orders"));
}

/// The answer of gRPC's health service, which is no part of the contract.
#[derive(Clone, PartialEq, Message)]
struct Health {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: Health = Health { status: 1 };
const NOT_SERVING: Health = Health { status: 2 };

#[tokio::test]
async fn a_ping_says_how_long_the_answer_took() {
    let broker = Broker::start();
    broker.answer("Check", SERVING);
    let took = connected(&broker).await.ping().await.unwrap();
    assert!(!took.is_zero() && took < PATIENCE, "{took:?}");
}

#[tokio::test]
async fn a_broker_that_does_not_serve_is_unavailable() {
    let broker = Broker::start();
    broker.answer("Check", NOT_SERVING);
    let error = connected(&broker).await.ping().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, Some("UNAVAILABLE")));
    assert_eq!(error.to_string(), "the broker is not serving");
    assert_eq!(broker.calls("Check").len(), 1);
}

#[tokio::test]
async fn a_ping_has_the_clients_deadline() {
    let broker = Broker::start();
    broker.on("Check", |_, out| async move { out.idle().await });
    let client = connected(&broker).await.with_timeout(Duration::from_millis(100));
    assert_eq!(client.ping().await.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn wait_ready_waits_for_a_broker_that_comes_and_serves() {
    let port = free_port();
    let client = Client::builder().target(format!("127.0.0.1:{port}")).connect_lazy().unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait_ready(Some(PATIENCE)).await }
    });
    let asked = Arc::new(AtomicUsize::new(0));
    let _broker = Broker::on_port(port, |broker| {
        broker.on("Check", move |_, out| {
            let is_first = asked.fetch_add(1, Ordering::SeqCst) == 0;
            async move { out.send(&if is_first { NOT_SERVING } else { SERVING }) }
        });
    });
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn wait_ready_says_at_the_end_what_was_wrong() {
    let broker = Broker::start();
    broker.answer("Check", NOT_SERVING);
    let client = connected(&broker).await;
    let error = client.wait_ready(Some(Duration::from_millis(300))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let text = "the broker was not ready within 300ms: the broker is not serving";
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn wait_ready_fails_at_once_where_waiting_would_not_help() {
    let broker = Broker::start();
    broker.refuse("Check", Code::Unauthenticated, "who are you", None);
    let client = connected(&broker).await;
    let error = client.wait_ready(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    client.close().await;
    assert_eq!(client.wait_ready(None).await.unwrap_err().kind(), ErrorKind::ClientClosed);
}
