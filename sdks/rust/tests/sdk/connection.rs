// SPDX-License-Identifier: AGPL-3.0-only
//! What every call carries, how a client is set up, and what is left of it after close.

use std::time::Duration;

use fila::{
    AclEntry, ApiKeyOptions, Backoff, Bytes, Client, ConsumeMessage, Consumer, EnqueueMessage,
    Error, ErrorKind, Permission, ReceiveOptions, Subject, TlsOptions,
};
use tonic::Code;

use crate::broker::{Broker, PATIENCE, cert_path, frame, free_port, message};
use crate::proto;

const KEY: &str = "fk_0123456789.secret~key";

fn assert_about(timeout: Option<Duration>, seconds: u64) {
    let timeout = timeout.expect("a deadline");
    let wanted = Duration::from_secs(seconds);
    assert!(timeout <= wanted && timeout > wanted / 2, "{timeout:?} is not about {wanted:?}");
}

async fn keyed(broker: &Broker) -> Client {
    Client::builder().target(broker.target()).api_key(KEY).connect().await.unwrap()
}

#[test]
fn clients_and_their_calls_can_be_shared_and_sent_to_other_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send>(_: impl Fn(&'static Client) -> T) {}
    shared::<Client>();
    shared::<Consumer>();
    shared::<ConsumeMessage>();
    shared::<Error>();
    sent(|client| client.enqueue(EnqueueMessage::default()));
    sent(|client| client.enqueue_many([]));
    sent(|client| {
        let queue = String::from("orders");
        client.enqueue_many((0..3).map(move |n| EnqueueMessage::new(&queue, n.to_string())))
    });
    sent(|client| client.consume("orders"));
    sent(|client| client.receive("orders", ReceiveOptions::default()));
    sent(|client| client.ack("orders", "m", None));
    sent(|client| client.ack_many([]));
    sent(|client| client.nack_many(&[], "boom"));
    sent(|client| client.nack("orders", "m", None, "boom"));
    sent(|client| client.extend("orders", "m", None, None));
    sent(|client| client.stats("orders", None));
    sent(Client::flush);
    sent(Client::close);
    sent(|client| client.worker("orders", |_| async { Ok(()) }).run());
}

#[tokio::test]
async fn unary_calls_have_a_deadline_of_five_seconds() {
    let broker = Broker::start().without_pipelines();
    broker.answer("DeleteQueue", proto::DeleteQueueResponse::default());
    let client = Client::connect(broker.target()).await.unwrap();
    client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap();
    client.enqueue_many([EnqueueMessage::new("orders", "")]).await.unwrap();
    client.ack("orders", "m", None).await.unwrap();
    client.delete_queue("orders").await.unwrap();
    assert_eq!(broker.seen().len(), 4);
    for call in broker.seen() {
        assert_about(call.timeout, 5);
    }
}

#[tokio::test]
async fn a_call_can_choose_its_own_deadline() {
    let broker = Broker::start().without_pipelines();
    broker.answer("Receive", proto::ReceiveResponse::default());
    let builder = Client::builder().target(broker.target()).timeout(Duration::from_secs(40));
    let client = builder.connect().await.unwrap();
    client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap();
    let shorter = client.with_timeout(Duration::from_secs(20));
    shorter.enqueue(EnqueueMessage::new("orders", "")).await.unwrap();
    shorter.ack("orders", "m", None).await.unwrap();
    // The broker may use all of the wait before it begins to answer.
    let options = ReceiveOptions { wait: Duration::from_secs(80), ..Default::default() };
    shorter.receive("orders", options).await.unwrap();
    for (call, seconds) in broker.seen().iter().zip([40, 20, 20, 100]) {
        assert_about(call.timeout, seconds);
    }
}

#[tokio::test]
async fn the_longest_timeout_is_as_good_as_any() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap().with_timeout(Duration::MAX);
    client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap();
    client.enqueue_many([EnqueueMessage::new("orders", "")]).await.unwrap();
}

