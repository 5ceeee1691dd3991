# SPDX-License-Identifier: AGPL-3.0-only
"""Rebuilding memory from what is stored: queues, pending, delayed and leased messages, limits.

Payloads stay on disk. A plain pending message becomes a number in its lane, so a million of them
cost seconds and some nine megabytes.

Deadlines are stored by the wall clock, which may be behind by years when a machine starts. So each
is bounded by how long it was meant to last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fila_server.core.admin import api_keys
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.schedule.message import Grant, Message, Origin, token_of
from fila_server.core.schedule.queue import Queue
from fila_server.core.traffic.definition import configure
from fila_server.core.traffic.delivery import store_lease
from fila_server.core.wire import records
from fila_server.core.wire.records_pb2 import Head, Lease, Retry, StoredBucket, StoredQueue
from fila_server.storage.api import Column

if TYPE_CHECKING:
    from fila_server.core.schedule.lane import Lane
    from fila_server.core.schedule.limiter import Limiter
    from fila_server.core.state import State
    from fila_server.core.turn import Turn

_END = b"\xff" * 16


class Recovered(NamedTuple):
    """What recovery found, for the log."""

    queues: int
    messages: int
    leases: int


def recover(state: State, turn: Turn) -> Recovered:
    """Fill an empty state. The turn's batch clears away leases of no use."""
    _numbers(state)
    by_number = _queues(state, turn.now)
    _settings(state, turn)
    api_keys.load(state)
    leased, grants = _leases(state, by_number, turn)
    total = 0
    for queue in by_number.values():
        total += _messages(state, queue, leased, turn)
    for grant in grants:
        if grant.messages:
            is_thinned = grant.left > len(grant.messages)
            state.places.lease(grant)
            if grant.token != token_of(grant.number):
                state.places.note_renewal(grant)
            grant.left = len(grant.messages)
            if is_thinned:  # so that a record names no message that is under another grant
                store_lease(grant, turn)
        else:
            turn.batch.delete(Column.LEASES, grant.queue.prefix + records.u64(grant.number))
    for queue in state.queues.values():
        for message in queue.leases.values():
            for limiter in message.lane.limiters:
                limiter.in_flight += 1
    _buckets(state, turn)
    held = sum(len(queue.leases) for queue in state.queues.values())
    return Recovered(len(state.queues), total, held)


def _numbers(state: State) -> None:
    message, queue = state.read.get_many(Column.STATE, [records.NEXT_NUMBER, records.NEXT_QUEUE])
    if message is not None:
        state.next_number = state.reserved_number = records.from_u64(message)
    if queue is not None:
        state.next_queue = records.from_u64(queue)


def _queues(state: State, now: Now) -> dict[int, Queue]:
    by_number: dict[int, Queue] = {}
    for _, value in state.read.scan(Column.QUEUES, b"", _END):
        stored = StoredQueue.FromString(value)
        queue = Queue(stored.number, stored.name, stored.config, stored.dead_letter_of)
        if stored.paused:
            queue.pause(now.mono_ns)
        queue.paused_keys = set(stored.paused_keys)
        state.queues[queue.name] = queue
        by_number[queue.number] = queue
    return by_number


def _settings(state: State, turn: Turn) -> None:
    for key, value in state.read.scan(Column.STATE, records.CONFIG, b"d"):
        state.settings.put(key[1:].decode(), value.decode())
    for queue in state.queues.values():
        configure(state, queue, strict=False)


def _left_ns(until_wall_ns: int, meant_ns: int, now: Now) -> int:
    """Return how much is left of a time that ends by the wall clock, however that was set."""
    return max(0, min(until_wall_ns - now.wall_ns, meant_ns))


# --- Limits ---------------------------------------------------------------------------------------


