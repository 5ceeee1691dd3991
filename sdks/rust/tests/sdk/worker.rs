// SPDX-License-Identifier: AGPL-3.0-only
//! A worker handles messages side by side, settles each by its outcome, and ends in good order.

mod outcomes;
mod stop;

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila::{Client, ConsumeMessage, ErrorKind, HandlerError, Worker};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::broker::{Broker, PATIENCE, frame, free_port, leased, settle_grants, settled};
use crate::log::Log;
use crate::proto;

/// Has these messages, and no others.
fn holding(ids: &[&str]) -> Broker {
    let broker = Broker::start();
    let messages = frame(ids);
    broker.on("Consume", move |_, out| {
        let messages = messages.clone();
        async move {
            out.send(&messages);
            out.idle().await;
        }
    });
    broker
}

async fn client_of(broker: &Broker) -> Client {
    Client::connect(broker.target()).await.unwrap()
}

/// A worker in a task of its own, and what it told.
struct Started {
    stop: fila::StopHandle,
    task: JoinHandle<fila::Result<()>>,
    events: Arc<Mutex<Vec<String>>>,
}

impl Started {
    fn of(worker: Worker) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&events);
        let worker = worker.on_event(move |event| {
            let error = event.error.unwrap_or("-");
            let line = format!("{} {} {error}", event.kind.as_str(), event.message.id);
            kept.lock().unwrap().push(line);
        });
        Self { stop: worker.stop_handle(), task: tokio::spawn(worker.run()), events }
    }

    fn events(&self) -> Vec<String> {
        let mut events = self.events.lock().unwrap().clone();
        events.sort_unstable();
        events
    }

    async fn until(&self, condition: impl Fn(&[String]) -> bool) {
        let waiting = async {
            while !condition(&self.events()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "it did not happen in time: {:?}", self.events());
    }

    async fn ended(self) -> fila::Result<()> {
        timeout(PATIENCE, self.task).await.expect("it goes on").expect("a panic")
    }

    async fn stopped(self) -> Vec<String> {
        self.stop.stop();
        let events = Arc::clone(&self.events);
        self.ended().await.unwrap();
        let mut events = events.lock().unwrap().clone();
        events.sort_unstable();
        events
    }
}

fn acked(broker: &Broker) -> Vec<String> {
    let calls = broker.calls("AckBatch");
    let requests = calls.iter().map(|call| call.request::<proto::AckBatchRequest>());
    let mut ids: Vec<_> = requests.flat_map(|it| it.acks).map(|ack| ack.message_id).collect();
    ids.sort_unstable();
    ids
}

fn nacks(broker: &Broker) -> Vec<proto::NackRequest> {
    let calls = broker.calls("NackBatch");
    let requests = calls.iter().map(|call| call.request::<proto::NackBatchRequest>());
    let mut nacks: Vec<_> = requests.flat_map(|it| it.nacks).collect();
    nacks.sort_unstable_by(|one, other| one.message_id.cmp(&other.message_id));
    nacks
}

/// Counts what runs, until it is dropped.
struct Inside(Arc<AtomicUsize>);

impl Inside {
    fn of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A handler that never returns, and how many of it run.
fn endless() -> (Arc<AtomicUsize>, impl Fn(ConsumeMessage) -> Endless + Send + Sync + 'static) {
    let running = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&running);
    let handler = move |_: ConsumeMessage| -> Endless {
        let inside = Inside::of(&count);
        Box::pin(async move {
            let _inside = inside;
            pending().await
        })
    };
    (running, handler)
}

type Endless = std::pin::Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

