# SPDX-License-Identifier: AGPL-3.0-only
"""The Python driver: `driver.py sync` drives `fila.Client`, `driver.py async` `fila.AsyncClient`.

Requests are turned into calls in operations.py, once for both clients. This module owns what
differs: where a request runs, how calls run side by side, and how one consumer is read.
"""

import asyncio
import contextvars
import inspect
import json
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from handlers import Workshop
from operations import Operations, Unsupported, error_of

import fila

# Keeps what a reader took, and says whether that was the last message that is wanted.
Take = Callable[[int, Any], bool]

_FEATURES = (
    *("tracing", "mtls", "admin", "nack_many", "error_fields", "around"),
    *("shared_consumer", "ill_formed_text"),
)


class Replies:
    """The real standard output; anything else that is printed goes to standard error."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._lock = threading.Lock()
        os.dup2(2, 1)

    def write(self, reply: dict[str, Any]) -> None:
        line = json.dumps(reply, separators=(",", ":")) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()


class Sync:
    """One thread per request, as a program of many threads would have it."""

    client = fila.Client
    features = _FEATURES

    def __init__(self, replies: Replies) -> None:
        self.operations = Operations(self)
        self._replies = replies

    def run(self) -> None:
        for line in sys.stdin:
            request = json.loads(line)
            threading.Thread(target=self._serve, args=(request,), daemon=True).start()

    def _serve(self, request: dict[str, Any]) -> None:
        self._replies.write(drive(answer(self.operations, request)))

    async def gather(self, calls: list[Callable[[], Any]]) -> list[Any]:
        def attempt(call: Callable[[], Any], context: contextvars.Context) -> Any:
            try:
                return context.run(call)
            except fila.FilaError as error:
                return error

        with ThreadPoolExecutor(max_workers=max(1, len(calls))) as pool:
            work = [pool.submit(attempt, call, contextvars.copy_context()) for call in calls]
            return [item.result() for item in work]

    def handler(self, shop: Workshop) -> Callable[[Any], Any]:
        return shop.handle

    def start(self, worker: Any) -> Callable[[], Any]:
        """Runs a worker; what is returned waits for its end and raises what it failed with."""
        failures: list[Exception] = []

        def run() -> None:
            try:
                worker.run()
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def end() -> None:
            thread.join()
            if failures:
                raise failures[0]

        return end

    async def blocking(self, wait: Callable[[], Any]) -> Any:
        return wait()

    def reader(self, consumer: Any) -> "Pump":
        return Pump(consumer)

    async def share(self, consumer: Any, readers: int, take: Take, seconds: float) -> None:
        """Lets threads take messages until `take` says that it is the last, or time is over."""
        changed = threading.Condition()
        failures: list[Exception] = []
        is_over = False

        def read(reader: int) -> None:
            nonlocal is_over
            try:
                for message in consumer:
                    with changed:
                        is_over = take(reader, message) or is_over
                        changed.notify_all()
                        if is_over:
                            return
            except Exception as error:
                with changed:
                    failures.append(error)
                    changed.notify_all()

        for reader in range(readers):
            threading.Thread(target=read, args=(reader,), daemon=True).start()
        with changed:
            changed.wait_for(lambda: is_over or failures, seconds)
            is_over = True
            if failures:
                raise failures[0]

    def cancel(self, target: int) -> None:
        raise Unsupported("a blocking call of the Python SDK cannot be cancelled")


class Pump:
    """Reads a blocking consumer with a time limit: a thread takes a message only on demand."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._changed = threading.Condition()
        self._taken: deque[Any] = deque()
        self._wanted = 0
        self._is_over = False
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while not self._is_over:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted > 0)
            try:
                item: Any = next(self._consumer)
            except StopIteration:
                item = None
            except Exception as error:
                item = error
            with self._changed:
                self._wanted = max(0, self._wanted - 1)
                self._is_over = item is None or isinstance(item, Exception)
                self._taken.append(item)
                self._changed.notify_all()

    async def next(self, seconds: float) -> Any:
        """A message, None at the end of the stream, or an error; TimeoutError when it is late."""
        with self._changed:
            self._wanted = 0 if self._taken or self._is_over else 1
            self._changed.notify_all()
            is_there = self._changed.wait_for(lambda: self._taken or self._is_over, seconds)
            self._wanted = 0
            if not is_there:
                raise TimeoutError
            return self._taken.popleft() if self._taken else None


