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

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    SEVERITY_NOTICE: _ClassVar[Severity]
    SEVERITY_WARNING: _ClassVar[Severity]
    SEVERITY_CRITICAL: _ClassVar[Severity]
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
SEVERITY_UNSPECIFIED: Severity
SEVERITY_NOTICE: Severity
SEVERITY_WARNING: Severity
SEVERITY_CRITICAL: Severity

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
    __slots__ = ("queue_id", "dead_letter_queue")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue_id: str
    dead_letter_queue: str
    def __init__(self, queue_id: _Optional[str] = ..., dead_letter_queue: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("queue", "keep_dead_letters")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    KEEP_DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    keep_dead_letters: bool
    def __init__(self, queue: _Optional[str] = ..., keep_dead_letters: _Optional[bool] = ...) -> None: ...

class DeleteQueueResponse(_message.Message):
    __slots__ = ("messages", "dead_letters")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    messages: int
    dead_letters: int
    def __init__(self, messages: _Optional[int] = ..., dead_letters: _Optional[int] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues", "cluster_node_count")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    cluster_node_count: int
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ..., cluster_node_count: _Optional[int] = ...) -> None: ...

class QueueInfo(_message.Message):
    __slots__ = ("name", "depth", "in_flight", "active_consumers", "leader_node_id", "paused", "dead_letter_of", "delayed", "counters", "oldest_pending_age_ms", "throttled", "dead_letters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    LEADER_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_OF_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PENDING_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    depth: int
    in_flight: int
    active_consumers: int
    leader_node_id: int
    paused: bool
    dead_letter_of: str
    delayed: int
    counters: QueueCounters
    oldest_pending_age_ms: int
    throttled: int
    dead_letters: int
    def __init__(self, name: _Optional[str] = ..., depth: _Optional[int] = ..., in_flight: _Optional[int] = ..., active_consumers: _Optional[int] = ..., leader_node_id: _Optional[int] = ..., paused: _Optional[bool] = ..., dead_letter_of: _Optional[str] = ..., delayed: _Optional[int] = ..., counters: _Optional[_Union[QueueCounters, _Mapping]] = ..., oldest_pending_age_ms: _Optional[int] = ..., throttled: _Optional[int] = ..., dead_letters: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("queue", "max_keys")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_KEYS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    max_keys: int
    def __init__(self, queue: _Optional[str] = ..., max_keys: _Optional[int] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("depth", "in_flight", "active_fairness_keys", "active_consumers", "quantum", "per_key_stats", "per_throttle_stats", "leader_node_id", "replication_count", "counters", "config", "oldest_pending_age_ms", "dead_letter_of", "consumer_credit", "throttled", "hooks", "delayed", "paused", "round_key", "consumers", "waits")
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FAIRNESS_KEYS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    QUANTUM_FIELD_NUMBER: _ClassVar[int]
    PER_KEY_STATS_FIELD_NUMBER: _ClassVar[int]
    PER_THROTTLE_STATS_FIELD_NUMBER: _ClassVar[int]
    LEADER_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PENDING_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_OF_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_CREDIT_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    HOOKS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    ROUND_KEY_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    depth: int
    in_flight: int
    active_fairness_keys: int
    active_consumers: int
    quantum: int
    per_key_stats: _containers.RepeatedCompositeFieldContainer[PerFairnessKeyStats]
    per_throttle_stats: _containers.RepeatedCompositeFieldContainer[PerThrottleKeyStats]
    leader_node_id: int
    replication_count: int
    counters: QueueCounters
    config: QueueConfig
    oldest_pending_age_ms: int
    dead_letter_of: str
    consumer_credit: int
    throttled: int
    hooks: HookStats
    delayed: int
    paused: bool
    round_key: str
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerStats]
    waits: _containers.RepeatedCompositeFieldContainer[WaitStats]
    def __init__(self, depth: _Optional[int] = ..., in_flight: _Optional[int] = ..., active_fairness_keys: _Optional[int] = ..., active_consumers: _Optional[int] = ..., quantum: _Optional[int] = ..., per_key_stats: _Optional[_Iterable[_Union[PerFairnessKeyStats, _Mapping]]] = ..., per_throttle_stats: _Optional[_Iterable[_Union[PerThrottleKeyStats, _Mapping]]] = ..., leader_node_id: _Optional[int] = ..., replication_count: _Optional[int] = ..., counters: _Optional[_Union[QueueCounters, _Mapping]] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ..., oldest_pending_age_ms: _Optional[int] = ..., dead_letter_of: _Optional[str] = ..., consumer_credit: _Optional[int] = ..., throttled: _Optional[int] = ..., hooks: _Optional[_Union[HookStats, _Mapping]] = ..., delayed: _Optional[int] = ..., paused: _Optional[bool] = ..., round_key: _Optional[str] = ..., consumers: _Optional[_Iterable[_Union[ConsumerStats, _Mapping]]] = ..., waits: _Optional[_Iterable[_Union[WaitStats, _Mapping]]] = ...) -> None: ...

class ConsumerStats(_message.Message):
    __slots__ = ("number", "in_flight", "credit", "max_batch", "key_id")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    number: int
    in_flight: int
    credit: int
    max_batch: int
    key_id: str
    def __init__(self, number: _Optional[int] = ..., in_flight: _Optional[int] = ..., credit: _Optional[int] = ..., max_batch: _Optional[int] = ..., key_id: _Optional[str] = ...) -> None: ...

class WaitStats(_message.Message):
    __slots__ = ("cause", "count", "p50_ms", "p95_ms")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P95_MS_FIELD_NUMBER: _ClassVar[int]
    cause: str
    count: int
    p50_ms: int
    p95_ms: int
    def __init__(self, cause: _Optional[str] = ..., count: _Optional[int] = ..., p50_ms: _Optional[int] = ..., p95_ms: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("key", "pending_count", "current_deficit", "weight", "delivered", "throttled", "paused", "round_position", "traffic")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    CURRENT_DEFICIT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    ROUND_POSITION_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    key: str
    pending_count: int
    current_deficit: int
    weight: int
    delivered: int
    throttled: int
    paused: bool
    round_position: int
    traffic: KeyTraffic
    def __init__(self, key: _Optional[str] = ..., pending_count: _Optional[int] = ..., current_deficit: _Optional[int] = ..., weight: _Optional[int] = ..., delivered: _Optional[int] = ..., throttled: _Optional[int] = ..., paused: _Optional[bool] = ..., round_position: _Optional[int] = ..., traffic: _Optional[_Union[KeyTraffic, _Mapping]] = ...) -> None: ...

class KeyTraffic(_message.Message):
    __slots__ = ("enqueued", "delivered", "acked", "nacked", "dead_lettered", "retried", "wait_p50_ms", "wait_p95_ms")
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    NACKED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    WAIT_P50_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_P95_MS_FIELD_NUMBER: _ClassVar[int]
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    dead_lettered: int
    retried: int
    wait_p50_ms: int
    wait_p95_ms: int
    def __init__(self, enqueued: _Optional[int] = ..., delivered: _Optional[int] = ..., acked: _Optional[int] = ..., nacked: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., retried: _Optional[int] = ..., wait_p50_ms: _Optional[int] = ..., wait_p95_ms: _Optional[int] = ...) -> None: ...

class PerThrottleKeyStats(_message.Message):
    __slots__ = ("key", "tokens", "rate_per_second", "burst", "passed", "blocked", "concurrency_limit", "in_flight", "paused_until", "waiting", "passed_per_second", "blocked_per_second", "pattern", "unset", "paused")
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
    PASSED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
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
    passed_per_second: float
    blocked_per_second: float
    pattern: str
    unset: bool
    paused: bool
    def __init__(self, key: _Optional[str] = ..., tokens: _Optional[float] = ..., rate_per_second: _Optional[float] = ..., burst: _Optional[float] = ..., passed: _Optional[int] = ..., blocked: _Optional[int] = ..., concurrency_limit: _Optional[int] = ..., in_flight: _Optional[int] = ..., paused_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., waiting: _Optional[int] = ..., passed_per_second: _Optional[float] = ..., blocked_per_second: _Optional[float] = ..., pattern: _Optional[str] = ..., unset: _Optional[bool] = ..., paused: _Optional[bool] = ...) -> None: ...

class ListThrottlesRequest(_message.Message):
    __slots__ = ("prefix", "unset", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    unset: bool
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., unset: _Optional[bool] = ..., limit: _Optional[int] = ...) -> None: ...

class ListThrottlesResponse(_message.Message):
    __slots__ = ("throttles", "total_count")
    THROTTLES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    throttles: _containers.RepeatedCompositeFieldContainer[PerThrottleKeyStats]
    total_count: int
    def __init__(self, throttles: _Optional[_Iterable[_Union[PerThrottleKeyStats, _Mapping]]] = ..., total_count: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("queue", "fairness_key", "throttle_key", "duration_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_KEY_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    fairness_key: str
    throttle_key: str
    duration_ms: int
    def __init__(self, queue: _Optional[str] = ..., fairness_key: _Optional[str] = ..., throttle_key: _Optional[str] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("queue", "fairness_key", "throttle_key")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_KEY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    fairness_key: str
    throttle_key: str
    def __init__(self, queue: _Optional[str] = ..., fairness_key: _Optional[str] = ..., throttle_key: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("summary", "reasons", "estimated_at", "fairness_key", "pending_count", "ahead", "state", "failures", "unset_throttle_keys")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_AT_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    UNSET_THROTTLE_KEYS_FIELD_NUMBER: _ClassVar[int]
    summary: str
    reasons: _containers.RepeatedCompositeFieldContainer[WaitReason]
    estimated_at: _timestamp_pb2.Timestamp
    fairness_key: str
    pending_count: int
    ahead: int
    state: MessageState
    failures: _containers.RepeatedCompositeFieldContainer[_messages_pb2.Failure]
    unset_throttle_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, summary: _Optional[str] = ..., reasons: _Optional[_Iterable[_Union[WaitReason, _Mapping]]] = ..., estimated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fairness_key: _Optional[str] = ..., pending_count: _Optional[int] = ..., ahead: _Optional[int] = ..., state: _Optional[_Union[MessageState, str]] = ..., failures: _Optional[_Iterable[_Union[_messages_pb2.Failure, _Mapping]]] = ..., unset_throttle_keys: _Optional[_Iterable[str]] = ...) -> None: ...

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
    __slots__ = ("key", "value", "entries")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    entries: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ...) -> None: ...

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

class AclPermission(_message.Message):
    __slots__ = ("kind", "pattern")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    kind: str
    pattern: str
    def __init__(self, kind: _Optional[str] = ..., pattern: _Optional[str] = ...) -> None: ...

class CreateApiKeyRequest(_message.Message):
    __slots__ = ("name", "expires_at_ms", "superadmin", "acl")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SUPERADMIN_FIELD_NUMBER: _ClassVar[int]
    ACL_FIELD_NUMBER: _ClassVar[int]
    name: str
    expires_at_ms: int
    superadmin: bool
    acl: _containers.RepeatedCompositeFieldContainer[AclPermission]
    def __init__(self, name: _Optional[str] = ..., expires_at_ms: _Optional[int] = ..., superadmin: _Optional[bool] = ..., acl: _Optional[_Iterable[_Union[AclPermission, _Mapping]]] = ...) -> None: ...

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
    acl: _containers.RepeatedCompositeFieldContainer[AclPermission]
    def __init__(self, key_id: _Optional[str] = ..., name: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., superadmin: _Optional[bool] = ..., acl: _Optional[_Iterable[_Union[AclPermission, _Mapping]]] = ...) -> None: ...

class SetAclRequest(_message.Message):
    __slots__ = ("key_id", "acl")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    ACL_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    acl: _containers.RepeatedCompositeFieldContainer[AclPermission]
    def __init__(self, key_id: _Optional[str] = ..., acl: _Optional[_Iterable[_Union[AclPermission, _Mapping]]] = ...) -> None: ...

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
    acl: _containers.RepeatedCompositeFieldContainer[AclPermission]
    superadmin: bool
    def __init__(self, acl: _Optional[_Iterable[_Union[AclPermission, _Mapping]]] = ..., superadmin: _Optional[bool] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "started_at", "role", "data_dir", "sync", "disk_total_bytes", "disk_free_bytes", "disk_floor_bytes", "disk_low", "log_bytes", "table_bytes", "buffer_bytes", "compaction_bytes", "memory_bytes", "hot_bytes", "inbox_bytes", "connections", "max_connections", "consumers", "queues", "messages", "dead_letters", "http_addr", "troubles")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FLOOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_LOW_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INBOX_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDR_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    version: str
    started_at: _timestamp_pb2.Timestamp
    role: str
    data_dir: str
    sync: str
    disk_total_bytes: int
    disk_free_bytes: int
    disk_floor_bytes: int
    disk_low: bool
    log_bytes: int
    table_bytes: int
    buffer_bytes: int
    compaction_bytes: int
    memory_bytes: int
    hot_bytes: int
    inbox_bytes: int
    connections: int
    max_connections: int
    consumers: int
    queues: int
    messages: int
    dead_letters: int
    http_addr: str
    troubles: _containers.RepeatedCompositeFieldContainer[Trouble]
    def __init__(self, version: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., role: _Optional[str] = ..., data_dir: _Optional[str] = ..., sync: _Optional[str] = ..., disk_total_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_floor_bytes: _Optional[int] = ..., disk_low: _Optional[bool] = ..., log_bytes: _Optional[int] = ..., table_bytes: _Optional[int] = ..., buffer_bytes: _Optional[int] = ..., compaction_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., hot_bytes: _Optional[int] = ..., inbox_bytes: _Optional[int] = ..., connections: _Optional[int] = ..., max_connections: _Optional[int] = ..., consumers: _Optional[int] = ..., queues: _Optional[int] = ..., messages: _Optional[int] = ..., dead_letters: _Optional[int] = ..., http_addr: _Optional[str] = ..., troubles: _Optional[_Iterable[_Union[Trouble, _Mapping]]] = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("severity", "kind", "queue", "what", "remedy")
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    severity: Severity
    kind: str
    queue: str
    what: str
    remedy: str
    def __init__(self, severity: _Optional[_Union[Severity, str]] = ..., kind: _Optional[str] = ..., queue: _Optional[str] = ..., what: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("directory",)
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    directory: str
    def __init__(self, directory: _Optional[str] = ...) -> None: ...

class BackupResponse(_message.Message):
    __slots__ = ("phase", "done_bytes", "total_bytes", "path", "messages", "copied_bytes")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done_bytes: int
    total_bytes: int
    path: str
    messages: int
    copied_bytes: int
    def __init__(self, phase: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., path: _Optional[str] = ..., messages: _Optional[int] = ..., copied_bytes: _Optional[int] = ...) -> None: ...
