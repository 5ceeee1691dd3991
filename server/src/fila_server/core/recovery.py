# SPDX-License-Identifier: AGPL-3.0-only
"""Rebuilding memory from what is stored: queues, pending, delayed and leased messages, limits.

Payloads stay on disk. A plain pending message becomes a number in its lane, so a million of them
cost seconds and tens of megabytes.
"""

from __future__ import annotations

from typing import NamedTuple

from fila_server.core import dead_letter, keys, records, settings
from fila_server.core.clock import NS_PER_MS, Now
from fila_server.core.lane import Lane, lane_key_of
from fila_server.core.message import Grant, Message
from fila_server.core.queue import Queue
from fila_server.core.records_pb2 import Head, Lease, Retry, StoredQueue
from fila_server.core.state import State
from fila_server.core.throttle import Limiter
from fila_server.storage.api import Column, Write

_END = b"\xff" * 16


class Recovered(NamedTuple):
    """What recovery found, for the log."""

    queues: int
    messages: int
    leases: int


def recover(state: State, now: Now) -> tuple[Recovered, list[Write]]:
    """Fill an empty state. Return what was found, and writes that clear away leases of no use."""
    _numbers(state)
    by_number = _queues(state)
    _config(state, now)
    keys.load(state)
    retries = {
        key: Retry.FromString(value) for key, value in state.read.scan(Column.RETRIES, b"", _END)
    }
    leased, grants, stale = _leases(state, by_number, retries, now)
    total = 0
    for queue in by_number.values():
        total += _messages(state, queue, retries, leased, now)
    for grant in grants:
        if grant.left:
            state.leases.push(grant.deadline_ns, grant.number, grant)
        else:
            stale.append((Column.LEASES, grant.queue.prefix + records.u64(grant.number), None))
    for limiter in state.throttles.limiters.values():
        limiter.in_flight = sum(
            limiter.name in message.lane.throttle_keys
            for queue in state.queues.values()
            if not queue.dead_letter_of
            for message in queue.leases.values()
        )
    held = sum(len(queue.leases) for queue in state.queues.values())
    return Recovered(len(state.queues), total, held), stale


def _numbers(state: State) -> None:
    message, queue = state.read.get_many(Column.STATE, [records.NEXT_NUMBER, records.NEXT_QUEUE])
    if message is not None:
        state.next_number = state.reserved_number = records.from_u64(message)
    if queue is not None:
        state.next_queue = records.from_u64(queue)


def _queues(state: State) -> dict[int, Queue]:
    by_number: dict[int, Queue] = {}
    for _, value in state.read.scan(Column.QUEUES, b"", _END):
        stored = StoredQueue.FromString(value)
        queue = Queue(stored.number, stored.name, stored.config, stored.dead_letter_of)
        queue.paused = stored.paused
        queue.paused_keys = set(stored.paused_keys)
        state.queues[queue.name] = queue
        by_number[queue.number] = queue
    return by_number


def _config(state: State, now: Now) -> None:
    """Load runtime configuration and put it to work, with buckets as full as by now."""
    for key, value in state.read.scan(Column.STATE, records.CONFIG, b"d"):
        state.config[key[1:].decode()] = value.decode()
    for key_text in list(state.config):
        setting = settings.parse_key(key_text)
        if setting is not None:
            settings.apply(state, setting, now)
    for queue in state.queues.values():
        dead_letter.configure(state, queue)
    for key, value in state.read.scan(Column.STATE, records.BUCKET, b"c"):
        restore_bucket(state, key[1:].decode(), value, now)


