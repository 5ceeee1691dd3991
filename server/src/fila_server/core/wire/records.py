# SPDX-License-Identifier: AGPL-3.0-only
"""What the bytes in the store mean: keys, and stored messages.

A stored message is its head, framed as field 20, and then its body: id, headers and payload
encoded as fields 1 to 3 of fila.v1.Message. `frames.py` sends the same body to consumers.
"""

import re
import struct
from collections.abc import Sequence

from fila_server.core.wire.records_pb2 import Head, StoredMessage
from fila_server.core.wire.varint import read_varint, varint

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_KEY = struct.Struct(">IQ")
_FIXED64 = struct.Struct("<Q")

queue_prefix = _U32.pack
message_key = _KEY.pack

# What tells the lanes of one fairness key apart: throttle keys, sorted, and cost.
LaneKey = tuple[tuple[str, ...], int]
PLAIN: LaneKey = ((), 1)

# Prefixes of the STATE column.
API_KEY = b"a"
BUCKET = b"b"
CONFIG = b"c"
NEXT_NUMBER = b"nmessage"
NEXT_QUEUE = b"nqueue"

_HEAD_TAG = b"\xa2\x01"  # field 20 of StoredMessage, length-delimited
_ENQUEUED_TAG = b"\x79"  # field 15 of Head, fixed64
_STAMP_BYTES = 9
ID_TAG = b"\n$"  # field 1, 36 bytes
ID_BYTES = 2 + 36  # with its tag
# An id up to its message's number: 24 characters, and 12 more. A bit above all numbers.
_ID_PREFIX = 24
_ABOVE_NUMBERS = 1 << 48


def queue_range(number: int) -> tuple[bytes, bytes]:
    """Return the first key of a queue's records and the first key after them."""
    return queue_prefix(number), queue_prefix(number + 1)


def key_number(key: bytes) -> int:
    """Return the number in the key of a message, a retry or a lease."""
    return int.from_bytes(key[4:12], "big")


U64_MAX = (1 << 64) - 1
# A UUID; the last part of one that the broker made is the message's number.
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def u64(value: int) -> bytes:
    return _U64.pack(value)


def from_u64(value: bytes) -> int:
    return int.from_bytes(value, "big")


# --- Heads ----------------------------------------------------------------------------------------


def stamp(wall_ns: int) -> bytes:
    """Return enqueued_at as the last field of a Head. Shared by all messages of a group."""
    return _ENQUEUED_TAG + _FIXED64.pack(wall_ns)


def stamp_ns(stamp: bytes) -> int:
    return int(_FIXED64.unpack(stamp[1:])[0])


def lane_head(fairness_key: str, weight: int, throttle_keys: tuple[str, ...], cost: int) -> bytes:
    """Return the framed head, up to its stamp, of a message with neither delay nor life time."""
    head = Head(
        fairness_key=fairness_key,
        weight=weight,
        throttle_keys=throttle_keys,
        throttle_cost=cost if cost > 1 else 0,
    )
    return framed_head(head)


def full_head(head: Head, stamp: bytes) -> bytes:
    """Return the framed head of any message; `head` must not carry enqueued_at."""
    return framed_head(head) + stamp


def framed_head(head: Head) -> bytes:
    """Return the same up to its stamp."""
    encoded = head.SerializeToString()
    return _HEAD_TAG + varint(len(encoded) + _STAMP_BYTES) + encoded


def lane_key_of(head: Head) -> LaneKey:
    """Return the lane, within its fairness key, of a message with such a head."""
    return (tuple(head.throttle_keys), head.throttle_cost or 1) if head.throttle_keys else PLAIN


def split(value: bytes) -> tuple[bytes, bytes, bytes]:
    """Take a stored message apart: head without its stamp, stamp, body."""
    length, at = read_varint(value, 2)
    end = at + length
    return value[at : end - _STAMP_BYTES], value[end - _STAMP_BYTES : end], value[end:]


def body_id(body: bytes) -> str:
    """Return the message id at the front of a body."""
    if body.startswith(ID_TAG):
        return body[2:ID_BYTES].decode("ascii")
    return StoredMessage.FromString(body).id


def cut(body: bytes) -> tuple[bytes, bytes]:
    """Return the front of the id at the front of a body, with its tag, and what follows the id."""
    return body[: 2 + _ID_PREFIX], body[ID_BYTES:]


# --- Ids ------------------------------------------------------------------------------------------


def id_text(prefix: str, number: int) -> str:
    """Return the id of a message from what it shares with its group, and its number."""
    return prefix + hex(_ABOVE_NUMBERS | number)[3:]  # a quarter of what formatting costs


def number_texts(numbers: Sequence[int]) -> str:
    """Return the last parts of many ids at once: 12 characters each, after 4 zeros."""
    return struct.pack(f">{len(numbers)}Q", *numbers).hex()


def likely_number(message_id: str) -> int:
    """Return the number of the message that has this id, if there is one; see `id_text`."""
    try:
        return int(message_id[_ID_PREFIX:], 16)
    except ValueError:
        return -1


def id_number(message_id: str) -> int | None:
    """Return the number of the message that has this id; None if no id looks like this."""
    return int(message_id[_ID_PREFIX:], 16) if _ID.match(message_id) else None
