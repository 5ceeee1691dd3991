// SPDX-License-Identifier: AGPL-3.0-only
//! Every call of an operator sends its request and reads its answer in full.

use std::fmt::Debug;
use std::time::{Duration, UNIX_EPOCH};

use fila::{
    Client, DeletedQueue, ErrorKind, FailureCause, HookErrorPolicy, MessageState, PeekOptions,
    QueueSettings, RedriveOptions, Subject, WaitKind,
};
use prost::Message;

use crate::broker::{Broker, message};
use crate::proto;
use crate::throttle::{is_read_in_full, throttle};

/// The request of the one call that was made.
pub fn sent<T: Message + Default>(broker: &Broker, method: &str) -> T {
    let seen = broker.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].method, method);
    seen[0].request()
}

/// Makes one call of a broker that gives one answer; returns both sides of it.
pub async fn exchange<Req, T, Fut>(
    method: &str,
    answer: impl Message + Clone + 'static,
    call: impl Fn(Client) -> Fut,
) -> (Req, T)
where
    Req: Message + Default,
    T: Debug,
    Fut: Future<Output = fila::Result<T>>,
{
    let broker = Broker::start();
    broker.answer(method, answer);
    let client = Client::connect(broker.target()).await.unwrap();
    let result = call(client).await.unwrap();
    (sent(&broker, method), result)
}

pub fn at(seconds: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds, nanos: 0 })
}

fn all_settings() -> QueueSettings {
    QueueSettings {
        on_enqueue_script: Some("e".to_owned()),
        on_failure_script: Some("f".to_owned()),
        visibility_timeout: Some(Duration::from_millis(1)),
        max_attempts: Some(2),
        retry_delay: Some(Duration::from_millis(3)),
        retry_delay_max: Some(Duration::from_millis(4)),
        default_ttl: Some(Duration::from_millis(5)),
        idempotency_window: Some(Duration::from_millis(6)),
        max_messages: Some(7),
        on_hook_error: Some(HookErrorPolicy::Reject),
        hook_timeout: Some(Duration::from_millis(8)),
        hook_memory_limit_bytes: Some(9),
        quantum: Some(10),
    }
}

fn all_config() -> proto::QueueConfig {
    proto::QueueConfig {
        on_enqueue_script: "e".to_owned(),
        on_failure_script: "f".to_owned(),
        visibility_timeout_ms: 1,
        max_attempts: 2,
        retry_delay_ms: 3,
        retry_delay_max_ms: 4,
        default_ttl_ms: 5,
        idempotency_window_ms: 6,
        max_messages: 7,
        on_hook_error: proto::HookErrorPolicy::Reject.into(),
        hook_timeout_ms: 8,
        hook_memory_limit_bytes: 9,
        quantum: 10,
    }
}

#[tokio::test]
async fn create_queue_sends_every_setting_and_returns_the_dead_letter_queue() {
    let answer = proto::CreateQueueResponse {
        queue_id: "orders".to_owned(),
        dead_letter_queue: "orders.dlq".to_owned(),
    };
    let (request, letters): (proto::CreateQueueRequest, _) =
        exchange("CreateQueue", answer, |client| async move {
            client.create_queue("orders", all_settings()).await
        })
        .await;
    assert_eq!((request.name.as_str(), letters.as_str()), ("orders", "orders.dlq"));
    assert_eq!(request.config, Some(all_config()));
}

#[tokio::test]
async fn update_queue_names_the_settings_that_are_set() {
    let answer = proto::UpdateQueueResponse { config: Some(all_config()) };
    let call = |settings: QueueSettings| {
        exchange::<proto::UpdateQueueRequest, _, _>("UpdateQueue", answer.clone(), move |client| {
            let settings = settings.clone();
            async move { client.update_queue("orders", settings).await }
        })
    };
    let (request, config) = call(all_settings()).await;
    assert_eq!(request.config, Some(all_config()));
    // Every field of the contract, by its name there.
    let names = request.update_mask.unwrap().paths;
    assert_eq!(names.len(), 13);
    let shown = format!("{:?}", all_config());
    assert!(names.iter().all(|name| shown.contains(&format!("{name}: "))), "{names:?}");
    assert_eq!(config.on_hook_error, HookErrorPolicy::Reject);
    assert_eq!(config.idempotency_window, Duration::from_millis(6));
    assert_eq!((config.quantum, config.hook_timeout), (10, Duration::from_millis(8)));

    let some = QueueSettings { max_messages: Some(0), ..Default::default() };
    let (request, _) = call(some).await;
    assert_eq!(request.update_mask.unwrap().paths, ["max_messages"]);
}

