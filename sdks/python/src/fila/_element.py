# SPDX-License-Identifier: AGPL-3.0-only
"""Elements of batch requests as bytes: any message by protobuf, the two of the hot path by hand.

An element is the tag of a length-delimited field 1, the length as a varint, and the message. What
most enqueues and all acks consist of is short to write, and takes half of protobuf's time; a test
holds it to protobuf's own bytes. Everything else, and whatever is of a wrong type, is protobuf's.
"""

from collections.abc import Mapping

from google.protobuf.message import Message as ProtobufMessage


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# Of the sizes that most fields have.
_VARINTS = [_varint(number) for number in range(1024)]


def _sized(data: bytes) -> bytes:
    size = len(data)
    return (_VARINTS[size] if size < 1024 else _varint(size)) + data


def element(message: ProtobufMessage) -> bytes:
    """Any message as an element."""
    return b"\x0a" + _sized(message.SerializeToString())


def plain_enqueue(
    queue: str, headers: Mapping[str, str] | None, payload: bytes, fairness_key: str | None
) -> bytes:
    """An EnqueueRequest of these fields. Raises AttributeError or UnicodeEncodeError where text is
    not text."""
    body = b"\x0a" + _sized(queue.encode()) if queue else b""
    if headers:
        for key, value in headers.items():
            pair = b"\x0a%b\x12%b" % (_sized(key.encode()), _sized(value.encode()))
            body += b"\x12" + _sized(pair)
    if payload:
        body += b"\x1a" + _sized(payload)
    if fairness_key:
        body += b"\x22" + _sized(fairness_key.encode())
    return b"\x0a" + _sized(body)


def plain_ack(queue: str, message_id: str, lease_token: str) -> bytes:
    """An AckRequest. Raises as `plain_enqueue` does."""
    body = b"\x0a" + _sized(queue.encode()) if queue else b""
    if message_id:
        body += b"\x12" + _sized(message_id.encode())
    if lease_token:
        body += b"\x1a" + _sized(lease_token.encode())
    return b"\x0a" + _sized(body)
