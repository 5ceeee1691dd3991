# SPDX-License-Identifier: AGPL-3.0-only
"""The engine: owns the broker, the clock and the store, and turns waiting commands into commits.

Theory of operation. Commands wait in the inbox. A turn of the event loop takes all of them, lets
the core handle them as one group, writes the group's batch without fsync, hands frames to
consumers, and answers what needs no fsync. The rest is answered when the flusher reports. While a
turn or an fsync is under way the next group piles up, so groups grow with load and an idle broker
answers at once.

A store that fails stops the engine for good: memory is ahead of the disk then, and only a restart
brings them together again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fila_server.config import Config
from fila_server.core.access import Keyring
from fila_server.core.broker import Broker
from fila_server.core.clock import NS_PER_S, Now
from fila_server.core.commands import (
    Ack,
    Admin,
    Command,
    Enqueue,
    Extend,
    Nack,
    Ticket,
)
from fila_server.core.effects import Effects
from fila_server.core.recovery import Recovered
from fila_server.core.state import HookFactory
from fila_server.errors import DiskFull, FilaError, Overloaded, ShuttingDown, StorageFailed
from fila_server.runtime.flusher import Flusher
from fila_server.runtime.sink import Sink
from fila_server.storage.api import Storage

log = logging.getLogger(__name__)

# Messages that one group may touch. Past this a group holds up the others that wait for the loop.
_GROUP_ITEMS = 20_000
_DISK_CHECK_S = 1.0
_Items = (Enqueue, Ack, Nack, Extend)


@dataclass(slots=True)
class Timing:
    """Where the owner thread's CPU time went, in nanoseconds; read by the benchmark."""

    core_ns: int = 0
    storage_ns: int = 0
    groups: int = 0
    items: int = 0


def read_clocks() -> Now:
    return Now(time.monotonic_ns(), time.time_ns())


