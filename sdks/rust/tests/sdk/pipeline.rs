// SPDX-License-Identifier: AGPL-3.0-only
//! Batches travel through two streams, and nobody can tell but by what it costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fila::{Client, EnqueueMessage, Error, ErrorKind};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tonic::Code;

use crate::broker::{Broker, Out, PATIENCE, Requests, refusal, stored};
use crate::proto;
use crate::proto::pipeline_request::Call;
use crate::proto::pipeline_response::Answer;

fn answered(answer: Answer) -> proto::PipelineResponse {
    proto::PipelineResponse { answer: Some(answer) }
}

/// The answer to a request of enqueues, whose ids are their payloads.
fn stored_by(request: proto::PipelineRequest) -> proto::PipelineResponse {
    let Some(Call::Enqueue(batch)) = request.call else { panic!("not an enqueue") };
    let results = batch.messages.into_iter().map(|message| proto::EnqueueResult {
        message_id: String::from_utf8(message.payload.into()).expect("text"),
        ..Default::default()
    });
    answered(Answer::Enqueue(proto::EnqueueBatchResponse { results: results.collect() }))
}

async fn echo(mut requests: Requests, out: Out) {
    while let Some(request) = requests.next().await {
        out.send(&stored_by(request));
    }
}

fn enqueue(client: &Client, payload: &str) -> JoinHandle<fila::Result<String>> {
    let (client, message) = (client.clone(), EnqueueMessage::text("orders", payload));
    tokio::spawn(async move { client.enqueue(message).await })
}

async fn patient(broker: &Broker) -> Client {
    Client::builder().target(broker.target()).timeout(PATIENCE).connect().await.unwrap()
}

/// The first stream is answered by one script, all others by echo.
fn first_stream<F, Fut>(broker: &Broker, script: F)
where
    F: Fn(Requests, Out) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let (count, script) = (AtomicUsize::new(0), Arc::new(script));
    broker.on_pipeline(move |requests, out| {
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        let script = Arc::clone(&script);
        async move {
            match is_first {
                true => script(requests, out).await,
                false => echo(requests, out).await,
            }
        }
    });
}

#[tokio::test]
async fn batches_share_two_streams() {
    let broker = Broker::start();
    broker.answer(
        "ExtendLease",
        proto::ExtendLeaseResponse {
            results: vec![proto::ExtendLeaseResult {
                error: None,
                lease_expires_at: Some(Default::default()),
            }],
        },
    );
    broker.answer(
        "SettleGrants",
        proto::SettleGrantsResponse {
            results: vec![proto::GrantResult { messages: 7, ..Default::default() }],
        },
    );
    let client = Client::builder().target(broker.target()).api_key("key").connect().await.unwrap();
    for _ in 0..3 {
        client.enqueue(EnqueueMessage::new("orders", "x")).await.unwrap();
        client.ack("orders", "m", Some("t")).await.unwrap();
        client.nack("orders", "m", Some("t"), "why").await.unwrap();
        client.extend("orders", "m", Some("t"), None).await.unwrap();
        assert_eq!(client.ack_grant("orders", "t", &[]).await.unwrap(), 7);
    }
    let pipelines = broker.pipelines();
    assert_eq!(pipelines.len(), 2);
    for stream in pipelines {
        assert_eq!(stream.metadata["authorization"], "Bearer key");
        assert_eq!(stream.timeout, None);
    }
    for method in ["EnqueueBatch", "AckBatch", "NackBatch", "ExtendLease", "SettleGrants"] {
        let calls = broker.calls(method);
        assert_eq!(calls.len(), 3, "{method}");
        assert!(calls.iter().all(|call| call.is_piped), "{method}");
    }
}

#[tokio::test]
async fn a_client_that_sends_no_batch_opens_no_stream() {
    let broker = Broker::start();
    broker.answer("DeleteQueue", proto::DeleteQueueResponse::default());
    let client = Client::connect(broker.target()).await.unwrap();
    client.delete_queue("orders").await.unwrap();
    client.close().await;
    assert!(broker.pipelines().is_empty());
}

#[tokio::test]
async fn what_is_large_travels_alone() {
    let broker = Broker::start();
    let client = patient(&broker).await;
    client.enqueue(EnqueueMessage::new("orders", "x".repeat(1 << 20))).await.unwrap();
    assert!(!broker.calls("EnqueueBatch")[0].is_piped);
    assert!(broker.pipelines().is_empty());
}

fn facts(error: &Error) -> impl PartialEq + std::fmt::Debug + use<> {
    let reason = error.reason().map(str::to_owned);
    let about = (error.queue().map(str::to_owned), error.message_id().map(str::to_owned));
    (error.kind(), error.code(), reason, error.to_string(), error.is_retryable(), about)
}

