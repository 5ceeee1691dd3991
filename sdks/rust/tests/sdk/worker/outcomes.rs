// SPDX-License-Identifier: AGPL-3.0-only
//! What a handler ends with is what its message is settled by.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fila::{ConsumeMessage, HandlerError};
use tokio::time::timeout;
use tonic::Status;

use super::{Started, acked, client_of, endless, holding, nacks};
use crate::broker::{PATIENCE, settled};
use crate::log::Log;
use crate::proto;

fn nack(id: &str) -> proto::NackRequest {
    proto::NackRequest {
        queue: "orders".to_owned(),
        message_id: id.to_owned(),
        lease_token: format!("token-of-{id}"),
        ..Default::default()
    }
}

#[derive(Debug)]
struct Outer(std::num::ParseIntError);

impl std::fmt::Display for Outer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("no order")
    }
}

impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test]
async fn each_outcome_has_its_settlement() {
    let ids = ["backpressure", "boxed", "dead", "error", "fine", "keyed", "text"];
    let broker = holding(&ids);
    let client = client_of(&broker).await;
    let worker = client.worker("orders", |message: ConsumeMessage| async move {
        match message.id.as_str() {
            "backpressure" => return Err(HandlerError::backpressure(Duration::from_secs(7))),
            "keyed" => {
                return Err(HandlerError::Backpressure {
                    retry_after: Duration::from_millis(30),
                    throttle_key: Some("mail".to_owned()),
                    reason: Some("429".to_owned()),
                });
            }
            "dead" => return Err(HandlerError::dead_letter("no such order")),
            "text" => return Err("boom".into()),
            "error" => {
                "x".parse::<u32>().map_err(Outer)?;
            }
            "boxed" => Err(Box::<dyn std::error::Error + Send + Sync>::from("in a box"))?,
            _ => {}
        }
        Ok(())
    });
    let worker = Started::of(worker);
    worker.until(|events| events.len() == ids.len()).await;
    let events = worker.stopped().await;
    let expected = [
        "acked fine -",
        "dead_lettered dead no such order",
        "nacked boxed in a box",
        "nacked error no order: invalid digit found in string",
        "nacked text boom",
        "put_off backpressure put off for 7s",
        "put_off keyed 429",
    ];
    assert_eq!(events, expected);
    assert_eq!(acked(&broker), ["fine"]);
    let told = |id, error: &str| proto::NackRequest { error: error.to_owned(), ..nack(id) };
    let expected = [
        proto::NackRequest {
            retry_after_ms: Some(7_000),
            ..told("backpressure", "put off for 7s")
        },
        told("boxed", "in a box"),
        proto::NackRequest { dead_letter: true, ..told("dead", "no such order") },
        told("error", "no order: invalid digit found in string"),
        proto::NackRequest {
            retry_after_ms: Some(30),
            throttle_key: "mail".to_owned(),
            ..told("keyed", "429")
        },
        told("text", "boom"),
    ];
    assert_eq!(nacks(&broker), expected);
}

#[tokio::test]
async fn a_panic_is_the_failure_of_one_message() {
    let broker = holding(&["a", "b", "c"]);
    let client = client_of(&broker).await;
    let worker = client.worker("orders", |message: ConsumeMessage| {
        // While the future is made, too.
        assert!(message.id != "a", "no {}", message.id);
        async move {
            tokio::task::yield_now().await;
            assert!(message.id != "b", "not {} either", message.id);
            Ok(())
        }
    });
    let worker = Started::of(worker.concurrency(1));
    worker.until(|events| events.len() == 3).await;
    let expected =
        ["acked c -", "nacked a handler panicked: no a", "nacked b handler panicked: not b either"];
    assert_eq!(worker.stopped().await, expected);
}

#[tokio::test]
async fn what_a_handler_settled_by_itself_is_left_alone() {
    let broker = holding(&["acked", "nacked", "failed"]);
    let client = client_of(&broker).await;
    let (done, mut handled) = tokio::sync::mpsc::unbounded_channel();
    let worker = client.worker("orders", move |message: ConsumeMessage| {
        let done = done.clone();
        async move {
            match message.id.as_str() {
                "acked" => message.ack().await?,
                "nacked" => message.clone().nack("own").await?,
                _ => {
                    message.ack().await?;
                    done.send(())?;
                    Err("after all")?;
                }
            }
            done.send(())?;
            Ok(())
        }
    });
    let worker = Started::of(worker);
    for _ in 0..3 {
        timeout(PATIENCE, handled.recv()).await.expect("it waits").unwrap();
    }
    assert_eq!(worker.stopped().await, [""; 0]);
    assert_eq!(acked(&broker), ["acked", "failed"]);
    assert_eq!(nacks(&broker).len(), 1);
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_cancelled_and_has_failed() {
    let broker = holding(&["a"]);
    let client = client_of(&broker).await;
    let (running, handler) = endless();
    let worker = client.worker("orders", handler).handler_timeout(Duration::from_millis(50));
    let worker = Started::of(worker);
    worker.until(|events| events.len() == 2).await;
    assert_eq!(running.load(Ordering::SeqCst), 0);
    let text = "handler timed out after 0.05 s";
    assert_eq!(worker.stopped().await, [format!("nacked a {text}"), format!("timed_out a {text}")]);
    assert_eq!(nacks(&broker)[0].error, text);
}

#[tokio::test]
async fn a_long_error_is_cut() {
    let broker = holding(&["a"]);
    let client = client_of(&broker).await;
    let worker = client.worker("orders", |_| async { Err("é".repeat(5_000).into()) });
    let worker = Started::of(worker);
    worker.until(|events| events.len() == 1).await;
    worker.stopped().await;
    assert_eq!(nacks(&broker)[0].error, "é".repeat(2_048));
}

#[tokio::test]
async fn a_settlement_that_fails_is_told_and_no_more() {
    let (log, _guard) = Log::here();
    let broker = holding(&["a", "b"]);
    let error = proto::ItemError {
        reason: proto::ErrorReason::LeaseExpired.into(),
        message: "too late".to_owned(),
    };
    broker.on("AckBatch", move |seen, out| {
        let error = error.clone();
        async move {
            let mut answer = settled(&seen);
            answer.results.iter_mut().for_each(|result| result.error = Some(error.clone()));
            out.send(&answer);
        }
    });
    let client = client_of(&broker).await;
    let worker = Started::of(client.worker("orders", |_| async { Ok(()) }));
    worker.until(|events| events.len() == 2).await;
    assert_eq!(worker.stopped().await, ["settle_failed a too late", "settle_failed b too late"]);
    assert_eq!(log.lines("WARN could not settle").len(), 2);
}

#[tokio::test]
async fn an_ack_survives_a_broker_that_goes_away_in_the_middle() {
    let broker = holding(&["a"]).without_pipelines();
    let calls = Arc::new(AtomicUsize::new(0));
    broker.on("AckBatch", move |seen, out| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            match call {
                0 => out.fail(Status::unavailable("away")),
                _ => out.send(&settled(&seen)),
            }
        }
    });
    let client = client_of(&broker).await;
    let worker = Started::of(client.worker("orders", |_| async { Ok(()) }));
    worker.until(|events| events == ["acked a -"]).await;
    worker.stopped().await;
}
