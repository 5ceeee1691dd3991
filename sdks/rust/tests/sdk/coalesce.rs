// SPDX-License-Identifier: AGPL-3.0-only
//! Concurrent calls share requests; nobody's failure, deadline or departure is another's business.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fila::{Client, EnqueueMessage, ErrorKind};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tonic::Code;

use crate::broker::{Broker, PATIENCE, refusal, settled, stored};
use crate::proto;

/// Payloads of each request, in order of arrival.
fn batches(broker: &Broker) -> Vec<Vec<String>> {
    let calls = broker.calls("EnqueueBatch");
    let payloads = |call: &crate::broker::Seen| {
        let messages = call.request::<proto::EnqueueBatchRequest>().messages;
        messages.iter().map(|m| String::from_utf8_lossy(&m.payload).into_owned()).collect()
    };
    calls.iter().map(payloads).collect()
}

/// Makes requests of a method wait for permits of the gate.
fn gated(broker: &Broker, method: &str) -> Arc<Semaphore> {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let is_enqueue = method == "EnqueueBatch";
    broker.on(method, move |seen, out| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await.expect("an open gate").forget();
            if is_enqueue { out.send(&stored(&seen)) } else { out.send(&settled(&seen)) }
        }
    });
    gate
}

fn enqueue(client: &Client, payload: &str) -> JoinHandle<fila::Result<String>> {
    let (client, message) = (client.clone(), EnqueueMessage::text("orders", payload));
    tokio::spawn(async move { client.enqueue(message).await })
}

/// Both slots taken by requests that wait at the gate: what comes now has to wait.
async fn busy(broker: &Broker, client: &Client) -> Vec<JoinHandle<fila::Result<String>>> {
    let mut calls = Vec::new();
    for count in 1..=2 {
        calls.push(enqueue(client, &format!("busy-{count}")));
        broker.until(|broker| broker.calls("EnqueueBatch").len() == count).await;
    }
    calls
}

#[test]
fn a_client_whose_runtime_has_ended_says_so() {
    let broker = Broker::start();
    let of_client = tokio::runtime::Runtime::new().unwrap();
    let client = of_client.block_on(Client::connect(broker.target())).unwrap();
    of_client.shutdown_background();
    let other = tokio::runtime::Runtime::new().unwrap();
    for _ in 0..3 {
        let call = client.enqueue(EnqueueMessage::new("orders", "x"));
        let error = other.block_on(call).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    }
}

/// Lets spawned calls reach the place where they wait.
async fn settle_down() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lone_call_goes_out_at_once_and_alone() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    assert_eq!(client.enqueue(EnqueueMessage::new("orders", "a")).await.unwrap(), "id-a");
    assert_eq!(batches(&broker), [["a"]]);
    assert_eq!(broker.seen().len(), 1);
}

