# SPDX-License-Identifier: AGPL-3.0-only
"""Lanes meeting limiters: who is admitted, who waits in which line, who is woken next.

The states of a lane that has messages, and what moves it:

    ready    stands in its key's turns                      line is None, is_ready
    parked   waits in the line of one limiter               line is set,  not is_ready
    awake    ready, and still counted in that line          line is set,  is_ready

    ready  -> parked   a limiter has no room, or others wait there already      admit, step_back
    parked -> awake    the limiter has room and this lane is first in line       look
    awake  -> ready    it took its tokens                                        admit
    awake  -> parked   another of its limiters has no room, or this one again    admit
    parked, awake -> ready   its key is paused, so that it holds up nobody       release
    any    -> gone     its last message left                                     leave

A lane waits at one limiter at a time. When it is woken it asks all its limiters again and takes
from all or from none, so a token is never held for somebody who cannot use it. Whatever a lane
leaves without using it (a place in line, a turn between queues) marks the line as due, and a due
line is looked at before the turn ends. So no lane waits beside a token that it could have.

Within a queue, lanes share a limiter by weight: each has a virtual time there, its tag, which a
delivery moves on by cost / weight, and the smallest tag is next (self-clocked fair queueing). Tags
begin at the lines' own time when a lane begins to wait for anything, and then only deliveries move
them: a lane that is sent from line to line loses nothing by it, and gains nothing, since it goes
before anybody is served. A lane that another limiter holds back falls behind the line's time here:
it is owed, and goes before all that are not. It is owed a few turns at most: nobody hoards. Which
of those that are owed is first is for the limiter that holds them back to say, so they stand by
what each has had in all, its level, and not by when they came. Where there is room for many at
once, those are woken that would be next if they were served one by one: a lane of much weight has
several deliveries before one of little has its first. Between queues the limiter serves in turn.

A queue that nobody takes messages from has no turn: its lines stand apart, due, until it is served
again. So a delivery asks as many queues as can deliver, not all that wait.

Stepping back for others happens at most once between two deliveries of a lane, so that a turn ends.
Works on lanes, keys and limiters; knows nothing of consumers, leases or storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from fila_server.core.schedule import ring
from fila_server.core.schedule.held import Held
from fila_server.core.schedule.limiter import FOREVER, Limiter, Throttles

if TYPE_CHECKING:
    from fila_server.core.schedule.lane import Lane
    from fila_server.core.schedule.queue import Queue

# Virtual time of a delivery of cost 1 and weight 1. Weights up to 1000 divide it well enough.
_UNIT = 1 << 32
# How far a lane's time may be behind a line's: what it is owed is so many turns of its weight.
# Less than one is too little to make up for a delivery that came before its time.
_OWED_MOST = 4 * _UNIT
_OWED = -1  # stands for the tag of a lane that is owed: before every tag


# Lanes of one line that are awake at a time. More are woken as these are served.
_MOST_AWAKE = 64


class Line:
    """The lanes of one queue that wait at one limiter, first in line first."""

    __slots__ = ("awake", "clock", "horizon", "level", "limiter", "queue", "waiting")

    def __init__(self, limiter: Limiter, queue: Queue) -> None:
        self.limiter = limiter
        self.queue = queue
        self.waiting: SortedDict[tuple[int, int, int], Lane] = SortedDict()  # see `_place`
        self.awake = 0
        # Nobody beyond this place is woken while anybody is awake, who would be next before it.
        self.horizon = (0, 0, 0)
        self.clock = limiter.clock  # virtual time: the largest tag that was served here
        self.level = limiter.level  # the most that a lane which was served here has had


def _step(lane: Lane) -> int:
    """Return by how much a delivery moves a lane's tag on."""
    return lane.cost * _UNIT // lane.key.weight


def _times(limiter: Limiter, line: Line | None) -> tuple[int, int]:
    """Return the clock and the level that count at a limiter: its line's, if there is one."""
    return (limiter.clock, limiter.level) if line is None else (line.clock, line.level)