def restore_bucket(state: State, name: str, value: bytes, now: Now) -> None:
    """Set a bucket to what was stored: never fuller, so a restart loop gives no free burst."""
    full_wall_ns = records.from_u64(value[:8])
    paused_wall_ns = records.from_u64(value[8:])
    limiter = state.throttles.limiters.get(name)
    if paused_wall_ns > now.wall_ns:
        limiter = settings.ensure(state, name)
        limiter.paused_until_ns = now.mono_at(paused_wall_ns)
    if limiter is not None and limiter.interval_ps:
        missing_ns = min(full_wall_ns - now.wall_ns, limiter.burst_ps // 1000 + 1)
        limiter.full_ps = (now.mono_ns + max(0, missing_ns)) * 1000


def bucket_record(limiter: Limiter, now: Now) -> Write:
    """Return what to store of a bucket: when it will be full, and until when it rests."""
    shift = now.wall_ns - now.mono_ns
    full_wall_ns = max(0, -(-limiter.full_ps // 1000) + shift)
    paused_wall_ns = limiter.paused_until_ns + shift if limiter.paused_until_ns else 0
    # A large burst at a tiny rate is full long after the end of what fits.
    value = records.u64(min(full_wall_ns, records.U64_MAX)) + records.u64(max(0, paused_wall_ns))
    return Column.STATE, records.BUCKET + limiter.name.encode(), value


def _leases(
    state: State, by_number: dict[int, Queue], retries: dict[bytes, Retry], now: Now
) -> tuple[dict[bytes, Grant], list[Grant], list[Write]]:
    """Return the grant that each leased message is under, all grants, and leases of no queue.

    A later grant, or a retry, voids an earlier grant.
    """
    leased: dict[bytes, Grant] = {}
    grants: list[Grant] = []
    stale: list[Write] = []
    for key, value in state.read.scan(Column.LEASES, b"", _END):
        queue = by_number.get(int.from_bytes(key[:4], "big"))
        if queue is None:
            stale.append((Column.LEASES, key, None))
            continue
        stored = Lease.FromString(value)
        number = records.key_number(key)
        # A wall clock that stepped back must not prolong a lease beyond what it was granted for.
        left_ns = min(stored.expires_at_ns - now.wall_ns, stored.duration_ms * NS_PER_MS)
        grant = Grant(
            number,
            stored.token,
            queue,
            None,
            [],
            now.mono_ns + max(0, left_ns),
            stored.expires_at_ns,
            stored.duration_ms,
        )
        grants.append(grant)
        for message in stored.messages:
            message_key = records.message_key(queue.number, message)
            retry = retries.get(message_key)
            if retry is None or number > retry.order:
                leased[message_key] = grant
    return leased, grants, stale


def _messages(
    state: State,
    queue: Queue,
    retries: dict[bytes, Retry],
    leased: dict[bytes, Grant],
    now: Now,
) -> int:
    """Put every stored message of a queue in its place."""
    count = 0
    plain: dict[bytes, tuple[Head, Lane]] = {}  # by head: most messages share theirs
    late: dict[
        Lane, list[Message]
    ] = {}  # retried ones: their place is not where the scan finds them
    pending: dict[Lane, list[int]] = {}
    for key, value in state.read.scan(Column.MESSAGES, *records.queue_range(queue.number)):
        count += 1
        head_bytes, stamp, body = records.split(value)
        queue.largest = max(queue.largest, len(body))
        known = plain.get(head_bytes)
        if known is None:
            head = Head.FromString(head_bytes)
            lane = queue.lane(head.fairness_key, head.weight, lane_key_of(head), state.throttles)
            known = plain[head_bytes] = (head, lane)
        head, lane = known
        if head.weight and head.fairness_key not in queue.weights:
            lane.key.weight = head.weight
        retry = retries.get(key)
        grant = leased.get(key)
        if retry is None and grant is None and not head.deliver_at_ns and not head.expires_at_ns:
            pending.setdefault(lane, []).append(records.key_number(key))
            continue
        message = _message(key, body, lane, stamp, retry)
        if head.expires_at_ns:
            state.limit_life(message, head.expires_at_ns, now)
        due_ns = retry.deliver_at_ns if retry is not None else head.deliver_at_ns
        if grant is not None:
            message.grant = grant
            grant.messages.append(message)
            grant.left += 1
            queue.leases[message.id] = message
        elif due_ns > now.wall_ns:
            state.delay(message, due_ns, now)
        else:
            late.setdefault(lane, []).append(message)
    _fill_lanes(state, queue, plain, pending, late)
    return count


def _message(key: bytes, body: bytes, lane: Lane, stamp: bytes, retry: Retry | None) -> Message:
    message = Message(key, records.body_id(body), None, lane, stamp, records.key_number(key))
    if retry is not None:
        message.attempt = retry.attempt_count
        message.order = retry.order
        extra = message.details()
        extra.error = retry.last_error
        lane.key.queue.note_error(retry.last_error)
        extra.has_retry = True
    return message


def _fill_lanes(
    state: State,
    queue: Queue,
    plain: dict[bytes, tuple[Head, Lane]],
    pending: dict[Lane, list[int]],
    late: dict[Lane, list[Message]],
) -> None:
    for lane, numbers in pending.items():
        for number in numbers:
            state.push(lane, number)
    for messages in late.values():
        state.put_back(messages)
    for lane in {id(lane): lane for _, lane in plain.values()}.values():
        if not lane.messages:  # all its messages are leased or delayed
            queue.dropped(lane)
    state.dirty[queue] = None
