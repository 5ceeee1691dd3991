// SPDX-License-Identifier: AGPL-3.0-only
//! Operating a broker: queues, dead letters, inspection and runtime configuration. The values that
//! these calls return are in `stats`, throttle keys in `throttle`, API keys in `access`.

use std::collections::BTreeMap;
use std::time::Duration;

use prost_types::FieldMask;

use crate::client::Client;
use crate::connection::Admin;
use crate::error::{ErrorKind, Result};
use crate::message::as_ms;
use crate::proto;
use crate::stats::{
    DeletedQueue, Explanation, HookErrorPolicy, MessageState, PeekPage, QueueConfig, QueueInfo,
    QueueStats,
};

// How the broker names the queue that it creates for a queue's dead letters.
const DEAD_LETTER_SUFFIX: &str = ".dlq";

/// The settings that [`Client::create_queue`] and [`Client::update_queue`] take. `None` leaves a
/// setting as it is; zero and an empty text mean the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// Lua source that defines `on_enqueue(msg)`.
    pub on_enqueue_script: Option<String>,
    /// Lua source that defines `on_failure(msg, error, attempts)`.
    pub on_failure_script: Option<String>,
    /// How long a lease lasts.
    pub visibility_timeout: Option<Duration>,
    /// Failed or expired deliveries after which a message is dead-lettered; 0 means no limit.
    pub max_attempts: Option<u32>,
    /// Wait before the first retry when no hook decides; doubles with each further attempt.
    pub retry_delay: Option<Duration>,
    /// The longest wait that doubling reaches.
    pub retry_delay_max: Option<Duration>,
    /// The time to live of messages without one of their own.
    pub default_ttl: Option<Duration>,
    /// How long idempotency keys are remembered.
    pub idempotency_window: Option<Duration>,
    /// Enqueues are refused while the queue holds this many messages; 0 means no limit.
    pub max_messages: Option<u64>,
    /// What happens when `on_enqueue` fails.
    pub on_hook_error: Option<HookErrorPolicy>,
    /// The longest a hook call may run.
    pub hook_timeout: Option<Duration>,
    /// The most memory a hook may hold.
    pub hook_memory_limit_bytes: Option<u64>,
    /// Messages per unit of weight and turn.
    pub quantum: Option<u32>,
}

impl QueueSettings {
    /// The fields that are set, by the contract's names.
    fn names(&self) -> Vec<String> {
        let fields = [
            ("on_enqueue_script", self.on_enqueue_script.is_some()),
            ("on_failure_script", self.on_failure_script.is_some()),
            ("visibility_timeout_ms", self.visibility_timeout.is_some()),
            ("max_attempts", self.max_attempts.is_some()),
            ("retry_delay_ms", self.retry_delay.is_some()),
            ("retry_delay_max_ms", self.retry_delay_max.is_some()),
            ("default_ttl_ms", self.default_ttl.is_some()),
            ("idempotency_window_ms", self.idempotency_window.is_some()),
            ("max_messages", self.max_messages.is_some()),
            ("on_hook_error", self.on_hook_error.is_some()),
            ("hook_timeout_ms", self.hook_timeout.is_some()),
            ("hook_memory_limit_bytes", self.hook_memory_limit_bytes.is_some()),
            ("quantum", self.quantum.is_some()),
        ];
        fields.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.to_owned()).collect()
    }
}