#[tokio::test]
async fn so_many_handlers_run_at_a_time_and_prefetch_follows() {
    let ids: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    let broker = holding(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    let client = client_of(&broker).await;
    let gate = Arc::new(Semaphore::new(0));
    let (held, running) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let (count, most) = (Arc::clone(&running), Arc::new(AtomicUsize::new(0)));
    let peak = Arc::clone(&most);
    let worker = client.worker("orders", move |_| {
        let (held, peak) = (Arc::clone(&held), Arc::clone(&peak));
        let inside = Inside::of(&count);
        async move {
            peak.fetch_max(inside.0.load(Ordering::SeqCst), Ordering::SeqCst);
            held.acquire().await?.forget();
            Ok(())
        }
    });
    let worker = Started::of(worker.concurrency(3));
    broker.until(|_| running.load(Ordering::SeqCst) == 3).await;
    for _ in 0..20 {
        gate.add_permits(1);
        tokio::task::yield_now().await;
    }
    worker.until(|events| events.len() == 20).await;
    worker.stopped().await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
    let sent: proto::ConsumeRequest = broker.calls("Consume")[0].request();
    assert_eq!(sent.max_in_flight, 6);
}

#[tokio::test]
async fn options_reach_the_consumer() {
    let one = |_: ConsumeMessage| async { Ok(()) };
    let many = |_: Vec<ConsumeMessage>| async { Ok(()) };
    let broker = holding(&[]);
    let client = client_of(&broker).await;
    let minute = Duration::from_secs(60);
    let workers = [
        (client.worker("orders", one), 20, 0),
        (client.worker("orders", one).prefetch(3), 10, 0),
        (client.worker("orders", one).prefetch(70).visibility_timeout(minute), 70, 60_000),
        (client.batch_worker("orders", 5, many), 100, 0),
        (client.batch_worker("orders", 5, many).concurrency(2).prefetch(1), 10, 0),
    ];
    for (number, (worker, max_in_flight, visibility_timeout_ms)) in workers.into_iter().enumerate()
    {
        let worker = Started::of(worker);
        broker.until(|broker| broker.calls("Consume").len() == number + 1).await;
        let sent: proto::ConsumeRequest = broker.calls("Consume")[number].request();
        let given = (sent.queue.as_str(), sent.max_in_flight, sent.visibility_timeout_ms);
        assert_eq!(given, ("orders", max_in_flight, visibility_timeout_ms));
        worker.stopped().await;
    }
    for worker in [client.worker("orders", one).concurrency(0), client.batch_worker("q", 0, many)] {
        assert_eq!(worker.run().await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[tokio::test]
async fn a_batch_is_what_is_there_and_is_acked_by_one_call() {
    let broker = Broker::start();
    settle_grants(&broker);
    let frame = leased("t", &["a", "b", "c", "d", "e"], PATIENCE * 10);
    broker.on("Consume", move |_, out| {
        let frame = frame.clone();
        async move {
            out.send(&frame);
            out.idle().await;
        }
    });
    let client = client_of(&broker).await;
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sizes);
    let worker = client.batch_worker("orders", 3, move |messages: Vec<ConsumeMessage>| {
        seen.lock().unwrap().push(messages.len());
        async move {
            // Of the second batch one is settled by the handler.
            if messages.len() == 2 {
                messages[0].ack().await?;
                Err("the rest of it")?;
            }
            Ok(())
        }
    });
    let worker = Started::of(worker.concurrency(1));
    worker.until(|events| events.len() == 4).await;
    let events = worker.stopped().await;
    assert_eq!(events, ["acked a -", "acked b -", "acked c -", "nacked e the rest of it"]);
    assert_eq!(*sizes.lock().unwrap(), [3, 2]);
    let acks: Vec<_> =
        broker.calls("AckBatch").iter().map(|call| settled(call).results.len()).collect();
    // The handler's own may overtake.
    assert!(acks == [3, 1] || acks == [1, 3], "{acks:?}");
    let nacks = nacks(&broker);
    assert_eq!((nacks.len(), nacks[0].message_id.as_str()), (1, "e"));
}

#[tokio::test]
async fn the_leases_of_what_is_handled_and_of_what_waits_are_extended() {
    let broker = Broker::start();
    settle_grants(&broker);
    let frame = leased("t", &["a", "b", "c"], Duration::from_secs(4));
    broker.on("Consume", move |_, out| {
        let frame = frame.clone();
        async move {
            out.send(&frame);
            out.idle().await;
        }
    });
    let client = client_of(&broker).await;
    let gate = Arc::new(Semaphore::new(1));
    let held = Arc::clone(&gate);
    let worker = client.worker("orders", move |_| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await?.forget();
            Ok(())
        }
    });
    let worker = Started::of(worker.concurrency(1));
    worker.until(|events| events == ["acked a -"]).await;
    broker.until(|broker| !broker.calls("SettleGrants").is_empty()).await;
    let sent: proto::SettleGrantsRequest = broker.calls("SettleGrants")[0].request();
    // What was acked is not of the grant any more; that it is named does no harm.
    assert_eq!(sent.settlements[0].except_message_ids, ["a"]);
    gate.add_permits(2);
    worker.until(|events| events.len() == 3).await;
    worker.stopped().await;
}

async fn handle(message: ConsumeMessage) -> Result<(), HandlerError> {
    Err(message.id.as_str())?
}

/// Middleware, as the README has it.
async fn traced<T>(
    log: Arc<Mutex<Vec<String>>>,
    message: ConsumeMessage,
    handling: impl Future<Output = T>,
) -> T {
    let id = &message.id;
    log.lock().unwrap().push(format!("before {id}"));
    let outcome = handling.await;
    log.lock().unwrap().push(format!("after {id}"));
    outcome
}

#[tokio::test]
async fn handlers_can_be_composed() {
    let broker = holding(&["a"]);
    let client = client_of(&broker).await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&log);
    let worker = client.worker("orders", move |message: ConsumeMessage| {
        traced(Arc::clone(&own), message.clone(), handle(message))
    });
    let worker = Started::of(worker);
    worker.until(|events| events == ["nacked a a"]).await;
    worker.stopped().await;
    assert_eq!(*log.lock().unwrap(), ["before a", "after a"]);
}

