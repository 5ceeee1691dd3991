# SPDX-License-Identifier: AGPL-3.0-only
"""Deficit round robin: whose message is next.

Keys with something deliverable stand in the queue's ring. A key's turn is worth weight x quantum
deliveries; when the turn is used up the key goes to the end of the ring. A key that becomes
active joins at the end of the round in progress, and a key that can send nothing leaves with no
deficit, so nobody hoards turns while throttled or idle. Each delivery costs the same with ten
keys and with 100,000.
"""

from __future__ import annotations

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
    ring = queue.ring
    while limit > 0 and ring:
        key = ring[0]
        if key.deficit <= 0:
            key.deficit = key.weight * queue.quantum
        turn = min(key.deficit, limit)
        left = turn
        lanes = key.ready
        while left > 0 and lanes:
            lane = lanes[0]
            messages = lane.messages
            if lane.limiters and not admit(throttles, lane, now_ns):
                lanes.popleft()
                continue
            message = messages.popleft()
            picked.append((lane, message) if message.__class__ is int else message)  # type: ignore[arg-type]
            left -= 1
            if not messages:
                lanes.popleft()
                lane.is_ready = False
                leave(lane)
                queue.dropped(lane)
            elif len(lanes) > 1:
                lanes.rotate(-1)
        taken = turn - left
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
