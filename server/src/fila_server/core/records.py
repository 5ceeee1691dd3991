# SPDX-License-Identifier: AGPL-3.0-only
"""What the bytes in the store and on the wire mean: keys, stored messages, delivery frames.

A stored message is its head, framed as field 20, and then its body: id, headers and payload
encoded as fields 1 to 3 of fila.v1.Message. A delivery is the same body followed by metadata (4)
and timestamps (5). So enqueueing encodes a message once, and delivering concatenates bytes.
"""

import struct

from fila.v1.messages_pb2 import MessageMetadata
from fila_server.core.records_pb2 import Head, StoredMessage

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_KEY = struct.Struct(">IQ")
_FIXED64 = struct.Struct("<Q")

queue_prefix = _U32.pack
message_key = _KEY.pack

# Prefixes of the STATE column.
API_KEY = b"a"
BUCKET = b"b"
CONFIG = b"c"
NEXT_NUMBER = b"nmessage"
NEXT_QUEUE = b"nqueue"

_HEAD_TAG = b"\xa2\x01"  # field 20 of StoredMessage, length-delimited
_ENQUEUED_TAG = b"\x79"  # field 15 of Head, fixed64
_STAMP_BYTES = 9
ID_BYTES = 36
_ID_TAG = b"\n$"  # field 1, 36 bytes


def queue_range(number: int) -> tuple[bytes, bytes]:
    """Return the first key of a queue's records and the first key after them."""
    return queue_prefix(number), queue_prefix(number + 1)


def key_number(key: bytes) -> int:
    """Return the number in the key of a message, a retry or a lease."""
    return int.from_bytes(key[4:12], "big")


U64_MAX = (1 << 64) - 1


def u64(value: int) -> bytes:
    return _U64.pack(value)


def from_u64(value: bytes) -> int:
    return int.from_bytes(value, "big")


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Length prefixes of ordinary messages, made once: `\n` is the tag of ConsumeResponse.messages.
_FRAME_PREFIXES = [b"\n" + varint(n) for n in range(4096)]


def frame_prefix(length: int) -> bytes:
    return _FRAME_PREFIXES[length] if length < 4096 else b"\n" + varint(length)


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
    return _framed(head)


def full_head(head: Head, stamp: bytes) -> bytes:
    """Return the framed head of any message; `head` must not carry enqueued_at."""
    return _framed(head) + stamp


def _framed(head: Head) -> bytes:
    encoded = head.SerializeToString()
    return _HEAD_TAG + varint(len(encoded) + _STAMP_BYTES) + encoded


def split(value: bytes) -> tuple[bytes, bytes, bytes]:
    """Take a stored message apart: head without its stamp, stamp, body."""
    length, at = value[2], 3
    if length > 0x7F:
        length, shift = length & 0x7F, 7
        while True:
            byte = value[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte <= 0x7F:
                break
    end = at + length
    return value[at : end - _STAMP_BYTES], value[end - _STAMP_BYTES : end], value[end:]


def body_id(body: bytes) -> str:
    """Return the message id at the front of a body."""
    if body.startswith(_ID_TAG):
        return body[2 : 2 + ID_BYTES].decode("ascii")
    return StoredMessage.FromString(body).id


# --- Deliveries -----------------------------------------------------------------------------------


def lane_metadata(
    queue: str, fairness_key: str, weight: int, throttle_keys: tuple[str, ...], cost: int
) -> bytes:
    """Return the metadata fields that all deliveries from one lane share, unframed."""
    return MessageMetadata(
        queue_id=queue,
        fairness_key=fairness_key,
        weight=weight,
        throttle_keys=throttle_keys,
        throttle_cost=cost if cost > 1 else 0,
    ).SerializeToString()


def token_field(token: str) -> bytes:
    """Return the lease token as the last field of the metadata."""
    return MessageMetadata(lease_token=token).SerializeToString()


def framed_metadata(fields: bytes, token_bytes: int) -> bytes:
    """Return metadata up to its token field, which is yet to follow with so many bytes."""
    return b'"' + varint(len(fields) + token_bytes) + fields


def retry_fields(attempt: int, error: str) -> bytes:
    """Return the metadata fields of a message that failed before."""
    return MessageMetadata(attempt_count=attempt, last_error=error).SerializeToString()


def timestamp_field(number: int, wall_ns: int) -> bytes:
    """Return a google.protobuf.Timestamp as field `number` (below 16) of its parent."""
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    encoded = b"\x08" + varint(seconds)
    if nanos:
        encoded += b"\x10" + varint(nanos)
    return bytes((number << 3 | 2,)) + varint(len(encoded)) + encoded


def delivery_timestamps(stamp: bytes, leased: bytes) -> bytes:
    """Return the framed timestamps of a delivery; `leased` holds its fields 2 and 3."""
    encoded = timestamp_field(1, stamp_ns(stamp)) + leased
    return b"*" + varint(len(encoded)) + encoded