impl QueueConfig {
    /// What people read of each setting, by the contract's names. Scripts are quoted.
    fn values(&self) -> [(&'static str, String); 13] {
        let ms = |duration: Duration| duration.as_millis().to_string();
        [
            ("on_enqueue_script", format!("{:?}", self.on_enqueue_script)),
            ("on_failure_script", format!("{:?}", self.on_failure_script)),
            ("visibility_timeout_ms", ms(self.visibility_timeout)),
            ("max_attempts", self.max_attempts.to_string()),
            ("retry_delay_ms", ms(self.retry_delay)),
            ("retry_delay_max_ms", ms(self.retry_delay_max)),
            ("default_ttl_ms", ms(self.default_ttl)),
            ("idempotency_window_ms", ms(self.idempotency_window)),
            ("max_messages", self.max_messages.to_string()),
            ("on_hook_error", format!("{:?}", self.on_hook_error).to_lowercase()),
            ("hook_timeout_ms", ms(self.hook_timeout)),
            ("hook_memory_limit_bytes", self.hook_memory_limit_bytes.to_string()),
            ("quantum", self.quantum.to_string()),
        ]
    }
}

impl From<QueueSettings> for proto::QueueConfig {
    fn from(settings: QueueSettings) -> Self {
        let ms = |duration: Option<Duration>| duration.map_or(0, as_ms);
        Self {
            on_enqueue_script: settings.on_enqueue_script.unwrap_or_default(),
            on_failure_script: settings.on_failure_script.unwrap_or_default(),
            visibility_timeout_ms: ms(settings.visibility_timeout),
            max_attempts: settings.max_attempts.unwrap_or_default(),
            retry_delay_ms: ms(settings.retry_delay),
            retry_delay_max_ms: ms(settings.retry_delay_max),
            default_ttl_ms: ms(settings.default_ttl),
            idempotency_window_ms: ms(settings.idempotency_window),
            max_messages: settings.max_messages.unwrap_or_default(),
            on_hook_error: settings.on_hook_error.map_or(0, HookErrorPolicy::number),
            hook_timeout_ms: u32::try_from(ms(settings.hook_timeout)).unwrap_or(u32::MAX),
            hook_memory_limit_bytes: settings.hook_memory_limit_bytes.unwrap_or_default(),
            quantum: settings.quantum.unwrap_or_default(),
        }
    }
}

/// Which messages [`Client::peek`] shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekOptions {
    /// The most messages to return, 10 unless set, at most 1000.
    pub limit: u32,
    /// Only messages at or after this position; 0 starts at the oldest.
    pub from_position: u64,
    /// Only messages before this position; 0 means up to the newest.
    pub until_position: u64,
    /// Only messages of this fairness key.
    pub fairness_key: Option<String>,
    /// Only messages in this state.
    pub state: Option<MessageState>,
    /// Leave payloads out.
    pub exclude_payload: bool,
}

impl Default for PeekOptions {
    fn default() -> Self {
        Self {
            limit: 10,
            from_position: 0,
            until_position: 0,
            fairness_key: None,
            state: None,
            exclude_payload: false,
        }
    }
}

/// Which dead letters [`Client::redrive`] moves; all of them unless narrowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedriveOptions {
    /// The most messages to move.
    pub count: Option<u64>,
    /// Only messages of this fairness key.
    pub fairness_key: Option<String>,
    /// Only messages whose last error contains this text.
    pub error_contains: Option<String>,
    /// Only these messages; empty means any.
    pub message_ids: Vec<String>,
}

