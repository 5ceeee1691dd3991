# SPDX-License-Identifier: AGPL-3.0-only
"""Why something waits: the reasons that hold now, how many deliveries come first, and when.

Reads the state and changes nothing. What blocks comes before what only orders: paused, then
limits, then consumers without credit, then the turn. The number of deliveries ahead is what the
scheduler would do if nothing else arrived; the time is that number at the pace seen lately, or
at the rate of the bucket that everybody waits for.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from fila.v1 import admin_pb2 as pb
from fila_server.core.clock import NS_PER_S, Now
from fila_server.core.commands import Admin
from fila_server.core.lane import FairnessKey, Lane
from fila_server.core.message import Message
from fila_server.core.names import shown
from fila_server.core.operate import find_lane
from fila_server.core.queue import Queue
from fila_server.core.records import split
from fila_server.core.records_pb2 import Head
from fila_server.core.state import State
from fila_server.core.throttle import FOREVER, Limiter
from fila_server.errors import InvalidArgument, MessageNotFound

if TYPE_CHECKING:
    from fila_server.core.effects import Effects

# Keys, lanes or delayed messages that one answer looks at; the rest is taken to be like them. So
# the answer takes milliseconds with 100,000 keys too.
_LOOKED = 10_000


class Place(NamedTuple):
    """Where in a lane the next delivery in question stands."""

    lane: Lane
    position: int


def explain(state: State, command: Admin, now: Now, effects: Effects) -> Any:
    request: pb.ExplainRequest = command.request  # type: ignore[assignment]
    queue = state.queue(request.queue)
    if request.message_id:
        return _explain_message(state, queue, request.message_id, now)
    if not request.fairness_key:
        raise InvalidArgument("name what to explain: a fairness_key or a message_id")
    return _explain_key(queue, request.fairness_key, now)


# --- One message
# -----------------------------------------------------------------------------------


def _explain_message(state: State, queue: Queue, message_id: str, now: Now) -> pb.ExplainResponse:
    leased = queue.leases.get(message_id)
    if leased is not None:
        return _leased(leased, now)
    delayed = queue.delayed.get(message_id)
    if delayed is not None:
        return _delayed(delayed, now)
    value = state.find(queue, message_id)
    lane = None if value is None else find_lane(queue, Head.FromString(split(value)[0]))
    index = None if lane is None else _index(lane, message_id)
    if lane is None or index is None:
        raise MessageNotFound(f'no message "{shown(message_id)}" in queue "{queue.name}"')
    response = _waiting(queue, Place(lane, index), f"message {message_id}", now)
    response.state = pb.MESSAGE_STATE_PENDING
    return response


def _index(lane: Lane, message_id: str) -> int | None:
    number = int(message_id[24:], 16)
    for index, waiting in enumerate(lane.messages):
        if (waiting.id if isinstance(waiting, Message) else waiting) in (message_id, number):
            return index
    return None


def _leased(message: Message, now: Now) -> pb.ExplainResponse:
    grant = message.grant
    assert grant is not None
    until_ns = now.wall_ns + grant.deadline_ns - now.mono_ns
    response = _answer(message.lane, pb.MESSAGE_STATE_LEASED)
    detail = f"a consumer has it; its lease ends {_when(until_ns, now)}"
    _add(response, pb.WAIT_KIND_LEASED, detail, until_ns=until_ns)
    response.summary = f"message {message.id} does not wait: {detail}"
    return response


def _delayed(message: Message, now: Now) -> pb.ExplainResponse:
    assert message.extra is not None
    due_ns = message.extra.due_ns
    response = _answer(message.lane, pb.MESSAGE_STATE_DELAYED)
    detail = f"delayed until {_when(due_ns, now)}"
    _add(response, pb.WAIT_KIND_DELAYED, detail, until_ns=due_ns)
    response.estimated_at.FromNanoseconds(due_ns)
    response.summary = f"message {message.id} is {detail}"
    return response


def _answer(lane: Lane, state: pb.MessageState) -> pb.ExplainResponse:
    name = lane.key.name
    key = lane.key.queue.keys.get(name)
    return pb.ExplainResponse(
        fairness_key=name, pending_count=key.pending if key is not None else 0, state=state
    )


# --- One fairness key
# ------------------------------------------------------------------------------


def _explain_key(queue: Queue, name: str, now: Now) -> pb.ExplainResponse:
    key = queue.keys.get(name)
    if key is not None:
        return _waiting(queue, Place(_first_lane(key, now), 0), f'key "{shown(name)}"', now)
    response = pb.ExplainResponse(fairness_key=name)
    looked = islice(queue.delayed.values(), _LOOKED)
    times = [it.extra.due_ns for it in looked if it.lane.key.name == name and it.extra is not None]
    if not times:
        response.summary = f'nothing of key "{shown(name)}" waits in queue "{queue.name}"'
        return response
    due_ns = min(times)
    detail = f"delayed until {_when(due_ns, now)}"
    _add(response, pb.WAIT_KIND_DELAYED, detail, until_ns=due_ns, count=len(times))
    response.estimated_at.FromNanoseconds(due_ns)
    response.summary = f'the next message of key "{shown(name)}" is {detail}'
    return response


def _first_lane(key: FairnessKey, now: Now) -> Lane:
    """Return the lane that the key's next delivery comes from: a ready one, else the soonest."""
    if key.ready:
        return next((lane for lane in key.ready if not _blocked(lane, now)), key.ready[0])
    return min(
        islice(key.lanes.values(), _LOOKED),
        key=lambda lane: max(
            (it.blocked_until(lane.cost, now.mono_ns) for it in lane.limiters), default=0
        ),
    )