#[tokio::test]
async fn list_queues_reads_every_row() {
    let row = proto::QueueInfo {
        name: "orders.dlq".to_owned(),
        depth: 1,
        in_flight: 2,
        active_consumers: 3,
        leader_node_id: 4,
        paused: true,
        dead_letter_of: "orders".to_owned(),
        delayed: 5,
        ..Default::default()
    };
    let answer =
        proto::ListQueuesResponse { queues: vec![row.clone(), row], cluster_node_count: 3 };
    let (_, queues): (proto::ListQueuesRequest, _) =
        exchange("ListQueues", answer, |client| async move { client.list_queues().await }).await;
    let expected = fila::QueueInfo {
        name: "orders.dlq".to_owned(),
        depth: 1,
        in_flight: 2,
        active_consumers: 3,
        leader_node_id: 4,
        paused: true,
        dead_letter_of: "orders".to_owned(),
        delayed: 5,
    };
    assert_eq!(queues, [expected.clone(), expected]);
}

fn failures() -> Vec<proto::Failure> {
    let first = proto::Failure {
        failed_at: at(5),
        cause: proto::FailureCause::MaxAttempts.into(),
        error: "boom".to_owned(),
    };
    vec![first, proto::Failure { cause: 99, ..Default::default() }]
}

fn read_failures() -> Vec<fila::Failure> {
    let first = fila::Failure {
        failed_at: Some(UNIX_EPOCH + Duration::from_secs(5)),
        cause: Some(FailureCause::MaxAttempts),
        error: "boom".to_owned(),
    };
    vec![first, fila::Failure { failed_at: None, cause: None, error: String::new() }]
}

fn all_stats() -> proto::GetStatsResponse {
    let key = proto::PerFairnessKeyStats {
        key: "acme".to_owned(),
        pending_count: 1,
        current_deficit: -2,
        weight: 3,
        delivered: 4,
        throttled: 5,
        paused: true,
        round_position: None,
        ..Default::default()
    };
    let turn = proto::PerFairnessKeyStats { round_position: Some(0), ..key.clone() };
    proto::GetStatsResponse {
        depth: 1,
        in_flight: 2,
        active_fairness_keys: 3,
        active_consumers: 4,
        quantum: 5,
        per_key_stats: vec![key, turn],
        per_throttle_stats: vec![throttle()],
        leader_node_id: 10,
        replication_count: 11,
        delayed: 6,
        paused: true,
        round_key: "acme".to_owned(),
        counters: Some(proto::QueueCounters {
            enqueued: 1,
            delivered: 2,
            acked: 3,
            nacked: 4,
            expired: 5,
            dead_lettered: 6,
            timed_out: 7,
            duplicates: 8,
        }),
        config: Some(all_config()),
        oldest_pending_age_ms: 7,
        dead_letter_of: "parent".to_owned(),
        consumer_credit: 8,
        throttled: 9,
        hooks: Some(proto::HookStats {
            calls: 1,
            failures: 2,
            bypassed: 3,
            circuit_open: true,
            last_error: "boom".to_owned(),
        }),
        ..Default::default()
    }
}

#[tokio::test]
async fn stats_are_read_in_full() {
    let (request, stats): (proto::GetStatsRequest, _) = exchange(
        "GetStats",
        all_stats(),
        |client| async move { client.stats("orders", Some(3)).await },
    )
    .await;
    assert_eq!((request.queue.as_str(), request.max_keys), ("orders", 3));
    assert_eq!((stats.depth, stats.in_flight, stats.active_fairness_keys), (1, 2, 3));
    assert_eq!((stats.active_consumers, stats.quantum, stats.delayed), (4, 5, 6));
    assert_eq!((stats.consumer_credit, stats.throttled, stats.paused), (8, 9, true));
    assert_eq!(stats.oldest_pending_age, Duration::from_millis(7));
    assert_eq!((stats.dead_letter_of.as_str(), stats.round_key.as_str()), ("parent", "acme"));
    assert_eq!((stats.leader_node_id, stats.replication_count), (10, 11));
    let positions: Vec<_> = stats.per_key_stats.iter().map(|key| key.round_position).collect();
    assert_eq!(positions, [None, Some(0)]);
    let key = &stats.per_key_stats[0];
    assert_eq!((key.key.as_str(), key.current_deficit, key.paused), ("acme", -2, true));
    assert_eq!((key.pending_count, key.weight, key.delivered, key.throttled), (1, 3, 4, 5));
    is_read_in_full(&stats.per_throttle_stats[0]);
    let counters = &stats.counters;
    assert_eq!((counters.enqueued, counters.delivered, counters.acked), (1, 2, 3));
    assert_eq!((counters.nacked, counters.expired, counters.dead_lettered), (4, 5, 6));
    assert_eq!((counters.timed_out, counters.duplicates), (7, 8));
    assert_eq!(stats.config.max_messages, 7);
    let hooks = stats.hooks.unwrap();
    assert_eq!((hooks.calls, hooks.failures, hooks.bypassed), (1, 2, 3));
    assert_eq!((hooks.circuit_open, hooks.last_error.as_str()), (true, "boom"));
}