def _tag(lane: Lane, at: int, clock: int) -> int:
    """Return a lane's virtual time at a limiter after its next delivery."""
    return max(lane.tags[at] + _step(lane), clock - _OWED_MOST)


def _place(tag: int, level: int, clock: int, arrival: int) -> tuple[int, int, int]:
    """Return where a lane stands that would have this tag and level after its next delivery."""
    return (_OWED, level, arrival) if tag <= clock else (tag, 0, arrival)


def _is_first(lane: Lane, line: Line) -> bool:
    """Whether a lane was woken in this line, and nobody before it has come since."""
    if lane.line is not line:
        return False
    return not line.waiting or lane.ticket < line.waiting.peekitem(0)[0]


def _line(limiter: Limiter, queue: Queue) -> Line | None:
    """Return a queue's line at a limiter; one that stood apart takes part again, as the last."""
    line = limiter.lines.get(queue)
    if line is None and limiter.unserved:
        line = limiter.unserved.pop(queue, None)
        if line is not None:
            limiter.lines[queue] = line
    return line


class Lines:
    """The lines of all limiters."""

    __slots__ = ("_arrivals", "deferred", "dirty", "now_ns", "throttles", "units")

    def __init__(self, throttles: Throttles, dirty: dict[Queue, None]) -> None:
        self.throttles = throttles
        self.dirty = dirty  # queues in which something may have become deliverable
        # Lines that stepped back for another queue: due again once that one was asked.
        self.deferred: dict[Line, None] = {}
        self.units = 0  # lanes and lines touched; whoever counts a turn's work resets it
        self.now_ns = 0  # when the turn under way began
        self._arrivals = 0

    # --- A lane whose turn it is ------------------------------------------------------------------

    def admit(self, lane: Lane, now_ns: int) -> bool:
        """Take one delivery's tokens from all the lane's limiters, or park it and take none.

        Returns False when it was parked; the caller takes it out of its key's turns.
        """
        cost = lane.cost
        queue = lane.key.queue
        for limiter in lane.limiters:
            if limiter.is_free and not limiter.lines:
                continue
            if limiter.blocked_until(cost, now_ns):
                limiter.blocked_count += 1
                limiter.usage.blocked += 1
                limiter.blocked.count(1, now_ns)
                self._park(lane, limiter)
                return False
            if (limiter.lines or limiter.unserved) and not lane.yielded:
                line = _line(limiter, queue)
                if line is not None and not _is_first(lane, line):
                    lane.yielded = True
                    self._due(self._park(lane, limiter))  # the tags decide who is next
                    return False
                if self._is_turn_of_another(limiter, queue):
                    lane.yielded = True
                    self.deferred[self._park(lane, limiter)] = None
                    return False
        self._take(lane, queue, now_ns)
        return True

    def step_back(self, lane: Lane) -> bool:
        """Let a lane that has been served stand in line again where others wait.

        At once and not when its turn comes again: else somebody could be woken before it who comes
        after it. The caller takes it out of its key's turns.
        """
        queue = lane.key.queue
        for limiter in lane.limiters:
            if limiter.lines or limiter.unserved:
                line = _line(limiter, queue)
                if line is not None:
                    lane.yielded = True
                    self._due(self._park(lane, limiter))
                    return True
        return False

    def _take(self, lane: Lane, queue: Queue, now_ns: int) -> None:
        if not lane.goes_on:
            self._begin(lane)
        touched = self.throttles.touched
        step = _step(lane)
        level = lane.level + step
        lowest = -1  # level where it has its share already: it must not stay behind that for long
        for at, limiter in enumerate(lane.limiters):
            limiter.take(lane.cost, now_ns)
            if limiter.interval_ps:
                touched[limiter] = None
            if limiter.is_free:
                continue
            line = _line(limiter, queue) if limiter.lines or limiter.unserved else None
            clock, reached = _times(limiter, line)
            tag = lane.tags[at] + step
            if tag > clock:
                # One that it alone uses says nothing about others.
                if (lowest < 0 or reached < lowest) and len(limiter.lanes) > 1:
                    lowest = reached
                if line is not None:
                    line.clock = tag
                if tag > limiter.clock:
                    limiter.clock = tag
            elif tag < clock - _OWED_MOST:
                tag = clock - _OWED_MOST
            lane.tags[at] = tag
            if level > reached:
                if line is not None:
                    line.level = level
                if level > limiter.level:
                    limiter.level = level
            if line is not None:
                lines = limiter.lines
                if len(lines) > 1:
                    lines[queue] = lines.pop(queue)  # served: behind the other queues
        lane.level = level if level > lowest - _OWED_MOST else lowest - _OWED_MOST
        lane.yielded = False
        if lane.line is not None:
            self.leave(lane)

    def _begin(self, lane: Lane) -> None:
        """Let a lane that had nothing to deliver join all its limiters as of now: nobody hoards.

        Once, and not whenever it is parked: else one that waits here and there in turn would begin
        again each time, behind all that have been served. Its level is that of the limiter at which
        others have had least, since that is likely where it will have its share.
        """
        lane.goes_on = True
        lowest = -1
        for at, limiter in enumerate(lane.limiters):
            clock, level = _times(limiter, _line(limiter, lane.key.queue))
            lane.tags[at] = max(lane.tags[at], clock)
            if not limiter.is_free and len(limiter.lanes) > 1 and (lowest < 0 or level < lowest):
                lowest = level
        lane.level = max(lane.level, lowest)

    def _is_turn_of_another(self, limiter: Limiter, queue: Queue) -> bool:
        """Whether another queue has waited longer and could use the limiter now."""
        while limiter.lines:
            other, line = next(iter(limiter.lines.items()))
            if other is queue:
                return False
            self._due(line)
            if other.can_deliver:
                return True
            self.units += 1
            limiter.unserved[other] = limiter.lines.pop(other)
        return False

    def _park(self, lane: Lane, limiter: Limiter) -> Line:
        """Stand in the limiter's line. A lane that was woken there keeps its place."""
        queue = lane.key.queue
        line = _line(limiter, queue)
        self.units += 1
        lane.is_ready = False
        self._hold(lane, limiter)
        if line is None or lane.line is not line:
            if lane.line is not None:
                lane.line.awake -= 1
                self._settle(lane.line)
            if line is None:
                line = limiter.lines[queue] = Line(limiter, queue)
            self._arrivals += 1
            if not lane.goes_on:
                self._begin(lane)
            tag = _tag(lane, lane.limiters.index(limiter), line.clock)
            lane.ticket = _place(tag, lane.level + _step(lane), line.clock, self._arrivals)
            lane.line = line
        else:
            line.awake -= 1
            self._due(line)  # the room that it was woken for may be enough for who is first now
        waiting = line.waiting
        waiting[lane.ticket] = lane
        if waiting.peekitem(0)[1] is lane:
            self._due(line)  # so that it is watched
        return line

    def _hold(self, lane: Lane, limiter: Limiter) -> None:
        """Note what a lane waits for from now on: a slot, or tokens."""
        if limiter.limit and limiter.in_flight >= limiter.limit:
            held, other = lane.held_by_limit, lane.held_by_rate
            if held is None:
                held = lane.held_by_limit = Held()
        else:
            held, other = lane.held_by_rate, lane.held_by_limit
            if held is None:
                held = lane.held_by_rate = Held()
        held.begin(self.now_ns)
        if other is not None:
            other.end(self.now_ns)

    def _free(self, lane: Lane) -> None:
        """Note that a lane waits for no limiter from now on."""
        for held in (lane.held_by_rate, lane.held_by_limit):
            if held is not None:
                held.end(self.now_ns)

    # --- Lines ------------------------------------------------------------------------------------

    def look(self, queue: Queue, now_ns: int, limit: int) -> None:
        """Wake the front of each due line of the queue, as far as its limiter has room.

        Beyond so many units the rest stays due: all lanes of a line may have to move to another.
        """
        due = queue.due_lines
        while due and self.units < limit:
            line, _ = due.popitem()
            _line(line.limiter, queue)
            limiter, waiting = line.limiter, line.waiting
            self.units += 1
            while waiting and line.awake < _MOST_AWAKE:
                if self.units >= limit:
                    due[line] = None
                    return
                lane = waiting.peekitem(0)[1]
                if lane.key.is_paused:  # it must not hold a place that others could use
                    self.units += 1
                    self.release(lane)
                    continue
                until_ns = limiter.blocked_until(lane.cost, now_ns)
                if until_ns:
                    self._watch(limiter, until_ns)
                    break
                if limiter.room(lane.cost, now_ns) <= line.awake:
                    break
                if line.awake and lane.ticket > line.horizon:
                    break
                self.units += 1
                waiting.popitem(0)
                elsewhere = self._elsewhere(lane, limiter, now_ns)
                if elsewhere is not None:
                    lane.line = None
                    self._due(self._park(lane, elsewhere))
                    continue
                again = self._again(lane, line)
                line.horizon = min(again, line.horizon) if line.awake else again
                line.awake += 1
                self._free(lane)
                ring.make_ready(lane)
            if not waiting and not line.awake:
                self._settle(line)

    def _again(self, lane: Lane, line: Line) -> tuple[int, int, int]:
        """Return where a lane will stand after the delivery that it is woken for, at the latest."""
        step = _step(lane)
        tag = _tag(lane, lane.limiters.index(line.limiter), line.clock)
        return _place(tag + step, lane.level + 2 * step, line.clock, FOREVER)

    def _elsewhere(self, lane: Lane, here: Limiter, now_ns: int) -> Limiter | None:
        """Return another limiter that a lane is to wait at first, so that its tag counts there."""
        queue = lane.key.queue
        for limiter in lane.limiters:
            if limiter is here or (limiter.is_free and not limiter.lines):
                continue
            if limiter.blocked_until(lane.cost, now_ns):
                return limiter
            if not lane.yielded and _line(limiter, queue) is not None:
                lane.yielded = True
                return limiter
        return None

    def _watch(self, limiter: Limiter, until_ns: int) -> None:
        """See to it that the limiter's lines are looked at when it has room again."""
        timers = self.throttles.timers
        if until_ns != FOREVER and until_ns < timers.time_of(limiter, FOREVER):
            timers.set(limiter, until_ns)

    def fire(self, now_ns: int, limit: int) -> None:
        """Mark the lines of limiters whose time has come."""
        for limiter in self.throttles.timers.due(now_ns, limit):
            self.freed(limiter)

    def freed(self, limiter: Limiter) -> None:
        """Note that a limiter may have more room than before."""
        for line in limiter.lines.values():
            self._due(line)
            self.units += 1

    def leave(self, lane: Lane) -> None:
        """Take a lane out of its line: it took its turn, or has nothing left to deliver."""
        line = lane.line
        if line is None:
            return
        lane.line = None
        if lane.is_ready:
            line.awake -= 1
        else:
            del line.waiting[lane.ticket]
        self._settle(line)

    def release(self, lane: Lane) -> None:
        """Let a lane of a paused key wait for its key alone."""
        self.leave(lane)
        self._free(lane)
        ring.make_ready(lane)

    def _settle(self, line: Line) -> None:
        """Look at a line again that somebody left, or drop it when nobody is there."""
        if line.waiting:
            self._due(line)
        elif not line.awake and _line(line.limiter, line.queue) is line:
            del line.limiter.lines[line.queue]
            line.queue.due_lines.pop(line, None)
            self.deferred.pop(line, None)

    def _due(self, line: Line) -> None:
        line.queue.due_lines[line] = None
        self.dirty[line.queue] = None
