// SPDX-License-Identifier: AGPL-3.0-only
//! What goes in and what comes out: messages to enqueue, their results, messages delivered.
//!
//! This module does no I/O: settling goes through the client that received the message. Nothing
//! here shows a payload or a header in `Debug`, so that none ends up in a log by accident.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use prost_types::Timestamp;

use crate::client::Client;
use crate::error::Result;
use crate::mirrored::mirrored;
use crate::proto;
use crate::tracing::Trace;

/// One message to store. Where the queue has an `on_enqueue` hook, the hook's answer wins over
/// fairness key, weight, throttle keys and throttle cost.
///
/// ```
/// let message = fila::EnqueueMessage::new("orders", "hello")
///     .header("tenant", "acme")
///     .fairness_key("acme");
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct EnqueueMessage {
    /// The queue that takes the message.
    pub queue: String,
    /// Text pairs that travel with the message; hooks can read them.
    pub headers: HashMap<String, String>,
    /// Opaque bytes.
    pub payload: Bytes,
    /// The group whose turn the message waits for; `default` without one.
    pub fairness_key: Option<String>,
    /// The share of the fairness key, 1 to 1000.
    pub weight: Option<u32>,
    /// The limits that a delivery takes from, all or none.
    pub throttle_keys: Vec<String>,
    /// Tokens taken from each throttle key; 1 unless set.
    pub throttle_cost: Option<u32>,
    /// Not delivered before this has passed. Excludes `deliver_at`.
    pub delay: Option<Duration>,
    /// Not delivered before this time. Excludes `delay`.
    pub deliver_at: Option<SystemTime>,
    /// Dropped when not delivered within this time.
    pub ttl: Option<Duration>,
    /// A second enqueue with the same key within the queue's window stores nothing and returns the
    /// first id. With a key an enqueue is sent again while the broker is away.
    pub idempotency_key: Option<String>,
}

impl EnqueueMessage {
    /// A message for `queue`, with no headers and no options. Bytes, vectors, strings and literals
    /// are taken as they are, without a copy.
    #[must_use]
    pub fn new(queue: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { queue: queue.into(), payload: payload.into(), ..Self::default() }
    }

    /// Adds one header.
    #[must_use]
    pub fn header(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(key.into(), value.into());
        self
    }

    /// Sets the fairness key.
    #[must_use]
    pub fn fairness_key(mut self, fairness_key: impl Into<String>) -> Self {
        self.fairness_key = Some(fairness_key.into());
        self
    }

    /// Sets the weight of the fairness key.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// Adds one throttle key.
    #[must_use]
    pub fn throttle_key(mut self, throttle_key: impl Into<String>) -> Self {
        self.throttle_keys.push(throttle_key.into());
        self
    }

    /// Sets the tokens taken from each throttle key.
    #[must_use]
    pub fn throttle_cost(mut self, throttle_cost: u32) -> Self {
        self.throttle_cost = Some(throttle_cost);
        self
    }

    /// Sets how long to wait before the delivery.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Sets when to deliver.
    #[must_use]
    pub fn deliver_at(mut self, deliver_at: SystemTime) -> Self {
        self.deliver_at = Some(deliver_at);
        self
    }

    /// Sets the time to live.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets the idempotency key.
    #[must_use]
    pub fn idempotency_key(mut self, idempotency_key: impl Into<String>) -> Self {
        self.idempotency_key = Some(idempotency_key.into());
        self
    }

    pub(crate) fn into_request(mut self, trace: &Trace) -> proto::EnqueueRequest {
        trace.add_to_headers(&mut self.headers);
        proto::EnqueueRequest {
            queue: self.queue,
            headers: self.headers,
            payload: self.payload,
            fairness_key: self.fairness_key.unwrap_or_default(),
            weight: self.weight.unwrap_or_default(),
            throttle_keys: self.throttle_keys,
            throttle_cost: self.throttle_cost.unwrap_or_default(),
            delay_ms: self.delay.map_or(0, as_ms),
            deliver_at: self.deliver_at.map(Timestamp::from),
            ttl_ms: self.ttl.map_or(0, as_ms),
            idempotency_key: self.idempotency_key.unwrap_or_default(),
        }
    }
}