#[tokio::test]
async fn a_stream_has_no_deadline() {
    let broker = Broker::start();
    broker.answer("Consume", frame(&["a"]));
    let client = Client::connect(broker.target()).await.unwrap();
    client.consume("orders").await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(broker.calls("Consume")[0].timeout, None);
}

#[tokio::test]
async fn a_client_enforces_the_deadline_itself() {
    let broker = Broker::start();
    broker.on("DeleteQueue", |_, out| async move { out.idle().await });
    broker.on("AckBatch", |_, out| async move { out.idle().await });
    let client = Client::connect(broker.target()).await.unwrap();
    let hasty = client.with_timeout(Duration::from_millis(200));
    let error = hasty.delete_queue("orders").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::DeadlineExceeded, Some("DEADLINE_EXCEEDED"))
    );
    // Long enough to be sent, however busy the machine.
    let client = client.with_timeout(Duration::from_secs(3));
    let error = client.ack("orders", "m", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(error.to_string(), "no answer came in time; the outcome is unknown");
}

#[tokio::test]
async fn a_deadline_that_has_passed_is_exceeded_and_nothing_is_sent() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap().with_timeout(Duration::ZERO);
    let error = client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let error = client.delete_queue("orders").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(broker.seen().is_empty());
}

#[tokio::test]
async fn nobody_there_is_unavailable_at_once() {
    let builder = Client::builder().target(format!("127.0.0.1:{}", free_port())).timeout(PATIENCE);
    let client = builder.clone().connect_lazy().unwrap();
    for error in [
        builder.connect().await.unwrap_err(),
        client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, Some("UNAVAILABLE")));
        assert!(error.is_retryable());
        assert!(error.to_string().contains("tcp connect error: Connection refused"), "{error}");
    }
}

#[tokio::test]
async fn connecting_takes_no_longer_than_a_call_may() {
    // It accepts connections, and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tls = TlsOptions { ca: Some(cert_path("ca.pem").into()), ..TlsOptions::default() };
    let builder = Client::builder().target(silent.local_addr().unwrap().to_string()).tls(tls);
    let error = builder.timeout(Duration::from_millis(50)).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn a_client_may_be_made_before_its_broker() {
    let port = free_port();
    let client = Client::builder().target(format!("127.0.0.1:{port}")).connect_lazy().unwrap();
    let _broker = Broker::on_port(port, |_| {});
    assert_eq!(client.enqueue(EnqueueMessage::new("orders", "a")).await.unwrap(), "id-a");
}

#[tokio::test]
async fn calls_work_again_after_a_broker_restart() {
    let mut first = Broker::on_port(free_port(), |_| {});
    let client = Client::connect(first.target()).await.unwrap();
    client.enqueue(EnqueueMessage::new("orders", "a")).await.unwrap();
    first.stop();
    let second = Broker::on_port(first.port, |_| {});
    // The first call may find the old connection before anybody noticed that it is gone.
    let _ = client.enqueue(EnqueueMessage::new("orders", "b")).await;
    assert_eq!(client.enqueue(EnqueueMessage::new("orders", "c")).await.unwrap(), "id-c");
    assert!(!second.seen().is_empty());
}

#[tokio::test]
async fn the_api_key_and_the_user_agent_are_sent_on_calls_and_streams() {
    let broker = Broker::start();
    broker.answer("Consume", frame(&["a"]));
    let client = keyed(&broker).await;
    client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap();
    client.consume("orders").await.unwrap().next().await.unwrap().unwrap();
    client.close().await;
    let seen = broker.seen();
    assert!(seen.len() >= 2);
    for call in seen {
        assert_eq!(call.metadata["authorization"], format!("Bearer {KEY}"));
        let expected = format!("fila-rust/{} ", fila::VERSION);
        assert!(call.metadata["user-agent"].starts_with(&expected), "{:?}", call.metadata);
    }
}

#[tokio::test]
async fn without_an_api_key_none_is_sent_and_without_a_span_no_trace() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap();
    let call = &broker.seen()[0];
    assert!(!call.metadata.contains_key("authorization"));
    assert!(!call.metadata.contains_key("traceparent"));
    assert!(call.request::<proto::EnqueueBatchRequest>().messages[0].headers.is_empty());
}

