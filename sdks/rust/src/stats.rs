// SPDX-License-Identifier: AGPL-3.0-only
//! What a broker shows of itself, as plain values: queues, counters, messages at rest, reasons to
//! wait.
//!
//! Fields have the names of the contract, except that spans of time are `Duration`. No I/O.

use std::time::{Duration, SystemTime};

use crate::message::{Failure, Message, moment};
use crate::mirrored::mirrored;
use crate::proto;
use crate::throttle::ThrottleKeyStats;

mirrored! {
    /// What to do with a message whose `on_enqueue` hook fails.
    HookErrorPolicy:
    /// Let it in under the fairness key `default`, with no throttle keys.
    Default,
    /// Refuse the enqueue.
    Reject,
}

mirrored! {
    /// Where a message is in its life.
    MessageState:
    /// Waiting for its turn.
    Pending,
    /// Waiting for its time.
    Delayed,
    /// Handed to a consumer and not settled.
    Leased,
}

mirrored! {
    /// Why something waits.
    WaitKind:
    /// A token bucket is empty.
    Throttled,
    /// As many messages with a throttle key are leased as its limit allows.
    Concurrency,
    /// Others come first.
    Turn,
    /// The message's time has not come.
    Delayed,
    /// The queue or the key is paused.
    Paused,
    /// Nobody consumes the queue, or every consumer's credit is used up.
    NoCredit,
    /// The message is with a consumer.
    Leased,
    /// A consumer reported backpressure for a throttle key.
    Backpressure,
    /// Not a wait: the hook was bypassed, so the message runs under the default key.
    HookBypassed,
}

impl HookErrorPolicy {
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Default => proto::HookErrorPolicy::Default.into(),
            Self::Reject => proto::HookErrorPolicy::Reject.into(),
        }
    }
}

impl MessageState {
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Pending => proto::MessageState::Pending.into(),
            Self::Delayed => proto::MessageState::Delayed.into(),
            Self::Leased => proto::MessageState::Leased.into(),
        }
    }
}

/// All settings of a queue; zero and an empty text mean the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Lua source that defines `on_enqueue(msg)`.
    pub on_enqueue_script: String,
    /// Lua source that defines `on_failure(msg, error, attempts)`.
    pub on_failure_script: String,
    /// How long a lease lasts.
    pub visibility_timeout: Duration,
    /// Failed or expired deliveries after which a message is dead-lettered; 0 means no limit.
    pub max_attempts: u32,
    /// Wait before the first retry when no hook decides.
    pub retry_delay: Duration,
    /// The longest wait that doubling reaches.
    pub retry_delay_max: Duration,
    /// The time to live of messages without one of their own.
    pub default_ttl: Duration,
    /// How long idempotency keys are remembered.
    pub idempotency_window: Duration,
    /// Enqueues are refused while the queue holds this many messages; 0 means no limit.
    pub max_messages: u64,
    /// What happens when `on_enqueue` fails.
    pub on_hook_error: HookErrorPolicy,
    /// The longest a hook call may run.
    pub hook_timeout: Duration,
    /// The most memory a hook may hold.
    pub hook_memory_limit_bytes: u64,
    /// Messages per unit of weight and turn.
    pub quantum: u32,
}

impl From<proto::QueueConfig> for QueueConfig {
    fn from(raw: proto::QueueConfig) -> Self {
        Self {
            on_enqueue_script: raw.on_enqueue_script,
            on_failure_script: raw.on_failure_script,
            visibility_timeout: Duration::from_millis(raw.visibility_timeout_ms),
            max_attempts: raw.max_attempts,
            retry_delay: Duration::from_millis(raw.retry_delay_ms),
            retry_delay_max: Duration::from_millis(raw.retry_delay_max_ms),
            default_ttl: Duration::from_millis(raw.default_ttl_ms),
            idempotency_window: Duration::from_millis(raw.idempotency_window_ms),
            max_messages: raw.max_messages,
            on_hook_error: HookErrorPolicy::of(raw.on_hook_error)
                .unwrap_or(HookErrorPolicy::Default),
            hook_timeout: Duration::from_millis(raw.hook_timeout_ms.into()),
            hook_memory_limit_bytes: raw.hook_memory_limit_bytes,
            quantum: raw.quantum,
        }
    }
}

/// One row of the list of queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// The queue's name.
    pub name: String,
    /// Messages that wait for a delivery and are not delayed.
    pub depth: u64,
    /// Messages that are leased.
    pub in_flight: u32,
    /// Open consume streams.
    pub active_consumers: u32,
    /// The broker that leads the queue; 0 outside a cluster.
    pub leader_node_id: u64,
    /// True while the whole queue is paused.
    pub paused: bool,
    /// The queue that these dead letters came from; empty for an ordinary queue.
    pub dead_letter_of: String,
    /// Messages that wait for their time.
    pub delayed: u64,
}