class Async:
    """One task per request, all in one event loop."""

    client = fila.AsyncClient
    features = (*_FEATURES, "cancel")

    def __init__(self, replies: Replies) -> None:
        self.operations = Operations(self)
        self._replies = replies
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting = ThreadPoolExecutor(32)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[str] = asyncio.Queue()

        def read() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

        threading.Thread(target=read, daemon=True).start()
        while line := await lines.get():
            request = json.loads(line)
            self._tasks[request["id"]] = asyncio.create_task(self._serve(request))
        os._exit(0)

    async def _serve(self, request: dict[str, Any]) -> None:
        try:
            self._replies.write(await answer(self.operations, request))
        finally:
            self._tasks.pop(request["id"], None)

    async def gather(self, calls: list[Callable[[], Any]]) -> list[Any]:
        tasks = [asyncio.ensure_future(call()) for call in calls]
        return await asyncio.gather(*tasks, return_exceptions=True)

    def handler(self, shop: Workshop) -> Callable[[Any], Any]:
        return shop.handle_async

    def start(self, worker: Any) -> Callable[[], Any]:
        """Runs a worker; what is returned waits for its end and raises what it failed with."""
        task = asyncio.create_task(worker.run(signals=False))

        async def end() -> None:
            await task

        return end

    async def blocking(self, wait: Callable[[], Any]) -> Any:
        # Not the loop's own threads: those are few, and others wait for them, too.
        return await asyncio.get_running_loop().run_in_executor(self._waiting, wait)

    def reader(self, consumer: Any) -> "Reader":
        return Reader(consumer)

    async def share(self, consumer: Any, readers: int, take: Take, seconds: float) -> None:
        """Lets tasks take messages until `take` says that it is the last, or time is over."""

        async def read(reader: int) -> None:
            async for message in consumer:
                if take(reader, message):
                    return

        tasks = [asyncio.create_task(read(reader)) for reader in range(readers)]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for task in done:
            task.result()

    def cancel(self, target: int) -> None:
        if (task := self._tasks.get(target)) is not None:
            task.cancel()


class Reader:
    """Reads an awaiting consumer with a time limit."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    async def next(self, seconds: float) -> Any:
        try:
            return await asyncio.wait_for(anext(self._consumer, None), seconds)
        except fila.FilaError as error:
            return error


async def answer(operations: Operations, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request, whatever happens."""
    reply: dict[str, Any] = {"id": request["id"]}
    try:
        reply["ok"] = await operations.run(request)
    except fila.FilaError as error:
        reply["error"] = error_of(error)
    except asyncio.CancelledError:
        reply["error"] = {"kind": "cancelled", "message": "cancelled", "retryable": False}
    except Unsupported as why:
        reply["unsupported"] = str(why)
    except Exception:
        reply["crashed"] = traceback.format_exc()
    return reply


def drive(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Runs a coroutine whose calls all block, so that it never has anything to wait for."""
    try:
        work.send(None)
    except StopIteration as done:
        return dict(done.value)
    assert not inspect.iscoroutine(work), "a blocking client returned something to await"
    return {}


def main() -> None:
    flavours: dict[str, type[Sync] | type[Async]] = {"sync": Sync, "async": Async}
    if len(sys.argv) != 2 or sys.argv[1] not in flavours:
        sys.exit("usage: driver.py sync|async")
    flavours[sys.argv[1]](Replies()).run()
    # Whatever is open: a thread that waits for a message would keep the process alive.
    os._exit(0)


if __name__ == "__main__":
    main()