fn everything_shown_of(error: &Error) -> String {
    let mut shown = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        shown += &format!("{cause} {cause:?}");
        source = cause.source();
    }
    shown
}

#[tokio::test]
async fn the_api_key_is_not_shown_by_errors_or_debug() {
    let broker = Broker::start();
    let text = format!("key {KEY} is not valid");
    for method in ["EnqueueBatch", "GetConfig", "Consume"] {
        broker.refuse(method, Code::Unauthenticated, &text, Some("UNAUTHENTICATED"));
    }
    let item = proto::ItemError {
        reason: proto::ErrorReason::PermissionDenied.into(),
        message: text.clone(),
    };
    let results = vec![proto::ItemResult { error: Some(item) }];
    broker.answer("AckBatch", proto::AckBatchResponse { results });
    let client = keyed(&broker).await;
    let mut many = client.enqueue_many([EnqueueMessage::new("orders", "")]).await.unwrap();
    let errors = [
        client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap_err(),
        client.get_config("key").await.unwrap_err(),
        client.consume("orders").await.unwrap().next().await.unwrap().unwrap_err(),
        client.ack("orders", "m", None).await.unwrap_err(),
        many.remove(0).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.to_string(), "key [redacted] is not valid");
        assert!(!everything_shown_of(&error).contains(KEY), "{error:?}");
    }
    let shown = format!("{client:?} {:?}", Client::builder().api_key(KEY));
    assert!(!shown.contains(KEY), "{shown}");
}

#[tokio::test]
async fn a_malformed_api_key_is_refused_without_being_shown() {
    for key in ["", "with space", "new\nline", "schlüssel", "nul\0"] {
        let error = Client::builder().api_key(key).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().starts_with("api_key must be printable ASCII"));
        assert!(key.is_empty() || !error.to_string().contains(key));
    }
}

#[tokio::test]
async fn a_target_that_is_no_address_is_named() {
    for target in [
        "",
        "localhost",
        "localhost:",
        ":5555",
        "localhost:http",
        "localhost:0",
        "localhost:65536",
        "localhost:+1",
        "http://localhost:5555",
        "::1:5555",
        "user@host:5555",
        "two words:5555",
    ] {
        let error = Client::connect(target).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = format!("target \"{target}\" is not host:port");
        assert!(error.to_string().starts_with(&text), "{error}");
    }
    for target in ["localhost:5555", "10.0.0.1:1", "[::1]:5555", "broker.example.com:65535"] {
        Client::builder().target(target).connect_lazy().unwrap();
    }
}

#[tokio::test]
async fn wrong_settings_are_named() {
    let error = Client::builder().timeout(Duration::ZERO).connect().await.unwrap_err();
    assert_eq!(error.to_string(), "timeout must be positive, got 0");
    let (initial, maximum) = (Duration::from_secs(2), Duration::from_secs(1));
    let builder = Client::builder().backoff(Backoff { initial, maximum });
    let error = builder.connect().await.unwrap_err();
    assert_eq!(error.to_string(), "backoff needs 0 < initial <= maximum, got 2s and 1s");
}

#[tokio::test]
async fn frames_larger_than_grpcs_default_are_received_and_sent() {
    let broker = Broker::start();
    let payload = Bytes::from(vec![7; 3 << 20]);
    let messages = ["a", "b", "c"].map(|id| {
        let payload = payload.clone();
        proto::Message { payload, ..message(id) }
    });
    broker.answer("Receive", proto::ReceiveResponse { messages: messages.into() });
    let client = Client::connect(broker.target()).await.unwrap().with_timeout(PATIENCE);
    let received = client.receive("orders", ReceiveOptions::default()).await.unwrap();
    assert!(received.iter().all(|message| message.payload == payload));
    client.enqueue(EnqueueMessage::new("orders", vec![b'x'; 9 << 20])).await.unwrap();
}

