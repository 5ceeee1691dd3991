# SPDX-License-Identifier: AGPL-3.0-only
"""Everything that the broker knows, under one roof. One owner changes it.

Each part has its own room; what is here is what they all hang from, and the numbers that order
messages and grants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fila.v1.admin_pb2 import QueueConfig
from fila.v1.service_pb2 import EnqueueRequest
from fila_server.core.access import Keyring
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.names import shown
from fila_server.core.schedule.consumer import Consumer
from fila_server.core.schedule.limiter import Throttles
from fila_server.core.schedule.places import Places
from fila_server.core.schedule.queue import Hooks, Queue
from fila_server.core.schedule.usage import Usage, Usages
from fila_server.core.settings import Settings
from fila_server.core.turn import BYTES_PER_UNIT, Turn
from fila_server.core.wire.records import (
    ID_TAG,
    NEXT_NUMBER,
    body_id,
    id_number,
    message_key,
    split,
    u64,
)
from fila_server.errors import InvalidArgument, QueueNotFound, StorageFailed
from fila_server.storage.api import Column, Reader

if TYPE_CHECKING:
    from fila_server.config import Config

# Numbers are reserved in blocks, so that a restart can never hand one out again.
_NUMBER_BLOCK = 1 << 20

# Compiles a queue's scripts, with the runtime settings that they may read. When told to be strict
# it raises InvalidScript; otherwise a script that cannot be loaded gives hooks that fail each call.
HookFactory = Callable[[str, QueueConfig, Mapping[str, str], bool], Hooks | None]


class State:
    """All state of the broker."""

    def __init__(
        self, config: Config, read: Reader, compile_hooks: HookFactory, nonce: int
    ) -> None:
        self.config = config
        self.read = read
        self.compile_hooks = compile_hooks
        self.settings = Settings()
        self.throttles = Throttles(self.settings.throttle, config.telemetry.max_keys)
        self.usages: Usages[Usage] = Usages(config.telemetry.max_keys)
        self.places = Places(self.throttles, self.settings.weights, self.usages)
        self.queues: dict[str, Queue] = {}
        self.consumers: dict[int, Consumer] = {}
        self.consumers_of: dict[str, dict[Consumer, None]] = {}  # by the API key that opened them
        self.keyring = Keyring()
        self.turn = Turn(read)
        # Queues that are gone, while memory is being let go of.
        self.deleted: deque[Iterator[int]] = deque()

        self.next_number = 1
        self.reserved_number = 1  # numbers below this may be in use on disk
        self.next_queue = 1
        self._nonce = nonce  # 26 random bits that tell this run's message ids from others'
        self._last_id_ms = 0

    def begin(self, now: Now) -> Turn:
        """Begin a turn. Its message ids are UUIDv7s that share all but their numbers."""
        self._last_id_ms = ms = max(self._last_id_ms, now.wall_ns // NS_PER_MS)
        high, low = self._nonce >> 14, self._nonce & 0x3FFF
        prefix = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{high:03x}-{0x8000 | low:04x}-"
        self.places.lines.now_ns = now.mono_ns
        self.turn.begin(now, self.read, ID_TAG + prefix.encode())
        return self.turn

    def queue(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            if not name:
                raise InvalidArgument("queue must not be empty")
            raise QueueNotFound(f'queue "{shown(name)}" does not exist')
        return queue

    # --- Consumers --------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer.number] = consumer
        consumer.queue.consumers[consumer] = None
        if consumer.key_id:
            self.consumers_of.setdefault(consumer.key_id, {})[consumer] = None

    def end_consumer(self, number: int) -> None:
        """Let go of a consumer, if it is there."""
        consumer = self.consumers.pop(number, None)
        if consumer is None:
            return
        consumer.close()
        self.places.dirty[consumer.queue] = None  # it may have been the last one
        if consumer.key_id:
            others = self.consumers_of[consumer.key_id]
            del others[consumer]
            if not others:
                del self.consumers_of[consumer.key_id]

    # --- Numbers ----------------------------------------------------------------------------------

    def number(self) -> int:
        """Return the next number of the sequence that orders messages and grants."""
        number = self.next_number
        self.next_number = number + 1
        return number

    def reserve(self, turn: Turn) -> None:
        """Store how far numbers may have been used, long before they are.

        A lease is not synced: after power loss its number may only be known to its consumer. So a
        block is reserved while half of the one before is left, and made durable by itself.
        """
        if self.next_number > self.reserved_number - _NUMBER_BLOCK // 2:
            self.reserved_number = self.next_number + _NUMBER_BLOCK
            turn.batch.put(Column.STATE, NEXT_NUMBER, u64(self.reserved_number))
            turn.effects.wants_sync = True

    # --- Stored messages --------------------------------------------------------------------------

    def stored(self, turn: Turn, queue: Queue, keys: list[bytes]) -> list[bytes]:
        """Return stored messages by their keys."""
        found = turn.batch.get_many(Column.MESSAGES, keys)
        for key, value in zip(keys, found, strict=True):
            if value is None:
                raise StorageFailed(
                    f'message {key.hex()} of queue "{queue.name}" is missing on disk'
                )
        return found  # type: ignore[return-value]

    def content(self, turn: Turn, queue: Queue, key: bytes) -> EnqueueRequest:
        """Return a stored message's headers and payload, for a hook."""
        value = self.stored(turn, queue, [key])[0]
        turn.units += len(value) // BYTES_PER_UNIT
        return EnqueueRequest.FromString(split(value)[2])

    def find(self, turn: Turn, queue: Queue, message_id: str) -> bytes | None:
        """Return the stored message with this id, wherever in the queue it is."""
        number = id_number(message_id)
        if number is None:
            return None
        value = turn.batch.get(Column.MESSAGES, message_key(queue.number, number))
        if value is None or body_id(split(value)[2]) != message_id:
            return None
        return value
