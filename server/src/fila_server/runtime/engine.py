# SPDX-License-Identifier: AGPL-3.0-only
"""The engine: owns the broker, the clock and the store, and turns waiting commands into commits.

Theory of operation. Commands wait in the inbox. A turn of the event loop takes a group of them,
lets the core handle it, writes the group's batch without fsync, hands frames to consumers, and
answers what needs no fsync. The rest is answered when the flusher reports. While a turn or an fsync
is under way the next group piles up, so groups grow with load and an idle broker answers at once.

A call takes several rounds of the loop. So while somebody asks for little, heavy work rests after a
turn for as long as the turn took, and the loop goes round freely meanwhile.

The core knows tickets and consumers by number. Whoever waits behind a number is kept here.

A store that fails stops the engine for good: memory is ahead of the disk then, and only a restart
brings them together again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from fila_server.config import Config
from fila_server.core.access import Keyring
from fila_server.core.broker import Broker
from fila_server.core.clock import NS_PER_MS, NS_PER_S, Now
from fila_server.core.commands import (
    CloseConsumer,
    Command,
    FrameTaken,
    OpenConsumer,
    Ticket,
)
from fila_server.core.recovery import Recovered
from fila_server.core.schedule.queue import Queue
from fila_server.core.state import HookFactory, State
from fila_server.core.turn import BRIEF, FULL, SHARED, Room
from fila_server.errors import FilaError, Overloaded, ShuttingDown, StorageFailed
from fila_server.limits import PEEKS_MAX
from fila_server.runtime.backups import Backups
from fila_server.runtime.disk import Disk
from fila_server.runtime.figures import Figures
from fila_server.runtime.flusher import Flusher
from fila_server.runtime.inbox import Inbox, count
from fila_server.runtime.sink import Sink
from fila_server.runtime.status import Status
from fila_server.storage.api import Figures as StoreFigures
from fila_server.storage.api import Storage

log = logging.getLogger(__name__)

# So long after a light command heavy work leaves room for the next one.
_ATTENTIVE_S = 0.05

# What takes an answer, or the FilaError by which a command is refused as a whole; it never raises.
Reply = Callable[[Any], None]


@dataclass(slots=True)
class _Asked:
    """A command that waits for its answer."""

    reply: Reply
    size: int  # of its messages
    callers: int  # that are still there


class Lasting(Protocol):
    """A call that may last for ever."""

    def close(self, error: FilaError) -> None:
        """End it with an error, soon."""


Answers = list[tuple[_Asked, Any]]


@dataclass(slots=True)
class Timing:
    """Where the owner thread's time went, in nanoseconds; read by the benchmark."""

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
        self.figures = Figures()
        self.status = Status(config, self)
        self._flusher = Flusher(storage, self.figures.fsync_ms)
        self.disk = Disk(storage, config.storage.min_free_bytes, self._fail)
        self.backups = Backups(storage, config.server.data_dir, lambda: self.disk.floor)
        self._inbox = Inbox()
        self._has_more = False  # the core left work over
        self._numbers = itertools.count(1)  # of tickets and consumers
        self._asked: dict[Ticket, _Asked] = {}  # not answered by the core yet
        self._asked_bytes = 0
        self._waiting = 0  # callers that wait for an answer
        self._sinks: dict[int, Sink] = {}
        self.lasting: set[Lasting] = set()  # other calls that end with the engine
        self.peeks = asyncio.Semaphore(PEEKS_MAX)  # held by callers of large answers
        self._scheduled = False
        self._rest: asyncio.TimerHandle | None = None  # from heavy work
        self._attentive_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._interval_timer: asyncio.TimerHandle | None = None
        self._unsynced = False
        self._closing = False
        self._is_stopped = False
        self.failure: StorageFailed | None = None
        self.failed = asyncio.Event()  # set when the store failed and the process must end
        self.timing = Timing()

    # --- Life -------------------------------------------------------------------------------------

    def start(self) -> Recovered:
        """Rebuild memory from the store and begin to take commands. Raises StorageFailed."""
        self._loop = asyncio.get_running_loop()
        recovered, writes = self._broker.recover(self._clock())
        try:
            self._storage.write(writes)
            self._storage.sync()
        except StorageFailed as error:
            self._fail(error)
            raise
        self._flusher.start()
        self.disk.start()
        if self._config.storage.sync == "interval":
            self._sync_later()
        self._schedule()
        return recovered

    @property
    def keyring(self) -> Keyring:
        """The API keys, to be looked at on the owner's thread and changed by commands only."""
        return self._broker.state.keyring

    @property
    def state(self) -> State:
        """All that the broker knows, to be looked at on the owner's thread and changed by commands
        only.
        """
        return self._broker.state

    def now_ns(self) -> int:
        """Return the monotonic time that the core goes by."""
        return self._clock().mono_ns

    @property
    def inbox_bytes(self) -> int:
        """The size of the requests that wait, or are under way in the core."""
        return self._asked_bytes

    def stored(self) -> StoreFigures:
        """Return how large the store is, in milliseconds; all zero once it has failed."""
        try:
            return self._storage.figures()
        except StorageFailed:
            return StoreFigures(0, 0, 0, 0, 0)

    @property
    def unready(self) -> str:
        """Why the broker should get no more to do, for probes; empty while all is well."""
        if self.failure is not None:
            return f"the store failed: {self.failure.message}"
        if self._closing:
            return "the broker is shutting down"
        if self.disk.is_low:
            return self.disk.refusal().message
        return ""

    def queue(self, name: str) -> Queue | None:
        """Return a queue, to be looked at on the owner's thread and changed by commands only."""
        return self._broker.state.queues.get(name)

    def close_consumers(self) -> None:
        """Refuse further commands and end every stream, so that the server can stop."""
        self._closing = True
        self._end_streams(ShuttingDown("the broker is shutting down"))

    def stop(self) -> None:
        """Handle what waits, make it durable, release the store. Harmless twice."""
        if self._is_stopped:
            return
        self._closing = True
        self.disk.stop()
        for timer in (self._timer, self._interval_timer, self._rest):
            if timer is not None:
                timer.cancel()
        self._attentive_until_s = 0.0  # nobody else is to be served
        self._rest = None
        while self._has_work and self.failure is None:
            self._turn()
        self._is_stopped = True
        if self._timer is not None:  # the last turn set it again
            self._timer.cancel()
        if self.failure is None:
            self._flusher.stop()
            self._storage.close()
        else:
            self._flusher.abandon()

    # --- Commands ---------------------------------------------------------------------------------

    async def ask(self, make: Callable[[Ticket], Command], size: int = 0) -> Any:
        """Hand in a command and return its answer.

        `size` is that of its messages in bytes. Raises FilaError for one that is refused as a
        whole.
        """
        future = self._loop.create_future()
        asked = self.submit(make, partial(_resolve, future), size)
        try:
            answer = await future
        except asyncio.CancelledError:
            self._waiting -= asked.callers
            asked.callers = 0
            raise
        if isinstance(answer, FilaError):
            raise answer
        return answer

    def submit(
        self, make: Callable[[Ticket], Command], reply: Reply, size: int = 0, callers: int = 1
    ) -> _Asked:
        """Hand in a command, of as many callers as share it; `reply` gets its answer.

        Raises FilaError for one that is refused at the door.
        """
        if self.failure is not None:
            raise self.failure
        if self._closing:
            raise ShuttingDown("the broker is shutting down")
        self._check_room(size)
        ticket = next(self._numbers)
        asked = self._asked[ticket] = _Asked(reply, size, callers)
        self._asked_bytes += size
        self._waiting += callers
        if self._inbox.put(make(ticket), size, callers):
            self._attentive_until_s = self._loop.time() + _ATTENTIVE_S
        self._schedule()
        return asked

    def _check_room(self, size: int) -> None:
        scheduler = self._config.scheduler
        # Callers that gave up leave commands behind, so both are counted.
        waiting = max(self._waiting, len(self._asked))
        if waiting >= scheduler.inbox_max:
            raise Overloaded(f"{waiting} requests are waiting already; try again later")
        if size and self._asked_bytes + size > scheduler.inbox_bytes:
            raise Overloaded(
                f"requests of {self._asked_bytes} bytes are waiting already; try again later"
            )

    async def rest(self, began_s: float) -> None:
        """Let the others have their turn after heavy work outside the core, as after a turn."""
        now_s = self._loop.time()
        await asyncio.sleep(now_s - began_s if now_s < self._attentive_until_s else 0)

    def tell(self, command: Command) -> None:
        """Hand in a command that is not answered."""
        self._inbox.put(command)
        self._schedule()

    async def open(
        self,
        queue: str,
        max_in_flight: int,
        max_batch: int,
        visibility_ms: int,
        is_once: bool = False,
        key_id: str = "",
    ) -> Sink:
        """Open a consumer and return where its frames arrive, until it is closed.

        Raises FilaError if it is refused.
        """
        sink = Sink(next(self._numbers))
        self._sinks[sink.consumer] = sink
        try:
            await self.ask(
                lambda ticket: OpenConsumer(
                    ticket,
                    sink.consumer,
                    queue,
                    max_in_flight,
                    max_batch,
                    visibility_ms,
                    is_once,
                    key_id,
                )
            )
        except BaseException:  # the caller may have left before the answer
            self.close(sink)
            raise
        return sink

    def sent(self, sink: Sink) -> None:
        """Let a consumer's next frame go: the transport has it, and there is room for another."""
        sink.sent()
        self.tell(FrameTaken(sink.consumer))

    def close(self, sink: Sink) -> None:
        """Close a consumer. Frames that the transport never took over go back to the queue."""
        del self._sinks[sink.consumer]
        self.tell(CloseConsumer(sink.consumer, sink.unsent()))

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
        began_s = self._loop.time()
        is_rested = self._rest is None
        try:
            self._commit(self._inbox.take(with_heavy=is_rested), self._room(began_s))
        except StorageFailed as error:
            self._fail(error)
            return
        except Exception:
            log.exception("a defect in the core; the broker stops, so that memory and disk agree")
            self._fail(StorageFailed("the broker met a defect of its own and stopped; see its log"))
            return
        now_s = self._loop.time()
        if is_rested and self._has_work and now_s < self._attentive_until_s:
            self._rest = self._loop.call_later(now_s - began_s, self._end_rest)
        if self._inbox.has_light or (self._has_work and self._rest is None):
            self._schedule()
        self._set_timer()

    @property
    def _has_work(self) -> bool:
        return self._inbox.has_light or self._inbox.has_heavy or self._has_more

    def _end_rest(self) -> None:
        self._rest = None
        self._schedule()

    def _room(self, now_s: float) -> Room:
        if self._rest is not None:
            return BRIEF
        return SHARED if now_s < self._attentive_until_s else FULL

    def _commit(self, group: Sequence[Command], room: Room) -> None:
        timing = self.timing
        # Not the thread's own time: asking for that costs more than many a turn.
        began = time.perf_counter_ns()
        disk_full = self.disk.refusal() if self.disk.is_low else None
        effects = self._broker.handle(group, self._clock(), room=room, disk_full=disk_full)
        handled = time.perf_counter_ns()
        if effects.writes:
            self.disk.wrote(self._storage.write(effects.writes))
            self._unsynced = True
        written = time.perf_counter_ns()
        timing.core_ns += handled - began
        timing.storage_ns += written - handled
        timing.groups += 1
        items = count(group)
        timing.items += items
        self._note(items, effects.units, handled - began, written - handled)
        self._has_more = effects.more
        for defect in effects.defects:
            log.error("a defect in a call that only reads; it changed nothing", exc_info=defect)
        for consumer, grant, frame in effects.frames:
            sink = self._sinks.get(consumer)
            if sink is not None:
                sink.put(grant, frame)
            else:  # it left while this group waited
                self.tell(CloseConsumer(consumer, [grant]))
        for consumer, error in effects.closed:
            sink = self._sinks.get(consumer)
            if sink is not None:
                sink.close(error)
        self._answer(self._answered(effects.answers))
        if effects.durable_answers or effects.wants_sync:
            self._answer_durably(self._answered(effects.durable_answers))

    def _note(self, items: int, units: int, handle_ns: int, write_ns: int) -> None:
        figures = self.figures
        if items:
            figures.group_items.add(items)
        figures.turn_units.add(units)
        figures.turn_ms.add((handle_ns + write_ns) / NS_PER_MS)
        figures.commit_ms.add(write_ns / NS_PER_MS)

    def _answered(self, answers: Sequence[tuple[Ticket, Any]]) -> Answers:
        """Exchange tickets for those who wait behind them."""
        found: Answers = []
        for ticket, answer in answers:
            asked = self._asked.pop(ticket)
            self._asked_bytes -= asked.size
            found.append((asked, answer))
        return found

    def _answer(self, answers: Answers) -> None:
        for asked, answer in answers:
            self._waiting -= asked.callers
            asked.reply(answer)

    def _answer_durably(self, answers: Answers) -> None:
        if self._config.storage.sync != "always":
            self._answer(answers)
            return
        self._unsynced = False

        def done(failure: StorageFailed | None) -> None:
            self._loop.call_soon_threadsafe(self._synced, answers, failure)

        self._flusher.flush(done)

    def _synced(self, answers: Answers, failure: StorageFailed | None) -> None:
        if failure is None:
            self._answer(answers)
        else:
            self._answer([(asked, failure) for asked, _ in answers])
            self._fail(failure)

    def _set_timer(self) -> None:
        """Wake up when something happens by itself: a lease ends, a bucket refills."""
        if self._timer is not None:
            self._timer.cancel()
        if self._rest is not None:  # it ends in a moment, with a turn
            return
        wait_ns = self._broker.next_wake_ns() - self._clock().mono_ns
        self._timer = self._loop.call_later(max(0, wait_ns) / NS_PER_S, self._schedule)

    # --- Failure ----------------------------------------------------------------------------------

    def _fail(self, error: StorageFailed) -> None:
        if self.failure is None:
            self.failure = error
            log.error("the store failed: %s", error.message)
        self._end_streams(self.failure)
        self._refuse_all()
        self.failed.set()

    def _end_streams(self, error: FilaError) -> None:
        for sink in self._sinks.values():
            sink.close(error)
        for call in tuple(self.lasting):
            call.close(error)

    def _refuse_all(self) -> None:
        """Let everybody whom the core has not answered know; what waits is not handled any more."""
        self._inbox = Inbox()
        asked, self._asked = self._asked, {}
        self._asked_bytes = 0
        self._answer([(one, self.failure) for one in asked.values()])

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


def _resolve(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():  # its caller may have left
        future.set_result(answer)