#[tokio::test]
async fn an_error_is_that_of_the_call_and_the_stream_goes_on() {
    const TEXT: &str = "no room for secret-key";
    let (broker, old) = (Broker::start(), Broker::start().without_pipelines());
    let client =
        |broker: &Broker| Client::builder().target(broker.target()).api_key("secret-key").connect();
    let unary = client(&old).await.unwrap();
    let reasons = (1..).map_while(|number| proto::ErrorReason::try_from(number).ok());
    for reason in reasons {
        broker.on_pipeline(move |mut requests, out| async move {
            while requests.next().await.is_some() {
                let message = TEXT.to_owned();
                let error = proto::ItemError { reason: reason.into(), message };
                out.send(&answered(Answer::Error(error)));
            }
        });
        let client = client(&broker).await.unwrap();
        let opened = broker.pipelines().len();
        let error = client.ack("orders", "m", None).await.unwrap_err();
        let name = reason.as_str_name().trim_start_matches("ERROR_REASON_");
        old.refuse("AckBatch", code_named(error.code().unwrap()), TEXT, Some(name));
        let unary = unary.ack("orders", "m", None).await.unwrap_err();
        assert_eq!(facts(&error), facts(&unary), "{name}");
        client.ack("orders", "m", None).await.unwrap_err();
        assert_eq!(broker.pipelines().len(), opened + 1, "{name}");
    }
}

fn code_named(name: &str) -> Code {
    let screamed = |code: &Code| {
        let words = format!("{code:?}");
        let mut text = String::new();
        for letter in words.chars() {
            if letter.is_uppercase() && !text.is_empty() {
                text.push('_');
            }
            text.push(letter.to_ascii_uppercase());
        }
        text
    };
    (1..17).map(Code::from_i32).find(|code| screamed(code) == name).expect("a code")
}

#[tokio::test]
async fn an_error_that_says_unavailable_is_tried_again() {
    let broker = Broker::start();
    first_stream(&broker, |mut requests, out| async move {
        requests.next().await;
        out.send(&answered(Answer::Error(proto::ItemError {
            reason: proto::ErrorReason::ShuttingDown.into(),
            message: String::new(),
        })));
        echo(requests, out).await;
    });
    let client = patient(&broker).await;
    let message = EnqueueMessage::new("orders", "a").idempotency_key("k");
    assert_eq!(client.enqueue(message).await.unwrap(), "a");
    assert_eq!(broker.pipelines().len(), 1);
}

#[tokio::test]
async fn a_stream_that_breaks_fails_what_was_sent_on_it() {
    let broker = Broker::start();
    first_stream(&broker, |mut requests, out| async move {
        out.send(&stored_by(requests.next().await.unwrap()));
        requests.next().await;
        requests.next().await;
        out.fail(refusal(Code::Unavailable, "going", Some("SHUTTING_DOWN")));
    });
    let client = patient(&broker).await;
    assert_eq!(enqueue(&client, "first").await.unwrap().unwrap(), "first");
    // Two requests: what callers bring themselves is not shared.
    let many =
        |payload: &'static str| client.enqueue_many([EnqueueMessage::new("orders", payload)]);
    let (second, third) = tokio::join!(many("second"), many("third"));
    for results in [second.unwrap(), third.unwrap()] {
        let error = results[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShuttingDown);
        assert_eq!((error.to_string().as_str(), error.queue()), ("going", Some("orders")));
    }
    assert_eq!(enqueue(&client, "fourth").await.unwrap().unwrap(), "fourth");
    assert_eq!(broker.pipelines().len(), 2);
}

#[tokio::test]
async fn what_may_be_repeated_is_repeated_on_the_next_stream() {
    let broker = Broker::start();
    // An end without a status is no answer either.
    first_stream(&broker, |mut requests, _| async move {
        requests.next().await;
    });
    let client = patient(&broker).await;
    let message = EnqueueMessage::new("orders", "a").idempotency_key("k");
    assert_eq!(client.enqueue(message).await.unwrap(), "a");
    assert_eq!(broker.pipelines().len(), 2);
}

#[tokio::test]
async fn the_end_of_an_idle_stream_meets_nobody() {
    let broker = Broker::start();
    first_stream(&broker, |mut requests, out| async move {
        out.send(&stored_by(requests.next().await.unwrap()));
        out.fail(refusal(Code::Unavailable, "going", None));
    });
    let client = patient(&broker).await;
    assert_eq!(enqueue(&client, "first").await.unwrap().unwrap(), "first");
    // Twice, because the end of a stream has further to go in the client than that of a call.
    broker.arrived(&client, 2).await;
    broker.arrived(&client, 2).await;
    assert_eq!(enqueue(&client, "second").await.unwrap().unwrap(), "second");
    assert_eq!(broker.pipelines().len(), 2);
}

