# SPDX-License-Identifier: AGPL-3.0-only
"""Lanes meeting limiters: admitting a delivery, parking a lane, waking the front of a line.

Works on lanes, keys and limiters; knows nothing of consumers, leases or storage.
"""

from __future__ import annotations

from heapq import heappop, heappush

from fila_server.core.lane import FairnessKey, Lane
from fila_server.core.queue import Queue
from fila_server.core.throttle import FOREVER, Limiter, Line, Throttles


def admit(throttles: Throttles, lane: Lane, now_ns: int) -> bool:
    """Take one delivery's tokens from all the lane's limiters, or park the lane and take none."""
    woken = lane.passes > 0
    cost = lane.cost
    queue = lane.key.queue
    for limiter in lane.limiters:
        if not woken:
            line = limiter.lines.get(queue)
            if line is not None and line.lanes:  # others wait here already: stand behind them
                _park(throttles, lane, limiter, now_ns)
                return False
        if limiter.blocked_until(cost, now_ns):
            _park(throttles, lane, limiter, now_ns)
            return False
    for limiter in lane.limiters:
        limiter.take(cost, now_ns)
        throttles.touched[limiter] = None
    if woken:
        lane.passes -= 1
        lane.turn -= 1
        parked_on = lane.parked_on
        assert parked_on is not None
        parked_on.line(queue).awake -= 1
        if lane.passes == 0:
            lane.parked_on = None
    else:
        lane.turn = 0
    return True


def _park(throttles: Throttles, lane: Lane, limiter: Limiter, now_ns: int) -> None:
    """Stand in the limiter's line.

    A lane whose turn was cut short by an empty bucket keeps its place.
    """
    keeps_place = lane.turn > 0 and lane.parked_on in (limiter, None)
    leave(lane)
    line = limiter.line(lane.key.queue)
    if keeps_place:
        line.lanes.appendleft(lane)
    else:
        lane.turn = 0
        line.lanes.append(lane)
    lane.parked_on = limiter
    lane.is_ready = False
    limiter.blocked_count += 1
    lane.key.queue.throttled += len(lane.messages)
    watch(throttles, line, now_ns)


def leave(lane: Lane) -> None:
    """Give back the passes of a woken lane: it emptied, or parks somewhere else."""
    if lane.passes:
        assert lane.parked_on is not None
        lane.parked_on.line(lane.key.queue).awake -= lane.passes
        lane.passes = 0
    lane.parked_on = None


def unpark(lane: Lane) -> None:
    """Take a parked lane out of its line, to be made ready or dropped by the caller."""
    limiter = lane.parked_on
    if limiter is not None and not lane.is_ready:
        line = limiter.line(lane.key.queue)
        line.lanes.remove(lane)
        lane.key.queue.throttled -= len(lane.messages)
    leave(lane)
    lane.turn = 0


def watch(throttles: Throttles, line: Line, now_ns: int) -> None:
    """See to it that the line is looked at when its limiter can let something through."""
    limiter = line.limiter
    until = limiter.blocked_until(line.lanes[0].cost, now_ns)
    if until == 0:
        line.queue.due_lines[line] = None
    elif until != FOREVER and (limiter.timer_ns == 0 or until < limiter.timer_ns):
        limiter.timer_ns = until
        heappush(throttles.timers, (until, limiter.name))


def fire_timers(throttles: Throttles, now_ns: int) -> list[Queue]:
    """Mark the lines of every limiter whose time has come; return the queues they are in."""
    woken: list[Queue] = []
    timers = throttles.timers
    while timers and timers[0][0] <= now_ns:
        at, name = heappop(timers)
        limiter = throttles.limiters.get(name)
        if limiter is not None and limiter.timer_ns == at:
            limiter.timer_ns = 0
            woken.extend(mark_due(limiter))
    return woken


def mark_due(limiter: Limiter) -> list[Queue]:
    """Mark the limiter's lines as worth a look; return their queues, longest unserved first."""
    queues = []
    for queue, line in limiter.lines.items():
        if line.lanes:
            queue.due_lines[line] = None
            queues.append(queue)
    return queues


def wake(throttles: Throttles, queue: Queue, now_ns: int) -> Queue | None:
    """Pass as many deliveries to the front of each due line as its limiter has room for.

    Where a limiter's turn is another queue's, return that one: it is to be asked first.
    """
    first: Queue | None = None
    for line in list(queue.due_lines):
        limiter = line.limiter
        if len(limiter.lines) > 1 and line.awake == 0:
            whose = _whose_turn(limiter, queue)
            if whose is not queue:
                first = whose
                continue
        was_served = False
        while line.lanes:
            lane = line.lanes[0]
            room = limiter.room(lane.cost, now_ns) - line.awake
            if room <= 0:
                break
            line.lanes.popleft()
            queue.throttled -= len(lane.messages)
            if lane.key.is_paused:  # it must not hold passes that others could use
                lane.parked_on = None
                make_ready(lane)
                continue
            if lane.turn <= 0:
                lane.turn = lane.key.weight
            lane.passes = min(lane.turn, room, len(lane.messages))
            line.awake += lane.passes
            was_served = True
            make_ready(lane)
        if not line.lanes:
            del queue.due_lines[line]
        elif line.awake == 0:
            del queue.due_lines[line]
            watch(throttles, line, now_ns)
        # Between queues the limiter serves in turn: this one goes to the end.
        if was_served and len(limiter.lines) > 1:
            limiter.lines[queue] = limiter.lines.pop(queue)
    return first


def _whose_turn(limiter: Limiter, queue: Queue) -> Queue:
    """Return the queue that has waited longest of those that could use the limiter now."""
    for other, line in limiter.lines.items():
        if other is queue or (line.lanes and other.available and not other.paused):
            return other
    return queue


def pause(key: FairnessKey) -> None:
    """Take the key out of the round. Passes that it holds go back to those who can use them."""
    key.is_paused = True
    for lane in key.ready:
        leave(lane)
    if key.in_ring:
        key.in_ring = False
        key.deficit = 0
        key.queue.ring.remove(key)


def make_ready(lane: Lane) -> None:
    """Let the lane take part in its key's turns."""
    key = lane.key
    if not lane.is_ready:
        lane.is_ready = True
        key.ready.append(lane)
    join(key)


def join(key: FairnessKey) -> None:
    """Let the key take part in the round in progress, unless it is paused or has nothing ready."""
    if not key.in_ring and key.ready and not key.is_paused:
        key.in_ring = True
        key.queue.ring.append(key)
