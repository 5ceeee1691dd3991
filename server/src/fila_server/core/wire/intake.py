# SPDX-License-Identifier: AGPL-3.0-only
"""Taking enqueue requests apart without decoding what is only passed on.

An encoded EnqueueRequest is its queue, then headers and payload (fields 2 and 3, which are those of
a fila.v1.Message), then what the enqueue asks for: keys, times, idempotency. So headers and payload
are cut out of the request as they will be stored and sent, and the rest is looked up among what
earlier enqueues asked for, because tenants repeat themselves. This runs per message.

What comes in was encoded here, by `canonical`: fields stand in the order of their numbers, each
once, and behind them what nobody knows, which is not kept. A client may write a request in other
ways, and parsers differ in what they make of some (a header with a field of its own inside, say).
Encoded anew, it says to hooks, limits and consumers what it said to protobuf's parser here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fila.v1.service_pb2 import EnqueueBatchRequest, EnqueueRequest
from fila_server.core.names import shown
from fila_server.core.wire.records import PLAIN, LaneKey
from fila_server.core.wire.varint import read_varint, varint
from fila_server.errors import FilaError, InvalidArgument, MessageTooLarge
from fila_server.limits import MAX_THROTTLE_COST, MAX_WEIGHT

if TYPE_CHECKING:
    from fila_server.config import LimitsConfig

DEFAULT_KEY = "default"

# A piece takes the engine a millisecond or two. A round number: so are the sizes of most batches.
PIECE_ITEMS = 500
PIECE_BYTES = 256 * 1024

ITEM_TAG = 0x0A
_QUEUE_TAG, _HEADER_TAG, _PAYLOAD_TAG, _KEY_TAG = 0x0A, 0x12, 0x1A, 0x22
# Terms of enqueues with times of their own are rarely seen twice; past this they start over.
_TERMS_KEPT = 4096
# Terms with long keys are read anew each time.
_TERMS_BYTES = 1024


class Terms(NamedTuple):
    """What an enqueue asks for beside headers and payload."""

    fairness_key: str = DEFAULT_KEY
    weight: int = 0
    lane_key: LaneKey = PLAIN
    delay_ms: int = 0
    deliver_at_ns: int = 0  # 0 when not given
    ttl_ms: int = 0
    idempotency_key: str = ""
    has_times: bool = False


# One message to enqueue: its queue, its headers and payload as encoded, and its terms, or what is
# wrong with it.
Draft = tuple[str, bytes, Terms | FilaError]

# Takes an EnqueueRequest apart if its bytes are canonical, else leaves that to protobuf: its queue,
# headers and payload, terms, bytes of the payload, headers, bytes of those.
Cut = Callable[[bytes], tuple[str, bytes, bytes, int, int, int] | None]


Request = TypeVar("Request", EnqueueRequest, EnqueueBatchRequest)


def canonical(kind: type[Request], encoded: bytes) -> tuple[Request, bytes]:
    """Parse a request, and encode it in the one way that the rest relies on. Raises DecodeError."""
    request = kind.FromString(encoded)
    return request, request.SerializeToString()


class Intake:
    """Makes drafts of requests, the single ones with what a transport brings for that. Remembers
    terms, and nothing else.
    """

    def __init__(self, limits: LimitsConfig, cut: Cut | None = None) -> None:
        self._limits = limits
        self._cut = cut
        self._known: dict[bytes, Terms] = {b"": Terms()}

    def draft(self, encoded: bytes) -> Draft:
        """Take an EnqueueRequest apart. Raises DecodeError if it is none."""
        parts = None if self._cut is None else self._cut(encoded)
        if parts is not None:
            queue, content, asked, size, headers, header_bytes = parts
            limits = self._limits
            terms: Terms | FilaError = self._known.get(asked) or self._terms(asked)
            if (
                size > limits.max_payload_bytes
                or headers > limits.max_headers
                or header_bytes > limits.max_header_bytes
            ):
                terms = self._oversize(content, size, headers) or terms
            return queue, content, terms
        _, request = canonical(EnqueueRequest, encoded)
        ((draft,), _) = self.piece(b"\n" + varint(len(request)) + request, 0)
        return draft

    def drafts(self, raw: bytes) -> list[Draft]:
        """Take a canonical EnqueueBatchRequest apart."""
        found, at = self.piece(raw, 0)
        while at < len(raw):
            more, at = self.piece(raw, at)
            found += more
        return found

    def piece(self, raw: bytes, at: int) -> tuple[list[Draft], int]:
        """Take as much of a canonical EnqueueBatchRequest apart as is a piece, and return where it
        ends.
        """
        known = self._known
        limits = self._limits
        max_payload, max_headers = limits.max_payload_bytes, limits.max_headers
        max_header_bytes = limits.max_header_bytes
        found: list[Draft] = []
        append = found.append
        end = len(raw)
        full = min(end, at + PIECE_BYTES)
        name, queue = b"", ""  # of the draft before: most batches are for one queue
        for _ in range(PIECE_ITEMS):
            if at >= full:
                break
            if raw[at] != ITEM_TAG:
                return found, end  # nobody knows the rest
            size = raw[at + 1]
            at += 2
            if size > 0x7F:  # two bytes are common enough to be worth a line
                if raw[at] < 0x80:
                    size += (raw[at] << 7) - 0x80
                    at += 1
                else:
                    size, at = read_varint(raw, at - 1)
            stop = at + size
            if at < stop and raw[at] == _QUEUE_TAG:
                size = raw[at + 1]
                at += 2
                if size > 0x7F:
                    size, at = read_varint(raw, at - 1)
                named = raw[at : at + size]
                at += size
                if named != name:
                    name, queue = named, named.decode()
            else:
                name, queue = b"", ""
            start = at
            headers = 0
            while at < stop and raw[at] == _HEADER_TAG:
                size = raw[at + 1]
                at += 2
                if size > 0x7F:
                    size, at = read_varint(raw, at - 1)
                at += size
                headers += 1
            size = 0
            if at == stop or raw[at] != _PAYLOAD_TAG:
                if headers:  # what nobody knows may look like more of them
                    headers, at = _known_headers(raw, start, at)
                header_bytes = at - start
            else:
                header_bytes = at - start
                size = raw[at + 1]
                at += 2
                if size > 0x7F:
                    if raw[at] < 0x80:
                        size += (raw[at] << 7) - 0x80
                        at += 1
                    else:
                        size, at = read_varint(raw, at - 1)
                at += size
            encoded = raw[at:stop]
            terms: Terms | FilaError = known.get(encoded) or self._terms(encoded)
            if size > max_payload or headers > max_headers or header_bytes > max_header_bytes:
                terms = self._oversize(raw[start:at], size, headers) or terms
            append((queue, raw[start:at], terms))
            at = stop
        return found, at

    def _oversize(self, content: bytes, payload: int, headers: int) -> FilaError | None:
        """Return what is too large about a message that may be; tags around headers are free."""
        limits = self._limits
        if payload > limits.max_payload_bytes:
            return MessageTooLarge(
                f"payload has {payload} bytes; the limit is {limits.max_payload_bytes}"
            )
        if headers > limits.max_headers:
            return MessageTooLarge(f"{headers} headers exceed the limit of {limits.max_headers}")
        read = EnqueueRequest.FromString(content).headers
        header_bytes = sum(len(name.encode()) + len(text.encode()) for name, text in read.items())
        if header_bytes > limits.max_header_bytes:
            return MessageTooLarge(
                f"headers have {header_bytes} bytes; the limit is {limits.max_header_bytes}"
            )
        return None

    def _terms(self, encoded: bytes) -> Terms | FilaError:
        """Return what the encoded terms say, or what is out of range in them."""
        try:
            if encoded and encoded[0] == _KEY_TAG and encoded[1] == len(encoded) - 2 < 0x80:
                # A fairness key and nothing else: with more keys than are kept this is common.
                terms = Terms(encoded[2:].decode())
                check_key("fairness_key", terms.fairness_key, self._limits)
            else:
                terms = self._read(EnqueueRequest.FromString(encoded))
        except InvalidArgument as error:
            return error
        is_common = not terms.idempotency_key and not terms.deliver_at_ns
        if is_common and len(encoded) <= _TERMS_BYTES:
            if len(self._known) >= _TERMS_KEPT:
                self._known.clear()
            self._known[encoded] = terms
        return terms

    def _read(self, item: EnqueueRequest) -> Terms:
        weight = item.weight
        if item.fairness_key:
            check_key("fairness_key", item.fairness_key, self._limits)
        if weight > MAX_WEIGHT:
            raise InvalidArgument(f"weight {weight} is not between 1 and {MAX_WEIGHT}")
        deliver_at_ns = _nanoseconds(item)
        if deliver_at_ns and item.delay_ms:
            raise InvalidArgument("delay_ms and deliver_at exclude each other")
        idempotency_key = item.idempotency_key
        if idempotency_key:
            self._check_idempotency_key(idempotency_key)
        return Terms(
            item.fairness_key or DEFAULT_KEY,
            weight,
            _lane_key(item, self._limits),
            item.delay_ms,
            deliver_at_ns,
            item.ttl_ms,
            idempotency_key,
            bool(item.delay_ms or item.ttl_ms or deliver_at_ns),
        )

    def _check_idempotency_key(self, key: str) -> None:
        size = len(key.encode())
        limit = self._limits.max_idempotency_key_bytes
        if size > limit:
            raise InvalidArgument(f"idempotency_key has {size} bytes; the limit is {limit}")


def _nanoseconds(item: EnqueueRequest) -> int:
    if not item.HasField("deliver_at"):
        return 0
    try:
        return max(0, item.deliver_at.ToNanoseconds())
    except ValueError:
        raise InvalidArgument(
            f"deliver_at of {item.deliver_at.seconds} s is not a time between the years 1 and 9999"
        ) from None


def _lane_key(item: EnqueueRequest, limits: LimitsConfig) -> LaneKey:
    cost = item.throttle_cost
    if cost > MAX_THROTTLE_COST:
        raise InvalidArgument(f"throttle_cost {cost} is not between 1 and {MAX_THROTTLE_COST}")
    if not item.throttle_keys:
        return PLAIN
    keys = tuple(sorted(set(item.throttle_keys)))
    if len(keys) > limits.max_throttle_keys:
        raise InvalidArgument(f"{len(keys)} throttle_keys exceed {limits.max_throttle_keys}")
    for key in keys:
        check_key("throttle_keys", key, limits)
    return keys, cost or 1


def _known_headers(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Return how many canonical headers begin at `at`, and where they end.

    A header with a field of its own inside is one that protobuf does not know.
    """
    count = 0
    while at < end:
        size, key = read_varint(raw, at + 1)
        stop = key + size
        for tag in (0x0A, 0x12):  # the key, then the value, both always there
            if key >= stop or raw[key] != tag:
                return count, at
            size, key = read_varint(raw, key + 1)
            key += size
        if key != stop:
            return count, at
        at = stop
        count += 1
    return count, at


def check_key(field: str, key: str, limits: LimitsConfig) -> None:
    """Refuse an empty or overlong fairness or throttle key."""
    size = len(key.encode())
    if not 1 <= size <= limits.max_fairness_key_bytes:
        raise InvalidArgument(
            f'{field} "{shown(key)}" has {size} bytes;'
            f" 1 to {limits.max_fairness_key_bytes} are allowed"
        )
