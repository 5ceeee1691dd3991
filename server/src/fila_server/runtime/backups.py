# SPDX-License-Identifier: AGPL-3.0-only
"""Backups of the store while the broker runs: one at a time, by a process of its own.

Theory of operation. A thread lets RocksDB write out what is in memory, with the interpreter lock
released, so that the log is short and little is copied twice. Then a process copies the files and
reads the copy; see storage/backups. The owner's thread only passes on what that process says.

A caller that leaves ends the process, and a broker that dies does so, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from fila_server.errors import DiskFull, FilaError, Overloaded, ShuttingDown, StorageFailed
from fila_server.storage.api import Storage

log = logging.getLogger(__name__)

# How long a process may take to clear up after itself before it is killed.
_END_S = 30.0


class Progress(NamedTuple):
    """How far a backup is. The last one says what was made."""

    phase: str
    done_bytes: int = 0
    total_bytes: int = 0
    path: str = ""
    messages: int = 0
    copied_bytes: int = 0


class Backups:
    """Makes backups of the store in a data directory. `floor` says what must stay free there."""

    def __init__(self, storage: Storage, data_dir: str, floor: Callable[[], int]) -> None:
        self._storage = storage
        self._data_dir = data_dir
        self._floor = floor
        self._under_way = ""
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False

    async def make(self, directory: Path) -> AsyncGenerator[Progress, None]:
        """Make a backup in a directory, and say how far it is.

        Raises FilaError. Whoever no longer listens has to close the iterator.
        """
        if self._is_stopping:
            raise ShuttingDown("the broker is shutting down")
        if self._under_way:
            raise Overloaded(
                f"a backup to {self._under_way} is under way; try again when it is done"
            )
        self._under_way = str(directory)
        try:
            yield Progress("checkpoint")
            sequence = await self._write_out()
            async with aclosing(self._run(directory, sequence)) as steps:
                async for progress in steps:
                    yield progress
        except FilaError as error:
            log.warning("the backup to %s failed: %s", directory, error.message)
            raise
        finally:
            self._under_way = ""

    async def stop(self) -> None:
        """End a backup under way, and allow no more."""
        self._is_stopping = True
        if self._process is not None:
            await _end(self._process)

    async def _write_out(self) -> int:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int | StorageFailed] = loop.create_future()

        def tell(outcome: int | StorageFailed) -> None:
            if not done.done():  # else the caller has left
                done.set_result(outcome)

        def run() -> None:
            outcome: int | StorageFailed
            try:
                outcome = self._storage.write_out()
            except StorageFailed as error:
                outcome = error
            try:
                loop.call_soon_threadsafe(tell, outcome)
            except RuntimeError:
                pass  # the loop is closed: the broker has stopped meanwhile

        # Of its own, and not waited for at the end: the disk that it waits for may never answer.
        threading.Thread(target=run, name="fila-write-out", daemon=True).start()
        outcome = await done
        if isinstance(outcome, StorageFailed):
            raise outcome
        return outcome

    async def _run(self, directory: Path, sequence: int) -> AsyncGenerator[Progress, None]:
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # finds the broker's own modules, and none that lie where it was started
            "-m",
            "fila_server.storage.backups",
            self._data_dir,
            str(directory),
            str(sequence),
            str(self._floor()),
            stdin=asyncio.subprocess.PIPE,  # ends with the broker, and the process with it
            stdout=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if not name.startswith("FILA_")},
        )
        try:
            is_done = False
            assert process.stdout is not None
            while line := await process.stdout.readline():
                facts = json.loads(line)
                if "error" in facts:
                    kind = DiskFull if facts["reason"] == DiskFull.reason else StorageFailed
                    raise kind(facts["error"])
                is_done = facts["phase"] == "done"
                yield Progress(**facts)
            code = await process.wait()
            if self._is_stopping and not is_done:
                raise ShuttingDown("the broker is shutting down; nothing was kept of the backup")
            if not is_done:
                raise StorageFailed(
                    f"{directory}: the process that made the backup ended with exit code {code};"
                    " the broker's log has the details"
                )
        finally:
            self._process = None
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Have a process end, if it has not, and wait until it has cleared up."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        process.kill()
        await process.wait()
