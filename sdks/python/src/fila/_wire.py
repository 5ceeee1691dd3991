# SPDX-License-Identifier: AGPL-3.0-only
"""The hot path's requests and answers as bytes: what both clients share, and no I/O.

Every batch request of the contract is one repeated field with the number 1, and on the wire a
repeated field is its elements one after the other. So an item is encoded once, by the caller that
has it, and a batch is the items joined: nothing is copied into a larger protobuf object, and the
size of a batch is known exactly before it is sent.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast

from google.protobuf.message import Message as ProtobufMessage

from fila import errors, tracing
from fila._answers import as_datetime
from fila._element import element, plain_ack, plain_enqueue
from fila.errors import FilaError, LeaseExpiredError, MessageNotFoundError
from fila.message import BytesLike, EnqueueMessage, EnqueueResult, Message
from fila.v1 import messages_pb2, service_pb2

T = TypeVar("T")

# The same in every SDK. Larger batches are a little faster, but a batch holds the broker's engine:
# a thousand messages for some 10 ms, as long as anybody else should have to wait behind them.
BATCH_ITEMS_MAX = 1000
# Below gRPC's customary 4 MiB, so that any broker takes it. A larger message travels alone.
BATCH_BYTES_MAX = 1024 * 1024

_SERVICE = "/fila.v1.FilaService/"


def service_method(name: str) -> str:
    return _SERVICE + name


CONSUME = _SERVICE + "Consume"
RECEIVE = _SERVICE + "Receive"

_REASON_PREFIX = "ERROR_REASON_"


class Item(NamedTuple):
    """One element of a batch: its bytes on the wire, and what an error about it should name."""

    data: bytes
    queue: str
    message_id: str | None = None
    # Whether it may be sent again after a failure that leaves open if it was applied.
    is_repeatable: bool = False
    # What says after a repeat that the first one did it.
    forgiven: tuple[type[FilaError], ...] = ()
    # Of a settlement: the token of its delivery; of an ack, how many messages came with it.
    lease_token: str = ""
    frame_size: int = 0


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """An RPC that takes many items and answers each on its own."""

    method: str
    response: type[ProtobufMessage]
    read: Callable[[Any], T]

    def outcomes(self, response: Any, items: Sequence[Item]) -> list[T | FilaError]:
        """One value or error per item, in order."""
        results = response.results
        if len(results) != len(items):
            text = f"the broker gave {len(results)} results for {len(items)} items"
            return [errors.InternalError(text, queue=item.queue) for item in items]
        read = self.read
        return [
            item_error(result.error, item) if result.HasField("error") else read(result)
            for result, item in zip(results, items, strict=True)
        ]


def item_error(error: messages_pb2.ItemError, item: Item) -> FilaError:
    """The typed error of one item."""
    try:
        reason = messages_pb2.ErrorReason.Name(error.reason).removeprefix(_REASON_PREFIX)
    except ValueError:  # The broker is newer than this SDK.
        reason = str(error.reason)
    return errors.from_reason(reason, error.message, queue=item.queue, message_id=item.message_id)


ENQUEUE: Batch[EnqueueResult] = Batch(
    _SERVICE + "EnqueueBatch",
    service_pb2.EnqueueBatchResponse,
    lambda result: EnqueueResult(result.message_id, result.duplicate),
)
ACK: Batch[None] = Batch(_SERVICE + "AckBatch", service_pb2.AckBatchResponse, lambda _: None)
NACK: Batch[None] = Batch(_SERVICE + "NackBatch", service_pb2.NackBatchResponse, lambda _: None)
EXTEND: Batch[datetime] = Batch(
    _SERVICE + "ExtendLease",
    service_pb2.ExtendLeaseResponse,
    lambda result: as_datetime(result.lease_expires_at),
)


def split(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The items in order, in batches that stay within both limits; none for no items."""
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and (len(batch) == BATCH_ITEMS_MAX or size + len(item.data) > BATCH_BYTES_MAX):
            yield batch
            batch = []
            size = 0
        batch.append(item)
        size += len(item.data)
    if batch:
        yield batch


def is_repeatable(items: Iterable[Item]) -> bool:
    """Whether a batch may be sent again after a failure that leaves open if it was applied."""
    return all(item.is_repeatable for item in items)


def join(items: Iterable[Item]) -> bytes:
    """The batch request that holds the items."""
    return b"".join([item.data for item in items])


