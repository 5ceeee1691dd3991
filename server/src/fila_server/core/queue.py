# SPDX-License-Identifier: AGPL-3.0-only
"""One queue's state: its settings, its fairness keys, its leases and delayed messages, its
consumers.

Transitions of a message, and where each is made:

    produce   -> pending | delayed
    time      delayed -> pending; pending | delayed -> gone (time to live)
    deliver   pending -> leased
    settle    leased -> gone (ack) | pending | delayed (retry) | pending in the dead-letter queue
    operate   pending | delayed -> gone (purge, cancel); dead letter -> pending at home (redrive)
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, Protocol

from fila.v1.admin_pb2 import QueueConfig
from fila_server.core.lane import FairnessKey, Lane, LaneKey
from fila_server.core.message import Message
from fila_server.core.pace import Pace
from fila_server.core.records import queue_prefix
from fila_server.core.records_pb2 import StoredQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fila_server.core.consumer import Consumer
    from fila_server.core.throttle import Line, Throttles

DEAD_LETTER_SUFFIX = ".dlq"
# A kilobyte each, and only until the next sweep.
_RESTING_KEYS = 4096
_RESTING_LANES = 4
# A queue's name of 255 bytes, a lease token, an attempt, three timestamps and the tags of it all.
_METADATA_BYTES = 400


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
    ) -> FailureDecision | None: ...
    def set_config(self, key: str, value: str | None) -> None: ...
    def stats(self) -> HookStats: ...


class Counters:
    """What happened in a queue since the broker started; named as in fila.v1.QueueCounters."""

    __slots__ = (
        "acked",
        "dead_lettered",
        "delivered",
        "duplicates",
        "enqueued",
        "expired",
        "nacked",
        "timed_out",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    acked: int
    dead_lettered: int
    delivered: int
    duplicates: int
    enqueued: int
    expired: int
    nacked: int
    timed_out: int


class Queue:
    """All state of one queue."""

    def __init__(self, number: int, name: str, config: QueueConfig, dead_letter_of: str) -> None:
        self.number = number
        self.prefix = queue_prefix(number)
        self.name = name
        self.config = config
        self.dead_letter_of = dead_letter_of
        self.hooks: Hooks | None = None
        self.paused = False
        self.paused_keys: set[str] = set()
        # From `config` and the broker's defaults; plain numbers, because they are read per message.
        self.quantum = 1
        self.visibility_ms = 0
        self.max_messages = 0
        self.default_ttl_ms = 0

        self.keys: dict[str, FairnessKey] = {}
        self.resting: dict[str, FairnessKey] = {}  # emptied lately; see dropped
        self.ring: deque[FairnessKey] = deque()
        self.due_lines: dict[Line, None] = {}  # lines whose limiter can let something through
        self.leases: dict[str, Message] = {}
        self.delayed: dict[str, Message] = {}
        self.consumers: dict[Consumer, None] = {}
        self.available: deque[Consumer] = deque()

        self.pending = 0
        self.throttled = 0  # pending messages in parked lanes
        # Bytes, at most, of a message's body, keys and error: they bound how many fit a frame.
        self.largest = 1
        self.widest = 0
        self.longest = 0
        self.weights: dict[str, int] = {}  # runtime configuration; wins over what enqueues say
        self.counters = Counters()
        self.pace = Pace()

    @property
    def total(self) -> int:
        """Return how many messages the queue holds, wherever they are."""
        return self.pending + len(self.delayed) + len(self.leases)

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

    def lane(self, fairness_key: str, weight: int, lane_key: LaneKey, throttles: Throttles) -> Lane:
        """Return the lane for such messages, making it and its key when they are the first."""
        key = self.keys.get(fairness_key)
        if key is None:
            key = self.resting.pop(fairness_key, None) or FairnessKey(self, fairness_key)
            key.weight = self.weights.get(fairness_key) or weight or 1
            key.is_paused = fairness_key in self.paused_keys
            self.keys[fairness_key] = key
        elif weight and weight != key.weight and fairness_key not in self.weights:
            key.weight = weight
            key.deficit = min(key.deficit, weight * self.quantum)  # the turn in progress too
        lane = key.lanes.get(lane_key)
        if lane is None:
            rested = key.resting.pop(lane_key, None)
            lane = key.lanes[lane_key] = rested or Lane(key, lane_key)
            characters = len(fairness_key)
            if lane.throttle_keys:
                characters += sum(map(len, lane.throttle_keys))
                if not self.dead_letter_of:
                    lane.limiters = throttles.limiters_of(lane.throttle_keys)
            if characters * 4 > self.widest:
                self.widest = characters * 4
        return lane

    def fit(self, frame_bytes: int) -> int:
        """Return how many messages surely fit a frame; one always does."""
        size = self.largest + self.widest + self.longest + _METADATA_BYTES
        return max(1, frame_bytes // size)

    def note_error(self, error: str) -> None:
        """Expect deliveries that carry this error."""
        self.longest = max(self.longest, len(error.encode()))

    def measure_anew(self) -> None:
        """Let the next messages decide how many fit a frame: there are none now."""
        self.largest = 1
        self.widest = self.longest = 0

    def dropped(self, lane: Lane) -> None:
        """Put an empty lane to rest, and its key with the last one: idle keys cost nothing.

        In a queue that is nearly empty most keys come back at once, and making one anew costs more
        than a delivery. So some rest until the next sweep.
        """
        key = lane.key
        del key.lanes[lane.lane_key]
        if len(key.resting) < _RESTING_LANES:
            key.resting[lane.lane_key] = lane
        if not key.lanes:
            del self.keys[key.name]
            if len(self.resting) < _RESTING_KEYS:
                self.resting[key.name] = key
