# SPDX-License-Identifier: AGPL-3.0-only
"""Workers: handlers that run side by side, and one settlement for each outcome.

    taken --> handled --> settled       leases are extended until then
                 |
                 '--> too slow, or cut off by a stop: settled all the same, once

A worker decides no retries, the queue does; it keeps no state and needs no connection of its own.
`Worker` runs handlers in threads, `AsyncWorker` in tasks.
"""

import asyncio
import logging
import math
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from fila import _wire, tracing
from fila._bulk import ack_many, ack_many_async, send_many, send_many_async
from fila._leases import Frame
from fila._outcomes import (
    ACKED,
    GIVEN_BACK,
    Backpressure,
    Common,
    DeadLetter,
    Entry,
    Handling,
    Options,
    Outcome,
    WorkerEvent,
    outcome_of,
    signals_stop,
    split,
    taken,
    timed_out,
)
from fila._reader import SIGNALS_S, AsyncReader, Reader
from fila.errors import FilaError
from fila.message import AsyncConsumeMessage, ConsumeMessage, is_settled

if TYPE_CHECKING:
    from fila.aio import AsyncClient
    from fila.client import Client

__all__ = ["AsyncWorker", "Backpressure", "DeadLetter", "Options", "Worker", "WorkerEvent"]

# As many requests as the client has under way of a kind.
_SETTLERS = 2

_log = logging.getLogger("fila")


