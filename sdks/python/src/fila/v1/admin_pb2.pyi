import datetime

from fila.v1 import messages_pb2 as _messages_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HookErrorPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOOK_ERROR_POLICY_UNSPECIFIED: _ClassVar[HookErrorPolicy]
    HOOK_ERROR_POLICY_DEFAULT: _ClassVar[HookErrorPolicy]
    HOOK_ERROR_POLICY_REJECT: _ClassVar[HookErrorPolicy]

class MessageState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_STATE_UNSPECIFIED: _ClassVar[MessageState]
    MESSAGE_STATE_PENDING: _ClassVar[MessageState]
    MESSAGE_STATE_DELAYED: _ClassVar[MessageState]
    MESSAGE_STATE_LEASED: _ClassVar[MessageState]

class WaitKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_KIND_UNSPECIFIED: _ClassVar[WaitKind]
    WAIT_KIND_THROTTLED: _ClassVar[WaitKind]
    WAIT_KIND_CONCURRENCY: _ClassVar[WaitKind]
    WAIT_KIND_TURN: _ClassVar[WaitKind]
    WAIT_KIND_DELAYED: _ClassVar[WaitKind]
    WAIT_KIND_PAUSED: _ClassVar[WaitKind]
    WAIT_KIND_NO_CREDIT: _ClassVar[WaitKind]
    WAIT_KIND_LEASED: _ClassVar[WaitKind]
    WAIT_KIND_BACKPRESSURE: _ClassVar[WaitKind]
    WAIT_KIND_HOOK_BYPASSED: _ClassVar[WaitKind]

class Permission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PERMISSION_UNSPECIFIED: _ClassVar[Permission]
    PERMISSION_PRODUCE: _ClassVar[Permission]
    PERMISSION_CONSUME: _ClassVar[Permission]
    PERMISSION_ADMIN: _ClassVar[Permission]
HOOK_ERROR_POLICY_UNSPECIFIED: HookErrorPolicy
HOOK_ERROR_POLICY_DEFAULT: HookErrorPolicy
HOOK_ERROR_POLICY_REJECT: HookErrorPolicy
MESSAGE_STATE_UNSPECIFIED: MessageState
MESSAGE_STATE_PENDING: MessageState
MESSAGE_STATE_DELAYED: MessageState
MESSAGE_STATE_LEASED: MessageState
WAIT_KIND_UNSPECIFIED: WaitKind
WAIT_KIND_THROTTLED: WaitKind
WAIT_KIND_CONCURRENCY: WaitKind
WAIT_KIND_TURN: WaitKind
WAIT_KIND_DELAYED: WaitKind
WAIT_KIND_PAUSED: WaitKind
WAIT_KIND_NO_CREDIT: WaitKind
WAIT_KIND_LEASED: WaitKind
WAIT_KIND_BACKPRESSURE: WaitKind
WAIT_KIND_HOOK_BYPASSED: WaitKind
PERMISSION_UNSPECIFIED: Permission
PERMISSION_PRODUCE: Permission
PERMISSION_CONSUME: Permission
PERMISSION_ADMIN: Permission

class QueueConfig(_message.Message):
    __slots__ = ("on_enqueue_script", "on_failure_script", "visibility_timeout_ms", "max_attempts", "retry_delay_ms", "retry_delay_max_ms", "default_ttl_ms", "idempotency_window_ms", "max_messages", "on_hook_error", "hook_timeout_ms", "hook_memory_limit_bytes", "quantum")
    ON_ENQUEUE_SCRIPT_FIELD_NUMBER: _ClassVar[int]
    ON_FAILURE_SCRIPT_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ON_HOOK_ERROR_FIELD_NUMBER: _ClassVar[int]
    HOOK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HOOK_MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUANTUM_FIELD_NUMBER: _ClassVar[int]
    on_enqueue_script: str
    on_failure_script: str
    visibility_timeout_ms: int
    max_attempts: int
    retry_delay_ms: int
    retry_delay_max_ms: int
    default_ttl_ms: int
    idempotency_window_ms: int
    max_messages: int
    on_hook_error: HookErrorPolicy
    hook_timeout_ms: int
    hook_memory_limit_bytes: int
    quantum: int
    def __init__(self, on_enqueue_script: _Optional[str] = ..., on_failure_script: _Optional[str] = ..., visibility_timeout_ms: _Optional[int] = ..., max_attempts: _Optional[int] = ..., retry_delay_ms: _Optional[int] = ..., retry_delay_max_ms: _Optional[int] = ..., default_ttl_ms: _Optional[int] = ..., idempotency_window_ms: _Optional[int] = ..., max_messages: _Optional[int] = ..., on_hook_error: _Optional[_Union[HookErrorPolicy, str]] = ..., hook_timeout_ms: _Optional[int] = ..., hook_memory_limit_bytes: _Optional[int] = ..., quantum: _Optional[int] = ...) -> None: ...

