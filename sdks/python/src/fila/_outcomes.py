# SPDX-License-Identifier: AGPL-3.0-only
"""What a worker knows without running anything: its options, and what each outcome means.

Handlers are run by `worker.py`.
"""

import asyncio
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fila import _wire
from fila._leases import Frame
from fila._reader import AsyncReader, Reader, expired
from fila._wire import Item
from fila.errors import FilaError
from fila.message import Message, is_settled

# Enough that handlers never wait for the broker, and little that waits behind a slow one.
_PREFETCH_PER_HANDLER = 2
_ERROR_BYTES_MAX = 4096
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("fila")


class Backpressure(Exception):
    """Raised by a handler: not now. The message comes back later, and no attempt is counted.

    With a throttle key of the message, nothing with that key is delivered to anybody until then.
    """

    def __init__(
        self, retry_after_seconds: float, throttle_key: str | None = None, reason: str = ""
    ) -> None:
        super().__init__(reason or f"retry after {retry_after_seconds:g} s")
        self.retry_after_seconds = retry_after_seconds
        self.throttle_key = throttle_key
        self.reason = reason


class DeadLetter(Exception):
    """Raised by a handler: trying again would not help. The message becomes a dead letter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


EventKind = Literal[
    "acked", "nacked", "dead_lettered", "put_off", "given_back", "timed_out", "settle_failed"
]


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """What became of one message; `seconds` is how long it was handled."""

    kind: EventKind
    message: Message
    seconds: float
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker was asked for."""

    queue: str
    handler: Callable[[Any], Any]
    concurrency: int
    batch_size: int | None
    prefetch: int | None
    visibility_timeout_ms: int | None
    handler_timeout: float | None
    grace: float
    middleware: Sequence[Callable[[Any, Callable[[Any], Any]], Any]]
    on_event: Callable[[WorkerEvent], object] | None

    def __post_init__(self) -> None:
        for name in ("concurrency", "batch_size", "handler_timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if not callable(self.handler):
            raise TypeError(f"handler must be callable, not {type(self.handler).__name__}")

    @property
    def in_flight(self) -> int:
        needed = self.concurrency * (self.batch_size or 1)
        wanted = _PREFETCH_PER_HANDLER * needed if self.prefetch is None else self.prefetch
        return max(needed, wanted)

    def request(self) -> bytes:
        # Frames of a part of it: while one is handled the next one comes.
        frame = max(1, self.in_flight // _PREFETCH_PER_HANDLER)
        return _wire.consume_request(self.queue, self.in_flight, frame, self.visibility_timeout_ms)

    def call(self) -> Callable[[Any], Any]:
        """The handler inside its middleware."""
        call = self.handler
        for layer in reversed(self.middleware):
            call = _wrapped(layer, call)
        return call

    def tell(self, event: WorkerEvent) -> None:
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception:
                _log.exception("on_event of the worker of queue %r failed", self.queue)


def _wrapped(
    layer: Callable[[Any, Callable[[Any], Any]], Any], call: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    return lambda message: layer(message, call)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be told the broker of a message that its handler did not settle by itself."""

    kind: EventKind
    error: BaseException | None = None
    text: str = ""
    retry_after_ms: int | None = None
    throttle_key: str | None = None

    def nack(self, message: Message) -> Item:
        return _wire.nack_item(
            message.queue,
            message.id,
            self.text,
            message.lease_token,
            self.retry_after_ms,
            self.throttle_key,
            self.kind == "dead_lettered",
        )


ACKED = Outcome("acked")
GIVEN_BACK = Outcome("given_back", retry_after_ms=0)


def outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, Backpressure):
        after_ms = max(0, math.ceil(error.retry_after_seconds * 1000))
        return Outcome("put_off", error, _cut(error.reason), after_ms, error.throttle_key)
    if isinstance(error, DeadLetter):
        return Outcome("dead_lettered", error, _cut(error.reason))
    return Outcome("nacked", error, _cut(f"{type(error).__qualname__}: {error}"))


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:_ERROR_BYTES_MAX].decode(errors="ignore")


def timed_out(seconds: float) -> Outcome:
    error = TimeoutError(f"handler timed out after {seconds:g} s")
    return Outcome("nacked", error, str(error))


class Handling:
    """Messages that one handler has, and where they came from."""

    __slots__ = ("ends_at", "frames", "messages", "seconds", "since", "task")

    def __init__(self, messages: list[Any], frames: list[Frame], timeout: float | None) -> None:
        self.messages = messages
        self.frames = frames
        self.since = time.monotonic()
        self.ends_at = math.inf if timeout is None else self.since + timeout
        self.seconds = 0.0
        self.task: asyncio.Task[Any] | None = None


def taken(reader: Reader | AsyncReader) -> tuple[Frame, Any] | None:
    """The next message that is there; its frame knows that it is being handled."""
    frame = reader.frames[0]
    raw = frame.messages.popleft()
    if frame.ends_at <= time.monotonic():
        expired(frame, raw)
        return None
    frame.handling[raw.id] = raw
    reader.keep(frame)  # another thread may have let go of it in between
    return frame, raw


Entry = tuple[Handling, Outcome, Message]


def split(batch: list[tuple[Handling, Outcome]]) -> tuple[list[Entry], list[Entry]]:
    """Acks and nacks of messages that their handlers did not settle."""
    entries = [
        (handling, outcome, message)
        for handling, outcome in batch
        for message in handling.messages
        if not is_settled(message)
    ]
    return (
        [entry for entry in entries if entry[1] is ACKED],
        [entry for entry in entries if entry[1] is not ACKED],
    )


class Common:
    """What both kinds of worker do with outcomes."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._call = options.call()
        # Handlers whose outcome nobody has claimed yet: whoever takes one out settles it.
        self._open: dict[Handling, None] = {}
        self._grace: float | None = None
        self._stops_at = math.inf
        self._is_begun = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.queue!r})"

    def _begin(self) -> None:
        if self._is_begun:
            raise RuntimeError("a worker runs once")
        self._is_begun = True

    def _argument(self, handling: Handling) -> Any:
        return handling.messages if self._options.batch_size else handling.messages[0]

    def _claim(self, handling: Handling) -> bool:
        """Whether the caller is to settle it. Everybody else comes too late."""
        try:
            del self._open[handling]
        except KeyError:
            return False
        handling.seconds = time.monotonic() - handling.since
        return True

    def _tell(
        self,
        kind: EventKind,
        handling: Handling,
        error: BaseException | None = None,
        message: Message | None = None,
    ) -> None:
        for each in handling.messages if message is None else [message]:
            self._options.tell(WorkerEvent(kind, each, handling.seconds, error))

    def _settled(
        self, handling: Handling, outcome: Outcome, message: Message, error: FilaError | None
    ) -> None:
        if error is None:
            self._tell(outcome.kind, handling, outcome.error, message)
            return
        text = "message %s of queue %r was handled, but not %s: %s"
        _log.warning(text, message.id, message.queue, outcome.kind, error)
        self._tell("settle_failed", handling, error, message)

    def _let_go(self, reader: Reader | AsyncReader, handling: Handling) -> None:
        for frame, message in zip(handling.frames, handling.messages, strict=True):
            frame.handling.pop(message.id, None)
            if not frame.handling and not frame.messages:
                reader.let_go(frame)

    def _shorten(self, grace: float | None) -> None:
        """A stop was asked for; a later one may only be sooner."""
        seconds = self._options.grace if grace is None else grace
        self._grace = seconds
        self._stops_at = min(self._stops_at, time.monotonic() + max(seconds, 0))


@contextmanager
def signals_stop(stop: Callable[[float | None], None], wanted: bool) -> Iterator[None]:
    """The first signal stops, the next one ends the grace; handlers are put back afterwards."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0

    def stop_by_signal(number: int, frame: object) -> None:
        nonlocal seen
        seen += 1
        stop(None if seen == 1 else 0)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in _SIGNALS:
            before[number] = signal.getsignal(number)
            signal.signal(number, stop_by_signal)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # of somebody who is not Python
                signal.signal(number, handler)
