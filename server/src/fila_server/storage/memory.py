# SPDX-License-Identifier: AGPL-3.0-only
"""The store in memory, with the failures of a disk on demand.

It behaves as `RocksStorage` does, down to refusing anything but bytes, and can lose what a real
disk can lose: `crash` gives what an open would find after kill -9 or power loss, `fail_write` and
`fail_sync` make a call fail with its effect lost or kept, since a caller can never know which.

Nothing here reads a clock or a random number: the simulation that drives it decides what happens.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NoReturn

from fila_server.errors import StorageFailed
from fila_server.storage.api import Column, Figures, Space, Until, Write


class MemoryStorage:
    """A `Storage` whose content lasts as long as the object, or as `crash` hands it on."""

    def __init__(self) -> None:
        self._current = [_Table() for _ in Column]
        # What power loss leaves: all that was synced, then a part of the tail of groups since.
        self._synced = [_Table() for _ in Column]
        self._tail: list[tuple[Write, ...]] = []
        self._lock = Lock()  # The flusher thread syncs while the owner thread writes.
        self._write_fault = _Fault()
        self._sync_fault = _Fault()
        self._failure = ""
        self.free = 1 << 40
        self.reserve_bytes = 0
        self.settles = 0  # how often `settle` was called
        self.reclaims = 0  # how often `reclaim` was called

    # --- As every store ---------------------------------------------------------------------------

    def write(self, writes: Sequence[Write]) -> int:
        """Apply all writes in order, atomically, and return how large they are."""
        group = tuple(writes)
        for write in group:
            _check(write)
        with self._lock:
            self._check_usable()
            fails = self._write_fault.is_due()
            if not fails or self._write_fault.kept:
                _apply(self._current, group)
                self._tail.append(group)
            if fails:
                self._fail("a write failed")
        return sum(map(_size, group))

    def sync(self) -> None:
        """Make what was written before this call survive power loss."""
        with self._lock:
            self._check_usable()
            fails = self._sync_fault.is_due()
            if not fails or self._sync_fault.kept:
                for group in self._tail:
                    _apply(self._synced, group)
                self._tail.clear()
            if fails:
                self._fail("a sync failed")

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the order of the keys, None where a key is not stored."""
        self._check_usable()
        values = self._current[column].values
        return [values.get(key) for key in keys]

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with start <= key < end as they are at the time of this call."""
        self._check_usable()
        return self._rows(self._current[column].rows(start, end))

    def space(self) -> Space:
        """Return what `free` was set to; memory needs no more."""
        self._check_usable()
        return Space(self.free, buffered=0, merging=0, reserved=0, deleted=len(self._tail))

    def figures(self) -> Figures:
        """Return what memory has of it."""
        self._check_usable()
        return Figures(volume=self.free, log=0, tables=0, buffers=0, compaction=0)

    def hold_reserve(self) -> None:
        """Keep nothing back."""
        self._check_usable()

    def release_reserve(self) -> None:
        """Give nothing up."""
        self._check_usable()

    def settle(self) -> None:
        """Count the call."""
        self._check_usable()
        self.settles += 1

    def reclaim(self) -> None:
        """Count the call."""
        self._check_usable()
        self.reclaims += 1

    def write_out(self) -> int:
        """Write nothing: there are no files."""
        self._check_usable()
        return 0

    def close(self) -> None:
        """Sync, and refuse everything from now on. Harmless twice."""
        try:
            if not self._failure:
                self.sync()
        finally:
            self._failure = self._failure or "the store is closed"

    # --- As a disk fails --------------------------------------------------------------------------

    @property
    def unsynced_groups(self) -> int:
        """How many groups power loss could take."""
        return len(self._tail)

    def fail_write(self, nth: int = 1, *, kept: bool) -> None:
        """Make the nth write from now raise; its group is there after a crash, or it is not."""
        self._write_fault = _Fault(nth, kept)

    def fail_sync(self, nth: int = 1, *, kept: bool) -> None:
        """Make the nth sync from now raise; the tail is on disk all the same, or it is not."""
        self._sync_fault = _Fault(nth, kept)

    def crash(self, *, power: bool, keep: int = 0) -> "MemoryStorage":
        """End this store and return what an open finds next.

        kill -9 leaves everything that was written. Power loss leaves what was synced, and of the
        groups since then the first `keep`, at most all: the log reaches the disk in its order. What
        an open found is synced, since RocksDB writes it out.
        """
        self._failure = self._failure or "the store has crashed"
        tables = self._current
        if power:
            tables = self._synced
            for group in self._tail[: max(keep, 0)]:
                _apply(tables, group)
        found = MemoryStorage()
        found._current = tables
        found._synced = [table.copy() for table in tables]
        found.free = self.free
        return found

    def _rows(self, rows: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for row in rows:
            if self._failure:
                raise StorageFailed(self._failure)
            yield row

    def _check_usable(self) -> None:
        if self._failure:
            raise StorageFailed(self._failure)

    def _fail(self, cause: str) -> NoReturn:
        self._failure = cause
        raise StorageFailed(cause)


class _Fault:
    """A failure that is due at the nth call; never, unless told."""

    __slots__ = ("_calls_left", "kept")

    def __init__(self, nth: int = 0, kept: bool = False) -> None:
        self._calls_left = nth
        self.kept = kept

    def is_due(self) -> bool:
        self._calls_left -= 1
        return self._calls_left == 0


class _Table:
    """One column: its values, and its keys in order."""

    __slots__ = ("_keys", "values")

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self.values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            self._keys.insert(bisect_left(self._keys, key), key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def delete_range(self, start: bytes, end: bytes) -> None:
        chosen = self._range(start, end)
        for key in self._keys[chosen]:
            del self.values[key]
        del self._keys[chosen]

    def rows(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return [(key, self.values[key]) for key in self._keys[self._range(start, end)]]

    def copy(self) -> "_Table":
        table = _Table()
        table._keys = self._keys.copy()
        table.values = self.values.copy()
        return table

    def _range(self, start: bytes, end: bytes) -> slice:
        first = bisect_left(self._keys, start)
        return slice(first, max(first, bisect_left(self._keys, end)))


def _apply(tables: list[_Table], group: Sequence[Write]) -> None:
    for column, key, value in group:
        table = tables[column]
        if isinstance(value, bytes):
            table.put(key, value)
        elif value is None:
            table.delete(key)
        else:
            table.delete_range(key, value.end)


def _size(write: Write) -> int:
    return sum(map(len, _parts(write)))


def _check(write: Write) -> None:
    for part in _parts(write):
        if type(part) is not bytes:
            raise TypeError(f"only bytes can be stored, not {type(part).__name__}")


def _parts(write: Write) -> Iterator[bytes]:
    _, key, value = write
    yield key
    if value is not None:
        yield value.end if isinstance(value, Until) else value
