import datetime

from fila.v1 import messages_pb2 as _messages_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnqueueRequest(_message.Message):
    __slots__ = ("queue", "headers", "payload", "fairness_key", "weight", "throttle_keys", "throttle_cost", "delay_ms", "deliver_at", "ttl_ms", "idempotency_key")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_KEYS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_COST_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    headers: _containers.ScalarMap[str, str]
    payload: bytes
    fairness_key: str
    weight: int
    throttle_keys: _containers.RepeatedScalarFieldContainer[str]
    throttle_cost: int
    delay_ms: int
    deliver_at: _timestamp_pb2.Timestamp
    ttl_ms: int
    idempotency_key: str
    def __init__(self, queue: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., payload: _Optional[bytes] = ..., fairness_key: _Optional[str] = ..., weight: _Optional[int] = ..., throttle_keys: _Optional[_Iterable[str]] = ..., throttle_cost: _Optional[int] = ..., delay_ms: _Optional[int] = ..., deliver_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ttl_ms: _Optional[int] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("message_id", "duplicate")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    duplicate: bool
    def __init__(self, message_id: _Optional[str] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class EnqueueBatchRequest(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[EnqueueRequest]
    def __init__(self, messages: _Optional[_Iterable[_Union[EnqueueRequest, _Mapping]]] = ...) -> None: ...

class EnqueueBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[EnqueueResult]
    def __init__(self, results: _Optional[_Iterable[_Union[EnqueueResult, _Mapping]]] = ...) -> None: ...

class EnqueueResult(_message.Message):
    __slots__ = ("message_id", "duplicate", "error")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    duplicate: bool
    error: _messages_pb2.ItemError
    def __init__(self, message_id: _Optional[str] = ..., duplicate: _Optional[bool] = ..., error: _Optional[_Union[_messages_pb2.ItemError, _Mapping]] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("queue", "max_in_flight", "max_batch", "visibility_timeout_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    max_in_flight: int
    max_batch: int
    visibility_timeout_ms: int
    def __init__(self, queue: _Optional[str] = ..., max_in_flight: _Optional[int] = ..., max_batch: _Optional[int] = ..., visibility_timeout_ms: _Optional[int] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_messages_pb2.Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[_messages_pb2.Message, _Mapping]]] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("queue", "max_messages", "wait_ms", "visibility_timeout_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    max_messages: int
    wait_ms: int
    visibility_timeout_ms: int
    def __init__(self, queue: _Optional[str] = ..., max_messages: _Optional[int] = ..., wait_ms: _Optional[int] = ..., visibility_timeout_ms: _Optional[int] = ...) -> None: ...

class ReceiveResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_messages_pb2.Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[_messages_pb2.Message, _Mapping]]] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("queue", "message_id", "lease_token")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    message_id: str
    lease_token: str
    def __init__(self, queue: _Optional[str] = ..., message_id: _Optional[str] = ..., lease_token: _Optional[str] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("queue", "message_id", "error", "lease_token", "retry_after_ms", "throttle_key", "dead_letter")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_KEY_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    message_id: str
    error: str
    lease_token: str
    retry_after_ms: int
    throttle_key: str
    dead_letter: bool
    def __init__(self, queue: _Optional[str] = ..., message_id: _Optional[str] = ..., error: _Optional[str] = ..., lease_token: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., throttle_key: _Optional[str] = ..., dead_letter: _Optional[bool] = ...) -> None: ...

class NackResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AckBatchRequest(_message.Message):
    __slots__ = ("acks",)
    ACKS_FIELD_NUMBER: _ClassVar[int]
    acks: _containers.RepeatedCompositeFieldContainer[AckRequest]
    def __init__(self, acks: _Optional[_Iterable[_Union[AckRequest, _Mapping]]] = ...) -> None: ...

class AckBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_messages_pb2.ItemResult]
    def __init__(self, results: _Optional[_Iterable[_Union[_messages_pb2.ItemResult, _Mapping]]] = ...) -> None: ...

class NackBatchRequest(_message.Message):
    __slots__ = ("nacks",)
    NACKS_FIELD_NUMBER: _ClassVar[int]
    nacks: _containers.RepeatedCompositeFieldContainer[NackRequest]
    def __init__(self, nacks: _Optional[_Iterable[_Union[NackRequest, _Mapping]]] = ...) -> None: ...

class NackBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_messages_pb2.ItemResult]
    def __init__(self, results: _Optional[_Iterable[_Union[_messages_pb2.ItemResult, _Mapping]]] = ...) -> None: ...

class ExtendLeaseRequest(_message.Message):
    __slots__ = ("extensions",)
    EXTENSIONS_FIELD_NUMBER: _ClassVar[int]
    extensions: _containers.RepeatedCompositeFieldContainer[LeaseExtension]
    def __init__(self, extensions: _Optional[_Iterable[_Union[LeaseExtension, _Mapping]]] = ...) -> None: ...

class LeaseExtension(_message.Message):
    __slots__ = ("queue", "message_id", "lease_token", "extend_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXTEND_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    message_id: str
    lease_token: str
    extend_ms: int
    def __init__(self, queue: _Optional[str] = ..., message_id: _Optional[str] = ..., lease_token: _Optional[str] = ..., extend_ms: _Optional[int] = ...) -> None: ...

class ExtendLeaseResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ExtendLeaseResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ExtendLeaseResult, _Mapping]]] = ...) -> None: ...

