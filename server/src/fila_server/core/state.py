# SPDX-License-Identifier: AGPL-3.0-only
"""All mutable state of the broker in one place, and the few operations that everything else shares.

One owner calls everything here. What must be read back from disk comes through `read`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from fila.v1.service_pb2 import EnqueueRequest
from fila_server.core import parking
from fila_server.core.access import Keyring
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.deadlines import Deadlines
from fila_server.core.message import Grant, Message
from fila_server.core.names import shown
from fila_server.core.queue import Hooks, Queue
from fila_server.core.records import NEXT_NUMBER, body_id, message_key, split, stamp, u64
from fila_server.core.throttle import Throttles
from fila_server.errors import InvalidArgument, QueueNotFound, StorageFailed
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.config import Config
    from fila_server.core.effects import Effects
    from fila_server.core.lane import Lane

# A UUID; the last part of one that the broker made is the message's number.
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
# Numbers are reserved in blocks, so that a restart can never hand one out again.
_NUMBER_BLOCK = 1 << 20


class Reader(Protocol):
    """The part of Storage that the core may use."""

    def get_many(self, column: Column, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def scan(self, column: Column, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]: ...


# Compiles a queue's scripts, with the runtime configuration that they may read. Raises
# InvalidScript.
HookFactory = Callable[[Queue, dict[str, str]], Hooks | None]


class State:
    """Everything the broker knows."""

    def __init__(
        self, config: Config, read: Reader, compile_hooks: HookFactory, nonce: int
    ) -> None:
        self.options = config
        self.read = read
        self.compile_hooks = compile_hooks
        self.nonce = nonce  # 26 random bits that tell this run's message ids from others'
        # A body of at most this many bytes breaks no limit: a header takes 7 bytes or more.
        limits = config.limits
        self.surely_small = min(
            limits.max_payload_bytes, limits.max_header_bytes, limits.max_headers * 7
        )
        self.queues: dict[str, Queue] = {}
        self.config: dict[str, str] = {}
        self.throttles = Throttles()
        self.keyring = Keyring()

        self.leases: Deadlines[Grant] = Deadlines(_is_held)
        self.delayed: Deadlines[Message] = Deadlines(_is_delayed)
        self.expiring: Deadlines[Message] = Deadlines(_is_mortal)
        self.consumer_count = 0

        self.next_number = 1
        self.reserved_number = 1  # numbers below this may be in use on disk
        self.next_queue = 1
        self.last_id_ms = 0
        self.hot_bytes = 0  # bodies of pending messages in memory

        # The group that is being handled: the disk does not have these yet.
        self.unwritten: dict[bytes, bytes] = {}  # stored messages whose bodies memory does not keep
        self.gone: set[bytes] = set()  # keys of removed messages
        self.seen: dict[bytes, str] = {}  # idempotency keys
        self.prefix = ""  # of message ids
        self.stamp = b""  # enqueued_at
        self.dirty: dict[Queue, None] = {}  # queues in which something may have become deliverable

    def queue(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            if not name:
                raise InvalidArgument("queue must not be empty")
            raise QueueNotFound(f'queue "{shown(name)}" does not exist')
        return queue

    def number(self) -> int:
        """Return the next number of the sequence that orders messages and grants."""
        number = self.next_number
        self.next_number = number + 1
        return number

    def reserve(self, effects: Effects) -> None:
        """Store how far numbers may have been used, long before they are.

        A lease is not synced: after power loss its number may only be known to its consumer. So a
        block is reserved while half of the one before is left.
        """
        if self.next_number > self.reserved_number - _NUMBER_BLOCK // 2:
            self.reserved_number = self.next_number + _NUMBER_BLOCK
            effects.writes.append((Column.STATE, NEXT_NUMBER, u64(self.reserved_number)))

    def begin(self, now: Now) -> None:
        """Start a group. Its message ids are UUIDv7s that share all but their numbers."""
        self.unwritten.clear()
        self.gone.clear()
        self.seen.clear()
        self.last_id_ms = ms = max(self.last_id_ms, now.wall_ns // NS_PER_MS)
        high, low = self.nonce >> 14, self.nonce & 0x3FFF
        self.prefix = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{high:03x}-{0x8000 | low:04x}-"
        self.stamp = stamp(now.wall_ns)

    def push(self, lane: Lane, message: Message | int) -> None:
        """Append to the lane: the message is the newest of its kind."""
        queue = lane.key.queue
        lane.messages.append(message)
        lane.key.pending += 1
        queue.pending += 1
        if not lane.is_ready:
            if lane.parked_on is not None:
                queue.throttled += 1
            else:
                parking.make_ready(lane)

    def put_back(self, messages: list[Message]) -> None:
        """Put messages of one lane where their order belongs."""
        lane = self.lane_of(messages[0])
        queue = lane.key.queue
        for message in messages:
            message.lane = lane
        lane.insert(messages)
        lane.key.pending += len(messages)
        queue.pending += len(messages)
        if lane.is_parked:
            queue.throttled += len(messages)
        elif not lane.is_ready:
            parking.make_ready(lane)
        self.dirty[queue] = None

    def lane_of(self, message: Message) -> Lane:
        """Return the lane that the message belongs to; its own may be gone if it became empty."""
        was = message.lane
        queue = was.key.queue
        weight = 0 if was.key.name in queue.keys else was.key.weight
        return queue.lane(was.key.name, weight, was.lane_key, self.throttles)

    def take_out(self, message: Message) -> None:
        """Remove a pending message from its lane."""
        lane = message.lane
        key = lane.key
        queue = key.queue
        lane.messages.remove(message)
        key.pending -= 1
        queue.pending -= 1
        if lane.is_parked:
            queue.throttled -= 1
        if message.body is not None:
            self.hot_bytes -= len(message.body)
        if not lane.messages:
            self.retire(lane)

    def retire(self, lane: Lane) -> None:
        """Forget a lane that was emptied other than by deliveries."""
        key = lane.key
        if lane.is_ready:
            key.ready.remove(lane)
            lane.is_ready = False
            parking.leave(lane)
            if not key.ready and key.in_ring:
                key.in_ring = False
                key.deficit = 0
                key.queue.ring.remove(key)
        else:
            parking.unpark(lane)
        key.queue.dropped(lane)

    def delay(self, message: Message, due_ns: int, now: Now) -> None:
        """Hold the message until the wall clock is expected to show `due_ns`."""
        message.details().due_ns = due_ns
        message.lane.key.queue.delayed[message.id] = message
        self.delayed.push(now.mono_at(due_ns), message.order, message)

    def limit_life(self, message: Message, expires_ns: int, now: Now) -> None:
        """Drop the message when the wall clock should show `expires_ns`, unless it is settled."""
        extra = message.details()
        extra.expires_ns = expires_ns
        extra.ends_ns = now.mono_at(expires_ns)
        self.expiring.push(extra.ends_ns, message.order, message)

    def forget(self, message: Message) -> None:
        """Let go of a message that is gone: its end of life no longer matters."""
        self.gone.add(message.key)
        if message.extra is not None and message.extra.expires_ns:
            message.extra.expires_ns = 0
            self.expiring.vanished()

    def stored(self, queue: Queue, numbers: list[int]) -> list[bytes]:
        """Return stored messages by number."""
        keys = [message_key(queue.number, number) for number in numbers]
        values = self.read.get_many(Column.MESSAGES, keys)
        found = []
        for key, value in zip(keys, values, strict=True):
            known = self.unwritten.get(key, value)
            if known is None:
                raise StorageFailed(
                    f'message {key.hex()} of queue "{queue.name}" is missing on disk'
                )
            found.append(known)
        return found

    def headers(self, queue: Queue, message: Message) -> Mapping[str, str]:
        """Return a message's headers for a hook."""
        value = self.stored(queue, [message.number])[0]
        return EnqueueRequest.FromString(split(value)[2]).headers

    def key_of(self, queue: Queue, message_id: str) -> bytes | None:
        """Return the key that a message with this id would have; None if no id looks like this."""
        if not _ID.match(message_id):
            return None
        return message_key(queue.number, int(message_id[24:], 16))

    def exists(self, queue: Queue, key: bytes) -> bool:
        return key in self.unwritten or self.read.get_many(Column.MESSAGES, [key])[0] is not None

    def find(self, queue: Queue, message_id: str) -> bytes | None:
        """Return the stored message with this id, wherever in the queue it is."""
        key = self.key_of(queue, message_id)
        if key is None or key in self.gone:
            return None
        value = self.unwritten.get(key) or self.read.get_many(Column.MESSAGES, [key])[0]
        if value is None or body_id(split(value)[2]) != message_id:
            return None
        return value


def _is_held(grant: Grant) -> bool:
    return grant.left > 0


def _is_delayed(message: Message) -> bool:
    return message.lane.key.queue.delayed.get(message.id) is message


def _is_mortal(message: Message) -> bool:
    return message.extra is not None and message.extra.expires_ns > 0
