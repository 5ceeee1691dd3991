# SPDX-License-Identifier: AGPL-3.0-only
"""What the broker asks of a store: columns of sorted byte keys, written in atomic groups.

A store knows nothing of messages or leases. `core/records.py` owns what the bytes mean.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol


class Column(IntEnum):
    """A family of records with its own key space."""

    MESSAGES = 0
    RETRIES = 1
    LEASES = 2
    QUEUES = 3
    STATE = 4
    IDEMPOTENCY = 5


class Until(NamedTuple):
    """In place of a value: delete the keys from the write's own up to `end`, which stays."""

    end: bytes


# One change: bytes put a value, None deletes the key, Until deletes a range of keys.
Write = tuple[Column, bytes, bytes | Until | None]


class Space(NamedTuple):
    """What the data volume has left, and what of it the store may still need, in bytes."""

    free: int
    # In memory, and in the log: takes its size once more before the log gives it back.
    buffered: int
    # For the next log, and for the largest merge of files, which are deleted only after it.
    merging: int
    # Kept back in a file of its own; not part of what is free.
    reserved: int
    # Records that were deleted and whose space `reclaim` would give back sooner.
    deleted: int


class Figures(NamedTuple):
    """How large the store is, in bytes, for those who watch it."""

    volume: int  # of the volume that it is on
    log: int
    tables: int
    buffers: int
    compaction: int  # waits to be merged, as far as can be told


class Reader(Protocol):
    """What has been written, as of now."""

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the order of the keys, None where a key is not stored."""
        ...

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with start <= key < end in the order of their keys."""
        ...


class Storage(Reader, Protocol):
    """One owner thread calls everything here, but another one `sync` and `settle`, a third one
    `reclaim`, a fourth one `write_out`.
    """

    # How much `hold_reserve` keeps back: what the next start may need to recover.
    reserve_bytes: int

    def write(self, writes: Sequence[Write]) -> int:
        """Apply all writes in order, atomically, and return how many bytes that took in the log.

        They survive kill -9 once it returns, not power loss. Raises StorageFailed; after that
        nothing may be written until the store is opened again.
        """
        ...

    def sync(self) -> None:
        """Make everything that was written before this call survive power loss.

        Raises StorageFailed; a failed sync is never retried.
        """
        ...

    def settle(self) -> None:
        """Take note of what work in the background has written, so that its loss is noticed.

        For a thread that has nothing to sync. Raises StorageFailed, and so does every later call.
        """
        ...

    def space(self) -> Space:
        """Return how the data volume stands."""
        ...

    def figures(self) -> Figures:
        """Return how large the store is. Takes milliseconds."""
        ...

    def hold_reserve(self) -> None:
        """Keep `reserve_bytes` back on the volume, unless it has not that much left."""
        ...

    def release_reserve(self) -> None:
        """Give the reserve up for what has to be written."""
        ...

    def reclaim(self) -> None:
        """Give the space of what was deleted back. Takes long, and others go on meanwhile.

        Raises StorageFailed if it cannot; the store is as usable as before.
        """
        ...

    def write_out(self) -> int:
        """Write what is in memory to files, and return the number of the last write before.

        Takes long, and others go on meanwhile. Raises StorageFailed as `reclaim` does.
        """
        ...

    def close(self) -> None:
        """Sync and release everything, so that the same process can open the store again."""
        ...
