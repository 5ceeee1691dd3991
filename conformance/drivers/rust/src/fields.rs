// SPDX-License-Identifier: AGPL-3.0-only
//! The protocol's values as Rust's and back: bytes are base64, times and durations milliseconds. A
//! field that is absent or null is `None`, and the SDK's default stays in place.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fila::{
    AclEntry, EnqueueMessage, Error, FailureCause, Message, MessageState, PeekedMessage,
    Permission, QueueConfig, QueueSettings, ThrottleKeyStats, WaitKind,
};
use serde_json::{Value, json};

use crate::operations::Failure;

pub fn text<'a>(given: &'a Value, name: &str) -> Option<&'a str> {
    given[name].as_str()
}

/// A field that the protocol requires.
pub fn required<'a>(given: &'a Value, name: &str) -> Result<&'a str, Failure> {
    text(given, name).ok_or_else(|| Failure::Crashed(format!("{name} is missing")))
}

pub fn owned(given: &Value, name: &str) -> Option<String> {
    text(given, name).map(str::to_owned)
}

pub fn number(given: &Value, name: &str) -> Option<u64> {
    given[name].as_u64()
}

/// A number of 32 bits; one that does not fit becomes the largest, which the broker judges.
pub fn short(given: &Value, name: &str) -> Option<u32> {
    number(given, name).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// A duration in milliseconds, or in parts of one.
pub fn ms(given: &Value, name: &str) -> Option<Duration> {
    let exact = number(given, name).map(Duration::from_millis);
    exact.or_else(|| Duration::try_from_secs_f64(given[name].as_f64()? / 1_000.0).ok())
}

pub fn bytes(given: &Value, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    let decoded = text(given, name).map(|text| STANDARD.decode(text)).transpose();
    decoded.map_err(|error| Failure::Crashed(format!("{name} is not base64: {error}")))
}

pub fn list<'a>(given: &'a Value, name: &str) -> &'a [Value] {
    given[name].as_array().map_or(&[], Vec::as_slice)
}

/// The fields of `enqueue` from `queue` to `idempotency_key`.
pub fn enqueue_message(given: &Value) -> Result<EnqueueMessage, Failure> {
    let mut message = EnqueueMessage::new(required(given, "queue")?, "");
    if let Some(headers) = given["headers"].as_object() {
        let pairs = headers.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?)));
        message.headers =
            pairs.map(|(key, value)| (key, value.to_owned())).collect::<HashMap<_, _>>();
    }
    if let Some(payload) = bytes(given, "payload")? {
        message.payload = payload.into();
    }
    let keys = list(given, "throttle_keys").iter().filter_map(Value::as_str);
    message.throttle_keys = keys.map(str::to_owned).collect();
    message.fairness_key = owned(given, "fairness_key");
    message.weight = short(given, "weight");
    message.throttle_cost = short(given, "throttle_cost");
    message.delay = ms(given, "delay_ms");
    message.deliver_at = ms(given, "deliver_at_ms").map(|since| UNIX_EPOCH + since);
    message.ttl = ms(given, "ttl_ms");
    message.idempotency_key = owned(given, "idempotency_key");
    Ok(message)
}

pub fn queue_settings(given: &Value) -> QueueSettings {
    QueueSettings {
        on_enqueue_script: owned(given, "on_enqueue_script"),
        on_failure_script: owned(given, "on_failure_script"),
        visibility_timeout: ms(given, "visibility_timeout_ms"),
        max_attempts: short(given, "max_attempts"),
        retry_delay: ms(given, "retry_delay_ms"),
        max_messages: number(given, "max_messages"),
        default_ttl: ms(given, "default_ttl_ms"),
        idempotency_window: ms(given, "idempotency_window_ms"),
        ..QueueSettings::default()
    }
}

