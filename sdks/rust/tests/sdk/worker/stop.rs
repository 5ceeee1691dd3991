// SPDX-License-Identifier: AGPL-3.0-only
//! How a worker ends: by a stop, with its run, or with what it consumes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fila::ErrorKind;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Code;

use super::{Inside, Started, acked, client_of, endless, holding};
use crate::broker::{Broker, PATIENCE, frame, refusal};

#[tokio::test]
async fn a_stop_gives_back_what_nobody_has_seen_and_lets_handlers_finish() {
    let broker = holding(&["a", "b", "c"]);
    let client = client_of(&broker).await;
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let worker = client.worker("orders", move |_| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await?.forget();
            Ok(())
        }
    });
    let worker = Started::of(worker.concurrency(1));
    broker.arrived(&client, 1).await;
    worker.stop.stop();
    broker.until(|broker| broker.released().len() >= 2).await;
    assert!(!worker.task.is_finished() || broker.released().len() == 3);
    gate.add_permits(1);
    let stopped = worker.stopped().await;
    let all = broker.released();
    // The first one may not have reached its handler yet.
    match all.len() {
        2 => assert_eq!((all, stopped), (vec!["b".into(), "c".into()], vec!["acked a -".into()])),
        _ => assert_eq!((all.len(), stopped.len()), (3, 0)),
    }
}

#[tokio::test]
async fn the_end_of_the_grace_cuts_handlers_off() {
    for is_later in [false, true] {
        let broker = holding(&["a", "b"]);
        let client = client_of(&broker).await;
        let (running, handler) = endless();
        let grace = if is_later { PATIENCE * 10 } else { Duration::ZERO };
        let worker = Started::of(client.worker("orders", handler).grace(grace));
        broker.until(|_| running.load(Ordering::SeqCst) == 2).await;
        worker.stop.stop();
        if is_later {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(!worker.task.is_finished());
            worker.stop.stop_within(Duration::ZERO);
        }
        let events = worker.stopped().await;
        assert_eq!(running.load(Ordering::SeqCst), 0);
        let text = "the worker was stopped";
        assert_eq!(events, [format!("given_back a {text}"), format!("given_back b {text}")]);
        let mut released = broker.released();
        released.sort_unstable();
        assert_eq!(released, ["a", "b"]);
    }
}

#[tokio::test]
async fn a_worker_runs_until_a_future_ends() {
    let broker = holding(&["a"]);
    let client = client_of(&broker).await;
    let (signal, received) = tokio::sync::oneshot::channel::<()>();
    let worker = client.worker("orders", |_| async { Ok(()) });
    let task = tokio::spawn(worker.run_until(received));
    broker.until(|broker| acked(broker) == ["a"]).await;
    assert!(!task.is_finished());
    signal.send(()).unwrap();
    timeout(PATIENCE, task).await.expect("it goes on").unwrap().unwrap();
}

#[tokio::test]
async fn a_worker_that_was_stopped_before_ends_at_once() {
    let broker = holding(&["a"]);
    let client = client_of(&broker).await;
    let worker = client.worker("orders", |_| async { Ok(()) });
    worker.stop_handle().stop();
    timeout(PATIENCE, worker.run()).await.expect("it goes on").unwrap();
}

#[tokio::test]
async fn dropping_a_run_gives_everything_back() {
    let broker = holding(&["a", "b", "c", "d"]);
    let client = client_of(&broker).await;
    let (running, handler) = endless();
    let task = tokio::spawn(client.worker("orders", handler).concurrency(2).run());
    broker.until(|_| running.load(Ordering::SeqCst) == 2).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    broker.until(|broker| broker.released().len() == 4).await;
    let mut released = broker.released();
    released.sort_unstable();
    assert_eq!(released, ["a", "b", "c", "d"]);
    assert_eq!(running.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn what_ends_the_consumer_is_what_run_fails_with_once_handlers_are_done() {
    let broker = Broker::start();
    broker.on("Consume", |_, out| async move {
        out.send(&frame(&["a"]));
        out.fail(refusal(Code::NotFound, "gone", Some("QUEUE_NOT_FOUND")));
    });
    let client = client_of(&broker).await;
    let gate = Arc::new(Semaphore::new(0));
    let (held, running) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&running);
    let worker = client.worker("orders", move |_| {
        let (held, inside) = (Arc::clone(&held), Inside::of(&count));
        async move {
            let _inside = inside;
            held.acquire().await?.forget();
            Ok(())
        }
    });
    // The grace is for stops; this is none.
    let worker = Started::of(worker.grace(Duration::ZERO));
    broker.until(|_| running.load(Ordering::SeqCst) == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!worker.task.is_finished());
    gate.add_permits(1);
    let error = worker.ended().await.unwrap_err();
    assert_eq!((error.kind(), error.queue()), (ErrorKind::QueueNotFound, Some("orders")));
    assert_eq!(acked(&broker), ["a"]);
}

#[tokio::test]
async fn closing_the_client_ends_its_workers() {
    let broker = holding(&[]);
    let client = client_of(&broker).await;
    let worker = Started::of(client.worker("orders", |_| async { Ok(()) }));
    broker.until(|broker| broker.calls("Consume").len() == 1).await;
    client.close().await;
    worker.ended().await.unwrap();
}