#[tokio::test]
async fn a_small_size_limit_is_kept_both_ways() {
    let broker = Broker::start();
    let large = proto::Message { payload: vec![7; 2_000].into(), ..message("a") };
    broker.answer("Receive", proto::ReceiveResponse { messages: vec![large] });
    let builder = Client::builder().target(broker.target()).max_message_bytes(1_000);
    let client = builder.connect().await.unwrap();
    let error = client.receive("orders", ReceiveOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error:?}");
    let message = EnqueueMessage::new("orders", vec![7; 2_000]);
    let error = client.enqueue(message).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error:?}");
    assert_eq!(broker.calls("EnqueueBatch").len(), 0);
}

#[tokio::test]
async fn after_close_every_call_fails_with_client_closed() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    client.enqueue(EnqueueMessage::new("orders", "")).await.unwrap();
    let clone = client.clone();
    client.close().await;
    client.close().await;
    let keyed = EnqueueMessage::new("orders", "").idempotency_key("once");
    let acl = [AclEntry::new(Permission::Admin, "*")];
    let errors = [
        clone.enqueue(EnqueueMessage::new("orders", "")).await.unwrap_err(),
        clone.enqueue(keyed).await.unwrap_err(),
        clone.enqueue_many([]).await.unwrap_err(),
        clone.ack("orders", "m", None).await.unwrap_err(),
        clone.ack_many([]).await.unwrap_err(),
        clone.nack("orders", "m", None, "boom").await.unwrap_err(),
        clone.nack_many([], "boom").await.unwrap_err(),
        clone.extend("orders", "m", None, None).await.unwrap_err(),
        clone.receive("orders", ReceiveOptions::default()).await.unwrap_err(),
        clone.consume("orders").await.unwrap_err(),
        clone.flush().await.unwrap_err(),
        clone.ack_grant("orders", "t", &[]).await.unwrap_err(),
        clone.worker("orders", |_| async { Ok(()) }).run().await.unwrap_err(),
        clone.list_queues().await.unwrap_err(),
        clone.explain("orders", Subject::Message("m")).await.unwrap_err(),
        clone.create_api_key(ApiKeyOptions::default()).await.unwrap_err(),
        clone.set_acl("key-1", acl).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::ClientClosed);
        assert_eq!(error.to_string(), "the client is closed");
        assert!(!error.is_retryable());
    }
    assert_eq!(broker.seen().len(), 1);
}

#[tokio::test]
async fn a_client_that_was_never_used_can_be_closed() {
    Client::builder().connect_lazy().unwrap().close().await;
}

#[tokio::test]
async fn close_ends_calls_under_way_and_waiting() {
    let broker = Broker::start();
    broker.on("EnqueueBatch", |_, out| async move { out.idle().await });
    broker.on("GetConfig", |_, out| async move { out.idle().await });
    let builder = Client::builder().target(broker.target()).timeout(PATIENCE * 2);
    let client = builder.close_timeout(Duration::ZERO).connect().await.unwrap();
    let mut calls = Vec::new();
    for n in 0..10 {
        let client = client.clone();
        let mut message = EnqueueMessage::new("orders", "");
        message.idempotency_key = (n % 2 == 0).then(|| n.to_string());
        calls.push(tokio::spawn(async move { client.enqueue(message).await }));
    }
    let reader = client.clone();
    calls.push(tokio::spawn(async move { reader.get_config("key").await }));
    broker.until(|broker| broker.seen().len() >= 2).await;
    client.close().await;
    for call in calls {
        let outcome = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap();
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ClientClosed);
    }
}
