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


class Storage(Protocol):
    """One owner thread calls everything here but `sync`, which the flusher thread calls."""

    def write(self, writes: Sequence[Write]) -> None:
        """Apply all writes in order, atomically. Survives kill -9 once it returns, not power loss.

        Raises StorageFailed; after that nothing may be written until the store is opened again.
        """
        ...

    def sync(self) -> None:
        """Make everything that was written before this call survive power loss.

        Raises StorageFailed; a failed sync is never retried.
        """
        ...

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the order of the keys, None where a key is not stored."""
        ...

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with start <= key < end in the order of their keys."""
        ...

    def free_bytes(self) -> int:
        """Return the space left on the data volume."""
        ...

    def close(self) -> None:
        """Sync and release everything, so that the same process can open the store again."""
        ...