def item(
    request: ProtobufMessage, queue: str, lease_token: str = "", is_repeatable: bool = False
) -> Item:
    """One element of a batch that is about a queue."""
    return Item(element(request), queue, None, is_repeatable, (), lease_token)


# --- Enqueue --------------------------------------------------------------------------------------


def enqueue_item(message: EnqueueMessage, trace: Mapping[str, str]) -> Item:
    """Encodes one message. Raises TypeError or ValueError that names the field at fault."""
    try:
        if trace or not _is_plain(message):
            data = element(_enqueue_request(message, trace))
        else:
            data = plain_enqueue(
                message.queue,
                message.headers,
                cast(bytes, message.payload),
                message.fairness_key,
            )
    except (AttributeError, TypeError, ValueError) as error:
        _explain(message, error)
    return Item(data, message.queue, None, bool(message.idempotency_key))


def _is_plain(message: EnqueueMessage) -> bool:
    """Whether it has no fields but those that most messages have."""
    return not (
        type(message.payload) is not bytes
        or message.json is not ...
        or message.text is not None
        or message.idempotency_key is not None
        or message.weight is not None
        or message.throttle_keys
        or message.delay_ms is not None
        or message.ttl_ms is not None
        or message.throttle_cost is not None
        or message.deliver_at is not None
    )


def _enqueue_request(
    message: EnqueueMessage, trace: Mapping[str, str]
) -> service_pb2.EnqueueRequest:
    # Setting fields one by one takes half the time of the constructor's keyword arguments.
    request = service_pb2.EnqueueRequest()
    request.queue = message.queue
    payload = message.payload
    if message.text is not None or message.json is not ...:
        payload = _written(message)
    request.payload = payload if type(payload) is bytes else _as_bytes(payload)
    headers = request.headers
    if message.headers:
        for key, value in message.headers.items():
            # Protobuf would take bytes for text.
            if not (isinstance(key, str) and isinstance(value, str)):
                raise TypeError("a header is not text")
            headers[key] = value
    # A producer's own trace context wins: the message may continue a trace begun elsewhere.
    if trace and tracing.TRACEPARENT not in headers:
        for key, value in trace.items():
            headers[key] = value
    if message.fairness_key is not None:
        request.fairness_key = message.fairness_key
    if message.weight is not None:
        request.weight = message.weight
    if message.throttle_keys:
        if isinstance(message.throttle_keys, str):
            raise TypeError("a string is not a list of throttle keys")
        request.throttle_keys.extend(message.throttle_keys)
    if message.throttle_cost is not None:
        request.throttle_cost = message.throttle_cost
    if message.delay_ms is not None:
        request.delay_ms = message.delay_ms
    if message.deliver_at is not None:
        if message.deliver_at.tzinfo is None:
            raise ValueError("deliver_at without a time zone")
        request.deliver_at.FromDatetime(message.deliver_at)
    if message.ttl_ms is not None:
        request.ttl_ms = message.ttl_ms
    if message.idempotency_key is not None:
        request.idempotency_key = message.idempotency_key
    return request


def _written(message: EnqueueMessage) -> bytes:
    """The payload that text or JSON stands for."""
    if message.payload or (message.text is not None and message.json is not ...):
        raise ValueError("more than one payload")
    if message.json is ...:
        return cast(str, message.text).encode()
    # NaN and infinity are none of JSON's numbers.
    return json.dumps(
        message.json, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()


def _as_bytes(payload: BytesLike) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError("payload is not bytes-like")


def _explain(message: EnqueueMessage, error: Exception) -> NoReturn:
    # Protobuf's texts do not name the field, and checking beforehand would cost every good message.
    # Values stay out of the texts: headers and payloads may be private.
    payload: object = message.payload
    if isinstance(payload, str):
        raise TypeError(
            "payload must be bytes, not str; give it as text=, or .encode() it"
        ) from error
    if (bool(payload), message.text is not None, message.json is not ...).count(True) > 1:
        raise ValueError("give one of payload, text and json") from error
    _expect("text", message.text or "", str, "str", error)
    _expect("payload", payload, bytes | bytearray | memoryview, "bytes-like", error)
    headers: object = message.headers or {}
    _expect("headers", headers, Mapping, "a mapping", error)
    for key, value in cast(Mapping[object, object], headers).items():
        _expect(f"the key of header {key!r}", key, str, "str", error)
        _expect(f"the value of header {key!r}", value, str, "str", error)
    for name in ("queue", "fairness_key", "idempotency_key"):
        _expect(name, getattr(message, name) or "", str, "str", error)
    for name in ("weight", "throttle_cost", "delay_ms", "ttl_ms"):
        number = getattr(message, name) or 0
        _expect(name, number, int, "int", error)
        if number < 0:
            raise ValueError(f"{name} must not be negative, got {number}") from error
    if isinstance(message.throttle_keys, str):
        raise TypeError("throttle_keys must be a list of str, not one str") from error
    if isinstance(message.deliver_at, datetime) and message.deliver_at.tzinfo is None:
        raise ValueError("deliver_at needs a time zone, e.g. datetime.now(UTC)") from error
    if message.json is not ...:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"json: {error}") from error
    raise error


