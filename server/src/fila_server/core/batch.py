# SPDX-License-Identifier: AGPL-3.0-only
"""A batch: everything that one turn writes, in order, and the store as it will be afterwards.

A turn reads through its batch, so it sees its own writes and nobody keeps lists of what the disk
does not have yet. One batch is one atomic write; encoded, it stands for itself and can be applied
elsewhere: it is what a replicated log will carry.

Most turns only write. What they wrote is indexed when something is first read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge

from fila_server.core.wire.varint import read_varint, varint
from fila_server.storage.api import Column, Reader, Until, Write

_PUT, _DELETE, _DELETE_RANGE = 0, 1, 2


class Batch:
    """The writes of one turn over a store. `writes` may be appended to directly on a hot path."""

    __slots__ = ("_indexed", "_ranges", "_read", "_values", "writes")

    def __init__(self, read: Reader) -> None:
        self._read = read
        self.writes: list[Write] = []
        self._indexed = 0  # how many of the writes the two below know
        self._values: dict[tuple[Column, bytes], bytes | None] = {}
        self._ranges: dict[Column, list[tuple[bytes, bytes]]] = {}

    def put(self, column: Column, key: bytes, value: bytes) -> None:
        self.writes.append((column, key, value))

    def delete(self, column: Column, key: bytes) -> None:
        self.writes.append((column, key, None))

    def delete_range(self, column: Column, start: bytes, end: bytes) -> None:
        """Delete every key from start up to end, which stays."""
        self.writes.append((column, start, Until(end)))

    def get(self, column: Column, key: bytes) -> bytes | None:
        return self.get_many(column, (key,))[0]

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the order of the keys, None where a key is not stored."""
        stored = self._read.get_many(column, keys)
        if not self.writes:
            return stored
        self._index()
        values = self._values
        for at, key in enumerate(keys):
            if (column, key) in values:
                stored[at] = values[column, key]
            elif stored[at] is not None and self._is_deleted(column, key):
                stored[at] = None
        return stored

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with start <= key < end in the order of their keys.

        What is written while the scan goes on is not part of it.
        """
        rows = self._read.scan(column, start, end)
        if not self.writes:
            return rows
        self._index()
        written = {
            key: value
            for (where, key), value in self._values.items()
            if where == column and start <= key < end
        }
        ranges = tuple(self._ranges.get(column, ()))
        added = sorted((key, value) for key, value in written.items() if value is not None)
        return merge(_kept(rows, written, ranges), added)

    def encode(self) -> bytes:
        """Return the writes as bytes that `decode` understands."""
        parts: list[bytes] = []
        append = parts.append
        for column, key, value in self.writes:
            if isinstance(value, bytes):
                kind, rest = _PUT, value
            elif value is None:
                kind, rest = _DELETE, b""
            else:
                kind, rest = _DELETE_RANGE, value.end
            append(bytes((kind << 4 | column,)) + varint(len(key)) + key)
            if kind != _DELETE:
                append(varint(len(rest)) + rest)
        return b"".join(parts)

    def _index(self) -> None:
        values = self._values
        for at in range(self._indexed, len(self.writes)):
            column, key, value = self.writes[at]
            if isinstance(value, Until):
                end = value.end
                gone = [it for it in values if it[0] == column and key <= it[1] < end]
                for known in gone:
                    values[known] = None
                self._ranges.setdefault(column, []).append((key, end))
            else:
                values[column, key] = value
        self._indexed = len(self.writes)

    def _is_deleted(self, column: Column, key: bytes) -> bool:
        return any(start <= key < end for start, end in self._ranges.get(column, ()))


def _kept(
    rows: Iterator[tuple[bytes, bytes]],
    written: Mapping[bytes, bytes | None],
    ranges: Sequence[tuple[bytes, bytes]],
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the stored records that a batch leaves as they are.

    Not an expression in parentheses: mypyc makes a list of that, of a whole queue.
    """
    for row in rows:
        if row[0] not in written and not any(low <= row[0] < high for low, high in ranges):
            yield row


def decode(encoded: bytes) -> list[Write]:
    """Return the writes of an encoded batch."""
    writes: list[Write] = []
    at, end = 0, len(encoded)
    while at < end:
        kind, column = encoded[at] >> 4, Column(encoded[at] & 0x0F)
        key, at = _field(encoded, at + 1)
        if kind == _DELETE:
            writes.append((column, key, None))
            continue
        rest, at = _field(encoded, at)
        writes.append((column, key, rest if kind == _PUT else Until(rest)))
    return writes


def _field(encoded: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_varint(encoded, at)
    return encoded[at : at + size], at + size