class Worker(Common):
    """Handles messages of a queue in threads, until it is stopped. Made by `Client.worker`."""

    def __init__(self, client: "Client", options: Options) -> None:
        super().__init__(options)
        self._client = client
        self._connection = client._connection
        self._connection.has_workers = True
        self._reader = Reader(self._connection, client._keeper, options.queue, options.request())
        self._failure: BaseException | None = None
        self._at_work = 0  # threads that have not ended
        self._stuck = 0  # of these: in handlers that are settled already
        self._is_over = False
        # What the thread in `run` should look at: a stop, a thread that ended.
        self._news: SimpleQueue[str] = SimpleQueue()
        self._finished: SimpleQueue[tuple[Handling, Outcome] | None] = SimpleQueue()

    def stop(self, grace: float | None = None) -> None:
        """Takes no more messages; handlers get `grace` seconds to finish, unless told otherwise
        those of the worker. Does not wait, and may be called from anywhere, a signal handler too.
        """
        self._shorten(grace)
        self._reader.stop()
        self._news.put("stop")

    def run(self, *, signals: bool = True) -> None:
        """Handles messages until the worker is stopped and all is settled.

        In the main thread SIGTERM and SIGINT stop it, unless `signals` is false. Raises what ends a
        consumer, such as QueueNotFoundError, once its handlers are done.
        """
        self._begin()
        self._connection.check_open()
        settlers = [
            threading.Thread(target=self._settle_all, name="fila-settler", daemon=True)
            for _ in range(_SETTLERS)
        ]
        with signals_stop(self.stop, signals):
            try:
                for settler in settlers:
                    settler.start()
                for _ in range(self._options.concurrency):
                    self._at_work += 1
                    threading.Thread(target=self._work, name="fila-worker", daemon=True).start()
                self._watch()
            except BaseException:
                self.stop(0)
                raise
            finally:
                self._wind_up(settlers)
        if self._failure is not None:
            raise self._failure

    def _watch(self) -> None:
        """Looks after slow handlers until a stop, or until the threads are done."""
        while self._stops_at == math.inf and (self._is_busy or not self._reader.is_closed):
            self._hear(self._until_timeout())

    @property
    def _is_busy(self) -> bool:
        return self._at_work > self._stuck

    def _until_timeout(self) -> float | None:
        timeout = self._options.handler_timeout
        if timeout is None:
            return None
        now = time.monotonic()
        soonest = now + timeout  # of a handler that starts now
        for handling in list(self._open):
            if handling.ends_at <= now:
                if self._claim(handling):
                    self._stuck += 1
                    outcome = timed_out(timeout)
                    self._tell("timed_out", handling, outcome.error)
                    self._finished.put((handling, outcome))
            else:
                soonest = min(soonest, handling.ends_at)
        return soonest - now

    def _hear(self, timeout: float | None) -> None:
        timeout = SIGNALS_S if timeout is None else min(max(timeout, 0), SIGNALS_S)
        with suppress(Empty):
            news = self._news.get(timeout=timeout)
            self._at_work -= news == "ended"
            self._stuck -= news == "freed"

    def _wind_up(self, settlers: list[threading.Thread]) -> None:
        Reader.close_all([self._reader])
        while self._is_busy and self._stops_at > time.monotonic():
            soonest = self._until_timeout()
            left = self._stops_at - time.monotonic()
            waits = left if soonest is None else min(left, soonest)
            self._hear(waits if waits < math.inf else None)
        self._is_over = True
        for handling in list(self._open):
            if self._claim(handling):
                self._finished.put((handling, GIVEN_BACK))
        for _ in settlers:
            self._finished.put(None)
        for settler in settlers:
            if settler.ident is not None:
                settler.join()

    # --- In threads of handlers -------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (handling := self._next()) is not None:
                self._handle(handling)
        except BaseException as error:
            self._failure = self._failure or error
            self._reader.stop()
        finally:
            self._news.put("ended")

    def _next(self) -> Handling | None:
        """What to handle next; None at the end. Raises what the consumer ended with."""
        options, reader = self._options, self._reader
        messages: list[ConsumeMessage] = []
        frames: list[Frame] = []
        while not reader.is_closed:
            try:
                found = taken(reader)
            except IndexError:
                if not messages:
                    reader.wait()
                elif not reader.is_ready():
                    break
                continue
            if found is not None:
                frame, raw = found
                frames.append(frame)
                messages.append(ConsumeMessage(raw, self._client, frame.size, frame.shared))
                if len(messages) >= (options.batch_size or 1):
                    break
        if not messages:
            return None
        handling = Handling(messages, frames, options.handler_timeout)
        self._open[handling] = None
        if self._is_over and self._claim(handling):  # the grace ended while it was on its way
            self._settle([(handling, GIVEN_BACK)])
            return None
        return handling

    def _handle(self, handling: Handling) -> None:
        outcome = ACKED
        try:
            with tracing.processing_all(handling.messages):
                self._call(self._argument(handling))
        except BaseException as error:
            outcome = outcome_of(error)
        if self._claim(handling):
            self._finished.put((handling, outcome))
        else:
            self._news.put("freed")

    # --- In threads that settle -------------------------------------------------------------------

    def _settle_all(self) -> None:
        while (first := self._finished.get()) is not None:
            batch = [first]
            is_last = False
            with suppress(Empty):
                while len(batch) < _wire.BATCH_ITEMS_MAX:
                    more = self._finished.get_nowait()
                    if more is None:
                        is_last = True
                        break
                    batch.append(more)
            try:
                self._settle(batch)
            except Exception:
                _log.exception("settling messages of queue %r failed", self._options.queue)
            if is_last:
                return

    def _settle(self, batch: list[tuple[Handling, Outcome]]) -> None:
        acks, nacks = split(batch)
        for entries, is_ack in ((acks, True), (nacks, False)):
            if not entries:
                continue
            try:
                outcomes = self._client._calls.see_through(
                    lambda entries=entries, is_ack=is_ack: self._send(entries, is_ack)  # type: ignore[misc]
                )
            except FilaError as failure:
                outcomes = [failure] * len(entries)
            for (handling, outcome, message), error in zip(entries, outcomes, strict=True):
                self._settled(handling, outcome, message, error)
        for handling, _ in batch:
            self._let_go(self._reader, handling)

    def _send(self, entries: list[Entry], is_ack: bool) -> list[FilaError | None]:
        if is_ack:
            return ack_many(self._connection, [message for _, _, message in entries], None)
        items = [outcome.nack(message) for _, outcome, message in entries]
        return send_many(self._connection, _wire.NACK, items, None)