impl From<proto::QueueInfo> for QueueInfo {
    fn from(raw: proto::QueueInfo) -> Self {
        Self {
            name: raw.name,
            depth: raw.depth,
            in_flight: raw.in_flight,
            active_consumers: raw.active_consumers,
            leader_node_id: raw.leader_node_id,
            paused: raw.paused,
            dead_letter_of: raw.dead_letter_of,
            delayed: raw.delayed,
        }
    }
}

/// How much went with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletedQueue {
    /// Messages, leased and delayed ones included.
    pub messages: u64,
    /// Dead letters.
    pub dead_letters: u64,
}

/// One fairness key of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairnessKeyStats {
    /// The fairness key.
    pub key: String,
    /// Messages that wait for a delivery and are not delayed.
    pub pending_count: u64,
    /// Deliveries that the key may still make in its turn.
    pub current_deficit: i64,
    /// The key's share relative to the others.
    pub weight: u32,
    /// Deliveries made since the key became active.
    pub delivered: u64,
    /// Messages that a throttle key holds back.
    pub throttled: u64,
    /// True while the key is paused.
    pub paused: bool,
    /// Its place in the round, 0 when it is its turn now; none when it does not take part.
    pub round_position: Option<u32>,
}

impl From<proto::PerFairnessKeyStats> for FairnessKeyStats {
    fn from(raw: proto::PerFairnessKeyStats) -> Self {
        Self {
            key: raw.key,
            pending_count: raw.pending_count,
            current_deficit: raw.current_deficit,
            weight: raw.weight,
            delivered: raw.delivered,
            throttled: raw.throttled,
            paused: raw.paused,
            round_position: raw.round_position,
        }
    }
}

/// What happened in a queue since the broker started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueCounters {
    /// Messages accepted, redriven ones included.
    pub enqueued: u64,
    /// Deliveries made.
    pub delivered: u64,
    /// Messages acked.
    pub acked: u64,
    /// Deliveries nacked.
    pub nacked: u64,
    /// Leases that ran out.
    pub expired: u64,
    /// Messages moved to the dead-letter queue.
    pub dead_lettered: u64,
    /// Messages dropped by their time to live.
    pub timed_out: u64,
    /// Enqueues answered with an earlier message by idempotency key.
    pub duplicates: u64,
}

impl From<proto::QueueCounters> for QueueCounters {
    fn from(raw: proto::QueueCounters) -> Self {
        Self {
            enqueued: raw.enqueued,
            delivered: raw.delivered,
            acked: raw.acked,
            nacked: raw.nacked,
            expired: raw.expired,
            dead_lettered: raw.dead_lettered,
            timed_out: raw.timed_out,
            duplicates: raw.duplicates,
        }
    }
}

/// How a queue's hooks are doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookStats {
    /// Hook calls that gave an answer.
    pub calls: u64,
    /// Hook calls that failed.
    pub failures: u64,
    /// Enqueues that bypassed the hook while its circuit breaker was open.
    pub bypassed: u64,
    /// True while the circuit breaker is open.
    pub circuit_open: bool,
    /// What the most recent failure said.
    pub last_error: String,
}

impl From<proto::HookStats> for HookStats {
    fn from(raw: proto::HookStats) -> Self {
        Self {
            calls: raw.calls,
            failures: raw.failures,
            bypassed: raw.bypassed,
            circuit_open: raw.circuit_open,
            last_error: raw.last_error,
        }
    }
}

/// Counts, scheduling state and settings of one queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueStats {
    /// Messages that wait for a delivery and are not delayed.
    pub depth: u64,
    /// Messages that are leased.
    pub in_flight: u64,
    /// Fairness keys with messages waiting.
    pub active_fairness_keys: u64,
    /// Open consume streams.
    pub active_consumers: u32,
    /// Messages per unit of weight and turn.
    pub quantum: u32,
    /// The busiest fairness keys, most waiting first.
    pub per_key_stats: Vec<FairnessKeyStats>,
    /// The throttle keys that this queue's waiting messages carry, with their buckets.
    pub per_throttle_stats: Vec<ThrottleKeyStats>,
    /// The broker that leads the queue; 0 outside a cluster.
    pub leader_node_id: u64,
    /// Brokers that hold a copy of the queue; 0 outside a cluster.
    pub replication_count: u32,
    /// What happened since the broker started.
    pub counters: QueueCounters,
    /// All settings of the queue.
    pub config: QueueConfig,
    /// How long the message that could be delivered first has been waiting.
    pub oldest_pending_age: Duration,
    /// The queue that these dead letters came from; empty for an ordinary queue.
    pub dead_letter_of: String,
    /// Consume streams' unused credit, added up.
    pub consumer_credit: u64,
    /// Waiting messages that a throttle key holds back.
    pub throttled: u64,
    /// State of the queue's hooks, if it has any.
    pub hooks: Option<HookStats>,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// True while the whole queue is paused.
    pub paused: bool,
    /// The fairness key whose turn it is; empty when none takes part in the round.
    pub round_key: String,
}

