// SPDX-License-Identifier: AGPL-3.0-only
//! Leases of what a consumer holds are kept, and what has none any more is not handed out.

use std::time::Duration;

use fila::{Client, ConsumeOptions, Consumer};
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::broker::{Broker, PATIENCE, frame, leased, settle_grants};
use crate::log::Log;
use crate::proto;
use crate::proto::grant_settlement::Action;

// Half of it has to be enough for a machine that is busy with other work.
const LEASE: Duration = Duration::from_secs(4);

/// These frames, and then another one with every text that is sent.
fn frames(
    broker: &Broker,
    first: Vec<proto::ConsumeResponse>,
) -> tokio::sync::watch::Sender<String> {
    let (more, asked) = tokio::sync::watch::channel(String::new());
    broker.on("Consume", move |_, out| {
        let (first, mut asked) = (first.clone(), asked.clone());
        async move {
            first.iter().for_each(|frame| out.send(frame));
            while asked.changed().await.is_ok() {
                let id = asked.borrow_and_update().clone();
                out.send(&frame(&[&id]));
            }
            out.idle().await;
        }
    });
    more
}

async fn next_id(consumer: &Consumer) -> String {
    let next = timeout(PATIENCE, consumer.next()).await.expect("no message in time");
    next.expect("the stream ended").expect("an error").id.clone()
}

fn settlements(broker: &Broker) -> Vec<proto::GrantSettlement> {
    let calls = broker.calls("SettleGrants");
    let requests = calls.iter().map(|call| call.request::<proto::SettleGrantsRequest>());
    requests.flat_map(|request| request.settlements).collect()
}

#[tokio::test]
async fn leases_are_extended_but_not_those_of_what_was_handed_out() {
    let broker = Broker::start();
    settle_grants(&broker);
    let _more = frames(&broker, vec![leased("t", &["a", "b", "c"], LEASE)]);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "a");
    broker.until(|broker| settlements(broker).len() >= 2).await;
    let expected = proto::GrantSettlement {
        queue: "orders".to_owned(),
        lease_token: "t".to_owned(),
        except_message_ids: vec!["a".to_owned()],
        expected_messages: 0,
        action: Some(Action::Extend(proto::GrantExtension { extend_ms: 4_000 })),
    };
    assert_eq!(settlements(&broker)[..2], [expected.clone(), expected]);
    // By now the lease that they came with has ended, and a new one has not.
    tokio::time::sleep(LEASE / 6).await;
    assert_eq!(next_id(&consumer).await, "b");
    assert_eq!(next_id(&consumer).await, "c");
}

#[tokio::test]
async fn frames_that_are_due_share_a_request() {
    let broker = Broker::start();
    settle_grants(&broker);
    let many: Vec<_> = (0..50).map(|n| format!("t-{n}")).collect();
    let _more = frames(&broker, many.iter().map(|t| leased(t, &["a", "b"], LEASE)).collect());
    let client = Client::connect(broker.target()).await.unwrap();
    let _consumer = client.consume("orders").await.unwrap();
    broker.until(|broker| settlements(broker).len() >= 50).await;
    let mut tokens: Vec<_> = settlements(&broker).into_iter().map(|it| it.lease_token).collect();
    tokens.truncate(50);
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 50);
    assert!(broker.calls("SettleGrants").len() < 50);
}

#[tokio::test]
async fn nothing_is_extended_that_nobody_holds() {
    let broker = Broker::start();
    settle_grants(&broker);
    let both = vec![leased("t", &["a"], LEASE), leased("kept", &["b"], LEASE)];
    let _more = frames(&broker, both);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "a");
    broker.until(|broker| !settlements(broker).is_empty()).await;
    assert!(settlements(&broker).iter().all(|it| it.lease_token == "kept"));
    consumer.close().await;
}

#[tokio::test]
async fn nothing_is_extended_if_the_user_says_so() {
    let broker = Broker::start();
    settle_grants(&broker);
    let short = Duration::from_millis(100);
    let _more = frames(&broker, vec![leased("t", &["a", "b"], short)]);
    let client = Client::connect(broker.target()).await.unwrap();
    let options = ConsumeOptions { extend_leases: false, ..Default::default() };
    let _consumer = client.consume_with("orders", options).await.unwrap();
    broker.until(|broker| broker.taken() == 1).await;
    tokio::time::sleep(short * 3).await;
    assert!(settlements(&broker).is_empty());
}