class AsyncWorker(Common):
    """Handles messages of a queue in tasks, until it is stopped. Made by `AsyncClient.worker`."""

    def __init__(self, client: "AsyncClient", options: Options) -> None:
        super().__init__(options)
        self._client = client
        self._connection = client._connection
        self._connection.has_workers = True
        self._reader = AsyncReader(
            self._connection, client._keeper, options.queue, options.request()
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._settling: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(options.in_flight)

    def stop(self, grace: float | None = None) -> None:
        """Takes no more messages; handlers get `grace` seconds to finish, unless told otherwise
        those of the worker. Does not wait, and may be called from anywhere, a signal handler too.
        """
        self._shorten(grace)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopped)

    def _stopped(self) -> None:
        self._reader.stop()
        self._news.set()

    async def run(self, *, signals: bool = True) -> None:
        """Handles messages until the worker is stopped and all is settled.

        In the main thread SIGTERM and SIGINT stop it, unless `signals` is false. Raises what ends a
        consumer, such as QueueNotFoundError, once its handlers are done. Cancelling it ends the
        grace.
        """
        self._begin()
        self._connection.check_open()
        self._loop = asyncio.get_running_loop()
        if self._stops_at < math.inf:
            self._stopped()
        with signals_stop(self.stop, signals):
            workers = [
                self._loop.create_task(self._work()) for _ in range(self._options.concurrency)
            ]
            for worker in workers:
                worker.add_done_callback(lambda _: self._news.set())
            try:
                while self._stops_at == math.inf and not all(it.done() for it in workers):
                    self._news.clear()
                    await self._news.wait()
            except asyncio.CancelledError:
                self._shorten(0)
                raise
            finally:
                await self._wind_up(workers)
        for worker in workers:
            if (
                worker.done()
                and not worker.cancelled()
                and (failure := worker.exception()) is not None
            ):
                raise failure

    async def _wind_up(self, workers: list[asyncio.Task[None]]) -> None:
        closing = asyncio.create_task(AsyncReader.close_all([self._reader]))
        try:
            while not all(it.done() for it in workers) and self._stops_at > time.monotonic():
                self._news.clear()
                left = self._stops_at - time.monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left if left < math.inf else None):
                        await self._news.wait()
        finally:
            for handling in list(self._open):
                self._cut_off(handling, GIVEN_BACK)
            await asyncio.wait([closing, *self._settling])

    async def _work(self) -> None:
        try:
            while (handling := await self._next()) is not None:
                await self._handle(handling)
        except BaseException:
            self._reader.stop()
            raise

    async def _next(self) -> Handling | None:
        """What to handle next; None at the end. Raises what the consumer ended with."""
        options, reader = self._options, self._reader
        messages: list[AsyncConsumeMessage] = []
        frames: list[Frame] = []
        while not reader.is_closed:
            try:
                found = taken(reader)
            except IndexError:
                if not messages:
                    await reader.wait()
                elif not reader.is_ready():
                    break
                continue
            if found is not None:
                frame, raw = found
                frames.append(frame)
                messages.append(AsyncConsumeMessage(raw, self._client, frame.size, frame.shared))
                if len(messages) >= (options.batch_size or 1):
                    break
        if not messages:
            return None
        handling = Handling(messages, frames, options.handler_timeout)
        handling.task = asyncio.current_task()
        self._open[handling] = None
        return handling

    async def _handle(self, handling: Handling) -> None:
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        timeout = self._options.handler_timeout
        if timeout is not None:
            timer = loop.call_later(timeout, self._cut_off, handling, timed_out(timeout))
        outcome = ACKED
        try:
            with tracing.processing_all(handling.messages):
                await self._call(self._argument(handling))
        except (Exception, asyncio.CancelledError) as error:
            outcome = outcome_of(error)
        finally:
            if timer is not None:
                timer.cancel()
        task = handling.task
        is_ours = self._claim(handling)
        if not is_ours and task is not None:
            task.uncancel()  # it was cut off, and that is over
        elif isinstance(outcome.error, asyncio.CancelledError) and task and task.cancelling():
            self._finish(handling, GIVEN_BACK)
            raise outcome.error  # by somebody else: the loop ends
        else:
            self._finish(handling, outcome)

    def _cut_off(self, handling: Handling, outcome: Outcome) -> None:
        """Ends a handler that still runs; what it gives is ignored."""
        if self._claim(handling):
            if outcome is not GIVEN_BACK:
                self._tell("timed_out", handling, outcome.error)
            self._finish(handling, outcome)
            if handling.task is not None:
                handling.task.cancel()

    def _finish(self, handling: Handling, outcome: Outcome) -> None:
        task = asyncio.get_running_loop().create_task(self._settle(handling, outcome))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, handling: Handling, outcome: Outcome) -> None:
        try:
            async with self._room:
                messages = [it for it in handling.messages if not is_settled(it)]
                try:
                    errors = await self._send(messages, outcome)
                except FilaError as failure:
                    errors = [failure] * len(messages)
            for message, error in zip(messages, errors, strict=True):
                self._settled(handling, outcome, message, error)
        finally:
            self._let_go(self._reader, handling)

    async def _send(
        self, messages: list[AsyncConsumeMessage], outcome: Outcome
    ) -> list[FilaError | None]:
        calls = self._client._calls
        if len(messages) == 1:
            (message,) = messages
            if outcome is ACKED:
                await calls.send(calls.acks, lambda: _wire.ack_message_item(message), None)
            else:
                await calls.send(calls.nacks, lambda: outcome.nack(message), None)
            return [None]
        if outcome is ACKED:
            return await calls.see_through(lambda: ack_many_async(self._connection, messages, None))
        items = [outcome.nack(message) for message in messages]
        return await calls.see_through(
            lambda: send_many_async(self._connection, _wire.NACK, items, None)
        )