# --- What holds a pending message back
# --------------------------------------------------------------


def _waiting(queue: Queue, place: Place, subject: str, now: Now) -> pb.ExplainResponse:
    lane = place.lane
    response = _answer(lane, pb.MESSAGE_STATE_UNSPECIFIED)
    _add_pauses(response, queue, lane.key)
    for limiter in _blocked(lane, now):
        _add_limit(response, limiter, lane, now)
    if not any(consumer.credit > 0 for consumer in queue.consumers):
        _add_no_credit(response, queue)
    is_held = bool(response.reasons)
    ahead = response.ahead = _ahead(place, now)
    if ahead:
        noun = "delivery comes" if ahead == 1 else "deliveries come"
        _add(response, pb.WAIT_KIND_TURN, f"{ahead} {noun} first", count=ahead)
    if queue.hooks is not None and queue.hooks.stats().circuit_open:
        detail = "the queue's hook fails and is bypassed, so messages run under the default key"
        _add(response, pb.WAIT_KIND_HOOK_BYPASSED, detail)
    _estimate(response, queue, lane, is_held, now)
    details = "; ".join(reason.detail for reason in response.reasons)
    if is_held or ahead:
        response.summary = f"{subject} waits: {details}"
    else:
        response.summary = f"{subject} is next{': ' + details if details else ''}"
    return response


def _blocked(lane: Lane, now: Now) -> list[Limiter]:
    return [it for it in lane.limiters if it.blocked_until(lane.cost, now.mono_ns)]


def _add_pauses(response: pb.ExplainResponse, queue: Queue, key: FairnessKey) -> None:
    if queue.paused:
        detail = f'queue "{queue.name}" is paused; fila queue resume {queue.name}'
        _add(response, pb.WAIT_KIND_PAUSED, detail)
    if key.is_paused:
        detail = f'key "{shown(key.name)}" is paused in queue "{queue.name}"'
        _add(response, pb.WAIT_KIND_PAUSED, detail)


def _add_limit(response: pb.ExplainResponse, limiter: Limiter, lane: Lane, now: Now) -> None:
    name = shown(limiter.name)
    until_ns = limiter.blocked_until(lane.cost, now.mono_ns)
    if limiter.paused_until_ns > now.mono_ns:
        wall_ns = now.wall_ns + until_ns - now.mono_ns
        detail = (
            f'a consumer asked to leave throttle key "{name}" alone until {_when(wall_ns, now)}'
        )
        kind, count, limit = pb.WAIT_KIND_BACKPRESSURE, 0, 0
    elif until_ns == FOREVER:
        wall_ns = 0
        count, limit = limiter.in_flight, limiter.limit
        detail = f'{count} of {limit} messages with throttle key "{name}" are leased'
        kind = pb.WAIT_KIND_CONCURRENCY
    else:
        wall_ns = now.wall_ns + until_ns - now.mono_ns
        count, limit = 0, int(limiter.burst)
        rate = f"{limiter.rate:g} per second"
        detail = f'throttle key "{name}" ({rate}) is used up until {_when(wall_ns, now)}'
        kind = pb.WAIT_KIND_THROTTLED
    _add(response, kind, detail, limiter.name, wall_ns, count, limit)