class Engine:
    """The single owner. Everything but `Flusher` runs on the event loop's thread."""

    def __init__(
        self,
        config: Config,
        storage: Storage,
        compile_hooks: HookFactory,
        nonce: int,
        clock: Callable[[], Now] = read_clocks,
    ) -> None:
        self._config = config
        self._storage = storage
        self._clock = clock
        self._broker = Broker(config, storage, compile_hooks, nonce)
        self._flusher = Flusher(storage)
        self._inbox: list[Command] = []
        self._sinks: set[Sink] = set()
        self._waiting = 0  # answers owed: bounds memory under overload
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._disk_timer: asyncio.TimerHandle | None = None
        self._interval_timer: asyncio.TimerHandle | None = None
        self._unsynced = False
        self._disk_full = False
        self._closing = False
        self._is_stopped = False
        self.failure: StorageFailed | None = None
        self.failed = asyncio.Event()  # set when the store failed and the process must end
        self.timing = Timing()

    # --- Life -------------------------------------------------------------------------------------

    def start(self) -> Recovered:
        """Rebuild memory from the store and begin to take commands."""
        self._loop = asyncio.get_running_loop()
        recovered, writes = self._broker.recover(self._clock())
        if writes:
            self._storage.write(writes)
        self._flusher.start()
        self._check_disk()
        if self._config.storage.sync == "interval":
            self._sync_later()
        self._schedule()
        return recovered

    @property
    def keyring(self) -> Keyring:
        """The API keys, to be looked at on the owner's thread and changed by commands only."""
        return self._broker.state.keyring

    def close_consumers(self) -> None:
        """Refuse further commands and end every stream, so that the server can stop."""
        self._closing = True
        for sink in list(self._sinks):
            sink.close(ShuttingDown("the broker is shutting down"))

    def stop(self) -> None:
        """Handle what waits, make it durable, release the store. Harmless twice."""
        if self._is_stopped:
            return
        self._closing = True
        for timer in (self._timer, self._disk_timer, self._interval_timer):
            if timer is not None:
                timer.cancel()
        while self._inbox and self.failure is None:
            self._turn()
        self._is_stopped = True
        if self._timer is not None:  # the last turn set it again
            self._timer.cancel()
        self._flusher.stop()
        if self.failure is None:
            self._storage.close()

    # --- Commands ---------------------------------------------------------------------------------

    async def ask(self, make: Callable[[Ticket], Command]) -> Any:
        """Hand in a command and return its answer.

        Raises FilaError for one that was refused as a whole.
        """
        if self.failure is not None:
            raise self.failure
        if self._closing:
            raise ShuttingDown("the broker is shutting down")
        if self._waiting >= self._config.scheduler.inbox_max:
            raise Overloaded(f"{self._waiting} requests are waiting already; try again later")
        future: asyncio.Future[Any] = self._loop.create_future()
        command = make(future)
        if self._disk_full and isinstance(command, Enqueue):
            raise DiskFull("the data volume is almost full; free some space, or consume messages")
        self._waiting += 1
        try:
            self.tell(command)
            answer = await future
        finally:
            self._waiting -= 1
        if isinstance(answer, FilaError):
            raise answer
        return answer

    def tell(self, command: Command) -> None:
        """Hand in a command that is not answered, or whose ticket the caller waits for."""
        self._inbox.append(command)
        self._schedule()

    def attach(self, sink: Sink) -> None:
        """Let the sink know when the broker ends, be it that it has ended already."""
        self._sinks.add(sink)
        if self.failure is not None:
            sink.close(self.failure)
        elif self._closing:
            sink.close(ShuttingDown("the broker is shutting down"))

    def detach(self, sink: Sink) -> None:
        self._sinks.discard(sink)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    # --- One turn ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._scheduled = False
        if self._is_stopped:
            return
        if self.failure is not None:
            self._refuse_all()
            return
        group = self._take_group()
        try:
            self._commit(group)
        except StorageFailed as error:
            self._give_up(group, error)
            return
        except Exception:
            log.exception("a defect in the core; the broker stops, so that memory and disk agree")
            self._give_up(
                group, StorageFailed("the broker met a defect of its own and stopped; see its log")
            )
            return
        if self._inbox:
            self._schedule()
        self._set_timer()

    def _take_group(self) -> Sequence[Command]:
        """Take what waits, up to a size.

        An Admin command may read the store, so it is a group of its own.
        """
        inbox = self._inbox
        items = 0
        for count, command in enumerate(inbox):
            if isinstance(command, Admin):
                count = max(count, 1)
                break
            if isinstance(command, _Items):
                items += len(command.items)
                if items > _GROUP_ITEMS and count:
                    break
        else:
            self._inbox = []
            self.timing.items += items
            return inbox
        self.timing.items += items
        group, self._inbox = inbox[:count], inbox[count:]
        return group

    def _commit(self, group: Sequence[Command]) -> None:
        timing = self.timing
        began = time.thread_time_ns()
        effects = self._broker.handle(group, self._clock())
        handled = time.thread_time_ns()
        if effects.writes:
            self._storage.write(effects.writes)
            self._unsynced = True
        timing.core_ns += handled - began
        timing.storage_ns += time.thread_time_ns() - handled
        timing.groups += 1
        for consumer, grant, frame in effects.frames:
            consumer.sink.put(grant, frame)  # type: ignore[attr-defined]
        for consumer, error in effects.closed:
            consumer.sink.close(error)  # type: ignore[attr-defined]
        _answer(effects.answers)
        if effects.durable_answers:
            self._answer_durably(effects)
        self._inbox.extend(effects.resume)

    def _answer_durably(self, effects: Effects) -> None:
        answers = effects.durable_answers
        if self._config.storage.sync != "always":
            _answer(answers)
            return
        self._unsynced = False
        loop = self._loop

        def done(failure: StorageFailed | None) -> None:
            loop.call_soon_threadsafe(self._synced, answers, failure)

        self._flusher.flush(done)

    def _synced(self, answers: list[tuple[Ticket, Any]], failure: StorageFailed | None) -> None:
        if failure is None:
            _answer(answers)
        else:
            _answer([(ticket, failure) for ticket, _ in answers])
            self._fail(failure)

    def _set_timer(self) -> None:
        """Wake up when something happens by itself: a lease ends, a bucket refills."""
        if self._timer is not None:
            self._timer.cancel()
        wait_ns = self._broker.next_wake_ns() - self._clock().mono_ns
        self._timer = self._loop.call_later(max(0, wait_ns) / NS_PER_S, self._schedule)

    # --- Failure ----------------------------------------------------------------------------------

    def _give_up(self, group: Sequence[Command], error: StorageFailed) -> None:
        """Fail while a group is handled: whoever in it was not answered learns of it too."""
        self._inbox[:0] = group
        self._fail(error)

    def _fail(self, error: StorageFailed) -> None:
        if self.failure is None:
            self.failure = error
            log.error("the store failed: %s", error.message)
        for sink in list(self._sinks):
            sink.close(self.failure)
        self._refuse_all()
        self.failed.set()

    def _refuse_all(self) -> None:
        inbox, self._inbox = self._inbox, []
        for command in inbox:
            ticket = getattr(command, "ticket", None)
            if ticket is not None:
                _answer([(ticket, self.failure)])

    def _check_disk(self) -> None:
        try:
            is_full = self._storage.free_bytes() < self._config.storage.min_free_bytes
        except StorageFailed as error:
            self._fail(error)
            return
        if is_full != self._disk_full:
            self._disk_full = is_full
            if is_full:
                log.warning("the data volume is almost full: enqueues are refused")
            else:
                log.info("the data volume has space again: enqueues are accepted")
        self._disk_timer = self._loop.call_later(_DISK_CHECK_S, self._check_disk)

    def _sync_later(self) -> None:
        """`storage.sync = "interval"`: make durable what was written since the last time."""
        if self._unsynced:
            self._unsynced = False

            def done(failure: StorageFailed | None) -> None:
                if failure is not None:
                    self._loop.call_soon_threadsafe(self._fail, failure)

            self._flusher.flush(done)
        interval_s = self._config.storage.sync_interval_ms / 1000
        self._interval_timer = self._loop.call_later(interval_s, self._sync_later)


def _answer(answers: list[tuple[Ticket, Any]]) -> None:
    for ticket, answer in answers:
        if not ticket.done():
            ticket.set_result(answer)