impl From<proto::GetStatsResponse> for QueueStats {
    fn from(raw: proto::GetStatsResponse) -> Self {
        Self {
            depth: raw.depth,
            in_flight: raw.in_flight,
            active_fairness_keys: raw.active_fairness_keys,
            active_consumers: raw.active_consumers,
            quantum: raw.quantum,
            per_key_stats: raw.per_key_stats.into_iter().map(Into::into).collect(),
            per_throttle_stats: raw.per_throttle_stats.into_iter().map(Into::into).collect(),
            leader_node_id: raw.leader_node_id,
            replication_count: raw.replication_count,
            counters: raw.counters.unwrap_or_default().into(),
            config: raw.config.unwrap_or_default().into(),
            oldest_pending_age: Duration::from_millis(raw.oldest_pending_age_ms),
            dead_letter_of: raw.dead_letter_of,
            consumer_credit: raw.consumer_credit,
            throttled: raw.throttled,
            hooks: raw.hooks.map(Into::into),
            delayed: raw.delayed,
            paused: raw.paused,
            round_key: raw.round_key,
        }
    }
}

/// One message as it lies in its queue.
#[derive(Clone, Debug, PartialEq)]
pub struct PeekedMessage {
    /// The message; it carries no lease token.
    pub message: Message,
    /// Where it is in its life.
    pub state: Option<MessageState>,
    /// Its place in the order of enqueue.
    pub position: u64,
}

/// Some messages, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct PeekPage {
    /// The messages found.
    pub messages: Vec<PeekedMessage>,
    /// Continue from here; 0 when nothing follows.
    pub next_position: u64,
    /// The position after the newest message: a cutoff for a consistent scan.
    pub end_position: u64,
}

impl From<proto::PeekResponse> for PeekPage {
    fn from(raw: proto::PeekResponse) -> Self {
        let peeked = |row: proto::PeekedMessage| PeekedMessage {
            message: row.message.unwrap_or_default().into(),
            state: MessageState::of(row.state),
            position: row.position,
        };
        Self {
            messages: raw.messages.into_iter().map(peeked).collect(),
            next_position: raw.next_position,
            end_position: raw.end_position,
        }
    }
}

/// One reason to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReason {
    /// What kind of waiting it is; none for a kind that only a newer SDK knows.
    pub kind: Option<WaitKind>,
    /// One clause for people.
    pub detail: String,
    /// The throttle key at fault, where there is one.
    pub throttle_key: String,
    /// When this reason ends; none when that cannot be known.
    pub until: Option<SystemTime>,
    /// Deliveries ahead, or messages leased, by kind.
    pub count: u64,
    /// The limit that is reached, by kind.
    pub limit: u64,
}

/// Why a message or a fairness key waits; the reason that decides comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// One sentence for people.
    pub summary: String,
    /// Every reason that holds now; empty when nothing waits.
    pub reasons: Vec<WaitReason>,
    /// When the next delivery is expected; none when that cannot be known.
    pub estimated_at: Option<SystemTime>,
    /// The fairness key in question.
    pub fairness_key: String,
    /// Messages of the key that wait.
    pub pending_count: u64,
    /// Deliveries expected before the one in question.
    pub ahead: u64,
    /// The message's state; none when a key was asked about.
    pub state: Option<MessageState>,
    /// The message's last five failures, oldest first; empty when a key was asked about.
    pub failures: Vec<Failure>,
    /// The throttle keys it carries that nobody configured.
    pub unset_throttle_keys: Vec<String>,
}

impl From<proto::ExplainResponse> for Explanation {
    fn from(raw: proto::ExplainResponse) -> Self {
        let reason = |row: proto::WaitReason| WaitReason {
            kind: WaitKind::of(row.kind),
            detail: row.detail,
            throttle_key: row.throttle_key,
            until: moment(row.until),
            count: row.count,
            limit: row.limit,
        };
        Self {
            summary: raw.summary,
            reasons: raw.reasons.into_iter().map(reason).collect(),
            estimated_at: moment(raw.estimated_at),
            fairness_key: raw.fairness_key,
            pending_count: raw.pending_count,
            ahead: raw.ahead,
            state: MessageState::of(raw.state),
            failures: raw.failures.into_iter().map(Failure::from).collect(),
            unset_throttle_keys: raw.unset_throttle_keys,
        }
    }
}
