# SPDX-License-Identifier: AGPL-3.0-only
"""Where a message is. This module alone moves one, and counts what is where.

    from       to                     by
    -          PENDING, DELAYED       append, insert, delay       (an enqueue, a dead letter)
    PENDING    LEASED                 pick, then lease
    PENDING    -                      remove, pop, end_first      (ttl, cancel, purge, redrive)
    DELAYED    PENDING                released
    DELAYED    -                      undelay                     (ttl, cancel, purge)
    LEASED     -                      unlease                     (ack, ttl, dead letter)
    LEASED     PENDING, DELAYED       unlease, then append, insert or delay
    LEASED     LEASED                 renew, prolong

PENDING: in a lane of its queue. DELAYED: in `Queue.delayed`. LEASED: in `Queue.leases`, under a
grant. A message that is nowhere is gone; the callers write and delete its records.

A lane is in its key, and a key in its queue, while it has pending messages. Emptied ones rest for a
while: in a queue that is nearly empty most keys come back at once, and making one anew costs more
than a delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fila_server.core.schedule import ring
from fila_server.core.schedule.deadlines import Deadlines
from fila_server.core.schedule.fifo import Kept, Pick, Waiting
from fila_server.core.schedule.held import Held
from fila_server.core.schedule.lane import FairnessKey, Lane
from fila_server.core.schedule.limiter import Throttles
from fila_server.core.schedule.line import Lines
from fila_server.core.schedule.message import Grant, Message, Origin, token_number
from fila_server.core.schedule.usage import Usage, Usages

if TYPE_CHECKING:
    from fila_server.core.clock import Now
    from fila_server.core.schedule.queue import Queue
    from fila_server.core.wire.records import LaneKey

# A kilobyte each, and only until the next sweep.
_RESTING_KEYS = 4096
_RESTING_LANES = 4

# What the settings say of a fairness key's weight in a queue; 0 when they say nothing.
WeightOf = Callable[[str], int]


class Places:
    """The places of all messages."""

    def __init__(
        self, throttles: Throttles, weights: Mapping[str, WeightOf], usages: Usages[Usage]
    ) -> None:
        self.throttles = throttles
        self.usages = usages
        self._weights = weights  # by queue
        self.dirty: dict[Queue, None] = {}  # queues in which something may be deliverable
        self.lines = Lines(throttles, self.dirty)
        self.grants: dict[int, Grant] = {}
        self.renewals: dict[str, dict[Grant, None]] = {}  # extensions, by their token
        self.leases: Deadlines[Grant] = Deadlines()
        self.delayed: Deadlines[Message] = Deadlines()
        self.mortal: Deadlines[Message] = Deadlines()  # with a time to live
        self.ended: list[Message] = []  # taken out since their life was over; records are left
        self.admit = self.lines.admit
        self.step_back = self.lines.step_back
        self.hot_bytes = 0  # bodies of pending messages in memory

    # --- Pending ----------------------------------------------------------------------------------

    def lane(
        self, queue: Queue, fairness_key: str, weight: int, lane_key: LaneKey, now_ns: int
    ) -> Lane:
        """Return the lane for such messages, making it and its key when they are the first.

        A weight of 0 says nothing about the key's.
        """
        key = queue.keys.get(fairness_key)
        if key is None:
            key = self._key(queue, fairness_key, weight, now_ns)
        elif weight and weight != key.asked_weight:
            key.asked_weight = weight
            if not self.set_weight(queue, fairness_key):
                ring.reweigh(key, weight)
        lane = key.lanes.get(lane_key)
        if lane is None:
            lane = key.resting.pop(lane_key, None)
            if lane is None:
                lane = self._new_lane(key, lane_key, now_ns)
            else:  # kept until now for whoever asks what its last message waited for
                lane.held_by_rate = lane.held_by_limit = None
            key.lanes[lane_key] = lane
            if lane.overhead > queue.widest:
                queue.widest = lane.overhead
        return lane

    def _key(self, queue: Queue, name: str, weight: int, now_ns: int) -> FairnessKey:
        key = queue.resting.pop(name, None)
        if key is None:
            key = FairnessKey(queue, name, self.usages.of(queue, name))
        key.asked_weight = weight
        key.weight = (self._weights and self.set_weight(queue, name)) or weight or 1
        self.set_paused(key, name in queue.paused_keys, now_ns)
        queue.keys[name] = key
        return key

    def set_paused(self, key: FairnessKey, is_paused: bool, now_ns: int) -> None:
        """Let a key take no part in the round, or part again; `ring` lets it leave or join."""
        key.is_paused = is_paused
        if is_paused:
            if key.held_paused is None:
                key.held_paused = Held()
            key.held_paused.begin(now_ns)
        elif key.held_paused is not None:
            key.held_paused.end(now_ns)

    def set_weight(self, queue: Queue, name: str) -> int:
        """Return the weight that is set for a fairness key; 0 when there is none."""
        weight_of = self._weights.get(queue.name)
        return weight_of(name) if weight_of is not None else 0

    def _new_lane(self, key: FairnessKey, lane_key: LaneKey, now_ns: int) -> Lane:
        if not lane_key[0] or key.queue.dead_letter_of:  # dead letters wait for no provider
            return Lane(key, lane_key, ())
        limiter = self.throttles.limiter
        limiters = tuple(limiter(name, now_ns) for name in lane_key[0])
        lane = Lane(key, lane_key, limiters)
        self.throttles.used(lane)
        return lane

    def append(
        self, lane: Lane, order: int, kept: Kept = None, origin: Origin | None = None
    ) -> None:
        """Let a message wait that is the newest of its lane; `kept` is what memory has of it, and
        `origin` goes with a content.
        """
        lane.fifo.append(order, kept, origin)
        key = lane.key
        key.pending += 1
        key.queue.pending += 1
        if not lane.is_ready and lane.line is None:
            ring.make_ready(lane)
        self.dirty[key.queue] = None

    def insert(self, lane: Lane, order: int, waiting: Waiting) -> None:
        """Let a message wait where its order belongs, or that may leave before its turn."""
        lane.set_aside(order, waiting)
        key = lane.key
        key.pending += 1
        key.queue.pending += 1
        if not lane.is_ready and lane.line is None:
            ring.make_ready(lane)
        self.dirty[key.queue] = None

    def return_to_lane(self, message: Message, now_ns: int) -> None:
        """Let a message wait where its order belongs; its lane may be gone since it left."""
        lane = message.lane = self.lane_again(message.lane, now_ns)
        self.insert(lane, message.order, message)

    def lane_again(self, was: Lane, now_ns: int) -> Lane:
        """Return the lane that stands now where this one stood."""
        key = was.key
        queue = key.queue
        weight = 0 if key.name in queue.keys else key.asked_weight
        return self.lane(queue, key.name, weight, was.lane_key, now_ns)

    def pick(self, queue: Queue, limit: int, patience: int, now_ns: int) -> list[Pick]:
        """Take up to `limit` messages out of their lanes in the order of delivery."""
        return ring.pick(queue, limit, patience, self, now_ns)

    def end_first(self, lane: Lane) -> None:
        """Take out the first message of a lane, whose life is over; the caller drops `ended`."""
        self.lines.units += 1
        self.ended.append(self.pop(lane))  # type: ignore[arg-type]

    def unpick(self, queue: Queue, messages: list[Message], now_ns: int) -> None:
        """Put picked messages back, with their tokens: they do not fit the frame."""
        for message in reversed(messages):
            lane = message.lane
            key = lane.key
            turn_left = key.deficit  # joining the ring again would begin another turn
            for limiter in lane.limiters:
                limiter.in_flight -= 1
                limiter.give_back(1, lane.cost, now_ns, now_ns)
                limiter.usage.passed -= 1  # nobody has seen it counted
                self.lines.freed(limiter)
            self.return_to_lane(message, now_ns)
            key = message.lane.key
            key.delivered = max(0, key.delivered - 1)
            key.usage.delivered = max(0, key.usage.delivered - 1)
            ring.return_turn(message.lane, turn_left)

    def remove(self, lane: Lane, order: int) -> Waiting | None:
        """Take a pending message out of the middle of its lane; None if it is not there."""
        found = lane.discard(order)
        if found is not None:
            self._left(lane, found)
        return found

    def pop(self, lane: Lane) -> Waiting:
        """Take out the first message of a lane without delivering it."""
        found = lane.pop()
        self._left(lane, found)
        return found

    def _left(self, lane: Lane, waiting: Waiting) -> None:
        key = lane.key
        key.pending -= 1
        key.queue.pending -= 1
        if isinstance(waiting, Message) and waiting.content is not None:
            self.hot_bytes -= len(waiting.content)
            waiting.content = None
        if not lane:
            self.lines.leave(lane)
            if lane.is_ready:
                ring.unready(lane)
            self.drop(lane)

    def drop(self, lane: Lane) -> None:
        """Put an empty lane to rest, and its key with the last one: idle keys cost nothing."""
        key = lane.key
        del key.lanes[lane.lane_key]
        lane.goes_on = False
        if len(key.resting) < _RESTING_LANES:
            key.resting[lane.lane_key] = lane
        else:
            self.throttles.unused(lane)
        if not key.lanes:
            queue = key.queue
            del queue.keys[key.name]
            if len(queue.resting) < _RESTING_KEYS and not queue.is_deleted:
                queue.resting[key.name] = key
            else:
                self._forget(key)

    def rest_if_empty(self, lane: Lane) -> None:
        """Put a lane to rest that was made for a message which does not wait in it."""
        if not lane:
            self.drop(lane)

    def forget_rested(self, queue: Queue, limit: int) -> int:
        """Forget up to `limit` keys that rest; return how many."""
        count = 0
        while queue.resting and count < limit:
            self._forget(queue.resting.popitem()[1])
            count += 1
        return count

    def _forget(self, key: FairnessKey) -> None:
        """Let go of a key, so that nothing refers to itself by a detour."""
        self.usages.look(key.queue, key)
        for lane in key.resting.values():
            self.throttles.unused(lane)
        key.resting.clear()

    # --- Delayed, and mortal ----------------------------------------------------------------------

    def delay(self, message: Message, due_ns: int, due_at_ns: int) -> None:
        """Hold a message until a time, given by the wall clock and by the monotonic one."""
        extra = message.details()
        extra.due_ns = due_ns
        extra.due_at_ns = due_at_ns
        message.lane.key.queue.delayed[message.number] = message
        self.delayed.set(message, due_at_ns)

    def undelay(self, message: Message) -> None:
        """Take a delayed message out of its place."""
        del message.lane.key.queue.delayed[message.number]
        self.delayed.discard(message)
        message.details().due_ns = 0

    def released(self, now: Now, limit: int) -> int:
        """Let delayed messages wait whose time has come; return how many."""
        count = 0
        for message in self.delayed.due(now.mono_ns, limit):
            del message.lane.key.queue.delayed[message.number]
            message.details().due_ns = 0
            self.return_to_lane(message, now.mono_ns)
            count += 1
        return count

    def limit_life(self, message: Message, expires_ns: int, ends_ns: int) -> None:
        """Let a message's life end at a time, unless it is settled before."""
        extra = message.details()
        extra.expires_ns = expires_ns
        extra.ends_ns = ends_ns
        self.mortal.set(message, ends_ns)

    def forget_life(self, message: Message) -> None:
        """Let go of a message that is gone: its end of life no longer matters."""
        if message.is_mortal:
            self.mortal.discard(message)

    # --- Leased -----------------------------------------------------------------------------------

    def lease(self, grant: Grant) -> None:
        """Lease the messages of a grant, which were picked."""
        leases = grant.queue.leases
        for message in grant.messages:
            message.grant = grant
            leases[message.number] = message
        self.grants[grant.number] = grant
        self.leases.set(grant, grant.deadline_ns)

    def held_under(self, token: str) -> list[Grant]:
        """Return the grants with a token: that of a frame, if anything is left of it, and those of
        its extensions.
        """
        number = token_number(token)
        first = None if number is None else self.grants.get(number)
        found = [first] if first is not None and first.token == token else []
        found.extend(self.renewals.get(token, ()))
        return found

    def note_renewal(self, grant: Grant) -> None:
        """Let a grant that is not a frame's own be found by its token."""
        self.renewals.setdefault(grant.token, {})[grant] = None

    def prolong(self, grant: Grant) -> None:
        """Let all that is under a grant be leased until its deadline, which has changed."""
        self.leases.set(grant, grant.deadline_ns)

    def renew(self, grant: Grant) -> None:
        """Lease the messages of a grant, which one before it holds."""
        for message in grant.messages:
            message.grant.left -= 1  # type: ignore[union-attr]
        self.lease(grant)
        self.note_renewal(grant)

    def unlease(self, message: Message) -> Grant:
        """End a message's lease, with its credit and its slots; return the grant it was under."""
        grant: Grant = message.grant  # type: ignore[assignment]
        queue = grant.queue
        del queue.leases[message.number]
        message.grant = None
        grant.left -= 1
        consumer = grant.consumer
        if consumer is not None:
            consumer.credit += 1
            consumer.in_flight -= 1
            if not consumer.is_available and consumer.offer():
                self.dirty[queue] = None
        self._free_slots(message)
        return grant

    def unlease_all(self, grant: Grant, messages: list[Message]) -> None:
        """End the leases of messages that are under one grant, as `unlease` does for each."""
        queue = grant.queue
        leases = queue.leases
        for message in messages:
            del leases[message.number]
            message.grant = None
            if message.lane.limiters:
                self._free_slots(message)
        count = len(messages)
        grant.left -= count
        consumer = grant.consumer
        if consumer is not None:
            consumer.credit += count
            consumer.in_flight -= count
            if not consumer.is_available and consumer.offer():
                self.dirty[queue] = None

    def _free_slots(self, message: Message) -> None:
        for limiter in message.lane.limiters:
            limiter.in_flight -= 1
            if limiter.limit and limiter.in_flight == limiter.limit - 1:
                self.lines.freed(limiter)
            if not limiter.lanes:
                self.throttles.rest(limiter)

    def retire(self, grant: Grant) -> bool:
        """Let go of a grant that no message is under any more; return whether it is."""
        if grant.left:
            return False
        self.leases.discard(grant)
        self.grants.pop(grant.number, None)
        renewals = self.renewals.get(grant.token)
        if renewals is not None:
            renewals.pop(grant, None)
            if not renewals:
                del self.renewals[grant.token]
        grant.messages = []
        return True

    # --- Gone with their queue --------------------------------------------------------------------

    def dismantle(self, queue: Queue) -> Iterator[int]:
        """Let go of everything in a deleted queue, yielding for each message that it held."""
        while queue.leases:
            _, message = queue.leases.popitem()
            queue.leases[message.number] = message
            self.forget_life(message)
            self.retire(self.unlease(message))
            yield 1
        while queue.delayed:
            message = next(iter(queue.delayed.values()))
            self.forget_life(message)
            self.undelay(message)
            yield 1
        while queue.keys:
            lane = next(iter(next(iter(queue.keys.values())).lanes.values()))
            while lane:
                waiting = self.pop(lane)
                if isinstance(waiting, Message):
                    self.forget_life(waiting)
                yield 1
        while queue.resting:
            self.forget_rested(queue, 1)
            yield 1
        self.dirty.pop(queue, None)
        self.usages.forget(queue)
