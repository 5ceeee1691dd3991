# SPDX-License-Identifier: AGPL-3.0-only
"""One queue: its settings, and the facts that other modules of this room keep about it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Literal, Protocol

from fila.v1.admin_pb2 import QueueConfig, QueueCounters
from fila_server.core.schedule.held import Held
from fila_server.core.schedule.lane import FairnessKey
from fila_server.core.schedule.message import Message
from fila_server.core.schedule.pace import Pace
from fila_server.core.schedule.usage import Usage
from fila_server.core.schedule.waits import Waits
from fila_server.core.wire.records import likely_number, queue_prefix
from fila_server.core.wire.records_pb2 import StoredQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fila_server.core.schedule.consumer import Consumer
    from fila_server.core.schedule.histogram import Histogram
    from fila_server.core.schedule.line import Line

DEAD_LETTER_SUFFIX = ".dlq"
# How fast the estimate of a message's size follows what is delivered: an eighth of the difference.
_SIZE_SHIFT = 3


class EnqueueDecision(Protocol):
    """What an on_enqueue hook answers."""

    @property
    def fairness_key(self) -> str: ...
    @property
    def weight(self) -> int: ...
    @property
    def throttle_keys(self) -> tuple[str, ...]: ...
    @property
    def throttle_cost(self) -> int: ...


class FailureDecision(Protocol):
    """What an on_failure hook answers."""

    @property
    def action(self) -> str: ...
    @property
    def delay_ms(self) -> int: ...


class HookStats(Protocol):
    """How a queue's hooks are doing; named as in fila.v1.HookStats."""

    @property
    def calls(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def bypassed(self) -> int: ...
    @property
    def circuit_open(self) -> bool: ...
    @property
    def last_error(self) -> str: ...


class Hooks(Protocol):
    """A queue's compiled hooks, provided by the runtime."""

    @property
    def has_on_enqueue(self) -> bool: ...
    @property
    def has_on_failure(self) -> bool: ...
    def on_enqueue(
        self, headers: Mapping[str, str], payload_size: int, now_ns: int
    ) -> EnqueueDecision | None: ...
    def on_failure(
        self,
        headers: Mapping[str, str],
        message_id: str,
        attempts: int,
        error: str,
        reason: Literal["nack", "expired"],
        now_ns: int,
        payload_size: int,
        fairness_key: str,
        throttle_keys: Sequence[str],
    ) -> FailureDecision | None: ...
    def set_config(self, key: str, value: str | None) -> None: ...
    def stats(self) -> HookStats: ...
    @property
    def spent_ns(self) -> int: ...
    @property
    def durations(self) -> Sequence[Histogram]: ...
    @property
    def activations(self) -> int: ...


_TOLD = tuple(QueueCounters.DESCRIPTOR.fields_by_name)


class Counters:
    """What happened in a queue since the broker started; named as in fila.v1.QueueCounters.

    `delivered` goes back with frames that reached nobody, `leased` counts them too.
    """

    __slots__ = (
        "acked",
        "dead_lettered",
        "delivered",
        "duplicates",
        "enqueued",
        "expired",
        "leased",
        "nacked",
        "timed_out",
    )

    def __init__(self) -> None:
        self.acked = 0
        self.dead_lettered = 0
        self.delivered = 0
        self.duplicates = 0
        self.enqueued = 0
        self.expired = 0
        self.nacked = 0
        self.timed_out = 0
        self.leased = 0

    def told(self) -> QueueCounters:
        return QueueCounters(**{name: getattr(self, name) for name in _TOLD})


def by_id(messages: dict[int, Message], message_id: str) -> Message | None:
    """Return the message with this id, if it is among those that are leased, or delayed."""
    message = messages.get(likely_number(message_id))
    return message if message is not None and message.id == message_id else None


class Queue:
    """All state of one queue."""

    def __init__(self, number: int, name: str, config: QueueConfig, dead_letter_of: str) -> None:
        self.number = number
        self.prefix = queue_prefix(number)
        self.name = name
        self.config = config
        self.dead_letter_of = dead_letter_of
        self.is_deleted = False
        self.hooks: Hooks | None = None
        self.paused = False
        self.paused_keys: set[str] = set()
        # From `config` and the broker's defaults; plain numbers, because they are read per message.
        self.quantum = 1
        self.visibility_ms = 0
        self.max_messages = 0
        self.default_ttl_ms = 0

        # Of places.py: where each message is, and how many there are.
        self.keys: dict[str, FairnessKey] = {}
        self.resting: dict[str, FairnessKey] = {}  # emptied lately
        self.leases: dict[int, Message] = {}  # by number; `by_id` finds one
        self.delayed: dict[int, Message] = {}
        self.pending = 0
        # Of ring.py and line.py: whose turn it is.
        self.ring: OrderedDict[FairnessKey, None] = OrderedDict()
        self.due_lines: dict[Line, None] = {}  # lines whose limiter may let something through
        # Of consumer.py: who takes messages.
        self.consumers: dict[Consumer, None] = {}
        self.available: OrderedDict[Consumer, None] = OrderedDict()

        self.largest = 1  # bytes of a body, at most, since the queue was empty
        self.widest = 0  # bytes that a delivery adds to one, at most
        self._typical = 256  # bytes of a delivery, as they were lately
        self.counters = Counters()
        self.pace = Pace()  # of deliveries
        # Of ring.py: turns that keys have had, and rounds of all keys that these made up.
        self.turns = 0
        self.rounds = 0
        self.round_left = 0  # turns until the round is over; 0 between two rounds
        # For those who ask why messages waited.
        self.usages: dict[str, Usage] = {}  # of keys that are counted by themselves
        self.others = Usage("")  # of all other keys
        self.waits = Waits()
        self.held_paused: Held | None = None
        self.held_unserved = Held()
        # Of admin/review.py, as it last was.
        self.oldest_ns = 0  # wall clock: when the first message that could go was enqueued
        self.throttled = 0
        self.active_weight = 0  # of all keys that take part in the round

    @property
    def total(self) -> int:
        """Return how many messages the queue holds, wherever they are."""
        return self.pending + len(self.delayed) + len(self.leases)

    def in_use(self, name: str) -> Iterator[FairnessKey]:
        """Yield the fairness key of a name while it has pending messages and a little longer."""
        for keys in (self.keys, self.resting):
            if name in keys:
                yield keys[name]

    @property
    def can_deliver(self) -> bool:
        """Whether somebody would take a message now."""
        return bool(self.available) and not self.paused

    def note_service(self, now_ns: int) -> None:
        """Note whether somebody would take a message from now on."""
        if self.available:
            self.held_unserved.end(now_ns)
        else:
            self.held_unserved.begin(now_ns)

    def pause(self, now_ns: int) -> None:
        self.paused = True
        if self.held_paused is None:
            self.held_paused = Held()
        self.held_paused.begin(now_ns)

    def resume(self, now_ns: int) -> None:
        self.paused = False
        if self.held_paused is not None:
            self.held_paused.end(now_ns)

    def record(self) -> StoredQueue:
        """Return the queue's definition as it is stored."""
        return StoredQueue(
            number=self.number,
            name=self.name,
            config=self.config,
            paused=self.paused,
            paused_keys=sorted(self.paused_keys),
            dead_letter_of=self.dead_letter_of,
        )

    # --- Sizes ------------------------------------------------------------------------------------

    def sent(self, count: int, size: int) -> None:
        """Note what was delivered, so that the next frame is picked to fit."""
        self._typical += (size // count - self._typical) >> _SIZE_SHIFT

    def grew(self, size: int) -> None:
        """Note the size of a body that is about to be among the queue's messages."""
        if size > self.largest or not self.total:
            self.largest = size

    def fit(self, frame_bytes: int, memory_bytes: int) -> int:
        """Return how many messages to pick at a time: likely a frame, never too much memory."""
        likely = frame_bytes // max(1, self._typical)
        return max(1, min(likely, memory_bytes // max(1, self.largest)))