class ExtendLeaseResult(_message.Message):
    __slots__ = ("error", "lease_expires_at")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    error: _messages_pb2.ItemError
    lease_expires_at: _timestamp_pb2.Timestamp
    def __init__(self, error: _Optional[_Union[_messages_pb2.ItemError, _Mapping]] = ..., lease_expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SettleGrantsRequest(_message.Message):
    __slots__ = ("settlements",)
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    settlements: _containers.RepeatedCompositeFieldContainer[GrantSettlement]
    def __init__(self, settlements: _Optional[_Iterable[_Union[GrantSettlement, _Mapping]]] = ...) -> None: ...

class GrantSettlement(_message.Message):
    __slots__ = ("queue", "lease_token", "except_message_ids", "expected_messages", "ack", "nack", "extend")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXCEPT_MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    queue: str
    lease_token: str
    except_message_ids: _containers.RepeatedScalarFieldContainer[str]
    expected_messages: int
    ack: GrantAck
    nack: GrantNack
    extend: GrantExtension
    def __init__(self, queue: _Optional[str] = ..., lease_token: _Optional[str] = ..., except_message_ids: _Optional[_Iterable[str]] = ..., expected_messages: _Optional[int] = ..., ack: _Optional[_Union[GrantAck, _Mapping]] = ..., nack: _Optional[_Union[GrantNack, _Mapping]] = ..., extend: _Optional[_Union[GrantExtension, _Mapping]] = ...) -> None: ...

class GrantAck(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GrantNack(_message.Message):
    __slots__ = ("error", "retry_after_ms", "throttle_key", "dead_letter")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_KEY_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    error: str
    retry_after_ms: int
    throttle_key: str
    dead_letter: bool
    def __init__(self, error: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., throttle_key: _Optional[str] = ..., dead_letter: _Optional[bool] = ...) -> None: ...

class GrantExtension(_message.Message):
    __slots__ = ("extend_ms",)
    EXTEND_MS_FIELD_NUMBER: _ClassVar[int]
    extend_ms: int
    def __init__(self, extend_ms: _Optional[int] = ...) -> None: ...

class SettleGrantsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[GrantResult]
    def __init__(self, results: _Optional[_Iterable[_Union[GrantResult, _Mapping]]] = ...) -> None: ...

class GrantResult(_message.Message):
    __slots__ = ("error", "messages", "lease_expires_at")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    error: _messages_pb2.ItemError
    messages: int
    lease_expires_at: _timestamp_pb2.Timestamp
    def __init__(self, error: _Optional[_Union[_messages_pb2.ItemError, _Mapping]] = ..., messages: _Optional[int] = ..., lease_expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PipelineRequest(_message.Message):
    __slots__ = ("enqueue", "ack", "nack", "extend", "settle")
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    enqueue: EnqueueBatchRequest
    ack: AckBatchRequest
    nack: NackBatchRequest
    extend: ExtendLeaseRequest
    settle: SettleGrantsRequest
    def __init__(self, enqueue: _Optional[_Union[EnqueueBatchRequest, _Mapping]] = ..., ack: _Optional[_Union[AckBatchRequest, _Mapping]] = ..., nack: _Optional[_Union[NackBatchRequest, _Mapping]] = ..., extend: _Optional[_Union[ExtendLeaseRequest, _Mapping]] = ..., settle: _Optional[_Union[SettleGrantsRequest, _Mapping]] = ...) -> None: ...

class PipelineResponse(_message.Message):
    __slots__ = ("enqueue", "ack", "nack", "extend", "settle", "error")
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    enqueue: EnqueueBatchResponse
    ack: AckBatchResponse
    nack: NackBatchResponse
    extend: ExtendLeaseResponse
    settle: SettleGrantsResponse
    error: _messages_pb2.ItemError
    def __init__(self, enqueue: _Optional[_Union[EnqueueBatchResponse, _Mapping]] = ..., ack: _Optional[_Union[AckBatchResponse, _Mapping]] = ..., nack: _Optional[_Union[NackBatchResponse, _Mapping]] = ..., extend: _Optional[_Union[ExtendLeaseResponse, _Mapping]] = ..., settle: _Optional[_Union[SettleGrantsResponse, _Mapping]] = ..., error: _Optional[_Union[_messages_pb2.ItemError, _Mapping]] = ...) -> None: ...
