# SPDX-License-Identifier: AGPL-3.0-only
"""Deficit round robin: whose message is next.

Keys with something deliverable stand in the queue's ring. A key's turn is worth weight x quantum
deliveries; when the turn is used up the key goes to the end of the ring. A key that becomes
active joins at the end of the round in progress with no deficit, and a key that can send nothing
leaves, so nobody hoards turns while throttled or idle. Each delivery costs the same with ten
keys and with 100,000.

This module alone writes `Queue.ring`, `turns` and `rounds`, `FairnessKey.ready`, `in_ring` and
`deficit`, and `Lane.is_ready` but for what parks a lane.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from fila_server.core.schedule.fifo import Pick
from fila_server.core.schedule.lane import FairnessKey, Lane

if TYPE_CHECKING:
    from fila_server.core.schedule.queue import Queue

# Takes tokens for one delivery from the lane, or parks it and returns False.
Admit = Callable[[Lane, int], bool]


class Taker(Protocol):
    """Whoever knows limits and places, asked lane by lane."""

    @property
    def admit(self) -> Admit: ...
    def step_back(self, lane: Lane) -> bool:
        """Park the lane, which has just taken its tokens, if others wait for the same ones."""

    def drop(self, lane: Lane) -> None:
        """Put a lane to rest that has nothing left."""

    def end_first(self, lane: Lane) -> None:
        """Take out the first message of a lane, whose life is over."""


def pick(queue: Queue, limit: int, patience: int, taker: Taker, now_ns: int) -> list[Pick]:
    """Take up to `limit` messages out of their lanes in the order of delivery.

    Gives up after `patience` lanes that had nothing to deliver: a turn is bounded, and a million
    keys may wait for one limiter.
    """
    picked: list[Pick] = []
    ring = queue.ring
    quantum = queue.quantum
    turns = 0
    if not queue.round_left:
        queue.round_left = len(ring)
    while limit > 0 and patience > 0 and ring:
        key = next(iter(ring))
        turn = key.deficit
        whole = key.weight * quantum
        if not 0 < turn <= whole:  # the next turn, or one that began under a larger quantum
            turn = key.deficit = whole
        if turn > limit:
            turn = limit
        lanes = key.ready
        lane = next(iter(lanes))
        if len(lanes) > 1 or lane.limiters or lane.aside:
            taken, refused = _take_turn(lanes, turn, patience, picked, taker, now_ns)
            patience -= refused
        else:  # most keys have one lane, no limits, and messages that come as they went in
            fifo = lane.fifo
            taken = fifo.size
            if taken > turn:
                taken = turn
            fifo.take(lane, taken, picked)
            if not fifo.size:
                lanes.clear()
                lane.is_ready = False
                taker.drop(lane)
        limit -= taken
        key.deficit -= taken
        key.pending -= taken
        key.delivered += taken
        key.usage.delivered += taken
        if not lanes:
            drop(key)
            turns += 1
        elif key.deficit <= 0:
            ring.move_to_end(key)
            turns += 1
    queue.pending -= len(picked)
    if turns:
        _count_turns(queue, turns)
    return picked


def _count_turns(queue: Queue, turns: int) -> None:
    """Note that keys had their turns; when each has had one, a round is over."""
    queue.turns += turns
    queue.round_left -= turns
    if queue.round_left <= 0:
        size = max(1, len(queue.ring))
        rounds, begun = divmod(-queue.round_left, size)
        queue.rounds += 1 + rounds
        queue.round_left = size - begun if begun else 0


def _take_turn(
    lanes: OrderedDict[Lane, None],
    turn: int,
    patience: int,
    picked: list[Pick],
    taker: Taker,
    now_ns: int,
) -> tuple[int, int]:
    """Take up to a turn's messages from the lanes, one each in turn.

    Returns how many came, and how often a lane had none to deliver.
    """
    admit = taker.admit
    left = turn
    refused = 0
    while left > 0 and lanes and refused < patience:
        lane = next(iter(lanes))
        if lane.aside and lane.has_ended(now_ns):
            taker.end_first(lane)
            refused += 1
            continue
        if lane.limiters and not admit(lane, now_ns):
            del lanes[lane]
            refused += 1
            continue
        if lane.aside:
            waiting = lane.pop()
            picked.append((lane, waiting) if isinstance(waiting, int) else waiting)
        else:
            lane.fifo.take(lane, 1, picked)
        left -= 1
        if not lane:
            del lanes[lane]
            lane.is_ready = False
            taker.drop(lane)
        elif lane.limiters and taker.step_back(lane):
            del lanes[lane]
        elif len(lanes) > 1:
            lanes.move_to_end(lane)
    return turn - left, refused


def make_ready(lane: Lane) -> None:
    """Let the lane take part in its key's turns."""
    key = lane.key
    if not lane.is_ready:
        lane.is_ready = True
        key.ready[lane] = None
    if not key.in_ring and not key.is_paused:
        key.in_ring = True
        key.deficit = 0
        key.queue.ring[key] = None


def join(key: FairnessKey) -> None:
    """Let the key take part in the round in progress, unless it is paused or has nothing ready."""
    if not key.in_ring and key.ready and not key.is_paused:
        key.in_ring = True
        key.deficit = 0
        key.queue.ring[key] = None


def drop(key: FairnessKey) -> None:
    """Take the key out of the round: it is paused, or has nothing ready."""
    if key.in_ring:
        key.in_ring = False
        del key.queue.ring[key]


def unready(lane: Lane) -> None:
    """Take a lane out of its key's turns that was emptied other than by deliveries."""
    lane.is_ready = False
    del lane.key.ready[lane]
    if not lane.key.ready:
        drop(lane.key)


def return_turn(lane: Lane, turn_left: int) -> None:
    """Undo the latest delivery from a lane, which was put back: it is next again.

    `turn_left` is what was left of its key's turn after that delivery. Deliveries are undone last
    first, so keys and lanes get back the order that they had. A key whose turn is whole has undone
    all of it, and what is undone now ended the turn before.
    """
    key = lane.key
    if lane.is_ready:
        key.ready.move_to_end(lane, last=False)
    if key.in_ring:
        whole = key.weight * key.queue.quantum
        key.deficit = turn_left + 1 if turn_left < whole else 1
        key.queue.ring.move_to_end(key, last=False)


def reweigh(key: FairnessKey, weight: int) -> None:
    """Change the key's weight, for the turn in progress too."""
    key.weight = weight
    key.deficit = min(key.deficit, weight * key.queue.quantum)