/// What [`Client::explain`] is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// The fairness key of this name.
    FairnessKey(&'a str),
    /// The message with this id.
    Message(&'a str),
}

impl Client {
    /// Creates a queue and its dead-letter queue, and returns the latter's name.
    pub async fn create_queue(&self, name: &str, settings: QueueSettings) -> Result<String> {
        let request =
            proto::CreateQueueRequest { name: name.to_owned(), config: Some(settings.into()) };
        let send = |mut admin: Admin, request| async move { admin.create_queue(request).await };
        let response = self.call().queue(name).send(request, send).await?;
        Ok(response.dead_letter_queue)
    }

    /// Creates a queue if there is none of that name, and is content with one that has these
    /// settings; those that are `None` are not compared. Returns its dead-letter queue's name.
    ///
    /// Fails with [`QueueAlreadyExists`](ErrorKind::QueueAlreadyExists), naming both values, when
    /// one differs. It never changes a queue: a program of an older release that starts again must
    /// not undo what an operator did.
    pub async fn ensure_queue(&self, name: &str, settings: QueueSettings) -> Result<String> {
        let found = match self.create_queue(name, settings.clone()).await {
            Err(error) if error.kind() == ErrorKind::QueueAlreadyExists => {
                (error, self.stats(name, Some(1)).await)
            }
            created => return created,
        };
        let (exists, config) = match found {
            // It was deleted meanwhile.
            (_, Err(error)) if error.kind() == ErrorKind::QueueNotFound => {
                return self.create_queue(name, settings).await;
            }
            (exists, stats) => (exists, stats?.config),
        };
        let wanted = QueueConfig::from(proto::QueueConfig::from(settings.clone()));
        let (wanted, config) = (wanted.values(), config.values());
        let differs = |name: &String| {
            let (name, is) = config.iter().find(|(field, _)| field == name)?;
            let (_, wanted) = wanted.iter().find(|(field, _)| field == name)?;
            (is != wanted).then(|| format!("{name} is {is}, not {wanted}"))
        };
        let differences: Vec<_> = settings.names().iter().filter_map(differs).collect();
        if differences.is_empty() {
            return Ok(format!("{name}{DEAD_LETTER_SUFFIX}"));
        }
        let differences = differences.join(", ");
        Err(exists.with_text(format!(
            "queue \"{name}\" exists with other settings: {differences}; update_queue changes them"
        )))
    }

    /// Changes the settings that are set, and returns all of them.
    pub async fn update_queue(&self, queue: &str, settings: QueueSettings) -> Result<QueueConfig> {
        let request = proto::UpdateQueueRequest {
            queue: queue.to_owned(),
            update_mask: Some(FieldMask { paths: settings.names() }),
            config: Some(settings.into()),
        };
        let send = |mut admin: Admin, request| async move { admin.update_queue(request).await };
        let response = self.call().queue(queue).send(request, send).await?;
        Ok(response.config.unwrap_or_default().into())
    }

    /// Removes a queue with everything in it and its dead letters; returns how many went.
    pub async fn delete_queue(&self, queue: &str) -> Result<DeletedQueue> {
        self.delete(queue, false).await
    }

    /// Removes a queue with everything in it, and leaves its dead-letter queue in place; returns
    /// how many went.
    pub async fn delete_queue_keeping_dead_letters(&self, queue: &str) -> Result<DeletedQueue> {
        self.delete(queue, true).await
    }

    async fn delete(&self, queue: &str, keep_dead_letters: bool) -> Result<DeletedQueue> {
        let request = proto::DeleteQueueRequest { queue: queue.to_owned(), keep_dead_letters };
        let send = |mut admin: Admin, request| async move { admin.delete_queue(request).await };
        let response = self.call().queue(queue).send(request, send).await?;
        Ok(DeletedQueue { messages: response.messages, dead_letters: response.dead_letters })
    }

    /// All queues by name.
    pub async fn list_queues(&self) -> Result<Vec<QueueInfo>> {
        let request = proto::ListQueuesRequest {};
        let send = |mut admin: Admin, request| async move { admin.list_queues(request).await };
        let response = self.call().repeatable().send(request, send).await?;
        Ok(response.queues.into_iter().map(QueueInfo::from).collect())
    }

    /// Counts, scheduling state and settings of a queue, with its `max_keys` busiest fairness keys;
    /// `None` lists 100.
    pub async fn stats(&self, queue: &str, max_keys: Option<u32>) -> Result<QueueStats> {
        let request = proto::GetStatsRequest {
            queue: queue.to_owned(),
            max_keys: max_keys.unwrap_or_default(),
        };
        let send = |mut admin: Admin, request| async move { admin.get_stats(request).await };
        let response = self.call().queue(queue).repeatable().send(request, send).await?;
        Ok(response.into())
    }

    /// Shows messages without leasing them, oldest first.
    pub async fn peek(&self, queue: &str, options: PeekOptions) -> Result<PeekPage> {
        let request = proto::PeekRequest {
            queue: queue.to_owned(),
            limit: options.limit,
            from_position: options.from_position,
            until_position: options.until_position,
            fairness_key: options.fairness_key.unwrap_or_default(),
            state: options.state.map_or(0, MessageState::number),
            exclude_payload: options.exclude_payload,
        };
        let send = |mut admin: Admin, request| async move { admin.peek(request).await };
        let response = self.call().queue(queue).repeatable().send(request, send).await?;
        Ok(response.into())
    }

    /// Drops pending and delayed messages, of one fairness key or of all, and returns how many.
    pub async fn purge(&self, queue: &str, fairness_key: Option<&str>) -> Result<u64> {
        let request = proto::PurgeRequest {
            queue: queue.to_owned(),
            fairness_key: fairness_key.unwrap_or_default().to_owned(),
        };
        let send = |mut admin: Admin, request| async move { admin.purge(request).await };
        let response = self.call().queue(queue).send(request, send).await?;
        Ok(response.purged)
    }

    /// Stops deliveries from a queue, or from one fairness key of it; enqueueing goes on.
    pub async fn pause(&self, queue: &str, fairness_key: Option<&str>) -> Result<()> {
        let request = proto::PauseRequest {
            queue: queue.to_owned(),
            fairness_key: fairness_key.unwrap_or_default().to_owned(),
            ..Default::default()
        };
        let send = |mut admin: Admin, request| async move { admin.pause(request).await };
        self.call().queue(queue).send(request, send).await.map(drop)
    }

    /// Starts deliveries again.
    pub async fn resume(&self, queue: &str, fairness_key: Option<&str>) -> Result<()> {
        let request = proto::ResumeRequest {
            queue: queue.to_owned(),
            fairness_key: fairness_key.unwrap_or_default().to_owned(),
            ..Default::default()
        };
        let send = |mut admin: Admin, request| async move { admin.resume(request).await };
        self.call().queue(queue).send(request, send).await.map(drop)
    }

    /// Moves dead letters back to where they came from, oldest first, and returns how many.
    pub async fn redrive(&self, dlq: &str, options: RedriveOptions) -> Result<u64> {
        let request = proto::RedriveRequest {
            dlq_queue: dlq.to_owned(),
            count: options.count.unwrap_or_default(),
            fairness_key: options.fairness_key.unwrap_or_default(),
            error_contains: options.error_contains.unwrap_or_default(),
            message_ids: options.message_ids,
        };
        let send = |mut admin: Admin, request| async move { admin.redrive(request).await };
        let response = self.call().queue(dlq).send(request, send).await?;
        Ok(response.redriven)
    }

    /// Drops one message. Fails with [`MessageLeased`](crate::ErrorKind::MessageLeased) when it is
    /// with a consumer.
    pub async fn cancel(&self, queue: &str, message_id: &str) -> Result<()> {
        let request = proto::CancelMessageRequest {
            queue: queue.to_owned(),
            message_id: message_id.to_owned(),
        };
        let send = |mut admin: Admin, request| async move { admin.cancel_message(request).await };
        let call = self.call().queue(queue).message(Some(message_id));
        call.send(request, send).await.map(drop)
    }

    /// Says why a message or a fairness key waits, and for how long.
    pub async fn explain(&self, queue: &str, subject: Subject<'_>) -> Result<Explanation> {
        let (fairness_key, message_id) = match subject {
            Subject::FairnessKey(key) => (key, None),
            Subject::Message(id) => ("", Some(id)),
        };
        let request = proto::ExplainRequest {
            queue: queue.to_owned(),
            fairness_key: fairness_key.to_owned(),
            message_id: message_id.unwrap_or_default().to_owned(),
        };
        let send = |mut admin: Admin, request| async move { admin.explain(request).await };
        let call = self.call().queue(queue).message(message_id).repeatable();
        Ok(call.send(request, send).await?.into())
    }

    /// Sets one entry, in force at once; limits such as `throttle:<key>:rate` are entries. An empty
    /// value removes the entry.
    pub async fn set_config(&self, key: &str, value: &str) -> Result<()> {
        let request = proto::SetConfigRequest {
            key: key.to_owned(),
            value: value.to_owned(),
            ..Default::default()
        };
        let send = |mut admin: Admin, request| async move { admin.set_config(request).await };
        self.call().repeatable().send(request, send).await.map(drop)
    }

    /// Sets several entries together, all or none; an empty value removes its entry.
    pub async fn set_config_all<K, V>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<()>
    where
        K: Into<String>,
        V: Into<String>,
    {
        let entry =
            |(key, value): (K, V)| proto::ConfigEntry { key: key.into(), value: value.into() };
        let request = proto::SetConfigRequest {
            entries: entries.into_iter().map(entry).collect(),
            ..Default::default()
        };
        let send = |mut admin: Admin, request| async move { admin.set_config(request).await };
        self.call().repeatable().send(request, send).await.map(drop)
    }

    /// Reads one entry. Fails with [`ConfigNotFound`](crate::ErrorKind::ConfigNotFound) if there is
    /// none.
    pub async fn get_config(&self, key: &str) -> Result<String> {
        let request = proto::GetConfigRequest { key: key.to_owned() };
        let send = |mut admin: Admin, request| async move { admin.get_config(request).await };
        let response = self.call().repeatable().send(request, send).await?;
        Ok(response.value)
    }

    /// Removes one entry, and the limit that it set. Sent once: a second time would not find it.
    pub async fn delete_config(&self, key: &str) -> Result<()> {
        let request = proto::DeleteConfigRequest { key: key.to_owned() };
        let send = |mut admin: Admin, request| async move { admin.delete_config(request).await };
        self.call().send(request, send).await.map(drop)
    }

    /// The entries whose keys start with `prefix`.
    pub async fn list_config(&self, prefix: &str) -> Result<BTreeMap<String, String>> {
        let request = proto::ListConfigRequest { prefix: prefix.to_owned() };
        let send = |mut admin: Admin, request| async move { admin.list_config(request).await };
        let response = self.call().repeatable().send(request, send).await?;
        Ok(response.entries.into_iter().map(|entry| (entry.key, entry.value)).collect())
    }
}