#[tokio::test]
async fn peek_shows_messages_and_where_they_are() {
    let mut failed = message("m-1");
    failed.metadata.as_mut().unwrap().failures = failures();
    let row = proto::PeekedMessage {
        message: Some(failed),
        state: proto::MessageState::Delayed.into(),
        position: 5,
    };
    let newer = proto::PeekedMessage { state: 99, ..row.clone() };
    let messages = vec![row, newer];
    let answer = proto::PeekResponse { messages, next_position: 6, end_position: 9 };
    let (request, page): (proto::PeekRequest, _) = exchange("Peek", answer, |client| async move {
        let options = PeekOptions {
            limit: 2,
            from_position: 3,
            until_position: 4,
            fairness_key: Some("acme".to_owned()),
            state: Some(MessageState::Leased),
            exclude_payload: true,
        };
        client.peek("orders", options).await
    })
    .await;
    let expected = proto::PeekRequest {
        queue: "orders".to_owned(),
        limit: 2,
        from_position: 3,
        until_position: 4,
        fairness_key: "acme".to_owned(),
        state: proto::MessageState::Leased.into(),
        exclude_payload: true,
    };
    assert_eq!(request, expected);
    assert_eq!((page.next_position, page.end_position), (6, 9));
    assert_eq!((page.messages[0].message.id.as_str(), page.messages[0].position), ("m-1", 5));
    assert_eq!(page.messages[0].message.failures, read_failures());
    assert_eq!(page.messages[0].state, Some(MessageState::Delayed));
    assert_eq!(page.messages[1].state, None);
}

#[tokio::test]
async fn redrive_and_purge_count_what_they_did() {
    let (request, redriven): (proto::RedriveRequest, _) =
        exchange("Redrive", proto::RedriveResponse { redriven: 3 }, |client| async move {
            let options = RedriveOptions {
                count: Some(5),
                fairness_key: Some("acme".to_owned()),
                error_contains: Some("boom".to_owned()),
                message_ids: vec!["m-1".to_owned()],
            };
            client.redrive("orders.dlq", options).await
        })
        .await;
    let expected = proto::RedriveRequest {
        dlq_queue: "orders.dlq".to_owned(),
        count: 5,
        fairness_key: "acme".to_owned(),
        error_contains: "boom".to_owned(),
        message_ids: vec!["m-1".to_owned()],
    };
    assert_eq!((request, redriven), (expected, 3));

    let (request, purged): (proto::PurgeRequest, _) =
        exchange("Purge", proto::PurgeResponse { purged: 4 }, |client| async move {
            client.purge("orders", Some("acme")).await
        })
        .await;
    assert_eq!((request.queue.as_str(), request.fairness_key.as_str()), ("orders", "acme"));
    assert_eq!(purged, 4);
}

#[tokio::test]
async fn calls_without_an_answer_name_what_they_are_about() {
    let (request, ()): (proto::PauseRequest, _) =
        exchange("Pause", proto::PauseResponse {}, |client| async move {
            client.pause("orders", Some("acme")).await
        })
        .await;
    assert_eq!((request.queue.as_str(), request.fairness_key.as_str()), ("orders", "acme"));
    let (request, ()): (proto::ResumeRequest, _) =
        exchange("Resume", proto::ResumeResponse {}, |client| async move {
            client.resume("orders", None).await
        })
        .await;
    assert_eq!((request.queue.as_str(), request.fairness_key.as_str()), ("orders", ""));
    let (request, ()): (proto::CancelMessageRequest, _) =
        exchange("CancelMessage", proto::CancelMessageResponse {}, |client| async move {
            client.cancel("orders", "m-1").await
        })
        .await;
    assert_eq!((request.queue.as_str(), request.message_id.as_str()), ("orders", "m-1"));
}

#[tokio::test]
async fn delete_queue_counts_what_went() {
    let answer = proto::DeleteQueueResponse { messages: 3, dead_letters: 2 };
    let gone = DeletedQueue { messages: 3, dead_letters: 2 };
    let (request, deleted): (proto::DeleteQueueRequest, _) = exchange(
        "DeleteQueue",
        answer,
        |client| async move { client.delete_queue("orders").await },
    )
    .await;
    assert_eq!((request.queue.as_str(), request.keep_dead_letters), ("orders", false));
    assert_eq!(deleted, gone);
    let (request, deleted): (proto::DeleteQueueRequest, _) =
        exchange("DeleteQueue", answer, |client| async move {
            client.delete_queue_keeping_dead_letters("orders").await
        })
        .await;
    assert_eq!((request.queue.as_str(), request.keep_dead_letters), ("orders", true));
    assert_eq!(deleted, gone);
}

