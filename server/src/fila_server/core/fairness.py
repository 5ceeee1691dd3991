# SPDX-License-Identifier: AGPL-3.0-only
"""Deficit round robin: whose message is next.

Keys with something deliverable stand in the queue's ring. A key's turn is worth weight x quantum
deliveries; when the turn is used up the key goes to the end of the ring. A key that becomes
active joins at the end of the round in progress, and a key that can send nothing leaves with no
deficit, so nobody hoards turns while throttled or idle. Each delivery costs the same with ten
keys and with 100,000.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fila_server.core.lane import Lane
from fila_server.core.message import Message
from fila_server.core.parking import admit, leave
from fila_server.core.queue import Queue
from fila_server.core.throttle import Throttles

# A message to deliver: itself, or its lane and number when only the disk has it.
Pick = Message | tuple[Lane, int]


def pick(queue: Queue, limit: int, throttles: Throttles, now_ns: int) -> list[Pick]:
    """Take up to `limit` messages out of their lanes in the order of delivery."""
    picked: list[Pick] = []
    append = picked.append
    ring = queue.ring
    quantum = queue.quantum
    while limit > 0 and ring:
        key = ring[0]
        turn = key.deficit
        if turn <= 0:
            turn = key.deficit = key.weight * quantum
        if turn > limit:
            turn = limit
        lanes = key.ready
        lane = lanes[0]
        if len(lanes) > 1 or lane.limiters:
            taken = _take_turn(queue, lanes, turn, append, throttles, now_ns)
        else:  # most keys have one lane and no limits
            messages = lane.messages
            taken = len(messages)
            if taken > turn:
                taken = turn
            for _ in range(taken):
                message = messages.popleft()
                append((lane, message) if message.__class__ is int else message)  # type: ignore[arg-type]
            if not messages:
                lanes.popleft()
                _emptied(queue, lane)
        limit -= taken
        key.deficit -= taken
        key.pending -= taken
        key.delivered += taken
        if not lanes:
            ring.popleft()
            key.in_ring = False
            key.deficit = 0
        elif key.deficit <= 0:
            ring.rotate(-1)
    queue.pending -= len(picked)
    return picked


def _take_turn(
    queue: Queue,
    lanes: deque[Lane],
    turn: int,
    append: Callable[[Pick], None],
    throttles: Throttles,
    now_ns: int,
) -> int:
    """Take up to a turn's messages from the lanes, one each in turn; return how many came."""
    left = turn
    while left > 0 and lanes:
        lane = lanes[0]
        if lane.limiters and not admit(throttles, lane, now_ns):
            lanes.popleft()
            continue
        messages = lane.messages
        message = messages.popleft()
        append((lane, message) if message.__class__ is int else message)  # type: ignore[arg-type]
        left -= 1
        if not messages:
            lanes.popleft()
            _emptied(queue, lane)
        elif len(lanes) > 1:
            lanes.rotate(-1)
    return turn - left


def _emptied(queue: Queue, lane: Lane) -> None:
    lane.is_ready = False
    leave(lane)
    queue.dropped(lane)
