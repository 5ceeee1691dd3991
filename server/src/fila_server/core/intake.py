# SPDX-License-Identifier: AGPL-3.0-only
"""Taking enqueue requests apart without decoding what is only passed on.

An encoded EnqueueRequest is its queue, then headers and payload (fields 2 and 3, which are those of
a fila.v1.Message), then what the enqueue asks for: keys, times, idempotency. So headers and payload
are cut out of the request as they will be stored and sent, and the rest is looked up among what
earlier enqueues asked for, because tenants repeat themselves. This runs per message.

What comes in has been parsed once, which checked lengths and UTF-8. An encoder may write fields in
another order; such a request is encoded again in the usual one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fila.v1.service_pb2 import EnqueueBatchRequest, EnqueueRequest
from fila_server.core.lane import PLAIN, LaneKey
from fila_server.core.names import shown
from fila_server.core.records import varint
from fila_server.errors import InvalidArgument

if TYPE_CHECKING:
    from fila_server.config import LimitsConfig

DEFAULT_KEY = "default"
MAX_WEIGHT = 1000
MAX_COST = 1_000_000

_QUEUE_TAG, _HEADER_TAG, _PAYLOAD_TAG = 0x0A, 0x12, 0x1A
_ITEM_TAG = 0x0A
# Terms of enqueues with times of their own are rarely seen twice; past this they start over.
_TERMS_KEPT = 4096


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
# wrong with them.
Draft = tuple[str, bytes, Terms | InvalidArgument]


class _UnusualOrder(Exception):
    """Fields do not come in the order of their numbers."""


class Intake:
    """Makes drafts of requests. Remembers terms, and nothing else."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._known: dict[bytes, Terms] = {b"": Terms()}

    def drafts(self, encoded: bytes) -> list[Draft]:
        """Take an encoded EnqueueBatchRequest apart. Raises DecodeError if it is not one."""
        batch = EnqueueBatchRequest.FromString(encoded)
        try:
            return self._split(encoded)
        except _UnusualOrder:
            batch.DiscardUnknownFields()
            return self._split(batch.SerializeToString())

    def draft(self, encoded: bytes) -> list[Draft]:
        """Take one encoded EnqueueRequest apart, as a batch of one."""
        return self.drafts(b"\n" + varint(len(encoded)) + encoded)

    def _split(self, raw: bytes) -> list[Draft]:
        known = self._known
        found: list[Draft] = []
        append = found.append
        at, end = 0, len(raw)
        name, queue = b"", ""  # of the draft before: most batches are for one queue
        while at < end:
            if raw[at] != _ITEM_TAG:
                raise _UnusualOrder
            size = raw[at + 1]
            at += 2
            if size > 0x7F:  # two bytes are common enough to be worth a line
                if raw[at] < 0x80:
                    size += (raw[at] << 7) - 0x80
                    at += 1
                else:
                    size, at = _varint(raw, at - 1)
            stop = at + size
            if at < stop and raw[at] == _QUEUE_TAG:
                size = raw[at + 1]
                at += 2
                if size > 0x7F:
                    size, at = _varint(raw, at - 1)
                named = raw[at : at + size]
                at += size
                if named != name:
                    name, queue = named, named.decode()
            else:
                name, queue = b"", ""
            start = at
            while at < stop and raw[at] == _HEADER_TAG:
                size = raw[at + 1]
                at += 2
                if size > 0x7F:
                    size, at = _varint(raw, at - 1)
                at += size
            if at < stop and raw[at] == _PAYLOAD_TAG:
                size = raw[at + 1]
                at += 2
                if size > 0x7F:
                    if raw[at] < 0x80:
                        size += (raw[at] << 7) - 0x80
                        at += 1
                    else:
                        size, at = _varint(raw, at - 1)
                at += size
            if at < stop and raw[at] <= _PAYLOAD_TAG:
                raise _UnusualOrder
            encoded = raw[at:stop]
            terms = known.get(encoded) or self._terms(encoded)
            append((queue, raw[start:at], terms))
            at = stop
        return found

    def _terms(self, encoded: bytes) -> Terms | InvalidArgument:
        """Return what the encoded terms say, or what is out of range in them."""
        item = EnqueueRequest.FromString(encoded)
        if item.queue or item.headers or item.payload:
            raise _UnusualOrder
        try:
            terms = self._read(item)
        except InvalidArgument as error:
            return error
        if not terms.idempotency_key and not terms.deliver_at_ns:
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


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number of more than one byte at `at`, and where it ends."""
    value = raw[at] & 0x7F
    shift = 7
    while True:
        at += 1
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value, at + 1
        shift += 7


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
    if cost > MAX_COST:
        raise InvalidArgument(f"throttle_cost {cost} is not between 1 and {MAX_COST}")
    if not item.throttle_keys:
        return PLAIN
    keys = tuple(sorted(set(item.throttle_keys)))
    if len(keys) > limits.max_throttle_keys:
        raise InvalidArgument(f"{len(keys)} throttle_keys exceed {limits.max_throttle_keys}")
    for key in keys:
        check_key("throttle_keys", key, limits)
    return keys, cost or 1


def check_key(field: str, key: str, limits: LimitsConfig) -> None:
    """Refuse an empty or overlong fairness or throttle key."""
    size = len(key.encode())
    if not 1 <= size <= limits.max_fairness_key_bytes:
        raise InvalidArgument(
            f'{field} "{shown(key)}" has {size} bytes;'
            f" 1 to {limits.max_fairness_key_bytes} are allowed"
        )