def _expect(name: str, value: object, kind: Any, kind_name: str, error: Exception) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind_name}, not {type(value).__name__}") from error
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{name} holds a lone surrogate, which UTF-8 cannot express"
            ) from error


# --- Consume and settle ---------------------------------------------------------------------------


def consume_request(
    queue: str, max_in_flight: int, batch_size: int, visibility_timeout_ms: int | None
) -> bytes:
    return service_pb2.ConsumeRequest(
        queue=queue,
        max_in_flight=max_in_flight,
        max_batch=batch_size,
        visibility_timeout_ms=visibility_timeout_ms,
    ).SerializeToString()


def receive_request(
    queue: str, max_messages: int, wait_ms: int, visibility_timeout_ms: int | None
) -> service_pb2.ReceiveRequest:
    return service_pb2.ReceiveRequest(
        queue=queue,
        max_messages=max_messages,
        wait_ms=wait_ms,
        visibility_timeout_ms=visibility_timeout_ms,
    )


_GONE = (MessageNotFoundError,)
_GONE_OR_OVER = (MessageNotFoundError, LeaseExpiredError)


def ack_item(queue: str, message_id: str, lease_token: str | None, frame_size: int = 0) -> Item:
    token = lease_token or ""
    try:
        data = plain_ack(queue, message_id, token)
    except (AttributeError, UnicodeEncodeError):
        # Protobuf refuses it too, and says why.
        return _delivery_item(service_pb2.AckRequest(), queue, message_id, lease_token)
    return Item(data, queue, message_id, bool(token), _GONE, token, frame_size)


def ack_message_item(message: Message) -> Item:
    return ack_item(message.queue, message.id, message.lease_token, message._frame_size)


def nack_item(
    queue: str,
    message_id: str,
    error: str,
    lease_token: str | None,
    retry_after_ms: int | None = None,
    throttle_key: str | None = None,
    dead_letter: bool = False,
) -> Item:
    request = service_pb2.NackRequest(
        error=error,
        retry_after_ms=retry_after_ms,
        throttle_key=throttle_key,
        dead_letter=dead_letter,
    )
    return _delivery_item(request, queue, message_id, lease_token, _GONE_OR_OVER)


def extend_item(queue: str, message_id: str, lease_token: str | None, ms: int | None) -> Item:
    request = service_pb2.LeaseExtension(extend_ms=ms)
    return _delivery_item(request, queue, message_id, lease_token)


def release_item(raw: messages_pb2.Message) -> Item:
    """Gives back a message that nobody has seen: it is ready at once and no attempt is counted."""
    metadata = raw.metadata
    return nack_item(metadata.queue_id, raw.id, "", metadata.lease_token, retry_after_ms=0)


def _delivery_item(
    request: service_pb2.AckRequest | service_pb2.NackRequest | service_pb2.LeaseExtension,
    queue: str,
    message_id: str,
    lease_token: str | None,
    forgiven: tuple[type[FilaError], ...] = (),
) -> Item:
    try:
        request.queue = queue
        request.message_id = message_id
        request.lease_token = lease_token or ""
    except TypeError as error:
        kinds = ", ".join(type(value).__name__ for value in (queue, message_id, lease_token))
        raise TypeError(f"queue, message_id and lease_token must be str, not {kinds}") from error
    token = lease_token or ""
    # The token makes a repeat harmless: it ends with the delivery.
    return Item(element(request), queue, message_id, bool(token), forgiven, token)