def _buckets(state: State, turn: Turn) -> None:
    """Set buckets to what was stored: never fuller, so a restart loop gives no free burst."""
    now = turn.now
    for key, value in state.read.scan(Column.STATE, records.BUCKET, b"c"):
        stored = StoredBucket.FromString(value)
        limiter = state.throttles.limiter(key[1:].decode(), now.mono_ns)
        limiter.is_stored = True
        if limiter.interval_ps:
            terms = state.settings.throttle(limiter.name)
            if stored.rate:  # else it is of a version before, which did not tell
                limiter.configure(stored.rate, stored.burst, 0, "", now.mono_ns)
            missing_ns = _left_ns(stored.full_at_ns, limiter.burst_ps // 1000 + 1, now)
            limiter.full_ps = (now.mono_ns + missing_ns) * 1000
            limiter.configure(*terms, now.mono_ns)
        left_ns = _left_ns(stored.paused_until_ns, stored.pause_ms * NS_PER_MS, now)
        if left_ns:
            until_ns = now.mono_ns + left_ns
            limiter.pause(until_ns, stored.pause_ms, now.mono_ns, by_operator=stored.paused)
        if stored.held:
            limiter.hold()
    for limiter in state.throttles.limiters.values():
        state.throttles.rest(limiter)


def store_bucket(limiter: Limiter, turn: Turn) -> None:
    """Store what is to be remembered of a limiter beside its settings, or that there is nothing."""
    now = turn.now
    key = records.BUCKET + limiter.name.encode()
    if not limiter.is_held and limiter.idle_at_ns() <= now.mono_ns:
        if limiter.is_stored:
            limiter.is_stored = False
            turn.batch.delete(Column.STATE, key)
        return
    shift = now.wall_ns - now.mono_ns
    stored = StoredBucket(held=limiter.is_held)
    if limiter.interval_ps:
        # A large burst at a tiny rate is full long after the end of what fits.
        full_ns = max(0, -(-limiter.full_ps // 1000) + shift)
        stored.full_at_ns = min(full_ns, records.U64_MAX)
        stored.rate, stored.burst = limiter.rate, limiter.burst
    if limiter.paused_until_ns > now.mono_ns:
        stored.paused_until_ns = max(0, limiter.paused_until_ns + shift)
        stored.pause_ms = limiter.pause_ms
        stored.paused = limiter.is_paused
    limiter.is_stored = True
    turn.batch.put(Column.STATE, key, stored.SerializeToString())


# --- Leases and messages --------------------------------------------------------------------------


class _Pasts:
    """What is stored of a queue's failed messages, asked for in the order of their keys.

    One at a time is in memory: dead letters are many, and each has errors of some kilobytes.
    """

    def __init__(self, state: State, queue: Queue) -> None:
        self._rows = state.read.scan(Column.RETRIES, *records.queue_range(queue.number))
        self._next = next(self._rows, None)

    def at(self, key: bytes) -> Retry | None:
        while self._next is not None and self._next[0] < key:
            self._next = next(self._rows, None)
        if self._next is None or self._next[0] != key:
            return None
        return Retry.FromString(self._next[1])


def _leases(
    state: State, by_number: dict[int, Queue], turn: Turn
) -> tuple[dict[bytes, Grant], list[Grant]]:
    """Return the grant that each leased message is under, and all grants.

    A later grant, or a retry, voids an earlier grant.
    """
    now = turn.now
    leased: dict[bytes, Grant] = {}
    grants: list[Grant] = []
    for key, value in state.read.scan(Column.LEASES, b"", _END):
        queue = by_number.get(int.from_bytes(key[:4], "big"))
        if queue is None:
            turn.batch.delete(Column.LEASES, key)
            continue
        stored = Lease.FromString(value)
        number = records.key_number(key)
        left_ns = _left_ns(stored.expires_at_ns, stored.duration_ms * NS_PER_MS, now)
        grant = Grant(
            number,
            stored.token,
            queue,
            None,
            [],
            now.mono_ns,
            now.mono_ns + left_ns,
            stored.expires_at_ns,
            stored.duration_ms,
        )
        grant.left = len(stored.messages)
        grants.append(grant)
        keys = [records.message_key(queue.number, message) for message in stored.messages]
        pasts = state.read.get_many(Column.RETRIES, keys)
        for message_key, past in zip(keys, pasts, strict=True):
            if past is not None:
                retry = Retry.FromString(past)
                if number < max(retry.order, retry.since):
                    continue
            leased[message_key] = grant
    return leased, grants


def _messages(state: State, queue: Queue, leased: dict[bytes, Grant], turn: Turn) -> int:
    """Put every stored message of a queue in its place."""
    now = turn.now
    places = state.places
    count = 0
    pasts = _Pasts(state, queue)
    plain: dict[bytes, tuple[Head, Lane]] = {}  # by head: most messages share theirs
    for key, value in state.read.scan(Column.MESSAGES, *records.queue_range(queue.number)):
        count += 1
        head_bytes, stamp, body = records.split(value)
        if len(body) > queue.largest:
            queue.largest = len(body)
        known = plain.get(head_bytes)
        if known is None:
            head = Head.FromString(head_bytes)
            known = plain[head_bytes] = (head, _lane(state, queue, head, now))
        head, lane = known
        if head.weight and head.weight != lane.key.asked_weight:
            _lane(state, queue, head, now)  # the latest decides
        retry = pasts.at(key)
        grant = leased.get(key)
        number = records.key_number(key)
        is_cold = retry is None or (bool(queue.dead_letter_of) and retry.order == number)
        if is_cold and grant is None and not head.deliver_at_ns and not head.expires_at_ns:
            if retry is None:
                places.append(lane, number)
            else:
                places.insert(lane, number, number)
            continue
        message = _message(number, body, lane, stamp, retry)
        if head.expires_at_ns:
            since_ns = head.expires_at_ns - records.stamp_ns(stamp)
            meant_ns = head.ttl_ms * NS_PER_MS or since_ns
            left_ns = _left_ns(head.expires_at_ns, meant_ns, now)
            places.limit_life(message, head.expires_at_ns, now.mono_ns + left_ns)
        if grant is not None:
            grant.messages.append(message)
            continue
        if retry is None:
            due_ns = head.deliver_at_ns
            meant_ns = due_ns - records.stamp_ns(stamp)
        else:
            due_ns, meant_ns = retry.deliver_at_ns, retry.delay_ms * NS_PER_MS
        left_ns = _left_ns(due_ns, meant_ns, now)
        if left_ns:
            places.delay(message, due_ns, now.mono_ns + left_ns)
        else:
            places.insert(lane, message.order, message)
    for _, lane in plain.values():
        if lane.key.lanes.get(lane.lane_key) is lane:
            places.rest_if_empty(lane)  # all its messages are leased or delayed
    return count


def _lane(state: State, queue: Queue, head: Head, now: Now) -> Lane:
    lane_key = records.lane_key_of(head)
    return state.places.lane(queue, head.fairness_key, head.weight, lane_key, now.mono_ns)


def _message(number: int, body: bytes, lane: Lane, stamp: bytes, retry: Retry | None) -> Message:
    message = Message(number, None, lane, Origin(stamp, records.cut(body)[0]))
    if retry is not None:
        extra = message.details()
        extra.attempt = retry.attempt_count
        extra.order = retry.order
        extra.has_retry = True
    return message
