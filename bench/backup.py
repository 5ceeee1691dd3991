# SPDX-License-Identifier: AGPL-3.0-only
"""How long the event loop stands still during a backup, against RocksDB's own checkpoint.

A loop writes a batch every few milliseconds, as the engine does, while another task of it looks at
the clock every millisecond. The longest time between two looks is what every client waits. Time in
which the machine gave the loop's thread no processor is taken off: it is the neighbours' doing.
"""

import argparse
import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from rocksdict import Checkpoint

from bench.report import Report
from fila_server.core.wire import records
from fila_server.core.wire.records_pb2 import Head, StoredQueue
from fila_server.limits import MIB
from fila_server.runtime.backups import Backups, Progress
from fila_server.storage.api import Column, Write
from fila_server.storage.rocks import RocksStorage

FILL = 200  # in one batch
# 4000 messages a second: so little that the store never has to hold writers back by itself.
BATCH = 20
PAUSE_S = 0.005
WINDOW_S = 10.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=900, help="stored before it begins (900)")
    parser.add_argument("--size", type=int, default=1000, help="payload bytes (1000)")


@dataclass
class Load:
    """A store, what fills it, and the longest pause of the loop."""

    storage: RocksStorage
    size: int
    number: int = 0
    longest_s: float = 0.0
    is_over: bool = False

    def write(self, count: int) -> None:
        head = records.full_head(Head(fairness_key="tenant"), records.stamp(1))
        body = b"\n$" + b"0" * records.ID_BYTES + b"\x1a"
        noise = os.urandom(self.size // 2)
        payload = (noise + b"x" * self.size)[: self.size]
        writes: list[Write] = []
        for _ in range(count):
            self.number += 1
            value = head + body + _length(len(payload)) + payload
            writes.append((Column.MESSAGES, records.message_key(1, self.number), value))
        self.storage.write(writes)

    async def produce(self) -> None:
        while not self.is_over:
            self.write(BATCH)
            await asyncio.sleep(PAUSE_S)

    async def watch(self) -> None:
        last_s = _clock_s()
        while not self.is_over:
            await asyncio.sleep(0.001)
            now_s = _clock_s()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s


def _clock_s() -> float:
    """Return the time without what the thread has waited for a processor."""
    waited_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.perf_counter() - waited_ns / 1e9


def _length(count: int) -> bytes:
    return bytes([count & 0x7F | 0x80, count >> 7]) if count > 0x7F else bytes([count])


def run(chosen: argparse.Namespace) -> None:
    asyncio.run(_run(chosen))


async def _run(chosen: argparse.Namespace) -> None:
    report = Report(f"backup with {chosen.mib} MiB stored, under load", chosen.json)
    with tempfile.TemporaryDirectory(prefix="fila-bench-", dir=os.getcwd()) as folder:
        data = str(Path(folder, "data"))
        storage = RocksStorage.open(data)
        queue = StoredQueue(number=1, name="backlog").SerializeToString()
        storage.write([(Column.QUEUES, records.queue_prefix(1), queue)])
        load = Load(storage, chosen.size)
        report.progress("filling")
        while load.number * chosen.size < chosen.mib * MIB:
            load.write(FILL)
            await asyncio.sleep(0)
        made: list[Progress] = []

        async def checkpoint() -> None:
            target = str(Path(folder, "checkpoint"))
            await _in_thread(lambda: Checkpoint(storage._db).create_checkpoint(target))

        async def backup() -> None:
            backups = Backups(storage, data, lambda: 0)
            async with aclosing(backups.make(Path(folder, "backups"))) as steps:
                made.extend([step async for step in steps])

        for what, act in (
            ("no backup", lambda: asyncio.sleep(WINDOW_S)),
            ("RocksDB's checkpoint", checkpoint),
            ("first backup", backup),
            ("second backup", backup),
        ):
            report.progress(what)
            took_s = await _measure(load, act)
            value = f"{load.longest_s * 1000:.0f} ms"
            copied = f", {made[-1].copied_bytes // MIB} MiB copied" if "backup" in what[4:] else ""
            report.add(
                f"longest pause, {what}",
                value,
                f"took {took_s:.1f} s{copied if made else ''}",
                **{what.replace(" ", "_").replace("'", "") + "_ms": load.longest_s * 1000},
            )
        storage.close()
    report.show()


async def _measure(load: Load, act: Callable[[], Awaitable[object]]) -> float:
    load.longest_s, load.is_over = 0.0, False
    tasks = [asyncio.create_task(load.produce()), asyncio.create_task(load.watch())]
    await asyncio.sleep(0.2)
    began_s = time.perf_counter()
    await act()
    took_s = time.perf_counter() - began_s
    load.is_over = True
    await asyncio.gather(*tasks)
    return took_s


async def _in_thread(work: Callable[[], object]) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run).start()
    await done.wait()