impl fmt::Debug for EnqueueMessage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("EnqueueMessage")
            .field("queue", &self.queue)
            .field("payload_bytes", &self.payload.len())
            .field("fairness_key", &self.fairness_key)
            .field("throttle_keys", &self.throttle_keys)
            .field("idempotency_key", &self.idempotency_key)
            .finish_non_exhaustive()
    }
}

/// What became of one message that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The id that the broker gave it.
    pub message_id: String,
    /// True when the idempotency key was known: nothing new was stored.
    pub duplicate: bool,
}

mirrored! {
    /// What kind of failure it was.
    FailureCause:
    /// A consumer nacked the delivery.
    Nack,
    /// The delivery's lease ran out.
    Expired,
    /// Dead-lettered: as many attempts as the queue allows.
    MaxAttempts,
    /// Dead-lettered: the `on_failure` hook said so.
    Hook,
}

/// One failure of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When it happened, on the broker's clock.
    pub failed_at: Option<SystemTime>,
    /// What kind of failure it was; none for a kind that only a newer SDK knows.
    pub cause: Option<FailureCause>,
    /// What was said about it, cut to 256 bytes.
    pub error: String,
}

impl From<proto::Failure> for Failure {
    fn from(raw: proto::Failure) -> Self {
        Self {
            failed_at: moment(raw.failed_at),
            cause: FailureCause::of(raw.cause),
            error: raw.error,
        }
    }
}

/// A message as the broker holds it. [`Client::peek`] shows these; they cannot be settled.
#[derive(Clone, Default, PartialEq)]
pub struct Message {
    /// Unique for ever, ordered by time of enqueue.
    pub id: String,
    /// The queue that holds the message.
    pub queue: String,
    /// What the producer attached.
    pub headers: HashMap<String, String>,
    /// Opaque bytes: a part of what it arrived in, which lives for as long as this does.
    pub payload: Bytes,
    /// The group whose turn the message waited for.
    pub fairness_key: String,
    /// The share of the fairness key relative to the others in the queue.
    pub weight: u32,
    /// The limits that the delivery took from.
    pub throttle_keys: Vec<String>,
    /// Failed or expired deliveries so far: 0 on the first one.
    pub attempt_count: u32,
    /// Proof of this delivery; empty on a message that is not leased.
    pub lease_token: String,
    /// What the most recent nack said, or `lease expired`; empty when nothing has failed.
    pub last_error: String,
    /// The last five failures, oldest first; a redrive keeps them.
    pub failures: Vec<Failure>,
    /// When the broker accepted the message, on its clock.
    pub enqueued_at: Option<SystemTime>,
    /// When the lease ends, as of the delivery; none on a message that is not leased.
    pub lease_expires_at: Option<SystemTime>,
}

impl From<proto::Message> for Message {
    fn from(raw: proto::Message) -> Self {
        let metadata = raw.metadata.unwrap_or_default();
        let timestamps = raw.timestamps.unwrap_or_default();
        Self {
            id: raw.id,
            queue: metadata.queue_id,
            headers: raw.headers,
            payload: raw.payload,
            fairness_key: metadata.fairness_key,
            weight: metadata.weight,
            throttle_keys: metadata.throttle_keys,
            attempt_count: metadata.attempt_count,
            lease_token: metadata.lease_token,
            last_error: metadata.last_error,
            failures: metadata.failures.into_iter().map(Failure::from).collect(),
            enqueued_at: moment(timestamps.enqueued_at),
            lease_expires_at: moment(timestamps.lease_expires_at),
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Message")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("fairness_key", &self.fairness_key)
            .field("attempt_count", &self.attempt_count)
            .finish_non_exhaustive()
    }
}

/// A message leased to this client until `lease_expires_at`: ack, nack or extend it.
///
/// It has all fields of a [`Message`]. Clones are cheap and are the same delivery.
#[derive(Clone)]
pub struct ConsumeMessage(Arc<Delivery>);

struct Delivery {
    message: Message,
    client: Client,
    frame_size: u64,
    is_settled: AtomicBool,
}

impl ConsumeMessage {
    pub(crate) fn new(raw: proto::Message, client: Client, frame_size: u64) -> Self {
        let is_settled = AtomicBool::new(false);
        Self(Arc::new(Delivery { message: raw.into(), client, frame_size, is_settled }))
    }

    /// How many messages came together with this one.
    pub(crate) fn frame_size(&self) -> u64 {
        self.0.frame_size
    }

