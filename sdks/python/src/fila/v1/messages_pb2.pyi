import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FailureCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CAUSE_UNSPECIFIED: _ClassVar[FailureCause]
    FAILURE_CAUSE_NACK: _ClassVar[FailureCause]
    FAILURE_CAUSE_EXPIRED: _ClassVar[FailureCause]
    FAILURE_CAUSE_MAX_ATTEMPTS: _ClassVar[FailureCause]
    FAILURE_CAUSE_HOOK: _ClassVar[FailureCause]

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_MESSAGE_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_LEASE_EXPIRED: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_ALREADY_EXISTS: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_ARGUMENT: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_SCRIPT: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_A_DEAD_LETTER_QUEUE: _ClassVar[ErrorReason]
    ERROR_REASON_PARENT_QUEUE_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_MESSAGE_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_DISK_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_SHUTTING_DOWN: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_PERMISSION_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_STORAGE_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_HOOK_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_CONFIG_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_MESSAGE_LEASED: _ClassVar[ErrorReason]
    ERROR_REASON_API_KEY_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
FAILURE_CAUSE_UNSPECIFIED: FailureCause
FAILURE_CAUSE_NACK: FailureCause
FAILURE_CAUSE_EXPIRED: FailureCause
FAILURE_CAUSE_MAX_ATTEMPTS: FailureCause
FAILURE_CAUSE_HOOK: FailureCause
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_QUEUE_NOT_FOUND: ErrorReason
ERROR_REASON_MESSAGE_NOT_FOUND: ErrorReason
ERROR_REASON_LEASE_EXPIRED: ErrorReason
ERROR_REASON_QUEUE_ALREADY_EXISTS: ErrorReason
ERROR_REASON_INVALID_ARGUMENT: ErrorReason
ERROR_REASON_INVALID_SCRIPT: ErrorReason
ERROR_REASON_NOT_A_DEAD_LETTER_QUEUE: ErrorReason
ERROR_REASON_PARENT_QUEUE_NOT_FOUND: ErrorReason
ERROR_REASON_MESSAGE_TOO_LARGE: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_DISK_FULL: ErrorReason
ERROR_REASON_SHUTTING_DOWN: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
ERROR_REASON_STORAGE_FAILED: ErrorReason
ERROR_REASON_HOOK_FAILED: ErrorReason
ERROR_REASON_CONFIG_NOT_FOUND: ErrorReason
ERROR_REASON_MESSAGE_LEASED: ErrorReason
ERROR_REASON_API_KEY_NOT_FOUND: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason

class Message(_message.Message):
    __slots__ = ("id", "headers", "payload", "metadata", "timestamps")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    id: str
    headers: _containers.ScalarMap[str, str]
    payload: bytes
    metadata: MessageMetadata
    timestamps: MessageTimestamps
    def __init__(self, id: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., payload: _Optional[bytes] = ..., metadata: _Optional[_Union[MessageMetadata, _Mapping]] = ..., timestamps: _Optional[_Union[MessageTimestamps, _Mapping]] = ...) -> None: ...

class MessageMetadata(_message.Message):
    __slots__ = ("fairness_key", "weight", "throttle_keys", "attempt_count", "queue_id", "lease_token", "last_error", "throttle_cost", "failures")
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_KEYS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_COST_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    fairness_key: str
    weight: int
    throttle_keys: _containers.RepeatedScalarFieldContainer[str]
    attempt_count: int
    queue_id: str
    lease_token: str
    last_error: str
    throttle_cost: int
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    def __init__(self, fairness_key: _Optional[str] = ..., weight: _Optional[int] = ..., throttle_keys: _Optional[_Iterable[str]] = ..., attempt_count: _Optional[int] = ..., queue_id: _Optional[str] = ..., lease_token: _Optional[str] = ..., last_error: _Optional[str] = ..., throttle_cost: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("failed_at", "cause", "error")
    FAILED_AT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    failed_at: _timestamp_pb2.Timestamp
    cause: FailureCause
    error: str
    def __init__(self, failed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cause: _Optional[_Union[FailureCause, str]] = ..., error: _Optional[str] = ...) -> None: ...

class MessageTimestamps(_message.Message):
    __slots__ = ("enqueued_at", "leased_at", "lease_expires_at", "deliver_at", "expires_at")
    ENQUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    LEASED_AT_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    enqueued_at: _timestamp_pb2.Timestamp
    leased_at: _timestamp_pb2.Timestamp
    lease_expires_at: _timestamp_pb2.Timestamp
    deliver_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, enqueued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., leased_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lease_expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., deliver_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ItemError(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: ErrorReason
    message: str
    def __init__(self, reason: _Optional[_Union[ErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ItemResult(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: ItemError
    def __init__(self, error: _Optional[_Union[ItemError, _Mapping]] = ...) -> None: ...
