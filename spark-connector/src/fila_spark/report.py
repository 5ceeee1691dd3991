# SPDX-License-Identifier: AGPL-3.0-only
"""What a write did: counts per partition, their sum, a line now and then, and a file for programs.

Counts and names only: never a payload, a header or a key.
"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage


@dataclass
class PartitionReport(WriterCommitMessage):
    """What one attempt at one partition did.

    `done` are messages enqueued, acked, nacked or redriven; `duplicate` those for which that had
    happened before: an idempotency key that was known, a message that was gone.
    """

    partition: int
    done: int = 0
    duplicate: int = 0
    rejected: int = 0
    stale: int = 0
    retries: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    queues: dict[str, int] = field(default_factory=dict)
    # Why the first was rejected; the broker's text names the limit, not the content.
    first_rejection: str = ""

    def add(self, other: "PartitionReport") -> None:
        self.done += other.done
        self.duplicate += other.duplicate
        self.rejected += other.rejected
        self.stale += other.stale
        self.retries += other.retries
        self.payload_bytes += other.payload_bytes
        for queue, count in other.queues.items():
            self.count(queue, count)
        self.first_rejection = self.first_rejection or other.first_rejection

    def count(self, queue: str, done: int) -> None:
        """Notes messages of a queue that are done."""
        self.queues[queue] = self.queues.get(queue, 0) + done

    @property
    def rows(self) -> int:
        return self.done + self.duplicate + self.rejected + self.stale


def total(reports: Iterable[PartitionReport]) -> PartitionReport:
    """The sum; its time is that of the slowest partition."""
    whole = PartitionReport(-1)
    for report in reports:
        whole.add(report)
        whole.seconds = max(whole.seconds, report.seconds)
    return whole


def present(messages: Sequence[WriterCommitMessage | None]) -> list[PartitionReport]:
    """The reports of the partitions that succeeded, in order."""
    found = [message for message in messages if isinstance(message, PartitionReport)]
    return sorted(found, key=lambda report: report.partition)


def sentence(operation: str, whole: PartitionReport) -> str:
    """The sum for people."""
    parts = [f"{_PAST[operation]} {whole.done:,} messages"]
    if whole.duplicate:
        parts.append(f"{whole.duplicate:,} {_BEFORE[operation]}")
    if whole.rejected:
        parts.append(f"{whole.rejected:,} rejected ({whole.first_rejection})")
    if whole.stale:
        parts.append(f"{whole.stale:,} leases had ended")
    if whole.retries:
        parts.append(f"{whole.retries:,} requests sent again")
    return ", ".join(parts)


_PAST = {
    "enqueue": "enqueued",
    "ack": "acked",
    "nack": "nacked",
    "redrive": "redrove",
    "peek": "read",
}
_BEFORE = {
    "enqueue": "were duplicates",
    "ack": "were gone already",
    "nack": "were gone already",
    "redrive": "were not there",
}


def write_file(
    path: str,
    operation: str,
    run: str,
    batch_id: int | None,
    reports: Sequence[PartitionReport],
) -> None:
    """Appends one JSON line about a write, on the driver."""
    whole = asdict(total(reports))
    del whole["partition"]
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "operation": operation,
        "run_id": run,
        "batch_id": batch_id,
        **whole,
        "partitions": [asdict(report) for report in reports],
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


class Progress:
    """Says now and then how far a partition is. Quiet if that takes less than one interval."""

    def __init__(self, operation: str, interval_s: float) -> None:
        context = TaskContext.get()
        self.partition = 0 if context is None else context.partitionId()
        self._verb = _PAST[operation]
        self._interval_s = interval_s
        self._start = time.monotonic()
        self._next = self._start + interval_s

    def update(self, rows: int) -> None:
        now = time.monotonic()
        if self._interval_s and now >= self._next:
            self._next = now + self._interval_s
            rate = rows / (now - self._start)
            say(f"partition {self.partition}: {self._verb} {rows:,} messages, {rate:,.0f}/s")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start


def say(text: str) -> None:
    """One line for whoever runs Spark; it goes to the log of the process it is said in."""
    sys.stderr.write(f"fila: {text}\n")
    sys.stderr.flush()
