# SPDX-License-Identifier: AGPL-3.0-only
"""Batches of messages to enqueue, a piece at a time: a large one would hold the loop for a tenth of
a second.

An encoded batch is its encoded items, one after another, each with a tag and its length before it.
So a range of items is a batch too, and what is done to a batch can be done to its blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from fila.v1.service_pb2 import EnqueueBatchRequest
from fila_server.core.wire.intake import ITEM_TAG, Draft, Intake, canonical
from fila_server.core.wire.varint import read_varint

# Protobuf takes a fraction of a millisecond for so many bytes, and a few for as many items. Whoever
# sends a million is told so after the first block.
BLOCK_BYTES = 512 * 1024
BLOCK_ITEMS = 10_000

# The length of an item takes no more, but where it was padded.
_LENGTH_BYTES = 5
# Of protobuf's encoding: the longest number, and what follows a tag by the kind of its field.
_VARINT_BYTES = 10
_NUMBER, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}


def count_fields(encoded: bytes, most: int) -> int:
    """Return how many fields a message has, not those inside of them; at `most` + 1 it stops.

    Protobuf makes an object of every item, be it of two bytes: of a large batch it takes seconds
    and a gigabyte before anybody can count. Nobody has looked at these bytes before. What makes no
    sense ends the count, because protobuf refuses that; groups, which no client of ours sends and
    which hide what is inside, count as too many.
    """
    return _count(encoded, most, 0)


def count_within(encoded: bytes, most: int) -> int:
    """Return how many fields the items of a batch have, all together; at `most` + 1 it stops."""
    return _count(encoded, most, 1)


def _count(encoded: bytes, most: int, depth: int) -> int:
    """Count the fields of a message, or those of its items, `depth` messages further inside."""
    at = count = 0
    end = len(encoded)
    try:
        while at < end and count <= most:
            tag, used = read_varint(encoded[at : at + _VARINT_BYTES], 0)
            at += used
            kind = tag & 7
            if kind == _LENGTH:
                size, used = read_varint(encoded[at : at + _VARINT_BYTES], 0)
                at += used
                if depth:
                    count += _count(encoded[at : at + size], most - count, depth - 1)
                at += size
            elif kind == _NUMBER:
                at += read_varint(encoded[at : at + _VARINT_BYTES], 0)[1]
            elif kind in _FIXED_BYTES:
                at += _FIXED_BYTES[kind]
            else:
                return most + 1
            count += 1
    except IndexError:
        pass
    return count


class DraftBatch:
    """An EnqueueBatchRequest in canonical blocks. Drafts are made when they are asked for."""

    __slots__ = ("_intake", "blocks", "count", "has_more", "size")

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.blocks: list[bytes] = []
        self.count = 0
        self.size = 0
        self.has_more = False  # of the request that is being read

    def read(self, encoded: bytes) -> Iterator[EnqueueBatchRequest]:
        """Take a request in, block by block; yield each as protobuf reads it. Raises DecodeError.

        From where a batch is anything but items, protobuf gets it whole.
        """
        size = len(encoded)
        start = 0
        while start < size or not self.blocks:
            end = size if size - start <= BLOCK_BYTES else _block_end(encoded, start)
            request, block = canonical(EnqueueBatchRequest, encoded[start:end])
            self.blocks.append(block)
            self.count += len(request.messages)
            self.size += len(block)
            self.has_more = end < size
            start = end
            yield request

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[list[Draft], int]]:
        """Yield the drafts of one piece after the other, with its size."""
        piece = self._intake.piece
        for block in self.blocks:
            at = 0
            while at < len(block):
                start = at
                drafts, at = piece(block, at)
                yield drafts, at - start


def _block_end(encoded: bytes, start: int) -> int:
    """Return where the block that begins here ends: with all the rest, if this is anything but
    items.

    Nobody has looked at these bytes before, so what they say is not relied on.
    """
    end = len(encoded)
    at = start
    try:
        for _ in range(BLOCK_ITEMS):
            if at >= end or encoded[at] != ITEM_TAG:
                return end
            item = at
            size, used = read_varint(encoded[at + 1 : at + 1 + _LENGTH_BYTES], 0)
            at += 1 + used + size
            if at - start > BLOCK_BYTES and item > start:
                return item
    except IndexError:  # it is cut short, or padded
        return end
    return min(at, end)