#[tokio::test]
async fn nothing_is_handed_out_whose_lease_has_ended() {
    let (log, _guard) = Log::here();
    let broker = Broker::start();
    let instant = Duration::from_nanos(1);
    let late = leased("late", &["a", "b"], instant);
    let _more = frames(&broker, vec![late, frame(&["c"])]);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "c");
    let lines = log.lines("dropped messages");
    assert_eq!(
        lines,
        [r#"DEBUG dropped messages whose leases had ended queue="orders" messages=2"#]
    );
    consumer.close().await;
    assert!(broker.released().is_empty());
}

#[tokio::test]
async fn a_frame_that_is_refused_is_lost() {
    let (log, _guard) = Log::here();
    let broker = Broker::start();
    let error = proto::ItemError {
        reason: proto::ErrorReason::LeaseExpired.into(),
        message: "too late".to_owned(),
    };
    let result = proto::GrantResult { error: Some(error), ..Default::default() };
    broker.answer("SettleGrants", proto::SettleGrantsResponse { results: vec![result] });
    let more = frames(&broker, vec![leased("t", &["a", "b", "c"], LEASE)]);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "a");
    log.until("leases cannot be extended").await;
    more.send_replace("d".to_owned());
    assert_eq!(next_id(&consumer).await, "d");
    assert_eq!(settlements(&broker).len(), 1);
}

#[tokio::test]
async fn a_broker_that_is_away_is_asked_again_while_the_lease_lasts() {
    let broker = Broker::start();
    broker.on("SettleGrants", |_, out| async move { out.fail(Status::unavailable("away")) });
    let _more = frames(&broker, vec![leased("t", &["a", "b"], LEASE)]);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    broker.until(|broker| broker.calls("SettleGrants").len() >= 2).await;
    assert_eq!(next_id(&consumer).await, "a");
    settle_grants(&broker);
    let failed = settlements(&broker).len();
    // The one that succeeds, and the one that is due half a lease after it.
    broker.until(|broker| settlements(broker).len() >= failed + 2).await;
    assert_eq!(next_id(&consumer).await, "b");
}

#[tokio::test]
async fn a_broker_that_knows_no_grants_is_told_the_messages() {
    let broker = Broker::start().without_pipelines();
    broker.refuse("SettleGrants", Code::Unimplemented, "what?", None);
    let done = proto::ExtendLeaseResult::default();
    let results = vec![done.clone(), done];
    broker.answer("ExtendLease", proto::ExtendLeaseResponse { results });
    let _more = frames(&broker, vec![leased("t", &["a", "b", "c"], LEASE)]);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    assert_eq!(next_id(&consumer).await, "a");
    broker.until(|broker| broker.calls("ExtendLease").len() >= 2).await;
    assert_eq!(broker.calls("SettleGrants").len(), 1);
    let sent: proto::ExtendLeaseRequest = broker.calls("ExtendLease")[1].request();
    let extension = |id: &str| proto::LeaseExtension {
        queue: "orders".to_owned(),
        message_id: id.to_owned(),
        lease_token: "t".to_owned(),
        extend_ms: 4_000,
    };
    assert_eq!(sent.extensions, [extension("b"), extension("c")]);
    assert_eq!(next_id(&consumer).await, "b");
}

#[tokio::test]
async fn a_message_that_is_refused_ends_its_frame_without_grants_too() {
    let (log, _guard) = Log::here();
    let broker = Broker::start().without_pipelines();
    broker.refuse("SettleGrants", Code::Unimplemented, "what?", None);
    let error = proto::ItemError {
        reason: proto::ErrorReason::LeaseExpired.into(),
        message: "too late".to_owned(),
    };
    let refused = proto::ExtendLeaseResult { error: Some(error), lease_expires_at: None };
    let results = vec![proto::ExtendLeaseResult::default(), refused];
    broker.answer("ExtendLease", proto::ExtendLeaseResponse { results });
    let more = frames(&broker, vec![leased("t", &["a", "b"], LEASE)]);
    let client = Client::connect(broker.target()).await.unwrap();
    let consumer = client.consume("orders").await.unwrap();
    log.until("leases cannot be extended").await;
    more.send_replace("d".to_owned());
    assert_eq!(next_id(&consumer).await, "d");
}
