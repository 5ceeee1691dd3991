from fila.v1 import admin_pb2 as _admin_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Head(_message.Message):
    __slots__ = ("fairness_key", "weight", "throttle_keys", "throttle_cost", "deliver_at_ns", "expires_at_ns", "ttl_ms", "enqueued_at_ns")
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_KEYS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_COST_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_NS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_NS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    fairness_key: str
    weight: int
    throttle_keys: _containers.RepeatedScalarFieldContainer[str]
    throttle_cost: int
    deliver_at_ns: int
    expires_at_ns: int
    ttl_ms: int
    enqueued_at_ns: int
    def __init__(self, fairness_key: _Optional[str] = ..., weight: _Optional[int] = ..., throttle_keys: _Optional[_Iterable[str]] = ..., throttle_cost: _Optional[int] = ..., deliver_at_ns: _Optional[int] = ..., expires_at_ns: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., enqueued_at_ns: _Optional[int] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("id", "head")
    ID_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    id: str
    head: Head
    def __init__(self, id: _Optional[str] = ..., head: _Optional[_Union[Head, _Mapping]] = ...) -> None: ...

class Retry(_message.Message):
    __slots__ = ("attempt_count", "order", "deliver_at_ns", "last_error", "failures", "delay_ms", "since")
    ATTEMPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    attempt_count: int
    order: int
    deliver_at_ns: int
    last_error: str
    failures: _containers.RepeatedCompositeFieldContainer[StoredFailure]
    delay_ms: int
    since: int
    def __init__(self, attempt_count: _Optional[int] = ..., order: _Optional[int] = ..., deliver_at_ns: _Optional[int] = ..., last_error: _Optional[str] = ..., failures: _Optional[_Iterable[_Union[StoredFailure, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., since: _Optional[int] = ...) -> None: ...

class StoredFailure(_message.Message):
    __slots__ = ("failed_at_ns", "cause", "error")
    FAILED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    failed_at_ns: int
    cause: int
    error: str
    def __init__(self, failed_at_ns: _Optional[int] = ..., cause: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class StoredBucket(_message.Message):
    __slots__ = ("full_at_ns", "paused_until_ns", "pause_ms", "held", "paused", "rate", "burst")
    FULL_AT_NS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_UNTIL_NS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    full_at_ns: int
    paused_until_ns: int
    pause_ms: int
    held: bool
    paused: bool
    rate: float
    burst: float
    def __init__(self, full_at_ns: _Optional[int] = ..., paused_until_ns: _Optional[int] = ..., pause_ms: _Optional[int] = ..., held: _Optional[bool] = ..., paused: _Optional[bool] = ..., rate: _Optional[float] = ..., burst: _Optional[float] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("token", "expires_at_ns", "duration_ms", "messages")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    token: str
    expires_at_ns: int
    duration_ms: int
    messages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token: _Optional[str] = ..., expires_at_ns: _Optional[int] = ..., duration_ms: _Optional[int] = ..., messages: _Optional[_Iterable[int]] = ...) -> None: ...

class StoredQueue(_message.Message):
    __slots__ = ("number", "name", "config", "paused", "paused_keys", "dead_letter_of")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_KEYS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_OF_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    config: _admin_pb2.QueueConfig
    paused: bool
    paused_keys: _containers.RepeatedScalarFieldContainer[str]
    dead_letter_of: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., config: _Optional[_Union[_admin_pb2.QueueConfig, _Mapping]] = ..., paused: _Optional[bool] = ..., paused_keys: _Optional[_Iterable[str]] = ..., dead_letter_of: _Optional[str] = ...) -> None: ...

class SeenKey(_message.Message):
    __slots__ = ("message_id", "expires_at_ns", "window_ms")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_NS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    expires_at_ns: int
    window_ms: int
    def __init__(self, message_id: _Optional[str] = ..., expires_at_ns: _Optional[int] = ..., window_ms: _Optional[int] = ...) -> None: ...

class StoredApiKey(_message.Message):
    __slots__ = ("name", "salt", "digest", "created_at_ns", "expires_at_ns", "superadmin", "acl")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_NS_FIELD_NUMBER: _ClassVar[int]
    SUPERADMIN_FIELD_NUMBER: _ClassVar[int]
    ACL_FIELD_NUMBER: _ClassVar[int]
    name: str
    salt: bytes
    digest: bytes
    created_at_ns: int
    expires_at_ns: int
    superadmin: bool
    acl: _containers.RepeatedCompositeFieldContainer[StoredPermission]
    def __init__(self, name: _Optional[str] = ..., salt: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., created_at_ns: _Optional[int] = ..., expires_at_ns: _Optional[int] = ..., superadmin: _Optional[bool] = ..., acl: _Optional[_Iterable[_Union[StoredPermission, _Mapping]]] = ...) -> None: ...

class StoredPermission(_message.Message):
    __slots__ = ("kind", "pattern")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[StoredPermission.Kind]
        KIND_PRODUCE: _ClassVar[StoredPermission.Kind]
        KIND_CONSUME: _ClassVar[StoredPermission.Kind]
        KIND_ADMIN: _ClassVar[StoredPermission.Kind]
    KIND_UNSPECIFIED: StoredPermission.Kind
    KIND_PRODUCE: StoredPermission.Kind
    KIND_CONSUME: StoredPermission.Kind
    KIND_ADMIN: StoredPermission.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    kind: StoredPermission.Kind
    pattern: str
    def __init__(self, kind: _Optional[_Union[StoredPermission.Kind, str]] = ..., pattern: _Optional[str] = ...) -> None: ...