/// Settings as they are, those that the protocol shows.
pub fn queue_config(config: &QueueConfig) -> Value {
    json!({
        "visibility_timeout_ms": whole_ms(config.visibility_timeout),
        "max_attempts": config.max_attempts,
        "retry_delay_ms": whole_ms(config.retry_delay),
        "max_messages": config.max_messages,
        "default_ttl_ms": whole_ms(config.default_ttl),
        "idempotency_window_ms": whole_ms(config.idempotency_window),
    })
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub fn peeked(row: &PeekedMessage) -> Value {
    json!({
        "id": row.message.id,
        "payload": STANDARD.encode(&row.message.payload),
        "fairness_key": row.message.fairness_key,
        "state": row.state.and_then(state_name),
        "position": row.position,
    })
}

pub fn state(name: &str) -> Result<MessageState, Failure> {
    let states = [MessageState::Pending, MessageState::Delayed, MessageState::Leased];
    let named = states.into_iter().find(|state| state_name(*state) == Some(name));
    named.ok_or_else(|| Failure::Crashed(format!("{name} is no state")))
}

pub fn state_name(state: MessageState) -> Option<&'static str> {
    match state {
        MessageState::Pending => Some("pending"),
        MessageState::Delayed => Some("delayed"),
        MessageState::Leased => Some("leased"),
        _ => None,
    }
}

pub fn wait_kind(kind: WaitKind) -> Option<&'static str> {
    match kind {
        WaitKind::Throttled => Some("throttled"),
        WaitKind::Concurrency => Some("concurrency"),
        WaitKind::Turn => Some("turn"),
        WaitKind::Delayed => Some("delayed"),
        WaitKind::Paused => Some("paused"),
        WaitKind::NoCredit => Some("no_credit"),
        WaitKind::Leased => Some("leased"),
        WaitKind::Backpressure => Some("backpressure"),
        WaitKind::HookBypassed => Some("hook_bypassed"),
        _ => None,
    }
}

pub fn message(message: &Message) -> Value {
    json!({
        "id": message.id,
        "queue": message.queue,
        "headers": message.headers,
        "payload": STANDARD.encode(&message.payload),
        "fairness_key": message.fairness_key,
        "weight": message.weight,
        "throttle_keys": message.throttle_keys,
        "attempt_count": message.attempt_count,
        "lease_token": message.lease_token,
        "last_error": message.last_error,
        "failures": message.failures.iter().map(failure).collect::<Vec<_>>(),
        "enqueued_at_ms": message.enqueued_at.map(epoch_ms),
        "lease_expires_at_ms": message.lease_expires_at.map(epoch_ms),
    })
}

fn failure(failure: &fila::Failure) -> Value {
    let cause = failure.cause.and_then(|cause| match cause {
        FailureCause::Nack => Some("nack"),
        FailureCause::Expired => Some("expired"),
        FailureCause::MaxAttempts => Some("max_attempts"),
        FailureCause::Hook => Some("hook"),
        _ => None,
    });
    json!({
        "failed_at_ms": failure.failed_at.map(epoch_ms),
        "cause": cause,
        "error": failure.error,
    })
}

pub fn throttle(row: &ThrottleKeyStats) -> Value {
    json!({
        "key": row.key,
        "rate_per_second": row.rate_per_second,
        "burst": row.burst,
        "concurrency_limit": row.concurrency_limit,
        "in_flight": row.in_flight,
        "waiting": row.waiting,
        "pattern": row.pattern,
        "unset": row.unset,
        "paused": row.paused,
    })
}

pub fn acl_entry(given: &Value) -> Result<AclEntry, Failure> {
    let permission = match required(given, "permission")? {
        "produce" => Permission::Produce,
        "consume" => Permission::Consume,
        "admin" => Permission::Admin,
        other => return Err(Failure::Crashed(format!("{other} is no permission"))),
    };
    Ok(AclEntry::new(permission, required(given, "pattern")?))
}

pub fn shown_acl(acl: &[AclEntry]) -> Value {
    let entry = |entry: &AclEntry| {
        let permission = match &entry.permission {
            Permission::Produce => "produce",
            Permission::Consume => "consume",
            Permission::Admin => "admin",
            Permission::Other(kind) => kind,
            _ => "",
        };
        json!({"permission": permission, "pattern": entry.pattern})
    };
    acl.iter().map(entry).collect()
}

pub fn error(error: &Error) -> Value {
    json!({
        "kind": error.kind().as_str(),
        "message": error.to_string(),
        "retryable": error.is_retryable(),
        "code": error.code(),
        "reason": error.reason(),
        "queue": error.queue(),
        "message_id": error.message_id(),
    })
}

pub fn epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