#[tokio::test]
async fn calls_that_pile_up_share_the_next_request() {
    let broker = Broker::start();
    let gate = gated(&broker, "EnqueueBatch");
    let client = Client::connect(broker.target()).await.unwrap();
    let mut calls = busy(&broker, &client).await;
    calls.extend((0..50).map(|n| enqueue(&client, &format!("late-{n}"))));
    settle_down().await;
    assert_eq!(broker.calls("EnqueueBatch").len(), 2, "at most two requests are under way");
    gate.add_permits(3);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let late: Vec<String> = (0..50).map(|n| format!("late-{n}")).collect();
    assert_eq!(batches(&broker), [vec!["busy-1".to_owned()], vec!["busy-2".to_owned()], late]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_get_the_answer_that_is_theirs_with_far_fewer_requests() {
    let broker = Broker::start();
    let begun = Arc::new(AtomicUsize::new(0));
    let callers = Arc::clone(&begun);
    // A machine that is busy may run them one after the other: nothing is answered before all ask.
    broker.on("EnqueueBatch", move |seen, out| {
        let callers = Arc::clone(&callers);
        async move {
            while callers.load(Ordering::SeqCst) < 500 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            out.send(&stored(&seen));
        }
    });
    let builder = Client::builder().target(broker.target()).timeout(PATIENCE);
    let client = builder.connect().await.unwrap();
    let call = |n: usize| {
        let (client, begun) = (client.clone(), Arc::clone(&begun));
        tokio::spawn(async move {
            begun.fetch_add(1, Ordering::SeqCst);
            client.enqueue(EnqueueMessage::new("orders", n.to_string())).await
        })
    };
    let calls: Vec<_> = (0..500).map(|n| (n, call(n))).collect();
    for (n, call) in calls {
        assert_eq!(call.await.unwrap().unwrap(), format!("id-{n}"));
    }
    let requests = broker.calls("EnqueueBatch").len();
    assert!(requests < 250, "{requests} requests for 500 calls");
}

#[tokio::test]
async fn acks_and_nacks_are_shared_too() {
    let broker = Broker::start();
    for method in ["AckBatch", "NackBatch"] {
        let gate = gated(&broker, method);
        let client = Client::connect(broker.target()).await.unwrap();
        let mut calls = Vec::new();
        for n in 0..20 {
            let client = client.clone();
            calls.push(tokio::spawn(async move {
                let id = format!("m-{n}");
                match method {
                    "AckBatch" => client.ack("orders", &id, None).await,
                    _ => client.nack("orders", &id, None, "boom").await,
                }
            }));
            if n < 2 {
                broker.until(|broker| broker.calls(method).len() == n + 1).await;
            }
        }
        settle_down().await;
        gate.add_permits(3);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        let sizes = broker.calls(method).into_iter();
        let sizes = sizes.map(|c| c.request::<proto::AckBatchRequest>().acks.len());
        assert_eq!(sizes.collect::<Vec<_>>(), [1, 1, 18]);
    }
}

#[tokio::test]
async fn one_bad_item_fails_alone() {
    let broker = Broker::start();
    broker.on("EnqueueBatch", |seen, out| async move {
        let mut answer = stored(&seen);
        let messages = seen.request::<proto::EnqueueBatchRequest>().messages;
        for (message, result) in messages.iter().zip(&mut answer.results) {
            if message.payload == "bad" {
                result.error = Some(proto::ItemError {
                    reason: proto::ErrorReason::QueueFull.into(),
                    message: "queue \"orders\" is full".to_owned(),
                });
            }
        }
        out.send(&answer);
    });
    let client = Client::connect(broker.target()).await.unwrap();
    let (good, bad, fine) = tokio::join!(
        client.enqueue(EnqueueMessage::new("orders", "good")),
        client.enqueue(EnqueueMessage::new("orders", "bad")),
        client.enqueue(EnqueueMessage::new("orders", "fine")),
    );
    assert_eq!((good.unwrap().as_str(), fine.unwrap().as_str()), ("id-good", "id-fine"));
    let error = bad.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    assert_eq!(error.to_string(), "queue \"orders\" is full");
    assert_eq!(error.queue(), Some("orders"));
}

#[tokio::test]
async fn a_request_that_fails_fails_all_its_callers() {
    let broker = Broker::start();
    broker.refuse("AckBatch", Code::NotFound, "gone", None);
    let client = Client::connect(broker.target()).await.unwrap();
    let (one, two) = tokio::join!(client.ack("a", "m-1", None), client.ack("b", "m-2", None));
    let (one, two) = (one.unwrap_err(), two.unwrap_err());
    assert_eq!((one.queue(), one.message_id()), (Some("a"), Some("m-1")));
    assert_eq!((two.queue(), two.message_id()), (Some("b"), Some("m-2")));
    assert_eq!(two.kind(), ErrorKind::MessageNotFound);
}

#[tokio::test]
async fn a_caller_that_waits_leaves_at_its_own_deadline_and_sends_nothing() {
    let broker = Broker::start();
    let gate = gated(&broker, "EnqueueBatch");
    let client =
        Client::builder().target(broker.target()).timeout(PATIENCE).connect().await.unwrap();
    let mut calls = busy(&broker, &client).await;
    let hasty = client.with_timeout(Duration::from_millis(50));
    let error = hasty.enqueue(EnqueueMessage::new("orders", "hasty")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("was not sent"), "{error}");
    calls.push(enqueue(&client, "patient"));
    settle_down().await;
    gate.add_permits(3);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(batches(&broker), [["busy-1"], ["busy-2"], ["patient"]]);
}

#[tokio::test]
async fn a_caller_leaves_a_request_under_way_at_its_own_deadline() {
    let broker = Broker::start();
    let gate = gated(&broker, "EnqueueBatch");
    let client =
        Client::builder().target(broker.target()).timeout(PATIENCE).connect().await.unwrap();
    let calls = busy(&broker, &client).await;
    let hasty = client.with_timeout(Duration::from_millis(300));
    let hasty =
        tokio::spawn(async move { hasty.enqueue(EnqueueMessage::new("orders", "hasty")).await });
    let patient = enqueue(&client, "patient");
    settle_down().await;
    gate.add_permits(1);
    broker.until(|broker| broker.calls("EnqueueBatch").len() == 3).await;
    let error = hasty.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    gate.add_permits(2);
    assert_eq!(patient.await.unwrap().unwrap(), "id-patient");
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn dropping_one_call_leaves_the_others_of_its_request_alone() {
    let broker = Broker::start();
    let gate = gated(&broker, "EnqueueBatch");
    let client = Client::connect(broker.target()).await.unwrap();
    let calls = busy(&broker, &client).await;
    let (dropped, kept) = (enqueue(&client, "dropped"), enqueue(&client, "kept"));
    settle_down().await;
    gate.add_permits(1);
    broker.until(|broker| broker.calls("EnqueueBatch").len() == 3).await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    gate.add_permits(2);
    assert_eq!(kept.await.unwrap().unwrap(), "id-kept");
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_call_dropped_before_it_was_sent_sends_nothing() {
    let broker = Broker::start();
    let gate = gated(&broker, "EnqueueBatch");
    let client = Client::connect(broker.target()).await.unwrap();
    let calls = busy(&broker, &client).await;
    let (dropped, kept) = (enqueue(&client, "dropped"), enqueue(&client, "kept"));
    settle_down().await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    gate.add_permits(3);
    kept.await.unwrap().unwrap();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(batches(&broker), [["busy-1"], ["busy-2"], ["kept"]]);
}

#[tokio::test]
async fn a_shared_request_stays_within_its_limits() {
    let broker = Broker::start();
    let gate = gated(&broker, "EnqueueBatch");
    let client =
        Client::builder().target(broker.target()).timeout(PATIENCE).connect().await.unwrap();
    let mut calls = busy(&broker, &client).await;
    let large = "x".repeat(600_000);
    calls.extend((0..3).map(|_| enqueue(&client, &large)));
    calls.extend((0..1_001).map(|_| enqueue(&client, "small")));
    for _ in 0..20 {
        settle_down().await;
    }
    gate.add_permits(10);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let mut sizes: Vec<usize> = batches(&broker).iter().map(Vec::len).collect();
    sizes.sort_unstable();
    // Two of the large ones do not fit together; the third one takes small ones along.
    assert_eq!(sizes, [1, 1, 1, 1, 2, 1_000]);
}

#[tokio::test]
async fn a_failed_request_gives_its_slot_back() {
    let broker = Broker::start();
    broker.on("EnqueueBatch", |_, out| async move {
        out.fail(refusal(Code::Internal, "broken", None));
    });
    let client = Client::connect(broker.target()).await.unwrap();
    for _ in 0..10 {
        let error = client.enqueue(EnqueueMessage::new("orders", "a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
    assert_eq!(broker.seen().len(), 10);
}