def _add_no_credit(response: pb.ExplainResponse, queue: Queue) -> None:
    count = len(queue.consumers)
    if not count:
        detail = f'nobody consumes queue "{queue.name}"'
    elif count == 1:
        detail = "the only consumer has as many messages in flight as it asked for"
    else:
        detail = f"all {count} consumers have as many messages in flight as they asked for"
    _add(response, pb.WAIT_KIND_NO_CREDIT, detail, count=count)


def _add(
    response: pb.ExplainResponse,
    kind: pb.WaitKind,
    detail: str,
    throttle_key: str = "",
    until_ns: int = 0,
    count: int = 0,
    limit: int = 0,
) -> None:
    reason = response.reasons.add(
        kind=kind, detail=detail, throttle_key=throttle_key, count=count, limit=limit
    )
    if until_ns:
        reason.until.FromNanoseconds(until_ns)


# --- How many come first, and when
# -----------------------------------------------------------------


def _ahead(place: Place, now: Now) -> int:
    """Return the deliveries that come before the one at this place."""
    lane = place.lane
    if lane.parked_on is not None and not lane.is_ready:
        return _ahead_in_line(place, lane.parked_on)
    key = lane.key
    before = _before_in_key(place, now)
    quantum = key.queue.quantum
    # The deliveries of the turn in progress, then whole turns.
    left = before + 1 - key.deficit
    rounds = max(0, -(-left // (key.weight * quantum)))
    if key.queue.ring and key.queue.ring[0] is key and rounds == 0:
        return before
    others = 0
    looked = 0
    is_before = True  # those that stand before it in the ring have one turn more
    for other in islice(key.queue.ring, _LOOKED):
        looked += 1
        if other is key:
            is_before = False
            continue
        turns = max(rounds, 1) if is_before else max(rounds - 1, 0)
        others += min(other.pending, turns * other.weight * quantum)
    if looked < len(key.queue.ring):
        others = others * len(key.queue.ring) // looked
    return before + others


def _before_in_key(place: Place, now: Now) -> int:
    """Return the deliveries of the same key that come first: its lanes take turns, one each."""
    before = place.position
    is_before = True
    for lane in islice(place.lane.key.ready, _LOOKED):
        if lane is place.lane:
            is_before = False
        elif not _blocked(lane, now):
            before += min(len(lane.messages), place.position + is_before)
    return before


def _ahead_in_line(place: Place, limiter: Limiter) -> int:
    """Return the deliveries that the limiter lets through first: lanes take turns by weight."""
    line = limiter.lines.get(place.lane.key.queue)
    before = place.position
    if line is None:
        return before
    turns = place.position // place.lane.key.weight + 1
    is_before = True
    for lane in islice(line.lanes, _LOOKED):
        if lane is place.lane:
            is_before = False
            continue
        before += min(len(lane.messages), (turns if is_before else turns - 1) * lane.key.weight)
    return before


def _estimate(
    response: pb.ExplainResponse, queue: Queue, lane: Lane, is_held: bool, now: Now
) -> None:
    """Set when the delivery is expected, if what holds it back ends at a known time."""
    until_ns = now.wall_ns
    slowest_s = 0.0
    for reason in response.reasons:
        if reason.kind == pb.WAIT_KIND_THROTTLED:
            limiter = next(it for it in lane.limiters if it.name == reason.throttle_key)
            until_ns = max(until_ns, reason.until.ToNanoseconds())
            slowest_s = max(slowest_s, lane.cost / limiter.rate)
        elif reason.kind == pb.WAIT_KIND_BACKPRESSURE:
            until_ns = max(until_ns, reason.until.ToNanoseconds())
        elif reason.kind in _UNKNOWABLE:
            return
    pace = queue.pace.per_second(now.mono_ns)
    if response.ahead and not slowest_s:
        credit = sum(max(0, consumer.credit) for consumer in queue.consumers)
        if pace:
            slowest_s = 1 / pace
        elif not is_held and response.ahead >= credit:
            return  # nothing was delivered lately, so there is no pace to go by
    response.estimated_at.FromNanoseconds(until_ns + int(response.ahead * slowest_s * NS_PER_S))


_UNKNOWABLE = frozenset((pb.WAIT_KIND_PAUSED, pb.WAIT_KIND_CONCURRENCY, pb.WAIT_KIND_NO_CREDIT))


def _when(wall_ns: int, now: Now) -> str:
    """Return a time as people read it: how far off. The exact time is in the data."""
    seconds = max(0.0, (wall_ns - now.wall_ns) / NS_PER_S)
    if seconds < 120:
        return f"{seconds:.1f} s from now"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min from now"
    return f"{seconds / 3600:.1f} h from now"