    /// Whether it was acked or nacked here, and that did not fail.
    pub(crate) fn is_settled(&self) -> bool {
        self.0.is_settled.load(Ordering::Relaxed)
    }

    pub(crate) fn settled(&self, outcome: Result<()>) -> Result<()> {
        if outcome.is_ok() {
            self.0.is_settled.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Reports that the message was processed; it is gone. Fails as [`Client::ack`] does.
    pub async fn ack(&self) -> Result<()> {
        let token = Some(self.lease_token.as_str());
        let client = &self.0.client;
        self.settled(client.ack_one(&self.queue, &self.id, token, self.0.frame_size).await)
    }

    /// Reports that processing failed, or with [`Nack::retry_after`] that it has to wait. Fails as
    /// [`Client::ack`] does.
    pub async fn nack(&self, nack: impl Into<Nack>) -> Result<()> {
        let token = Some(self.lease_token.as_str());
        self.settled(self.0.client.nack(&self.queue, &self.id, token, nack).await)
    }

    /// Prolongs the lease to `duration` from now, by default the queue's visibility timeout, and
    /// returns its new end. Fails as [`Client::ack`] does.
    pub async fn extend(&self, duration: Option<Duration>) -> Result<SystemTime> {
        self.0.client.extend(&self.queue, &self.id, Some(&self.lease_token), duration).await
    }

    /// The message without the means to settle it, to move its payload out for example. It is
    /// copied if there are clones of this delivery; a [`Worker`](crate::Worker) has one.
    #[must_use]
    pub fn into_message(self) -> Message {
        match Arc::try_unwrap(self.0) {
            Ok(delivery) => delivery.message,
            Err(shared) => shared.message.clone(),
        }
    }
}

impl Deref for ConsumeMessage {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.0.message
    }
}

impl fmt::Debug for ConsumeMessage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.message.fmt(out)
    }
}

/// Why a delivery failed, or how long it has to wait. A text is one: `message.nack("no luck")`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nack {
    /// What went wrong, for hooks and for people.
    pub error: String,
    /// Backpressure, not failure: the message comes back after this time and no attempt is counted.
    pub retry_after: Option<Duration>,
    /// With `retry_after`: this throttle key lets nothing through, for anybody, until then.
    pub throttle_key: Option<String>,
    /// Trying again would not help: the message becomes a dead letter at once. Excludes
    /// `retry_after`.
    pub dead_letter: bool,
}

impl<T: Into<String>> From<T> for Nack {
    fn from(error: T) -> Self {
        Self { error: error.into(), ..Self::default() }
    }
}

impl Nack {
    /// Borrows, because a request that got no answer is made again.
    pub(crate) fn request(
        &self,
        queue: &str,
        message_id: &str,
        lease_token: Option<&str>,
    ) -> proto::NackRequest {
        proto::NackRequest {
            queue: queue.to_owned(),
            message_id: message_id.to_owned(),
            error: self.error.clone(),
            lease_token: lease_token.unwrap_or_default().to_owned(),
            retry_after_ms: self.retry_after.map(as_ms),
            throttle_key: self.throttle_key.clone().unwrap_or_default(),
            dead_letter: self.dead_letter,
        }
    }
}

/// A span of time in the contract's unit. Rounded up: 0 would mean "the default".
pub(crate) fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A timestamp of the contract; none where it is not set, or beyond what a clock here can show.
pub(crate) fn moment(timestamp: Option<Timestamp>) -> Option<SystemTime> {
    timestamp.and_then(|timestamp| timestamp.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_to_milliseconds() {
        assert_eq!(as_ms(Duration::ZERO), 0);
        assert_eq!(as_ms(Duration::from_nanos(1)), 1);
        assert_eq!(as_ms(Duration::from_millis(1500)), 1500);
        assert_eq!(as_ms(Duration::MAX), u64::MAX);
    }

    #[test]
    fn debug_shows_neither_payload_nor_headers() {
        let message = EnqueueMessage::new("orders", "secret-payload").header("h", "secret-header");
        let shown = format!("{message:?}");
        assert!(shown.contains("orders") && !shown.contains("secret"), "{shown}");
        let message = Message {
            id: "m-1".to_owned(),
            headers: message.headers,
            payload: message.payload,
            ..Message::default()
        };
        let shown = format!("{message:?}");
        assert!(shown.contains("m-1") && !shown.contains("secret"), "{shown}");
    }
}