#[tokio::test]
async fn a_broker_without_pipelines_is_asked_once() {
    let broker = Broker::start().without_pipelines();
    let client = patient(&broker).await;
    let calls: Vec<_> = (0..20).map(|n| enqueue(&client, &n.to_string())).collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), format!("id-{n}"));
    }
    client.ack("orders", "m", None).await.unwrap();
    assert_eq!(broker.pipelines().len(), 1);
    assert!(broker.seen().iter().all(|call| !call.is_piped));
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_dropped() {
    let broker = Broker::start();
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    first_stream(&broker, move |mut requests, out| {
        let held = Arc::clone(&held);
        async move {
            let late = requests.next().await.unwrap();
            held.acquire().await.unwrap().forget();
            out.send(&stored_by(late));
            echo(requests, out).await;
        }
    });
    let client = patient(&broker).await;
    let hasty = client.with_timeout(Duration::from_millis(100));
    let error = hasty.enqueue(EnqueueMessage::new("orders", "late")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let behind = enqueue(&client, "behind");
    gate.add_permits(1);
    assert_eq!(behind.await.unwrap().unwrap(), "behind");
    assert_eq!(broker.pipelines().len(), 1);
}

#[tokio::test]
async fn what_was_given_up_before_it_was_sent_is_not_sent_later() {
    let broker = Broker::start();
    let (gate, seen) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (Arc::clone(&gate), Arc::clone(&seen));
    first_stream(&broker, move |mut requests, out| {
        let (held, count) = (Arc::clone(&held), Arc::clone(&count));
        async move {
            held.acquire().await.unwrap().forget();
            while let Some(request) = requests.next().await {
                count.fetch_add(1, Ordering::SeqCst);
                out.send(&stored_by(request));
            }
        }
    });
    let client = patient(&broker).await;
    // More than flow control lets through while nobody reads.
    let large = "x".repeat(1 << 19);
    let hasty = client.with_timeout(Duration::from_millis(500));
    let calls: Vec<_> = (0..30)
        .map(|_| {
            let (hasty, large) = (hasty.clone(), large.clone());
            tokio::spawn(
                async move { hasty.enqueue_many([EnqueueMessage::new("orders", large)]).await },
            )
        })
        .collect();
    for call in calls {
        let results = call.await.unwrap().unwrap();
        assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    }
    gate.add_permits(1);
    assert_eq!(enqueue(&client, "x").await.unwrap().unwrap(), "x");
    assert!(seen.load(Ordering::SeqCst) <= 16, "{seen:?} requests were sent");
}

#[tokio::test]
async fn answers_to_nothing_end_the_stream() {
    let acks = answered(Answer::Ack(proto::AckBatchResponse::default()));
    for foreign in [proto::PipelineResponse::default(), acks] {
        let broker = Broker::start();
        first_stream(&broker, move |mut requests, out| {
            let foreign = foreign.clone();
            async move {
                requests.next().await;
                out.send(&foreign);
                out.idle().await;
            }
        });
        let client = patient(&broker).await;
        let error = enqueue(&client, "a").await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
        assert_eq!(enqueue(&client, "b").await.unwrap().unwrap(), "b");
        assert_eq!(broker.pipelines().len(), 2);
    }
}

/// Tells when a stream was half-closed.
fn ends_of_streams(broker: &Broker) -> mpsc::UnboundedReceiver<()> {
    let (end, ends) = mpsc::unbounded_channel();
    broker.on_pipeline(move |requests, out| {
        let end = end.clone();
        async move {
            echo(requests, out).await;
            let _ = end.send(());
        }
    });
    ends
}

#[tokio::test]
async fn closing_or_dropping_the_client_half_closes_the_stream() {
    let broker = Broker::start();
    let mut ends = ends_of_streams(&broker);
    let client = patient(&broker).await;
    enqueue(&client, "a").await.unwrap().unwrap();
    let begun = Instant::now();
    client.close().await;
    assert!(begun.elapsed() < PATIENCE / 2);
    tokio::time::timeout(PATIENCE, ends.recv()).await.unwrap();
    let client = patient(&broker).await;
    enqueue(&client, "a").await.unwrap().unwrap();
    drop(client);
    tokio::time::timeout(PATIENCE, ends.recv()).await.unwrap();
}

#[tokio::test]
async fn close_ends_calls_of_a_broker_that_does_not_answer() {
    let broker = Broker::start();
    broker.on_pipeline(|_requests, out| async move { out.idle().await });
    let client = patient(&broker).await;
    let call = enqueue(&client, "a");
    broker.until(|broker| broker.pipelines().len() == 1).await;
    let begun = Instant::now();
    client.close().await;
    assert!(begun.elapsed() < PATIENCE / 2);
    assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::ClientClosed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_get_their_own_answers() {
    let broker = Broker::start();
    let (under_way, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let highest = Arc::clone(&most);
    broker.on("EnqueueBatch", move |seen, out| {
        let (under_way, most) = (Arc::clone(&under_way), Arc::clone(&most));
        async move {
            most.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            under_way.fetch_sub(1, Ordering::SeqCst);
            out.send(&stored(&seen));
        }
    });
    let client = patient(&broker).await;
    let callers = (0..60).map(|n| {
        let client = client.clone();
        tokio::spawn(async move {
            for i in 0..10 {
                let (payload, id) = (format!("{n}-{i}"), format!("id-{n}-{i}"));
                let message = EnqueueMessage::new("orders", payload);
                let results = client.enqueue_many([message.clone()]).await.unwrap();
                assert_eq!(results[0].as_ref().unwrap().message_id, id);
                assert_eq!(client.enqueue(message).await.unwrap(), id);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    assert_eq!(broker.pipelines().len(), 1);
    assert!(highest.load(Ordering::SeqCst) <= 16, "{highest:?}");
}
