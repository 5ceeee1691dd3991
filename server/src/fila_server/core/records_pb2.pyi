from fila.v1 import admin_pb2 as _admin_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Head(_message.Message):
    __slots__ = ("fairness_key", "weight", "throttle_keys", "throttle_cost", "deliver_at_ns", "expires_at_ns", "enqueued_at_ns")
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_KEYS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_COST_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_NS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_NS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    fairness_key: str
    weight: int
    throttle_keys: _containers.RepeatedScalarFieldContainer[str]
    throttle_cost: int
    deliver_at_ns: int
    expires_at_ns: int
    enqueued_at_ns: int
    def __init__(self, fairness_key: _Optional[str] = ..., weight: _Optional[int] = ..., throttle_keys: _Optional[_Iterable[str]] = ..., throttle_cost: _Optional[int] = ..., deliver_at_ns: _Optional[int] = ..., expires_at_ns: _Optional[int] = ..., enqueued_at_ns: _Optional[int] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("id", "head")
    ID_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    id: str
    head: Head
    def __init__(self, id: _Optional[str] = ..., head: _Optional[_Union[Head, _Mapping]] = ...) -> None: ...

class Retry(_message.Message):
    __slots__ = ("attempt_count", "order", "deliver_at_ns", "last_error")
    ATTEMPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    attempt_count: int
    order: int
    deliver_at_ns: int
    last_error: str
    def __init__(self, attempt_count: _Optional[int] = ..., order: _Optional[int] = ..., deliver_at_ns: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("message_id", "expires_at_ns")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_NS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    expires_at_ns: int
    def __init__(self, message_id: _Optional[str] = ..., expires_at_ns: _Optional[int] = ...) -> None: ...

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
    acl: _containers.RepeatedCompositeFieldContainer[_admin_pb2.AclEntry]
    def __init__(self, name: _Optional[str] = ..., salt: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., created_at_ns: _Optional[int] = ..., expires_at_ns: _Optional[int] = ..., superadmin: _Optional[bool] = ..., acl: _Optional[_Iterable[_Union[_admin_pb2.AclEntry, _Mapping]]] = ...) -> None: ...