#[tokio::test]
async fn handlers_do_not_wait_for_settlements_up_to_prefetch() {
    let broker = holding(&["a", "b", "c", "d"]);
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    broker.on("AckBatch", move |seen, out| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await.expect("an open gate").forget();
            out.send(&settled(&seen));
        }
    });
    let client = client_of(&broker).await;
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let worker = client.worker("orders", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    // Two settlements are under way, and a third handler waits with its message in hand.
    let worker = Started::of(worker.concurrency(1).prefetch(2));
    broker.until(|_| begun.load(Ordering::SeqCst) == 3).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(begun.load(Ordering::SeqCst), 3);
    gate.add_permits(100);
    worker.until(|events| events.len() == 4).await;
    worker.stopped().await;
    assert_eq!(acked(&broker), ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn a_broker_that_is_away_is_waited_for() {
    let (log, _guard) = Log::here();
    let port = free_port();
    let client = Client::builder().target(format!("127.0.0.1:{port}")).connect_lazy().unwrap();
    let worker = Started::of(client.worker("orders", |_| async { Ok(()) }));
    log.until("consume stream was lost").await;
    let broker = Broker::on_port(port, |broker| {
        broker.on("Consume", |_, out| async move {
            out.send(&frame(&["a"]));
            out.idle().await;
        });
    });
    broker.until(|broker| acked(broker) == ["a"]).await;
    worker.stopped().await;
}

#[tokio::test]
async fn a_panic_in_on_event_changes_nothing() {
    let (log, _guard) = Log::here();
    let broker = holding(&["a", "b"]);
    let client = client_of(&broker).await;
    let worker = client.worker("orders", |_| async { Ok(()) });
    let worker = worker.concurrency(1).on_event(|event| panic!("no {}", event.message.id));
    let (stop, task) = (worker.stop_handle(), tokio::spawn(worker.run()));
    broker.until(|_| log.lines("ERROR on_event panicked").len() == 2).await;
    stop.stop();
    timeout(PATIENCE, task).await.expect("it goes on").unwrap().unwrap();
    assert_eq!(acked(&broker), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_of_one_client_do_not_meet() {
    let broker = Broker::start();
    let streams = Arc::new(AtomicUsize::new(0));
    broker.on("Consume", move |_, out| {
        let stream = streams.fetch_add(1, Ordering::SeqCst);
        async move {
            for n in 0..100 {
                out.send(&frame(&[&format!("{stream}-{n:03}")]));
            }
            out.idle().await;
        }
    });
    let client = client_of(&broker).await;
    let workers =
        [0, 1].map(|_| Started::of(client.worker("orders", |_| async { Ok(()) }).concurrency(4)));
    broker.until(|broker| acked(broker).len() == 200).await;
    for worker in workers {
        assert_eq!(worker.stopped().await.len(), 100);
    }
    let mut ids = acked(&broker);
    ids.dedup();
    assert_eq!(ids.len(), 200);
}