class CreateQueueRequest(_message.Message):
    __slots__ = ("name", "config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: QueueConfig
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ...) -> None: ...

class CreateQueueResponse(_message.Message):
    __slots__ = ("dead_letter_queue",)
    DEAD_LETTER_QUEUE_FIELD_NUMBER: _ClassVar[int]
    dead_letter_queue: str
    def __init__(self, dead_letter_queue: _Optional[str] = ...) -> None: ...

class UpdateQueueRequest(_message.Message):
    __slots__ = ("queue", "config", "update_mask")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    queue: str
    config: QueueConfig
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, queue: _Optional[str] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateQueueResponse(_message.Message):
    __slots__ = ("config",)
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    config: QueueConfig
    def __init__(self, config: _Optional[_Union[QueueConfig, _Mapping]] = ...) -> None: ...

class DeleteQueueRequest(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class DeleteQueueResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ...) -> None: ...

class QueueInfo(_message.Message):
    __slots__ = ("name", "depth", "in_flight", "active_consumers", "delayed", "paused", "dead_letter_of")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_OF_FIELD_NUMBER: _ClassVar[int]
    name: str
    depth: int
    in_flight: int
    active_consumers: int
    delayed: int
    paused: bool
    dead_letter_of: str
    def __init__(self, name: _Optional[str] = ..., depth: _Optional[int] = ..., in_flight: _Optional[int] = ..., active_consumers: _Optional[int] = ..., delayed: _Optional[int] = ..., paused: _Optional[bool] = ..., dead_letter_of: _Optional[str] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("queue", "max_keys")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_KEYS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    max_keys: int
    def __init__(self, queue: _Optional[str] = ..., max_keys: _Optional[int] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("depth", "in_flight", "active_fairness_keys", "active_consumers", "quantum", "per_key_stats", "per_throttle_stats", "delayed", "paused", "counters", "config", "oldest_pending_age_ms", "dead_letter_of", "consumer_credit", "throttled", "hooks")
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FAIRNESS_KEYS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    QUANTUM_FIELD_NUMBER: _ClassVar[int]
    PER_KEY_STATS_FIELD_NUMBER: _ClassVar[int]
    PER_THROTTLE_STATS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PENDING_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_OF_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_CREDIT_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    HOOKS_FIELD_NUMBER: _ClassVar[int]
    depth: int
    in_flight: int
    active_fairness_keys: int
    active_consumers: int
    quantum: int
    per_key_stats: _containers.RepeatedCompositeFieldContainer[PerFairnessKeyStats]
    per_throttle_stats: _containers.RepeatedCompositeFieldContainer[PerThrottleKeyStats]
    delayed: int
    paused: bool
    counters: QueueCounters
    config: QueueConfig
    oldest_pending_age_ms: int
    dead_letter_of: str
    consumer_credit: int
    throttled: int
    hooks: HookStats
    def __init__(self, depth: _Optional[int] = ..., in_flight: _Optional[int] = ..., active_fairness_keys: _Optional[int] = ..., active_consumers: _Optional[int] = ..., quantum: _Optional[int] = ..., per_key_stats: _Optional[_Iterable[_Union[PerFairnessKeyStats, _Mapping]]] = ..., per_throttle_stats: _Optional[_Iterable[_Union[PerThrottleKeyStats, _Mapping]]] = ..., delayed: _Optional[int] = ..., paused: _Optional[bool] = ..., counters: _Optional[_Union[QueueCounters, _Mapping]] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ..., oldest_pending_age_ms: _Optional[int] = ..., dead_letter_of: _Optional[str] = ..., consumer_credit: _Optional[int] = ..., throttled: _Optional[int] = ..., hooks: _Optional[_Union[HookStats, _Mapping]] = ...) -> None: ...

class QueueCounters(_message.Message):
    __slots__ = ("enqueued", "delivered", "acked", "nacked", "expired", "dead_lettered", "timed_out", "duplicates")
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    NACKED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    timed_out: int
    duplicates: int
    def __init__(self, enqueued: _Optional[int] = ..., delivered: _Optional[int] = ..., acked: _Optional[int] = ..., nacked: _Optional[int] = ..., expired: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., timed_out: _Optional[int] = ..., duplicates: _Optional[int] = ...) -> None: ...

class HookStats(_message.Message):
    __slots__ = ("calls", "failures", "bypassed", "circuit_open", "last_error")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    BYPASSED_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_OPEN_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    calls: int
    failures: int
    bypassed: int
    circuit_open: bool
    last_error: str
    def __init__(self, calls: _Optional[int] = ..., failures: _Optional[int] = ..., bypassed: _Optional[int] = ..., circuit_open: _Optional[bool] = ..., last_error: _Optional[str] = ...) -> None: ...

class PerFairnessKeyStats(_message.Message):
    __slots__ = ("key", "pending_count", "current_deficit", "weight", "delivered", "throttled", "paused")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    CURRENT_DEFICIT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    key: str
    pending_count: int
    current_deficit: int
    weight: int
    delivered: int
    throttled: int
    paused: bool
    def __init__(self, key: _Optional[str] = ..., pending_count: _Optional[int] = ..., current_deficit: _Optional[int] = ..., weight: _Optional[int] = ..., delivered: _Optional[int] = ..., throttled: _Optional[int] = ..., paused: _Optional[bool] = ...) -> None: ...

class PerThrottleKeyStats(_message.Message):
    __slots__ = ("key", "tokens", "rate_per_second", "burst", "passed", "blocked", "concurrency_limit", "in_flight", "paused_until", "waiting")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    key: str
    tokens: float
    rate_per_second: float
    burst: float
    passed: int
    blocked: int
    concurrency_limit: int
    in_flight: int
    paused_until: _timestamp_pb2.Timestamp
    waiting: int
    def __init__(self, key: _Optional[str] = ..., tokens: _Optional[float] = ..., rate_per_second: _Optional[float] = ..., burst: _Optional[float] = ..., passed: _Optional[int] = ..., blocked: _Optional[int] = ..., concurrency_limit: _Optional[int] = ..., in_flight: _Optional[int] = ..., paused_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., waiting: _Optional[int] = ...) -> None: ...

class RedriveRequest(_message.Message):
    __slots__ = ("dlq_queue", "count", "fairness_key", "error_contains", "message_ids")
    DLQ_QUEUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    ERROR_CONTAINS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    dlq_queue: str
    count: int
    fairness_key: str
    error_contains: str
    message_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, dlq_queue: _Optional[str] = ..., count: _Optional[int] = ..., fairness_key: _Optional[str] = ..., error_contains: _Optional[str] = ..., message_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RedriveResponse(_message.Message):
    __slots__ = ("redriven",)
    REDRIVEN_FIELD_NUMBER: _ClassVar[int]
    redriven: int
    def __init__(self, redriven: _Optional[int] = ...) -> None: ...

class PeekRequest(_message.Message):
    __slots__ = ("queue", "limit", "from_position", "until_position", "fairness_key", "state", "exclude_payload")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
    UNTIL_POSITION_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    queue: str
    limit: int
    from_position: int
    until_position: int
    fairness_key: str
    state: MessageState
    exclude_payload: bool
    def __init__(self, queue: _Optional[str] = ..., limit: _Optional[int] = ..., from_position: _Optional[int] = ..., until_position: _Optional[int] = ..., fairness_key: _Optional[str] = ..., state: _Optional[_Union[MessageState, str]] = ..., exclude_payload: _Optional[bool] = ...) -> None: ...

class PeekResponse(_message.Message):
    __slots__ = ("messages", "next_position", "end_position")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    END_POSITION_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PeekedMessage]
    next_position: int
    end_position: int
    def __init__(self, messages: _Optional[_Iterable[_Union[PeekedMessage, _Mapping]]] = ..., next_position: _Optional[int] = ..., end_position: _Optional[int] = ...) -> None: ...

class PeekedMessage(_message.Message):
    __slots__ = ("message", "state", "position")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    message: _messages_pb2.Message
    state: MessageState
    position: int
    def __init__(self, message: _Optional[_Union[_messages_pb2.Message, _Mapping]] = ..., state: _Optional[_Union[MessageState, str]] = ..., position: _Optional[int] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("queue", "fairness_key")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    fairness_key: str
    def __init__(self, queue: _Optional[str] = ..., fairness_key: _Optional[str] = ...) -> None: ...

class PurgeResponse(_message.Message):
    __slots__ = ("purged",)
    PURGED_FIELD_NUMBER: _ClassVar[int]
    purged: int
    def __init__(self, purged: _Optional[int] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("queue", "fairness_key")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    fairness_key: str
    def __init__(self, queue: _Optional[str] = ..., fairness_key: _Optional[str] = ...) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("queue", "fairness_key")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    fairness_key: str
    def __init__(self, queue: _Optional[str] = ..., fairness_key: _Optional[str] = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("queue", "fairness_key", "message_id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    fairness_key: str
    message_id: str
    def __init__(self, queue: _Optional[str] = ..., fairness_key: _Optional[str] = ..., message_id: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("summary", "reasons", "estimated_at", "fairness_key", "pending_count", "ahead", "state")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_AT_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    summary: str
    reasons: _containers.RepeatedCompositeFieldContainer[WaitReason]
    estimated_at: _timestamp_pb2.Timestamp
    fairness_key: str
    pending_count: int
    ahead: int
    state: MessageState
    def __init__(self, summary: _Optional[str] = ..., reasons: _Optional[_Iterable[_Union[WaitReason, _Mapping]]] = ..., estimated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fairness_key: _Optional[str] = ..., pending_count: _Optional[int] = ..., ahead: _Optional[int] = ..., state: _Optional[_Union[MessageState, str]] = ...) -> None: ...

class WaitReason(_message.Message):
    __slots__ = ("kind", "detail", "throttle_key", "until", "count", "limit")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_KEY_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    kind: WaitKind
    detail: str
    throttle_key: str
    until: _timestamp_pb2.Timestamp
    count: int
    limit: int
    def __init__(self, kind: _Optional[_Union[WaitKind, str]] = ..., detail: _Optional[str] = ..., throttle_key: _Optional[str] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., count: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class CancelMessageRequest(_message.Message):
    __slots__ = ("queue", "message_id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    message_id: str
    def __init__(self, queue: _Optional[str] = ..., message_id: _Optional[str] = ...) -> None: ...

class CancelMessageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetConfigRequest(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class SetConfigResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: str
    def __init__(self, value: _Optional[str] = ...) -> None: ...

class DeleteConfigRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class DeleteConfigResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListConfigRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ListConfigResponse(_message.Message):
    __slots__ = ("entries", "total_count")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    total_count: int
    def __init__(self, entries: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ..., total_count: _Optional[int] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class AclEntry(_message.Message):
    __slots__ = ("permission", "pattern")
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    permission: Permission
    pattern: str
    def __init__(self, permission: _Optional[_Union[Permission, str]] = ..., pattern: _Optional[str] = ...) -> None: ...

class CreateApiKeyRequest(_message.Message):
    __slots__ = ("name", "expires_at", "superadmin", "acl")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    SUPERADMIN_FIELD_NUMBER: _ClassVar[int]
    ACL_FIELD_NUMBER: _ClassVar[int]
    name: str
    expires_at: _timestamp_pb2.Timestamp
    superadmin: bool
    acl: _containers.RepeatedCompositeFieldContainer[AclEntry]
    def __init__(self, name: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., superadmin: _Optional[bool] = ..., acl: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ...) -> None: ...

class CreateApiKeyResponse(_message.Message):
    __slots__ = ("key_id", "secret")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    secret: str
    def __init__(self, key_id: _Optional[str] = ..., secret: _Optional[str] = ...) -> None: ...

class RevokeApiKeyRequest(_message.Message):
    __slots__ = ("key_id",)
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    def __init__(self, key_id: _Optional[str] = ...) -> None: ...

class RevokeApiKeyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListApiKeysRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListApiKeysResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ApiKeyInfo]
    def __init__(self, keys: _Optional[_Iterable[_Union[ApiKeyInfo, _Mapping]]] = ...) -> None: ...

class ApiKeyInfo(_message.Message):
    __slots__ = ("key_id", "name", "created_at", "expires_at", "superadmin", "acl")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    SUPERADMIN_FIELD_NUMBER: _ClassVar[int]
    ACL_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    name: str
    created_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    superadmin: bool
    acl: _containers.RepeatedCompositeFieldContainer[AclEntry]
    def __init__(self, key_id: _Optional[str] = ..., name: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., superadmin: _Optional[bool] = ..., acl: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ...) -> None: ...

class SetAclRequest(_message.Message):
    __slots__ = ("key_id", "acl")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    ACL_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    acl: _containers.RepeatedCompositeFieldContainer[AclEntry]
    def __init__(self, key_id: _Optional[str] = ..., acl: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ...) -> None: ...

class SetAclResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetAclRequest(_message.Message):
    __slots__ = ("key_id",)
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    def __init__(self, key_id: _Optional[str] = ...) -> None: ...

class GetAclResponse(_message.Message):
    __slots__ = ("acl", "superadmin")
    ACL_FIELD_NUMBER: _ClassVar[int]
    SUPERADMIN_FIELD_NUMBER: _ClassVar[int]
    acl: _containers.RepeatedCompositeFieldContainer[AclEntry]
    superadmin: bool
    def __init__(self, acl: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ..., superadmin: _Optional[bool] = ...) -> None: ...
