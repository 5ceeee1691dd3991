# SPDX-License-Identifier: AGPL-3.0-only
"""From an older format of the store to this broker's, step by step.

A step leads from one format to the next. It reads what is stored and yields batches of writes; each
batch is written whole before the step goes on. The directory's format is raised when all of them
are on disk. After a crash in between the step runs again from its beginning, over records of both
kinds. So a step must tell the new ones from the old, and leave them alone, and a batch must leave
nothing half changed.

This module knows nothing of what records mean: whoever opens a store brings the steps.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic

from fila_server.storage.api import Column, Reader, Write

log = logging.getLogger(__name__)

# A step, and steps by the format that each starts from.
Step = Callable[[Reader], Iterator[Sequence[Write]]]
Steps = Mapping[int, Step]

# Between two lines on how far it is.
_REPORT_S = 5.0


def run_step(
    step: Step,
    read: Reader,
    write: Callable[[Sequence[Write]], object],
    from_version: int,
    records: int,
) -> None:
    """Run a step to its end. `records` is about how many there are, for whoever waits."""
    began = reported = monotonic()
    name = f"from format {from_version} to {from_version + 1}"
    log.info("migrating %s: about %d records", name, records)
    counting = _Counting(read)
    written = 0
    for batch in step(counting):
        write(batch)
        written += len(batch)
        if monotonic() > reported + _REPORT_S:
            reported = monotonic()
            log.info("migrating %s: %d of about %d records read", name, counting.count, records)
    log.info("migrated %s in %.0f s: %d writes", name, monotonic() - began, written)


class _Counting:
    """A reader that counts the records that go through it."""

    __slots__ = ("_read", "count")

    def __init__(self, read: Reader) -> None:
        self._read = read
        self.count = 0

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._read.get_many(column, keys)

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in self._read.scan(column, start, end):
            self.count += 1
            yield row