#[tokio::test]
async fn explain_asks_about_a_key_or_a_message_and_reads_every_reason() {
    let reason = |kind: i32| proto::WaitReason {
        kind,
        detail: "the bucket is empty".to_owned(),
        throttle_key: "mail".to_owned(),
        until: at(1),
        count: 2,
        limit: 3,
    };
    let answer = proto::ExplainResponse {
        summary: "it waits".to_owned(),
        reasons: vec![reason(proto::WaitKind::Throttled.into()), reason(99)],
        estimated_at: at(4),
        fairness_key: "acme".to_owned(),
        pending_count: 5,
        ahead: 6,
        state: proto::MessageState::Pending.into(),
        failures: failures(),
        unset_throttle_keys: vec!["mail".to_owned(), "sms".to_owned()],
    };
    let (request, found): (proto::ExplainRequest, _) =
        exchange("Explain", answer.clone(), |client| async move {
            client.explain("orders", Subject::Message("m-1")).await
        })
        .await;
    assert_eq!((request.fairness_key.as_str(), request.message_id.as_str()), ("", "m-1"));
    assert_eq!((found.summary.as_str(), found.fairness_key.as_str()), ("it waits", "acme"));
    assert_eq!((found.pending_count, found.ahead), (5, 6));
    assert_eq!(found.estimated_at, Some(UNIX_EPOCH + Duration::from_secs(4)));
    assert_eq!(found.state, Some(MessageState::Pending));
    assert_eq!(found.failures, read_failures());
    assert_eq!(found.unset_throttle_keys, ["mail", "sms"]);
    let kinds: Vec<_> = found.reasons.iter().map(|reason| reason.kind).collect();
    assert_eq!(kinds, [Some(WaitKind::Throttled), None]);
    let first = &found.reasons[0];
    assert_eq!((first.throttle_key.as_str(), first.count, first.limit), ("mail", 2, 3));
    assert_eq!(first.detail, "the bucket is empty");
    assert_eq!(first.until, Some(UNIX_EPOCH + Duration::from_secs(1)));

    let (request, _): (proto::ExplainRequest, _) =
        exchange("Explain", answer, |client| async move {
            client.explain("orders", Subject::FairnessKey("acme")).await
        })
        .await;
    assert_eq!((request.fairness_key.as_str(), request.message_id.as_str()), ("acme", ""));
}

#[tokio::test]
async fn configuration_is_set_read_listed_and_deleted() {
    let (request, ()): (proto::SetConfigRequest, _) =
        exchange("SetConfig", proto::SetConfigResponse {}, |client| async move {
            client.set_config("key", "value").await
        })
        .await;
    assert_eq!((request.key.as_str(), request.value.as_str()), ("key", "value"));
    let (request, ()): (proto::SetConfigRequest, _) =
        exchange("SetConfig", proto::SetConfigResponse {}, |client| async move {
            client.set_config_all([("rate", "5"), ("burst", "")]).await
        })
        .await;
    let entry = |key: &str, value: &str| proto::ConfigEntry {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    let entries = vec![entry("rate", "5"), entry("burst", "")];
    assert_eq!(request, proto::SetConfigRequest { entries, ..Default::default() });
    let answer = proto::GetConfigResponse { value: "value".to_owned() };
    let (_, value): (proto::GetConfigRequest, _) =
        exchange("GetConfig", answer, |client| async move { client.get_config("key").await }).await;
    assert_eq!(value, "value");
    let (request, ()): (proto::DeleteConfigRequest, _) =
        exchange("DeleteConfig", proto::DeleteConfigResponse {}, |client| async move {
            client.delete_config("key").await
        })
        .await;
    assert_eq!(request.key, "key");
    let entry = |key: &str| proto::ConfigEntry { key: key.to_owned(), value: "value".to_owned() };
    let entries = vec![entry("b"), entry("a")];
    let answer = proto::ListConfigResponse { entries, total_count: 2 };
    let (request, found): (proto::ListConfigRequest, _) =
        exchange("ListConfig", answer, |client| async move { client.list_config("x").await }).await;
    assert_eq!(request.prefix, "x");
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[tokio::test]
async fn a_call_that_the_broker_does_not_know_is_unimplemented() {
    let broker = Broker::start();
    let client = Client::connect(broker.target()).await.unwrap();
    let error = client.explain("orders", Subject::Message("m")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unimplemented);
}
