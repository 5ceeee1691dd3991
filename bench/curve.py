# SPDX-License-Identifier: AGPL-3.0-only
"""What a message costs as the backlog grows, and as its keys do: two curves, which should be flat.

The core runs on RocksDB, as the broker sets it up, without gRPC and without fsync. A size is
filled, then batches come, frames go and are acked as grants, so that the backlog stays what it is.
After that the core starts again from the store: all messages are cold then, and are read back.
"""

import argparse
import gc
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.core import QUEUE, Core, messages_in
from bench.report import Report
from fila.v1 import service_pb2 as service
from fila_server.core.commands import Command, Enqueue, OpenConsumer, SettleGrants
from fila_server.core.wire.cuts import DraftBatch
from fila_server.storage.api import Column
from fila_server.storage.rocks import RocksStorage

BATCH = 500
ROUNDS = 60
MS = 10**6
TEXTS = ("enqueue", "deliver", "ack", "all", "deliver cold", "recover")


class Cost(NamedTuple):
    """Microseconds of the owner's thread per message."""

    enqueue: float
    deliver: float
    ack: float
    cold: float  # delivering what only the disk has
    recover: float

    @property
    def all(self) -> float:
        return self.enqueue + self.deliver + self.ack


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stored",
        type=int,
        nargs="+",
        default=[1000, 10_000, 100_000, 1_000_000],
        help="sizes of the backlog (1000 10000 100000 1000000)",
    )
    parser.add_argument("--stored-keys", type=int, default=20, help="keys of these (20)")
    parser.add_argument(
        "--keys",
        type=int,
        nargs="+",
        default=[1, 10, 1000, 100_000],
        help="numbers of fairness keys (1 10 1000 100000)",
    )
    parser.add_argument("--keys-stored", type=int, default=200_000, help="backlog of these")
    parser.add_argument("--size", type=int, default=256, help="payload bytes (256)")


def run(chosen: argparse.Namespace) -> None:
    heading = "".join(f"{text:>14}" for text in TEXTS)
    report = Report(f"curve: {chosen.size} B, {BATCH} per request", chosen.json, ("", heading, ""))
    sizes = [(count, chosen.stored_keys) for count in chosen.stored]
    sizes += [(chosen.keys_stored, keys) for keys in chosen.keys]
    for count, keys in sizes:
        what = f"{count:,} stored, {keys:,} {'key' if keys == 1 else 'keys'}"
        report.progress(what)
        cost = _cost(count, keys, chosen.size)
        shown = (cost.enqueue, cost.deliver, cost.ack, cost.all, cost.cold, cost.recover)
        name = f"stored_{count}_keys_{keys}"
        figures = {
            f"{name}_{text.replace(' ', '_')}_us": it for text, it in zip(TEXTS, shown, strict=True)
        }
        report.add(what, "".join(f"{us:14.2f}" for us in shown), "", **figures)
    report.note(
        "Microseconds of the owner's thread per message, core and store; medians of rounds."
    )
    report.show()


class Disk:
    """RocksDB behind the seam of the benchmark's core. Reading counts, so it is not taken off."""

    read_ns = 0

    def __init__(self, folder: str) -> None:
        self._rocks = RocksStorage.open(str(Path(folder) / "data"))
        self.write = self._rocks.write
        self.close = self._rocks.close

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._rocks.get_many(column, keys)

    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._rocks.scan(column, start, end)


def _cost(count: int, keys: int, size: int) -> Cost:
    with tempfile.TemporaryDirectory(prefix="fila-bench-") as folder:
        disk = Disk(folder)
        try:
            return _Run(Core(disk), keys, size).measured(count)  # type: ignore[arg-type]
        finally:
            disk.close()


class _Run:
    """One core and the tenants that send to it, one after the other."""

    def __init__(self, core: Core, keys: int, size: int) -> None:
        core.create()
        self._core = core
        self._names = itertools.cycle([f"tenant-{number}" for number in range(keys)])
        self._payload = b"x" * size
        self._consumers = 0

    def measured(self, count: int) -> Cost:
        for start in range(0, count, BATCH):
            self._timed(self._batch(min(BATCH, count - start)))
        self._rounds(ROUNDS // 10)
        gc.collect()
        gc.disable()
        enqueue, deliver, ack = self._rounds(ROUNDS)
        gc.enable()
        began = time.thread_time_ns()
        self._core.recover()
        recover = time.thread_time_ns() - began
        self._rounds(1)
        _, cold, _ = self._rounds(max(1, min(ROUNDS, count // BATCH - 2)))
        return Cost(enqueue, deliver, ack, cold, recover / count / 1000)

    def _rounds(self, rounds: int) -> tuple[float, float, float]:
        """Return the microseconds per message of each part, in the middle of so many rounds."""
        times: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            self._core.advance(MS)
            _, enqueue = self._timed(self._batch(BATCH))
            self._consumers += 1
            receive = OpenConsumer(0, self._consumers, QUEUE, BATCH, BATCH, 0, True)
            ((_, _, frame),), deliver = self._timed(receive)
            messages = messages_in(frame)
            assert len(messages) == BATCH
            token = messages[0].metadata.lease_token
            item = service.GrantSettlement(queue=QUEUE, lease_token=token, ack={})
            _, ack = self._timed(SettleGrants(0, [item]))
            times.append((enqueue, deliver, ack))
        first, second, third = (median(part) / BATCH / 1000 for part in zip(*times, strict=True))
        return first, second, third

    def _batch(self, count: int) -> Enqueue:
        request = service.EnqueueBatchRequest()
        for name in itertools.islice(self._names, count):
            request.messages.add(queue=QUEUE, payload=self._payload, fairness_key=name)
        batch = DraftBatch(self._core.intake)
        for _ in batch.read(request.SerializeToString()):
            pass
        return Enqueue(0, batch)

    def _timed(self, command: Command) -> tuple[Sequence[tuple[int, int, bytes]], int]:
        """Handle a command and store what it writes; return its frames, and the time it took."""
        began = time.thread_time_ns()
        turn = self._core.turn([command])
        return turn.effects.frames, time.thread_time_ns() - began
